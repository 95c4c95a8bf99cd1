"""A sharded run in chunks on two workers, in a process of its own, whose driver alone goes to a store by a slow way.

``python tests/cluster/latency.py X.npy PARTITIONS PLACE SLOW_URL`` prints when each stage began and ended, as JSON:
seconds of the monotonic clock, which all processes of a machine share. Workers read the file too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from request_table import by_no_clock

import ips2_dask
from ips2_dask import Params, Resources
from ips2_dask.progress import Progress

Spans = dict[str, tuple[float, float]]
"""Beginning and end of each stage."""


class _Watch(Progress):
    def __init__(self) -> None:
        self._begun = 0.0
        self.spans: Spans = {}

    def begin(self, stage: str) -> None:
        """Note the time."""
        self._begun = time.monotonic()

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        """Note the time."""
        self.spans[stage] = (self._begun, time.monotonic())


def run(source: str, partitions: int, place: str, slow_url: str) -> Spans:
    """Run in this process, and return the spans of the stages."""
    watch, m = _Watch(), len(np.load(source, mmap_mode="r"))
    params = Params(n_clusters=5, shards=partitions)
    resources = Resources(partition_rows=-(-m // partitions), vectors="chunked")
    with ips2_dask.cluster("local", workers=2) as client, by_no_clock():
        client.wait_for_workers(2, timeout=120)
        os.environ["AWS_ENDPOINT_URL"] = slow_url  # workers have started without it
        ips2_dask.run(source, params, resources, store=place, client=client, progress=watch)
    return watch.spans


def spans_of(source: str, partitions: int, place: str, slow_url: str) -> Spans:
    """Run in another process, and return the spans of the stages."""
    command = [sys.executable, __file__, source, str(partitions), place, slow_url]
    environment = {**os.environ, "PYTHONPATH": str(Path(ips2_dask.__file__).parents[1])}  # of this checkout
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: Spans = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])))
