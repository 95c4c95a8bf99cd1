"""Cluster a source: prepare the run, open its store, choose who computes, and execute the stages."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ips2_dask import clusters
from ips2_dask.errors import IPS2Warning
from ips2_dask.executors.base import Executor, SerialExecutor
from ips2_dask.executors.failures import check_client
from ips2_dask.params import Params, Resources
from ips2_dask.pipeline.execution import execute
from ips2_dask.pipeline.manifest import read_stage
from ips2_dask.pipeline.prepare import GivenMatrix, Prepared, check_machines, open_inputs, prepare
from ips2_dask.plan.plan import Plan, disk_warning, make_plan
from ips2_dask.progress import Progress
from ips2_dask.readers.features import Features, TextFormat
from ips2_dask.runs.maintenance import check_directory
from ips2_dask.runs.run import Run
from ips2_dask.store.base import MemoryStore, Store
from ips2_dask.store.zarr_store import ZarrStore

if TYPE_CHECKING:
    from distributed import Client

START_SECONDS = 3.0
"""About how long a cluster of local processes takes to start and to end: less work than that is not worth one."""

IN_CORE_STAGES = ("assemble", "eigen")
"""Stages that this process computes by itself where it holds the block vectors: a cluster would not help them."""


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
    text: TextFormat | None = None,
    progress: Progress | None = None,
    own_cluster: bool = False,
    similarity: GivenMatrix | None = None,
    knn_graph: GivenMatrix | None = None,
    fresh: bool = False,
    verify: bool = False,
    performance_report: str | Path | None = None,
) -> Run:
    """Cluster a source and return the finished run.

    Parameters
    ----------
    source : path, array, SciPy sparse matrix, data frame, Zarr or Dask array, Dask DataFrame, AnnData, or Source
        (m, f) samples by features. Of an AnnData ``obsm["X_pca"]`` if there is one, else X, which is read from its file
        if it is backed; of an ``.h5ad`` file X, unless ``::`` names another matrix.
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
    text : TextFormat, optional
        How a text file is read: header, delimiter, encoding and so on.
    progress : Progress, optional
    own_cluster : bool
        Start the cluster that ``resources`` describe, and end it with the run. None is started where the stages that
        are not there from an earlier run take less than that by the plan, and ``resources`` say nothing of machines.
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
    """
    resources, progress = resources or Resources(), progress or Progress()
    check_machines(resources, client=client is not None, own_cluster=own_cluster)
    check_client(client)
    beside = {"similarity": similarity, "knn_graph": knn_graph, "client": client}
    inputs = open_inputs(
        source, labels_column=labels_column, transpose=transpose, features=features, text=text, **beside
    )
    prepared = prepare(inputs, params, resources)
    prepared.check()
    folder = None
    if store is None and (client is not None or own_cluster):
        folder = _TemporaryFolder()  # where workers meet
        store = folder.name
    opened: Store = MemoryStore()
    if store is not None:
        opened = ZarrStore(store)
        check_directory(opened, fresh)
        _warn_of_disk(prepared, str(opened.location))
    with contextlib.ExitStack() as stack:
        executor: Executor = SerialExecutor()
        if client is not None:
            executor = on_client(client, resources)
        elif own_cluster and (
            performance_report is not None
            or resources != Resources(partition_rows=resources.partition_rows, vectors=resources.vectors)  # machines
            or is_worth_a_cluster(MemoryStore() if fresh else opened, [prepared])
        ):
            executor = stack.enter_context(clusters.executor(resources, needed_bytes([prepared])))
            progress.connected(clusters.dashboard(executor.client))
        if performance_report is not None:
            stack.enter_context(clusters.performance_report(executor, str(performance_report)))
        finished = execute(prepared, opened, executor, progress, fresh=fresh, verify=verify)
    return Run(opened, finished.manifest, keep=folder)


def run_each(
    several: Sequence[Prepared], store: Store, executor: Executor, progress: Progress, *, small_here: bool = False
) -> Iterator[Run]:
    """Execute several runs one after another in one store, where they share every stage that they can; in their order.

    All of them are checked before the first task. A finished run can be read while the later ones follow, since the
    folders of its stages stay. With ``small_here`` this process computes what is left of a run where that is little,
    and leaves the workers to others.
    """
    for prepared in several:
        prepared.check()
    for prepared in several:
        here = small_here and not is_worth_a_cluster(store, [prepared])
        yield execute(prepared, store, SerialExecutor() if here else executor, progress)


def on_client(client: Client, resources: Resources) -> Executor:
    """An executor on the workers of a caller's client."""
    from ips2_dask.executors.dask import DaskExecutor  # noqa: PLC0415  it loads Dask, which takes half a second

    return DaskExecutor(client, resources.threads_per_worker)


def is_worth_a_cluster(store: Store, runs: Iterable[Prepared]) -> bool:
    """Whether workers would have more to do than starting them takes, by what is in the store of earlier runs.

    This decides about time alone: labels are the same bits without a cluster. A stage with a ``stage.json`` counts as
    done; if it is damaged after all, this process computes the damaged parts again.
    """
    seconds = 0.0
    for run in runs:
        resumed = run.as_resumed(store)
        left = [name for name, key in resumed.keys.items() if read_stage(store, key.folder) is None]
        own = IN_CORE_STAGES if resumed.plan.choices.vectors == "in-core" else ()
        seconds += sum(stage.seconds for stage in resumed.plan.stages if stage.name in left and stage.name not in own)
    return seconds > START_SECONDS


def needed_bytes(runs: Sequence[Prepared]) -> Callable[[int, int | None], int]:
    """The bytes that each worker needs where so many share these runs, by the number of workers and their limit."""

    def worker_bytes(plan: Plan, params: Params, n_workers: int, limit: int | None) -> int:
        limits = [one for one in (limit, plan.request.worker_limit) if one is not None]
        request = dataclasses.replace(plan.request, n_workers=n_workers, worker_limit=min(limits, default=None))
        return make_plan(plan.m, plan.f, params, **dataclasses.asdict(request)).worker_bytes

    @functools.cache
    def needed(n_workers: int, limit: int | None) -> int:
        return max(worker_bytes(prepared.plan, prepared.params, n_workers, limit) for prepared in runs)

    return needed


class _TemporaryFolder:
    """A temporary folder that is removed, silently, when this object or the process ends."""

    def __init__(self) -> None:
        self.name = tempfile.mkdtemp(prefix="ips2-", dir=clusters.shared_folder())
        weakref.finalize(self, shutil.rmtree, self.name, ignore_errors=True)


def _warn_of_disk(prepared: Prepared, location: str) -> None:
    """Warn where a run directory that is not there yet would not fit on its disk."""
    is_new = "://" not in location and not Path(location).exists()
    text = disk_warning(prepared.plan, location) if is_new else None
    if text is not None:
        warnings.warn(text, IPS2Warning, stacklevel=3)
