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


def _console(title: str = "") -> Console:
    """A console that has printed a title."""
    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH, highlight=False)
    if title:
        console.print(title, style="bold", soft_wrap=True, markup=False)
    return console


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column in _LEFT else "right", overflow="fold")
    return table


def _line(console: Console, name: str, text: str | None) -> None:
    """Print a name and a value, if there is one; a terminal's line is wrapped and indented, in a pipe it stays one."""
    if not text:
        return
    line = f"{name:<15} {text}"
    if console.is_terminal:
        width, indent = max(console.width, 40), " " * 16
        line = textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
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
    console = _console(f"{name}: {sizes}, k = {summary['k']}, c = {summary['c']}")
    table, results = _table("stage", "found", "seconds"), stage_results(summary)
    for stage in summary["stages"]:
        table.add_row(stage["name"], results[stage["name"]], REUSED if stage["skipped"] else f"{stage['seconds']:.2f}")
    table.add_row("total", "", f"{sum(s['seconds'] for s in summary['stages'] if not s['skipped']):.2f}", style="bold")
    console.print(table)
    _line(console, "eigenvalues", " ".join(f"{value:.5f}" for value in summary["eigenvalues"]))
    _line(console, "clusters", _chosen(summary["choice"]))
    _line(console, "labels", _rounding_choice(summary["roundings"]))
    scores = "  ".join(f"{word} {summary[key]:.3f}" for key, word in SCORES.items() if key in summary)
    _line(console, "known labels", scores)
    _line(console, "peak memory", f"{size(summary['peak_rss_bytes'])} in one process")
    for text in summary["warnings"]:
        _line(console, "warning", text)
    for promise in summary["promises"]:
        if not promise["kept"]:
            _line(console, "not kept", unkept(promise))
    _line(console, "run directory", summary["run_dir"])


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
    points = count(len(rows), "point")
    console = _console(f"{name}: {shape[0]:,} samples x {shape[1]:,} features, {points}, best first")
    shown = [name for name in _SWEPT if name in rows[0]]
    table = _table(*("NMI" if name == "nmi" else heading(name) for name in shown))
    for row in rows[: max(top, 1)]:
        cells = [f"{row[n]:.3f}" if n in (*_CRITERIA, "nmi") else plain(row[n]) for n in shown]
        table.add_row(*cells, style="bold" if row["rank"] == 1 else None)
    console.print(table)
    best = setting({name: row for name, row in rows[0].items() if name in Params.__dataclass_fields__})
    _line(console, "best", f"{best}: {where} is now its run")
    _line(console, "note", unsure(rows[0]))
    _line(console, "computed", ", ".join(f"{stage} {n}" for stage, n in computed.items()) + f" times for {points}")
    _line(console, "files", f"{where}/sweep: table.csv, table.json, sweep.png, sweep.svg, sweep.html")


def print_plan(plan: Plan, source: Shaped, limits: tuple[int | None, ...]) -> None:
    """Print tasks, memory, disk and time of each stage of a plan, and whether it keeps to the memory limits.

    ``limits`` are the bytes that a worker, the driver and the scheduler may use, where that is known.
    """
    parts = count(len(plan.bounds) - 1, "partition")
    console = _console(f"{source.name}: {plan.m:,} samples x {plan.f:,} features, {parts}")
    table = _table("stage", "what", "tasks", "a worker", "the driver", "disk", "about")
    for stage in plan.stages:
        sizes = [size(n) for n in (stage.worker_bytes, stage.client_bytes, stage.disk_bytes)]
        what = f"{stage.what}, some {stage.products} products" if stage.products else stage.what
        table.add_row(stage.name, what, f"{stage.tasks:,}", *sizes, duration(stage.seconds))
    total = size(plan.worker_bytes), size(plan.client_bytes), size(plan.disk_bytes)
    table.add_row("peak, sum", "", "", *total, duration(plan.seconds), style="bold")
    console.print(table)
    if source.resident_bytes:
        text = f"{size(source.resident_bytes)} in the driver (counted in ingest)"
        _line(console, "input", f"this format can't be read in parts, and takes {text}")
    _line(console, "a worker", _largest_terms(plan, "worker"))
    _line(console, "the driver", _largest_terms(plan, "driver"))
    if plan.scheduler_bytes:
        _line(console, "the scheduler", f"{size(plan.scheduler_bytes)} in a process of its own")
    if plan.choices.vectors == "chunked":
        place = f"up to {size(plan.scratch_bytes)} on disk" if plan.scratch_bytes else "in memory"
        _line(console, "blocks", f"a worker has its rows of matrices and block vectors {place}")
    _line(console, "disk", f"up to {size(plan.peak_disk_bytes)} in the run directory while the run goes on")
    needs: tuple[tuple[Role, str, int], ...] = (
        ("worker", f"a worker, {USABLE:g} of which is planned with", plan.worker_bytes),
        ("driver", "the driver", plan.client_bytes),
        ("scheduler", "the scheduler", plan.scheduler_bytes),
    )
    for (role, who, needed), limit in zip(needs, limits, strict=True):
        if limit is not None:
            verdict = "fits" if keeps_limit(needed, limit, role) else f"{size(needed)} are needed"
            _line(console, "memory limit", f"{size(limit)} for {who}: {verdict}")
    if plan.exact_seconds:
        more = duration(plan.exact_seconds)
        _line(console, "recall", f"if it stays below {LEAST_RECALL:g}, an exact search follows: about {more} more")
    for text in plan.warnings:
        _line(console, "warning", text)


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
    console = _console(f"{summary['input']['name']}: {m:,} samples x {f:,} features")
    table = _table("stage", "state", "seconds", "peak memory")
    for stage in summary["stages"]:
        done = stage["seconds"] is not None
        numbers = (f"{stage['seconds']:.2f}", size(stage["peak_rss_bytes"])) if done else ("", "")
        table.add_row(stage["name"], "found there" if stage["state"] == "reused" else stage["state"], *numbers)
    console.print(table)
    for stage in summary["stages"] if why else ():
        _line(console, stage["name"], ": ".join(filter(None, (stage["state"], "; ".join(stage["why"])))))
    defaults = Params().as_dict()
    chosen = " ".join(f"{name}={value}" for name, value in summary["params"].items() if value != defaults[name])
    _line(console, "parameters", f"{chosen} (the rest by default)" if chosen else "all by default")
    _line(console, "started", summary["started"])
    state = "not finished: the same `ips2 run`, or the same call, continues it"
    if summary["running"]:
        state = f"running: {summary['running']}"
    elif summary["finished"]:
        state = f"finished {summary['finished']}"
    _line(console, "state", state)
    _line(console, "run directory", summary["directory"])


def print_verification(verification: Verification) -> None:
    """Print every fault with its remedy, and how much was read."""
    console = _console()
    if verification.running:
        _line(console, "running", f"{verification.running}; what it has not finished is not looked at")
    for fault in verification.faults:
        _line(console, "damaged", f"{fault.text}. Remedy: {remedy(fault)}")
    counts = [count(getattr(verification, f"{one}s"), one) for one in ("stage", "part", "array", "chunk")]
    verdict = "every byte is what was written" if verification.sound else count(len(verification.faults), "fault")
    _line(console, "verified", f"{', '.join(counts)}, {size(verification.bytes)}: {verdict}")
    _line(console, "run directory", verification.directory)


def print_garbage(collected: Collected) -> None:
    """Print the files that were removed, or would be, with the reason and the bytes."""
    console, word = _console(), "would remove" if collected.dry_run else "removed"
    for one in collected.garbage:
        _line(console, word, f"{one.path}, {size(one.bytes)}: {one.why}")
    total = count(len(collected.garbage), "file or folder", "files or folders")
    _line(console, "in all", f"{total}, {size(collected.bytes)}")
    _line(console, "run directory", collected.directory)


# ---- clusters


def print_jobs(rows: Sequence[dict[str, Any]]) -> None:
    """Print submitted jobs and their states."""
    console = _console()
    if not rows:
        _line(console, "jobs", "none was submitted from here")
        return
    table = _table("id", "state", "manager", "submitted", "run directory")
    for row in rows:
        table.add_row(*(row[name] for name in ("id", "state", "manager", "submitted", "out")))
    console.print(table)
    if any(row["state"] == "lost" for row in rows):
        _line(console, "lost", "its driver died without a word; the same submission again continues the run")


def print_check(check: dict[str, Any]) -> None:
    """Print what a config would start, the resources of the worker that was started, if any, and its faults."""
    console = _console(f"{check['config']}: {check['manager']}, every key and value is valid")
    console.print("would start", style="bold")
    console.print(check["starts"].rstrip(), soft_wrap=True, markup=False)
    for text in check["notes"]:
        _line(console, "to do", text)
    worker = check["worker"]
    if worker is None:
        return
    console.print("a worker says", style="bold")
    memory, free = (size(n) if n else None for n in (worker["memory"], worker["scratch_free"]))
    _line(console, "host", worker["host"])
    _line(console, "cores", f"{worker['cores']}, {count(worker['threads'], 'task')} at a time")
    _line(console, "memory", memory)
    _line(console, "scratch", f"{worker['scratch']}, {free} free" if free else worker["scratch"])
    _line(console, "versions", " ".join(f"{name}={version}" for name, version in worker["versions"].items()))
    for text in check["amiss"]:
        _line(console, "amiss", text)
    if not check["amiss"]:
        _line(console, "verdict", "a run would find what it needs")
