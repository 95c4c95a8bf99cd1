"""Read a .mat or .mtx file by SciPy in a process of its own, which a damaged file may end.

The argument is JSON. What was found is printed as JSON; a matrix is left in the folder as ``value.npy`` or
``value.npz``, labels as ``labels.npy``.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
from typing import Any

import numpy as np
from scipy import io, sparse

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
NUMBERS = ("double", "single", "logical", "sparse", *INTEGERS)


def _read_mtx(path: str, folder: str) -> Any:
    """Return the matrix of a Matrix Market file; a gzipped one is unpacked first, as SciPy seeks in its stream."""
    with open(path, "rb") as stream:
        gzipped = stream.read(2) == b"\x1f\x8b"
    if gzipped:
        packed, path = path, os.path.join(folder, "value.mtx")
        with gzip.open(packed) as source, open(path, "wb") as target:
            shutil.copyfileobj(source, target)
    rows, columns, _, _, _, symmetry = io.mminfo(path)
    if symmetry != "general" and rows != columns:
        raise ValueError(f"a {symmetry} matrix of shape {(rows, columns)}")
    return io.mmread(path)


def _read_mat(path: str, variable: str | None, element: int | None, labels: Any = None) -> tuple[Any, Any, Any]:
    """Return the variables of a file with the one to read and the shapes of a cell's elements, a matrix, and labels.

    Without a name it is the only matrix of numbers that does not hold the ``labels``.
    """
    variables = [(name, [int(size) for size in shape], kind) for name, shape, kind in io.whosmat(path)]
    matrices = [name for name, shape, kind in variables if len(shape) == 2 and min(shape) > 1 and kind in NUMBERS]
    suitable = [name for name in matrices if name != labels]
    chosen = variable if variable is not None else suitable[0] if len(suitable) == 1 else None
    found = {"variables": variables, "matrices": matrices, "chosen": chosen, "cells": None}
    kinds = {name: kind for name, _, kind in variables}
    if chosen not in kinds:
        return found, None, None
    value, known = io.loadmat(path, variable_names=[chosen])[chosen], None
    if kinds[chosen] == "cell":
        cells = value.ravel(order="F")
        found["cells"] = [list(np.shape(cell)) for cell in cells]
        value = cells[element] if element is not None and element < len(cells) else None
    if labels in kinds and (labels != chosen or element is not None):
        known = io.loadmat(path, variable_names=[labels])[labels]
        known = (known.toarray() if sparse.issparse(known) else known).ravel(order="F")
        known = np.array([_text(cell) for cell in known]) if kinds[labels] == "cell" else known
    return found, _plain(value), _plain(known)


def _plain(value: Any) -> Any:
    return value if getattr(value, "dtype", np.dtype(object)).kind in "biufcU" else None


def _text(cell: Any) -> str:
    """Return the string, or the number, that an element of a cell holds."""
    return "".join(cell.ravel()[:1]) if cell.dtype.kind == "U" else str(cell.item())


def _main(path: str, folder: str, mtx: bool, **options: Any) -> None:
    found, value, known = ({}, _read_mtx(path, folder), None) if mtx else _read_mat(path, **options)
    if sparse.issparse(value):
        sparse.save_npz(os.path.join(folder, "value.npz"), value, compressed=False)
    elif value is not None:
        np.save(os.path.join(folder, "value.npy"), value, allow_pickle=False)
    if known is not None:
        np.save(os.path.join(folder, "labels.npy"), known, allow_pickle=False)
    print(json.dumps(found))


if __name__ == "__main__":
    try:
        _main(**json.loads(sys.argv[1]))
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
