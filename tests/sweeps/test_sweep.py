"""Sweeps: every stage once for all points that share it, resumed, the same each time, and the right point first."""

from __future__ import annotations

import csv
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.datasets import make_blobs

from ips2_dask import BadInput, Params, gc, open_run, open_sweep, run, sweep, verify
from ips2_dask.cli.main import main
from ips2_dask.cli.options import numbers, whole_numbers
from ips2_dask.kernels.validity import modularity
from ips2_dask.store.layout import STAGES
from ips2_dask.sweeps.grid import points

Array = npt.NDArray[Any]
C45, C345 = {"n_clusters": (4, 5)}, {"n_clusters": (3, 4, 5)}


@pytest.fixture(scope="module")
def X() -> Array:  # noqa: N802  the field's letter
    return np.asarray(make_blobs(150, 5, centers=5, random_state=1)[0])


@pytest.fixture(scope="module")
def whole(X: Array, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return sweep(
        X,
        {"n_clusters": (4, 5, 7), "n_neighbors": (5, 7), "sigma": (0.2, 1.0)},
        store=tmp_path_factory.mktemp("sweep") / "run",
    )


@pytest.mark.slow
def test_each_stage_is_computed_once_for_all_points_that_share_it(whole: Any) -> None:
    assert len(whole.points) == 12
    # few samples keep the tensor's entries, which depend on sigma; matrix-free, "tensor" would be 2
    assert whole.computed == {
        "ingest": 1,
        "neighbors": 2,
        "tensor": 4,
        "assemble": 4,
        "eigen": 4,
        "fuse": 12,
        "label": 12,
    }
    for stage in STAGES:
        states = [point.stages[stage]["state"].removesuffix(" again") for point in whole.points]
        assert states.count("computed") == whole.computed[stage]
        assert states.count("reused") == 12 - whole.computed[stage]
    folders = [path.name.rpartition("-")[0] for path in whole.path.iterdir() if path.is_dir()]
    assert {stage: folders.count(stage) for stage in STAGES} == whole.computed


@pytest.mark.slow
def test_each_metric_and_scale_is_ingested_once_whatever_the_order_of_the_grid(X: Array, tmp_path: Path) -> None:
    lists = {
        "n_clusters": [5, 4],
        "scale": ["zscore", "none"],
        "fusion_weight": [0.5, 0.2],
        "metric": ["cosine", "euclidean"],
    }
    found = sweep(X, lists, store=tmp_path / "run")
    once = {"ingest": 4, "neighbors": 4, "tensor": 4, "assemble": 4, "eigen": 4, "fuse": 16, "label": 16}
    assert found.computed == once
    for stage in STAGES:
        states = [one.stages[stage]["state"].removesuffix(" again") for one in found.points]
        assert states.count("computed") == once[stage]
    names = ["n_clusters", "metric", "fusion_weight", "scale"]
    assert [list(row)[:6] for row in found.table()] == [["rank", *names, "score"]] * 16
    assert {tuple(row[name] for name in names) for row in found.table()} == {*product(*(lists[name] for name in names))}
    np.testing.assert_array_equal(found.run(16).labels, run(X, found.points[15].params).labels)
    assert verify(tmp_path / "run").sound
    gc(tmp_path / "run")  # the best run stays, and what is known of the points
    folders = [path.name.rpartition("-")[0] for path in (tmp_path / "run").iterdir() if path.is_dir()]
    assert [folders.count(stage) for stage in STAGES] == [1] * len(STAGES)
    again = sweep(X, lists, store=tmp_path / "run", files=False)
    assert again.table() == found.table() == open_sweep(tmp_path / "run").table()


@pytest.mark.slow
def test_a_tensor_that_is_not_assembled_is_the_same_for_every_sigma(X: Array, tmp_path: Path) -> None:
    lists = {"n_clusters": (4, 5), "sigma": (0.2, 1.0)}
    found = sweep(X, lists, Params(operator="matrix-free"), store=tmp_path / "run", files=False)
    assert (found.computed["tensor"], found.computed["assemble"]) == (1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("c", [pytest.param(3, marks=pytest.mark.slow), 5])
def test_the_right_number_of_clusters_is_ranked_first(c: int, tmp_path: Path) -> None:
    X, _ = make_blobs(40 * c, 5, centers=c, random_state=1)
    found = sweep(X, {"n_clusters": range(2, c + 3)}, store=tmp_path / "run", files=False)
    assert found.best.params.n_clusters == c


@pytest.mark.slow
def test_a_point_is_the_run_of_its_parameters(whole: Any, X: Array) -> None:
    point = whole.points[3]
    alone = run(X, point.params)
    np.testing.assert_array_equal(whole.run(4).labels, alone.labels)
    np.testing.assert_array_equal(whole.run(4).eigenvalues, alone.eigenvalues)
    assert len(alone.eigenvalues) == point.params.n_clusters
    assert point.params.n_eigenpairs == 7


@pytest.mark.slow
def test_the_directory_is_that_of_the_best_run_and_everything_works_on_it(whole: Any, X: Array) -> None:
    best = open_run(whole.path)
    assert best.params == whole.best.params
    np.testing.assert_array_equal(best.labels, whole.run(1).labels)
    np.testing.assert_array_equal(best.predict(X), best.labels)
    assert verify(whole.path).sound
    assert gc(whole.path, dry_run=True).garbage  # the other points' stages
    again = run(X, best.params, store=whole.path)
    assert all(stage["skipped"] for stage in again.manifest["stages"])


@pytest.mark.slow
def test_the_same_call_again_computes_nothing_and_gives_the_same_bytes(X: Array, tmp_path: Path) -> None:
    def files() -> dict[str, bytes]:
        folder = tmp_path / "run" / "sweep"
        return {name: (folder / name).read_bytes() for name in ("table.csv", "table.json", "sweep.png", "sweep.svg")}

    told: list[bool] = []
    sweep(X, C45, store=tmp_path / "run")
    first = files()
    sweep(X, C45, store=tmp_path / "run", on_point=lambda done, total, point, there: told.append(there))
    assert told == [True, True]
    assert files() == first


@pytest.mark.slow
def test_another_directory_gives_the_same_table_but_for_seconds(X: Array, tmp_path: Path) -> None:
    tables = [sweep(X, C45, store=tmp_path / name, files=False).table() for name in ("one", "other")]
    for row in (row for table in tables for row in table):
        row.pop("seconds")
    assert tables[0] == tables[1]


def test_a_sweep_that_was_stopped_goes_on(X: Array, tmp_path: Path) -> None:
    def stop(done: int, total: int, point: Any, there: bool) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(X, C345, store=tmp_path / "run", on_point=stop, files=False)
    with pytest.raises(BadInput, match="no finished sweep"):
        open_sweep(tmp_path / "run")
    there: list[bool] = []
    found = sweep(X, C345, store=tmp_path / "run", on_point=lambda *said: there.append(said[3]), files=False)
    assert there == [True, True, False]
    assert found.computed["eigen"] == 1
    assert [one.name for one in open_sweep(tmp_path / "run").points] == [one.name for one in found.points]


@pytest.mark.slow
def test_a_wider_sweep_keeps_the_graph_and_solves_for_more_eigenpairs(X: Array, tmp_path: Path) -> None:
    sweep(X, {"n_clusters": (3, 4)}, store=tmp_path / "run", files=False)
    found = sweep(X, {"n_clusters": (3, 4, 6)}, store=tmp_path / "run", files=False)
    for stage, reused in (("neighbors", 3), ("eigen", 2)):
        assert [point.stages[stage]["state"] for point in found.points].count("reused") == reused


@pytest.mark.slow
def test_table_json_csv_figure_and_page_say_the_same(whole: Any) -> None:
    folder = whole.path / "sweep"
    said = json.loads((folder / "table.json").read_text())
    with (folder / "table.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert [row["rank"] for row in rows] == [str(n) for n in range(1, 13)]
    assert [float(row["stability"]) for row in rows] == [row["stability"] for row in said["points"]]
    assert said["computed"] == whole.computed
    assert set(said["criteria"]) == {"stability", "modularity", "score"}
    page = (folder / "sweep.html").read_text()
    assert whole.best.setting in page
    assert "<script" not in page
    assert (folder / "sweep.png").stat().st_size > 10_000


@pytest.mark.slow
def test_components_more_than_clusters_share_a_solve_too(tmp_path: Path) -> None:
    """Six groups far apart are six components: c below, at and above that number needs other eigenvectors."""
    X, _ = make_blobs(180, 5, centers=6, cluster_std=0.2, random_state=0)
    exact = Params(tol=1e-3)
    found = sweep(X, {"n_clusters": range(2, 9)}, exact, store=tmp_path / "run", files=False)
    assert found.computed["eigen"] == 1
    assert found.best.params.n_clusters == 6
    assert found.best.criteria == {"stability": 1.0, "modularity": pytest.approx(5 / 6, abs=0.02)}
    for rank in range(1, 8):
        one = found.run(rank)
        alone = run(X, Params(n_clusters=one.params.n_clusters, tol=1e-3))
        np.testing.assert_allclose(one.eigenvalues, alone.eigenvalues, atol=1e-3)
        assert len(one.inner_eigenvalues) == len(alone.inner_eigenvalues)
        V, V_alone = (r.similarity("high_order") for r in (one, alone))
        np.testing.assert_allclose(V.toarray(), V_alone.toarray(), atol=2e-2)


@pytest.mark.slow
def test_known_labels_are_shown_and_count_for_nothing(tmp_path: Path) -> None:
    X, y = make_blobs(90, 4, centers=3, random_state=1)
    table = np.column_stack([X, y])
    np.savetxt(tmp_path / "x.csv", table, delimiter=",", header="a,b,c,d,kind", comments="")
    with_known = sweep(
        tmp_path / "x.csv", {"n_clusters": (2, 3)}, store=tmp_path / "one", labels_column="kind", files=False
    )
    without = sweep(X, {"n_clusters": (2, 3)}, store=tmp_path / "other", files=False)
    assert with_known.table()[0]["nmi"] == 1.0
    assert [row["score"] for row in with_known.table()] == [row["score"] for row in without.table()]


def test_rows_of_u_and_a_dense_similarity_are_judged_as_they_were_clustered(X: Array, tmp_path: Path) -> None:
    params = Params(affinity="gaussian", embedding="none", fusion="average")
    found = sweep(X, {"n_clusters": (4, 5, 6)}, params, store=tmp_path / "run", files=False)
    for rank in range(1, 4):
        one = found.run(rank)
        assert found.points[rank - 1].criteria["stability"] > 0.9
        i, j = np.triu_indices(len(X), 1)
        pairs = [(i, j, np.asarray(one.similarity("pairwise"))[i, j])]
        assert found.points[rank - 1].criteria["modularity"] == pytest.approx(
            modularity(pairs, one.labels, one.params.n_clusters)
        )


@pytest.mark.parametrize(
    ("text", "found"), [("5:8", (5, 6, 7, 8)), ("5,7", (5, 7)), ("2:10:4", (2, 6, 10)), ("3,5:6", (3, 5, 6))]
)
def test_lists_and_ranges_are_read(text: str, found: tuple[int, ...]) -> None:
    assert whole_numbers(text) == found


def test_numbers_are_read() -> None:
    assert numbers(".2,1,4") == (0.2, 1.0, 4.0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--clusters", "five"], "no list such as"),
        (["--clusters", "auto"], "no list such as"),
        (["--metric", "euclidean,cosin"], "'cosin'"),
        (["--scale", "none,2"], "found 2"),
        (["--tensor", "indecomposable,decomposable", "--sigma", "1,2"], "--sigma"),
        (["--metric", "euclidean,jaccard", "--scale", "none,zscore"], "--scale"),
        (["--affinity", "heat-knn,precomputed"], "similarity"),
        (["--clusters", "9:5"], "a range without a number"),
        (["--sigma", "a"], "no list of numbers"),
        (["--clusters", "1:3"], "n_clusters|--clusters"),
        (["--neighbors", "80"], "--neighbors"),
        (["--clusters", "2,3", "--sigma", "0"], "--sigma"),
        (["--clusters", "2,3", "--resamples", "0"], "resamples"),
        (["--clusters", "2:200"], "at most one cluster a sample|at most one a sample"),
    ],
)
def test_what_can_t_be_swept_is_refused_in_a_line(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(40, 3)))
    assert main(["sweep", str(tmp_path / "x.npy"), "--out", str(tmp_path / "run"), "--serial", *arguments]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert any(word in lines[0] for word in said.split("|"))
    assert not (tmp_path / "run").exists()


def test_what_can_t_be_a_grid_is_refused(tmp_path: Path) -> None:
    for wrong in (range(2, 7), (2, 3), [], {"n_clusters": []}, {"metric": "cosine"}, 5):
        with pytest.raises(BadInput, match=r"^grid: .*a dictionary such as"):
            points(wrong, Params())  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"^grid: found 'neighbors'"):
        points({"neighbors": [5]}, Params())
    for name, values in (("n_clusters", ["auto", 3]), ("max_clusters", [7]), ("n_eigenpairs", [9])):
        with pytest.raises(BadInput, match="count for nothing"):
            points({name: values}, Params())


def test_points_are_those_of_the_grids_once_and_have_one_solve() -> None:
    two = [{"n_clusters": [5, 3, 5]}, {"n_clusters": [3, 4], "tensor": ["decomposable"], "sigma": [1.0]}]
    found = points(two, Params(sigma=2.0))
    assert [(one.n_clusters, one.tensor, one.sigma, one.n_eigenpairs) for one in found] == [
        (3, "indecomposable", 2.0, 5),
        (3, "decomposable", 1.0, None),
        (4, "decomposable", 1.0, None),
        (5, "indecomposable", 2.0, 5),
    ]


def test_the_command_prints_a_table_and_says_how_often_each_stage_was_computed(
    X: Array, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", X)
    words = ["sweep", str(tmp_path / "x.npy"), "--clusters", "4:6", "--neighbors", "5", "--sigma", ".2,1"]
    assert main([*words, "--out", str(tmp_path / "run"), "--serial", "--json"]) == 0
    said = capsys.readouterr()
    assert "6/6" in said.err
    assert "neighbors 1, tensor 2, assemble 2, eigen 2, fuse 6, label 6 times for 6 points" in said.out
    found = json.loads(said.out.strip().splitlines()[-1])
    assert found["points"][0]["n_clusters"] == 5
    assert open_run(tmp_path / "run").params.n_clusters == 5


def test_a_directory_of_something_else_is_refused(X: Array, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(BadInput, match="holds something else"):
        sweep(X, store=tmp_path)
    with pytest.raises(BadInput, match="a local directory"):
        sweep(X, store="s3://bucket/run")


@pytest.mark.slow
def test_workers_give_the_table_that_one_process_gives(X: Array, tmp_path: Path) -> None:
    from ips2_dask import Resources  # noqa: PLC0415  used here alone

    alone = sweep(X, C45, store=tmp_path / "one", files=False).table()
    shared = sweep(
        X, C45, resources=Resources(n_workers=2), own_cluster=True, store=tmp_path / "other", files=False
    ).table()
    for row in (*alone, *shared):
        row.pop("seconds")
    assert alone == shared
