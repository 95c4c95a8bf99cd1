"""How many requests each stage of a run sends to a loopback S3 server, by the number of partitions.

``python tests/cluster/request_table.py`` prints a table of stages x partitions, and what one more partition takes. The
lock's heartbeats and the states that a solve stores on its way are left out: how many there are follows the clock.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from s3_server import S3, s3_server
from shell import groups

import ips2_dask
from ips2_dask import Params, Resources
from ips2_dask.progress import Progress
from ips2_dask.stages import chunks
from ips2_dask.store import lock
from ips2_dask.store.layout import STAGES

PARTITIONS = (4, 8, 16)

OUTSIDE = "between stages"
"""What is asked for before, between and after them: the lock, the manifest."""

Table = dict[str, list[int]]
"""Requests of each stage, for each number of partitions."""


class _Watch(Progress):
    """Counts requests when a stage begins and when it ends."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count
        self.sent: dict[str, int] = {}

    def begin(self, stage: str) -> None:
        """Count before the stage."""
        self.sent[stage] = -self._count()

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        """Count after it."""
        self.sent[stage] += self._count()


@contextlib.contextmanager
def by_no_clock() -> Iterator[None]:
    """While this lasts, a lock has no heartbeat and a solve stores no state on its way."""
    with mock.patch.object(lock, "HEARTBEAT", 3600.0), mock.patch.object(chunks.Checkpoints, "keep", return_value=None):
        yield


def request_table(
    served: S3, partitions: Sequence[int], rows: int, sharded: bool = False, vectors: str = "auto", client: Any = None
) -> Table:
    """Requests of runs of so many partitions of ``rows`` samples; a ``sharded`` graph has a shard a partition."""
    found: Table = {stage: [] for stage in (*STAGES, OUTSIDE)}
    for parts in partitions:
        watch = _Watch(lambda: len(served.requests()))
        before = len(served.requests())
        resources = Resources(partition_rows=rows, vectors=vectors)
        params = Params(n_clusters=5, shards=parts if sharded else None)
        place = served.url(f"requests-{uuid.uuid4().hex[:8]}")
        with by_no_clock():
            ips2_dask.run(groups(rows * parts), params, resources, store=place, client=client, progress=watch)
        watch.sent[OUTSIDE] = len(served.requests()) - before - sum(watch.sent.values())
        for stage, count in found.items():
            count.append(watch.sent[stage])
    return found


def a_partition(partitions: Sequence[int], counts: Sequence[int]) -> list[float]:
    """What each further partition takes, from one number of them to the next."""
    steps = zip(partitions, partitions[1:], counts, counts[1:], strict=False)
    return [(more - few) / (m - n) for n, m, few, more in steps]


def lines(partitions: Sequence[int], table: Table) -> list[str]:
    """The table as text."""
    total = [sum(column) for column in zip(*table.values(), strict=True)]
    head = f"{'partitions':15}" + "".join(f"{n:7}" for n in partitions) + "   a further one takes"
    return [head] + [
        f"{stage:15}"
        + "".join(f"{n:7}" for n in counts)
        + "   "
        + ", ".join(f"{n:.4g}" for n in a_partition(partitions, counts))
        for stage, counts in {**table, "in all": total}.items()
    ]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--partitions", type=int, nargs="+", default=list(PARTITIONS))
    parser.add_argument("--partition-rows", type=int, default=200)
    parser.add_argument("--sharded", action="store_true", help="a graph by shards, one a partition")
    parser.add_argument("--vectors", choices=["auto", "chunked"], default="auto")
    parser.add_argument("--workers", type=int, help="worker processes; else it is computed in this one")
    asked = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ips2-requests-")))
        served = stack.enter_context(s3_server(folder))
        os.environ.update(served.environment)
        client = stack.enter_context(ips2_dask.cluster("local", workers=asked.workers)) if asked.workers else None
        found = request_table(served, asked.partitions, asked.partition_rows, asked.sharded, asked.vectors, client)
    print(*lines(asked.partitions, found), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
