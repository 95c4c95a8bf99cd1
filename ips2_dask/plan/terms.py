"""Terms of the memory model: arrays that a process holds at one time, by the phase of a stage that needs them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, TypeAlias

Role: TypeAlias = Literal["worker", "driver", "scheduler"]
"""The processes of a run. The scheduler is one of its own, or shares the driver's process, see `Footprint`."""

ROLES: tuple[Role, ...] = ("worker", "driver", "scheduler")

USABLE = 0.9
"""Share of a worker's limit that a plan counts on: a little above it the worker is ended."""

HELD = 0.6
"""Share of it above which Dask writes results of tasks to disk (``distributed.worker.memory.target``)."""


def usable(limit: int) -> int:
    """The bytes that a plan counts on of a worker's memory limit."""
    return int(USABLE * limit)


@dataclasses.dataclass(frozen=True)
class Phase:
    """What a process holds at most while a stage does one kind of work.

    Attributes
    ----------
    role : {"worker", "driver", "scheduler"}
    name : str
        The work, in the words of the stage's tasks.
    terms : tuple of (str, int)
        Names of arrays and buffers that are alive at the same time, and their bytes.
    """

    role: Role
    name: str
    terms: tuple[tuple[str, int], ...]

    @property
    def bytes(self) -> int:
        """Bytes of all terms together."""
        return sum(size for _, size in self.terms)

    @property
    def largest(self) -> tuple[str, int]:
        """The largest term."""
        return max(self.terms, key=lambda term: term[1])

    def plus(self, terms: dict[str, int]) -> Phase:
        """This phase with more terms."""
        return dataclasses.replace(self, terms=(*self.terms, *_terms(terms)))


def worker(name: str, **terms: int) -> Phase:
    """A phase of a worker; underscores of the terms' names stand for spaces."""
    return Phase("worker", name, _terms(terms))


def driver(name: str, **terms: int) -> Phase:
    """A phase of the driver; underscores of the terms' names stand for spaces."""
    return Phase("driver", name, _terms(terms))


def scheduler(name: str, **terms: int) -> Phase:
    """A phase of the scheduler; underscores of the terms' names stand for spaces."""
    return Phase("scheduler", name, _terms(terms))


def _terms(terms: dict[str, int]) -> tuple[tuple[str, int], ...]:
    """Terms that are not zero, with whole numbers of bytes."""
    return tuple((name.replace("_", " "), int(size)) for name, size in terms.items() if int(size))


@dataclasses.dataclass(frozen=True)
class Footprint:
    """Projected memory of all processes in a stage, and its disk.

    Attributes
    ----------
    phases : tuple of Phase
        Of all roles. A process needs the bytes of its largest phase.
    disk_bytes : int
        What the stage leaves in the run directory.
    transient_bytes : int
        What it has there beside that at its peak: parts that are deleted before it ends.
    scratch_bytes : int
        What Dask writes to each worker's local disk, where results of tasks don't fit into its memory.
    """

    phases: tuple[Phase, ...]
    disk_bytes: int
    transient_bytes: int = 0
    scratch_bytes: int = 0


def peak(phases: Sequence[Phase], role: Role) -> Phase | None:
    """The largest phase of a role, or None where it has none."""
    return max((phase for phase in phases if phase.role == role), key=lambda phase: phase.bytes, default=None)
