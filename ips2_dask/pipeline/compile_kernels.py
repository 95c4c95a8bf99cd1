"""A preload for workers: compiles the kernels into Numba's cache once per node, before the worker takes tasks."""

from __future__ import annotations

import contextlib
import getpass
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ips2_dask.params import Params
from ips2_dask.pipeline.run import run


def dask_setup(worker: Any) -> None:
    """Warm the cache; Dask calls this in each worker process."""
    del worker
    with _alone():
        warm()


def warm() -> None:
    """Run the method on a few points, once with each operator: what is compiled already is only loaded."""
    X = np.random.default_rng(0).normal(size=(64, 4))
    for operator in ("matrix-free", "triplets"):
        run(X, Params(n_clusters=2, operator=operator))


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let the processes of a node in one after the other: the first compiles, the others find it done."""
    place = Path(os.environ.get("NUMBA_CACHE_DIR") or tempfile.gettempdir())
    place.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl  # noqa: PLC0415 - not on Windows, where each process compiles for itself
    except ImportError:
        yield
        return
    with (place / f"ips2-warm-{getpass.getuser()}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
