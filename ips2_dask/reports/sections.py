"""The sections of a run's report: figures, and the numbers below them."""

from __future__ import annotations

from functools import partial

from markupsafe import Markup

from ips2_dask import plots
from ips2_dask.kernels.density import MAX_LEFT_OUT
from ips2_dask.kernels.rounding import MAX_CUT, WALK
from ips2_dask.plots.clusters import DRAWN
from ips2_dask.plots.spectrum import stage_facts
from ips2_dask.plots.style import KINDS, LAYOUTS
from ips2_dask.reports import tables
from ips2_dask.reports.data import UNSURE, ReportData, Totals
from ips2_dask.reports.html import Section, group, paragraph, preformatted
from ips2_dask.reports.remake import command
from ips2_dask.reports.svg import picture
from ips2_dask.runs.layout import Layout
from ips2_dask.wording import count


def parameters(data: ReportData) -> Section:
    """The parameters, the input, and what was chosen automatically."""
    return Section("asked", "What was asked", [group("tables", [tables.parameters(data), tables.surroundings(data)])])


def stages(data: ReportData) -> Section:
    """The time and memory of each stage."""
    times = picture(
        "times", "Seconds of each stage, by the clock.", partial(plots.stage_times, data.stages), height=2.9
    )
    memory = picture(
        "memory",
        "The largest process so far, in MiB, and the plan's upper limit for one process in that stage.",
        partial(plots.stage_memory, data.stages),
        height=2.9,
    )
    return Section("stages", "Stages", [_figures([times, memory], two=True), tables.stages(data)])


def eigenvalues(data: ReportData) -> Section:
    """The spectrum with the gap at c, and the solver's convergence."""
    shown, run = data.spectrum, data.run
    caption = "The leading eigenvalues of the unfolded tensor's Laplacian"
    caption += f", those of {count(shown.left_out, 'connected component')} left out" if shown.left_out else ""
    drawings = [picture("eigenvalues", f"{caption}.", partial(plots.eigenvalues, shown))]
    text = (
        f"The gap after the last of them is {shown.gap:.3g}: the wider it is, the less V depends on where it is cut."
        if shown.gap is not None
        else "This solve gave no eigenvalue beyond those that V is made of, so no gap is shown."
    )
    if stage_facts(run)["eigen"]["history"]:
        drawings.append(
            picture("convergence", "The largest residual among the wanted pairs.", partial(plots.convergence, run))
        )
    numbers = group("tables", [tables.eigenvalues(data), tables.history(data)])
    return Section("eigenvalues", "Eigenvalues", [paragraph(text), _figures(drawings, two=True), numbers])


def similarities(data: ReportData) -> Section:
    """The three similarities and their distributions."""
    summary, m = data.similarities, data.n_samples
    n = len(summary.cells["fused"])
    text = f"Samples in the order of their clusters; each of the {n} × {n} cells is the mean of a block of pairs."
    if n == m:
        text = "Samples in the order of their clusters, every pair as it is."
    if summary.sparse:
        text += " Most pairs are 0; the tones follow the cube root, so that weak blocks can be seen."
    if data.run.params.method == "ppc":
        text += " This is PPC: U is V."
    maps = [
        picture(
            f"map-{kind}",
            f"Similarity by cluster: {name}.",
            partial(plots.similarity, summary, kind),
            width=3.9,
            height=3.5,
            tones=True,
        )
        for kind, name in KINDS.items()
    ]
    bars = [
        picture(
            f"values-{kind}",
            f"Pairs by their {name}, those of similarity 0 left out.",
            partial(plots.distribution, summary, kind),
            width=3.9,
            height=2.8,
        )
        for kind, name in KINDS.items()
    ]
    return Section(
        "similarities", "Similarities", [paragraph(text), _figures([*maps, *bars]), tables.similarities(data)]
    )


def labels(data: ReportData) -> Section:
    """The candidate labellings, and how certain the chosen labels are."""
    params = data.run.params
    density = any(one["rounding"] == "density" for one in data.facts["roundings"])
    ways = "k-means and by density (leaves of HDBSCAN*'s tree)" if density else "k-means"
    where = "rows of U" if params.clusters_rows else "columns of the embedding"
    if params.assign_labels == "leiden":
        ways, where = "Leiden's communities", "the graph of U"
    text = (
        f"Labels were looked for by {ways} on {where}. The normalised cut is, summed over the clusters, the share of "
        "their similarity in U that leads out of them: the lower, the clearer they are apart."
    )
    if density and params.assign_labels == "auto":
        text += (
            f" The density that leaves out the fewest samples, at most {MAX_LEFT_OUT:.0%}, is chosen if its cut is at "
            f"most {MAX_CUT:g} times that of the best k-means; otherwise this k-means is."
        )
    elif density:
        text += " Density was asked for: the one that leaves out the fewest samples is chosen."
    elif not params.clusters_rows and params.assign_labels != "leiden":
        text += " The k-means of the smallest cut is chosen."
    blocks = [paragraph(text)]
    found = data.totals
    if found.certainty is not None:
        blocks.append(paragraph(_certain(found)))
    if found.left_out is not None:
        text = f"Samples that the tree left out, and that got their labels from U: {found.left_out:,}."
        blocks.append(paragraph(text))
    return Section("labels", "Labels", [*blocks, tables.roundings(data)])


def _certain(found: Totals) -> str:
    """The definition of certainty, its mean, and the share of samples below `UNSURE`."""
    return (
        f"The certainty of a label is the probability that a random walk on U ends in the sample's own cluster, {WALK} "
        f"steps from the sample. Its mean is {found.certainty:.3f}; {found.unsure:.1%} of the samples "
        f"are below {UNSURE}."
    )


def embedding(data: ReportData) -> Section:
    """Scatters of the first two or three discriminating coordinates."""
    run, coordinates = data.run, data.coordinates
    m = data.n_samples
    text = (
        f"The {coordinates.what} of the samples, seen along the directions in which the clusters' centres spread most "
        "(in brackets: the share of that spread). Numbers stand at the median of each cluster."
    )
    text += f" {DRAWN:,} of {m:,} samples are drawn, chosen at random by a fixed seed." if m > DRAWN else ""
    if data.is_sample:
        text += (
            f" Coordinates, silhouettes and margins are of {len(run.labels):,} samples: drawn, and the "
            "least certain ones."
        )
    text += "" if data.certainty is None else " The paler a point, the less certain its label."
    planes = [(0, 1), (0, 2)][: max(1, coordinates.values.shape[1] - 1)]
    pale = "" if data.certainty is None else "; pale points have an uncertain label"
    drawings = [
        picture(
            f"embedding-{a + 1}{b + 1}",
            f"Directions {a + 1} and {b + 1} of the {coordinates.what}{pale}.",
            partial(plots.embedding, run, axes=(a, b), precomputed=coordinates),
            height=4.2,
        )
        for a, b in planes
    ]
    return Section("embedding", "Embedding", [paragraph(text), _figures(drawings, two=True), tables.centers(data)])


def clusters(data: ReportData) -> Section:
    """The samples in the plane, and the clusters' sizes and silhouettes."""
    run, silhouettes = data.run, data.silhouettes
    height = min(9.0, max(3.0, 1.1 + 0.26 * len(data.sizes)))
    m, n = data.n_samples, len(silhouettes.samples)
    caption = f"Silhouettes on the {data.coordinates.what}"
    caption += f", of a random sample of {n:,} of {m:,}" if n < m else ""
    drawings = [
        picture("sizes", "Samples of each cluster.", partial(plots.cluster_sizes, run), height=height),
        picture(
            "silhouettes",
            f"{caption}; each cluster's from the largest to the smallest, dashed the mean of all.",
            partial(plots.silhouettes, run, precomputed=silhouettes),
            height=height,
        ),
    ]
    opening = [] if data.layout is None else _laid_out(data, data.layout)
    return Section("clusters", "Clusters", [*opening, _figures(drawings, two=True), tables.clusters(data)])


def layers(data: ReportData) -> Section:
    """The cuts of the tree of density that persist, as a picture of a tree and as a table."""
    found = data.layers
    assert found is not None
    text = (
        "A tree of density gives other clusters for other smallest sizes of a cluster. Shown are the cuts that "
        "persist, from few clusters to many. The stability of one is its persistence, how much shorter the distances "
        "are at which its clusters form than those at which they become one with others (0 to 1), times the logarithm "
        "of the range of smallest sizes over which it stays the same. Numbers of clusters are those of each layer, by "
        "first sample, and not those of the labels above."
    )
    most = max(layer.n_clusters for layer in found)
    drawing = picture(
        "layers",
        "Layers, the fewest clusters at the top; the darker a cluster, the larger its persistence.",
        partial(plots.layers, found),
        width=min(9.6, max(4.7, 1.5 + 0.26 * most)),
        height=1.2 + 0.9 * len(found),
    )
    return Section("layers", "Layers", [paragraph(text), _figures([drawing]), tables.layers(found)])


def _laid_out(data: ReportData, layout: Layout) -> list[Markup]:
    """What the layout is of, and its picture."""
    n, distinct = len(layout.samples), data.facts["distinct"]
    name = LAYOUTS[layout.method]
    text = (
        f"{name} lays samples out in the plane by the {layout.source}, so that samples that belong together are near "
        "each other. Distances between groups, and their sizes, mean little."
    )
    text += f" It has {n:,} of {distinct:,} samples, chosen at random by a fixed seed." if n < distinct else ""
    text += f" {DRAWN:,} of these are drawn." if n > DRAWN else ""
    text += "" if data.certainty is None else " The paler a point, the less certain its label."
    if layout.method == "t-sne":
        text += " With umap-learn (pip install 'ips2-dask[layout]') it would be UMAP of the fused similarity."
    pale = "" if data.certainty is None else "; pale points have an uncertain label"
    drawing = picture(
        "layout",
        f"{name} of the {layout.source}{pale}.",
        partial(plots.layout, data.run, precomputed=layout),
        height=4.2,
    )
    return [paragraph(text), _figures([drawing])]


def uncertain_samples(data: ReportData) -> Section:
    """The least certain samples."""
    text = "" if data.certainty is None else "The samples of the lowest certainty, see Labels. "
    text += (
        "The margin compares the distances in the embedding to the nearest other centre and to the own one, "
        "(b - a) / max(a, b): 1 is clear, 0 is half-way, below 0 is nearer to the other. Beside it the share of the "
        "sample's fused similarity that is with its own cluster. Samples are numbered from 0 in the input's order."
    )
    return Section("doubtful", "Least certain samples", [paragraph(text), tables.uncertain_samples(data)])


def known_labels(data: ReportData) -> Section:
    """Scores of the clusters against known labels."""
    return Section("known", "Known labels", [tables.known_labels(data)])


def rerun(data: ReportData) -> Section:
    """The command that repeats the run, and the versions it ran with."""
    return Section(
        "again",
        "Make it again",
        [
            preformatted(command(data.run)),
            paragraph("On one machine and with the same versions it gives the same labels, bit for bit."),
            tables.versions(data),
        ],
    )


def _figures(drawings: list[Markup], *, two: bool = False) -> Markup:
    """Figures side by side where the page is wide enough, at most two in a line with ``two``."""
    return group("figures two" if two else "figures", drawings)
