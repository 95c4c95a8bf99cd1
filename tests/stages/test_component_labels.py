"""Components by contraction are those of the whole graph, numbered by smallest member, whatever the partitions are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from harness import graph_components
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components

from ips2_dask import Params
from ips2_dask.executors.base import SerialExecutor
from ips2_dask.kernels.components import smallest_members
from ips2_dask.plan.choices import Choices
from ips2_dask.progress import Progress, Reporter
from ips2_dask.stages.component_labels import GROUP, label_components
from ips2_dask.stages.near import neighborhood_edges
from ips2_dask.store.base import MemoryStore
from ips2_dask.store.context import Context, part_name

Array = npt.NDArray[Any]


def stored_edges(context: Context, b: int) -> Array:
    """The edges of partition b, which the tests keep beside the neighbours."""
    return np.asarray(context.read("fuse", b, "entries"))


def found_of(edges: Array, bounds: list[int], copies: Array | None = None) -> tuple[Array, Array]:
    """Label of each sample and rows in each component, by `label_components`."""
    choices = Choices("shards", 1, "matrix-free", "chunked")
    context = Context(
        MemoryStore(),
        Params(n_clusters=2),
        tuple(bounds),
        1,
        choices,
        {name: name for name in ("ingest", "neighbors", "tensor", "fuse", "label")},
    )
    if copies is not None:
        context.facts["ingest"] = {"bounds": bounds, "row_bounds": bounds}
    stage, prefix = context._row_parts
    for b in range(context.n_partitions):
        low, high = context.span(b)
        inside = (edges[:, 0] >= low) & (edges[:, 0] < high)
        context.store.write("fuse", part_name(b), {"entries": edges[inside]}, {})
        if copies is not None:
            context.store.write(stage, prefix + part_name(b), {"copies": copies[low:high]}, {})
    sizes = label_components(context, SerialExecutor(), Reporter(Progress(), "label"), "label", stored_edges)
    parts = sorted(context.store.parts("label"))
    assert parts == sorted(["contraction", *(f"components-{part_name(b)}" for b in range(context.n_partitions))])
    label = [context.read("label", f"components-{part_name(b)}", "components") for b in range(context.n_partitions)]
    return np.concatenate(label), sizes


def expected_of(edges: Array, m: int) -> Array:
    """SciPy's components, numbered by smallest member."""
    graph = sp.coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(m, m))
    label = connected_components(graph, directed=False)[1]
    _, first, place = np.unique(label, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[place]


def check(edges: Array, bounds: list[int], copies: Array | None = None) -> Array:
    label, sizes = found_of(edges, bounds, copies)
    expected = expected_of(edges, bounds[-1])
    assert label.dtype == np.int32
    np.testing.assert_array_equal(label, expected)
    np.testing.assert_array_equal(sizes, np.bincount(expected, copies))
    assert sizes.dtype == np.int64
    return label


@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 80),
    st.floats(0, 1.5),
    st.sets(st.integers(1, 79), max_size=30),
    st.booleans(),
)
@settings(deadline=None, max_examples=50)
def test_components_of_random_graphs(seed: int, m: int, degree: float, limits: set[int], weighted: bool) -> None:
    rng = np.random.default_rng(seed)
    edges = rng.integers(0, m, (int(m * degree), 2)).astype(np.int32)
    copies = rng.integers(1, 5, m).astype(np.int32) if weighted else None
    check(edges, [0, *sorted(limit for limit in limits if limit < m), m], copies)


@pytest.mark.parametrize("seed", [None, 0])
def test_a_chain_across_all_partitions_is_one_component(seed: int | None) -> None:
    m = 40 * GROUP
    order = np.arange(m) if seed is None else np.random.default_rng(seed).permutation(m)
    edges = np.stack([order[:-1], order[1:]], axis=1)
    for bounds in ([0, m], [*range(0, m, 10), m], [*range(0, m, 137), m]):
        assert not check(edges, bounds).any()


def test_without_edges_each_sample_is_a_component() -> None:
    label = check(np.empty((0, 2), np.int32), [0, 3, 4, 50])
    np.testing.assert_array_equal(label, np.arange(50))


def test_interleaved_components_are_told_apart() -> None:
    m = 600  # i and i + 3 are joined: three components that go through all partitions
    edges = np.stack([np.arange(m - 3), np.arange(3, m)], axis=1)
    np.testing.assert_array_equal(check(edges, [*range(0, m, 7), m]), np.arange(m) % 3)


@given(st.integers(0, 2**32 - 1), st.integers(4, 60), st.integers(2, 4))
@settings(deadline=None, max_examples=30)
def test_the_components_of_neighbourhoods_are_those_of_the_whole_graph(seed: int, m: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    N = np.stack([np.append(p, rng.permutation(np.delete(np.arange(m), p))[: k - 1]) for p in range(m)])
    N[rng.random(m) < 0.6, 1:] = 0  # most name the first sample
    choices = Choices("shards", 1, "matrix-free", "chunked")
    bounds = (0, m // 3, m // 2, m)
    context = Context(
        MemoryStore(), Params(n_clusters=2, n_neighbors=k), bounds, 1, choices, {"neighbors": "neighbors"}
    )
    for b in range(3):
        context.store.write("neighbors", part_name(b), {"indices": N[bounds[b] : bounds[b + 1]].astype(np.int32)}, {})
    edges = np.concatenate([neighborhood_edges(context, b) for b in range(3)])
    np.testing.assert_array_equal(found_of(edges, list(bounds))[0], graph_components(N))


@given(st.integers(0, 2**32 - 1), st.integers(0, 20), st.integers(1, 30))
@settings(deadline=None, max_examples=50)
def test_edges_that_lead_out_of_a_range_join_nothing(seed: int, low: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    edges = rng.integers(0, 50, (60, 2))
    inside = edges[((edges >= low) & (edges < low + rows)).all(axis=1)] - low
    label = expected_of(inside, rows)
    first = np.unique(label, return_index=True)[1]
    np.testing.assert_array_equal(smallest_members(edges, low, low + rows), low + first[label])
