"""Refuse options that would have no effect when a run begins; an option at its default is never refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ips2_dask.errors import BadInput
from ips2_dask.kernels import leiden
from ips2_dask.params import Params, Resources

NOT_READ: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    (
        "tensor",
        "decomposable",
        ("sigma", "epsilon", "operator"),
        "that tensor is made of S alone, and is never assembled",
    ),
    ("method", "ppc", ("fusion", "fusion_weight"), "labels are those of V alone, and nothing is fused"),
    ("affinity", "precomputed", ("bandwidth",), "S is given"),
    ("embedding", "none", ("n_components",), "the rows of U are clustered, without an embedding"),
)
"""A parameter, one of its values, the parameters that no stage reads with that value, and why."""

MACHINES = ("n_workers", "scratch", "scheduler", "cluster", "tls", "insecure")
"""Fields of `Resources` that describe a cluster which is started, or connected to, for the run."""


def _changed(record: Params | Resources, names: Sequence[str]) -> list[str]:
    """The names of those fields of a record that are not at their default."""
    defaults = {field.name: field.default for field in dataclasses.fields(record)}
    return [name for name in names if getattr(record, name) != defaults[name]]


def _no_effect(name: str, value: object, other: str, allowed: str, why: str) -> BadInput:
    """The error for an option that has no effect with another one."""
    return BadInput(name, f"{value!r} with {other}", allowed, f"it would count for nothing: {why}", f"leave {name} out")


def check_params(params: Params, resources: Resources, *, knn_graph: bool = False) -> None:
    """Refuse parameters that others leave without effect, and cuts of the work that a run does not make.

    Parameters
    ----------
    params : Params
    resources : Resources
    knn_graph : bool
        Whether the caller gives a graph with the samples.

    Raises
    ------
    BadInput
    """
    for decider, value, names, why in NOT_READ:
        if getattr(params, decider) == value:
            for name in _changed(params, names):
                raise _no_effect(name, getattr(params, name), f"{decider}={value!r}", f"another {decider}", why)
    if params.assign_labels == "leiden":
        _check_leiden(params)
    elif _changed(params, ["resolution"]):
        raise _no_effect(
            "resolution",
            params.resolution,
            f"assign_labels={params.assign_labels!r}",
            "assign_labels='leiden'",
            "only Leiden's communities have one",
        )
    if params.shards is not None and params.graph not in ("auto", "shards"):
        raise _no_effect(
            "shards", params.shards, f"graph={params.graph!r}", "graph='auto' or 'shards'", "nothing is in shards"
        )
    if params.shards is not None and params.metric == "precomputed":
        raise _no_effect(
            "shards", params.shards, "metric='precomputed'", "another metric", "distances that are given are read"
        )
    if knn_graph and params.shards is not None:
        raise _no_effect("shards", params.shards, "a knn_graph", "a graph that is searched for", "neighbours are given")
    if resources.vectors == "chunked" and params.tensor == "decomposable":
        raise _no_effect(
            "vectors",
            "chunked",
            "tensor='decomposable'",
            "an indecomposable tensor",
            "its eigenvectors are those of samples, of which one process solves all",
        )


def _check_leiden(params: Params) -> None:
    """Refuse Leiden without igraph, and a resolution together with a number of clusters."""
    if not leiden.available():
        raise BadInput(
            "assign_labels",
            "'leiden' without igraph",
            "'leiden' where igraph is installed",
            "nothing would find the communities",
            "run pip install 'ips2-dask[graph]', or choose other labels",
        )
    if params.max_clusters is None and _changed(params, ["resolution"]):
        raise BadInput(
            "resolution",
            f"{params.resolution!r} with n_clusters={params.n_clusters}",
            "n_clusters='auto'",
            "it would count for nothing: for a given number of clusters the resolution is sought",
            "give n_clusters='auto', or leave resolution out",
        )


def check_machines(resources: Resources, *, client: bool, own_cluster: bool) -> None:
    """Refuse options of a cluster where no cluster is started.

    Parameters
    ----------
    resources : Resources
    client : bool
        Whether the caller gives a client, whose workers compute.
    own_cluster : bool
        Whether a cluster is started where it is worth it.

    Raises
    ------
    BadInput
    """
    if client and own_cluster:
        raise _no_effect("own_cluster", True, "a client", "one of the two", "the client's workers compute")
    names: tuple[str, ...]
    if not (client or own_cluster):
        where, why = "no cluster", "this process computes alone"
        allowed, names = "a run on a cluster (own_cluster=True)", (*MACHINES, "threads_per_worker")
    elif client:
        where, why, names = "a client", "the client's own workers compute", MACHINES
        allowed = "a cluster that the run starts"
    elif resources.scheduler is not None:
        where, why, names = "a scheduler", "the scheduler's own workers compute", ("n_workers", "cluster", "scratch")
        allowed = "a cluster that the run starts"
    else:
        return
    for name in _changed(resources, names):
        raise _no_effect(name, getattr(resources, name), where, allowed, why)
