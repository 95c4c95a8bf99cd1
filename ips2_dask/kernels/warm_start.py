"""The sample graph as a cheap start of the pairs' solver: its leading eigenvectors."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.kernels import levels
from ips2_dask.kernels.components import Components
from ips2_dask.kernels.eigen import (
    CHUNK,
    DENSE_BELOW,
    ArraySpace,
    Known,
    block_width,
    dense_eigenpairs,
    leading_eigenpairs,
    panels_of,
)
from ips2_dask.kernels.operator import MatrixOperator
from ips2_dask.kernels.parallel import map_chunks
from ips2_dask.kernels.sparse import inverse_root, normalized
from ips2_dask.typing import Float, Int32

GRAPH_TOL = 1e-2
"""Residual of the sample graph's eigenvectors: the pairs' first residual is .1 whatever is gained below this. With
twice of it the pairs need a tenth fewer products to the same residuals, but vectors that are not wanted are less well
damped: the labels of MNIST-10k at a tolerance of 1e-3 were others than at 1e-5, which with this they are not."""


def graph_start(
    N: Int32, component: Components, columns: int, seed: int, order: NDArray[np.integer] | None = None
) -> Float:
    """w = D^-1/2 u for the leading eigenvectors u of the normalised kNN graph outside eigenvalue 1: (m, <= columns).

    ``N`` (m, k) int32: neighbourhoods, the sample itself first; ``component``: rows of islands are 0; ``order``
    (m,) int: the user's number of each sample, which the levels go by.
    """
    m, k = N.shape
    i = np.repeat(np.arange(m, dtype=np.int32), k)
    A = sp.coo_array((np.ones(m * k, np.float32), (i, N.ravel())), shape=(m, m)).tocsr()
    A = sp.csr_array(A.maximum(A.T))
    A.sort_indices()
    degrees = np.asarray(A.sum(axis=1), np.float64).ravel()
    degrees[~component.inside] = 0
    scale = inverse_root(degrees)
    if m > levels.COARSEST:
        graph = levels.Graph(A, degrees, component.of_vectors, component.large, seed, order)
        found = levels.start(graph, columns, columns * 2 // 3, seed)
        if found is not None:
            return np.asarray(found.y * scale[:, None], np.float32)
    A = normalized(A, degrees)
    component_vectors = Known(np.sqrt(degrees), component.of_vectors, component.large)
    if m <= DENSE_BELOW:
        vectors = dense_eigenpairs(MatrixOperator(A), component_vectors, columns).vectors
        return np.asarray(vectors * scale[:, None], np.float32)
    width = min(block_width(columns), m)
    space = ArraySpace(MatrixOperator(A), component_vectors, panels=panels_of(m, width))
    solution = leading_eigenpairs(
        space, max(1, columns * 2 // 3), space.random(width, seed), tol=GRAPH_TOL, seed=seed, most_products=80
    )
    start = np.empty((m, min(columns, width)), np.float32)

    def chunk(a: int, b: int) -> None:
        start[a:b] = solution.vectors[a:b, :columns] * scale[a:b, None]

    map_chunks(chunk, m, CHUNK)
    return start
