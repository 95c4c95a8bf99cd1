"""Leiden's communities: those of planted graphs, the same for any order of edges, and as many as are asked for."""

from __future__ import annotations

import random

import numpy as np
import pytest

igraph = pytest.importorskip("igraph")

from ips2_dask.kernels import leiden  # noqa: E402


def planted(groups: int = 6, size: int = 20, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Groups that are dense inside and joined by a few weak edges: ends, weights, and the group of each vertex."""
    rng, group = np.random.default_rng(seed), np.repeat(np.arange(groups), size)
    i, j = np.triu_indices(groups * size, 1)
    same = group[i] == group[j]
    there = rng.random(len(i)) < np.where(same, 0.6, 0.02)
    weights = np.where(same, 1.0, 0.3) * rng.uniform(0.5, 1.0, len(i))
    return i[there], j[there], weights[there], group


def test_planted_groups_are_found_and_numbered_by_their_first_vertex() -> None:
    i, j, weights, group = planted()
    found = leiden.Graph(len(group), i, j, weights).communities(1.0, 0)
    np.testing.assert_array_equal(found.labels, group)
    assert found.clusters == 6
    A = np.zeros((len(group), len(group)))
    A[i, j] = A[j, i] = weights
    degrees = A.sum(axis=1)
    gain = A - np.outer(degrees, degrees) / degrees.sum()
    assert found.modularity == pytest.approx(gain[group[:, None] == group].sum() / degrees.sum())


def test_the_order_and_direction_of_edges_do_not_matter() -> None:
    i, j, weights, group = planted(groups=9, seed=3)
    rng = np.random.default_rng(1)
    want = leiden.Graph(len(group), i, j, weights).communities(3.0, 5)
    order, turn = rng.permutation(len(i)), rng.random(len(i)) < 0.5
    a, b = np.where(turn, j, i)[order], np.where(turn, i, j)[order]
    found = leiden.Graph(len(group), a, b, weights[order]).communities(3.0, 5)
    np.testing.assert_array_equal(found.labels, want.labels)
    assert found.modularity == want.modularity


def test_a_seed_decides_and_random_numbers_of_others_are_left_alone() -> None:
    i, j, weights, group = planted()
    graph = leiden.Graph(len(group), i, j, weights)
    first = graph.communities(8.0, 1).labels
    random.seed(7)
    want = random.random()
    random.seed(7)
    np.testing.assert_array_equal(graph.communities(8.0, 1).labels, first)
    assert random.random() == want


@pytest.mark.parametrize("wanted", [2, 3, 6])
def test_a_wanted_number_is_found_by_its_resolution(wanted: int) -> None:
    i, j, weights, group = planted()
    near = leiden.Graph(len(group), i, j, weights).so_many(wanted, 0)
    assert (near.found.clusters, near.above) == (wanted, None)
    again = leiden.Graph(len(group), i, j, weights).communities(near.found.resolution, 0)
    np.testing.assert_array_equal(again.labels, near.found.labels)


def test_a_number_that_no_resolution_gives_ends_at_the_next_smaller_one() -> None:
    # two cliques of equal vertices fall apart into single vertices all at once
    i, j = np.triu_indices(8, 1)
    same = (i < 4) == (j < 4)
    near = leiden.Graph(8, i[same], j[same], np.ones(same.sum())).so_many(3, 0)
    assert near.found.clusters == 2
    assert near.above is not None
    assert near.above.clusters > 3


def test_a_graph_without_edges_is_single_vertices() -> None:
    none = np.empty(0, np.int64)
    found = leiden.Graph(3, none, none, np.empty(0)).communities(1.0, 0)
    assert (found.labels.tolist(), found.modularity) == ([0, 1, 2], 0.0)
