"""A solve that stops goes on from its last checkpoint to the same bits; a sharded graph does no finished part again."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from harness import run_on

from ips2_dask import Params, Resources, Run, run
from ips2_dask.executors.base import SerialExecutor
from ips2_dask.kernels import eigen as kernel
from ips2_dask.kernels import levels
from ips2_dask.kernels.eigen import State
from ips2_dask.pipeline.execution import STAGED
from ips2_dask.plan.choices import Choices
from ips2_dask.stages import block_tasks, chunks, graph_refinement, walk
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.zarr_store import ZarrStore

PLACES = ("state0", "state1")
X: npt.NDArray[np.float64] = np.random.default_rng(7).normal(size=(300, 10))
PARAMS = Params(n_clusters=8, tol=2e-5)


class Stop(Exception):
    """Raised in the middle of a solve."""


@pytest.fixture
def filters(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], list[str]]:
    """Count the solver's filters, and have it stop before the one that follows its first checkpoint, if asked."""
    chebyshev_filter, write = kernel.chebyshev_filter, ZarrStore.write

    def install(stop: bool) -> list[str]:
        done: list[str] = []

        def counted(*arguments: Any) -> Any:
            if stop and "state" in done:
                raise Stop
            done.append("filter")
            return chebyshev_filter(*arguments)

        def noted(self: Any, folder: str, part: str, *rest: Any) -> Any:
            receipt = write(self, folder, part, *rest)
            done.extend(["state"] * (part in PLACES))
            return receipt

        monkeypatch.setattr(kernel, "chebyshev_filter", counted)
        monkeypatch.setattr(ZarrStore, "write", noted)
        return done

    return install


def solve(store: Path | None, vectors: str) -> Run:
    return run(X, PARAMS, Resources(partition_rows=50, vectors=vectors), store=store)


@pytest.mark.slow
@pytest.mark.parametrize("vectors", ["in-core", "chunked"])
def test_a_solve_that_stopped_goes_on_from_its_last_checkpoint_to_the_same_bits(
    vectors: str, filters: Callable[[bool], list[str]], tmp_path: Path
) -> None:
    once = filters(False)
    undisturbed = solve(None, vectors)
    before = filters(True)
    with pytest.raises(Stop):
        solve(tmp_path, vectors)
    after = filters(False)
    resumed = solve(tmp_path, vectors)
    # a solve in chunks is stored within a filter too, which is then called once more
    again = int(vectors == "chunked")
    assert once.count("filter") <= (before + after).count("filter") <= once.count("filter") + again
    for name in ("eigenvalues", "eigenvectors", "labels"):
        assert getattr(resumed, name).tobytes() == getattr(undisturbed, name).tobytes()
    assert resumed.report()["products"] == undisturbed.report()["products"]
    assert not [path for path in tmp_path.glob("eigen-*/*") if path.name.startswith((*PLACES, "start-"))]


def test_a_run_in_memory_keeps_no_checkpoints() -> None:
    found = solve(None, "in-core")
    folder = found._context.folders["eigen"]
    assert all(found._store.receipt(folder, place) is None for place in PLACES)


class Counting(SerialExecutor):
    """Counts what each task is given, and stops before one of them."""

    def __init__(self, done: Counter[tuple[str, str, int]], before: int) -> None:
        super().__init__()
        self._done, self._before = done, before

    def map(self, job: Any, context: Any, items: Any, report: Any) -> Any:
        """Every item's receipt, or none."""
        receipts = []
        for item in items:
            if context.receipt(job.stage, f"{job.prefix}{part_name(item)}") is None:
                if sum(self._done.values()) == self._before:
                    raise Stop
                self._done[job.stage, job.prefix, item] += 1
            receipts += super().map(job, context, [item], report)
        return receipts


SHARDED = Params(n_clusters=3, graph="shards")


@pytest.mark.slow
@pytest.mark.parametrize("least", [0.95, 1.1], ids=["refined", "searched exactly"])
def test_a_sharded_graph_that_stops_anywhere_does_no_finished_part_again(
    least: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_refinement, "LEAST_RECALL", least)
    whole: Counter[tuple[str, str, int]] = Counter()
    expected = run_on(Counting(whole, -1), X[:120], SHARDED, 20)
    total = sum(whole.values())
    for before in range(total // 5, total, total // 5):
        done: Counter[tuple[str, str, int]] = Counter()
        with pytest.raises(Stop):
            run_on(Counting(done, before), X[:120], SHARDED, 20, tmp_path / str(before))
        found = run_on(Counting(done, -1), X[:120], SHARDED, 20, tmp_path / str(before))
        np.testing.assert_array_equal(found.labels, expected.labels)
        again = {task for task, times in done.items() if times > 1}
        assert {stage for stage, _, _ in again} <= {"ingest", *STAGED}, again


@pytest.mark.slow
@pytest.mark.parametrize("event", ["rename_many", "drop_many"])
@pytest.mark.parametrize("call", [1, 2])
def test_a_sharded_graph_that_stops_while_it_takes_things_away_goes_on(
    event: str, call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (event, call) == ("rename_many", 2):
        pytest.skip("the stage renames once")
    done: Counter[tuple[str, str, int]] = Counter()
    original, calls = getattr(ZarrStore, event), []

    def stopping(self: Any, folder: str, names: Any) -> None:
        if folder.startswith("neighbors"):
            calls.append(names)
            if len(calls) == call:
                half = list(names)[::2]
                original(self, folder, {name: names[name] for name in half} if isinstance(names, dict) else half)
                raise Stop
        original(self, folder, names)

    monkeypatch.setattr(ZarrStore, event, stopping)
    with pytest.raises(Stop):
        run_on(Counting(done, -1), X[:120], SHARDED, 20, tmp_path)
    monkeypatch.undo()
    found = run_on(Counting(done, -1), X[:120], SHARDED, 20, tmp_path)
    np.testing.assert_array_equal(found.labels, run_on(SerialExecutor(), X[:120], SHARDED, 20).labels)
    assert max(done.values()) == 1


@pytest.mark.slow
def test_blocks_that_are_stored_between_products_are_the_same_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "COARSEST", 60)
    monkeypatch.setattr("ips2_dask.plan.choices.EXACT_PAIRS", 0)
    found, parts, stored = [], [], []
    store = chunks.StoredBlocks.store
    monkeypatch.setattr(
        chunks.StoredBlocks, "store", lambda self, place, y: stored.append(place) or store(self, place, y)
    )
    for most in (block_tasks.MOST_TASKS, 1):
        monkeypatch.setattr(block_tasks, "MOST_TASKS", most)
        folder = tmp_path / str(most)
        made = run(X, Params(n_clusters=4), Resources(partition_rows=50, vectors="chunked"), store=folder)
        found.append([made.labels.tobytes(), made.embedding.tobytes(), made.certainty.tobytes()])
        parts.append({f"{path.parent.name}/{path.name.split('.')[0]}" for path in folder.glob("*-*/*")})
    assert found[0] == found[1]
    assert parts[0] == parts[1]
    assert {place.rsplit("-", 2)[0] for place in stored} >= {"graph-0", "fused-0", walk.RENEWED}


def test_a_checkpoint_that_lost_a_block_does_not_count(tmp_path: Path) -> None:
    store = ZarrStore(tmp_path / "run")
    store.create()
    choices = Choices("exact", 0, "triplets", "chunked", 100)
    context = Context(store, Params(n_clusters=2), (0, 100, 200), 3, choices, folders={"label": "label-0"})
    executor, none = SerialExecutor(), np.empty(0)

    def checkpoints() -> chunks.Checkpoints:
        return chunks.Checkpoints(context, "label", chunks.StoredBlocks(context, "label", executor), "walk")

    for products in (5, 10):
        blocks = [np.ones((b - a, 2), np.float32) for a, b in itertools.pairwise(chunks.sample_bounds(context))]
        states = checkpoints()
        states.latest()  # tells which place comes next
        states.keep(State(blocks, none, none, 0.0, products, []))
    for products, place in ((10, "walk1"), (5, "walk0")):
        state = checkpoints().latest()
        assert state is not None
        assert state.products == products
        store.drop("label-0", f"{place}-c000000")  # as a block that was found damaged
    assert checkpoints().latest() is None
    store.drop_many("label-0", chunks.checkpoint_parts(context, "walk"))
    assert store.parts("label-0") == {}
    checkpoints().keep(State(blocks, none, none, 0.0, 15, []))
    checkpoints().drop()
    assert store.parts("label-0") == {}
