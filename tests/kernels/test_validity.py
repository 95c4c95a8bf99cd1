"""Criteria without labels, against what can be counted by hand."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
from sklearn.datasets import make_blobs

from ips2_dask import Params, run
from ips2_dask.kernels.validity import modularity, replicate
from ips2_dask.sweeps.result import JudgeSettings, Point, Sweep

PATH = (np.array([0, 1, 2]), np.array([1, 2, 3]), np.array([2.0, 1.0, 3.0]))
"""A path of four samples with the weights 2, 1, 3."""


@pytest.mark.parametrize("cuts", [[0, 3], [0, 1, 3], [0, 0, 2, 3]])
def test_modularity_is_what_is_within_less_what_chance_would_put_there_however_edges_are_dealt(cuts: list[int]) -> None:
    parts = [tuple(column[a:b] for column in PATH) for a, b in itertools.pairwise(cuts)]
    found = modularity(parts, np.array([0, 0, 1, 1]), 2)  # type: ignore[arg-type]
    assert found == pytest.approx((4 + 6) / 12 - (5 / 12) ** 2 - (7 / 12) ** 2)  # volumes 2 + 3 and 4 + 3


def test_modularity_is_that_of_networkx() -> None:
    networkx = pytest.importorskip("networkx")
    rng = np.random.default_rng(0)
    dense = np.triu(rng.random((30, 30)) * (rng.random((30, 30)) < 0.3), 1)
    labels, (i, j) = rng.integers(0, 4, 30).astype(np.int32), np.nonzero(dense)
    found = modularity([(j, i, dense[i, j])], labels, 5)  # the order of an edge's ends does not count
    groups = [set(np.flatnonzero(labels == c).tolist()) for c in range(4)]
    assert found == pytest.approx(networkx.community.modularity(networkx.from_numpy_array(dense + dense.T), groups))


def test_one_cluster_and_no_edges_have_no_modularity() -> None:
    assert modularity([PATH], np.zeros(4, np.int32), 1) == 0
    assert modularity([], np.zeros(4, np.int32), 2) == 0


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


def test_the_product_decides_and_of_equals_the_larger_number_of_clusters() -> None:
    rows = [(3, 0.9, 0.5), (5, 0.9, 0.5), (9, 0.5, 0.8), (4, 0.7, 0.7)]
    points = [
        Point(str(c), Params(n_clusters=c), {"stability": stability, "modularity": modularity}, {}, {}, {})
        for c, stability, modularity in rows
    ]
    sweep = Sweep.ranked(cast("Any", None), points, JudgeSettings(1, 0), "table", (4, 2))
    assert [(one.name, one.rank, one.score) for one in sweep.points] == [
        ("4", 1, pytest.approx(0.49)),
        ("5", 2, 0.45),
        ("3", 3, 0.45),
        ("9", 4, 0.4),
    ]
