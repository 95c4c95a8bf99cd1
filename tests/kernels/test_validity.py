"""Criteria without labels, against what can be counted by hand."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
from sklearn.datasets import make_blobs

from ips2_dask import Params, run
from ips2_dask.kernels.validity import conductances, replicate
from ips2_dask.sweeps.result import JudgeSettings, Point, Sweep

PATH = (np.array([0, 1, 2]), np.array([1, 2, 3]), np.array([2.0, 1.0, 3.0]))
"""A path of four samples with the weights 2, 1, 3."""


@pytest.mark.parametrize("cuts", [[0, 3], [0, 1, 3], [0, 0, 2, 3]])
def test_conductance_is_the_cut_over_the_smaller_volume_however_edges_are_dealt(cuts: list[int]) -> None:
    parts = [tuple(column[a:b] for column in PATH) for a, b in itertools.pairwise(cuts)]
    found = conductances(parts, np.array([0, 0, 1, 1]), 2)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, [1 / 5, 1 / 5])  # cut 1; volumes 2 + 3 and 4 + 3, of which 5 is smaller


def test_a_large_cluster_is_measured_by_the_rest() -> None:
    found = conductances([PATH], np.array([0, 0, 0, 1]), 2)
    np.testing.assert_allclose(found, [1.0, 1.0])  # cut 3; volumes 9 and 3


def test_clusters_without_edges_to_others_have_conductance_zero_and_those_without_any_one() -> None:
    edges = (np.array([0, 2]), np.array([1, 3]), np.ones(2))
    np.testing.assert_allclose(conductances([edges], np.array([0, 0, 1, 1, 2]), 4), [0, 0, 1, 1])


def test_the_order_of_an_edge_s_ends_does_not_count() -> None:
    turned = (PATH[1], PATH[0], PATH[2])
    labels = np.array([0, 1, 1, 2])
    np.testing.assert_array_equal(conductances([PATH], labels, 3), conductances([turned], labels, 3))


def test_a_plain_partition_is_found_again_in_every_subsample_and_a_forced_one_is_not() -> None:
    X, _ = make_blobs(320, 6, centers=8, random_state=1)
    right, wrong = (run(X, Params(n_clusters=c)) for c in (8, 5))
    of_right, of_wrong = (
        [replicate(one.similarity(), one.labels, one.params.n_clusters, 0, number) for number in range(3)]
        for one in (right, wrong)
    )
    assert min(of_right) == 1.0
    assert np.mean(of_wrong) < 0.95
    assert of_right == [replicate(right.similarity(), right.labels, 8, 0, number) for number in range(3)]


def test_the_embedding_of_all_is_a_start_that_changes_nothing_but_the_way() -> None:
    """Also where its first columns tell components apart, which the solver knows already."""
    X = np.concatenate([make_blobs(300, 3, centers=4, random_state=seed)[0] + 500 * seed for seed in (0, 1)])
    found = run(X, Params(n_clusters=8))
    U, embedding = found.similarity(), found.embedding
    for number in range(2):
        as_wide = partial(replicate, U, found.labels, 8, 0, number, columns=embedding.shape[1])
        assert as_wide(embedding=embedding) == pytest.approx(as_wide(), abs=0.02)


def test_other_numbers_give_other_subsamples() -> None:
    X, _ = make_blobs(120, 3, centers=1, random_state=2)
    found = run(X, Params(n_clusters=5))
    agreements = {replicate(found.similarity(), found.labels, 5, 0, number) for number in range(4)}
    assert len(agreements) > 1


def ranked(clusters: list[int], *rows: tuple[float, float, float]) -> list[tuple[str, float]]:
    """Names and mean ranks of points with these criteria, best first."""
    names = ("stability", "silhouette", "conductance")
    points = [
        Point(str(at), Params(n_clusters=c), dict(zip(names, row, strict=True)), {}, {}, {})
        for at, (c, row) in enumerate(zip(clusters, rows, strict=True))
    ]
    sweep = Sweep.ranked(cast("Any", None), points, JudgeSettings(1, 0), "table", (4, 2))
    return [(point.name, point.mean_rank) for point in sweep.points]


def test_ranks_know_what_is_better_and_equal_values_share_one() -> None:
    found = ranked([2, 3, 4], (0.9, 0.5, 0.1), (0.9001, 0.7, 0.3), (0.2, 0.6, 0.2))
    ranks = {"0": (1.5 + 3 + 1) / 3, "1": (1.5 + 1 + 3) / 3, "2": (3 + 2 + 2) / 3}
    assert dict(found) == pytest.approx(ranks)
    assert [name for name, _ in found] == ["1", "0", "2"]


def test_the_mean_rank_decides_and_of_equals_the_larger_number_of_clusters() -> None:
    found = ranked([3, 5, 9], (0.9, 0.5, 0.1), (0.9, 0.5, 0.1), (0.2, 0.2, 0.2))
    assert found == [("1", 1.5), ("0", 1.5), ("2", 3.0)]
