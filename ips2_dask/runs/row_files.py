"""Records of rows that come in any order, kept in files by ranges of rows, to be taken range by range."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ips2_dask.typing import AnyArray


class RowFiles:
    """Files of records, one for each range of rows.

    Parameters
    ----------
    folder : Path
        Made here; the files are in it until they are taken.
    kind : dtype
        Of a record, with a field ``row``.
    rows : int
        Rows of a range.

    Attributes
    ----------
    count : int
        Records that were added.
    """

    def __init__(self, folder: Path, kind: np.dtype[np.void], rows: int) -> None:
        folder.mkdir()
        self._folder, self._kind, self._rows, self.count = folder, kind, rows, 0

    def _path(self, number: int) -> Path:
        return self._folder / str(number)

    def add(self, records: AnyArray) -> None:
        """Append records (n,) to the files of their ranges."""
        ranges = records["row"] // self._rows
        order = np.argsort(ranges, kind="stable")
        numbers, starts = np.unique(ranges[order], return_index=True)
        for number, some in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            with self._path(number).open("ab") as stream:
                records[some].tofile(stream)
        self.count += len(records)

    def take(self, low: int) -> AnyArray:
        """The records of the range that row ``low`` begins, in the order in which they came; their file is removed."""
        path = self._path(low // self._rows)
        if not path.exists():
            return np.empty(0, self._kind)
        records = np.fromfile(path, self._kind)
        path.unlink()
        return records
