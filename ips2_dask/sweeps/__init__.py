"""Sweeps: run many settings of one input, computing each stage once for all that share it, and rank them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ips2_dask import clusters as places
from ips2_dask.errors import BadInput
from ips2_dask.executors.base import Executor, SerialExecutor
from ips2_dask.executors.workers import check_client
from ips2_dask.params import Params, Resources
from ips2_dask.pipeline.cluster_choice import needed_bytes
from ips2_dask.pipeline.option_checks import check_machines
from ips2_dask.pipeline.prepare import GivenMatrix, Prepared, open_inputs, prepare
from ips2_dask.pipeline.run import on_client, run_each
from ips2_dask.plots.style import check_matplotlib
from ips2_dask.progress import Progress
from ips2_dask.readers.features import Features, TextFormat
from ips2_dask.runs.directory import check_directory
from ips2_dask.store.zarr_store import ZarrStore
from ips2_dask.sweeps import written
from ips2_dask.sweeps.grid import grid
from ips2_dask.sweeps.judge import Judge
from ips2_dask.sweeps.result import JudgeSettings, Point, Sweep, open_sweep

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Point", "Sweep", "open_sweep", "sweep"]

CLUSTERS = range(2, 16)
"""Numbers of clusters that are tried unless others are asked for."""

RESAMPLES = 2
"""Subsamples of each point that its stability is the mean of, unless another number is asked for."""

ON_WORKERS = 100_000
"""Samples up to which the workers judge a run while the next one goes on: each of them holds its similarities."""


OnPoint = Callable[[int, int, Point, bool], None]
"""Takes the number of points that are done, that of all, the point, and whether an earlier call had stored it."""


def sweep(
    source: Any,
    clusters: Iterable[int] = CLUSTERS,
    neighbors: Iterable[int] | None = None,
    sigma: Iterable[float] | None = None,
    params: Params | None = None,
    resources: Resources | None = None,
    *,
    store: str | Path,
    client: Client | None = None,
    labels_column: str | int | None = None,
    transpose: bool = False,
    features: Features | None = None,
    text: TextFormat | None = None,
    own_cluster: bool = False,
    similarity: GivenMatrix | None = None,
    knn_graph: GivenMatrix | None = None,
    resamples: int = RESAMPLES,
    progress: Progress | None = None,
    on_point: OnPoint | None = None,
    files: bool = True,
) -> Sweep:
    """Run every combination of c, k and sigma, and rank them without known labels.

    All runs are in one directory: a graph is built once for each k, the tensor's degrees once for each k and sigma, the
    eigenpairs too, for the largest c. What an earlier call has done is not done again. In the end the directory is that
    of the best run, and its folder ``sweep`` holds ``table.csv``, ``table.json``, ``sweep.png``, ``sweep.svg`` and
    ``sweep.html``.

    Parameters
    ----------
    source : whatever `ips2_dask.run` takes
    clusters, neighbors : iterables of int
        Values of c and k; k is that of ``params`` by default.
    sigma : iterable of float, optional
        Values of sigma; that of ``params`` by default.
    params : Params, optional
        Everything else.
    resources, client, labels_column, transpose, features, text, own_cluster, similarity, knn_graph, progress
        As of `ips2_dask.run`.
    store : path
        The run directory.
    resamples : int
        Subsamples of each point that its stability is the mean of.
    on_point : callable, optional
        Called with each point as it is done: ``on_point(done, total, point, stored)``.
    files : bool
        Whether to write table, figure and page (with Matplotlib, the extra ``report``).

    Returns
    -------
    Sweep
        Its points, best first.

    Raises
    ------
    BadInput
        Where the source, a value or the directory can't be used.
    Refused
        Where the plan of a point exceeds ``resources.memory_limit``; nothing has been computed then.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.datasets import make_blobs
    >>> from ips2_dask import sweep
    >>> X, _ = make_blobs(120, centers=3, random_state=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = sweep(X, range(2, 6), store=folder + "/sweep", files=False)
    ...     print(result.best.params.n_clusters, len(result.points), result.computed["neighbors"])
    3 4 1
    """
    params, resources = params or Params(), resources or Resources()
    check_machines(resources, client=client is not None, own_cluster=own_cluster)
    check_client(client)
    points = grid(
        params,
        clusters,
        (params.n_neighbors,) if neighbors is None else neighbors,
        (params.sigma,) if sigma is None else sigma,
    )
    settings = JudgeSettings(_checked_resamples(resamples), params.random_state)
    directory = _directory(store)
    if files:
        check_matplotlib()
    inputs = open_inputs(
        source,
        labels_column=labels_column,
        transpose=transpose,
        features=features,
        text=text,
        similarity=similarity,
        knn_graph=knn_graph,
        client=client,
    )
    runs = [prepare(inputs, one, resources) for one in reversed(points)][::-1]  # the largest c is the first refused
    judged = _judged_points(runs, directory, settings, resources, client, own_cluster, progress or Progress(), on_point)
    result = Sweep.ranked(directory, judged, settings, inputs.source.name, inputs.source.shape)
    result.store_result()
    if files:
        written.write(result)
    return result


def _judged_points(
    runs: Sequence[Prepared],
    store: ZarrStore,
    settings: JudgeSettings,
    resources: Resources,
    client: Client | None,
    own_cluster: bool,
    progress: Progress,
    on_point: OnPoint | None,
) -> list[Point]:
    """The point of each run, in their order; runs that no earlier call has judged are executed."""
    names = [_point_name(run) for run in runs]
    stored = {name: point for name in names if (point := Point.read(store, name, settings)) is not None}
    missing = [run for run, name in zip(runs, names, strict=True) if name not in stored]
    points = []
    with contextlib.ExitStack() as stack:
        executor: Executor = SerialExecutor() if client is None else on_client(client, resources)
        if missing and own_cluster:
            executor = stack.enter_context(places.executor(resources, needed_bytes(missing)))
            client = executor.client
        if runs[0].source.shape[0] > ON_WORKERS:
            client = None  # this process judges
        finished = run_each(missing, store, executor, progress, small_here=client is not None)
        judge = Judge(str(store.location), settings, client)
        stack.callback(judge.stop)
        for done, point in enumerate(judge.points(store, names, stored, finished), 1):
            points.append(point)
            if on_point is not None:
                on_point(done, len(runs), point, point.name in stored)
    return points


def _point_name(run: Prepared) -> str:
    """The name of a point's document: the digest that its labels depend on."""
    return run.keys["label"].folder.removeprefix("label-")


def _directory(store: str | Path) -> ZarrStore:
    """The run directory, checked: it is a local one, as figures and tables are written there as well."""
    if "://" in str(store):
        raise BadInput(
            "store",
            str(store),
            "a local directory",
            "there would be no place for the figure and the table",
            "give a local directory",
        )
    directory = ZarrStore(store)
    check_directory(directory)
    return directory


def _checked_resamples(number: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise BadInput(
            "resamples", repr(number), "a whole number of at least 1", "there would be no stability", "give 1 or more"
        )
    return number
