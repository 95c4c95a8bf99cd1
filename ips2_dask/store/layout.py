"""Every array of a run directory, once: which stage writes it, its meaning, and how it is packed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import NamedTuple

FORMAT = 4
"""Version of the run directory; another one is refused."""

READS = {
    "ingest": ("input", "bounds"),
    "neighbors": ("ingest", "knn_graph"),
    "tensor": ("ingest", "neighbors"),
    "assemble": ("tensor",),
    "eigen": ("assemble",),
    "fuse": ("eigen", "similarity"),
    "label": ("fuse",),
}
"""The stages in their order, and the inputs and earlier stages that each reads: other changes leave it as it is."""

STAGES = tuple(READS)


_FORM = re.compile(r"[:,] \(((?:[^()]|\([^()]*\))*)\)(?: ((?:u?int|float)\d+))?")


class Array(NamedTuple):
    """Meaning, shape, dtype and packing of a stored array.

    ``packed`` arrays are compressed with zstd; all of them carry a crc32c, and are filled with NaN, or with an integer
    that no array holds, where nothing was written. Those read ``by_rows`` have small chunks.
    """

    meaning: str
    packed: bool
    by_rows: bool = False

    @property
    def forms(self) -> list[tuple[list[str], str]]:
        """The lengths of its axes in words, and its dtype, "" for one that differs, as ``meaning`` ends.

        Where there are two such pairs, the second is of a run that keeps all pairs of samples.
        """
        forms = _FORM.findall(self.meaning)
        return [(re.split(r",(?![^(]*\)) ?", shape.removesuffix(",")), dtype) for shape, dtype in forms]


_BY_CONTRACTION = {
    "piece": Array("smallest sample that edges inside the partition join each sample with: (rows,) int32", True),
    "pieces": Array("these samples, ascending, of some or all partitions: (pieces,) int32", True),
    "piece_rows": Array("rows of the input in each piece: (pieces,) int64", True),
    "crossings": Array("pieces of a partition and the samples of others that they touch: (n, 2) int32", True),
    "joins": Array("pairs of pieces of two partitions that touch: (n, 2) int32", True),
    "piece_component": Array("connected component of each piece: (pieces,) int32", True),
    "sizes": Array("rows of the input in each connected component: (components,) int64", True),
    "components": Array("connected component of each sample, of all or of a partition: (m or rows,) int32", True),
}
"""Arrays of `ips2_dask.stages.component_labels`."""

ARRAYS: dict[str, dict[str, Array]] = {
    "ingest": {
        "raw": Array("rows as the source gave them, kept only while a sequential source is read", False),
        "statistics": Array("exponents, sums, squares, range of the columns of a partition: (7, f) float64", False),
        "squares": Array("sums of squares of the rows of distances that were given: (rows,) float64", False),
        "samples": Array("X, centred, scaled, in the unit of the run: (rows, f) float32", False),
        "digests": Array("128 bits of each different row of a partition, ascending: (n, 2) uint64", False, True),
        "rows": Array("the first row in the partition with each of these: (n,) int64", False, True),
        "rows_of_heads": Array("rows of the partition that each of them stands for: (n,) int32", False, True),
        "head": Array("the place of the first equal row in the partition, -1 for one left out: (rows,) int32", True),
        "places": Array("their places among the partition's samples, -1 for none: (n,) int32", False, True),
        "offsets": Array("where each range of digests begins among them: (ranges + 1,) int64", True),
        "repeats": Array("rows of a range that equal an earlier one, ascending: (n,) int64", True),
        "repeat_cuts": Array("where those of each partition begin: (partitions + 1,) int64", True),
        "repeated": Array("rows that these equal, each once, ascending: (n,) int64", True),
        "repeated_cuts": Array("where those of each partition begin: (partitions + 1,) int64", True),
        "added": Array("rows that each of them stands for in later partitions: (n,) int32", True),
        "numbers": Array("the sample that each of `repeats` is: (n,) int32", True),
        "starts": Array("number of the first sample of each partition of the input: (partitions + 1,) int64", True),
        "firsts": Array("the first row that each equals; or the first row of each sample: (n,) int64", True),
        "copies": Array("rows of the input that each sample stands for: (n,) int32", True),
        "place": Array("the sample that each row of the input is, -1 for one that is left out: (rows,) int32", True),
        "incomplete": Array("rows of a partition that lack a value, ascending: (n,) int64", True),
        "missing": Array("how many values each column of a partition lacks: (f,) int64", True),
        "counts": Array("how often the next digits of numbers occur in each column: (2, f, 2048) int32", True),
        "medians": Array("median of each column, 0 for one of categories: (f,) float64", False),
        "known": Array("known labels as codes, of all rows of the input or of a bucket: (rows,) int32", True),
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
        "cell_pairs": Array("pairs of nearest and second nearest cell that occur: (n, 2) int32", True),
        "counts": Array("how many samples have each of these pairs: (n,) int64", True),
        "order": Array("the user's number of each sample of a sharded run, by partition: (rows,) int32", True),
        "firsts": Array("the first row of each of them, of a run with fewer samples than rows: (rows,) int64", True),
        "copies": Array("rows of the input that each of them stands for: (rows,) int32", True),
        "row_entries": Array("`firsts` and `copies` of `rows`: (rows, 2) int64", False, True),
        "cell": Array("the cell that each became part of, where it had too few samples: (shards,) int32", True),
        "sources": Array("shards that each one gets samples of: (n,) int32, or as of tensor: (n, 3) int32", True),
        "source_offsets": Array("where those of each begin: (shards + 1,) or (partitions + 1,) int64", True),
        "entries": Array("the user's number of each of `rows`, and its two cells: (rows, 3) int32", False, True),
        "rows": Array("samples sorted by shard, or sampled for the recall: (rows, f) float32", False, True),
        "members": Array("the user's numbers of a shard's samples, ascending: (rows,) int32", False, True),
        "places": Array("nearest of a shard's samples, by place in `members`: (rows, max(k, 6)) int32", True),
        "ranks": Array("the run's numbers of `members`: (rows,) int32", True),
        "second": Array("second nearest cells of samples, in the run's numbering: (rows,) int32", True),
        "leaving": Array("members of another shard too: it, the user's and the run's number: (n, 3) int32", True),
        "queries": Array("rows of a shard that the recall is measured on: (rows, f) float32", False),
        "drawn": Array("rows of a shard whose distances give the bandwidths: (rows, f) float32", False),
        "reach": Array("distance of the true n-th neighbour of each of the recall's samples: (rows,) float32", False),
        "edges": Array("neighbours and who lists them, ascending: (n, 2) int32", True),
        "offsets": Array("where each shard's rows begin: (shards + 1,) int64", True),
        "samples": Array("X of a sharded run, by its partitions: (rows, f) float32", False),
        "indices": Array("nearest samples, the sample itself first: (rows, max(k, 6)) int32", True),
        "distances": Array("their distances: (rows, max(k, 6)) float32", False),
        "bandwidths": Array("mean and median distance: (2,) float64", False),
    },
    "tensor": {
        "edges": Array("(neighbour, centre, column of the list), to other partitions: (n, 3) int32", True, True),
        "source_offsets": Array("where the senders of each partition begin: (partitions + 1,) int64", True),
        "sources": Array("sender, and its first row and one past the last: (n, 3) int32", True),
        "reverse_start": Array("where each sample's reverse list begins: (rows + 1,) int64", True),
        "reverse_centers": Array("the centres whose lists hold it, ascending: (rows max(k, 6)) int32", True),
        "reverse_columns": Array("its column in their lists: (rows max(k, 6)) uint8", True),
        "pairs": Array("active pairs (i, j), i <= j, whose first sample is in the partition: (pairs, 2) int32", True),
        "blocks": Array("distances inside each neighbourhood: (rows, k (k - 1) / 2) float32", False),
        "owned": Array("which subsets of each neighbourhood it owns, as bits: (rows, bytes) uint8", True),
        "indices_0": Array("rows of the owned entries of R (binsparse COO, upper triangle): (entries,) int64", True),
        "indices_1": Array("their columns: (entries,) int64", True),
        "values": Array("their values: (entries,) float32", True),
    },
    "assemble": {
        "degrees": Array("degrees of the active pairs in the full T-hat: (pairs,) float64", False),
        **_BY_CONTRACTION,
    },
    "eigen": {
        "values": Array("eigenvalues outside 1 that V is made of, descending: (columns,) float64", False),
        "residuals": Array("their residual norms: (columns,) float64", False),
        "volumes": Array("volume of each connected component: (components,) float64", False),
        "sums": Array("sum of each eigenvector's entries in the pairs' own basis: (columns,) float64", False),
        "rotation": Array("from the sample graph's vectors to the Ritz vectors: (columns, n) float64", False),
        "shift": Array("their part in the component vectors: (components, n) float64", False),
        "vectors": Array("eigenvectors on the partition's pairs, where they are solved for: (pairs, columns)", False),
        "spectrum": Array("eigenvalues of the pairwise L, of a decomposable tensor: (n,) float64", False),
        "sample_vectors": Array("their eigenvectors: (m, n) float64", False),
        "chosen": Array("which two of them each product is made of: (columns, 2) int64", False),
        "start": Array("the sample graph's vectors times D^-1/2: (rows, columns) float32", False),
        "grams": Array("of a range of pairs, sums for Ritz vectors X'X, X'LX, (LX)'LX: (3, columns, columns)", False),
        "linear": Array("sums of its rows in the pairs' own basis: (columns,) float64", False),
        "components": Array("components that it has pairs of: (n,) int", True),
        "units": Array("of each the sum of the root of the degree: (n,) float64", False),
        "weighted": Array("of each the rows' part in its component vector: (n, columns) float64", False),
        "state": Array("the block of a solve that goes on: (pairs, columns)", False),
        "state_values": Array("its Ritz values: (columns,) float64", False),
        "state_residuals": Array("its residual norms: (columns,) float64", False),
    },
    "fuse": {
        "entries": Array("pairs (i, j), i <= j, of the similarities: (entries, 2) int32", True),
        "pairwise": Array("S there: (entries,) float64; with all pairs kept, its rows: (rows, m) float64", False),
        "high_order": Array("V there: (entries,) float64; with all pairs kept, its rows: (rows, m) float64", False),
        "touched": Array("samples that a partition has entries of, ascending: (n,) int32", True, True),
        "halves": Array("their row sums of S and V in its entries, in exact halves: (n, 2, 2) float64", False, True),
        "source_offsets": Array("where the senders of each partition begin: (partitions + 1,) int64", True),
        "sources": Array("sender, and its first row and one past the last: (n, 3) int32", True),
        "row_sums": Array("row sums of S and V of a partition's samples: (rows, 2) float64", False, True),
        "fused": Array("U there: (entries,) float64; with all pairs kept, its rows: (rows, m) float64", False),
    },
    "label": {
        **_BY_CONTRACTION,
        "rank": Array("number of each component of U, joined ones as one, large ones before islands: (n,) int32", True),
        "extra": Array("edges (i, j), i < j, that join components for the solve: (n, 2) int32", True),
        "extra_weights": Array("their weights: (n,) float64", False),
        "weights": Array("U at the entries of drawn samples: (n,) float64", False),
        "share": Array("share of each component's samples that is drawn, 0 of others: (components,) float64", False),
        "user": Array("user's numbers of drawn samples: (n,) int64", True),
        "samples": Array("these samples, in the run's numbering: (n,) int64", True),
        "hashed": Array("the numbers from 0 to 1 that they are drawn by: (n,) float64", False),
        "allowed": Array("components whose samples others may follow: (components,) uint8", True),
        "asked": Array("X at samples whose nearest is sought: (n, f) float32", False),
        "which": Array("places of these samples: (n,) int64", True),
        "gaps": Array("distance of each one's nearest allowed sample of a partition: (n,) float64", False),
        "users": Array("its user's number, or those of drawn samples: (n,) int64", True),
        "found": Array("the sample itself: (n,) int64", True),
        "followed": Array("sample whose label each island takes: (islands,) int64", True),
        "vectors": Array("eigenvectors of the normalised U, kept until the embedding is there: (rows, columns)", False),
        "degrees": Array("row sums of the weighed U, kept as long: (rows,) float64", False),
        "factors": Array("each sample's factor in a normalised S, kept as long: (rows,) float64", False),
        "source_offsets": Array("where the partitions that reach each one begin: (partitions + 1,) int64", True),
        "sources": Array("such a partition, and two numbers that say nothing here: (n, 3) int32", True),
        "numbers": Array("final number of each cluster, -1 for one without samples: (c,) int32", True),
        "embedding": Array("spectral embedding in the run's numbering, rows of length 1: (m, d) float32", False),
        "component": Array("component of U of each sample, or drawn one, where there are several: (m,) int32", True),
        "follows": Array("sample whose label each takes, its own but for samples of islands: (m,) int32", True),
        "labels": Array("cluster of each row, counted by their first row, -1 for one left out: (rows,) int32", True),
        "certainty": Array("share of its own cluster, of each row of the input, or NaN: (rows,) float32", False),
        "left_out": Array("rows of the input that the tree of a density left out: (rows,) uint8, 1 where it did", True),
        "drawn": Array("samples that a tree is built on, in the run's numbering: (n,) int32", True),
        "edges": Array("the tree's edges (a, b, length), a and b places in `drawn`: (n - 1, 3) float64", False),
        "shares": Array("shares of the clusters: (rows, c) float32", False),
        "indptr": Array("of U's rows by chunk, as CSR: where each begins, (rows + 1,) int32", True),
        "indices": Array("places of their columns among `touched`, ascending: (entries,) int32", True),
        "data": Array("their values: (entries,) float64", False),
        "touched": Array("samples that they touch, ascending: (n,) int32", True),
        "state": Array("the block of a solve on samples that goes on: (rows, columns) float32", False),
        "state_values": Array("its Ritz values: (columns,) float64", False),
        "state_residuals": Array("its residual norms: (columns,) float64", False),
        "u_values": Array("leading eigenvalues of the normalised U, descending: (d,) float64", False),
        "pairwise_basis": Array("pairwise part of U times the basis of new samples: (m, d) float32", False),
        "high_order_basis": Array("high-order part of the same: (m, d) float32", False),
        "centroids": Array("mean of each cluster's points: (c, d) float64", False),
        "products": Array("each sample's row of U times the mean row of each cluster: (m, c) float64", False),
        "squares": Array("squared lengths of these mean rows: (c,) float64", False),
        "inertia": Array("the k-means objective of the best of some starts: (1,) float64", False),
    },
}

KEPT = {
    "all": (
        *("ingest.samples", "neighbors.indices", "neighbors.distances", "tensor.pairs", "assemble.components"),
        *("fuse.pairwise", "fuse.high_order", "fuse.fused", "label.labels", "label.certainty", "label.labels"),
        *("label.certainty", "label.shares", "label.embedding", "label.pairwise_basis", "label.high_order_basis"),
    ),
    "sharded": ("neighbors.samples", "neighbors.order"),
    "chunked": ("tensor.reverse_start", "tensor.reverse_centers", "tensor.reverse_columns"),
    "indecomposable": ("tensor.blocks", "tensor.owned", "assemble.degrees"),
    "triplets": ("tensor.indices_0", "tensor.indices_1", "tensor.values"),
    "solved on pairs": ("eigen.vectors",),
    "solved on samples": ("eigen.start",),
    "sparse": ("fuse.entries",),
}
"""The arrays of all samples that stay when their stage ends, by the kind of runs that have them; some are there twice.
"""


def key_digest(content: Mapping[str, object]) -> str:
    """Digest of what a stage's results depend on."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def folder_of(stage: str, content: Mapping[str, object]) -> str:
    """The folder of a stage's results: named by its key."""
    return f"{stage}-{key_digest(content)[:16]}"
