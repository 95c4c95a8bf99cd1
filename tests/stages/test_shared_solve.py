"""A finished run's eigenpairs do for other numbers of clusters, whichever number came first."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from ips2_dask import Params, run
from ips2_dask.datasets import curved_gaussians
from ips2_dask.plan.choices import SHARED_CLUSTERS, SHARED_SAMPLES, choose

M = SHARED_SAMPLES[0]


@pytest.fixture(name="X", scope="module")
def samples():
    return curved_gaussians(M, 6, 8, 0)[0]


@pytest.mark.slow
def test_another_number_of_clusters_needs_no_other_solve(X, tmp_path: Path):
    first = run(X, Params(n_clusters=10), store=tmp_path / "run")
    again = {}
    for c in (12, 3, SHARED_CLUSTERS):
        found = run(X, Params(n_clusters=c), store=tmp_path / "run")
        again[c] = found.labels
        computed = [stage["name"] for stage in found.manifest["stages"] if not stage["skipped"]]
        assert computed == ["fuse", "label"], c
        assert len(found.manifest["stages"][4]["facts"]["eigenvalues"]) >= SHARED_CLUSTERS
    assert len(np.unique(first.labels)) == 10
    alone = run(X, Params(n_clusters=12), store=tmp_path / "alone")
    np.testing.assert_array_equal(again[12], alone.labels)


@pytest.mark.parametrize("m", [SHARED_SAMPLES[0] - 1, SHARED_SAMPLES[1] + 1])
def test_a_solve_that_is_short_or_long_is_of_the_run_alone(m):
    choices = choose(m, 10, Params(n_clusters=7))
    assert (choices.n_solved(Params(n_clusters=7)), choices.shared) == (7, 0)


def test_numbers_of_clusters_with_blocks_of_one_width_share_a_solve():
    solved = {c: choose(M, 10, Params(n_clusters=c)).shared for c in range(2, 60)}
    assert all(n >= c for c, n in solved.items())
    assert {solved[c] for c in range(2, SHARED_CLUSTERS + 1)} == {SHARED_CLUSTERS}
    assert len(set(solved.values())) < 10


def test_who_says_how_many_gets_as_many():
    assert choose(M, 10, Params(n_clusters=4, n_eigenpairs=30)).shared == 30
    assert choose(M, 10, Params(n_clusters=4), vectors="chunked") == dataclasses.replace(
        choose(M, 10, Params(n_clusters=4)), vectors="chunked"
    )
