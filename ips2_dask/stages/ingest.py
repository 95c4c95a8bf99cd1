"""Stage 1: the input, checked, centred in float64 and scaled, as float32 rows by partition."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ips2_dask.errors import BadInput
from ips2_dask.executors import Executor, Job, Report, stage_source
from ips2_dask.kernels import ingest as kernel
from ips2_dask.params import Params
from ips2_dask.plan import Choices
from ips2_dask.storage.context import Context, part_name
from ips2_dask.storage.readers import check_block

VERSION = 1


def depends_on(params: Params, choices: Choices) -> dict[str, Any]:
    """The parameters that this stage's arrays depend on, besides the input."""
    del choices
    return {"scale": params.scale}


def _block(context: Context, b: int) -> np.ndarray[Any, Any]:
    """Rows of partition b as the source has them."""
    name = "raw-" + part_name(b)
    if context.store.receipt(context.folders["ingest"], name) is not None:
        return context.store.read(context.folders["ingest"], name, "raw")
    return np.asarray(context.source.read(*context.span(b)))


def raw(context: Context, b: int, block: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Rows of partition b as they come from a source that is staged."""
    del context, b
    return {"raw": np.ascontiguousarray(block)}, {}


def statistics(context: Context, b: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Check one partition's rows, and sum up its columns about the first row of the input."""
    block = _block(context, b)
    source = context.facts["ingest"]["source"]
    check_block(block, context.bounds[b], source["name"], source["feature_names"])
    wide = block.astype(np.float64)
    if context.params.scale == "l2":
        wide = kernel.unit_rows(wide)
    shift = np.array(context.facts["ingest"]["shift"])
    found = kernel.column_statistics(wide, shift)
    return {"statistics": np.concatenate([found.total, found.square, found.low[None], found.high[None]])}, {}


def samples(context: Context, b: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """One partition of X, centred and scaled."""
    center = context.read("ingest", "whole", "center")
    spread = context.read("ingest", "whole", "spread")
    X, rounded = kernel.standardize(_block(context, b), center, spread, context.params.scale)
    return {"samples": np.ascontiguousarray(X)}, {"rounded": rounded}


def run(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store X by partition and the known labels; returns counts and warnings."""
    source, store, folder = context.source, context.store, context.folders["ingest"]
    staged = not source.parallel
    if staged:
        job = Job("ingest", raw, "raw-")
        stage_source(executor, job, dataclasses.replace(context, source=None), source, report, _unread(context))
        first = store.read(folder, "raw-" + part_name(0), "raw")[:1]
    else:
        first = np.asarray(source.read(0, 1))
    shift = np.asarray(first, np.float64)
    check_block(first, 0, source.name, source.feature_names)
    if context.params.scale == "l2":
        shift = kernel.unit_rows(shift)
    facts: dict[str, Any] = {
        "source": {"name": source.name, "feature_names": source.feature_names},
        "shift": shift[0].tolist(),
    }
    inner = dataclasses.replace(context, facts={"ingest": facts}, source=None if staged else source)
    parts = range(context.n_partitions)
    executor.map(Job("ingest", statistics, "statistics-"), inner, parts, report)
    center, spread, statistics_ = _centering(inner, shift[0])
    store.write(folder, "whole", {"center": center, "spread": spread, **_known(source)}, {})
    receipts = executor.map(Job("ingest", samples), inner, parts, report)
    for b in parts:  # the statistics stay, so that one partition can be made again alone
        store.drop(folder, "raw-" + part_name(b))
    names = _label_names(source)
    rounded = sum(r["facts"]["rounded"] for r in receipts)
    return {"warnings": _warnings(statistics_, rounded, context.m), "label_names": names, "source": source.name}


def _unread(context: Context) -> list[int]:
    """Partitions whose rows are still needed: the first, which the others are centred about, and unfinished ones."""
    needed = ("", "statistics-")
    return [
        b for b in range(context.n_partitions)
        if b == 0 or any(context.receipt("ingest", prefix + part_name(b)) is None for prefix in needed)
    ]  # fmt: skip


def _centering(context: Context, shift: np.ndarray[Any, Any]) -> tuple[Any, Any, kernel.Statistics]:
    stacked = [
        context.store.read(context.folders["ingest"], "statistics-" + part_name(b), "statistics")
        for b in range(context.n_partitions)
    ]
    merged = kernel.merge([kernel.Statistics(a[0:2], a[2:4], a[4], a[5]) for a in stacked])
    center, spread = kernel.centering(merged, shift, context.m, context.params.scale)
    reach = np.sqrt(np.square((merged.high - merged.low) / spread).sum()) if len(center) else 0.0
    if not reach < kernel.LARGEST:
        raise BadInput(
            context.facts["ingest"]["source"]["name"], f"values that lie {reach:.3g} apart",
            f"samples less than {kernel.LARGEST:.2g} apart", "squared distances would overflow float32",
            "scale the columns, for example with scale='zscore' (--scale zscore)",
        )  # fmt: skip
    return center, spread, merged


def _known(source: Any) -> dict[str, Any]:
    labels = source.labels()
    return {} if labels is None else {"known": np.unique(labels, return_inverse=True)[1].astype(np.int32).ravel()}


def _label_names(source: Any) -> list[str] | None:
    labels = source.labels()
    return None if labels is None else [str(name) for name in np.unique(labels)]


def _warnings(statistics_: kernel.Statistics, rounded: int, m: int) -> list[str]:
    out = []
    f = len(statistics_.low)
    constant = int(np.count_nonzero(statistics_.low == statistics_.high))
    if constant == f:
        out.append(f"all {m} rows are equal: every partition of them is as good as another")
    elif constant:
        out.append(f"{constant} of {f} columns are constant and tell nothing apart")
    if rounded:
        out.append(f"{rounded} whole numbers have more digits than float32 keeps and were rounded")
    return out
