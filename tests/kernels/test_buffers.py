"""Memory that is used again belongs to one array at a time."""

import gc
import os
import pickle
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from harness import at_byte

from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.kernels import buffers
from ips2_dask.store.cache import cache

SHAPE = (1 << 10, 1 << 9)

HEAP = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "268435456", "MALLOC_MMAP_THRESHOLD_": "268435456"}
"""As workers have it: glibc puts arrays of less than 256 MiB into its heap."""

HOLES = """
import psutil
from ips2_dask.kernels import buffers
before = psutil.Process().memory_info().rss
arrays = [buffers.zeros((buffers.MAPPED_BYTES // 8 + 4096 * i, 1), float) for i in range(16)]
held = psutil.Process().memory_info().rss - before
del arrays[::2]
print(held, psutil.Process().memory_info().rss - before)
"""
"""Arrays of unequal size, every second one of which is given up."""


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_that_was_given_up_is_used_again():
    array = buffers.empty(SHAPE, np.float32)
    at = address(array)
    del array
    gc.collect()
    found = [buffers.empty(SHAPE, np.float32) for _ in range(buffers.MAX_FREE)]
    assert at in {address(a) for a in found}


def test_a_view_keeps_the_memory_of_its_array():
    view = buffers.zeros(SHAPE, np.float32)[5:10].T
    others = [buffers.empty(SHAPE, np.float32) for _ in range(2 * buffers.MAX_FREE)]
    for other in others:
        other.fill(7)
    assert not view.any()
    assert not any(np.shares_memory(view, other) for other in others)


def test_arrays_that_live_at_the_same_time_share_nothing_though_threads_make_them():
    def work(seed):
        rng = np.random.default_rng(seed)
        for value in rng.integers(1, 1000, 40):
            array = buffers.empty((int(rng.integers(600, 1200)), 512), np.float32)
            array.fill(value)
            other = buffers.zeros(SHAPE, np.float32)
            if not (array == value).all() or other.any():
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


def test_a_smaller_or_another_kind_of_array_gets_memory_that_fits_it():
    del_me = buffers.empty(SHAPE, np.float64)
    del del_me
    array = buffers.empty((1 << 9, 1 << 10), np.float32)
    array[:] = np.arange(1 << 10)
    assert array.sum() == (1 << 9) * (1 << 9) * ((1 << 10) - 1)
    assert array.flags.c_contiguous
    assert array.flags.writeable


def test_an_array_of_used_memory_survives_a_pickle():
    array = buffers.zeros(SHAPE, np.float32)
    array[3, 4] = 5
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(array, protocol=5)), array)


def test_large_arrays_leave_no_holes():
    found = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True, env=HEAP)
    held, left = map(int, found.stdout.split())
    size = buffers.MAPPED_BYTES
    assert held > 16 * size
    assert left < held - (8 - buffers.MAX_FREE) * size + size / 2


def test_what_was_kept_goes_when_it_is_let_go():
    array = buffers.empty(SHAPE, np.float32)
    del array
    gc.collect()
    assert buffers._free
    buffers.release()
    assert not buffers._free


def test_what_comes_back_late_is_not_kept_until_more_is_asked_for():
    array = buffers.empty(SHAPE, np.float32)
    buffers.release()
    del array
    gc.collect()
    assert not buffers._free
    array = buffers.empty(SHAPE, np.float32)
    del array
    gc.collect()
    assert buffers._free


@pytest.mark.parametrize("begin", [0, 7])
def test_a_few_rows_of_a_message_are_taken_without_a_copy_of_all(begin: int) -> None:
    rows = np.random.default_rng(0).random((1 << 20, 8), np.float32)
    arrived = at_byte(begin, rows)
    assert arrived.flags.aligned == (begin == 0)
    index, out = np.array([5, 0, (1 << 20) - 1], np.int32), np.empty((3, 8), np.float32)
    tracemalloc.start()
    try:
        buffers.take_rows(arrived, index, out)
        # other threads of this process, as those of a cluster of another test, take some memory meanwhile
        assert tracemalloc.get_traced_memory()[1] < rows.nbytes // 8
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(out, rows[index])


def test_fresh_memory_is_not_kept() -> None:
    buffers.tidy()
    buffers.fresh((buffers.MAPPED_BYTES // 8, 1), np.float64)
    buffers.fresh((buffers.MIN_BYTES, 1), np.float64)
    gc.collect()
    assert not buffers._free


def kept(take: bool) -> bool:
    """On a worker: whether its process keeps memory, after a block has come and gone if it shall, or an array."""
    if take:
        buffers.empty(SHAPE, np.float32)
        gc.collect()
        cache.get(("a",), lambda: np.zeros(9), lambda a: a.nbytes)
    return bool(buffers._free) or bool(cache._entries)


def test_workers_give_their_memory_back_when_they_are_told_to(dask_executor: DaskExecutor) -> None:
    client = dask_executor.client
    assert all(client.run(kept, True).values())
    dask_executor.free_memory()
    assert not any(client.run(kept, False).values())
