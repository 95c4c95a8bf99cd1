"""The bytes that processes send one another in a product of block vectors in chunks: a model with measured constants.

`tests/cluster/traffic.py` measures them on samples in 20 groups.
"""

from __future__ import annotations

import dataclasses

from ips2_dask.kernels.eigen import block_width
from ips2_dask.params import Params
from ips2_dask.plan.choices import pairs_about
from ips2_dask.plan.memory_chunked import SHARED, Solve
from ips2_dask.plan.plan import Plan
from ips2_dask.plan.sizes import Sizes
from ips2_dask.plan.tasks import CYCLE_PRODUCTS, cycle_tasks


@dataclasses.dataclass(frozen=True)
class Case:
    """How chunks lie in the data.

    Attributes
    ----------
    shared : float
        Rows that a chunk gets of other chunks, as a share of its own.
    """

    shared: float


WHOLE = Case(0.09)
"""Chunks that hold whole groups of samples: 200,000 in 6 chunks (measured)."""

PARTS = Case(SHARED)
"""Chunks that are parts of a group, where most samples have neighbours beyond the border: 200,000 in 40 chunks (the
share is measured; there each was near two others, and in larger groups there are more)."""

TASK_BYTES = 22_000
"""Bytes that the scheduler sends and gets for a task of a product, with its share of the solver's other tasks, small
matrices, heartbeats and what a solve sends once (measured with 4 and 6 chunks on 2 workers, solves of 14 products;
12,000 in one of 76)."""


SMALL_MATRICES = 4
"""Gram matrices of all columns that come from each chunk in a cycle, with what else is summed over chunks."""


@dataclasses.dataclass(frozen=True)
class ProductTraffic:
    """The traffic of one product of a whole block, on average over a solve.

    Attributes
    ----------
    chunks : int
    tasks : int
        Of a cycle of the solve, over its products: a task makes several products of a panel.
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
    sizes = Sizes(plan.m, plan.f, params, plan.choices, plan.bounds, n_workers)
    chunks = sizes.n_chunks
    if params.tensor != "indecomposable" or min(chunks, n_workers) < 2:
        return None
    columns, n_pairs = block_width(params.n_clusters), pairs_about(plan.m, params.n_neighbors)
    solve = Solve("pairs", n_pairs, n_pairs * sizes.chunk_rows // plan.m, columns, 0)
    tasks = -(-cycle_tasks(sizes, solve) // CYCLE_PRODUCTS)
    matrices = 8 * columns**2 * chunks * SMALL_MATRICES // CYCLE_PRODUCTS
    sent = case.shared * (1 - 1 / n_workers) * solve.block_bytes  # what a chunk of the same worker has is not sent
    return ProductTraffic(chunks, tasks, solve.block_bytes, round(sent), TASK_BYTES * tasks + matrices)
