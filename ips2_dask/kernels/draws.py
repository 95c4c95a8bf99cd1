"""Draws of samples by a hash of their number: whoever holds some samples knows which of them are drawn, on its own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ips2_dask.typing import UInt64


def hashes(numbers: NDArray[np.integer], seed: int, purpose: int) -> UInt64:
    """64 bits for each number, as good as random: SplitMix64 (Steele et al. 2014) from a start that the seed gives.

    ``numbers`` (n,): not negative; ``purpose``: draws for another purpose are others.
    """
    start = np.uint64(np.random.SeedSequence([seed, purpose]).generate_state(1, np.uint64)[0])
    return mixed(np.asarray(numbers).astype(np.uint64), start)


def mixed(numbers: UInt64, start: np.uint64) -> UInt64:
    """The outputs of SplitMix64 at these steps (n,) from a start."""
    with np.errstate(over="ignore"):
        state = start + (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(state ^ (state >> np.uint64(31)))


def among(hashed: UInt64, wanted: float, total: int) -> NDArray[np.bool_]:
    """Which of the hashes are in a draw of about ``wanted`` of ``total``; a smaller draw is a part of a larger one."""
    if wanted >= total:
        return np.ones(len(hashed), np.bool_)
    return np.asarray(hashed < np.uint64(wanted / total * 2.0**64))
