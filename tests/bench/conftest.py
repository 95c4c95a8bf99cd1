"""Benchmarks in these tests are made beside other tests: the machine is watched for a moment only, and may be busy."""

from __future__ import annotations

import pytest

from ips2_dask.bench import activity


@pytest.fixture(autouse=True)
def _any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "SECONDS", 0.01)
    monkeypatch.setattr(activity, "MOST", float("inf"))
