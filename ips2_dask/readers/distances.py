"""Sparse matrices of distances: an entry that is not stored is no neighbour, as in scikit-learn, and no distance 0."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from ips2_dask.errors import BadInput
from ips2_dask.kernels.ingest import ROUNDED_TO, SYMMETRIC_TO
from ips2_dask.readers.base import Block, Rows, Source, Table, digest


@dataclass
class NeighborDistances(Rows):
    """The rows of a symmetric sparse matrix of distances: infinite where none is stored, 0 on the diagonal."""

    matrix: sparse.csr_array  # (m, m) float64, without the diagonal

    def __post_init__(self) -> None:
        self.n_rows = int(self.matrix.shape[0])

    def read(self, start: int, stop: int) -> Block:
        """Return rows start to stop."""
        part = self.matrix[start:stop]
        rows = np.full(part.shape, np.inf)
        rows[np.repeat(np.arange(stop - start), np.diff(part.indptr)), part.indices] = part.data
        rows[np.arange(stop - start), np.arange(start, stop)] = 0.0
        return rows


def neighbor_distances(source: Source) -> Source:
    """Return the table of a sparse matrix of distances (m, m) with `NeighborDistances`; other sources as they are.

    A distance that is stored in one direction is that of both.

    Raises
    ------
    BadInput
        If an entry is negative or not finite, one of the diagonal is not 0, or two directions differ.
    """
    if not isinstance(source, Table):
        return source
    matrix = source.rows.csr()
    if matrix is None and source.rows.sparse:
        raise BadInput(
            source.name,
            "a Dask array of sparse blocks with metric='precomputed'",
            "a SciPy matrix, or a file of one",
            "what is not stored would be read as the distance 0",
            "give it computed, as array.compute() returns it",
        )
    if matrix is None:
        return source
    graph = _symmetric(matrix, source.name)
    size = int(graph.data.nbytes + graph.indices.nbytes + graph.indptr.nbytes)
    return replace(
        source,
        dtype=np.dtype(np.float64),
        rows=NeighborDistances(graph),
        parallel=False,
        resident_bytes=size,
        fingerprint=digest(source.fingerprint, "neighbours"),
    )


def check_neighbors(source: Source, n: int) -> None:
    """Refuse sparse distances with fewer than n others in a row; other sources pass.

    Raises
    ------
    BadInput
    """
    rows = source.rows if isinstance(source, Table) else None
    if not isinstance(rows, NeighborDistances):
        return
    counts = np.diff(rows.matrix.indptr)
    if counts.min() < n:
        row = int(np.argmin(counts))
        raise BadInput(
            source.name,
            f"{counts[row]} stored distances of sample {row}",
            f"at least {n} to others in every row, as an entry that is not stored is no neighbour",
            "its neighbourhood would be too small",
            f"give the distances of {n} neighbours or more, such as kneighbors_graph(X, {n}, mode='distance')",
        )


def _symmetric(matrix: sparse.csr_array, name: str) -> sparse.csr_array:
    """A matrix of distances, checked, with what is stored in either direction in both; zeros that are stored stay."""
    stored = sparse.coo_array(matrix)
    i, j, d = stored.row.astype(np.int64), stored.col.astype(np.int64), np.asarray(stored.data, np.float64)
    slack = ROUNDED_TO * np.abs(d[np.isfinite(d)]).max(initial=0.0)
    for bad, allowed in (
        (~np.isfinite(d), "finite distances"),
        (d < -slack, "distances of at least 0"),
        ((i == j) & (np.abs(d) > slack), "nothing but zeros on the diagonal"),
    ):
        if bad.any():
            at = int(np.argmax(bad))
            raise BadInput(
                name,
                f"the distance {d[at]:g} from sample {i[at]} to {'itself' if i[at] == j[at] else j[at]}",
                allowed,
                "the farthest might be taken for neighbours",
                "give distances such as 1 - similarity, and leave entries of samples that are no neighbours out",
            )
    others = i != j
    i, j, d = i[others], j[others], np.maximum(d[others], 0.0)
    low, high = np.minimum(i, j), np.maximum(i, j)
    order = np.lexsort((i > j, high, low))  # of two directions the upper triangle's counts
    low, high, d = low[order], high[order], d[order]
    again = np.flatnonzero((low[1:] == low[:-1]) & (high[1:] == high[:-1])) + 1
    uneven = np.abs(d[again] - d[again - 1]) > np.maximum(SYMMETRIC_TO * np.maximum(d[again], d[again - 1]), slack)
    if uneven.any():
        at = int(again[np.argmax(uneven)])
        raise BadInput(
            name,
            f"{d[at - 1]:g} from sample {low[at]} to {high[at]} and {d[at]:g} back",
            "one distance for both directions, which may be stored in one alone",
            "the tensor would have two values for one pair",
            "give D.maximum(D.T) where both directions mean the same",
        )
    kept = np.ones(len(d), np.bool_)
    kept[again] = False
    low, high, d = low[kept], high[kept], d[kept]
    entries = np.concatenate([d, d]), (np.concatenate([low, high]), np.concatenate([high, low]))
    return sparse.csr_array(entries, shape=matrix.shape)
