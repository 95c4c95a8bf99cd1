"""MATLAB's .mat format: versions 4 to 7, read whole, and 7.3, which is HDF5 and read in parts."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import h5py
import numpy as np
from numpy.typing import NDArray
from scipy import io, sparse

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults
from ips2_dask.readers.base import FileStamp, Labels, Request, Table, is_matrix
from ips2_dask.readers.containers import Compressed, compressed_table
from ips2_dask.readers.hdf5 import (
    Hdf5Container,
    check_inside,
    dataset_table,
    find_dataset,
    is_dataset,
    label_pieces,
    open_hdf5_file,
)
from ips2_dask.readers.labels import LabelReader, as_labels, take_label_column, take_label_variable
from ips2_dask.readers.matrices import Matrix, as_csr, is_sparse, loaded_table

CELL = re.compile(r"(?P<variable>[^\[\]{}]+)(\[(?P<zero>\d+)\]|\{(?P<one>[1-9]\d*)\})")
Variables = Mapping[str, tuple[tuple[int, ...], str]]  # name: shape and MATLAB's class


def open_mat(request: Request) -> Table:
    """Return the table of a variable; its labels may be another variable or one of its columns.

    ``file.mat::X`` is a matrix, ``file.mat::X[1]`` the second element of a cell, which MATLAB writes ``X{2}`` and
    which may be named so too.
    """
    stamp = FileStamp.of(request)
    with faults.reading(request.name):
        is_hdf5 = h5py.is_hdf5(request.path)
    variable, element = _split_cell(request.member)
    if is_hdf5:
        return _open_mat73(request, stamp, variable, element)
    variables = _list_variables(stamp)
    chosen = _choose_variable(request, variable, variables)
    load = partial(_load_matrix, stamp, chosen, element, request.transpose)
    table = loaded_table(load, stamp, stamp.digest("mat", chosen, element, request.transpose))
    labels_column = request.labels_column
    if labels_column not in variables or (labels_column == chosen and element is None):
        return take_label_column(table, labels_column)
    shape, kind = variables[str(labels_column)]
    count = int(shape[0] if kind == "char" else np.prod(shape, dtype=object))
    return take_label_variable(table, str(labels_column), count, partial(_load_labels, stamp, str(labels_column)))


def _split_cell(member: str | None) -> tuple[str | None, int | None]:
    """Return the variable that a name means, and the element of it, from 0, if it is a cell."""
    match = CELL.fullmatch(member) if member else None
    if match is None:
        return member, None
    element = int(match["zero"]) if match["zero"] is not None else int(match["one"]) - 1
    return match["variable"], element


def _choose_variable(request: Request, variable: str | None, variables: Variables) -> str:
    """Return the variable to read: the one named, or the only matrix of numbers."""
    if variable is not None:
        if variable not in variables:
            raise faults.absent(request.name, "variable", variable, list(variables))
        return variable
    suitable = [
        name
        for name, (shape, kind) in variables.items()
        if len(shape) == 2
        and min(shape) > 1
        and (kind in NUMERIC_CLASSES or kind == "sparse")
        and name != request.labels_column
    ]
    if len(suitable) != 1:
        described = [f"{name} {shape} {kind}" for name, (shape, kind) in variables.items()]
        raise faults.undecided(request.name, "variable", suitable, described)
    return suitable[0]


def _is_version_4(stamp: FileStamp) -> bool:
    return bool(io.matlab.matfile_version(stamp.path)[0] == 0)


def _list_variables(stamp: FileStamp) -> Variables:
    """Return the variables of a file."""
    with faults.reading(stamp.name):
        if _is_version_4(stamp):
            return {name: (tuple(shape), str(kind)) for name, shape, kind in io.whosmat(stamp.path)}
        return {variable.name: (variable.shape, variable.kind) for variable in _read_variables(stamp.path)}


def _load_matrix(stamp: FileStamp, variable: str, element: int | None, transpose: bool) -> Matrix:
    name = stamp.name
    with faults.reading(name):
        if _is_version_4(stamp):
            matrix = io.loadmat(stamp.path, variable_names=[variable])[variable]
            matrix = as_csr(matrix, name) if is_sparse(matrix) else matrix
        else:
            matrix = _matrix_of(_matrix_variable(_load_variable(stamp.path, variable), element, name), name)
        return as_csr(matrix.T, name) if transpose and is_sparse(matrix) else matrix.T if transpose else matrix


def _matrix_variable(variable: Variable, element: int | None, name: str) -> Variable:
    """Return the matrix that is meant: the variable itself, or an element of it if it is a cell."""
    title = variable.name
    if variable.kind == "cell":
        cells = _cells_of(variable)
        if element is not None and element < len(cells):
            return cells[element]
        parts = faults.listing([f"{title}[{number}] {cell.shape}" for number, cell in enumerate(cells)])
        problem = f"{title!r}, a cell of {len(cells)} ({parts})"
        raise BadInput(name, problem, "one of its elements", "it would be unclear what to read", f"name {title}[0]")
    if element is not None:
        problem = f"{title!r}, which is no cell but a {variable.kind} of shape {variable.shape}"
        raise BadInput(name, problem, "an element of a cell", "there would be nothing to read", f"name {title} itself")
    if variable.kind != "sparse" and variable.kind not in NUMERIC_CLASSES:
        raise faults.textual(name, f"{title!r}, a {variable.kind} and no matrix of numbers")
    return variable


def _load_labels(stamp: FileStamp, variable: str) -> Labels:
    stamp.check()
    with faults.reading(stamp.name):
        if _is_version_4(stamp):
            values = io.loadmat(stamp.path, variable_names=[variable])[variable]
            return as_labels(values.ravel(order="F"), stamp.name)
        stored = _load_variable(stamp.path, variable)
        if stored.kind == "char":
            return as_labels(np.array(_texts_of(stored)), stamp.name)
        if stored.kind == "cell":
            return as_labels(np.array([_cell_text(cell) for cell in _cells_of(stored)]), stamp.name)
        labels = _matrix_of(stored, stamp.name)
        labels = labels.toarray() if is_sparse(labels) else labels
    return as_labels(labels.ravel(order="F"), stamp.name)


def _cell_text(cell: Variable) -> str:
    """Return the string, or the number, that an element of a cell holds."""
    if cell.kind == "char":
        return "".join(_texts_of(cell)[:1])
    return str(_matrix_of(cell, cell.name).item())


# Versions 5 to 7 are read here and not by SciPy, which believes a file's types, lengths and indices: a damaged one ends
# the process.
Order = Literal["<", ">"]
MATRIX, COMPRESSED = 14, 15
NUMBER_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
TEXT_ENCODINGS = {2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
INTEGER_CLASSES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
CLASSES = (
    "unknown",
    "cell",
    "struct",
    "object",
    "char",
    "sparse",
    "double",
    "single",
    *INTEGER_CLASSES,
    "function",
    "opaque",
)
NUMERIC_CLASSES = frozenset(("double", "single", "logical", *INTEGER_CLASSES))
COMPLEX, LOGICAL = 0x0800, 0x0200
HEADER_BYTES, ENDIAN_AT = 128, 126


@dataclass(frozen=True)
class Element:
    """One tagged piece of data: its type and its bytes."""

    kind: int
    data: memoryview
    order: Order


@dataclass(frozen=True)
class Variable:
    """A variable: its name, MATLAB's class of it, its shape, and the elements that hold its values."""

    name: str
    kind: str
    flags: int
    shape: tuple[int, ...]
    parts: list[Element]


def _read_variables(path: str) -> Iterator[Variable]:
    """Yield the variables of a file one after the other, unpacked."""
    with open(path, "rb") as stream:
        whole = memoryview(stream.read())
    order: Order = "<" if bytes(whole[ENDIAN_AT:HEADER_BYTES]) == b"IM" else ">"
    for element in _elements(whole[HEADER_BYTES:], order):
        if element.kind == MATRIX and len(element.data):
            yield _variable(element)


def _load_variable(path: str, name: str) -> Variable:
    """Return the variable of that name."""
    for variable in _read_variables(path):
        if variable.name == name:
            return variable
    raise KeyError(name)


def _matrix_of(variable: Variable, name: str) -> Matrix:
    """Return the numbers of a variable, an array by column or CSR; ``name`` is what the user wrote."""
    if variable.kind == "sparse":
        return as_csr(_sparse_matrix(variable), name)
    if variable.kind not in NUMERIC_CLASSES:
        raise TypeError(f"{variable.name!r} is a {variable.kind}")
    values = _part_values(variable, 0)
    return values.reshape(variable.shape, order="F")


def _cells_of(variable: Variable) -> list[Variable]:
    """Return the elements of a cell, by column."""
    return [_variable(part) for part in variable.parts]


def _texts_of(variable: Variable) -> list[str]:
    """Return the rows of a matrix of characters."""
    data = variable.parts[0]
    encoding = TEXT_ENCODINGS[data.kind]
    suffix = "" if data.kind in (2, 16) else "-le" if data.order == "<" else "-be"
    letters = list(bytes(data.data).decode(encoding + suffix))
    return ["".join(row) for row in np.array(letters, dtype="U1").reshape(variable.shape, order="F")]


def _elements(data: memoryview, order: Order) -> Iterator[Element]:
    """Yield the elements that follow one another in ``data``, unpacked."""
    while len(data) >= 8:
        kind, length = struct.unpack(f"{order}II", data[:8])
        if kind >> 16:  # a small element: length and type share a word, and the data take the next
            kind, length = kind & 0xFFFF, kind >> 16
            start, stop = 4, 8
        else:  # each of the others but the packed ones starts at a multiple of eight bytes
            start, stop = 8, 8 + length + (0 if kind == COMPRESSED else -length % 8)
        body = data[start : start + length]
        if len(body) < length or (start == 4 and length > 4):
            raise EOFError(f"an element of {length} bytes, of which {len(body)} are there")
        if kind == COMPRESSED:
            yield from _elements(memoryview(zlib.decompress(body)), order)
        else:
            yield Element(kind, body, order)
        data = data[stop:]


def _variable(element: Element) -> Variable:
    flags, shape, name, *parts = _elements(element.data, element.order)
    bits = int(_numbers(flags)[0])
    kind = CLASSES[bits & 0xFF]
    return Variable(
        name=bytes(name.data).decode("latin-1"),
        kind="logical" if bits & LOGICAL and kind != "sparse" else kind,
        flags=bits,
        shape=tuple(int(size) for size in _numbers(shape)),
        parts=parts,
    )


def _numbers(element: Element) -> NDArray[np.integer | np.floating]:
    kind = np.dtype(NUMBER_TYPES[element.kind])
    return np.frombuffer(element.data, kind.newbyteorder(element.order)).astype(kind, copy=False)


def _part_values(variable: Variable, first_part: int) -> NDArray[np.number | np.bool_]:
    """Return the values of a part, and the imaginary ones of the next, in the stored type.

    That type may be smaller than MATLAB's class of the variable.
    """
    values = _numbers(variable.parts[first_part])
    if variable.flags & COMPLEX:
        return values + 1j * _numbers(variable.parts[first_part + 1])
    return values.astype(np.bool_) if variable.flags & LOGICAL else values


def _sparse_matrix(variable: Variable) -> sparse.csc_array:
    indices, pointers = _numbers(variable.parts[0]), _numbers(variable.parts[1])
    values = _part_values(variable, 2)
    n_entries = int(pointers[-1])  # MATLAB may have left room for more
    if not 0 <= n_entries <= min(len(values), len(indices)):
        raise ValueError(f"{len(indices)} indices and {len(values)} values for {n_entries} entries")
    return sparse.csc_array((values[:n_entries], indices[:n_entries], pointers), shape=variable.shape)


# Version 7.3 is HDF5 whose matrices are stored by column, so that their rows are the datasets' columns.
def _open_mat73(request: Request, stamp: FileStamp, variable: str | None, element: int | None) -> Table:
    """Return the table of a variable; its labels may be another variable or one of its columns."""
    with open_hdf5_file(request.path, request.name) as file:
        names = [name for name in file if not name.startswith("#")]
        chosen = _choose_mat73(file, request, names) if variable is None else variable
        if chosen not in names:
            raise faults.absent(request.name, "variable", chosen, names)
        matrix = _find_matrix(file, chosen, element, request.name)
        table = _mat73_table(stamp, file, matrix, request.transpose)
        labels_column = request.labels_column
        if labels_column not in names or labels_column == chosen:
            return take_label_column(table, labels_column)
        labels = find_dataset(file, str(labels_column), request.name)
        count = labels.shape[-1] if _matlab_class(labels) == "char" else int(labels.size or 0)
        kept_as_text = _matlab_class(labels) in ("cell", "char")
        reader = (
            partial(_read_mat73_texts, stamp, str(labels_column))
            if kept_as_text
            else LabelReader(stamp.name, partial(label_pieces, stamp, str(labels_column)))
        )
        return take_label_variable(table, str(labels_column), int(count), reader)


def _matlab_class(node: h5py.Group | h5py.Dataset) -> str:
    """Return MATLAB's class of a variable."""
    stored = node.attrs.get("MATLAB_class", b"")
    return stored.decode() if isinstance(stored, bytes) else str(stored)


def _is_sparse_group(node: h5py.Group | h5py.Dataset) -> bool:
    return isinstance(node, h5py.Group) and "MATLAB_sparse" in node.attrs


def _unlinked(file: h5py.File, name: str) -> h5py.Group | h5py.Dataset | None:
    """Return a variable of the file, but nothing that is behind a link."""
    return file[name] if isinstance(file.get(name, getlink=True), h5py.HardLink) else None


def _choose_mat73(file: h5py.File, request: Request, names: list[str]) -> str:
    """Return the only variable that is a matrix of numbers."""
    suitable, described = [], []
    for name in names:
        node = _unlinked(file, name)
        shape = node.shape[::-1] if isinstance(node, h5py.Dataset) and node.shape is not None else ()
        described.append(f"{name} {shape} {_matlab_class(node) if node is not None else 'link'}")
        is_numeric = isinstance(node, h5py.Dataset) and is_matrix(shape, node.dtype) and _matlab_class(node) != "char"
        if name != request.labels_column and (_is_sparse_group(node) or is_numeric):
            suitable.append(name)
    if len(suitable) != 1:
        raise faults.undecided(request.name, "variable", suitable, described)
    return suitable[0]


def _find_matrix(file: h5py.File, variable: str, element: int | None, name: str) -> h5py.Group | h5py.Dataset:
    """Return the dataset or sparse group that holds a variable, or an element of one."""
    node = _unlinked(file, variable)
    if node is None or isinstance(node, h5py.Dataset):
        node = find_dataset(file, variable, name)
    is_cell = _matlab_class(node) == "cell"
    if is_cell != (element is not None):
        raise BadInput(
            name,
            f"{variable!r}, {f'a cell of {node.size}' if is_cell else 'which is no cell'}",
            "one matrix of numbers",
            "it would be unclear what to read",
            f"name it as {variable}[0]" if is_cell else f"name it as {variable}",
        )
    if element is None:
        return node
    references = node[...].ravel()  # stored by column, so in MATLAB's order
    if element >= len(references):
        raise BadInput(
            name,
            f"{variable!r}, a cell of {len(references)}",
            "an element that is in the cell",
            "there would be nothing to read",
            f"name one from {variable}[0] to {variable}[{len(references) - 1}]",
        )
    return file[references[element]]


def _mat73_table(stamp: FileStamp, file: h5py.File, node: h5py.Group | h5py.Dataset, transpose: bool) -> Table:
    if _is_sparse_group(node):
        return _mat73_sparse_table(stamp, file, node, transpose)
    if not isinstance(node, h5py.Dataset) or _matlab_class(node) == "char":
        what = f"of MATLAB's class {_matlab_class(node) or 'struct'}"
        raise faults.textual(stamp.name, f"{node.name!r} {what}, which is no matrix of numbers")
    check_inside(node, stamp.name)
    return dataset_table(stamp, node, transpose=not transpose)


def _mat73_sparse_table(stamp: FileStamp, file: h5py.File, group: h5py.Group, transpose: bool) -> Table:
    """Return the table of a sparse variable: ``jc`` points into ``ir`` and ``data``, column by column."""
    rows = int(group.attrs["MATLAB_sparse"])
    if not is_dataset(group, "data"):
        raise BadInput(
            stamp.name,
            f"no entries in the sparse matrix {group.name!r}",
            "at least one value that is not zero",
            "all samples would be equal",
            "check that it is the right variable",
        )
    jc = find_dataset(file, f"{group.name}/jc", stamp.name)
    parts = (f"{group.name}/data", f"{group.name}/ir", f"{group.name}/jc")
    matrix = Compressed(parts, shape=(rows, len(jc) - 1), by_row=False)
    return compressed_table(Hdf5Container(stamp), file, matrix.transposed() if transpose else matrix)


def _read_mat73_texts(stamp: FileStamp, variable: str) -> Labels:
    """Return labels that are a cell of texts, or the rows of a matrix of characters."""
    stamp.check()
    name = stamp.name
    with open_hdf5_file(stamp.path, name) as file:
        dataset = find_dataset(file, variable, name)
        values = dataset[...]
        if _matlab_class(dataset) == "cell":
            texts = [_dataset_text(file[reference], name) for reference in values.ravel()]
        else:
            texts = [_text_of_codes(row) for row in values.T]
    return as_labels(np.array(texts), name)


def _dataset_text(dataset: h5py.Dataset, name: str) -> str:
    check_inside(dataset, name)
    return _text_of_codes(dataset[...].ravel()) if _matlab_class(dataset) == "char" else str(dataset[...].item())


def _text_of_codes(codes: NDArray[np.integer]) -> str:
    return "".join(map(chr, codes.tolist()))
