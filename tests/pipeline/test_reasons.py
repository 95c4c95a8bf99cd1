"""Why each stage of a run was reused, computed or computed again: in its report, its status, and on the console."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ips2_dask import Params, Resources, open_run, run, status
from ips2_dask.cli.main import main
from ips2_dask.pipeline.keys import MODULES
from ips2_dask.store.layout import STAGES

X = np.random.default_rng(6).normal(size=(50, 3))
FIRST = Params(n_clusters=3, operator="triplets")


@pytest.fixture(scope="module", name="first")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    place = tmp_path_factory.mktemp("first") / "run"
    run(X, FIRST, store=place)
    return place


@pytest.fixture
def directory(first: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(first, tmp_path / "run"))


def states(directory: Path) -> dict[str, str]:
    return {stage["name"]: stage["state"] for stage in status(directory)["stages"]}


def why(directory: Path) -> dict[str, str]:
    return {stage["name"]: "; ".join(stage["why"]) for stage in status(directory)["stages"]}


def test_a_first_run_computes_everything_because_nothing_was_there(first: Path) -> None:
    assert set(states(first).values()) == {"computed"}
    assert set(why(first).values()) == {"it had not been computed here"}


def test_the_same_again_reuses_everything_and_says_since_when(directory: Path) -> None:
    run(X, FIRST, store=directory)
    assert set(states(directory).values()) == {"reused"}
    assert all(text.startswith("same input, parameters and code") for text in why(directory).values())


@pytest.mark.parametrize(
    ("change", "reused", "cause"),
    [
        ({"n_clusters": 4}, 4, "n_clusters changed from 3 to 4"),
        ({"sigma": 2.0}, 2, "sigma changed from 1.0 to 2.0"),
        ({"affinity": "gaussian"}, 5, "affinity changed from heat-knn to gaussian"),
        ({"assign_labels": "kmeans"}, 6, "assign_labels changed from auto to kmeans"),
        ({"embedding": "none"}, 6, "embedding changed from spectral to none"),
        ({"tol": 1e-4}, 4, "tol changed from None to 0.0001"),
        ({"random_state": 1}, 1, "random_state changed from 0 to 1"),
        ({"n_neighbors": 6}, 2, "n_neighbors changed from 5 to 6"),
        ({"n_neighbors": 7}, 1, "stored neighbours changed from 6 to 7"),
    ],
)
def test_a_changed_parameter_is_named_by_every_stage_that_it_changes(
    change: dict[str, Any], reused: int, cause: str, directory: Path
) -> None:
    run(X, dataclasses.replace(FIRST, **change), store=directory)
    assert list(states(directory).values()) == ["reused"] * reused + ["computed again"] * (7 - reused)
    said = why(directory)
    assert said[STAGES[reused]].startswith(cause)
    for name in STAGES[reused:]:
        assert cause in said[name], name


@pytest.mark.slow
def test_changed_data_partitions_and_code_are_told_apart(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(X + 1, FIRST, store=directory)
    assert why(directory)["ingest"] == "the input changed"
    assert why(directory)["neighbors"] == "ingest changed (the input changed)"
    run(X + 1, FIRST, Resources(partition_rows=20), store=directory)
    assert why(directory)["ingest"] == "the partitions changed"
    module = MODULES["fuse"]
    newer = SimpleNamespace(VERSION=module.VERSION + 1, depends_on=module.depends_on, run=module.run)
    monkeypatch.setitem(MODULES, "fuse", newer)
    run(X + 1, FIRST, Resources(partition_rows=20), store=directory)
    assert list(states(directory).values()) == ["reused"] * 5 + ["computed again"] * 2
    text = f"its code changed from version {module.VERSION} to {newer.VERSION}"
    assert (why(directory)["fuse"], why(directory)["label"]) == (text, f"fuse changed ({text})")


class Stop:
    """Progress that stops in the middle of a stage."""

    def __init__(self, stage: str) -> None:
        self._stage = stage

    def begin(self, stage: str) -> None: ...
    def end(self, stage: str, seconds: float, skipped: bool) -> None: ...

    def advance(self, stage: str, done: int, total: int) -> None:
        if stage == self._stage and done:
            raise KeyboardInterrupt


def test_a_stage_that_an_earlier_run_had_begun_says_what_was_there(directory: Path) -> None:
    changed, resources = dataclasses.replace(FIRST, sigma=2.0), Resources(partition_rows=20)
    with pytest.raises(KeyboardInterrupt):
        run(X, changed, resources, store=directory, progress=Stop("tensor"))
    assert list(states(directory).values()) == ["computed again"] * 2 + ["to do"] * 5
    run(X, changed, resources, store=directory)
    assert "of its parts were there" in why(directory)["tensor"]
    assert "sigma changed from 1.0 to 2.0" in why(directory)["tensor"]  # though a run in between had not finished it


def test_a_deleted_folder_is_missed(directory: Path) -> None:
    shutil.rmtree(directory / open_run(directory)._context.folders["eigen"])
    run(X, FIRST, store=directory)
    assert states(directory)["eigen"] == "computed again"
    assert why(directory)["eigen"] == "its folder was gone"
    assert states(directory)["label"] == "reused"


def test_the_console_says_it_and_the_report_and_json_hold_it(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(X, dataclasses.replace(FIRST, n_clusters=2), store=directory)
    assert main(["status", str(directory), "--why"]) == 0
    printed = capsys.readouterr().out
    assert "eigen           computed again: n_clusters changed from 3 to 2" in printed
    assert "tensor          reused: same input" in printed
    assert main(["status", str(directory), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    for one, other in zip(said["stages"], found.report()["stages"], strict=True):
        assert (one["state"], one["why"]) == (other["state"], other["why"])
    assert said["running"] is None
    assert main(["status", str(directory)]) == 0
    assert "changed from" not in capsys.readouterr().out
