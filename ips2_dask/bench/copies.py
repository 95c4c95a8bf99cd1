"""`ips2 bench copies`: whether a row that stands for many equal ones counts more, in the graph and in k-means.

Equal rows are merged into one sample. Its edges are multiplied by 1, by the root of its number of rows, or by that
number; its weight in k-means is one of the same three: nine variants on the fused similarity of one run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
import scipy.sparse as sp
from sklearn.cluster import KMeans

from ips2_dask.bench.document import Record
from ips2_dask.bench.labelled_data import SCORES, LabelledData, labelled_data, measuring
from ips2_dask.kernels import labels as kernel
from ips2_dask.kernels import rounding
from ips2_dask.metrics import scores
from ips2_dask.params import Params
from ips2_dask.pipeline.run import run
from ips2_dask.stages import embedding
from ips2_dask.stages.similarity_views import read_similarity, weighed
from ips2_dask.typing import Integer

COLUMNS = ("data", "m", "distinct", "variant", "outcome", "nmi", "acc", "ari", "columns", "cut", "seconds")

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
    """A data set whose numbers are rounded so that rows become equal.

    Parameters
    ----------
    name : str
        Of `labelled_data`, with ``:`` and a step that numbers are rounded down to a multiple of; and with
        ``@`` and a number of rows that are drawn.
    """
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
    measures = scores(data.known, labels)
    return {
        "data": data.name,
        "m": len(data.X),
        "variant": variant,
        "call": VARIANTS[variant],
        "outcome": "finished",
        **{name: measures[name] for name in SCORES},
    }


def _variants(data: LabelledData, seed: int) -> Iterator[Record]:
    c = data.classes
    begun = time.perf_counter()
    result = run(data.X, Params(n_clusters=c, random_state=seed, duplicates="merge"))
    seconds = time.perf_counter() - begun
    context, distinct = result._context, {"distinct": len(result.distinct)}
    yield {**_record(data, "default", result.labels), **distinct, "seconds": seconds}
    if len(data.X) <= KEPT_UP_TO:
        begun = time.perf_counter()
        labels_apart = run(data.X, Params(n_clusters=c, random_state=seed, duplicates="keep")).labels
        yield {**_record(data, "keep", labels_apart), **distinct, "seconds": time.perf_counter() - begun}
    U, inside, followed = read_similarity(context, "fused"), embedding.own_rows(context), embedding.follows(context)
    copies = context.copies()
    copies = np.ones(context.m, np.int64) if copies is None else copies
    if inside is not None:
        U, copies = sp.csr_array(U[inside][:, inside]), copies[inside]
    for edges, power in POWERS.items():
        affinity = weighed(U, copies.astype(np.float64) ** power)
        solved = kernel.spectrum(affinity, c, kernel.EMBEDDING_TOL, seed, columns=c + 8, settled=kernel.SETTLED)
        points = kernel.embedding(solved, c)
        for means, other in POWERS.items():
            best: tuple[float, int, Integer] | None = None
            for columns in (c + 8, c):
                model = KMeans(c, n_init=rounding.RESTARTS, random_state=seed)
                weights = copies.astype(np.float64) ** other
                labels = model.fit(kernel.leading_columns(points, columns), sample_weight=weights).labels_
                cut = rounding.cut_of(affinity, labels, c)
                if best is None or cut < best[0]:
                    best = cut, columns, labels
            assert best is not None
            whole = best[2]
            if inside is not None:
                whole = np.full(context.m, -1, np.int32)
                whole[inside] = best[2]
                whole = whole[followed]
            record = _record(data, f"edges {edges}, k-means {means}", context.by_row(whole))
            yield {**record, **distinct, "columns": best[1], "cut": best[0]}


def measure(names: Sequence[str], seed: int = 0) -> Iterator[Record]:
    """A record for each data set and variant.

    Parameters
    ----------
    names : sequence of str
        As of `rounded`.
    seed : int
    """
    for name in names:
        with measuring():
            records = list(_variants(rounded(name, seed), seed))
        yield from records


def markdown(records: Sequence[Record]) -> str:
    """A table of NMI / ACC / ARI: a row for each variant, means and the largest loss to the unweighted one."""
    of = {(str(r["data"]), str(r["variant"])): np.array([float(str(r[name])) for name in SCORES]) for r in records}
    names = list(dict.fromkeys(name for name, _ in of))
    lines = [
        "| a sample of n rows counts | mean NMI / ACC / ARI | largest loss of NMI to counting once |",
        "|---|---|---|",
    ]
    plain = "edges one, k-means one"
    for variant in VARIANTS:
        have = [name for name in names if (name, variant) in of]
        if not have:
            continue
        mean = np.mean([of[name, variant] for name in have], axis=0)
        losses = {name: of[name, plain][0] - of[name, variant][0] for name in have}
        worst = max(losses, key=lambda name: losses[name])
        few = f" ({len(have)} sets)" if len(have) < len(names) else ""
        lines.append(
            f"| {variant} | {' / '.join(f'{value:.3f}' for value in mean)}{few} | {losses[worst]:.3f} ({worst}) |"
        )
    lines += ["", "| data | rows | distinct | " + " | ".join(v for v in VARIANTS if "," in v or v == "default") + " |"]
    lines.append("|---|" + "---|" * (lines[-1].count("|") - 2))
    about = {str(r["data"]): (int(str(r["m"])), int(str(r["distinct"]))) for r in records}
    for name in names:
        cells = [f"{of[name, v][0]:.3f}" for v in VARIANTS if ("," in v or v == "default") and (name, v) in of]
        m, distinct = about[name]
        lines.append(f"| {name} | {m:,} | {distinct:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
