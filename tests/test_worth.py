"""A cluster is started where it has enough to do, or where it is asked for; labels are the same without one."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ips2_dask import Params, Resources, run
from ips2_dask.executors.base import Executor, Job
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.pipeline.cluster_choice import FOUNDATION, is_worth_a_cluster
from ips2_dask.pipeline.keys import keys_of
from ips2_dask.pipeline.run import run_each
from ips2_dask.plan.plan import Plan, make_plan
from ips2_dask.store.integrity import Receipt
from ips2_dask.store.layout import STAGES
from ips2_dask.store.memory_store import MemoryStore

PARAMS = Params(n_clusters=3)


class ClusterStarted(Exception):
    pass


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def start(resources: Resources) -> Iterator[Executor]:
        raise ClusterStarted(resources)
        yield

    monkeypatch.setattr("ips2_dask.clusters.executor", start)


@pytest.fixture
def finished(blobs: npt.NDArray[Any], tmp_path: Path) -> Path:
    """The directory of a finished run of the blobs."""
    run(blobs, PARAMS, store=tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.usefixtures("no_cluster")
@pytest.mark.parametrize("change", [{}, {"n_clusters": 4}, {"bandwidth": "median"}, {"tol": 1e-4}, {"max_clusters": 5}])
def test_a_little_work_on_a_finished_run_starts_no_cluster(
    change: dict[str, Any], blobs: npt.NDArray[Any], finished: Path
) -> None:
    changed = dataclasses.replace(PARAMS, **change)
    found = run(blobs, changed, store=finished, own_cluster=True)
    np.testing.assert_array_equal(found.labels, run(blobs, changed).labels)


@pytest.mark.usefixtures("no_cluster")
@pytest.mark.parametrize(
    ("change", "resources", "fresh"),
    [
        ({"sigma": 2.0}, Resources(), False),
        ({"scale": "zscore"}, Resources(), False),
        ({}, Resources(partition_rows=20), False),  # other partitions: nothing is there
        ({}, Resources(), True),
        ({}, Resources(n_workers=1), False),
        ({}, Resources(memory_limit=4 << 30), False),
        ({}, Resources(scheduler="tcp://127.0.0.1:1"), False),
    ],
)
def test_more_work_and_machines_that_are_asked_for_start_one(
    change: dict[str, Any], resources: Resources, fresh: bool, blobs: npt.NDArray[Any], finished: Path
) -> None:
    changed = dataclasses.replace(PARAMS, **change)
    with pytest.raises(ClusterStarted):
        run(blobs, changed, resources, store=finished, own_cluster=True, fresh=fresh)


@pytest.mark.usefixtures("no_cluster")
def test_a_report_of_dasks_needs_a_cluster(blobs: npt.NDArray[Any], finished: Path, tmp_path: Path) -> None:
    with pytest.raises(ClusterStarted):
        run(blobs, PARAMS, store=finished, own_cluster=True, performance_report=tmp_path / "dask.html")


def with_foundation(plan: Plan, params: Params) -> tuple[MemoryStore, dict[str, Any]]:
    keys = keys_of(params, plan.choices, plan.bounds, "an input")
    store = MemoryStore()
    for name in STAGES[:4]:
        store.put_document(f"{keys[name].folder}/stage.json", {})
    return store, keys


@pytest.mark.parametrize(("m", "worth"), [(10_000, False), (10_000_000, True)])
def test_what_is_left_of_many_samples_is_worth_a_cluster(m: int, worth: bool) -> None:
    plan = make_plan(m, 16, PARAMS)
    store, keys = with_foundation(plan, PARAMS)
    assert is_worth_a_cluster(store, [(plan, keys)]) == worth


def test_the_graph_and_the_tensor_are_always_worth_a_cluster() -> None:
    plan = make_plan(100, 4, PARAMS)
    for missing in FOUNDATION:
        store, keys = with_foundation(plan, PARAMS)
        store.remove(f"{keys[missing].folder}/stage.json")
        assert is_worth_a_cluster(store, [(plan, keys)])


@pytest.mark.parametrize("small_here", [True, False])
def test_little_that_is_left_can_be_kept_from_the_workers(
    small_here: bool, blobs: npt.NDArray[Any], dask_executor: DaskExecutor, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    stages: list[list[str]] = [[]]
    original = DaskExecutor.map

    def noted(self: DaskExecutor, job: Job, *rest: Any) -> list[Receipt]:
        stages[-1].append(job.stage)
        return original(self, job, *rest)

    monkeypatch.setattr(DaskExecutor, "map", noted)
    several = [dataclasses.replace(PARAMS, n_clusters=c) for c in (3, 30)]
    found = []
    for done in run_each(
        blobs, several, store=tmp_path / "run", client=dask_executor.client, small_here=small_here
    ):  # fmt: skip
        found.append(done.labels)
        stages.append([])
    assert "tensor" in stages[0]
    assert ("fuse" in stages[1]) != small_here
    for params, labels in zip(several, found, strict=True):
        np.testing.assert_array_equal(labels, run(blobs, params).labels)
