"""The bytes that processes send one another in a product of block vectors in chunks: a model with measured constants.

`tests/cluster/traffic.py` measures them on samples in 20 groups.
"""

from __future__ import annotations

import dataclasses

from ips2_dask.kernels.eigen import block_width, panels_of
from ips2_dask.params import Params
from ips2_dask.plan.choices import pairs_about
from ips2_dask.plan.costs import NEAR_CHUNKS, product_tasks
from ips2_dask.plan.plan import Plan


@dataclasses.dataclass(frozen=True)
class Case:
    """How chunks lie in the data.

    Attributes
    ----------
    near : float
        Other chunks that a chunk gets rows of, on average.
    shared : float
        Those rows, as a share of the chunk's own.
    """

    near: float
    shared: float


WHOLE = Case(1, 0.09)
"""Chunks that hold whole groups of samples: 200,000 in 6 chunks (measured)."""

PARTS = Case(NEAR_CHUNKS, 0.9)
"""Chunks that are parts of a group, where most samples have neighbours beyond the border: 200,000 in 40 chunks (the
share is measured; there each was near two others, and in larger groups there are more)."""

TASK_BYTES = 22_000
"""Bytes that the scheduler sends and gets for a task of a product, with its share of the solver's other tasks, small
matrices, heartbeats and what a solve sends once (measured with 4 and 6 chunks on 2 workers, solves of 14 products;
12,000 in one of 76)."""


@dataclasses.dataclass(frozen=True)
class ProductTraffic:
    """The traffic of one product of a whole block.

    Attributes
    ----------
    chunks : int
    tasks : int
        Of all panels that the block is filtered in.
    block : int
        Bytes of the whole block.
    workers : int
        Bytes that workers send each other.
    scheduler : int
        Bytes that the scheduler sends and gets.
    """

    chunks: int
    tasks: int
    block: int
    workers: int
    scheduler: int

    @property
    def share(self) -> float:
        """The scheduler's bytes as a share of the workers'."""
        return self.scheduler / self.workers


def product_traffic(plan: Plan, params: Params, n_workers: int, case: Case) -> ProductTraffic | None:
    """The traffic of a product on two workers or more; None where block vectors are in core, and nothing is sent."""
    chunks = next(stage.tasks for stage in plan.stages if stage.name == "assemble")
    if params.tensor != "indecomposable" or min(chunks, n_workers) < 2:
        return None
    columns = block_width(params.n_clusters)
    n_pairs = pairs_about(plan.m, params.n_neighbors)
    block, panels = 4 * columns * n_pairs, panels_of(n_pairs, columns, "chunked")  # each has tasks of its own
    tasks = panels * product_tasks(chunks, n_workers, case.near)
    sent = case.shared * (1 - 1 / n_workers) * block  # what a chunk of the same worker has is not sent
    return ProductTraffic(chunks, tasks, block, round(sent), TASK_BYTES * tasks)
