"""A preload for workers: compiles the kernels into Numba's cache once per node, before the worker takes tasks."""

from __future__ import annotations

import getpass
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ips2_dask.params import Params
from ips2_dask.pipeline.run import run
from ips2_dask.store.lock import one_at_a_time

if TYPE_CHECKING:
    from distributed import Worker


def dask_setup(worker: Worker) -> None:
    """Fill the cache; Dask calls this in each worker process. The first one of a node compiles, and the others load."""
    del worker
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or tempfile.gettempdir(), f"ips2-warm-{getpass.getuser()}")
    folder.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(str(folder)):
        warm()


def warm() -> None:
    """Run the method on a few points, once with each operator; kernels that are in the cache are only loaded."""
    X = np.random.default_rng(0).normal(size=(64, 4))
    for operator in ("matrix-free", "triplets"):
        run(X, Params(n_clusters=2, operator=operator))
