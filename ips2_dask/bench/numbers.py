"""`ips2 bench numbers`: rules that choose the number of clusters on one embedding, and their evidence on noise.

Sets come with known classes, which score the labels and choose nothing but in the variant `known`. All rules see the
same embedding, for up to `MOST` clusters; the labels of a number are those of a run that is told it.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from ips2_dask.bench.document import Record
from ips2_dask.bench.labelled_data import SCORES, LabelledData, labelled_data, measuring
from ips2_dask.errors import BadInput
from ips2_dask.kernels import choice as kernel
from ips2_dask.kernels import density
from ips2_dask.kernels.labels import kmeans_best
from ips2_dask.kernels.rounding import RESTARTS
from ips2_dask.metrics import scores
from ips2_dask.params import Params
from ips2_dask.pipeline.run import run
from ips2_dask.stages import choose, embedding
from ips2_dask.stages.roundings import Rounding
from ips2_dask.stages.similarity_views import read_affinity
from ips2_dask.store.context import Context

COLUMNS = (
    "data",
    "shape",
    "draw",
    "m",
    "dimension",
    "seed",
    "known",
    "variant",
    "rule",
    "n_clusters",
    "nmi",
    "acc",
    "ari",
    "value",
    "bound",
    "warned",
    "seconds",
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
    density: bool = True  # whether it is a rule on trees, or one on modularities; neither where it chooses alone
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
    return [
        *(Variant(f"widths {names[one]}", f"trees on {names[one]} of the columns", shares=one) for one in shares),
        *(
            Variant(f"close {value:g}", f"CLOSE = {value:g}", close=value)
            for value in (0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
        ),
        *(
            Variant(f"penalty {value:g}", f"persistence (1 - 1/c)^{value:g}", penalty=value)
            for value in (0.0, 0.5, 1.0, 1.5)
        ),
        *(
            Variant(f"product {value:g}", f"the largest score times span^{value:g}", exponent=value)
            for value in (0.1, 0.2, 0.3)
        ),
        *(Variant(f"few {value}", f"FEW = {value}", few=value) for value in (0, 60, 100, 160, 250)),
        *(
            Variant(f"nearly {value:g}", f"NEARLY = {value:g}", nearly=value)
            for value in (0.9, 0.95, 0.97, 0.98, 0.99, 1.0)
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
    """What all rules choose from, of one embedding, with the seconds that each part took.

    Parameters
    ----------
    context : Context
        Of a run for ``most`` clusters in this process; it is read before another run follows in its directory.
    most : int
    """

    def __init__(self, context: Context, most: int) -> None:
        self.most, self.m, self.dimension = most, context.m, choose._dimension(context)
        self.seconds: dict[str | float, float] = {}
        self._edges: list[tuple[NDArray[np.floating], int]] = []
        columns = min(context.params.n_embedded, context.m)
        self.columns = {share: max(2, round(share * columns)) for share in SHARES}
        points = np.asarray(context.read("label", "embedding", "embedding"))
        self.trees: Trees = {share: self._timed(share, self._tree, context, share) for share in SHARES}
        self.total = self._timed("total persistence", self._by_total_persistence)
        U, seed = read_affinity(context), context.params.random_state
        self.modularities = self._timed("modularity", modularities, U, points, most, seed)
        self.values: NDArray[np.float64] = self._timed("eigengap", self._eigenvalues, context)

    def _timed(self, name: str | float, function: Callable[..., Any], *arguments: object) -> Any:
        begun = time.perf_counter()
        result = function(*arguments)
        self.seconds[name] = time.perf_counter() - begun
        return result

    def _tree(self, context: Context, share: float) -> list[density.Level]:
        part = Rounding("density", self.columns[share], 0).part
        arrays, facts = embedding.one_rounding(context, part)
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

    def _eigenvalues(self, context: Context) -> NDArray[np.float64]:
        """The spectrum as the rule by the eigengap has it where no tree can be built."""
        return choose._gaps_in_core(context).values


def modularities(U: Any, points: NDArray[np.floating], most: int, seed: int) -> dict[int, float]:
    """The modularity of k-means on points for each number of clusters, as of `kernels.choice.by_modularity`.

    Parameters
    ----------
    U : (m, m)
    points : (m, columns)
    most : int
    seed : int
    """
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

    Parameters
    ----------
    trees : sequence of sequences of Level
    columns : sequence of int
    variant : Variant
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
    """The rule `kernels.choice.by_modularity` with another share of the greatest modularity.

    Parameters
    ----------
    found : dict
        Of `modularities`.
    nearly : float
    """
    if not found:
        return kernel.Candidate(2, 0.0)
    least = nearly * max(found.values())
    return next(kernel.Candidate(c, value) for c, value in sorted(found.items()) if value >= least)


def chosen(evidence: Evidence, variant: Variant) -> tuple[int, float]:
    """The number of clusters that a variant chooses, and the seconds that it takes beside the embedding."""
    columns = [evidence.columns[share] for share in variant.shares]
    found = by_density([evidence.trees[share] for share in variant.shares], columns, variant)
    seconds = sum(evidence.seconds[share] for share in variant.shares)
    density_chose = None if found is None else kernel.Choice(found.n_clusters, "density", [found])
    if evidence.m < variant.few and not kernel.is_plain(density_chose, evidence.dimension):
        seconds += evidence.seconds["modularity"]
        return by_modularity(evidence.modularities, variant.nearly).n_clusters, seconds
    if found is None:
        return kernel.by_eigengap(evidence.values, evidence.most).n_clusters, seconds + evidence.seconds["eigengap"]
    return found.n_clusters, seconds


def default_choice(evidence: Evidence) -> tuple[kernel.Choice, float]:
    """What `kernels.choice` chooses, and the seconds that it takes beside the embedding."""
    columns = [evidence.columns[share] for share in kernel.WIDTHS]
    found = kernel.by_density([evidence.trees[share] for share in kernel.WIDTHS], columns)
    seconds = sum(evidence.seconds[share] for share in kernel.WIDTHS)
    if evidence.m < kernel.FEW and not kernel.is_plain(found, evidence.dimension):
        best = by_modularity(evidence.modularities, kernel.NEARLY)
        return kernel.Choice(best.n_clusters, "modularity", [best]), seconds + evidence.seconds["modularity"]
    if found is None:
        found, seconds = kernel.by_eigengap(evidence.values, evidence.most), seconds + evidence.seconds["eigengap"]
    return found, seconds


# ---- known sets


def measure(
    names: Sequence[str], draws: int, folder: Path, seed: int = 0, done: Sequence[Record] = ()
) -> Iterator[Record]:
    """A record for each data set, draw and variant.

    ``seconds`` are those of what a rule needs beside the embedding, so a sum of trees, all k-means, or a solve.

    Parameters
    ----------
    names : sequence of str
        As of `labelled_data`.
    draws : int
        Draws of 80 % of each set, besides the whole set, which is draw 0.
    folder : Path
        For the directories of runs.
    seed : int
    done : sequence of Record
        Of an earlier call: sets and draws that are among them are left out.
    """
    there = {(r["data"], r["draw"]) for r in done}
    for name in names:
        for draw in range(draws + 1):
            if (name, draw) not in there:
                with measuring():
                    records = _of_set(labelled_data(name, draw, seed), folder, seed)
                yield from records


def _of_set(data: LabelledData, folder: Path, seed: int) -> list[Record]:
    most = min(MOST, len(data.X) - 1)
    if most < 2:
        return []
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as name:
        params = Params(n_clusters=most, random_state=seed)

        def finished(c: int) -> Any:
            return run(data.X, dataclasses.replace(params, n_clusters=c), store=Path(name) / "run")

        evidence = Evidence(finished(most)._context, most)
        scored: dict[int, dict[str, float]] = {}

        def record(variant: str, c: int, seconds: float) -> Record:
            if c not in scored:
                measures = scores(data.known, finished(c).labels)
                scored[c] = {score: measures[score] for score in SCORES}
            return {
                "data": data.name,
                "draw": data.draw,
                "m": len(data.X),
                "known": data.classes,
                "variant": variant,
                "n_clusters": c,
                **scored[c],
                "seconds": seconds,
            }

        choice, seconds = default_choice(evidence)
        return [
            {**record("default", choice.n_clusters, seconds), **_strength(choice.as_dict(), evidence.dimension)},
            *(record(one.name, *chosen(evidence, one)) for one in VARIED),
            *(record(name, c, seconds) for name, (c, seconds) in _others(evidence, data.classes).items()),
        ]


def _others(evidence: Evidence, known: int) -> dict[str, tuple[int, float]]:
    """The numbers of rules that are none of `kernels.choice`'s, with their seconds."""
    gap = kernel.by_eigengap(evidence.values, evidence.most).n_clusters
    tree = evidence.seconds[SHARES[0]] + evidence.seconds["total persistence"]
    return {
        "eigengap": (gap, evidence.seconds["eigengap"]),
        "modularity": (by_modularity(evidence.modularities, 1.0).n_clusters, evidence.seconds["modularity"]),
        "total persistence": (evidence.total, tree),
        "known": (known, 0.0),
    }


def _strength(choice: Mapping[str, Any], dimension: float | None) -> Record:
    """The rule of a choice, its evidence, and the bound that it is compared with."""
    best = choice["candidates"][0] if choice["candidates"] else {}
    rule = choice["rule"]
    return {
        "rule": rule,
        "dimension": dimension,
        "value": best.get("persistence" if rule == "density" else "score"),
        "bound": kernel.noise_bound(rule, dimension),
    }


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


def points(shape: str, n: int, dimension: int, seed: int) -> NDArray[np.float64]:
    """Uniform or normal points, or normal blobs of equal size whose nearest centres are `APART` apart.

    Parameters
    ----------
    shape : str
        Of ``SHAPES``.
    n, dimension, seed : int
    """
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


def noise(
    dimensions: Sequence[int] = DIMENSIONS,
    sizes: Mapping[int, int] | None = None,
    seed: int = 0,
    done: Sequence[Record] = (),
) -> Iterator[Record]:
    """A record for each shape, dimension, number of points and seed: what a run with ``max_clusters`` says of them.

    Parameters
    ----------
    dimensions : sequence of int
    sizes : dict, optional
        Numbers of seeds by numbers of points; by default ``SIZES``.
    seed : int
        The first seed.
    done : sequence of Record
        Of an earlier call, which are left out.
    """
    there = {(r["shape"], r["features"], r["m"], r["seed"]) for r in done}
    for n, seeds in (SIZES if sizes is None else sizes).items():
        for dimension in dimensions:
            for shape, clusters in SHAPES.items():
                for number in range(seed, seed + seeds):
                    if n >= LEAST_BLOB * clusters and (shape, dimension, n, number) not in there:
                        with measuring():
                            yield _of_points(shape, n, dimension, number)


def _of_points(shape: str, n: int, dimension: int, seed: int) -> Record:
    params = Params(max_clusters=min(MOST, n - 1), random_state=seed)
    choice = run(points(shape, n, dimension, seed), params).choice
    assert choice is not None
    return {
        "shape": shape,
        "features": dimension,
        "m": n,
        "seed": seed,
        "known": SHAPES[shape],
        "n_clusters": choice["n_clusters"],
        **_strength(choice, choice["dimension"]),
        "warned": any(text.startswith("weak evidence") for text in choice["warnings"]),
    }


# ---- records


def read(path: Path) -> list[Record]:
    """The records of a file that this benchmark has written.

    Raises
    ------
    BadInput
        Where there is none.
    """
    try:
        records: list[Record] = json.loads(path.read_text(encoding="utf-8"))["results"]
        if all({"n_clusters", "known"} <= record.keys() for record in records):
            return records
        problem = "records of another benchmark"
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        problem = f"no record ({type(error).__name__})"
    raise BadInput(
        str(path),
        problem,
        "a file of `ips2 bench numbers --json FILE`",
        "it would have no records to read",
        "give such a file",
    )


def complete(records: Sequence[Record]) -> list[Record]:
    """The records of sets and draws that have one of each variant, and all of points."""
    have: dict[tuple[object, object], set[object]] = {}
    for r in records:
        have.setdefault((r.get("data"), r.get("draw")), set()).add(r.get("variant"))
    return [r for r in records if "shape" in r or have[r["data"], r["draw"]] == set(VARIANTS)]


# ---- tables


def markdown(records: Sequence[Record]) -> str:
    """The records as tables: variants and sets, or, of points, their evidence beside the bound."""
    if any("shape" in r for r in records):
        return _noise_table([r for r in records if "shape" in r])
    return _variant_table(records) + "\n" + _set_table(records)


def _means(records: Sequence[Record]) -> dict[tuple[str, str], NDArray[np.floating]]:
    """NMI, ACC and ARI by data set and variant, means over the draws."""
    rows: dict[tuple[str, str], list[list[float]]] = {}
    for r in records:
        rows.setdefault((str(r["data"]), str(r["variant"])), []).append([float(str(r[score])) for score in SCORES])
    return {key: np.mean(values, axis=0) for key, values in rows.items()}


def worst_loss(of: Mapping[tuple[str, str], NDArray[np.floating]], variant: str, rival: str) -> tuple[float, str]:
    """The largest ARI that a variant loses to another one on a set, and that set; below 0 where it loses on none."""
    names = [name for name, one in of if one == variant and (name, rival) in of]
    return max(((float(of[name, rival][-1] - of[name, variant][-1]), name) for name in names), default=(0.0, "–"))


def _variant_table(records: Sequence[Record]) -> str:
    of = _means(records)
    names = list(dict.fromkeys(name for name, _ in of))
    lines = [
        f"Means over {len(names)} sets, and the largest loss of ARI on one of them.",
        "",
        "| variant | what it is | mean NMI / ACC / ARI | worst loss to eigengap | worst loss to known |",
        "|---|---|---|---|---|",
    ]
    for variant, says in VARIANTS.items():
        have = [of[name, variant] for name in names if (name, variant) in of]
        if have:
            losses = (worst_loss(of, variant, rival) for rival in ("eigengap", "known"))
            cells = [" / ".join(_number(value) for value in np.mean(have, axis=0))]
            cells += [f"{_number(size)} ({name})" if size > 0 else "none" for size, name in losses]
            lines.append(f"| {variant} | {says} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


SHOWN = ("known", "default", "eigengap", "modularity", "total persistence")


def _set_table(records: Sequence[Record]) -> str:
    """The number of clusters and the ARI by set, of whole sets."""
    whole = {(str(r["data"]), str(r["variant"])): r for r in records if r["draw"] == 0}
    lines = [
        "Each whole set: number of clusters, and ARI of the labels of a run that is told it.",
        "",
        "| data | samples | " + " | ".join(SHOWN) + " |",
        "|---|---|" + "---|" * len(SHOWN),
    ]
    for name in dict.fromkeys(name for name, _ in whole):
        rows = [whole[name, variant] for variant in SHOWN]
        cells = [f"{r['n_clusters']}: {_number(float(str(r['ari'])))}" for r in rows]
        lines.append(f"| {name} | {rows[0]['m']:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    """Three decimals without the nought before them."""
    return f"{value:.3f}".replace("0.", ".", 1)


TIGHT_AT = (4.0, 8.0, 16.0, 32.0)
"""Local dimensions at which a bound shall be small: real sets have from 3 to 34."""


def covering(values: Sequence[float], dimensions: Sequence[float]) -> tuple[float, float]:
    """The a and b, none below 0, of the a + b / d that is at least each value and the smallest, on average, `TIGHT_AT`.

    Parameters
    ----------
    values, dimensions : sequence of float
    """
    rows, wanted = (np.stack([np.ones(len(d)), 1.0 / np.asarray(d)], axis=1) for d in (dimensions, TIGHT_AT))
    a, b = linprog(wanted.sum(axis=0), A_ub=-rows, b_ub=-np.asarray(values)).x
    return float(a), float(b)


def _noise_table(records: Sequence[Record]) -> str:
    """Largest evidence of noise and least of blobs by rule and dimension, beside the bound, and who was warned of."""
    lines = [
        "The largest evidence of points without clusters, and the least of blobs, by rule and number of columns.",
        "",
        "| rule | columns | local dimension | noise at most | bound | noise with a warning | blobs at least "
        "| blobs without a warning |",
        "|---|---|---|---|---|---|---|---|",
    ]
    known = [r for r in records if r["value"] is not None and r["dimension"] is not None]
    groups = sorted({(str(r["rule"]), int(str(r["features"]))) for r in known})
    for rule, features in groups:
        rows = [r for r in known if (r["rule"], r["features"]) == (rule, features)]
        bare, blobs = [r for r in rows if not r["known"]], [r for r in rows if r["known"]]
        if not bare:
            continue
        largest = max(bare, key=lambda r: float(str(r["value"])))
        dimensions = [float(str(r["dimension"])) for r in bare]
        bound = "–" if largest["bound"] is None else _number(float(str(largest["bound"])))
        cells = [
            rule,
            str(features),
            f"{min(dimensions):.1f} to {max(dimensions):.1f}",
            _number(float(str(largest["value"]))),
            bound,
            _share([bool(r["warned"]) for r in bare]),
            _number(min(float(str(r["value"])) for r in blobs)) if blobs else "–",
            _share([not r["warned"] for r in blobs]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    bare, blobs = [r for r in records if not r["known"]], [r for r in records if r["known"]]
    right = [r["n_clusters"] == r["known"] for r in blobs]
    lines += [
        "",
        f"In all {_share([bool(r['warned']) for r in bare])} sets of points without clusters have a warning, and "
        f"{_share([not r['warned'] for r in blobs])} sets of blobs have none; {_share(right)} have the right number.",
    ]
    for rule in dict.fromkeys(rule for rule, _ in groups):
        rows = [r for r in known if r["rule"] == rule and not r["known"]]
        if rows:
            a, b = covering([float(str(r["value"])) for r in rows], [float(str(r["dimension"])) for r in rows])
            lines.append(f"By {rule} the smallest a + b / d that covers all noise has a = {a:.3f}, b = {b:.3f}.")
    return "\n".join(lines) + "\n"


def _share(which: Collection[bool]) -> str:
    return f"{sum(which)} of {len(which)}" if which else "–"
