"""New samples in a finished run: nearest training samples from stored partitions, the extension, labels; by blocks."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.metrics.pairwise import euclidean_distances

from ips2_dask.errors import BadInput
from ips2_dask.executors.failures import check_client, known_workers, losses, patience_of
from ips2_dask.kernels import extension, ingest, similarity
from ips2_dask.kernels.labels import normalize_rows
from ips2_dask.kernels.parallel import map_chunks, threads, usable_cores
from ips2_dask.params import N_AFFINITY_NEIGHBORS
from ips2_dask.plan.choices import partition_bounds
from ips2_dask.readers import Source, check_block, is_text_file, open_source
from ips2_dask.readers.base import Table
from ips2_dask.readers.columns import columns_of_numbers, match_columns
from ips2_dask.readers.dask_collections import DaskTable
from ips2_dask.readers.features import TextFormat
from ips2_dask.runs import label_results
from ips2_dask.runs.maintenance import check_there
from ips2_dask.stages import metric_views
from ips2_dask.stages.ingest import check_rows
from ips2_dask.stages.similarity_views import bandwidth, keeps_all_pairs
from ips2_dask.store.context import Context, part_name
from ips2_dask.typing import AnyArray, Float32, Float64, Int32, Int64, Integer
from ips2_dask.wording import option

if TYPE_CHECKING:
    from distributed import Client, Future

    from ips2_dask.runs.results import Results


CELLS = 6
"""Shards of a sharded run that a new sample is searched in, those of the nearest cells."""

MOST_NAMES = 1 << 16
"""Most names of features that go with new samples to each task, for messages."""

ROWS = 4096
"""New samples whose neighbours' rows of the basis are in memory at a time."""


class Predicted(NamedTuple):
    """Labels, shares and points of new samples."""

    labels: Int32  # (n,)
    probabilities: Float64  # (n, c) shares of the clusters
    embedding: Float64 | None  # (n, columns)


def open_new(
    run: Results,
    X: Any,
    labels_column: str | int | None,
    transpose: bool,
    handle_unknown: str,
    text: TextFormat | None,
    client: Client | None,
) -> Source:
    """New samples with the run's columns in its order: `Run.open_new`."""
    check_client(client)
    columns = dataclasses.replace(run.columns, handle_unknown=handle_unknown)
    as_run = run.text_format if text is None and is_text_file(X) else None
    read_as = as_run or text
    try:
        source = open_source(
            X, labels_column=labels_column, transpose=transpose, features=columns, text=read_as, client=client
        )
    except BadInput as fault:
        if as_run is None or not as_run.given:
            raise
        given = ", ".join(f"{name} ({option(name)})" for name in as_run.given)
        remedy = f"{fault.remedy}; if it is not written as the run's input was, give {given} as of this file"
        raise BadInput(fault.thing, fault.found, fault.allowed, fault.otherwise, remedy) from None
    return _light(run, source) if run.features is None and isinstance(source, Table) else source


def opened(run: Results, X: Any, handle_unknown: str, text: TextFormat | None, client: Client | None) -> Source:
    """New samples as a source, whose columns are the run's where it is one already."""
    if not isinstance(X, Source):
        return open_new(run, X, None, False, handle_unknown, text, client)
    own = None if run.feature_names is None else run.feature_names.tolist()
    made = run.features is not None and (X.feature_names is None or X.fitted is not None)
    if made or X.feature_names == own:
        return X
    if isinstance(X, Table) and not isinstance(X, DaskTable):
        return _light(run, columns_of_numbers(X, run.columns))
    if match_columns(X.name, run.columns, X.feature_names, X.shape[1]) != tuple(range(X.shape[1])):
        found = "columns in another order than the run's"
        allowed = "the columns of the run in their order"
        why = "values of one feature would be taken for another's"
        raise BadInput(X.name, found, allowed, why, "give the file or the object that it was made of")
    return X


def _light(run: Results, source: Table) -> Table:
    """A source without the record that its columns are the run's, as each task of a cluster gets the source."""
    names = source.feature_names if run._context.n_features <= MOST_NAMES else None
    return dataclasses.replace(source, fitted=None, feature_names=names)


def _check_predictable(context: Context) -> None:
    """Refuse a run that keeps nothing for new samples."""
    if context.metric.precomputed:
        found = repr(context.params.metric)
        allowed = "a metric of samples"
        why = "new samples could not be compared with the training samples as these were with each other"
        raise BadInput("metric", found, allowed, why, "run it with metric='euclidean' on the samples themselves")
    if context.params.affinity == "precomputed":
        found, why = "'precomputed'", "the similarity of new samples to the training samples would be unknown"
        raise BadInput(
            "affinity", found, "heat-knn or gaussian", why, "run it with affinity='heat-knn', and leave similarity out"
        )
    if context.receipt("label", "means" if context.params.clusters_rows else "embedding-" + part_name(0)) is None:
        check_there(context.store)


def blocks(context: Context, source: Source, client: Client | None = None) -> Iterator[Predicted]:
    """Predictions for a source's samples, block by block in their order.

    With a client the workers read, or compute, and predict the blocks, at most two a worker at a time; a source that
    is read in one pass is predicted in this process.
    """
    check_client(client)
    _check_predictable(context)
    if source.shape[1] != context.n_features:
        allowed, why = f"the {context.n_features} features of the run", "samples would be compared in different spaces"
        raise BadInput(
            source.name, f"{source.shape[1]} features", allowed, why, "give the columns that the run was given"
        )
    bounds = partition_bounds(*source.shape)
    lazy = isinstance(source, DaskTable)
    if client is None or context.store.location is None or not (lazy or source.parallel):
        inner = dataclasses.replace(context, threads=usable_cores())
        for first, rows in zip(bounds, source.blocks(bounds[1]), strict=False):
            yield _predict_rows(inner, source.name, source.feature_names, first, rows)
        return
    waiting: list[Future] = []
    with losses(client, patience_of(), lambda: waiting):
        room = 2 * max(1, len(known_workers(client)))
        for task in _tasks(context, source, client, bounds):
            waiting.append(task)
            if len(waiting) >= room:
                yield waiting.pop(0).result()
        for task in waiting:
            yield task.result()


def predict(context: Context, source: Source, client: Client | None = None) -> Predicted:
    """Predictions for all of a source's samples, in memory."""
    parts = list(blocks(context, source, client))
    labels, probabilities = (np.concatenate([part[field] for part in parts]) for field in (0, 1))
    points = [part.embedding for part in parts if part.embedding is not None]
    return Predicted(labels, probabilities, np.concatenate(points) if points else None)


def _tasks(context: Context, source: Source, client: Client, bounds: tuple[int, ...]) -> Iterator[Future]:
    """A future a block, made when it is asked for."""
    if isinstance(source, DaskTable):
        names = source.name, source.feature_names
        for first, rows in zip(bounds, source.delayed_blocks(bounds), strict=False):
            yield client.submit(_predict_rows, context, *names, first, client.compute(rows), pure=False)
    else:
        for low, high in itertools.pairwise(bounds):
            yield client.submit(_read_and_predict, context, source, low, high, pure=False)


def _read_and_predict(context: Context, source: Source, low: int, high: int) -> Predicted:
    return _predict_rows(context, source.name, source.feature_names, low, source.read(low, high))


def _predict_rows(context: Context, name: str, features: list[str] | None, first: int, rows: AnyArray) -> Predicted:
    """Predictions for some rows of new samples, numbered from ``first``.

    Where the run left out rows that lack a value, such rows get the label -1, and NaN for anything else. A value that
    is not finite, or too far from the training samples for float32, is refused.
    """
    rows, numbers = np.asarray(rows), first + np.arange(len(rows))
    rule = (context.facts["ingest"].get("missing") or {"rule": "refuse"})["rule"]
    check_block(rows, first, name, features, gaps=rule != "refuse")
    missing = np.isnan(rows)
    if rule == "median":
        rows = np.where(missing, np.asarray(context.read("ingest", "medians", "medians")), rows)
    if rule != "drop" or not missing.any():
        return _predict_complete(context, name, numbers, rows)
    complete = ~missing.any(axis=1)
    c, width = context.params.n_clusters, label_results.n_columns(context)
    labels = np.full(len(rows), -1, np.int32)
    shares = np.full((len(rows), c), np.nan)
    points = None if width is None else np.full((len(rows), width), np.nan)
    if complete.any():
        predicted = _predict_complete(context, name, numbers[complete], rows[complete])
        labels[complete], shares[complete] = predicted.labels, predicted.probabilities
        if points is not None and predicted.embedding is not None:
            points[complete] = predicted.embedding
    return Predicted(labels, shares, points)


def _predict_complete(context: Context, name: str, numbers: Int64, rows: AnyArray) -> Predicted:
    """Predictions for rows without a missing value; ``numbers``, (n,) int64, are their positions in the source."""
    with threads(context.threads):
        points, shares, copies = _extend_rows(context, _standardized(context, name, numbers, rows))
        if shares is not None:
            labels = shares.argmax(axis=1).astype(np.int32)
            copied = copies >= 0  # a sample of the run keeps its label
            labels[copied] = label_results.labels_at(context, copies[copied])
            return Predicted(labels, shares, points)
        squares = extension.gaps_of_products(points, np.asarray(context.read("label", "means", "squares")))
        variance = float(context.finished("label", "means")["facts"]["variance"])
        labels = np.argmin(squares, axis=1).astype(np.int32)
        return Predicted(labels, extension.responsibilities(squares, variance), None)


def _standardized(context: Context, name: str, numbers: Int64, rows: AnyArray) -> Float32:
    """New rows, of these numbers, as ingest would have stored them."""
    params = context.params
    center, spread = (np.asarray(context.read("ingest", "whole", part)) for part in ("center", "spread"))
    columns = None
    if context.metric.needs_direction:
        if context.receipt("ingest", "columns") is not None:
            columns = ingest.Columns(*(np.asarray(context.read("ingest", "columns", n)) for n in ("center", "spread")))
        wide = np.asarray(rows, np.float64)
        check_rows(wide if columns is None else columns.of(wide), numbers, name, params.metric)
    X, _ = ingest.standardize(rows, center, spread, params.scale, params.metric, columns, context.exponent)
    far = np.flatnonzero(~(np.abs(X).max(axis=1) * np.sqrt(X.shape[1]) < ingest.LARGEST))
    if len(far):
        reach, unit = float(np.abs(X[far[0]]).max()), 2.0**context.exponent  # of the (scaled) data
        length = f"{reach * unit:.3g}" if np.isfinite(reach) else f"more than {ingest.LARGEST * unit:.3g}"
        found = f"row {numbers[far[0]]}, which lies {length} from the training samples' centre"
        allowed = f"samples less than {ingest.LARGEST:.2g} times as far as the training samples are"
        why = "squared distances would overflow float32"
        raise BadInput(name, found, allowed, why, "check that they are in the units of the training samples")
    return np.ascontiguousarray(X)


def _extend_rows(context: Context, X: Float32) -> tuple[Float64, Float64 | None, Int64]:
    """The points of new samples, their shares where labels follow from them, and the training samples they equal.

    Points are (n, columns) of the embedding, or (n, c) products with the mean rows of U; shares (n, c), rows of sum 1.
    A sample that equals a training sample has the point of that one; of others the third is -1.
    """
    indices, distances = nearest(context, X, min(max(context.params.n_stored_neighbors - 1, 1), context.m))
    copies = np.where(distances[:, 0] == 0, indices[:, 0], -1)
    copied = np.flatnonzero(copies >= 0)
    sequence = np.argsort(context.owner(indices[:, 0]), kind="stable")  # the neighbours of a chunk in few partitions

    def extend(start: int, stop: int) -> tuple[Float64, Float64 | None]:
        some = sequence[start:stop]
        return _extended(context, X[some], indices[some], distances[some])

    parts = map_chunks(extend, len(X), ROWS)
    order = np.argsort(sequence)  # of the new samples, among the rows of all chunks
    points = np.concatenate([part for part, _ in parts])[order]
    if context.params.clusters_rows:
        points[copied] = np.asarray(context.read("label", "means", "products"))[copies[copied]]
        return points, None, copies
    points = normalize_rows(points)
    points[copied] = label_results.rows_at(context, "embedding", copies[copied])
    shares = np.concatenate([part for _, part in parts if part is not None])[order]
    return points, shares / shares.sum(axis=1, keepdims=True), copies


def _extended(context: Context, X: Float32, indices: Integer, distances: Float32) -> tuple[Float64, Float64 | None]:
    """Points, not of length 1, and sums of shares of some new samples, from rows of their nearest training samples."""
    params = context.params
    normalized = extension.is_normalized(params.fusion, params.method)
    t = bandwidth(context)
    near = slice(0, N_AFFINITY_NEIGHBORS)
    if keeps_all_pairs(context):
        S = similarity.heat(metric_views.lengths_to_all(context, X), t)
        alone = extension.pairwise_part(S, _basis(context, "pairwise_basis"), normalized)
    else:
        weights = similarity.heat(distances, t)
        if params.affinity == "heat-knn":
            weights[:, N_AFFINITY_NEIGHBORS:] = 0.0
        alone = extension.pairwise_part(weights, _basis(context, "pairwise_basis", indices), normalized)
    points = alone + extension.high_order_part(
        distances[:, near], _basis(context, "high_order_basis", indices[:, near])
    )
    if params.clusters_rows:  # labels are those of the nearest mean row of U
        return points, None
    rows = label_results.rows_at(context, "shares", indices[:, near])
    return points, extension.high_order_part(distances[:, near], rows)


def _basis(context: Context, name: str, samples: Integer | None = None) -> Float32:
    """Rows of a basis at some samples, or of all of them: that of the embedding, or of the mean rows of U."""
    if context.params.clusters_rows:
        rows = np.asarray(context.read("label", "means", name))
        return rows if samples is None else rows[samples]
    if samples is None:
        return label_results.of_all(context, name)
    return label_results.rows_at(context, name, samples)


def nearest(context: Context, X: Float32, n: int) -> tuple[Int64, Float32]:
    """The n nearest training samples of each row of X by (distance, the user's id), partition after partition.

    A sharded run is searched in the shards of the nearest cells, as its own graph was; any other one as a whole.
    """
    rows = np.arange(len(X))
    indices, distances = np.zeros((len(X), n), np.int64), np.full((len(X), n), np.inf, np.float32)
    user_numbers = context.user_numbers
    users: Integer = np.full(indices.shape, user_numbers(0)[0])
    searches: list[tuple[int, Int64]] = [(b, rows) for b in range(context.n_partitions)]
    if "starts" in context.facts["neighbors"]:
        searches = _cells(context, X)
    for b, some in searches:
        part, numbers = np.asarray(context.samples_of(b)), user_numbers(b)
        ascending = np.argsort(numbers, kind="stable")  # ties: the user's smallest
        found, lengths = metric_views.search(context)(X[some], np.full(len(some), -1), part[ascending], n)
        places = ascending[found]
        both = [
            np.concatenate([before[some], new], axis=1)
            for before, new in ((indices, context.span(b)[0] + places), (distances, lengths), (users, numbers[places]))
        ]
        first = np.lexsort((both[2], both[1]), axis=1)[:, :n]
        indices[some], distances[some], users[some] = (np.take_along_axis(a, first, axis=1) for a in both)
    return indices, distances


def _cells(context: Context, X: Float32) -> list[tuple[int, Int64]]:
    """Partitions of a sharded run, and the rows of X whose nearest cells they belong to."""
    centers = np.asarray(context.read("neighbors", "cells", "centers"))
    starts = np.asarray(context.facts["neighbors"]["starts"])
    filled = np.flatnonzero(np.diff(starts) > 0)
    squares = euclidean_distances(X, centers[filled], squared=True)
    close = filled[np.argsort(squares, axis=1, kind="stable")[:, :CELLS]]
    firsts = np.searchsorted(starts, np.asarray(context.bounds[:-1]), side="right") - 1
    searches = []
    for b, cell in enumerate(firsts):
        some = np.flatnonzero((close == cell).any(axis=1))
        if len(some):
            searches.append((b, some))
    return searches
