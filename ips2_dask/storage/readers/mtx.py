"""The Matrix Market format, .mtx and .mtx.gz, read whole."""

from __future__ import annotations

from functools import partial

import numpy as np
from scipy import io

from ips2_dask.storage.readers import faults
from ips2_dask.storage.readers.base import FileStamp, Request, Table, check_dtype, check_shape
from ips2_dask.storage.readers.labels import take_label_column
from ips2_dask.storage.readers.resident import Matrix, as_csr, is_sparse, loaded_table


def open_file(request: Request) -> Table:
    """Return the table of a Matrix Market file, of which one column may hold the labels."""
    stamp = FileStamp.of(request)
    with faults.reading(request.name):
        rows, columns, _, _, field, _ = io.mminfo(request.path)
    check_shape(request.name, (rows, columns))
    if field == "complex":
        check_dtype(request.name, np.dtype(np.complex128))
    load = partial(_load, stamp, request.transpose)
    table = loaded_table(load, stamp, stamp.digest("mtx", request.transpose))
    return table if request.labels_column is None else take_label_column(table, request.labels_column)


def _load(stamp: FileStamp, transpose: bool) -> Matrix:
    with faults.reading(stamp.name):
        matrix = io.mmread(stamp.path)
    matrix = matrix.T if transpose else matrix
    return as_csr(matrix, stamp.name) if is_sparse(matrix) else matrix
