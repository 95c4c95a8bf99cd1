"""Peak memory of a process tree: the summed PSS, sampled from /proc by a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

INTERVAL = 0.05
SHARE = 10
"""Seconds between samples: at least .05, and at least 10 times what a sample takes, so that it costs 10 % of a core."""


class Sample(NamedTuple):
    """What the tree held at a moment, in bytes."""

    at: float  # time.monotonic, one clock for all processes of a machine
    tree: int
    root: int
    largest_child: int


class Peak(NamedTuple):
    """The largest of each over some time, not necessarily at one moment, in bytes."""

    tree: int
    root: int
    largest_child: int


def peak(samples: Sequence[Sample], begin: float = float("-inf"), end: float = float("inf")) -> Peak | None:
    """The peak from ``begin`` to ``end``; None where nothing was sampled."""
    inside = [s for s in samples if begin <= s.at <= end]
    if not inside:
        return None
    return Peak(*(max(column) for column in list(zip(*inside, strict=True))[1:]))


class TreeSampler:
    """Samples a process and its descendants while the ``with`` block lasts.

    PSS counts a page that n processes share as 1/n in each, so that the sum over a tree is what the tree takes. Where
    there is no /proc (macOS, Windows) ``samples`` stays empty.

    Parameters
    ----------
    root : int
        Process id.
    """

    def __init__(self, root: int) -> None:
        self.root = root
        self.samples: list[Sample] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> TreeSampler:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        pause = 0.0
        while not self._done.wait(pause):
            at = time.monotonic()
            root = proportional_bytes(self.root)
            if root:
                others = [proportional_bytes(pid) for pid in descendants(self.root)]
                self.samples.append(Sample(at, root + sum(others), root, max(others, default=0)))
            pause = max(INTERVAL, SHARE * (time.monotonic() - at))


def proportional_bytes(pid: int) -> int:
    """PSS of a process in bytes; 0 where it is gone or can't be read."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:  # it has just ended
        pass
    return 0


def descendants(pid: int) -> list[int]:
    """Children of a process, their children, and so on."""
    found: list[int] = []
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return found
    for task in tasks:
        try:
            children = [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found
