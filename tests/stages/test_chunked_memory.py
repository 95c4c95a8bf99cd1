"""Block vectors in chunks: what a product needs is read once by each worker, however small its memory for the rest."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ips2_dask import Params, Resources, run
from ips2_dask.datasets import curved_gaussians
from ips2_dask.executors.base import SerialExecutor
from ips2_dask.stages import block_operator
from ips2_dask.stages.block_space import ChunkedSpace
from ips2_dask.store.cache import Cache
from ips2_dask.store.zarr_store import ZarrStore


def test_later_products_read_nothing_though_nothing_else_would_be_cached(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    X = curved_gaussians(4000, 8, 4, 0)[0]
    done = run(
        X, Params(n_clusters=4), store=tmp_path / "run", resources=Resources(partition_rows=250, vectors="chunked")
    )
    cache = Cache()
    cache.limit = 0
    monkeypatch.setattr("ips2_dask.store.context.cache", cache)
    reads: Counter[tuple[str, str]] = Counter()
    read = ZarrStore.read

    def counted(store: ZarrStore, folder: str, part: str, name: str) -> Any:
        reads[part, name] += 1
        return read(store, folder, part, name)

    monkeypatch.setattr(ZarrStore, "read", counted)
    context = dataclasses.replace(done._context)
    space = ChunkedSpace(context, SerialExecutor(), 16)
    assert len(block_operator.chunk_partitions(context)) >= 4
    first = space.apply(space.deflate(space.random(16, 0)))
    assert reads
    reads.clear()
    again = space.apply(space.deflate(space.random(16, 0)))
    assert not reads
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
