"""Damaged files of every format are read or refused, but never end in anything else."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_readers import FORMATS, written

from ips2_dask.errors import BadInput
from ips2_dask.storage.readers import open_source

MOST = 10_000  # rows and columns that are read of a table whose damaged header promises more


def damage(data: bytes, draw: st.DataObject) -> bytes:
    """Flip, overwrite, cut, drop or insert some bytes."""
    changed = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 4))):
        at = outside_of_heap(changed, draw.draw(st.integers(0, max(0, len(changed) - 1))))
        kind = draw.draw(st.sampled_from(["flip", "set", "cut", "drop", "insert"]))
        if kind == "flip" and changed:
            changed[at] ^= 1 << draw.draw(st.integers(0, 7))
        elif kind == "set":
            changed[at : at + 4] = draw.draw(st.binary(min_size=4, max_size=4))
        elif kind == "cut":
            del changed[at:]
        elif kind == "drop":
            del changed[at : at + draw.draw(st.integers(1, 8))]
        else:
            changed[at:at] = draw.draw(st.binary(min_size=1, max_size=8))
    return bytes(changed)


def outside_of_heap(data: bytearray, at: int) -> int:
    """Return ``at``, moved out of HDF5's heap of strings: where its sizes are damaged, libhdf5 loops for ever."""
    heap = data.find(b"GCOL")
    inside = heap >= 0 and heap <= at < heap + int.from_bytes(data[heap + 8 : heap + 16], "little")
    return heap if inside else at


def use(spec: str, column: str | int) -> None:
    """Open a source and read what it promises."""
    source = open_source(spec, labels_column=column)
    m, f = source.shape
    if m < MOST and f < MOST:
        assert sum(len(block) for block in source.blocks(16)) == m
        labels = source.labels()
        assert labels is not None
        assert len(labels) == m


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "zarr-url"])
@settings(deadline=None, max_examples=60, derandomize=True)
@given(draw=st.data())
def test_damaged_files_are_read_or_refused(
    name: str, draw: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    spec, column, _, _ = written(name, folder)
    root = Path(spec.partition("::")[0])
    files = sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else [root]
    path = draw.draw(st.sampled_from(files))
    path.write_bytes(damage(path.read_bytes(), draw))
    with contextlib.suppress(BadInput):
        use(spec, column)
    shutil.rmtree(folder)
