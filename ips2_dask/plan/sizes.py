"""How many entries and bytes a run's data, graph, tensor and similarities have, before any of them is computed."""

from __future__ import annotations

import dataclasses
import itertools
import math
from functools import cached_property

from ips2_dask.kernels.eigen import block_width, blocks_held
from ips2_dask.kernels.parallel import whole_blocks
from ips2_dask.params import DENSE_MAX_SAMPLES, Params
from ips2_dask.plan.choices import Choices, joined_rows


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes that projections of several stages are made of.

    Attributes
    ----------
    m, f : int
    params : Params
    choices : Choices
    bounds : tuple of int
        Limits of the partitions.
    n_workers : int
    worker_limit : int, optional
        Bytes that a worker may use; it decides whether results of tasks are expected on its disk, and nothing else.
    """

    m: int
    f: int
    params: Params
    choices: Choices
    bounds: tuple[int, ...]
    n_workers: int
    worker_limit: int | None = None

    @property
    def k(self) -> int:
        """Neighbours of a sample."""
        return self.params.n_neighbors

    @property
    def n_partitions(self) -> int:
        """Partitions of the samples."""
        return len(self.bounds) - 1

    @cached_property
    def partition_rows(self) -> int:
        """Samples of the largest partition."""
        return min(self.m, max(b - a for a, b in itertools.pairwise(self.bounds)))

    @property
    def is_chunked(self) -> bool:
        """Whether block vectors live in chunks on the workers."""
        return self.choices.vectors == "chunked"

    @property
    def is_sharded(self) -> bool:
        """Whether the sample graph is searched by shards."""
        return self.choices.n_shards > 0

    @property
    def n_made(self) -> int:
        """Most partitions after the samples are renumbered by shard.

        Each shard ends with a shorter one. Of joined ones two that follow one another have more than `joined_rows`
        samples together, and so have those that a larger shard is cut into.
        """
        joined = max(1, joined_rows(self.m, self.partition_rows))
        return min(self.n_partitions + self.choices.n_shards, 3 * self.m // joined + 1)

    @property
    def shard_members(self) -> int:
        """Samples of the mean shard; each sample is in two shards."""
        return min(self.m, -(-2 * self.m // max(1, self.choices.n_shards)))

    # ---- chunks of block vectors

    @property
    def n_chunks(self) -> int:
        """Chunks of block vectors: one, where these are in core."""
        if not self.is_chunked:
            return 1
        return math.ceil(self.m / self.chunk_rows)

    @property
    def chunk_rows(self) -> int:
        """Most samples of a chunk of block vectors."""
        return min(self.m, whole_blocks(self.m, self.choices.chunk_samples))

    @property
    def worker_share(self) -> float:
        """Largest share of all samples whose chunks one worker works on: tasks of a chunk go where its rows are."""
        workers, chunk = max(1, self.n_workers), self.chunk_rows / self.m
        return min(1.0, 1 / workers + chunk, math.ceil(self.n_chunks / workers) * chunk)

    @property
    def samples_bytes(self) -> int:
        """Bytes of X."""
        return 4 * self.m * self.f

    # ---- the graph

    @property
    def n_stored_neighbors(self) -> int:
        """Neighbours of a sample that the graph stores."""
        return max(self.k, 6)

    @property
    def graph_row_bytes(self) -> int:
        """Bytes of a sample's neighbours, distances and place in the reverse lists."""
        return 8 * self.n_stored_neighbors + 8

    @property
    def graph_bytes(self) -> int:
        """Bytes of the graph as it is stored."""
        return self.m * self.graph_row_bytes

    @property
    def lists_bytes(self) -> int:
        """Bytes of the graph's lists, which a process reads once and keeps."""
        return 3 * self.graph_bytes

    # ---- the tensor

    @property
    def local_pairs(self) -> int:
        """Pairs inside one neighbourhood."""
        return self.k * (self.k + 1) // 2

    @cached_property
    def n_pairs(self) -> int:
        """Most pairs of the restricted basis: three fourths of all local pairs, as neighbourhoods share some."""
        m, k = self.m, self.k
        return min(m * (m + 1) // 2, m * (k * (k - 1) // 2) + m, int(m * self.local_pairs * 0.75) + m)

    @property
    def entries(self) -> int:
        """Most entries of the tensor above its diagonal."""
        return self.m * self.local_pairs * (self.local_pairs + 1) // 2

    @property
    def triplets_bytes(self) -> int:
        """Bytes of the entries as triplets."""
        return 20 * self.entries

    @property
    def csr_bytes(self) -> int:
        """Bytes of the whole tensor as CSR."""
        return 8 * 2 * self.entries

    @cached_property
    def neighborhoods_bytes(self) -> int:
        """Bytes of all neighbourhoods: ids, positions, distances, and a bit for each subset that one owns."""
        k = self.k
        bits_bytes = sum(math.comb(k, size) for size in range(5)) // 8 + 1
        return self.m * (12 * self.local_pairs + 2 * k * k + bits_bytes)

    # ---- block vectors

    @property
    def n_solved(self) -> int:
        """Eigenpairs that are solved for."""
        return self.choices.n_solved(self.params)

    @property
    def columns(self) -> int:
        """Columns of a block of vectors."""
        return block_width(self.n_solved)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of vectors."""
        return 4 * self.columns * self.n_pairs

    @cached_property
    def blocks_bytes(self) -> int:
        """Bytes of all blocks that the solver holds at once."""
        return blocks_held(self.n_pairs, self.columns)

    # ---- similarities and the embedding

    @property
    def is_dense(self) -> bool:
        """Whether the pairwise similarity is a dense matrix."""
        return self.params.affinity in ("gaussian", "precomputed") and self.m <= DENSE_MAX_SAMPLES

    @property
    def n_fused(self) -> int:
        """Most entries of U on one side of its diagonal: those of V, and of S."""
        return self.n_pairs + 5 * self.m

    @property
    def similarity_bytes(self) -> int:
        """Bytes of S, V and U as they are stored."""
        return 8 * 3 * self.m * self.m if self.is_dense else 60 * self.n_fused

    @property
    def embedded_columns(self) -> int:
        """Columns of a block of vectors in the solve of the embedding."""
        return block_width(self.n_embedded)

    @property
    def n_embedded(self) -> int:
        """Columns of the embedding."""
        return min(self.params.n_embedded, self.m)
