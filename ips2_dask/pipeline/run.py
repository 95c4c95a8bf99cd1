"""From a source and parameters to a finished run: plan, store, executor, stages."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ips2_dask import clusters
from ips2_dask.errors import BadInput
from ips2_dask.executors.base import Executor, SerialExecutor
from ips2_dask.kernels.parallel import threads, usable_cores
from ips2_dask.params import Params, Resources
from ips2_dask.pipeline.cluster_choice import asks_for_machines, is_worth_a_cluster
from ips2_dask.pipeline.execution import execute, versions
from ips2_dask.pipeline.keys import MODULES, Key, keys_of
from ips2_dask.pipeline.option_checks import check_machines, check_params
from ips2_dask.plan.plan import Plan, check_memory, check_shape, make_plan, widest
from ips2_dask.progress import Progress
from ips2_dask.readers import Source, features_of, open_source
from ips2_dask.readers.features import Features
from ips2_dask.runs.directory import check_directory
from ips2_dask.runs.run import Run
from ips2_dask.stages.side_inputs import SideInputs, open_side_inputs
from ips2_dask.store.base import Store
from ips2_dask.store.layout import STAGES
from ips2_dask.store.memory_store import MemoryStore
from ips2_dask.store.zarr_store import ZarrStore

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["MODULES", "Progress", "execute", "plan_run", "run", "versions"]


class Shaped(Protocol):
    """As much of a source as a plan depends on."""

    @property
    def name(self) -> str:
        """What the user calls it."""

    @property
    def shape(self) -> tuple[int, int]:
        """(m, f)."""

    @property
    def resident_bytes(self) -> int:
        """Bytes that reading any row at all needs in one process."""


def plan_run(source: Shaped, params: Params, resources: Resources, *, knn_graph: bool = False) -> Plan:
    """The plan of a run, whose graph may be given, its shape checked; nothing is computed.

    Raises
    ------
    BadInput
        Where the samples are too few for the parameters, or something was asked for that would count for nothing.
    """
    check_params(params, resources, knn_graph=knn_graph)
    m, f = source.shape
    if isinstance(source, Source):
        _check_features(source, params)
    params = widest(params, m)
    check_shape(m, f, params, source.name)
    n_workers = clusters.expected_workers(resources)
    return make_plan(
        m,
        f,
        params,
        rows=resources.partition_rows,
        resident=source.resident_bytes,
        n_workers=n_workers,
        vectors=resources.vectors,
    )


def _check_features(source: Source, params: Params) -> None:
    """Refuse columns that are chosen, encoded or filled of a matrix whose columns are the samples."""
    if features_of(source) is not None and params.metric == "precomputed":
        raise BadInput(
            source.name, "columns, drop_columns, one_hot or missing with metric='precomputed'", "them with features",
            "distances to some samples would be taken away", "leave them out, or give the samples and another metric",
        )  # fmt: skip


def check_beside(source: Source, similarity: Any, knn_graph: Any) -> None:
    """Refuse to leave rows out of a table beside which a matrix of all rows is given.

    Raises
    ------
    BadInput
    """
    fitted = features_of(source)
    if fitted is not None and fitted.missing == "drop" and not (similarity is None and knn_graph is None):
        what = "similarity" if similarity is not None else "knn_graph"
        raise BadInput(
            what, "a matrix of all rows with missing='drop' (--missing drop)", "missing='refuse' or 'median'",
            "its rows would no longer be those of the samples", "take the incomplete rows out of both beforehand",
        )  # fmt: skip


def run(
    source: Any,
    params: Params,
    resources: Resources | None = None,
    *,
    store: str | Path | None = None,
    client: Client | None = None,
    labels_column: str | int | None = None,
    transpose: bool = False,
    features: Features | None = None,
    progress: Progress | None = None,
    own_cluster: bool = False,
    similarity: Any = None,
    knn_graph: Any = None,
    fresh: bool = False,
    verify: bool = False,
    performance_report: str | Path | None = None,
) -> Run:
    """Cluster a source and return the finished run.

    Parameters
    ----------
    source : path, array, SciPy sparse matrix, data frame, Zarr or Dask array, or Source
        (m, f) samples by features.
    params : Params
    resources : Resources, optional
    store : path or URL, optional
        The run directory; the same directory and parameters continue what is there. None keeps the run in memory.
    client : distributed.Client, optional
        Whose workers compute; none is started if it is given. Without one the run is serial.
    labels_column : str or int, optional
        The source's column of known labels; it is scored and never clustered.
    transpose : bool
        Whether the source is features by samples.
    features : Features, optional
        Which columns are features, which of them hold categories, and what is done about missing values.
    progress : Progress, optional
    own_cluster : bool
        Start the cluster that ``resources`` describe, and end it with the run. Where graph and tensor are there from
        an earlier run, less is left than starting it takes, and ``resources`` say nothing of machines, none is started.
    similarity : (m, m) array, SciPy sparse matrix or path, optional
        S, for ``affinity="precomputed"``: symmetric, no entry negative; dense up to 5,000 samples.
    knn_graph : (m, m) SciPy sparse matrix, array or path, optional
        Who may be near: the stored entries of each row, whatever their values, are the candidates for the sample's
        neighbours, whose distances are measured in ``source`` by ``params.metric``.
    fresh : bool
        Take away what earlier runs left in the directory, and start over.
    verify : bool
        Read every byte of what is reused, and compute damaged parts again.
    performance_report : path, optional
        Where Dask shall write its own report of the run, an HTML file; for runs on a cluster.

    Returns
    -------
    Run

    Raises
    ------
    BadInput
        Where the source, a parameter or the directory can't be used, another run is at work in the directory, or
        something was asked for that would count for nothing, such as ``sigma`` of a decomposable tensor.
    Refused
        Where the plan exceeds ``resources.memory_limit``.
    StoreFailure
        Where the directory can't be written any more; the same call continues later.

    Examples
    --------
    >>> import pandas as pd
    >>> from sklearn.datasets import make_blobs
    >>> from ips2_dask import Params, run
    >>> X, _ = make_blobs(60, centers=2, random_state=1)
    >>> found = run(pd.DataFrame(X, index=[f"s{i}" for i in range(60)]), Params(n_clusters=2))
    >>> found.labels[:4].tolist(), found.sample_names[:2].tolist()
    ([0, 1, 1, 1], ['s0', 's1'])
    >>> sorted(found.report())[:3]
    ['P', 'builder', 'c']

    A table with a column of text, and with gaps:

    >>> from ips2_dask import Features
    >>> table = pd.DataFrame(X, columns=["height", "width"]).assign(kind=["new", "old"] * 30)
    >>> table.loc[3, "width"] = None
    >>> found = run(table, Params(n_clusters=2), features=Features(one_hot=["kind"], missing="drop"))
    >>> found.features.feature_names, found.labels[:4].tolist()
    (['height', 'width', 'kind_new', 'kind_old'], [0, 1, 1, -1])
    """
    check_machines(resources or Resources(), client=client is not None, own_cluster=own_cluster)
    (found,) = run_each(
        source, [params], resources, store=store, client=client, labels_column=labels_column, transpose=transpose,
        features=features, progress=progress, own_cluster=own_cluster, similarity=similarity, knn_graph=knn_graph,
        fresh=fresh, verify=verify, performance_report=performance_report,
    )  # fmt: skip
    return found


def run_each(
    source: Any,
    several: Sequence[Params],
    resources: Resources | None = None,
    *,
    store: str | Path | None = None,
    client: Client | None = None,
    labels_column: str | int | None = None,
    transpose: bool = False,
    features: Features | None = None,
    progress: Progress | None = None,
    own_cluster: bool = False,
    similarity: Any = None,
    knn_graph: Any = None,
    fresh: bool = False,
    verify: bool = False,
    performance_report: str | Path | None = None,
    asked: Mapping[str, Any] | None = None,
    small_here: bool = False,
) -> Iterator[Run]:
    """Runs of several parameters one after another in one directory, which share every stage that they can.

    The input is opened once, all plans are checked before the first task, and one cluster serves all. A finished run
    can be read while the later ones follow: a stage's folder stays. Parameters as of `run`, and ``asked``, which says
    how a source that was opened before was to be read: its location, labels_column, transpose and features. With
    ``small_here`` this process computes what is left of a run where that is little, and leaves the workers to others.

    Yields
    ------
    Run
        In the order of ``several``.
    """
    resources = resources or Resources()
    progress = progress or Progress()
    opened = source
    if not isinstance(source, Source):
        opened = open_source(source, labels_column=labels_column, transpose=transpose, features=features)
    check_beside(opened, similarity, knn_graph)
    plans = [plan_run(opened, params, resources, knn_graph=knn_graph is not None) for params in several]
    for plan in plans:
        check_memory(plan, resources.memory_limit)
    held: dict[tuple[str, ...], SideInputs] = {}
    for params in several:
        if _asks(params) not in held:
            held[_asks(params)] = open_side_inputs(similarity, knn_graph, opened.shape[0], params)
    with contextlib.ExitStack() as stack:
        folder = None
        if store is None and (client is not None or own_cluster):
            # workers need a folder to meet in; it goes when the run does
            folder = _Folder()
            store = folder.name
        kept = _open_store(store, fresh)
        executor: Executor = SerialExecutor()
        if client is not None:
            from ips2_dask.executors.dask import DaskExecutor  # noqa: PLC0415  it loads Dask, which takes half a second

            executor = DaskExecutor(client, resources.threads_per_worker)
        elif own_cluster and (
            fresh
            or performance_report is not None
            or asks_for_machines(resources)
            or is_worth_a_cluster(kept, _keyed(kept, opened, several, plans, held))
        ):
            executor = stack.enter_context(clusters.executor(resources))
            progress.connected(clusters.dashboard(executor.client))
        if performance_report is not None:
            stack.enter_context(clusters.performance_report(executor, str(performance_report)))
        location = str(source) if isinstance(source, str | Path) else None
        asked = asked or how_asked(location, labels_column, transpose, features)
        for at, (params, plan) in enumerate(zip(several, plans, strict=True)):
            beside = held[_asks(params)]
            plan = with_given(plan, beside)
            chosen = executor
            if small_here and not is_worth_a_cluster(kept, [_with_keys(kept, opened, params, plan, beside)]):
                chosen = SerialExecutor()
            with threads(usable_cores()):
                finished = execute(
                    opened, params, plan, kept, chosen, progress, asked, beside, fresh=fresh and at == 0,
                    verify=verify,
                )  # fmt: skip
            yield Run(kept, finished.manifest, keep=folder)


def how_asked(
    location: str | None, labels_column: str | int | None, transpose: bool, features: Features | None
) -> dict[str, Any]:
    """How a source was to be read, for the manifest."""
    asked = {"location": location, "labels_column": labels_column, "transpose": transpose}
    return asked if features is None or features.is_default else {**asked, "features": features.as_dict()}


def _keyed(
    store: Store, source: Source, several: Sequence[Params], plans: Sequence[Plan],
    held: Mapping[tuple[str, ...], SideInputs],
) -> Iterator[tuple[Plan, Mapping[str, Key]]]:  # fmt: skip
    """The plan of each run with the keys of its stages."""
    for params, plan in zip(several, plans, strict=True):
        beside = held[_asks(params)]
        yield _with_keys(store, source, params, with_given(plan, beside), beside)


def _with_keys(
    store: Store, source: Source, params: Params, plan: Plan, given: SideInputs
) -> tuple[Plan, Mapping[str, Key]]:
    """A plan with the keys of its stages: those of distinct samples where an earlier run has found them."""
    keys = keys_of(widest(params, plan.m), plan.choices, plan.bounds, source.fingerprint, given.digests)
    known = store.get_document(f"{keys[STAGES[0]].folder}/stage.json")
    bounds = (known or {"facts": {}})["facts"].get("bounds")
    if bounds is None:
        return plan, keys
    inner = widest(params, bounds[-1])
    plan = plan.of_distinct(bounds[-1], inner)
    return plan, keys_of(inner, plan.choices, plan.bounds, source.fingerprint, given.digests)


def _asks(params: Params) -> tuple[str, ...]:
    """What decides how something given beside the samples is read."""
    return params.affinity, params.metric, params.graph


def with_given(plan: Plan, given: SideInputs) -> Plan:
    """The plan of a run whose graph may be given."""
    return plan if given.knn_graph is None else plan.of_given_graph()


class _Folder:
    """A temporary folder that goes, without a word, when this object or the process does."""

    def __init__(self) -> None:
        self.name = tempfile.mkdtemp(prefix="ips2-", dir=clusters.shared_folder())
        weakref.finalize(self, shutil.rmtree, self.name, ignore_errors=True)


def _open_store(store: str | Path | None, fresh: bool) -> Store:
    """The store of a run: in memory, or a checked directory that is not made yet."""
    if store is None:
        return MemoryStore()
    location = str(store)
    if "://" not in location:
        location = str(Path(location).absolute())  # workers may live in another folder
    check_directory(location, fresh)
    return ZarrStore(location)
