"""Formats that SciPy reads whole, .mtx and .mat up to version 7, and .mat 7.3, which is HDF5 and read in parts."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from scipy import sparse

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults, scipy_child
from ips2_dask.readers.base import FileStamp, Request, Table, is_matrix, loaded_table
from ips2_dask.readers.columns import take_label_variable
from ips2_dask.readers.trees import Hdf5Tree, Node, compressed_table, is_array, label_pieces
from ips2_dask.typing import AnyArray

CELL = re.compile(r"(?P<variable>[^\[\]{}]+)(\[(?P<zero>\d+)\]|\{(?P<one>[1-9]\d*)\})")


def _read_by_scipy(stamp: FileStamp, **options: object) -> tuple[dict[str, Any], Any, AnyArray | None]:
    """Return what `scipy_child` finds in a file, and the matrix and the labels of it.

    SciPy believes a file's types, lengths and indices, so that a damaged one may end the process that reads it.
    """
    stamp.check()
    with tempfile.TemporaryDirectory(prefix="ips2-") as folder:
        words = json.dumps({"path": stamp.path, "folder": folder, **options})
        command = [sys.executable, "-P", scipy_child.__file__, words]
        done = subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL)
        with faults.reading(stamp.name):
            if done.returncode == -signal.SIGKILL or done.stderr.startswith(b"MemoryError"):
                raise MemoryError("its reader ran out of memory")
            if done.returncode < 0:
                raise OSError(f"SciPy's reader was ended by signal {-done.returncode}")
        if done.returncode:
            raise faults.unreadable(stamp.name, done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2])
        dense, entries, known = (Path(folder, file) for file in ("value.npy", "value.npz", "labels.npy"))
        with faults.reading(stamp.name):
            value = np.load(dense) if dense.exists() else sparse.load_npz(entries) if entries.exists() else None
            return json.loads(done.stdout), value, np.load(known) if known.exists() else None


def _matrix(stamp: FileStamp, **options: object) -> Any:
    return _read_by_scipy(stamp, **options)[1]


def open_mtx(request: Request) -> Table:
    """Return the table of a Matrix Market file."""
    stamp = FileStamp.of(request)
    read = partial(_matrix, stamp, mtx=True)
    return loaded_table(read, stamp.name, stamp.digest("mtx", request.transpose), request.transpose)


def open_mat(request: Request) -> Table:
    """Return the table of a variable; its labels may be another variable.

    ``file.mat::X`` is a matrix, ``file.mat::X[1]`` the second element of a cell, which MATLAB writes ``X{2}`` and
    which may be named so too.
    """
    stamp = FileStamp.of(request)
    with faults.reading(request.name):
        is_hdf5 = h5py.is_hdf5(request.path)
    cell = CELL.fullmatch(request.member or "")
    variable, element = request.member, None
    if cell is not None:
        variable, element = cell["variable"], int(cell["one"]) - 1 if cell["zero"] is None else int(cell["zero"])
    if is_hdf5:
        return _open_mat73(request, variable, element)
    labels_column = request.labels_column
    found, value, known = _read_by_scipy(stamp, mtx=False, variable=variable, element=element, labels=labels_column)
    variables = {name: (tuple(shape), kind) for name, shape, kind in found["variables"]}
    parts = [(name, f"{shape} {kind}", name in found["matrices"]) for name, (shape, kind) in variables.items()]
    chosen = faults.only_matrix(request.name, "variable", parts, labels_column, found["chosen"])
    _check_variable(request.name, chosen, *variables[chosen], found["cells"], element)
    if value is None or value.dtype.kind == "U":
        raise faults.textual(request.name, f"{chosen!r}, a {variables[chosen][1]} and no matrix of numbers")
    read = partial(_matrix, stamp, mtx=False, variable=chosen, element=element)
    fingerprint = stamp.digest("mat", chosen, element, request.transpose)
    table = loaded_table(read, stamp.name, fingerprint, request.transpose, value)
    if labels_column not in variables or (labels_column == chosen and element is None):
        return table
    if known is None:
        raise faults.textual(stamp.name, f"{labels_column!r}, which holds neither numbers nor texts")
    return take_label_variable(table, str(labels_column), len(known), partial(iter, [known]))


def _check_variable(
    name: str, title: str, shape: tuple[int, ...], kind: str, cells: list[list[int]] | None, element: int | None
) -> None:
    """Raise ``BadInput`` where an element is named of what is no cell, or none of a cell, or one that is not there."""
    if cells is not None and (element is None or element >= len(cells)):
        parts = faults.listing([f"{title}[{number}] {tuple(size)}" for number, size in enumerate(cells)])
        problem = f"{title!r}, a cell of {len(cells)} ({parts})"
        raise BadInput(name, problem, "one of its elements", "it would be unclear what to read", f"name {title}[0]")
    if cells is None and element is not None:
        problem = f"{title!r}, which is no cell but a {kind} of shape {shape}"
        raise BadInput(name, problem, "an element of a cell", "there would be nothing to read", f"name {title} itself")


# Version 7.3 is HDF5 whose matrices are stored by column, so that their rows are the datasets' columns.
def _open_mat73(request: Request, variable: str | None, element: int | None) -> Table:
    """Return the table of a variable; its labels may be another variable."""
    tree = Hdf5Tree(FileStamp.of(request))
    with tree.open() as file:
        names = [name for name in file if not name.startswith("#")]
        parts = [(name, *_described(file, name)) for name in names]
        chosen = faults.only_matrix(request.name, "variable", parts, request.labels_column, variable)
        table = _mat73_table(tree, file, _element(tree, file, chosen, element), request.transpose)
        labels_column = request.labels_column
        if labels_column not in names or labels_column == chosen:
            return table
        labels = tree.array(file, str(labels_column))
        kind = _class(labels)
        count = labels.shape[-1] if kind == "char" else int(labels.size or 0)
        pieces = _mat73_texts if kind in ("cell", "char") else label_pieces
        return take_label_variable(table, str(labels_column), count, partial(pieces, tree, str(labels_column)))


def _class(node: Node) -> str:
    stored = node.attrs.get("MATLAB_class", b"")
    return stored.decode() if isinstance(stored, bytes) else str(stored)


def _is_sparse_group(node: Node) -> bool:
    return isinstance(node, h5py.Group) and "MATLAB_sparse" in node.attrs


def _described(file: h5py.File, name: str) -> tuple[str, bool]:
    """Return a variable's shape and class, and whether it is a matrix of numbers; nothing of what is behind a link."""
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        return "() link", False
    node = file[name]
    shape = node.shape[::-1] if is_array(node) and node.shape is not None else ()
    is_numeric = is_array(node) and is_matrix(shape, node.dtype) and _class(node) != "char"
    return f"{shape} {_class(node)}", is_numeric or _is_sparse_group(node)


def _element(tree: Hdf5Tree, file: h5py.File, variable: str, element: int | None) -> Node:
    """Return the dataset or sparse group that holds a variable, or an element of one."""
    node = tree.get(file, variable)
    node = tree.array(file, variable) if node is None or is_array(node) else node
    # references are stored by column, so in MATLAB's order
    cells = [file[reference] for reference in node[...].ravel()] if _class(node) == "cell" else None
    shapes = [tuple(one.shape[::-1]) if is_array(one) else () for one in (node, *(cells or ()))]
    sizes = None if cells is None else [list(shape) for shape in shapes[1:]]
    _check_variable(tree.name, variable, shapes[0], _class(node) or "group", sizes, element)
    return node if cells is None or element is None else cells[element]


def _mat73_table(tree: Hdf5Tree, file: h5py.File, node: Node, transpose: bool) -> Table:
    """Return the table of a variable; of a sparse one ``jc`` points into ``ir`` and ``data``, column by column."""
    if is_array(node) and _class(node) != "char":
        return tree.dense(file, node.name, not transpose)
    if not _is_sparse_group(node):
        what = f"of MATLAB's class {_class(node) or 'struct'}"
        raise faults.textual(tree.name, f"{node.name!r} {what}, which is no matrix of numbers")
    if tree.get(file, f"{node.name}/data") is None:
        found, allowed = f"no entries in the sparse matrix {node.name!r}", "at least one value that is not zero"
        raise BadInput(tree.name, found, allowed, "all samples would be equal", "check that it is the right variable")
    parts = [f"{node.name}/{title}" for title in ("data", "ir", "jc")]
    shape = int(node.attrs["MATLAB_sparse"]), len(tree.array(file, parts[2])) - 1
    return compressed_table(tree, file, parts, shape[:: -1 if transpose else 1], transpose)


def _mat73_texts(tree: Hdf5Tree, variable: str) -> Iterator[AnyArray]:
    """Yield all labels of a cell of texts, or of the rows of a matrix of characters."""
    with tree.open() as file:
        dataset = tree.array(file, variable)
        values = dataset[...]
        if _class(dataset) == "cell":
            texts = [_text(tree.array(file, file[reference].name)) for reference in values.ravel()]
        else:
            texts = ["".join(map(chr, row.tolist())) for row in values.T]
    yield np.array(texts)


def _text(dataset: h5py.Dataset) -> str:
    values = dataset[...]
    return "".join(map(chr, values.ravel().tolist())) if _class(dataset) == "char" else str(values.item())
