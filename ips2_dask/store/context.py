"""The context of a task: the store, the parameters, the partitions, and the facts of earlier stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ips2_dask.kernels.metrics import METRICS, Metric
from ips2_dask.params import Params
from ips2_dask.plan.choices import Choices
from ips2_dask.store.base import MemoryStore, Store
from ips2_dask.store.cache import cache
from ips2_dask.store.integrity import Facts, Receipt, missing_receipt
from ips2_dask.store.remote import is_remote, side_by_side
from ips2_dask.typing import AnyArray, Int32, Int64, Integer

Value = TypeVar("Value")

DISTINCT, PLACE, ORDER, SAMPLES = "distinct-", "place-", "order-", "samples-"
"""Prefixes of the parts that say which rows the samples are: of the ingest's partitions of distinct samples, of the
input's partitions, and of a sharded run's partitions; and of those with the samples of these."""

READ_AHEAD = 8
"""Partitions of a remote store that a task reads at a time for rows of many of them: a few times its own in memory."""


@dataclasses.dataclass
class Context:
    """Everything that a task may read."""

    store: Store
    params: Params
    bounds: tuple[int, ...]  # partition b holds the samples bounds[b] .. bounds[b + 1] - 1
    n_features: int
    choices: Choices
    folders: dict[str, str] = dataclasses.field(default_factory=dict)  # of each stage, named by its key
    facts: dict[str, Facts] = dataclasses.field(default_factory=dict)  # of each finished stage
    threads: int = 1  # that one task may use
    source: Any = None  # the input, for the ingest stage
    generation: int = 0  # grows when a stage that was computed again has given other bytes; part of the cache's keys
    there: frozenset[str] | None = None  # parts of the stage that may be finished; None: each task looks for its own

    @property
    def m(self) -> int:
        """Number of samples."""
        return self.bounds[-1]

    @property
    def n_partitions(self) -> int:
        """Number of partitions."""
        return len(self.bounds) - 1

    @property
    def metric(self) -> Metric:
        """The metric of the run: how its rows are prepared and its distances measured."""
        return METRICS[self.params.metric]

    @property
    def exponent(self) -> int:
        """The e of the power of two 2^e that samples were divided by."""
        return int(self.facts.get("ingest", {}).get("exponent", 0))

    @property
    def unit(self) -> float:
        """The power of two that distances were divided by: that of the samples, or 1 for a metric without a unit."""
        return 1.0 if self.metric.about_zero else 2.0**self.exponent

    def span(self, b: int) -> tuple[int, int]:
        """First sample of partition b, and one past its last."""
        return self.bounds[b], self.bounds[b + 1]

    def owner(self, samples: Integer) -> Int64:
        """The partition of each sample."""
        return np.searchsorted(self.bounds, samples, side="right") - 1

    def read(self, stage: str, part: int | str, name: str) -> AnyArray:
        """One stored array of an earlier stage; kept in the cache. Do not write into it."""
        folder, part = self.folders[stage], part_name(part)
        if isinstance(self.store, MemoryStore) and self.store.holds(folder, part):
            return self.store.read(folder, part, name)
        key = (self.store.location, self.generation, folder, part, name)
        return cache.get(key, lambda: self.store.read(folder, part, name), lambda a: a.nbytes)

    def fetch(self, stage: str, part: int | str, name: str) -> AnyArray:
        """One stored array, read past the cache: an array that is needed once shall displace none that is needed again.

        From a remote store it is cached all the same, since another task would have to transfer it again.
        """
        if self.store.location is not None and is_remote(self.store.location):
            return self.read(stage, part, name)
        return self.store.read(self.folders[stage], part_name(part), name)

    def read_all(self, stage: str, name: str, prefix: str = "") -> AnyArray:
        """A stage's array over all partitions, one after the other, past the cache."""
        names = [prefix + part_name(b) for b in range(self.n_partitions)]
        parts = list(self.store.read_many(self.folders[stage], names, name))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def adopt(self, facts: Facts) -> None:
        """Take the partitions of a stage that made new ones: a sharded graph renumbers the samples."""
        if "bounds" in facts:
            self.bounds = tuple(facts["bounds"])

    # ---- the samples

    @property
    def _is_sharded(self) -> bool:
        """Whether a sharded graph has renumbered the samples."""
        return "bounds" in self.facts.get("neighbors", {})

    @property
    def samples_stage(self) -> str:
        """The stage whose ``samples`` are in the numbering of the partitions."""
        return "neighbors" if self._is_sharded else "ingest"

    def samples_of(self, b: int) -> AnyArray:
        """X of partition b: (rows, f) float32, cached."""
        return self.read("neighbors", SAMPLES + part_name(b), "samples") if self._is_sharded else self.ingested(b)

    def ingested(self, b: int) -> AnyArray:
        """X of partition b of the ingest, (rows, f) float32, cached; a sharded graph replaces these partitions."""
        return self.read("ingest", (DISTINCT if self.merged else "") + part_name(b), "samples")

    def samples(self, rows: Integer) -> AnyArray:
        """X at sorted samples: (n, f) float32."""
        prefix = SAMPLES if self._is_sharded else DISTINCT if self.merged else ""
        return self.rows_of(self.samples_stage, "samples", rows, prefix)

    def all_samples(self) -> AnyArray:
        """The whole of X in this process, cached."""
        size = 4 * self.m * self.n_features
        return self.cached(self.samples_stage, "X", lambda: self.samples(np.arange(self.m)), size, "samples")

    # ---- which rows of the input they are
    #
    # Where rows are fewer samples (`merged`), the ingest stores ``firsts``, ``copies`` and ``place`` by partition. A
    # sharded graph stores the ``order`` of its samples by partition, and ``firsts`` and ``copies`` in that order too.

    @property
    def merged(self) -> bool:
        """Whether the samples are fewer than the rows of the input: equal rows are one, or incomplete ones none."""
        return "bounds" in self.facts.get("ingest", {})

    @property
    def n_rows(self) -> int:
        """Number of rows of the input."""
        return int(self.facts["ingest"]["row_bounds"][-1]) if self.merged else self.m

    @property
    def _row_parts(self) -> tuple[str, str]:
        """Stage and prefix of the parts that hold ``firsts`` and ``copies`` of a partition's samples."""
        return ("neighbors", ORDER) if self._is_sharded else ("ingest", DISTINCT)

    def _of_samples(self, name: str) -> AnyArray:
        """``firsts``, ``copies`` or ``order`` of all samples: (m,), cached."""
        stage, prefix = self._row_parts
        return self.cached(stage, f"{name}-of-samples", lambda: self.read_all(stage, name, prefix), 8 * self.m)

    def order(self) -> Int32 | None:
        """The user's number of each sample, or None where that is the run's own: (m,) int32.

        That of the first of equal rows, where they are one sample.
        """
        if self.merged:
            return self._of_samples("firsts")
        return self._of_samples("order") if self._is_sharded else None

    def user_numbers(self, b: int) -> Integer:
        """The user's number of each sample of partition b: (rows,), see `order`."""
        if not self.merged:
            return self.distinct_numbers(b)
        stage, prefix = self._row_parts
        return np.asarray(self.read(stage, prefix + part_name(b), "firsts"))

    def distinct_numbers(self, b: int) -> Integer:
        """The number of each sample of partition b among the distinct ones, as the ingest has them: (rows,)."""
        if not self._is_sharded:
            return np.arange(*self.span(b))
        return np.asarray(self.read("neighbors", ORDER + part_name(b), "order"))

    def place(self) -> Integer | None:
        """The run's number of each row of the input, -1 for one left out, or None where that is its own: (rows,)."""
        distinct = self.distinct_places() if self.merged else None
        if not self._is_sharded:
            return distinct
        rank = np.argsort(self._of_samples("order"))
        return rank if distinct is None else np.where(distinct < 0, -1, rank[distinct])

    def distinct_places(self, low: int = 0, high: int | None = None) -> Int32:
        """The distinct sample that rows low .. high - 1 of the input are where rows are merged, -1 for none."""
        bounds, folder = np.asarray(self.facts["ingest"]["row_bounds"]), self.folders["ingest"]
        high = int(bounds[-1]) if high is None else high
        found = [np.empty(0, np.int32)]
        for b in range(int(np.searchsorted(bounds, low, "right")) - 1, int(np.searchsorted(bounds, high))):
            first, last = max(low, int(bounds[b])), min(high, int(bounds[b + 1]))
            rows = (first - int(bounds[b]), last - int(bounds[b]))
            found.append(self.store.read_rows(folder, PLACE + part_name(b), "place", *rows))
        return np.concatenate(found)

    def copies(self) -> Int64 | None:
        """How many rows of the input each sample stands for, or None where it is one: (m,) int64."""
        return self._of_samples("copies").astype(np.int64) if self.merged else None

    def copies_at(self, samples: Integer) -> Integer:
        """How many rows ascending samples stand for, where rows are merged: (samples,) int32."""
        stage, prefix = self._row_parts
        return self.rows_of(stage, "copies", samples, prefix)

    def by_row(self, values: AnyArray) -> AnyArray:
        """Values of samples for each row of the input; -1, NaN or False for a row that is left out."""
        place = self.place()
        if place is None:
            return values
        by_row = values[place]
        if (place < 0).any():
            by_row[place < 0] = {"f": np.nan, "i": -1}.get(values.dtype.kind, 0)
        return by_row

    # ---- receipts, and values made from arrays

    def receipt(self, stage: str, part: int | str) -> Receipt | None:
        """The receipt of a part, or None."""
        return self.store.receipt(self.folders[stage], part_name(part))

    def finished(self, stage: str, part: int | str) -> Receipt:
        """The receipt of a part of a stage that is finished; raises ``Damaged`` where it is missing or damaged."""
        receipt, folder, name = self.receipt(stage, part), self.folders[stage], part_name(part)
        if receipt is None:
            raise missing_receipt(folder, name).error(str(self.store.location))
        return receipt

    def receipts(self, stage: str, parts: Iterable[str]) -> dict[str, Receipt]:
        """The receipts of those parts that are finished, by name; those that this process has seen are taken as known.

        They say what a part holds, and what its task has told. Whether a part is still there, `receipt` says.
        """
        return self.store.receipts(self.folders[stage], parts, cached=True)

    def cache_receipts(self, stage: str, written: Iterable[Mapping[str, Receipt]]) -> None:
        """Cache the receipts, by name, of parts that tasks have written besides their own, or without one."""
        for receipts in written:
            for part, receipt in receipts.items():
                self.store.cache_receipt(self.folders[stage], part, receipt)

    def cached(self, stage: str, name: str, make: Callable[[], Value], size: int, pin: str = "") -> Value:
        """A value made from a stage's arrays, made once in this process for as long as the cache keeps it.

        ``name`` is the value's within the stage, ``size`` its bytes. What every task of a stage looks at is pinned in
        the cache under a name.
        """
        kept = self.store.made if isinstance(self.store, MemoryStore) else cache
        return kept.get((self.store.location, self.generation, self.folders[stage], name), make, lambda _: size, pin)

    def rows_of(
        self,
        stage: str,
        name: str,
        samples: Integer,
        prefix: str = "",
        *,
        remember: bool = True,
        bounds: Sequence[int] | None = None,
    ) -> AnyArray:
        """Rows of a partitioned array for sorted samples, partition by partition; a few at a time behind a URL.

        ``bounds``: of other parts than the partitions.
        """
        bounds, read = self.bounds if bounds is None else bounds, self.read if remember else self.fetch
        cuts = np.searchsorted(samples, bounds)

        def rows(b: int) -> AnyArray:
            return read(stage, f"{prefix}{part_name(b)}", name)[samples[cuts[b] : cuts[b + 1]] - bounds[b]]

        wanted, remote = np.flatnonzero(np.diff(cuts)).tolist(), is_remote(self.store.location or "")
        parts = list(side_by_side(rows, wanted, READ_AHEAD) if remote else map(rows, wanted))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def part_name(part: int | np.integer | str) -> str:
    """The name of the part of a partition, by its number; other parts have names already."""
    return part if isinstance(part, str) else f"p{part:06d}"
