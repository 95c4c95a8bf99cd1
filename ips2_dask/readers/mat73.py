"""MATLAB 7.3 files: HDF5 whose matrices are stored by column, so that their rows are the datasets' columns."""

from __future__ import annotations

from functools import partial
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults
from ips2_dask.readers.base import FileStamp, Request, Table
from ips2_dask.readers.hdf5 import check_inside, dataset_table, find_dataset, opened
from ips2_dask.readers.hdf5_sparse import Compressed, compressed_table, is_dataset
from ips2_dask.readers.labels import as_labels, take_label_column, take_label_variable


def open_mat73(request: Request, stamp: FileStamp, variable: str | None, element: int | None) -> Table:
    """Return the table of a variable; its labels may be another variable or one of its columns."""
    with opened(request.path, request.name) as file:
        there = [name for name in file if not name.startswith("#")]
        chosen = _choose(file, request, there) if variable is None else variable
        if chosen not in there:
            raise faults.absent(request.name, "variable", chosen, there)
        thing = _matrix(file, chosen, element, request.name)
        table = _table(stamp, file, thing, request.transpose)
        wanted = request.labels_column
        if wanted is None:
            return table
        if wanted not in there or wanted == chosen:
            return take_label_column(table, wanted)
        labels = find_dataset(file, str(wanted), request.name)
        count = labels.shape[-1] if _class(labels) == "char" else int(labels.size or 0)
        return take_label_variable(table, str(wanted), int(count), partial(_read_labels, stamp, str(wanted)))


def _class(thing: Any) -> str:
    """Return MATLAB's class of a variable."""
    stored = thing.attrs.get("MATLAB_class", b"")
    return stored.decode() if isinstance(stored, bytes) else str(stored)


def _is_sparse(thing: Any) -> bool:
    return isinstance(thing, h5py.Group) and "MATLAB_sparse" in thing.attrs


def _hard(file: Any, name: str) -> Any:
    """Return a variable of the file, but nothing that is behind a link."""
    return file[name] if isinstance(file.get(name, getlink=True), h5py.HardLink) else None


def _choose(file: Any, request: Request, there: list[str]) -> str:
    """Return the only variable that is a matrix of numbers."""
    suitable, described = [], []
    for name in there:
        thing = _hard(file, name)
        shape = thing.shape[::-1] if isinstance(thing, h5py.Dataset) and thing.shape is not None else ()
        described.append(f"{name} {shape} {_class(thing) if thing is not None else 'link'}")
        numeric = isinstance(thing, h5py.Dataset) and thing.dtype.kind in "biuf" and _class(thing) != "char"
        if name != request.labels_column and (_is_sparse(thing) or (numeric and len(shape) == 2 and min(shape) > 1)):
            suitable.append(name)
    if len(suitable) != 1:
        raise faults.undecided(request.name, "variable", suitable, described)
    return suitable[0]


def _matrix(file: Any, variable: str, element: int | None, name: str) -> Any:
    """Return the dataset or sparse group that holds a variable, or an element of one."""
    thing = _hard(file, variable)
    if thing is None or isinstance(thing, h5py.Dataset):
        thing = find_dataset(file, variable, name)
    is_cell = _class(thing) == "cell"
    if is_cell != (element is not None):
        raise BadInput(
            name,
            f"{variable!r}, {f'a cell of {thing.size}' if is_cell else 'which is no cell'}",
            "one matrix of numbers",
            "it would be unclear what to read",
            f"name it as {variable}[0]" if is_cell else f"name it as {variable}",
        )
    if element is None:
        return thing
    references = thing[...].ravel()  # stored by column, so in MATLAB's order
    if element >= len(references):
        raise BadInput(
            name,
            f"{variable!r}, a cell of {len(references)}",
            "an element that is in the cell",
            "there would be nothing to read",
            f"name one from {variable}[0] to {variable}[{len(references) - 1}]",
        )
    return file[references[element]]


def _table(stamp: FileStamp, file: Any, thing: Any, transpose: bool) -> Table:
    if _is_sparse(thing):
        return _sparse_table(stamp, file, thing, transpose)
    if not isinstance(thing, h5py.Dataset) or _class(thing) == "char":
        what = f"of MATLAB's class {_class(thing) or 'struct'}"
        raise faults.textual(stamp.name, f"{thing.name!r} {what}, which is no matrix of numbers")
    check_inside(thing, stamp.name)
    return dataset_table(stamp, thing, transpose=not transpose)


def _sparse_table(stamp: FileStamp, file: Any, group: Any, transpose: bool) -> Table:
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
    return compressed_table(stamp, file, matrix.transposed() if transpose else matrix)


def _read_labels(stamp: FileStamp, variable: str) -> NDArray[Any]:
    stamp.check()
    name = stamp.name
    with opened(stamp.path, name) as file:
        dataset = find_dataset(file, variable, name)
        kind, values = _class(dataset), dataset[...]
        if kind == "cell":
            values = np.array([_string(file[reference], name) for reference in values.ravel()])
        elif kind == "char":
            values = np.array([_letters(row) for row in values.T])
    return as_labels(values.ravel(), name)


def _string(dataset: Any, name: str) -> str:
    check_inside(dataset, name)
    return _letters(dataset[...].ravel()) if _class(dataset) == "char" else str(dataset[...].item())


def _letters(codes: NDArray[Any]) -> str:
    return "".join(map(chr, codes.tolist()))
