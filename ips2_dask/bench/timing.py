"""Seconds of several actions measured by turns, so that a machine that is busy for a while is busy for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


def by_turns(actions: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each action, ``repeats`` times, after one that is not counted."""
    for action in actions.values():
        action()
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeats):
        for name, action in actions.items():
            begun = time.perf_counter()
            action()
            seconds[name].append(time.perf_counter() - begun)
    return seconds
