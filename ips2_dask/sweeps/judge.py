"""Judge finished runs without known labels: here, or on the workers while the next run goes on."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from distributed import Client, Future
from numpy.typing import NDArray

from ips2_dask.executors.failures import RETRIES, losses
from ips2_dask.executors.workers import known_workers
from ips2_dask.kernels.parallel import threads, usable_cores
from ips2_dask.kernels.validity import conductances, replicate, replicate_rows
from ips2_dask.metrics import scores_of_table
from ips2_dask.plots.points import points, silhouette
from ips2_dask.runs.run import Run
from ips2_dask.runs.sample import SHOWN, UNCERTAIN, RunSample, shown
from ips2_dask.store.integrity import Document
from ips2_dask.store.zarr_store import ZarrStore
from ips2_dask.sweeps.result import SILHOUETTES, JudgeSettings, Point
from ips2_dask.typing import AnyArray

EMBEDDED_ANEW = 1_000_000
"""Samples up to which a subsample's U is embedded anew: it takes a process that holds U, and minutes a million."""

WAITING_RUNS = 2
"""Runs that may wait for each worker's judgement."""

Judgement = dict[str, Any]
"""The criteria of a run and a few facts about it, as plain values."""

PRIORITY = -10
"""Priority of a judgement on the workers, below that of the tasks of the next run: the run waits for its tasks, and
nothing waits for the judgement."""


def judge_run(run: Run, settings: JudgeSettings) -> Judgement:
    """The criteria of a run and a few facts about it, as plain values.

    ``stability`` is the mean adjusted Rand index with partitions of subsamples, which are embedded anew up to
    `EMBEDDED_ANEW` samples; of more samples drawn rows of the embedding are clustered anew alone. ``silhouette`` is the
    mean one of a sample in the embedding, ``conductance`` the mean over the clusters in the pairwise similarity S,
    which does not depend on c, k or sigma and so is the same graph for every point. Known labels give ``nmi`` and
    ``acc``, which are reported and rank nothing.
    """
    begun = time.perf_counter()
    with threads(usable_cores()):  # one thread for BLAS and k-means: the same bits wherever it is done
        judgement = _judge(run, settings)
    return {**judgement, "seconds": time.perf_counter() - begun}


def _judge_stored(location: str, manifest: Document, settings: JudgeSettings) -> Judgement:
    """`judge_run` of a run in a directory: the task of a worker."""
    return judge_run(Run(ZarrStore(location), manifest), settings)


def _judge(run: Run, settings: JudgeSettings) -> Judgement:
    view, c = shown(run), _clusters(run)
    agreements = _agreements(run, view, settings)
    criteria = {
        "stability": float(np.mean(agreements)),
        "silhouette": float(silhouette(points(view), view.labels, most=SILHOUETTES, seed=settings.seed).values.mean()),
        "conductance": float(_conductances(run, view).mean()),
    }
    sizes = np.zeros(c, np.int64)
    digest = hashlib.sha256()
    for block in run.iter_labels():
        labels = block.labels[block.labels >= 0]
        sizes += np.bincount(labels, minlength=c)
        digest.update(np.ascontiguousarray(labels, "<i4").tobytes())
    facts = {
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
    return {"criteria": criteria, **facts}


def _agreements(run: Run, view: Run, settings: JudgeSettings) -> list[float]:
    """Agreement of the labels with those of each subsample; of many samples with those of drawn rows of the embedding.

    That depends on the number of samples alone, so that all points of a sweep are judged in one way.
    """
    rounding, width = _rounding(run)
    c = _clusters(run)
    if run.report()["distinct"] > EMBEDDED_ANEW and view.embedding is not None:
        rows = np.arange(len(view.labels))
        if len(rows) > SHOWN + UNCERTAIN:
            rows = np.sort(np.random.default_rng([settings.seed, 33]).choice(len(rows), SHOWN, replace=False))
        embedded, labels = view.embedding[rows], view.labels[rows]
        return [
            replicate_rows(embedded, labels, c, settings.seed, number, rounding=rounding, width=width)
            for number in range(settings.resamples)
        ]
    run = run.clustered
    distinct = run.distinct
    U = run.similarity("fused", distinct=True)
    if run.params.high_order == "signed":
        U = abs(U)
    rounding_options: dict[str, Any] = {
        "columns": run.params.n_embedded,
        "rows": run.params.clusters_rows,
        "embedding": None if run.embedding is None else run.embedding[distinct],
        "rounding": rounding,
        "width": width,
    }
    return [
        replicate(U, run.labels[distinct], c, settings.seed, number, **rounding_options)
        for number in range(settings.resamples)
    ]


def _conductances(run: Run, view: Run) -> NDArray[np.float64]:
    """Conductance of each cluster in S; where a sample of the run is shown, labels are looked up by partition."""
    c = _clusters(run)
    if isinstance(view, RunSample):
        return conductances(view.labelled_edges(), np.arange(c, dtype=np.int32), c)
    return conductances(_edges(view), view.labels, c)


def _clusters(run: Run) -> int:
    """The number of clusters that was asked for, or that of Leiden's communities where they are more."""
    return max(run.params.n_clusters, len(run.sizes))


def _rounding(run: Run) -> tuple[str, int | None]:
    """The rounding that made the labels from the embedding, and from how many of its columns; Leiden's are of none."""
    for rounding in run.report()["roundings"]:
        if rounding["chosen"] and not run.params.clusters_rows:
            return rounding["rounding"], rounding["columns"] or None
    return "kmeans", None


def _edges(run: Run) -> Iterator[tuple[AnyArray, AnyArray, AnyArray]]:
    """The edges i < j of S, part by part: i and j, (n,) int64, and their weights, (n,)."""
    for part in run.iter_similarities():
        yield part.i, part.j, part.pairwise


class Judge:
    """Makes the points of a sweep from its runs.

    Parameters
    ----------
    location : str
        The run directory.
    settings : JudgeSettings
    client : distributed.Client, optional
        Whose workers judge; without one this process does, before the next run.
    """

    def __init__(self, location: str, settings: JudgeSettings, client: Client | None) -> None:
        self._location, self._settings, self._client = location, settings, client
        self._waiting: deque[tuple[str, Run, Any]] = deque()  # name, run, its judgement or a future of it

    def points(
        self, store: ZarrStore, names: Sequence[str], stored: Mapping[str, Point], runs: Iterator[Run]
    ) -> Iterator[Point]:
        """Points in the order of their names; new ones are stored as soon as they are judged.

        Parameters
        ----------
        store : ZarrStore
        names : sequence of str
            Of all points.
        stored : mapping of str to Point
            Those of earlier calls.
        runs : iterator of Run
            One for each name that is not among them, in the same order.
        """
        new = self._new_points(store, [name for name in names if name not in stored], runs)
        for name in names:
            yield stored[name] if name in stored else next(new)
        for _ in new:  # nothing is left: this lets the runs end
            pass

    def _new_points(self, store: ZarrStore, names: Sequence[str], runs: Iterator[Run]) -> Iterator[Point]:
        room = 0
        if self._client is not None:
            room = WAITING_RUNS * max(1, len(known_workers(self._client)))
        for name, run in zip(names, runs, strict=True):
            self._waiting.append((name, run, self._begin(run)))
            if len(self._waiting) > room:
                yield self._finish(store)
        while self._waiting:
            yield self._finish(store)

    def _begin(self, run: Run) -> Judgement | Future:
        """A run's judgement, or a future of it."""
        if self._client is None:
            return judge_run(run, self._settings)
        with losses(self._client):
            return self._client.submit(
                _judge_stored,
                self._location,
                run.manifest,
                self._settings,
                pure=False,
                retries=RETRIES,
                priority=PRIORITY,
            )

    def _finish(self, store: ZarrStore) -> Point:
        """The point of the run that has waited longest."""
        name, run, judgement = self._waiting.popleft()
        if self._client is not None:
            with losses(self._client):
                judgement = judgement.result()
        point = Point.of_run(name, run, judgement)
        point.write(store, self._settings)
        return point

    def stop(self) -> None:
        """Cancel the judgements that have not ended."""
        if self._client is not None and self._client.status == "running":
            self._client.cancel([future for _, _, future in self._waiting])
        self._waiting.clear()
