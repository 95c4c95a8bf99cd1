"""The numbers of a run's report, read from the run once for all sections."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ips2_dask.errors import BadInput
from ips2_dask.metrics import scores_of_table
from ips2_dask.params import LEAST_RECALL
from ips2_dask.plots.points import (
    Certainty,
    Coordinates,
    Silhouettes,
    certainty,
    coordinates,
    points,
    silhouette,
    stored_certainty,
)
from ips2_dask.plots.resources import Spent, spent
from ips2_dask.plots.similarities import Summary, summarize
from ips2_dask.plots.spectrum import Spectrum, spectrum
from ips2_dask.runs.layers import Layers
from ips2_dask.runs.layout import Layout
from ips2_dask.runs.run import Run
from ips2_dask.runs.sample import RunSample, shown

UNSURE = 0.5
"""Certainty below which the page counts samples: most of their walks end in other clusters."""

LAYERED = 300_000
"""Samples up to which a page shows layers: a walk on U for each of them takes some seconds then."""


class Totals(NamedTuple):
    """What is counted over all samples that were clustered."""

    sizes: NDArray[np.int64]  # (c,) samples of each cluster
    certainty: float | None  # the mean; a run of an earlier version keeps none
    unsure: float | None  # share of the samples below `UNSURE`
    left_out: int | None  # by the tree of a density; None where none made the labels


def totals(run: Run) -> Totals:
    """Count block by block."""
    certain, unsure, left_out, n = 0.0, 0, 0, 0
    has_certainty = has_tree = True
    for block in run.iter_labels():
        own = block.labels >= 0
        n += int(own.sum())
        has_certainty, has_tree = block.certainty is not None, block.left_out is not None
        if block.certainty is not None:
            certain += float(block.certainty[own].sum(dtype=np.float64))
            unsure += int((block.certainty[own] < UNSURE).sum())
        if block.left_out is not None:
            left_out += int(block.left_out[own].sum())
    return Totals(
        run.sizes,
        certain / n if has_certainty else None,
        unsure / n if has_certainty else None,
        left_out if has_tree else None,
    )


@dataclasses.dataclass(frozen=True)
class ReportData:
    """A run, and the numbers of it that the report shows."""

    run: Run  # `runs.sample.shown`: its arrays have a row for each sample that was clustered, or for each drawn one
    facts: dict[str, Any]  # of `Run.report`
    stages: list[Spent]
    spectrum: Spectrum
    similarities: Summary
    layout: Layout | None  # `Run.layout` of the whole run; None where samples would be drawn and none has an embedding
    layers: Layers | None  # `Run.layers`; None where there is no tree, or more samples than `LAYERED`
    coordinates: Coordinates
    silhouettes: Silhouettes
    margins: Certainty
    certainty: NDArray[np.float32] | None  # of each label; a run of an earlier version keeps none
    scores: dict[str, float]  # against known labels, where there are any
    n_samples: int  # rows of the input that were clustered
    totals: Totals
    known: csr_array | None  # `Run.known_table`

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples of each cluster."""
        return self.totals.sizes

    @property
    def is_sample(self) -> bool:
        """Whether the samples of ``run`` are some of all alone."""
        return isinstance(self.run, RunSample)

    @property
    def warnings(self) -> list[str]:
        """The stages' warnings, and quality checks that failed."""
        warnings = list(self.facts["warnings"])
        if self.facts["recall"] < LEAST_RECALL:
            warnings.append(f"the graph's recall is {self.facts['recall']:.4f}, and {LEAST_RECALL} is promised")
        large = self.facts["components"] - self.facts["islands"]["pairs"]
        if large > 1:
            warnings.append(
                f"the pairs of the tensor fall into {large:,} large connected components: each has an "
                "eigenvalue 1 of its own, and no sample of one is compared with a sample of another by V"
            )
        return warnings


def collect(run: Run) -> ReportData:
    """Read all numbers that the report shows; the largest array in memory is the embedding of the samples shown."""
    total, run = totals(run), shown(run)
    labels = run.labels
    summary = summarize(run, profile=run.embedding is None)
    rows = points(run, summary)
    table = run.known_table()
    return ReportData(
        run,
        run.report(),
        spent(run),
        spectrum(run),
        summary,
        _layout(run),
        _layers(run),
        coordinates(rows, labels),
        silhouette(rows, labels),
        certainty(rows, labels),
        stored_certainty(run),
        {} if table is None else scores_of_table(table),
        int(total.sizes.sum()),
        total,
        table,
    )


def _layers(run: Run) -> Layers | None:
    """`Run.layers`, or None where it has none or they would take long."""
    if run._context.m > LAYERED:
        return None
    try:
        return run.layers
    except BadInput:
        return None


def _layout(run: Run) -> Layout | None:
    """`Run.layout`, or None for a large run without an embedding."""
    try:
        return run.layout
    except BadInput:
        return None
