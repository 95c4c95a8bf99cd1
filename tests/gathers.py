"""Which arrays grow with the samples: what a run reads, writes, caches, sends and makes, recorded at two sizes.

A *gather* is an array that grows with the samples where the rows of a partition stay the same. `gathers` runs two sizes
and returns them by stage, by who holds them (``driver`` or ``task``) and by what was done with them::

    eigen  task  read assemble/whole/components

``python tests/gathers.py`` prints those of today's code, ``python tests/gathers.py "equal rows"`` those of one of the
`CASES`. The tests want none but those of `ALLOWED`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import re
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, NamedTuple

import dask
import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client, LocalCluster
from distributed.worker import thread_state
from numpy.typing import NDArray

from ips2_dask import Features, Params, Resources, run
from ips2_dask.datasets import curved_gaussians
from ips2_dask.executors import base as executors
from ips2_dask.executors import dask as dask_executor
from ips2_dask.executors.base import Executor, SerialExecutor
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.kernels import parallel
from ips2_dask.kernels.parallel import threads
from ips2_dask.progress import Progress
from ips2_dask.store.context import Context
from ips2_dask.store.zarr_store import ZarrStore

ROWS = 250
"""Rows of a partition."""

PARTITIONS = (12, 24)
"""The two sizes: partitions, and as many shards."""

FEATURES = 3
"""Few, so that a partition has few others near it: these then are as many at both sizes."""

LENGTH = 1 / 16
"""Growth of an array's longest axis, a sample, from which it is a gather: one entry of a partition is 1 / 250."""

BYTES = 1.0
"""The same of an array's bytes: a matrix of partitions by rows grows along its short axis."""

TIMES = 1.6
"""How many times as long or large it must get: the largest of more partitions is larger too, by a few percent."""

PROXIED = ("executors", "pipeline", "plan", "runs", "stages", "store.context")
"""Packages whose calls of NumPy are recorded. Kernels get what these give them, and the store's own are reads."""


BOUNDS = {
    "kernels.duplicates.RANGE_ROWS": 4 * ROWS,
    "kernels.density.TREE_SAMPLES": (500, 500),
    "kernels.density.DIFFUSE_SAMPLES": 500,
    "stages.label.BUCKET_ROWS": 1000,
    "stages.known_labels.BUCKET_ROWS": 1000,
    "readers.labels.PIECE_ROWS": 1000,
    "stages.kmeans.START_ROWS": 1000,
    "stages.sharding.SPLIT_BYTES": 4 * ROWS * FEATURES,
    "stages.sharding.MOST_BATCHES": 2 * PARTITIONS[1],
    "stages.islands.SEARCH_WORK": 500**2 * 67,
    "stages.eigen.RANGE": 2 * ROWS,
    "stages.views.PAIRS_AT_ONCE": 8000,
    "kernels.levels.COARSEST": 60,
    "stages.chunk_levels.WHOLE": 120,
}
"""Bounds of the package that only large runs reach, and what they are here, so that both runs reach them."""

ALLOWED = {
    r"neighbors task (made in|returned by) stages\.sharding\.cells": (
        "200 rows a shard decide the cells (stages.sharding.SAMPLE_PER_SHARD), and there are at most 2,500 shards"
    ),
    r"neighbors driver made in stages\.graph_refinement\.true_reach": (
        "some numbers a partition for each of the recall's rows, and there are at most 2,500 partitions"
    ),
    r"assemble driver made in stages\.component_labels\._contract": (
        "a few numbers a connected piece of a partition, and a partition has few pieces"
    ),
}
"""Arrays that grow at both of these sizes and are bounded in a large run, with what bounds them."""

BOUNDED = {
    r"(eigen|label) \w+ .*(chunk_levels\.(WholeGraph|_solve_whole|stacked)|kernels\.levels\.|-(last|coarsest)-#).*": (
        "a graph of at most stages.chunk_levels.WHOLE nodes, which one task solves"
    ),
    r"(eigen|label) \w+ .*(chunk_levels\.|-)from_whole.*": (
        "a chunk of the graph above that one, which has at most as many rows as a chunk of the finest graph"
    ),
}
"""The same of arrays that grow in some of the cases, as it happens."""

EQUAL, LABELLED, AUTO, NORMALIZED, ISLANDS = "equal rows", "known labels", "auto", "normalized", "islands"
CASES = (EQUAL, LABELLED, AUTO, NORMALIZED, ISLANDS)
"""Runs besides the plain one: with equal rows and with rows that are left out; with known labels; with a number of
clusters that the run chooses; with a normalised S; with a few groups that nothing joins with the others."""

RETURNS = tuple(f"ips2_dask.{name}." for name in ("kernels", "runs", "stages"))
"""Packages of whose functions the results are recorded; of kernels what they return to other packages."""


class Entry(NamedTuple):
    """An array by the place it was met at; numbers in names are ``#``."""

    stage: str
    role: str  # "driver" or "task"
    what: str

    def __str__(self) -> str:
        return f"{self.stage:9} {self.role:6} {self.what}"


class Size(NamedTuple):
    """The longest axis and the bytes of an array: the most that were met."""

    length: int
    nbytes: int


NUMBERS = re.compile(r"(?:[0-9a-f]{32}|\d+)(?:-(?:[0-9a-f]{32}|\d+))*")
"""What the names of equal arrays differ by."""

_IN_TASK: ContextVar[bool] = ContextVar("in_task", default=False)


def _is_in_task() -> bool:
    """Whether this is a task: also in a thread of a worker while it runs one."""
    return _IN_TASK.get() or hasattr(thread_state, "key")


class Recorder(Progress):
    """Records sizes of arrays; as the run's progress it knows the stage."""

    def __init__(self) -> None:
        self.sizes: dict[Entry, Size] = {}
        self._stage = "prepare"
        self._lock = threading.Lock()
        self._noted: set[tuple[str, bool, str, int]] = set()

    def begin(self, stage: str) -> None:
        """What is met from now on is this stage's."""
        self._stage = stage

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        """The stage is over."""
        self._stage = "between"

    def note(self, what: str | Mapping[str, object], *values: object, role: str | None = None) -> None:
        """Record the arrays in some values."""
        if not isinstance(what, str):
            return  # an event of the run's progress
        role = role or ("task" if _is_in_task() else "driver")
        entry = Entry(self._stage, role, NUMBERS.sub("#", what))
        for value in values:
            for size in sizes_in(value):
                if size.length > 1:
                    with self._lock:
                        most = self.sizes.get(entry, Size(0, 0))
                        self.sizes[entry] = Size(max(most.length, size.length), max(most.nbytes, size.nbytes))

    def note_once(self, what: str, value: object) -> None:
        """Record the arrays in a value that stays in memory, once in each stage and role."""
        key = (self._stage, _is_in_task(), what, id(value))
        if key not in self._noted:
            self._noted.add(key)
            self.note(what, value)


def sizes_in(value: object, depth: int = 6) -> Iterator[Size]:
    """The sizes of all arrays, and of all lists of numbers, in a value."""
    if isinstance(value, np.ndarray):
        yield Size(max(value.shape, default=1), value.nbytes)
    elif sp.issparse(value):
        for name in ("data", "indices", "indptr"):
            yield from sizes_in(getattr(value, name, None))
    elif isinstance(value, (str, bytes, int, float, Executor, ZarrStore)) or value is None or depth == 0:
        return
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from sizes_in(inner, depth - 1)
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield Size(len(value), 8 * len(value))
        if value and not isinstance(next(iter(value)), (int, float, str)):
            for inner in value:
                yield from sizes_in(inner, depth - 1)
    elif dataclasses.is_dataclass(value) or type(value).__module__.startswith("ips2_dask"):
        for inner in vars(value).values() if hasattr(value, "__dict__") else ():
            yield from sizes_in(inner, depth - 1)


@contextlib.contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Record everything of runs in this process, their workers' threads among it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ThreadPoolExecutor, "submit", _submit_with_role(ThreadPoolExecutor.submit))
        patch.setattr(parallel, "_pool", None)  # threads that began before are not profiled
        _record_store(patch, recorder)
        _record_executors(patch, recorder)
        _record_numpy(patch, recorder)
        for name, bound in BOUNDS.items():
            patch.setattr(f"ips2_dask.{name}", bound)
        patch.setattr("ips2_dask.stages.chunks.SHARE", 1)  # some at both sizes, however short the solve is
        _RECORDERS.append(recorder)
        threading.setprofile(_profile)
        sys.setprofile(_profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            _RECORDERS.pop()


_RECORDERS: list[Recorder] = []
"""The recorder of the run that is under way: threads of workers outlive a run."""


def _profile(frame: types.FrameType, event: str, value: object) -> None:
    """Record what the package's functions return."""
    if event != "return" or not _RECORDERS or frame.f_back is None:
        return
    module, caller = (f.f_globals.get("__name__", "") for f in (frame, frame.f_back))
    inside = module.startswith(RETURNS[0]) and caller.startswith(RETURNS[0])
    if module.startswith(RETURNS) and not inside and (isinstance(value, (np.ndarray, tuple)) or sp.issparse(value)):
        _RECORDERS[-1].note(f"returned by {_named(frame)}", value)


def _record_store(patch: pytest.MonkeyPatch, recorder: Recorder) -> None:
    read, write, cached = ZarrStore.read, ZarrStore.write, Context.cached

    def recorded_read(self: ZarrStore, folder: str, part: str, name: str, *rows: Any) -> Any:
        array = read(self, folder, part, name, *rows)
        recorder.note(f"read {folder.partition('-')[0]}/{part}/{name}", array)
        return array

    def recorded_write(self: ZarrStore, folder: str, part: str, arrays: Any, facts: Any) -> Any:
        for name, array in arrays.items():
            recorder.note(f"write {folder.partition('-')[0]}/{part}/{name}", array)
        for name, fact in facts.items():
            recorder.note(f"fact {folder.partition('-')[0]}/{part}/{name}", fact)
        return write(self, folder, part, arrays, facts)

    def recorded_cached(self: Context, stage: str, name: str, make: Callable[[], Any], size: int, pin: str = "") -> Any:
        value = cached(self, stage, name, make, size, pin)  # one process is driver and worker here: each looks anew
        recorder.note_once(f"cache {stage}/{name}", value)
        return value

    patch.setattr(ZarrStore, "read", recorded_read)
    patch.setattr(ZarrStore, "write", recorded_write)
    patch.setattr(Context, "cached", recorded_cached)


def _submit_with_role(submit: Callable[..., Any]) -> Callable[..., Any]:
    """``ThreadPoolExecutor.submit`` that has what a task gives to a thread of a pool count as the task's."""

    def submitted(pool: ThreadPoolExecutor, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if not _is_in_task():
            return submit(pool, function, *arguments, **options)

        def in_task() -> Any:
            token = _IN_TASK.set(True)
            try:
                return function(*arguments, **options)
            finally:
                _IN_TASK.reset(token)

        return submit(pool, in_task)

    return submitted


def _record_executors(patch: pytest.MonkeyPatch, recorder: Recorder) -> None:
    compute_part = executors.compute_part

    def recorded_part(item: Any, job: Any, context: Context, *rows: Any) -> Any:
        token = _IN_TASK.set(True)
        try:
            recorder.note(f"context of {job.prefix}{job.function.__name__}", context.facts, context.bounds, job)
            return compute_part(item, job, context, *rows)
        finally:
            _IN_TASK.reset(token)

    for module in (executors, dask_executor):
        patch.setattr(module, "compute_part", recorded_part)

    for kind, owner in ((SerialExecutor, Executor), (DaskExecutor, DaskExecutor)):
        patch.setattr(kind, "submit", _submit(owner.submit, recorder), raising=False)
        patch.setattr(kind, "results", _results(owner.results, recorder), raising=False)
        patch.setattr(kind, "share", _share(owner.share, recorder), raising=False)


def _submit(submit: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    def recorded(self: Executor, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        recorder.note(f"argument of {name}", *(a for a in arguments if not isinstance(a, Context)), role="task")
        token = _IN_TASK.set(isinstance(self, SerialExecutor))
        try:
            return submit(self, name, _with_result_noted, name, function, *arguments)
        finally:
            _IN_TASK.reset(token)

    return recorded


def _with_result_noted(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """A submitted task, on a worker of this process too, whose result stays there."""
    result = function(*arguments)
    if _RECORDERS and not isinstance(result, Context):
        _RECORDERS[-1].note(f"result of {name}", result, role="task")
    return result


def _results(results: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    def recorded(self: Executor, handles: Any) -> Any:
        found = results(self, handles)
        if not _IN_TASK.get():
            recorder.note(f"result in {_caller(2)}", *found, role="driver")
        return found

    return recorded


def _share(share: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    def recorded(self: Executor, value: object) -> Any:
        shown = (value.facts, value.bounds) if isinstance(value, Context) else (value,)
        recorder.note(f"share {type(value).__name__}", *shown, role="driver")
        return share(self, value)

    return recorded


class _NumPy:
    """NumPy as a module sees it: what its functions return is recorded under the function that called them."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __reduce__(self) -> tuple[Any, ...]:  # a task that is sent takes NumPy itself along
        return importlib.import_module, ("numpy",)

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        if isinstance(found, (type, types.ModuleType, np.ufunc)) or not callable(found):
            return found

        def recorded(*arguments: Any, **options: Any) -> Any:
            value = found(*arguments, **options)
            if isinstance(value, (np.ndarray, tuple)):
                self._recorder.note(f"made in {_caller(2)}", value)
            return value

        return recorded


def _caller(frames: int) -> str:
    """The function of the package that called: its module and name."""
    frame = sys._getframe(frames)
    while not frame.f_globals["__name__"].startswith("ips2_dask"):
        if frame.f_back is None:
            return "elsewhere"
        frame = frame.f_back
    return _named(frame)


def _named(frame: types.FrameType) -> str:
    """A frame's module and function; those inside a function count as it."""
    module = frame.f_globals["__name__"].removeprefix("ips2_dask.")
    return f"{module}.{re.split(r'[.]<', frame.f_code.co_qualname)[0]}"


def _record_numpy(patch: pytest.MonkeyPatch, recorder: Recorder) -> None:
    proxy = _NumPy(recorder)
    for name, module in list(sys.modules.items()):
        inside = name.removeprefix("ips2_dask.")
        proxied = any(inside == p or inside.startswith(f"{p}.") for p in PROXIED)
        if name.startswith("ips2_dask.") and proxied and getattr(module, "np", None) is np:
            patch.setattr(module, "np", proxy)


# ---- runs of two sizes, and what grew between them


def data(m: int, case: str = "") -> NDArray[Any]:
    """The m rows of one of the `CASES`, or of the plain run."""
    X, groups = curved_gaussians(m, FEATURES, 4, 0)
    rng = np.random.default_rng(0)
    if case == EQUAL:
        X = X.astype(np.float64)
        X[rng.choice(m, m // 20, replace=False)] = X[rng.integers(0, m, m // 20)]
        X[rng.choice(m, m // 50, replace=False)] = X[0]
        X[rng.choice(m, m // 50, replace=False), 0] = np.nan
    elif case == LABELLED:
        X = np.column_stack([X, groups])
    elif case == ISLANDS:
        far = X.max() + 1000 * (1 + np.arange(4).repeat(8))
        X[rng.choice(m, len(far), replace=False)] = far[:, None] + rng.normal(size=(len(far), FEATURES))
    return X


def record(partitions: int, client: Client | None = None, case: str = "") -> dict[Entry, Size]:
    """The arrays of a chunked, sharded run of so many partitions."""
    recorder = Recorder()
    params = Params(
        n_clusters=4,
        max_clusters=8 if case == AUTO else None,
        shards=partitions,
        fusion="normalized" if case == NORMALIZED else "average",
    )
    with tempfile.TemporaryDirectory(prefix="ips2-gathers-") as folder:
        np.save(f"{folder}/X.npy", data(ROWS * partitions, case))
        with recording(recorder), threads(1):
            run(
                f"{folder}/X.npy",
                params,
                Resources(partition_rows=ROWS, vectors="chunked"),
                store=f"{folder}/run",
                client=client,
                progress=recorder,
                own_cluster=False,
                labels_column=-1 if case == LABELLED else None,
                features=Features(missing="drop") if case == EQUAL else None,
            )
    return recorder.sizes


def gathers(client: Client | None = None, case: str = "") -> dict[Entry, float]:
    """Bytes a sample of every array that grows with the samples."""
    small, large = (record(partitions, client, case) for partitions in PARTITIONS)
    more = ROWS * (PARTITIONS[1] - PARTITIONS[0])
    return {
        entry: (size.nbytes - (small[entry].nbytes if entry in small else 0)) / more
        for entry, size in large.items()
        if grows(small.get(entry), size, more)
    }


def grows(small: Size | None, large: Size, more: int) -> bool:
    """Whether an array grows with the samples, of which there are twice as many, so many more, at the larger size.

    One that only the larger run has is told by its length.
    """
    if small is None:
        return large.length >= 0.9 * 2 * more
    longer = large.length - small.length >= LENGTH * more and large.length >= TIMES * small.length
    larger = large.nbytes - small.nbytes >= BYTES * more and large.nbytes >= TIMES * small.nbytes
    return longer or larger


def reason(entry: Entry) -> str | None:
    """Why an array may grow in a small run: None where it may not."""
    return next((why for pattern, why in (ALLOWED | BOUNDED).items() if re.fullmatch(pattern, " ".join(entry))), None)


@contextlib.contextmanager
def workers_here() -> Iterator[Client]:
    """Two workers of Dask as threads of this process, so that what they hold is recorded too."""
    with (
        dask.config.set({"distributed.worker.memory.terminate": False}),
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0", protocol="tcp"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


if __name__ == "__main__":
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    for entry, slope in sorted(gathers(case=asked).items()):
        print(f"{entry!s:100} {slope:8.1f} bytes a sample  {reason(entry) or ''}".rstrip())
