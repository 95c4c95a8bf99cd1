"""Samples as points: coordinates that separate the clusters, silhouettes, and how certain each sample's label is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ips2_dask.errors import BadInput
from ips2_dask.plots.similarities import Summary, summarize
from ips2_dask.runs.run import Run
from ips2_dask.runs.sample import shown
from ips2_dask.typing import Float32, Float64, Int64

SAMPLED = 10_000
"""Samples above which silhouettes are those of a seeded sample: they compare every pair."""

CHUNK = 1 << 16


class Points(NamedTuple):
    """The vectors of the samples that were clustered, or their nearest substitute."""

    values: Float64  # (m, d)
    what: str


class Coordinates(NamedTuple):
    """Samples in the directions in which the clusters' centres spread most."""

    values: Float64  # (m, 2 or 3)
    shares: Float64  # (2 or 3,) of the spread between the centres
    what: str


class Silhouettes(NamedTuple):
    """Silhouettes of some samples."""

    samples: Int64  # (n,) ascending
    values: Float64  # (n,)


class Certainty(NamedTuple):
    """How far each sample is from its own cluster's centre and from the next one's."""

    margin: Float64  # (m,) (b - a) / max(a, b) of the distances a to the own centre, b to the nearest other one
    other: Int64  # (m,) the cluster of that other centre


def points(run: Run, summary: Summary | None = None) -> Points:
    """The stored embedding of the samples shown; after k-means on rows of U, the mean similarity to each cluster.

    All samples are shown but of a very large run: see `ips2_dask.runs.sample.shown`.
    """
    run = shown(run)
    stored = run.embedding
    if stored is not None:
        return Points(stored, "spectral embedding")
    if summary is None or summary.profile is None:
        summary = summarize(run, cells=2, profile=True)
    assert summary.profile is not None
    length = np.linalg.norm(summary.profile, axis=1, keepdims=True)
    return Points(summary.profile / np.where(length > 0, length, 1.0), "mean similarity to each cluster")


def coordinates(rows: Points, labels: NDArray[np.integer], most: int = 3) -> Coordinates:
    """The principal axes of the clusters' centres, weighted by size; ties are broken by those of all points."""
    X, what = rows
    sizes = np.bincount(labels)
    mean = X.mean(axis=0)
    spread = centers(X, labels) - mean
    between = (spread * sizes[:, None]).T @ spread / len(X)
    total = X.T @ X / len(X) - np.outer(mean, mean)
    # two clusters have one direction between them: the second coordinate is then where the points themselves vary
    values, vectors = np.linalg.eigh(between + 1e-6 * total)
    vectors = vectors[:, ::-1][:, : min(most, X.shape[1])]
    vectors *= np.sign(vectors[np.argmax(np.abs(vectors), axis=0), np.arange(vectors.shape[1])])
    shares = values[::-1][: vectors.shape[1]] / max(float(values.clip(0).sum()), np.finfo(float).tiny)
    return Coordinates((X - mean) @ vectors, shares, what)


def centers(X: Float64, labels: NDArray[np.integer]) -> Float64:
    """Mean of the samples ``X`` (m, d) of each cluster: (c, d)."""
    sizes = np.bincount(labels)
    sums = [np.bincount(labels, column, len(sizes)) for column in X.T]
    means: Float64 = np.stack(sums, axis=1) / np.maximum(sizes, 1)[:, None]
    return means


def silhouette(rows: Points, labels: NDArray[np.integer], *, most: int = SAMPLED, seed: int = 0) -> Silhouettes:
    """Silhouettes of all samples, or of a seeded sample of ``most`` of them; 0 where a cluster is alone."""
    import sklearn  # noqa: PLC0415  what follows takes its time to import
    from sklearn.metrics import silhouette_samples  # noqa: PLC0415  the same

    m = len(labels)
    chosen = np.arange(m) if m <= most else np.sort(np.random.default_rng([seed, 21]).choice(m, most, replace=False))
    some = labels[chosen]
    if not 2 <= len(np.unique(some)) < len(some):
        return Silhouettes(chosen, np.zeros(len(chosen)))
    with sklearn.config_context(working_memory=64):
        return Silhouettes(chosen, np.asarray(silhouette_samples(rows.values[chosen], some), np.float64))


def stored_certainty(run: Run) -> Float32 | None:
    """`Run.certainty` of what is shown, or None for a run of an earlier version, which keeps none."""
    try:
        return shown(run).certainty
    except BadInput:
        return None


def certainty(found: Points, labels: NDArray[np.integer]) -> Certainty:
    """The margin of each sample, and the next cluster; a margin near 0 or below means a doubtful label."""
    X, M = found.values, centers(found.values, labels)
    empty = np.bincount(labels) == 0  # clusters that none of the samples shown is of
    margin, other = np.empty(len(X)), np.empty(len(X), np.int64)
    for low in range(0, len(X), CHUNK):
        part = slice(low, min(low + CHUNK, len(X)))
        squared = np.square(X[part]).sum(axis=1)[:, None] - 2 * X[part] @ M.T + np.square(M).sum(axis=1)
        d = np.sqrt(np.maximum(squared, 0.0))
        d[:, empty] = np.inf
        rows = np.arange(len(d))
        a = d[rows, labels[part]].copy()
        d[rows, labels[part]] = np.inf
        other[part] = np.argmin(d, axis=1)
        b = d[rows, other[part]]
        with np.errstate(invalid="ignore"):  # inf / inf, where there is one cluster
            ratio = (b - a) / np.maximum(np.maximum(a, b), np.finfo(float).tiny)
        margin[part] = np.where(np.isfinite(b), ratio, 1.0)
    return Certainty(margin, other)
