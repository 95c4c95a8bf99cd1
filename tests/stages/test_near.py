"""The graph near a partition gives kernels the bits of the whole graph; stages by partition store what was whole."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from harness import graph_components, run_on
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors

from ips2_dask import Params, Run
from ips2_dask.datasets import curved_gaussians
from ips2_dask.executors.base import Executor, Job, Report, SerialExecutor, compute_part
from ips2_dask.kernels import components, similarity, tensor
from ips2_dask.kernels.sparse import reverse_lists
from ips2_dask.plan.choices import Choices
from ips2_dask.progress import Progress, Reporter
from ips2_dask.stages import fuse, views
from ips2_dask.stages import tensor as tensor_stage
from ips2_dask.stages.near import centers_of, graph_near, lists_of, store_reverse_lists
from ips2_dask.store.base import MemoryStore
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.integrity import Receipt, content_of
from ips2_dask.store.zarr_store import ZarrStore

Array = npt.NDArray[Any]


def context_of(indices: Array, distances: Array, bounds: Sequence[int], k: int) -> Context:
    """The context of a chunked run on a graph, with the reverse lists of every partition."""
    choices = Choices("shards", 1, "matrix-free", "chunked")
    folders = {name: name for name in ("ingest", "neighbors", "tensor")}
    context = Context(MemoryStore(), Params(n_clusters=2, n_neighbors=k), tuple(bounds), 1, choices, folders)
    for b, (low, high) in enumerate(itertools.pairwise(bounds)):
        part = {"indices": indices[low:high], "distances": distances[low:high]}
        context.store.write("neighbors", part_name(b), part, {})
    store_reverse_lists(context, SerialExecutor(), Reporter(Progress(), "tensor"))
    return context


def assert_same_bits(context: Context, indices: Array, distances: Array, k: int) -> None:
    """What kernels find near each partition is what they find on the whole graph."""
    N, N6, D6 = (np.ascontiguousarray(a) for a in (indices[:, :k], indices[:, :6], distances[:, :6]))
    whole, whole6 = reverse_lists(N), reverse_lists(N6)
    for b in range(context.n_partitions):
        low, high = context.span(b)
        near = graph_near(context, low, high, k)
        found = near.numbers(tensor.owned_pairs(near.N, near.reverse, near.low, near.high))
        expected = tensor.owned_pairs(N, whole, low, high)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
        near = graph_near(context, low, high, k, of_members=True)
        np.testing.assert_array_equal(
            tensor.owned_subsets(near.N, near.reverse, near.low, near.high), tensor.owned_subsets(N, whole, low, high)
        )
        near = graph_near(context, low, high, 6, distances=True)
        assert near.distances is not None
        edges, lengths = similarity.graph_edges(near.N, near.distances, near.reverse, near.low, near.high)
        expected, expected_lengths = similarity.graph_edges(N6, D6, whole6, low, high)
        np.testing.assert_array_equal(near.numbers(edges), expected)
        np.testing.assert_array_equal(lengths, expected_lengths)
        centers = np.unique(whole.centers[whole.start[low] : whole.start[high]])
        np.testing.assert_array_equal(centers_of(context, low, high, k), centers)
        np.testing.assert_array_equal(lists_of(context, centers, k), N[centers])


def random_lists(seed: int, m: int, n: int) -> tuple[Array, Array]:
    """Lists of any n different samples, the sample itself first, a few of them in most lists; and distances."""
    rng = np.random.default_rng(seed)
    weight = rng.random(m) ** 4 + 1e-3
    rows = []
    for p in range(m):
        chance = np.where(np.arange(m) == p, 0, weight)
        rows.append([p, *rng.choice(m, n - 1, replace=False, p=chance / chance.sum())])
    return np.array(rows, np.int32), np.sort(rng.random((m, n)), axis=1).astype(np.float32)


@given(st.integers(0, 2**32 - 1), st.integers(3, 10), st.sets(st.integers(1, 39), max_size=7))
@settings(deadline=None, max_examples=25)
def test_kernels_find_near_a_partition_what_they_find_on_the_whole_graph(seed: int, k: int, limits: set[int]) -> None:
    indices, distances = random_lists(seed, 40, max(k, 6))
    context = context_of(indices, distances, [0, *sorted(limits), 40], k)
    assert_same_bits(context, indices, distances, k)


@pytest.mark.parametrize(("k", "rows"), [(3, 100), (5, 217), (7, 400), (10, 150)])
def test_the_same_holds_of_digits(k: int, rows: int) -> None:
    n = max(k, 6)
    found, X = NearestNeighbors(n_neighbors=n), load_digits().data
    distances, indices = found.fit(X).kneighbors()  # without the sample itself
    indices = np.column_stack([np.arange(len(X)), indices[:, : n - 1]]).astype(np.int32)
    distances = np.column_stack([np.zeros(len(X)), distances[:, : n - 1]]).astype(np.float32)
    context = context_of(indices, distances, [*range(0, len(X), rows), len(X)], k)
    assert_same_bits(context, indices, distances, k)


def test_reverse_lists_of_a_hub_are_whole_wherever_it_is_named() -> None:
    m, k = 700, 4  # more centres than a hub's list may have to be walked for each of them
    rng = np.random.default_rng(0)
    indices, distances = random_lists(1, m, 6)
    indices[:, 1] = np.where(np.arange(m) == 350, 349, 350)
    for p in range(m):
        others = [j for j in dict.fromkeys(indices[p].tolist()) if j != p]
        others += [j for j in rng.permutation(m).tolist() if j not in others and j != p]
        indices[p, 1:] = others[:5]
    context = context_of(indices, distances, [0, 100, 350, 351, 600, 700], k)
    assert_same_bits(context, indices, distances, k)


def test_a_graph_near_follows_the_partition_and_not_the_number_of_samples() -> None:
    held = []
    for m in (4000, 16000):
        ring = (np.arange(m)[:, None] + np.array([0, 1, -1, 2, -2, 3])) % m
        context = context_of(ring.astype(np.int32), np.ones((m, 6), np.float32), [*range(0, m, 200), m], 5)
        near = graph_near(context, 2000, 2200, 5, of_members=True)
        held.append([near.N.shape, near.reverse.centers.shape])
        assert len(near.N) < 240
    assert held[0] == held[1]


# ---- runs

SMALL = curved_gaussians(360, 4, 3, 0)[0]
REPEATED = np.concatenate([SMALL, SMALL[::3], SMALL[::9], SMALL[:30] + 100])  # rows are merged; a component lies apart
PARAMS = Params(n_clusters=3, shards=3, graph="shards", fusion="normalized", tol=1e-2)
ROWS = 45


def chunked(store: Path | None = None, executor: Executor | None = None) -> Run:
    return run_on(executor or SerialExecutor(), REPEATED, PARAMS, ROWS, store, "chunked")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return chunked(tmp_path_factory.mktemp("near") / "run")


@pytest.fixture
def copied(undisturbed: Run, tmp_path: Path) -> Path:
    """A copy of the finished run's directory."""
    return Path(shutil.copytree(str(undisturbed._context.store.location), tmp_path / "copy"))


def parts_of(store: ZarrStore, stage: str) -> dict[str, str]:
    """The digest of each part of a stage."""
    (folder,) = (name for name in store.stage_folders() if name.startswith(stage))
    return {name: content_of(receipt) for name, receipt in store.parts(folder).items()}


@pytest.mark.slow
def test_what_partitions_send_is_dropped(undisturbed: Run) -> None:
    root = Path(str(undisturbed._context.store.location))
    for sent in ("tensor-*/edges-", "assemble-*/pieces-", "assemble-*/joins-", "fuse-*/shares-", "fuse-*/sums-"):
        assert not list(root.glob(f"{sent}*"))
    for kept in ("reverse-", "order-", "components-"):
        assert len(list(root.glob(f"*/{kept}*.json"))) == undisturbed._context.n_partitions
    assert len(list(root.glob("ingest-*/place-*.json"))) == -(-len(REPEATED) // ROWS)
    for sent in ("heads-", "equal-", "own-", "numbers-"):
        assert not list(root.glob(f"ingest-*/{sent}*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "lost",
    [
        {"ingest": ["place-p000003", "distinct-p000001"]},
        {"ingest": ["distinct"], "neighbors": ["order-p000002"]},
        {"tensor": ["reverse-p000002"], "assemble": ["components-p000001"], "fuse": ["fused-p000003"]},
        {"assemble": ["contraction", "whole"], "fuse": ["fused-p000000"]},
    ],
)
def test_lost_parts_are_made_again_with_the_same_bytes(lost: dict[str, list[str]], copied: Path) -> None:
    store = ZarrStore(str(copied))
    before = {stage: parts_of(store, stage) for stage in lost}
    for stage, parts in lost.items():
        (folder,) = (name for name in store.stage_folders() if name.startswith(stage))
        for part in parts:
            assert part in before[stage]
            store.drop(folder, part)
    after = chunked(copied)
    states = {entry["name"]: entry["state"] for entry in after.manifest["stages"]}
    assert {stage for stage, state in states.items() if state == "computed again"} == set(lost)
    assert {state for stage, state in states.items() if stage not in lost} == {"reused"}
    assert {stage: parts_of(store, stage) for stage in lost} == before


class Stop(Exception):
    """Raised in the middle of a job."""


class StoppingExecutor(SerialExecutor):
    """Stops when half of the tasks of one job are done."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def map(self, job: Job, context: Context, items: Sequence[Any], report: Report) -> list[Receipt]:
        """As of `SerialExecutor`, until it is that job's turn."""
        if job.prefix != self._prefix:
            return super().map(job, context, items, report)
        for item in items[: len(items) // 2]:
            compute_part(item, job, context)
        raise Stop


@pytest.mark.slow
def test_a_run_that_stopped_in_each_job_goes_on_to_the_same_bytes(undisturbed: Run, tmp_path: Path) -> None:
    of_rows = ("heads-", "equal-", "own-", "numbers-", "place-", "distinct-")
    for prefix in (*of_rows, "edges-", "reverse-", "pieces-", "joins-", "components-", "shares-", "sums-"):
        with pytest.raises(Stop):
            chunked(tmp_path, StoppingExecutor(prefix))
    resumed = chunked(tmp_path)
    assert resumed.labels.tobytes() == undisturbed.labels.tobytes()
    store, other = ZarrStore(str(tmp_path)), ZarrStore(str(undisturbed._context.store.location))
    for stage in ("ingest", "neighbors", "tensor", "assemble", "fuse"):
        assert parts_of(store, stage) == parts_of(other, stage)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["rms", "abs", "signed"])
def test_v_does_not_depend_on_how_many_pairs_are_looked_at_together(
    rule: str, undisturbed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = undisturbed._context
    context = dataclasses.replace(context, params=dataclasses.replace(context.params, high_order=rule))
    pairs = np.asarray(context.read("tensor", "pairs-p000004", "pairs"))
    whole = fuse.high_order(context, 4, pairs)
    monkeypatch.setattr(fuse, "PAIRS_AT_ONCE", 7)
    np.testing.assert_allclose(fuse.high_order(context, 4, pairs), whole, rtol=1e-14, atol=1e-16)


@pytest.mark.slow
def test_components_are_those_of_the_pairs(undisturbed: Run) -> None:
    context = undisturbed._context
    N = np.concatenate([context.read("neighbors", b, "indices")[:, :5] for b in range(context.n_partitions)])
    label = graph_components(N)
    assert (count := label.max() + 1) > 1
    divided = components.divide(label, context.choices.n_solved(PARAMS), context.copies())
    for samples in (np.arange(context.m), np.arange(0, context.m, 7), np.array([], np.int64)):
        found = views.components_of(context, samples)
        np.testing.assert_array_equal(found.label, divided.label[samples])
        assert found[1:] == divided[1:]
    assert undisturbed.report()["components"] == count


def test_the_key_of_an_in_core_tensor_is_as_it_was() -> None:
    choices = Choices("shards", 1, "matrix-free", "in-core")
    assert tensor_stage.depends_on(PARAMS, choices) == {"n_neighbors": 5, "tensor": "indecomposable"}
