"""A preload for workers: compiles the kernels into Numba's cache once per node, before the worker takes tasks."""

from __future__ import annotations

import contextlib
import getpass
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ips2_dask.params import Params
from ips2_dask.pipeline.run import run

if TYPE_CHECKING:
    from distributed import Worker


def dask_setup(worker: Worker) -> None:
    """Fill the cache; Dask calls this in each worker process."""
    del worker
    with _one_process_of_the_node():
        warm()


def warm() -> None:
    """Run the method on a few points, once with each operator; kernels that are in the cache are only loaded."""
    X = np.random.default_rng(0).normal(size=(64, 4))
    for operator in ("matrix-free", "triplets"):
        run(X, Params(n_clusters=2, operator=operator))


@contextlib.contextmanager
def _one_process_of_the_node() -> Iterator[None]:
    """A lock between the processes of a node: the first one compiles, and the others load what it compiled."""
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or tempfile.gettempdir())
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl  # noqa: PLC0415 - not on Windows, where each process compiles for itself
    except ImportError:
        yield
        return
    with (folder / f"ips2-warm-{getpass.getuser()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
