"""How many entries and bytes a run's data, graph, tensor and similarities have, before any of them is computed."""

from __future__ import annotations

import itertools
import math
from typing import Literal, TypeAlias

import numpy as np

from ips2_dask.kernels.duplicates import n_ranges
from ips2_dask.kernels.eigen import block_width
from ips2_dask.kernels.extension import is_normalized
from ips2_dask.kernels.parallel import whole_blocks
from ips2_dask.params import DENSE_MAX_SAMPLES, N_AFFINITY_NEIGHBORS, Params
from ips2_dask.plan.choices import Choices, PlanRequest, joined_rows, partition_bounds
from ips2_dask.stages.component_labels import GROUP
from ips2_dask.stages.eigen import MAX_RANGES, RANGE
from ips2_dask.stages.graph_refinement import REACH_TASKS
from ips2_dask.stages.label import BUCKET_ROWS
from ips2_dask.stages.sharding import MOST_BATCHES, batches_of
from ips2_dask.store.layout import ARRAYS, KEPT

Role: TypeAlias = Literal["worker", "driver", "scheduler"]
"""The processes of a run. The scheduler is one of its own, or shares the driver's process."""

SPREAD = 3.0  # samples near a partition or range over its own: 2.05 at 2,087 samples, 1.44 at 16,000 (measured)
NEAR_CHUNKS = 20  # that one needs rows of, about, where there are many (measured: docs/plan.md)
HALOS = "chunks and their halos"


class Sizes:
    """Sizes that projections of several stages are made of; a comment beside each says what it is."""

    def __init__(self, m: int, f: int, params: Params, choices: Choices, request: PlanRequest) -> None:
        self.m, self.f, self.params, self.choices = m, f, params, choices
        self.bounds = bounds = partition_bounds(m, f, request.rows)
        self.n_workers, self.worker_limit = max(1, request.n_workers), request.worker_limit
        self.k = k = params.n_neighbors
        self.is_chunked = choices.vectors == "chunked"
        self.solver: Role = "worker" if self.is_chunked else "driver"  # who runs tasks of chunks
        self.is_dense = params.affinity in ("gaussian", "precomputed") and m <= DENSE_MAX_SAMPLES  # S, V and U

        # partitions, shards and chunks
        self.partition_rows = min(m, max(b - a for a, b in itertools.pairwise(bounds)))  # of the largest partition
        # partitions, at most, after samples are renumbered: each shard ends with a shorter one, and two that follow one
        # another have more than `joined_rows` samples together, as those have that a larger shard is cut into
        joined = max(1, joined_rows(m, self.partition_rows))
        self.n_made = min(len(bounds) - 1 + choices.n_shards, 3 * m // joined + 1)
        self.shard_members = min(m, -(-2 * m // max(1, choices.n_shards)))  # of the mean shard: a sample is in two
        self.chunk_rows = min(m, whole_blocks(m, choices.chunk_samples)) if self.is_chunked else m  # at most
        self.n_chunks = math.ceil(m / self.chunk_rows)
        # largest share of all samples whose chunks one process works on: tasks of a chunk go where its rows are
        chunk = self.chunk_rows / m
        self.worker_share = min(1.0, 1 / self.n_workers + chunk, math.ceil(self.n_chunks / self.n_workers) * chunk)
        # seconds of tasks of partitions over those of the two workers of the rates; of the process with most chunks
        self.shared = 2 / self.n_workers
        self.by_chunks = 2 * self.worker_share if self.is_chunked else 1.0
        self.items = self._items()

        # graph and tensor
        self.samples_bytes = 4 * m * f
        self.graph_row_bytes = 8 * params.n_stored_neighbors + 8  # neighbours, distances, place in the reverse lists
        self.local_pairs = k * (k + 1) // 2  # inside one neighbourhood
        # pairs of the restricted basis, at most: three fourths of all local pairs, as neighbourhoods share some
        self.n_pairs = min(m * (m + 1) // 2, m * (k * (k - 1) // 2) + m, int(m * self.local_pairs * 0.75) + m)
        self.entries = m * self.local_pairs * (self.local_pairs + 1) // 2  # of the tensor above its diagonal, at most
        self.owned_bytes = sum(math.comb(k, size) for size in range(5)) // 8 + 1  # a bit of each subset of k samples

        # eigenvectors and similarities
        self.n_solved = choices.n_solved(params)
        self.columns = block_width(self.n_solved)  # of a block of vectors
        self.n_embedded = min(params.n_embedded, m)
        # entries of V and S, and of U, on one side of the diagonal, at most: V's, and S's beyond neighbourhoods; or all
        beyond = params.n_stored_neighbors - k
        self.n_joined = m * (m + 1) // 2 if self.is_dense else self.n_pairs + beyond * m
        nearest = params.affinity == "heat-knn" and is_normalized(params.fusion, params.method)
        self.n_fused = min(self.n_joined, (N_AFFINITY_NEIGHBORS + 1) * m) if nearest else self.n_joined  # with itself

    def _items(self) -> dict[str, int]:
        """How many items of each kind tasks go over. Tasks of chunks in core are none: they run in the driver."""
        chunks, n = self.n_chunks if self.is_chunked else 0, len(self.bounds) - 1
        batches = len(batches_of(self.bounds, self.f))
        return {
            "": 0,
            "rows": n,
            "digests": n_ranges(self.m),
            "batches": batches,
            "groups": math.ceil(math.sqrt(batches)) if batches > MOST_BATCHES else batches,
            "shards": self.choices.n_shards,
            "partitions": self.n_made,
            "reaches": min(self.n_made, REACH_TASKS),
            "joined partitions": math.ceil(self.n_made / GROUP),
            "ranges": min(MAX_RANGES, math.ceil(self.m / RANGE)),
            "chunks": chunks,
            HALOS: chunks * (1 + min(chunks - 1, NEAR_CHUNKS)),
            "roundings": 4,
            "buckets": math.ceil(self.m / BUCKET_ROWS),
        }

    def near(self, rows: float) -> float:
        """Samples in the neighbourhoods that touch so many consecutive samples; in core all of them may be others."""
        return min(self.m, (min(self.k, SPREAD) if self.is_chunked else self.k) * rows)

    def kept_bytes(self, stage: str) -> int:
        """Bytes of the arrays that a stage leaves, by `ips2_dask.store.layout.KEPT`."""
        kinds = {
            "all": True,
            "sharded": self.choices.n_shards > 0,
            "chunked": self.is_chunked,
            "indecomposable": self.params.tensor == "indecomposable",
            "triplets": self.choices.operator == "triplets",
            "solved on pairs": self.choices.exact,
            "solved on samples": not self.choices.exact,
            "sparse": not self.is_dense,
        }
        names = (name.split(".") for kind, arrays in KEPT.items() if kinds[kind] for name in arrays)
        return sum(self._bytes(of, name) for of, name in names if of == stage)

    def _bytes(self, stage: str, name: str) -> int:
        """Bytes of an array of all samples."""
        m, k, n = self.m, self.k, self.params.n_stored_neighbors
        columns = self.n_solved if self.choices.exact else self.columns
        lengths = {
            **{"rows": m, "m": m, "m or rows": m, "rows + 1": m, "f": self.f, "pairs": self.n_pairs},
            **{"max(k, 6)": n, "rows max(k, 6)": m * n, "k (k - 1) / 2": k * (k - 1) // 2, "bytes": self.owned_bytes},
            **{"columns": columns, "c": self.params.n_clusters, "d": self.n_embedded},
            "entries": self.entries if stage == "tensor" else self.n_fused,
        }
        axes, dtype = ARRAYS[stage][name].forms[-1 if self.is_dense else 0]
        return np.dtype(dtype or np.float32).itemsize * math.prod(lengths.get(axis) or int(axis) for axis in axes)
