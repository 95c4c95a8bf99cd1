"""The cache of a process is bounded, and what every task of a stage looks at is not read again by each of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ips2_dask import Params, Resources, run
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.stages import fuse
from ips2_dask.store.base import TaskResult
from ips2_dask.store.cache import Cache, tidy, when_given_back
from ips2_dask.store.cache import cache as process_cache
from ips2_dask.store.context import Context
from ips2_dask.store.zarr_store import ZarrStore


def names_in(cache: Any) -> set[str]:
    return {key[0] for key in (*cache._entries, *(key for key, _ in cache._pins.values()))}


def put(cache: Any, name: str, size: int, pin: str = "") -> None:
    cache.get((name,), lambda: name, lambda _: size, pin)


def test_what_was_used_least_lately_goes_first() -> None:
    cache = Cache()
    cache.limit = 10
    for name in "abc":
        put(cache, name, 4)
    assert names_in(cache) == {"b", "c"}
    put(cache, "b", 4)
    put(cache, "d", 4)
    assert names_in(cache) == {"b", "d"}


def test_bytes_are_counted_once_whatever_is_pinned_under_which_name() -> None:
    cache = Cache()
    cache.limit = 30
    rng = np.random.default_rng(0)
    for _ in range(2000):
        name, pin = f"{rng.integers(40)}", ("", "", "lists", "rows")[rng.integers(4)]
        put(cache, name, 1 + int(name) % 7, pin)
        assert cache._bytes == sum(size for _, size in cache._entries.values()) <= 30
        assert name in names_in(cache)
        if rng.random() < 0.02:
            cache.unpin_all()
    assert not cache._making
    cache.clear()
    assert cache._bytes == 0


def test_what_is_pinned_stays_until_another_takes_its_name() -> None:
    cache = Cache()
    cache.limit = 10
    put(cache, "graph", 100, "lists")
    for name in "abc":
        put(cache, name, 4)
    assert names_in(cache) == {"graph", "b", "c"}
    put(cache, "other", 8, "lists")
    assert names_in(cache) == {"other", "b", "c"}
    cache.unpin_all()
    assert names_in(cache) == {"b", "c"}


def test_what_is_too_large_is_returned_and_goes_with_the_next() -> None:
    cache = Cache()
    cache.limit = 10
    put(cache, "large", 11)
    assert names_in(cache) == {"large"}
    put(cache, "a", 4)
    assert names_in(cache) == {"a"}


@pytest.mark.slow
def test_a_graph_larger_than_the_cache_is_read_once_for_all_tasks_of_a_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_cache, "limit", 1)
    reads: Counter[str] = Counter()
    plain = ZarrStore.read

    def counted(store: ZarrStore, folder: str, part: str, name: str, *rows: Any) -> Any:
        reads[f"{folder.partition('-')[0]} {name}"] += 1
        return plain(store, folder, part, name, *rows)

    monkeypatch.setattr(ZarrStore, "read", counted)
    X = np.random.default_rng(9).normal(size=(200, 4))
    params = Params(n_clusters=3, fusion="normalized")
    found = []
    for parts in (4, 8):
        reads.clear()
        run(X[: 25 * parts], params, Resources(partition_rows=25, vectors="in-core"), store=tmp_path / str(parts))
        found.append(dict(reads))
    for few, many in zip(*([r[f"neighbors {name}"] for name in ("indices", "distances")] for r in found), strict=True):
        assert many == 2 * few
        assert few <= 5 * 4  # of each of four partitions once in a stage, and twice where two kinds of tasks read it


def test_row_sums_are_of_the_samples_of_their_partition_and_gone_when_u_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(10)
    X = rng.normal(size=(100, 3)) + 100 * np.repeat(np.arange(5), 20)[:, None]
    shapes, row_sums = [], fuse.row_sums

    def counted(context: Context, b: int) -> TaskResult:
        arrays, facts = row_sums(context, b)
        shapes.append(arrays["row_sums"].shape)
        return arrays, facts

    monkeypatch.setattr(fuse, "row_sums", counted)
    run(X, Params(n_clusters=5, fusion="normalized"), Resources(partition_rows=20), store=tmp_path)
    assert shapes == [(20, 2)] * 5
    store = ZarrStore(str(tmp_path))
    (folder,) = (name for name in store.stage_folders() if name.startswith("fuse"))
    assert not [part for part in store.parts(folder) if part.startswith(("shares-", "sums-"))]


def test_who_asked_is_called_whenever_memory_is_given_back() -> None:
    called: list[int] = []
    before = when_given_back(lambda: called.append(1))
    tidy()
    assert when_given_back(before) is not None
    tidy()
    assert called == [1]


def kept(take: bool) -> bool:
    """On a worker: whether its process keeps memory, after it was given an array to keep if it shall."""
    if take:
        process_cache.get(("a",), lambda: np.zeros(9), lambda a: a.nbytes)
    return bool(process_cache._entries)


def test_workers_give_their_memory_back_when_they_are_told_to(dask_executor: DaskExecutor) -> None:
    client = dask_executor.client
    assert all(client.run(kept, True).values())
    dask_executor.free_memory()
    assert not any(client.run(kept, False).values())
