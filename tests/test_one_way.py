"""One result: labels, certainty, shares and embedding have the same bits in core, in chunks, and for any partitions."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from harness import ShuffledExecutor, run_on
from sklearn.datasets import load_digits, make_blobs, make_moons
from sklearn.metrics import pairwise_distances

from ips2_dask import Features, Params, Resources, Run, run
from ips2_dask.kernels import levels
from ips2_dask.stages import chunk_levels

Array = npt.NDArray[Any]


def _far_groups() -> Array:
    """Two large groups, and four that are too small for a cluster."""
    rng = np.random.default_rng(5)
    places = np.repeat(
        [[0, 0, 0], [9, 0, 0], [40, 0, 0], [0, 40, 0], [40, 40, 0], [0, 0, 40]], [180, 180, 7, 8, 9, 7], 0
    )
    return rng.permutation(rng.normal(size=(len(places), 3)) + places)


def _pieces() -> Array:
    """More components than clusters."""
    rng = np.random.default_rng(0)
    places = np.concatenate([rng.normal(size=(40, 2)) * 8, rng.normal(size=(40, 2)) * 8 + 300])
    return np.repeat(places, 6, axis=0) + rng.normal(size=(480, 2)) * 1e-3


def _table() -> Array:
    """Few different values, so that many rows are equal and many distances too."""
    return np.random.default_rng(2).integers(0, 4, (500, 4)).astype(np.float64)


def _gaps() -> Array:
    X = load_digits().data[:400].copy()
    X[::40, 20] = np.nan
    return X


KINDS: dict[str, tuple[Any, Params]] = {
    "images": (lambda: load_digits().data[:500], Params(n_clusters=10)),
    "blobs by shards": (lambda: make_blobs(700, 5, centers=6, random_state=4)[0], Params(n_clusters=6, shards=5)),
    "moons, c chosen": (lambda: make_moons(400, noise=0.05, random_state=0)[0], Params(max_clusters=9)),
    "islands": (_far_groups, Params(n_clusters=2)),
    "pieces": (_pieces, Params(n_clusters=2)),
    "a table with equal rows": (_table, Params(n_clusters=4, fusion="normalized")),
    "rows left out": (_gaps, Params(n_clusters=5, assign_labels="kmeans")),
    "distances": (
        lambda: pairwise_distances(make_blobs(300, 3, centers=3, random_state=1)[0]),
        Params(n_clusters=3, metric="precomputed"),
    ),
    "a dense similarity": (lambda: load_digits().data[:300], Params(n_clusters=5, affinity="gaussian")),
    "communities": (lambda: load_digits().data[:500], Params(n_clusters=6, assign_labels="leiden")),
    "rows of U": (lambda: load_digits().data[:300], Params(n_clusters=5, embedding="none", assign_labels="kmeans")),
    "wide": (lambda: np.random.default_rng(3).normal(size=(120, 900)), Params(n_clusters=3, metric="cosine")),
}
WAYS = (
    Resources(partition_rows=70),
    Resources(vectors="chunked"),
    Resources(vectors="chunked", partition_rows=45),
    Resources(vectors="chunked", partition_rows=110),
)


def bits(found: Run) -> tuple[bytes | None, ...]:
    arrays = (found.labels, found.certainty, found.shares(), found.embedding, found.left_out)
    return tuple(None if array is None else np.ascontiguousarray(array).tobytes() for array in arrays)


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_gives_the_same_bits(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "COARSEST", 60)  # so few samples have levels then, the first of which is in chunks
    monkeypatch.setattr(chunk_levels, "WHOLE", 120)
    make, params = KINDS[kind]
    X, features = make(), Features(missing="drop") if kind == "rows left out" else None
    first = run(X, params, features=features)
    for way in WAYS:
        assert bits(run(X, params, way, features=features)) == bits(first), way
    if features is None:
        shuffled = run_on(ShuffledExecutor(1), X, dataclasses.replace(params), 60, vectors="chunked")
        assert bits(shuffled) == bits(first)
