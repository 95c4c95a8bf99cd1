"""Damaged files of every format, documents of a run and configs are read or refused, and nothing else happens."""

from __future__ import annotations

import pytest
from fuzz import CASES, damage, one
from numpy.random import default_rng

EACH = {"manifest": 4, "mat": 5, "mat-plain": 5, "mat-sparse": 5, "mtx": 5, "mtx.gz": 5}
"""Cases of those that take longer than a few milliseconds; files that SciPy reads take a process each."""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("times", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_what_is_damaged_is_read_or_refused(name: str, times: int) -> None:
    n = EACH.get(name, 20)
    for number in range(0 if times == 1 else n, times * n):
        one(name, number)


def test_a_case_is_the_same_each_time_and_not_the_next_one() -> None:
    data = bytes(range(200))
    first, again, other = (damage(data, default_rng(seed)) for seed in (0, 0, 1))
    assert first == again != other != data
