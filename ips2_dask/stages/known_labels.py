"""Known labels of a run as codes: stored by the ingest in buckets of equally many rows, and read by ranges of rows.

So nobody who stores, scores or shows them has more than a bucket in memory.
"""

from __future__ import annotations

import math

import numpy as np

from ips2_dask.readers import Source
from ips2_dask.readers.base import rebatch
from ips2_dask.readers.labels import classes_of
from ips2_dask.store.context import Context
from ips2_dask.typing import Int32

BUCKET_ROWS = 1 << 18
"""Rows of a bucket, which the process of the run reads and stores one after the other."""


def bucket_name(number: int) -> str:
    """The name of the part of a bucket."""
    return f"known-{number:06d}"


def store_codes(context: Context, source: Source) -> list[str] | None:
    """Store the codes of a source's labels in buckets, those that are not there.

    Returns list of str, optional: names of the classes in the order of their codes; None where the source has no
    labels. Raises `BadInput` if a label is missing, or a number that is not whole.
    """
    classes = classes_of(source)
    if classes is None:
        return None
    store, folder = context.store, context.folders["ingest"]
    buckets = [bucket_name(number) for number in range(math.ceil(context.m / BUCKET_ROWS))]
    there = store.receipts(folder, buckets)
    if len(there) < len(buckets):
        for bucket, codes in zip(buckets, rebatch(classes.pieces(), BUCKET_ROWS), strict=True):
            if bucket not in there:
                store.write(folder, bucket, {"known": codes}, {})
    return [str(name) for name in classes.names]


def are_known(context: Context) -> bool:
    """Whether labels came with the input of a run."""
    return context.receipt("ingest", bucket_name(0)) is not None


def read_codes(context: Context, low: int = 0, high: int | None = None) -> Int32:
    """Codes of rows low .. high - 1 of the input, by default of all: (rows,) int32."""
    store, folder = context.store, context.folders["ingest"]
    high = context.n_rows if high is None else high
    each = int(context.finished("ingest", bucket_name(0))["arrays"]["known"]["shape"][0])
    found = [np.empty(0, np.int32)]
    for number in range(low // each, math.ceil(high / each)):
        first = number * each
        rows = max(low - first, 0), min(high - first, each)
        found.append(store.read_rows(folder, bucket_name(number), "known", *rows))
    return np.concatenate(found)
