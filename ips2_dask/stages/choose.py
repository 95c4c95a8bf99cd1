"""Between fuse and label, where c is to be chosen: the spectrum of U and the number of clusters that it shows."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from ips2_dask.executors.base import Executor, Report
from ips2_dask.kernels import labels as kernel
from ips2_dask.kernels import selection
from ips2_dask.kernels.components import MIN_SHARE, divide
from ips2_dask.params import Params
from ips2_dask.stages import chunked_label, label_parts, leiden
from ips2_dask.stages.similarity_views import read_affinity
from ips2_dask.store.context import Context
from ips2_dask.store.layout import key_digest

VERSION = 2

Float64 = NDArray[np.float64]

FINEST = 1e-5
"""Largest residual of the eigenvectors: relative gaps are read from their eigenvalues."""


def key(params: Params, fused: str) -> str:
    """Digest of what the choice depends on: the fused similarity, by its folder, and parameters."""
    own: dict[str, object] = {
        "most": params.n_clusters, "high_order": params.high_order, "tol": params.tol, "seed": params.random_state,
        **leiden.depends_on(params),
    }  # fmt: skip
    return key_digest({"fuse": fused, "params": own, "version": VERSION})[:16]


class _Spectrum(NamedTuple):
    """Leading eigenvalues of the normalised U, and the components that they are of."""

    values: Float64  # (wanted,) descending
    residual: float
    large: int
    small: list[int]  # rows of each component that takes no part, the largest first


def run(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """The choice with its evidence; nothing is stored.

    It is among 2 to the parameters' own number of clusters, or, with Leiden, the number of its communities.
    """
    report(0, 1)
    params = context.params
    by_partition = label_parts.is_by_partition(context)
    if params.assign_labels == "leiden":
        found = _communities(context, executor, report) if by_partition else leiden.in_core(context)
        report(1, 1)
        return {"n_clusters": max(2, found.clusters), "candidates": [], "warnings": [], **found.facts}
    solved = _by_partition(context, executor, report) if by_partition else _in_core(context)
    choice = selection.choose_n_clusters(solved.values, params.n_clusters)
    report(1, 1)
    warnings = []
    if solved.large > params.n_clusters:
        warnings.append(f"{solved.large} large components, and at most {params.n_clusters} clusters were considered")
    if choice.n_clusters == params.n_clusters:
        warnings.append(f"the largest number of clusters considered, {params.n_clusters}, was chosen: consider more")
    return {
        **choice.as_dict(),
        "considered": params.n_clusters,
        "components": solved.large,
        "small_components": solved.small[:100],
        "residual": solved.residual,
        "warnings": warnings,
    }


def _limit(params: Params) -> float:
    return FINEST if params.tol is None else min(params.tol, FINEST)


def _in_core(context: Context) -> _Spectrum:
    """Of the whole of U, in this process."""
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
    solved = kernel.spectrum(U, wanted, _limit(params), params.random_state)
    return _Spectrum(solved.values, float(np.max(solved.solution.residuals, initial=0.0)), components, small)


def _inner(context: Context) -> Context:
    """The context with a folder of its own for what the stage label of a chunked run stores."""
    folder = f"label-{key(context.params, context.folders['fuse'])}"
    return dataclasses.replace(context, folders={**context.folders, "label": folder})


def _communities(context: Context, executor: Executor, report: Report) -> leiden.Found:
    """Leiden's communities in a chunked run: components are divided as for labels, and nothing is solved for."""
    inner, n = _inner(context), context.params.n_sought
    asked = {"wanted": n, "columns": n, "tol": None, "settled": None}
    chunked_label.divide(inner, executor, report, MIN_SHARE, n, asked)
    found = leiden.by_partition(inner)
    context.store.remove(inner.folders["label"])
    return found


def _by_partition(context: Context, executor: Executor, report: Report) -> _Spectrum:
    """By the solve of a chunked run, in a folder of its own that is removed once the eigenvalues are there."""
    params = context.params
    inner = _inner(context)
    folder = inner.folders["label"]
    wanted = params.n_clusters + 1
    asked = {"wanted": wanted, "columns": wanted, "tol": _limit(params), "settled": None}
    divided = chunked_label.divide(inner, executor, report, selection.MIN_SHARE, None, asked)["facts"]
    rows = np.asarray(context.store.read(folder, label_parts.DIVISION, "sizes"))
    solved = chunked_label.solve(inner, executor, report)
    context.store.remove(folder)
    small = np.sort(rows[divided["large"] :])[::-1].tolist()
    return _Spectrum(np.array(solved["values"]), max([0.0, *solved["residuals"]]), divided["large"], small)
