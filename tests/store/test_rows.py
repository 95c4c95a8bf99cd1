"""Rows of a stored array: what is read of a part keeps no more of it in memory than was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ips2_dask.store.zarr_store import ZarrStore

Array = npt.NDArray[Any]


def bytes_kept(array: Array) -> int:
    """Bytes of the memory that an array keeps alive, which may be another one's."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.nbytes


@pytest.mark.parametrize(("low", "high"), [(0, 0), (10, 13), (0, 499), (400, 1000), (0, 1000)])
def test_few_rows_do_not_keep_their_chunk_in_memory(low: int, high: int, tmp_path: Path) -> None:
    """A task that reads some rows of each partition would hold them all."""
    store, values = ZarrStore(str(tmp_path)), np.arange(2000, dtype=np.int32).reshape(1000, 2)
    store.write("tensor-x", "p000000", {"pairs": values}, {})
    rows = store.read_rows("tensor-x", "p000000", "pairs", low, high)
    np.testing.assert_array_equal(rows, values[low:high])
    assert bytes_kept(rows) <= 2 * rows.nbytes
