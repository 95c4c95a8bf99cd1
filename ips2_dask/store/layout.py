"""Every array of a run directory, once: which stage writes it, its meaning, and how it is packed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import NamedTuple

FORMAT = 2
"""Version of the run directory; another one is refused."""

STAGES = ("ingest", "neighbors", "tensor", "assemble", "eigen", "fuse", "label")
"""The stages in their order; each reads what earlier ones stored."""


class Array(NamedTuple):
    """Meaning and packing of a stored array.

    ``packed`` arrays are compressed with zstd; all of them carry a crc32c, and are filled with NaN, or with an integer
    that no array holds, where nothing was written. Those read ``by_rows`` have small chunks.
    """

    meaning: str
    packed: bool
    by_rows: bool = False


ARRAYS: dict[str, dict[str, Array]] = {
    "ingest": {
        "raw": Array("rows as the source gave them, kept only while a sequential source is read", False),
        "statistics": Array("exponents, sums, squares, range of the columns of a partition: (7, f) float64", False),
        "squares": Array("sums of squares of the rows of distances that were given: (rows,) float64", False),
        "samples": Array("X, centred, scaled, in the unit of the run: (rows, f) float32", False),
        "digests": Array("128 bits of each row of a partition, ascending: (rows, 2) uint64", False, True),
        "rows": Array("their rows in the input: (rows,) int64", False, True),
        "offsets": Array("where each range of digests begins among them: (ranges + 1,) int64", True),
        "repeats": Array("rows of a range that equal an earlier one, ascending: (n,) int64", True),
        "firsts": Array("the first row that each equals; or the first row of each sample: (n,) int64", True),
        "place": Array("the sample that each row of the input is, -1 for one that is left out: (rows,) int32", True),
        "incomplete": Array("rows of a partition that lack a value, ascending: (n,) int64", True),
        "missing": Array("how many values each column of a partition lacks: (f,) int64", True),
        "counts": Array("how often the next digits of numbers occur in each column: (2, f, 2048) int32", True),
        "medians": Array("median of each column, 0 for one of categories: (f,) float64", False),
        "known": Array("known labels as codes: (rows of the input,) int32", True),
        "center": Array("what was taken from each column: (f,) float64", False),
        "spread": Array("what each column was divided by: (f,) float64", False),
    },
    "beside": {
        "dense": Array("the similarity S that was given: (m, m) float64", False),
        "indptr": Array("where each sample's entries begin, of a sparse S or graph that was given: (m + 1,)", True),
        "indices": Array("their columns, in the user's numbering: (entries,) int32", True),
        "values": Array("their values, of S: (entries,) float64", False),
    },
    "names": {
        "text": Array("sample names, UTF-8, end to end: (bytes,) uint8", True),
        "ends": Array("where each of them ends: (m,) int64", True),
    },
    "neighbors": {
        "sample": Array("rows that decide the cells of shards: (rows, f) float32", False),
        "centers": Array("centres of the cells: (shards, f) float32", False),
        "nearest": Array("the two nearest cells of each sample: (rows, 2) int32", True),
        "order": Array("the user's number of each sample of a sharded run: (m,) int32", True),
        "rank": Array("the run's number of each of the user's samples: (m,) int32", True),
        "by_cell": Array("the user's numbers of the samples by their nearest cell: (m,) int32", True),
        "cell": Array("the cell that each became part of, where it had too few samples: (shards,) int32", True),
        "shards": Array("the two nearest cells, in the run's numbering: (m, 2) int32", True),
        "rows": Array("samples sorted by shard, or sampled for the recall: (rows, f) float32", False, True),
        "members": Array("their numbers, or those of a shard's samples: (rows,) int32", False, True),
        "offsets": Array("where each shard's rows begin: (shards + 1,) int64", True),
        "samples": Array("X of a sharded run, by its partitions: (rows, f) float32", False),
        "indices": Array("nearest samples, the sample itself first: (rows, max(k, 6)) int32", True),
        "distances": Array("their distances: (rows, max(k, 6)) float32", False),
        "bandwidths": Array("mean and median distance: (2,) float64", False),
    },
    "tensor": {
        "pairs": Array("active pairs (i, j), i <= j, whose first sample is in the partition: (pairs, 2) int32", True),
        "blocks": Array("distances inside each neighbourhood: (rows, k (k - 1) / 2) float32", False),
        "owned": Array("which subsets of each neighbourhood it owns, as bits: (rows, bytes) uint8", True),
        "near_indptr": Array("of triplets, a chunk's rows of R as CSR: where each row begins, (rows + 1,) int64", True),
        "near_columns": Array("places of their columns among `touched`, ascending: (entries,) int32", True),
        "near_values": Array("their values: (entries,) float32", False),
        "near_blocks": Array("`blocks` of all centres whose neighbourhood holds a sample of a chunk", False),
        "near_owned": Array("`owned` of the same", False),
        "near_ids": Array("their pairs, as places in `touched`: (centres, q) int32", True),
        "touched": Array("the pairs they hold, ascending: (n,) int64", True),
        "indices_0": Array("rows of the owned entries of R (binsparse COO, upper triangle): (entries,) int64", True),
        "indices_1": Array("their columns: (entries,) int64", True),
        "values": Array("their values: (entries,) float32", True),
    },
    "assemble": {
        "degrees": Array("degrees of the active pairs in the full T-hat: (pairs,) float64", False),
        "components": Array("connected component of each sample: (m,) int32", True),
    },
    "eigen": {
        "values": Array("eigenvalues outside 1 that V is made of, descending: (columns,) float64", False),
        "residuals": Array("their residual norms: (columns,) float64", False),
        "volumes": Array("volume of each connected component: (components,) float64", False),
        "sums": Array("sum of each eigenvector's entries in the pairs' own basis: (columns,) float64", False),
        "vectors": Array("their eigenvectors on the partition's pairs: (pairs, columns)", False),
        "spectrum": Array("eigenvalues of the pairwise L, of a decomposable tensor: (n,) float64", False),
        "sample_vectors": Array("their eigenvectors: (m, n) float64", False),
        "chosen": Array("which two of them each product is made of: (columns, 2) int64", False),
        "start": Array("the sample graph's start: (rows, columns) float32", False),
        "state": Array("the block of a solve that goes on: (pairs, columns)", False),
        "state_values": Array("its Ritz values: (columns,) float64", False),
        "state_residuals": Array("its residual norms: (columns,) float64", False),
    },
    "fuse": {
        "entries": Array("pairs (i, j), i <= j, of the similarities: (entries, 2) int32", True),
        "pairwise": Array("S there: (entries,) float64; with all pairs kept, its rows: (rows, m) float32", False),
        "high_order": Array("V there: (entries,) float64", False),
        "touched": Array("samples that a partition has entries of, ascending: (n,) int32", True),
        "sums": Array("row sums of S and V: (2, m) float64; of a partition, in exact halves: (2, 2, n)", False),
        "fused": Array("U there: (entries,) float64; with all pairs kept, its rows: (rows, m) float32", False),
    },
    "label": {
        "embedding": Array("spectral embedding in the run's numbering, rows of length 1: (m, d) float32", False),
        "component": Array("connected component of U of each sample, where there are several: (m,) int32", True),
        "follows": Array("sample whose label each takes, its own but for samples of islands: (m,) int32", True),
        "labels": Array(
            "cluster of each row of the input, counted by their first row, -1 for one left out: (rows,) int32", True
        ),
        "certainty": Array("share of its own cluster, of each row of the input, or NaN: (rows,) float32", False),
        "left_out": Array("rows of the input that the tree of a density left out: (rows,) uint8, 1 where it did", True),
        "drawn": Array("samples that a tree is built on, in the run's numbering: (n,) int32", True),
        "edges": Array(
            "the tree's edges (a, b, length), ascending, a and b places in `drawn`: (n - 1, 3) float64", False
        ),
        "shares": Array("shares of the clusters: (rows, c) float32", False),
        "u_values": Array("leading eigenvalues of the normalised U, descending: (d,) float64", False),
        "pairwise_basis": Array("pairwise part of U times the basis of new samples: (m, d) float32", False),
        "high_order_basis": Array("high-order part of the same: (m, d) float32", False),
        "centroids": Array("mean of each cluster's points, kept by earlier versions: (c, d) float64", False),
        "products": Array(
            "products of each sample's row of U with the mean row of each cluster: (m, c) float64", False
        ),
        "squares": Array("squared lengths of these mean rows: (c,) float64", False),
        "inertia": Array("the k-means objective of the best of some starts: (1,) float64", False),
    },
}


def key_digest(content: Mapping[str, object]) -> str:
    """Digest of what a stage's results depend on."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def folder_of(stage: str, content: Mapping[str, object]) -> str:
    """The folder of a stage's results: named by its key."""
    return f"{stage}-{key_digest(content)[:16]}"
