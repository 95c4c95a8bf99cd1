"""The package's public names: each is found, and importing the package alone loads nothing that takes time."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ips2_dask

HEAVY = ("numpy", "scipy", "sklearn", "numba", "dask", "distributed", "zarr", "pandas", "matplotlib")


@pytest.mark.slow
@pytest.mark.parametrize("name", ips2_dask.__all__)
def test_every_name_is_found_in_a_process_that_asked_for_no_other(name: str) -> None:
    code = f"import ips2_dask; ips2_dask.{name}; from ips2_dask import {name}; assert {name!r} in dir(ips2_dask)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_all_names_come_with_a_star() -> None:
    found: dict[str, object] = {}
    exec("from ips2_dask import *", found)
    assert set(ips2_dask.__all__) <= found.keys()


def test_a_name_that_there_is_not_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="clustr"):
        ips2_dask.clustr  # noqa: B018


def test_the_package_alone_loads_nothing_heavy() -> None:
    code = f"import sys, ips2_dask; print(*(set({HEAVY!r}) & sys.modules.keys()))"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    assert said.stdout.split() == []
