"""How many cores other processes take: before a benchmark, which records nothing on a busy machine, and during it.

A load average decays for minutes, so that a benchmark would be refused because of the one before it. CPU seconds are
counted instead: those of the cores that this process may use, less those of this process and its descendants.
"""

from __future__ import annotations

import os
import time

import psutil

from ips2_dask.errors import BadInput

SECONDS = 2.0
"""How long others are watched before a benchmark."""

MOST = 0.1
"""Cores that others may take together: a tenth of one."""

IDLE = ("idle", "iowait", "guest", "guest_nice")
"""Of the system's times those in which a core did nothing, and those that it counts twice."""


class Watch:
    """The cores that others take on average from now on.

    Descendants count as ours while they live, and when their parents have waited for them; what a process took whose
    parent was killed before it counts as others', and so does what a virtual machine's host withholds ("steal").
    """

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._all, self._own = _all_seconds(), own_seconds()

    def others(self) -> float:
        """Cores that other processes have taken since this object was made, on average."""
        passed = max(time.monotonic() - self._begun, 1e-9)
        taken = (_all_seconds() - self._all) - (own_seconds() - self._own)
        return max(0.0, taken / passed)


def _all_seconds() -> float:
    """CPU seconds since the system's start of the cores that this process may use."""
    times = psutil.cpu_times(percpu=True)
    if hasattr(os, "sched_getaffinity"):
        cores = [core for core in os.sched_getaffinity(0) if core < len(times)]
        times = [times[core] for core in cores]
    return float(sum(value for core in times for name, value in core._asdict().items() if name not in IDLE))


def own_seconds() -> float:
    """CPU seconds of this process and its descendants, those that have ended among them."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            used = process.cpu_times()
        except psutil.Error:  # it has just ended
            continue
        total += used.user + used.system + used.children_user + used.children_system
    return total


def others_now() -> float:
    """Cores that others take, watched for ``SECONDS``."""
    watch = Watch()
    time.sleep(SECONDS)
    return watch.others()


def check_idle(others: float) -> None:
    """Refuse to record on a machine that works for others.

    Raises
    ------
    BadInput
    """
    if others > MOST:
        raise BadInput(
            "--json",
            f"a machine on which other processes take {others:.2f} of a core",
            f"at most {MOST:g}",
            "the record's seconds would hold theirs",
            "wait until they are done, or give --busy: then the record says that the machine was busy",
        )
