"""Judge finished runs without known labels: here, or on the workers while the next run goes on."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np
from distributed import Client

from ips2_dask.executors.failures import RETRIES, known_workers, losses
from ips2_dask.kernels.parallel import threads, usable_cores
from ips2_dask.kernels.validity import modularity, replicate, replicate_rows
from ips2_dask.metrics import scores_of_table
from ips2_dask.runs.run import Run
from ips2_dask.runs.sample import RunSample, shown
from ips2_dask.store.integrity import Document
from ips2_dask.store.zarr_store import ZarrStore
from ips2_dask.sweeps.result import JudgeSettings, Point

EMBEDDED_ANEW = 1_000_000
"""Samples up to which a subsample's U is embedded anew: it takes a process that holds U, and minutes a million."""

WAITING_RUNS = 2
"""Runs that may wait for each worker's judgement."""

PRIORITY = -10
"""Priority of a judgement on the workers, below that of the tasks of the next run: the run waits for its tasks, and
nothing waits for the judgement."""


def judge_run(run: Run, settings: JudgeSettings) -> Document:
    """The criteria of a run and a few facts about it, as plain values.

    ``stability`` is the mean adjusted Rand index with partitions of subsamples, which are embedded anew up to
    `EMBEDDED_ANEW` samples; of more samples drawn rows of the embedding are clustered anew alone. ``modularity`` is
    that of the labels in the pairwise similarity S, which depends on metric, scale and affinity alone. Labels that say
    nothing have 0 in any S, so that points compare whose S differ. Known labels give ``nmi`` and ``acc``, which are
    reported and rank nothing.
    """
    begun, view = time.perf_counter(), shown(run)
    c = max(run.params.n_clusters, len(run.sizes))  # Leiden's communities may be more than were asked for
    with threads(usable_cores()):  # one thread for BLAS and k-means: the same bits wherever it is done
        agreements = _agreements(run, view, c, settings)
        share = modularity(view.labelled_edges(), np.arange(c, dtype=np.int32), c)  # of labels in place of samples
    sizes, digest = np.pad(run.sizes, (0, c - len(run.sizes))), hashlib.sha256()
    for block in run.iter_labels():
        digest.update(np.ascontiguousarray(block.labels[block.labels >= 0], "<i4").tobytes())
    facts: Document = {
        "agreements": agreements,
        "smallest": int(sizes.min()),
        "largest": int(sizes.max()),
        "labels": digest.hexdigest()[:16],
        "warnings": run.report()["warnings"],
    }
    table = run.known_table()
    if table is not None:
        agreement = scores_of_table(table)
        facts["known"] = {"nmi": agreement["nmi"], "acc": agreement["acc"]}
    criteria = {"stability": float(np.mean(agreements)), "modularity": share}
    return {"criteria": criteria, **facts, "seconds": time.perf_counter() - begun}


def _agreements(run: Run, view: RunSample, c: int, settings: JudgeSettings) -> list[float]:
    """Agreement of the labels with those of each subsample; of many samples with those of drawn rows of the embedding.

    That depends on the number of samples alone, so that all points of a sweep are judged in one way.
    """
    summary, numbers = run.report(), range(settings.resamples)
    kept = [one for one in summary["roundings"] if one["chosen"] and not run.params.clusters_rows]
    # the rounding that made the labels, and from how many columns of the embedding; Leiden's are of none
    rounding: dict[str, Any] = kept[0] if kept else {"rounding": "kmeans", "columns": 0}
    how: dict[str, Any] = {"rounding": rounding["rounding"], "width": rounding["columns"] or None}
    if summary["distinct"] > EMBEDDED_ANEW and view.embedding is not None:
        embedded, labels = view.embedding, view.labels
        return [replicate_rows(embedded, labels, c, settings.seed, number, **how) for number in numbers]
    distinct = run.distinct
    U = run.similarity("fused", distinct=True)
    if run.params.high_order == "signed":
        U = abs(U)
    how |= {
        "columns": run.params.n_embedded,
        "rows": run.params.clusters_rows,
        "embedding": None if run.embedding is None else run.embedding[distinct],
    }
    return [replicate(U, run.labels[distinct], c, settings.seed, number, **how) for number in numbers]


def _judge_stored(location: str, manifest: Document, settings: JudgeSettings) -> Document:
    """`judge_run` of a run in a directory: the task of a worker."""
    return judge_run(Run(ZarrStore(location), manifest), settings)


def judged(
    names: Sequence[str], runs: Iterator[Run], store: ZarrStore, settings: JudgeSettings, client: Client | None
) -> Generator[Point]:
    """The points of runs, by ``names``, each stored as soon as it is judged: here, or by the workers of ``client``."""
    waiting: deque[tuple[str, Run, Any]] = deque()  # name, run, its judgement or a future of it
    room = 0 if client is None else WAITING_RUNS * max(1, len(known_workers(client)))

    def finished() -> Point:
        """The point of the run that has waited longest."""
        name, run, judgement = waiting.popleft()
        if client is not None:
            with losses(client):
                judgement = judgement.result()
        point = Point.of_run(name, run, judgement)
        point.write(store, settings)
        return point

    try:
        for name, run in zip(names, runs, strict=True):
            if client is None:
                waiting.append((name, run, judge_run(run, settings)))
            else:
                arguments = _judge_stored, str(store.location), run.manifest, settings
                with losses(client):
                    future = client.submit(*arguments, pure=False, retries=RETRIES, priority=PRIORITY)
                waiting.append((name, run, future))
            if len(waiting) > room:
                yield finished()
        while waiting:
            yield finished()
    finally:
        if client is not None and client.status == "running":
            client.cancel([future for _, _, future in waiting])
