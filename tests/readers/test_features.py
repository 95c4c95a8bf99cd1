"""Columns as features: names, numbers and ranges, categories as scikit-learn has them, and what contradicts itself."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr
from numpy.typing import NDArray
from sklearn.datasets import make_blobs
from sklearn.preprocessing import OneHotEncoder
from test_bad_input import refused

from ips2_dask import BadInput, Features, Params, Resources, open_run, run, sweep
from ips2_dask.cli.main import main
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.readers import open_source
from ips2_dask.readers import text as text_reader
from ips2_dask.readers.columns import select_columns
from ips2_dask.readers.features import MOST_CATEGORIES, FittedFeatures, joined_list, split_list
from ips2_dask.reports import command

Array = NDArray[Any]
NAMES = ["a", "b", "c-d", "c", "d", "e", "7"]


def frame(m: int = 60, seed: int = 0) -> pd.DataFrame:
    """Numbers, text with blanks, quotes, commas and other letters, numbers that are categories, and a class."""
    rng = np.random.default_rng(seed)
    kinds = np.array(["tcp", "udp", 'say "hi"', "a, b", "漢字", "Zebra"])
    known = np.arange(m) % 3
    return pd.DataFrame(
        {
            "x": rng.normal(size=m) + 6 * known,
            "kind": kinds[rng.integers(0, 6, m)],
            "n": rng.integers(0, 9, m),
            "code": np.array([10, 2, -1])[rng.integers(0, 3, m)],
            "y": rng.normal(size=m),
            "flag": rng.random(m) < 0.5,
            "class": np.array(["p", "q", "r"])[known],
        }
    )


def written(kind: str, table: pd.DataFrame, folder: Path) -> Any:
    if kind == "frame":
        return table
    path = folder / f"x.{kind}"
    if kind == "parquet":
        table.to_parquet(path, index=False, row_group_size=17)
    else:
        table.to_csv(path, index=False, sep="\t" if kind == "tsv" else ",")
    return path


def whole(source: Any) -> Array:
    X: Array = source.read(0, source.shape[0])
    return X


@pytest.mark.parametrize("kind", ["frame", "csv", "tsv", "csv.gz", "parquet"])
def test_categories_are_those_of_scikit_learn_in_every_format(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_reader, "PIECE_BYTES", 300)
    monkeypatch.setattr(text_reader, "LINES_PER_BLOCK", 1)
    table = frame()
    features = Features(drop_columns="y,flag", one_hot=["kind", "code"])
    source = open_source(written(kind, table, tmp_path), labels_column="class", features=features)
    encoder = OneHotEncoder(sparse_output=False).fit(table[["kind", "code"]])
    encoded = encoder.transform(table[["kind", "code"]])
    titles = list(encoder.get_feature_names_out())
    expected = pd.DataFrame(encoded, columns=titles).assign(x=table["x"], n=table["n"])
    order = ["x", *titles[:6], "n", *titles[6:]]
    assert source.feature_names == order
    np.testing.assert_array_equal(whole(source), expected[order].to_numpy())
    np.testing.assert_array_equal(np.concatenate(list(source.blocks(7))), whole(source))
    np.testing.assert_array_equal(source.read(13, 41), whole(source)[13:41])
    labels = source.labels()
    assert labels is not None
    assert labels.tolist() == table["class"].tolist()
    np.testing.assert_array_equal(whole(pickle.loads(pickle.dumps(source))), whole(source))


ARRAYS: dict[str, Callable[[Array, Path], Any]] = {
    "array": lambda X, folder: X,
    "npy": lambda X, folder: (np.save(folder / "x.npy", X), folder / "x.npy")[1],
    "npz": lambda X, folder: (np.savez_compressed(folder / "x.npz", X=X), folder / "x.npz")[1],
    "zarr": lambda X, folder: zarr.create_array(str(folder / "x.zarr"), data=X, chunks=(7, 2)),
    "hdf5": lambda X, folder: (
        h5py.File(folder / "x.h5", "w").create_dataset("X", data=X).file.close(),
        folder / "x.h5",
    )[1],
    "memmap": lambda X, folder: (np.save(folder / "x.npy", X), np.load(folder / "x.npy", mmap_mode="r"))[1],
    "text": lambda X, folder: (np.savetxt(folder / "x.csv", X, delimiter=","), folder / "x.csv")[1],
}


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("label", [None, 2])
def test_arrays_are_selected_and_encoded_by_number(kind: str, label: int | None, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    X = np.column_stack([rng.normal(size=40), rng.integers(0, 4, 40), np.arange(40) % 3, rng.normal(size=(40, 3))])
    X[:, 1] = X[:, 1] * 1.5 - 3
    X[::7, 1] = -0.0
    source = open_source(
        ARRAYS[kind](X, tmp_path), labels_column=label, features=Features(columns=[1, "3-4", -1, 3], one_hot=[1])
    )
    encoder = OneHotEncoder(sparse_output=False).fit(X[:, [1]])
    np.testing.assert_array_equal(whole(source), np.column_stack([encoder.transform(X[:, [1]]), X[:, 3:]]))
    assert source.feature_names is not None
    assert source.feature_names[-3:] == ["x3", "x4", "x5"]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (["a"], [0]),
        ([0], [0]),
        (["0"], [0]),
        ([-1], [6]),
        (["-2"], [5]),
        (["7"], [6]),
        ([7 - 1], [6]),
        (["1-3"], [1, 2, 3]),
        (["a-b"], [0, 1]),
        (["c-d"], [2]),
        (["b-c-d"], [1, 2]),
        (["c-d-e"], [2, 3, 4, 5]),
        (["e", "a", "e"], [0, 5]),
        (["0-2", "2-3"], [0, 1, 2, 3]),
        (np.array([1, 2]), [1, 2]),
        ("a,2", [0, 2]),
        (range(2, 4), [2, 3]),
    ],
)
def test_columns_are_named_numbered_and_ranged(asked: Any, expected: list[int]) -> None:
    assert select_columns("x.csv", Features(columns=asked), NAMES, len(NAMES)).kept == tuple(expected)
    left = tuple(place for place in range(7) if place not in expected)
    assert select_columns("x.csv", Features(drop_columns=asked), NAMES, len(NAMES)).kept == left


WRONG: dict[str, tuple[list[str], str]] = {
    "unknown": (["--columns", "knd"], "found no column 'knd'"),
    "near": (["--one-hot", "kinds"], "the nearest names are kind"),
    "number": (["--drop-columns", "7"], "no column 7, as there are 7"),
    "range": (["--columns", "0-9"], "no column 9, as there are 7"),
    "backwards": (["--columns", "y-x"], "ends before it begins"),
    "kept-and-dropped": (["--columns", "x,n", "--drop-columns", "n"], "column 2 ('n') both in columns and"),
    "encoded-and-dropped": (["--one-hot", "kind", "--drop-columns", "1"], "column 1 ('kind') both in one_hot and"),
    "encoded-not-kept": (["--columns", "x,y", "--one-hot", "kind"], "column 1 ('kind') in one_hot, which is not in"),
    "encoded-label": (["--one-hot", "class"], "column 6 ('class') in one_hot and as the labels_column"),
    "kept-label": (["--columns", "x-class", "--one-hot", "kind"], "column 6 ('class') in columns and as the labels"),
    "all-dropped": (["--drop-columns", "0-5"], "all 7 columns dropped"),
    "text": (["--drop-columns", "flag"], "text in 1 column (column 1 ('kind'))"),
    "empty": (["--columns", "x,,y"], "--columns: found an empty entry"),
    "nothing": (["--drop-columns", ""], "--drop-columns: found an empty entry"),
    "quotes": (["--columns", '"x,y'], "a quote that does not end"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_columns_is_one_line_and_status_2(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written("csv", frame(), tmp_path)
    options, said = WRONG[case]
    for verb in (["run", str(path), "--out", str(tmp_path / "run"), "--serial"], ["plan", str(path)]):
        assert said in refused([*verb, "--clusters", "3", "--labels-column", "class", *options], capsys)
    assert not (tmp_path / "run").exists()


def test_two_columns_of_a_name_and_a_range_of_two_meanings_are_unclear() -> None:
    with pytest.raises(BadInput, match=r"2 columns named 'a'"):
        select_columns("x", Features(columns=["a"]), ["a", "b", "a"], 3)
    with pytest.raises(BadInput, match="a range in 2 ways"):
        select_columns("x", Features(columns=["a-b-c"]), ["a", "b-c", "a-b", "c"], 4)


@pytest.mark.parametrize(
    "given",
    [
        {"columns": []},
        {"columns": 3},
        {"one_hot": [1.5]},
        {"drop_columns": [True]},
        {"missing": "mean"},
        {"columns": [None]},
    ],
)
def test_a_record_of_something_else_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=next(iter(given))):
        Features(**given)


def test_records_are_plain_values_and_lists_come_back() -> None:
    features = Features(columns='a,"b, c",2', one_hot=["a"], missing="drop")
    assert features.columns == ("a", "b, c", "2")
    assert Features(**json.loads(json.dumps(features.as_dict()))) == features
    assert split_list(joined_list(features.columns), "columns") == features.columns
    source: Any = open_source(frame(), labels_column="class", features=Features(one_hot="kind,code,flag"))
    assert FittedFeatures.of_dict(json.loads(json.dumps(source.fitted.as_dict()))) == source.fitted


@pytest.mark.parametrize("kind", ["frame", "csv", "parquet"])
def test_a_column_of_names_by_mistake_is_refused(kind: str, tmp_path: Path) -> None:
    m = MOST_CATEGORIES + 1
    table = pd.DataFrame({"x": np.arange(m), "name": [f"row{i}" for i in range(m)]})
    with pytest.raises(BadInput, match=r"more than 1,000 categories in column .*name"):
        open_source(written(kind, table, tmp_path), features=Features(one_hot="name"))
    table = table[:-1]
    (tmp_path / f"x.{kind}").unlink(missing_ok=True)
    source = open_source(written(kind, table, tmp_path), features=Features(one_hot="name"))
    assert source.shape == (1000, 1001)
    assert source.resident_bytes <= 8 * table.size  # codes of the categories, not a feature for each


def test_what_has_no_categories_is_refused(dask_executor: DaskExecutor) -> None:
    X = np.random.default_rng(0).integers(0, 3, (50, 4)).astype(float)
    with pytest.raises(BadInput, match="sparse matrix with one_hot"):
        open_source(sp.csr_array(X), features=Features(one_hot=[0]))
    with pytest.raises(BadInput, match="one_hot with a Dask array"):
        open_source(da.from_array(X), features=Features(one_hot=[0]))
    with pytest.raises(BadInput, match="metric='precomputed'"):
        run(np.zeros((9, 9)), Params(n_clusters=2, metric="precomputed"), features=Features(drop_columns=[0]))
    for spec in (sp.csr_array(X), da.from_array(X, chunks=(20, 2))):
        source = open_source(spec, labels_column=1, features=Features(columns=[0, 3]))
        np.testing.assert_array_equal(np.concatenate(list(source.blocks(11))), X[:, [0, 3]])
    lazy = da.from_array(X, chunks=(20, 2))
    found = run(lazy, Params(n_clusters=2), client=dask_executor.client, features=Features(columns=[0, 3]))
    np.testing.assert_array_equal(found.labels, run(X[:, [0, 3]], Params(n_clusters=2)).labels)


PARAMS = Params(n_clusters=3, scale="zscore")
ENCODED = Features(drop_columns="n", one_hot="kind,code,flag")


def encoded_by_hand(table: pd.DataFrame, encoder: Any) -> Array:
    """What `ENCODED` makes of a table, by scikit-learn."""
    one_hot = encoder.transform(table[["kind", "code", "flag"]])
    return np.column_stack([table["x"], one_hot[:, :9], table["y"], one_hot[:, 9:]])


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a CSV file with text, by the command line."""
    folder = tmp_path_factory.mktemp("fitted")
    path = written("csv", frame(90), folder)
    words = ["run", str(path), "--out", str(folder / "run"), "--labels-column", "class", "--clusters", "3"]
    more = ["--scale", "zscore", "--drop-columns", "n", "--one-hot", "kind,code,flag", "--serial", "--quiet"]
    assert main([*words, *more]) == 0
    return folder / "run"


def test_a_run_with_text_is_the_run_of_the_encoded_table(fitted: Path, tmp_path: Path) -> None:
    table, found = frame(90), open_run(fitted)
    encoder = OneHotEncoder(sparse_output=False).fit(table[["kind", "code", "flag"]])
    np.testing.assert_array_equal(found.labels, run(encoded_by_hand(table, encoder), PARAMS).labels)
    assert found.features is not None
    assert found.features.feature_names[:2] == ["x", "kind_Zebra"]
    assert found.report()["f"] == 2 + 6 + 3 + 2
    again = run(written("parquet", table, tmp_path), PARAMS, labels_column="class", features=ENCODED)
    np.testing.assert_array_equal(found.labels, again.labels)


@pytest.mark.parametrize("kind", ["frame", "csv", "parquet"])
def test_new_samples_are_found_by_name_and_encoded_alike(fitted: Path, kind: str, tmp_path: Path) -> None:
    found, new = open_run(fitted), frame(30, seed=5)
    encoder = OneHotEncoder(sparse_output=False).fit(frame(90)[["kind", "code", "flag"]])
    expected = run(encoded_by_hand(frame(90), encoder), PARAMS).predict_proba(encoded_by_hand(new, encoder))
    turned = new[["flag", "class", "y", "code", "kind", "x"]].assign(more="text")
    np.testing.assert_allclose(found.predict_proba(written(kind, turned, tmp_path)), expected, atol=1e-5)
    np.testing.assert_array_equal(found.predict(frame(90)), found.labels)


def test_new_samples_that_lack_a_column_or_have_a_new_category_are_refused(
    fitted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, new = open_run(fitted), frame(8)
    words = ["predict", str(fitted), str(tmp_path / "x.csv"), "--out", str(tmp_path / "labels.csv")]
    written("csv", new.drop(columns=["kind", "y"]).assign(kinds=1), tmp_path)
    assert "no column 'kind', 'y' (the nearest names are kinds)" in refused(words, capsys)
    written("csv", new.assign(kind=["tcp"] * 7 + ["tpc"]), tmp_path)
    line = refused(words, capsys)
    assert "the category 'tpc' in row 7, column 1 ('kind'), which the run has not seen" in line
    assert "tcp" in line
    written("csv", new.assign(code=[10] * 7 + [3]), tmp_path)
    assert "the category '3' in row 7, column 3 ('code')" in refused(words, capsys)
    assert not (tmp_path / "labels.csv").exists()
    strange = new.assign(kind=["tcp"] * 7 + ["tpc"], code=[10] * 7 + [3])
    encoder = OneHotEncoder(sparse_output=False, handle_unknown="ignore").fit(frame(90)[["kind", "code", "flag"]])
    by_hand = run(encoded_by_hand(frame(90), encoder), PARAMS).predict_proba(encoded_by_hand(strange, encoder))
    for kind in ("frame", "csv", "parquet"):
        probabilities = found.predict_proba(written(kind, strange, tmp_path), handle_unknown="ignore")
        np.testing.assert_allclose(probabilities, by_hand, atol=1e-5)
    written("csv", strange, tmp_path)
    assert main([*words, "--handle-unknown", "ignore", "--quiet"]) == 0
    with pytest.raises(BadInput, match="handle_unknown"):
        found.predict(strange, handle_unknown="zero")


def test_new_arrays_without_names_are_matched_by_their_number_of_columns() -> None:
    X = np.column_stack([make_blobs(60, 3, centers=3, random_state=0)[0], np.arange(60) % 3, np.arange(60)])
    found = run(X, Params(n_clusters=3), labels_column=3, features=Features(drop_columns=[0, 4]))
    for new in (X, np.delete(X, 3, axis=1), X[:, 1:3]):
        np.testing.assert_array_equal(found.predict(new), found.labels)
    with pytest.raises(BadInput, match="3 features, allowed is the 2 features of the run"):
        found.predict(X[:, :3])


def test_what_features_depend_on_is_in_the_keys_and_the_command_is_made_again(fitted: Path) -> None:
    path = fitted.parent / "x.csv"
    assert "--drop-columns n --one-hot kind,code,flag" in command(open_run(fitted))
    options = {"store": fitted, "labels_column": "class"}
    same = run(path, PARAMS, Resources(), features=ENCODED, **options)  # type: ignore[arg-type]
    assert {stage["state"] for stage in same.manifest["stages"]} == {"reused"}
    states = []
    for features in (
        Features(drop_columns="n,y", one_hot="kind,code,flag"),
        ENCODED,
        Features(drop_columns="n", one_hot="kind,code,flag", missing="median"),
    ):
        again = run(path, PARAMS, Resources(), features=features, **options)  # type: ignore[arg-type]
        states.append(again.manifest["stages"][0]["state"])
    assert states == ["computed again", "reused", "computed again"]
    made = run(frame(), PARAMS, labels_column="class", features=ENCODED)
    assert command(made).endswith("features=ips2_dask.Features(drop_columns=['n'], one_hot=['kind', 'code', 'flag']))")
    plain = run(frame()[["x", "y"]], PARAMS)
    assert plain.features is None
    assert "features" not in plain.manifest["input"]
    assert (
        plain.manifest["input"]["fingerprint"]
        == run(frame()[["x", "y"]], PARAMS, features=Features()).manifest["input"]["fingerprint"]
    )


def test_a_sweep_takes_features_too(tmp_path: Path) -> None:
    found = sweep(
        frame(),
        {"n_clusters": [3]},
        PARAMS,
        store=tmp_path / "sweep",
        labels_column="class",
        features=ENCODED,
        files=False,
    )
    best = open_run(tmp_path / "sweep")
    np.testing.assert_array_equal(best.labels, run(frame(), PARAMS, labels_column="class", features=ENCODED).labels)
    assert len(found.points) == 1
    assert best.features is not None


def test_few_columns_of_a_wide_array_are_read_in_small_pieces(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(3000, 4000))
    np.save(tmp_path / "x.npy", X)
    source = open_source(tmp_path / "x.npy", features=Features(columns=[7, 3999]))
    tracemalloc.start()
    found = source.read(0, 3000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_array_equal(found, X[:, [7, 3999]])
    assert peak < X.nbytes
