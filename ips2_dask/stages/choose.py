"""Between fuse and label, where c is to be chosen: the spectrum of U and the number of clusters that it shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from ips2_dask.executors.base import Executor, Report
from ips2_dask.kernels import labels as kernel
from ips2_dask.kernels import selection
from ips2_dask.kernels.components import divide
from ips2_dask.params import Params
from ips2_dask.stages.similarity_views import read_affinity
from ips2_dask.store.context import Context
from ips2_dask.store.layout import key_digest

VERSION = 2

FINEST = 1e-5
"""Largest residual of the eigenvectors: relative gaps are read from their eigenvalues."""


def key(params: Params, fused: str) -> str:
    """Digest of what the choice depends on: the fused similarity, by its folder, and parameters."""
    own = {"most": params.n_clusters, "high_order": params.high_order, "tol": params.tol, "seed": params.random_state}
    return key_digest({"fuse": fused, "params": own, "version": VERSION})[:16]


def run(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """The choice with its evidence, among 2 to the parameters' own number of clusters; nothing is stored."""
    del executor
    report(0, 1)
    params = context.params
    U = read_affinity(context)
    small: list[int] = []
    components = 1
    if sp.issparse(U):
        label = connected_components(U, directed=False)[1]
        division = divide(label, params.n_clusters, context.copies(), share=selection.MIN_SHARE)
        components = division.large
        if division.islands:
            small = np.sort(np.bincount(division.label, context.copies())[components:])[::-1].astype(int).tolist()
            U = sp.csr_array(U[division.inside][:, division.inside])
    wanted = min(params.n_clusters + 1, U.shape[0])
    solved = kernel.spectrum(U, wanted, FINEST if params.tol is None else min(params.tol, FINEST), params.random_state)
    choice = selection.choose_n_clusters(solved.values, params.n_clusters)
    report(1, 1)
    warnings = []
    if components > params.n_clusters:
        warnings.append(f"{components} large components, and at most {params.n_clusters} clusters were considered")
    if choice.n_clusters == params.n_clusters:
        warnings.append(f"the largest number of clusters considered, {params.n_clusters}, was chosen: consider more")
    return {
        **choice.as_dict(),
        "considered": params.n_clusters,
        "components": components,
        "small_components": small[:100],
        "residual": float(np.max(solved.solution.residuals, initial=0.0)),
        "warnings": warnings,
    }
