"""Runs from end to end meet the oracle, give the same labels however they are run, and do nothing twice."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import reference
import scipy.sparse as sp
from harness import DATA, ShuffledExecutor, TwiceExecutor, few_examples, grid, run_on, slowly
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.linalg import eigsh
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from ips2_dask import BadInput, Params, Resources, Run, clusters, open_run, run
from ips2_dask.executors.base import SerialExecutor
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.kernels import eigen
from ips2_dask.kernels import tensor as tensor_kernel
from ips2_dask.kernels.rounding import FEW_SAMPLES
from ips2_dask.params import CHOICES
from ips2_dask.pipeline.prepare import open_inputs, prepare
from ips2_dask.stages import views
from ips2_dask.store.context import part_name
from ips2_dask.store.layout import STAGES

Array = npt.NDArray[Any]
EXACT = 1e-7
"""A tolerance at which eigenvectors are the oracle's to five digits."""


OPERATORS = [operator for operator in CHOICES["operator"] if operator != "auto"]


def keeping(**given: Any) -> Params:
    """Parameters with which equal rows are samples of their own, as the oracle has them."""
    return Params(duplicates="keep", **given)


def dense(matrix: Any) -> Array:
    return np.asarray(matrix.toarray() if sp.issparse(matrix) else matrix)


class Oracle(NamedTuple):
    d: Array
    N: Array
    pairs: Array
    R: Array


def oracle(X: Array, k: int, sigma: float = 1.0, epsilon: float = 1e-4) -> Oracle:
    d = reference.distances(X)
    N = reference.neighborhoods(d, k)
    pairs = reference.active_pairs(N)
    T = reference.tensor(d, N, sigma, epsilon * reference.unit_of(d))
    return Oracle(d, N, pairs, reference.restricted(T, pairs))


def assert_tensor(found: Run, expected: Oracle) -> None:
    np.testing.assert_array_equal(found.pairs, expected.pairs)
    R = found.tensor()
    assert R.dtype == np.float32
    difference = np.abs(R.toarray() - expected.R)
    assert (difference <= 1e-5 * np.abs(expected.R) + 1e-7).all()


def stored_triplets(found: Run) -> tuple[Array, Array]:
    """Row and column of every stored entry, partition by partition."""
    context = found._context
    columns = [context.read_all("tensor", name) for name in ("indices_0", "indices_1")]
    return columns[0], columns[1]


SEVERAL = list(zip(sorted(DATA), (2, 5, 6, 10, 12), strict=True))
"""Each of the small data sets with another k."""


@pytest.mark.parametrize(
    ("name", "k"),
    [*SEVERAL, *grid(*((name, k) for name in sorted(DATA) for k in range(2, 13) if (name, k) not in SEVERAL))],
)
def test_the_tensor_is_the_oracles_for_every_k_and_partition_size(name: str, k: int) -> None:
    X = DATA[name]()
    expected = oracle(X, k)
    sizes = (1, 2, 7, 16, len(X))
    for rows in (sizes[k % 5], sizes[(k + 2) % 5]):
        found = run(X, keeping(n_clusters=2, n_neighbors=k, operator="triplets"), Resources(partition_rows=rows))
        assert_tensor(found, expected)
        r, s = stored_triplets(found)
        assert (r <= s).all()
        assert len(np.unique(r * len(expected.pairs) + s)) == len(r)  # each entry once over the whole run
        assert found.report()["nnz"] == 2 * len(r) - int((r == s).sum())


@given(
    seed=st.integers(0, 2**32 - 1),
    m=st.integers(4, 16),
    grid=st.booleans(),
    k=st.integers(2, 12),
    rows=st.integers(1, 16),
    sigma=st.floats(0.05, 4),
    epsilon=st.floats(1e-6, 9e-4),
    operator=st.sampled_from(OPERATORS),
)
def test_any_partitioning_of_any_data_gives_the_oracles_tensor(
    seed: int, m: int, grid: bool, k: int, rows: int, sigma: float, epsilon: float, operator: str
) -> None:
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 3, size=(m, 2)).astype(np.float64) if grid else rng.normal(size=(m, 3))
    k = min(k, m)
    params = keeping(n_clusters=2, n_neighbors=k, sigma=sigma, epsilon=epsilon, operator=operator)
    assert_tensor(run(X, params, Resources(partition_rows=rows)), oracle(X, k, sigma, epsilon))


@pytest.mark.parametrize("hub", [2, *grid(1, 3)])
def test_the_tensor_is_the_oracles_whatever_counts_as_a_hub(
    any_data: Array, hub: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_kernel, "HUB", hub)
    params = keeping(n_clusters=2, n_neighbors=6)
    assert_tensor(run(any_data, params, Resources(partition_rows=9)), oracle(any_data, 6))


@pytest.mark.parametrize("k", [5, *grid(2, 7, 12)])
def test_neighbours_pairs_and_degrees_are_the_oracles(any_data: Array, k: int) -> None:
    expected = oracle(any_data, k)
    found = run(any_data, keeping(n_clusters=2, n_neighbors=k), Resources(partition_rows=8))
    np.testing.assert_array_equal(found.neighbors.indices, expected.N)
    assert (found.neighbors.indices[:, 0] == np.arange(len(any_data))).all()
    lengths = np.take_along_axis(expected.d, expected.N, axis=1)
    np.testing.assert_allclose(found.neighbors.distances, lengths, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.degrees, reference.degrees(expected.R, expected.pairs), rtol=1e-5)
    assert found.report()["recall"] == 1.0


def assert_eigenpairs(found: Run, tol: float) -> None:
    """Residuals, orthogonality, and the vectors of eigenvalue 1, all from what the run shows."""
    R, degrees, c = found.tensor(), found.degrees, found.params.n_clusters
    scale = np.divide(1, np.sqrt(degrees), out=np.zeros_like(degrees), where=degrees > 0)
    L_hat = sp.csr_array(sp.diags_array(scale) @ R.astype(np.float64) @ sp.diags_array(scale))
    y, values = found.eigenvectors.astype(np.float64), found.eigenvalues
    assert y.shape == (len(degrees), c)
    assert (np.diff(values) <= 1e-12).all()
    np.testing.assert_allclose(y.T @ y, np.eye(c), atol=1e-5)
    assert np.linalg.norm(L_hat @ y - y * values, axis=0).max() <= max(tol, 1e-6)
    count = min(found.report()["components"], c)
    assert (values[:count] == 1).all()
    assert (values[count:] < 1).all()
    root = np.sqrt(degrees) * np.where(found.pairs[:, 0] == found.pairs[:, 1], 1, np.sqrt(2))
    for column in y[:, :count].T:
        held = column != 0
        ratio = column[held] / root[held]
        np.testing.assert_allclose(ratio, ratio[0])
    if len(degrees) <= 1000:
        spectrum = np.linalg.eigvalsh(L_hat.toarray())[::-1]
    else:  # ARPACK finds a repeated eigenvalue once, so there must be one component
        assert count == 1
        spectrum = np.sort(eigsh(L_hat, k=c, which="LA", v0=np.ones(len(degrees)))[0])[::-1]
    np.testing.assert_allclose(values, spectrum[:c], atol=max(tol, 1e-5))


@pytest.mark.parametrize(("k", "c"), [(5, 3), *grid((2, 2), (3, 4), (5, 8), (10, 6))])
@pytest.mark.parametrize("operator", OPERATORS)
def test_eigenpairs_keep_their_promises(any_data: Array, k: int, c: int, operator: str) -> None:
    found = run(any_data, keeping(n_clusters=c, n_neighbors=k, operator=operator, tol=1e-3))
    expected = oracle(any_data, k)
    assert found.report()["components"] == reference.components(expected.R).max() + 1
    assert_eigenpairs(found, 1e-3)


@pytest.mark.parametrize("tol", [1e-3, 1e-5, 1e-8])
def test_eigenpairs_of_real_data_meet_any_tolerance(tol: float) -> None:
    X = load_digits(n_class=4).data[:140]
    found = run(X, Params(n_clusters=5, tol=tol))
    assert found.report()["verdict"] == "converged"
    assert found.report()["products"] > 0  # not by LAPACK
    assert found.report()["residual_max"] <= tol
    assert_eigenpairs(found, tol)


def test_component_vectors_are_each_on_one_component_and_nowhere_else() -> None:
    X = DATA["islands"]()
    found = run(X, Params(n_clusters=5, n_neighbors=5))
    support = found.eigenvectors[:, :3] != 0
    assert (support.sum(axis=1) == 1).all()
    group = np.argmax(support, axis=1)
    assert all(len(np.unique(group[np.isin(found.pairs, members).all(axis=1)])) == 1 for members in islands_of(found))


def islands_of(found: Run) -> list[Array]:
    context = found._context
    parts = [context.read("assemble", "components-" + part_name(b), "components") for b in range(context.n_partitions)]
    label = np.concatenate(parts)
    return [np.flatnonzero(label == component) for component in range(label.max() + 1)]


def similarities(found: Run) -> tuple[Array, Array, Array]:
    S, V, U = (dense(found.similarity(kind)) for kind in ("pairwise", "high_order", "fused"))
    return S, V, U


def assert_similarities(X: Array, found: Run) -> None:
    params = found.params
    d, _, pairs, R = oracle(X, params.n_neighbors, params.sigma, params.epsilon)
    S = reference.pairwise_similarity(d, params.affinity, params.bandwidth)
    leading = reference.leading(R, pairs, params.n_clusters)
    V = reference.high_order_similarity(leading.vectors, leading.weights, pairs, params.high_order)
    if params.method != "ppc" and params.fusion == "normalized":
        V = reference.on_pairs_of(S, V)
    U = V if params.method == "ppc" else reference.fuse(S, V, params.fusion, params.fusion_weight)
    for one, other in zip(similarities(found), (S, V, U), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("rule", ["rms", "abs", "signed"])
@pytest.mark.parametrize("fusion", ["average", "normalized"])
@pytest.mark.parametrize("affinity", ["heat-knn", "gaussian"])
def test_s_v_and_u_are_the_oracles(rule: str, fusion: str, affinity: str) -> None:
    X = DATA["random"]()
    params = keeping(n_clusters=3, high_order=rule, fusion=fusion, affinity=affinity, tol=EXACT)
    assert_similarities(X, run(X, params, Resources(partition_rows=9)))


@pytest.mark.parametrize("c", [2, 3, 5])
@pytest.mark.parametrize("affinity", ["heat-knn", "gaussian"])
def test_v_and_u_are_the_oracles_with_more_as_many_and_fewer_components_than_clusters(c: int, affinity: str) -> None:
    X = DATA["islands"]()
    found = run(X, keeping(n_clusters=c, affinity=affinity, tol=EXACT), Resources(partition_rows=10))
    assert found.report()["components"] == 3
    assert_similarities(X, found)


@pytest.mark.parametrize(
    "change", [{"bandwidth": "median"}, {"bandwidth": 0.8}, {"fusion_weight": 0.2}, {"method": "ppc"}]
)
@pytest.mark.parametrize("affinity", ["heat-knn", "gaussian"])
def test_every_parameter_of_the_similarities_is_used_as_the_oracle_uses_it(
    change: dict[str, Any], affinity: str
) -> None:
    X = DATA["random"]()
    assert_similarities(X, run(X, keeping(n_clusters=3, affinity=affinity, tol=EXACT, **change)))


@pytest.mark.parametrize("name", ["duplicates", "integers", "star"])
def test_v_and_u_are_the_oracles_on_awkward_data(name: str) -> None:
    X = DATA[name]()
    assert_similarities(X, run(X, keeping(n_clusters=4, n_neighbors=6, tol=EXACT), Resources(partition_rows=10)))


def decomposable_oracle(X: Array, params: Params) -> tuple[Array, Array, Array]:
    """Eigenvalues, S and V from the symmetric half of S kron S itself, which is formed."""
    S = reference.pairwise_similarity(reference.distances(X), params.affinity, params.bandwidth)
    pairs = np.argwhere(np.triu(np.ones_like(S)))
    R = reference.restricted(reference.decomposable(S), pairs)
    leading = reference.leading(R, pairs, params.n_clusters)
    V = reference.high_order_similarity(leading.vectors, leading.weights, pairs, params.high_order)
    return leading.values, S, V


@pytest.mark.parametrize("rule", ["rms", "abs"])
def test_a_decomposable_run_is_the_oracles_on_all_pairs(rule: str) -> None:
    X = DATA["random"]()[:16]
    params = Params(
        n_clusters=4, tensor="decomposable", affinity="gaussian", high_order=rule, fusion="average", tol=EXACT
    )
    values, S, V = decomposable_oracle(X, params)
    found = run(X, params, Resources(partition_rows=5))
    np.testing.assert_allclose(found.eigenvalues, values[:4], atol=1e-6)
    for one, other in zip(similarities(found), (S, V, reference.fuse(S, V)), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_a_decomposable_run_is_the_oracles_where_its_sparse_similarity_has_entries() -> None:
    X = DATA["random"]()[:18]
    params = Params(n_clusters=3, tensor="decomposable", fusion="average", tol=EXACT)
    values, S, V = decomposable_oracle(X, params)
    found = run(X, params, Resources(partition_rows=5))
    np.testing.assert_allclose(found.eigenvalues, values[:3], atol=1e-6)
    one, two, three = similarities(found)
    np.testing.assert_allclose(one, S, atol=1e-6)
    held = two != 0
    assert held[S > 0].all()
    ratio = V[held].max()  # V is scaled by its maximum over the entries that are kept
    np.testing.assert_allclose(two[held], V[held] / ratio, atol=2e-5)
    np.testing.assert_allclose(three, (one + two) / 2, atol=1e-12)
    assert found.report()["warnings"] == []


def test_a_decomposable_run_of_many_samples_solves_both_ends_of_the_spectrum() -> None:
    X = np.random.default_rng(0).normal(size=(200, 3))
    params = Params(n_clusters=4, tensor="decomposable", tol=1e-6)
    S = reference.pairwise_similarity(reference.distances(X))
    values = np.linalg.eigvalsh(reference.laplacian(S))
    i, j = np.triu_indices(200)
    expected = np.sort(values[i] * values[j])[::-1]
    np.testing.assert_allclose(run(X, params).eigenvalues, expected[:4], atol=1e-5)


def test_a_decomposable_run_refuses_to_show_its_tensor() -> None:
    found = run(DATA["random"](), Params(n_clusters=2, tensor="decomposable"))
    for ask in (found.tensor, lambda: found.degrees, lambda: found.eigenvectors):
        with pytest.raises(BadInput, match="explicit"):
            ask()


def test_a_repeated_eigenvalue_is_taken_whole_and_said() -> None:
    angle = 2 * np.pi * np.arange(9) / 9
    X = np.column_stack([np.cos(angle), np.sin(angle)])
    found = run(X, Params(n_clusters=2, n_neighbors=3, tol=EXACT))
    assert any("repeated" in text for text in found.report()["warnings"])
    V = dense(found.similarity("high_order"))
    np.testing.assert_allclose(np.roll(V, (1, 1), axis=(0, 1)), V, atol=1e-5)


# ---- the same labels however it is run


@pytest.fixture(scope="module")
def digits() -> Array:
    return np.asarray(load_digits().data[:320])


DIGITS = Params(n_clusters=10)


@pytest.fixture(scope="module")
def digits_labels(digits: Array) -> Array:
    """Serial, in memory, in one partition."""
    labels = run(digits, DIGITS).labels
    assert len(np.unique(labels)) == 10
    return labels


@pytest.mark.parametrize("rows", [23, 160, *grid(64, 319)])
def test_labels_do_not_depend_on_partition_sizes(digits: Array, digits_labels: Array, rows: int) -> None:
    found = run(digits, DIGITS, Resources(partition_rows=rows))
    np.testing.assert_array_equal(found.labels, digits_labels)


def test_labels_on_disk_are_those_in_memory(digits: Array, digits_labels: Array, tmp_path: Path) -> None:
    found = run(digits, DIGITS, Resources(partition_rows=100), store=tmp_path / "run")
    np.testing.assert_array_equal(found.labels, digits_labels)
    np.testing.assert_array_equal(open_run(tmp_path / "run").labels, digits_labels)


@pytest.mark.slow
def test_labels_of_two_workers_and_of_one_are_those_of_none(
    digits: Array, digits_labels: Array, dask_executor: DaskExecutor, tmp_path: Path
) -> None:
    assert dask_executor.n_workers == 2
    two = run(digits, DIGITS, Resources(partition_rows=50), client=dask_executor.client)
    np.testing.assert_array_equal(two.labels, digits_labels)
    with clusters.executor(Resources(n_workers=1)) as single:
        assert single.n_workers == 1
        one = run_on(single, digits, DIGITS, 50, tmp_path / "one")
    np.testing.assert_array_equal(one.labels, digits_labels)
    for name in ("pairs", "degrees", "eigenvalues", "eigenvectors", "embedding"):
        assert getattr(one, name).tobytes() == getattr(two, name).tobytes()
    for kind in ("pairwise", "high_order", "fused"):
        assert (one.similarity(kind) != two.similarity(kind)).nnz == 0
    assert (one.tensor() != two.tensor()).nnz == 0


@pytest.mark.slow
@pytest.mark.parametrize("m", [FEW_SAMPLES - 1, FEW_SAMPLES])
def test_labels_are_the_same_bits_where_k_means_is_one_task_and_where_it_is_several(
    m: int, dask_executor: DaskExecutor, tmp_path: Path
) -> None:
    X = np.random.default_rng(m).normal(size=(m, 3))  # no clusters: each start ends somewhere else
    params = Params(n_clusters=7)
    serial = run(X, params)
    workers = run_on(dask_executor, X, params, 130, tmp_path)
    np.testing.assert_array_equal(workers.labels, serial.labels)
    assert workers.embedding.tobytes() == serial.embedding.tobytes()


@pytest.mark.parametrize("seed", [0, *grid(1, 2)])
def test_labels_do_not_depend_on_the_order_in_which_tasks_complete(
    digits: Array, digits_labels: Array, seed: int
) -> None:
    found = run_on(ShuffledExecutor(seed), digits, DIGITS, 40)
    np.testing.assert_array_equal(found.labels, digits_labels)


@pytest.mark.slow
def test_tasks_that_run_twice_give_the_same_and_change_nothing(
    digits: Array, digits_labels: Array, tmp_path: Path
) -> None:
    executor = TwiceExecutor()
    found = run_on(executor, digits, DIGITS, 100, tmp_path / "run")
    np.testing.assert_array_equal(found.labels, digits_labels)
    assert {stage for stage, _ in executor.compared} >= {"ingest", "neighbors", "tensor", "fuse", "label"}


@pytest.mark.parametrize(
    "change",
    [
        {"affinity": "gaussian"},
        {"fusion": "normalized"},
        {"high_order": "abs"},
        {"assign_labels": "kmeans"},
        {"embedding": "none"},
        {"assign_labels": "density"},
        {"tensor": "decomposable"},
        {"method": "ppc"},
        {"scale": "zscore"},
        {"scale": "l2"},
    ],
)
def test_every_variant_gives_the_same_labels_in_any_partitions_and_order(digits: Array, change: dict[str, Any]) -> None:
    params = dataclasses.replace(DIGITS, n_clusters=4, **change)
    whole = run(digits[:70], params).labels
    np.testing.assert_array_equal(run_on(ShuffledExecutor(0), digits[:70], params, 13).labels, whole)


@pytest.mark.parametrize(
    "change",
    slowly([{"affinity": "gaussian"}, {"fusion": "normalized"}, {"tensor": "decomposable"}], {"fusion": "normalized"}),
)
def test_variants_give_the_same_labels_on_workers(
    digits: Array, dask_executor: DaskExecutor, change: dict[str, Any], tmp_path: Path
) -> None:
    params = dataclasses.replace(DIGITS, n_clusters=4, **change)
    found = run_on(dask_executor, digits[:70], params, 30, tmp_path)
    np.testing.assert_array_equal(found.labels, run(digits[:70], params).labels)


@pytest.mark.parametrize("change", [{}, {"fusion": "normalized"}, {"affinity": "gaussian", "fusion": "normalized"}])
def test_the_fused_similarity_is_the_same_bits_in_any_partitions(change: dict[str, Any]) -> None:
    X = DATA["random"]()
    fused = [
        dense(run(X, Params(n_clusters=3, **change), Resources(partition_rows=rows)).similarity())
        for rows in (31, 13, 1)
    ]
    assert fused[0].tobytes() == fused[1].tobytes() == fused[2].tobytes()


def test_another_seed_may_give_other_labels_and_the_same_one_never_does(digits: Array, digits_labels: Array) -> None:
    np.testing.assert_array_equal(run(digits, DIGITS).labels, digits_labels)
    other = dataclasses.replace(DIGITS, n_clusters=30)
    labels = [run(digits, dataclasses.replace(other, random_state=seed)).labels for seed in (0, 0, 1)]
    np.testing.assert_array_equal(labels[0], labels[1])
    assert (labels[0] != labels[2]).any()


@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(5, 40))
@few_examples()
def test_relabelling_samples_permutes_the_similarities_and_the_labels(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    truth = np.repeat([0, 1, 2], 12)
    X = rng.normal(size=(36, 4)) + 6 * np.eye(3, 4)[truth]  # continuous: no tie for an id to break
    order = rng.permutation(36)
    params = Params(n_clusters=3, tol=EXACT)
    first, second = run(X, params), run(X[order], params, Resources(partition_rows=rows))
    for kind in ("pairwise", "high_order", "fused"):
        one, other = dense(first.similarity(kind)), dense(second.similarity(kind))
        np.testing.assert_allclose(other, one[np.ix_(order, order)], atol=5e-5)
    assert adjusted_rand_score(first.labels[order], second.labels) == 1


@pytest.mark.slow
def test_runs_at_the_same_time_on_one_client_do_not_mix(dask_executor: DaskExecutor) -> None:
    data = [np.random.default_rng(seed).normal(size=(40, 3)) for seed in range(4)]
    params = [keeping(n_clusters=2, n_neighbors=3 + seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(lambda X, p: run(X, p, Resources(partition_rows=10), client=dask_executor.client), data, params)
        )
    for X, p, one in zip(data, params, found, strict=True):
        assert_tensor(one, oracle(X, p.n_neighbors))
        np.testing.assert_array_equal(one.labels, run(X, p).labels)


# ---- nothing is done twice


def skipped(found: Run) -> list[str]:
    return [stage["name"] for stage in found.report()["stages"] if stage["skipped"]]


def test_the_same_command_again_does_nothing(blobs: Array, tmp_path: Path) -> None:
    params = Params(n_clusters=3)
    first = run(blobs, params, Resources(partition_rows=20), store=tmp_path)
    assert skipped(first) == []
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    again = run(blobs.copy(), params, Resources(partition_rows=20, memory_limit=8 << 30), store=tmp_path)
    assert skipped(again) == list(STAGES)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert {path for path in after if after[path] != before.get(path)} <= {tmp_path / "manifest.json"}
    np.testing.assert_array_equal(again.labels, first.labels)


SMALL = Params(n_clusters=3, operator="triplets")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Array, Path]:
    """Data, and the directory of their finished run."""
    directory = tmp_path_factory.mktemp("finished")
    X = np.random.default_rng(17).normal(size=(60, 4))
    run(X, SMALL, store=directory)
    return X, directory


@pytest.mark.parametrize(
    ("change", "reused"),
    [
        ({"n_clusters": 4}, STAGES[:4]),
        ({"tol": 1e-4}, STAGES[:4]),
        ({"sigma": 2.0}, STAGES[:2]),
        ({"epsilon": 2e-4}, STAGES[:2]),
        ({"n_neighbors": 6}, STAGES[:2]),  # the stored graph has six columns anyway
        ({"n_neighbors": 7}, STAGES[:1]),
        ({"affinity": "gaussian"}, STAGES[:5]),
        ({"bandwidth": "median"}, STAGES[:5]),
        ({"high_order": "abs"}, STAGES[:5]),
        ({"fusion": "average"}, STAGES[:5]),
        ({"method": "ppc"}, STAGES[:5]),
        ({"assign_labels": "kmeans"}, STAGES[:6]),
        ({"scale": "zscore"}, ()),
        ({"tensor": "decomposable", "operator": "auto"}, STAGES[:2]),
        ({"operator": "matrix-free"}, STAGES[:2]),
    ],
)
def test_a_changed_parameter_reuses_what_does_not_depend_on_it(
    change: dict[str, Any], reused: tuple[str, ...], finished: tuple[Array, Path]
) -> None:
    X, directory = finished
    params = dataclasses.replace(SMALL, **change)
    changed = run(X, params, store=directory)
    assert tuple(skipped(changed)) == tuple(reused)
    np.testing.assert_array_equal(changed.labels, run(X, params).labels)


def test_what_was_there_before_a_parameter_changed_is_still_there(finished: tuple[Array, Path]) -> None:
    X, directory = finished
    run(X, dataclasses.replace(SMALL, sigma=3.0, n_neighbors=8), store=directory)
    assert skipped(run(X, SMALL, store=directory)) == list(STAGES)


@pytest.mark.slow
@pytest.mark.parametrize(("operator", "tol"), [("triplets", 1e-3), ("matrix-free", 1e-7), *grid(("matrix-free", 1e-3))])
def test_runs_after_one_another_in_one_directory_are_each_as_if_alone(
    blobs: Array, operator: str, tol: float, tmp_path: Path
) -> None:
    first = Params(n_clusters=3, operator=operator, tol=tol)
    changes: list[dict[str, Any]] = [{}, {"sigma": 2.0}, {"epsilon": 9e-4}, {"operator": "triplets"}, {}]
    for change in changes:
        params = dataclasses.replace(first, **change)
        shared, alone = run(blobs, params, store=tmp_path), run(blobs, params)
        np.testing.assert_array_equal(shared.labels, alone.labels)
        assert (shared.tensor() != alone.tensor()).nnz == 0
        for name in ("degrees", "eigenvalues", "eigenvectors"):
            assert getattr(shared, name).tobytes() == getattr(alone, name).tobytes(), (change, name)


@pytest.mark.slow
def test_other_data_or_other_partitions_reuse_nothing(blobs: Array, tmp_path: Path) -> None:
    params = Params(n_clusters=3)
    run(blobs, params, store=tmp_path)
    assert skipped(run(blobs + 1, params, store=tmp_path)) == []
    assert skipped(run(blobs, params, Resources(partition_rows=25), store=tmp_path)) == []
    assert skipped(run(blobs, params, store=tmp_path)) == list(STAGES)


class Stop(Exception):
    """Raised in the middle of a run."""


class StoppingExecutor(SerialExecutor):
    """Counts the tasks it runs, and ends the run before one of them."""

    def __init__(self, before: int | None = None) -> None:
        self.tasks, self._before = 0, before

    def map(self, job: Any, context: Any, items: Any, report: Any) -> Any:
        """Every item's receipt, or none."""
        receipts = []
        for item in items:
            if self.tasks == self._before:
                raise Stop
            self.tasks += 1
            receipts += super().map(job, context, [item], report)
        return receipts


@pytest.mark.parametrize("share", [0.0, 0.4, 0.95, *grid(0.15, 0.7)])
def test_a_run_that_stopped_anywhere_goes_on_to_the_same_labels(blobs: Array, share: float, tmp_path: Path) -> None:
    params = Params(n_clusters=3)
    counting = StoppingExecutor()
    expected = run_on(counting, blobs, params, 20).labels
    stopping = StoppingExecutor(int(share * counting.tasks))
    with pytest.raises(Stop):
        run_on(stopping, blobs, params, 20, tmp_path)
    with pytest.raises(BadInput, match="unfinished"):
        open_run(tmp_path)
    resuming = StoppingExecutor()
    found = run_on(resuming, blobs, params, 20, tmp_path)
    np.testing.assert_array_equal(found.labels, expected)
    np.testing.assert_array_equal(open_run(tmp_path).labels, expected)


# ---- edges


@pytest.mark.parametrize("m", [2, 3, 5])
def test_very_few_samples_are_clustered(m: int) -> None:
    X = np.arange(float(m))[:, None] ** 2
    for k in range(2, m + 1):
        for c in range(2, m + 1):
            found = run(X, keeping(n_clusters=c, n_neighbors=k))
            assert found.labels.shape == (m,)
            assert set(found.labels.tolist()) <= set(range(c))
            assert_tensor(found, oracle(X, k))


def test_as_many_clusters_as_samples_give_each_its_own() -> None:
    X = 10 * np.random.default_rng(0).normal(size=(6, 2))
    assert sorted(run(X, Params(n_clusters=6, n_neighbors=3)).labels.tolist()) == [0, 1, 2, 3, 4, 5]


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")  # scikit-learn's k-means may say it too
@pytest.mark.parametrize("m", [12, 300])
@pytest.mark.parametrize("affinity", ["heat-knn", "gaussian"])
def test_equal_rows_are_clustered_somehow_and_said(m: int, affinity: str) -> None:
    found = run(np.ones((m, 3)), keeping(n_clusters=3, affinity=affinity))
    texts = found.report()["warnings"]
    assert any("rows are equal" in text for text in texts)
    assert any(f"{m} of {m} samples have an exact duplicate" in text for text in texts)
    assert found.labels.shape == (m,)


@pytest.mark.parametrize("m", [60, *grid(300, 600)])
@pytest.mark.parametrize("c", [2, 3, 4])
def test_three_far_groups_are_told_apart_with_fewer_as_many_and_more_clusters(m: int, c: int) -> None:
    truth = np.arange(m) % 3
    X = np.random.default_rng(0).normal(size=(m, 3)) + 60 * np.eye(3)[truth]
    found = run(X, Params(n_clusters=c))
    assert found.report()["components"] >= 3
    pairs = set(zip(truth.tolist(), found.labels.tolist(), strict=True))
    if c == 3:
        assert len(pairs) == 3
    elif c == 2:
        assert len({group for group, _ in pairs}) == len(pairs)  # no group is cut


@pytest.mark.parametrize("m", [80, 500])
@pytest.mark.parametrize("embedding", ["spectral", "none"])
def test_a_dense_gaussian_affinity_tells_groups_apart_at_any_size(m: int, embedding: str) -> None:
    truth = np.arange(m) % 4
    X = np.random.default_rng(1).normal(size=(m, 4)) + 5 * np.eye(4)[truth]
    found = run(X, Params(n_clusters=4, affinity="gaussian", embedding=embedding))
    assert normalized_mutual_info_score(truth, found.labels) > 0.95
    if embedding == "spectral":
        assert found.manifest["stages"][-1]["facts"]["embedding_residual"] <= 1e-2


@pytest.mark.slow
def test_the_largest_neighbourhood_that_is_allowed_works() -> None:
    X = np.random.default_rng(2).normal(size=(66, 3))
    params = Params(n_clusters=2, n_neighbors=64)
    found = run(X, params)
    assert found.report()["P"] <= 66 * 67 // 2
    degrees = found.degrees
    assert (degrees >= 1 - 1e-6).all()
    N = reference.neighborhoods(reference.distances(X), 64)
    np.testing.assert_array_equal(found.pairs, reference.active_pairs(N))


@pytest.mark.parametrize("epsilon", [1e-29, 9.99e-4])
@pytest.mark.parametrize("operator", OPERATORS)
def test_an_epsilon_at_the_edge_of_its_range_gives_the_formula(epsilon: float, operator: str) -> None:
    X = DATA["duplicates"]()
    params = keeping(n_clusters=2, epsilon=epsilon, operator=operator)
    assert_tensor(run(X, params), oracle(X, 5, epsilon=epsilon))


@pytest.mark.parametrize("sigma", [9e29, 1e-300])
@pytest.mark.parametrize("operator", OPERATORS)
def test_a_sigma_at_the_edge_of_its_range_gives_the_formula(sigma: float, operator: str) -> None:
    X = DATA["random"]()
    assert_tensor(run(X, keeping(n_clusters=2, sigma=sigma, operator=operator)), oracle(X, 5, sigma=sigma))


@pytest.mark.parametrize(("sigma", "epsilon"), [(1e30, 1e-4), (1.0, 1e-30)])
def test_what_float32_cannot_hold_is_refused(sigma: float, epsilon: float) -> None:
    with pytest.raises(BadInput, match="sigma" if epsilon == 1e-4 else "epsilon"):
        Params(n_clusters=2, sigma=sigma, epsilon=epsilon)


@pytest.mark.parametrize("far", [1.7e19, 1e30, 1e300])
def test_samples_so_far_apart_that_their_squares_overflow_float32_are_clustered(far: float) -> None:
    X = np.concatenate([np.random.default_rng(0).normal(size=(30, 1)), [[far], [far]]])
    found = run(X, keeping(n_clusters=2, n_neighbors=2))
    assert found.neighbors.indices[30:].tolist() == [[30, 31], [31, 30]]


def test_a_large_sigma_empties_pairs_and_says_so() -> None:
    found = run(DATA["random"](), Params(n_clusters=2, sigma=500.0))
    assert any("sigma is too large" in text for text in found.report()["warnings"])
    assert np.isfinite(dense(found.similarity())).all()


def test_refused_input_leaves_no_run_behind(tmp_path: Path) -> None:
    X = DATA["random"]().copy()
    X[17, 2] = np.nan
    with pytest.raises(BadInput, match=r"row 17, column 2"):
        run(X, Params(n_clusters=2), Resources(partition_rows=5), store=tmp_path / "run")
    with pytest.raises(BadInput):
        open_run(tmp_path / "run")


def test_a_bad_value_is_named_by_any_executor(dask_executor: DaskExecutor) -> None:
    X = DATA["random"]().copy()
    X[23, 1] = np.inf
    with pytest.raises(BadInput, match=r"row 23, column 1"):
        run(X, Params(n_clusters=2), Resources(partition_rows=5), client=dask_executor.client)


def test_the_report_counts_what_there_is(blobs: Array) -> None:
    found = run(blobs, Params(n_clusters=3), Resources(partition_rows=25))
    report = found.report()
    assert (report["m"], report["f"], report["k"], report["c"]) == (60, 4, 5, 3)
    assert report["P"] == len(found.pairs)
    assert report["nnz"] == found.tensor().nnz
    assert report["partitions"] == 3
    assert report["peak_rss_bytes"] > 10 << 20
    assert [stage["name"] for stage in report["stages"]] == list(STAGES)
    assert report["eigenvalues"] == found.eigenvalues.tolist()


def test_an_unknown_similarity_is_refused(blobs: Array) -> None:
    with pytest.raises(BadInput, match="high_order"):
        run(blobs, Params(n_clusters=3)).similarity("higher")


def test_large_blocks_are_filtered_in_panels_to_the_same_labels(digits: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(digits, Params(n_clusters=10, tol=1e-5))
    monkeypatch.setattr(eigen, "PANELS_ABOVE", 0)
    found = run(digits, Params(n_clusters=10, tol=1e-5))
    np.testing.assert_allclose(found.eigenvalues, whole.eigenvalues, atol=1e-6)
    assert adjusted_rand_score(whole.labels, found.labels) > 0.999


@pytest.mark.parametrize(("operator", "vectors"), [("triplets", "in-core"), ("matrix-free", "chunked")])
def test_pairs_may_be_looked_up_in_any_number_of_pieces(
    digits: Array, operator: str, vectors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    params, resources = Params(n_clusters=10, operator=operator), Resources(vectors=vectors, partition_rows=150)
    whole = run(digits[:900], params, resources)
    monkeypatch.setattr(views, "PAIRS_AT_ONCE", 700)
    found = run(digits[:900], params, resources)
    np.testing.assert_array_equal(found.degrees, whole.degrees)
    np.testing.assert_array_equal(found.labels, whole.labels)


def test_runs_of_one_input_read_it_once_and_differ_in_the_keys_that_their_parameters_change() -> None:
    X = np.random.default_rng(3).normal(size=(30, 3))
    inputs = open_inputs(X, knn_graph=sp.csr_array(np.ones((30, 30))))
    two, three = (prepare(inputs, Params(n_clusters=c), Resources()) for c in (2, 3))
    assert two.side_inputs is three.side_inputs
    assert two.plan.choices.graph == "given"
    assert two.keys["tensor"] == three.keys["tensor"]
    assert two.keys["label"] != three.keys["label"]
    assert two.with_clusters(3).keys == three.keys
    assert two.for_distinct(20).plan.choices.graph == "given"
