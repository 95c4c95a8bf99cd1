"""The experiments: fair grids, honest reruns, tasks that resume, and the paper's cells on the publishers' data."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from ips2_dask import IPS2, PAPER, datasets
from ips2_dask.datasets import Dataset, files
from ips2_dask.errors import BadInput
from ips2_dask.paper.baselines import CAVE, SC, SSC
from ips2_dask.paper.experiments import beyond, catalog, ranks, series, tables, trials
from ips2_dask.paper.experiments import settings as choices
from ips2_dask.paper.experiments.catalog import ordered, run_tasks
from ips2_dask.paper.experiments.methods import Fitted, estimator, quiet, scaled
from ips2_dask.paper.experiments.records import FIELDS, record
from ips2_dask.paper.experiments.tasks import Done, Scope, Task, TaskContext, quick
from ips2_dask.paper.experiments.trials import load, score, seeds_of, summary

DATA = os.environ.get(files.VARIABLE)
needs_data = pytest.mark.skipif(not DATA, reason="IPS2_DATA names no directory of the publishers' files")

Array = npt.NDArray[Any]


class Told:
    """Progress that remembers."""

    def begin(self, total: int) -> None:
        self.total, self.tasks = total, list[Done]()

    def done(self, task: Done) -> None:
        self.tasks.append(task)


def run(tasks: list[Task], out: Path, jobs: int = 1) -> tuple[Mapping[str, Any], Told]:
    told = Told()
    return run_tasks(tasks, out, None, jobs, told), told


# what is tried


@pytest.mark.parametrize("method", choices.METHODS)
def test_every_method_is_tried_with_equally_many_distinct_settings_its_default_first(method: str) -> None:
    tried = choices.grid(method)
    assert len(tried) == choices.BUDGET
    assert len({json.dumps(setting, sort_keys=True) for setting in tried}) == choices.BUDGET
    assert tried[0] == choices.default(method)
    assert choices.grid(method, 17) == tried[:17]


@pytest.mark.parametrize("method", choices.METHODS)
def test_published_settings_are_in_the_grid_with_every_scale(method: str) -> None:
    tried = choices.grid(method)
    for setting in choices.PUBLISHED[method]:
        for scale in choices.SCALES:
            assert {"scale": scale, **setting} in tried


def test_printed_settings_are_the_preset_and_what_authors_of_baselines_publish() -> None:
    assert choices.published("IPS2") == {"scale": "none", **PAPER}
    assert choices.published("PPC")["n_neighbors"] == PAPER["n_neighbors"]
    assert choices.published("SC") == {"scale": "none", "affinity": "gaussian"}
    assert choices.published("CAVE") == choices.default("CAVE")  # nobody prints any
    assert set(choices.printed()) == set(choices.COMPARED)


def test_affinities_are_tried_with_the_ways_to_labels_that_ips2_has() -> None:
    ways = {method: {s.get("embedding", "spectral") for s in choices.grid(method)} for method in choices.METHODS}
    assert ways.pop("HGC") == {"spectral"}  # its groups are its labels, and the word is not in its settings
    assert set(map(frozenset, ways.values())) == {frozenset({"spectral", "none"})}


@pytest.mark.parametrize("method", ["SC", "SSC", "CAVE"])
def test_an_affinity_is_labelled_as_ips2_labels_its_own(method: str, blobs: Array) -> None:
    setting = {**choices.default(method), "embedding": "none"}
    fitted = Fitted(method, setting, blobs, 3)
    labels = fitted.labels(4)
    rows = fitted.affinity.toarray() if hasattr(fitted.affinity, "toarray") else fitted.affinity
    expected = KMeans(3, n_init=10, random_state=np.random.RandomState(4)).fit(rows).labels_
    np.testing.assert_array_equal(labels, expected)
    of_graph = Fitted(method, {**setting, "embedding": "rows"}, blobs, 3).labels(4)
    assert adjusted_rand_score(of_graph, SC(3, affinity="heat-knn", random_state=4).fit(rows).labels_) > 0.9


@pytest.mark.parametrize("method", choices.METHODS)
def test_settings_of_the_grid_are_of_the_method_and_fit(method: str, blobs: Array) -> None:
    for setting in choices.grid(method)[::11]:
        labels = Fitted(method, setting, blobs[:26], 3).labels(0)
        assert labels.shape == (26,)
        assert labels.max() < 3


# what is the same for all methods


@pytest.mark.parametrize("scale", choices.SCALES)
def test_other_methods_get_the_data_that_ips2_would_scale_to(scale: str, blobs: Array) -> None:
    X = blobs * [1.0, 30.0, 0.1, 4.0] + [5.0, 0.0, -3.0, 100.0]
    X[:, 0] = 2.5  # a constant column
    with quiet():
        ours = IPS2(3, scale=scale).fit(X)
        theirs = IPS2(3).fit(scaled(X, scale))
    np.testing.assert_allclose(
        ours.pairwise_similarity_.toarray(), theirs.pairwise_similarity_.toarray(), rtol=1e-4, atol=1e-7
    )


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
    kept = Fitted(method, {"scale": "none", **setting}, blobs, 3)
    for seed in (3, 0, 8):
        np.testing.assert_array_equal(kept.labels(seed), fresh.set_params(random_state=seed).fit(blobs).labels_)


def test_more_components_than_clusters_are_tied_before_any_method_is_labelled() -> None:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(72, 3)) + 50 * np.repeat(np.arange(9), 8)[:, None]  # nine islands on a line
    fitted = Fitted("SC", choices.default("SC"), X, 3)
    labels = fitted.labels(0)
    assert connected_components(SC(3, affinity="heat-knn")._affinity(X, np.random.RandomState(0)))[0] == 9
    assert connected_components(fitted.affinity)[0] <= 3
    assert len(np.unique(labels)) == 3
    assert all(len(np.unique(labels[island : island + 8])) == 1 for island in range(0, 72, 8))


def test_a_bandwidth_may_be_a_multiple_of_the_mean_distance(blobs: Array) -> None:
    made, X = estimator("SC", {"scale": "l2", "affinity": "gaussian", "bandwidth_times": 0.5}, blobs, 3, 0)
    unit = blobs / np.linalg.norm(blobs, axis=1, keepdims=True)
    lengths = np.linalg.norm(unit[:, None] - unit, axis=2)[np.triu_indices(len(unit), 1)]
    assert made.bandwidth == pytest.approx(lengths.mean() / 2)
    np.testing.assert_allclose(X, unit)


# the three settings


labelings = st.integers(2, 12).flatmap(
    lambda m: st.lists(st.lists(st.integers(0, 3), min_size=m, max_size=m), min_size=1, max_size=5)
)


@given(labelings)
@settings(deadline=None, max_examples=60)
def test_agreement_is_the_mean_adjusted_rand_index_with_all_labellings(drawn: list[list[int]]) -> None:
    expected = [np.mean([adjusted_rand_score(a, b) for b in drawn]) for a in drawn]
    np.testing.assert_allclose(trials.agreements(np.array(drawn)), expected, atol=1e-9)


@pytest.fixture(scope="module")
def small() -> Dataset:
    return datasets.usdata1(15, seed=4)


def test_the_unsupervised_setting_does_not_know_the_labels(small: Dataset) -> None:
    other = Dataset("shuffled", small.X, np.random.default_rng(0).permutation(small.labels), "")
    found = trials.four_settings("SC", small, runs=1, seed=0, budget=25)
    blind = trials.four_settings("SC", other, runs=1, seed=0, budget=25)
    assert found["unsupervised"]["params"] == blind["unsupervised"]["params"]
    assert found["default"]["params"] == choices.default("SC") == blind["default"]["params"]
    assert found["unsupervised"]["mean"] != blind["unsupervised"]["mean"]


def test_the_tuned_setting_is_the_best_mean_of_the_finalists(small: Dataset) -> None:
    found = trials.four_settings("HGC", small, runs=3, seed=2, budget=25)
    tried = found["tried"]
    assert [entry["params"] for entry in tried] == choices.grid("HGC", 25)
    once = np.argsort([-entry["acc"] for entry in tried], kind="stable")[: trials.FINALISTS]
    seeds = seeds_of(2, 3)
    means = [summary({}, score("HGC", tried[i]["params"], small, seeds))["mean"]["acc"] for i in once]
    assert found["tuned"]["mean"]["acc"] == max(means)
    assert found["tuned"]["params"] == tried[once[int(np.argmax(means))]]["params"]
    assert found["tuned"]["runs"] == 3


def test_settings_that_the_data_do_not_allow_are_left_out() -> None:
    few = datasets.usdata1(4, seed=0)
    few = Dataset("few", few.X[::5], few.labels[::5], "")  # 12 samples: no hyperedge of 15 or 20
    tried, labels = trials.try_grid("HGC", few, 0, 60)
    assert 0 < len(tried) == len(labels) < 60
    assert all(entry["params"].get("n_neighbors", 10) <= 12 for entry in tried)


# tasks


def squares(given: TaskContext, n: int, log: str) -> list[int]:
    """A task's function that leaves a trace."""
    with Path(log).open("a") as file:
        file.write(f"squares {n} {os.getpid()} {time.perf_counter()}\n")
    return [i * i for i in range(n)]


def total(given: TaskContext, log: str) -> dict[str, int]:
    """One that comes after others."""
    with Path(log).open("a") as file:
        file.write(f"total 0 {os.getpid()} {time.perf_counter()}\n")
    return {name: sum(numbers) for name, numbers in given.earlier.items()}


def refuse(given: TaskContext) -> None:
    """One that fails."""
    raise BadInput("this", "nothing", "something", "it would fail", "give something")


def chain(log: Path, n: int = 4) -> list[Task]:
    first = [Task(f"squares/{i}", squares, {"n": i, "log": str(log)}) for i in (2, n)]
    return [Task("total", total, {"log": str(log)}, after=tuple(task.name for task in first), weight=9.0), *first]


def trace(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines()]


def test_a_task_is_given_the_results_of_those_it_comes_after(tmp_path: Path) -> None:
    found, told = run(chain(tmp_path / "log"), tmp_path)
    assert found["total"] == {"squares/2": 1, "squares/4": 14}
    assert [task.name for task in told.tasks] == ["squares/2", "squares/4", "total"]
    assert told.total == 3


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    first, _ = run(chain(log), tmp_path)
    again, told = run(chain(log), tmp_path)
    assert len(trace(log)) == 3
    assert again == first
    assert all(task.skipped for task in told.tasks)


def test_changed_arguments_are_done_again_with_all_that_comes_after_and_nothing_else(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run(chain(log), tmp_path)
    before = Task("squares/4", squares, {"n": 5, "log": str(log)})
    tasks = [before if task.name == "squares/4" else task for task in chain(log)]
    found, told = run(tasks, tmp_path)
    assert found["total"]["squares/4"] == 30
    assert {task.name for task in told.tasks if not task.skipped} == {"squares/4", "total"}


def test_a_torn_result_is_made_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    first, _ = run(chain(log), tmp_path)
    file = tmp_path / "tasks" / "squares" / "2.json"
    file.write_text(file.read_text()[:-3])
    again, told = run(chain(log), tmp_path)
    assert again == first
    assert [task.name for task in told.tasks if not task.skipped] == ["squares/2"]
    assert not list(tmp_path.rglob("*.partial"))


def test_a_task_that_fails_leaves_the_others_done(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(BadInput, match="give something"):
        run([*chain(log), Task("refuse", refuse, weight=0.1)], tmp_path)
    _, told = run(chain(log), tmp_path)
    assert all(task.skipped for task in told.tasks)


def test_a_task_without_the_one_it_needs_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="total needs squares/1, which is not there"):
        ordered([Task("total", total, after=("squares/1",))])


def test_two_processes_give_the_files_that_one_gives(tmp_path: Path) -> None:
    logs = [tmp_path / "one.log", tmp_path / "two.log"]
    points = [
        Task(f"point/{f}", series.point, {"drawn": {"kind": "usdata1", "n_features": f}, "runs": 1, "seed": 3})
        for f in (8, 12)
    ]
    for log, jobs in zip(logs, (1, 2), strict=True):
        run([*points, *chain(tmp_path / "log")], tmp_path / log.stem, jobs)
    one, two = (
        {file.relative_to(tmp_path / log.stem): file.read_bytes() for file in (tmp_path / log.stem).rglob("*.json")}
        for log in logs
    )
    assert one == two
    assert len(one) == 5
    pids = {line[2] for line in trace(tmp_path / "log")}
    assert str(os.getpid()) in pids
    assert len(pids) > 1  # the second time, others worked


def test_tasks_that_measure_time_run_last_and_in_this_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    timed = Task("timed", squares, {"n": 1, "log": str(log)}, timed=True, weight=99.0)
    run([timed, *chain(log)], tmp_path, jobs=2)
    lines = trace(log)
    assert lines[-1][:3] == ["squares", "1", str(os.getpid())]


# families


def test_an_unknown_family_is_named() -> None:
    with pytest.raises(BadInput, match=r"--only: found 'table9', allowed is table1, table2"):
        catalog.chosen(["table1", "table9"])


def test_families_keep_the_order_of_the_report() -> None:
    assert list(catalog.chosen(["levels", "table1"])) == ["table1", "levels"]
    assert list(catalog.chosen([])) == list(catalog.FAMILIES)


def test_missing_data_are_refused_before_the_first_task(tmp_path: Path) -> None:
    families = catalog.chosen(["similarities", "table2"])
    with pytest.raises(BadInput, match=r"soybean-small\.data"):
        catalog.experiments(families, Scope(runs=1), tmp_path / "out", str(tmp_path), 1, Told())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", catalog.FAMILIES)
def test_every_family_names_tasks_that_are_complete_and_apart(name: str) -> None:
    tasks = catalog.FAMILIES[name].tasks(Scope())
    assert len(ordered(tasks)) == len({task.name for task in tasks})
    json.dumps([task.arguments for task in tasks])


def test_large_data_have_the_machine_for_themselves_but_in_the_quick_version() -> None:
    for scope, timed in ((Scope(), True), (quick(), False)):
        large = [task for task in beyond.tasks(scope) if task.name.split("/")[1] in beyond.LARGE]
        assert len(large) == len(beyond.LARGE) * len(choices.METHODS)
        assert {task.timed for task in large} == {timed}


def test_records_of_a_family_are_flat_and_of_every_point(tmp_path: Path) -> None:
    scope = Scope(runs=1)
    found, results = catalog.experiments(catalog.chosen(["noises"]), scope, tmp_path, None, 1, Told())
    assert len(found) == len(results) * 2 * (3 * 5 + 1)  # two variants, three methods, five measures, one gain
    for one in found:
        assert tuple(one) == FIELDS
        assert all(isinstance(value, str | int | float | bool) for value in one["params"].values())
        assert isinstance(one["mean"], float)
    gain = next(one for one in found if one["measure"] == "gain")
    of = {m: results["noises/uniform"]["default"][m]["mean"]["acc"] for m in choices.COMPARED}
    assert gain["mean"] == of["IPS2"] - of["SC"]


# the paper's figures


def test_printed_accuracies_are_whole_numbers_of_samples() -> None:
    for dataset, m in (("soybean", 47), ("bbcsport60", 60), ("yale5", 55)):
        for method in ("SC", "CAVE", "HGC", "PPC", "IPS2"):
            printed = tables.printed_score(dataset, method, "acc")
            assert printed is not None
            assert abs(printed * m - round(printed * m)) < 0.0011 * m
    for method in ("SC", "PPC", "IPS2"):
        assert tables.printed_score("scadi", method, "acc") is None  # theirs are of 57
    assert tables.printed_score("scadi", "HGC", "acc") == pytest.approx(26 / 70, abs=5e-4)
    assert (
        tables.printed_score("bbcsport-draws", "IPS2", "nmi")
        == tables.printed_score("bbcsport60", "IPS2", "nmi")
        == 0.539
    )


def test_printed_times_are_in_the_order_of_the_methods() -> None:
    assert [tables.printed_seconds("yale5", method) for method in choices.METHODS] == [
        8.20,
        1992.46,
        8.45,
        12.58,
        30.14,
        30.96,
    ]
    assert tables.printed_seconds("scadi57", "SC") == 2.18
    assert tables.printed_seconds("wine", "SC") is None


# ranks


def test_critical_differences_have_the_quantiles_of_nemenyis_table() -> None:
    for k, q in ((2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (6, 2.850)):
        n = k * (k + 1) / 6
        assert ranks.critical_difference(k, 1) == pytest.approx(q * np.sqrt(n), rel=5e-4)


def test_ranks_share_ties_and_leave_out_data_without_every_method() -> None:
    means = {"a": (0.9, 0.9, 0.5, 0.4, 0.3, 0.2), "b": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6), "c": (0.5,)}
    scored = [
        record("table2", name, method, "acc", mean=value)
        for name, values in means.items()
        for method, value in zip(choices.METHODS, values, strict=False)
    ]
    names, table = ranks.ranks(scored, "default", "acc")
    assert names == ["a", "b"]
    assert table.tolist() == [[1.5, 1.5, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1]]
    found = {one["method"]: one["mean"] for one in ranks.of_scores(scored) if one["measure"] == "rank_acc"}
    assert found == {"SC": 3.75, "SSC": 3.25, "CAVE": 3.5, "HGC": 3.5, "PPC": 3.5, "IPS2": 3.5}


# the publishers' data


@needs_data
def test_sc_gives_the_papers_own_figures_on_soybean() -> None:
    found = score("SC", choices.default("SC"), load("soybean", DATA), [0])[0]
    assert found["acc"] == 37 / 47
    for measure in tables.MEASURES:
        printed = tables.printed_score("soybean", "SC", measure)
        assert found[measure] == pytest.approx(printed, abs=1e-3)


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["soybean", "scadi57", "bbcsport60", "yale5"])
def test_tuned_ips2_reaches_the_papers_ips2_in_all_five_measures(dataset: str) -> None:
    found = tables.table2_cell(TaskContext(DATA, {}), dataset, "IPS2", runs=5, seed=0, budget=40)["tuned"]["mean"]
    for measure in tables.MEASURES:
        printed = tables.printed_score(dataset, "IPS2", measure)
        assert printed is not None
        assert round(found[measure], 3) >= printed, measure


@needs_data
def test_draws_take_what_was_chosen_before_them(tmp_path: Path) -> None:
    scope = Scope(runs=2, budget=2, draws=2)
    tasks = [
        task for task in tables.table2_tasks(scope) if task.name in ("table2/bbcsport60/SC", "table2/bbcsport-draws/SC")
    ]
    found = run_tasks(tasks, tmp_path, DATA, 1, Told())
    for setting in ("printed", "default", "tuned", "unsupervised"):
        chosen, drawn = (found[f"table2/{name}/SC"][setting] for name in ("bbcsport60", "bbcsport-draws"))
        assert drawn["params"] == chosen["params"]
        assert drawn["runs"] == 2
