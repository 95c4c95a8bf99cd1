"""The tables of a run's report: the numbers below its figures."""

from __future__ import annotations

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from ips2_dask.params import Params
from ips2_dask.plots.spectrum import stage_facts
from ips2_dask.plots.style import KINDS
from ips2_dask.reports.data import ReportData
from ips2_dask.reports.html import Cell, Row, folded, group, table
from ips2_dask.runs.layers import Layers
from ips2_dask.runs.sample import UNCERTAIN
from ips2_dask.wording import WAYS, size, stage_results, without_columns

LONG = 20
"""Rows above which a table opens with a click."""

MAX_CLASS_COLUMNS = 12
"""Classes up to which the table of clusters and classes has a column for each."""


STACKED = 6
"""Columns from which on a narrow screen shows a row as lines of names and values."""


def _table(caption: str, head: list[str], rows: list[Row]) -> Markup:
    """A table with space around it; one of many columns is stacked on a narrow screen."""
    return group("table", [table(caption, head, rows, stacked=len(head) >= STACKED)])


def _long_table(caption: str, head: list[str], rows: list[Row]) -> Markup:
    """A table that opens with a click if it has more than `LONG` rows."""
    whole = _table(caption, head, rows)
    return folded(f"{caption} ({len(rows)} rows)", whole) if len(rows) > LONG else whole


def parameters(data: ReportData) -> Markup:
    """The table of every parameter: its value in this run, and its default."""
    usual = Params().as_dict()
    rows = [
        Row([name, Cell(_text(value), "text", "set" if value != usual[name] else ""), Cell(_text(usual[name]), "text")])
        for name, value in data.run.params.as_dict().items()
    ]
    return _table("Parameters (bold: not the default)", ["parameter", "asked", "default"], rows)


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def surroundings(data: ReportData) -> Markup:
    """The table of the input, and of the choices that the plan made automatically."""
    manifest = data.run.manifest
    m, f = manifest["input"]["shape"]
    choices = manifest["choices"]
    vectors = {"in-core": "in the client's memory", "chunked": "in chunks on the workers"}
    facts = {
        "input": manifest["input"]["name"],
        "samples × features": f"{m:,} × {f:,}",
        "distinct samples": f"{data.facts['distinct']:,}",
        "fingerprint": manifest["input"]["fingerprint"][:16],
        "partitions": f"{len(manifest['bounds']) - 1:,}",
        "sample graph": f"{choices['n_shards']} shards" if choices["n_shards"] else choices["graph"],
        "tensor operator": choices["operator"] + (", one matrix in memory" if choices.get("assembled") else ""),
        "block vectors": vectors[choices["vectors"]],
        "started": manifest["started"],
        "finished": manifest["finished"],
        "run directory": data.run.path or "in memory",
    }
    rows = [Row([name, Cell(text, "text")]) for name, text in facts.items()]
    return _table("Input and automatic choices", ["", ""], rows)


def stages(data: ReportData) -> Markup:
    """The table of the stages: the result, time and memory of each, and the memory and disk that were planned."""
    words = stage_results(data.facts)
    rows = []
    for stage in data.stages:
        seconds = f"{stage.seconds:.2f}" + (" *" if stage.reused else "")
        planned = [size(n) for n in (stage.worker_bytes, stage.client_bytes, stage.disk_bytes)]
        rows.append(Row([stage.name, Cell(words[stage.name], "text"), seconds, size(stage.peak_bytes), *planned]))
    head = ["stage", "found", "seconds", "largest process", "plan: a worker", "plan: client", "plan: disk"]
    caption = "Stages" + (", * found there and not computed again" if any(s.reused for s in data.stages) else "")
    return _table(caption, head, rows)


def eigenvalues(data: ReportData) -> Markup:
    """The table of the eigenvalues, each with its distance to the next."""
    shown = data.spectrum
    values = [*shown.values.tolist(), *([] if shown.following is None else [shown.following])]
    rows = []
    for number, value in enumerate(values, 1):
        kind = "connected component" if number <= shown.components else "in V"
        following = f"{value - values[number]:.3g}" if number < len(values) else "–"
        if number > len(shown.values):
            kind = "the next one"
        rows.append(Row([str(number), f"{value:.6f}", following, Cell(kind, "text")]))
    return _long_table("Eigenvalues", ["number", "eigenvalue", "down to the next", ""], rows)


def history(data: ReportData) -> Markup:
    """The table of the solver's cycles: the largest residual after so many products; empty without a history."""
    cycles = stage_facts(data.run)["eigen"]["history"]
    rows = [Row([str(entry["products"]), f"{entry['residual']:.3g}"]) for entry in cycles]
    return _long_table("Largest wanted residual", ["products", "residual"], rows) if rows else Markup()


def similarities(data: ReportData) -> Markup:
    """The table that compares pairs within a cluster and pairs between two, for each of the three similarities."""
    rows = []
    sizes = data.sizes
    weight = np.outer(sizes, sizes) - np.diag(sizes)
    for kind, name in KINDS.items():
        shown = data.similarities.distributions[kind]
        sums = np.nan_to_num(data.similarities.means[kind]) * weight / 2
        inside = float(np.trace(sums)) / max(shown.pairs[0], 1)
        outside = float(sums.sum() - np.trace(sums)) / max(shown.pairs[1], 1)
        stored = [int(counts.sum()) for counts in (shown.within, shown.between)]
        ratio = f"{inside / outside:,.0f}" if outside > 0 else "–"
        counts = [f"{n:,}" for n in stored]
        rows.append(Row([name, *counts, f"{inside:.3g}", f"{outside:.3g}", ratio, f"{shown.edges[-1]:.3g}"]))
    head = ["similarity", "pairs ≠ 0 within", "between", "mean within", "between", "ratio", "largest"]
    m = data.n_samples
    return _table(f"Pairs of one cluster and of two, of {m * (m - 1) // 2:,} in all", head, rows)


def clusters(data: ReportData) -> Markup:
    """The table of the clusters: the size, silhouette, cohesion and nearest other cluster of each."""
    U, sizes = data.similarities.means["fused"], data.sizes
    silhouettes, labels = data.silhouettes, data.run.labels
    rows = []
    for cluster, n in enumerate(sizes):
        values = silhouettes.values[labels[silhouettes.samples] == cluster]
        off = np.nan_to_num(np.delete(U[cluster], cluster))
        nearest = int(np.argmax(off)) if len(off) else 0
        nearest += nearest >= cluster
        own = data.similarities.own[labels == cluster]
        spread = [f"{values.mean():.2f}", f"{values.min():.2f}", f"{(values < 0).mean():.0%}"] if len(values) else []
        within = "–" if n < 2 else f"{U[cluster, cluster]:.3g}"
        near = f"{nearest} ({off.max():.2g})" if off.max(initial=0.0) > 0 else "–"
        shared = f"{float(own.mean()):.1%}" if len(own) else "–"
        cells = [f"{n:,}", f"{n / sizes.sum():.1%}", *(spread or ["–"] * 3), within, shared, near]
        rows.append(Row([str(cluster), *cells]))
    head = [
        "cluster",
        "samples",
        "share",
        "silhouette",
        "lowest",
        "below 0",
        "mean U inside",
        "U with its own",
        "nearest (mean U)",
    ]
    return _long_table("Clusters", head, rows)


def layers(found: Layers) -> Markup:
    """The table of the layers: clusters, stability and persistence of each, and which cluster splits into which."""
    rows = []
    for layer in found:
        parts = [(cluster, layer.parts(cluster)) for cluster in range(layer.n_clusters)]
        splits = "; ".join(f"{cluster} → {', '.join(map(str, into))}" for cluster, into in parts if len(into) > 1)
        each = f"{layer.each.min():.2f} to {layer.each.max():.2f}"
        numbers = [f"{layer.stability:.2f}", f"{layer.persistence:.2f}", each]
        rows.append(Row([str(layer.n_clusters), *numbers, Cell(splits or "–", "text")]))
    head = ["clusters", "stability", "persistence", "of its clusters", "splits into, one layer below"]
    return _table("Layers", head, rows)


def roundings(data: ReportData) -> Markup:
    """The table of the candidate labellings, and which of them was chosen."""
    rows = []
    for one in data.facts["roundings"]:
        density = one["rounding"] == "density"
        cut = "–" if one["cut"] is None else f"{one['cut']:.3f}"
        left_out = f"{one['left_out']:.1%}" if density and one["clusters"] else "–"
        chosen = Cell("yes", "text", "set") if one["chosen"] else Cell("no", "text")
        columns, clusters = str(one["columns"] or without_columns(one)), str(one["clusters"] or "none")
        rows.append(Row([WAYS[one["rounding"]], columns, clusters, cut, left_out, chosen]))
    head = ["labels by", "columns", "clusters", "normalised cut", "left out", "chosen"]
    return _table("Ways to find the labels", head, rows)


def centers(data: ReportData) -> Markup:
    """The table of the clusters' centres: mean and standard deviation of each coordinate of the scatter."""
    positions, labels = data.coordinates.values, data.run.labels
    rows = []
    for cluster in range(len(data.sizes)):
        some = positions[labels == cluster]
        if not len(some):  # none of the samples shown is of it
            rows.append(Row([str(cluster), *(["–"] * positions.shape[1])]))
            continue
        cells = [f"{mean:.3f} ± {std:.3f}" for mean, std in zip(some.mean(axis=0), some.std(axis=0), strict=True)]
        rows.append(Row([str(cluster), *cells]))
    head = ["cluster", *(f"coordinate {n + 1}" for n in range(positions.shape[1]))]
    return _long_table("Mean ± standard deviation of each cluster", head, rows)


def uncertain_samples(data: ReportData) -> Markup:
    """The table of the samples of the lowest certainty; of the lowest margin, if the run stores no certainty."""
    (margin, other), sure = data.margins, data.certainty
    labels, classes = data.run.labels, data.run.known_labels
    rows = []
    for sample in np.argsort(margin if sure is None else sure, kind="stable")[:UNCERTAIN]:
        own = f"{data.similarities.own[sample]:.0%}"
        certain = [] if sure is None else [f"{sure[sample]:.3f}"]
        cells = [
            f"{data.run.rows[sample]:,}",
            str(labels[sample]),
            str(other[sample]),
            *certain,
            f"{margin[sample]:.3f}",
            own,
        ]
        rows.append(Row([*cells, *([] if classes is None else [str(classes[sample])])]))
    head = [
        "sample",
        "cluster",
        "next cluster",
        *([] if sure is None else ["certainty"]),
        "margin",
        "U with its own",
        *([] if classes is None else ["known label"]),
    ]
    return _table(f"The {len(rows)} least certain samples", head, rows)


def known_labels(data: ReportData) -> Markup:
    """The tables of the scores against known labels, and of the samples that each cluster and class share."""
    names = {"acc": "ACC", "nmi": "NMI", "ari": "ARI", "fscore": "F-score", "purity": "purity"}
    scores = _table("Scores", ["measure", "value"], [Row([names[k], f"{v:.4f}"]) for k, v in data.scores.items()])
    assert data.known is not None
    counts = data.known.toarray().T[: len(data.sizes)]
    n = counts.shape[1]
    if n <= MAX_CLASS_COLUMNS:
        head = ["cluster", *(f"class {j}" for j in range(n))]
        rows = [
            Row([str(i), *(Cell(f"{x:,}", "set" if x == row.max() else "") for x in row)])
            for i, row in enumerate(counts)
        ]
    else:
        head = ["cluster", "its largest classes"]
        rows = [Row([str(i), Cell(_largest(row), "text")]) for i, row in enumerate(counts)]
    return scores + _long_table("Clusters and known classes", head, rows)


def _largest(row: NDArray[np.int64]) -> str:
    """The five largest classes of a cluster, and how many samples; ``row``: samples of each class, (classes,)."""
    places = [j for j in np.argsort(-row, kind="stable")[:5] if row[j]]
    return ", ".join(f"{j}: {row[j]:,}" for j in places) + (" …" if np.count_nonzero(row) > len(places) else "")


def versions(data: ReportData) -> Markup:
    """Versions of the packages that the numbers depend on."""
    rows = [Row([name, Cell(text, "text")]) for name, text in data.run.manifest["versions"].items()]
    return _table("Versions", ["package", "version"], rows)
