"""The paper's tables and figures: what is computed for each, and the records of what comes out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.metrics import roc_auc_score

from ips2_dask.estimator import IPS2
from ips2_dask.paper import data as sets
from ips2_dask.paper import explicit
from ips2_dask.paper.data import NOISE_LEVELS, USDATA1_FEATURES, USDATA2_THIRDS, Dataset, packaged
from ips2_dask.paper.methods import (
    COMPARED,
    METHODS,
    Setting,
    Summary,
    default,
    published,
    quiet,
    score,
    seconds,
    summary,
    three_settings,
)
from ips2_dask.paper.work import SETTINGS, Family, Record, Work, record
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


def _table1(work: Work) -> list[Record]:
    """Samples, features and clusters of each data set."""
    records = []
    for name in ("soybean", "scadi", "scadi57", "bbcsport60", "yale5"):
        loaded, theirs = sets.load(name, work.data), PRINTED["sizes"].get(name, (None, None, None))
        counts = {"samples": len(loaded.X), "features": loaded.X.shape[1], "clusters": loaded.n_clusters}
        for (count, ours), paper in zip(counts.items(), theirs, strict=True):
            records.append(record("table1", name, "data", count, mean=ours, paper=paper))
    return records


# Table 2: six methods on the paper's data


def table2_cell(data: str | None, dataset: str, method: str, runs: int, seed: int, budget: int) -> dict[str, Summary]:
    """A method's three settings on a data set."""
    return three_settings(method, sets.load(dataset, data), runs, seed, budget)


def _on_draws(
    data: str | None, method: str, chosen: dict[str, Setting], runs: int, seed: int, draws: int
) -> dict[str, Summary]:
    """The three settings of the first 60 documents, on random draws of 60: none is chosen on a draw."""
    seeds, drawn = range(seed, seed + max(1, runs // draws)), [sets.bbcsport_draw(draw, data) for draw in range(draws)]
    return {
        name: summary(params, [run for one in drawn for run in score(method, params, one, seeds)])
        for name, params in chosen.items()
    }


def cells(work: Work, names: tuple[str, ...], methods: tuple[str, ...] = METHODS) -> dict[tuple[str, str], Any]:
    """`table2_cell` of each data set and method."""
    given = {"budget": work.scope.budget, **work.scope.seeds}
    calls = {(dataset, m): {"dataset": dataset, "method": m, **given} for dataset, m in product(names, methods)}
    return work.each("table2", table2_cell, calls)


def _params(found: dict[str, Summary]) -> dict[str, Setting]:
    return {setting: found[setting]["params"] for setting in SETTINGS}


def _table2(work: Work) -> list[Record]:
    """The measures of each data set, method and setting, beside what is printed."""
    found, given = cells(work, TABLE_SETS), {"draws": work.scope.draws, **work.scope.seeds}
    calls = {("bbcsport-draws", m): {"method": m, "chosen": _params(found["bbcsport60", m]), **given} for m in METHODS}
    found |= work.each("table2", _on_draws, calls)
    records = []
    for (dataset, method), of_each in found.items():
        theirs = {measure: printed_score(dataset, method, measure) for measure in MEASURES}
        for setting in SETTINGS:
            records += _of_summary("table2", dataset, method, setting, of_each[setting], theirs)
    return records


def _of_summary(
    experiment: str, dataset: str, method: str, setting: str, one: Summary, paper: Mapping[str, float | None]
) -> list[Record]:
    """A record for each measure of a summary."""
    common: dict[str, Any] = {"setting": setting, "params": one["params"], "runs": one["runs"]}
    return [
        record(experiment, dataset, method, name, mean=mean, std=one["std"][name], paper=paper.get(name), **common)
        for name, mean in one["mean"].items()
    ]


# Table 3: time

NOISY_FEATURES = 60
NOISY = f"usdata1-{NOISY_FEATURES}"


def _dataset(data: str | None, name: str, seed: int) -> Dataset:
    """A data set by name; the generated ones are drawn with the seed."""
    if name == "two_clusters":
        return sets.two_clusters(seed)
    return sets.usdata1(NOISY_FEATURES, seed=seed) if name == NOISY else sets.load(name, data)


def _times(
    data: str | None, dataset: str, settings: dict[str, tuple[str, Setting]], repeats: int, seed: int
) -> dict[str, list[float]]:
    """Seconds of ``repeats`` fits by name, after one that is not timed: it loads what is compiled.

    The methods take turns, so that other load on the machine affects all of them.
    """
    loaded = _dataset(data, dataset, seed)
    taken: dict[str, list[float]] = {name: [] for name in settings}
    for _ in range(repeats + 1):
        for name, (method, setting) in settings.items():
            taken[name].append(seconds(method, setting, loaded, seed))
    return {name: of[1:] for name, of in taken.items()}


def _seconds(where: tuple[str, str, str], taken: list[float], params: Setting, paper: float | None) -> list[Record]:
    """Mean and median."""
    common: dict[str, Any] = {"runs": len(taken), "params": params, "paper": paper}
    return [
        record(*where, "seconds", mean=float(np.mean(taken)), std=float(np.std(taken)), **common),
        record(*where, "seconds_median", mean=float(np.median(taken)), **common),
    ]


TABLE3_SETS = ("soybean", "scadi57", "scadi", "bbcsport60", "yale5")


def _table3(work: Work) -> list[Record]:
    """Seconds of all methods by default, and of the paper's three as printed, under a name of their own."""
    settings = {method: (method, default(method)) for method in METHODS}
    settings |= {f"{method}-printed": (method, published(method)) for method in COMPARED}
    given = {"settings": settings, "repeats": work.scope.repeats, "seed": work.scope.seed}
    found = work.each("table3", _times, {(name,): {"dataset": name, **given} for name in TABLE3_SETS}, alone=True)
    records = []
    for (dataset,), of_each in found.items():
        for name, taken in of_each.items():
            method, setting = settings[name]
            where = (name.replace(method, "table3"), dataset, method)
            records += _seconds(where, taken, setting, printed_seconds(dataset, method))
    return records


# Section 3: the tensors, and the three similarities

CELLS = 250
"""Cells a side that an unfolded tensor of 2,500 pairs is drawn with: each is the mean of ten by ten entries."""

BINS = 40
KINDS = {"SC": "pairwise", "PPC": "high_order", "IPS2": "fused"}
"""The similarity that each method clusters."""

SHOWN = ("bbcsport60", "yale5")


def _tensors(work: Work) -> list[Record]:
    """S and both unfolded tensors of section 3.4's three clusters: cells of heat maps, coarse, and their variation.

    The variation is the standard deviation over the mean of the entries off the diagonal: near 0 where all pairs look
    alike.
    """
    found = work.each("tensors", _coarse_tensors, {(): {"seed": work.scope.seed}})[()]
    work.more["tensors"] = {"": found["cells"]}
    variation = found["variation"].items()
    return [record("tensors", "three_clusters", name, "variation", mean=value) for name, value in variation]


def _coarse_tensors(data: str | None, seed: int) -> dict[str, Any]:
    """Cells and variation of the three matrices."""
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


def _three(data: str | None, dataset: str, setting: Setting, seed: int) -> dict[str, Any]:
    """S, V and U by kind, samples in order of their classes: cells, how well each tells classes apart, a histogram."""
    samples = _dataset(data, dataset, seed)
    order = np.argsort(samples.labels, kind="stable")
    with quiet():
        fitted = IPS2(samples.n_clusters, random_state=seed, **setting).fit(samples.X)
    found = (fitted.pairwise_similarity_, fitted.high_order_similarity_, fitted.affinity_matrix_)
    dense = [np.asarray(M.toarray() if sp.issparse(M) else M)[np.ix_(order, order)] for M in found]
    by_kind = dict(zip(KINDS.values(), dense, strict=True))
    labels = samples.labels[order]
    i, j = np.triu_indices(len(labels), 1)
    return {
        "params": setting,
        "cells": by_kind,
        "auc": {kind: float(roc_auc_score(labels[i] == labels[j], M[i, j])) for kind, M in by_kind.items()},
        "histogram": {k: np.histogram(M[i, j], bins=BINS, range=(0, M.max())) for k, M in by_kind.items()},
    }


def _all_three(work: Work, name: str, settings: Mapping[str, Setting]) -> dict[str, dict[str, Any]]:
    """`_three` of some data sets, each with its setting."""
    calls = {(one,): {"dataset": one, "setting": settings[one], "seed": work.scope.seed} for one in settings}
    return {dataset: found for (dataset,), found in work.each(name, _three, calls).items()}


def _similarities(work: Work) -> list[Record]:
    """How well S, V and U tell the pairs of one cluster from those of two, with the paper's printed settings."""
    found = _all_three(work, "similarities", {"two_clusters": published("IPS2")})["two_clusters"]
    work.more["similarities"] = {"": found["cells"]}
    work.more["distributions"] = found["histogram"]
    return _auc("similarities", "two_clusters", "default", found)


def _heatmaps(work: Work) -> list[Record]:
    """The same on two real data sets, with the settings that Table 2 tuned for IPS2."""
    tuned = {dataset: three["tuned"]["params"] for (dataset, _), three in cells(work, SHOWN, ("IPS2",)).items()}
    found = _all_three(work, "heatmaps", tuned)
    work.more["heatmaps"] = {name: one["cells"] for name, one in found.items()}
    return [record for name, one in found.items() for record in _auc("heatmaps", name, "tuned", one)]


def _auc(experiment: str, dataset: str, setting: str, found: dict[str, Any]) -> list[Record]:
    common: dict[str, Any] = {"setting": setting, "params": found["params"]}
    return [record(experiment, dataset, m, "auc", mean=found["auc"][kind], **common) for m, kind in KINDS.items()]


# Section 4.4: SC, PPC and IPS2 on generated data, over features, cluster sizes, noise and its level; and IPS2 over k

FEATURES = (20, 30, 40, 50, *USDATA1_FEATURES)
"""USdata1's, and fewer: from 260 on it is too easy to tell methods apart."""

NOISES = ("uniform", "gaussian", "rayleigh", "gamma")
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
        seeds = range(seed, seed + runs)
        return summary(setting, [score(method, setting, draw(one, **drawn), [one])[0] for one in seeds])

    return {variant: {method: one(variant, method) for method in methods} for variant in VARIANTS}


def experiment_name(name: str, variant: str) -> str:
    """The experiment's name in the records of a variant of a series."""
    return name if variant == "default" else f"{name}-{variant}"


def dataset_name(name: str, at: str) -> str:
    """The data set's name in the records of a point."""
    base = "usdata2" if name == "usdata2" else NOISY
    return f"usdata1-{at}" if name == "usdata1" else f"{base}-{at}"


def _series(work: Work, name: str) -> list[Record]:
    """The measures at each point, and the gain of IPS2 over SC."""
    calls = {(at,): {"drawn": one, **work.scope.seeds} for at, one in POINTS[name].items()}
    points, records = work.each(name, point, calls), []
    for variant, ((at,), both) in product(VARIANTS, points.items()):
        experiment, dataset, found = experiment_name(name, variant), dataset_name(name, at), both[variant]
        for method in COMPARED:
            theirs = {"acc": PRINTED["levels"].get(at, {}).get(method)} if name == "levels" else {}
            records += _of_summary(experiment, dataset, method, "default", found[method], theirs)
        gain = found["IPS2"]["mean"]["acc"] - found["SC"]["mean"]["acc"]
        common: dict[str, Any] = {"runs": found["IPS2"]["runs"], "params": found["IPS2"]["params"]}
        records.append(record(experiment, dataset, "IPS2", "gain", mean=gain, **common))
    return records


def _neighbors(work: Work) -> list[Record]:
    """The measures and the seconds of each k, which is among the parameters."""
    given = {"drawn": {"n_features": NOISY_FEATURES}, "methods": ("IPS2",), **work.scope.seeds}
    found = work.each("neighbors", point, {(str(k),): {"changes": {"n_neighbors": k}, **given} for k in K})
    settings = {f"{v} {k}": ("IPS2", {**_setting_of(v, "IPS2"), "n_neighbors": k}) for v, k in product(VARIANTS, K)}
    timing = {"dataset": NOISY, "settings": settings, "repeats": work.scope.repeats, "seed": work.scope.seed}
    taken, records = work.each("neighbors", _times, {("times",): timing}, alone=True)["times",], []
    for variant, k in product(VARIANTS, K):
        where = (experiment_name("neighbors", variant), NOISY, "IPS2")
        one = found[str(k),][variant]["IPS2"]
        records += _of_summary(*where, "default", one, {})
        records += _seconds(where, taken[f"{variant} {k}"], one["params"], None)
    return records


FAMILIES: dict[str, Family] = {
    "table1": Family(TABLE_SETS, _table1),
    "table2": Family((*TABLE_SETS, "bbcsport"), _table2),
    "table3": Family(TABLE3_SETS, _table3),
    "tensors": Family((), _tensors),
    "similarities": Family((), _similarities),
    "heatmaps": Family(SHOWN, _heatmaps),
    **{name: Family((), partial(_series, name=name)) for name in POINTS},
    "neighbors": Family((), _neighbors),
}
"""In the order of the records."""
