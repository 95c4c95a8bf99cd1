"""`ips2 bench roundings`: ways from one embedding to labels, rules that choose among them, and peers told c.

All sets come with known classes, which score the labels and choose nothing, but for what is said to be an oracle. A
record is of a whole run, a candidate of that run, or a peer; what a rule takes is found from the candidates' records.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans, SpectralClustering
from sklearn.neighbors import KNeighborsClassifier

from ips2_dask.bench.document import Record
from ips2_dask.bench.labelled_data import SCORES, SHARE, LabelledData, labelled_data, measuring
from ips2_dask.bench.options import TABLES
from ips2_dask.kernels import density, rounding
from ips2_dask.metrics import scores
from ips2_dask.params import Params
from ips2_dask.pipeline.run import run
from ips2_dask.runs.run import Run
from ips2_dask.stages import label, roundings
from ips2_dask.stages.similarity_views import read_affinity
from ips2_dask.stages.walk import LocalWalk
from ips2_dask.typing import Float, Integer

COLUMNS = (
    "data",
    "draw",
    "variant",
    "outcome",
    "nmi",
    "acc",
    "ari",
    "rounding",
    "columns",
    "cut",
    "left_out",
    "seconds",
)

LARGE = 1_000
"""Samples of a set that has a group of its own in the tables, at least."""

TOL = 1e-3
"""The tolerance of earlier versions: with it a solve stops at the tolerance and for no other reason."""


class Rounded(NamedTuple):
    """A candidate and its labels in the user's numbering."""

    candidate: rounding.Candidate
    labels: Integer  # (m,)


class Peer(NamedTuple):
    """Another clustering method, which is given c."""

    name: str
    call: str
    fit: Callable[[Float, int, int], Integer]  # from X, c and seed to labels
    module: str = ""


# ---- ours


def candidates(finished: Run) -> list[Rounded]:
    """All ways to round the embedding of a run in memory or on disk, with their normalised cuts, from its stored parts.

    A density that has no cut with c clusters is not among them. The run itself spreads only the density that left the
    fewest samples out.
    """
    context = finished._context
    tasks = roundings.roundings(context.params, context.m, density.available())
    receipts = {task: context.receipt("label", f"{roundings.PREFIX}{task.part}") for task in tasks}
    walk = LocalWalk(context, read_affinity(context))
    parts = label._Found(context, walk, receipts)
    parts.candidates = [one for one in parts._densities() if one.clusters]
    for one in list(parts.candidates):
        parts._add_cut(one, parts._spread(one))
    for columns in dict.fromkeys(task.columns for task in tasks):
        parts._add_kmeans(columns)
    labels = (parts._labels[one.rounding, one.columns][0] for one in parts.candidates)
    return [Rounded(one, context.by_row(its)) for one, its in zip(parts.candidates, labels, strict=True)]


def known_cut(finished: Run, known: Integer) -> float:
    """The normalised cut of the known classes on the fused similarity of a run; equal rows have the last one's class.

    Parameters
    ----------
    finished : Run
    known : ndarray of shape (m,)
        Classes of the rows of the input, whole numbers.
    """
    context = finished._context
    place = context.place()
    samples = np.asarray(known)
    if place is not None:
        samples = np.zeros(context.m, samples.dtype)
        samples[place[place >= 0]] = known[place >= 0]
    classes, samples = np.unique(samples, return_inverse=True)  # a draw may miss one
    return rounding.cut_of(read_affinity(context), samples.astype(np.int32), len(classes))


def _facts(finished: Run, one: rounding.Candidate | None = None) -> Record:
    """Fields of a candidate, by default of the one that the run chose, and of both of the run's solves."""
    facts = {stage["name"]: stage["facts"] for stage in finished.manifest["stages"]}
    (winner,) = (each for each in facts["label"]["roundings"] if each["chosen"])
    fields = winner if one is None else one._asdict()
    return {
        **{name: fields[name] for name in ("rounding", "columns", "cut", "left_out", "clusters")},
        "products": facts["eigen"]["products"],
        "embedding_products": facts["label"]["embedding_products"],
    }


WAYS = {
    "kmeans c+8": ("kmeans", 0),
    "kmeans c": ("kmeans", -1),
    "density c+8": ("density", 0),
    "density c": ("density", -1),
}
"""Way and place of the number of columns, the most first."""


def _ours(data: LabelledData, seed: int) -> list[Record]:
    begun = time.perf_counter()
    finished = run(data.X, Params(n_clusters=data.classes, random_state=seed))
    seconds = time.perf_counter() - begun
    records = [
        {
            **_record(data, "default", finished.labels),
            **_facts(finished),
            "known_cut": known_cut(finished, data.known),
            "seconds": seconds,
        }
    ]
    all_of_them = candidates(finished)
    by_way = {(one.candidate.rounding, one.candidate.columns): one for one in all_of_them}
    widths = sorted({one.candidate.columns for one in all_of_them}, reverse=True)
    for variant, (way, place) in WAYS.items():
        if way == "density" and not density.available():
            records.append({**_record(data, variant), "outcome": "skipped: fast_plscan is not installed"})
            continue
        if (one := by_way.get((way, widths[place]))) is not None:
            records.append({**_record(data, variant, one.labels), **_facts(finished, one.candidate)})
        else:  # a run that asks for a density falls back in the same way
            one = by_way["kmeans", widths[place]]
            outcome = "k-means, for no cut has c clusters"
            records.append(
                {**_record(data, variant, one.labels), **_facts(finished, one.candidate), "outcome": outcome}
            )
    return records


def _tight(data: LabelledData, seed: int) -> list[Record]:
    begun = time.perf_counter()
    finished = run(data.X, Params(n_clusters=data.classes, tol=TOL, random_state=seed))
    seconds = time.perf_counter() - begun
    return [{**_record(data, "tol-1e-3", finished.labels), **_facts(finished), "seconds": seconds}]


def _scores(data: LabelledData, labels: Integer) -> dict[str, float]:
    measures = scores(data.known, labels)
    return {name: measures[name] for name in SCORES}


def _record(data: LabelledData, variant: str, labels: Integer | None = None) -> Record:
    m, f = data.X.shape
    return {
        "data": data.name,
        "draw": data.draw,
        "m": m,
        "f": f,
        "classes": data.classes,
        "scale": data.scale,
        "variant": variant,
        "call": VARIANTS[variant],
        "outcome": "finished",
        **({} if labels is None else _scores(data, labels)),
    }


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


PEERS = {
    "kmeans": Peer("KMeans(c)", "KMeans(c, n_init=10)", _kmeans),
    "spectral": Peer(
        "SpectralClustering(c)", 'SpectralClustering(c, affinity="nearest_neighbors", n_neighbors=10)', _spectral
    ),
    "evoc": Peer(
        "EVoC(c)",
        "EVoC(approx_n_clusters=c, random_state=seed), noise as the nearest sample that is none",
        _evoc,
        "evoc",
    ),
}

PEER_NAMES = tuple(peer.name for peer in PEERS.values())

VARIANTS = {
    "default": "run(X, Params(n_clusters=c))",
    "tol-1e-3": f"run(X, Params(n_clusters=c, tol={TOL:g}))",
    "kmeans c+8": "k-means on all columns of the default run's embedding",
    "kmeans c": "k-means on the first c columns of the default run's embedding",
    "density c+8": "leaves of the tree on all columns of the default run's embedding, the rest labelled by U",
    "density c": "leaves of the tree on the first c columns of the default run's embedding, the rest labelled by U",
    **{peer.name: peer.call for peer in PEERS.values()},
}
"""Every variant that is measured, and its description. `RULES` choose among the four ways."""


def _peer(name: str, data: LabelledData, seed: int) -> list[Record]:
    peer = PEERS[name]
    record = _record(data, peer.name)
    if peer.module and importlib.util.find_spec(peer.module) is None:
        return [{**record, "outcome": f"skipped: {peer.module} is not installed"}]
    begun = time.perf_counter()
    try:
        labels = peer.fit(data.X, data.classes, seed)
    except Exception as error:  # whatever another package raises is its result
        return [{**record, "outcome": f"failed: {type(error).__name__}"}]
    seconds = time.perf_counter() - begun
    return [{**record, **_scores(data, labels), "seconds": seconds}]


def measure(names: Sequence[str], draws: int, peers: Sequence[str] = tuple(PEERS), seed: int = 0) -> Iterator[Record]:
    """A record for each data set, draw and variant.

    ``seconds`` are those of a whole fit in this process, compiled before; roundings of one run have none of their own.
    ``cut`` is the normalised cut on the fused similarity, ``known_cut`` that of the known classes, ``left_out`` the
    share of samples that the tree left out, ``products`` and ``embedding_products`` are those of the two solves.

    Parameters
    ----------
    names : sequence of str
        As of `labelled_data`.
    draws : int
        Draws of `SHARE` of each set, besides the whole set, which is draw 0.
    peers : sequence of str
        Of ``PEERS``; one whose package is missing is named and left out.
    seed : int
    """
    compiled = LabelledData("", 0, np.random.default_rng(seed).standard_normal((100, 3)), np.repeat([0, 1], 50), "none")
    with measuring():
        run(compiled.X, Params(n_clusters=2))
        for peer in peers:
            _peer(peer, compiled, seed)
    for name in names:
        for draw in range(draws + 1):
            data = labelled_data(name, draw, seed)
            for fit in (_ours, _tight):
                with measuring():
                    records = fit(data, seed)
                yield from records
            for peer in peers:
                with measuring():
                    records = _peer(peer, data, seed)
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
    """The candidate that `rounding.choose` would take with a rule's numbers.

    Parameters
    ----------
    candidates : sequence of Candidate
        A run's k-means, and the densities that have as many clusters as were asked for, all with their cut.
    rule : Rule
    """
    kmeans = [one for one in candidates if one.rounding == "kmeans"]
    best, *others = sorted(kmeans, key=lambda one: (-one.clusters, -one.columns))
    for one in others:
        if one.clusters == best.clusters and _cut(one) * rule.margin < _cut(best):
            best = one
    densities = (one for one in candidates if one.rounding == "density" and one.left_out <= rule.most_left_out)
    dense = min(densities, key=lambda one: one.left_out, default=None)
    if dense is None or (dense.clusters <= best.clusters and _cut(dense) > rule.most_cut * _cut(best)):
        return best
    return dense


def _cut(one: rounding.Candidate) -> float:
    assert one.cut is not None
    return one.cut


def with_rules(records: Sequence[Record]) -> list[Record]:
    """The records, and one for each of `RULES` and the oracle on each set and draw: that of the candidate it takes."""
    runs: dict[tuple[str, str], dict[rounding.Candidate, Record]] = {}
    for r in records:
        if r["variant"] in WAYS and r.get("outcome") == "finished":
            runs.setdefault((str(r["data"]), str(r["draw"])), {})[_candidate(r)] = r
    taken: list[Record] = []
    for of in runs.values():
        taken += [{**of[chosen(list(of), rule)], "variant": name} for name, rule in RULES.items()]
        taken.append({**max(of.values(), key=lambda r: sum(float(str(r[name])) for name in SCORES)), "variant": ORACLE})
    return [*records, *taken]


def _candidate(r: Record) -> rounding.Candidate:
    """What a record says of one."""
    columns, clusters = (int(str(r[name])) for name in ("columns", "clusters"))
    return rounding.Candidate(str(r["rounding"]), columns, clusters, float(str(r["cut"])), float(str(r["left_out"])))


# ---- tables

ROWS = (*(name for name in VARIANTS if name not in PEER_NAMES), *RULES, ORACLE, *PEER_NAMES)
"""Of the tables of means, in their order."""

RIVALS = ("KMeans(c)", "SpectralClustering(c)", "EVoC(c)", "kmeans c+8")
"""Other methods that the default is compared with, set by set."""

Means = NDArray[np.floating]  # (3,): NMI, ACC and ARI, means over draws
Scored = Mapping[tuple[str, str], Means]  # by data set and variant


def markdown(records: Sequence[Record]) -> str:
    """The records as tables: means over sets, of whole sets and of draws; the stopping rule; the default set by set."""
    draws = sorted({int(str(r["draw"])) for r in records})
    records = with_rules(records)
    whole, drawn = _scored(records, [0]), _scored(records, [draw for draw in draws if draw])
    groups = _groups(records)
    variants = [name for name in ROWS if any(name == r["variant"] for r in records)]
    parts = [_means("Whole sets: mean NMI / ACC / ARI over the sets.", whole, groups, variants, errors=False)]
    if drawn:
        title = (
            f"Draws 1 to {draws[-1]}, {SHARE:.0%} of each set: means over draws and sets ± standard error over sets."
        )
        parts.append(_means(title, drawn, groups, variants, errors=True))
    parts += [_difference({"whole sets": whole, "draws": drawn}, groups), _sets(records, whole, drawn)]
    return "\n".join(parts)


def _scored(records: Sequence[Record], draws: Sequence[int]) -> dict[tuple[str, str], Means]:
    """Means over the draws; a set is left out where one of them has no scores."""
    score_rows: dict[tuple[str, str], list[list[float]]] = {}
    for r in records:
        if r["draw"] in draws and r.get("nmi") is not None:
            score_rows.setdefault((str(r["data"]), str(r["variant"])), []).append(
                [float(str(r[name])) for name in SCORES]
            )
    return {key: np.mean(values, axis=0) for key, values in score_rows.items() if len(values) == len(draws)}


def _groups(records: Sequence[Record]) -> dict[str, list[str]]:
    """Names of the sets of each group that has any; sizes are those of the whole sets."""
    sizes = {str(r["data"]): int(str(r["m"])) for r in records if r["draw"] == 0}
    groups = {
        "open sets": [name for name in sizes if name not in TABLES],
        f"of these with {LARGE:,} samples or more": [n for n, m in sizes.items() if n not in TABLES and m >= LARGE],
        "tables": [name for name in sizes if name in TABLES],
    }
    return {title: names for title, names in groups.items() if names}


def _means(heading: str, of: Scored, groups: Mapping[str, list[str]], variants: Sequence[str], errors: bool) -> str:
    lines = [
        heading,
        "",
        "| labels by | " + " | ".join(f"{title} ({len(names)})" for title, names in groups.items()) + " |",
        "|---|" + "---|" * len(groups),
    ]
    for variant in variants:
        cells = []
        for names in groups.values():
            rows = [of[name, variant] for name in names if (name, variant) in of]
            few = f" ({len(rows)} sets)" if 0 < len(rows) < len(names) else ""
            cells.append(_cell(rows, errors) + few)
        text = f"{variant} (knows the classes)" if variant == ORACLE else variant
        lines.append(f"| {text} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(rows: Sequence[Means], errors: bool, signed: bool = False) -> str:
    """Means of the three scores, with standard errors where there are several rows."""
    if not rows:
        return "–"
    means = [_number(value, signed) for value in np.mean(rows, axis=0)]
    if errors and len(rows) > 1:
        spread = np.std(rows, axis=0, ddof=1) / np.sqrt(len(rows))
        means = [f"{mean} ± {_number(error)}" for mean, error in zip(means, spread, strict=True)]
    return " / ".join(means)


def _number(value: float, signed: bool = False) -> str:
    """Three decimals without the nought before them."""
    return f"{value:+.3f}".replace("0.", ".", 1) if signed else f"{value:.3f}".replace("0.", ".", 1)


def _difference(measured: Mapping[str, Scored], groups: Mapping[str, list[str]]) -> str:
    """The difference that the default's stopping rule makes, against a tight tolerance."""
    lines = [
        "default minus tol-1e-3, whose solves stop at a tolerance alone: NMI / ACC / ARI ± standard error over sets.",
        "",
        "| | " + " | ".join(f"{title} ({len(names)})" for title, names in groups.items()) + " |",
        "|---|" + "---|" * len(groups),
    ]
    for title, of in measured.items():
        if of:
            pairs = [
                [
                    of[name, "default"] - of[name, "tol-1e-3"]
                    for name in names
                    if {(name, "default"), (name, "tol-1e-3")} <= set(of)
                ]
                for names in groups.values()
            ]
            lines.append(f"| {title} | " + " | ".join(_cell(rows, errors=True, signed=True) for rows in pairs) + " |")
    return "\n".join(lines) + "\n"


class Loss(NamedTuple):
    """The score in which the default is furthest below the best of its rivals."""

    size: float  # of one score; below 0 where it is above all of them
    score: str
    rival: str


def _worst_loss(of: Scored, name: str) -> Loss | None:
    """Of the three scores on one set; None where there is nothing to compare."""
    rivals = [rival for rival in RIVALS if (name, rival) in of]
    if (name, "default") not in of or not rivals:
        return None
    return max(
        Loss(float(of[name, rival][index] - of[name, "default"][index]), score.upper(), rival)
        for rival in rivals
        for index, score in enumerate(SCORES)
    )


def _sets(records: Sequence[Record], whole: Scored, drawn: Scored) -> str:
    titles = ["data, samples x features, classes", "default: NMI / ACC / ARI", "labels from", "left out", "worst loss"]
    measured = [whole, drawn] if drawn else [whole]
    titles += ["worst loss, means of draws"] if drawn else []
    lines = [
        f"The default on each whole set, and its worst loss in one score against the best of {', '.join(RIVALS)}.",
        "",
        "| " + " | ".join(titles) + " |",
        "|---|" + "---|" * (len(titles) - 1),
    ]
    for r in records:
        if (r["draw"], r["variant"]) == (0, "default"):
            name, beyond = str(r["data"]), int(str(r["columns"])) - int(str(r["classes"]))
            cells = [
                f"{name}, {r['m']:,} x {r['f']:,}, {r['classes']}",
                _cell([whole[name, "default"]], errors=False),
                f"{r['rounding']} c{beyond:+d}" if beyond else f"{r['rounding']} c",
                _number(float(str(r["left_out"]))),
                *(_loss(_worst_loss(of, name)) for of in measured),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _loss(loss: Loss | None) -> str:
    if loss is None:
        return "–"
    return f"{_number(loss.size)} {loss.score} to {loss.rival}" if loss.size > 0 else "none"
