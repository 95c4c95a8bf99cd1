"""Stage 7 of a chunked run: embedding, roundings, walks and labels by partition; nothing has the length of all samples.

U's components are found by contraction, its eigenvectors are solved for by partition, and every array of samples is
stored by partition. Labels and their certainty are stored once more in the order of the input, in buckets of rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.kernels import density, extension, rounding
from ips2_dask.kernels import labels as kernel
from ips2_dask.kernels.components import MIN_SHARE
from ips2_dask.kernels.sparse import inverse_root
from ips2_dask.stages import fused_rows, islands, kmeans, label_parts, leiden, sample_space
from ips2_dask.stages.chunks import chunk_partitions
from ips2_dask.stages.component_labels import COMPONENTS, CONTRACTION, bound, label_components
from ips2_dask.stages.label_parts import (
    BUCKETS,
    DEGREES,
    DIVISION,
    EMBEDDING,
    FOLLOWED,
    LABELS,
    REACH,
    REACHED,
    SHARES,
    VECTORS,
)
from ips2_dask.stages.roundings import MISSING, PREFIX, Candidates, Rounding, facts_of, roundings, warnings_of
from ips2_dask.stages.walk import ChunkedWalk
from ips2_dask.store.base import TaskResult
from ips2_dask.store.context import READ_AHEAD, Context, part_name
from ips2_dask.store.integrity import Receipt
from ips2_dask.store.remote import side_by_side
from ips2_dask.typing import AnyArray, Float64, Int32, Int64

BUCKET_ROWS = 1 << 24
"""Rows of the input in each bucket of labels: 144 MiB in the task that fills it."""

SOLVED, FACTORS = "solved", "factors-"
"""The part with what is told of the solve, and the prefix of each sample's factor in a normalised S."""

WALKED, SPREAD, TABLE = "walked-", "spread-", "spread-table"
"""Prefixes of labels from a tree's leaves: what the walk reaches, and of all samples; the part with labels of those
components that no leaf reaches."""

COMMUNITIES = "communities-"
"""Prefix of the parts with the labels by Leiden."""

NUMBERS = "numbers"
"""The part with the final number of each cluster."""


def run(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """As of `ips2_dask.stages.label.run`, with everything by partition."""
    params, parts = context.params, range(context.n_partitions)
    facts: dict[str, Any] = {"u_components": None, "warnings": []} | embed(context, executor, report)
    facts["warnings"] = list(facts["warnings"])
    has_density, winner, tasks = density.available(), None, []
    if params.assign_labels == "leiden":
        walk, prefix = ChunkedWalk(context, executor, report), COMMUNITIES
        found = _store_communities(context)
        facts |= leiden.facts_of(found, walk.cut(prefix))
        facts["warnings"] += found.warnings
    else:
        if not has_density and params.assign_labels != "kmeans":
            facts["warnings"].append(MISSING)
        tasks = roundings(params, context.m, has_density, tasks=1)
        if not label_parts.is_stored(context, [PREFIX + task.part for task in tasks]):
            executor.map(Job("label", kmeans.drawn_rows, kmeans.DRAWN), context, parts, report)
        job = Job("label", kmeans.one_rounding, PREFIX, "roundings")
        receipts = executor.map(job, context, [task.part for task in tasks], report)
        walk = ChunkedWalk(context, executor, report)
        outcome = _Found(context, executor, report, walk, dict(zip(tasks, receipts, strict=True)))
        winner, prefix = outcome.chosen()
        facts["roundings"] = facts_of(outcome.candidates, winner)
    numbers = _number(context, executor, report, prefix)
    facts["clusters"] = int((numbers >= 0).sum())
    if winner is not None:
        facts["warnings"] += warnings_of(params, winner, facts["clusters"], has_density)
    if not label_parts.is_complete(context, [SHARES]):
        walk.finish(prefix, numbers)
    walk.close()
    executor.map(Job("label", bound(_final_labels, prefix), LABELS), context, parts, report)
    buckets = [f"{number:06d}" for number in range(-(-context.n_rows // BUCKET_ROWS))]
    executor.map(Job("label", bucket, BUCKETS, "buckets"), context, buckets, report)
    facts["buckets"] = len(buckets)
    context.store.write(context.folders["label"], "whole", {}, {})
    _drop_intermediates(context, [task.columns for task in tasks])
    return facts


def _drop_intermediates(context: Context, widths: list[int]) -> None:
    """Drop what only the stage itself reads: from what stays, a part that is lost can be computed again."""
    single = (CONTRACTION, DIVISION, FOLLOWED, REACHED, SOLVED, TABLE, NUMBERS)
    label_parts.drop(context, [*single, *map(fused_rows.part, range(len(chunk_partitions(context))))])
    label_parts.drop_by_partition(
        context,
        VECTORS,
        DEGREES,
        FACTORS,
        REACH,
        kmeans.DRAWN,
        WALKED,
        SPREAD,
        "leafless-",
        "firsts-",
        COMPONENTS,
        COMMUNITIES,
        *map(kmeans.labels_prefix, dict.fromkeys(widths)),
    )


# ---- the embedding


def divide(
    context: Context, executor: Executor, report: Report, share: float, most: int | None, asked: dict[str, Any]
) -> Receipt:
    """Store which components of U take part in the solve, and what is ``asked`` of it; returns the part's receipt.

    ``share``, ``most``: as of `kernels.components.divide_sizes`; more large components than ``most`` are joined;
    ``asked``: ``wanted``, ``columns``, ``tol`` and ``settled``, see `label_parts.DIVISION`.
    """
    sizes = label_components(context, executor, report, "label", label_parts.fused_edges)
    stored = context.receipt("label", DIVISION)
    if stored is not None:
        return stored
    limit = len(sizes) if most is None else most
    division, extra, weights = islands.connected_by_partition(context, executor, report, sizes, share, limit)
    rows = np.bincount(division.rank, sizes, division.total).astype(np.int64)
    n_inside = min(int(rows[: division.large].sum()), context.m)
    facts = {
        **asked,
        "columns": min(asked["columns"], n_inside),
        "wanted": min(asked["wanted"], n_inside),
        "u_components": len(sizes),
        "large": division.large,
        "total": division.total,
    }
    arrays: dict[str, AnyArray] = {"rank": division.rank, "sizes": rows, "extra": extra, "extra_weights": weights}
    return context.store.write(context.folders["label"], DIVISION, arrays, facts)


def solve(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store eigenvectors and degrees of the divided U by partition; returns what is told of the solve."""
    receipt = context.receipt("label", SOLVED)
    if receipt is None or not label_parts.is_complete(context, [VECTORS, DEGREES]):
        solved = sample_space.solve_fused(context, executor, report)
        context.store.drop(context.folders["label"], SOLVED)
        receipt = context.store.write(context.folders["label"], SOLVED, {}, solved)
    return dict(receipt["facts"])


def embed(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store the embedding by partition; returns components, residual and warnings. See `embedding.embed`."""
    params, store, folder = context.params, context.store, context.folders["label"]
    tol, settled = kernel.solve_limits(params.tol)
    c = params.n_sought
    asked = {"wanted": c, "columns": params.n_embedded, "tol": tol, "settled": settled}
    divided = divide(context, executor, report, MIN_SHARE, c, asked)["facts"]
    embedded = context.receipt("label", "embedding")
    if embedded is not None and label_parts.is_complete(context, [EMBEDDING]):
        return dict(embedded["facts"])
    facts: dict[str, Any] = {"u_components": divided["u_components"], "large": divided["large"]}
    warnings = []
    if divided["total"] > divided["large"]:
        rows = store.read(folder, DIVISION, "sizes")[divided["large"] :]
        facts["islands"] = {"fused": len(rows), "rows": int(rows.sum()), "largest": int(rows.max())}
        warnings.append(islands.warning_of(facts))
        _follow(context, executor, report)
    solved = solve(context, executor, report)
    parts = range(context.n_partitions)
    label_parts.find_reaches(context, executor, report)
    if extension.is_normalized(params.fusion, params.method):
        executor.map(Job("label", factors, FACTORS), context, parts, report)
    executor.map(Job("label", embedding, EMBEDDING), context, parts, report)
    facts |= {
        "embedding_products": solved["products"],
        "embedding_residual": max([0.0, *solved["residuals"]]),
        "embedding_stop": solved["stop"],
        "warnings": warnings,
    }
    store.drop(folder, "embedding")  # of which a partition was lost
    store.write(folder, "embedding", {"u_values": np.array(solved["values"])}, facts)
    label_parts.drop_by_partition(context, VECTORS, DEGREES, FACTORS)
    return facts


def _follow(context: Context, executor: Executor, report: Report) -> None:
    """Store the sample whose label each island takes: the nearest one outside to its central sample."""
    if context.receipt("label", FOLLOWED) is not None:
        return
    division = label_parts.division_of(context)
    place = np.where(division.rank >= division.large, division.rank - division.large, -1).astype(np.int64)
    inside = division.rank < division.large
    found = islands.followed_by_partition(context, executor, report, "follow", place, inside)
    context.store.write(context.folders["label"], FOLLOWED, {"followed": found}, {})


def factors(context: Context, b: int) -> TaskResult:
    """Each sample's own factor in the normalised S: 1 / sqrt(row sum), 0 where that is not above zero."""
    low, high = context.span(b)
    parts = (label_parts.pairwise_entries(context, other) for other in label_parts.sources_of(context, b))
    rows, columns, values = label_parts.row_entries(low, high, parts)
    order = np.lexsort((columns, rows))  # sums do not depend on the partitions then
    sums = np.bincount(rows[order], values[order], high - low)
    return {"factors": np.divide(1.0, np.sqrt(np.abs(sums)), out=np.zeros(len(sums)), where=sums > 0)}, {}


def embedding(context: Context, b: int) -> TaskResult:
    """The embedding of partition b, and its part of the basis of new samples; see `kernels.extension.basis`.

    U B follows from the eigenvectors: U D^-1/2 Y / lambda = D^1/2 Y, up to their residuals.
    """
    params, (low, high) = context.params, context.span(b)
    divided, solved = context.receipt("label", DIVISION), context.receipt("label", SOLVED)
    assert divided is not None
    assert solved is not None
    values = np.asarray(solved["facts"]["values"])
    weights = rounding.commute_weights(values, int(divided["facts"]["large"]), params.n_sought)
    inverse = extension.inverse_values(values)

    def vectors(samples: NDArray[np.integer]) -> Float64:
        return np.asarray(context.rows_of("label", "vectors", samples, VECTORS), np.float64)

    def bases(samples: NDArray[np.integer]) -> Float64:
        """B at ascending samples, times the weight of each."""
        degrees = np.asarray(context.rows_of("label", "degrees", samples, DEGREES))
        B = vectors(samples) * inverse_root(degrees)[:, None] * (inverse * weights)
        own = label_parts.weights_at(context, samples)
        return B if own is None else B * own[:, None]

    own = np.arange(low, high)
    arrays: dict[str, AnyArray] = {}
    follows = label_parts.followed_at(context, b)
    used, place = np.unique(follows, return_inverse=True)
    arrays["embedding"] = kernel.normalize_rows(vectors(used) * weights)[place].astype(np.float32)
    degrees = np.asarray(context.rows_of("label", "degrees", own, DEGREES))
    UB = vectors(own) * np.sqrt(degrees)[:, None] * (values * inverse * weights)
    row_weights = label_parts.weights_at(context, own)
    if row_weights is not None:  # a new sample is one row: its edges count as much as those of its neighbours' rows
        UB /= row_weights[:, None]
    for i, j, weight in _extra_of(context, low, high):  # U has no such edges: the solve alone had
        both = label_parts.weights_at(context, np.array([i, j]))
        UB[i - low] -= weight * bases(np.array([j]))[0] / (1.0 if both is None else float(both.prod()))
    if params.method == "ppc":
        pairwise, high_order = np.zeros(UB.shape), UB
    else:
        parts = (label_parts.pairwise_entries(context, other) for other in label_parts.sources_of(context, b))
        rows, columns, S = label_parts.row_entries(low, high, parts)
        touched, local = np.unique(np.concatenate([columns, own]), return_inverse=True)
        normalized = extension.is_normalized(params.fusion, params.method)
        factor = context.rows_of("label", "factors", touched, FACTORS) if normalized else np.ones(len(touched))
        mine = (1.0 - params.fusion_weight) * np.asarray(factor)[:, None] * bases(touched)
        matrix = sp.csr_array(sp.coo_array((S, (rows, local[: len(columns)])), shape=(high - low, len(touched))))
        matrix.sort_indices()
        at_own = local[len(columns) :]
        pairwise, high_order = mine[at_own], UB - np.asarray(factor)[at_own, None] * (matrix @ mine)
    arrays |= {"pairwise_basis": pairwise.astype(np.float32), "high_order_basis": high_order.astype(np.float32)}
    if divided["facts"]["u_components"] > 1:
        arrays["component"] = np.asarray(context.read("label", COMPONENTS + part_name(b), "components"))
    if divided["facts"]["total"] > divided["facts"]["large"]:
        arrays["follows"] = follows.astype(np.int32)
    return arrays, {}


def _extra_of(context: Context, low: int, high: int) -> list[tuple[int, int, float]]:
    """The edges that join components, as (i, j, weight) with i in low .. high - 1, from either side."""
    edges, weights = label_parts.extra_edges(context)
    both = np.concatenate([edges, edges[:, ::-1]])
    own = (both[:, 0] >= low) & (both[:, 0] < high)
    return [(int(i), int(j), float(w)) for (i, j), w in zip(both[own], np.tile(weights, 2)[own], strict=True)]


# ---- labels


def _store_communities(context: Context) -> leiden.Found:
    """Store labels by Leiden, which this process computes from the whole graph; islands take those of others."""
    found = leiden.communities(context, by_partition=True)
    for b in range(context.n_partitions):
        part = COMMUNITIES + part_name(b)
        if context.receipt("label", part) is None:
            labels = found.labels[label_parts.followed_at(context, b)]
            context.store.write(context.folders["label"], part, {"labels": labels}, {})
    return found


class _Found(Candidates[str]):
    """Candidate labelings whose labels are in parts by partition, named by a prefix."""

    def __init__(
        self, context: Context, executor: Executor, report: Report, walk: ChunkedWalk, receipts: dict[Rounding, Any]
    ) -> None:
        super().__init__(context.params, receipts)
        self._context, self._executor, self._report, self._walk = context, executor, report, walk

    def _partition(self, columns: int) -> tuple[str, int]:
        receipts = kmeans.assign(self._context, self._executor, self._report, columns)
        return kmeans.labels_prefix(columns), len({one for r in receipts for one in r["facts"]["clusters"]})

    def _cut(self, labels: str) -> float:
        return self._walk.cut(labels)

    def _spread(self, one: rounding.Candidate) -> str:
        context, parts = self._context, range(self._context.n_partitions)
        leaves = PREFIX + Rounding(one.rounding, one.columns, 0).part
        if not label_parts.is_complete(context, [SPREAD]):
            if not label_parts.is_complete(context, [WALKED]):
                self._walk.spread(leaves, WALKED)
            _label_leafless(context, self._executor, self._report)
            job = Job("label", bound(_spread_labels, leaves), SPREAD)
            self._executor.map(job, context, parts, self._report)
        return SPREAD


def leafless(context: Context, b: int) -> TaskResult:
    """The components of partition b with samples that the walk reaches and their smallest label, and others' samples.

    As the facts ``reached``, pairs (component, label), and ``unreached``, components.
    """
    labels = np.asarray(context.fetch("label", WALKED + part_name(b), "labels"))
    components = np.asarray(context.read("label", COMPONENTS + part_name(b), "components"))
    seen = labels >= 0
    order = np.lexsort((labels[seen], components[seen]))
    reached, first = np.unique(components[seen][order], return_index=True)
    smallest = labels[seen][order][first]
    return {}, {
        "reached": np.stack([reached, smallest], axis=1).tolist(),
        "unreached": np.unique(components[~seen]).tolist(),
    }


def _label_leafless(context: Context, executor: Executor, report: Report) -> None:
    """Store the label that unlabelled samples of each component take, which is an island or has no leaf of the tree.

    A large component without a leaf takes that of the sample nearest to its central one among those of components that
    have one. Where shares are too small for float32 to reach all of a component, the rest takes its smallest label.
    """
    if context.receipt("label", TABLE) is not None:
        return
    division = label_parts.division_of(context)
    receipts = executor.map(Job("label", leafless, "leafless-"), context, range(context.n_partitions), report)
    table, unreached = np.full(len(division.rank), -1, np.int32), np.zeros(len(division.rank), np.bool_)
    for receipt in receipts:
        for component, label in receipt["facts"]["reached"]:
            table[component] = label if table[component] < 0 else min(label, table[component])
        unreached[receipt["facts"]["unreached"]] = True
    inside, has_leaf = division.rank < division.large, table >= 0
    without = np.flatnonzero(unreached & inside & ~has_leaf)
    if len(without):
        place = np.full(len(table), -1, np.int64)
        place[without] = np.arange(len(without))
        found = islands.followed_by_partition(context, executor, report, "leafless", place, has_leaf)
        table[without] = _walked_labels(context, found, table)
    if division.islands:
        found = np.asarray(context.read("label", FOLLOWED, "followed"))
        table[~inside] = _walked_labels(context, found, table)[division.rank[~inside] - division.large]
    context.store.write(context.folders["label"], TABLE, {"labels": table}, {})


def _walked_labels(context: Context, samples: Int64, table: Int32) -> Int32:
    """The labels of samples in any order, of their components where the walk reaches them not."""
    used, place = np.unique(samples, return_inverse=True)
    labels = np.asarray(context.rows_of("label", "labels", used, WALKED))
    components = np.asarray(context.rows_of("label", "components", used, COMPONENTS))
    return np.asarray(np.where(labels >= 0, labels, table[components])[place], np.int32)


def _spread_labels(leaves: str, context: Context, b: int) -> TaskResult:
    """Labels of all samples of partition b, and which of the tree's samples it left out."""
    labels = np.asarray(context.fetch("label", WALKED + part_name(b), "labels"))
    components = np.asarray(context.read("label", COMPONENTS + part_name(b), "components"))
    labels = np.where(labels >= 0, labels, np.asarray(context.read("label", TABLE, "labels"))[components])
    low, high = context.span(b)
    drawn, leaf = (np.asarray(context.read("label", leaves, name)) for name in ("drawn", "labels"))
    out = np.zeros(high - low, np.uint8)
    out[drawn[(drawn >= low) & (drawn < high) & (leaf < 0)] - low] = 1
    return {"labels": labels.astype(np.int32), "left_out": out}, {}


def _number(context: Context, executor: Executor, report: Report, prefix: str) -> Int32:
    """Store and return the final number of each cluster, by its first sample in the user's numbering; -1 if empty."""
    job = Job("label", bound(_first_samples, prefix), "firsts-")
    receipts = executor.map(job, context, range(context.n_partitions), report)
    first = np.full(context.params.n_clusters, np.iinfo(np.int64).max)
    for receipt in receipts:
        for cluster, user in receipt["facts"]["first"]:
            first[cluster] = min(first[cluster], user)
    there = np.flatnonzero(first < np.iinfo(np.int64).max)
    numbers = np.full(len(first), -1, np.int32)
    numbers[there[np.argsort(first[there])]] = np.arange(len(there))
    if context.receipt("label", NUMBERS) is None:
        context.store.write(context.folders["label"], NUMBERS, {"numbers": numbers}, {})
    return numbers


def _first_samples(prefix: str, context: Context, b: int) -> TaskResult:
    """Each cluster of partition b with its smallest user's number, as the fact ``first``."""
    labels = np.asarray(context.fetch("label", prefix + part_name(b), "labels"))
    user = np.asarray(context.user_numbers(b))
    order = np.lexsort((user, labels))
    clusters, first = np.unique(labels[order], return_index=True)
    return {}, {"first": np.stack([clusters, user[order][first]], axis=1).tolist()}


def _final_labels(prefix: str, context: Context, b: int) -> TaskResult:
    """Labels of partition b in their final numbers, their certainty, and what a tree left out."""
    part = prefix + part_name(b)
    labels = np.asarray(context.fetch("label", part, "labels"))
    labels = np.asarray(context.read("label", NUMBERS, "numbers"))[labels]
    shares = np.asarray(context.fetch("label", SHARES + part_name(b), "shares"))
    arrays: dict[str, AnyArray] = {"labels": labels, "certainty": shares[np.arange(len(labels)), labels]}
    receipt = context.receipt("label", part)
    if receipt is not None and "left_out" in receipt["arrays"]:
        arrays["left_out"] = np.asarray(context.fetch("label", part, "left_out"))
    return arrays, {}


# ---- labels in the order of the input


def bucket(context: Context, item: str) -> TaskResult:
    """Labels, certainty and what was left out of the rows of a bucket; -1, NaN and 0 for rows that were left out."""
    low = int(item) * BUCKET_ROWS
    n = min(low + BUCKET_ROWS, context.n_rows) - low
    receipt = context.finished("label", LABELS + part_name(0))
    arrays: dict[str, AnyArray] = {"labels": np.full(n, -1, np.int32), "certainty": np.full(n, np.nan, np.float32)}
    if "left_out" in receipt["arrays"]:
        arrays["left_out"] = np.zeros(n, np.uint8)
    among = _Rows(context.distinct_places(low, low + n)) if context.merged else None

    def of_partition(b: int) -> tuple[NDArray[np.integer], list[AnyArray]]:
        rows, samples = _rows_in_bucket(context, b, low, n, among)
        if not len(rows):
            return rows, []
        return rows, [np.asarray(context.fetch("label", LABELS + part_name(b), name))[samples] for name in arrays]

    for rows, parts in side_by_side(of_partition, range(context.n_partitions), READ_AHEAD):
        for name, part in zip(list(arrays)[: len(parts)], parts, strict=True):
            arrays[name][rows] = part
    return arrays, {}


class _Rows:
    """Rows of a bucket by the distinct samples that they are.

    ``place`` (n,) int32: the distinct sample that each row is, -1 for none.
    """

    def __init__(self, place: Int32) -> None:
        self._rows = np.argsort(place, kind="stable").astype(np.int32)
        self._place = place[self._rows]

    def of(self, numbers: NDArray[np.integer]) -> tuple[Int32, Int64]:
        """The rows that are some distinct samples, and the place of each one's sample among ``numbers``."""
        begin, end = (np.searchsorted(self._place, numbers, side) for side in ("left", "right"))
        counts = end - begin
        samples = np.repeat(np.arange(len(numbers)), counts)
        return self._rows[np.arange(len(samples)) + (end - np.cumsum(counts))[samples]], samples


def _rows_in_bucket(
    context: Context, b: int, low: int, n: int, among: _Rows | None
) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """Rows of a bucket, counted from its first, that are samples of partition b, and the samples, counted likewise.

    ``low``, ``n``: the bucket's first row of the input, and how many it has; ``among``: these rows, in runs with
    equal rows or rows that were left out alone: there many rows may be one sample.
    """
    first, last = context.span(b)
    if among is not None:
        return among.of(context.distinct_numbers(b))
    if context.samples_stage == "ingest" and (last <= low or first >= low + n):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    rows = np.asarray(context.user_numbers(b)).astype(np.int64) - low
    samples = np.flatnonzero((rows >= 0) & (rows < n))
    return rows[samples], samples
