"""Readers of the input formats: `open_source` gives a `Source` for whatever a user names or has in memory.

============================  ==========================================  =================================
format                        what may follow ``::``                      read in parts
============================  ==========================================  =================================
.npy, also s3:// and such                                                 yes
.npz                          a member                                    from the start on, if compressed;
                                                                          whole, if sparse
.csv .tsv .txt .data, .gz                                                 yes; gzipped: from the start on
.parquet                                                                  yes, by row groups
.h5 .hdf5                     a dataset                                   yes
.mat                          a variable, ``X[0]`` or ``X{1}`` of a cell  whole; 7.3 (HDF5): yes
.mtx, .mtx.gz                                                             whole
.h5ad                         ``X``, ``layers/...``, ``obsm/...``         yes; compressed by column: whole
.zarr, also s3:// and such    an array of a group                         yes
============================  ==========================================  =================================
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from ips2_dask.errors import BadInput
from ips2_dask.readers.anndata_object import is_anndata, open_anndata
from ips2_dask.readers.arrays import open_array
from ips2_dask.readers.base import Request, Source, Table, check_block
from ips2_dask.readers.dask_array import is_dask, open_dask_array
from ips2_dask.readers.faults import pickled, throw
from ips2_dask.readers.featured import of_numbers
from ips2_dask.readers.features import Features, FittedFeatures
from ips2_dask.readers.frames import index_names, is_frame, open_frame
from ips2_dask.store.remote import check_url, is_remote, plain

__all__ = ["FORMATS", "Source", "check_block", "features_of", "is_chunked", "named_like", "open_source"]

# A format's module is imported when such a file is opened: pyarrow and h5py take a while, and most runs need neither.
FORMATS = {
    ".npy": "npy",
    ".npz": "npz",
    ".csv": "text",
    ".tsv": "text",
    ".txt": "text",
    ".data": "text",
    ".parquet": "parquet",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".mat": "mat",
    ".mtx": "mtx",
    ".h5ad": "h5ad",
    ".zarr": "zarr_arrays",
}
GZIPPED = frozenset({"text", "mtx"})
# What the text files of older collections are called; ".data" may have a tail, as in kddcup.data_10_percent.gz.
OTHER_TEXT = frozenset({".dat", ".train", ".test", ".tra", ".tes"})
PICKLES = frozenset({".pkl", ".pickle", ".joblib", ".pt", ".pth"})


def open_source(
    spec: Any,
    *,
    labels_column: str | int | None = None,
    transpose: bool = False,
    features: Features | FittedFeatures | None = None,
) -> Source:
    """Open a table of numbers, samples by features, without reading more of it than has to be read.

    Parameters
    ----------
    spec : str, path, array, list of lists, SciPy sparse matrix, pandas DataFrame, AnnData, zarr.Array or
        Dask array
        A file may be followed by ``::`` and the name of what is in it; a URL is one of Zarr or of a .npy file.
    labels_column : str or int, optional
        Column that holds known labels, by name or by number, negative from the end; or, in a file with several
        variables, the name of that which holds them.
    transpose : bool
        Whether the columns are the samples.
    features : Features or FittedFeatures, optional
        Which columns become features, and how; for new samples, what they became with those of a run.

    Returns
    -------
    Source
        Its `labels` should be asked for early: it is then that labels are read and checked.

    Raises
    ------
    BadInput
        If it can't be read as a matrix of real numbers. Text files are checked whole; of the others the shape, type
        and names are checked here, and the values by `check_block` when they are read.
    """
    if isinstance(features, Features) and features.is_default:
        features = None
    table = _open(spec, labels_column, transpose, features)
    return table if features is None or table.fitted is not None else of_numbers(table, features)


def _open(
    spec: Any, labels_column: str | int | None, transpose: bool, features: Features | FittedFeatures | None
) -> Table:
    """Return a table; of features already, if its format has a way of its own to them."""
    if isinstance(spec, str | os.PathLike):
        return _open_named(os.fspath(spec), labels_column, transpose, features)
    if is_dask(spec):  # first, as a Delayed claims to have every attribute
        return open_dask_array(spec, labels_column, transpose, features)
    if is_anndata(spec):
        return open_anndata(spec, labels_column, transpose)
    if is_frame(spec):
        return open_frame(spec, labels_column, transpose, features)
    if _is_zarr_array(spec):
        table: Table = _module("zarr_arrays").open_zarr_array(spec, labels_column, transpose)
        return table
    return open_array(spec, labels_column, transpose)


def is_chunked(spec: Any) -> bool:
    """Return whether something is a Dask collection or a zarr.Array, which are never to be read as a whole."""
    return is_dask(spec) or _is_zarr_array(spec)


def features_of(source: Source) -> FittedFeatures | None:
    """Return how a source's columns became features; None where it is taken as it is."""
    return source.fitted if isinstance(source, Table) else None


def named_like(table: Source, spec: Any) -> Source:
    """Return a table with the sample names of the data frame that its values came from, if it was one that has them."""
    names = index_names(spec.index) if is_frame(spec) else None
    if names is None or not isinstance(table, Table):
        return table
    return replace(table, read_sample_names=partial(np.array, names))


def _is_zarr_array(spec: Any) -> bool:
    zarr = sys.modules.get("zarr")  # nobody holds a zarr.Array before zarr is imported
    return zarr is not None and isinstance(spec, zarr.Array)


def _open_named(
    name: str, labels_column: str | int | None, transpose: bool, features: Features | FittedFeatures | None
) -> Table:
    path, member = _split(name)
    module = _remote_format(path, name) if is_remote(path) else _format(path, name)
    if module in ("npy", "npy_remote", "text", "parquet", "mtx") and member is not None:
        raise BadInput(
            name,
            f"the name {member!r} after '::'",
            "no name, as a file of this format holds a single table",
            "it would be ignored",
            f"leave it out: {path}",
        )
    table: Table = _module(module).open_file(Request(name, path, member, labels_column, transpose, features))
    return table


def _remote_format(url: str, name: str) -> str:
    """Return the module that reads a URL: .npy by ranges of bytes, and anything without another ending as Zarr.

    Raises
    ------
    BadInput
        If it ends as a file of another format does.
    """
    check_url(url)
    module = _module_of(url.partition("?")[0])
    if module not in (None, "npy", "zarr_arrays"):
        raise BadInput(
            plain(name),
            f"a URL of a {os.path.splitext(plain(url))[1]} file",
            "the URL of a .zarr array or group, or of a .npy file",
            "the file could not be read in parts from there",
            "copy it to a local disk, or write its table as .zarr to that store",
        )
    return "npy_remote" if module == "npy" else "zarr_arrays"


def _module(module: str) -> Any:
    return import_module(f"ips2_dask.readers.{module}")


def _split(name: str) -> tuple[str, str | None]:
    """Return path and member of ``path::member``."""
    if os.path.exists(name) or "::" not in name:
        return name, None
    path, _, member = name.rpartition("::") if "://" in name else name.partition("::")
    if "://" in member or not member:  # the chained URLs of fsspec, as in simplecache::s3://bucket/x.zarr
        return name.removesuffix("::"), None
    return path, member


def _format(path: str, name: str) -> str:
    """Return the module that reads a path, after checking that there is something of that format.

    Raises
    ------
    BadInput
        If it is missing, a folder where a file is meant, empty, or of an unknown format.
    """
    if not os.path.lexists(path):
        raise _no_such(name, path)
    module = _module_of(path)
    if os.path.isdir(path):
        if module == "zarr_arrays" or _module("zarr_arrays").is_zarr(path):
            return "zarr_arrays"
        raise _not_a_file(name, "a directory")
    if module is None:
        raise _unknown(name, path)
    if module == "zarr_arrays":
        raise _not_a_file(name, "a file", "the folder of a Zarr array or group")
    if not os.path.isfile(path):
        raise _not_a_file(name, "neither a file nor a directory")
    _check_readable(path, name)
    return module


def _module_of(path: str) -> str | None:
    """Return the module that reads files called so, if any."""
    stem, ending = os.path.splitext(os.path.basename(path.rstrip("/")).lower())
    if ending == ".gz":
        module = _module_of(stem)
        return module if module in GZIPPED else None
    if ending.startswith(".data") or ending in OTHER_TEXT:
        return "text"
    return FORMATS.get(ending)


def _check_readable(path: str, name: str) -> None:
    try:
        with open(path, "rb") as stream:
            empty = not stream.read(1)
    except OSError as error:
        throw(_closed(name, error))
    if empty:
        raise BadInput(
            name,
            "an empty file",
            "a file with at least one row of numbers",
            "there would be nothing to cluster",
            "check that it was written or downloaded whole",
        )


def _closed(name: str, error: OSError) -> BadInput:
    return BadInput(
        name,
        f"a file that can't be opened ({error.strerror})",
        "a file this user may read",
        "there would be nothing to read",
        "change its permissions",
    )


def _no_such(name: str, path: str) -> BadInput:
    folder = os.path.dirname(os.path.abspath(path))
    return BadInput(
        name,
        "no such file",
        "a file or Zarr folder that exists",
        "there would be nothing to read",
        "check the path" if os.path.isdir(folder) else f"check the path, as {folder} does not exist either",
    )


def _not_a_file(name: str, found: str, allowed: str = "a file, or the folder of a Zarr array or group") -> BadInput:
    return BadInput(name, found, allowed, "there would be nothing to read", "name the input itself")


def _unknown(name: str, path: str) -> BadInput:
    ending = os.path.splitext(path)[1].lower()
    if ending in PICKLES:
        return pickled(name, f"a pickle ({ending})")
    return BadInput(
        name,
        f"an unknown format ({ending or 'no ending'})",
        f"{', '.join(FORMATS)}, and .gz after those of text and .mtx",
        "its bytes would be guessed at",
        "convert it, or rename it after what it holds",
    )
