"""Whether a row that stands for many equal ones counts more, in the graph and in k-means: records of copies.json.

Equal rows are merged into one sample. Its edges are multiplied by 1, by the root of its number of rows, or by that
number; its weight in k-means is one of the same three: nine variants on the fused similarity of one run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
import scipy.sparse as sp
from known_sets import SCORES, LabelledData, labelled_data, measuring, script, table
from sklearn.cluster import KMeans

from ips2_dask.bench.harness import Record
from ips2_dask.kernels import labels as kernel
from ips2_dask.kernels import rounding
from ips2_dask.metrics import scores
from ips2_dask.params import Params
from ips2_dask.pipeline.run import run
from ips2_dask.runs import label_results
from ips2_dask.stages.similarity_views import read_similarity, weighed
from ips2_dask.typing import Integer

COLUMNS = ("data", "m", "distinct", "variant", "outcome", "nmi", "acc", "ari", "columns", "cut", "seconds")
COPIED = (
    *("iris", "breast_cancer:2", "digits:6", "satimage:16", "pendigits:20", "pendigits:34", "htru2:.5", "htru2:1"),
    *("letter", "letter:2", "kddcup-all@10000", "kddcup-all@50000", "kddcup-all"),
)
"""Tables with equal rows: as they are, or rounded down to multiples of a step, or a draw of so many rows."""

POWERS = {"one": 0.0, "root": 0.5, "rows": 1.0}
"""Weight of a sample that stands for n rows: n to this power."""

VARIANTS = {
    "default": "run(X, Params(n_clusters=c, duplicates='merge'))",
    "keep": "run(X, Params(n_clusters=c, duplicates='keep'))",
    **{
        f"edges {edges}, k-means {means}": "the better of k-means on c + 8 and on c columns, by the normalised cut"
        for edges in POWERS
        for means in POWERS
    },
}
KEPT_UP_TO = 30_000
"""Samples up to which equal rows are also kept apart, for comparison: with many copies that takes long."""


def rounded(name: str, seed: int = 0) -> LabelledData:
    """A set of `labelled_data`; ``:`` and a step round its numbers down, ``@`` and a number draw so many rows."""
    plain, _, rows = name.partition("@")
    plain, _, step = plain.partition(":")
    dataset = labelled_data(plain)
    X, true_labels = dataset.X, dataset.known
    if rows:
        chosen = np.sort(np.random.default_rng(seed).choice(len(X), int(rows), replace=False))
        X, true_labels = X[chosen], np.unique(true_labels[chosen], return_inverse=True)[1]
    if step:
        X = np.floor(X / float(step)) * float(step)
    return LabelledData(name, 0, X, true_labels, dataset.scale)


def _record(data: LabelledData, variant: str, labels: Integer) -> Record:
    measures = {name: value for name, value in scores(data.known, labels).items() if name in SCORES}
    shape: Record = {"data": data.name, "m": len(data.X), "variant": variant, "call": VARIANTS[variant]}
    return {**shape, "outcome": "finished", **{name: measures[name] for name in SCORES}}


def _variants(data: LabelledData, seed: int) -> Iterator[Record]:
    c, ways = data.classes, {"default": "merge", "keep": "keep"}
    runs = {}
    for variant, duplicates in ways.items():
        if variant == "default" or len(data.X) <= KEPT_UP_TO:
            begun = time.perf_counter()
            runs[variant] = run(data.X, Params(n_clusters=c, random_state=seed, duplicates=duplicates))
            took = {"distinct": len(runs["default"].distinct), "seconds": time.perf_counter() - begun}
            yield {**_record(data, variant, runs[variant].labels), **took}
    context, distinct = runs["default"]._context, {"distinct": len(runs["default"].distinct)}
    copies, followed = context.copies(), np.arange(context.m)
    copies = np.ones(context.m, np.int64) if copies is None else copies
    if label_results.has_followers(context):
        followed = label_results.of_all(context, "follows")
    inside, place = np.unique(followed, return_inverse=True)
    U, copies = sp.csr_array(read_similarity(context, "fused")[inside][:, inside]), copies[inside]
    for edges, power in POWERS.items():
        affinity = weighed(U, copies.astype(np.float64) ** power)
        solved = kernel.spectrum(affinity, c, kernel.EMBEDDING_TOL, seed, columns=c + 8, settled=kernel.SETTLED)
        points = kernel.embedding(solved, c)
        for means, other in POWERS.items():
            rounds = []
            for columns in (c + 8, c):
                model = KMeans(c, n_init=rounding.RESTARTS, random_state=seed)
                weights = copies.astype(np.float64) ** other
                labels = model.fit(kernel.leading_columns(points, columns), sample_weight=weights).labels_
                rounds.append((rounding.cut_of(affinity, labels, c), columns, labels))
            cut, columns, labels = min(rounds, key=lambda one: one[0])
            record = _record(data, f"edges {edges}, k-means {means}", context.by_row(labels[place]))
            yield {**record, **distinct, "columns": columns, "cut": cut}


def measure(names: Sequence[str], seed: int = 0) -> Iterator[Record]:
    """A record for each data set of `rounded` and variant."""
    for name in names:
        with measuring():
            records = list(_variants(rounded(name, seed), seed))
        yield from records


def markdown(records: Sequence[Record]) -> str:
    """A table of NMI / ACC / ARI: a row for each variant, means and the largest loss to the unweighted one."""
    of = {(str(r["data"]), str(r["variant"])): np.array([float(str(r[name])) for name in SCORES]) for r in records}
    names, plain, rows = list(dict.fromkeys(name for name, _ in of)), "edges one, k-means one", []
    for variant in VARIANTS:
        have = [name for name in names if (name, variant) in of]
        if have:
            mean = np.mean([of[name, variant] for name in have], axis=0)
            losses = {name: of[name, plain][0] - of[name, variant][0] for name in have}
            worst = max(losses, key=lambda name: losses[name])
            few = f" ({len(have)} sets)" if len(have) < len(names) else ""
            means = " / ".join(f"{value:.3f}" for value in mean) + few
            rows.append([variant, means, f"{losses[worst]:.3f} ({worst})"])
    first = table(["a sample of n rows counts", "mean NMI / ACC / ARI", "largest loss of NMI to counting once"], rows)
    shown = [variant for variant in VARIANTS if variant != "keep"]
    about = {str(r["data"]): [f"{r['m']:,}", f"{r['distinct']:,}"] for r in records}
    sets = [[name, *about[name], *(f"{of[name, v][0]:.3f}" for v in shown if (name, v) in of)] for name in names]
    return first + "\n" + table(["data", "rows", "distinct", *shown], sets)


if __name__ == "__main__":
    script(measure, COLUMNS, COPIED)
