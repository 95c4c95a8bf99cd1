"""Many settings of one input, each stage computed once for all that share it, ranked without known labels."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ips2_dask import clusters as places
from ips2_dask.errors import BadInput
from ips2_dask.executors.base import Executor, SerialExecutor
from ips2_dask.params import Params, Resources
from ips2_dask.pipeline.option_checks import check_machines
from ips2_dask.pipeline.prepare import Prepared, open_inputs, prepare
from ips2_dask.pipeline.run import on_client, run_each
from ips2_dask.plots.style import check_matplotlib
from ips2_dask.progress import Progress, Silent
from ips2_dask.readers.features import Features
from ips2_dask.runs.run import check_directory
from ips2_dask.store.zarr_store import ZarrStore
from ips2_dask.sweeps import written
from ips2_dask.sweeps.criteria import Asked
from ips2_dask.sweeps.grid import grid
from ips2_dask.sweeps.judge import Judge
from ips2_dask.sweeps.result import Point, Sweep, open_sweep

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Point", "Sweep", "open_sweep", "sweep"]

CLUSTERS = range(2, 16)
"""Numbers of clusters that are tried unless others are asked for."""

RESAMPLES = 2

ON_WORKERS = 100_000
"""Up to so many samples the workers judge a run while the next one goes on: each of them holds its similarities."""


class Told(Protocol):
    """Is told of each point that is done."""

    def __call__(self, done: int, total: int, point: Point, found_there: bool) -> None:
        """So many of all are."""
        ...


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
    own_cluster: bool = False,
    similarity: Any = None,
    knn_graph: Any = None,
    resamples: int = RESAMPLES,
    progress: Progress | None = None,
    told: Told | None = None,
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
    sigma : iterable of float
    params : Params, optional
        Everything else.
    resources, client, labels_column, transpose, features, own_cluster, similarity, knn_graph, progress
        As of `ips2_dask.run`.
    store : path
        The run directory.
    resamples : int
        Subsamples of each point that its stability is the mean of.
    told : callable, optional
        Is given each point as it is done.
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
    >>> X, _ = make_blobs(120, centers=3, random_state=5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = sweep(X, range(2, 6), store=folder + "/sweep", files=False)
    ...     print(found.best.params.n_clusters, len(found.points), found.computed["neighbors"])
    3 4 1
    """
    params, resources = params or Params(), resources or Resources()
    check_machines(resources, client=client is not None, own_cluster=own_cluster)
    several = grid(
        params, clusters, (params.n_neighbors,) if neighbors is None else neighbors,
        (params.sigma,) if sigma is None else sigma,
    )  # fmt: skip
    asked = Asked(_resamples(resamples), params.random_state)
    location = _directory(store)
    if files:
        check_matplotlib()
    inputs = open_inputs(
        source, labels_column=labels_column, transpose=transpose, features=features, similarity=similarity,
        knn_graph=knn_graph,
    )  # fmt: skip
    source = inputs.source
    runs = [prepare(inputs, one, resources) for one in several]
    names = [point_name(run) for run in runs]
    kept = ZarrStore(location)
    there = {name: point for name in names if (point := Point.read(kept, name, asked)) is not None}
    missing = [run for run, name in zip(runs, names, strict=True) if name not in there]
    points = []
    with contextlib.ExitStack() as stack:
        executor: Executor = SerialExecutor() if client is None else on_client(client, resources)
        if missing and own_cluster:
            executor = stack.enter_context(places.executor(resources))
            client = executor.client
        judges = client if source.shape[0] <= ON_WORKERS else None
        finished = run_each(missing, kept, executor, progress or Silent(), small_here=judges is not None)
        judge = Judge(location, asked, judges)
        stack.callback(judge.stop)
        for done, point in enumerate(judge.points(kept, names, there, finished), 1):
            points.append(point)
            if told is not None:
                told(done, len(runs), point, point.name in there)
    found = Sweep.ranked(kept, points, asked, source.name, source.shape)
    found.settle()
    if files:
        written.write(found)
    return found


def point_name(run: Prepared) -> str:
    """The name of a point's document: the digest that its labels depend on."""
    return run.keys["label"].folder.removeprefix("label-")


def _directory(store: str | Path) -> str:
    """The place of the runs, checked: figures and tables go there as well, so it is a local one."""
    if "://" in str(store):
        raise BadInput(
            "store", str(store), "a local directory", "there would be no place for the figure and the table",
            "give a local directory",
        )  # fmt: skip
    location = str(Path(store).absolute())
    check_directory(location)
    return location


def _resamples(number: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise BadInput(
            "resamples", repr(number), "a whole number of at least 1", "there would be no stability", "give 1 or more"
        )
    return number
