"""Many requests to a store at the same time: a thread waits for each, a few threads at once."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

WIDTH = 32
"""Requests of one process at a time: an object store answers each after some 25 ms, however many are under way."""


def side_by_side(function: Callable[[Item], Result], items: Sequence[Item], width: int = WIDTH) -> Iterator[Result]:
    """The results of a function that mostly waits, in the order of the items.

    At most ``width`` calls run at once, and at most as many results wait for the caller, who may so add up arrays
    without ever holding all of them.

    Parameters
    ----------
    function : callable
        Safe to be called from several threads.
    items : sequence
    width : int

    Yields
    ------
    object
        The result of each item.

    Raises
    ------
    Exception
        The first error in the order of the items. Calls that have begun end, and no other one begins.
    """
    if len(items) < 2:
        yield from map(function, items)
        return
    waiting: collections.deque[Future[Result]] = collections.deque()
    with ThreadPoolExecutor(min(width, len(items)), thread_name_prefix="ips2-store") as pool:
        try:
            for item in items:
                if len(waiting) == width:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(function, item))
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
