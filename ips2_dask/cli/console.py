"""The tables that the commands print: a run, a sweep, a plan, a status, a verification, jobs, a check of a cluster."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from rich import box
from rich.console import Console
from rich.table import Table

from ips2_dask.cli.display import REUSED
from ips2_dask.params import LEAST_RECALL, Params
from ips2_dask.pipeline.prepare import Shaped
from ips2_dask.plan.checks import keeps_limit
from ips2_dask.plan.memory import USABLE, Role
from ips2_dask.plan.plan import Plan
from ips2_dask.runs.maintenance import Collected, Verification
from ips2_dask.store.integrity import remedy
from ips2_dask.wording import count, duration, rounding_choice, size, stage_results

if TYPE_CHECKING:  # a table is printed without Dask
    from ips2_dask.clusters.worker_check import WorkerState

SCORES = {"acc": "ACC", "nmi": "NMI", "ari": "ARI", "fscore": "F-score", "purity": "purity"}

CRITERIA = ("stability", "silhouette", "conductance")
SHORT = {"clusters": "c", "neighbors": "k", "mean_rank": "mean rank", "nmi": "NMI"}
"""Columns of a sweep's table."""

PIPE_WIDTH = 110
"""Columns of a table that is not printed on a terminal."""


def _console() -> Console:
    console = Console(highlight=False, soft_wrap=False)
    return console if console.is_terminal else Console(width=PIPE_WIDTH, highlight=False)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column in ("stage", "what", "found", "state") else "right")
    return table


def _title(console: Console, text: str) -> None:
    console.print(text, style="bold", soft_wrap=True, markup=False)


def _lines(console: Console, rows: dict[str, str | None]) -> None:
    """Print names and values, one pair a line; those without a value are left out.

    A terminal's lines are wrapped and indented; in a pipe each stays one line.
    """
    for name, text in rows.items():
        if text:
            line = f"{name:<15} {text}"
            if console.is_terminal:
                line = textwrap.fill(
                    line,
                    max(console.width, 40),
                    subsequent_indent=" " * 16,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            console.print(line, soft_wrap=True, markup=False)


class StageState(TypedDict):
    """A stage of `ips2_dask.status`; a stage that is not computed yet has neither seconds nor memory."""

    name: str
    state: str
    why: list[str]
    seconds: float | None
    peak_rss_bytes: int | None


class JobRow(TypedDict):
    """A submitted job, as ``ips2 jobs`` prints it."""

    id: str
    state: str
    manager: str
    submitted: str
    out: str
    native: dict[str, Any]


class ClusterCheck(TypedDict):
    """The result of ``ips2 cluster check``: what a config would start, and the worker that was started, if any."""

    config: str
    manager: str
    starts: str
    notes: list[str]
    worker: WorkerState | None
    amiss: list[str]


SCORES_OF = {"modularity": "modularity", "eigengap": "the relative eigengap"}
"""What the score of a rule is, where it is no persistence."""


def chosen(choice: dict[str, Any] | None) -> str | None:
    """The chosen number of clusters and the next best ones, with their evidence."""
    if choice is not None and "communities" in choice:
        return f"{choice['communities']} communities found by Leiden at resolution {choice['resolution']:g}"
    if choice is None or not choice["candidates"]:
        return None
    best, *others = choice["candidates"]
    persists = best["persistence"] is not None
    name, key = ("persistence", "persistence") if persists else (SCORES_OF[choice["rule"]], "score")
    rest = ", ".join(f"{one['n_clusters']} ({one[key]:.2f})" for one in others[:3])
    found = f"{best['n_clusters']} of up to {choice['considered']} chosen by {name} {best[key]:.2f}"
    return f"{found}; then {rest or 'none'}"


def print_report(summary: dict[str, Any], name: str) -> None:
    """Print sizes, times, eigenvalues, scores, warnings and the directory of a run."""
    console = _console()
    distinct = (
        "" if summary["distinct"] == summary["m"] - summary["dropped"] else f" ({summary['distinct']:,} distinct)"
    )
    title = (
        f"{name}: {summary['m']:,} samples{distinct} x {summary['f']:,} features, k = {summary['k']}, "
        f"c = {summary['c']}"
    )
    _title(console, title)
    table = _table("stage", "found", "seconds")
    results = stage_results(summary)
    for stage in summary["stages"]:
        table.add_row(stage["name"], results[stage["name"]], REUSED if stage["skipped"] else f"{stage['seconds']:.2f}")
    table.add_row("total", "", f"{sum(s['seconds'] for s in summary['stages'] if not s['skipped']):.2f}", style="bold")
    console.print(table)
    scores = "  ".join(f"{word} {summary[key]:.3f}" for key, word in SCORES.items() if key in summary)
    _lines(
        console,
        {
            "eigenvalues": " ".join(f"{value:.5f}" for value in summary["eigenvalues"]),
            "clusters": chosen(summary["choice"]),
            "labels": rounding_choice(summary["roundings"]),
            "known labels": scores,
            "peak memory": f"{size(summary['peak_rss_bytes'])} in one process",
        },
    )
    for text in summary["warnings"]:
        _lines(console, {"warning": text})
    for promise in summary["promises"]:
        if not promise["kept"]:
            wanted = f"wanted {promise['rule']} {promise['wanted']:g}"
            _lines(console, {"not kept": f"{promise['promise']}: found {promise['found']:.4g}, {wanted}"})
    _lines(console, {"run directory": summary["run_dir"]})


def print_sweep(
    rows: list[dict[str, Any]], name: str, shape: tuple[int, int], computed: dict[str, int], where: str, top: int
) -> None:
    """Print the best points of a sweep, how often each stage was computed, and the files."""
    console = _console()
    _title(console, f"{name}: {shape[0]:,} samples x {shape[1]:,} features, {count(len(rows), 'point')}, best first")
    shown = [
        n for n in ("rank", "clusters", "neighbors", "sigma", "mean_rank", *CRITERIA, "nmi", "smallest") if n in rows[0]
    ]
    table = _table(*(SHORT.get(name, name) for name in shown))
    for row in rows[: max(top, 1)]:
        cells = [f"{row[n]:.3f}" if n in (*CRITERIA, "nmi") else f"{row[n]:g}" for n in shown]
        table.add_row(*cells, style="bold" if row["rank"] == 1 else None)
    console.print(table)
    best = rows[0]
    _lines(
        console,
        {
            "best": "c = {clusters}, k = {neighbors}, sigma = {sigma:g}: ".format(**best) + f"{where} is now its run",
            "computed": ", ".join(f"{stage} {n}" for stage, n in computed.items()) + f" times for {len(rows)} points",
            "files": f"{where}/sweep: table.csv, table.json, sweep.png, sweep.svg, sweep.html",
        },
    )


def print_plan(plan: Plan, source: Shaped, limits: tuple[int | None, ...]) -> None:
    """Print tasks, memory, disk and time of each stage of a plan, and whether it keeps to the memory limits.

    Parameters
    ----------
    plan : Plan
    source : Shaped
    limits : tuple of int or None
        Bytes that a worker, the driver and a scheduler of its own may use.
    """
    console = _console()
    parts = count(len(plan.bounds) - 1, "partition")
    title = f"{source.name}: {plan.m:,} samples x {plan.f:,} features, {parts}"
    _title(console, title)
    table = _table("stage", "what", "tasks", "a worker", "the driver", "disk", "about")
    for stage in plan.stages:
        memory = size(stage.worker_bytes), size(stage.client_bytes)
        what = f"{stage.what}, some {stage.products} products" if stage.products else stage.what
        seconds = duration(stage.seconds)
        table.add_row(stage.name, what, f"{stage.tasks:,}", *memory, size(stage.disk_bytes), seconds)
    total = size(plan.worker_bytes), size(plan.client_bytes), size(plan.disk_bytes)
    table.add_row("peak, sum", "", "", *total, duration(plan.seconds), style="bold")
    console.print(table)
    if source.resident_bytes:
        text = f"{size(source.resident_bytes)} in the driver (counted in ingest)"
        _lines(console, {"input": f"this format can't be read in parts, and takes {text}"})
    _lines(console, {"a worker": _largest_terms(plan, "worker"), "the driver": _largest_terms(plan, "driver")})
    if plan.scheduler_bytes:
        _lines(console, {"the scheduler": f"{size(plan.scheduler_bytes)} in a process of its own"})
    if plan.choices.vectors == "chunked":
        place = f"up to {size(plan.scratch_bytes)} on disk" if plan.scratch_bytes else "in memory"
        _lines(console, {"blocks": f"a worker has its rows of matrices and block vectors {place}"})
    _lines(console, {"disk": f"up to {size(plan.peak_disk_bytes)} in the run directory while the run goes on"})
    needs: tuple[tuple[Role, str, int], ...] = (
        ("worker", f"a worker, {USABLE:g} of which is planned with", plan.worker_bytes),
        ("driver", "the driver", plan.client_bytes),
        ("scheduler", "the scheduler", plan.scheduler_bytes),
    )
    for (role, who, needed), limit in zip(needs, limits, strict=True):
        if limit is not None:
            verdict = "fits" if keeps_limit(needed, limit, role) else f"{size(needed)} are needed"
            _lines(console, {"memory limit": f"{size(limit)} for {who}: {verdict}"})
    if plan.exact_seconds:
        more = duration(plan.exact_seconds)
        _lines(console, {"recall": f"if it stays below {LEAST_RECALL:g}, an exact search follows: about {more} more"})
    for text in plan.warnings:
        _lines(console, {"warning": text})


def _largest_terms(plan: Plan, role: Role) -> str:
    """The stage and phase in which a role needs the most memory, and the largest terms of it, in words."""
    stage, phase = plan.peak(role)
    terms = sorted(phase.terms, key=lambda term: -term[1])[:3]
    return f"{stage.name}, {phase.name}: " + ", ".join(f"{name} {size(held)}" for name, held in terms)


def print_prediction(summary: dict[str, Any]) -> None:
    """Print how many new samples each cluster got, how many have no label, and the scores by known labels."""
    print(
        f"{summary['n']:,} samples in {summary['seconds']:.1f} s; samples a cluster: "
        f"{' '.join(map(str, summary['sizes']))}"
    )
    if "dropped" in summary:
        print(f"left out        {count(summary['dropped'], 'row')} with a missing value: label -1")
    if "acc" in summary:
        print(f"known labels    ACC {summary['acc']:.3f}  NMI {summary['nmi']:.3f}  ARI {summary['ari']:.3f}")
    print(f"written         {summary['out']}")


STATES = {"reused": "found there"}
"""Words for the states of a stage whose names are no words for people."""


def print_status(summary: dict[str, Any], why: bool = False) -> None:
    """Print the state of each stage in a run directory, and with ``why`` the reasons."""
    console = _console()
    m, f = summary["input"]["shape"]
    _title(console, f"{summary['input']['name']}: {m:,} samples x {f:,} features")
    table = _table("stage", "state", "seconds", "peak memory")
    for stage in summary["stages"]:
        numbers = ("", "")
        if stage["seconds"] is not None:
            numbers = f"{stage['seconds']:.2f}", size(stage["peak_rss_bytes"])
        table.add_row(stage["name"], STATES.get(stage["state"], stage["state"]), *numbers)
    console.print(table)
    if why:
        _lines(console, {stage["name"]: _because(stage) for stage in summary["stages"]})
    defaults = Params().as_dict()
    chosen = " ".join(f"{name}={value}" for name, value in summary["params"].items() if value != defaults[name])
    _lines(
        console,
        {
            "parameters": f"{chosen} (the rest by default)" if chosen else "all by default",
            "started": summary["started"],
            "state": _state(summary),
            "run directory": summary["directory"],
        },
    )


def _because(stage: StageState) -> str:
    return f"{stage['state']}: {'; '.join(stage['why'])}" if stage["why"] else str(stage["state"])


def _state(summary: dict[str, Any]) -> str:
    if summary["running"]:
        return f"running: {summary['running']}"
    if summary["finished"]:
        return f"finished {summary['finished']}"
    return "not finished: the same `ips2 run`, or the same call, continues it"


def print_verification(verification: Verification) -> None:
    """Print every fault with its remedy, and how much was read."""
    console = _console()
    if verification.running:
        _lines(console, {"running": f"{verification.running}; what it has not finished is not looked at"})
    for fault in verification.faults:
        _lines(console, {"damaged": f"{fault.text}. Remedy: {remedy(fault)}"})
    counts = ", ".join(
        count(getattr(verification, many), one)
        for one, many in (("stage", "stages"), ("part", "parts"), ("array", "arrays"), ("chunk", "chunks"))
    )
    verdict = "every byte is what was written" if verification.sound else count(len(verification.faults), "fault")
    _lines(
        console,
        {"verified": f"{counts}, {size(verification.bytes)}: {verdict}", "run directory": verification.directory},
    )


def print_garbage(collected: Collected) -> None:
    """Print the files that were removed, or would be, with the reason and the bytes."""
    console = _console()
    word = "would remove" if collected.dry_run else "removed"
    for one in collected.garbage:
        _lines(console, {word: f"{one.path}, {size(one.bytes)}: {one.why}"})
    total = count(len(collected.garbage), "file or folder", "files or folders")
    _lines(console, {"in all": f"{total}, {size(collected.bytes)}", "run directory": collected.directory})


def print_jobs(rows: Sequence[JobRow]) -> None:
    """Print submitted jobs and their states."""
    console = _console()
    if not rows:
        _lines(console, {"jobs": "none was submitted from here"})
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("id", "state", "manager", "submitted", "run directory"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(row["id"], row["state"], row["manager"], row["submitted"], row["out"])
    console.print(table)
    if any(row["state"] == "lost" for row in rows):
        _lines(console, {"lost": "its driver died without a word; the same submission again continues the run"})


def print_check(check: ClusterCheck) -> None:
    """Print what a config would start, the resources of a worker, and its faults."""
    console = _console()
    _title(console, f"{check['config']}: {check['manager']}, every key and value is valid")
    console.print("would start", style="bold")
    console.print(check["starts"].rstrip(), soft_wrap=True, markup=False)
    for text in check["notes"]:
        _lines(console, {"to do": text})
    worker = check["worker"]
    if worker is None:
        return
    console.print("a worker says", style="bold")
    memory, free = (size(n) if n else None for n in (worker["memory"], worker["scratch_free"]))
    _lines(
        console,
        {
            "host": worker["host"],
            "cores": f"{worker['cores']}, {count(worker['threads'], 'task')} at a time",
            "memory": memory,
            "scratch": f"{worker['scratch']}, {free} free" if free else worker["scratch"],
            "versions": " ".join(f"{name}={version}" for name, version in worker["versions"].items()),
        },
    )
    for text in check["amiss"]:
        _lines(console, {"amiss": text})
    if not check["amiss"]:
        _lines(console, {"verdict": "a run would find what it needs"})
