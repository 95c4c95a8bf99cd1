"""From a study's records to its tables: growth exponents, speed-ups, memory beside the plan, time by stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from ips2_dask.bench.document import Record, Value
from ips2_dask.bench.scaling import growth
from ips2_dask.store.layout import STAGES

Row: TypeAlias = dict[str, Any]
"""A row of a table: plain values by the names of the columns."""

SHOWN = (*STAGES, "stages", "total")
"""Stages of a run, all of them together, and the whole call with its cluster's start."""


def _of(records: Sequence[Record], part: str) -> list[Record]:
    return [r for r in records if r["part"] == part and r["outcome"] == "finished"]


def _families(records: Iterable[Record]) -> list[tuple[int, str]]:
    """k and operator of the runs, in order."""
    return sorted({(int(r["k"]), str(r["operator"])) for r in records})  # type: ignore[arg-type]


def growth_table(records: Sequence[Record]) -> list[Row]:
    """The exponent of seconds ~ m^b of each stage for each k and operator, with its 95 % interval.

    Least squares of log seconds on log m; the interval, Student's with n - 2 degrees of freedom, needs three sizes.
    """
    rows = []
    growth_records = _of(records, "growth")
    for k, operator in _families(growth_records):
        for stage in SHOWN:
            points = sorted(
                (float(r["m"]), float(r["seconds"]))  # type: ignore[arg-type]
                for r in growth_records
                if (r["k"], r["operator"], r["stage"]) == (k, operator, stage) and r["seconds"]
            )
            if len({m for m, _ in points}) > 1:
                fit = growth(*zip(*points, strict=True))
                sizes = {"from": int(points[0][0]), "to": int(points[-1][0]), "sizes": len(points)}
                rows.append({"k": k, "operator": operator, "stage": stage, **sizes, **fit._asdict()})
    return rows


def _totals(records: Sequence[Record], part: str) -> list[tuple[int, int, float]]:
    """Workers, samples and seconds of all stages together."""
    return sorted(
        (int(r["workers"]), int(r["m"]), float(r["seconds"]))  # type: ignore[arg-type]
        for r in _of(records, part)
        if r["stage"] == "stages"
    )


def strong_table(records: Sequence[Record]) -> list[Row]:
    """Speed-up with the number of workers on one size, efficiency, and the serial share (Karp and Flatt's)."""
    totals = _totals(records, "strong")
    rows = []
    for workers, m, seconds in totals:
        base, _, first = totals[0]
        speedup, more = first / seconds, workers / base
        serial = None if more <= 1 else (1 / speedup - 1 / more) / (1 - 1 / more)
        row = {"workers": workers, "m": m, "seconds": seconds, "speedup": speedup}
        rows.append({**row, "efficiency": speedup / more, "serial_share": serial})
    return rows


def weak_table(records: Sequence[Record]) -> list[Row]:
    """Efficiency where samples grow with the workers: seconds of the first over seconds of each."""
    totals = _totals(records, "weak")
    return [
        {"workers": workers, "m": m, "seconds": seconds, "efficiency": totals[0][2] / seconds}
        for workers, m, seconds in totals
    ]


def memory_table(records: Sequence[Record]) -> list[Row]:
    """Peak memory of the growth part's runs beside what the plan said, in bytes; and their ratio."""
    rows = []
    for r in _of(records, "growth"):
        peak, planned = r.get("peak_bytes"), r.get("projected_bytes")
        if r["stage"] == "total" and isinstance(peak, int) and isinstance(planned, int):
            row = {"m": r["m"], "k": r["k"], "operator": r["operator"], "peak_bytes": peak, "planned_bytes": planned}
            rows.append({**row, "ratio": peak / planned})
    return rows


def stage_table(records: Sequence[Record]) -> list[Row]:
    """Seconds of every stage of the growth part's runs, a row for each run."""
    rows: dict[tuple[Value, ...], Row] = {}
    for r in _of(records, "growth"):
        row = rows.setdefault((r["m"], r["k"], r["operator"]), {"m": r["m"], "k": r["k"], "operator": r["operator"]})
        if r["stage"] in SHOWN:
            row[str(r["stage"])] = r["seconds"]
        for name in ("nmi", "recall"):
            if r.get(name) is not None:
                row[name] = r[name]
    return list(rows.values())
