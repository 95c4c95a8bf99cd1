"""Stage 1: the input, checked, centred, scaled and brought to one unit in float64, as float32 rows by partition."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from ips2_dask.errors import BadInput
from ips2_dask.executors.base import Executor, Job, Report, stage_source
from ips2_dask.kernels import ingest as kernel
from ips2_dask.params import AS_THEY_ARE, TURNED, Params
from ips2_dask.plan.checks import check_shape
from ips2_dask.plan.choices import Choices
from ips2_dask.readers import check_block, features_of
from ips2_dask.readers.features import FittedFeatures
from ips2_dask.stages import ingest_distances, ingest_duplicates, ingest_missing
from ips2_dask.stages.row_checks import check_rows
from ips2_dask.store.context import Context, part_name

VERSION = 2


def depends_on(params: Params, choices: Choices) -> dict[str, Any]:
    """The parameters that this stage's arrays depend on, besides the input."""
    del choices
    own: dict[str, Any] = {"scale": params.scale}
    # Manhattan and Chebyshev distances are measured in the same samples as Euclidean ones
    if params.metric in (*TURNED, "jaccard", "precomputed"):
        own["metric"] = params.metric
    elif params.metric in AS_THEY_ARE:
        own["centred"] = False
    return own | ({"duplicates": params.duplicates} if params.merges_rows else {})


def _block(context: Context, b: int) -> np.ndarray[Any, Any]:
    """Rows of partition b as the source has them, with medians where values are missing and shall have them."""
    if context.source is not None:
        return np.asarray(context.source.read(*context.span(b)))
    block = ingest_missing.raw_block(context, b)
    if context.facts["ingest"].get("missing") == "median":
        return ingest_missing.filled(block, np.asarray(context.read("ingest", "medians", "medians")))
    return block


def _kept(context: Context, b: int, block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Which rows of partition b stay, as their places in it; None for all of them."""
    if context.facts["ingest"].get("missing") != "drop":
        return None
    out: np.ndarray[Any, Any] = np.flatnonzero(~np.isnan(block).any(axis=1))
    return out


def raw(context: Context, b: int, block: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Rows of partition b as they come from a source that is staged."""
    del context, b
    return {"raw": np.ascontiguousarray(block)}, {}


def statistics(context: Context, b: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Check one partition's rows, and sum up its columns about the first row of the input."""
    block = _block(context, b)
    source = context.facts["ingest"]["source"]
    rows = np.arange(*context.span(b))
    kept = _kept(context, b, block)
    if kept is not None:
        block, rows = block[kept], rows[kept]
    else:
        check_block(block, context.bounds[b], source["name"], source["feature_names"])
    wide = _turned(context, block.astype(np.float64), rows)
    shift = np.array(context.facts["ingest"]["shift"])
    found = kernel.column_statistics(wide, shift)
    stacked = [found.exponent[None].astype(np.float64), found.total, found.square, found.low[None], found.high[None]]
    return {"statistics": np.concatenate(stacked)}, {}


def _turned(context: Context, wide: Any, rows: Any) -> Any:
    """Rows as they are before their columns are centred; those without a direction are refused by a metric of them."""
    metric, facts = context.params.metric, context.facts["ingest"]
    if facts["pass"] == "columns":
        return wide
    columns = _columns(context)
    check_rows(wide if columns is None else columns.of(wide), rows, facts["source"]["name"], metric)
    return kernel.turned_rows(wide, context.params.scale, metric, columns)


def _columns(context: Context) -> kernel.Columns | None:
    """What the columns are scaled by before their rows are turned."""
    if not context.facts["ingest"].get("columns"):
        return None
    return kernel.Columns(*(np.asarray(context.read("ingest", "columns", name)) for name in ("center", "spread")))


def samples(context: Context, b: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """One partition of X, centred, scaled and in the unit of the run."""
    center = context.read("ingest", "whole", "center")
    spread = context.read("ingest", "whole", "spread")
    block = _block(context, b)
    kept = _kept(context, b, block)
    X, rounded = kernel.standardize(
        block if kept is None else block[kept], center, spread, context.params.scale, context.params.metric,
        _columns(context), context.exponent,
    )  # fmt: skip
    if kept is not None:  # those that are left out are no samples: `duplicates.merge` takes the others
        whole = np.zeros(block.shape, np.float32)
        whole[kept] = X
        X = whole
    return {"samples": np.ascontiguousarray(X)}, {"rounded": rounded}


def given_rows(context: Context, b: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """One partition of a matrix of distances."""
    return {"samples": ingest_distances.in_unit(context, _block(context, b))}, {"rounded": 0}


def given_sizes(context: Context, b: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Check one partition of a matrix of distances, and sum up the squares of its rows."""
    return ingest_distances.sizes(context, b, _block(context, b))


def run(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store X by partition and the known labels; returns counts and warnings."""
    source, store, folder = context.source, context.store, context.folders["ingest"]
    fitted = features_of(source)
    # integers lack nothing; but new samples may, so that their medians are looked for all the same
    rule = "refuse" if fitted is None else fitted.missing
    staged = not source.parallel or rule != "refuse"
    if not source.parallel:
        job = Job("ingest", raw, "raw-")
        wanted = _unread(context, rule)
        stage_source(executor, job, dataclasses.replace(context, source=None), source, report, wanted)
    elif staged:
        executor.map(Job("ingest", ingest_missing.staged, "raw-"), context, _unread(context, rule), report)
    inner = dataclasses.replace(context, facts={"ingest": {}}, source=None if staged else source)
    facts = inner.facts["ingest"]
    facts["source"] = {"name": source.name, "feature_names": source.feature_names}
    facts["missing"] = rule
    lacking, dropped = _missing(inner, fitted, executor, report)
    facts["rows"] = context.m - len(dropped)
    first_row = next((row for row, gone in enumerate(dropped) if row != gone), len(dropped))
    if staged:
        at = int(context.owner(np.array([first_row]))[0])
        first = _block(inner, at)[first_row - context.bounds[at]][None]
    else:
        first = np.asarray(source.read(0, 1))
    check_block(first, first_row, source.name, source.feature_names)
    parts = range(context.n_partitions)
    vanishing, statistics_ = 0, None
    if context.params.metric == "precomputed":
        sizes = executor.map(Job("ingest", given_sizes, "statistics-"), inner, parts, report)
        facts["exponent"] = ingest_distances.unit_exponent(inner, sizes)
        receipts = executor.map(Job("ingest", given_rows), inner, parts, report)
        ingest_distances.check_symmetric(inner, executor, report)
        given = {"center": np.zeros(context.m), "spread": np.ones(context.m)}
        store.write(folder, "whole", given | _known(source), {})
    else:
        found = _measured(inner, executor, report, np.asarray(first, np.float64), first_row)
        facts["exponent"], vanishing, statistics_ = found.exponent, found.vanishing, found.statistics
        store.write(folder, "whole", {"center": found.center, "spread": found.spread, **_known(source)}, {})
        receipts = executor.map(Job("ingest", samples), inner, parts, report)
    there = store.listed(folder)
    for name in (f"raw-{part_name(b)}" for b in parts):  # the statistics stay, so that one can be made again alone
        if there is None or name in there:
            store.drop(folder, name)
    names = _label_names(source)
    rounded = sum(r["facts"]["rounded"] for r in receipts)
    merged: dict[str, Any] = {}
    if context.params.merges_rows or len(dropped):
        merged = ingest_duplicates.merge(inner, executor, report, dropped)
    if rule != "refuse":
        merged["missing"] = {"rule": rule, **lacking}
    return {
        "warnings": _warnings(statistics_, rounded, vanishing, facts["rows"]), "label_names": names,
        "source": source.name, "exponent": facts["exponent"], **merged,
    }  # fmt: skip


def _missing(
    context: Context, fitted: FittedFeatures | None, executor: Executor, report: Report
) -> tuple[dict[str, int], np.ndarray[Any, Any]]:
    """How many values and rows lack something, and the rows that are left out; medians are stored on the way."""
    if fitted is None or fitted.missing == "refuse":
        return {}, np.empty(0, np.int64)
    ingest_missing.find(context, executor, report)
    rows = ingest_missing.incomplete(context)
    lacking = {"values": int(ingest_missing.missing_by_column(context)[fitted.firsts].sum()), "rows": len(rows)}
    if fitted.missing == "median":
        ingest_missing.keep_medians(context, fitted.numeric, executor, report)
        return lacking, np.empty(0, np.int64)
    name = context.facts["ingest"]["source"]["name"]
    if len(rows) == context.m:
        raise BadInput(
            name, "a missing value in every row", "rows that lack nothing, with missing='drop'",
            "no row would be left", "drop columns (--drop-columns), or fill gaps with medians (--missing median)",
        )  # fmt: skip
    check_shape(context.m - len(rows), context.n_features, context.params, f"{name} without its incomplete rows")
    return lacking, rows


def _unread(context: Context, rule: str) -> list[int]:
    """Partitions whose rows are still needed: the first, which the others are centred about, and unfinished ones."""
    needed: tuple[str, ...] = ("", "statistics-")
    if context.params.metric in TURNED and context.params.scale in ("zscore", "minmax"):
        needed = (*needed, "columns-")
    if rule == "drop" or (rule == "median" and context.receipt("ingest", "medians") is None):
        return list(range(context.n_partitions))  # the first complete row may be in any, and medians are of all
    if rule == "median":
        needed = (*needed, ingest_missing.PREFIX)
    return [
        b for b in range(context.n_partitions)
        if b == 0 or any(context.receipt("ingest", prefix + part_name(b)) is None for prefix in needed)
    ]  # fmt: skip


class Measured(NamedTuple):
    """What the statistics of the columns decide."""

    center: Any  # (f,) what to take from each column
    spread: Any  # (f,) what to divide it by
    exponent: int  # of the power of two that all values are divided by then
    vanishing: int  # columns that vary too little beside the others
    statistics: kernel.Statistics  # of the columns as they came


def _measured(inner: Context, executor: Executor, report: Report, first: Any, first_row: int) -> Measured:
    """What to make of the columns.

    A metric of turned rows of scaled columns takes two passes: over the columns, then over the rows made of them.
    """
    params, facts, parts = inner.params, inner.facts["ingest"], range(inner.n_partitions)
    raw_statistics = None
    if params.metric in TURNED and params.scale in ("zscore", "minmax"):
        facts |= {"pass": "columns", "shift": first[0].tolist()}
        executor.map(Job("ingest", statistics, "columns-"), inner, parts, report)
        raw_statistics = _merged(inner, "columns-")
        columns = kernel.scaled_columns(raw_statistics, first[0], facts["rows"], params.scale)
        inner.store.write(inner.folders["ingest"], "columns", columns._asdict(), {})
        facts["columns"] = True
    facts["pass"] = "rows"
    facts["shift"] = _turned(inner, first, [first_row])[0].tolist()
    executor.map(Job("ingest", statistics, "statistics-"), inner, parts, report)
    found = _centering(inner, np.array(facts["shift"]))
    return found if raw_statistics is None else found._replace(statistics=raw_statistics)


def _merged(context: Context, prefix: str) -> kernel.Statistics:
    stacked = [
        context.store.read(context.folders["ingest"], prefix + part_name(b), "statistics")
        for b in range(context.n_partitions)
    ]
    return kernel.merge([kernel.Statistics(a[0].astype(np.int64), a[1:3], a[3:5], a[5], a[6]) for a in stacked])


def _centering(context: Context, shift: np.ndarray[Any, Any]) -> Measured:
    merged = _merged(context, "statistics-")
    metric, scale = context.params.metric, context.params.scale
    if metric in AS_THEY_ARE:
        columns = kernel.Columns(np.zeros(context.n_features), np.ones(context.n_features))
        if scale in ("zscore", "minmax"):
            columns = kernel.scaled_columns(merged, shift, context.facts["ingest"]["rows"], scale)
        center, spread = columns
        exponent = kernel.root_exponent(np.maximum(np.abs(merged.low - center), np.abs(merged.high - center)) / spread)
    else:
        # directions are centred, for their digits, and never stretched
        center, spread = kernel.centering(
            merged, shift, context.facts["ingest"]["rows"], "none" if metric in TURNED else scale
        )
        exponent = kernel.unit_exponent(merged, spread, context.facts["ingest"]["rows"])
    return Measured(center, spread, exponent, kernel.vanishing(merged, spread, exponent), merged)


def _known(source: Any) -> dict[str, Any]:
    labels = source.labels()
    return {} if labels is None else {"known": np.unique(labels, return_inverse=True)[1].astype(np.int32).ravel()}


def _label_names(source: Any) -> list[str] | None:
    labels = source.labels()
    return None if labels is None else [str(name) for name in np.unique(labels)]


def _warnings(statistics_: kernel.Statistics | None, rounded: int, vanishing: int, m: int) -> list[str]:
    out: list[str] = []
    if statistics_ is None:
        return out
    f = len(statistics_.low)
    constant = int(np.count_nonzero(statistics_.low == statistics_.high))
    if constant == f:
        out.append(f"all {m} rows are equal: every partition of them is as good as another")
    elif constant:
        out.append(f"{constant} of {f} columns are constant and tell nothing apart")
    if vanishing:
        out.append(
            f"{vanishing} of {f} columns vary so little beside the others that no distance in float32 shows it: "
            "scale='zscore' would give all columns the same weight"
        )
    if rounded:
        out.append(f"{rounded} whole numbers have more digits than float32 keeps and were rounded")
    return out
