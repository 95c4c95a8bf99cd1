"""Sweeps: run many settings of one input, computing each stage once for all that share it, and rank them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ips2_dask import clusters as places
from ips2_dask.errors import BadInput
from ips2_dask.executors.base import Executor, SerialExecutor
from ips2_dask.executors.failures import check_client
from ips2_dask.params import Params, Resources
from ips2_dask.pipeline.prepare import GivenMatrix, check_machines, open_inputs, prepare
from ips2_dask.pipeline.run import needed_bytes, on_client, run_each
from ips2_dask.plots.style import check_matplotlib
from ips2_dask.progress import Progress
from ips2_dask.readers.features import Features, TextFormat
from ips2_dask.runs.maintenance import check_directory
from ips2_dask.store.layout import STAGES
from ips2_dask.store.zarr_store import ZarrStore
from ips2_dask.sweeps.grid import CLUSTERS, Grid, points, varied
from ips2_dask.sweeps.judge import judged
from ips2_dask.sweeps.result import JudgeSettings, Point, Sweep, open_sweep

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Point", "Sweep", "open_sweep", "sweep"]

RESAMPLES = 2
"""Subsamples of each point that its stability is the mean of, unless another number is asked for."""

ON_WORKERS = 100_000
"""Samples up to which the workers judge a run while the next one goes on: each of them holds its similarities."""

OnPoint = Callable[[int, int, Point, bool], None]
"""Takes the number of points that are done, that of all, the point, and whether an earlier call had stored it."""


def sweep(
    source: Any,
    grid: Grid | None = None,
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
    """Run every combination of some parameters' values, and rank them without known labels.

    All runs are in one directory, where each stage is computed once for all that share it: a graph once for each metric
    and scale, the eigenpairs once for all c. What an earlier call has done is not done again. In the end the
    directory is that of the best run, and its folder ``sweep`` holds ``table.csv``, ``table.json``, ``sweep.png``,
    ``sweep.svg`` and ``sweep.html``.

    Parameters
    ----------
    source : whatever `ips2_dask.run` takes
    grid : dict of lists, or list of such, optional
        Names of parameters with the values to try, as `sklearn.model_selection.ParameterGrid` takes them: all of
        `Params` but ``max_clusters`` and ``n_eigenpairs``. By default ``{"n_clusters": range(2, 16)}``.
    params : Params, optional
        What the grid does not name.
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
    ...     result = sweep(X, {"n_clusters": range(2, 6)}, store=folder + "/sweep", files=False)
    ...     print(result.best.params.n_clusters, len(result.points), result.computed["neighbors"])
    3 4 1
    """
    params, resources = params or Params(), resources or Resources()
    check_machines(resources, client=client is not None, own_cluster=own_cluster)
    check_client(client)
    several = points({"n_clusters": CLUSTERS} if grid is None else grid, params)
    swept = varied(several)
    if isinstance(resamples, bool) or not isinstance(resamples, int) or resamples < 1:
        allowed, why = "a whole number of at least 1", "there would be no stability"
        raise BadInput("resamples", repr(resamples), allowed, why, "give 1 or more")
    settings = JudgeSettings(resamples, several[0].random_state)
    if "://" in str(store):
        why = "there would be no place for the figure and the table"
        raise BadInput("store", str(store), "a local directory", why, "give a local directory")
    directory = ZarrStore(store)
    check_directory(directory)
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
    runs = [prepare(inputs, one, resources) for one in reversed(several)][::-1]  # the largest c is the first refused
    first: dict[str, int] = {}  # where each stage's folder comes first: those who share a stage follow one another
    runs.sort(key=lambda run: [first.setdefault(run.keys[stage].folder, len(first)) for stage in STAGES])
    names = [run.keys["label"].folder.removeprefix("label-") for run in runs]  # digests of what labels depend on
    found = {name: point for name in names if (point := Point.read(directory, name, settings)) is not None}
    missing = {name: run for name, run in zip(names, runs, strict=True) if name not in found}
    with contextlib.ExitStack() as stack:
        executor: Executor = SerialExecutor() if client is None else on_client(client, resources)
        if missing and own_cluster:
            executor = stack.enter_context(places.executor(resources, needed_bytes(list(missing.values()))))
            client = executor.client
        if runs[0].source.shape[0] > ON_WORKERS:
            client = None  # this process judges
        finished = run_each(
            list(missing.values()), directory, executor, progress or Progress(), small_here=client is not None
        )
        new = stack.enter_context(contextlib.closing(judged(list(missing), finished, directory, settings, client)))
        done = []
        for name, run in zip(names, runs, strict=True):
            if name not in found:
                found[name] = next(new)
            values = {parameter: getattr(run.requested, parameter) for parameter in swept}
            done.append(dataclasses.replace(found[name], values=values))
            if on_point is not None:
                on_point(len(done), len(runs), done[-1], name not in missing)
        for _ in new:  # nothing is left: this lets the runs end
            pass
    result = Sweep.ranked(directory, done, settings, inputs.source.name, inputs.source.shape)
    result.store_result()
    if files:
        result.write()
    return result
