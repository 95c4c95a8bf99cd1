"""What several test files are given: small data sets, and a real local cluster."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from harness import DATA, Array
from hypothesis import settings

from ips2_dask import Resources, clusters
from ips2_dask.executors.base import Executor, SerialExecutor
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.pipeline.compile_kernels import warm

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

# a test that compiles a kernel, or meets a busy machine, is not a slow test; and what passed once passes again;
# `--hypothesis-profile ci` tries more
settings.register_profile("ips2", deadline=None, derandomize=True, max_examples=15)
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("ips2")


BEGUN = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options by which `.ci/run` runs a part of the slow and the long tests."""
    parser.addoption("--part", metavar="N/M", help="of the tests that are chosen those of part N modulo M alone")
    parser.addoption("--seconds", metavar="S", type=float, help="skip tests that have not begun after so many seconds")


def pytest_configure(config: pytest.Config) -> None:
    """Compile what every run needs, once, before processes start that would each compile it at the same time."""
    options = config.option
    if getattr(options, "numprocesses", 0) and not options.collectonly and not hasattr(config, "workerinput"):
        warm()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give slow tests more time, and keep the tests of one part. A test's name alone decides its part.

    N decides the order of files too: otherwise a time limit (`--seconds`) would always leave out the same ones.
    """
    for item in items:
        if any(map(item.get_closest_marker, ("slow", "faults", "long"))) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(1800))  # a busy machine may take ten times as long
    part = config.getoption("--part")
    if part is None:
        return
    number, parts = (int(word) for word in part.split("/"))
    kept = [item for item in items if zlib.crc32(item.nodeid.encode()) % parts == number % parts]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = sorted(kept, key=lambda item: zlib.crc32(f"{number} {item.path.name}".encode()))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave a test out that begins too late."""
    seconds = item.config.getoption("--seconds")
    if seconds is not None and time.monotonic() - BEGUN > seconds:
        pytest.skip(f"not begun after {seconds:g} s: left out")


@pytest.fixture(autouse=True)
def _memory_limit() -> Iterator[None]:
    """No test leaves this process a limit of memory, which later tests would fail of."""
    if resource is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    yield
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.fixture(params=sorted(DATA))
def any_data(request: pytest.FixtureRequest) -> Array:
    """Each of the small data sets in turn, (m, f)."""
    return DATA[request.param]()


@pytest.fixture
def blobs() -> Array:
    """Three groups that overlap a little, (60, 4)."""
    rng = np.random.default_rng(16)
    return rng.normal(size=(60, 4)) + 2.2 * rng.integers(0, 3, size=(60, 1))


@pytest.fixture(scope="session")
def dask_executor() -> Iterator[DaskExecutor]:
    """A real local cluster of two processes."""
    with clusters.executor(Resources(n_workers=2)) as executor:
        yield executor


@pytest.fixture(params=["serial", "dask"])
def executor(request: pytest.FixtureRequest) -> Executor:
    """The serial executor, then the local cluster."""
    if request.param == "serial":
        return SerialExecutor()
    found: Executor = request.getfixturevalue("dask_executor")
    return found


@pytest.fixture(autouse=True)
def _settings_of_users() -> Iterator[None]:
    """No test leaves this process other variables of the package, by which later tests would do something else."""
    before = _own_variables()
    yield
    assert _own_variables() == before


def _own_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("IPS2_")}
