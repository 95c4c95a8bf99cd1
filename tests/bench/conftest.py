"""Benchmarks in these tests are made beside other tests: the machine is watched for a moment only, and may be busy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ips2_dask.bench import activity


@pytest.fixture(scope="session", autouse=True)
def _any_machine() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:  # for fixtures of modules as well
        patch.setattr(activity, "SECONDS", 0.01)
        patch.setattr(activity, "MOST", float("inf"))
        yield
