"""Ways from one embedding to labels, rules that choose among them, and peers told c: records of roundings.json.

All sets come with known classes, which score the labels and choose nothing, but for what is said to be an oracle. A
record is of a whole run, a candidate of that run, or a peer; what a rule takes is found from the candidates' records.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from known_sets import OPEN, SCORES, SHARE, TABLES, LabelledData, labelled_data, measuring, number, script, table
from sklearn.cluster import KMeans, SpectralClustering
from sklearn.neighbors import KNeighborsClassifier

from ips2_dask.bench.harness import Record
from ips2_dask.kernels import density, rounding
from ips2_dask.kernels.labels import leading_columns
from ips2_dask.metrics import scores
from ips2_dask.params import Params
from ips2_dask.pipeline.run import run
from ips2_dask.runs import label_results, layers
from ips2_dask.runs.run import Run
from ips2_dask.stages import roundings
from ips2_dask.stages.similarity_views import read_affinity
from ips2_dask.typing import Float, Integer

COLUMNS = ("data", "draw", "variant", "outcome", *SCORES, "rounding", "columns", "cut", "left_out", "seconds")

LARGE = 1_000
"""Samples of a set that has a group of its own in the tables, at least."""

TOL = 1e-3
"""A tight tolerance: with it a solve stops at the tolerance and for no other reason."""


def candidates(finished: Run) -> list[tuple[rounding.Candidate, Integer]]:
    """All ways to round the embedding of a run, with their normalised cuts and labels, from its stored parts.

    A density that has no cut with c clusters is not among them. The run itself spreads only the density that left the
    fewest samples out.
    """
    context = finished._context
    points, U, order = label_results.of_all(context, "embedding"), read_affinity(context), context.order()
    found = []
    for task in roundings.roundings(context.params, context.m, density.available()):
        part = f"{roundings.PREFIX}{task.part}"
        if task.way == "kmeans":
            centers = np.asarray(context.read("label", part, "centroids"))
            nearest, _ = rounding.nearest_centers(leading_columns(points, task.columns), centers)
            labels, left_out = context.by_row(nearest), 0.0
        else:
            left_out = context.finished("label", part)["facts"]["left_out"]
            if left_out is None:
                continue
            drawn, leaves = (np.asarray(context.read("label", part, name)) for name in ("drawn", "labels"))
            labels = layers._spread(context, rounding.walk_matrix(U), drawn, leaves)
        cut = rounding.cut_of(U, labels if order is None else labels[order], context.params.n_clusters)
        clusters = len(np.unique(labels[labels >= 0]))
        found.append((rounding.Candidate(task.way, task.columns, clusters, cut, left_out), labels))
    return found


def known_cut(finished: Run, known: Integer) -> float:
    """The normalised cut of the known classes (m,) on the fused similarity of a run; of equal rows the first counts."""
    context = finished._context
    order = context.order()
    classes, samples = np.unique(known if order is None else known[order], return_inverse=True)  # a draw may miss one
    return rounding.cut_of(read_affinity(context), samples.astype(np.int32), len(classes))


def _facts(finished: Run, one: rounding.Candidate | None = None) -> Record:
    """Fields of a candidate, by default of the one that the run chose, and of both of the run's solves."""
    facts = {stage["name"]: stage["facts"] for stage in finished.manifest["stages"]}
    (winner,) = (each for each in facts["label"]["roundings"] if each["chosen"])
    fields = winner if one is None else one._asdict()
    chosen = {name: fields[name] for name in ("rounding", "columns", "cut", "left_out", "clusters")}
    solves = {"products": facts["eigen"]["products"], "embedding_products": facts["label"]["embedding_products"]}
    return {**chosen, **solves}


WAYS = {
    "kmeans c+8": ("kmeans", 0),
    "kmeans c": ("kmeans", -1),
    "density c+8": ("density", 0),
    "density c": ("density", -1),
}
"""Way and place of the number of columns, the most first."""


def _ours(data: LabelledData, seed: int) -> Iterator[Record]:
    begun = time.perf_counter()
    finished = run(data.X, Params(n_clusters=data.classes, random_state=seed))
    cut = {"seconds": time.perf_counter() - begun, "known_cut": known_cut(finished, data.known)}
    yield {**_record(data, "default", finished.labels), **_facts(finished), **cut}
    by_way = {(one.rounding, one.columns): (one, labels) for one, labels in candidates(finished)}
    widths = sorted({columns for _, columns in by_way}, reverse=True)
    for variant, (way, place) in WAYS.items():
        fallback = (way, widths[place]) not in by_way  # as a run that asks for a density falls back
        one, labels = by_way["kmeans" if fallback else way, widths[place]]
        outcome = {"outcome": "k-means, for no cut has c clusters"} if fallback else {}
        yield {**_record(data, variant, labels), **_facts(finished, one), **outcome}
    begun = time.perf_counter()
    tight = run(data.X, Params(n_clusters=data.classes, tol=TOL, random_state=seed))
    seconds = {"seconds": time.perf_counter() - begun}
    yield {**_record(data, "tol-1e-3", tight.labels), **_facts(tight), **seconds}


def _record(data: LabelledData, variant: str, labels: Integer) -> Record:
    measures = scores(data.known, labels)
    (m, f), how = data.X.shape, {"variant": variant, "call": VARIANTS[variant], "outcome": "finished"}
    shape: Record = {"data": data.name, "draw": data.draw, "m": m, "f": f, "classes": data.classes, "scale": data.scale}
    return {**shape, **how, **{name: measures[name] for name in SCORES}}


# ---- peers


def _kmeans(X: Float, c: int, seed: int) -> Integer:
    return KMeans(c, n_init=10, random_state=seed).fit(X).labels_


def _spectral(X: Float, c: int, seed: int) -> Integer:
    k = min(10, len(X) - 1)
    return SpectralClustering(c, affinity="nearest_neighbors", n_neighbors=k, random_state=seed).fit(X).labels_


def _evoc(X: Float, c: int, seed: int) -> Integer:
    model = importlib.import_module("evoc").EVoC(approx_n_clusters=c, random_state=seed)
    return without_noise(X, model.fit(X.astype(np.float32)).labels_)


def without_noise(X: Float, labels: Integer) -> Integer:
    """Labels (m,) in which each sample without one (below 0) gets that of the nearest labelled sample; 0 if none is."""
    labelled = np.asarray(labels) >= 0
    result = np.where(labelled, labels, 0)
    if labelled.any() and not labelled.all():
        result[~labelled] = KNeighborsClassifier(1).fit(X[labelled], result[labelled]).predict(X[~labelled])
    return result


PEERS: dict[str, tuple[str, Callable[[Float, int, int], Integer]]] = {
    "KMeans(c)": ("KMeans(c, n_init=10)", _kmeans),
    "SpectralClustering(c)": ('SpectralClustering(c, affinity="nearest_neighbors", n_neighbors=10)', _spectral),
    "EVoC(c)": ("EVoC(approx_n_clusters=c, random_state=seed), noise as the nearest sample that is none", _evoc),
}
VARIANTS = {
    "default": "run(X, Params(n_clusters=c))",
    "tol-1e-3": f"run(X, Params(n_clusters=c, tol={TOL:g}))",
    "kmeans c+8": "k-means on all columns of the default run's embedding",
    "kmeans c": "k-means on the first c columns of the default run's embedding",
    "density c+8": "leaves of the tree on all columns of the default run's embedding, the rest labelled by U",
    "density c": "leaves of the tree on the first c columns of the default run's embedding, the rest labelled by U",
    **{name: call for name, (call, _) in PEERS.items()},
}
"""Every variant that is measured, and its description. `RULES` choose among the four ways."""


def _peers(data: LabelledData, seed: int) -> Iterator[Record]:
    for name, (call, fit) in PEERS.items():
        begun = time.perf_counter()
        try:
            labels = fit(data.X, data.classes, seed)
        except Exception as error:  # whatever another package raises is its result
            yield {"data": data.name, "draw": data.draw, "variant": name, "call": call, "outcome": f"failed: {error!r}"}
            continue
        yield {**_record(data, name, labels), "seconds": time.perf_counter() - begun}


def measure(names: Sequence[str], draws: int = 5, seed: int = 0) -> Iterator[Record]:
    """A record for each data set, draw and variant: the whole set is draw 0, others are of `SHARE` of it.

    ``seconds`` are those of a whole fit in this process, compiled before; roundings of one run have none of their own.
    ``cut`` is the normalised cut on the fused similarity, ``known_cut`` that of the known classes, ``left_out`` the
    share of samples that the tree left out, ``products`` and ``embedding_products`` are those of the two solves.
    """
    compiled = LabelledData("", 0, np.random.default_rng(seed).standard_normal((100, 3)), np.repeat([0, 1], 50), "none")
    with measuring():
        list(_peers(compiled, seed))
        run(compiled.X, Params(n_clusters=2))
    for name in names:
        for draw in range(draws + 1):
            data = labelled_data(name, draw, seed)
            with measuring():
                records = [*_ours(data, seed), *_peers(data, seed)]
            yield from records


# ---- rules


class Rule(NamedTuple):
    """A rule that picks one of a run's candidates; by default that of `rounding.choose`."""

    most_cut: float = rounding.MAX_CUT  # of the density, as a multiple of the best k-means'
    most_left_out: float = density.MAX_LEFT_OUT  # share of the samples that the density leaves out
    margin: float = 1.0  # how many times the cut of k-means on fewer columns has to be below that on more


RULES = {
    "least cut": Rule(1.0),
    **{f"cut {most:g}": Rule(most) for most in (1.1, 1.25, 1.5, 3.0, 5.0)},
    "density first": Rule(np.inf),
    **{f"left out {most:g}": Rule(most_left_out=most) for most in (0.1, 0.15, 0.2, 0.3, 0.4)},
    **{f"margin {margin:g}": Rule(margin=margin) for margin in (1.05, 1.2)},
}
"""The default's rule with one number changed."""

ORACLE = "oracle"
"""The best candidate by the known classes: no rule, but what a rule could reach."""


def chosen(candidates: Sequence[rounding.Candidate], rule: Rule) -> rounding.Candidate:
    """The candidate that `rounding.choose` would take with a rule's numbers, of a run's k-means and densities."""
    kmeans = [one for one in candidates if one.rounding == "kmeans"]
    best, *others = sorted(kmeans, key=lambda one: (-one.clusters, -one.columns))
    for one in others:
        if one.clusters == best.clusters and one.cut * rule.margin < best.cut:
            best = one
    densities = (one for one in candidates if one.rounding == "density" and one.left_out <= rule.most_left_out)
    dense = min(densities, key=lambda one: one.left_out, default=None)
    if dense is None or (dense.clusters <= best.clusters and dense.cut > rule.most_cut * best.cut):
        return best
    return dense


def with_rules(records: Sequence[Record]) -> list[Record]:
    """The records, and one for each of `RULES` and the oracle on each set and draw: that of the candidate it takes."""
    runs: dict[tuple[str, str], dict[rounding.Candidate, Record]] = {}
    for r in records:
        if r["variant"] in WAYS and r.get("outcome") == "finished":
            one = rounding.Candidate(*(r[name] for name in ("rounding", "columns", "clusters", "cut", "left_out")))
            runs.setdefault((str(r["data"]), str(r["draw"])), {})[one] = r
    taken: list[Record] = []
    for of in runs.values():
        taken += [{**of[chosen(list(of), rule)], "variant": name} for name, rule in RULES.items()]
        taken.append({**max(of.values(), key=lambda r: sum(float(str(r[name])) for name in SCORES)), "variant": ORACLE})
    return [*records, *taken]


# ---- tables

ROWS = (*(name for name in VARIANTS if name not in PEERS), *RULES, ORACLE, *PEERS)
"""Of the tables of means, in their order."""

RIVALS = (*PEERS, "kmeans c+8")
"""Other methods that the default is compared with, set by set."""

Means = Float  # (3,): NMI, ACC and ARI, means over draws
Scored = Mapping[tuple[str, str], Means]  # by data set and variant


def markdown(records: Sequence[Record]) -> str:
    """The records as tables: means over sets, of whole sets and of draws; the stopping rule; the default set by set."""
    draws = sorted({int(str(r["draw"])) for r in records})
    records = with_rules(records)
    whole, drawn = _scored(records, [0]), _scored(records, [draw for draw in draws if draw])
    groups = _groups(records)
    parts = [_means("Whole sets: mean NMI / ACC / ARI over the sets.", whole, groups, errors=False)]
    if drawn:
        title = (
            f"Draws 1 to {draws[-1]}, {SHARE:.0%} of each set: means over draws and sets ± standard error over sets."
        )
        parts.append(_means(title, drawn, groups, errors=True))
    parts += [_difference({"whole sets": whole, "draws": drawn}, groups), _sets(records, whole, drawn)]
    return "\n".join(parts)


def _scored(records: Sequence[Record], draws: Sequence[int]) -> dict[tuple[str, str], Means]:
    """Means over the draws; a set is left out where one of them has no scores."""
    rows: dict[tuple[str, str], list[list[float]]] = {}
    for r in records:
        if r["draw"] in draws and r.get("nmi") is not None:
            row = [float(str(r[name])) for name in SCORES]
            rows.setdefault((str(r["data"]), str(r["variant"])), []).append(row)
    return {key: np.mean(values, axis=0) for key, values in rows.items() if len(values) == len(draws)}


def _groups(records: Sequence[Record]) -> dict[str, list[str]]:
    """Names of the sets of each group that has any, by its title with their number; sizes are those of whole sets."""
    sizes = {str(r["data"]): int(str(r["m"])) for r in records if r["draw"] == 0 and "m" in r}
    groups = {
        "open sets": [name for name in sizes if name not in TABLES],
        f"of these with {LARGE:,} samples or more": [n for n, m in sizes.items() if n not in TABLES and m >= LARGE],
        "tables": [name for name in sizes if name in TABLES],
    }
    return {f"{title} ({len(names)})": names for title, names in groups.items() if names}


def _means(heading: str, of: Scored, groups: Mapping[str, list[str]], errors: bool) -> str:
    rows = []
    for variant in (name for name in ROWS if any(name == variant for _, variant in of)):
        cells = []
        for names in groups.values():
            found = [of[name, variant] for name in names if (name, variant) in of]
            few = f" ({len(found)} sets)" if 0 < len(found) < len(names) else ""
            cells.append(_cell(found, errors) + few)
        rows.append([f"{variant} (knows the classes)" if variant == ORACLE else variant, *cells])
    return f"{heading}\n\n{table(['labels by', *groups], rows)}"


def _cell(rows: Sequence[Means], errors: bool, sign: str = "") -> str:
    """Means of the three scores, with standard errors where there are several rows."""
    if not rows:
        return "–"
    means = [number(value, sign) for value in np.mean(rows, axis=0)]
    if errors and len(rows) > 1:
        spread = np.std(rows, axis=0, ddof=1) / np.sqrt(len(rows))
        means = [f"{mean} ± {number(error)}" for mean, error in zip(means, spread, strict=True)]
    return " / ".join(means)


def _difference(measured: Mapping[str, Scored], groups: Mapping[str, list[str]]) -> str:
    """The difference that the default's stopping rule makes, against a tight tolerance."""
    says, rows = "default minus tol-1e-3, whose solves stop at a tolerance alone: NMI / ACC / ARI", []
    for title, of in measured.items():
        both = {name for name, variant in of if variant == "tol-1e-3" and (name, "default") in of}
        pairs = [[of[n, "default"] - of[n, "tol-1e-3"] for n in names if n in both] for names in groups.values()]
        if of:
            rows.append([title, *(_cell(found, errors=True, sign="+") for found in pairs)])
    return f"{says} ± standard error over sets.\n\n{table(['', *groups], rows)}".replace("|  |", "| |", 1)


def _sets(records: Sequence[Record], whole: Scored, drawn: Scored) -> str:
    titles = ["data, samples x features, classes", "default: NMI / ACC / ARI", "labels from", "left out", "worst loss"]
    measured, rows = [whole, drawn] if drawn else [whole], []
    titles += ["worst loss, means of draws"] if drawn else []
    for r in records:
        if (r["draw"], r["variant"]) == (0, "default"):
            name, beyond = str(r["data"]), int(str(r["columns"])) - int(str(r["classes"]))
            way = f"{r['rounding']} c{beyond:+d}" if beyond else f"{r['rounding']} c"
            shape, own = (
                f"{name}, {r['m']:,} x {r['f']:,}, {r['classes']}",
                _cell([whole[name, "default"]], errors=False),
            )
            rows.append([shape, own, way, number(float(str(r["left_out"]))), *(_loss(of, name) for of in measured)])
    rivals = ", ".join(RIVALS)
    says = f"The default on each whole set, and its worst loss in one score against the best of {rivals}."
    return f"{says}\n\n{table(titles, rows)}"


def _loss(of: Scored, name: str) -> str:
    """The score in which the default is furthest below the best of its rivals on one set, and that rival."""
    losses = [
        (float(of[name, rival][index] - of[name, "default"][index]), score.upper(), rival)
        for rival in RIVALS
        for index, score in enumerate(SCORES)
        if {(name, rival), (name, "default")} <= of.keys()
    ]
    size, score, rival = max(losses, default=(0.0, "", ""))
    return "–" if not losses else f"{number(size)} {score} to {rival}" if size > 0 else "none"


if __name__ == "__main__":
    script(measure, COLUMNS, (*OPEN, *TABLES), draws={"type": int, "default": 5, "metavar": "N"})
