"""Rules that choose the number of clusters, scored by kind of data: numbers.json; with ``--noise`` noise.json.

A rule sees one embedding of a set, for as many clusters as ``IPS2("auto")`` considers. It is scored by the labels of a
run that is told what it chose. Means are over kinds of data, of sets, of draws. The best variant of all but one kind is
scored on that one, in turn: what comes of it is expected of a kind that the rule has not seen.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import battery
import numpy as np
from known_sets import SHARE, labelled_data, measuring, number, script, share, table
from scipy.optimize import linprog

from ips2_dask.bench.graph import QUIET
from ips2_dask.bench.harness import Record
from ips2_dask.executors.base import SerialExecutor
from ips2_dask.kernels import choice as kernel
from ips2_dask.kernels.density import Layer
from ips2_dask.params import MAX_CLUSTERS, Params
from ips2_dask.pipeline.run import run
from ips2_dask.stages import choose, embedding
from ips2_dask.store.context import Context
from ips2_dask.typing import Float, Float64, Integer

COLUMNS = (
    *("data", "kind", "shape", "draw", "m", "dimension", "seed", "known", "variant", "rule", "n_clusters", "ari"),
    *("value", "bound", "warned"),
)

KINDS = {
    "images": ("yale", "digits", "usps", "mnist10k", "digits@400", "usps@400", "mnist10k@400"),
    "genes": ("allaml", "lung", "colon", "leukemia"),
    "documents": ("bbcsport", "bbcsport-l2"),
    "tables": (
        *("soybean", "scadi", "wine", "glass", "iris", "breast_cancer", "satimage", "pendigits", "htru2", "letter"),
        *("satimage@400", "pendigits@400", "letter@400"),
    ),
}
"""Sets by kind, ``@`` and a number for so many of their rows; what is not here is a shape of the battery."""

DRAWS, DRAWN_BELOW = 3, 500
"""Draws of a set: all of it and shares of it, of a larger set all of it alone."""


class Variant(NamedTuple):
    """A rule by the stability of cuts, as it differs from the default."""

    name: str
    says: str
    shares: tuple[float, ...] = (kernel.SHARE,)
    exponent: float = 1.0
    penalty: float = 0.0


SHARES = (1.0, 0.64, 0.41, 0.26)
"""Shares of the embedding's columns that trees are built on here."""


def _variants() -> list[Variant]:
    widths = [(1.0,), (0.41,), (0.26,), (1.0, 0.64), SHARES]
    names = {one: "+".join(f"{share:g}" for share in one) for one in widths}
    return [
        Variant("default", f"stability of the cut into c leaves, of a tree on {kernel.SHARE:g} of the columns"),
        *(
            Variant(f"columns {names[one]}", f"mean of trees on {names[one]} of the columns", shares=one)
            for one in widths
        ),
        *(Variant(f"span^{e:g}", f"persistence span^{e:g}", exponent=e) for e in (0.0, 0.3, 0.5, 2.0)),
        *(Variant(f"penalty {p:g}", f"stability (1 - 1/c)^{p:g}", penalty=p) for p in (0.5, 1.0)),
    ]


VARIED = _variants()
OTHERS = {"eigengap": "the largest relative gap of U's spectrum", "known": "the number of known classes, so no rule"}
VARIANTS = {**{one.name: one.says for one in VARIED}, **OTHERS}
"""Every variant that is measured, and its description."""


# ---- what the rules see


class Evidence:
    """What all rules choose from: of a run that is told ``most`` clusters, by its context."""

    def __init__(self, context: Context) -> None:
        self.most = context.params.n_clusters
        inner = choose._inner(context)
        embedding.embed(inner, SerialExecutor(), QUIET, most=1)
        n = min(inner.params.n_embedded, inner.m)
        self.columns = list(dict.fromkeys(max(2, round(share * n)) for share in SHARES))
        self.trees = [choose._cuts(inner, SerialExecutor(), QUIET, columns) for columns in self.columns]
        context.store.remove(inner.folders["label"])
        # the spectrum as the rule by the eigengap has it where no tree can be built
        self.values: Float64 = choose._by_gaps(context, SerialExecutor(), QUIET).values


def chosen(evidence: Evidence, variant: Variant) -> int:
    """The number of clusters that a variant chooses."""
    used = [SHARES.index(share) for share in variant.shares if SHARES.index(share) < len(evidence.trees)]
    found = kernel.by_density(_means(evidence, used, variant))
    return (found or kernel.by_eigengap(evidence.values, evidence.most)).n_clusters


def _means(evidence: Evidence, used: Sequence[int], variant: Variant) -> list[Layer]:
    """The cuts of some trees, the mean over the trees for each one's stability, 0 of a tree without such a cut."""
    cuts: dict[int, list[Layer]] = {}
    for i in used:
        for layer in evidence.trees[i]:
            cuts.setdefault(layer.n_clusters, []).append(_weighed(layer, variant))
    return [of[0]._replace(stability=sum(one.stability for one in of) / len(used)) for of in cuts.values()]


def _weighed(layer: Layer, variant: Variant) -> Layer:
    factor = layer.span**variant.exponent * (1.0 - 1.0 / layer.n_clusters) ** variant.penalty
    return layer._replace(stability=layer.persistence * factor)


# ---- known sets


class Known(NamedTuple):
    """A set or a draw of it, with one or more labelings, 0 for noise."""

    X: Float  # (m, f)
    references: list[Integer]  # (m,) each

    def score(self, labels: Integer) -> float:
        """The best adjusted Rand index over the labelings."""
        return max(battery.score(one, labels) for one in self.references)


def known(name: str, draw: int, seed: int) -> Known:
    """A set of `known_sets` or of the battery; of draw 0 all of it."""
    base, _, rows = name.partition("@")
    if "/" in name:
        data = Known(*battery.shapes(name))
    else:
        labelled = labelled_data(base)
        data = Known(labelled.X, [np.asarray(labelled.known) + 1])
    m = len(data.X)
    if not rows and not draw:
        return data
    drawn = np.random.default_rng([seed, draw]).choice(m, int(rows) if rows else round(SHARE * m), replace=False)
    drawn.sort()
    return Known(data.X[drawn], [one[drawn] for one in data.references])


def kind_of(name: str) -> str:
    """The kind of a set."""
    return next((kind for kind, names in KINDS.items() if name in names), "shapes")


def measure(names: Sequence[str], noise: bool = False, seed: int = 0) -> Iterator[Record]:
    """A record for each set, draw and variant; with ``noise`` one for each shape, dimension, number of points and seed.

    Records of noise hold what a run with ``max_clusters`` says of points without clusters and of blobs.
    """
    if noise:
        yield from of_noise(seed=seed)
    for name in () if noise else names:
        for draw in range(DRAWS):
            data = known(name, draw, seed)
            if draw and len(data.X) > DRAWN_BELOW:
                break
            with measuring():
                records = _of_set(name, draw, data, seed)
            yield from records


def _of_set(name: str, draw: int, data: Known, seed: int) -> list[Record]:
    m, classes = len(data.X), [len(np.unique(one[one > 0])) for one in data.references]
    most = max(2, min(MAX_CLUSTERS, m // 5))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        params, scored = Params(n_clusters=most, random_state=seed), dict[int, float]()

        def finished(c: int) -> Any:
            return run(data.X, dataclasses.replace(params, n_clusters=c), store=Path(folder) / "run")

        evidence = Evidence(finished(most)._context)

        def score(c: int) -> float:
            if c not in scored:
                scored[c] = data.score(finished(c).labels)
            return scored[c]

        numbers = {one.name: chosen(evidence, one) for one in VARIED}
        numbers["eigengap"] = kernel.by_eigengap(evidence.values, most).n_clusters
        numbers["known"] = max(classes, key=score)
        what: Record = {"data": name, "kind": kind_of(name), "draw": draw, "m": m, "known": numbers["known"]}
        return [{**what, "variant": v, "n_clusters": c, "ari": score(c)} for v, c in numbers.items()]


def _strength(choice: Mapping[str, Any], dimension: float | None) -> Record:
    """The rule of a choice, its evidence, and the bound that it is compared with."""
    best, rule = choice["candidates"][0] if choice["candidates"] else {}, choice["rule"]
    bound = kernel.noise_bound(rule, dimension)
    return {"rule": rule, "dimension": dimension, "value": best.get("persistence"), "bound": bound}


# ---- points without clusters

SHAPES = {"uniform": 0, "normal": 0, "blobs-3": 3, "blobs-8": 8, "blobs-20": 20}
"""Shapes of points by their number of clusters; 0 for those without any."""

DIMENSIONS = (1, 2, 3, 5, 8, 16, 64)
SIZES = {300: 3, 90: 3, 40: 3, 2_000: 2}
"""Numbers of points, with the seeds of each: noise differs the less from draw to draw, the more points there are."""

APART = 8.0
"""Distance of the nearest two centres of blobs, in standard deviations."""

LEAST_BLOB = 10
"""Points that a blob has at least, in the mean; smaller ones are left out."""


def points(shape: str, n: int, dimension: int, seed: int) -> Float64:
    """Uniform or normal points, or normal blobs of equal size whose nearest centres are `APART` apart, by `SHAPES`."""
    rng = np.random.default_rng([seed, n, dimension, list(SHAPES).index(shape)])
    if shape == "uniform":
        return rng.random((n, dimension))
    normal = rng.standard_normal((n, dimension))
    clusters = SHAPES[shape]
    if not clusters:
        return normal
    centers = rng.random((clusters, dimension))
    lengths = np.linalg.norm(centers[:, None] - centers[None], axis=2)
    centers *= APART / lengths[np.triu_indices(clusters, 1)].min()
    return normal + centers[np.arange(n) % clusters]


def of_noise(
    dimensions: Sequence[int] = DIMENSIONS, sizes: Mapping[int, int] | None = None, seed: int = 0
) -> Iterator[Record]:
    """A record for each shape, dimension, number of points (by ``sizes`` with so many seeds) and seed."""
    for n, seeds in (SIZES if sizes is None else sizes).items():
        for dimension in dimensions:
            for shape, clusters in SHAPES.items():
                for first in range(seed, seed + seeds) if n >= LEAST_BLOB * clusters else ():
                    with measuring():
                        yield _of_points(shape, n, dimension, first)


def _of_points(shape: str, n: int, dimension: int, seed: int) -> Record:
    choice = run(points(shape, n, dimension, seed), Params(n_clusters="auto", random_state=seed)).choice
    assert choice is not None
    points_: Record = {"shape": shape, "features": dimension, "m": n, "seed": seed, "known": SHAPES[shape]}
    found = {"n_clusters": choice["n_clusters"], **_strength(choice, choice["dimension"])}
    return {**points_, **found, "warned": any(text.startswith("weak evidence") for text in choice["warnings"])}


# ---- tables


def markdown(records: Sequence[Record]) -> str:
    """The records as tables: variants and sets, or, of points, their evidence beside the bound."""
    if any("shape" in r for r in records):
        return _noise_table([r for r in records if "shape" in r])
    return _variant_table(records) + "\n" + _set_table(records)


def by_kind(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    """The mean ARI by variant and kind: over its sets, of each over its draws."""
    sets: dict[tuple[str, str, str], list[float]] = {}
    for r in records:
        sets.setdefault((str(r["variant"]), str(r["kind"]), str(r["data"])), []).append(float(str(r["ari"])))
    kinds: dict[str, dict[str, list[float]]] = {}
    for (variant, kind, _), values in sets.items():
        kinds.setdefault(variant, {}).setdefault(kind, []).append(float(np.mean(values)))
    return {variant: {kind: float(np.mean(v)) for kind, v in of.items()} for variant, of in kinds.items()}


def unseen(means: Mapping[str, Mapping[str, float]]) -> dict[str, tuple[str, float]]:
    """For each kind the variant that is the best in the mean of the other kinds, and what it has on this one."""
    rules = [one.name for one in VARIED if one.name in means]
    result = {}
    for kind in means[rules[0]]:
        best = max(rules, key=lambda rule: float(np.mean([v for k, v in means[rule].items() if k != kind] or [0.0])))
        result[kind] = best, means[best][kind]
    return result


def _variant_table(records: Sequence[Record]) -> str:
    means = by_kind(records)
    kinds = list(next(iter(means.values())))
    rows = [
        [variant, VARIANTS[variant], number(float(np.mean(list(of.values())))), *(number(of[kind]) for kind in kinds)]
        for variant, of in means.items()
    ]
    left_out = unseen(means)
    sets = len({r["data"] for r in records})
    title = f"Mean ARI over kinds, and of each kind: {sets} sets, up to {DRAWS} draws of each."
    told = ", ".join(f"{number(value)} on {kind} (by {rule})" for kind, (rule, value) in left_out.items())
    mean = number(float(np.mean([value for _, value in left_out.values()])))
    said = f"Each kind by the variant that is the best on the others: {told}; in the mean **{mean}**."
    return f"{title}\n\n{table(['variant', 'what it is', 'mean', *kinds], rows)}\n{said}\n"


SHOWN = ("known", "default", "eigengap")


def _set_table(records: Sequence[Record]) -> str:
    """The number of clusters and the ARI by set, of whole sets and first draws."""
    whole = {(str(r["data"]), str(r["variant"])): r for r in records if r["draw"] == 0}
    rows = []
    for name in dict.fromkeys(name for name, _ in whole):
        of = [whole[name, variant] for variant in SHOWN]
        rows.append([name, f"{of[0]['m']:,}", *(f"{r['n_clusters']}: {number(float(str(r['ari'])))}" for r in of)])
    title = "Each set: number of clusters, and ARI of the labels of a run that is told it."
    return f"{title}\n\n{table(['data', 'samples', *SHOWN], rows)}"


TIGHT_AT = (4.0, 8.0, 16.0, 32.0)
"""Local dimensions at which a bound shall be small: real sets have from 3 to 34."""


def covering(values: Sequence[float], dimensions: Sequence[float]) -> tuple[float, float]:
    """The a and b, none below 0, of the a + b / d that is at least each value and smallest, on average, `TIGHT_AT`."""
    rows, wanted = (np.stack([np.ones(len(d)), 1.0 / np.asarray(d)], axis=1) for d in (dimensions, TIGHT_AT))
    a, b = linprog(wanted.sum(axis=0), A_ub=-rows, b_ub=-np.asarray(values)).x
    return float(a), float(b)


def _noise_table(records: Sequence[Record]) -> str:
    """Largest evidence of noise and least of blobs by rule and dimension, beside the bound, and who was warned of."""
    head = [
        *("rule", "columns", "local dimension", "noise at most", "bound", "noise with a warning", "blobs at least"),
        "blobs without a warning",
    ]
    lines = []
    known = [r for r in records if r["value"] is not None and r["dimension"] is not None]
    groups = sorted({(str(r["rule"]), int(str(r["features"]))) for r in known})
    for rule, features in groups:
        rows = [r for r in known if (r["rule"], r["features"]) == (rule, features)]
        bare, blobs = [r for r in rows if not r["known"]], [r for r in rows if r["known"]]
        if not bare:
            continue
        largest = max(bare, key=lambda r: float(str(r["value"])))
        dimensions = [float(str(r["dimension"])) for r in bare]
        bound = "–" if largest["bound"] is None else number(float(str(largest["bound"])))
        span, most = f"{min(dimensions):.1f} to {max(dimensions):.1f}", number(float(str(largest["value"])))
        least = number(min(float(str(r["value"])) for r in blobs)) if blobs else "–"
        warned = share([bool(r["warned"]) for r in bare]), least, share([not r["warned"] for r in blobs])
        lines.append([rule, str(features), span, most, bound, *warned])
    bare, blobs = [r for r in records if not r["known"]], [r for r in records if r["known"]]
    right = [r["n_clusters"] == r["known"] for r in blobs]
    title = "The largest evidence of points without clusters, and the least of blobs, by rule and number of columns."
    said = [
        f"{title}\n\n{table(head, lines)}",
        f"In all {share([bool(r['warned']) for r in bare])} sets of points without clusters have a warning, and "
        f"{share([not r['warned'] for r in blobs])} sets of blobs have none; {share(right)} have the right number.",
    ]
    for rule in dict.fromkeys(rule for rule, _ in groups):
        rows = [r for r in known if r["rule"] == rule and not r["known"]]
        if rows:
            a, b = covering([float(str(r["value"])) for r in rows], [float(str(r["dimension"])) for r in rows])
            said.append(f"By {rule} the smallest a + b / d that covers all noise has a = {a:.3f}, b = {b:.3f}.")
    return "\n".join(said) + "\n"


if __name__ == "__main__":
    sets = [name for names in KINDS.values() for name in names]
    script(measure, COLUMNS, [*sets, *battery.sets()], noise={"action": "store_true"})
