"""The ingest of a matrix of distances: checked to be one, and kept by rows in the run's unit where X would be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ips2_dask.errors import BadInput
from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.kernels import ingest, precomputed
from ips2_dask.readers import check_block
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.integrity import Receipt


def _refused(context: Context, found: str, allowed: str, otherwise: str, remedy: str) -> BadInput:
    return BadInput(context.facts["ingest"]["source"]["name"], found, allowed, otherwise, remedy)


def sizes(context: Context, b: int, block: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Check rows of partition b: finite, none negative, zero from a sample to itself; and sum up each row's squares."""
    low, high = context.span(b)
    check_block(block, low, context.facts["ingest"]["source"]["name"])
    D = np.asarray(block, np.float64)
    if D.min(initial=0.0) < 0:
        row, column = np.argwhere(D < 0)[0]
        raise _refused(
            context, f"the distance {D[row, column]:g} from sample {low + row} to {column}", "distances of at least 0",
            "a similarity would be read as a distance, and the farthest would be neighbours",
            "give distances, such as 1 - similarity",
        )  # fmt: skip
    own = D[np.arange(high - low), np.arange(low, high)]
    if own.any():
        row = int(np.flatnonzero(own)[0])
        raise _refused(
            context, f"the distance {own[row]:g} from sample {low + row} to itself", "zeros on the diagonal",
            "the matrix may be one of similarities, and the farthest would be neighbours",
            "give distances, such as 1 - similarity",
        )  # fmt: skip
    exponent, squares = precomputed.row_squares(D)
    return {"squares": squares}, {"exponent": exponent}


def unit_exponent(context: Context, receipts: Sequence[Receipt]) -> int:
    """The exponent of the run's unit: of samples with these distances, as `ingest.unit_exponent` says of columns.

    The mean squared distance of two samples is twice that of a sample from the centre.
    """
    exponents = [int(receipt["facts"]["exponent"]) for receipt in receipts]
    top, m, folder = max(exponents), context.m, context.folders["ingest"]
    parts = (context.store.read(folder, "statistics-" + part_name(b), "squares") for b in range(len(exponents)))
    scaled = (np.ldexp(part, 2 * (e - top)) for part, e in zip(parts, exponents, strict=True))
    mean = math.fsum(x for part in scaled for x in part.tolist()) / (2 * m * m)
    return ingest.root_exponent(np.ldexp(np.sqrt([mean]), top))


def in_unit(context: Context, block: Any) -> Any:
    """Rows of distances as float32, in the unit of the run."""
    scaled = np.asarray(block, np.float64) * np.ldexp(1.0, -context.exponent)
    return np.ascontiguousarray(scaled, np.float32)


def symmetric(context: Context, b: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Check that partition b's rows are what the columns of the earlier partitions, and its own, say."""
    low, high = context.span(b)
    D = np.asarray(context.read("ingest", b, "samples"))
    for other in range(b + 1):
        first, last = context.span(other)
        mirror = np.asarray(context.read("ingest", other, "samples"))[:, low:high]
        at = precomputed.first_uneven(D[:, first:last], mirror)
        if at is not None:
            i, j = at[0], first + at[1]
            there, back = (float(x) * context.unit for x in (D[i, j], mirror[at[1], i]))
            raise _refused(
                context, f"{there:g} from sample {low + i} to {j} and {back:g} back",
                "a symmetric matrix", "the tensor would have two values for one pair",
                "give (D + D.T) / 2 where both directions mean the same",
            )  # fmt: skip
    return {}, {}


def check_symmetric(context: Context, executor: Executor, report: Report) -> None:
    """Refuse a stored matrix whose two triangles differ by more than rounding."""
    parts = range(context.n_partitions)
    executor.map(Job("ingest", symmetric, "symmetric-"), context, parts, report)
    for b in parts:
        context.store.drop(context.folders["ingest"], "symmetric-" + part_name(b))
