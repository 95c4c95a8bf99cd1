"""Between fuse and label, where c is to be chosen: a tree of density on the embedding of U, and the c that it shows."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.kernels import choice as kernel
from ips2_dask.kernels import density
from ips2_dask.kernels.components import MIN_SHARE
from ips2_dask.params import Params
from ips2_dask.stages import embedding, kmeans, label_parts, leiden
from ips2_dask.stages.roundings import FEWER, MISSING, PREFIX, Rounding
from ips2_dask.store.context import Context
from ips2_dask.store.layout import key_digest
from ips2_dask.typing import Float64

VERSION = 7


FINEST = 1e-5
"""Largest residual of the eigenvectors where relative gaps are read from their eigenvalues and nothing else decides."""


def key(params: Params, fused: str) -> str:
    """Digest of what the choice depends on: the fused similarity, by its folder, parameters, and fast-plscan."""
    own: dict[str, object] = {
        "most": params.n_clusters,
        "high_order": params.high_order,
        "tol": params.tol,
        "seed": params.random_state,
        "fast_plscan": density.available(),
        **leiden.depends_on(params),
    }
    return key_digest({"fuse": fused, "params": own, "version": VERSION})[:16]


class _Evidence(NamedTuple):
    """What the choice is made from, and of what."""

    choice: kernel.Choice
    values: Float64  # leading eigenvalues of the normalised U, descending
    residual: float
    large: int  # components that take part
    small: list[int]  # rows of each component that takes no part, the largest first


def run(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """The choice with its evidence; nothing that it stores stays.

    It is among 2 to the parameters' own number of clusters, or, with Leiden, the number of its communities.
    """
    report(0, 1)
    context = label_parts.of_stage(context)
    params = context.params
    if params.assign_labels == "leiden":
        found = _communities(context, executor, report)
        report(1, 1)
        return {"n_clusters": max(2, found.clusters), "candidates": [], "warnings": [], **found.facts}
    evidence = (_by_embedding if density.available() else _by_gaps)(context, executor, report)
    report(1, 1)
    dimension = _dimension(context)
    return {
        **evidence.choice.as_dict(),
        "considered": params.n_clusters,
        "eigenvalues": evidence.values.tolist(),
        "relative_gaps": kernel.relative_gaps(evidence.values).tolist(),
        "components": evidence.large,
        "small_components": evidence.small[:100],
        "residual": evidence.residual,
        "dimension": dimension,
        "noise": kernel.noise_bound(evidence.choice.rule, dimension),
        "warnings": _warnings(params, evidence, dimension),
    }


def _warnings(params: Params, evidence: _Evidence, dimension: float | None) -> list[str]:
    """What is said where the choice has little behind it."""
    choice, most = evidence.choice, params.n_clusters
    warnings = []
    if choice.rule == "eigengap" and density.available():
        none = "no tree of density falls into several, so the number is the eigengap's"
        warnings.append(f"weak evidence for {choice.n_clusters} clusters, or for any: {none}")
    elif choice.rule == "eigengap":
        warnings.append(
            f"{MISSING.split(',')[0]}, so the number of clusters is the eigengap's (pip install 'ips2-dask[density]')"
        )
    if evidence.large > most:
        warnings.append(f"{evidence.large} large components, and at most {most} clusters were considered")
    if choice.n_clusters == most == params.max_clusters:
        warnings.append(f"the largest number of clusters considered, {most}, was chosen: consider more")
    if (weak := kernel.weakness(choice, dimension)) is not None:
        warnings.append(weak)
    return warnings


def _inner(context: Context) -> Context:
    """The context with a folder of its own, for what the choice stores, and an embedding for all c it considers."""
    folder = f"label-{key(context.params, context.folders['fuse'])}"
    params = dataclasses.replace(context.params, embedding="spectral", n_components=None)
    return dataclasses.replace(context, params=params, folders={**context.folders, "label": folder})


def _dimension(context: Context) -> float | None:
    """The local dimension of the samples, from some of the distances of the sample graph; None where it has none."""
    receipt = context.receipt("neighbors", 0)
    if receipt is None or "distances" not in receipt["arrays"]:
        return None
    rows = density.drawn(context.m, density.ASKED, context.params.random_state)
    lengths = np.asarray(context.rows_of("neighbors", "distances", rows))[:, 1:]
    return density.dimension_of(lengths[np.isfinite(lengths).all(axis=1)]) or None


# ---- by the embedding


def _by_embedding(context: Context, executor: Executor, report: Report) -> _Evidence:
    """By a tree of density on an embedding for the largest c.

    The embedding is that of U in one piece: apart, components that are pieces of one cluster, and those that are far
    clusters of their own, would all be equally far from each other.
    """
    inner = _inner(context)
    facts = embedding.embed(inner, executor, report, most=1)
    values = np.asarray(inner.read("label", "embedding", "u_values"))
    found = kernel.by_density(_cuts(inner, executor, report, kernel.leading(min(inner.params.n_embedded, inner.m))))
    small = _small(inner, facts["large"])
    context.store.remove(inner.folders["label"])
    choice = found or kernel.by_eigengap(values, context.params.n_clusters)
    return _Evidence(choice, values, facts["embedding_residual"], facts["u_components"] - len(small), small)


def _small(context: Context, large: int) -> list[int]:
    """Rows of each component that takes no part, the largest first."""
    rows = np.asarray(context.store.read(context.folders["label"], label_parts.DIVISION, "sizes"))[large:]
    return np.sort(rows[rows > 0])[::-1].astype(int).tolist()


def _cuts(context: Context, executor: Executor, report: Report, columns: int) -> list[density.Layer]:
    """The cuts of a tree on so many leading columns of the embedding."""
    part = Rounding(FEWER, columns, 0).part
    executor.map(Job("label", kmeans.drawn_rows, kmeans.DRAWN), context, range(context.n_partitions), report)
    (receipt,) = executor.map(Job("label", kmeans.one_rounding, PREFIX, "roundings"), context, [part], report)
    edges = np.asarray(context.store.read(context.folders["label"], PREFIX + part, "edges"))
    return density.cuts(edges, receipt["facts"]["drawn"], context.params.n_clusters)


def _communities(context: Context, executor: Executor, report: Report) -> leiden.Found:
    """Leiden's communities: components are divided as for labels, and nothing is solved for."""
    inner, n = _inner(context), context.params.n_sought
    asked = {"wanted": n, "columns": n, "tol": None, "settled": None}
    embedding.divide(inner, executor, report, MIN_SHARE, n, asked)
    found = leiden.communities(inner)
    context.store.remove(inner.folders["label"])
    return found


# ---- by the eigengap, where no tree can be built


def _limit(params: Params) -> float:
    return FINEST if params.tol is None else min(params.tol, FINEST)


def _by_gaps(context: Context, executor: Executor, report: Report) -> _Evidence:
    """By a solve in a folder of its own that is removed once the eigenvalues are there."""
    params = context.params
    inner = _inner(context)
    folder = inner.folders["label"]
    wanted = params.n_clusters + 1
    asked = {"wanted": wanted, "columns": wanted, "tol": _limit(params), "settled": None}
    divided = embedding.divide(inner, executor, report, kernel.MIN_SHARE, None, asked)["facts"]
    small = _small(inner, divided["large"])
    solved = embedding.solve(inner, executor, report)
    context.store.remove(folder)
    values = np.array(solved["values"])
    choice = kernel.by_eigengap(values, params.n_clusters)
    return _Evidence(choice, values, max([0.0, *solved["residuals"]]), divided["large"], small)
