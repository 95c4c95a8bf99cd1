"""Tables of all formats: `Table`, the `Rows` that read its values, matrices in memory, and checks of both."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np
from scipy import sparse

from ips2_dask.errors import BadInput
from ips2_dask.kernels.ingest import ROUNDED_TO, SYMMETRIC_TO
from ips2_dask.readers import faults, labels
from ips2_dask.readers.features import ALL, USUAL, Features, FittedFeatures, TextFormat
from ips2_dask.readers.labels import Labels, as_labels
from ips2_dask.store.remote import is_remote, open_system, plain, reaching
from ips2_dask.typing import AnyArray, UInt8

if TYPE_CHECKING:
    from scipy.sparse import csr_array

DType = np.dtype[np.generic]
Pieces = Callable[[], Iterator[AnyArray]]
Matrix: TypeAlias = "AnyArray | sparse.csr_array"  # two dimensions, real numbers
PIECE_BYTES = 4 << 20  # a streaming reader reads so many bytes of its file at a time
GRAIN_BYTES = 128 << 20  # `blocks` reads whole storage chunks as long as they are no larger than this
# Well inside float64's range: differences of such values, and sums of these, can be represented.
LARGEST = 2.0**1000
HOLLOW_ROWS = 10_000_000
LOAD_LOCK = threading.RLock()  # threads of one worker load a file once, not once each


@dataclass(frozen=True)
class Request:
    """What to open, and how: the argument of an opener; the last four are those of `open_source`."""

    name: str  # the input as the user wrote it, for messages
    path: str = ""  # path or URL of a file
    member: str | None = None  # the name after ``::``: a dataset, variable, array or member of the file
    labels_column: str | int | None = None
    transpose: bool = False
    features: Features | FittedFeatures = ALL  # of numbers, `columns.columns_of_numbers` makes them
    text: TextFormat = USUAL


class Rows:
    """The values of a table. It is pickled with its table, so it keeps paths and not open files."""

    n_rows: int  # m, which the table of these rows sets
    grain: int = 1  # rows that the storage keeps together, as in a chunk
    sparse: bool = False  # whether the values are stored without their zeros

    def read(self, start: int, stop: int) -> AnyArray:
        """Return rows start to stop, (stop - start, f), of any type and order; `Table.read` has checked the range."""
        raise NotImplementedError(type(self).__name__)

    def csr(self) -> csr_array | None:
        """Return all rows with the zeros that are stored among them, or None where zeros are not left out."""
        return None

    def take(self, places: Sequence[int]) -> Rows | None:
        """Return the rows of some columns alone, or None if all columns have to be read for that."""
        return None

    def column(self, place: int) -> Iterator[AnyArray]:
        """Yield the values of a column in pieces."""
        return (block[:, place].copy() for block in self.blocks(labels.PIECE_ROWS))

    def blocks(self, rows: int) -> Iterator[AnyArray]:
        """Yield all rows, `rows` at a time, but take whole storage chunks, so that none is decoded twice."""
        step = max(rows, self.grain // rows * rows)
        pieces = (self.read(start, min(start + step, self.n_rows)) for start in range(0, self.n_rows, step))
        return rebatch(pieces, rows)


@dataclass(frozen=True)
class Table:
    """m samples by f features, read by ranges of rows; the rest of the package knows an input by it alone.

    It can be pickled, and opens its file lazily, read only, in each process. Rows and columns count from 0. Making one
    raises ``BadInput`` where its shape or its type is none of a matrix of real numbers.
    """

    name: str  # the input as the user wrote it, for messages
    shape: tuple[int, int]  # (m, f): samples, and features without the label column
    dtype: DType  # of the values, in native byte order: bool, an integer, or a float of at most 64 bits
    rows: Rows
    fingerprint: str  # changes when the content may have changed; it does not depend on the name
    parallel: bool = True  # whether `read` works in any process, at a cost that is proportional to the rows asked for
    resident_bytes: int = 0  # that reading any row at all needs in one process; 0 where it can be read in parts
    feature_names: list[str] | None = None  # f, where the input has them
    row_names: AnyArray | Callable[[], AnyArray | None] | None = None  # the m names, or what reads them
    # yields the stored labels in the order of the samples, each piece of any length and as `as_labels` takes them
    label_pieces: Pieces | None = None
    label: int | None = None  # position, in the input, of the column of labels, which the table itself no longer has
    fitted: FittedFeatures | None = None  # how the columns became features, if the user chose or encoded any

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", check_shape(self.name, self.shape))
        object.__setattr__(self, "dtype", check_dtype(self.name, self.dtype))
        self.rows.n_rows = self.shape[0]

    @cached_property
    def sample_names(self) -> AnyArray | None:
        """The m names, where the input has names that are not a plain range; read at the first use."""
        return self.row_names() if callable(self.row_names) else self.row_names

    def read(self, start: int, stop: int) -> AnyArray:
        """Return rows start to stop, an array (stop - start, f) of `dtype`, C-contiguous, possibly read-only."""
        if not 0 <= start <= stop <= self.shape[0]:
            raise IndexError(f"rows {start} to {stop} of {self.shape[0]}")
        if start == stop:
            return np.empty((0, self.shape[1]), self.dtype)
        return np.ascontiguousarray(self.rows.read(start, stop), dtype=self.dtype)

    def blocks(self, rows: int) -> Iterator[AnyArray]:
        """Yield all rows in order as arrays (rows, f) of `dtype`, the last one shorter."""
        if rows < 1:
            raise ValueError(f"blocks of {rows} rows")
        for block in self.rows.blocks(rows):
            yield np.ascontiguousarray(block, dtype=self.dtype)

    def labels(self) -> Labels | None:
        """Return the known labels, an array (m,) of int64 or strings, or None if no label column was named."""
        if self.label_pieces is None:
            return None
        return as_labels(np.concatenate([np.ravel(piece) for piece in self.label_pieces()]), self.name)


Source = Table


def rebatch(pieces: Iterable[AnyArray], rows: int) -> Iterator[AnyArray]:
    """Yield the rows of ``pieces`` in order, `rows` at a time, the last block shorter; copies only across a seam."""
    pending: list[AnyArray] = []
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


TAGS = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "last_modified", "Last-Modified", "updated", "mtime")
"""Names, by protocol, of the metadata that changes with an object's content."""


@dataclass(frozen=True)
class FileStamp:
    """A file's path, size and modification time, taken when it was opened; of an object its URL, size and tags."""

    name: str
    path: str
    size: int
    version: tuple[str, ...]

    @classmethod
    def of(cls, request: Request) -> FileStamp:
        """Return the stamp of the file, or of the object behind a URL, as it is now."""
        name, path = request.name, request.path
        if not is_remote(path):
            with faults.reading(name):
                status = os.stat(path)
            # Absolute, because a worker's folder need not be the client's.
            return cls(name, os.path.abspath(path), status.st_size, (str(status.st_mtime_ns),))
        name = plain(name)
        try:
            with reaching(path):
                system, place = open_system(path)
                metadata = system.info(place)
        except FileNotFoundError:
            allowed, otherwise = "the URL of a .npy file that exists", "there would be nothing to read"
            faults.throw(BadInput(name, "nothing there", allowed, otherwise, "check the URL"))
        if metadata.get("size") is None:
            faults.throw(_no_ranges(name, "a server that does not say how long it is"))
        return cls(name, path, int(metadata["size"]), tuple(str(metadata[tag]) for tag in TAGS if tag in metadata))

    def check(self) -> None:
        """Raise ``BadInput`` if the file is no longer the one that was opened."""
        if FileStamp.of(Request(self.name, self.path)) != self:
            raise faults.changed(self.name)

    def read_ranges(self, starts: Sequence[int], n_bytes: int) -> UInt8:
        """Return ranges of ``n_bytes`` bytes each, (len(starts), n_bytes), of an object by a request for each."""
        if is_remote(self.path):
            return self._fetched(starts, n_bytes)
        # Not mapped: a map's pages count as the process's memory, and a file that shrinks would kill it.
        with faults.reading(self.name), open(self.path, "rb") as stream:
            ranges = np.empty((len(starts), n_bytes), np.uint8)
            for row, start in zip(ranges, starts, strict=True):
                stream.seek(start)
                if (count := stream.readinto(row.data)) < n_bytes:
                    raise EOFError(f"{n_bytes - count} bytes are missing")
            return ranges

    def _fetched(self, starts: Sequence[int], n_bytes: int) -> UInt8:
        with reaching(self.path), faults.reading(self.name):
            system, path = open_system(self.path)
            ranges = [bytes(system.cat_file(path, start=start, end=start + n_bytes)) for start in starts]
        sizes = {len(one) for one in ranges}
        if sizes == {n_bytes}:
            return np.frombuffer(b"".join(ranges), np.uint8).reshape(len(starts), n_bytes)
        if self.size in sizes:
            raise _no_ranges(self.name, "a server that sends all of it when asked for a part")
        raise faults.changed(self.name)

    def digest(self, *options: object) -> str:
        """Return the fingerprint of the file as read with these options."""
        return digest("file", self.size, self.version, *options)


def _no_ranges(name: str, found: str) -> BadInput:
    allowed, otherwise = "one that serves ranges of bytes", "every partition would fetch the whole file"
    return BadInput(name, found, allowed, otherwise, "copy the file to a local disk or an object store first")


def digest(*parts: object) -> str:
    """Return a hexadecimal digest of the parts, in order."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def is_sparse(value: object) -> TypeGuard[sparse.sparray]:
    """Return whether something is a SciPy sparse matrix or array."""
    return bool(sparse.issparse(value))


def as_csr(matrix: sparse.sparray, name: str) -> sparse.csr_array:
    """Return a SciPy sparse matrix as CSR, after checking its indices: SciPy would write outside of a dense one."""
    rows, columns = check_shape(name, matrix.shape)
    dtype = check_dtype(name, matrix.dtype)
    if rows > HOLLOW_ROWS and rows > 1000 * matrix.nnz:
        found = f"a sparse matrix of {rows} rows with {matrix.nnz} entries"
        otherwise = "nearly all samples would be equal, and gigabytes of pointers to nothing be held"
        remedy = "check that the file is undamaged and need not be transposed, or drop the empty rows"
        raise BadInput(name, found, "at least one entry in a thousand rows, where there are so many", otherwise, remedy)
    with faults.reading(name):
        if matrix.format in ("csr", "csc", "bsr"):
            # Where the last pointer is 0, SciPy takes the matrix for empty and looks at none of the others. It looks at
            # differences, which in 32 bits may be above 0 where pointers fall.
            if (matrix.indptr[1:] < matrix.indptr[:-1]).any():
                raise ValueError("pointers that do not ascend")
            matrix.check_format(full_check=True)
        csr = sparse.csr_array(matrix)
        csr = csr if csr.dtype == dtype else csr.astype(dtype)
    return csr.reshape((rows, columns))


def _arrays_of(matrix: Matrix) -> tuple[AnyArray, ...]:
    return (matrix.data, matrix.indices, matrix.indptr) if is_sparse(matrix) else (matrix,)


def content_digest(matrix: Matrix) -> str:
    """Return a digest of a matrix's values, shape and type."""
    state = hashlib.blake2b(repr((matrix.shape, matrix.dtype.str)).encode(), digest_size=16)
    for part in _arrays_of(matrix):
        step = max(1, (4 << 20) // max(1, part[:1].nbytes))
        for start in range(0, len(part), step):  # by pieces, as a strided array has to be copied to be hashed
            state.update(np.ascontiguousarray(part[start : start + step]).data.cast("B"))
    return state.hexdigest()


class MatrixRows(Rows):
    """The rows of a dense or CSR matrix in memory, pickled with it.

    Where there is ``load``, it reads the matrix at the first use in each process, and the rows are pickled without it.
    """

    def __init__(self, matrix: Matrix | None, load: Callable[[], Matrix] | None = None) -> None:
        self._matrix, self._load, self.sparse = matrix, load, is_sparse(matrix)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_matrix": None if self._load else self._matrix}

    def _whole(self) -> Matrix:
        if self._matrix is None:
            assert self._load is not None
            with LOAD_LOCK:
                if self._matrix is None:
                    self._matrix = self._load()
                    self.sparse = is_sparse(self._matrix)
        return self._matrix

    def csr(self) -> sparse.csr_array | None:
        matrix = self._whole()
        return matrix if is_sparse(matrix) else None

    def read(self, start: int, stop: int) -> AnyArray:
        part = self._whole()[start:stop]
        return np.array(part.toarray() if is_sparse(part) else part, order="C")


def matrix_table(
    matrix: Matrix, name: str, fingerprint: str = "", load: Callable[[], Matrix] | None = None, **optional: Any
) -> Table:
    """Return the table of a dense or CSR matrix in memory; ``optional`` are further attributes of `Table`."""
    size = sum(part.nbytes for part in _arrays_of(matrix))
    key = fingerprint or content_digest(matrix)
    rows = MatrixRows(matrix, load)
    return Table(name, matrix.shape, matrix.dtype, rows, key, parallel=False, resident_bytes=size, **optional)


def loaded_table(read: Callable[[], Matrix], name: str, fingerprint: str, transpose: bool, value: Any = None) -> Table:
    """Return the table of a file that is read whole: at once, so that damage shows before the run.

    ``read`` reads its matrix, which is the ``value`` if that has been read already.
    """
    load = partial(_loaded, read, name, transpose)
    return matrix_table(load(value), name, fingerprint, load)


def _loaded(read: Callable[[], Matrix], name: str, transpose: bool, value: Any = None) -> Matrix:
    value = read() if value is None else value
    value = value.T if transpose else value
    return as_csr(value, name) if is_sparse(value) else value


def transposed(table: Table) -> Table:
    """Return ``table`` with its columns as samples, loaded whole, for formats whose columns can't be read in parts."""
    m, f = table.shape
    return replace(
        table,
        shape=(f, m),
        rows=MatrixRows(None, partial(_load_transposed, table)),
        parallel=False,
        resident_bytes=m * f * table.dtype.itemsize,
        fingerprint=digest(table.fingerprint, "transposed"),
        feature_names=None if table.sample_names is None else table.sample_names.tolist(),
        row_names=np.array(table.feature_names, np.str_) if table.feature_names else None,
    )


def _load_transposed(table: Table) -> Matrix:
    """Return all values of a table of shape (m, f) as a matrix (f, m)."""
    with faults.reading(table.name):
        whole = np.empty((table.shape[1], table.shape[0]), table.dtype)
    start = 0
    for block in table.blocks(1024):
        whole[:, start : start + len(block)] = block.T
        start += len(block)
    return whole


def check_shape(name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return ``shape`` as (rows, columns), or raise ``BadInput`` unless it has two dimensions, none of them empty."""
    if len(shape) != 2:
        found = f"an array of {len(shape)} dimension{'s' * (len(shape) != 1)}, shape {shape}"
        allowed, otherwise = "two dimensions, samples by features", "it would be unclear what a sample is"
        raise BadInput(name, found, allowed, otherwise, "reshape it, for instance array.reshape(len(array), -1)")
    rows, columns = int(shape[0]), int(shape[1])
    if rows == 0 or columns == 0:
        asked = "at least one row and one column of numbers"
        remedy = "check that it is the right input, and that its only column is not the label column"
        raise BadInput(name, f"{rows} rows and {columns} columns", asked, "there would be nothing to cluster", remedy)
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
    found, allowed = f"values of type {dtype}", "bool, integers, or floats of at most 64 bits"
    remedy = "convert them, for instance with array.astype(np.float64)"
    if dtype.kind in "mM":
        found = f"times ({dtype})"
        remedy = (
            "drop such columns, or give times as numbers, for instance (times - times.min()) / np.timedelta64(1, 's')"
        )
    if dtype.kind == "c":
        found, remedy = f"complex numbers ({dtype})", "give real and imaginary parts as two columns each"
    raise BadInput(name, found, allowed, "they could not be turned into distances", remedy)


def check_block(
    block: AnyArray, first_row: int, name: str, feature_names: list[str] | None = None, *, gaps: bool = False
) -> None:
    """Raise ``BadInput`` if a block holds a value that is not finite or too large for float32."""
    if block.size == 0 or block.dtype.kind in "biu":
        return
    with np.errstate(invalid="ignore"):  # minimum and maximum pass a NaN on, and need no copy of the block
        low, high = float(block.min()), float(block.max())
    if low >= -LARGEST and high <= LARGEST:
        return
    finite = np.isfinite(block) | (np.isnan(block) & gaps)
    too_large = np.abs(block) > min(LARGEST, float(np.finfo(block.dtype).max))  # float32 does not reach as far
    bad = too_large if finite.all() else ~finite
    if not bad.any():
        return
    row, column = (int(index) for index in np.argwhere(bad)[0])
    named = f" ({feature_names[column]!r})" if feature_names else ""
    where = f"row {first_row + row}, column {column}{named}"
    count, last = int(np.count_nonzero(bad)), first_row + len(block) - 1
    more = f" (and {count - 1} more such values up to row {last})" if count > 1 else ""
    value = f"{float(block[row, column])!r}{more}"
    if not finite.all():
        raise faults.missing_value(name, where, value)
    found, allowed = f"{value} at {where}", f"magnitudes up to {LARGEST:.3g}"
    otherwise = "differences of such values would overflow float64"
    raise BadInput(name, found, allowed, otherwise, "divide the columns by a power of ten, or take their logarithms")


@dataclass
class NeighborDistances(Rows):
    """The rows of a symmetric sparse matrix of distances: infinite where none is stored, 0 on the diagonal."""

    matrix: sparse.csr_array  # (m, m) float64, without the diagonal

    def read(self, start: int, stop: int) -> AnyArray:
        part = self.matrix[start:stop]
        rows = np.full(part.shape, np.inf)
        rows[np.repeat(np.arange(stop - start), np.diff(part.indptr)), part.indices] = part.data
        rows[np.arange(stop - start), np.arange(start, stop)] = 0.0
        return rows


def neighbor_distances(source: Table) -> Table:
    """Return the table of a sparse matrix of distances (m, m) with `NeighborDistances`; other sources as they are."""
    matrix = source.rows.csr()
    if matrix is None and source.rows.sparse:
        found, allowed = "a Dask array of sparse blocks with metric='precomputed'", "a SciPy matrix, or a file of one"
        otherwise = "what is not stored would be read as the distance 0"
        raise BadInput(source.name, found, allowed, otherwise, "give it computed, as array.compute() returns it")
    if matrix is None:
        return source
    graph = _symmetric(matrix, source.name)
    return replace(
        source,
        dtype=np.dtype(np.float64),
        rows=NeighborDistances(graph),
        parallel=False,
        resident_bytes=sum(part.nbytes for part in _arrays_of(graph)),
        fingerprint=digest(source.fingerprint, "neighbours"),
    )


def check_neighbors(source: Table, n: int) -> None:
    """Refuse sparse distances with fewer than n others in a row; other sources pass."""
    if not isinstance(source.rows, NeighborDistances):
        return
    counts = np.diff(source.rows.matrix.indptr)
    row = int(np.argmin(counts))
    if counts[row] < n:
        found = f"{counts[row]} stored distances of sample {row}"
        allowed = f"at least {n} to others in every row, as an entry that is not stored is no neighbour"
        remedy = f"give the distances of {n} neighbours or more, such as kneighbors_graph(X, {n}, mode='distance')"
        raise BadInput(source.name, found, allowed, "its neighbourhood would be too small", remedy)


def _symmetric(matrix: sparse.csr_array, name: str) -> sparse.csr_array:
    """A matrix of distances, checked, with what is stored in either direction in both; zeros that are stored stay."""
    stored = sparse.coo_array(matrix)
    i, j, d = stored.row.astype(np.int64), stored.col.astype(np.int64), np.asarray(stored.data, np.float64)
    slack = ROUNDED_TO * np.abs(d[np.isfinite(d)]).max(initial=0.0)
    for bad, allowed in (
        (~np.isfinite(d), "finite distances"),
        (d < -slack, "distances of at least 0"),
        ((i == j) & (np.abs(d) > slack), "nothing but zeros on the diagonal"),
    ):
        if bad.any():
            at = int(np.argmax(bad))
            seen = f"the distance {d[at]:g} from sample {i[at]} to {'itself' if i[at] == j[at] else j[at]}"
            remedy = "give distances such as 1 - similarity, and leave entries of samples that are no neighbours out"
            raise BadInput(name, seen, allowed, "the farthest might be taken for neighbours", remedy)
    others = i != j
    i, j, d = i[others], j[others], np.maximum(d[others], 0.0)
    order = np.lexsort((i > j, np.maximum(i, j), np.minimum(i, j)))  # of two directions the upper triangle's counts
    low, high, d = np.minimum(i, j)[order], np.maximum(i, j)[order], d[order]
    again = np.flatnonzero((low[1:] == low[:-1]) & (high[1:] == high[:-1])) + 1
    uneven = np.abs(d[again] - d[again - 1]) > np.maximum(SYMMETRIC_TO * np.maximum(d[again], d[again - 1]), slack)
    if uneven.any():
        at = int(again[np.argmax(uneven)])
        found = f"{d[at - 1]:g} from sample {low[at]} to {high[at]} and {d[at]:g} back"
        asked = "one distance for both directions, which may be stored in one alone"
        otherwise = "the tensor would have two values for one pair"
        raise BadInput(name, found, asked, otherwise, "give D.maximum(D.T) where both directions mean the same")
    low, high, d = (np.delete(part, again) for part in (low, high, d))
    entries = np.concatenate([d, d]), (np.concatenate([low, high]), np.concatenate([high, low]))
    return sparse.csr_array(entries, shape=matrix.shape)
