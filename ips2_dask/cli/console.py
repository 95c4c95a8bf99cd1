"""The tables that the commands print: a run, a sweep, a plan, a status, a verification, jobs, a check of a cluster."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from ips2_dask.cli.display import REUSED
from ips2_dask.params import LEAST_RECALL, Params
from ips2_dask.pipeline.prepare import Shaped
from ips2_dask.plan.plan import Plan, keeps_limit
from ips2_dask.plan.sizes import Role
from ips2_dask.plan.work import USABLE
from ips2_dask.runs.maintenance import Collected, Verification
from ips2_dask.store.integrity import remedy
from ips2_dask.wording import (
    SCORES,
    WAYS,
    count,
    duration,
    heading,
    plain,
    setting,
    size,
    stage_results,
    unsure,
    without_columns,
)

_CRITERIA = ("score", "stability", "modularity")
_SWEPT = ("rank", *Params.__dataclass_fields__, *_CRITERIA, "nmi", "smallest")
"""Columns of a sweep's table, where there are such."""

_LEFT = ("stage", "what", "found", "state", "id", "manager", "submitted", "run directory")
"""Columns of words."""

_PIPE_WIDTH = 110
"""Columns of a table that is not printed on a terminal."""


Lines = Sequence[tuple[str, str | None]]
"""Names and values, of which those that are None or empty are left out."""


def _show(
    lines: Lines, title: str = "", head: Sequence[str] = (), rows: Sequence[Sequence[str]] = (), bold: int | None = None
) -> None:
    """Print a title, a table with a row in bold, and lines, which a terminal wraps and indents."""
    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH, highlight=False)
    if title:
        console.print(title, style="bold", soft_wrap=True, markup=False)
    if head:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in head:
            table.add_column(column, justify="left" if column in _LEFT else "right", overflow="fold")
        for number, row in enumerate(rows):
            table.add_row(*row, style="bold" if bold is not None and number == bold % len(rows) else None)
        console.print(table)
    for name, text in lines:
        line = f"{name:<15} {text}"
        if console.is_terminal:
            width, indent = max(console.width, 40), " " * 16
            line = textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        if text:
            console.print(line, soft_wrap=True, markup=False)


# ---- runs


def _chosen(choice: dict[str, Any] | None) -> str | None:
    """The chosen number of clusters and the next best ones, with their evidence."""
    if choice is not None and "communities" in choice:
        return f"{choice['communities']} communities found by Leiden at resolution {choice['resolution']:g}"
    if choice is None or not choice["candidates"]:
        return None
    best, *others = choice["candidates"]
    name = "the relative eigengap" if best["persistence"] is None else "stability"
    rest = ", ".join(f"{one['n_clusters']} ({one['score']:.2f})" for one in others[:3])
    found = f"{best['n_clusters']} of up to {choice['considered']} chosen by {name} {best['score']:.2f}"
    return f"{found}; then {rest or 'none'}"


def unkept(promise: dict[str, Any]) -> str:
    """A promise that was not kept, in words."""
    return f"{promise['promise']}: found {promise['found']:.4g}, wanted {promise['rule']} {promise['wanted']:g}"


def print_report(summary: dict[str, Any], name: str) -> None:
    """Print sizes, times, eigenvalues, scores, warnings and the directory of a run, as of `Run.report`."""
    every = summary["distinct"] == summary["m"] - summary["dropped"]
    distinct = "" if every else f" ({summary['distinct']:,} distinct)"
    sizes = f"{summary['m']:,} samples{distinct} x {summary['f']:,} features"
    stages, results = summary["stages"], stage_results(summary)
    rows = [[s["name"], results[s["name"]], REUSED if s["skipped"] else f"{s['seconds']:.2f}"] for s in stages]
    rows.append(["total", "", f"{sum(s['seconds'] for s in stages if not s['skipped']):.2f}"])
    lines = [
        ("eigenvalues", " ".join(f"{value:.5f}" for value in summary["eigenvalues"])),
        ("clusters", _chosen(summary["choice"])),
        ("labels", _rounding_choice(summary["roundings"])),
        ("known labels", "  ".join(f"{word} {summary[key]:.3f}" for key, word in SCORES.items() if key in summary)),
        ("peak memory", f"{size(summary['peak_rss_bytes'])} in one process"),
        *(("warning", text) for text in summary["warnings"]),
        *(("not kept", unkept(promise)) for promise in summary["promises"] if not promise["kept"]),
        ("run directory", summary["run_dir"]),
    ]
    title = f"{name}: {sizes}, k = {summary['k']}, c = {summary['c']}"
    _show(lines, title, ("stage", "found", "seconds"), rows, bold=-1)


def _rounding_choice(roundings: list[dict[str, Any]]) -> str | None:
    """The chosen rounding and the others with a normalised cut, in words; None where no cut is known."""
    ranked = [one for one in sorted(roundings, key=lambda one: not one["chosen"]) if one["cut"] is not None]
    if not ranked:
        return None
    first, *others = ranked
    where = first["columns"] or without_columns(first)
    text = f"{WAYS[first['rounding']]} on {where}: normalised cut {first['cut']:.2f}"
    if first["rounding"] == "density":
        text += f", {first['left_out']:.0%} left out"
    rest: list[str] = []
    for before, one in zip([None, *others], others, strict=False):
        same = before is not None and before["rounding"] == one["rounding"]
        rest.append(f"{'' if same else WAYS[one['rounding']] + ' '}on {one['columns']}: {one['cut']:.2f}")
    return "; ".join([text, *([", ".join(rest)] if rest else [])])


def print_sweep(
    rows: list[dict[str, Any]], name: str, shape: tuple[int, int], computed: dict[str, int], where: str, top: int
) -> None:
    """Print the best points of a sweep, how often each stage was computed, and the files."""
    points, shown = count(len(rows), "point"), [name for name in _SWEPT if name in rows[0]]
    cells = [
        [f"{row[n]:.3f}" if n in (*_CRITERIA, "nmi") else plain(row[n]) for n in shown] for row in rows[: max(top, 1)]
    ]
    best = setting({name: row for name, row in rows[0].items() if name in Params.__dataclass_fields__})
    lines = [
        ("best", f"{best}: {where} is now its run"),
        ("note", unsure(rows[0])),
        ("computed", ", ".join(f"{stage} {n}" for stage, n in computed.items()) + f" times for {points}"),
        ("files", f"{where}/sweep: table.csv, table.json, sweep.png, sweep.svg, sweep.html"),
    ]
    title = f"{name}: {shape[0]:,} samples x {shape[1]:,} features, {points}, best first"
    head = ["NMI" if name == "nmi" else heading(name) for name in shown]
    _show(lines, title, head, cells, bold=0)


def print_plan(plan: Plan, source: Shaped, limits: tuple[int | None, ...]) -> None:
    """Print tasks, memory, disk and time of each stage of a plan, and whether it keeps to the memory limits.

    ``limits`` are the bytes that a worker, the driver and the scheduler may use, where that is known.
    """
    rows = []
    for stage in plan.stages:
        sizes = [size(n) for n in (stage.worker_bytes, stage.client_bytes, stage.disk_bytes)]
        what = f"{stage.what}, some {stage.products} products" if stage.products else stage.what
        rows.append([stage.name, what, f"{stage.tasks:,}", *sizes, duration(stage.seconds)])
    total = size(plan.worker_bytes), size(plan.client_bytes), size(plan.disk_bytes)
    rows.append(["peak, sum", "", "", *total, duration(plan.seconds)])
    whole = f"this format can't be read in parts, and takes {size(source.resident_bytes)} in the driver"
    place = f"up to {size(plan.scratch_bytes)} on disk" if plan.scratch_bytes else "in memory"
    blocks = f"a worker has its rows of matrices and block vectors {place}"
    scheduler = f"{size(plan.scheduler_bytes)} in a process of its own"
    lines = [
        ("input", f"{whole} (counted in ingest)" if source.resident_bytes else ""),
        ("a worker", _largest_terms(plan, "worker")),
        ("the driver", _largest_terms(plan, "driver")),
        ("the scheduler", scheduler if plan.scheduler_bytes else ""),
        ("blocks", blocks if plan.choices.vectors == "chunked" else ""),
        ("disk", f"up to {size(plan.peak_disk_bytes)} in the run directory while the run goes on"),
    ]
    needs: tuple[tuple[Role, str, int], ...] = (
        ("worker", f"a worker, {USABLE:g} of which is planned with", plan.worker_bytes),
        ("driver", "the driver", plan.client_bytes),
        ("scheduler", "the scheduler", plan.scheduler_bytes),
    )
    for (role, who, needed), limit in zip(needs, limits, strict=True):
        if limit is not None:
            verdict = "fits" if keeps_limit(needed, limit, role) else f"{size(needed)} are needed"
            lines.append(("memory limit", f"{size(limit)} for {who}: {verdict}"))
    if plan.exact_seconds:
        more = duration(plan.exact_seconds)
        lines.append(("recall", f"if it stays below {LEAST_RECALL:g}, an exact search follows: about {more} more"))
    lines += [("warning", text) for text in plan.warnings]
    parts = count(len(plan.bounds) - 1, "partition")
    title = f"{source.name}: {plan.m:,} samples x {plan.f:,} features, {parts}"
    _show(lines, title, ("stage", "what", "tasks", "a worker", "the driver", "disk", "about"), rows, bold=-1)


def _largest_terms(plan: Plan, role: Role) -> str:
    """The stage and phase in which a role needs the most memory, and the largest terms of it, in words."""
    stage, phase = plan.peak(role)
    terms = sorted(phase.terms, key=lambda term: -term[1])[:3]
    return f"{stage.name}, {phase.name}: " + ", ".join(f"{name} {size(held)}" for name, held in terms)


def print_prediction(summary: dict[str, Any]) -> None:
    """Print how many new samples each cluster got, how many have no label, and the scores by known labels."""
    sizes = " ".join(map(str, summary["sizes"]))
    print(f"{summary['n']:,} samples in {summary['seconds']:.1f} s; samples a cluster: {sizes}")
    if "dropped" in summary:
        print(f"left out        {count(summary['dropped'], 'row')} with a missing value: label -1")
    if "acc" in summary:
        print("known labels    " + "  ".join(f"{SCORES[name]} {summary[name]:.3f}" for name in ("acc", "nmi", "ari")))
    print(f"written         {summary['out']}")


# ---- directories of runs


def print_status(summary: dict[str, Any], why: bool = False) -> None:
    """Print the state of each stage in a run directory, and with ``why`` the reasons, as of `ips2_dask.status`."""
    m, f = summary["input"]["shape"]
    rows, stages = [], summary["stages"]
    for stage in stages:
        done = stage["seconds"] is not None
        numbers = (f"{stage['seconds']:.2f}", size(stage["peak_rss_bytes"])) if done else ("", "")
        rows.append([stage["name"], "found there" if stage["state"] == "reused" else stage["state"], *numbers])
    reasons = [(s["name"], ": ".join(filter(None, (s["state"], "; ".join(s["why"]))))) for s in stages if why]
    defaults = Params().as_dict()
    chosen = " ".join(f"{name}={value}" for name, value in summary["params"].items() if value != defaults[name])
    state = "not finished: the same `ips2 run`, or the same call, continues it"
    if summary["running"]:
        state = f"running: {summary['running']}"
    elif summary["finished"]:
        state = f"finished {summary['finished']}"
    lines = [
        *reasons,
        ("parameters", f"{chosen} (the rest by default)" if chosen else "all by default"),
        ("started", summary["started"]),
        ("state", state),
        ("run directory", summary["directory"]),
    ]
    title = f"{summary['input']['name']}: {m:,} samples x {f:,} features"
    _show(lines, title, ("stage", "state", "seconds", "peak memory"), rows)


def print_verification(verification: Verification) -> None:
    """Print every fault with its remedy, and how much was read."""
    running = f"{verification.running}; what it has not finished is not looked at" if verification.running else None
    counts = [count(getattr(verification, f"{one}s"), one) for one in ("stage", "part", "array", "chunk")]
    verdict = "every byte is what was written" if verification.sound else count(len(verification.faults), "fault")
    faults = [("damaged", f"{fault.text}. Remedy: {remedy(fault)}") for fault in verification.faults]
    verified = f"{', '.join(counts)}, {size(verification.bytes)}: {verdict}"
    _show([("running", running), *faults, ("verified", verified), ("run directory", verification.directory)])


def print_garbage(collected: Collected) -> None:
    """Print the files that were removed, or would be, with the reason and the bytes."""
    word = "would remove" if collected.dry_run else "removed"
    lines = [(word, f"{one.path}, {size(one.bytes)}: {one.why}") for one in collected.garbage]
    total = count(len(collected.garbage), "file or folder", "files or folders")
    _show([*lines, ("in all", f"{total}, {size(collected.bytes)}"), ("run directory", collected.directory)])


# ---- clusters


def print_jobs(rows: Sequence[dict[str, Any]]) -> None:
    """Print submitted jobs and their states."""
    head = ("id", "state", "manager", "submitted", "run directory")
    cells = [[row[name] for name in ("id", "state", "manager", "submitted", "out")] for row in rows]
    lost = "its driver died without a word; the same submission again continues the run"
    lost = lost if any(row["state"] == "lost" for row in rows) else ""
    _show([("lost", lost), ("jobs", "" if rows else "none was submitted from here")], "", head if rows else (), cells)


def print_check(check: dict[str, Any]) -> None:
    """Print what a config would start, the resources of the worker that was started, if any, and its faults."""
    _show([], f"{check['config']}: {check['manager']}, every key and value is valid")
    _show([], "would start")
    print(check["starts"].rstrip())
    _show([("to do", text) for text in check["notes"]])
    worker = check["worker"]
    if worker is None:
        return
    memory, free = (size(n) if n else None for n in (worker["memory"], worker["scratch_free"]))
    lines = [
        ("host", worker["host"]),
        ("cores", f"{worker['cores']}, {count(worker['threads'], 'task')} at a time"),
        ("memory", memory),
        ("scratch", f"{worker['scratch']}, {free} free" if free else worker["scratch"]),
        ("versions", " ".join(f"{name}={version}" for name, version in worker["versions"].items())),
        *(("amiss", text) for text in check["amiss"]),
        ("verdict", "" if check["amiss"] else "a run would find what it needs"),
    ]
    _show(lines, "a worker says")
