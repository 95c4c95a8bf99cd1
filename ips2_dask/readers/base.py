"""Shared by all readers: the protocol `Source`, the base class `Rows`, and checks of shape, dtype and values."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults
from ips2_dask.readers.features import Features, FittedFeatures
from ips2_dask.readers.text_format import USUAL, TextFormat

if TYPE_CHECKING:
    from dask.delayed import Delayed
    from scipy.sparse import csr_array

Block = NDArray[Any]  # (rows, f) of the dtype of a table: bool, integers or floats of at most 64 bits
DType = np.dtype[np.generic]
Labels = NDArray[np.int64] | NDArray[np.str_]  # (m,), as `labels.as_labels` returns them
PIECE_BYTES = 4 << 20  # a streaming reader reads so many bytes of its file at a time
GRAIN_BYTES = 128 << 20  # `blocks` reads whole storage chunks as long as they are no larger than this
# Well inside float64's range: differences of such values, and sums of these, can be represented.
LARGEST = 2.0**1000


@runtime_checkable
class Source(Protocol):
    """A table of m samples by f features, read by ranges of rows; the rest of the package knows an input by it alone.

    It can be pickled, and opens its file lazily, read only, in each process. Rows and columns count from 0. `Table` is
    the implementation that all formats share.
    """

    @property
    def name(self) -> str:
        """The input as the user wrote it, for messages."""

    @property
    def shape(self) -> tuple[int, int]:
        """(m, f): samples, and features without the label column."""

    @property
    def dtype(self) -> DType:
        """Type of the values, in native byte order: bool, an integer, or a float of at most 64 bits."""

    @property
    def parallel(self) -> bool:
        """Whether `read` works in any process, at a cost that is proportional to the rows asked for."""

    @property
    def resident_bytes(self) -> int:
        """Bytes that reading any row at all needs in one process; 0 where the table can be read in parts."""

    @property
    def fingerprint(self) -> str:
        """Hexadecimal digest that changes when the content may have changed; it does not depend on the name."""

    @property
    def feature_names(self) -> list[str] | None:
        """The f names, where the input has them."""

    @property
    def sample_names(self) -> NDArray[np.str_] | None:
        """The m names, where the input has names that are not a plain range; read at the first use."""

    def read(self, start: int, stop: int) -> Block:
        """Return rows start to stop, an array (stop - start, f) of `dtype`, C-contiguous, possibly read-only."""

    def blocks(self, rows: int) -> Iterator[Block]:
        """Yield all rows in order as arrays (rows, f) of `dtype`, the last one shorter."""

    def labels(self) -> Labels | None:
        """Return the known labels, an array (m,) of int64 or strings, or None if no label column was named."""


@runtime_checkable
class LazySource(Protocol):
    """A `Source` whose rows the workers of a cluster compute themselves."""

    def delayed_blocks(self, bounds: Sequence[int]) -> list[Delayed]:
        """Return one `dask.delayed.Delayed` per partition: its rows bounds[b] to bounds[b + 1]."""


@dataclass(frozen=True)
class Request:
    """A file to open, and how: the argument of a format's opener.

    Attributes
    ----------
    name : str
        The input as the user wrote it, for messages.
    path : str
        Path or URL.
    member : str, optional
        The name after ``::``: a dataset, variable, array or member of the file.
    labels_column : str or int, optional
        Column, or variable of the file, that holds the known labels.
    transpose : bool
        Whether the columns are the samples.
    features : Features or FittedFeatures, optional
        For formats that may hold text; the features of others are made of their table by
        `columns.features_of_numbers`.
    text : TextFormat
        How a text file is read; other formats take no notice.
    """

    name: str
    path: str
    member: str | None = None
    labels_column: str | int | None = None
    transpose: bool = False
    features: Features | FittedFeatures | None = None
    text: TextFormat = USUAL


class Rows:
    """The values of a table; a format's subclass implements `read`.

    It is pickled with its table, so it keeps paths and not open files.

    Attributes
    ----------
    n_rows : int
        m, the number of rows.
    grain : int
        Rows that the storage keeps together, as in a chunk.
    sparse : bool
        Whether the values are stored without their zeros.
    """

    n_rows: int
    grain: int = 1
    sparse: bool = False

    def read(self, start: int, stop: int) -> Block:
        """Return rows start to stop as an array (stop - start, f) of the table's type, where 0 <= start < stop <= m.

        `Table.read` checks the range, and makes the array C-contiguous and of native byte order.

        Raises
        ------
        BadInput
            If the file can't be read, or is no longer the one that was opened.
        """
        raise NotImplementedError(type(self).__name__)

    def csr(self) -> csr_array | None:
        """Return all rows with the zeros that are stored among them, or None where zeros are not left out."""
        return None

    def blocks(self, rows: int) -> Iterator[Block]:
        """Yield all rows, `rows` at a time, but take whole storage chunks, so that none is decoded twice."""
        step = max(rows, self.grain // rows * rows)
        pieces = (self.read(start, min(start + step, self.n_rows)) for start in range(0, self.n_rows, step))
        return rebatch(pieces, rows)


class StreamedRows(Rows):
    """Values that can be read only from the first row on; a format's subclass implements `stream`."""

    def stream(self, start: int) -> Iterator[Block]:
        """Yield all rows from `start` on, as arrays (any number of rows, f)."""
        raise NotImplementedError(type(self).__name__)

    def read(self, start: int, stop: int) -> Block:
        """Return rows start to stop after passing over those before them."""
        return next(rebatch(self.stream(start), stop - start))

    def blocks(self, rows: int) -> Iterator[Block]:
        """Yield all rows in one pass."""
        return rebatch(self.stream(0), rows)


@dataclass(frozen=True, kw_only=True)
class Table:
    """The `Source` of every format: shape, dtype and names of a table, and the `Rows` that read its values.

    Attributes
    ----------
    name, shape, dtype, parallel, resident_bytes, fingerprint, feature_names
        As of `Source`.
    rows : Rows
        Reads the values.
    read_sample_names : callable, optional
        Reads the m names of the samples, or None if they only count the rows.
    read_labels : callable, optional
        Reads the m labels, as `labels.as_labels` returns them.
    label : int, optional
        Position, in the input, of the column of labels, which the table itself no longer has.
    fitted : FittedFeatures, optional
        How the columns of the input became features, if the user chose or encoded any.
    """

    name: str
    shape: tuple[int, int]
    dtype: DType
    rows: Rows
    parallel: bool
    resident_bytes: int
    fingerprint: str
    feature_names: list[str] | None = None
    read_sample_names: Callable[[], NDArray[np.str_] | None] | None = None
    read_labels: Callable[[], Labels] | None = None
    label: int | None = None
    fitted: FittedFeatures | None = None

    @cached_property
    def sample_names(self) -> NDArray[np.str_] | None:
        """The m names, where the input has names that are not a plain range."""
        return self.read_sample_names() if self.read_sample_names else None

    def read(self, start: int, stop: int) -> Block:
        """Return rows start to stop as `Source.read` promises."""
        if not 0 <= start <= stop <= self.shape[0]:
            raise IndexError(f"rows {start} to {stop} of {self.shape[0]}")
        if start == stop:
            return np.empty((0, self.shape[1]), self.dtype)
        return np.ascontiguousarray(self.rows.read(start, stop), dtype=self.dtype)

    def blocks(self, rows: int) -> Iterator[Block]:
        """Yield all rows as `Source.blocks` promises."""
        if rows < 1:
            raise ValueError(f"blocks of {rows} rows")
        for block in self.rows.blocks(rows):
            yield np.ascontiguousarray(block, dtype=self.dtype)

    def labels(self) -> Labels | None:
        """Return the known labels as `Source.labels` promises."""
        return self.read_labels() if self.read_labels else None


def rebatch(pieces: Iterable[Block], rows: int) -> Iterator[Block]:
    """Yield the rows of ``pieces`` in order, `rows` at a time, the last block shorter; copies only across a seam."""
    pending: list[Block] = []
    count = 0
    for piece in pieces:
        rest = piece
        while count + len(rest) >= rows:
            head, rest = rest[: rows - count], rest[rows - count :]
            yield np.concatenate([*pending, head]) if pending else head
            pending, count = [], 0
        if len(rest):
            pending.append(rest)
            count += len(rest)
    if pending:
        yield np.concatenate(pending) if len(pending) > 1 else pending[0]


@dataclass(frozen=True)
class FileStamp:
    """A file's path, size and modification time, taken when the file was opened."""

    name: str
    path: str
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, request: Request) -> FileStamp:
        """Return the stamp of the file as it is on disk now."""
        with faults.reading(request.name):
            status = os.stat(request.path)
        # Absolute, because a worker's folder need not be the client's.
        return cls(request.name, os.path.abspath(request.path), status.st_size, status.st_mtime_ns)

    def check(self) -> None:
        """Raise ``BadInput`` if the file is no longer the one that was opened."""
        with faults.reading(self.name):
            status = os.stat(self.path)
        if (status.st_size, status.st_mtime_ns) != (self.size, self.mtime_ns):
            raise faults.changed(self.name)

    def read_ranges(self, starts: Sequence[int], n_bytes: int) -> NDArray[np.uint8]:
        """Return ranges of ``n_bytes`` bytes each, (len(starts), n_bytes)."""
        # Not mapped: a map's pages count as the process's memory, and a file that shrinks would kill it.
        with faults.reading(self.name), open(self.path, "rb", buffering=0) as stream:
            ranges = np.empty((len(starts), n_bytes), np.uint8)
            for row, start in zip(ranges, starts, strict=True):
                stream.seek(start)
                rest = row.data
                while rest:
                    count = stream.readinto(rest)
                    if not count:
                        raise EOFError(f"{len(rest)} bytes are missing")
                    rest = rest[count:]
            return ranges

    def digest(self, *options: object) -> str:
        """Return the fingerprint of the file as read with these options."""
        return digest("file", self.size, self.mtime_ns, *options)


def digest(*parts: object) -> str:
    """Return a hexadecimal digest of the parts, in order."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def check_shape(name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return ``shape`` as (rows, columns), or raise ``BadInput`` unless it has two dimensions, none of them empty."""
    if len(shape) != 2:
        raise BadInput(
            name,
            f"an array of {len(shape)} dimension{'s' * (len(shape) != 1)}, shape {shape}",
            "two dimensions, samples by features",
            "it would be unclear what a sample is",
            "reshape it, for instance array.reshape(len(array), -1)",
        )
    rows, columns = int(shape[0]), int(shape[1])
    if rows == 0 or columns == 0:
        raise BadInput(
            name,
            f"{rows} rows and {columns} columns",
            "at least one row and one column of numbers",
            "there would be nothing to cluster",
            "check that it is the right input, and that its only column is not the label column",
        )
    return rows, columns


def is_matrix(shape: tuple[int, ...] | None, dtype: DType) -> bool:
    """Return whether an array of a file may be the one to cluster: numbers in several rows and several columns."""
    return shape is not None and len(shape) == 2 and min(shape) > 1 and dtype.kind in "biuf"


def check_dtype(name: str, dtype: DType) -> DType:
    """Return ``dtype`` in native byte order, or raise ``BadInput`` unless it is a real number type up to 64 bits."""
    if dtype.kind in "biu" or (dtype.kind == "f" and dtype.itemsize <= 8):
        return dtype.newbyteorder("=")
    if dtype.kind == "O":
        raise faults.pickled(name, "an array of Python objects")
    if dtype.kind in "UST":
        raise faults.text_in_array(name, f"an array of text ({dtype})")
    if dtype.kind in "mM":
        raise BadInput(
            name,
            f"times ({dtype})",
            "bool, integers, or floats of at most 64 bits",
            "they could not be turned into distances",
            "drop such columns, or give times as numbers, for instance (times - times.min()) / np.timedelta64(1, 's')",
        )
    if dtype.kind == "c":
        raise BadInput(
            name,
            f"complex numbers ({dtype})",
            "real numbers",
            "their imaginary parts would be lost",
            "give real and imaginary parts as two columns each, or the absolute values",
        )
    raise BadInput(
        name,
        f"values of type {dtype}",
        "bool, integers, or floats of at most 64 bits",
        "they could not be turned into distances",
        "convert them, for instance with array.astype(np.float64)",
    )


def check_block(
    block: Block, first_row: int, name: str, feature_names: list[str] | None = None, *, gaps: bool = False
) -> None:
    """Raise ``BadInput`` if a block holds a value that is not finite or too large for float32.

    Parameters
    ----------
    block : (rows, f) array
        Real numbers, as a `Source` gives them.
    first_row : int
        Row of the table that the block starts at; rows and columns in the message count from 0.
    name : str
        The input as the user wrote it.
    feature_names : list of str, optional
        The f names of the columns.
    gaps : bool
        Whether values may be missing (NaN).

    Raises
    ------
    BadInput
        Says row, column, value and how many such values the block holds. The largest magnitude allowed leaves room for
        differences and sums of such values in float64.
    """
    if block.size == 0 or block.dtype.kind in "biu":
        return
    with np.errstate(invalid="ignore"):  # minimum and maximum pass a NaN on, and need no copy of the block
        low, high = float(block.min()), float(block.max())
    if low >= -LARGEST and high <= LARGEST:
        return
    finite = np.isfinite(block) | (np.isnan(block) if gaps else False)
    too_large = np.abs(block) > min(LARGEST, float(np.finfo(block.dtype).max))  # float32 does not reach as far
    if gaps and not too_large.any():
        return
    bad = ~finite if not finite.all() else too_large
    row, column = (int(index) for index in np.argwhere(bad)[0])
    named = f" ({feature_names[column]!r})" if feature_names else ""
    where = f"row {first_row + row}, column {column}{named}"
    count, last = int(np.count_nonzero(bad)), first_row + len(block) - 1
    more = f" (and {count - 1} more such values up to row {last})" if count > 1 else ""
    value = f"{float(block[row, column])!r}{more}"
    if not finite.all():
        raise faults.missing_value(name, where, value)
    raise BadInput(
        name,
        f"{value} at {where}",
        f"magnitudes up to {LARGEST:.3g}",
        "differences of such values would overflow float64",
        "divide the columns by a power of ten, or take their logarithms",
    )
