"""The variables of MATLAB files of version 5 to 7.

Read here and not by SciPy, which believes a file's types, lengths and indices: a damaged one ends the process.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ips2_dask.readers.resident import as_csr

Order = Literal["<", ">"]
MATRIX, COMPRESSED = 14, 15
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
LETTERS = {2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
WHOLE = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
KINDS = ("unknown", "cell", "struct", "object", "char", "sparse", "double", "single", *WHOLE, "function", "opaque")
NUMERIC = frozenset(("double", "single", "logical", *WHOLE))
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


def variables(path: str) -> Iterator[Variable]:
    """Yield the variables of a file one after the other, unpacked."""
    with open(path, "rb") as stream:
        whole = memoryview(stream.read())
    order: Order = "<" if bytes(whole[ENDIAN_AT:HEADER_BYTES]) == b"IM" else ">"
    for element in _elements(whole[HEADER_BYTES:], order):
        if element.kind == MATRIX and len(element.data):
            yield _variable(element)


def load(path: str, name: str) -> Variable:
    """Return the variable of that name."""
    for variable in variables(path):
        if variable.name == name:
            return variable
    raise KeyError(name)


def matrix_of(variable: Variable, name: str) -> Any:
    """Return the numbers of a variable, an array by column or CSR; ``name`` is what the user wrote."""
    if variable.kind == "sparse":
        return as_csr(_sparse(variable), name)
    if variable.kind not in NUMERIC:
        raise TypeError(f"{variable.name!r} is a {variable.kind}")
    values = _values(variable, 0)
    return values.reshape(variable.shape, order="F")


def cells_of(variable: Variable) -> list[Variable]:
    """Return the elements of a cell, by column."""
    return [_variable(part) for part in variable.parts]


def texts_of(variable: Variable) -> list[str]:
    """Return the rows of a matrix of characters."""
    data = variable.parts[0]
    encoding = LETTERS[data.kind]
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
    kind = KINDS[bits & 0xFF]
    return Variable(
        name=bytes(name.data).decode("latin-1"),
        kind="logical" if bits & LOGICAL and kind != "sparse" else kind,
        flags=bits,
        shape=tuple(int(size) for size in _numbers(shape)),
        parts=parts,
    )


def _numbers(element: Element) -> NDArray[Any]:
    kind = np.dtype(NUMBERS[element.kind])
    return np.frombuffer(element.data, kind.newbyteorder(element.order)).astype(kind, copy=False)


def _values(variable: Variable, at: int) -> NDArray[Any]:
    """Return the values that start at a part, in the type they are stored as, which may be smaller than the class."""
    values = _numbers(variable.parts[at])
    if variable.flags & COMPLEX:
        return values + 1j * _numbers(variable.parts[at + 1])
    return values.astype(np.bool_) if variable.flags & LOGICAL else values


def _sparse(variable: Variable) -> Any:
    indices, pointers = _numbers(variable.parts[0]), _numbers(variable.parts[1])
    values = _values(variable, 2)
    n_entries = int(pointers[-1])  # MATLAB may have left room for more
    if not 0 <= n_entries <= min(len(values), len(indices)):
        raise ValueError(f"{len(indices)} indices and {len(values)} values for {n_entries} entries")
    return sparse.csc_array((values[:n_entries], indices[:n_entries], pointers), shape=variable.shape)
