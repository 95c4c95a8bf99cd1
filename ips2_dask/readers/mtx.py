"""The Matrix Market format, .mtx and .mtx.gz, read whole.

Read here and not by SciPy, whose parser writes outside of its arrays where a body does not keep its header's promise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults
from ips2_dask.readers.base import FileStamp, Request, Table, check_dtype, check_shape
from ips2_dask.readers.labels import take_label_column
from ips2_dask.readers.matrices import Matrix, as_csr, loaded_table
from ips2_dask.readers.text import Layout, parse_numbers, text_blocks

SYMMETRIES = {"general": 0, "symmetric": 1, "skew-symmetric": -1}


@dataclass(frozen=True)
class Header:
    """The banner and sizes in the first lines of a file, and where its body starts."""

    dense: bool
    field: str
    mirrored: int  # 0, or the sign of the entries that are not written
    shape: tuple[int, int]
    n_entries: int
    offset: int
    first_line: int


def open_mtx(request: Request) -> Table:
    """Return the table of a Matrix Market file, of which one column may hold the labels."""
    stamp = FileStamp.of(request)
    header = _read_header(request.path, request.name)
    load = partial(_load, stamp, header, request.transpose)
    table = loaded_table(load, stamp, stamp.digest("mtx", request.transpose))
    return take_label_column(table, request.labels_column)


def _read_header(path: str, name: str) -> Header:
    """Read the banner, pass over the comments and read the sizes.

    Raises
    ------
    BadInput
        If there is no such header, or the matrix is complex or empty.
    """
    head = next(text_blocks(path, name), None)
    lines = [] if head is None else head.data.splitlines(keepends=True)
    dense, field, symmetry = _banner(lines, name)
    bodies = (index for index, line in enumerate(lines) if line.strip() and not line.startswith(b"%"))
    index = next(bodies, len(lines) - 1)
    sizes = lines[index].split()
    if len(sizes) != (2 if dense else 3) or not all(size.isdigit() and len(size) < 16 for size in sizes):
        raise _broken(name, f"the sizes {lines[index].decode('ascii', 'replace').strip()[:40]!r} in line {index + 1}")
    rows, columns = check_shape(name, (int(sizes[0]), int(sizes[1])))
    mirrored = SYMMETRIES[symmetry]
    if mirrored and rows != columns:
        raise _broken(name, f"a {symmetry} matrix of shape {(rows, columns)}")
    entries = _n_values(rows, columns, mirrored) if dense else int(sizes[2])
    offset = sum(map(len, lines[: index + 1]))
    return Header(dense, field, mirrored, (rows, columns), entries, offset, index + 2)


def _banner(lines: list[bytes], name: str) -> tuple[bool, str, str]:
    """Return whether a matrix is dense, the field of its values and its symmetry, from the first line."""
    words = lines[0].decode("ascii", "replace").lower().split() if lines else []
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"] or words[2] not in ("coordinate", "array"):
        raise _broken(name, "no line '%%MatrixMarket matrix coordinate|array ...' at its start")
    _, _, form, field, symmetry = words
    if field == "complex":
        check_dtype(name, np.dtype(np.complex128))
    if field not in ("real", "double", "integer", "pattern") or symmetry not in SYMMETRIES:
        raise _broken(name, f"the unknown kind {field + ' ' + symmetry!r}")
    return form == "array", field, symmetry


def _n_values(rows: int, columns: int, mirrored: int) -> int:
    """Return how many values a dense body has: all, or those on and below the diagonal, or below it."""
    return rows * columns if mirrored == 0 else rows * (rows + mirrored) // 2


def _load(stamp: FileStamp, header: Header, transpose: bool) -> Matrix:
    with faults.reading(stamp.name):
        body = np.concatenate([np.empty((0, _n_fields(header))), *_body(stamp, header)])
    matrix = _dense(body, header, stamp.name) if header.dense else _sparse(body, header, stamp.name)
    matrix = matrix.T if transpose else matrix
    return matrix if header.dense else as_csr(matrix, stamp.name)


def _n_fields(header: Header) -> int:
    return 1 if header.dense else 2 if header.field == "pattern" else 3


def _body(stamp: FileStamp, header: Header) -> Iterator[NDArray[np.float64]]:
    """Yield the lines of the body as numbers, float64 (lines, fields), block by block, and check their number."""
    layout = Layout(None, _n_fields(header), None, None, None, header.offset, header.first_line)
    count = 0
    for block in text_blocks(stamp.path, stamp.name, None, header.offset, header.first_line):
        values = parse_numbers(block, layout, stamp.name, count)
        count += len(values)
        if count > header.n_entries:
            break
        yield values
    if count != header.n_entries:
        more = " or more" if count > header.n_entries else ""
        raise _broken(stamp.name, f"{count}{more} entries where its header promises {header.n_entries}")


def _typed(values: NDArray[np.float64], header: Header) -> NDArray[np.int64] | NDArray[np.float64]:
    """Return integers as such, unless they are too large to have passed through a float unharmed."""
    whole = header.field == "integer" and bool((np.abs(values) < 2.0**53).all())
    return values.astype(np.int64) if whole else values


def _dense(body: NDArray[np.float64], header: Header, name: str) -> NDArray[np.number]:
    values = _typed(body[:, 0], header)
    if not header.mirrored:
        return values.reshape(header.shape[::-1]).T  # by column
    with faults.reading(name):
        matrix = np.zeros(header.shape, values.dtype)
    columns, rows = np.triu_indices(header.shape[0], 0 if header.mirrored == 1 else 1)
    matrix[columns, rows] = header.mirrored * values
    matrix[rows, columns] = values
    return matrix


def _sparse(body: NDArray[np.float64], header: Header, name: str) -> sparse.coo_array:
    places = body[:, :2] - 1
    outside = ~((places >= 0) & (places < header.shape) & (places == np.rint(places))).all(axis=1)
    if outside.any():
        entry = int(np.argmax(outside))
        raise _broken(
            name, f"the place {body[entry, :2].tolist()} of entry {entry} outside of its shape {header.shape}"
        )
    rows, columns = places.astype(np.int64).T
    values = np.ones(len(body)) if header.field == "pattern" else _typed(body[:, 2], header)
    if header.mirrored:
        off = rows != columns
        rows, columns = np.concatenate([rows, columns[off]]), np.concatenate([columns, rows[off]])
        values = np.concatenate([values, header.mirrored * values[off]])
    return sparse.coo_array((values, (rows, columns)), shape=header.shape)


def _broken(name: str, found: str) -> BadInput:
    return BadInput(
        name,
        found,
        "a Matrix Market file whose body is what its header says",
        "entries would be missing or misplaced",
        "write or download the file again",
    )
