"""Many parts are dropped, renamed and looked at by requests that go side by side, and as one by one."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from ips2_dask import BadInput
from ips2_dask.store.base import MemoryStore, Store, present
from ips2_dask.store.remote import WIDTH, side_by_side
from ips2_dask.store.zarr_store import ZarrStore

FOLDER = "ingest-0123456789abcdef"
PARTS = [f"p{b:06d}" for b in range(2 * WIDTH + 3)]


@pytest.fixture(params=["memory", "folder", "url"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store of each kind with some parts."""
    root = "memory://tests/side-by-side"
    made: Store = {"memory": MemoryStore, "folder": lambda: ZarrStore(str(tmp_path)), "url": lambda: ZarrStore(root)}[
        request.param
    ]()
    for b, part in enumerate(PARTS):
        made.write(FOLDER, part, {"center": np.full(3, float(b))}, {"b": b})
    yield made
    system = fsspec.filesystem("memory")
    if system.exists("/tests"):
        system.rm("/tests", recursive=True)


def test_receipts_of_many_parts_are_those_of_each(store: Store) -> None:
    found = store.receipts(FOLDER, ["none", *PARTS])
    assert found == {part: store.receipt(FOLDER, part) for part in PARTS}
    assert present(store, FOLDER, ["none", *PARTS[3:5]]) == PARTS[3:5]


def test_arrays_of_many_parts_come_in_their_order(store: Store) -> None:
    arrays = list(store.read_many(FOLDER, PARTS[::-1], "center"))
    assert [array[0] for array in arrays] == list(range(len(PARTS)))[::-1]


def test_many_parts_are_dropped_and_the_others_stay(store: Store) -> None:
    store.drop_many(FOLDER, ["none", *PARTS[:-2]])
    assert sorted(store.parts(FOLDER)) == PARTS[-2:]
    np.testing.assert_array_equal(store.read(FOLDER, PARTS[-1], "center"), np.full(3, len(PARTS) - 1.0))
    assert not store.scan(FOLDER, None, True).faults
    if isinstance(store, ZarrStore):  # of what is gone no file is left
        assert {name.partition(".")[0] for name in store.files.names(FOLDER)} == set(PARTS[-2:])


def test_many_parts_are_renamed_twice_as_if_once(store: Store) -> None:
    names = {part: f"new-{part}" for part in PARTS}
    store.rename_many(FOLDER, {part: names[part] for part in PARTS[:5]})
    store.rename_many(FOLDER, names)
    assert sorted(store.parts(FOLDER)) == sorted(names.values())
    store.drop_many(FOLDER, PARTS)  # the old names are gone, and do not take the arrays with them
    np.testing.assert_array_equal(list(store.read_many(FOLDER, list(names.values()), "center"))[4], np.full(3, 4.0))
    assert not store.scan(FOLDER, None, True).faults


def test_receipts_that_this_process_has_seen_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    root, read = f"memory://tests/seen-{uuid.uuid4().hex}", list[str]()
    store = ZarrStore(root)
    for part in PARTS:
        store.write(FOLDER, part, {"center": np.zeros(3)}, {})
    expected = ZarrStore(root).receipts(FOLDER, PARTS)
    cat_file = MemoryFileSystem.cat_file

    def seen(self: Any, path: str, *arguments: Any, **options: Any) -> Any:
        read.append(path)
        return cat_file(self, path, *arguments, **options)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", seen)
    assert store.receipts(FOLDER, PARTS, cached=True) == expected
    store.rename_many(FOLDER, {PARTS[0]: "new"})
    store.drop_many(FOLDER, PARTS)
    assert store.parts(FOLDER, cached=True) == {"new": expected[PARTS[0]]}
    assert not read
    assert store.parts(FOLDER) == {"new": expected[PARTS[0]]}  # as it is written
    assert len(read) == 1
    store.drop(FOLDER, "new")
    assert not store.receipts(FOLDER, [*PARTS, "new"], cached=True)


def test_every_receipt_goes_before_the_first_array(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store, removed = ZarrStore(str(tmp_path)), list[str]()
    for part in PARTS:
        store.write(FOLDER, part, {"center": np.zeros(3)}, {})
    remove = type(store.files).remove

    def seen(self: Any, name: str) -> None:
        removed.append(name)
        remove(self, name)

    monkeypatch.setattr(type(store.files), "remove", seen)
    store.drop_many(FOLDER, PARTS)
    assert all(name.endswith(".json") for name in removed[: len(PARTS)])
    assert not any(name.endswith(".json") for name in removed[len(PARTS) :])


def test_a_store_that_does_not_answer_is_not_taken_for_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ZarrStore("memory://tests/side-by-side")

    def refuse(*_: Any, **__: Any) -> bytes:
        raise PermissionError("not today")

    monkeypatch.setattr(MemoryFileSystem, "cat_file", refuse)
    with pytest.raises(BadInput, match="not today"):
        store.drop(FOLDER, PARTS[0])


def test_calls_run_at_the_same_time_but_no_more_than_are_allowed() -> None:
    together = threading.Barrier(3)  # breaks, after a while, where fewer than three calls run at once
    running, most, lock = 0, 0, threading.Lock()

    def work(item: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(timeout=60)
        with lock:
            running -= 1
        return item * item

    assert list(side_by_side(work, range(12), width=3)) == [item * item for item in range(12)]
    assert most == 3


def test_the_first_error_is_raised_and_nothing_begins_after_it() -> None:
    begun = list[int]()

    def work(item: int) -> int:
        begun.append(item)
        if item in (1, 2):
            raise ValueError(str(item))
        return item

    with pytest.raises(ValueError, match="1"):
        list(side_by_side(work, range(1000), width=4))
    assert len(begun) < 20
