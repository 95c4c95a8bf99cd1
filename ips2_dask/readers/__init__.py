"""Readers of the input formats: `open_source` returns a `Source` for a file, a URL or an object in memory.

``FORMATS`` below names the function that opens each of them, and `_open` those of objects in memory. docs/tables.md
says which are read by ranges of rows, and the guide for contributors how a format is added.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from ips2_dask.errors import BadInput
from ips2_dask.readers.base import Request, Source, Table, check_block, check_shape, transposed
from ips2_dask.readers.columns import columns_of_numbers
from ips2_dask.readers.dask_collections import is_dask, open_dask_array, open_dask_frame
from ips2_dask.readers.faults import listing, pickled, throw
from ips2_dask.readers.features import ALL, USUAL, Features, FittedFeatures, TextFormat
from ips2_dask.readers.objects import index_names, is_anndata, is_frame, open_anndata, open_array
from ips2_dask.store.remote import check_url, is_remote, named_place, plain
from ips2_dask.typing import AnyArray
from ips2_dask.wording import option

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Source", "check_block", "is_anndata", "open_anndata_source", "open_source"]


class _Format(NamedTuple):
    """How files with a certain ending are opened."""

    opener: str  # ``module.function`` in this package, a function of a `Request` that returns a `Table`
    has_members: bool = False  # whether a file may hold several tables, of which ``::`` names one
    may_be_gzipped: bool = False
    is_folder: bool = False
    by_rows: bool = False  # whether it can't be read by columns, so that a transpose is held whole


TEXT = _Format("text.open_text", may_be_gzipped=True, by_rows=True)
HDF5 = _Format("trees.open_tree", has_members=True)
PARQUET = _Format("records.open_parquet", by_rows=True)
ZARR = _Format("trees.open_tree", has_members=True, is_folder=True)

# A format's module is imported when such a file is opened: pyarrow and h5py take a while, and most runs need neither.
FORMATS = {
    ".npy": _Format("objects.open_npy"),
    ".npz": _Format("objects.open_npz", has_members=True),
    **dict.fromkeys((".csv", ".tsv", ".txt", ".data"), TEXT),
    ".parquet": PARQUET,
    **dict.fromkeys((".h5", ".hdf5", ".h5ad", ".h5mu"), HDF5),
    ".mat": _Format("scipy_files.open_mat", has_members=True),
    ".mtx": _Format("scipy_files.open_mtx", may_be_gzipped=True),
    ".zarr": ZARR,
}
# Endings of text files in older collections; ".data" may have a tail, as in kddcup.data_10_percent.gz.
OTHER_TEXT = frozenset({".dat", ".train", ".test", ".tra", ".tes"})
PICKLES = frozenset({".pkl", ".pickle", ".joblib", ".pt", ".pth"})


def open_source(
    spec: object,
    *,
    labels_column: str | int | None = None,
    transpose: bool = False,
    features: Features | FittedFeatures | None = None,
    text: TextFormat | None = None,
    client: Client | None = None,
) -> Source:
    """Open a table of numbers, samples by features, without reading more of it than has to be read.

    Parameters
    ----------
    spec : str, path, array, list of lists, SciPy sparse matrix, data frame, AnnData, zarr.Array, Dask array or
        DataFrame
        A file's path may be followed by ``::`` and the name of a table in it; a URL names a Zarr array, a Zarr group or
        a .npy file. Of an AnnData ``obsm["X_pca"]`` is read if there is one, else X; of one in a file X, unless
        ``::`` names another matrix.
    labels_column : str or int, optional
        Column that holds known labels, by name or by number, negative from the end; or, in a file with several
        variables, the name of the variable that holds them.
    transpose : bool
        Whether the columns are the samples.
    features, text
        Which columns become features, or those that a run was fitted with; and how a text file is read.
    client : distributed.Client, optional
        Whose workers count the rows of a Dask DataFrame.

    Raises
    ------
    BadInput
        If it can't be read as a matrix of real numbers. Text files are checked whole; of the others the shape, type
        and names are checked here, values by `check_block` when they are read, labels when they are.
    """
    if text is not None and text.given and not is_text_file(spec):
        given = next(iter(text.given))
        thing = os.fspath(spec) if isinstance(spec, str | os.PathLike) else "the object given"
        found, allowed = f"{given} ({option(given)}) with an input that is no text file", "it with text files"
        raise BadInput(thing, found, allowed, "it would count for nothing", f"leave {given} ({option(given)}) out")
    request = Request("", "", None, labels_column, transpose, features or ALL, text or USUAL)
    if _is_of(spec, "dask.dataframe", "DataFrame"):
        return open_dask_frame(spec, request, client)
    return _open(spec, request)


def _open(spec: object, request: Request) -> Table:
    """Return a table; openers of what is read ``by_rows`` take labels and features themselves."""
    opened: Callable[[Request], Table]
    by_rows = False
    if isinstance(spec, str | os.PathLike):
        file_format, request = _format_named(replace(request, name=named_place(spec)))
        opened, by_rows = _function(file_format.opener), file_format.by_rows
    elif _is_of(spec, "xarray", "DataArray", "Dataset"):
        opened = partial(_open_xarray, spec)
    elif is_dask(spec):  # before others, as a Delayed claims to have every attribute
        opened = partial(open_dask_array, spec)
    elif is_anndata(spec):
        opened = partial(open_anndata, spec, open_matrix=_open)
    elif is_frame(spec):
        opened, by_rows = partial(_function("records.open_frame"), spec), True
    elif hasattr(spec, "__arrow_c_stream__") and (hasattr(spec, "columns") or hasattr(spec, "schema")):
        opened, by_rows = partial(_function("records.open_arrow_object"), spec), True
    elif _is_of(spec, "zarr", "Array"):
        opened = partial(_function("trees.open_zarr_array"), spec)
    elif isinstance(spec, Table):
        return columns_of_numbers(spec, request.features, request.labels_column)
    else:
        opened = partial(open_array, spec)
    if by_rows and not request.transpose:
        return opened(request)
    if by_rows:
        table = transposed(opened(replace(request, labels_column=None, transpose=False, features=ALL)))
    else:
        table = opened(request)
    return columns_of_numbers(table, request.features, request.labels_column if table.label_pieces is None else None)


def _open_xarray(array: Any, request: Request) -> Table:
    """Return the table of an ``xarray.DataArray``, whose coordinates are the names of samples and features."""
    name = "the DataArray given"
    if not hasattr(array, "dims") or not hasattr(array, "name"):
        found = f"the variables {listing(list(map(str, array.data_vars)))}"
        allowed = "an xarray.DataArray, samples by features"
        remedy = "give one variable, as in dataset['x'], or dataset.to_dataarray().T, if each variable is a feature"
        raise BadInput("the Dataset given", found, allowed, "it would be unclear which variable is meant", remedy)
    check_shape(name, array.shape)
    array, plain = array.T if request.transpose else array, replace(request, transpose=False)
    samples, titles = (index_names(array.indexes[dim]) if dim in array.indexes else None for dim in array.dims)
    table = open_dask_array(array.data, plain) if is_dask(array.data) else open_array(array.data, plain)
    return _named(replace(table, name=name), samples, titles)


def open_anndata_source(adata: object, use_rep: str | None = None, layer: str | None = None) -> Source:
    """Return the table of a matrix of an AnnData that is named; see `objects.open_anndata`."""
    return open_anndata(adata, Request(""), _open, use_rep, layer)


def is_chunked(spec: object) -> bool:
    """Return whether something is a Dask collection or a zarr.Array, which are never to be read as a whole."""
    return is_dask(spec) or _is_of(spec, "zarr", "Array")


def named_like(table: Source, spec: object) -> Source:
    """Return a table with the names of the data frame that its values came from, if it was one that has them."""
    if not is_frame(spec):
        return table
    return _named(table, index_names(spec.index), index_names(spec.columns))


def _named(table: Table, samples: AnyArray | None, titles: AnyArray | None) -> Table:
    return replace(table, row_names=samples, feature_names=None if titles is None else titles.tolist())


def _is_of(spec: object, module: str, *names: str) -> bool:
    """Return whether something is of one of a module's types, which nobody holds before that is imported."""
    imported = sys.modules.get(module)
    return imported is not None and isinstance(spec, tuple(getattr(imported, name) for name in names))


def _format_named(request: Request) -> tuple[_Format, Request]:
    """Return the format of what is named, and the request with its path."""
    name = request.name
    path, member = _split(name)
    file_format = _remote_format(path, name) if is_remote(path) else _local_format(path, name)
    if member is not None and not file_format.has_members:
        allowed = "no name, as a file of this format holds a single table"
        raise BadInput(name, f"the name {member!r} after '::'", allowed, "it would be ignored", f"leave it out: {path}")
    return file_format, replace(request, path=path, member=member)


def is_text_file(spec: object) -> bool:
    """Return whether something is the path of a text file, by its ending."""
    return isinstance(spec, str | os.PathLike) and _format_of(_split(os.fspath(spec))[0]) == TEXT


def _remote_format(url: str, name: str) -> _Format:
    """Return the format of a URL: .npy, or Zarr for anything without another ending."""
    check_url(url)
    file_format = _format_of(url.partition("?")[0])
    if file_format not in (None, ZARR, FORMATS[".npy"]):
        found = f"a URL of a {os.path.splitext(plain(url))[1]} file"
        allowed = "the URL of a .zarr array or group, or of a .npy file"
        remedy = "copy it to a local disk, or write its table as .zarr to that store"
        raise BadInput(plain(name), found, allowed, "the file could not be read in parts from there", remedy)
    return file_format or ZARR


def _function(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(".")
    imported: Callable[..., Any] = getattr(import_module(f"ips2_dask.readers.{module}"), function)
    return imported


def _split(name: str) -> tuple[str, str | None]:
    if os.path.exists(name) or "::" not in name:
        return name, None
    path, _, member = name.rpartition("::") if "://" in name else name.partition("::")
    if "://" in member or not member:  # the chained URLs of fsspec, as in simplecache::s3://bucket/x.zarr
        return name.removesuffix("::"), None
    return path, member


def _local_format(path: str, name: str) -> _Format:
    """Return the format of a path, after checking that the file or folder exists, and that a file can be read."""
    file_format = _format_of(path)
    if not os.path.lexists(path):
        if glob.has_magic(path) and glob.glob(path, recursive=True):
            if _function("records.parts_of")(path):
                return PARQUET
            found = "a pattern of files or folders that are not Parquet"
            raise _unfit(name, found, "a pattern of .parquet files, or one file", "put their rows into one file")
        folder = os.path.dirname(os.path.abspath(path))
        remedy = "check the path" if os.path.isdir(folder) else f"check the path, as {folder} does not exist either"
        raise _unfit(name, "no such file", remedy=remedy)
    if os.path.isdir(path):
        metadata = (os.path.join(path, file) for file in ("zarr.json", ".zarray", ".zgroup"))
        if file_format == ZARR or any(map(os.path.isfile, metadata)):
            return ZARR
        deeper = os.path.join(glob.escape(path), "*", "**", "*.parquet")
        if _function("records.parts_of")(deeper):  # a table is divided by a column's values
            otherwise = "columns that the folders' names hold, as in kind=a, would be lost"
            remedy = (
                f"give the pattern {os.path.join(path, '**', '*.parquet')}, which leaves these columns out, or in "
                "Python dask.dataframe.read_parquet(folder), which reads them"
            )
            found, allowed = "folders of Parquet files in a folder", "Parquet files in one folder"
            raise BadInput(name, found, allowed, otherwise, remedy)
        if _function("records.parts_of")(path):
            return PARQUET
        raise _unfit(name, "a directory", "a file, or the folder of a Zarr array or group, or of Parquet files")
    if file_format is None:
        ending = os.path.splitext(path)[1].lower()
        if ending in PICKLES:
            raise pickled(name, f"a pickle ({ending})")
        allowed = f"{', '.join(FORMATS)}, and .gz after those of text and .mtx"
        raise _unfit(name, f"an unknown format ({ending or 'no ending'})", allowed, "convert or rename it")
    if file_format == ZARR:
        raise _unfit(name, "a file", "the folder of a Zarr array or group")
    if not os.path.isfile(path):
        raise _unfit(name, "neither a file nor a directory")
    try:
        with open(path, "rb") as stream:
            is_empty = not stream.read(1)
    except OSError as error:
        found = f"a file that can't be opened ({error.strerror})"
        throw(_unfit(name, found, "a file this user may read", "change its permissions"))
    if is_empty:
        allowed, remedy = "a file with at least one row of numbers", "check that it was written or downloaded whole"
        raise _unfit(name, "an empty file", allowed, remedy)
    return file_format


def _format_of(path: str) -> _Format | None:
    stem, ending = os.path.splitext(os.path.basename(path.rstrip("/")).lower())
    if ending == ".gz":
        file_format = _format_of(stem)
        return file_format if file_format is not None and file_format.may_be_gzipped else None
    if ending.startswith(".data") or ending in OTHER_TEXT:
        return TEXT
    return FORMATS.get(ending)


def _unfit(
    name: str, found: str, allowed: str = "a file or Zarr folder that exists", remedy: str = "name the input itself"
) -> BadInput:
    return BadInput(name, found, allowed, "there would be nothing to read", remedy)
