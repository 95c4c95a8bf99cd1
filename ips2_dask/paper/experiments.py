"""The paper's tables and figures, and ten data sets beyond it: tasks by family, and the records of their results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import product
from math import sqrt
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.stats import friedmanchisquare, rankdata, studentized_range
from sklearn.metrics import roc_auc_score

from ips2_dask.estimator import IPS2
from ips2_dask.metrics import scores
from ips2_dask.paper import data as sets
from ips2_dask.paper import explicit
from ips2_dask.paper.data import NOISE_LEVELS, USDATA1_FEATURES, USDATA2_THIRDS, Dataset, packaged
from ips2_dask.paper.methods import (
    COMPARED,
    METHODS,
    Fitted,
    Setting,
    Summary,
    default,
    four_settings,
    published,
    quiet,
    score,
    score_drawn,
    seconds,
    summary,
)
from ips2_dask.paper.tasks import SETTINGS, Family, Record, Results, Scope, Task, mean_of, of_summary, record
from ips2_dask.typing import Float64

MEASURES = ("acc", "ari", "fscore", "nmi", "purity")

PRINTED: dict[str, dict[str, Any]] = json.loads(packaged("printed.json"))
"""What the paper prints: Table 1 (``sizes``: samples, features, clusters), Table 2 by measure and Table 3 (``seconds``)
by data set, in the order of ``METHODS``, and ``levels``: ACC at two noise levels, as the text says."""

SCADI70 = ("SSC", "CAVE", "HGC")
"""Methods whose SCADI figures are those of 70 samples in 7 classes: .371 is 26/70; the others' .877 is 50/57."""

SAME_AS = {"bbcsport-draws": "bbcsport60", "scadi": "scadi57"}
"""Data sets, and the one whose printed figures they are compared with."""

PAPER_SETS = ("soybean", "scadi57", "bbcsport60", "yale5")
TABLE_SETS = (*PAPER_SETS, "scadi")
"""The paper's four, and SCADI with all of its 70 samples."""

COST = {"SSC": 30.0, "CAVE": 12.0, "PPC": 20.0, "IPS2": 20.0, "HGC": 4.0, "SC": 6.0}


def printed_score(dataset: str, method: str, measure: str) -> float | None:
    """The figure that Table 2 prints, None where it prints none."""
    if dataset == "scadi" and method not in SCADI70:
        return None
    row = PRINTED.get(measure, {}).get(SAME_AS.get(dataset, dataset))
    return None if row is None else float(row[METHODS.index(method)])


def printed_seconds(dataset: str, method: str) -> float | None:
    """The seconds that Table 3 prints, None where it prints nothing."""
    row = PRINTED["seconds"].get("scadi" if dataset == "scadi57" else dataset)
    return None if row is None else float(row[METHODS.index(method)])


# Table 1: the data


def table1(data: str | None) -> dict[str, list[int]]:
    """Samples, features, clusters of each data set."""
    loaded = {name: sets.load(name, data) for name in TABLE_SETS}
    return {name: [*one.X.shape, one.n_clusters] for name, one in loaded.items()}


def _table1_records(_: Scope, results: Results) -> list[Record]:
    records = []
    for name in ("soybean", "scadi", "scadi57", "bbcsport60", "yale5"):
        theirs = PRINTED["sizes"].get(name, (None, None, None))
        for count, ours, paper in zip(
            ("samples", "features", "clusters"), results["table1"][name], theirs, strict=True
        ):
            records.append(record("table1", name, "data", count, mean=ours, paper=paper))
    return records


# Table 2: six methods on the paper's data


def table2_cell(data: str | None, dataset: str, method: str, runs: int, seed: int, budget: int) -> dict[str, Summary]:
    """A method's four settings on a data set."""
    return four_settings(method, sets.load(dataset, data), runs, seed, budget)


def _table2_draws(
    data: str | None, method: str, chosen: dict[str, Setting], runs: int, seed: int, draws: int
) -> dict[str, Summary]:
    """The four settings of the first 60 documents, on random draws of 60: none is chosen on a draw."""
    seeds, drawn = range(seed, seed + max(1, runs // draws)), [sets.bbcsport_draw(draw, data) for draw in range(draws)]
    return {
        name: summary(params, [run for one in drawn for run in score(method, params, one, seeds)])
        for name, params in chosen.items()
    }


def _chosen(results: Results, dataset: str, method: str) -> dict[str, Setting]:
    return {setting: results[f"table2/{dataset}/{method}"][setting]["params"] for setting in SETTINGS}


def _table2_task(scope: Scope, dataset: str, method: str) -> Task:
    arguments = {"dataset": dataset, "method": method, "budget": scope.budget, **scope.seeds}
    return Task(f"table2/{dataset}/{method}", table2_cell, arguments, weight=COST[method])


def table2_tasks(scope: Scope) -> list[Task]:
    """One for each data set and method, and one for each method's draws."""

    def draws(method: str) -> Task:
        common = {"method": method, "draws": scope.draws, **scope.seeds}
        return Task(
            f"table2/bbcsport-draws/{method}",
            _table2_draws,
            lambda results: {"chosen": _chosen(results, "bbcsport60", method), **common},
            weight=COST[method],
        )

    cells = [_table2_task(scope, dataset, method) for dataset in TABLE_SETS for method in METHODS]
    return cells + [draws(method) for method in METHODS]


def _scores(experiment: str, names: tuple[str, ...], results: Results) -> list[Record]:
    """Of each data set, method, setting and measure, beside what Table 2 prints."""
    records = []
    for dataset, method in product(names, METHODS):
        theirs = {measure: printed_score(dataset, method, measure) for measure in MEASURES}
        found = results[f"{experiment}/{dataset}/{method}"]
        for setting in SETTINGS:
            if setting in found:
                records += of_summary(experiment, dataset, method, setting, found[setting], theirs)
    return records


# Table 3: time


def _time_methods(
    data: str | None, dataset: str, settings: dict[str, tuple[str, Setting]], repeats: int, seed: int
) -> dict[str, list[float]]:
    """Seconds of ``repeats`` fits by name, after one that is not timed: it loads what is compiled.

    The methods take turns, so that other load on the machine affects all of them.
    """
    loaded = sets.load(dataset, data)
    times: dict[str, list[float]] = {name: [] for name in settings}
    for _ in range(repeats + 1):
        for name, (method, setting) in settings.items():
            times[name].append(seconds(method, setting, loaded, seed))
    return {name: taken[1:] for name, taken in times.items()}


def _timing_task(name: str, dataset: str, scope: Scope, repeats: int) -> Task:
    """The task that times all methods with their default settings, and the paper's three with its printed ones."""
    settings = {method: (method, default(method)) for method in METHODS}
    settings |= {f"{method}-printed": (method, published(method)) for method in COMPARED}
    arguments = {"dataset": dataset, "settings": settings, "repeats": repeats, "seed": scope.seed}
    return Task(name, _time_methods, arguments, timed=True)


def _seconds(where: tuple[str, str, str], taken: list[float], params: Setting, paper: float | None) -> list[Record]:
    """Mean and median."""
    common: dict[str, Any] = {"runs": len(taken), "params": params, "paper": paper}
    return [
        record(*where, "seconds", mean=float(np.mean(taken)), std=float(np.std(taken)), **common),
        record(*where, "seconds_median", mean=float(np.median(taken)), **common),
    ]


def _time_records(experiment: str, dataset: str, times: dict[str, list[float]]) -> list[Record]:
    """Those of the printed settings are under a name of their own."""
    records = []
    for key, taken in times.items():
        method, _, variant = key.partition("-")
        params = published(method) if variant else default(method)
        where = (f"{experiment}-printed" if variant else experiment, dataset, method)
        records += _seconds(where, taken, params, printed_seconds(dataset, method))
    return records


TABLE3_SETS = ("soybean", "scadi57", "scadi", "bbcsport60", "yale5")


# Section 3: the tensors, and the three similarities

CELLS = 250
"""Cells a side that an unfolded tensor of 2,500 pairs is drawn with: each is the mean of ten by ten entries."""

BINS = 40
KINDS = {"SC": "pairwise", "PPC": "high_order", "IPS2": "fused"}
"""The similarity that each method clusters."""

SHOWN = ("bbcsport60", "yale5")


def tensors(data: str | None, seed: int) -> dict[str, Any]:
    """S and both unfolded tensors of section 3.4's three clusters: cells of heat maps, coarse, and their variation.

    The variation is the standard deviation over the mean of the entries off the diagonal: near 0 where all pairs look
    alike.
    """
    del data
    samples = sets.three_clusters(seed)
    S = explicit.pairwise_similarity(samples.X, "gaussian")
    matrices = {"pairwise": S, "decomposable": explicit.unfold(explicit.tensor_similarity(S, "decomposable"))}
    matrices["indecomposable"] = explicit.unfold(explicit.tensor_similarity(samples.X, "indecomposable"))
    off = {name: M[~np.eye(len(M), dtype=bool)] for name, M in matrices.items()}
    return {
        "variation": {name: float(values.std() / values.mean()) for name, values in off.items()},
        "cells": {name: _coarse(M, max(1, len(M) // CELLS)) for name, M in matrices.items()},
    }


def _coarse(M: Float64, step: int) -> Float64:
    blocks = M.reshape(len(M) // step, step, len(M) // step, step)
    return np.asarray(blocks.mean(axis=(1, 3)))


def _three(samples: Dataset, setting: Setting, seed: int) -> dict[str, Any]:
    """S, V and U by kind, samples in order of their classes: cells, how well each tells classes apart, a histogram."""
    order = np.argsort(samples.labels, kind="stable")
    with quiet():
        fitted = IPS2(samples.n_clusters, random_state=seed, **setting).fit(samples.X)
    found = (fitted.pairwise_similarity_, fitted.high_order_similarity_, fitted.affinity_matrix_)
    dense = [np.asarray(M.toarray() if sp.issparse(M) else M)[np.ix_(order, order)] for M in found]
    cells = dict(zip(KINDS.values(), dense, strict=True))
    labels = samples.labels[order]
    i, j = np.triu_indices(len(labels), 1)
    return {
        "params": setting,
        "cells": cells,
        "auc": {kind: float(roc_auc_score(labels[i] == labels[j], M[i, j])) for kind, M in cells.items()},
        "histogram": {k: np.histogram(M[i, j], bins=BINS, range=(0, M.max())) for k, M in cells.items()},
    }


def similarities(data: str | None, seed: int) -> dict[str, Any]:
    """The two-cluster set with the paper's printed settings."""
    del data
    return _three(sets.two_clusters(seed), published("IPS2"), seed)


def heatmaps(data: str | None, dataset: str, setting: Setting, seed: int) -> dict[str, Any]:
    """A real data set with the setting that Table 2 tuned for IPS2."""
    return _three(sets.load(dataset, data), setting, seed)


def _heatmap_tasks(scope: Scope) -> list[Task]:
    def task(name: str) -> Task:
        common = {"dataset": name, "seed": scope.seed}
        return Task(
            f"heatmaps/{name}", heatmaps, lambda results: {"setting": _chosen(results, name, "IPS2")["tuned"], **common}
        )

    return [one for name in SHOWN for one in (_table2_task(scope, name, "IPS2"), task(name))]


def _auc(experiment: str, dataset: str, setting: str, found: dict[str, Any]) -> list[Record]:
    common: dict[str, Any] = {"setting": setting, "params": found["params"]}
    return [record(experiment, dataset, m, "auc", mean=found["auc"][kind], **common) for m, kind in KINDS.items()]


# Section 4.4: SC, PPC and IPS2 on generated data, over features, cluster sizes, noise and its level; and IPS2 over k

FEATURES = (20, 30, 40, 50, *USDATA1_FEATURES)
"""USdata1's, and fewer: from 260 on it is too easy to tell methods apart."""

NOISES = ("uniform", "gaussian", "rayleigh", "gamma")
NOISY_FEATURES = 60
K = tuple(range(5, 16))

POINTS: dict[str, dict[str, Mapping[str, object]]] = {
    "usdata1": {str(f): {"n_features": f} for f in FEATURES},
    "usdata2": {str(n): {"n_third": n} for n in USDATA2_THIRDS},
    "noises": {noise: {"n_features": NOISY_FEATURES, "noise": noise} for noise in NOISES},
    "levels": {f"{x:g}": {"n_features": NOISY_FEATURES, "level": x} for x in NOISE_LEVELS},
}
"""The points of each series, by what stands on its axis, and what is drawn there: USdata2 where a third is given."""

VARIANTS = ("default", "printed")
"""The methods' default settings; and the paper's printed ones: dense Gaussian S, k = 10, k-means."""


def _setting_of(variant: str, method: str) -> Setting:
    return default(method) if variant == "default" else published(method)


def draw(seed: int, **drawn: Any) -> Dataset:
    """USdata1 or USdata2, drawn with a seed."""
    return sets.usdata2(seed=seed, **drawn) if "n_third" in drawn else sets.usdata1(seed=seed, **drawn)


def point(
    data: str | None,
    drawn: dict[str, Any],
    runs: int,
    seed: int,
    methods: tuple[str, ...] = COMPARED,
    changes: Setting | None = None,
) -> dict[str, dict[str, Summary]]:
    """Methods in both variants at one point: each run has data of its own, the same for all of them."""
    del data

    def one(variant: str, method: str) -> Summary:
        setting = {**_setting_of(variant, method), **(changes or {})}
        return score_drawn(method, setting, lambda s: draw(s, **drawn), range(seed, seed + runs))

    return {variant: {method: one(variant, method) for method in methods} for variant in VARIANTS}


def experiment_name(name: str, variant: str) -> str:
    """The experiment's name in the records of a variant of a series."""
    return name if variant == "default" else f"{name}-{variant}"


def dataset_name(name: str, at: str) -> str:
    """The data set's name in the records of a point."""
    base = "usdata2" if name == "usdata2" else f"usdata1-{NOISY_FEATURES}"
    return f"usdata1-{at}" if name == "usdata1" else f"{base}-{at}"


def _series_records(name: str, results: Results) -> list[Record]:
    records = []
    for variant in VARIANTS:
        experiment = experiment_name(name, variant)
        for label in POINTS[name]:
            found, dataset = results[f"{name}/{label}"][variant], dataset_name(name, label)
            for method in COMPARED:
                theirs = {"acc": PRINTED["levels"].get(label, {}).get(method)} if name == "levels" else {}
                records += of_summary(experiment, dataset, method, "default", found[method], theirs)
            gain = found["IPS2"]["mean"]["acc"] - found["SC"]["mean"]["acc"]
            common: dict[str, Any] = {"runs": found["IPS2"]["runs"], "params": found["IPS2"]["params"]}
            records.append(record(experiment, dataset, "IPS2", "gain", mean=gain, **common))
    return records


def _series(name: str, weight: float = 8.0) -> Family:
    def tasks(scope: Scope) -> list[Task]:
        points = POINTS[name].items()
        return [Task(f"{name}/{at}", point, {"drawn": one, **scope.seeds}, weight=weight) for at, one in points]

    return Family((), tasks, lambda _, results: _series_records(name, results))


def _neighbors_times(data: str | None, repeats: int, seed: int) -> dict[str, dict[int, list[float]]]:
    """Seconds of IPS2's fits on one draw for each k, in both variants, after one that is not counted."""
    del data
    drawn = sets.usdata1(NOISY_FEATURES, seed=seed)

    def times(setting: Setting) -> list[float]:
        return [seconds("IPS2", setting, drawn, seed) for _ in range(repeats + 1)][1:]

    return {v: {k: times({**_setting_of(v, "IPS2"), "n_neighbors": k}) for k in K} for v in VARIANTS}


def _neighbors_tasks(scope: Scope) -> list[Task]:
    common = {"drawn": {"n_features": NOISY_FEATURES}, "methods": ("IPS2",), **scope.seeds}
    tasks = [Task(f"neighbors/{k}", point, {"changes": {"n_neighbors": k}, **common}, weight=k / 2) for k in K]
    times = {"repeats": scope.repeats, "seed": scope.seed}
    return [*tasks, Task("neighbors/times", _neighbors_times, times, timed=True)]


def _neighbors_records(_: Scope, results: Results) -> list[Record]:
    """The measures and the seconds of each k, which is among the parameters."""
    records = []
    for variant in VARIANTS:
        where = (experiment_name("neighbors", variant), f"usdata1-{NOISY_FEATURES}", "IPS2")
        for k in K:
            found = results[f"neighbors/{k}"][variant]["IPS2"]
            records += of_summary(*where, "default", found, {})
            records += _seconds(where, results["neighbors/times"][variant][k], found["params"], None)
    return records


# Beyond the paper: the same measures and times on ten more data sets, small and large; mean ranks over all

SMALL = ("wine", "glass", "lung", "colon", "allaml")
LARGE = ("digits", "usps", "pendigits", "mnist10k", "letter")
REPEATS = 3
"""Timed fits of small data."""


def _large_setting(method: str) -> Setting:
    """The default, but SSC by matching pursuit: its ADMM would hold several dense arrays of all pairs."""
    return {**default(method), "solver": "omp"} if method == "SSC" else default(method)


def _by_default(
    data: str | None, dataset: str, method: str, setting: Setting, runs: int, seed: int
) -> dict[str, Summary | float]:
    """A method with one setting, and how long its first fit took."""
    loaded, measured, taken = sets.load(dataset, data), [], 0.0
    fitted = Fitted(method, setting, loaded.X, loaded.n_clusters)
    for s in range(seed, seed + runs):
        measured.append(scores(loaded.labels, fitted.labels(s)))
        taken = taken or fitted.seconds
    return {"default": summary(setting, measured), "seconds": taken}


def _beyond_cells(scope: Scope) -> list[Task]:
    """One for each data set and method."""
    tasks = []
    for name, method in product((*SMALL, *LARGE), METHODS):
        where, what = f"beyond/{name}/{method}", {"dataset": name, "method": method, "seed": scope.seed}
        if name in LARGE:
            once = {**what, "setting": _large_setting(method), "runs": scope.large_runs}
            tasks.append(Task(where, _by_default, once, scope.large_alone, 2 * COST[method]))
        elif scope.tunes_beyond:
            tuned = {**what, "runs": scope.runs, "budget": scope.budget}
            tasks.append(Task(where, table2_cell, tuned, weight=3 * COST[method]))
        else:
            tasks.append(Task(where, _by_default, {**what, "setting": default(method), "runs": scope.runs}))
    return tasks


def _beyond_tasks(scope: Scope) -> list[Task]:
    return _beyond_cells(scope) + [_timing_task(f"beyond/{name}/times", name, scope, REPEATS) for name in SMALL]


def _beyond_records(_: Scope, results: Results) -> list[Record]:
    records = _scores("beyond", (*SMALL, *LARGE), results)
    for name in SMALL:
        records += _time_records("beyond", name, results[f"beyond/{name}/times"])
    for name, method in product(LARGE, METHODS):
        taken = results[f"beyond/{name}/{method}"]["seconds"]
        records.append(record("beyond", name, method, "seconds", mean=taken, params=_large_setting(method)))
    return records


def critical_difference(n_methods: int, n_datasets: int) -> float:
    """Nemenyi's: mean ranks that differ by less are not told apart at the level .05 (Demsar 2006)."""
    q = studentized_range.ppf(0.95, n_methods, np.inf) / sqrt(2)
    return float(q * sqrt(n_methods * (n_methods + 1) / (6 * n_datasets)))


def ranks(scored: list[Record], setting: str, measure: str) -> tuple[list[str], Float64]:
    """The data sets that have a score of every method, and each method's rank there, 1 the best: (datasets, methods).

    Equal scores, to six digits, share the mean of their ranks.
    """
    ranked, rows = [], []
    for name in dict.fromkeys(r["dataset"] for r in scored):
        row = [mean_of(scored, dataset=name, method=m, measure=measure, setting=setting) for m in METHODS]
        if None not in row:
            ranked.append(name)
            rows.append(rankdata(-np.round(np.array(row, np.float64), 6)))
    return ranked, np.array(rows, np.float64).reshape(len(rows), len(METHODS))


def ranks_of(scored: list[Record]) -> list[Record]:
    """Mean ranks of the scores in the records of Table 2 and beyond, critical differences, and Friedman's p."""
    records = []
    for setting in SETTINGS:
        for measure in ("acc", "nmi"):
            names, table = ranks(scored, setting, measure)
            if len(names) < 2:
                continue
            common: dict[str, Any] = {"runs": len(names), "setting": setting}
            for method, column in zip(METHODS, table.T, strict=True):
                mean, std = float(column.mean()), float(column.std())
                records.append(record("ranks", "all", method, f"rank_{measure}", mean=mean, std=std, **common))
            distance = critical_difference(len(METHODS), len(names))
            p = float(friedmanchisquare(*table.T).pvalue)
            records.append(record("ranks", "all", "all", f"critical_difference_{measure}", mean=distance, **common))
            records.append(record("ranks", "all", "all", f"friedman_p_{measure}", mean=p, **common))
    return records


FAMILIES: dict[str, Family] = {
    "table1": Family(TABLE_SETS, lambda _: [Task("table1", table1, {})], _table1_records),
    "table2": Family(
        (*TABLE_SETS, "bbcsport"),
        table2_tasks,
        lambda _, found: _scores("table2", (*TABLE_SETS, "bbcsport-draws"), found),
    ),
    "table3": Family(
        TABLE3_SETS,
        lambda scope: [_timing_task(f"table3/{name}", name, scope, scope.repeats) for name in TABLE3_SETS],
        lambda _, found: [
            one for name in TABLE3_SETS for one in _time_records("table3", name, found[f"table3/{name}"])
        ],
    ),
    "tensors": Family(
        (),
        lambda scope: [Task("tensors", tensors, {"seed": scope.seed}, weight=4.0)],
        lambda _, found: [
            record("tensors", "three_clusters", name, "variation", mean=value)
            for name, value in found["tensors"]["variation"].items()
        ],
    ),
    "similarities": Family(
        (),
        lambda scope: [Task("similarities", similarities, {"seed": scope.seed})],
        lambda _, found: _auc("similarities", "two_clusters", "default", found["similarities"]),
    ),
    "heatmaps": Family(
        SHOWN,
        _heatmap_tasks,
        lambda _, found: [one for n in SHOWN for one in _auc("heatmaps", n, "tuned", found[f"heatmaps/{n}"])],
    ),
    "usdata1": _series("usdata1"),
    "usdata2": _series("usdata2", weight=30.0),
    "noises": _series("noises"),
    "levels": _series("levels"),
    "neighbors": Family((), _neighbors_tasks, _neighbors_records),
    "beyond": Family((*SMALL, *LARGE), _beyond_tasks, _beyond_records),
    "ranks": Family(
        (*PAPER_SETS, *SMALL, *LARGE),
        lambda scope: [_table2_task(scope, d, m) for d in PAPER_SETS for m in METHODS] + _beyond_cells(scope),
        lambda _, found: ranks_of(_scores("table2", PAPER_SETS, found) + _scores("beyond", (*SMALL, *LARGE), found)),
    ),
}
"""In the order of the records."""
