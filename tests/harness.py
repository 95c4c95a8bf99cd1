"""What several test files call: small data sets that are awkward in different ways, executors, a run on one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from hypothesis import settings
from scipy.sparse.csgraph import connected_components

from ips2_dask import Params, Resources, Run, open_run, run
from ips2_dask.executors.base import Executor, Job, Report, SerialExecutor, compute_part
from ips2_dask.pipeline.execution import execute
from ips2_dask.pipeline.prepare import Inputs, prepare
from ips2_dask.progress import Progress
from ips2_dask.readers import open_source
from ips2_dask.stages import label
from ips2_dask.store.base import MemoryStore, Store
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.integrity import Receipt
from ips2_dask.store.zarr_store import ZarrStore

Array = npt.NDArray[Any]


def _random() -> Array:
    return np.random.default_rng(11).normal(size=(31, 4))


def _duplicates() -> Array:
    """A row 14 times (more than any k that is tried), another one three times, some twice."""
    rng = np.random.default_rng(12)
    base = rng.normal(size=(16, 3))
    return base[rng.permutation(np.repeat(np.arange(16), [14, 3, 2, 2, *[1] * 12]))]


def _islands() -> Array:
    """Three far groups of 13, so that no neighbourhood of up to 12 leaves one; float32 holds them exactly."""
    rng = np.random.default_rng(13)
    X = rng.normal(size=(39, 3)) + 40 * np.repeat(np.eye(3), 13, axis=0)
    return np.round(X[rng.permutation(39)] * 1024) / 1024


def _integers() -> Array:
    """A small grid, so that most distances are shared by many pairs, and some samples are equal."""
    return np.random.default_rng(14).integers(0, 4, size=(33, 3)).astype(np.float64)


def _star() -> Array:
    """A sample in the middle of others that are far from one another: it is in every neighbourhood."""
    rng = np.random.default_rng(15)
    rays = np.concatenate([np.eye(15), -np.eye(15)]) * rng.uniform(1.0, 1.2, size=(30, 1))
    return np.concatenate([rays[:20], np.zeros((1, 15)), rays[20:]])


DATA: dict[str, Callable[[], Array]] = {
    "random": _random,
    "duplicates": _duplicates,
    "islands": _islands,
    "integers": _integers,
    "star": _star,
}


def grid(*cases: Any) -> list[Any]:
    """Cases of a parameter that `pytest -m grid` runs alone; the default tests have others."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.grid) for case in cases]


def few_examples() -> settings:
    """A third of the profile's examples, for a property whose examples are whole runs."""
    return settings(max_examples=settings.default.max_examples // 3)


def graph_components(N: Array) -> Array:
    """Connected components of the graph that joins each p with N(p), by smallest member: (m,) int32."""
    m, k = N.shape
    A = sp.csr_array((np.ones(m * k), (np.repeat(np.arange(m), k), N.ravel())), shape=(m, m))
    return np.asarray(connected_components(A, directed=False)[1], np.int32)


def run_in_chunks(X: Any, params: Params, path: Path, rows: int, bucket: int, **about: Any) -> Run:
    """A run in chunks with so many rows a partition and a bucket of labels, opened from its directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(label, "BUCKET_ROWS", bucket)
        run(X, params, Resources(partition_rows=rows, vectors="chunked"), store=path, **about)
    return open_run(path)


class ShuffledExecutor(SerialExecutor):
    """Completes the tasks of each stage in an order of its own; the receipts come back in the order of the items."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def map(self, job: Job, context: Context, items: Sequence[Any], report: Report) -> list[Receipt]:
        """Every item's receipt, computed in a shuffled order."""
        found: dict[int, Receipt] = {}
        for at in self._rng.permutation(len(items)).tolist():
            found[at] = compute_part(items[at], job, context)
            report(len(found), len(items))
        return [found[at] for at in range(len(items))]


class TwiceExecutor(SerialExecutor):
    """Runs every task twice, as a cluster that lost a worker does, and looks whether the second time gave the same."""

    def __init__(self) -> None:
        self.compared: set[tuple[str, str]] = set()

    def map(self, job: Job, context: Context, items: Sequence[Any], report: Report) -> list[Receipt]:
        """Every item's receipt, of the second time."""
        receipts = []
        for done, item in enumerate(items):
            first, second = (job.function(context, item) for _ in range(2))
            assert first[0].keys() == second[0].keys()
            for name, array in first[0].items():
                assert array.dtype == second[0][name].dtype
                assert array.tobytes() == second[0][name].tobytes()
                self.compared.add((job.stage, name))
            for arrays, facts in (first, second):  # both attempts are stored, the second over the first
                receipt = context.store.write(context.folders[job.stage], job.prefix + part_name(item), arrays, facts)
            receipts.append(receipt)
            report(done + 1, len(items))
        return receipts


def slowly(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Parameters of a test, all but the ``quick`` ones marked slow: a kernel's property proves the same by default."""
    return [value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values]


def run_on(
    executor: Executor,
    X: Any,
    params: Params,
    rows: int | None = None,
    store: Store | Path | None = None,
    vectors: str = "auto",
) -> Run:
    """A run on a given executor, which `ips2_dask.run` does not take."""
    prepared = prepare(Inputs(open_source(X)), params, Resources(partition_rows=rows, vectors=vectors))
    kept = ZarrStore(str(store)) if isinstance(store, Path) else store or MemoryStore()
    return execute(prepared, kept, executor, Progress())


def block_affinity(*sizes: int, seed: int = 0) -> tuple[sp.csr_array, Array]:
    """A dense random affinity inside blocks and nothing between, shuffled, and which block each sample is in."""
    rng = np.random.default_rng(seed)
    blocks = [rng.uniform(0.2, 1, (size, size)) for size in sizes]
    order = rng.permutation(sum(sizes))
    U = sp.csr_array(sp.block_diag([block + block.T for block in blocks], format="csr")[order][:, order])
    return U, np.repeat(np.arange(len(sizes)), sizes)[order]
