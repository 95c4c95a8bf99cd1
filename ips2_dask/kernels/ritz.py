"""Ritz vectors of the pair Laplacian in the span that the sample graph's eigenvectors give, from sums over the pairs.

Letters, as in docs/method.md: L the normalised operator of the pairs, D its degrees, w_i a row of D^-1/2 u for the
leading eigenvectors u of the sample graph, x_ij = (w_i + w_j) sqrt(D_ij) unit_ij a row of the span X, v_h the
eigenvector of eigenvalue 1 of component h. Rayleigh and Ritz need X'X and X'LX alone, and residuals (LX)'LX besides.
So rows of X and LX are made of a range of samples at a time, and no array of pairs and columns exists.

Of the component vectors the span is freed afterwards: with P = I - VV' and LV = V, X'PX = X'X - B, X'PLPX = X'LX - B
and (LPX)'LPX = (LX)'LX - B, where B = X'VV'X.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from ips2_dask.kernels.eigen import Known
from ips2_dask.kernels.operator import ChunkMatrix, ChunkOperator
from ips2_dask.kernels.parallel import map_chunks
from ips2_dask.kernels.product import combine
from ips2_dask.kernels.sparse import inverse_root
from ips2_dask.typing import Float, Float32, Float64, Int32

COLUMNS = 32
"""Columns of the span that are in memory at a time for all pairs that a range touches."""

ROWS = 1 << 14

RANK = 1e-6
"""Smallest eigenvalue of the columns' Gram matrix, by the largest one, of a direction that counts: X'LX of float32 rows
has errors of 1e-8, which are divided by it. Columns from a sample graph have .5 and more (measured)."""


class Sums(NamedTuple):
    """What a range of pairs adds to the sums that Ritz vectors are made of."""

    grams: Float64  # (3, columns, columns): X'X, X'LX and (LX)'LX
    linear: Float64  # (columns,): the sum of unit_ij x_ij
    components: NDArray[np.integer]  # (n,) components that the range has pairs of, ascending
    volumes: Float64  # (n,) the sum of D_ij unit_ij^2 of each
    units: Float64  # (n,) the sum of sqrt(D_ij) unit_ij^2 of each
    weighted: Float64  # (n, columns) the sum of sqrt(D_ij) unit_ij x_ij of each


def sums(
    operator: ChunkOperator | ChunkMatrix,
    w: Float32,
    pairs: Int32,
    unit: Float64,
    degrees: Float64,
    label: Int32,
    large: int,
) -> Sums:
    """The sums of an operator's own pairs.

    ``w`` (samples, columns); ``pairs`` (touched, 2): rows of w that the touched pairs are made of; ``unit``,
    ``degrees`` (touched,): degrees are 0 of pairs that take no part; ``label`` (own pairs,): the component of each own
    pair; ``large``: number of components.
    """
    own = operator.own
    root, scale = np.sqrt(degrees) * unit, inverse_root(degrees).astype(np.float32)
    X, LX = (np.empty((own.stop - own.start, w.shape[1]), np.float32) for _ in range(2))
    for a in range(0, w.shape[1], COLUMNS):
        some = slice(a, a + COLUMNS)
        x = np.empty((len(pairs), min(COLUMNS, w.shape[1] - a)), np.float32)
        start_rows(w[:, some], pairs, root, x)
        X[:, some] = x[own]
        LX[:, some] = _normalized(operator, x, scale)

    def part(low: int, high: int) -> Float64:
        x, Lx = X[low:high].astype(np.float64), LX[low:high].astype(np.float64)
        return np.stack([x.T @ x, x.T @ Lx, Lx.T @ Lx])

    zeros = np.zeros((3, w.shape[1], w.shape[1]))
    known = Known(root[own], label, large, np.ones(large))
    components, weighted = known.coefficients(X)
    volumes, units = (known.coefficients(values[own, None])[1][:, 0] for values in (root, unit))
    grams = np.sum(map_chunks(part, len(X), ROWS) or [zeros], axis=0)
    return Sums(grams, unit[own] @ X.astype(np.float64), components, volumes, units, weighted)


def _normalized(operator: ChunkOperator | ChunkMatrix, x: Float, scale: Float) -> Float:
    """D^-1/2 R D^-1/2 x on the operator's own rows, from x and ``scale`` = D^-1/2 on all that are touched."""
    sums = operator.product(x, scale)
    one, zero = sums.dtype.type(1), sums.dtype.type(0)
    combine(sums, scale[operator.own].astype(sums.dtype, copy=False), x[operator.own], sums[:0], one, zero, zero)
    return sums


def start_rows(w: Float, pairs: Int32, root: Float64, out: Float) -> None:
    """Rows x_ij = (w_i + w_j) root_ij into ``out`` (pairs, columns)."""

    def chunk(a: int, b: int) -> None:
        out[a:b] = (w[pairs[a:b, 0]] + w[pairs[a:b, 1]]) * root[a:b, None]

    map_chunks(chunk, len(pairs), ROWS)


class Total:
    """Sums over all pairs, of ranges that are added in their order."""

    def __init__(self, columns: int, large: int) -> None:
        self.grams, self.linear = np.zeros((3, columns, columns)), np.zeros(columns)
        self.volumes, self.units, self.weighted = np.zeros(large), np.zeros(large), np.zeros((large, columns))

    def add(self, part: Sums) -> None:
        """Add a range."""
        self.grams += part.grams
        self.linear += part.linear
        self.volumes[part.components] += part.volumes
        self.units[part.components] += part.units
        self.weighted[part.components] += part.weighted

    def sums(self) -> Sums:
        """The sums so far."""
        return Sums(self.grams, self.linear, np.arange(len(self.volumes)), self.volumes, self.units, self.weighted)


class Ritz(NamedTuple):
    """Ritz pairs outside the component vectors: y_ij = (w_i + w_j) rotation - shift_h, times sqrt(D_ij) unit_ij."""

    values: Float64  # (n,) descending
    residuals: Float64  # (n,) norms of L y - value y
    rotation: Float64  # (columns, n)
    shift: Float64  # (components, n)
    sums: Float64  # (n,) the sum of unit_ij y_ij


def ritz(total: Sums) -> Ritz:
    """Ritz pairs from the sums over all pairs."""
    scale = np.divide(1.0, total.volumes, out=np.zeros(len(total.volumes)), where=total.volumes > 0)
    B = total.weighted.T @ (total.weighted * scale[:, None])
    G, H, squares = ((gram + gram.T) / 2 - B for gram in total.grams)
    # by what the columns were before they were freed: one that was a component vector is nothing but rounding now
    size = 1.0 / np.sqrt(np.maximum(np.diag(total.grams[0]), np.finfo(np.float64).tiny))
    spread, basis = scipy.linalg.eigh(G * size[:, None] * size)
    counts = spread > RANK * spread[-1]
    basis = size[:, None] * basis[:, counts] / np.sqrt(spread[counts])
    values, C = scipy.linalg.eigh(basis.T @ H @ basis)
    values, rotation = values[::-1].copy(), np.ascontiguousarray((basis @ C)[:, ::-1])
    residuals = np.sqrt(np.maximum(np.einsum("ij,ik,kj->j", rotation, squares, rotation) - values**2, 0.0))
    shift = (total.weighted * scale[:, None]) @ rotation
    return Ritz(values, residuals, rotation, shift, total.linear @ rotation - total.units @ shift)


def rotated(w: Float32, rotation: Float64, shift: Float64) -> Float64:
    """w rotation - shift / 2, row by row: (samples, n). y_ij is the sum of two of them, times sqrt(D_ij) unit_ij.

    Columns of w are added one after the other, so that a row's bits do not depend on how many rows there are.

    ``w`` (samples, columns); ``rotation`` (columns, n); ``shift`` (samples, n): of each sample's component.
    """
    z = shift * -0.5
    for column, weights in zip(w.T, rotation, strict=True):
        z += column[:, None].astype(np.float64) * weights
    return z
