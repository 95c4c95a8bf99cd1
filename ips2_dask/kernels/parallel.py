"""Fixed chunks on a thread pool: work is split by the shape of the data alone, so that no thread count shows."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import TypeVar

from threadpoolctl import ThreadpoolController

T = TypeVar("T")

_threads: ContextVar[int] = ContextVar("ips2_threads", default=0)  # 0: BLAS is not held yet


_found: tuple[int, ThreadpoolController] | None = None


def _pools() -> ThreadpoolController:
    """The thread pools of the loaded libraries; looking for them takes 20 ms, so only where some may be new."""
    global _found
    loaded = len(sys.modules)
    if _found is None or _found[0] != loaded:
        _found = loaded, ThreadpoolController()
    return _found[1]


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Let `map_chunks` use ``count`` threads inside, and hold BLAS and OpenMP to one thread each.

    BLAS sums in another order with another number of threads; so it gets one, and the parallelism is ours, over
    chunks whose limits depend on the data alone. The results are the same bits for any ``count``.
    """
    held = _threads.get() > 0
    token = _threads.set(max(1, count))
    try:
        with contextlib.nullcontext() if held else _pools().limit(limits=1):
            yield
    finally:
        _threads.reset(token)


def thread_count() -> int:
    """How many threads `map_chunks` uses here."""
    return max(1, _threads.get())


def hold_openmp() -> None:
    """Hold OpenMP to one thread in the thread that calls this, for as long as it lives.

    Its limit is every thread's own: what `threads` has set in one counts for nothing in those that it starts.
    """
    _pools().limit(limits=1, user_api="openmp")


def chunk_bounds(n: int, size: int) -> list[tuple[int, int]]:
    """Limits of consecutive chunks of ``size`` (the last shorter) that cover ``range(n)``."""
    return [(start, min(start + size, n)) for start in range(0, n, size)]


def map_chunks(function: Callable[[int, int], T], n: int, size: int) -> list[T]:
    """``function(start, stop)`` for each chunk of ``range(n)``, results in chunk order."""
    bounds = chunk_bounds(n, size)
    count = min(_threads.get(), len(bounds))
    if count <= 1:
        return [function(start, stop) for start, stop in bounds]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda pair: function(*pair), bounds))
