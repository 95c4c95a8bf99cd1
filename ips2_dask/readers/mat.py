"""MATLAB's .mat format up to version 7, read whole; 7.3, which is HDF5, is handed to its own reader."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from scipy import io

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults, mat5, mat73
from ips2_dask.readers.base import FileStamp, Request, Table
from ips2_dask.readers.labels import as_labels, take_label_column, take_label_variable
from ips2_dask.readers.resident import Matrix, as_csr, is_sparse, loaded_table

CELL = re.compile(r"(?P<variable>[^\[\]{}]+)(\[(?P<zero>\d+)\]|\{(?P<one>[1-9]\d*)\})")
Known = Mapping[str, tuple[tuple[int, ...], str]]  # name: shape and MATLAB's class


def open_file(request: Request) -> Table:
    """Return the table of a variable; its labels may be another variable or one of its columns.

    ``file.mat::X`` is a matrix, ``file.mat::X[1]`` the second element of a cell, which MATLAB writes ``X{2}`` and
    which may be named so too.
    """
    stamp = FileStamp.of(request)
    with faults.reading(request.name):
        is_hdf5 = h5py.is_hdf5(request.path)
    variable, element = split_cell(request.member)
    if is_hdf5:
        return mat73.open_mat73(request, stamp, variable, element)
    there = _known(stamp)
    chosen = choose(request, variable, there)
    load = partial(_load_matrix, stamp, chosen, element, request.transpose)
    table = loaded_table(load, stamp, stamp.digest("mat", chosen, element, request.transpose))
    wanted = request.labels_column
    if wanted is None:
        return table
    if wanted not in there or (wanted == chosen and element is None):
        return take_label_column(table, wanted)
    shape, kind = there[str(wanted)]
    count = int(shape[0] if kind == "char" else np.prod(shape, dtype=object))
    return take_label_variable(table, str(wanted), count, partial(_load_labels, stamp, str(wanted)))


def split_cell(member: str | None) -> tuple[str | None, int | None]:
    """Return the variable that a name means, and the element of it, from 0, if it is a cell."""
    match = CELL.fullmatch(member) if member else None
    if match is None:
        return member, None
    element = int(match["zero"]) if match["zero"] is not None else int(match["one"]) - 1
    return match["variable"], element


def choose(request: Request, variable: str | None, there: Known) -> str:
    """Return the variable to read: the one named, or the only matrix of numbers."""
    if variable is not None:
        if variable not in there:
            raise faults.absent(request.name, "variable", variable, list(there))
        return variable
    suitable = [
        name
        for name, (shape, kind) in there.items()
        if len(shape) == 2
        and min(shape) > 1
        and (kind in mat5.NUMERIC or kind == "sparse")
        and name != request.labels_column
    ]
    if len(suitable) != 1:
        described = [f"{name} {shape} {kind}" for name, (shape, kind) in there.items()]
        raise faults.undecided(request.name, "variable", suitable, described)
    return suitable[0]


def _is_version_4(stamp: FileStamp) -> bool:
    return bool(io.matlab.matfile_version(stamp.path)[0] == 0)


def _known(stamp: FileStamp) -> Known:
    """Return the variables of a file."""
    with faults.reading(stamp.name):
        if _is_version_4(stamp):
            return {name: (tuple(shape), str(kind)) for name, shape, kind in io.whosmat(stamp.path)}
        return {found.name: (found.shape, found.kind) for found in mat5.variables(stamp.path)}


def _load_matrix(stamp: FileStamp, variable: str, element: int | None, transpose: bool) -> Matrix:
    name = stamp.name
    with faults.reading(name):
        if _is_version_4(stamp):
            matrix = io.loadmat(stamp.path, variable_names=[variable])[variable]
            matrix = as_csr(matrix, name) if is_sparse(matrix) else matrix
        else:
            matrix = mat5.matrix_of(_inner(mat5.load(stamp.path, variable), element, name), name)
        return as_csr(matrix.T, name) if transpose and is_sparse(matrix) else matrix.T if transpose else matrix


def _inner(variable: mat5.Variable, element: int | None, name: str) -> mat5.Variable:
    """Return the matrix that is meant: the variable itself, or an element of it if it is a cell."""
    title = variable.name
    if variable.kind == "cell":
        cells = mat5.cells_of(variable)
        if element is not None and element < len(cells):
            return cells[element]
        parts = faults.listing([f"{title}[{at}] {cell.shape}" for at, cell in enumerate(cells)])
        found = f"{title!r}, a cell of {len(cells)} ({parts})"
        raise BadInput(name, found, "one of its elements", "it would be unclear what to read", f"name {title}[0]")
    if element is not None:
        found = f"{title!r}, which is no cell but a {variable.kind} of shape {variable.shape}"
        raise BadInput(name, found, "an element of a cell", "there would be nothing to read", f"name {title} itself")
    if variable.kind != "sparse" and variable.kind not in mat5.NUMERIC:
        raise faults.textual(name, f"{title!r}, a {variable.kind} and no matrix of numbers")
    return variable


def _load_labels(stamp: FileStamp, variable: str) -> NDArray[Any]:
    stamp.check()
    with faults.reading(stamp.name):
        if _is_version_4(stamp):
            values = io.loadmat(stamp.path, variable_names=[variable])[variable]
            return as_labels(values.ravel(order="F"), stamp.name)
        found = mat5.load(stamp.path, variable)
        if found.kind == "char":
            return as_labels(np.array(mat5.texts_of(found)), stamp.name)
        if found.kind == "cell":
            return as_labels(np.array([_text(cell) for cell in mat5.cells_of(found)]), stamp.name)
        labels = mat5.matrix_of(found, stamp.name)
        labels = labels.toarray() if is_sparse(labels) else labels
    return as_labels(labels.ravel(order="F"), stamp.name)


def _text(cell: mat5.Variable) -> str:
    """Return the string, or the number, that an element of a cell holds."""
    if cell.kind == "char":
        return "".join(mat5.texts_of(cell)[:1])
    return str(mat5.matrix_of(cell, cell.name).item())
