"""The numbers of a run's report, read from the run once for all sections."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ips2_dask.metrics import scores
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
from ips2_dask.runs.run import Run

UNSURE = 0.5
"""Certainty below which the page counts samples: most of their walks end in other clusters."""


@dataclasses.dataclass(frozen=True)
class ReportData:
    """A run, and the numbers of it that the report shows."""

    run: Run  # `Run.clustered`: its arrays have a row for each sample that was clustered
    facts: dict[str, Any]  # of `Run.report`
    stages: list[Spent]
    spectrum: Spectrum
    similarities: Summary
    coordinates: Coordinates
    silhouettes: Silhouettes
    margins: Certainty
    certainty: NDArray[np.float32] | None  # of each label; a run of an earlier version keeps none
    scores: dict[str, float]  # against known labels, where there are any

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples of each cluster."""
        return np.bincount(self.run.labels)

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
    """Read all numbers that the report shows; the largest array in memory is the embedding, (m, d)."""
    run = run.clustered
    labels = run.labels
    summary = summarize(run, profile=run.embedding is None)
    rows = points(run, summary)
    classes = run.known_labels
    return ReportData(
        run,
        run.report(),
        spent(run),
        spectrum(run),
        summary,
        coordinates(rows, labels),
        silhouette(rows, labels),
        certainty(rows, labels),
        stored_certainty(run),
        {} if classes is None else scores(classes, labels),
    )
