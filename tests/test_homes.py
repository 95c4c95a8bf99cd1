"""Chunks of block vectors give the same products whoever holds which of them; and who is sent what."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import run_on

from ips2_dask import Params
from ips2_dask.executors.base import SerialExecutor
from ips2_dask.executors.placement import Thing
from ips2_dask.kernels import eigen
from ips2_dask.stages.block_operator import Homes

HOMES = {"one": lambda g: 0, "two by turns": lambda g: g % 2, "two halves": lambda g: int(g > 2), "alone": lambda g: g}


class Settled(SerialExecutor):
    """An executor that says of itself that it is several processes."""

    def __init__(self, home: Any) -> None:
        self.home = home

    def settle(self, things: Sequence[Thing], weights: Sequence[float]) -> list[int]:
        assert len(things) == len(weights) > 3
        return [self.home(g) for g, _ in enumerate(things)]


def test_eigenvectors_do_not_depend_on_who_holds_a_chunk(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(1200, 4)) + 3 * rng.integers(0, 3, size=(1200, 1))
    found = {
        name: run_on(Settled(home), X, Params(n_clusters=3), 120, tmp_path / name, "chunked")
        for name, home in HOMES.items()
    }
    assert found["one"].report()["products"] > 1
    for name in HOMES:
        np.testing.assert_array_equal(found[name].eigenvectors, found["one"].eigenvectors)


@pytest.fixture
def homes() -> Homes:
    shared = np.array([[9, 2, 0, 3], [2, 9, 0, 4], [0, 0, 9, 5], [3, 4, 5, 9]])
    return Homes((0, 0, 1, 1), shared)


def test_what_the_chunks_of_a_worker_need_is_one_piece(homes: Homes) -> None:
    assert homes.near(0) == [1, 3]
    assert homes.takers(3, 0) == [0, 1]
    assert homes.takers(0, 1) == [3]
    assert homes.takers(2, 0) == []
    assert (homes.place(0, 3), homes.place(1, 3)) == (slice(0, 3), slice(3, 7))


class Late(SerialExecutor):
    """An executor that notes what has been asked for and what has been waited for."""

    def __init__(self) -> None:
        self.noted: list[str] = []

    def submit(
        self, name: str, function: Callable[..., Any], *arguments: Any, near: Any = None, first: bool = False
    ) -> Any:
        self.noted.append(name.rpartition("-")[0])
        return super().submit(name, function, *arguments, near=near, first=first)

    def results(self, handles: Sequence[Any]) -> list[Any]:
        self.noted.append("waited")
        return super().results(handles)


def test_a_panel_of_chunks_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(eigen.PANELS_ABOVE, "chunked", 0)
    X = np.random.default_rng(5).normal(size=(600, 4))
    executor = Late()
    run_on(executor, X, Params(n_clusters=3), 120, tmp_path / "run", "chunked")
    told = " ".join(name for name in executor.noted if name not in ("eigen-take", "share-homes"))
    told = re.sub(r"(\S+)( \1)+", r"\1", told)  # each kind of tasks once
    panels = re.findall(r"eigen-columns (eigen-product eigen-nothing waited )+eigen-side_by_side", told)
    assert panels, told
