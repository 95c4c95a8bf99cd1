"""What a task is given: the store, the parameters, the partitions, and what earlier stages found."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ips2_dask.kernels import buffers
from ips2_dask.params import AS_THEY_ARE, Params
from ips2_dask.plan.choices import Choices
from ips2_dask.plan.memory import CACHE_BYTES
from ips2_dask.store.remote import is_remote
from ips2_dask.store.zarr_store import MemoryStore, Receipt, Store

AnyArray = NDArray[Any]

SEATED = frozenset(
    {
        ("ingest", "distinct"),
        ("neighbors", "numbering"),
        ("neighbors", "whole"),
        ("assemble", "whole"),
        ("fuse", "sums-whole"),
    }
)
"""Parts with arrays over all samples that every task of a stage looks at."""


class _Cache:
    """Arrays this process read or made lately, least used first out, bounded in bytes.

    A seat is for what every task of a stage looks at, whatever its size: it stays, and does not count, until something
    else takes the seat. Else a graph larger than the bound would be read anew, all partitions of it, by each task.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._held: OrderedDict[tuple[Any, ...], tuple[Any, int]] = OrderedDict()
        self._making: dict[tuple[Any, ...], Lock] = {}
        self._seats: dict[str, tuple[Any, ...]] = {}
        self._loose = 0  # bytes of what has no seat
        self.limit = CACHE_BYTES

    def get(
        self, key: tuple[Any, ...], make: Callable[[], Any], size: Callable[[Any], int], more: int = 0, seat: str = ""
    ) -> Any:
        """What is held under a key; made first by one of the threads that ask for it, while the others wait.

        ``more`` bytes than else may be held.
        """
        with self._lock:
            if key in self._held:
                return self._used(key, seat, more)
            making = self._making.setdefault(key, Lock())
        with making:
            with self._lock:
                if key in self._held:
                    return self._used(key, seat, more)
            value = make()
            with self._lock:
                self._held[key] = value, size(value)
                self._loose += self._held[key][1]
                self._used(key, seat, more)
                self._shrink(key, more)
                self._making.pop(key, None)
        return value

    def _used(self, key: tuple[Any, ...], seat: str, more: int) -> Any:
        self._held.move_to_end(key)
        before = self._seats.get(seat)
        if seat and before != key:
            if key not in self._seats.values():
                self._loose -= self._held[key][1]
            self._seats[seat] = key
            if before is not None and before in self._held and before not in self._seats.values():
                self._loose += self._held[before][1]
            self._shrink(key, more)
        return self._held[key][0]

    def _shrink(self, latest: tuple[Any, ...] | None, more: int) -> None:
        """Let go of what was used least lately and has no seat; ``latest`` stays, whatever its size."""
        staying, going = {latest, *self._seats.values()}, []
        for key, (_, size) in self._held.items():  # thousands: only the first few are looked at
            if self._loose <= self.limit + more:
                break
            if key not in staying:
                self._loose -= size
                going.append(key)
        for key in going:
            del self._held[key]

    def free_seats(self) -> None:
        """What had one is like anything else from now on."""
        with self._lock:
            self._seats.clear()
            self._loose = sum(size for _, size in self._held.values())
            self._shrink(None, 0)

    def clear(self) -> None:
        """Hold nothing."""
        with self._lock:
            self._held.clear()
            self._seats.clear()
            self._loose = 0


cache = _Cache()


def tidy() -> None:
    """Let go of what all tasks of a stage looked at, and of memory kept for more of what it made: it is over."""
    cache.free_seats()
    buffers.tidy()


def clear_cache() -> None:
    """Let go of all that was read and made, and of memory kept for more of it: the plan counts no stage's leavings."""
    cache.clear()
    buffers.tidy()


@dataclasses.dataclass
class Context:
    """Everything a stage function may look at.

    Attributes
    ----------
    store : Store
    params : Params
    bounds : (n_partitions + 1,) int
        Partition b holds the samples bounds[b] .. bounds[b + 1] - 1.
    n_features : int
    choices : Choices
    folders : dict
        Folder of each stage, named by its key.
    facts : dict
        What each finished stage found: sizes, counts, warnings.
    threads : int
        Threads that one task may use.
    source : Source, optional
        The input, for the ingest stage.
    generation : int
        Raised when a stage that was computed again has given other bytes: what a process remembers is of one.
    there : frozenset of str, optional
        Names of the parts of the stage that may be finished; None where each task looks for its own.
    kept : int
        Bytes that a process may remember beyond what it always may.
    clustered_only : bool
        Whether the user's numbers of samples, and what is said of rows, are of the rows that were clustered alone.
    """

    store: Store
    params: Params
    bounds: tuple[int, ...]
    n_features: int
    choices: Choices
    folders: dict[str, str] = dataclasses.field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    threads: int = 1
    source: Any = None
    generation: int = 0
    there: frozenset[str] | None = None
    kept: int = 0
    clustered_only: bool = False

    @property
    def m(self) -> int:
        """Number of samples."""
        return self.bounds[-1]

    @property
    def n_partitions(self) -> int:
        """Number of partitions."""
        return len(self.bounds) - 1

    @property
    def exponent(self) -> int:
        """The e of the power of two 2^e that samples were divided by; runs of earlier versions had none."""
        return int(self.facts.get("ingest", {}).get("exponent", 0))

    @property
    def unit(self) -> float:
        """The power of two that distances were divided by: that of the samples, or 1 for a metric without a unit."""
        return 2.0**self.exponent if self.params.metric not in AS_THEY_ARE else 1.0

    def span(self, b: int) -> tuple[int, int]:
        """First sample of partition b, and one past its last."""
        return self.bounds[b], self.bounds[b + 1]

    def owner(self, samples: NDArray[np.integer]) -> NDArray[np.int64]:
        """The partition of each sample."""
        return np.searchsorted(self.bounds, samples, side="right") - 1

    def read(self, stage: str, part: int | str, name: str) -> AnyArray:
        """One stored array of an earlier stage; lately read ones are remembered. Do not write into it."""
        folder, part = self.folders[stage], part_name(part)
        if isinstance(self.store, MemoryStore):
            return self.store.read(folder, part, name)
        key = (self.store.location, self.generation, folder, part, name)
        seat = f"{stage} {name}" if (stage, part) in SEATED else ""
        array: AnyArray = cache.get(
            key, lambda: self.store.read(folder, part, name), lambda a: a.nbytes, self.kept, seat
        )
        return array

    def fetch(self, stage: str, part: int | str, name: str) -> AnyArray:
        """The same, not remembered: what is needed once should not put out what is needed again.

        Over a network it is, where another task that needs it would have to ask for it again.
        """
        if self.store.location is not None and is_remote(self.store.location):
            return self.read(stage, part, name)
        return self.store.read(self.folders[stage], part_name(part), name)

    def read_all(self, stage: str, name: str) -> AnyArray:
        """A stage's array over all partitions, one after the other; not remembered."""
        folder = self.folders[stage]
        parts = [self.store.read(folder, part_name(b), name) for b in range(self.n_partitions)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def adopt(self, facts: dict[str, Any]) -> None:
        """Go over to the partitions that a stage made: a sharded graph renumbers the samples."""
        if "bounds" in facts:
            self.bounds = tuple(facts["bounds"])

    @property
    def samples_stage(self) -> str:
        """The stage whose ``samples`` are in the numbering of the partitions."""
        return "neighbors" if "bounds" in self.facts.get("neighbors", {}) else "ingest"

    @property
    def samples_prefix(self) -> str:
        """What the names of its parts begin with."""
        return "samples-" if self.samples_stage == "neighbors" else self._ingested

    @property
    def _ingested(self) -> str:
        return "distinct-" if self.merged else ""

    def samples_of(self, b: int) -> AnyArray:
        """X of partition b: (rows, f) float32, remembered."""
        return self.read(self.samples_stage, self.samples_prefix + part_name(b), "samples")

    def ingested(self, b: int) -> AnyArray:
        """The same by the partitions that ingest made, which a sharded graph replaces."""
        return self.read("ingest", self._ingested + part_name(b), "samples")

    def samples(self, rows: NDArray[np.integer]) -> AnyArray:
        """X at sorted samples: (n, f) float32."""
        return self.rows_of(self.samples_stage, "samples", rows, self.samples_prefix)

    def all_samples(self) -> AnyArray:
        """The whole of X in this process, remembered."""
        stage = self.samples_stage
        size = 4 * self.m * self.n_features
        X: AnyArray = self.remembered(stage, "X", lambda: self.samples(np.arange(self.m)), size, "samples")
        return X

    def order(self) -> NDArray[np.int32] | None:
        """The user's number of each sample, or None where that is the run's own: (m,) int32.

        That of the first of equal rows, where they are one sample.
        """
        firsts = np.asarray(self.read("ingest", "distinct", "firsts")) if self.merged else None
        if firsts is not None and self.clustered_only:
            firsts = np.searchsorted(self.clustered_rows(), firsts)
        if self.samples_stage == "ingest":
            return firsts
        order = np.asarray(self.read("neighbors", "whole", "order"))
        return order if firsts is None else firsts[order]

    @property
    def merged(self) -> bool:
        """Whether the samples are fewer than the rows of the input: equal rows are one, or incomplete ones none."""
        return "bounds" in self.facts.get("ingest", {})

    def place(self) -> NDArray[np.integer] | None:
        """The run's number of each row of the input, -1 for one left out, or None where that is its own: (rows,)."""
        distinct = np.asarray(self.read("ingest", "distinct", "place")) if self.merged else None
        if distinct is not None and self.clustered_only:
            distinct = distinct[distinct >= 0]
        if self.samples_stage == "ingest":
            return distinct
        rank = np.argsort(np.asarray(self.read("neighbors", "whole", "order")))
        return rank if distinct is None else np.where(distinct < 0, -1, rank[distinct])

    def copies(self) -> NDArray[np.int64] | None:
        """How many rows of the input each sample stands for, or None where it is one: (m,) int64."""
        if not self.merged:
            return None

        def make() -> NDArray[np.int64]:
            place = np.asarray(self.place())
            return np.bincount(place[place >= 0], minlength=self.m)

        copies: NDArray[np.int64] = self.remembered(self.samples_stage, "rows-of-samples", make, 8 * self.m)
        return copies

    def by_row(self, values: AnyArray) -> AnyArray:
        """What is known of each sample, for each row of the input; -1, NaN or False for one that is left out."""
        place = self.place()
        if place is None:
            return values
        found = values[place]
        if (place < 0).any():
            found[place < 0] = {"f": np.nan, "i": -1}.get(values.dtype.kind, 0)
        return found

    def clustered_rows(self) -> NDArray[np.integer]:
        """Rows of the input that were clustered, ascending, where some may not have been."""
        return np.flatnonzero(np.asarray(self.read("ingest", "distinct", "place")) >= 0)

    def receipt(self, stage: str, part: int | str) -> Receipt | None:
        """The receipt of a part, or None."""
        return self.store.receipt(self.folders[stage], part_name(part))

    def remembered(self, stage: str, name: str, make: Callable[[], Any], size: int, seat: str = "") -> Any:
        """Something made from a stage's arrays once in this process, as long as the cache holds it.

        What every task of a stage looks at is given a seat there.
        """
        name = f"{self.folders[stage]}/{name}"
        if isinstance(self.store, MemoryStore):  # kept with the store, so that it goes when the store goes
            with self.store.making:
                if name not in self.store.made:
                    self.store.made[name] = make()
                return self.store.made[name]
        return cache.get((self.store.location, self.generation, name), make, lambda _: size, self.kept, seat)

    def rows_of(
        self, stage: str, name: str, samples: NDArray[np.integer], prefix: str = "", *, remember: bool = True
    ) -> AnyArray:
        """Rows of a partitioned array for sorted samples, read partition by partition."""
        owners, read = self.owner(samples), self.read if remember else self.fetch
        parts = [
            read(stage, f"{prefix}{part_name(int(b))}", name)[samples[owners == b] - self.bounds[b]]
            for b in np.unique(owners)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def part_name(part: int | str) -> str:
    """The name of a partition's part; other parts have names of their own."""
    return f"p{part:06d}" if isinstance(part, int) else part
