"""The memory of this process: the peak it has used, and a limit above which it gets a MemoryError.

Without the limit, the operating system ends a process that takes more memory than the machine has.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

from ips2_dask.store import cache

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]


def peak_rss() -> int:
    """Peak resident memory of this process in bytes; that of its parents is left out where the system tells."""
    peak = _status_bytes("VmHWM")
    if peak:
        return peak["VmHWM"]
    peak_of_system = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak_of_system if sys.platform == "darwin" else peak_of_system * 1024


def limit_memory(limit: int) -> bool:
    """Let resident memory grow to ``limit`` bytes and no further; returns whether this system can limit a process so.

    The system counts private memory when it is reserved and not when it is touched. So what was reserved so far
    without being touched is added to the limit, and mapped files are subtracted from it. The allocator can give back
    pages between others that are in use, and these stay reserved: after a solve's start with 10,000,000 samples as much
    as half of a worker's 3 GiB. So the limit is set again whenever memory is given back. A limit below what the process
    holds already leaves it as it is, and every further request fails.
    """
    if _set_limit(limit):
        cache.when_given_back(functools.partial(_set_limit, limit))
        return True
    return False


def _set_limit(limit: int) -> bool:
    used = _status_bytes("VmData", "RssAnon", "RssFile")
    if resource is None or not used:
        return False
    untouched = max(0, used["VmData"] - used["RssAnon"])
    allowed = max(limit - used["RssFile"] + untouched, 0)
    _, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
    if hard_limit != resource.RLIM_INFINITY:
        allowed = min(allowed, hard_limit)
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, hard_limit))
    return True


@contextlib.contextmanager
def limited(limit: int | None) -> Iterator[None]:
    """`limit_memory` inside the ``with`` block; None limits nothing."""
    if limit is None or resource is None:
        yield
        return
    before, called_before = resource.getrlimit(resource.RLIMIT_DATA), cache.when_given_back(None)
    limit_memory(limit)
    try:
        yield
    finally:
        cache.when_given_back(called_before)
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _status_bytes(*names: str) -> dict[str, int]:
    """Bytes of these fields of Linux's ``/proc/self/status``; empty where the system lacks the file or one of them."""
    fields: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in names:
                fields[name] = 1024 * int(value.split()[0])
    return fields if len(fields) == len(names) else {}
