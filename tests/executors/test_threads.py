"""Tasks side by side in one process: each has one thread of OpenMP, so that k-means sums as it does on a worker."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils._openmp_helpers import _openmp_effective_n_threads

from ips2_dask import Params
from ips2_dask.executors.base import Executor, Job
from ips2_dask.kernels.parallel import threads
from ips2_dask.plan.choices import choose
from ips2_dask.progress import Progress, Reporter
from ips2_dask.store.base import MemoryStore
from ips2_dask.store.context import Context
from ips2_dask.store.zarr_store import ZarrStore


def openmp(context: Context, item: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """How many threads scikit-learn would take."""
    del context, item
    return {}, {"openmp": int(_openmp_effective_n_threads())}


@pytest.mark.slow
def test_no_task_has_more_than_one_thread_of_openmp(executor: Executor, tmp_path: Any) -> None:
    store = MemoryStore() if executor.n_workers == 1 else ZarrStore(str(tmp_path / "run"))
    context = Context(
        store, Params(), (0, 10), 2, choose(10, 2, Params()), folders={"label": "label-0123456789abcdef"}, threads=2
    )
    with threads(2):
        receipts = executor.map(Job("label", openmp), context, range(4), Reporter(Progress(), "label"))
    assert [receipt["facts"]["openmp"] for receipt in receipts] == [1, 1, 1, 1]
