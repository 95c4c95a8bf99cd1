"""The page of a run: its numbers, read once, and the sections with the pictures and tables of them."""

from __future__ import annotations

import shlex
from functools import partial
from typing import Any

import numpy as np

from ips2_dask import plots
from ips2_dask.errors import BadInput
from ips2_dask.kernels.density import MAX_LEFT_OUT
from ips2_dask.kernels.rounding import MAX_CUT, WALK
from ips2_dask.metrics import scores_of_table
from ips2_dask.params import LEAST_RECALL, Params
from ips2_dask.plan.choices import Choices, choose, partition_bounds, widest
from ips2_dask.plots.clusters import DRAWN
from ips2_dask.plots.style import KINDS, LAYOUTS
from ips2_dask.readers.features import Features, joined_list
from ips2_dask.reports.page import Bold, Code, Section, Table, figure, page
from ips2_dask.runs.layers import Layers
from ips2_dask.runs.layout import Layout
from ips2_dask.runs.run import Run
from ips2_dask.runs.sample import UNCERTAIN, shown
from ips2_dask.typing import Int64
from ips2_dask.wording import SCORES, WAYS, count, duration, option, size, stage_results, without_columns

UNSURE = 0.5
"""Certainty below which the page counts samples: most of their walks end in other clusters."""

LAYERED = 300_000
"""Samples up to which a page shows layers: a walk on U for each of them takes some seconds then."""

MAX_CLASS_COLUMNS = 12
"""Classes up to which the table of clusters and classes has a column for each."""


class ReportData:
    """A run, and the numbers of it that the page shows; the largest array in memory is the embedding of those shown.

    ``run`` is `runs.sample.shown`: its arrays have a row for each sample that was clustered, or for each drawn one.
    ``certainty`` is the mean, ``unsure`` the share of the samples below `UNSURE`, ``left_out`` how many the tree of a
    density left out, None where none made the labels. ``layout``, ``layers``, ``known`` may be None.
    """

    def __init__(self, run: Run) -> None:
        self.sizes = run.sizes  # (c,) int64
        self.n_samples = n = int(self.sizes.sum())
        certain, unsure, left_out = 0.0, 0, []
        for block in run.iter_labels():
            own = block.labels >= 0
            certain += float(block.certainty[own].sum(dtype=np.float64))
            unsure += int((block.certainty[own] < UNSURE).sum())
            left_out += [] if block.left_out is None else [int(block.left_out[own].sum())]
        self.certainty, self.unsure, self.left_out = certain / n, unsure / n, sum(left_out) if left_out else None
        self.run = run = shown(run)
        self.is_sample = len(run.samples) < run._context.m
        self.facts: dict[str, Any] = run.report()
        self.stages, self.spectrum = plots.spent(run), plots.spectrum(run)
        self.similarities = plots.summarize(run, profile=run.embedding is None)
        self.layout: Layout | None = _if_there(run, "layout")
        self.layers: Layers | None = _if_there(run, "layers") if run._context.m <= LAYERED else None
        rows = plots.points(run, self.similarities)
        self.coordinates = plots.coordinates(rows, run.labels)
        self.silhouettes = plots.silhouette(rows, run.labels)
        self.margins = plots.certainty(rows, run.labels)
        self.known = run.known_table()
        self.scores = {} if self.known is None else scores_of_table(self.known)

    @property
    def warnings(self) -> list[str]:
        """The stages' warnings, and promises that were not kept."""
        broken = [one for one in self.facts["promises"] if not one["kept"]]
        texts = [
            f"{one['promise']}: found {one['found']:.4g}, wanted {one['rule']} {one['wanted']:g}" for one in broken
        ]
        return [*self.facts["warnings"], *texts]


def _if_there(run: Run, name: str) -> Any:
    try:
        return getattr(run, name)
    except BadInput:
        return None


def render(run: Run) -> str:
    """The page as HTML."""
    data = ReportData(run)
    facts, manifest = data.facts, run.manifest
    whole = str(manifest["input"]["name"])
    distinct = ""
    if facts["distinct"] != facts["m"] - facts["dropped"]:
        distinct = f" ({facts['distinct']:,} of them distinct)"
    sizes = f"{facts['c']} clusters of {facts['m']:,} samples{distinct} × {facts['f']:,} features"
    parts = [_parameters, _stages, _eigenvalues, _similarities, _labels, _embedding, _doubtful]
    parts = [_clusters, *([_layers] if data.layers else []), *parts, *([] if data.known is None else [_known]), _again]
    return page(
        f"{run.params.method.upper()}: {whole.rstrip('/').rpartition('/')[2] or whole}",
        f"{sizes}, finished {manifest['finished']}",
        [part(data) for part in parts],
        tiles=_tiles(data),
        warnings=data.warnings,
        footer=f"Made by ips2_dask {manifest['versions']['ips2_dask']} from the run's stored arrays.",
    )


def _tiles(data: ReportData) -> list[tuple[str, str, str]]:
    """The most important numbers: name, value, and a remark."""
    facts, tol = data.facts, data.run.params.tol
    planned = max(max(stage.worker_bytes, stage.client_bytes) for stage in data.stages)
    gap = "none given" if facts["gap"] is None else f"{facts['gap']:.3g}"
    exact = "as exact as labels need" if tol is None else f"tolerance {tol:g}"
    scores = data.scores
    return [
        ("clusters", f"{facts['c']}", f"{data.sizes.min():,} to {data.sizes.max():,} samples"),
        ("certainty", f"{data.certainty:.3f}", f"mean; {data.unsure:.1%} of samples below {UNSURE}"),
        *([("NMI", f"{scores['nmi']:.3f}", f"ACC {scores['acc']:.3f}, known labels")] if scores else []),
        ("silhouette", f"{data.silhouettes.values.mean():.3f}", f"mean on the {data.coordinates.what}"),
        ("gap at c", gap, "after the last eigenvalue"),
        ("residual", f"{facts['residual_max']:.2g}", exact),
        ("graph recall", f"{facts['recall']:.4f}", f"{LEAST_RECALL} promised"),
        ("components", f"{facts['components']:,}", "of the tensor's pairs"),
        ("time", duration(sum(stage.seconds for stage in data.stages)), "all stages"),
        ("memory", size(facts["peak_rss_bytes"]), f"largest process, {size(planned)} planned"),
    ]


# ---- sections


def _clusters(data: ReportData) -> Section:
    """The samples in the plane, and the clusters' sizes and silhouettes."""
    run, silhouettes, labels = data.run, data.silhouettes, data.run.labels
    height = min(9.0, max(3.0, 1.1 + 0.26 * len(data.sizes)))
    m, n, what = data.n_samples, len(silhouettes.samples), data.coordinates.what
    some = f", of a random sample of {n:,} of {m:,}" if n < m else ""
    text = f"Silhouettes on the {what}{some}; each cluster's from the largest to the smallest, dashed the mean of all."
    drawings = [
        figure("sizes", "Samples of each cluster.", partial(plots.cluster_sizes, run), height=height),
        figure("silhouettes", text, partial(plots.silhouettes, run, precomputed=silhouettes), height=height),
    ]
    U, rows = data.similarities.means["fused"], []
    for cluster, n in enumerate(data.sizes.tolist()):
        values = silhouettes.values[labels[silhouettes.samples] == cluster]
        off, own = np.nan_to_num(np.delete(U[cluster], cluster)), data.similarities.own[labels == cluster]
        nearest = int(np.argmax(off)) if len(off) else 0
        nearest += nearest >= cluster
        spread = [f"{values.mean():.2f}", f"{values.min():.2f}", f"{(values < 0).mean():.0%}"] if len(values) else []
        within, shared = "–" if n < 2 else f"{U[cluster, cluster]:.3g}", f"{own.mean():.1%}" if len(own) else "–"
        near = f"{nearest} ({off.max():.2g})" if off.max(initial=0.0) > 0 else "–"
        rows.append([str(cluster), f"{n:,}", f"{n / m:.1%}", *(spread or ["–"] * 3), within, shared, near])
    head = ["cluster", "samples", "share", "silhouette", "lowest", "below 0"]
    head += ["mean U inside", "U with its own", "nearest (mean U)"]
    opening = [] if data.layout is None else _laid_out(data, data.layout)
    return Section("clusters", "Clusters", [*opening, drawings, Table("Clusters", head, rows, folds=True)])


def _laid_out(data: ReportData, layout: Layout) -> list[Any]:
    """What the layout is of, and its picture."""
    n, distinct, name = len(layout.samples), data.facts["distinct"], LAYOUTS[layout.method]
    text = (
        f"{name} lays samples out in the plane by the {layout.source}, so that samples that belong together are near "
        "each other. Distances between groups, and their sizes, mean little."
    )
    text += f" It has {n:,} of {distinct:,} samples, chosen at random by a fixed seed." if n < distinct else ""
    text += f" {DRAWN:,} of these are drawn." if n > DRAWN else ""
    text += " The paler a point, the less certain its label."
    if layout.method == "t-sne":
        text += " With umap-learn (pip install 'ips2-dask[layout]') it would be UMAP of the fused similarity."
    caption = f"{name} of the {layout.source}; pale points have an uncertain label."
    return [text, figure("layout", caption, partial(plots.layout, data.run, precomputed=layout), height=4.2)]


def _layers(data: ReportData) -> Section:
    """The cuts of the tree of density that persist, as a picture of a tree and as a table."""
    found, rows = data.layers, []
    assert found is not None
    text = (
        "A tree of density gives other clusters for other smallest sizes of a cluster. Shown are the cuts that "
        "persist, from few clusters to many. The stability of one is its persistence, how much shorter the distances "
        "are at which its clusters form than those at which they become one with others (0 to 1), times the logarithm "
        "of the range of smallest sizes over which it stays the same. Numbers of clusters are those of each layer, by "
        "first sample, and not those of the labels above."
    )
    width = min(9.6, max(4.7, 1.5 + 0.26 * max(layer.n_clusters for layer in found)))
    caption = "Layers, the fewest clusters at the top; the darker a cluster, the larger its persistence."
    drawing = figure("layers", caption, partial(plots.layers, found), width=width, height=1.2 + 0.9 * len(found))
    for layer in found:
        parts = [(cluster, layer.parts(cluster)) for cluster in range(layer.n_clusters)]
        splits = "; ".join(f"{cluster} → {', '.join(map(str, into))}" for cluster, into in parts if len(into) > 1)
        numbers = [f"{layer.stability:.2f}", f"{layer.persistence:.2f}"]
        each = f"{layer.each.min():.2f} to {layer.each.max():.2f}"
        rows.append([str(layer.n_clusters), *numbers, each, splits or "–"])
    head = ["clusters", "stability", "persistence", "of its clusters", "splits into, one layer below"]
    return Section("layers", "Layers", [text, drawing, Table("Layers", head, rows, (4,))])


def _parameters(data: ReportData) -> Section:
    """The parameters, the input, and what was chosen automatically."""
    manifest, usual = data.run.manifest, Params().as_dict()
    asked = [(name, *map(_text, (value, usual[name]))) for name, value in data.run.params.as_dict().items()]
    rows = [[name, value if value == default else Bold(value), default] for name, value, default in asked]
    m, f = manifest["input"]["shape"]
    choices = manifest["choices"]
    facts = {
        "input": manifest["input"]["name"],
        "samples × features": f"{m:,} × {f:,}",
        "distinct samples": f"{data.facts['distinct']:,}",
        "fingerprint": manifest["input"]["fingerprint"][:16],
        "partitions": f"{len(manifest['bounds']) - 1:,}",
        "sample graph": f"{choices['n_shards']} shards" if choices["n_shards"] else choices["graph"],
        "tensor operator": choices["operator"] + (", one matrix in memory" if choices.get("assembled") else ""),
        "block vectors": {"in-core": "in the client's memory", "chunked": "on the workers"}[choices["vectors"]],
        "started": manifest["started"],
        "finished": manifest["finished"],
        "run directory": data.run.path or "in memory",
    }
    tables = [
        Table("Parameters (bold: not the default)", ["parameter", "asked", "default"], rows, (0, 1, 2)),
        Table("Input and automatic choices", ["", ""], list(facts.items()), (0, 1)),
    ]
    return Section("asked", "What was asked", [tables])


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _stages(data: ReportData) -> Section:
    """The time and memory of each stage, and the memory and disk that were planned."""
    memory = "The largest process so far, in MiB, and the plan's upper limit for one process in that stage."
    drawings = [
        figure("times", "Seconds of each stage, by the clock.", partial(plots.stage_times, data.stages), height=2.9),
        figure("memory", memory, partial(plots.stage_memory, data.stages), height=2.9),
    ]
    words, rows = stage_results(data.facts), []
    for stage in data.stages:
        seconds = f"{stage.seconds:.2f}" + (" *" if stage.reused else "")
        sizes = [size(n) for n in (stage.peak_bytes, stage.worker_bytes, stage.client_bytes, stage.disk_bytes)]
        rows.append([stage.name, words[stage.name], seconds, *sizes])
    head = ["stage", "found", "seconds", "largest process", "plan: a worker", "plan: client", "plan: disk"]
    caption = "Stages" + (", * found there and not computed again" if any(s.reused for s in data.stages) else "")
    return Section("stages", "Stages", [drawings, Table(caption, head, rows, (1,))])


def _eigenvalues(data: ReportData) -> Section:
    """The spectrum with the gap at c, and the solver's convergence."""
    found, history = data.spectrum, data.run._context.facts["eigen"]["history"]
    caption = "The leading eigenvalues of the unfolded tensor's Laplacian"
    caption += f", those of {count(found.left_out, 'connected component')} left out" if found.left_out else ""
    drawings = [figure("eigenvalues", f"{caption}.", partial(plots.eigenvalues, found))]
    text = "This solve gave no eigenvalue beyond those that V is made of, so no gap is shown."
    if found.gap is not None:
        text = f"The gap after the last of them is {found.gap:.3g}: the wider it is, the less V depends on where it is "
        text += "cut."
    values = [*found.values.tolist(), *([] if found.following is None else [found.following])]
    rows = []
    for number, value in enumerate(values, 1):
        kind = "connected component" if number <= found.components else "in V"
        kind = "the next one" if number > len(found.values) else kind
        following = f"{value - values[number]:.3g}" if number < len(values) else "–"
        rows.append([str(number), f"{value:.6f}", following, kind])
    table = Table("Eigenvalues", ["number", "eigenvalue", "down to the next", ""], rows, (3,), folds=True)
    if history:
        text_of = "The largest residual among the wanted pairs."
        drawings.append(figure("convergence", text_of, partial(plots.convergence, data.run)))
    return Section("eigenvalues", "Eigenvalues", [text, drawings, table])


def _similarities(data: ReportData) -> Section:
    """The three similarities and their distributions; pairs within a cluster beside pairs between two."""
    summary, m, sizes = data.similarities, data.n_samples, data.sizes
    n = len(summary.cells["fused"])
    text = f"Samples in the order of their clusters; each of the {n} × {n} cells is the mean of a block of pairs."
    if n == m:
        text = "Samples in the order of their clusters, every pair as it is."
    text += " Most pairs are 0; the tones follow the cube root, so that weak blocks show." if summary.sparse else ""
    text += " This is PPC: U is V." if data.run.params.method == "ppc" else ""
    maps, bars, rows = [], [], []
    weight = np.outer(sizes, sizes) - np.diag(sizes)
    for kind, name in KINDS.items():
        draw, more = partial(plots.similarity, summary, kind), f"Pairs by their {name}, those of similarity 0 left out."
        maps.append(figure(f"map-{kind}", f"Similarity by cluster: {name}.", draw, width=3.9, height=3.5))
        bars.append(figure(f"values-{kind}", more, partial(plots.distribution, summary, kind), width=3.9, height=2.8))
        found, sums = summary.distributions[kind], np.nan_to_num(summary.means[kind]) * weight / 2
        inside = float(np.trace(sums)) / max(found.pairs[0], 1)
        outside = float(sums.sum() - np.trace(sums)) / max(found.pairs[1], 1)
        ratio = f"{inside / outside:,.0f}" if outside > 0 else "–"
        stored = [f"{int(counts.sum()):,}" for counts in (found.within, found.between)]
        rows.append([name, *stored, f"{inside:.3g}", f"{outside:.3g}", ratio, f"{found.edges[-1]:.3g}"])
    head = ["similarity", "pairs ≠ 0 within", "between", "mean within", "between", "ratio", "largest"]
    table = Table(f"Pairs of one cluster and of two, of {m * (m - 1) // 2:,} in all", head, rows)
    return Section("similarities", "Similarities", [text, maps, bars, table])


def _labels(data: ReportData) -> Section:
    """The candidate labellings, and how certain the chosen labels are."""
    params, found = data.run.params, data.facts["roundings"]
    density = any(one["rounding"] == "density" for one in found)
    ways = "k-means and by density (leaves of HDBSCAN*'s tree)" if density else "k-means"
    where = "rows of U" if params.clusters_rows else "columns of the embedding"
    if params.assign_labels == "leiden":
        ways, where = "Leiden's communities", "the graph of U"
    text = (
        f"Labels were looked for by {ways} on {where}. The normalised cut is, summed over the clusters, the share of "
        "their similarity in U that leads out of them: the lower, the clearer they are apart."
    )
    rules = {
        "auto": f" The density that leaves out the fewest samples, at most {MAX_LEFT_OUT:.0%}, is chosen if its cut is "
        f"at most {MAX_CUT:g} times that of the best k-means; otherwise this k-means is.",
        "density": " Density was asked for: the one that leaves out the fewest samples is chosen.",
        "kmeans": "" if params.clusters_rows else " The k-means of the smallest cut is chosen.",
    }
    text += rules.get(params.assign_labels if density else "kmeans" if where != "the graph of U" else "", "")
    certain = "The certainty of a label is the probability that a random walk on U ends in the sample's own cluster, "
    certain += f"{WALK} steps from the sample. Its mean is {data.certainty:.3f}; {data.unsure:.1%} of the samples "
    certain += f"are below {UNSURE}."
    rest, rows = [], []
    if data.left_out is not None:
        rest = [f"Samples that the tree left out, and that got their labels from U: {data.left_out:,}."]
    for one in found:
        numbers = [str(one["columns"] or without_columns(one)), str(one["clusters"] or "none")]
        numbers.append("–" if one["cut"] is None else f"{one['cut']:.3f}")
        numbers.append(f"{one['left_out']:.1%}" if one["rounding"] == "density" and one["clusters"] else "–")
        rows.append([WAYS[one["rounding"]], *numbers, Bold("yes") if one["chosen"] else "no"])
    head = ["labels by", "columns", "clusters", "normalised cut", "left out", "chosen"]
    table = Table("Ways to find the labels", head, rows, (5,))
    return Section("labels", "Labels", [text, certain, *rest, table])


def _embedding(data: ReportData) -> Section:
    """Scatters of the first two or three discriminating coordinates, and the clusters' centres in them."""
    run, found, m = data.run, data.coordinates, data.n_samples
    text = (
        f"The {found.what} of the samples, seen along the directions in which the clusters' centres spread most "
        "(in brackets: the share of that spread). Numbers stand at the median of each cluster."
    )
    text += f" {DRAWN:,} of {m:,} samples are drawn, chosen at random by a fixed seed." if m > DRAWN else ""
    if data.is_sample:
        text += f" Coordinates, silhouettes and margins are of {len(run.labels):,} samples: drawn, and the "
        text += "least certain ones."
    text += " The paler a point, the less certain its label."
    drawings = []
    for axes in [(0, 1), (0, 2)][: max(1, found.values.shape[1] - 1)]:
        a, b = axes[0] + 1, axes[1] + 1
        caption = f"Directions {a} and {b} of the {found.what}; pale points have an uncertain label."
        draw = partial(plots.embedding, run, axes=axes, precomputed=found)
        drawings.append(figure(f"embedding-{a}{b}", caption, draw, height=4.2))
    return Section("embedding", "Embedding", [text, drawings])


def _doubtful(data: ReportData) -> Section:
    """The samples of the lowest certainty."""
    text = (
        "The samples of the lowest certainty, see Labels. "
        "The margin compares the distances in the embedding to the nearest other centre and to the own one, "
        "(b - a) / max(a, b): 1 is clear, 0 is half-way, below 0 is nearer to the other. Beside it the share of the "
        "sample's fused similarity that is with its own cluster. Samples are numbered from 0 in the input's order."
    )
    (margin, other), run, rows = data.margins, data.run, []
    known = run.known_labels
    for i in np.argsort(run.certainty, kind="stable")[:UNCERTAIN]:
        numbers = f"{run.certainty[i]:.3f}", f"{margin[i]:.3f}", f"{data.similarities.own[i]:.0%}"
        classes = [] if known is None else [str(known[i])]
        rows.append([f"{run.rows[i]:,}", str(run.labels[i]), str(other[i]), *numbers, *classes])
    head = ["sample", "cluster", "next cluster", "certainty", "margin", "U with its own"]
    table = Table(f"The {len(rows)} least certain samples", [*head, *([] if known is None else ["known label"])], rows)
    return Section("doubtful", "Least certain samples", [text, table])


def _known(data: ReportData) -> Section:
    """The scores against known labels, and the samples that each cluster and class share."""
    assert data.known is not None
    counts: Int64 = data.known.toarray().T[: len(data.sizes)]
    if counts.shape[1] <= MAX_CLASS_COLUMNS:
        head = ["cluster", *(f"class {j}" for j in range(counts.shape[1]))]
        body = [[Bold(f"{x:,}") if x == row.max() else f"{x:,}" for x in row] for row in counts]
    else:
        head, body = ["cluster", "its largest classes"], [[_largest(row)] for row in counts]
    scores = Table("Scores", ["measure", "value"], [[SCORES[k], f"{v:.4f}"] for k, v in data.scores.items()])
    rows = [[str(i), *row] for i, row in enumerate(body)]
    words = (1,) if len(head) == 2 else ()
    return Section("known", "Known labels", [scores, Table("Clusters and known classes", head, rows, words, True)])


def _largest(row: Int64) -> str:
    """The five largest classes of a cluster, and how many samples; ``row``: samples of each class, (classes,)."""
    places = [j for j in np.argsort(-row, kind="stable")[:5] if row[j]]
    return ", ".join(f"{j}: {row[j]:,}" for j in places) + (" …" if np.count_nonzero(row) > len(places) else "")


def _again(data: ReportData) -> Section:
    """The command that repeats the run, and the versions it ran with."""
    text = "On one machine and with the same versions it gives the same labels, bit for bit."
    versions = Table("Versions", ["package", "version"], list(data.run.manifest["versions"].items()), (1,))
    return Section("again", "Make it again", [Code(command(data.run)), text, versions])


def command(run: Run) -> str:
    """The command that repeats the run: ``ips2 run`` for a file, a Python call for data that came from a program."""
    source = run.manifest["input"]
    m, f = source["shape"]
    defaults, usual, bounds = Params().as_dict(), Features().as_dict(), tuple(run.manifest["bounds"])
    params = {name: value for name, value in run.params.as_dict().items() if value != defaults[name]}
    if run.params.max_clusters is not None:
        params.pop("n_clusters", None)  # the run was to choose it
    resources: dict[str, Any] = {} if bounds == partition_bounds(m, f) else {"partition_rows": bounds[1]}
    vectors = run.manifest["choices"]["vectors"]
    chosen: Choices = choose(m, f, widest(run.params, m), rows=resources.get("partition_rows"))
    if vectors != chosen.vectors:
        resources["vectors"] = vectors
    features = {name: value for name, value in source.get("features", {}).items() if value != usual[name]}
    if source.get("location") is None:
        called = [f"X, ips2_dask.Params({_arguments(params)})"]
        called += [f"ips2_dask.Resources({_arguments(resources)})"] if resources else []
        called += [f"store={run.path!r}"] if run.path else []
        called += [f"features=ips2_dask.Features({_arguments(features)})"] if features else []
        return f"ips2_dask.run({', '.join(called)})"
    words = ["ips2", "run", source["location"], "--out", run.path or "run"]
    if source.get("labels_column") is not None:
        words += ["--labels-column", str(source["labels_column"])]
    words += ["--transpose"] if source.get("transpose") else []
    listed = {name: value if name == "missing" else joined_list(value) for name, value in features.items()}
    chooses = {"n_clusters": "auto"} if run.params.max_clusters is not None else {}
    for name, value in {**listed, **source.get("text", {}), **chooses, **params, **resources}.items():
        words += [option(name), f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


def _arguments(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())
