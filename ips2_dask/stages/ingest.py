"""Stage 1: the input, checked, centred, scaled and brought to one unit in float64, as float32 rows by partition."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ips2_dask.errors import BadInput
from ips2_dask.executors.base import Executor, Job, Report, stage_source
from ips2_dask.kernels import ingest as kernel
from ips2_dask.kernels.metrics import METRICS
from ips2_dask.params import Params, check_shape
from ips2_dask.plan.choices import Choices
from ips2_dask.readers import check_block
from ips2_dask.readers.base import NeighborDistances
from ips2_dask.readers.features import FittedFeatures
from ips2_dask.stages import ingest_duplicates, ingest_missing, known_labels
from ips2_dask.store.base import TaskResult
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.integrity import Receipt
from ips2_dask.typing import AnyArray, Float64

VERSION = 3


def depends_on(params: Params, choices: Choices) -> dict[str, object]:
    """The parameters that this stage's arrays depend on, besides the input."""
    del choices
    own: dict[str, object] = {"scale": params.scale}
    # Manhattan and Chebyshev distances are measured in the same samples as Euclidean ones
    metric = METRICS[params.metric]
    if not metric.keeps_rows:
        own["metric"] = params.metric
    elif metric.about_zero:
        own["centred"] = False
    return own | ({"duplicates": params.duplicates} if params.merges_rows else {})


def _block(context: Context, b: int) -> AnyArray:
    """Rows of partition b as the source has them, with medians where values are missing and shall have them."""
    if context.source is not None:
        return np.asarray(context.source.read(*context.span(b)))
    block = ingest_missing.raw_block(context, b)
    if context.facts["ingest"].get("missing") == "median":
        return ingest_missing.filled(block, np.asarray(context.read("ingest", "medians", "medians")))
    return block


def _kept(context: Context, b: int, block: AnyArray) -> AnyArray | None:
    """Places in partition b of its rows that stay, (rows,) int64; None where none is dropped."""
    if context.facts["ingest"].get("missing") != "drop":
        return None
    places: AnyArray = np.flatnonzero(~np.isnan(block).any(axis=1))
    return places


def raw(context: Context, b: int, block: AnyArray) -> TaskResult:
    """Rows of partition b as they come from a source that is staged."""
    del context, b
    return {"raw": np.ascontiguousarray(block)}, {}


def column_statistics(context: Context, b: int) -> TaskResult:
    """Check one partition's rows, and sum up its columns as they came, about the first row of the input."""
    X, _ = _checked_rows(context, b)
    return _statistics(context, X), {}


def _row_statistics(context: Context, b: int) -> TaskResult:
    """Check one partition's rows, and sum up the columns of its prepared rows, about the first one of the input."""
    return _statistics(context, _prepared(context, *_checked_rows(context, b))), {}


def _checked_rows(context: Context, b: int) -> tuple[AnyArray, NDArray[np.int64]]:
    """The rows of partition b that stay, (rows, f), and their numbers in the input, (rows,)."""
    block = _block(context, b)
    source = context.facts["ingest"]["source"]
    rows = np.arange(*context.span(b))
    staying = _kept(context, b, block)
    if staying is not None:
        block, rows = block[staying], rows[staying]
    else:
        check_block(block, context.bounds[b], source["name"], source["feature_names"])
    return block, rows


def _statistics(context: Context, X: AnyArray) -> dict[str, AnyArray]:
    """The sums of the columns of X (rows, f) about the shift: an array to store."""
    sums = kernel.column_statistics(X, np.array(context.facts["ingest"]["shift"]))
    stacked = [sums.exponent[None].astype(np.float64), sums.total, sums.square, sums.low[None], sums.high[None]]
    return {"statistics": np.concatenate(stacked)}


def _prepared(context: Context, X: AnyArray, rows: NDArray[np.int64] | list[int]) -> AnyArray:
    """Rows X of these numbers as the metric wants them before columns are centred; what it can't compare is refused."""
    if context.metric.needs_direction or context.params.scale == "l2":
        X = X.astype(np.float64)  # other rows stay as they are
    columns = _columns(context)
    name = context.facts["ingest"]["source"]["name"]
    check_rows(X if columns is None else columns.of(X), rows, name, context.metric.name)
    return kernel.turned_rows(X, context.params.scale, context.metric.name, columns)


def check_rows(rows: NDArray[np.float64], numbers: NDArray[np.int64] | list[int], name: str, metric: str) -> None:
    """Refuse rows without a direction, and negative values in rows of shares.

    ``rows`` (rows, f) have their columns scaled; ``numbers`` and ``name`` are what the user calls them and the input.
    """
    if not METRICS[metric].needs_direction:
        return
    if METRICS[metric].rows == "root shares":
        bad = np.flatnonzero((rows < 0).any(axis=1))
        if len(bad):
            found = f"the value {rows[bad[0]].min():.6g} in row {numbers[bad[0]]}"
            otherwise = "a negative share of a row's sum has no square root"
            raise BadInput(name, found, "values of at least 0", otherwise, "use metric='euclidean'")
    bad = np.flatnonzero(kernel.directionless(rows, metric))
    if len(bad):
        centred = METRICS[metric].rows == "centred unit"
        values = "the same value in every column" if centred else "nothing but zeros"
        found, allowed = f"{values} in row {numbers[bad[0]]}", "rows that vary" if centred else "rows that are not zero"
        otherwise = f"its {metric} with any other would be 0 / 0"
        raise BadInput(name, found, allowed, otherwise, "drop such rows, or use metric='euclidean'")


def _scales_first(context: Context) -> bool:
    """Whether columns are scaled before rows are prepared, which takes a pass over the input of its own."""
    return context.metric.needs_direction and context.params.scale in ("zscore", "minmax")


def _columns(context: Context) -> kernel.Columns | None:
    """Centre and spread that scale the columns before rows are prepared."""
    if not _scales_first(context):
        return None
    return kernel.Columns(*(np.asarray(context.read("ingest", "columns", name)) for name in ("center", "spread")))


def samples(context: Context, b: int) -> TaskResult:
    """One partition of X, centred, scaled and in the unit of the run."""
    center = context.read("ingest", "whole", "center")
    spread = context.read("ingest", "whole", "spread")
    block = _block(context, b)
    staying = _kept(context, b, block)
    X, rounded = kernel.standardize(
        block if staying is None else block[staying],
        center,
        spread,
        context.params.scale,
        context.params.metric,
        _columns(context),
        context.exponent,
    )
    if staying is not None:  # those that are left out are no samples: `duplicates.merge` takes the others
        whole = np.zeros(block.shape, np.float32)
        whole[staying] = X
        X = whole
    return {"samples": np.ascontiguousarray(X)}, {"rounded": rounded}


def _given_rows(context: Context, b: int) -> TaskResult:
    """One partition of a matrix of distances, as float32 in the unit of the run; the diagonal is 0."""
    scaled = _distances(context, b) * np.ldexp(1.0, -context.exponent)
    return {"samples": np.ascontiguousarray(scaled, np.float32)}, {"rounded": 0}


def _given_sizes(context: Context, b: int) -> TaskResult:
    """Sum up the squares of the rows of one partition of distances, and say what `_check_distances` looks at."""
    block, low = _block(context, b), context.bounds[b]
    if not context.facts["ingest"]["neighbors_only"]:
        check_block(block, low, context.facts["ingest"]["source"]["name"])
    least = np.unravel_index(np.argmin(block), block.shape)
    own = np.abs(block[np.arange(len(block)), np.arange(low, low + len(block))])
    row = int(np.argmax(own))
    D = _distances(context, b)
    stored = np.isfinite(D)
    D[~stored] = 0.0
    exponent, squares = kernel.row_squares(D)
    return {"squares": squares}, {
        "exponent": exponent,
        "stored": int(stored.sum()),
        "largest": float(np.abs(block[stored]).max()),
        "least": [low + int(least[0]), int(least[1]), float(block[least])],
        "own": [low + row, float(own[row])],
    }


def _distances(context: Context, b: int) -> Float64:
    """Rows of partition b of a matrix of distances: what rounding has left below 0 and on the diagonal is 0."""
    D = np.maximum(np.asarray(_block(context, b), np.float64), 0.0)
    D[np.arange(len(D)), np.arange(*context.span(b))] = 0.0
    return D


def run(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store X by partition and the known labels; returns counts and warnings."""
    source, store, folder = context.source, context.store, context.folders["ingest"]
    fitted = source.fitted
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
    lacking, n_dropped = _missing(inner, fitted, executor, report)
    facts["rows"] = context.m - n_dropped
    first_row = ingest_missing.first_complete(inner) if n_dropped else 0
    if staged:
        partition = int(context.owner(np.array([first_row]))[0])
        first = _block(inner, partition)[first_row - context.bounds[partition]][None]
    else:
        first = np.asarray(source.read(0, 1))
    facts["neighbors_only"] = isinstance(getattr(source, "rows", None), NeighborDistances)
    if not facts["neighbors_only"]:
        check_block(first, first_row, source.name, source.feature_names)
    names = known_labels.store_codes(context, source)
    parts = range(context.n_partitions)
    vanishing, statistics_ = 0, None
    if context.metric.precomputed:
        sizes = executor.map(Job("ingest", _given_sizes, "statistics-"), inner, parts, report)
        facts["slack"] = _check_distances(inner, sizes)
        facts["exponent"] = _exponent_of_distances(inner, sizes)
        receipts = executor.map(Job("ingest", _given_rows), inner, parts, report)
        if not facts["neighbors_only"]:
            _check_symmetric(inner, executor, report)
        scaling = {"center": np.zeros(context.m), "spread": np.ones(context.m)}
        store.write(folder, "whole", scaling, {})
    else:
        measures = _measured(inner, executor, report, np.asarray(first, np.float64), first_row)
        facts["exponent"], vanishing, statistics_ = measures.exponent, measures.vanishing, measures.statistics
        store.write(folder, "whole", {"center": measures.center, "spread": measures.spread}, {})
        receipts = executor.map(Job("ingest", samples), inner, parts, report)
    # the statistics stay, so that one can be made again alone
    store.drop_many(folder, [f"raw-{part_name(b)}" for b in parts])
    rounded = sum(r["facts"]["rounded"] for r in receipts)
    merged: dict[str, Any] = {}
    if context.params.merges_rows or n_dropped:
        merged = ingest_duplicates.merge(inner, executor, report, n_dropped)
    if rule != "refuse":
        merged["missing"] = {"rule": rule, **lacking}
    warnings = _warnings(statistics_, rounded, vanishing, facts["rows"])
    if facts["neighbors_only"] and np.ptp(source.rows.matrix.data) == 0:
        warnings.append(
            "all stored distances are equal, as in a graph that says who is a neighbour and not how far: "
            "kneighbors_graph gives distances by mode='distance'"
        )
    return {"warnings": warnings, "label_names": names, "source": source.name, "exponent": facts["exponent"], **merged}


def _missing(
    context: Context, fitted: FittedFeatures | None, executor: Executor, report: Report
) -> tuple[dict[str, int], int]:
    """How many values and rows lack something, and how many rows are left out; medians are stored on the way."""
    if fitted is None or fitted.missing == "refuse":
        return {}, 0
    ingest_missing.find(context, executor, report)
    n_rows = ingest_missing.n_incomplete(context)
    lacking = {"values": int(ingest_missing.missing_by_column(context)[fitted.firsts].sum()), "rows": n_rows}
    if fitted.missing == "median":
        ingest_missing.keep_medians(context, fitted.numeric, executor, report)
        return lacking, 0
    name = context.facts["ingest"]["source"]["name"]
    if n_rows == context.m:
        raise BadInput(
            name,
            "a missing value in every row",
            "rows that lack nothing, with missing='drop'",
            "no row would be left",
            "drop columns (--drop-columns), or fill gaps with medians (--missing median)",
        )
    check_shape(context.m - n_rows, context.n_features, context.params, f"{name} without its incomplete rows")
    return lacking, n_rows


def _unread(context: Context, rule: str) -> list[int]:
    """Partitions whose rows are still needed: the first, which the others are centred about, and unfinished ones."""
    needed: tuple[str, ...] = ("", "statistics-")
    if _scales_first(context):
        needed = (*needed, "columns-")
    if rule == "drop" or (rule == "median" and context.receipt("ingest", "medians") is None):
        return list(range(context.n_partitions))  # the first complete row may be in any, and medians are of all
    if rule == "median":
        needed = (*needed, ingest_missing.PREFIX)
    names = {b: [prefix + part_name(b) for prefix in needed] for b in range(context.n_partitions)}
    stored = context.store.receipts(context.folders["ingest"], [name for each in names.values() for name in each])
    return [b for b, each in names.items() if b == 0 or not stored.keys() >= set(each)]


class _Measured(NamedTuple):
    """Centre, spread and unit of the samples, from the statistics of the columns."""

    center: Float64  # (f,) subtracted from each column
    spread: Float64  # (f,) each column is divided by it then
    exponent: int  # of the power of two that all values are divided by then
    vanishing: int  # columns that vary too little beside the others
    statistics: kernel.Statistics  # of the columns as they came


def _measured(inner: Context, executor: Executor, report: Report, first: Float64, first_row: int) -> _Measured:
    """Centre, spread and unit of the columns, from one pass over the rows; two where columns are scaled first."""
    params, facts, parts = inner.params, inner.facts["ingest"], range(inner.n_partitions)
    raw_statistics = None
    if _scales_first(inner):
        facts["shift"] = first[0].tolist()
        executor.map(Job("ingest", column_statistics, "columns-"), inner, parts, report)
        raw_statistics = _merged(inner, "columns-")
        columns = kernel.scaled_columns(raw_statistics, first[0], facts["rows"], params.scale)
        inner.store.write(inner.folders["ingest"], "columns", columns._asdict(), {})
    facts["shift"] = _prepared(inner, first, [first_row])[0].tolist()
    executor.map(Job("ingest", _row_statistics, "statistics-"), inner, parts, report)
    measures = _centering(inner, np.array(facts["shift"]))
    return measures if raw_statistics is None else measures._replace(statistics=raw_statistics)


def _merged(context: Context, prefix: str) -> kernel.Statistics:
    names = [prefix + part_name(b) for b in range(context.n_partitions)]
    stacked = context.store.read_many(context.folders["ingest"], names, "statistics")
    return kernel.merge([kernel.Statistics(a[0].astype(np.int64), a[1:3], a[3:5], a[5], a[6]) for a in stacked])


def _centering(context: Context, shift: AnyArray) -> _Measured:
    merged = _merged(context, "statistics-")
    metric, scale = context.metric, context.params.scale
    if metric.about_zero:
        columns = kernel.Columns(np.zeros(context.n_features), np.ones(context.n_features))
        if scale in ("zscore", "minmax"):
            columns = kernel.scaled_columns(merged, shift, context.facts["ingest"]["rows"], scale)
        center, spread = columns
        exponent = kernel.root_exponent(np.maximum(np.abs(merged.low - center), np.abs(merged.high - center)) / spread)
    else:
        # directions are centred, for their digits, and never stretched
        center, spread = kernel.centering(
            merged, shift, context.facts["ingest"]["rows"], "none" if metric.needs_direction else scale
        )
        exponent = kernel.unit_exponent(merged, spread, context.facts["ingest"]["rows"])
    return _Measured(center, spread, exponent, kernel.vanishing(merged, spread, exponent), merged)


def _refused(context: Context, found: str, allowed: str, otherwise: str, remedy: str) -> BadInput:
    return BadInput(context.facts["ingest"]["source"]["name"], found, allowed, otherwise, remedy)


def _check_distances(context: Context, receipts: Sequence[Receipt]) -> float:
    """Refuse distances below 0, and ones that are not 0 from a sample to itself; returns what counts as rounding."""
    slack = kernel.ROUNDED_TO * max(receipt["facts"]["largest"] for receipt in receipts)
    row, column, least = min((receipt["facts"]["least"] for receipt in receipts), key=lambda one: one[2])
    if least < -slack:
        raise _refused(
            context,
            f"the distance {least:g} from sample {row} to {column}",
            "distances of at least 0",
            "a similarity would be read as a distance, and the farthest would be neighbours",
            "give distances, such as 1 - similarity",
        )
    row, own = max((receipt["facts"]["own"] for receipt in receipts), key=lambda one: one[1])
    if own > slack:
        raise _refused(
            context,
            f"the distance {own:g} from sample {row} to itself",
            "zeros on the diagonal",
            "the matrix may be one of similarities, and the farthest would be neighbours",
            "give distances, such as 1 - similarity, and np.fill_diagonal(D, 0) where their rounding is more than that",
        )
    return float(slack)


def _exponent_of_distances(context: Context, receipts: Sequence[Receipt]) -> int:
    """The exponent of the run's unit: of samples with these distances, as `ingest.unit_exponent` says of columns.

    The mean squared distance of two samples is twice that of a sample from the centre.
    """
    exponents = [int(receipt["facts"]["exponent"]) for receipt in receipts]
    top, folder = max(exponents), context.folders["ingest"]
    n = sum(receipt["facts"]["stored"] for receipt in receipts)
    parts = context.store.read_many(folder, ["statistics-" + part_name(b) for b in range(len(exponents))], "squares")
    scaled = (np.ldexp(part, 2 * (e - top)) for part, e in zip(parts, exponents, strict=True))
    mean = math.fsum(x for part in scaled for x in part.tolist()) / (2 * n)
    return kernel.root_exponent(np.ldexp(np.sqrt([mean]), top))


def symmetric(context: Context, b: int) -> TaskResult:
    """Check partition b's rows against the columns of the earlier partitions and its own: the matrix is symmetric."""
    low, high = context.span(b)
    D = np.asarray(context.read("ingest", b, "samples"))
    for other in range(b + 1):
        first, last = context.span(other)
        mirror = np.asarray(context.read("ingest", other, "samples"))[:, low:high]
        slack = context.facts["ingest"]["slack"] / context.unit
        uneven = kernel.first_uneven(D[:, first:last], mirror, slack)
        if uneven is not None:
            i, j = uneven[0], first + uneven[1]
            forward, backward = (float(x) * context.unit for x in (D[i, j], mirror[uneven[1], i]))
            raise _refused(
                context,
                f"{forward:g} from sample {low + i} to {j} and {backward:g} back",
                "a symmetric matrix",
                "the tensor would have two values for one pair",
                "give (D + D.T) / 2 where both directions mean the same",
            )
    return {}, {}


def _check_symmetric(context: Context, executor: Executor, report: Report) -> None:
    """Refuse a stored matrix whose two triangles differ by more than rounding."""
    parts = range(context.n_partitions)
    executor.map(Job("ingest", symmetric, "symmetric-"), context, parts, report)
    context.store.drop_many(context.folders["ingest"], ["symmetric-" + part_name(b) for b in parts])


def _warnings(statistics_: kernel.Statistics | None, rounded: int, vanishing: int, m: int) -> list[str]:
    warnings: list[str] = []
    if statistics_ is None:
        return warnings
    f = len(statistics_.low)
    constant = int(np.count_nonzero(statistics_.low == statistics_.high))
    if constant == f:
        warnings.append(f"all {m} rows are equal: every partition of them is as good as another")
    elif constant:
        warnings.append(f"{constant} of {f} columns are constant and tell nothing apart")
    if vanishing:
        warnings.append(
            f"{vanishing} of {f} columns vary so little beside the others that no distance in float32 shows it: "
            "scale='zscore' would give all columns the same weight"
        )
    if rounded:
        warnings.append(f"{rounded} whole numbers have more digits than float32 keeps and were rounded")
    return warnings
