"""Files and folders of HDF5 and Zarr: an array, or a matrix of an AnnData with its names and labels, by rows."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults
from ips2_dask.readers.base import FileStamp, Request, Rows, Table, check_dtype, check_shape
from ips2_dask.readers.columns import counted_names, find_column, take_label_variable
from ips2_dask.readers.trees import (
    Compressed,
    Hdf5Tree,
    Node,
    Selection,
    Tree,
    ZarrTree,
    compressed_table,
    is_array,
    label_pieces,
    vector_ranges,
)
from ips2_dask.typing import AnyArray

AXES = {
    "X": ("obs", "var"),
    "layers": ("obs", "var"),
    "raw": ("obs", "raw/var"),
    "obsm": ("obs", None),
    "obsp": ("obs", None),
    "varm": ("var", None),
    "varp": ("var", None),
}
"""By the part of an AnnData that a matrix is in: the data frame of its rows, and that of its columns, if any."""


def _open_tree(tree: Tree, request: Request, place: tuple[str, str] | None = None) -> Table:
    """Return the table of an array, or of a matrix of an AnnData that is at ``place`` or found in the tree.

    The labels of an array may be another array; see `_open_part` for an AnnData.
    """
    wanted = request.labels_column
    with tree.open() as root:
        located = _locate(tree, root, request.member) or place
        if located is not None:
            return _open_part(tree, root, *located, request)
        if request.member is None and not is_array(root):
            _refuse_inner(tree, root)
        table = tree.dense(root, tree.choose(root, request), request.transpose)
        found = tree.find(root, wanted) if isinstance(wanted, str) and not is_array(root) else None
        if found is None or not is_array(found[0]):
            return table
        count = math.prod(tree.array(root, found[1]).shape or (0,))
        return take_label_variable(table, str(wanted), count, partial(label_pieces, tree, found[1]))


def open_hdf5(request: Request) -> Table:
    """Return the table of a dataset, or of a matrix of an AnnData in the file."""
    return _open_tree(Hdf5Tree(FileStamp.of(request)), request)


def open_h5ad(request: Request) -> Table:
    """Return the table of a matrix of an AnnData, which the file holds by its name."""
    return _open_tree(Hdf5Tree(FileStamp.of(request)), request, ("", request.member or ""))


def open_zarr_path(request: Request) -> Table:
    """Return the table of an array on disk or behind a URL, or of a matrix of an AnnData."""
    path = request.path if "://" in request.path else os.path.abspath(request.path)
    return _open_tree(ZarrTree(request.name, path), request)


def _is_anndata(tree: Tree, root: Node, place: str) -> bool:
    """Return whether a group says that it is an AnnData or, as before anndata 0.8, has the layout of one."""
    node = tree.get(root, place)
    if node is None or is_array(node):
        return False
    frames = (tree.get(root, f"{place}/{frame}") for frame in ("obs", "var"))
    return _encoding(node) == "anndata" or all(map(_is_frame, frames))


def _is_frame(node: Node | None) -> bool:
    """Return whether a node is a data frame: a group of columns or, before anndata 0.7, an array of records."""
    return node is not None and ("_index" in node.attrs or (is_array(node) and np.dtype(node.dtype).names is not None))


def _locate(tree: Tree, root: Node, member: str | None) -> tuple[str, str] | None:
    """Return the path of the AnnData that a member is in, and the member's path in that; None if it is in none.

    That AnnData may be the root, or a part of a MuData (``mod/rna``) or SpatialData (``tables/table``).
    """
    parts = [part for part in (member or "").split("/") if part]
    for n in range(len(parts) + 1):
        if _is_anndata(tree, root, "/".join(parts[:n])):
            return "/".join(parts[:n]), "/".join(parts[n:])
    return None


def _refuse_inner(tree: Tree, root: Node) -> None:
    """Raise ``BadInput`` that names the AnnDatas inside a tree that is none itself, if there are any."""
    groups = [path for path, node in tree.members(root) if not is_array(node)]
    there = set(groups)
    inner = [path for path in groups if f"{path}/obs" in there and _is_anndata(tree, root, path)]
    if inner:
        found = f"no matrix of its own, but an AnnData in {faults.listing(inner)}"
        otherwise = "another array than its cells might be clustered"
        raise BadInput(tree.name, found, "one that is named", otherwise, f"name it after '::', as in file::{inner[0]}")


def _open_part(tree: Tree, root: Node, place: str, part: str, request: Request) -> Table:
    """Return the table of X or of another matrix of an AnnData (``layers/counts``, ``obsm/X_pca``, ``raw/X``).

    Labels are a column of ``obs``; names of samples and features are the indices of ``obs`` and ``var``, which change
    places where the matrix is transposed.
    """
    below = f"{place}/" if place else ""
    part = part.strip("/") or "X"
    axes = AXES.get(part.partition("/")[0], (None, None))
    samples, features = (
        None if frame is None else f"{below}{frame}" for frame in axes[:: -1 if request.transpose else 1]
    )
    table = _matrix_table(tree, root, below, part, request.transpose)
    names = None if features is None else _names(tree, root, features)
    if names is not None and len(names) == table.shape[1]:
        table = replace(table, feature_names=names.tolist())
    if samples is not None:
        table = replace(table, read_sample_names=partial(_read_names, tree, samples))
    if request.labels_column is None:
        return table
    samples = samples or f"{below}obs"
    column = _label_column(tree, root, samples, request)
    path = f"{samples}/{column}"
    count = _column(tree, root, path)[1].shape[0]
    return take_label_variable(table, column, count, partial(_label_pieces, tree, path, count))


def _text(stored: object) -> str:
    return stored.decode() if isinstance(stored, bytes) else str(stored)


def _encoding(node: Node) -> str:
    stored = _text(node.attrs.get("encoding-type", node.attrs.get("h5sparse_format", "")))  # the latter before 0.7
    return {"csr": "csr_matrix", "csc": "csc_matrix"}.get(stored, stored)


def _matrix_table(tree: Tree, root: Node, below: str, part: str, transpose: bool) -> Table:
    located = tree.find(root, f"{below}{part}")
    if located is None:
        raise faults.absent(tree.name, "matrix", f"{below}{part}", _matrices(tree, root, below))
    node, path = located
    if is_array(node):
        return tree.dense(root, path, transpose)
    encoding = _encoding(node)
    if encoding == "dataframe" and not transpose:
        return _frame_table(tree, root, path)
    if encoding not in ("csr_matrix", "csc_matrix"):
        others = [name for name in _matrices(tree, root, below) if name != f"{below}{part}"]
        raise BadInput(
            tree.name,
            f"{part!r} with the encoding {encoding or 'none'!r}",
            "an array, csr_matrix or csc_matrix",
            "its values could not be placed",
            f"name another matrix after '::' ({faults.listing(others, 'there is none')}), or write it as an array",
        )
    stored = node.attrs["shape"] if "shape" in node.attrs else node.attrs["h5sparse_shape"]
    rows, columns = (int(size) for size in stored)
    parts = (f"{path}/data", f"{path}/indices", f"{path}/indptr")
    matrix = Compressed(parts, shape=(rows, columns), by_row=encoding == "csr_matrix")
    return compressed_table(tree, root, matrix.transposed() if transpose else matrix)


def _matrices(tree: Tree, root: Node, below: str) -> list[str]:
    """Return the paths of the matrices that may be in an AnnData."""
    there = [f"{below}{path}" for path in ("X", "raw/X") if tree.get(root, f"{below}{path}") is not None]
    groups = {f"{below}{group}": tree.get(root, f"{below}{group}") for group in ("layers", "obsm", "obsp")}
    return there + [f"{group}/{key}" for group, node in groups.items() if node is not None for key in node]


@dataclass
class FrameRows(Rows):
    """The rows of a data frame of numbers, which is stored by columns."""

    tree: Tree
    columns: list[str]
    n_rows: int

    def read(self, start: int, stop: int) -> AnyArray:
        """Return rows start to stop; missing values of nullable columns are NaN."""
        with self.tree.open() as root:
            return np.column_stack(
                [_numbers(_column_values(self.tree, root, path, slice(start, stop))) for path in self.columns]
            )


def _numbers(values: AnyArray) -> AnyArray:
    return values.astype(np.float64) if values.dtype.kind == "O" else values


def _frame_table(tree: Tree, root: Node, path: str) -> Table:
    """Return the table of a data frame of ``obsm``."""
    name, titles = tree.name, _columns(tree, root, path)
    columns = [_column(tree, root, f"{path}/{title}") for title in titles]
    numeric = [np.dtype(node.dtype).kind in "biuf" and "categories" not in node.attrs for _, node, _ in columns]
    text = [
        title
        for title, (kind, *_), number in zip(titles, columns, numeric, strict=True)
        if kind == "categorical" or not number
    ]
    if text:
        raise BadInput(
            name,
            f"no numbers in the columns {faults.listing(text)} of {path.strip('/')!r}",
            "numbers in every column",
            "distances between samples would be undefined",
            "read it with anndata, and give the data frame without these columns",
        )
    shape = check_shape(name, (columns[0][1].shape[0] if columns else 0, len(columns)))
    types = [
        np.dtype(np.float64) if kind == "nullable" else check_dtype(name, np.dtype(n.dtype)) for kind, n, _ in columns
    ]
    return Table(
        name=name,
        shape=shape,
        dtype=np.result_type(*types),
        rows=FrameRows(tree, [f"{path}/{title}" for title in titles], shape[0]),
        fingerprint=tree.digest(root, [place for _, _, place in columns], "frame", path, titles),
        feature_names=titles,
    )


def _index_path(tree: Tree, root: Node, frame: str) -> str | None:
    """Return the path of the index of a data frame."""
    node = tree.get(root, frame)
    if node is None or is_array(node):
        return None
    return f"{frame}/{_text(node.attrs.get('_index', '_index'))}"


def _columns(tree: Tree, root: Node, frame: str) -> list[str]:
    """Return the columns of a data frame in its order; those that its list lacks come last."""
    node, index = tree.get(root, frame), _index_path(tree, root, frame)
    if node is None or index is None:
        return []
    there = [key for key in node if f"{frame}/{key}" != index and key != "__categories"]
    ordered = [_text(column) for column in node.attrs.get("column-order", ())]
    return [key for key in ordered if key in there] + [key for key in there if key not in ordered]


def _names(tree: Tree, root: Node, frame: str) -> AnyArray | None:
    """Return the index of a data frame, or None where it only counts the rows."""
    path = _index_path(tree, root, frame)
    if path is None or tree.find(root, path) is None:
        return None
    return counted_names(np.array([_text(value) for value in _column_values(tree, root, path)], np.str_))


def _read_names(tree: Tree, frame: str) -> AnyArray | None:
    with tree.open() as root:
        return _names(tree, root, frame)


def _label_column(tree: Tree, root: Node, frame: str, request: Request) -> str:
    columns = _columns(tree, root, frame)
    if not columns:
        raise BadInput(
            f"{request.name}, {frame}",
            f"no columns to look for {str(request.labels_column)!r} in",
            "a data frame as anndata 0.7 or later writes it",
            "the result would be scored against nothing",
            "write the file again with a recent anndata, or leave labels_column (--labels-column) out",
        )
    return columns[find_column(f"{request.name}, {frame}", str(request.labels_column), columns, len(columns))]


def _column_values(tree: Tree, root: Node, path: str, rows: Selection = ...) -> AnyArray:
    """Return rows of a column of a data frame, all of them if none are selected."""
    kind, node, place = _column(tree, root, path)
    values = tree.values(root, place, rows)
    if kind == "categorical":
        return _decode(values, tree.values(root, f"{path}/categories"))
    if kind == "nullable":
        values = values.astype(object)
        values[tree.values(root, f"{path}/mask", rows).astype(bool)] = None
        return values
    categories = node.attrs.get("categories")  # before 0.8 a reference to obs/__categories/..., in Zarr its path
    if categories is None:
        return values
    named = f"{path.rpartition('/')[0]}/{categories}" if isinstance(categories, str) else root[categories].name
    return _decode(values, tree.values(root, named))


def _column(tree: Tree, root: Node, path: str) -> tuple[str, Node, str]:
    """Return the kind of a column of a data frame, and the array with a value for each row, with its path.

    It may be plain, categorical (codes into categories) or nullable (values and mask).
    """
    node = tree.get(root, path)
    if node is None or is_array(node):
        return "plain", tree.array(root, path), path
    for kind, part, other in (("categorical", "codes", "categories"), ("nullable", "values", "mask")):
        if {part, other} <= set(node):
            return kind, tree.array(root, f"{path}/{part}"), f"{path}/{part}"
    found, allowed = f"{path!r} with the encoding {_encoding(node)!r}", "a plain, categorical or nullable column"
    otherwise = "its values could not be read"
    raise BadInput(tree.name, found, allowed, otherwise, "write the file again with a recent anndata")


def _decode(codes: AnyArray, categories: AnyArray) -> AnyArray:
    """Return the category of each code, object (m,), None where the code is -1."""
    values = np.full(len(codes), None, dtype=object)
    has_category = codes >= 0
    values[has_category] = categories[codes[has_category]]
    return values


def _label_pieces(tree: Tree, path: str, count: int) -> Iterator[AnyArray]:
    """Yield a column of a data frame piece by piece; the tree is opened for each."""
    for (rows,) in vector_ranges((count,)):
        with tree.open() as root:
            values = _column_values(tree, root, path, rows)
        yield values
