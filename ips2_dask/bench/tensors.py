"""The pair Laplacian of given neighbourhoods at every level of assembly, from the kernels alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.kernels.operator import NeighborhoodOperator
from ips2_dask.kernels.sparse import assemble, normalized, reverse_lists
from ips2_dask.kernels.tensor import (
    block_distances,
    local_pairs,
    owned_pairs,
    owned_subsets,
    pair_ids,
    triplets,
)
from ips2_dask.params import Params

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]

ROWS = 1 << 14
"""Neighbourhoods whose owned subsets are unpacked at once."""


class Tensor(NamedTuple):
    """The indecomposable tensor of the neighbourhoods N (m, k), by its parts, with the default sigma and epsilon."""

    N: Int32
    pairs: Int32  # (P, 2)
    blocks: Float32  # (m, k (k - 1) / 2)
    owned: NDArray[np.uint8]  # (m, bytes)
    ids: Any  # (m, q)
    unit: NDArray[np.float64]  # (P,), docs/method.md, The restricted basis
    degrees: NDArray[np.float64]  # (P,)


def tensor_of(X: Float32, N: Int32) -> Tensor:
    """Everything that the operators below are made of."""
    m = len(N)
    reverse = reverse_lists(N)
    pairs = owned_pairs(N, reverse, 0, m)
    owned = [np.packbits(owned_subsets(N, reverse, a, min(a + ROWS, m)), axis=1) for a in range(0, m, ROWS)]
    unit = np.where(pairs[:, 0] == pairs[:, 1], 1.0, np.sqrt(2.0))
    parts = Tensor(N, pairs, block_distances(X, N), np.concatenate(owned), pair_ids(N, pairs), unit, unit)
    degrees = _operator(parts, NeighborhoodOperator, dtype=np.float64).matmat(unit[:, None])[:, 0] / unit
    return parts._replace(degrees=degrees)


def _operator(tensor: Tensor, kind: type[NeighborhoodOperator], **how: Any) -> NeighborhoodOperator:
    sigma, epsilon = Params().sigma, Params().epsilon
    return kind(tensor.blocks, tensor.owned, tensor.ids, len(tensor.pairs), tensor.N.shape[1], sigma, epsilon, **how)


def laplacian(
    tensor: Tensor, kind: type[NeighborhoodOperator] = NeighborhoodOperator, *, elements: bool = False
) -> NeighborhoodOperator:
    """The Laplacian in float32 by neighbourhoods: matrix-free, or with the blocks' values kept."""
    operator = _operator(tensor, kind, elements=elements)
    operator.normalize(tensor.degrees)
    return operator


def csr_laplacian(tensor: Tensor) -> sp.csr_array:
    """The same Laplacian assembled: CSR (P, P) float32, both triangles."""
    k = tensor.N.shape[1]
    count = len(local_pairs(k).masks)
    parts = []
    for a in range(0, len(tensor.N), ROWS):
        rows = slice(a, a + ROWS)
        owned = np.unpackbits(tensor.owned[rows], axis=1, count=count).astype(bool)
        ids = tensor.ids[rows].astype(np.int64)
        parts.append(triplets(tensor.blocks[rows], ids, owned, k, Params().sigma, Params().epsilon))
    rows_, columns, values = (np.concatenate(column) for column in zip(*parts, strict=True))
    return normalized(assemble(rows_, columns, values, len(tensor.pairs)), tensor.degrees)
