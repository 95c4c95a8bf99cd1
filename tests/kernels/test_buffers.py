"""Memory that is used again belongs to one array at a time, and what is freed goes back to the system."""

import numpy as np

from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.kernels import buffers
from ips2_dask.store.cache import cache

SHAPE = (1 << 10, 1 << 9)


def test_a_block_that_was_given_up_is_used_once_for_one_of_its_shape_and_kind() -> None:
    spare, block = buffers.SpareBlock(), np.ones(SHAPE, np.float32)
    spare.keep(block)
    assert spare.zeros(SHAPE, np.float32) is block
    assert not block.any()
    assert spare.array(SHAPE, np.float32) is not block
    spare.keep(block)
    assert spare.array(SHAPE, np.float64).dtype == np.float64
    spare.keep(np.ones(SHAPE, np.float32).T)
    assert spare.zeros(SHAPE[::-1], np.float32).flags.c_contiguous


def test_who_asked_is_called_whenever_memory_is_given_back() -> None:
    called: list[int] = []
    before = buffers.when_given_back(lambda: called.append(1))
    buffers.tidy()
    assert buffers.when_given_back(before) is not None
    buffers.tidy()
    assert called == [1]


def kept(take: bool) -> bool:
    """On a worker: whether its process keeps memory, after it was given an array to keep if it shall."""
    if take:
        cache.get(("a",), lambda: np.zeros(9), lambda a: a.nbytes)
    return bool(cache._entries)


def test_workers_give_their_memory_back_when_they_are_told_to(dask_executor: DaskExecutor) -> None:
    client = dask_executor.client
    assert all(client.run(kept, True).values())
    dask_executor.free_memory()
    assert not any(client.run(kept, False).values())
