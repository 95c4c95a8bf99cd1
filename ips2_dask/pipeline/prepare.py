"""A run that is ready to begin: its opened inputs, its plan, and the key of every stage."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ips2_dask import clusters
from ips2_dask.clusters.scheduler_place import scheduler_is_apart
from ips2_dask.errors import BadInput
from ips2_dask.params import Params, Resources
from ips2_dask.pipeline.keys import Key, stage_keys
from ips2_dask.pipeline.option_checks import check_params
from ips2_dask.plan.checks import check_entries, check_memory, check_shape, keeps_limits
from ips2_dask.plan.choices import widest
from ips2_dask.plan.plan import Plan, make_plan
from ips2_dask.readers import Source, features_of, open_source
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
    """The samples that one or several runs cluster, and the matrices that come with them.

    Parameters
    ----------
    source : Source
    similarity, knn_graph : (m, m) matrix, path or None
        As the caller gave them: `side_inputs` reads and checks them.
    reading : mapping, optional
        How the source was opened (``location``, ``labels_column``, ``transpose``, ``features``, ``text``). The manifest
        keeps it for the command that makes the run again, and for new samples.
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
        self._as_distances: Inputs | None = None
        self._side_inputs: dict[tuple[str, ...], SideInputs] = {}
        self._digests: dict[tuple[str, ...], dict[str, str]] = {}

    def as_distances(self) -> Inputs:
        """These inputs as distances: a sparse source as those of neighbours alone."""
        if self._as_distances is None:
            source = neighbor_distances(self.source)
            same = source is self.source
            self._as_distances = self if same else Inputs(source, self.similarity, self.knn_graph, self.reading)
        return self._as_distances

    def side_inputs(self, params: Params) -> SideInputs:
        """Similarity and graph, read once for all runs whose parameters read them alike.

        Raises
        ------
        BadInput
            Where one is missing, would count for nothing, or is no such matrix.
        """
        way = _way_of_reading(params)
        if way not in self._side_inputs:
            self._side_inputs[way] = open_side_inputs(self.similarity, self.knn_graph, self.source.shape[0], params)
        return self._side_inputs[way]

    def digests(self, params: Params) -> Mapping[str, str]:
        """Digest of the content of every input, by the name under which stage keys list it."""
        way = _way_of_reading(params)
        if way not in self._digests:
            self._digests[way] = {**self.side_inputs(params).digests, "input": self.source.fingerprint}
        return self._digests[way]


def _way_of_reading(params: Params) -> tuple[str, ...]:
    """The parameters that decide how similarity and graph are read."""
    return params.affinity, params.metric, params.graph


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
    """Open a source; parameters as of `ips2_dask.run`.

    Raises
    ------
    BadInput
        Where the source can't be read, or would lose rows that similarity or graph have.
    """
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
    _check_no_row_is_dropped(source, similarity, knn_graph)
    return Inputs(source, similarity, knn_graph, reading)


def _check_no_row_is_dropped(source: Source, similarity: GivenMatrix | None, knn_graph: GivenMatrix | None) -> None:
    """Refuse to leave rows out of a table that comes with a matrix of all rows."""
    fitted = features_of(source)
    if fitted is not None and fitted.missing == "drop" and not (similarity is None and knn_graph is None):
        name = "similarity" if similarity is not None else "knn_graph"
        raise BadInput(
            name,
            "a matrix of all rows with missing='drop' (--missing drop)",
            "missing='refuse' or 'median'",
            "its rows would no longer be those of the samples",
            "take the incomplete rows out of both beforehand",
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """A run that is ready to begin. Plan, parameters and keys belong together, and change together.

    Attributes
    ----------
    inputs : Inputs
    requested : Params
        As the caller gave them.
    resources : Resources
    params : Params
        Those of the stages: with as many clusters as may be chosen, until the number is chosen.
    plan : Plan
    """

    inputs: Inputs
    requested: Params
    resources: Resources
    params: Params
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
        """Refuse what can't run, before anything is computed or stored.

        Raises
        ------
        Refused
            Where a worker or the driver would need more than it may use.
        BadInput
            Where similarity or graph can't be used.
        """
        check_memory(self.plan, *memory_limits(self.resources), self._saving)
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
                if keeps_limits(other, *memory_limits(resources)):
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
    """Plan a run; nothing is computed.

    Raises
    ------
    BadInput
        Where the samples are too few for the parameters, or an option would count for nothing.
    """
    plan = plan_run(inputs.source, params, resources, knn_graph=inputs.knn_graph is not None)
    plan = plan if inputs.knn_graph is None else plan.of_given_graph()
    if params.metric == "precomputed":
        inputs = inputs.as_distances()
        check_neighbors(inputs.source, min(params.n_stored_neighbors, plan.m) - 1)
    return Prepared(inputs, params, resources, widest(params, plan.m), plan)


def plan_run(source: Shaped, params: Params, resources: Resources, *, knn_graph: bool = False) -> Plan:
    """The plan of a run on a source whose shape is checked first; nothing is computed.

    Parameters
    ----------
    source : Source, or anything else with a shape
    params : Params
    resources : Resources
    knn_graph : bool
        Whether the caller gives a graph with the samples.

    Raises
    ------
    BadInput
        Where the samples are too few for the parameters, or an option would count for nothing.
    """
    check_params(params, resources, knn_graph=knn_graph)
    m, f = source.shape
    if isinstance(source, Source):
        _check_features(source, params)
    params = widest(params, m)
    check_shape(m, f, params, source.name)
    plan = make_plan(
        m,
        f,
        params,
        rows=resources.partition_rows,
        resident=source.resident_bytes,
        n_workers=clusters.expected_workers(resources),
        vectors=resources.vectors,
        worker_limit=clusters.limit_for_blocks(resources),
        scheduler_apart=scheduler_is_apart(resources),
    )
    check_entries(plan, params)
    return plan


def memory_limits(resources: Resources) -> tuple[int | None, int | None, int | None]:
    """Bytes that a worker, the driver and a scheduler of its own may use; None where nothing limits them."""
    return clusters.limits_of(resources)


def _check_features(source: Source, params: Params) -> None:
    """Refuse to choose, encode or fill columns of a matrix whose columns are the samples."""
    if features_of(source) is not None and params.metric == "precomputed":
        raise BadInput(
            source.name,
            "columns, drop_columns, one_hot or missing with metric='precomputed'",
            "them with features",
            "distances to some samples would be taken away",
            "leave them out, or give the samples and another metric",
        )
