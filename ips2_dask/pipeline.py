"""Plan, then stage after stage on an executor; what is there under the right key is never computed again."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import importlib.metadata
import json
import platform
import shutil
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from distributed import Client

from ips2_dask._version import __version__
from ips2_dask.errors import BadInput
from ips2_dask.executors import DaskExecutor, Executor, SerialExecutor, cluster
from ips2_dask.kernels.parallel import threads, usable_cores
from ips2_dask.params import Params, Resources
from ips2_dask.plan import Choices, Plan, check_memory, check_shape, make_plan
from ips2_dask.stages import assemble, eigen, fuse, ingest, label, neighbors, tensor
from ips2_dask.storage import names
from ips2_dask.storage.beside import FOLDER, Beside, folder_of, keep, open_beside
from ips2_dask.storage.context import Context
from ips2_dask.storage.layout import STAGES
from ips2_dask.storage.memory import peak_rss
from ips2_dask.storage.readers import Source, open_source
from ips2_dask.storage.run import FORMAT, Run, check_directory, withdraw
from ips2_dask.storage.store import MemoryStore, Store, ZarrStore

MODULES: dict[str, Any] = {
    "ingest": ingest,
    "neighbors": neighbors,
    "tensor": tensor,
    "assemble": assemble,
    "eigen": eigen,
    "fuse": fuse,
    "label": label,
}


class Progress(Protocol):
    """Is told what a run does."""

    def begin(self, stage: str) -> None:
        """A stage starts."""
        ...

    def advance(self, stage: str, done: int, total: int) -> None:
        """So many of a stage's tasks are done."""
        ...

    def note(self, stage: str, facts: Mapping[str, Any]) -> None:
        """Numbers that a stage has come to: the solver's products and residual."""
        ...

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        """A stage is done, or was there already."""
        ...


class Silent:
    """Progress that nobody looks at."""

    def begin(self, stage: str) -> None:
        """Say nothing."""

    def advance(self, stage: str, done: int, total: int) -> None:
        """Say nothing."""

    def note(self, stage: str, facts: Mapping[str, Any]) -> None:
        """Say nothing."""

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        """Say nothing."""


def plan_run(source: Source, params: Params, resources: Resources) -> Plan:
    """The plan of a run, its shape checked; nothing is computed.

    Raises
    ------
    BadInput
        Where the samples are too few for the parameters.
    """
    m, f = source.shape
    check_shape(m, f, params, source.name)
    n_workers = resources.n_workers or min(4, usable_cores())
    return make_plan(
        m,
        f,
        params,
        rows=resources.partition_rows,
        resident=source.resident_bytes,
        n_workers=n_workers,
        shards=resources.shards,
        vectors=resources.vectors,
    )


def run(
    source: Any,
    params: Params,
    resources: Resources | None = None,
    *,
    store: str | Path | None = None,
    client: Client | None = None,
    labels_column: str | int | None = None,
    transpose: bool = False,
    progress: Progress | None = None,
    own_cluster: bool = False,
    similarity: Any = None,
    knn_graph: Any = None,
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
    progress : Progress, optional
    own_cluster : bool
        Start the cluster that ``resources`` describe, and end it with the run.
    similarity : (m, m) array, SciPy sparse matrix or path, optional
        S, for ``affinity="precomputed"``: symmetric, no entry negative; dense up to 5,000 samples.
    knn_graph : (m, m) SciPy sparse matrix, array or path, optional
        Who may be near: the stored entries of each row, whatever their values, are the candidates for the sample's
        neighbours, whose distances are measured in ``source`` by ``params.metric``.

    Returns
    -------
    Run

    Raises
    ------
    BadInput
        Where the source, a parameter or the directory can't be used.
    Refused
        Where the plan exceeds ``resources.memory_limit``.

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
    resources = resources or Resources()
    progress = progress or Silent()
    opened = (
        source if isinstance(source, Source) else open_source(source, labels_column=labels_column, transpose=transpose)
    )
    plan = plan_run(opened, params, resources)
    check_memory(plan, resources.memory_limit)
    given = open_beside(similarity, knn_graph, plan.m, params)
    if given.knn_graph is not None:
        plan = dataclasses.replace(plan, choices=dataclasses.replace(plan.choices, graph="given", n_shards=0))
    with contextlib.ExitStack() as stack:
        folder = None
        if store is None and (client is not None or own_cluster):
            # workers need a folder to meet in; it goes when the run does
            folder = _Folder()
            store = folder.name
        kept = _open_store(store)
        executor: Executor = SerialExecutor()
        if client is not None:
            executor = DaskExecutor(client, resources.threads_per_worker)
        elif own_cluster:
            executor = stack.enter_context(cluster(resources))
        stack.enter_context(threads(usable_cores()))
        location = str(source) if isinstance(source, str | Path) else None
        asked = {"location": location, "labels_column": labels_column, "transpose": transpose}
        finished = execute(opened, params, plan, kept, executor, progress, asked, given)
        return Run(kept, finished.manifest, keep=folder)


class _Folder:
    """A temporary folder that goes, without a word, when this object or the process does."""

    def __init__(self) -> None:
        self.name = tempfile.mkdtemp(prefix="ips2-")
        weakref.finalize(self, shutil.rmtree, self.name, ignore_errors=True)


def _open_store(store: str | Path | None) -> Store:
    """The store of a run: in memory, or a checked directory that is not made yet."""
    if store is None:
        return MemoryStore()
    location = str(store)
    if "://" not in location:
        location = str(Path(location).absolute())  # workers may live in another folder
    check_directory(location)
    return ZarrStore(location)


def execute(
    source: Source,
    params: Params,
    plan: Plan,
    store: Store,
    executor: Executor,
    progress: Progress,
    asked: Mapping[str, Any] | None = None,
    beside: Beside | None = None,
) -> Run:
    """Run the stages that are not there yet; one that refuses its input leaves nothing behind.

    ``asked`` is how the source was to be read; the manifest keeps it for the command that makes the run again.
    """
    context = Context(store, params, plan.bounds, plan.f, plan.choices, threads=usable_cores(), source=source)
    before = store.get_document("manifest.json")
    manifest = (before or _new_manifest()) | {
        "params": params.as_dict(),
        "input": {"name": source.name, "shape": [plan.m, plan.f], "fingerprint": source.fingerprint, **(asked or {})},
        "bounds": list(plan.bounds),
        "choices": dataclasses.asdict(plan.choices),
        "plan": [dataclasses.asdict(stage) for stage in plan.stages],
        "versions": dict(versions()),
        "started": _now(),
        "finished": None,
        "stages": [],
        "beside": {},
    }
    store.create()
    store.put_document("manifest.json", manifest)
    if source.sample_names is not None:
        manifest["beside"][names.FOLDER] = names.keep(store, source.sample_names)
    digests = (beside or Beside()).digests
    if beside and digests:
        manifest["beside"][FOLDER] = context.folders[FOLDER] = folder_of(digests)
        keep(store, folder_of(digests), beside)
    store.put_document("manifest.json", manifest)
    above = digests | {"input": source.fingerprint, "bounds": hashlib.sha256(repr(plan.bounds).encode()).hexdigest()}
    for name in STAGES:
        above[name] = _key(name, params, plan.choices, above)
        folder = context.folders[name] = f"{name}-{above[name][:16]}"
        progress.begin(name)
        begun = time.perf_counter()
        known = store.get_document(f"{folder}/stage.json")
        if known is None:
            try:
                facts = MODULES[name].run(context, executor, Reporter(progress, name))
            except BadInput:
                first_time = before is None and name == STAGES[0]
                for kept in manifest["beside"].values() if first_time else ():
                    store.remove(kept)
                withdraw(store, folder, before if name == STAGES[0] else manifest)
                raise
            known = {"facts": facts, "seconds": time.perf_counter() - begun, "peak_rss_bytes": _peak(context, name)}
            store.put_document(f"{folder}/stage.json", known)
            skipped = False
        else:
            skipped = True
        context.facts[name] = known["facts"]
        context.adopt(known["facts"])
        context.source = None  # from here on tasks are sent without it
        entry = {"name": name, "folder": folder, "seconds": known["seconds"], "skipped": skipped}
        manifest["stages"].append({**entry, "peak_rss_bytes": known["peak_rss_bytes"], "facts": known["facts"]})
        store.put_document("manifest.json", manifest)
        progress.end(name, time.perf_counter() - begun, skipped)
    manifest["finished"] = _now()
    store.put_document("manifest.json", manifest)
    return Run(store, manifest)


class Reporter:
    """What a stage is given to tell a run's progress."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress, self._name = progress, name

    def __call__(self, done: int, total: int) -> None:
        """So many of the stage's tasks are done."""
        self._progress.advance(self._name, done, total)

    def note(self, facts: Mapping[str, Any]) -> None:
        """Numbers it has come to."""
        self._progress.note(self._name, facts)


def _key(name: str, params: Params, choices: Choices, above: dict[str, str]) -> str:
    """Digest of a stage's inputs' keys, its own parameters and its version."""
    module = MODULES[name]
    feeds = _feeds(name) + (("similarity",) if name == "eigen" and params.tensor == "decomposable" else ())
    feeding = {stage: key for stage, key in above.items() if stage in feeds}
    content = {
        "inputs": feeding,
        "params": module.depends_on(params, choices),
        "version": module.VERSION,
        "format": FORMAT,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _feeds(name: str) -> tuple[str, ...]:
    """What a stage reads; a change anywhere else leaves it alone."""
    return {
        "ingest": ("input", "bounds"),
        "neighbors": ("ingest", "knn_graph"),
        "tensor": ("ingest", "neighbors"),
        "assemble": ("tensor",),
        "eigen": ("assemble",),
        "fuse": ("eigen", "similarity"),
        "label": ("fuse",),
    }[name]


def _peak(context: Context, stage: str) -> int:
    """Largest peak of any process that worked on a stage, this one included."""
    receipts = (context.receipt(stage, b) for b in range(context.n_partitions))
    return max([peak_rss(), *(int(r["facts"].get("peak_rss_bytes", 0)) for r in receipts if r)])


def _new_manifest() -> dict[str, Any]:
    return {"format": FORMAT, "created": _now()}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@functools.cache
def versions() -> dict[str, str]:
    """Versions of what the numbers depend on: looked up once, since that takes longer than a stage of a small fit."""
    names = ("dask", "distributed", "numba", "numpy", "pynndescent", "scikit-learn", "scipy", "zarr")
    return {
        "ips2_dask": __version__,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in names},
    }
