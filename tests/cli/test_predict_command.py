"""``ips2 predict``: each format holds the labels, scores are shown where they are known, and nothing half is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from sklearn.datasets import make_blobs

from ips2_dask import Params, open_run, run
from ips2_dask.cli.main import main

Array = npt.NDArray[Any]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on 150 samples, and 50 new ones with names and known labels."""
    folder = tmp_path_factory.mktemp("predict")
    X, y = make_blobs(200, 4, centers=3, random_state=3)
    run(X[:150], Params(n_clusters=3), store=folder / "run")
    names = [f"n{i}" for i in range(50)]
    frame = pd.DataFrame(X[150:], columns=list("abcd"), index=pd.Index(names, name="id"))
    frame.assign(known=y[150:]).to_parquet(folder / "new.parquet")
    return folder


def expected(place: Path) -> Array:
    return open_run(place / "run").predict(pd.read_parquet(place / "new.parquet").drop(columns="known"))


def predict(place: Path, out: Path, *more: str) -> int:
    given = ["predict", str(place / "run"), str(place / "new.parquet"), "--out", str(out), "--labels-column", "known"]
    return main([*given, *more])


@pytest.mark.parametrize(
    ("ending", "read"),
    [("csv", pd.read_csv), ("tsv", lambda p: pd.read_csv(p, sep="\t")), ("parquet", pd.read_parquet)],
)
def test_a_table_holds_names_labels_certainty_probabilities_and_embedding(
    place: Path, tmp_path: Path, ending: str, read: Any
) -> None:
    out = tmp_path / f"labels.{ending}"
    assert predict(place, out, "--proba", "--embedding", "--quiet") == 0
    table = read(out)
    assert table["sample"].tolist() == [f"n{i}" for i in range(50)]
    assert table["label"].tolist() == expected(place).tolist()
    assert list(table.columns[:4]) == ["sample", "label", "certainty", "p0"]
    own = table[["p0", "p1", "p2"]].to_numpy()[np.arange(50), table["label"]]
    np.testing.assert_array_equal(table["certainty"], own)
    np.testing.assert_allclose(table[["p0", "p1", "p2"]].sum(axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(np.square(table[[f"e{j}" for j in range(3 + 8)]]).sum(axis=1), 1, atol=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_certainty_stands_beside_labels_without_being_asked_for(place: Path, tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"labels.{ending}"
    assert predict(place, out, "--quiet") == 0
    table = pd.read_parquet(out) if ending == "parquet" else pd.read_csv(out, sep="\t" if ending == "tsv" else ",")
    assert list(table.columns) == ["sample", "label", "certainty"]
    new = pd.read_parquet(place / "new.parquet").drop(columns="known")
    np.testing.assert_allclose(table["certainty"], open_run(place / "run").predict_proba(new).max(axis=1), rtol=1e-6)


def test_an_array_holds_labels_alone(place: Path, tmp_path: Path) -> None:
    assert predict(place, tmp_path / "labels.npy", "--quiet") == 0
    np.testing.assert_array_equal(np.load(tmp_path / "labels.npy"), expected(place))
    assert predict(place, tmp_path / "other.npy", "--proba") == 2


def test_known_labels_are_scored(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert predict(place, tmp_path / "labels.csv", "--json") == 0
    said = capsys.readouterr().out
    assert "NMI 1.000" in said
    summary = json.loads(said.splitlines()[-1])
    assert summary["n"] == sum(summary["sizes"]) == 50


@pytest.mark.parametrize("name", ["labels.xls", "missing/labels.csv", "labels"])
def test_a_file_that_cannot_be_written_is_refused(
    place: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict(place, tmp_path / name) == 2
    assert "Remedy" in capsys.readouterr().err


def test_nothing_half_is_left_where_the_new_samples_are_refused(place: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "bad.npy", np.full((5, 4), np.nan))
    given = ["predict", str(place / "run"), str(tmp_path / "bad.npy"), "--out", str(tmp_path / "labels.csv")]
    assert main(given) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["bad.npy"]


@pytest.mark.slow
def test_workers_may_be_asked_for(place: Path, tmp_path: Path) -> None:
    assert predict(place, tmp_path / "labels.npy", "--quiet", "--workers", "2") == 0
    np.testing.assert_array_equal(np.load(tmp_path / "labels.npy"), expected(place))
