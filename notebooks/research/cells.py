"""How many members a shard of the sample graph has: seconds and recall by kinds of data, for `SHARD_MEMBERS` of plans.

Each set is searched with shards of several sizes, everything else as a run does it: where the recall that is measured
is below its promise, the graph is refined, which counts.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Sequence

import numpy as np
from known_sets import labelled_data, measuring, script

from ips2_dask.bench.graph import QUIET, in_memory
from ips2_dask.bench.harness import Record
from ips2_dask.datasets import curved_gaussians
from ips2_dask.executors.base import SerialExecutor
from ips2_dask.stages import sharding
from ips2_dask.typing import Float32

COLUMNS = ("data", "m", "f", "members", "seconds", "recall", "times")
SETS = ("mnist", "curved-300000x64", "curved-100000x192", "curved-300000x16", "noise-100000x16", "noise-200000x8")
MEMBERS = (1024, 1536, 2048, 3072, 4096)
NEIGHBORS = 6


def samples(name: str, seed: int) -> Float32:
    """A set of `labelled_data`, or generated: ``curved-MxF``, or ``noise-MxF`` without any clusters."""
    kind, _, shape = name.partition("-")
    if kind not in ("curved", "noise"):
        return np.asarray(labelled_data(name).X, np.float32)
    m, f = map(int, shape.split("x"))
    return (
        curved_gaussians(m, f, 20, seed)[0]
        if kind == "curved"
        else np.random.default_rng(seed).normal(size=(m, f)).astype(np.float32)
    )


def measure(names: Sequence[str], seed: int = 0) -> Iterator[Record]:
    """A record for each set and size of a shard; ``times`` is its time over that of the fastest."""
    for name in names:
        X, found = samples(name, seed), []
        for members in MEMBERS:
            with measuring():
                context = in_memory(X, NEIGHBORS)
                n_shards = math.ceil(2 * context.m / members)
                context.choices = dataclasses.replace(context.choices, n_shards=n_shards, exact_after=False)
                begun = time.perf_counter()
                facts, _ = sharding.run(context, SerialExecutor(), QUIET)
                seconds = time.perf_counter() - begun
            shape: Record = {"data": name, "m": context.m, "f": X.shape[1], "members": members}
            found.append({**shape, "seconds": seconds, "recall": facts["recall"]})
        fastest = min(float(str(one["seconds"])) for one in found)
        yield from ({**one, "times": float(str(one["seconds"])) / fastest} for one in found)


if __name__ == "__main__":
    script(measure, COLUMNS, SETS)
