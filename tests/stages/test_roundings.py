"""From U to labels through all of a run: the better rounding, the same bits anywhere, islands, certainty."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from harness import ShuffledExecutor, run_on
from sklearn.datasets import load_digits
from sklearn.metrics import normalized_mutual_info_score

from ips2_dask import IPS2, BadInput, Params, Resources, Run, run
from ips2_dask.executors.base import SerialExecutor
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.kernels import density, rounding
from ips2_dask.stages import roundings, walk

Array = npt.NDArray[Any]


@pytest.fixture(scope="module", name="digits")
def digits_and_classes() -> tuple[Array, Array]:
    X, y = load_digits(return_X_y=True)
    return X, y


@pytest.fixture(scope="module", name="X")
def samples(digits: tuple[Array, Array]) -> Array:
    return digits[0][:600]


PARAMS = Params(n_clusters=10)
CHUNKED = Resources(partition_rows=60, vectors="chunked")


def results(found: Run) -> tuple[bytes, ...]:
    left_out = found.left_out
    arrays = (found.labels, found.certainty, found.shares(), np.zeros(0) if left_out is None else left_out)
    return tuple(array.tobytes() for array in arrays)


def chosen(found: Run) -> dict[str, Any]:
    (one,) = [one for one in found.report()["roundings"] if one["chosen"]]
    return dict(one)


def test_digits_are_cut_from_density_and_are_no_worse_than_by_k_means(digits: tuple[Array, Array]) -> None:
    X, y = digits
    found, plain = run(X, PARAMS), run(X, dataclasses.replace(PARAMS, assign_labels="kmeans"))
    assert chosen(found)["rounding"] == "density"
    assert chosen(plain)["rounding"] == "kmeans"
    nmi, other = (normalized_mutual_info_score(y, one.labels) for one in (found, plain))
    assert nmi > 0.9
    assert nmi > other - 0.01
    assert found.left_out is not None
    assert plain.left_out is None
    assert found.left_out.mean() == pytest.approx(chosen(found)["left_out"])


def test_the_winner_is_the_rules(X: Array) -> None:
    for params in (PARAMS, dataclasses.replace(PARAMS, n_clusters=3), dataclasses.replace(PARAMS, n_components=5)):
        found = run(X, params)
        ways = [
            rounding.Candidate(**{name: one[name] for name in rounding.Candidate._fields})
            for one in found.report()["roundings"]
        ]
        best = rounding.eligible(ways, params.n_clusters)
        looked_at = [one for one in ways if one.rounding == "kmeans" or one._replace(cut=None) == best or one == best]
        assert rounding.choose(looked_at)._asdict() | {"chosen": True} == chosen(found)


def test_other_numbers_of_clusters_are_cut_from_the_stored_tree(X: Array) -> None:
    for rows, shards in ((None, None), (200, 3)):
        found = run(
            X,
            dataclasses.replace(PARAMS, n_components=10, assign_labels="density", shards=shards),
            Resources(partition_rows=rows),
        )
        assert chosen(found)["rounding"] == "density"
        np.testing.assert_array_equal(found.cut(10), found.labels)
        np.testing.assert_array_equal(np.unique(found.cut(12)), np.arange(12))


@pytest.mark.parametrize("columns", [2, 10, 18])
def test_columns_that_are_asked_for_are_looked_at_and_the_first_c_of_more(X: Array, columns: int) -> None:
    found = run(X, dataclasses.replace(PARAMS, n_components=columns))
    widths = {one["columns"] for one in found.report()["roundings"]}
    assert widths == ({columns, 10} if columns > 10 else {columns})


def test_results_are_the_same_bits_in_any_partitions_and_order(X: Array) -> None:
    whole = results(run(X, PARAMS, Resources(partition_rows=600)))
    assert results(run_on(ShuffledExecutor(1), X, PARAMS, 70)) == whole
    assert results(run(X, PARAMS, Resources(partition_rows=113))) == whole


@pytest.mark.slow
def test_walks_in_chunks_are_those_in_one_piece(X: Array) -> None:
    found = run(X, PARAMS, CHUNKED)
    U = found.similarity("fused")
    local = LabelsOf(U, found.labels)
    np.testing.assert_allclose(found.shares(), local.shares, atol=1e-6)
    assert chosen(found)["cut"] == rounding.cut_of(U, found.labels, 10)


def test_a_walk_that_has_reached_all_samples_ends(blobs: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, step = list[int](), walk.step
    monkeypatch.setattr(walk, "step", lambda *given: steps.append(1) or step(*given))
    run(blobs, Params(n_clusters=3, assign_labels="density"), Resources(vectors="chunked"))
    assert len(steps) == rounding.SPREAD_PRODUCTS + rounding.WALK  # of one chunk


class LabelsOf:
    """Shares by a dense walk."""

    def __init__(self, U: Any, labels: Array) -> None:
        P = U.toarray()
        P = P / P.sum(axis=1, keepdims=True)
        self.shares = np.eye(labels.max() + 1)[labels]
        for _ in range(rounding.WALK):
            self.shares = P @ self.shares


@pytest.mark.slow
def test_results_are_the_same_bits_on_workers(X: Array, dask_executor: DaskExecutor, tmp_path: Path) -> None:
    here = run(X, PARAMS, CHUNKED, store=tmp_path / "here")
    there = run_on(dask_executor, X, PARAMS, 60, tmp_path / "there", vectors="chunked")
    assert results(there) == results(here)
    one = run_on(dask_executor, X, PARAMS, 90, tmp_path / "one")
    assert results(one) == results(run(X, PARAMS))


class Killed(Exception):
    pass


@pytest.mark.slow
def test_a_walk_on_workers_that_was_stopped_goes_on_from_its_last_blocks(
    X: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = results(run(X, PARAMS, CHUNKED))
    steps: list[int] = []
    n_chunks = 5
    last, step = 12 * n_chunks, walk.step

    def stopped(*arguments: Any) -> Array:
        steps.append(1)
        if len(steps) > last:
            raise Killed
        return step(*arguments)

    monkeypatch.setattr(walk, "step", stopped)
    with pytest.raises(Killed):
        run(X, PARAMS, CHUNKED, store=tmp_path / "run")
    assert list((tmp_path / "run").glob("label-*/walk1-c*"))
    steps.clear()
    last = 10**9
    found = run(X, PARAMS, CHUNKED, store=tmp_path / "run")
    assert len(steps) < n_chunks * (rounding.SPREAD_PRODUCTS + 2 + rounding.WALK)  # ten were there
    assert results(found) == undisturbed
    assert not list((tmp_path / "run").glob("label-*/walk*"))


def test_samples_between_two_blobs_are_less_certain_than_the_rest() -> None:
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(-2, 1, (200, 2)), rng.normal(2, 1, (200, 2)), rng.normal(0, 0.3, (20, 2))])
    found = run(X, Params(n_clusters=2))
    between = np.arange(420) >= 400
    assert np.median(found.certainty[between]) < np.quantile(found.certainty[~between], 0.25)
    assert found.certainty.min() >= 0
    assert found.certainty.max() <= 1


def test_the_estimator_has_the_certainty_of_its_run(X: Array) -> None:
    fitted = IPS2(10).fit(X[:, X.std(axis=0) > 0])
    np.testing.assert_array_equal(fitted.certainty_, fitted.run_.certainty)
    assert fitted.certainty_.shape == (600,)


def test_a_tree_on_fewer_samples_is_the_same_in_any_partitions(X: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(density, "TREE_SAMPLES", (400, 400))
    params = dataclasses.replace(PARAMS, assign_labels="density")
    whole = run(X, params)
    assert chosen(whole)["rounding"] == "density"
    assert results(run(X, params, Resources(partition_rows=70))) == results(whole)
    assert whole.left_out is not None
    drawn = np.asarray(whole._context.read("label", "rounding-density-0018-00", "drawn"))
    assert 350 < len(drawn) < 450
    assert whole.left_out.sum() == whole.left_out[drawn].sum()  # the others are not marked


def test_without_the_package_a_line_says_so_and_labels_are_k_means(X: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run(X, dataclasses.replace(PARAMS, assign_labels="kmeans")).labels
    monkeypatch.setattr(density, "available", lambda: False)
    for assign in ("auto", "density"):
        found = run(X, dataclasses.replace(PARAMS, assign_labels=assign))
        said = "fast-plscan is not installed, so labels are k-means' (pip install 'ips2-dask[density]')"
        assert said in found.report()["warnings"]
        np.testing.assert_array_equal(found.labels, plain)


def test_labels_are_looked_for_again_where_the_package_has_come(
    X: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(density, "available", lambda: False)
    run(X, PARAMS, store=tmp_path / "run")
    monkeypatch.undo()
    found = run(X, PARAMS, store=tmp_path / "run")
    assert [stage["skipped"] for stage in found.manifest["stages"]] == [True] * 6 + [False]
    assert chosen(found)["rounding"] == "density"


@pytest.mark.slow
def test_a_density_without_such_a_cut_is_said(X: Array) -> None:
    found = run(X, Params(n_clusters=90, assign_labels="density"))
    assert chosen(found)["rounding"] == "kmeans"
    assert any("cuts 90 clusters from the density" in text for text in found.report()["warnings"])


@pytest.mark.parametrize("kind", ["density", "kmeans"])
def test_what_is_asked_for_is_done(X: Array, kind: str) -> None:
    found = run(X, dataclasses.replace(PARAMS, assign_labels=kind))
    assert chosen(found)["rounding"] == kind


@pytest.mark.parametrize(("name", "value"), [("assign_labels", "spectral"), ("embedding", "laplacian")])
def test_unknown_words_are_refused(name: str, value: str) -> None:
    with pytest.raises(BadInput, match=f"{name}: found '{value}', allowed is one of"):
        Params(n_clusters=3, **{name: value})  # type: ignore[arg-type]


def test_trees_come_first_and_every_start_of_k_means_is_one_task() -> None:
    tasks = roundings.roundings(PARAMS, 600, True)
    assert [task.part for task in tasks[:2]] == ["density-0018-00", "density-0010-00"]
    assert [roundings.Rounding.of(task.part) for task in tasks] == tasks
    assert len({task.part for task in tasks}) == len(tasks)
    assert {
        task.way for task in roundings.roundings(dataclasses.replace(PARAMS, assign_labels="kmeans"), 600, True)
    } == {"kmeans"}
    rows = roundings.roundings(dataclasses.replace(PARAMS, embedding="none"), 600, False)
    assert {task.columns for task in rows} == {0}


def test_the_serial_executor_gives_the_bits_of_the_pipeline(X: Array) -> None:
    assert results(run_on(SerialExecutor(), X, PARAMS, 80)) == results(run(X, PARAMS))
