"""The experiments: fair grids, honest reruns, tied components, and the paper's cells on the publishers' data."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from harness import block_affinity
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from ips2_dask import IPS2, PAPER
from ips2_dask.paper import experiments, methods
from ips2_dask.paper.baselines import CAVE, SC, SSC
from ips2_dask.paper.data import VARIABLE, Dataset, load, usdata1
from ips2_dask.paper.methods import METHODS, estimator, labels_of, quiet, scaled, score, summary, tie_components
from ips2_dask.paper.work import FIELDS, SETTINGS, Scope, Work

DATA = os.environ.get(VARIABLE)
needs_data = pytest.mark.skipif(not DATA, reason="IPS2_DATA names no directory of the publishers' files")

Array = npt.NDArray[Any]


# what is tried


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_tried_with_equally_many_distinct_settings_its_default_first(method: str) -> None:
    tried = methods.grid(method)
    assert len(tried) == methods.BUDGET
    assert len({json.dumps(setting, sort_keys=True) for setting in tried}) == methods.BUDGET
    assert tried[0] == methods.default(method)
    assert methods.grid(method, 17) == tried[:17]


@pytest.mark.parametrize("method", METHODS)
def test_published_settings_are_in_the_grid_with_every_scale(method: str) -> None:
    tried = methods.grid(method)
    for setting in methods.PUBLISHED[method]:
        for scale in methods.SCALES:
            assert {"scale": scale, **setting} in tried


def test_printed_settings_are_the_preset_and_what_authors_of_baselines_publish() -> None:
    assert methods.published("IPS2") == {"scale": "none", **PAPER}
    assert methods.published("PPC")["n_neighbors"] == PAPER["n_neighbors"]
    assert methods.published("SC") == {"scale": "none", "affinity": "gaussian"}
    assert methods.published("CAVE") == methods.default("CAVE")  # nobody prints any


def test_affinities_are_tried_with_the_same_ways_to_labels() -> None:
    ways = {method: {s.get("embedding", "spectral") for s in methods.grid(method)} for method in METHODS}
    assert ways.pop("HGC") == {"spectral"}  # its groups are its labels, and the word is not in its settings
    assert set(map(frozenset, ways.values())) == {frozenset({"spectral", "rows", "none"})}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["SC", "SSC", "CAVE"])
def test_an_affinity_is_labelled_as_ips2_labels_its_own(method: str, blobs: Array) -> None:
    setting = {**methods.default(method), "embedding": "none"}
    (labels,) = labels_of(method, setting, blobs, 3, [4])
    made, X = estimator(method, setting, blobs, 3, 4)
    W = made.fit(X).affinity_matrix_
    rows = tie_components(W, X, 3).toarray() if sp.issparse(W) else W
    expected = KMeans(3, n_init=10, random_state=np.random.RandomState(4)).fit(rows).labels_
    np.testing.assert_array_equal(labels, expected)
    (of_graph,) = labels_of(method, {**setting, "embedding": "rows"}, blobs, 3, [4])
    assert adjusted_rand_score(of_graph, SC(3, affinity="heat-knn", random_state=4).fit(rows).labels_) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_settings_of_the_grid_are_of_the_method_and_fit(method: str, blobs: Array) -> None:
    for setting in methods.grid(method)[::11]:
        (labels,) = labels_of(method, setting, blobs[:26], 3, [0])
        assert labels.shape == (26,)
        assert labels.max() < 3


# what is the same for all methods


@pytest.mark.slow
@pytest.mark.parametrize("scale", methods.SCALES)
def test_other_methods_get_the_data_that_ips2_would_scale_to(scale: str, blobs: Array) -> None:
    X = blobs * [1.0, 30.0, 0.1, 4.0] + [5.0, 0.0, -3.0, 100.0]
    X[:, 0] = 2.5  # a constant column
    with quiet():
        ours = IPS2(3, scale=scale).fit(X)
        theirs = IPS2(3).fit(scaled(X, scale))
    np.testing.assert_allclose(
        ours.pairwise_similarity_.toarray(), theirs.pairwise_similarity_.toarray(), rtol=1e-4, atol=1e-7
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "setting", "fresh"),
    [
        ("SC", {"affinity": "gaussian"}, SC(3, affinity="gaussian")),
        ("SC", {"affinity": "heat-knn"}, SC(3, affinity="heat-knn")),
        ("SSC", {}, SSC(3)),
        ("CAVE", {"n_neighbors": 9}, CAVE(3, n_neighbors=9)),
    ],
)
def test_labels_from_a_kept_affinity_are_those_of_a_fresh_fit(
    method: str, setting: dict[str, Any], fresh: Any, blobs: Array
) -> None:
    seeds = (3, 0, 8)
    for seed, labels in zip(seeds, labels_of(method, {"scale": "none", **setting}, blobs, 3, seeds), strict=True):
        np.testing.assert_array_equal(labels, fresh.set_params(random_state=seed).fit(blobs).labels_)


@pytest.mark.slow
def test_more_components_than_clusters_are_tied_before_any_method_is_labelled() -> None:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(72, 3)) + 50 * np.repeat(np.arange(9), 8)[:, None]  # nine islands on a line
    (labels,) = labels_of("SC", methods.default("SC"), X, 3, [0])
    assert connected_components(SC(3, affinity="heat-knn")._affinity(X))[0] == 9
    assert len(np.unique(labels)) == 3
    assert all(len(np.unique(labels[island : island + 8])) == 1 for island in range(0, 72, 8))


def test_a_bandwidth_may_be_a_multiple_of_the_mean_distance(blobs: Array) -> None:
    made, X = estimator("SC", {"scale": "l2", "affinity": "gaussian", "bandwidth_times": 0.5}, blobs, 3, 0)
    unit = blobs / np.linalg.norm(blobs, axis=1, keepdims=True)
    lengths = np.linalg.norm(unit[:, None] - unit, axis=2)[np.triu_indices(len(unit), 1)]
    assert made.bandwidth == pytest.approx(lengths.mean() / 2)
    np.testing.assert_allclose(X, unit)


# the three settings


@pytest.fixture(scope="module")
def small() -> Dataset:
    return usdata1(15, seed=4)


@pytest.mark.slow
def test_the_tuned_setting_is_the_best_mean_of_the_finalists(small: Dataset) -> None:
    found = methods.three_settings("HGC", small, runs=3, seed=2, budget=25)
    tried, accuracies = methods.try_grid("HGC", small, 2, 25)
    assert tried == methods.grid("HGC", 25)
    once = np.argsort([-one for one in accuracies], kind="stable")[: methods.FINALISTS]
    seeds = range(2, 5)
    means = [summary({}, score("HGC", tried[i], small, seeds))["mean"]["acc"] for i in once]
    assert found["tuned"]["mean"]["acc"] == max(means)
    assert found["tuned"]["params"] == tried[once[int(np.argmax(means))]]
    assert found["tuned"]["runs"] == 3


def test_settings_that_the_data_do_not_allow_are_left_out() -> None:
    few = usdata1(4, seed=0)
    few = Dataset("few", few.X[::5], few.labels[::5], "")  # 12 samples: no hyperedge of 15 or 20
    tried, accuracies = methods.try_grid("HGC", few, 0, 60)
    assert 0 < len(tried) == len(accuracies) < 60
    assert all(entry.get("n_neighbors", 10) <= 12 for entry in tried)


@pytest.mark.slow
def test_records_of_a_family_are_flat_and_of_every_point(tmp_path: Path) -> None:
    found = experiments.FAMILIES["noises"].make(Work(tmp_path, None, Scope(runs=1)))
    assert len(found) == len(experiments.NOISES) * 2 * (3 * 5 + 1)  # two variants, three methods, five measures, a gain
    for one in found:
        assert tuple(one) == FIELDS
        assert all(isinstance(value, str | int | float | bool) for value in one["params"].values())
        assert isinstance(one["mean"], float)
    gain = next(one for one in found if one["measure"] == "gain")
    of = {one["method"]: one["mean"] for one in found[: 3 * 5] if one["measure"] == "acc"}
    assert gain["mean"] == of["IPS2"] - of["SC"]


# the paper's figures


def test_printed_accuracies_are_whole_numbers_of_samples() -> None:
    for dataset, m in (("soybean", 47), ("bbcsport60", 60), ("yale5", 55)):
        for method in ("SC", "CAVE", "HGC", "PPC", "IPS2"):
            printed = experiments.printed_score(dataset, method, "acc")
            assert printed is not None
            assert abs(printed * m - round(printed * m)) < 0.0011 * m
    for method in ("SC", "PPC", "IPS2"):
        assert experiments.printed_score("scadi", method, "acc") is None  # theirs are of 57
    assert experiments.printed_score("scadi", "HGC", "acc") == pytest.approx(26 / 70, abs=5e-4)
    assert (
        experiments.printed_score("bbcsport-draws", "IPS2", "nmi")
        == experiments.printed_score("bbcsport60", "IPS2", "nmi")
        == 0.539
    )


def test_printed_times_are_in_the_order_of_the_methods() -> None:
    assert [experiments.printed_seconds("yale5", method) for method in METHODS] == [
        8.20,
        1992.46,
        8.45,
        12.58,
        30.14,
        30.96,
    ]
    assert experiments.printed_seconds("scadi57", "SC") == 2.18
    assert experiments.printed_seconds("wine", "SC") is None


# the publishers' data


@needs_data
def test_sc_gives_the_papers_own_figures_on_soybean() -> None:
    found = score("SC", methods.default("SC"), load("soybean", DATA), [0])[0]
    assert found["acc"] == 37 / 47
    for measure in experiments.MEASURES:
        printed = experiments.printed_score("soybean", "SC", measure)
        assert found[measure] == pytest.approx(printed, abs=1e-3)


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["soybean", "scadi57", "bbcsport60", "yale5"])
def test_tuned_ips2_reaches_the_papers_ips2_in_all_five_measures(dataset: str) -> None:
    found = experiments.table2_cell(DATA, dataset, "IPS2", runs=5, seed=0, budget=40)["tuned"]["mean"]
    for measure in experiments.MEASURES:
        printed = experiments.printed_score(dataset, "IPS2", measure)
        assert printed is not None
        assert round(found[measure], 3) >= printed, measure


@pytest.mark.slow
@needs_data
def test_draws_take_what_was_chosen_before_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "METHODS", ("SC",))
    monkeypatch.setattr(experiments, "TABLE_SETS", ("bbcsport60",))
    monkeypatch.setattr(experiments.cells, "__defaults__", (("SC",),))
    found = experiments._table2(Work(tmp_path, DATA, Scope(runs=2, budget=2, draws=2)))
    for setting in SETTINGS:
        chosen, drawn = (
            next(r for r in found if (r["dataset"], r["setting"]) == (name, setting))
            for name in ("bbcsport60", "bbcsport-draws")
        )
        assert drawn["params"] == chosen["params"]
        assert drawn["runs"] == 2


# components that are tied


def line(truth: Array) -> Array:
    """Points whose groups lie at 0, 100, 200, ...; inside a group they differ by less than one."""
    rng = np.random.default_rng(1)
    return np.column_stack([100.0 * truth + rng.random(len(truth)), rng.random(len(truth))]).astype(np.float32)


def ties(tied: sp.csr_array, U: sp.csr_array, truth: Array) -> list[tuple[int, int]]:
    """The edges that were added, each from the group with the smaller number to the other."""
    added = sp.coo_array(tied - U)
    return [(i, j) for i, j in zip(added.row.tolist(), added.col.tolist(), strict=True) if truth[i] < truth[j]]


def n_components(U: sp.csr_array) -> int:
    return int(connected_components(U, directed=False)[0])


def test_small_components_are_tied_to_their_nearest_by_the_median_edge() -> None:
    U, truth = block_affinity(100, 100, 3, 2)
    place = np.array([0.0, 300.0, 10.0, 290.0])  # the third lies by the first, the fourth by the second
    X = line(truth)
    X[:, 0] += (place[truth] - 100 * truth).astype(np.float32)
    tied = tie_components(U, X, 2)
    assert n_components(U) == 4
    assert sorted(truth[j] for _, j in ties(tied, U, truth)) == [2, 3]
    for near, member in ties(tied, U, truth):
        assert {3: 1, 2: 0}[truth[member]] == truth[near]
        outside = np.flatnonzero(truth != truth[member])
        distance = np.linalg.norm(X[outside].astype(np.float64) - X[member], axis=1)
        assert near == outside[np.argmin(distance)]
    change = sp.coo_array(tied - U)
    assert change.nnz == 4
    np.testing.assert_allclose(change.data, np.median(U.data))
    assert (abs(tied - tied.T)).max() == 0
    assert n_components(tied) == 2


def test_the_edge_starts_at_the_member_nearest_to_the_components_mean() -> None:
    U, truth = block_affinity(60, 3)
    X = line(truth)
    members = np.flatnonzero(truth == 1)
    X[members, 0] = [1000.0, 1001.0, 1005.0]  # mean 1002
    ((_, member),) = ties(tie_components(U, X, 2), U, truth)
    assert member == members[1]


def test_components_that_are_large_enough_and_not_too_many_are_left_alone() -> None:
    U, truth = block_affinity(40, 50, 30)
    assert n_components(U) == 3
    assert (tie_components(U, line(truth), 3) != U).nnz == 0


@pytest.mark.parametrize("c", [2, 3, 5])
def test_more_components_than_clusters_are_tied_until_there_are_no_more_the_smallest_first(c: int) -> None:
    U, truth = block_affinity(40, 38, 36, 34, 32, 30, 12)
    tied = tie_components(U, line(truth), c)
    assert n_components(U) == 7
    assert n_components(tied) == c
    assert {truth[i] for edge in ties(tied, U, truth) for i in edge} >= set(range(7)[c - 7 :])


def test_where_all_components_are_loose_the_largest_is_what_the_others_are_tied_to() -> None:
    rng = np.random.default_rng(4)
    U, truth = block_affinity(3, *[2] * 30)
    X = np.column_stack([rng.random(len(truth)), 10.0 * truth]).astype(np.float32)
    tied = tie_components(U, X, 2)
    assert n_components(U) == 31
    assert n_components(tied) <= 2


def test_nothing_but_single_samples_is_tied_too() -> None:
    U = sp.csr_array((25, 25))
    tied = tie_components(U, np.arange(25.0)[:, None], 3)
    assert n_components(tied) <= 3
    assert len(ties(tied, U, np.arange(25))) >= 22
