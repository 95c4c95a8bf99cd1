"""AnnData objects the caller has in memory, known by their parts, so that anndata itself is never imported."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ips2_dask.errors import BadInput
from ips2_dask.readers.arrays import open_array
from ips2_dask.readers.base import Table
from ips2_dask.readers.frames import index_names
from ips2_dask.readers.labels import as_labels, find_column

NAME = "the AnnData given"


def is_anndata(spec: Any) -> bool:
    """Return whether something is an AnnData, without importing anndata."""
    return all(hasattr(spec, part) for part in ("obs_names", "var_names", "obsm", "X"))


def open_anndata(adata: Any, labels_column: str | int | None, transpose: bool) -> Table:
    """Return the table of an AnnData's ``X``; labels are a column of ``obs`` (``var`` where it is transposed)."""
    if adata.X is None:
        raise BadInput(
            NAME, "no X", "an AnnData with X", "there would be nothing to cluster", "give one of its matrices, such as "
            "adata.obsm['X_pca']",
        )  # fmt: skip
    table = open_array(adata.X, None, transpose)
    samples, features = (adata.var_names, adata.obs_names) if transpose else (adata.obs_names, adata.var_names)
    names, titles = index_names(samples), index_names(features)
    read_labels = None
    if labels_column is not None:
        frame = adata.var if transpose else adata.obs
        columns = [str(column) for column in frame.columns]
        column = frame.iloc[:, find_column(f"{NAME}, obs", labels_column, columns, len(columns))]
        read_labels = partial(np.array, as_labels(np.asarray(column.to_numpy(dtype=object)), NAME))
    return replace(
        table,
        name=NAME,
        feature_names=None if titles is None else titles.tolist(),
        read_sample_names=None if names is None else partial(np.array, names),
        read_labels=read_labels,
    )
