"""A run that is ready to begin: options that have an effect, opened inputs, a plan, and the key of every stage."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ips2_dask.clusters.resources import machines_of
from ips2_dask.errors import BadInput
from ips2_dask.kernels import leiden
from ips2_dask.params import NOT_READ, Params, Resources, check_shape
from ips2_dask.pipeline.keys import Key, stage_keys
from ips2_dask.plan.choices import widest
from ips2_dask.plan.plan import Plan, check_entries, check_memory, keeps_limits, make_plan
from ips2_dask.readers import Source, open_source
from ips2_dask.readers.base import check_neighbors, neighbor_distances
from ips2_dask.readers.features import Features, TextFormat
from ips2_dask.stages.side_inputs import Matrix, SideInputs, open_side_inputs
from ips2_dask.store.base import Store
from ips2_dask.store.layout import STAGES
from ips2_dask.store.remote import named_place

if TYPE_CHECKING:
    from distributed import Client

GivenMatrix: TypeAlias = Matrix | str | Path
"""An (m, m) matrix as the caller gives it with the samples: dense, sparse, or the path of a file."""


MACHINES = ("n_workers", "scratch", "scheduler", "cluster", "tls", "insecure")
"""Fields of `Resources` that describe a cluster which is started, or connected to, for the run."""


class Shaped(Protocol):
    """The properties of a source that a plan depends on."""

    @property
    def name(self) -> str:
        """The name that messages give it."""

    @property
    def shape(self) -> tuple[int, int]:
        """(m, f)."""

    @property
    def resident_bytes(self) -> int:
        """Bytes that reading any row at all needs in one process."""


class Inputs:
    """The samples that one or several runs cluster, and the matrices that come with them, as the caller gave them.

    ``reading`` says how the source was opened (``location``, ``labels_column``, ``transpose``, ``features``, ``text``).
    The manifest keeps it for the command that makes the run again, and for new samples.
    """

    def __init__(
        self,
        source: Source,
        similarity: GivenMatrix | None = None,
        knn_graph: GivenMatrix | None = None,
        reading: Mapping[str, object] | None = None,
    ) -> None:
        self.source, self.similarity, self.knn_graph = source, similarity, knn_graph
        self.reading: Mapping[str, object] = reading or {}
        self._read: dict[tuple[str, ...], tuple[SideInputs, dict[str, str]]] = {}

    @cached_property
    def as_distances(self) -> Inputs:
        """These inputs as distances: a sparse source as those of neighbours alone."""
        source = neighbor_distances(self.source)
        return self if source is self.source else Inputs(source, self.similarity, self.knn_graph, self.reading)

    def side_inputs(self, params: Params) -> SideInputs:
        """Similarity and graph, checked, and read once for all runs whose parameters read them alike."""
        return self._opened(params)[0]

    def digests(self, params: Params) -> Mapping[str, str]:
        """Digest of the content of every input, by the name under which stage keys list it."""
        return {**self._opened(params)[1], "input": self.source.fingerprint}

    def _opened(self, params: Params) -> tuple[SideInputs, dict[str, str]]:
        way = params.affinity, params.metric, params.graph
        if way not in self._read:
            opened = open_side_inputs(self.similarity, self.knn_graph, self.source.shape[0], params)
            self._read[way] = opened, opened.digests
        return self._read[way]


def open_inputs(
    source: Any,
    *,
    labels_column: str | int | None = None,
    transpose: bool = False,
    features: Features | None = None,
    text: TextFormat | None = None,
    similarity: GivenMatrix | None = None,
    knn_graph: GivenMatrix | None = None,
    client: Client | None = None,
) -> Inputs:
    """Open a source; parameters as of `ips2_dask.run`."""
    location = named_place(source) if isinstance(source, str | Path) else None
    reading: dict[str, object] = {"location": location, "labels_column": labels_column, "transpose": transpose}
    if features is not None and not features.is_default:
        reading["features"] = features.as_dict()
    if text is not None and text.given:
        reading["text"] = text.given
    if not isinstance(source, Source):
        source = open_source(
            source, labels_column=labels_column, transpose=transpose, features=features, text=text, client=client
        )
    fitted = source.fitted
    if fitted is not None and fitted.missing == "drop" and not (similarity is None and knn_graph is None):
        name = "similarity" if similarity is not None else "knn_graph"
        found, allowed = "a matrix of all rows with missing='drop' (--missing drop)", "missing='refuse' or 'median'"
        why = "its rows would no longer be those of the samples"
        raise BadInput(name, found, allowed, why, "take the incomplete rows out of both beforehand")
    return Inputs(source, similarity, knn_graph, reading)


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """A run that is ready to begin. Plan, parameters and keys belong together, and change together."""

    inputs: Inputs
    requested: Params  # as the caller gave them
    resources: Resources
    params: Params  # those of the stages: with as many clusters as may be chosen, until the number is chosen
    plan: Plan

    @property
    def source(self) -> Source:
        """The samples."""
        return self.inputs.source

    @property
    def side_inputs(self) -> SideInputs:
        """Similarity and graph, where the caller gave them."""
        return self.inputs.side_inputs(self.requested)

    @cached_property
    def keys(self) -> dict[str, Key]:
        """The key of every stage; made when first used, since it takes the digest of the input's content."""
        return stage_keys(self.params, self.plan, self.inputs.digests(self.requested))

    def check(self) -> None:
        """Refuse what can't run, for want of memory or because of its side inputs, before anything is computed."""
        check_memory(self.plan, *machines_of(self.resources).limits, self._saving)
        self.inputs.side_inputs(self.requested)

    def _saving(self) -> str | None:
        """An option with which this run keeps the limits that it breaks, found by planning it so; None without one."""
        plan, k, n_workers = self.plan, self.requested.n_neighbors, self.resources.n_workers
        rows, n_shards = max(b - a for a, b in itertools.pairwise(plan.bounds)), max(plan.choices.n_shards, 4)
        changes: list[tuple[str, Any]] = [("vectors", "chunked"), ("shards", 2 * n_shards), ("shards", 4 * n_shards)]
        changes += [] if n_workers is None else [("n_workers", 2 * n_workers), ("n_workers", 4 * n_workers)]
        changes += [("partition_rows", math.ceil(rows * share)) for share in (1 / 2, 1 / 4, 1 / 8, 2, 4, 8)]
        changes += [("assign_labels", "auto"), ("n_neighbors", k // 2)]
        for name, value in changes:
            of_params = name in Params.__dataclass_fields__
            with contextlib.suppress(BadInput):  # not every option goes with every other
                params = dataclasses.replace(self.requested, **({name: value} if of_params else {}))
                resources = dataclasses.replace(self.resources, **({} if of_params else {name: value}))
                other = plan_run(self.source, params, resources, knn_graph=self.inputs.knn_graph is not None)
                if keeps_limits(other, *machines_of(resources).limits):
                    return f"{name}={value!r}"
        return None

    def for_distinct(self, m: int, n_clusters: int | None = None) -> Prepared:
        """This run for m distinct samples, and for ``n_clusters`` clusters if that number is chosen already.

        The stages after the ingest are planned as if the input held no other rows.
        """
        params = widest(self.requested, m)
        if n_clusters is not None:
            params = dataclasses.replace(params, n_clusters=n_clusters)
        return dataclasses.replace(self, params=params, plan=self.plan.of_distinct(m, params))

    def with_clusters(self, n_clusters: int) -> Prepared:
        """This run with the number of clusters that was chosen."""
        return dataclasses.replace(self, params=dataclasses.replace(self.params, n_clusters=n_clusters))

    def as_resumed(self, store: Store) -> Prepared:
        """This run for the distinct samples that the ingest of an earlier run has counted; itself if none has."""
        document = store.get_document(f"{self.keys[STAGES[0]].folder}/stage.json")
        bounds = None if document is None else document["facts"].get("bounds")
        return self if bounds is None else self.for_distinct(bounds[-1])


def prepare(inputs: Inputs, params: Params, resources: Resources) -> Prepared:
    """Plan a run; nothing is computed."""
    plan = plan_run(inputs.source, params, resources, knn_graph=inputs.knn_graph is not None)
    plan = plan if inputs.knn_graph is None else plan.of_given_graph()
    if params.metric == "precomputed":
        inputs = inputs.as_distances
        check_neighbors(inputs.source, min(params.n_stored_neighbors, plan.m) - 1)
    return Prepared(inputs, params, resources, widest(params, plan.m), plan)


def plan_run(source: Shaped, params: Params, resources: Resources, *, knn_graph: bool = False) -> Plan:
    """The plan of a run on a source, perhaps with a graph; nothing is computed.

    It is refused where the samples are too few for the parameters, or an option would count for nothing.
    """
    check_params(params, resources, knn_graph=knn_graph)
    m, f = source.shape
    if isinstance(source, Source) and source.fitted is not None and params.metric == "precomputed":
        found, why = (
            "columns, drop_columns, one_hot or missing with metric='precomputed'",
            "distances would be taken away",
        )
        remedy = "leave them out, or give the samples and another metric"
        raise BadInput(source.name, found, "them with features", why, remedy)
    params = widest(params, m)
    check_shape(m, f, params, source.name)
    machines = machines_of(resources)
    plan = make_plan(
        m,
        f,
        params,
        rows=resources.partition_rows,
        resident=source.resident_bytes,
        n_workers=machines.n_workers,
        vectors=resources.vectors,
        worker_limit=machines.blocks_limit,
        scheduler_apart=machines.scheduler_apart,
    )
    check_entries(plan, params)
    return plan


# ---- options that would have no effect; one at its default is never refused


def _changed(record: Params | Resources, names: Sequence[str]) -> list[str]:
    """The names of those fields of a record that are not at their default."""
    defaults = {field.name: field.default for field in dataclasses.fields(record)}
    return [name for name in names if getattr(record, name) != defaults[name]]


def _no_effect(name: str, value: object, other: str, allowed: str, why: str) -> BadInput:
    """The error for an option that has no effect with another one."""
    return BadInput(name, f"{value!r} with {other}", allowed, f"it would count for nothing: {why}", f"leave {name} out")


def check_params(params: Params, resources: Resources, *, knn_graph: bool = False) -> None:
    """Refuse parameters that others, or a graph that is given, leave without effect, and cuts that no run makes."""
    for decider, value, names, why in NOT_READ:
        if getattr(params, decider) == value:
            for name in _changed(params, names):
                raise _no_effect(name, getattr(params, name), f"{decider}={value!r}", f"another {decider}", why)
    if params.assign_labels == "leiden":
        _check_leiden(params)
    if params.shards is not None and (knn_graph or params.metric == "precomputed"):
        other = "a knn_graph" if knn_graph else "metric='precomputed'"
        raise _no_effect("shards", params.shards, other, "a graph that is searched for", "neighbours are given")
    if resources.vectors == "chunked" and params.tensor == "decomposable":
        why = "its eigenvectors are those of samples, of which one process solves all"
        raise _no_effect("vectors", "chunked", "tensor='decomposable'", "an indecomposable tensor", why)


def _check_leiden(params: Params) -> None:
    """Refuse Leiden without igraph, and a resolution together with a number of clusters."""
    if not leiden.available():
        found, allowed = "'leiden' without igraph", "'leiden' where igraph is installed"
        remedy = "run pip install 'ips2-dask[graph]', or choose other labels"
        raise BadInput("assign_labels", found, allowed, "nothing would find the communities", remedy)
    if params.max_clusters is None and _changed(params, ["resolution"]):
        found = f"{params.resolution!r} with n_clusters={params.n_clusters}"
        why = "it would count for nothing: for a given number of clusters the resolution is sought"
        raise BadInput("resolution", found, "n_clusters='auto'", why, "give n_clusters='auto', or leave resolution out")


def check_machines(resources: Resources, *, client: bool, own_cluster: bool) -> None:
    """Refuse options of a cluster where none is started, as a client is given, or this process computes alone."""
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
