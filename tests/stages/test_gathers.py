"""Chunked runs gather nothing: no array in the driver or a task grows with the samples at fixed rows of a partition."""

from __future__ import annotations

import threading

import gathers
import numpy as np
import pytest
from numpy.typing import NDArray

from ips2_dask.executors.base import SerialExecutor
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.kernels import parallel
from ips2_dask.store.context import Context


@pytest.mark.parametrize(
    ("small", "large", "found"),
    [
        ((1000, 8000), (2000, 16000), True),  # over all samples
        ((250, 2000), (281, 2248), False),  # the largest partition
        ((12, 96), (24, 192), False),  # one number a partition
        ((250, 12000), (250, 24000), True),  # partitions by rows
    ],
)
def test_an_array_over_all_samples_is_told_from_one_of_a_partition(
    small: tuple[int, int], large: tuple[int, int], found: bool
) -> None:
    assert gathers.grows(gathers.Size(*small), gathers.Size(*large), 1000) is found


def test_an_array_that_only_the_larger_run_has_is_a_gather_if_it_may_be_over_all_samples() -> None:
    assert gathers.grows(None, gathers.Size(2000, 16000), 1000)
    assert not gathers.grows(None, gathers.Size(1000, 64000), 1000)


def test_what_a_task_gives_to_another_thread_is_of_the_task() -> None:
    recorder, both = gathers.Recorder(), threading.Barrier(2)

    def work(low: int, high: int) -> None:
        both.wait(60)  # no thread takes both chunks
        recorder.note("made", np.zeros(2))

    def task() -> None:
        with parallel.threads(2):
            parallel.map_chunks(work, 2, 1)

    with gathers.recording(recorder):
        SerialExecutor().submit("task-0", task)
        assert [entry.role for entry in recorder.sizes if entry.what == "made"] == ["task"]
        task()
    assert sorted(entry.role for entry in recorder.sizes if entry.what == "made") == ["driver", "task"]


def test_the_result_of_a_task_that_stays_with_its_worker_is_seen() -> None:
    recorder = gathers.Recorder()
    with gathers.workers_here() as client, gathers.recording(recorder):
        executor = DaskExecutor(client)
        executor.results([executor.submit("none-0", len, [executor.submit("made-0", np.zeros, 7)])])
    assert recorder.sizes[gathers.Entry("prepare", "task", "result of made-#")] == gathers.Size(7, 56)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_grows_with_the_samples_in_a_run_of_one_process() -> None:
    _compare(gathers.gathers(), on_workers=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", gathers.CASES)
def test_nothing_grows_with_the_samples_in_a_run_with(case: str) -> None:
    assert sorted(str(entry) for entry in gathers.gathers(case=case) if gathers.reason(entry) is None) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_read_of_the_numbers_of_all_rows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    copies_at = Context.copies_at

    def whole(self: Context, samples: NDArray[np.integer]) -> NDArray[np.integer]:
        copies = self.copies()
        return copies_at(self, samples) if copies is None else copies[samples]

    monkeypatch.setattr(Context, "copies_at", whole)
    found = [entry for entry in gathers.gathers(case=gathers.EQUAL) if gathers.reason(entry) is None]
    assert any("copies-of-samples" in entry.what for entry in found)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_nothing_grows_with_the_samples_in_a_run_on_workers() -> None:
    with gathers.workers_here() as client:
        _compare(gathers.gathers(client), on_workers=True)


def _compare(found: dict[gathers.Entry, float], *, on_workers: bool) -> None:
    """Assert that nothing grows but what is bounded in a large run; of one process all of that must be found too."""
    reasons = {entry: gathers.reason(entry) for entry in found}
    assert sorted(str(entry) for entry, why in reasons.items() if why is None) == []
    if not on_workers:
        unused = sorted(set(gathers.ALLOWED.values()) - set(reasons.values()))
        assert unused == [], "these grow no longer: take them from ALLOWED"
