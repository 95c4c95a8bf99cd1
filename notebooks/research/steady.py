"""Whether a small change of a run changes which rounding it keeps: records of steady.json.

A set is clustered again with other seeds, without a twentieth of its samples, with other tolerances of the solves, and
from the same embedding with noise. Of the candidates of each such run the rule of `rounding.choose` keeps one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import battery
import numpy as np
from known_sets import OPEN, TABLES, labelled_data, measuring, number, script, table
from roundings import RULES as CUTS
from roundings import Rule, candidates, chosen
from sklearn.metrics import adjusted_rand_score

from ips2_dask.bench.harness import Record
from ips2_dask.kernels import density, rounding
from ips2_dask.params import Params
from ips2_dask.pipeline.run import run
from ips2_dask.runs.run import Run
from ips2_dask.stages import kmeans, roundings
from ips2_dask.store.context import part_name
from ips2_dask.typing import Float, Integer

COLUMNS = ("data", "change", "rounding", "columns", "clusters", "cut", "left_out", "ari")

UNCHANGED = "none"
CHANGES = {"seed": ("1", "2", "3"), "draw": ("1", "2", "3"), "tol": ("1e-2", "1e-4"), "noise": ("1e-4", "1e-3")}
"""Another random state, draw of `SHARE` of the samples, or tolerance; noise of this length in rows of length 1."""

LARGE, FEW = ("mnist",), ("seed 1", "draw 1", "noise 1e-4", "noise 1e-3")
"""Sets that some of the changes suffice for."""

SHARE = 0.95

SMALL = 0.01
"""A change is small if no candidate's ARI to the known classes moves by so much."""

KINDS = {
    "images": ("yale", "usps", "digits", "mnist10k", "mnist"),
    "genes": ("allaml", "lung", "colon", "leukemia"),
    "documents": ("bbcsport", "bbcsport-l2"),
    "tables": (
        "soybean",
        "scadi",
        "wine",
        "glass",
        "pendigits",
        "letter",
        "iris",
        "breast_cancer",
        "htru2",
        "satimage",
    ),
}
"""Of the sets of `known_sets`; those of the battery are shapes."""


def measure(names: Sequence[str], seed: int = 0) -> Iterator[Record]:
    """A record for each set, number of clusters, change and candidate; ``ari`` is that to the known classes.

    Of several reference labelings with as many clusters the best counts, without samples that it takes for noise.
    """
    for name in names:
        for c, X, references in _problems(name):
            few = [UNCHANGED, *(FEW if name in LARGE else _all_changes())]
            for change in few:
                with measuring():
                    rows, found = _changed(X, c, change, seed)
                for one, labels in found:
                    scores = [adjusted_rand_score(r[rows][r[rows] >= 0], labels[r[rows] >= 0]) for r in references]
                    yield {"data": name, "m": len(X), "c": c, "change": change, **one._asdict(), "ari": max(scores)}


def _all_changes() -> list[str]:
    return [f"{kind} {value}" for kind, values in CHANGES.items() for value in values]


def _problems(name: str) -> Iterator[tuple[int, Float, list[Integer]]]:
    """Each number of clusters that a set has known classes of, its points, and these classes, -1 for noise."""
    if "/" not in name:
        data = labelled_data(name)
        yield data.classes, data.X, [data.known]
        return
    X, references = battery.shapes(name)
    for c in sorted({int(one.max()) for one in references}):
        yield c, X, [one - 1 for one in references if one.max() == c]


def _changed(X: Float, c: int, change: str, seed: int) -> tuple[Integer, list[tuple[rounding.Candidate, Integer]]]:
    """The samples that a change leaves, and the candidates of the run with it."""
    kind, _, value = change.partition(" ")
    rows, more = np.arange(len(X)), {}
    if kind == "draw":
        rows = np.random.default_rng([seed, 95, int(value)]).choice(len(X), round(SHARE * len(X)), replace=False)
        rows.sort()
    elif kind == "tol":
        more = {"tol": float(value)}
    state = int(value) if kind == "seed" else seed
    finished = run(X[rows], Params(n_clusters=c, random_state=state, **more))
    if kind == "noise":
        _add_noise(finished, float(value))
    return rows, candidates(finished)


def _add_noise(finished: Run, length: float) -> None:
    """Compute trees and starts of k-means again, on the embedding with noise of this mean length in each row."""
    context = finished._context
    folder, rng = context.folders["label"], np.random.default_rng([context.params.random_state, 13])
    for b in range(context.n_partitions):
        arrays, facts = kmeans.drawn_rows(context, b)
        points = arrays["embedding"]
        noise = rng.standard_normal(points.shape) * length / np.sqrt(points.shape[1])
        arrays["embedding"] = (points + noise).astype(np.float32)
        context.store.write(folder, kmeans.DRAWN + part_name(b), arrays, facts)
    for task in roundings.roundings(context.params, context.m, density.available()):
        context.store.write(folder, roundings.PREFIX + task.part, *kmeans.one_rounding(context, task.part))


# ---- tables

Candidates = Mapping[rounding.Candidate, float]
"""The ARI of each."""

RULES = {"default": Rule(), **{name: CUTS[name] for name in ("least cut", "density first")}}


class Tally(NamedTuple):
    """What a rule keeps over all changes of some sets."""

    small: int  # changes
    moved: int  # small changes with another winner
    worse: int  # of these with a winner whose ARI is another by `SMALL` or more
    every: int  # changes
    every_moved: int
    scores: list[float]  # means of the winners' ARI with each set's changes
    spans: list[float]  # largest differences of the winners' ARI with each set's changes


def tally(of: Iterable[Mapping[str, Candidates]], rule: Rule) -> Tally:
    """What a rule keeps of some sets, whose candidates are given by change."""
    small = moved = worse = every = every_moved = 0
    scores, spans = [], []
    for changes in of:
        winners = {change: chosen(list(found), rule) for change, found in changes.items()}
        first, before = winners[UNCHANGED], changes[UNCHANGED]
        aris = [changes[change][one] for change, one in winners.items()]
        scores.append(float(np.mean(aris)))
        spans.append(max(aris) - min(aris))
        for change, one in winners.items():
            if change == UNCHANGED:
                continue
            other = (one.rounding, one.columns) != (first.rounding, first.columns)
            every, every_moved = every + 1, every_moved + other
            if is_small(before, changes[change]):
                small, moved = small + 1, moved + other
                worse += other and abs(changes[change][one] - before[first]) >= SMALL
    return Tally(small, moved, worse, every, every_moved, scores, spans)


def is_small(before: Candidates, after: Candidates) -> bool:
    """Whether no candidate's ARI moves by `SMALL`; a density that only one of the runs has is passed over."""
    first, second = ({(one.rounding, one.columns): ari for one, ari in of.items()} for of in (before, after))
    return all(abs(first[way] - second[way]) < SMALL for way in first.keys() & second.keys())


def markdown(records: Sequence[Record]) -> str:
    """A row for each kind of sets, and for each rule over all of them."""
    runs: dict[tuple[str, int], dict[str, dict[rounding.Candidate, float]]] = {}
    for r in records:
        one = rounding.Candidate(*(r[name] for name in rounding.Candidate._fields))
        runs.setdefault((r["data"], r["c"]), {}).setdefault(r["change"], {})[one] = r["ari"]
    kinds: dict[str, list[Mapping[str, Candidates]]] = {}
    for (name, _), changes in runs.items():
        of = "shapes" if "/" in name else next(kind for kind, names in KINDS.items() if name in names)
        for group in (of, *([name] if name.startswith("mnist") else [])):
            kinds.setdefault(group, []).append(changes)
    head = [
        "",
        "small changes",
        "another winner",
        "of another ARI",
        "all changes",
        "another winner",
        "mean ARI",
        "largest span",
    ]
    rows = [_row(group, tally(of, Rule())) for group, of in kinds.items()]
    rows += [_row(f"all: {name}", tally(runs.values(), rule)) for name, rule in RULES.items()]
    return table(head, rows)


def _row(name: str, found: Tally) -> list[str]:
    counts = [str(n) for n in (found.small, found.moved, found.worse, found.every, found.every_moved)]
    return [name, *counts, number(float(np.mean(found.scores))), number(max(found.spans))]


if __name__ == "__main__":
    script(measure, COLUMNS, (*OPEN, *TABLES, *battery.sets(), *LARGE))
