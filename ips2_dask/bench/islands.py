"""`ips2 bench islands`: labels and products where small groups of samples are cut off from all others."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

from ips2_dask.bench.document import Record
from ips2_dask.bench.inputs import CLUSTERS
from ips2_dask.bench.labelled_data import measuring
from ips2_dask.datasets import curved_gaussians
from ips2_dask.kernels.neighbors import nearest_in
from ips2_dask.metrics import scores
from ips2_dask.params import Params
from ips2_dask.pipeline.run import run

COLUMNS = ("groups", "rows", "islands", "outcome", "nmi", "acc", "ari", "products", "embedding_products", "seconds")

SIZE = 200
"""Samples of a group."""

APART = 4.0
"""How far groups are moved, as a multiple of the distance to a fifth neighbour."""


def measure(m: int, f: int, groups: Sequence[int], seed: int = 0) -> Iterator[Record]:
    """A record for each number of groups.

    A group is a sample of `datasets.curved_gaussians` with its nearest others. It is moved along a further feature,
    each group by another multiple, so that it has no edge to other samples and its former neighbours stay the nearest.

    Parameters
    ----------
    m, f : int
        Samples and features.
    groups : sequence of int
    seed : int
    """
    X, true_labels = curved_gaussians(m, f, CLUSTERS, seed)
    chosen = np.random.default_rng(seed).choice(m, max(groups), replace=False)
    members, lengths = nearest_in(X[chosen], np.full(len(chosen), -1), X, SIZE)
    step = APART * float(np.median(lengths[:, 5]))
    for count in (0, *groups):
        moved = np.zeros((m, 1), X.dtype)
        for number, rows in enumerate(members[:count], 1):
            moved[rows] = number * step
        begun = time.perf_counter()
        with measuring():
            result = run(np.concatenate([X, moved], axis=1), Params(n_clusters=CLUSTERS, random_state=seed))
        seconds = time.perf_counter() - begun
        facts = {stage["name"]: stage["facts"] for stage in result.manifest["stages"]}
        yield {
            "m": m,
            "f": f + 1,
            "groups": count,
            "rows": int(np.count_nonzero(moved)),
            "islands": result.report()["islands"]["fused"],
            "outcome": "finished",
            **scores(true_labels, result.labels),
            "products": facts["eigen"]["products"],
            "embedding_products": facts["label"]["embedding_products"],
            "seconds": seconds,
        }
