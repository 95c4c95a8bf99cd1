"""New samples: training samples keep their labels, blocks and workers change nothing, what can't be is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import scipy.sparse as sp
from harness import DATA
from sklearn.datasets import load_digits, make_blobs
from sklearn.metrics import normalized_mutual_info_score

from ips2_dask import IPS2, PPC, BadInput, Params, Resources, open_run, run
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.runs import predict

Array = npt.NDArray[Any]

VARIANTS: list[dict[str, Any]] = [
    {},
    {"affinity": "gaussian"},
    {"fusion": "normalized"},
    {"affinity": "gaussian", "fusion": "normalized"},
    {"method": "ppc"},
    {"high_order": "signed"},
    {"tensor": "decomposable"},
    {"scale": "zscore"},
    {"scale": "minmax"},
    {"scale": "l2"},
    {"embedding": "none"},
    {"affinity": "gaussian", "embedding": "none"},
    {"assign_labels": "kmeans"},
    {"assign_labels": "density"},
    {"metric": "cosine"},
    {"metric": "cosine", "scale": "minmax"},
    {"metric": "correlation"},
    {"metric": "correlation", "scale": "zscore", "affinity": "gaussian"},
]


@pytest.fixture(scope="module")
def blobs3() -> tuple[Array, Array]:
    X, y = make_blobs(240, 4, centers=3, random_state=3)
    return X, y


@pytest.mark.parametrize("change", VARIANTS)
def test_training_samples_keep_their_labels_and_points(blobs3: tuple[Array, Array], change: dict[str, Any]) -> None:
    X, _ = blobs3
    found = run(X, Params(n_clusters=3, **change))
    np.testing.assert_array_equal(found.predict(X), found.labels)
    if found.embedding is not None:
        np.testing.assert_allclose(found.transform(X), found.embedding)


@pytest.mark.parametrize("change", VARIANTS)
def test_samples_next_to_training_samples_get_their_labels(blobs3: tuple[Array, Array], change: dict[str, Any]) -> None:
    """99 of 100 of them, and 98 of 100 where the rows of a sparse U are the points.

    There the training sample's row also holds edges of samples that have it among their nearest, and a new sample has
    none of these however near it is: rows with a small lead for their own mean may lose it.
    """
    X, _ = blobs3
    found = run(X, Params(n_clusters=3, **change))
    near = X + np.random.default_rng(0).normal(0, 1e-4, X.shape)
    least = 0.98 if change == {"embedding": "none"} else 0.99
    assert (found.predict(near) == found.labels).mean() >= least


def test_new_digits_are_told_apart_as_well_as_the_training_ones() -> None:
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    a, b = order[:1400], order[1400:]
    found = run(X[a], Params(n_clusters=10))
    trained = normalized_mutual_info_score(y[a], found.labels)
    assert normalized_mutual_info_score(y[b], found.predict(X[b])) > trained - 0.03


@pytest.mark.parametrize("data", sorted(DATA))
def test_awkward_data_are_predicted_like_themselves(data: str) -> None:
    X = DATA[data]()
    found = run(X, Params(n_clusters=2))
    copies = (X[:, None] == X[None]).all(axis=2)
    first = copies.argmax(axis=1)  # copies of a sample may be in other clusters: the first of them counts
    np.testing.assert_array_equal(found.predict(X), found.labels[first])


def test_a_prediction_does_not_depend_on_what_is_predicted_with_it(
    blobs3: tuple[Array, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    X, _ = blobs3
    found = run(X[:150], Params(n_clusters=3))
    whole = found.transform(X[150:])
    np.testing.assert_allclose(np.concatenate([found.transform(X[[i]]) for i in range(150, 240)]), whole, atol=1e-6)
    monkeypatch.setattr(predict, "partition_bounds", lambda n, f: (*range(0, n, 7), n))
    np.testing.assert_allclose(found.transform(X[150:]), whole, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("shards", [None, 4])
def test_partitions_and_shards_give_the_labels_of_one_piece(
    blobs3: tuple[Array, Array], shards: int | None, tmp_path: Path
) -> None:
    X, _ = blobs3
    whole = run(X[:200], Params(n_clusters=3)).predict(X[200:])
    cut = run(X[:200], Params(n_clusters=3, shards=shards), Resources(partition_rows=40), store=tmp_path / "run")
    np.testing.assert_array_equal(cut.predict(X[200:]), whole)
    np.testing.assert_array_equal(cut.predict(X[:200]), cut.labels)
    np.testing.assert_array_equal(open_run(tmp_path / "run").predict(X[200:]), whole)


def test_nearest_are_the_users_first_of_equally_near_ones_in_a_sharded_run() -> None:
    X = np.random.default_rng(5).integers(0, 5, (200, 3)).astype(np.float64)
    plain = run(X, Params(n_clusters=3))._context
    sharded = run(X, Params(n_clusters=3, shards=3), Resources(partition_rows=50))._context
    new = np.random.default_rng(6).integers(0, 5, (40, 3)).astype(np.float64)
    found = []
    for context in (plain, sharded):
        indices, distances = predict.nearest(context, predict._standardized(context, "new", np.arange(40), new), 5)
        order = context.order()
        found.append((indices if order is None else order[indices], distances))
    np.testing.assert_array_equal(found[0][1], found[1][1])
    np.testing.assert_array_equal(found[0][0], found[1][0])


@pytest.mark.slow
def test_workers_predict_what_this_process_does(
    blobs3: tuple[Array, Array], dask_executor: DaskExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dask.array as da  # noqa: PLC0415  this test alone

    X, _ = blobs3
    found = run(X[:150], Params(n_clusters=3), store=tmp_path / "run")
    np.save(tmp_path / "new.npy", X[150:])
    np.savetxt(tmp_path / "new.csv", X[150:], delimiter=",", fmt="%.17g")
    expected = found.transform(X[150:])
    monkeypatch.setattr(predict, "partition_bounds", lambda n, f: (*range(0, n, 20), n))
    for new in (X[150:], tmp_path / "new.npy", tmp_path / "new.csv", da.from_array(X[150:], chunks=(33, -1))):
        np.testing.assert_allclose(found.transform(new, client=dask_executor.client), expected, atol=1e-6)


def test_the_estimator_predicts_and_its_probabilities_agree(blobs3: tuple[Array, Array]) -> None:
    X, _ = blobs3
    for kind in (IPS2, PPC):
        fitted = kind(n_clusters=3).fit(X[:180])
        np.testing.assert_array_equal(fitted.predict(X[:180]), fitted.labels_)
        P = fitted.predict_proba(X[180:])
        np.testing.assert_allclose(P.sum(axis=1), 1)
        np.testing.assert_array_equal(P.argmax(axis=1), fitted.predict(X[180:]))
        assert fitted.transform(X[180:]).shape == (60, 3 + 8)


def test_new_samples_may_be_sparse_or_a_frame(blobs3: tuple[Array, Array]) -> None:
    X = np.where(np.abs(blobs3[0]) < 1, 0.0, blobs3[0])
    frame = pd.DataFrame(X, columns=list("abcd"))
    fitted = IPS2(n_clusters=3).fit(frame)
    np.testing.assert_array_equal(fitted.predict(frame), fitted.labels_)
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frame.rename(columns={"a": "z"}))
    plain = IPS2(n_clusters=3).fit(sp.csr_array(X))
    np.testing.assert_array_equal(plain.predict(sp.csr_array(X)), plain.labels_)


def test_no_new_samples_give_no_labels(blobs3: tuple[Array, Array]) -> None:
    found = run(blobs3[0], Params(n_clusters=3))
    with pytest.raises(BadInput, match="0 rows"):
        found.predict(np.empty((0, 4)))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda X: X[:, :3], "3 features.*4 features"),
        (lambda X: np.where(X.max() == X, np.nan, X), "row"),
        (lambda X: X * 1e30, "overflow"),
    ],
)
def test_new_samples_that_cannot_be_compared_are_refused(blobs3: tuple[Array, Array], spoil: Any, said: str) -> None:
    found = run(blobs3[0], Params(n_clusters=3))
    with pytest.raises(BadInput, match=said):
        found.predict(spoil(blobs3[0]))


def test_a_run_that_keeps_nothing_for_new_samples_says_so(blobs3: tuple[Array, Array]) -> None:
    X, _ = blobs3
    with pytest.raises(BadInput, match="embedding"):
        run(X, Params(n_clusters=3, embedding="none")).transform(X)


@pytest.mark.parametrize(
    ("change", "said"), [({"metric": "precomputed"}, "metric"), ({"affinity": "precomputed"}, "affinity")]
)
def test_a_run_that_new_samples_cannot_be_compared_with_refuses_them(
    blobs3: tuple[Array, Array], change: dict[str, str], said: str
) -> None:
    X, _ = blobs3
    D = np.sqrt(np.square(X[:, None] - X[None]).sum(axis=2))
    given = D if change == {"metric": "precomputed"} else X
    similarity = np.exp(-D) if said == "affinity" else None
    found = run(given, Params(n_clusters=3, **change), similarity=similarity)
    with pytest.raises(BadInput, match=f"{said}: found .*{change[said]}.*Remedy: run it with {said}="):
        found.predict(given)


@pytest.mark.parametrize(("metric", "row"), [("cosine", 0.0), ("correlation", 2.0)])
def test_new_samples_without_a_direction_are_refused_by_an_angular_metric(
    blobs3: tuple[Array, Array], metric: str, row: float
) -> None:
    X, _ = blobs3
    found = run(X, Params(n_clusters=3, metric=metric))
    with pytest.raises(BadInput, match="row 1"):
        found.predict(np.stack([X[0], np.full(4, row)]))


@pytest.mark.parametrize("change", [{}, {"scale": "zscore"}])
def test_the_length_of_a_new_sample_counts_for_nothing_by_cosine(
    blobs3: tuple[Array, Array], change: dict[str, Any]
) -> None:
    X = np.abs(blobs3[0])
    found = run(X[:200], Params(n_clusters=3, metric="cosine", **change))
    columns = (0.0, 1.0) if not change else (X[:200].mean(axis=0), X[:200].std(axis=0))
    longer = (X[200:] - columns[0]) / columns[1] * 3 * columns[1] + columns[0]
    np.testing.assert_allclose(found.transform(longer), found.transform(X[200:]), atol=1e-3)
