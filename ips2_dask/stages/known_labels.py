"""Known labels of a run as codes: stored by the ingest, and read by ranges of rows.

A run whose vectors are in core stores the codes of all rows in one part. A run whose vectors are in chunks stores them
in buckets of equally many rows, so that nobody who stores, scores or shows them has more than a bucket in memory; runs
of earlier versions have one part there too.
"""

from __future__ import annotations

import math

import numpy as np

from ips2_dask.readers import Source
from ips2_dask.readers.labels import classes_of
from ips2_dask.store.context import Context
from ips2_dask.typing import AnyArray, Int32

BUCKET_ROWS = 1 << 18
"""Rows of a bucket, which the process of the run reads and stores one after the other."""


def bucket_name(number: int) -> str:
    """The name of the part of a bucket."""
    return f"known-{number:06d}"


def store_codes(context: Context, source: Source) -> tuple[dict[str, AnyArray], list[str] | None]:
    """Store the codes of a source's labels in buckets, those that are not there, where a run has such.

    Returns dict: the codes of all rows for the part ``whole``, of a run without buckets; list of str, optional:
    names of the classes in the order of their codes; None where the source has no labels. Raises `BadInput` if a
    label is missing, or a number that is not whole.
    """
    classes = classes_of(source)
    if classes is None:
        return {}, None
    names = [str(name) for name in classes.names]
    if not context.choices.rows_by_partition:
        return {"known": np.concatenate(list(classes.codes(BUCKET_ROWS)))}, names
    store, folder = context.store, context.folders["ingest"]
    buckets = [bucket_name(number) for number in range(math.ceil(context.m / BUCKET_ROWS))]
    there = store.receipts(folder, buckets)
    if len(there) < len(buckets):
        for bucket, codes in zip(buckets, classes.codes(BUCKET_ROWS), strict=True):
            if bucket not in there:
                store.write(folder, bucket, {"known": codes}, {})
    return {}, names


def are_known(context: Context) -> bool:
    """Whether labels came with the input of a run."""
    return _are_whole(context) or context.receipt("ingest", bucket_name(0)) is not None


def read_codes(context: Context, low: int = 0, high: int | None = None) -> Int32:
    """Codes of rows low .. high - 1 of the input, by default of all: (rows,) int32."""
    store, folder = context.store, context.folders["ingest"]
    high = context.n_rows if high is None else high
    if _are_whole(context):
        return np.asarray(store.read_rows(folder, "whole", "known", low, high))
    receipt = context.receipt("ingest", bucket_name(0))
    each = context.n_rows if receipt is None else int(receipt["arrays"]["known"]["shape"][0])
    found = [np.empty(0, np.int32)]
    for number in range(low // each, math.ceil(high / each)):
        first = number * each
        rows = max(low - first, 0), min(high - first, each)
        found.append(store.read_rows(folder, bucket_name(number), "known", *rows))
    return np.concatenate(found)


def _are_whole(context: Context) -> bool:
    """Whether the codes of all rows are in one part."""
    receipt = context.receipt("ingest", "whole")
    return receipt is not None and "known" in receipt["arrays"]
