"""MATLAB's .mat format up to version 7, read whole; 7.3, which is HDF5, is handed to its own reader."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from scipy import io

from ips2_dask.errors import BadInput
from ips2_dask.storage.readers import faults, mat73
from ips2_dask.storage.readers.base import FileStamp, Request, Table
from ips2_dask.storage.readers.labels import as_labels, take_label_column, take_label_variable
from ips2_dask.storage.readers.resident import Matrix, as_csr, is_sparse, loaded_table

CELL = re.compile(r"(?P<variable>[^\[\]{}]+)(\[(?P<zero>\d+)\]|\{(?P<one>[1-9]\d*)\})")
NUMERIC = frozenset(
    ["double", "single", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "logical", "sparse"]
)


def open_file(request: Request) -> Table:
    """Return the table of a variable; its labels may be another variable or one of its columns.

    ``file.mat::X`` is a matrix, ``file.mat::X[1]`` the second element of a cell, which MATLAB writes ``X{2}`` and
    which may be named so too.
    """
    stamp = FileStamp.of(request)
    with faults.reading(request.name):
        is_hdf5 = h5py.is_hdf5(request.path)
    if is_hdf5:
        return mat73.open_mat73(request, stamp, *split_cell(request.member))
    with faults.reading(request.name):
        there = {name: (shape, kind) for name, shape, kind in io.whosmat(request.path)}
    variable, element = split_cell(request.member)
    chosen = choose(request, variable, there)
    load = partial(_load_matrix, stamp, chosen, element, request.transpose)
    table = loaded_table(load, stamp, stamp.digest("mat", chosen, element, request.transpose))
    wanted = request.labels_column
    if wanted is None:
        return table
    if wanted not in there or (wanted == chosen and element is None):
        return take_label_column(table, wanted)
    count = int(np.prod(there[str(wanted)][0], dtype=object))
    if there[str(wanted)][1] == "char":
        count = int(there[str(wanted)][0][0])
    return take_label_variable(table, str(wanted), count, partial(_load_labels, stamp, str(wanted)))


def split_cell(member: str | None) -> tuple[str | None, int | None]:
    """Return the variable that a name means, and the element of it, from 0, if it is a cell."""
    match = CELL.fullmatch(member) if member else None
    if match is None:
        return member, None
    element = int(match["zero"]) if match["zero"] is not None else int(match["one"]) - 1
    return match["variable"], element


def choose(request: Request, variable: str | None, there: Mapping[str, tuple[Sequence[int], str]]) -> str:
    """Return the variable to read: the one named, or the only matrix of numbers."""
    if variable is not None:
        if variable not in there:
            raise faults.absent(request.name, "variable", variable, list(there))
        return variable
    suitable = [
        name
        for name, (shape, kind) in there.items()
        if len(shape) == 2 and min(shape) > 1 and kind in NUMERIC and name != request.labels_column
    ]
    if len(suitable) != 1:
        described = [f"{name} {tuple(shape)} {kind}" for name, (shape, kind) in there.items()]
        raise faults.undecided(request.name, "variable", suitable, described)
    return suitable[0]


def not_a_cell(name: str, variable: str, found: str) -> BadInput:
    """Return the fault of an element that was asked of something that is no cell or is too short."""
    return BadInput(
        name,
        f"{variable!r}, which is {found}",
        "an element that is in a cell",
        "there would be nothing to read",
        f"name the matrix itself, {variable}, or an element there is, {variable}[0]",
    )


def _load(stamp: FileStamp, variable: str) -> Any:
    with faults.reading(stamp.name), warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning of loadmat is about damaged or doubled variables
        return io.loadmat(stamp.path, variable_names=[variable])[variable]


def _load_matrix(stamp: FileStamp, variable: str, element: int | None, transpose: bool) -> Matrix:
    matrix, name = _load(stamp, variable), stamp.name
    if element is not None:
        matrix = _element(matrix, variable, element, name)
    elif isinstance(matrix, np.ndarray) and matrix.dtype == object:
        parts = [f"{variable}[{at}] {getattr(part, 'shape', '')}" for at, part in enumerate(matrix.ravel(order="F"))]
        raise BadInput(
            name,
            f"{variable!r}, a cell ({faults.listing(parts)})",
            "a matrix of numbers",
            "it would be unclear which of them to read",
            f"name one of its elements, as in file.mat::{variable}[0]",
        )
    if is_sparse(matrix):
        return as_csr(matrix.T if transpose else matrix, name)
    return matrix.T if transpose else matrix


def _element(cell: Any, variable: str, element: int, name: str) -> Any:
    if not isinstance(cell, np.ndarray) or cell.dtype != object:
        raise not_a_cell(name, variable, f"no cell but has the shape {getattr(cell, 'shape', ())}")
    if element >= cell.size:
        raise not_a_cell(name, variable, f"a cell of {cell.size}")
    return cell.ravel(order="F")[element]


def _load_labels(stamp: FileStamp, variable: str) -> NDArray[Any]:
    stamp.check()
    values = _load(stamp, variable)
    if is_sparse(values):
        values = values.toarray()
    if values.dtype == object:  # a cell of strings: each is an array of its own
        values = np.array([part.item() if getattr(part, "size", 0) == 1 else None for part in values.ravel(order="F")])
    return as_labels(values.ravel(order="F"), stamp.name)
