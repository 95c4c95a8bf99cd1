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
from ips2_dask.executors.placement import Item
from ips2_dask.kernels import eigen
from ips2_dask.stages.block_operator import ChunkPlacement

OWNERS = {"one": lambda g: 0, "two by turns": lambda g: g % 2, "two halves": lambda g: int(g > 2), "alone": lambda g: g}


class SeveralOwners(SerialExecutor):
    """An executor that says of itself that it is several processes."""

    def __init__(self, owner_of: Callable[[int], int]) -> None:
        self._owner_of = owner_of

    def assign_owners(self, items: Sequence[Item], weights: Sequence[float]) -> list[int]:
        assert len(items) == len(weights) > 3
        return [self._owner_of(g) for g, _ in enumerate(items)]


def test_eigenvectors_do_not_depend_on_who_holds_a_chunk(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(1200, 4)) + 3 * rng.integers(0, 3, size=(1200, 1))
    found = {
        name: run_on(SeveralOwners(owner_of), X, Params(n_clusters=3), 120, tmp_path / name, "chunked")
        for name, owner_of in OWNERS.items()
    }
    assert found["one"].report()["products"] > 1
    for name in OWNERS:
        np.testing.assert_array_equal(found[name].eigenvectors, found["one"].eigenvectors)


@pytest.fixture
def placement() -> ChunkPlacement:
    shared = np.array([[9, 2, 0, 3], [2, 9, 0, 4], [0, 0, 9, 5], [3, 4, 5, 9]])
    return ChunkPlacement((0, 0, 1, 1), shared)


def test_what_the_chunks_of_a_worker_need_is_one_piece(placement: ChunkPlacement) -> None:
    assert placement.neighbors(0) == [1, 3]
    assert placement.receivers(3, 0) == [0, 1]
    assert placement.receivers(0, 1) == [3]
    assert placement.receivers(2, 0) == []
    assert (placement.section(0, 3), placement.section(1, 3)) == (slice(0, 3), slice(3, 7))


class Late(SerialExecutor):
    """An executor that notes what has been asked for and what has been waited for."""

    def __init__(self) -> None:
        self.noted: list[str] = []

    def submit(
        self, name: str, function: Callable[..., Any], *arguments: Any, placed_with: Any = None, urgent: bool = False
    ) -> Any:
        self.noted.append(name.rpartition("-")[0])
        return super().submit(name, function, *arguments, placed_with=placed_with, urgent=urgent)

    def results(self, handles: Sequence[Any]) -> list[Any]:
        self.noted.append("waited")
        return super().results(handles)


def test_a_panel_of_chunks_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(eigen.PANELS_ABOVE, "chunked", 0)
    X = np.random.default_rng(5).normal(size=(600, 4))
    executor = Late()
    run_on(executor, X, Params(n_clusters=3), 120, tmp_path / "run", "chunked")
    told = " ".join(name for name in executor.noted if name not in ("eigen-select_rows", "share-chunkplacement"))
    told = re.sub(r"(\S+)( \1)+", r"\1", told)  # each kind of tasks once
    panels = re.findall(r"eigen-select_columns (eigen-product eigen-wait_for waited )+eigen-join_columns", told)
    assert panels, told
