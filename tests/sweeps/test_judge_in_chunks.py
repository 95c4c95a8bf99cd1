"""Runs in chunks are judged as runs in core are, and large ones from drawn rows and sums over partitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import run_in_chunks
from sklearn.datasets import make_blobs

from ips2_dask import Params, Resources, Run, run
from ips2_dask.kernels.validity import replicate_rows
from ips2_dask.runs import sample
from ips2_dask.sweeps import judge
from ips2_dask.sweeps.result import JudgeSettings

SETTINGS = JudgeSettings(2, 0)


@pytest.fixture(scope="module", params=["auto", "kmeans"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """A run in core, and the same in chunks with small buckets."""
    folder = tmp_path_factory.mktemp(request.param)
    X, _ = make_blobs(300, 4, centers=3, random_state=3)
    params = Params(n_clusters=3, graph="shards", shards=4, assign_labels=request.param)
    whole = run(X, params, Resources(partition_rows=40), store=folder / "whole")
    return whole, run_in_chunks(X, params, folder / "chunks", 40, 64)


def judged(found: Run) -> dict[str, Any]:
    """The judgement without the time it took."""
    return {name: value for name, value in judge.judge_run(found, SETTINGS).items() if name != "seconds"}


@pytest.mark.slow
def test_a_run_in_chunks_is_judged_as_one_in_core(both: tuple[Run, Run]) -> None:
    whole, chunks = (judged(found) for found in both)
    assert chunks == whole


@pytest.mark.slow
def test_a_large_run_is_judged_from_drawn_rows_and_sums(both: tuple[Run, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = judged(both[0])
    monkeypatch.setattr(sample, "SHOWN", 120)
    monkeypatch.setattr(judge, "EMBEDDED_ANEW", 200)
    monkeypatch.setattr(Run, "similarity", None)  # U is not read whole
    large = [judged(found) for found in both]
    for found in large:
        assert found["labels"] == whole["labels"]
        assert (found["smallest"], found["largest"]) == (whole["smallest"], whole["largest"])
        assert found["criteria"]["modularity"] == pytest.approx(whole["criteria"]["modularity"], rel=1e-12)
        assert found["criteria"]["stability"] > 0.95


@pytest.mark.parametrize("rounding", ["kmeans", "density"])
def test_labels_that_rows_do_not_show_are_not_stable(rounding: str) -> None:
    rows, labels = make_blobs(600, 5, centers=4, random_state=1)
    rows, labels = rows.astype(np.float64), labels.astype(np.int32)
    wrong = np.random.default_rng(0).permutation(labels)
    agreements = [replicate_rows(rows, one, 4, 0, 0, rounding=rounding, width=None) for one in (labels, wrong)]
    assert agreements[0] > 0.99
    assert abs(agreements[1]) < 0.05


def test_a_subsample_follows_from_its_number_alone() -> None:
    """A subsample is another one for each number, and the same each time."""
    rng = np.random.default_rng(2)
    rows, labels = rng.normal(size=(300, 3)), rng.integers(0, 3, 300).astype(np.int32)
    found = [replicate_rows(rows, labels, 3, 0, number, rounding="kmeans", width=None) for number in (0, 1, 0)]
    assert found[0] == found[2] != found[1]
