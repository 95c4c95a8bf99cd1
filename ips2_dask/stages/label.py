"""Stage 7: labels from the fused similarity: a spectral embedding, ways to round it as tasks, the better one kept."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.kernels import density, extension, rounding
from ips2_dask.kernels import labels as kernel
from ips2_dask.kernels.sparse import Matrix
from ips2_dask.params import Params
from ips2_dask.plan.choices import Choices
from ips2_dask.stages import chunked_label, islands, label_parts, leiden
from ips2_dask.stages.embedding import basis, embed, follows, one_rounding, points
from ips2_dask.stages.roundings import MISSING, PREFIX, Candidates, Rounding, facts_of, roundings, warnings_of
from ips2_dask.stages.similarity_views import read_affinity
from ips2_dask.stages.walk import LocalWalk
from ips2_dask.store.context import Context
from ips2_dask.typing import AnyArray, Int32, UInt8

VERSION = 9


def depends_on(params: Params, choices: Choices) -> dict[str, object]:
    """The parameters that this stage's arrays depend on, besides the fused similarity."""
    looks = params.assign_labels in ("auto", "density") and not params.clusters_rows
    return {
        # labels that were k-means' for lack of fast-plscan are computed again once it is installed
        **({"fast_plscan": density.available()} if looks else {}),
        # runs in chunks have another layout, and other draws, than they had
        **({"by_partition": True} if choices.vectors == "chunked" and params.embedding == "spectral" else {}),
        **leiden.depends_on(params),
        "n_clusters": params.n_clusters,
        "n_components": params.n_embedded,
        "embedding": params.embedding,
        "assign_labels": params.assign_labels,
        "tol": params.tol,
        "seed": params.random_state,
    }


def run(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store embedding, labels and certainty; returns components, how labels were found, and warnings."""
    if label_parts.is_by_partition(context) and context.params.embedding == "spectral":
        return chunked_label.run(context, executor, report)
    return _run_in_core(context, executor, report)


def _run_in_core(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """The stage on arrays of all samples: U is embedded, walked on and cut in this process."""
    params, affinity = context.params, read_affinity(context)
    facts: dict[str, Any] = {"u_components": None, "warnings": []}
    if not params.clusters_rows:
        facts |= embed(context, affinity)
        facts["warnings"] = list(facts["warnings"])  # those of the embedding's receipt stay as they are
    inner = dataclasses.replace(context, facts={**context.facts, "label": facts})
    label = _leiden if params.assign_labels == "leiden" else _rounded
    labels, left_out, walk = label(inner, executor, report, affinity, facts)
    order = context.order()  # clusters by their first sample in the user's numbering; labels stay in the run's
    labels = kernel.renumber(labels) if order is None else kernel.renumber(context.by_row(labels))[order]
    arrays = {"labels": context.by_row(labels)}
    arrays["certainty"] = context.by_row(walk.finish(labels))
    if left_out is not None:
        arrays["left_out"] = context.by_row(left_out)
    context.store.write(context.folders["label"], "whole", arrays, {})
    if params.clusters_rows:
        _keep_means(context, labels)
    return facts


_Labelled = tuple[Int32, UInt8 | None, LocalWalk]
"""Labels (m,) in the run's numbering, the samples that a density left out, and the walk on U."""


def _rounded(
    context: Context, executor: Executor, report: Report, affinity: Matrix, facts: dict[str, Any]
) -> _Labelled:
    """The labels of the rounding that is kept; completes the facts."""
    params, has_density = context.params, density.available()
    if not has_density and params.assign_labels != "kmeans" and not params.clusters_rows:
        facts["warnings"].append(MISSING)
    tasks = roundings(params, context.m, has_density and not params.clusters_rows)
    receipts = executor.map(Job("label", one_rounding, PREFIX, "roundings"), context, [t.part for t in tasks], report)
    walk = LocalWalk(context, affinity)
    outcome = _Found(context, walk, dict(zip(tasks, receipts, strict=True)))
    winner, (labels, left_out) = outcome.chosen()
    facts["roundings"] = facts_of(outcome.candidates, winner)
    facts["clusters"] = len(np.unique(labels))
    facts["warnings"] += warnings_of(params, winner, facts["clusters"], has_density)
    return labels, left_out, walk


def _leiden(context: Context, executor: Executor, report: Report, affinity: Matrix, facts: dict[str, Any]) -> _Labelled:
    """The labels of Leiden's communities; completes the facts."""
    del executor
    report(0, 1)
    found = leiden.communities(context)
    followed, walk = follows(context), LocalWalk(context, affinity)
    labels = found.labels if followed is None else found.labels[followed]
    facts |= leiden.facts_of(found, walk.cut(labels))
    facts["warnings"] += found.warnings
    report(1, 1)
    return labels, None, walk


class _Found(Candidates[tuple[Int32, UInt8 | None]]):
    """Candidate labelings in core: labels (m,) in the run's numbering, and of a density the samples left out."""

    def __init__(self, context: Context, walk: LocalWalk, receipts: dict[Rounding, Any]) -> None:
        super().__init__(context.params, receipts)
        self._context, self._walk, self._follows = context, walk, follows(context)

    def _read(self, task: Rounding, name: str) -> AnyArray:
        return self._context.store.read(self._context.folders["label"], f"{PREFIX}{task.part}", name)

    def _partition(self, columns: int) -> tuple[tuple[Int32, None], int]:
        tasks = [task for task in self._receipts if (task.way, task.columns) == ("kmeans", columns)]
        starts = [
            kernel.Partitioning(float(self._read(t, "inertia")[0]), np.asarray(self._read(t, "labels"))) for t in tasks
        ]
        labels = self._with_islands(kernel.best(starts).labels)
        return (labels, None), len(np.unique(labels))

    def _cut(self, labels: tuple[Int32, UInt8 | None]) -> float:
        return self._walk.cut(labels[0])

    def _spread(self, one: rounding.Candidate) -> tuple[Int32, UInt8]:
        context, task = self._context, Rounding(one.rounding, one.columns, 0)
        drawn, leaves = np.asarray(self._read(task, "drawn")), np.asarray(self._read(task, "labels"))
        labels, left_out = np.full(context.m, -1, np.int32), np.zeros(context.m, np.uint8)
        labels[drawn], left_out[drawn] = leaves, leaves < 0
        labels = self._with_islands(self._walk.spread(labels))
        if (labels < 0).any():  # a large component without a leaf
            component = np.zeros(context.m, np.int32)
            if "component" in (context.receipt("label", "embedding") or {"arrays": {}})["arrays"]:
                component = np.asarray(context.read("label", "embedding", "component"))
            labels = labels[islands.followed(context, component, labels >= 0)]
        return labels, left_out

    def _with_islands(self, labels: Int32) -> Int32:
        """The labels (m,), each sample of an island with the label of the sample that it follows."""
        return labels if self._follows is None else labels[self._follows]


def _keep_means(context: Context, labels: Int32) -> None:
    """Store the mean rows of U that k-means ended with, for new samples; labels are in the run's numbering."""
    params, U = context.params, points(context, 0)
    B = extension.mean_rows(U, labels, params.n_clusters)
    arrays = {"products": np.asarray(U @ B), "squares": np.square(B).sum(axis=0), **basis(context, U, B)}
    squares = extension.gaps_of_products(arrays["products"], arrays["squares"])
    squares = squares + extension.squared_lengths(U)[:, None]
    variance = float(squares[np.arange(context.m), labels].mean()) / params.n_clusters
    context.store.write(context.folders["label"], "means", arrays, {"variance": variance})
