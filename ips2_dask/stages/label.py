"""Stage 7: labels from the fused similarity: a spectral embedding, ways to round it as tasks, the better one kept.

U's components are found by contraction, its eigenvectors are solved for by chunk, and every array of samples is stored
by partition: no process has one of all samples, unless all samples are one chunk. Labels and their certainty are stored
once more in the order of the input, in buckets of rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ips2_dask.executors.base import SOURCES, Executor, Job, Report
from ips2_dask.kernels import density, extension, rounding
from ips2_dask.params import Params
from ips2_dask.plan.choices import Choices
from ips2_dask.stages import chunks, embedding, islands, kmeans, label_parts, leiden
from ips2_dask.stages.component_labels import COMPONENTS, CONTRACTION, bound
from ips2_dask.stages.label_parts import BUCKETS, DEGREES, DIVISION, FOLLOWED, LABELS, REACH, SHARES, VECTORS
from ips2_dask.stages.roundings import MISSING, PREFIX, Rounding, facts_of, roundings, warnings_of
from ips2_dask.stages.similarity_views import read_similarity
from ips2_dask.stages.walk import WALKS, Walk
from ips2_dask.store.base import TaskResult
from ips2_dask.store.context import READ_AHEAD, Context, part_name
from ips2_dask.store.integrity import Receipt
from ips2_dask.store.remote import side_by_side
from ips2_dask.typing import AnyArray, Int32, Int64

BUCKET_ROWS = 1 << 24
"""Rows of the input in each bucket of labels: 144 MiB in the task that fills it."""

WALKED, SPREAD, TABLE = "walked-", "spread-", "reached"
"""Prefixes of labels from a tree's leaves: what the walk reaches, and of all samples; the part with labels of those
components that no leaf reaches."""

COMMUNITIES = "communities-"
"""Prefix of the parts with the labels by Leiden."""

NUMBERS = "numbers"
"""The part with the final number of each cluster."""


VERSION = 12


def depends_on(params: Params, choices: Choices) -> dict[str, object]:
    """The parameters that this stage's arrays depend on, besides the fused similarity."""
    del choices
    looks = params.assign_labels in ("auto", "density") and not params.clusters_rows
    return {
        # labels that were k-means' for lack of fast-plscan are computed again once it is installed
        **({"fast_plscan": density.available()} if looks else {}),
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
    context = label_parts.of_stage(context)
    params, parts = context.params, range(context.n_partitions)
    if params.clusters_rows:
        asked = {"wanted": 0, "columns": 0, "tol": None, "settled": None}
        embedding.divide(context, executor, report, 0.0, None, asked)
        facts: dict[str, Any] = {"u_components": None}
    else:
        facts = embedding.embed(context, executor, report)
    facts["warnings"] = list(facts.get("warnings", []))  # those of the embedding's receipt stay as they are
    has_density, winner, tasks = density.available() and not params.clusters_rows, None, []
    if params.assign_labels == "leiden":
        walk, prefix = Walk(context, executor, report), COMMUNITIES
        found = _store_communities(context)
        facts |= leiden.facts_of(found, walk.cut(prefix))
        facts["warnings"] += found.warnings
    else:
        if not has_density and params.assign_labels != "kmeans" and not params.clusters_rows:
            facts["warnings"].append(MISSING)
        tasks = roundings(params, context.m, has_density)
        if not params.clusters_rows and not label_parts.is_stored(context, [PREFIX + task.part for task in tasks]):
            executor.map(Job("label", kmeans.drawn_rows, kmeans.DRAWN), context, parts, report)
        job = Job("label", kmeans.one_rounding, PREFIX, "roundings")
        receipts = executor.map(job, context, [task.part for task in tasks], report)
        walk = Walk(context, executor, report)
        outcome = _Candidates(context, executor, report, walk, dict(zip(tasks, receipts, strict=True)))
        winner, prefix = outcome.chosen()
        facts["roundings"] = facts_of(outcome.candidates, winner)
    numbers = _number(context, executor, report, prefix)
    facts["clusters"] = int((numbers >= 0).sum())
    if winner is not None:
        facts["warnings"] += warnings_of(params, winner, facts["clusters"], has_density)
    if not label_parts.is_stored(context, chunks.parts(context, SHARES)):
        walk.finish(prefix, numbers)
    walk.close()
    executor.map(Job("label", bound(_final_labels, prefix), LABELS), context, parts, report)
    buckets = [f"{number:06d}" for number in range(-(-context.n_rows // BUCKET_ROWS))]
    executor.map(Job("label", _bucket, BUCKETS, "buckets"), context, buckets, report)
    facts["buckets"] = len(buckets)
    if params.clusters_rows:
        _keep_means(context)
    context.store.write(context.folders["label"], "whole", {}, {})
    _drop_intermediates(context, [task.columns for task in tasks])
    return facts


def _drop_intermediates(context: Context, widths: list[int]) -> None:
    """Drop what only the stage itself reads: from what stays, a part that is lost can be computed again."""
    single = (CONTRACTION, DIVISION, FOLLOWED, REACH + SOURCES, embedding.SOLVED, TABLE, NUMBERS)
    prefixes = (embedding.FACTORS, REACH, kmeans.DRAWN, SPREAD, "leafless-", "firsts-", COMPONENTS, COMMUNITIES)
    of_partitions = label_parts.by_partition(context, *prefixes, *map(kmeans.labels_prefix, dict.fromkeys(widths)))
    of_chunks = map(label_parts.fused_part, range(chunks.n_chunks(context)))
    pieces = chunks.parts(context, VECTORS, DEGREES, WALKED, SHARES)
    label_parts.drop(context, [*single, *of_chunks, *pieces, *of_partitions, *chunks.checkpoint_parts(context, WALKS)])


# ---- labels


def _store_communities(context: Context) -> leiden.Found:
    """Store labels by Leiden, which this process computes from the whole graph; islands take those of others."""
    found = leiden.communities(context)
    for b in range(context.n_partitions):
        part = COMMUNITIES + part_name(b)
        if context.receipt("label", part) is None:
            labels = found.labels[label_parts.followed_at(context, b)]
            context.store.write(context.folders["label"], part, {"labels": labels}, {})
    return found


class _Candidates:
    """Candidate labelings, from the results of the rounding tasks, and the choice of one.

    Labels are in parts by partition, named by a prefix.
    """

    def __init__(
        self, context: Context, executor: Executor, report: Report, walk: Walk, receipts: dict[Rounding, Receipt]
    ) -> None:
        self._context, self._executor, self._report, self._walk = context, executor, report, walk
        self._params, self._c, self._receipts = context.params, context.params.n_clusters, receipts
        self._labels: dict[tuple[str, int], str] = {}
        self.candidates: list[rounding.Candidate] = []

    def chosen(self) -> tuple[rounding.Candidate, str]:
        """The candidate that is kept, and its labels."""
        densities = self._densities()
        for columns in dict.fromkeys(task.columns for task in self._receipts if task.way == "kmeans"):
            receipts = kmeans.assign(self._context, self._executor, self._report, columns)
            clusters = len({one for r in receipts for one in r["facts"]["clusters"]})
            self.candidates.append(rounding.Candidate("kmeans", columns, clusters, None, 0.0))
            self._add_cut(self.candidates[-1], kmeans.labels_prefix(columns))
        if self._params.assign_labels == "density":
            cuts = [one for one in densities if one.clusters == self._c]
            winner = min(cuts, key=lambda one: one.left_out, default=None)
        else:
            winner = rounding.eligible(densities, self._c)
        self.candidates = densities + self.candidates
        if winner is not None:
            winner = self._add_cut(winner, self._spread(winner))
        if winner is None or self._params.assign_labels != "density":
            looked_at = [one for one in self.candidates if one.cut is not None]
            winner = looked_at[0] if len(looked_at) == 1 else rounding.choose(looked_at)
        return winner, self._labels[winner.rounding, winner.columns]

    def _densities(self) -> list[rounding.Candidate]:
        trees = [(t.columns, r["facts"]["left_out"]) for t, r in self._receipts.items() if t.way == "density"]
        return [
            rounding.Candidate("density", d, 0 if share is None else self._c, None, 1.0 if share is None else share)
            for d, share in trees
        ]

    def _add_cut(self, one: rounding.Candidate, labels: str) -> rounding.Candidate:
        """The candidate with its normalised cut, in its old place among the others."""
        self._labels[one.rounding, one.columns] = labels
        candidate = one._replace(cut=self._walk.cut(labels))
        self.candidates[self.candidates.index(one)] = candidate
        return candidate

    def _spread(self, one: rounding.Candidate) -> str:
        """Labels of all samples from those of a tree's leaves."""
        context, parts = self._context, range(self._context.n_partitions)
        leaves = PREFIX + Rounding(one.rounding, one.columns, 0).part
        if not label_parts.is_stored(context, label_parts.by_partition(context, SPREAD)):
            if not label_parts.is_stored(context, chunks.parts(context, WALKED)):
                self._walk.spread(leaves, WALKED)
            _label_leafless(context, self._executor, self._report)
            job = Job("label", bound(_spread_labels, leaves), SPREAD)
            self._executor.map(job, context, parts, self._report)
        return SPREAD


def _walked(context: Context, b: int) -> Int32:
    """The labels that the walk reaches of partition b's samples, else -1."""
    return np.asarray(chunks.rows_at(context, "label", "labels", np.arange(*context.span(b)), WALKED))


def _leafless(context: Context, b: int) -> TaskResult:
    """The components of partition b with samples that the walk reaches and their smallest label, and others' samples.

    As the facts ``reached``, pairs (component, label), and ``unreached``, components.
    """
    labels = _walked(context, b)
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
    receipts = executor.map(Job("label", _leafless, "leafless-"), context, range(context.n_partitions), report)
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
        found = islands.followed(context, executor, report, place, has_leaf)
        table[without] = _walked_labels(context, found, table)
    if division.islands:
        found = np.asarray(context.read("label", FOLLOWED, "followed"))
        table[~inside] = _walked_labels(context, found, table)[division.rank[~inside] - division.large]
    context.store.write(context.folders["label"], TABLE, {"labels": table}, {})


def _walked_labels(context: Context, samples: Int64, table: Int32) -> Int32:
    """The labels of samples in any order, of their components where the walk reaches them not."""
    used, place = np.unique(samples, return_inverse=True)
    labels = np.asarray(chunks.rows_at(context, "label", "labels", used, WALKED))
    components = np.asarray(context.rows_of("label", "components", used, COMPONENTS))
    return np.asarray(np.where(labels >= 0, labels, table[components])[place], np.int32)


def _spread_labels(leaves: str, context: Context, b: int) -> TaskResult:
    """Labels of all samples of partition b, and which of the tree's samples it left out."""
    labels = _walked(context, b)
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
    """Labels of partition b in their final numbers, shares, certainty, and what a tree left out."""
    part = prefix + part_name(b)
    labels = np.asarray(context.fetch("label", part, "labels"))
    labels = np.asarray(context.read("label", NUMBERS, "numbers"))[labels]
    shares = np.asarray(chunks.rows_at(context, "label", "shares", np.arange(*context.span(b)), SHARES))
    certainty = shares[np.arange(len(labels)), labels]
    arrays: dict[str, AnyArray] = {"labels": labels, "certainty": certainty, "shares": shares}
    receipt = context.receipt("label", part)
    if receipt is not None and "left_out" in receipt["arrays"]:
        arrays["left_out"] = np.asarray(context.fetch("label", part, "left_out"))
    return arrays, {}


def _keep_means(context: Context) -> None:
    """Store the mean rows of U that k-means ended with, for new samples."""
    U, c = read_similarity(context, "fused"), context.params.n_clusters
    S = None if context.params.method == "ppc" else read_similarity(context, "pairwise")
    labels = np.concatenate(
        [context.read("label", LABELS + part_name(b), "labels") for b in range(context.n_partitions)]
    )
    B, normalized = (
        extension.mean_rows(U, labels, c),
        extension.is_normalized(context.params.fusion, context.params.method),
    )
    basis = extension.basis(U, S, B, context.params.fusion_weight, normalized)
    arrays = {
        "products": np.asarray(U @ B),
        "squares": np.square(B).sum(axis=0),
        "pairwise_basis": basis[0],
        "high_order_basis": basis[1],
    }
    squares = extension.gaps_of_products(arrays["products"], arrays["squares"])
    squares = squares + extension.squared_lengths(U)[:, None]
    variance = float(squares[np.arange(context.m), labels].mean()) / c
    context.store.write(context.folders["label"], "means", arrays, {"variance": variance})


# ---- labels in the order of the input


def _bucket(context: Context, item: str) -> TaskResult:
    """Labels, certainty and what was left out of the rows of a bucket; -1, NaN and 0 for rows that were left out."""
    low = int(item) * BUCKET_ROWS
    n = min(low + BUCKET_ROWS, context.n_rows) - low
    receipt = context.finished("label", LABELS + part_name(0))
    arrays: dict[str, AnyArray] = {"labels": np.full(n, -1, np.int32), "certainty": np.full(n, np.nan, np.float32)}
    if "left_out" in receipt["arrays"]:
        arrays["left_out"] = np.zeros(n, np.uint8)
    place = context.distinct_places(low, low + n) if context.merged else None
    order = None if place is None else np.argsort(place, kind="stable").astype(np.int32)
    place = None if place is None else place[order]  # the distinct samples that the rows are, ascending

    def of_partition(b: int) -> tuple[NDArray[np.integer], list[AnyArray]]:
        """Rows of the bucket that are samples of partition b, and what is stored of these."""
        numbers = np.asarray(context.distinct_numbers(b))
        if order is None or place is None:
            samples = np.flatnonzero((numbers >= low) & (numbers < low + n))
            rows = numbers[samples].astype(np.int64) - low
        else:  # many rows may be one sample
            begin, end = (np.searchsorted(place, numbers, side) for side in ("left", "right"))
            samples = np.repeat(np.arange(len(numbers)), end - begin)
            rows = order[np.arange(len(samples)) + (end - np.cumsum(end - begin))[samples]]
        if not len(rows):
            return rows, []
        return rows, [np.asarray(context.fetch("label", LABELS + part_name(b), name))[samples] for name in arrays]

    for rows, parts in side_by_side(of_partition, range(context.n_partitions), READ_AHEAD):
        for name, part in zip(list(arrays)[: len(parts)], parts, strict=True):
            arrays[name][rows] = part
    return arrays, {}
