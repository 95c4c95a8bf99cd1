"""A sharded graph by parts: no array over all samples, the same bits by any sorting, and large shards divided."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from harness import DATA, ShuffledExecutor, run_on
from hypothesis import assume, given
from hypothesis import strategies as st

from ips2_dask import Params, Resources, Run, open_run, run
from ips2_dask.datasets import curved_gaussians
from ips2_dask.executors.base import SerialExecutor
from ips2_dask.kernels import shards
from ips2_dask.kernels.neighbors import exact_neighbors
from ips2_dask.plan.choices import joined_rows
from ips2_dask.stages import graph_refinement, shard_search, sharding
from ips2_dask.store.zarr_store import ZarrStore

Array = npt.NDArray[Any]


class Largest(ZarrStore):
    """Notes the most rows of any array of the neighbors stage that is read or written in one piece."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.rows: dict[str, int] = {}

    def _note(self, folder: str, name: str, rows: int) -> None:
        if folder.startswith("neighbors"):
            self.rows[name] = max(self.rows.get(name, 0), rows)

    def write(self, folder: str, part: str, arrays: Any, facts: Any) -> Any:
        for name, array in arrays.items():
            self._note(folder, name, max(array.shape, default=0))
        return super().write(folder, part, arrays, facts)

    def read(self, folder: str, part: str, name: str, low: int = 0, high: int | None = None) -> Array:
        array = super().read(folder, part, name, low, high)
        self._note(folder, name, max(array.shape, default=0) if high is None else high - low)
        return array


class Stop(Exception):
    """Raised once the graph is stored."""


def largest_rows(m: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The most rows of each array, of m samples in partitions of 100 and shards of 200 members."""
    store = Largest(str(folder / str(m)))

    def stop(*_: Any) -> None:
        raise Stop

    monkeypatch.setattr("ips2_dask.stages.tensor.run", stop)
    X = np.random.default_rng(0).standard_normal((m, 4)).astype(np.float32)
    params = Params(n_clusters=3, shards=m // 100)
    with pytest.raises(Stop):
        run_on(SerialExecutor(), X, params, 100, store, "chunked")
    return store.rows


@pytest.mark.slow
def test_no_array_of_a_sharded_graph_grows_with_the_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "SPLIT_BYTES", 4 * 4 * 200)  # two partitions a batch
    monkeypatch.setattr(sharding, "SAMPLE_PER_SHARD", 20)
    monkeypatch.setattr(graph_refinement, "LEAST_RECALL", 1.1)
    monkeypatch.setattr(graph_refinement, "MOST_ROUNDS", 1)
    small, large = (largest_rows(m, tmp_path, monkeypatch) for m in (2000, 4000))
    # the recall is measured on 1,000 samples; bandwidths come from all of up to 5,000, which shards give by their own
    by_shards = {"centers", "cell", "source_offsets", "sources", "cell_pairs", "counts", "offsets"}
    for name in small.keys() - by_shards - {"distances"}:
        assert large[name] <= max(1.7 * small[name], 1000), (name, small[name], large[name])
    assert large["order"] <= 100
    assert large["indices"] <= 100
    assert large["entries"] < 1500


@pytest.mark.parametrize("kind", ["curved", "integers"])
def test_two_passes_of_sorting_change_no_bit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X = curved_gaussians(900, 6, 3, 1)[0] if kind == "curved" else np.repeat(DATA["integers"](), 4, axis=0)
    params, rows = Params(n_clusters=3, shards=12), max(4, len(X) // 30)
    once = run(X, params, Resources(partition_rows=rows))
    monkeypatch.setattr(sharding, "SPLIT_BYTES", 1)  # a partition a batch
    monkeypatch.setattr(sharding, "MOST_BATCHES", 3)
    twice = run_on(ShuffledExecutor(3), X, params, rows)
    np.testing.assert_array_equal(once._context.order(), twice._context.order())
    for name in ("indices", "distances"):
        assert getattr(once.neighbors, name).tobytes() == getattr(twice.neighbors, name).tobytes()
    np.testing.assert_array_equal(once.labels, twice.labels)


@given(
    sizes=st.lists(st.one_of(st.integers(0, 30), st.integers(100, 900)), min_size=1, max_size=60),
    rows=st.integers(1, 400),
)
def test_partitions_are_parts_of_large_shards_or_some_whole_small_ones(sizes: list[int], rows: int) -> None:
    assume(sum(sizes) > 0)
    starts = [0, *np.cumsum(sizes).tolist()]
    m, bounds = starts[-1], sharding.partition_bounds(starts, rows)
    joined = joined_rows(m, rows)
    lengths = np.diff(bounds)
    assert bounds[0] == 0
    assert bounds[-1] == m
    assert lengths.min() > 0
    assert lengths.max() <= rows
    for low, high in itertools.pairwise(bounds):
        of = np.searchsorted(starts, [low, high - 1], side="right") - 1  # the shards of its first and last sample
        if of[0] != of[1]:
            assert high - low <= joined
        if high - low < sizes[of[0]] or high - low < sizes[of[1]]:  # a part of a shard, which is of no other
            assert of[0] == of[1]
            assert sizes[of[0]] > rows
    assert len(lengths) <= min(-(-m // rows) + len(sizes), 3 * m // max(1, joined) + 1)  # what a plan says


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["curved", "integers"])
@pytest.mark.parametrize("vectors", ["in-core", "chunked"])
def test_shards_that_share_a_partition_change_no_graph(
    kind: str, vectors: Literal["in-core", "chunked"], monkeypatch: pytest.MonkeyPatch
) -> None:
    X = curved_gaussians(900, 6, 3, 1)[0] if kind == "curved" else np.repeat(DATA["integers"](), 4, axis=0)
    params, resources = Params(n_clusters=3, shards=40), Resources(partition_rows=200, vectors=vectors)
    alone = run(X, params, resources)
    for joined in (60, 200):
        monkeypatch.setattr(sharding, "joined_rows", lambda m, rows, joined=joined: joined)
        found = run(X, params, resources)
        assert found._context.n_partitions < alone._context.n_partitions
        np.testing.assert_array_equal(alone._context.order(), found._context.order())
        for name in ("indices", "distances"):
            assert getattr(alone.neighbors, name).tobytes() == getattr(found.neighbors, name).tobytes()
        np.testing.assert_array_equal(alone.labels, found.labels)


@pytest.mark.slow
def test_the_users_numbers_are_asked_for_by_partition(tmp_path: Path) -> None:
    X = curved_gaussians(500, 5, 3, 1)[0]
    run(X, Params(n_clusters=3, shards=5), Resources(partition_rows=70), store=tmp_path / "run")
    found: Run = open_run(tmp_path / "run")
    context, order = found._context, found._context.order()
    assert sorted(order) == list(range(500))
    parts = [context.user_numbers(b) for b in range(context.n_partitions)]
    np.testing.assert_array_equal(np.concatenate(parts), order)
    (folder,) = tmp_path.glob("run/neighbors-*")
    left = {path.name.split("-p")[0] for path in folder.glob("*-p*.json")}
    assert left == {"order", "samples"}  # all else that tasks wrote is dropped


def test_many_rows_are_searched_in_sub_cells_that_overlap() -> None:
    X = curved_gaussians(4000, 8, 4, 0)[0].astype(np.float32)
    sizes = []

    def search(rows: Array) -> tuple[Array, Array]:
        sizes.append(len(rows))
        return exact_neighbors(rows, 0, rows, min(6, len(rows)))

    N, d = shards.nearest_in_sub_cells(X, 6, search, 300, 0)
    exact, lengths = exact_neighbors(X, 0, X, 6)
    assert max(sizes) <= shards.LARGE * 300
    assert sum(sizes) <= 2 * len(X)
    assert (N[:, 0] == np.arange(4000)).all()
    assert all(len(set(row)) == 6 for row in N.tolist())
    assert (d[:, 1:] <= lengths[:, 5:]).mean() > 0.9
    right = exact == N
    np.testing.assert_array_equal(d[right], lengths[right])
    few = shards.nearest_in_sub_cells(X[:1000], 6, search, 300, 0)
    np.testing.assert_array_equal(few[0], exact_neighbors(X[:1000], 0, X[:1000], 6)[0])


def test_a_crowd_of_copies_is_not_divided_for_ever() -> None:
    X = np.zeros((3000, 4), np.float32)
    X[:200] = np.random.default_rng(0).standard_normal((200, 4))
    N, d = shards.nearest_in_sub_cells(X, 4, lambda rows: exact_neighbors(rows, 0, rows, min(4, len(rows))), 300, 0)
    assert (N >= 0).all()
    assert (d[200:] == 0).all()


@pytest.mark.slow
def test_large_shards_are_divided_and_the_recall_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    X = curved_gaussians(3000, 8, 4, 0)[0]
    whole = run(X, Params(n_clusters=4, shards=3), Resources(partition_rows=500))
    monkeypatch.setattr(shard_search, "SHARD_MEMBERS", (200, 300))
    found = [run(X, Params(n_clusters=4, shards=3), Resources(partition_rows=rows)) for rows in (500, 900)]
    assert found[0].report()["recall"] >= 0.95
    np.testing.assert_array_equal(found[0]._context.order(), whole._context.order())
    assert found[0].neighbors.distances.tobytes() == found[1].neighbors.distances.tobytes()
    np.testing.assert_array_equal(found[0].neighbors.indices, found[1].neighbors.indices)


def test_counts_of_pairs_add_up() -> None:
    rng = np.random.default_rng(0)
    nearest = rng.integers(0, 7, (500, 2)).astype(np.int32)
    table = shards.add_counts([shards.count_pairs(nearest[a : a + 90]) for a in range(0, 500, 90)])
    expected = np.zeros((7, 7), np.int64)
    np.add.at(expected, tuple(nearest.T), 1)
    found = np.zeros((7, 7), np.int64)
    found[tuple(table.cells.T)] = table.counts
    np.testing.assert_array_equal(found, expected)
    members = [int((nearest == cell).any(axis=1).sum()) for cell in range(7)]
    assert shards.members_of(table, 7).tolist() == members
