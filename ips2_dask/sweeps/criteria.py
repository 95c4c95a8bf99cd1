"""A finished run judged without known labels: stability, silhouette, conductance."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ips2_dask.kernels.parallel import threads, usable_cores
from ips2_dask.kernels.validity import CENTRES_FROM, RESAMPLED_TOL, SHARE, STARTS, conductances, replicate
from ips2_dask.metrics import scores
from ips2_dask.plots.points import points, silhouette
from ips2_dask.runs.run import Run
from ips2_dask.store.zarr_store import ZarrStore

SILHOUETTES = 2_000
"""Samples, seeded, whose mean silhouette counts: it compares every pair of them."""

VERSION = 2
"""Raised when a criterion changes: what an earlier version measured is measured again."""


class Asked(NamedTuple):
    """How runs are judged."""

    resamples: int
    seed: int

    def as_dict(self) -> dict[str, Any]:
        """Everything that the criteria depend on besides the run."""
        return {
            **self._asdict(),
            "share": SHARE,
            "starts": STARTS,
            "centres_from": CENTRES_FROM,
            "tol": RESAMPLED_TOL,
            "silhouettes": SILHOUETTES,
            "version": VERSION,
        }


def judged_there(location: str, manifest: dict[str, Any], asked: Asked) -> dict[str, Any]:
    """What `judged` says of a stored run: for a worker, while the next run goes on."""
    return judged(Run(ZarrStore(location), manifest), asked)


def judged(run: Run, asked: Asked) -> dict[str, Any]:
    """The criteria of a run and a few facts about it, as plain values.

    ``stability`` is the mean adjusted Rand index with partitions of subsamples, ``silhouette`` the mean one of a sample
    in the embedding, ``conductance`` the mean over the clusters in the pairwise similarity S, which does not depend on
    c, k or sigma and so is the same graph for every point. Known labels give ``nmi`` and ``acc``, which count for
    nothing.
    """
    begun = time.perf_counter()
    with threads(usable_cores()):  # one thread for BLAS and k-means: the same bits wherever it is done
        found = _judged(run, asked)
    return {**found, "seconds": time.perf_counter() - begun}


def _judged(run: Run, asked: Asked) -> dict[str, Any]:
    run = run.clustered
    labels, c = run.labels, run.params.n_clusters
    distinct = run.distinct
    U = run.similarity("fused", distinct=True)
    if run.params.high_order == "signed":
        U = abs(U)
    rounding, width = _rounding(run)
    how: dict[str, Any] = {
        "columns": run.params.n_embedded, "rows": run.params.clusters_rows,
        "embedding": None if run.embedding is None else run.embedding[distinct],
        "rounding": rounding, "width": width,
    }  # fmt: skip
    agreements = [replicate(U, labels[distinct], c, asked.seed, number, **how) for number in range(asked.resamples)]
    found = {
        "stability": float(np.mean(agreements)),
        "silhouette": float(silhouette(points(run), labels, most=SILHOUETTES, seed=asked.seed).values.mean()),
        "conductance": float(conductances(_edges(run), labels, c).mean()),
    }
    sizes = np.bincount(labels, minlength=c)
    facts = {
        "agreements": agreements,
        "smallest": int(sizes.min()),
        "largest": int(sizes.max()),
        "labels": hashlib.sha256(np.ascontiguousarray(labels, "<i4").tobytes()).hexdigest()[:16],
        "warnings": run.report()["warnings"],
    }
    if run.known_labels is not None:
        known = scores(run.known_labels, labels)
        facts["known"] = {"nmi": known["nmi"], "acc": known["acc"]}
    return {"criteria": found, **facts}


def _rounding(run: Run) -> tuple[str, int | None]:
    """How the labels came from the embedding, and from how many of its columns."""
    for one in run.report()["roundings"]:
        if one["chosen"] and not run.params.clusters_rows:
            return one["rounding"], one["columns"]
    return "kmeans", None


def _edges(run: Run) -> Iterator[tuple[Any, Any, Any]]:
    """The edges of S, part by part."""
    for part in run.iter_similarities():
        yield part.i, part.j, part.pairwise
