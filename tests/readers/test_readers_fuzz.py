"""Damaged files of every format, documents of a run and configs are read or refused, and nothing else happens."""

from __future__ import annotations

import pytest
from fuzz import CASES, damage, one
from numpy.random import default_rng

EACH = {"manifest": 8}
"""Cases of those that take longer than a few milliseconds."""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", list(CASES))
def test_what_is_damaged_is_read_or_refused(name: str) -> None:
    for number in range(EACH.get(name, 60)):
        one(name, number)


def test_a_case_is_the_same_each_time_and_not_the_next_one() -> None:
    data = bytes(range(200))
    first, again, other = (damage(data, default_rng(seed)) for seed in (0, 0, 1))
    assert first == again != other != data
