"""Every metric meets the oracle from the neighbours to S and the tensor, however the samples are cut."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import pytest
import reference
import scipy.io
from harness import run_on, slowly
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score
from sklearn.neighbors import KNeighborsTransformer, kneighbors_graph
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from ips2_dask import IPS2, BadInput, Params, Resources, Run, run
from ips2_dask.datasets import curved_gaussians
from ips2_dask.executors.base import Executor, SerialExecutor
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.kernels import metrics, neighbors, similarity
from ips2_dask.kernels.parallel import threads
from ips2_dask.params import CHOICES
from ips2_dask.runs import predict
from ips2_dask.stages import metric_views

Array = npt.NDArray[Any]
METRICS = [name for name in metrics.METRICS if name not in ("euclidean", "precomputed")]


def samples(seed: int = 1, m: int = 47, f: int = 5) -> Array:
    """Three groups in different directions, none of them at the origin."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(m, f)) + 3 * np.eye(3, f)[rng.integers(0, 3, m)]


def samples_for(metric: str, seed: int = 1, m: int = 47, f: int = 5) -> Array:
    """Samples that a metric is made for: counts, categories, sets, shares; others lie far from the origin as well."""
    X = samples(seed, m, f)
    if metrics.METRICS[metric].rows == "presence" or metric == "hamming":
        return np.maximum(np.round(X), 0)
    return np.abs(X) if metric in ("canberra", "braycurtis", "hellinger") else X + 100


def check_against_oracle(found: Run, d: Array) -> None:
    """Neighbours, pairs, R and S of a run are those of the distances d."""
    params = found.params
    N = reference.neighborhoods(d, params.n_neighbors)
    np.testing.assert_array_equal(found.neighbors.indices, N)
    np.testing.assert_allclose(found.neighbors.distances, np.take_along_axis(d, N, axis=1), rtol=2e-5, atol=2e-6)
    pairs = reference.active_pairs(N)
    np.testing.assert_array_equal(found.pairs, pairs)
    R = reference.restricted(reference.tensor(d, N, params.sigma, params.epsilon * found.unit), pairs)
    np.testing.assert_allclose(found.tensor().toarray(), R, rtol=2e-3, atol=2e-5)
    S = found.similarity("pairwise")
    dense = S if isinstance(S, np.ndarray) else S.toarray()
    expected = reference.pairwise_similarity(d, params.affinity, params.bandwidth)
    if isinstance(S, np.ndarray) or params.affinity == "heat-knn":
        np.testing.assert_allclose(dense, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("affinity", slowly(["heat-knn", "gaussian"], "heat-knn"))
@pytest.mark.parametrize("operator", slowly(["triplets", "matrix-free"], "triplets"))
@pytest.mark.parametrize("metric", METRICS)
def test_a_run_measures_by_its_metric_from_neighbours_to_tensor(metric: str, operator: str, affinity: str) -> None:
    X = samples_for(metric)
    params = Params(n_clusters=3, metric=metric, operator=operator, affinity=affinity, duplicates="keep")
    check_against_oracle(run_on(SerialExecutor(), X, params, rows=13), reference.distances(X, metric))


@pytest.mark.slow
@pytest.mark.parametrize("metric", slowly(METRICS, "chebyshev", "hellinger"))
def test_labels_by_any_metric_do_not_depend_on_who_computes(
    metric: str, dask_executor: DaskExecutor, tmp_path: Path
) -> None:
    X, params = samples_for(metric), Params(n_clusters=3, metric=metric)
    wanted = run_on(SerialExecutor(), X, params, rows=13)
    found = run_on(dask_executor, X, params, rows=13, store=tmp_path / "run")
    assert found.labels.tobytes() == wanted.labels.tobytes()


def test_the_metric_decides_who_is_near() -> None:
    X = np.array([[1.0, 0.0], [9.0, 1.0], [1.0, 1.0], [0.5, 0.6], [-1.0, 2.0], [-3.0, 5.0], [2.0, -4.0], [1.0, -3.0]])
    near = {
        metric: run_on(SerialExecutor(), X, Params(n_clusters=2, n_neighbors=2, metric=metric)).neighbors.indices[0, 1]
        for metric in ("euclidean", "cosine")
    }
    assert near == {"euclidean": 3, "cosine": 1}


def test_a_chord_is_root_two_times_one_minus_the_cosine_and_lengths_do_not_count() -> None:
    X = samples()
    params = Params(n_clusters=3, metric="cosine")
    found = run_on(SerialExecutor(), X * np.linspace(0.1, 50, len(X))[:, None], params).neighbors
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    i, j = found.indices[:, 0], found.indices[:, 1]
    np.testing.assert_allclose(found.distances[:, 1], np.sqrt(2 - 2 * (unit[i] * unit[j]).sum(axis=1)), rtol=1e-5)
    assert found.distances.max() <= 2


@pytest.mark.parametrize(("scale", "scaler"), [("zscore", StandardScaler()), ("minmax", MinMaxScaler())])
@pytest.mark.parametrize("metric", ["cosine", "correlation"])
def test_columns_are_scaled_by_the_letter_before_an_angle_is_taken(metric: str, scale: str, scaler: Any) -> None:
    X = samples() * [1, 100, 0.01, 5, 3] + [50, 1, 0, -7, 2]
    params = Params(n_clusters=3, metric=metric, scale=scale)
    scaled = scaler.fit_transform(X)
    cut, whole = (run_on(SerialExecutor(), X, params, rows=rows) for rows in (11, None))
    check_against_oracle(cut, reference.distances(scaled, metric))
    assert cut.neighbors.distances.tobytes() == whole.neighbors.distances.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "row", "said"),
    [
        ("cosine", [0, 0, 0], "nothing but zeros in row 17"),
        ("correlation", [0.3, 0.3, 0.3], "the same value in every"),
        ("hellinger", [0, 0, 0], "nothing but zeros in row 17"),
        ("hellinger", [3, -0.5, 2], "the value -0.5 in row 17, allowed"),
    ],
)
def test_a_row_without_a_direction_is_refused_by_its_number(
    metric: str, row: list[float], said: str, executor: Executor, tmp_path: Path
) -> None:
    X = np.abs(samples(f=3))
    X[17] = row
    with pytest.raises(BadInput, match=said):
        run_on(executor, X, Params(n_clusters=3, metric=metric), rows=10, store=tmp_path / "run")
    run_on(executor, X, Params(n_clusters=3, metric="manhattan"), rows=10, store=tmp_path / "run")


@pytest.mark.parametrize("metric", slowly(METRICS, "manhattan", "jaccard", "cosine"))
def test_shards_find_the_nearest_by_any_metric(metric: str) -> None:
    X = samples_for(metric, m=300)
    params = Params(n_clusters=3, metric=metric, graph="shards", shards=3, duplicates="keep")
    found = run(X, params, Resources(partition_rows=60))
    d = np.sort(reference.distances(X, metric), axis=1)
    assert found.report()["recall"] >= 0.95
    assert (found.neighbors.distances <= d[:, 4:5] * (1 + 1e-5) + 1e-4).mean() >= 0.95
    again = run(X, params, Resources(partition_rows=37))
    assert again.neighbors.distances.tobytes() == found.neighbors.distances.tobytes()
    np.testing.assert_array_equal(again.neighbors.indices, found.neighbors.indices)
    np.testing.assert_array_equal(again.labels, found.labels)


def test_every_metric_has_one_record_and_every_record_is_a_metric() -> None:
    assert set(metrics.METRICS) == {"euclidean", "precomputed", *METRICS} == set(CHOICES["metric"])
    codes = [metric.code for metric in metrics.METRICS.values() if metric.compares_pairs]
    assert sorted(codes) == list(range(1, len(codes) + 1))
    for metric in metrics.METRICS.values():
        assert metric.is_euclidean + metric.compares_pairs + metric.precomputed == 1


@pytest.mark.slow
@pytest.mark.parametrize("metric", [metric.name for metric in metrics.METRICS.values() if metric.compares_pairs])
def test_a_distance_is_the_oracles_pynndescents_and_scipys_whatever_function_measures_it(metric: str) -> None:
    from pynndescent.distances import named_distances  # noqa: PLC0415  its import compiles for many seconds

    rng = np.random.default_rng(8)
    X = (rng.integers(-3, 4, (12, 700)) * rng.random((12, 700)) * rng.integers(0, 2, (12, 1))).astype(np.float32)
    wanted = reference.distances(X, metric)
    np.testing.assert_allclose(similarity.cross_lengths(X, X, metric), wanted, rtol=2e-6)
    pairs = np.array([(i, j) for i in range(12) for j in range(12)])
    found = similarity.pair_lengths(X, pairs, metrics.METRICS[metric].code).reshape(12, 12)
    np.testing.assert_allclose(found, wanted, rtol=2e-6)
    np.testing.assert_array_equal(found, found.T)
    known = metrics.METRICS[metric]
    theirs = [[named_distances[known.external](x, y, *dict(known.arguments).values()) for y in X] for x in X]
    np.testing.assert_allclose(theirs, wanted, rtol=1e-4)


@pytest.mark.parametrize("scale", slowly(["none", "zscore", "minmax", "l2"], "zscore", "minmax"))
@pytest.mark.parametrize("metric", ["canberra", "braycurtis", "hamming", "jaccard", "hellinger", "chebyshev"])
def test_columns_are_scaled_to_the_letter_or_the_scale_is_refused(metric: str, scale: str) -> None:
    X = samples_for(metric) * [1, 100, 4, 5, 3] + [50, 1, 0, 0, 2]
    X[:, 2:4] = np.round(X[:, 2:4])
    if (scale == "zscore" and metric in ("jaccard", "hellinger")) or (scale == "minmax" and metric == "jaccard"):
        with pytest.raises(BadInput, match=f"scale: found '{scale}' with metric='{metric}'"):
            Params(metric=metric, scale=scale)
        return
    length = np.linalg.norm(X, axis=1, keepdims=True)
    scaled = {
        "none": X,
        "l2": X / length,
        "zscore": StandardScaler().fit_transform(X),
        "minmax": MinMaxScaler().fit_transform(X),
    }[scale]
    if metric == "hellinger" and scale == "minmax":
        X, scaled = X[scaled.any(axis=1)], scaled[scaled.any(axis=1)]
    params = Params(n_clusters=3, metric=metric, scale=scale, duplicates="keep")
    cut, whole = (run_on(SerialExecutor(), X, params, rows=rows) for rows in (11, None))
    wanted = reference.distances(scaled, metric)
    N = cut.neighbors.indices
    np.testing.assert_allclose(
        cut.neighbors.distances, np.take_along_axis(wanted, N.astype(np.int64), 1), rtol=2e-4, atol=2e-5
    )
    np.testing.assert_allclose(cut.neighbors.distances, np.sort(wanted, axis=1)[:, : N.shape[1]], rtol=2e-4, atol=2e-5)
    assert cut.neighbors.distances.tobytes() == whole.neighbors.distances.tobytes()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("affinity", slowly(["heat-knn", "gaussian"], "gaussian"))
def test_new_samples_are_compared_by_the_runs_metric(metric: str, affinity: str) -> None:
    X = samples_for(metric, m=140)
    params = Params(n_clusters=3, metric=metric, affinity=affinity, duplicates="keep")
    found = run(X[:120], params, Resources(partition_rows=50))
    context = found._context
    d = reference.distances(X, metric) / found.unit
    ready = predict._standardized(context, "new", np.arange(20), X[120:])
    _, lengths = predict.nearest(context, ready, 5)
    np.testing.assert_allclose(lengths, np.sort(d[120:, :120], axis=1)[:, :5], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(metric_views.lengths_to_all(context, ready), d[120:, :120], rtol=1e-4, atol=2e-4)
    first = np.sort(np.unique(X[:120], axis=0, return_index=True)[1])  # a copy of a sample is that sample
    np.testing.assert_array_equal(found.predict(X[first]), found.labels[first])
    assert found.predict_proba(X[120:]).shape == (20, 3)


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["canberra", "hamming"])
def test_pynndescent_searches_large_shards_the_same_however_samples_are_cut(
    metric: str, monkeypatch: pytest.MonkeyPatch, dask_executor: DaskExecutor, tmp_path: Path
) -> None:
    asked = []
    original = neighbors.descent_candidates
    monkeypatch.setattr(neighbors, "descent_candidates", lambda *a, **k: asked.append(1) or original(*a, **k))
    X = np.round(np.abs(curved_gaussians(12_000, 12, 4, 2)[0]) * 3)
    params = Params(n_clusters=4, metric=metric, graph="shards", shards=3)
    found = run_on(SerialExecutor(), X, params, rows=2000)
    assert asked
    assert found.report()["recall"] >= 0.95
    for executor, rows, store in ((SerialExecutor(), 5000, None), (dask_executor, 3000, tmp_path / "run")):
        again = run_on(executor, X, params, rows=rows, store=store)
        np.testing.assert_array_equal(again.neighbors.indices, found.neighbors.indices)
        np.testing.assert_array_equal(again.labels, found.labels)


def test_manhattan_neighbours_are_the_oracles_with_ties_by_id(any_data: Array) -> None:
    X = np.ascontiguousarray(any_data, np.float32)
    d = reference.distances(X, "manhattan")
    for n in (1, 3, 8):
        N, lengths = neighbors.exact_neighbors(X, 0, X, n, neighbors.nearest_by_metric)
        wanted = reference.neighborhoods(d, n)
        np.testing.assert_allclose(lengths, np.take_along_axis(d, wanted, axis=1), rtol=3e-6)
        if (np.rint(X) == X).all() or n == 1:  # sums of other numbers round, and so may break a tie
            np.testing.assert_array_equal(N, wanted)


def test_manhattan_neighbours_do_not_change_with_blocks_or_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(2).integers(0, 6, size=(300, 3)).astype(np.float32)
    own = np.arange(300)
    N, d = neighbors.nearest_by_metric(X, own, X, 7)
    monkeypatch.setattr(neighbors, "COMPARED_ROWS", 17)
    monkeypatch.setattr(neighbors, "COMPARED_BYTES", 12 * 41)
    with threads(3):
        again, lengths = neighbors.nearest_by_metric(X, own, X, 7)
    np.testing.assert_array_equal(again, N)
    assert lengths.tobytes() == d.tobytes()


def test_candidates_settle_by_manhattan_distance() -> None:
    X = np.random.default_rng(3).integers(0, 5, size=(40, 3)).astype(np.float32)
    d = reference.distances(X, "manhattan")
    wanted = reference.neighborhoods(d, 6)
    candidates = np.concatenate([wanted[:, ::-1], np.full((40, 2), -1)], axis=1).astype(np.int32)
    candidates[7] = -1
    nearest, code = neighbors.nearest_by_metric, metrics.METRICS["manhattan"].code
    N, lengths, repaired = neighbors.refine_candidates(X, candidates, 6, nearest, code)
    np.testing.assert_array_equal(N, wanted)
    np.testing.assert_array_equal(lengths, np.take_along_axis(d, wanted, axis=1))
    assert repaired == 1


@pytest.mark.parametrize("metric", slowly(["euclidean", *METRICS], "euclidean", "manhattan", "correlation"))
@pytest.mark.parametrize("operator", slowly(["triplets", "matrix-free"], "matrix-free"))
def test_a_matrix_of_distances_gives_what_the_samples_give(metric: str, operator: str) -> None:
    X = samples_for(metric)
    d = reference.distances(X, metric)
    params = Params(n_clusters=3, metric="precomputed", operator=operator, duplicates="keep")
    found = run_on(SerialExecutor(), d, params, rows=13)
    check_against_oracle(found, d)
    by_samples = run_on(SerialExecutor(), X, dataclasses.replace(params, metric=metric), rows=13)
    np.testing.assert_array_equal(found.labels, by_samples.labels)


def test_distances_decide_ties_by_id_and_the_gaussian_of_all_pairs(any_data: Array) -> None:
    d = reference.distances(any_data)
    params = Params(n_clusters=3, metric="precomputed", affinity="gaussian", duplicates="keep")
    check_against_oracle(run_on(SerialExecutor(), d, params, rows=9), np.asarray(d, np.float32).astype(np.float64))


@pytest.mark.slow
def test_distances_on_a_cluster_and_in_a_directory_give_the_same(dask_executor: DaskExecutor, tmp_path: Path) -> None:
    d = reference.distances(samples())
    np.save(tmp_path / "d.npy", d)
    params = Params(n_clusters=3, metric="precomputed")
    wanted = run_on(SerialExecutor(), d, params, rows=13).labels
    found = run_on(dask_executor, str(tmp_path / "d.npy"), params, rows=13, store=tmp_path / "run")
    assert found.labels.tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda d: d[:, :-1], "47 x 46 values with metric='precomputed'"),
        (lambda d: np.exp(-d), "distance 1 from sample 0 to itself"),
        (lambda d: d - 2 * (1 - np.eye(len(d))) * d.max(), "the distance -"),
        (lambda d: d + np.tri(len(d), k=-1), "a symmetric matrix"),
        (lambda d: np.where(d == d.max(), np.nan, d), "nan"),
    ],
)
def test_what_is_no_matrix_of_distances_is_refused(spoil: Any, said: str, executor: Executor, tmp_path: Path) -> None:
    d = spoil(reference.distances(samples()))
    with pytest.raises(BadInput, match=said):
        run_on(executor, d, Params(n_clusters=3, metric="precomputed"), rows=13, store=tmp_path / "run")


def test_the_rounding_of_whoever_computed_the_distances_is_no_asymmetry() -> None:
    d = reference.distances(samples()).astype(np.float32)
    d[3, 9] = np.nextafter(d[3, 9], np.float32(9))
    run_on(SerialExecutor(), d, Params(n_clusters=3, metric="precomputed"), rows=13)


@pytest.mark.parametrize("given", [{"scale": "zscore"}, {"graph": "shards"}, {"graph": "pynndescent"}])
def test_what_needs_samples_is_refused_with_distances(given: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="metric='precomputed'"):
        Params(metric="precomputed", **given)


def test_too_many_given_distances_are_refused_before_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "d.npy"
    np.lib.format.open_memmap(path, "w+", np.float32, (30_000, 30_000))  # a hole, which takes no room
    with pytest.raises(BadInput, match=r"at most 20000 samples"):
        run_on(SerialExecutor(), str(path), Params(metric="precomputed"))


def three_far_groups() -> tuple[Array, Array]:
    rng = np.random.default_rng(4)
    X = np.concatenate([rng.normal(size=(80, 2)), rng.normal(size=(80, 2)) + 30, rng.normal([60, 0], size=(7, 2))])
    return X, np.repeat([0, 1, 2], [80, 80, 7])


@pytest.mark.parametrize("metric", ["manhattan", "precomputed"])
def test_an_island_has_the_label_of_the_nearest_sample_by_the_runs_metric(metric: str) -> None:
    X, truth = three_far_groups()
    d = reference.distances(X, "manhattan")
    found = run(d if metric == "precomputed" else X, Params(n_clusters=2, metric=metric))
    assert found.report()["islands"]["fused"] == 1
    assert set(found.labels[160:]) == {found.labels[int(np.argmin(d[160:, :160].min(axis=0)))]}
    assert len(set(found.labels[truth == 0])) == 1


def test_the_estimator_takes_distances_and_says_that_it_does() -> None:
    X = samples()
    d = reference.distances(X)
    estimator = IPS2(n_clusters=3, metric="precomputed")
    assert estimator.__sklearn_tags__().input_tags.pairwise
    assert not IPS2().__sklearn_tags__().input_tags.pairwise
    np.testing.assert_array_equal(estimator.fit(d).labels_, IPS2(n_clusters=3).fit(X).labels_)


@pytest.mark.parametrize("noise", [2.3e-16, -2.2e-16])
def test_what_rounding_leaves_of_cosines_is_zero(noise: float) -> None:
    X = samples()
    d = 1 - (X / np.linalg.norm(X, axis=1)[:, None]) @ (X / np.linalg.norm(X, axis=1)[:, None]).T
    d = (d + d.T) / 2
    np.fill_diagonal(d, 0)
    d[5], d[:, 5] = d[4], d[:, 4]  # the direction of another sample
    d[4, 5] = d[5, 4] = d[5, 5] = 0
    params = Params(n_clusters=3, metric="precomputed", duplicates="keep")
    spoilt = d.copy()
    np.fill_diagonal(spoilt, noise)
    spoilt[4, 5], spoilt[5, 4] = noise, 0
    wanted, found = (run_on(SerialExecutor(), one, params, rows=13) for one in (np.maximum(d, 0), spoilt))
    np.testing.assert_array_equal(found.labels, wanted.labels)
    np.testing.assert_array_equal(found.neighbors.indices, wanted.neighbors.indices)
    assert found.neighbors.distances.min() == 0
    with pytest.raises(BadInput, match="1e-05 from sample 7 to itself"):
        run_on(SerialExecutor(), d + 1e-5 * np.diag(np.arange(47) == 7), params, rows=13)


def neighbours(X: Array, n: int) -> sparse.csr_array:
    return sparse.csr_array(kneighbors_graph(X, n, mode="distance"))


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csc_array, sparse.coo_array])
@pytest.mark.parametrize("symmetric", [False, True])
def test_sparse_distances_are_those_of_neighbours(kind: Any, symmetric: bool) -> None:
    X = make_blobs(150, centers=3, random_state=0)[0]
    params = Params(n_clusters=3, metric="precomputed")
    graph = neighbours(X, 15)
    found = run_on(SerialExecutor(), kind(graph.maximum(graph.T) if symmetric else graph), params, rows=40)
    wanted = run_on(SerialExecutor(), reference.distances(X), params, rows=40)
    np.testing.assert_array_equal(found.labels, wanted.labels)
    np.testing.assert_array_equal(found.neighbors.indices, wanted.neighbors.indices)
    np.testing.assert_allclose(found.neighbors.distances, wanted.neighbors.distances, rtol=1e-6)


def test_sparse_distances_of_all_pairs_are_the_dense_ones() -> None:
    d = reference.distances(samples())
    params = Params(n_clusters=3, metric="precomputed", affinity="gaussian")
    wanted, found = (run_on(SerialExecutor(), one, params, rows=13) for one in (d, sparse.csr_array(d)))
    assert found.labels.tobytes() == wanted.labels.tobytes()
    assert found.eigenvalues.tobytes() == wanted.eigenvalues.tobytes()
    assert found.unit == wanted.unit


@pytest.mark.parametrize("operator", ["triplets", "matrix-free"])
def test_sparse_distances_against_the_oracle_of_the_completed_matrix(operator: str) -> None:
    X = samples()
    graph = neighbours(X, 7)
    d = np.full((47, 47), np.inf)
    coo = graph.tocoo()
    d[coo.row, coo.col] = coo.data
    d = np.minimum(d, d.T)
    np.fill_diagonal(d, 0)
    by_one = np.minimum(d, (d[:, :, None] + d.T[None]).min(axis=1))
    far = np.where(np.isinf(d), np.where(np.isinf(by_one), 1e3, by_one), d)
    params = Params(n_clusters=3, metric="precomputed", operator=operator, duplicates="keep", bandwidth=1.5)
    found = run_on(SerialExecutor(), graph, params, rows=13)
    wanted = run_on(SerialExecutor(), far, dataclasses.replace(params), rows=13)
    np.testing.assert_array_equal(found.labels, wanted.labels)
    np.testing.assert_allclose(found.eigenvalues, wanted.eigenvalues, atol=1e-5)
    np.testing.assert_array_equal(found.neighbors.indices[:, :5], wanted.neighbors.indices[:, :5])


def test_zeros_that_are_stored_are_distances() -> None:
    X = np.repeat(make_blobs(50, centers=3, random_state=1)[0], 2, axis=0)
    graph = neighbours(X, 12)
    assert (graph.data == 0).any()
    for duplicates in ("keep", "merge"):
        params = Params(n_clusters=3, metric="precomputed", duplicates=duplicates)
        found, wanted = (run_on(SerialExecutor(), one, params) for one in (graph, reference.distances(X)))
        assert adjusted_rand_score(found.labels, wanted.labels) == 1
        assert found.neighbors.distances.min(axis=1).max() == 0


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["npz", "mtx", "h5ad"])
def test_sparse_distances_come_from_files_on_a_cluster(
    ending: str, dask_executor: DaskExecutor, tmp_path: Path
) -> None:
    X = np.repeat(make_blobs(60, centers=3, random_state=0)[0], 2, axis=0)  # with zeros that are stored
    graph = sparse.csr_matrix(neighbours(X, 13))
    path = str(tmp_path / f"d.{ending}")
    if ending == "npz":
        sparse.save_npz(path, graph)
    elif ending == "mtx":
        scipy.io.mmwrite(path, graph)
    else:
        anndata = pytest.importorskip("anndata")
        anndata.AnnData(X.astype(np.float32), obsp={"distances": graph}).write_h5ad(path)
        path += "::obsp/distances"
    params = Params(n_clusters=3, metric="precomputed", duplicates="keep")
    found = run_on(dask_executor, path, params, rows=50, store=tmp_path / "run")
    wanted = run_on(SerialExecutor(), graph, params, rows=50)
    np.testing.assert_array_equal(found.labels, wanted.labels)


def _one(graph: sparse.csr_array, i: int, j: int, value: float) -> sparse.csr_array:
    spoilt = graph.tolil()
    spoilt[i, j] = value
    return spoilt.tocsr()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda g: neighbours(samples(), 4), r"4 stored distances of sample \d+, allowed is at least 5 .*graph\(X, 5,"),
        (lambda g: _one(g, 3, 9, -1), "distance -1 from sample 3 to 9"),
        (lambda g: _one(g, 3, 9, np.nan), "distance nan from sample 3 to 9"),
        (lambda g: _one(g, 3, 9, np.inf), "distance inf from sample 3 to 9"),
        (lambda g: _one(g, 3, 3, 1), "distance 1 from sample 3 to itself"),
        (lambda g: _one(_one(g, 3, 9, 1), 9, 3, 2), r"1 from sample 3 to 9 and 2 back.*D\.maximum\(D\.T\)"),
        (lambda g: g[:, :40], "47 x 40 values"),
    ],
)
def test_what_is_no_graph_of_distances_is_refused_in_a_line(spoil: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        run(spoil(neighbours(samples(), 8)), Params(n_clusters=3, metric="precomputed"))


def test_the_remedies_for_sparse_distances_remedy() -> None:
    params = Params(n_clusters=3, metric="precomputed", n_neighbors=9)
    with pytest.raises(BadInput, match="at least 8") as caught:
        run(neighbours(samples(), 7), params)
    n = int(re.search(r"kneighbors_graph\(X, (\d+)", caught.value.remedy)[1])  # type: ignore[index]
    run(neighbours(samples(), n), params)
    uneven = _one(_one(neighbours(samples(), 8), 3, 9, 1), 9, 3, 2)
    run(uneven.maximum(uneven.T), params)


def test_more_components_than_clusters_are_refused_where_no_distance_says_which_are_near() -> None:
    X = np.round(make_blobs(120, centers=6, cluster_std=0.4, random_state=0)[0], 3)
    graph = neighbours(X, 8)
    assert connected_components(graph)[0] >= 6
    with pytest.raises(BadInput, match="no stored way from some components"):
        run(graph, Params(n_clusters=2, metric="precomputed"))
    near = neighbours(X, 60)  # by the remedy
    assert len(set(run(near, Params(n_clusters=2, metric="precomputed")).labels.tolist())) == 2


def test_clusters_that_no_distance_joins_are_counted() -> None:
    X, truth = make_blobs(240, centers=4, cluster_std=0.4, random_state=0)
    graph = neighbours(X, 12)
    assert connected_components(graph)[0] == 4
    labels = run(graph, Params(n_clusters="auto", metric="precomputed")).labels
    assert adjusted_rand_score(truth, labels) == 1


def test_sparse_blocks_of_dask_are_refused_until_they_are_computed() -> None:
    d = neighbours(samples(), 8)
    array = da.from_array(d.toarray(), (20, 47)).map_blocks(sparse.csr_matrix)
    params = Params(n_clusters=3, metric="precomputed")
    with pytest.raises(BadInput, match=r"sparse blocks.*array\.compute\(\)"):
        run(array, params)
    np.testing.assert_array_equal(run(array.compute(), params).labels, run(d, params).labels)


def test_a_graph_that_says_nothing_of_lengths_is_warned_of() -> None:
    found = run(kneighbors_graph(samples(), 8), Params(n_clusters=3, metric="precomputed"))
    assert any("mode='distance'" in text for text in found.report()["warnings"])


def test_the_estimator_takes_a_graph_of_scikit_learn() -> None:
    X = make_blobs(150, centers=3, random_state=0)[0]
    pipeline = make_pipeline(KNeighborsTransformer(n_neighbors=10), IPS2(n_clusters=3, metric="precomputed"))
    np.testing.assert_array_equal(pipeline.fit(X)[-1].labels_, IPS2(n_clusters=3).fit(X).labels_)
