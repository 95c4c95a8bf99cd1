"""Leiden's communities of the fused similarity, as labels: on one graph of all samples, in this process.

The graph's vertices are samples in the order of the user's numbers, and its edges the affinity that is also embedded,
walked on and cut, so that a sample of n equal rows counts as there. Islands take no part. Neither partitions nor
workers nor chunks change the graph, and its communities follow from it and the seed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ips2_dask.kernels import leiden as kernel
from ips2_dask.kernels.rounding import Candidate
from ips2_dask.params import Params
from ips2_dask.stages import label_parts
from ips2_dask.stages.roundings import facts_of as candidate_facts
from ips2_dask.stages.similarity_views import read_affinity
from ips2_dask.store.context import Context
from ips2_dask.typing import Int32


class Found(NamedTuple):
    """Labels from communities, and what is told of them."""

    labels: Int32  # (m,) in the run's numbering, -1 for samples of islands
    clusters: int
    facts: dict[str, Any]
    warnings: list[str]


def depends_on(params: Params) -> dict[str, object]:
    """What communities depend on besides the graph: parameters, and igraph."""
    if params.assign_labels != "leiden":
        return {}
    own: dict[str, object] = {"igraph": kernel.version()}
    return own if params.max_clusters is None else {**own, "resolution": params.resolution, "sought": params.n_sought}


def facts_of(found: Found, cut: float) -> dict[str, Any]:
    """What the stage label tells of communities, and of their normalised cut."""
    one = Candidate("leiden", 0, found.clusters, cut, 0.0)
    return {"roundings": candidate_facts([one], one), "clusters": found.clusters, "leiden": found.facts}


def communities(context: Context) -> Found:
    """The communities of U, found once in this process: the choice of c and the labels need the same ones."""
    params = context.params
    c = params.n_clusters if params.max_clusters is None else 0
    name = f"leiden-{c}-{params.resolution!r}-{params.n_sought}-{params.random_state}"
    found: Found = context.cached("fuse", name, lambda: _found(context), 4 * context.m)
    return found


def _found(context: Context) -> Found:
    """The communities, once U's components are divided; U is read part by part, each edge once."""
    large, parts, params = label_parts.division_of(context).large, range(context.n_partitions), context.params
    inside = np.concatenate([label_parts.components_at(context, b) < large for b in parts])
    # they decide the order of the vertices
    users = np.concatenate([np.asarray(context.user_numbers(b)) for b in parts])
    if context.facts["fuse"]["dense"]:
        U = read_affinity(context)
        i, j = np.nonzero(np.triu(U, 1))
        weights = U[i, j]
    else:
        entries = [*(label_parts.weighed_entries(context, b) for b in parts), label_parts.extra_edges(context)]
        pairs, weights = (np.concatenate(each) for each in zip(*entries, strict=True))
        i, j = pairs.T
    members = np.flatnonzero(inside)
    members = members[np.argsort(users[members])]
    vertex = np.full(context.m, -1, np.int64)
    vertex[members] = np.arange(len(members))
    joins = (i != j) & inside[i] & (weights > 0)
    graph = kernel.Graph(len(members), vertex[i[joins]], vertex[j[joins]], weights[joins])
    warnings: list[str] = []
    if params.max_clusters is not None:
        found = graph.communities(params.resolution, params.random_state)
        if found.clusters < 2:
            warnings.append(f"Leiden finds one community at resolution {params.resolution:g}: give a larger one")
    else:
        found, above = graph.so_many(params.n_clusters, params.random_state)
        if found.clusters != params.n_clusters:
            other = "" if above is None else f", and {above.clusters} at {above.resolution:.4g}"
            warnings.append(
                f"no resolution was found at which Leiden gives {params.n_clusters} clusters: labels are its "
                f"{found.clusters} at resolution {found.resolution:.4g}{other}"
            )
    labels = np.full(context.m, -1, np.int32)
    labels[members] = found.labels
    facts = {
        "communities": found.clusters,
        "resolution": found.resolution,
        "modularity": found.modularity,
        "igraph": kernel.version(),
    }
    return Found(labels, found.clusters, facts, warnings)
