"""`ips2 bench graph`: builders of the sample graph at equal recall, each in a fresh process, compilation apart."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ips2_dask.bench.builders import BUILDERS, LEAST_NEIGHBORS, SEED, Builder, Lists, warm_up
from ips2_dask.bench.document import Record
from ips2_dask.bench.inputs import Data, centred
from ips2_dask.bench.memory import peak
from ips2_dask.bench.process import work_apart
from ips2_dask.kernels.neighbors import nearest_in, recall, recall_rows
from ips2_dask.kernels.parallel import threads, usable_cores

COLUMNS = ("builder", "outcome", "seconds", "recall", "compile_seconds", "build_seconds", "search_seconds", "effort")
RECALL = 0.95


def measure(
    data: Data,
    folder: Path,
    neighbors: int = LEAST_NEIGHBORS,
    builders: Sequence[str] = tuple(BUILDERS),
    least_recall: float = RECALL,
    limit: float | None = None,
) -> Iterator[Record]:
    """A record for each builder.

    Each builds an index and looks up the neighbours of all samples, first in a process that has compiled nothing
    (``first_seconds``), then again (``build_seconds`` + ``search_seconds``, which make ``seconds``); the difference
    is ``compile_seconds``. If its recall is too low, the search alone is repeated with more effort until it is not, or
    no effort is left. Every time holds the check of the candidates that a run makes of any builder's answer; ours by
    shards holds the measurement of the recall that it is refined by.

    Parameters
    ----------
    data : Data
    folder : Path
        For temporary files.
    neighbors : int
        Columns of the lists, the sample itself included; the recall is that of the others.
    builders : sequence of str
        Of ``BUILDERS``; one whose package is missing is named and left out.
    least_recall : float
    limit : float, optional
        Seconds that a builder may take in all.
    """
    job = {"neighbors": neighbors, "least_recall": least_recall, **_truth(data, neighbors, folder)}
    for name in builders:
        record: Record = {"data": data.name, "m": data.m, "f": data.f, "neighbors": neighbors, "builder": name}
        if BUILDERS[name].missing:
            yield {**record, "outcome": f"skipped: {BUILDERS[name].package} is not installed", "seconds": None}
            continue
        outcome = work_apart("graph", {**job, "builder": name}, folder, limit, cold=True)
        most = peak(outcome.samples)
        yield {
            **record,
            "threads": usable_cores(),
            "outcome": outcome.word,
            "seconds": None,
            **outcome.answer,
            "peak_bytes": most.tree if most else None,
        }


def _truth(data: Data, n: int, folder: Path) -> dict[str, str]:
    """Files of X as a run sees it, and of how far the n-th neighbour of each sample of the recall is."""
    X = centred(np.load(data.X))
    rows = recall_rows(len(X), SEED)
    with threads(usable_cores()):
        reach = nearest_in(X[rows], rows, X, n - 1)[1][:, -1]
    files = {"X": str(folder / "centred.npy"), "reach": str(folder / "reach.npy")}
    np.save(files["X"], X)
    np.save(files["reach"], reach)
    return files


def work(job: dict[str, Any]) -> dict[str, Any]:
    """One builder, in a process of its own."""
    builder = BUILDERS[job["builder"]]
    X, reach, n = np.load(job["X"]), np.load(job["reach"]), job["neighbors"]
    if builder.module:
        warm_up(builder.module, X)
    _, first, _ = _once(builder, X, n)
    found, seconds, index = _once(builder, X, n)
    compiling = max(0.0, sum(first) - sum(seconds))
    build, search = seconds
    effort = builder.efforts[0]
    for more in builder.efforts[1:]:
        if _recall(found, reach) >= job["least_recall"]:
            break
        effort = more
        begun = time.perf_counter()
        found = builder.search(index, X, n, effort)
        search = time.perf_counter() - begun
    return {
        "seconds": build + search,
        "build_seconds": build,
        "search_seconds": search,
        "first_seconds": sum(first),
        "compile_seconds": compiling,
        "recall": _recall(found, reach),
        "reached": _recall(found, reach) >= job["least_recall"],
        "effort": effort,
    }


def _once(builder: Builder, X: Any, n: int) -> tuple[Lists, tuple[float, float], Any]:
    """Lists at the first effort, seconds of build and search, and the index."""
    prepared = builder.prepare(X, n)
    begun = time.perf_counter()
    index = builder.build(prepared)
    built = time.perf_counter()
    found = builder.search(index, X, n, builder.efforts[0])
    return found, (built - begun, time.perf_counter() - built), index


def _recall(found: Lists, reach: Any) -> float:
    """Recall on the sampled rows, in whatever numbering the lists are."""
    rows = recall_rows(len(found.distances), SEED)
    if found.order is not None:
        rank = np.empty(len(found.order), np.int64)
        rank[found.order] = np.arange(len(found.order))
        rows = rank[rows]
    return recall(found.distances[rows], reach)
