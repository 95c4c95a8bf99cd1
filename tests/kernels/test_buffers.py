"""Memory that is used again belongs to one array at a time."""

import gc
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.kernels import buffers
from ips2_dask.store.cache import cache

SHAPE = (1 << 10, 1 << 9)


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
