"""Metrics and scales on known data, and whether criteria without labels tell the better ones: records of metrics.json.

A record is of a point of a sweep. Rules rank points from their records.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from known_sets import SCORES, measuring, number, script, table
from scipy.sparse import triu
from scipy.stats import rankdata, spearmanr
from sklearn.metrics import adjusted_rand_score, silhouette_score

from ips2_dask.bench.harness import Record
from ips2_dask.datasets import load
from ips2_dask.kernels.validity import modularity
from ips2_dask.metrics import scores
from ips2_dask.params import Params
from ips2_dask.sweeps import sweep
from ips2_dask.typing import Float, Integer

KINDS = {
    "documents": ("bbcsport", "bbcsport-log"),
    "faces": ("yale",),
    "genes": ("allaml", "leukemia", "colon", "lung"),
    "images": ("digits", "usps", "mnist10k"),
    "tables": ("wine", "breast_cancer", "glass", "soybean", "scadi", "iris", "pendigits", "satimage"),
}
"""As they are published; ``-log`` has log(1 + count)."""

DRAWN = 1_000
"""Samples of a set that has more; they are drawn."""

METRICS, SCALES = ("euclidean", "cosine", "correlation"), ("none", "zscore")
CLUSTERS = (2, 3, 4, 5, 6, 8, 10, 12, 15)

CRITERIA = ("stability", "silhouette", "conductance", "certainty", "modularity of S", "modularity of U", "agreement")
"""Agreement is with the other points of this c."""

COLUMNS = ("data", "metric", "scale", "n_clusters", "told", *SCORES, *CRITERIA)


Rule = Callable[[Sequence[Any]], Float]
"""Ranks the records of points: more is better."""


def raw(name: str, seed: int = 0) -> tuple[Float, Integer]:
    """A set, or a draw of it, with the classes, unscaled."""
    dataset = load(name.removesuffix("-log"))
    X, known = np.asarray(dataset.X, np.float64), np.asarray(dataset.labels)
    if len(X) > DRAWN:
        rows = np.sort(np.random.default_rng(seed).choice(len(X), DRAWN, replace=False))
        X, known = X[rows], known[rows]
    return np.log1p(X) if name.endswith("-log") else X, np.unique(known, return_inverse=True)[1]


def measure(names: Sequence[str], seed: int = 0) -> Iterator[Record]:
    """A record for each metric, scale and number of clusters, of which one is that of the classes: ``told``."""
    for name in names:
        X, known = raw(name, seed)
        classes = len(np.unique(known))
        (kind,) = (kind for kind, of in KINDS.items() if name in of)
        shape: Record = {"data": name, "kind": kind, "m": len(X), "f": X.shape[1], "classes": classes}
        grid = {"n_clusters": sorted({*CLUSTERS, classes}), "metric": METRICS, "scale": SCALES}
        with measuring(), tempfile.TemporaryDirectory() as folder:
            found = sweep(X, grid, Params(random_state=seed), store=f"{folder}/run", files=False)
            runs = [found.run(point.rank) for point in found.points]
            for point, one in zip(found.points, runs, strict=True):
                c, scored = one.params.n_clusters, scores(known, one.labels)
                others = [other for other in runs if other is not one and other.params.n_clusters == c]
                yield {
                    **{**shape, **point.values, "told": c == classes},
                    **{score: scored[score] for score in SCORES},
                    "stability": point.criteria["stability"],
                    "silhouette": float(silhouette_score(one.embedding, one.labels)),
                    "conductance": conductance(one.similarity("pairwise"), one.labels),
                    "certainty": float(np.mean(one.certainty)),
                    "modularity of S": point.criteria["modularity"],
                    "modularity of U": _modularity(one.similarity("fused"), one.labels),
                    "agreement": float(np.mean([adjusted_rand_score(one.labels, other.labels) for other in others])),
                }


def _modularity(U: Any, labels: Integer) -> float:
    i, j = np.nonzero(np.triu(U, 1)) if isinstance(U, np.ndarray) else triu(U, 1).nonzero()
    weights = np.asarray(U[i, j], np.float64).ravel()
    return modularity([(i, j, weights)], np.asarray(labels, np.int32), int(labels.max()) + 1)


def conductance(S: Any, labels: Integer) -> float:
    """Mean over the clusters of the weight of edges that leave it, over the smaller volume, its own or the rest's."""
    of = np.eye(int(labels.max()) + 1)[labels]  # (m, c)
    table = of.T @ (S @ of) - of.T @ (S.diagonal()[:, None] * of)
    volume = table.sum(axis=1)
    cut, smaller = volume - np.diag(table), np.minimum(volume, volume.sum() - volume)
    return float(np.divide(cut, smaller, out=np.ones(len(cut)), where=smaller > 0).mean())


def _ranks(*names: str) -> Rule:
    """The mean of the ranks by some criteria, of which less conductance is better and more of the others."""
    signs = {name: -1 if name == "conductance" else 1 for name in names}
    return lambda points: np.mean([rankdata([signs[n] * round(p[n], 3) for p in points]) for n in names], axis=0)


def _product(*names: str) -> Rule:
    return lambda points: np.prod([[p[name] for p in points] for name in names], axis=0)


RULES: dict[str, Rule] = {
    "stability times modularity of S": _product("stability", "modularity of S"),
    "stability times modularity of U": _product("stability", "modularity of U"),
    "stability times modularity of S times agreement": _product("stability", "modularity of S", "agreement"),
    "mean rank by stability and modularity of S": _ranks("stability", "modularity of S"),
    "mean rank by stability and certainty": _ranks("stability", "certainty"),
    "mean rank by stability, silhouette and conductance": _ranks("stability", "silhouette", "conductance"),
    **{name: _ranks(name) for name in CRITERIA},
}
"""The first is that of sweeps."""


def first(points: Sequence[Record], rule: Rule) -> Record:
    """The point that a rule ranks first; of equals the one with the most clusters."""
    values = rule(points)
    return points[max(range(len(points)), key=lambda at: (values[at], points[at]["n_clusters"], -at))]


# ---- tables


def _by_set(records: Sequence[Record]) -> dict[str, list[Record]]:
    return {name: [r for r in records if r["data"] == name] for name in dict.fromkeys(r["data"] for r in records)}


def told(records: Sequence[Record], rule: Rule) -> str:
    """ARI of each set by metric and scale, told c, the best one bold, and what a rule ranks first."""
    head = [
        "data, samples x features, classes",
        *(f"{m}, {s}" for m, s in itertools.product(METRICS, SCALES)),
        "ranked first",
    ]
    rows, all_values = [], []
    for kind in KINDS:
        for name, of in _by_set([r for r in records if r["told"] and r["kind"] == kind]).items():
            values = {(r["metric"], r["scale"]): r["ari"] for r in of}
            values = {key: values[key] for key in itertools.product(METRICS, SCALES)}
            best, taken = max(values.values()), first(of, rule)
            cells = [f"**{number(value)}**" if value == best else number(value) for value in values.values()]
            shape = f"{of[0]['m']:,} x {of[0]['f']:,}, {of[0]['classes']}"
            rows.append(
                [f"{kind}: {name}, {shape}", *cells, f"{taken['metric']}, {taken['scale']}: {number(taken['ari'])}"]
            )
            all_values.append([*values.values(), taken["ari"]])
    means = np.mean(all_values, axis=0)
    return table(head, [*rows, ["mean", *map(number, means)]])


def rules(records: Sequence[Record]) -> str:
    """What rules lose of ARI to the best point of each set, and their rank correlation with ARI.

    Told c, they have metrics and scales to rank, else also numbers of clusters; in one graph these alone.
    """
    sets = _by_set(records)
    cases = {
        "told c": [[r for r in of if r["told"]] for of in sets.values()],
        "not told": list(sets.values()),
        "in one graph": [
            [r for r in of if (r["metric"], r["scale"]) == graph]
            for of in sets.values()
            for graph in itertools.product(METRICS, SCALES)
        ],
    }
    rows = []
    for name, rule in RULES.items():
        cells = []
        for groups in cases.values():
            lost = [max(p["ari"] for p in points) - first(points, rule)["ari"] for points in groups]
            rho = [spearmanr(rule(points), [p["ari"] for p in points])[0] for points in groups]
            cells += [number(float(np.mean(lost))), f"{np.nanmean(rho):.2f}"]
        rows.append([name, *cells])
    chance = [
        np.mean([max(p["ari"] for p in of) - np.mean([p["ari"] for p in of]) for of in c]) for c in cases.values()
    ]
    cells = [cell for value in chance for cell in (number(float(value)), "0")]
    head = ["ranked by", *(f"{case}: {what}" for case in cases for what in ("loss", "correlation"))]
    return table(head, [*rows, ["nothing: the mean over all points", *cells]])


def markdown(records: Sequence[Record]) -> str:
    """Both tables."""
    return f"{told(records, next(iter(RULES.values())))}\n{rules(records)}"


if __name__ == "__main__":
    script(measure, COLUMNS, [name for names in KINDS.values() for name in names])
