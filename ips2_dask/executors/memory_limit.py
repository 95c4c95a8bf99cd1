"""A limit on this process's own memory: what goes over it gets a MemoryError, not the machine's killer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


def limit_memory(limit: int) -> bool:
    """Let resident memory grow to ``limit`` bytes and no further; returns whether this system can be asked to.

    The system counts private memory when it is reserved and not when it is touched. So what was reserved so far
    without being touched is let in beside the limit, and files that are mapped are taken off it.

    Parameters
    ----------
    limit : int
        Bytes. A limit below what the process holds already leaves it as it is, and every further request fails.
    """
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return False
    held = _status()
    if not held:
        return False
    untouched = max(0, held["VmData"] - held["RssAnon"])
    allowed = max(limit - held["RssFile"] + untouched, 0)
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most != resource.RLIM_INFINITY:
        allowed = min(allowed, most)
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, most))
    return True


@contextlib.contextmanager
def limited(limit: int | None) -> Iterator[None]:
    """`limit_memory` while this lasts; None limits nothing."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    if limit is not None:
        limit_memory(limit)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _status() -> dict[str, int]:
    """Bytes of this process by the kernel's names; empty where the system has no such file."""
    out: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("VmData", "RssAnon", "RssFile"):
                out[name] = 1024 * int(value.split()[0])
    return out if len(out) == 3 else {}
