"""Every public class and function shows an example that is true, and is called like no module."""

from __future__ import annotations

import doctest
import pkgutil
from typing import Any

import pytest

import ips2_dask
import ips2_dask.clusters


@pytest.mark.parametrize("thing", [ips2_dask.IPS2, ips2_dask.PPC, ips2_dask.run, ips2_dask.open_run])
def test_the_example_of_a_public_name_is_true(thing: Any) -> None:
    found = [test for test in doctest.DocTestFinder(recurse=False).find(thing) if test.examples]
    assert found
    for test in found:
        assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize(("package", "modules"), [(ips2_dask, {"plots"}), (ips2_dask.clusters, set())])
def test_no_public_name_is_that_of_a_module(package: Any, modules: set[str]) -> None:
    """Else it is the module or the thing, whichever was imported first."""
    found = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert found & set(package.__all__) == modules
