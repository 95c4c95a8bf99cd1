"""Rules that choose the number of clusters on one embedding: records of numbers.json; with ``--noise`` of noise.json.

Sets come with known classes, which score the labels and choose nothing but in the variant `known`. All rules see the
same embedding, for up to `MOST` clusters; the labels of a number are those of a run that is told it.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from known_sets import OPEN, SCORES, TABLES, LabelledData, labelled_data, measuring, number, script, share, table
from scipy.optimize import linprog

from ips2_dask.bench.graph import QUIET
from ips2_dask.bench.harness import Record
from ips2_dask.executors.base import Job, SerialExecutor
from ips2_dask.kernels import choice as kernel
from ips2_dask.kernels import density
from ips2_dask.kernels.labels import kmeans_best
from ips2_dask.kernels.rounding import RESTARTS
from ips2_dask.metrics import scores
from ips2_dask.params import Params
from ips2_dask.pipeline.run import run
from ips2_dask.runs import label_results
from ips2_dask.stages import choose, kmeans
from ips2_dask.stages.roundings import Rounding
from ips2_dask.stages.similarity_views import read_affinity
from ips2_dask.store.context import Context
from ips2_dask.typing import Float, Float64

COLUMNS = (
    *("data", "shape", "draw", "m", "dimension", "seed", "known", "variant", "rule", "n_clusters", "nmi", "acc", "ari"),
    *("value", "bound", "warned"),
)

MOST = 30
"""Largest number of clusters that is considered: letter has 26 classes."""

SHARES = (1.0, 0.64, 0.41, 0.26)
"""Shares of the embedding's columns that trees are built on, each .64 of the one before."""

EVERY_START = 1_000
"""Samples up to which the k-means of a modularity has all its starts; above that two, which change no third decimal."""

Trees = Mapping[float, Sequence[density.Level]]  # the cuts of each tree by its share of the columns
Modularities = Mapping[int, float]  # by the number of clusters


class Variant(NamedTuple):
    """A rule that chooses a number of clusters, as it differs from the default."""

    name: str
    says: str
    shares: tuple[float, ...] = kernel.WIDTHS
    close: float = kernel.CLOSE
    penalty: float = 1.0
    exponent: float | None = None
    few: int = kernel.FEW
    nearly: float = kernel.NEARLY


def _variants() -> list[Variant]:
    """Variants of the constants, one at a time."""
    shares = [(1.0,), (0.64,), (1.0, 0.64), (1.0, 0.64, 0.41), SHARES]
    names = {one: "+".join(f"{share:g}" for share in one) for one in shares}
    numbers = {
        "close": ("CLOSE = {:g}", (0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)),
        "penalty": ("persistence (1 - 1/c)^{:g}", (0.0, 0.5, 1.0, 1.5)),
        "exponent": ("the largest score times span^{:g}", (0.1, 0.2, 0.3)),
        "few": ("FEW = {:g}", (0, 60, 100, 160, 250)),
        "nearly": ("NEARLY = {:g}", (0.9, 0.95, 0.97, 0.98, 0.99, 1.0)),
    }
    called = {"exponent": "product"}
    return [
        *(Variant(f"widths {names[one]}", f"trees on {names[one]} of the columns", shares=one) for one in shares),
        *(
            Variant(f"{called.get(name, name)} {value:g}", says.format(value), **{name: value})
            for name, (says, values) in numbers.items()
            for value in values
        ),
    ]


VARIED = _variants()
OTHERS = {
    "eigengap": "the largest relative gap of U's spectrum",
    "modularity": "the greatest modularity of k-means on U, whatever the number of samples",
    "total persistence": "fast-plscan's own: the size whose leaves persist the longest in all, one tree",
    "known": "the number of known classes, so no rule",
}
VARIANTS = {
    "default": "kernels/choice, by density or, of few samples that show little, by modularity",
    **{one.name: one.says for one in VARIED},
    **OTHERS,
}
"""Every variant that is measured, and its description. `eigengap` was the rule of earlier versions."""


# ---- what the rules see


class Evidence:
    """What all rules choose from, of one embedding.

    ``context`` is of a run for ``most`` clusters in this process; it is read before another run follows in its folder.
    """

    def __init__(self, context: Context, most: int) -> None:
        self.most, self.m, self.dimension = most, context.m, choose._dimension(context)
        self._edges: list[tuple[Float, int]] = []
        columns = min(context.params.n_embedded, context.m)
        self.columns = {share: max(2, round(share * columns)) for share in SHARES}
        points = label_results.of_all(context, "embedding")
        job = Job("label", kmeans.drawn_rows, kmeans.DRAWN)
        SerialExecutor().map(job, context, range(context.n_partitions), QUIET)
        self.trees: Trees = {share: self._tree(context, share) for share in SHARES}
        self.total = self._by_total_persistence()
        self.modularities = modularities(read_affinity(context), points, most, context.params.random_state)
        # the spectrum as the rule by the eigengap has it where no tree can be built
        self.values: Float64 = choose._by_gaps(context, SerialExecutor(), QUIET).values

    def _tree(self, context: Context, share: float) -> list[density.Level]:
        part = Rounding("density", self.columns[share], 0).part
        arrays, facts = kmeans.one_rounding(context, part)
        edges, n = np.asarray(arrays["edges"]), int(facts["drawn"])
        self._edges.append((edges, n))
        return density.levels(edges, n, self.most) if len(edges) else []

    def _by_total_persistence(self) -> int:
        """The number of leaves that fast-plscan selects by itself, from 2 to the most."""
        from fast_plscan import PLSCAN  # noqa: PLC0415  its import takes a second

        edges, n = self._edges[0]
        if not len(edges):
            return 2
        tree = PLSCAN(min_samples=density.MIN_SAMPLES, num_threads=1, metric="precomputed").fit((edges, n))
        return min(max(2, len(tree.selected_clusters_)), self.most)


def modularities(U: Any, points: Float, most: int, seed: int) -> dict[int, float]:
    """The modularity of k-means on points (m, columns) by number of clusters, as `kernels.choice.by_modularity`."""
    starts = RESTARTS if len(points) <= EVERY_START else 2
    return {
        c: kernel.modularity(U, kmeans_best(points, c, seed, [0], starts).labels)
        for c in range(2, min(most, len(points) - 1) + 1)
    }


# ---- rules


def by_density(
    trees: Sequence[Sequence[density.Level]], columns: Sequence[int], variant: Variant
) -> kernel.Candidate | None:
    """The rule `kernels.choice.by_density` with other constants; None where no tree has a cut.

    With an exponent the c of the largest (1 - 1 / c)^penalty * persistence * span^exponent is chosen.
    """
    found: dict[int, list[density.Level]] = {}
    for levels, width in zip(trees, columns, strict=True):
        for level in levels:
            if level.n_clusters <= width + 1:
                found.setdefault(level.n_clusters, []).append(level)
    candidates = []
    for c, levels in sorted(found.items()):
        wide = sum(c <= width + 1 for width in columns)
        persistence = sum(level.persistence for level in levels) / wide
        span = sum(level.span for level in levels) / wide
        score = persistence * (1.0 - 1.0 / c) ** variant.penalty
        if variant.exponent is not None:
            score *= span**variant.exponent
        candidates.append(kernel.Candidate(c, score, persistence, span))
    if not candidates:
        return None
    greatest = max(candidate.score for candidate in candidates)
    if variant.exponent is not None:
        return next(one for one in candidates if one.score == greatest)
    narrowest = min(columns)
    close = [
        one
        for one in candidates
        if one.score == greatest or (one.score >= variant.close * greatest and one.n_clusters <= narrowest + 1)
    ]
    return max(close, key=lambda one: (one.span or 0.0, -one.n_clusters))


def by_modularity(found: Modularities, nearly: float) -> kernel.Candidate:
    """The rule `kernels.choice.by_modularity` with another share of the greatest of `modularities`."""
    if not found:
        return kernel.Candidate(2, 0.0)
    least = nearly * max(found.values())
    return next(kernel.Candidate(c, value) for c, value in sorted(found.items()) if value >= least)


def chosen(evidence: Evidence, variant: Variant) -> int:
    """The number of clusters that a variant chooses."""
    columns = [evidence.columns[share] for share in variant.shares]
    found = by_density([evidence.trees[share] for share in variant.shares], columns, variant)
    density_chose = None if found is None else kernel.Choice(found.n_clusters, "density", [found])
    if evidence.m < variant.few and not kernel.is_plain(density_chose, evidence.dimension):
        return by_modularity(evidence.modularities, variant.nearly).n_clusters
    return (found or kernel.by_eigengap(evidence.values, evidence.most)).n_clusters


def default_choice(evidence: Evidence) -> kernel.Choice:
    """What `kernels.choice` chooses."""
    columns = [evidence.columns[share] for share in kernel.WIDTHS]
    found = kernel.by_density([evidence.trees[share] for share in kernel.WIDTHS], columns)
    if evidence.m < kernel.FEW and not kernel.is_plain(found, evidence.dimension):
        best = by_modularity(evidence.modularities, kernel.NEARLY)
        return kernel.Choice(best.n_clusters, "modularity", [best])
    return found or kernel.by_eigengap(evidence.values, evidence.most)


# ---- known sets


def measure(names: Sequence[str], noise: bool = False, seed: int = 0) -> Iterator[Record]:
    """A record for each data set and variant; with ``noise`` one for each shape, dimension, number of points and seed.

    Records of noise hold what a run with ``max_clusters`` says of points without clusters and of blobs.
    """
    if noise:
        yield from of_noise(seed=seed)
    for name in () if noise else names:
        with measuring():
            records = _of_set(labelled_data(name), seed)
        yield from records


def _of_set(data: LabelledData, seed: int) -> list[Record]:
    most = min(MOST, len(data.X) - 1)
    if most < 2:
        return []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        params = Params(n_clusters=most, random_state=seed)

        def finished(c: int) -> Any:
            return run(data.X, dataclasses.replace(params, n_clusters=c), store=Path(name) / "run")

        evidence = Evidence(finished(most)._context, most)
        scored: dict[int, dict[str, float]] = {}

        def record(variant: str, c: int) -> Record:
            if c not in scored:
                measures = scores(data.known, finished(c).labels)
                scored[c] = {score: measures[score] for score in SCORES}
            shape = {"data": data.name, "draw": data.draw, "m": len(data.X), "known": data.classes}
            return {**shape, "variant": variant, "n_clusters": c, **scored[c]}

        choice = default_choice(evidence)
        others = {
            "eigengap": kernel.by_eigengap(evidence.values, most).n_clusters,
            "modularity": by_modularity(evidence.modularities, 1.0).n_clusters,
            "total persistence": evidence.total,
            "known": data.classes,
        }
        return [
            {**record("default", choice.n_clusters), **_strength(choice.as_dict(), evidence.dimension)},
            *(record(one.name, chosen(evidence, one)) for one in VARIED),
            *(record(name, c) for name, c in others.items()),
        ]


def _strength(choice: Mapping[str, Any], dimension: float | None) -> Record:
    """The rule of a choice, its evidence, and the bound that it is compared with."""
    best, rule = choice["candidates"][0] if choice["candidates"] else {}, choice["rule"]
    value = best.get("persistence" if rule == "density" else "score")
    return {"rule": rule, "dimension": dimension, "value": value, "bound": kernel.noise_bound(rule, dimension)}


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
    params = Params(max_clusters=min(MOST, n - 1), random_state=seed)
    choice = run(points(shape, n, dimension, seed), params).choice
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


def _means(records: Sequence[Record]) -> dict[tuple[str, str], Float]:
    """NMI, ACC and ARI by data set and variant, means over the draws."""
    rows: dict[tuple[str, str], list[list[float]]] = {}
    for r in records:
        rows.setdefault((str(r["data"]), str(r["variant"])), []).append([float(str(r[score])) for score in SCORES])
    return {key: np.mean(values, axis=0) for key, values in rows.items()}


def worst_loss(of: Mapping[tuple[str, str], Float], variant: str, rival: str) -> tuple[float, str]:
    """The largest ARI that a variant loses to another one on a set, and that set; below 0 where it loses on none."""
    names = [name for name, one in of if one == variant and (name, rival) in of]
    return max(((float(of[name, rival][-1] - of[name, variant][-1]), name) for name in names), default=(0.0, "–"))


def _variant_table(records: Sequence[Record]) -> str:
    of, rows = _means(records), []
    names = list(dict.fromkeys(name for name, _ in of))
    for variant, says in VARIANTS.items():
        have = [of[name, variant] for name in names if (name, variant) in of]
        if have:
            losses = (worst_loss(of, variant, rival) for rival in ("eigengap", "known"))
            means = " / ".join(number(value) for value in np.mean(have, axis=0))
            rows.append(
                [variant, says, means, *(f"{number(loss)} ({on})" if loss > 0 else "none" for loss, on in losses)]
            )
    title = f"Means over {len(names)} sets, and the largest loss of ARI on one of them."
    head = ["variant", "what it is", "mean NMI / ACC / ARI", "worst loss to eigengap", "worst loss to known"]
    return f"{title}\n\n{table(head, rows)}"


SHOWN = ("known", "default", "eigengap", "modularity", "total persistence")


def _set_table(records: Sequence[Record]) -> str:
    """The number of clusters and the ARI by set, of whole sets."""
    whole = {(str(r["data"]), str(r["variant"])): r for r in records if r["draw"] == 0}
    rows = []
    for name in dict.fromkeys(name for name, _ in whole):
        of = [whole[name, variant] for variant in SHOWN]
        rows.append([name, f"{of[0]['m']:,}", *(f"{r['n_clusters']}: {number(float(str(r['ari'])))}" for r in of)])
    title = "Each whole set: number of clusters, and ARI of the labels of a run that is told it."
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
    script(measure, COLUMNS, (*OPEN, *TABLES), noise={"action": "store_true"})
