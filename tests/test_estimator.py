"""IPS2 and PPC as scikit-learn estimators: its own checks, what they take, what they share, what they say."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr
from distributed import Client, LocalCluster
from sklearn.base import clone
from sklearn.datasets import load_digits, make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from ips2_dask import IPS2, PAPER, PPC, IPS2Warning, Refused, clusters, open_run
from ips2_dask.errors import BadInput
from ips2_dask.params import Resources
from ips2_dask.readers import open_source
from ips2_dask.readers.dask_collections import DaskTable

Array = npt.NDArray[Any]

EXPECTED = {
    "check_methods_sample_order_invariance": "asks for two clusters in one column, where all points would be one"
}
CLASSES = "takes whatever has predict_proba for a classifier, and counts its classes"
EXPECTED |= dict.fromkeys(("check_estimator_sparse_array", "check_estimator_sparse_matrix"), CLASSES)


@pytest.mark.filterwarnings("ignore::ips2_dask.errors.IPS2Warning")  # about duplicates in the checks' own data
@parametrize_with_checks([IPS2()], expected_failed_checks=lambda _: EXPECTED)  # type: ignore[untyped-decorator]
def test_scikit_learns_own_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.slow  # all that it adds is one attribute
@pytest.mark.filterwarnings("ignore::ips2_dask.errors.IPS2Warning")
@parametrize_with_checks([PPC()], expected_failed_checks=lambda _: EXPECTED)  # type: ignore[untyped-decorator]
def test_scikit_learns_own_checks_of_ppc(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.fixture(scope="module", name="X")
def groups() -> Array:
    """Four groups, (90, 5)."""
    found: Array = make_blobs(90, n_features=5, centers=4, random_state=3)[0]
    return found


@pytest.fixture(scope="module")
def labels(X: Array) -> Array:
    """What the plain array gives."""
    found: Array = IPS2(n_clusters=4).fit(X).labels_
    return found


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """The client of a real cluster of two processes."""
    with clusters.executor(Resources(n_workers=2)) as executor:
        yield executor.client


def test_a_fit_gives_all_that_is_promised(X: Array) -> None:
    fitted = IPS2(n_clusters=4, random_state=1).fit(X)
    assert fitted.labels_.shape == (90,)
    assert set(fitted.labels_.tolist()) == {0, 1, 2, 3}
    assert fitted.eigenvalues_.shape == (4,)
    assert fitted.n_features_in_ == 5
    assert fitted.embedding_ is not None
    assert fitted.embedding_.shape == (90, 4 + 8)
    for name in ("affinity_matrix_", "pairwise_similarity_", "high_order_similarity_"):
        S = getattr(fitted, name)
        assert S.shape == (90, 90)
        assert abs(S - S.T).max() < 1e-12
    assert np.array_equal(fitted.run_.labels, fitted.labels_)
    assert fitted.run_.path is None


def test_u_is_the_mean_of_s_and_v_and_ppc_is_v_alone(X: Array) -> None:
    fitted, alone = IPS2(n_clusters=4, fusion="average").fit(X), PPC(n_clusters=4).fit(X)
    half = (fitted.pairwise_similarity_ + fitted.high_order_similarity_) / 2
    assert abs(fitted.affinity_matrix_ - half).max() < 1e-12
    assert abs(alone.affinity_matrix_ - fitted.high_order_similarity_).max() < 1e-12
    assert alone.run_.params.method == "ppc"


def test_fit_predict_gives_the_labels_of_fit(X: Array, labels: Array) -> None:
    assert np.array_equal(IPS2(n_clusters=4).fit_predict(X), labels)


def test_it_stands_at_the_end_of_a_pipeline(X: Array) -> None:
    piped = make_pipeline(StandardScaler(), IPS2(n_clusters=4)).fit_predict(X)
    assert np.array_equal(piped, IPS2(n_clusters=4).fit_predict(StandardScaler().fit_transform(X)))


def test_the_paper_preset_is_taken_as_keywords(X: Array) -> None:
    fitted = IPS2(**PAPER, n_clusters=4).fit(X)
    assert (fitted.run_.params.n_neighbors, fitted.run_.params.embedding) == (10, "none")
    assert fitted.embedding_ is None
    assert isinstance(fitted.pairwise_similarity_, np.ndarray)


def test_before_fit_there_is_no_affinity() -> None:
    assert not hasattr(IPS2(), "affinity_matrix_")
    with pytest.raises(NotFittedError):
        _ = IPS2().affinity_matrix_


def test_a_data_frame_gives_its_names_and_the_same_labels(X: Array, labels: Array) -> None:
    frame = pd.DataFrame(X, columns=[f"x{t}" for t in range(5)], index=np.arange(90)[::-1])
    fitted = IPS2(n_clusters=4).fit(frame)
    assert fitted.feature_names_in_.tolist() == ["x0", "x1", "x2", "x3", "x4"]
    assert np.array_equal(fitted.labels_, labels)
    assert not hasattr(fitted.fit(X), "feature_names_in_")


@pytest.mark.parametrize("kind", [sp.csr_array, sp.csc_matrix, sp.coo_array])
def test_a_sparse_matrix_gives_the_labels_of_the_dense_one(kind: Callable[[Array], Any]) -> None:
    X = np.random.default_rng(0).poisson(0.4, (70, 30)).astype(float)
    assert np.array_equal(IPS2(n_clusters=3).fit(kind(X)).labels_, IPS2(n_clusters=3).fit(X).labels_)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int16, np.uint8, np.bool_])
def test_any_real_type_is_taken(dtype: Any) -> None:
    X = np.unique(np.random.default_rng(1).integers(0, 2, (60, 12)), axis=0).astype(dtype)
    assert np.array_equal(IPS2(n_clusters=3).fit(X).labels_, IPS2(n_clusters=3).fit(X.astype(float)).labels_)


def test_a_zarr_array_gives_the_labels_of_the_plain_one(X: Array, labels: Array, tmp_path: Path) -> None:
    stored = zarr.create_array(str(tmp_path / "x.zarr"), shape=X.shape, chunks=(40, 5), dtype=X.dtype)
    stored[...] = X
    fitted = IPS2(n_clusters=4).fit(stored)
    assert np.array_equal(fitted.labels_, labels)
    assert fitted.n_features_in_ == 5


@pytest.mark.parametrize("chunks", [(90, 5), (17, 5), (40, 2), (1, 5)])
def test_a_dask_array_gives_the_labels_of_the_plain_one(X: Array, labels: Array, chunks: tuple[int, int]) -> None:
    assert np.array_equal(IPS2(n_clusters=4).fit(da.from_array(X, chunks=chunks)).labels_, labels)


def test_a_dask_array_is_computed_chunk_by_chunk_and_each_of_them_once() -> None:
    seen: list[tuple[int, ...]] = []

    def block(values: Array) -> Array:
        seen.append(values.shape)
        return values

    x = da.from_array(np.random.default_rng(2).normal(size=(50, 3)), chunks=(8, 3))
    IPS2(n_clusters=2).fit(x.map_blocks(block, meta=np.empty((0, 0))))
    assert seen == [(8, 3)] * 6 + [(2, 3)]


@pytest.mark.parametrize("rows", [7, 16, 64])
def test_delayed_blocks_are_the_rows_of_the_partitions(rows: int) -> None:
    X = np.arange(150.0).reshape(50, 3)
    source = open_source(da.from_array(X, chunks=(13, 2)))
    assert isinstance(source, DaskTable)
    bounds = (*range(0, 50, rows), 50)
    blocks = dask.compute(source.delayed_blocks(bounds), scheduler="synchronous")[0]
    assert [len(block) for block in blocks] == np.diff(bounds).tolist()
    assert np.array_equal(np.concatenate(blocks), X)
    assert np.array_equal(source.read(11, 30), X[11:30])


def test_the_labels_of_a_dask_array_may_be_one_of_its_columns() -> None:
    X = np.random.default_rng(3).normal(size=(20, 3))
    table = np.column_stack([X, np.arange(20) % 3])
    source = open_source(da.from_array(table, chunks=(6, 2)), labels_column=-1)
    assert np.array_equal(source.read(0, 20), X)
    found = source.labels()
    assert found is not None
    assert np.array_equal(found, np.arange(20) % 3)


def test_sparse_and_masked_chunks_are_understood() -> None:
    X = np.random.default_rng(4).poisson(0.5, (30, 4)).astype(float)
    sparse = da.from_array(X, chunks=(9, 4)).map_blocks(sp.csr_array, meta=sp.csr_array((0, 0)))
    source = open_source(sparse)
    assert isinstance(source, DaskTable)
    assert np.array_equal(source.read(3, 25), X[3:25])
    assert np.array_equal(np.concatenate(list(source.blocks(7))), X)
    assert np.array_equal(np.concatenate(dask.compute(source.delayed_blocks((0, 11, 30)), scheduler="sync")[0]), X)
    with pytest.raises(BadInput, match=r"nan.* at row 7, column 2"):
        IPS2(n_clusters=2).fit(da.ma.masked_where(_at(X.shape, 7, 2), da.from_array(X, chunks=(9, 4))))


def _at(shape: tuple[int, ...], row: int, column: int) -> Any:
    mask = np.zeros(shape, bool)
    mask[row, column] = True
    return da.from_array(mask, chunks=(9, 4))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        pytest.param(lambda x: x[x[:, 0] > 0], "unknown length", id="unknown-chunks"),
        pytest.param(lambda x: x.astype(complex), "complex", id="complex"),
        pytest.param(lambda x: x.map_blocks(lambda b: b.astype(str), dtype=object), "text", id="texts"),
        pytest.param(lambda x: x[:, :, None], "3 dimensions", id="three-dimensions"),
        pytest.param(lambda x: da.where(x > 2, np.nan, x), "nan", id="nan"),
        pytest.param(lambda x: x[:1], "n_samples = 1", id="one-sample"),
        pytest.param(lambda x: x.to_delayed()[0, 0], "a Dask Delayed", id="delayed"),
    ],
)
def test_a_dask_array_that_is_no_matrix_of_numbers_is_refused(spoil: Callable[[Any], Any], said: str) -> None:
    x = da.from_array(np.random.default_rng(5).normal(size=(200, 3)), chunks=(40, 3))
    with pytest.raises(ValueError, match=said):
        IPS2(n_clusters=2).fit(spoil(x))


@pytest.mark.slow
def test_a_client_is_used_and_clones_share_it(X: Array, labels: Array, client: Client, tmp_path: Path) -> None:
    fitted = IPS2(n_clusters=4, client=client, store=tmp_path / "run").fit(X)
    assert np.array_equal(fitted.labels_, labels)
    copy = clone(fitted)
    assert copy.client is client
    assert not hasattr(copy, "run_")
    assert np.array_equal(open_run(tmp_path / "run").labels, labels)


def test_with_a_client_and_no_store_nothing_stays_behind(X: Array, labels: Array, client: Client) -> None:
    fitted = IPS2(n_clusters=4, client=client).fit(X)
    folder = Path(str(fitted.run_.path))
    assert folder.is_dir()
    assert np.array_equal(fitted.labels_, labels)
    del fitted
    assert not folder.exists()


@pytest.mark.slow
def test_the_workers_compute_the_blocks_of_a_dask_array(client: Client, tmp_path: Path) -> None:
    def marked(values: Array) -> Array:
        (tmp_path / str(_pid())).touch()
        return values

    x = da.from_array(np.random.default_rng(6).normal(size=(300, 3)), chunks=(60, 3))
    plain = IPS2(n_clusters=3).fit(x).labels_
    fitted = IPS2(n_clusters=3, client=client).fit(x.map_blocks(marked, meta=np.empty((0, 0))))
    pids = {path.name for path in tmp_path.iterdir()}
    assert pids
    assert str(_pid()) not in pids
    assert np.array_equal(fitted.labels_, plain)


def _pid() -> int:
    import os  # noqa: PLC0415  travels to the workers with the function that calls it

    return os.getpid()


def test_persisted_blocks_stay_on_the_cluster_and_need_its_client(X: Array, labels: Array, client: Client) -> None:
    x = client.persist(da.from_array(X, chunks=(25, 5)))
    assert np.array_equal(IPS2(n_clusters=4, client=client).fit(x).labels_, labels)
    with pytest.raises(ValueError, match="give client="):
        IPS2(n_clusters=4).fit(x)


def test_a_cluster_of_threads_gives_the_same(X: Array, labels: Array) -> None:
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address="127.0.0.1:0") as local,
        Client(local, set_as_default=False) as threads,
    ):
        assert np.array_equal(IPS2(n_clusters=4, client=threads).fit(X).labels_, labels)


def test_without_a_client_none_is_started_and_a_default_one_is_left_alone(X: Array, labels: Array) -> None:
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address="127.0.0.1:0") as local,
        Client(local, set_as_default=True) as default,
    ):
        fitted = IPS2(n_clusters=4).fit(da.from_array(X, chunks=(30, 5)))
        assert default.run_on_scheduler(lambda dask_scheduler: dask_scheduler.transition_counter) == 0
    assert np.array_equal(fitted.labels_, labels)


def test_the_store_keeps_the_run_and_the_same_fit_does_nothing_again(tmp_path: Path) -> None:
    X = np.random.default_rng(9).normal(size=(60, 3))
    IPS2(n_clusters=4, store=tmp_path / "run").fit(X)
    again = IPS2(n_clusters=4, store=str(tmp_path / "run")).fit(X)
    assert all(stage["skipped"] for stage in again.run_.report()["stages"])
    other = IPS2(n_clusters=3, store=tmp_path / "run").fit(X)
    skipped = {stage["name"]: stage["skipped"] for stage in other.run_.report()["stages"]}
    assert [name for name in skipped if skipped[name]] == ["ingest", "neighbors", "tensor", "assemble"]


@pytest.mark.parametrize("n", [0, 7, np.int64(7)])
def test_an_integer_is_the_seed_itself(X: Array, n: int) -> None:
    assert IPS2(n_clusters=4, random_state=n).fit(X).run_.params.random_state == n


def test_a_random_state_is_drawn_from_and_none_differs_each_time(X: Array) -> None:
    drawn = IPS2(n_clusters=4, random_state=np.random.RandomState(5)).fit(X)
    assert drawn.run_.params.random_state == np.random.RandomState(5).randint(2**31 - 1)
    seeds = {IPS2(n_clusters=4, random_state=None).fit(X).run_.params.random_state for _ in range(3)}
    assert len(seeds) == 3


def test_a_clone_has_a_random_state_of_its_own() -> None:
    estimator = IPS2(random_state=np.random.RandomState(5))
    assert clone(estimator).random_state is not estimator.random_state


def test_warnings_of_a_run_are_python_warnings_with_a_number() -> None:
    X = np.random.default_rng(7).normal(size=(40, 3))
    X[:, 1] = 5.0
    X[:3] = X[3]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = IPS2(n_clusters=2, duplicates="keep").fit(X)
    said = [str(w.message) for w in caught if w.category is IPS2Warning]
    assert said == fitted.run_.report()["warnings"]
    assert any("1 of 3 columns are constant" in text for text in said)
    assert any("4 of 40 samples have an exact duplicate" in text for text in said)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"n_clusters": 0}, "n_clusters: found 0"),
        ({"n_clusters": 21}, "n_clusters: found 21 with 20 samples"),
        ({"n_neighbors": 1}, "n_neighbors: found 1"),
        ({"n_neighbors": 21}, "n_neighbors: found 21 with 20 samples"),
        ({"sigma": 0.0}, "sigma: found 0"),
        ({"epsilon": 0.001}, "epsilon: found 0.001"),
        ({"affinity": "rbf"}, "affinity: found 'rbf'"),
        ({"bandwidth": "mode"}, "bandwidth: found 'mode'"),
        ({"scale": "log"}, "scale: found 'log'"),
        ({"tol": 1}, "tol: found 1"),
        ({"random_state": -1}, "random_state: found -1"),
        ({"random_state": "x"}, "cannot be used to seed"),
        ({"memory_limit": "much"}, "memory_limit: found 'much'"),
    ],
)
def test_a_parameter_that_cannot_be_is_a_value_error_that_names_it(given: dict[str, Any], said: str) -> None:
    X = np.random.default_rng(8).normal(size=(20, 2))
    with pytest.raises(ValueError, match=said):
        IPS2(**{"n_clusters": 2, **given}).fit(X)


def test_a_memory_limit_that_cannot_be_kept_is_refused_before_anything(X: Array, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"memory.limit.*Remedy"):
        IPS2(n_clusters=4, memory_limit="1MiB", store=tmp_path / "run").fit(X)
    assert not (tmp_path / "run").exists()


def test_a_store_that_holds_something_else_is_refused(X: Array, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(BadInput, match=r"thesis\.txt"):
        IPS2(n_clusters=4, store=tmp_path).fit(X)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_verbose_says_a_line_a_stage(X: Array, capsys: pytest.CaptureFixture[str]) -> None:
    IPS2(n_clusters=4, verbose=True).fit(X)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1].rstrip(":") for line in lines] == [
        "ingest",
        "neighbors",
        "tensor",
        "assemble",
        "eigen",
        "fuse",
        "label",
    ]


def test_a_fitted_estimator_can_be_pickled(X: Array, labels: Array) -> None:
    again = pickle.loads(pickle.dumps(IPS2(n_clusters=4).fit(X)))
    assert np.array_equal(again.labels_, labels)
    assert again.affinity_matrix_.shape == (90, 90)


def test_digits_take_a_second_and_the_defaults_find_them() -> None:
    X, y = load_digits(return_X_y=True)
    with pytest.warns(IPS2Warning, match="3 of 64 columns are constant"):
        found = IPS2(n_clusters=10).fit_predict(X)
    assert len(found) == len(y)
    assert len(set(found.tolist())) == 10
