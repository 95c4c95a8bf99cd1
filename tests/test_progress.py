"""Progress: what a run tells while it works, and how a terminal, a log and a machine are told of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from ips2_dask import Params, Resources, run
from ips2_dask.pipeline import Silent


class Noted(Silent):
    """Progress that keeps the numbers it is told."""

    def __init__(self) -> None:
        self.facts: list[tuple[str, dict[str, Any]]] = []

    def note(self, stage: str, facts: Mapping[str, Any]) -> None:
        self.facts.append((stage, dict(facts)))


@pytest.mark.parametrize("vectors", ["in-core", "chunked"])
def test_the_solver_tells_each_cycles_residual_and_the_tolerance(vectors: str) -> None:
    X = np.random.default_rng(3).normal(size=(300, 4))
    noted = Noted()
    found = run(X, Params(n_clusters=3, tol=1e-5), Resources(vectors=vectors, partition_rows=150), progress=noted)
    assert {stage for stage, _ in noted.facts} == {"eigen"}
    told = [facts for _, facts in noted.facts]
    history = found._context.facts["eigen"]["history"]
    assert told == [{**entry, "tol": 1e-5} for entry in history]
    assert told[-1]["residual"] <= 1e-5 < told[0]["residual"]
