"""Results of stage label: parts by partition, and buckets by rows of the input.

Labels and shares (``labels-p......``) and the embedding (``embedding-p......``) are stored by partition, and labels a
second time in the order of the input, in buckets of equally many rows (``rows-......``). Everything here takes samples
in the run's numbering and rows in the user's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ips2_dask.store.context import Context, part_name
from ips2_dask.typing import AnyArray, Bool, Float32, Int32, Integer

BLOCK_ROWS = 1 << 18
"""Rows of the input whose labels are in memory at a time, unless another number is asked for."""

PREFIXES = {
    **dict.fromkeys(("labels", "certainty", "left_out", "shares"), "labels-"),
    **dict.fromkeys(("embedding", "pairwise_basis", "high_order_basis", "follows"), "embedding-"),
}
"""The prefix of the parts by partition that each array is stored in."""

SAMPLE_COLUMNS = ("certainty", "left_out")
"""Columns of a table of labels; the second one is there where a tree of density made the labels."""

Columns = dict[str, AnyArray]
"""Names, and as many values of each."""


class LabelBlock(NamedTuple):
    """Labels of consecutive rows of the input."""

    first: int  #: number of the first row
    labels: Int32  #: (n,), -1 for a row that was left out
    certainty: Float32  #: (n,), NaN for a row that was left out
    left_out: Bool | None  #: (n,); None where no tree of density made the labels


def sample_columns(block: LabelBlock) -> Columns:
    """Certainty of each label, and what a density left out, if one made the labels, by the name of the column."""
    return {name: values for name in SAMPLE_COLUMNS if (values := getattr(block, name)) is not None}


def _embedded(context: Context) -> dict[str, Any]:
    """Descriptions of the arrays that are stored of the embedding, of the first partition."""
    receipt = context.receipt("label", "embedding-" + part_name(0))
    return {} if receipt is None else dict(receipt["arrays"])


def n_columns(context: Context) -> int | None:
    """Columns of the embedding, or None where there is none."""
    described = _embedded(context).get("embedding")
    return None if described is None else int(described["shape"][1])


def has_followers(context: Context) -> bool:
    """Whether samples of islands take the labels of others, which ``follows`` then says."""
    return "follows" in _embedded(context)


def has_left_out(context: Context) -> bool:
    """Whether a tree of density made the labels, which left samples out."""
    return "left_out" in context.finished("label", _row_parts(context)[0][0])["arrays"]


# ---- by rows of the input


def _bucket_name(number: int) -> str:
    """The name of a bucket of rows of the input."""
    return f"rows-{number:06d}"


def _row_parts(context: Context) -> list[tuple[str, int, int]]:
    """The parts that hold the rows of the input: the name of each, its first row, and one past its last."""

    def n_rows(part: str) -> int:
        return int(context.finished("label", part)["arrays"]["labels"]["shape"][0])

    n = int(context.facts["label"]["buckets"])
    each, last = n_rows(_bucket_name(0)), n_rows(_bucket_name(n - 1))  # all but the last one have equally many
    return [(_bucket_name(i), i * each, i * each + (last if i == n - 1 else each)) for i in range(n)]


def row_blocks(context: Context, rows: int = BLOCK_ROWS) -> Iterator[LabelBlock]:
    """Labels, certainty and what a density left out, in blocks of at most ``rows`` rows in the user's order.

    No array of all rows is read: of a stored array the chunks that a block touches.
    """
    names = ["labels", "certainty", *(["left_out"] if has_left_out(context) else [])]
    folder = context.folders["label"]
    for part, low, high in _row_parts(context):
        for start in range(low, high, rows):
            limits = start - low, min(start + rows, high) - low
            arrays = {name: context.store.read_rows(folder, part, name, *limits) for name in names}
            left_out = arrays["left_out"].astype(np.bool_) if "left_out" in arrays else None
            yield LabelBlock(start, arrays["labels"], arrays["certainty"], left_out)


def by_row(context: Context, name: str) -> AnyArray:
    """Labels, certainty or what was left out of all rows of the input, as stored: (rows,)."""
    folder = context.folders["label"]
    return np.concatenate([context.store.read(folder, part, name) for part, _, _ in _row_parts(context)])


# ---- by samples in the run's numbering


def rows_at(context: Context, name: str, samples: Integer) -> AnyArray:
    """Rows of the embedding, a basis or the shares at some samples of any order: (*samples.shape, columns).

    Also ``labels``, ``certainty`` and ``left_out``: (*samples.shape,). The partitions that hold these samples are read,
    through the cache.
    """
    used, places = np.unique(samples, return_inverse=True)
    if not len(used):
        first = np.asarray(context.read("label", PREFIXES[name] + part_name(0), name))
        return np.empty((*samples.shape, *first.shape[1:]), first.dtype)
    return context.rows_of("label", name, used, PREFIXES[name])[places.reshape(samples.shape)]


def labels_at(context: Context, samples: Integer) -> Int32:
    """Labels of some samples of any order: (n,) int32."""
    return rows_at(context, "labels", samples)


def of_partition(context: Context, name: str, b: int) -> AnyArray:
    """An array of the samples of partition b: (rows, ...), not kept."""
    return context.store.read(context.folders["label"], PREFIXES[name] + part_name(b), name)


def of_all(context: Context, name: str) -> AnyArray:
    """The embedding, a basis or the shares of all samples: (m, columns), for what asks for all of it."""
    return np.concatenate([of_partition(context, name, b) for b in range(context.n_partitions)])
