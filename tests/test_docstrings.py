"""Every public class and function shows an example, and what it shows is what happens."""

from __future__ import annotations

import doctest
from typing import Any

import pytest

import ips2_dask


@pytest.mark.parametrize("thing", [ips2_dask.IPS2, ips2_dask.PPC, ips2_dask.run, ips2_dask.open_run])
def test_the_example_of_a_public_name_is_true(thing: Any) -> None:
    found = [test for test in doctest.DocTestFinder(recurse=False).find(thing) if test.examples]
    assert found
    for test in found:
        assert doctest.DocTestRunner().run(test).failed == 0
