"""What the command line shows: live or plain progress, a report, a plan, a status."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from ips2_dask.params import Params, Resources
from ips2_dask.pipeline import Progress as Told
from ips2_dask.pipeline import Silent
from ips2_dask.plan import Plan
from ips2_dask.storage.layout import STAGES
from ips2_dask.storage.readers import Source

SCORES = {"acc": "ACC", "nmi": "NMI", "ari": "ARI", "fscore": "F-score", "purity": "purity"}

THERE = "there already"
PIPE_WIDTH = 110
"""Columns where there is no terminal to ask."""


class PlainProgress:
    """One line a stage, for logs and pipes."""

    def connected(self, dashboard: str | None) -> None:
        """Say where the cluster's dashboard is."""
        if dashboard:
            print(f"dashboard      {dashboard}", file=sys.stderr, flush=True)

    def begin(self, stage: str) -> None:
        """Say nothing yet."""

    def advance(self, stage: str, done: int, total: int) -> None:
        """Say nothing: a log wants no bar."""

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        """Say what it took."""
        took = THERE if skipped else f"{seconds:.2f} s"
        print(f"{_numbered(stage)} {took}", file=sys.stderr, flush=True)


class LiveProgress:
    """A bar a stage on a terminal; the first one is that of what comes before the stages."""

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
        )  # fmt: skip
        self._bars.start()
        self._task: TaskID | None = self._bars.add_task(f"    {'start':<10}", total=None, note="input and workers")

    def close(self) -> None:
        """Leave the terminal as it was, whatever the bars have come to."""
        self._bars.stop()

    def connected(self, dashboard: str | None) -> None:
        """Say where the cluster's dashboard is, above the bars."""
        if dashboard:
            self._bars.console.print(f"    dashboard  {dashboard}", highlight=False, soft_wrap=True)

    def begin(self, stage: str) -> None:
        """Open the stage's bar."""
        if self._task is not None:  # the start is over
            self._finish("")
        self._task = self._bars.add_task(_numbered(stage), total=None, note="")

    def advance(self, stage: str, done: int, total: int) -> None:
        """Move the stage's bar; until the first task is done it only shows that something is going on."""
        if self._task is not None and done:
            self._bars.update(self._task, completed=done, total=total, note=f"{done} of {total}")

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        """Close the stage's bar."""
        self._finish(THERE if skipped else "")

    def _finish(self, note: str) -> None:
        if self._task is not None:
            total = self._bars.tasks[self._task].total or 1
            self._bars.update(self._task, completed=total, total=total, note=note)
            self._bars.stop_task(self._task)
            self._task = None


@contextmanager
def progress(quiet: bool) -> Iterator[Told]:
    """Progress for whoever reads standard error: nothing, bars on a terminal, or lines."""
    if quiet:
        yield Silent()
    elif sys.stderr.isatty():
        bars = LiveProgress()
        try:
            yield bars
        finally:
            bars.close()
    else:
        yield PlainProgress()


def _numbered(stage: str) -> str:
    return f"{STAGES.index(stage) + 1}/{len(STAGES)} {stage:<10}"


def size(n: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return ""


def count(n: int, one: str, many: str | None = None) -> str:
    """A number with its noun."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


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
    """Named facts, one a line, the names aligned; those without a value are left out."""
    for name, text in rows.items():
        if text:
            console.print(f"{name:<15} {text}", soft_wrap=True, markup=False)


def found(summary: dict[str, Any]) -> dict[str, str]:
    """What each stage found, in a few words."""
    nnz = "" if summary["nnz"] is None else f", {summary['nnz']:,} tensor entries"
    gap = "" if summary["gap"] is None else f", gap {summary['gap']:.2g}"
    loose = f", {count(len(summary['ties']), 'loose one')} tied" if summary["ties"] else ""
    parts = summary["fused_components"]
    return {
        "ingest": count(summary["partitions"], "partition"),
        "neighbors": f"{summary['builder']} graph, recall {summary['recall']:.4f}",
        "tensor": f"{summary['P']:,} active pairs{nnz}",
        "assemble": count(summary["components"], "connected component"),
        "eigen": f"largest residual {summary['residual_max']:.2g}, {count(summary['products'], 'product')}{gap}",
        "fuse": "" if parts is None else f"U has {count(parts, 'component')}{loose}",
        "label": count(summary["c"], "cluster"),
    }


def print_report(summary: dict[str, Any], name: str) -> None:
    """Sizes, times, eigenvalues, scores, warnings, and where the run is."""
    console = _console()
    title = f"{name}: {summary['m']:,} samples x {summary['f']:,} features, k = {summary['k']}, c = {summary['c']}"
    _title(console, title)
    table = _table("stage", "found", "seconds")
    words = found(summary)
    for stage in summary["stages"]:
        table.add_row(stage["name"], words[stage["name"]], THERE if stage["skipped"] else f"{stage['seconds']:.2f}")
    table.add_row("total", "", f"{sum(s['seconds'] for s in summary['stages'] if not s['skipped']):.2f}", style="bold")
    console.print(table)
    scores = "  ".join(f"{word} {summary[key]:.3f}" for key, word in SCORES.items() if key in summary)
    _lines(
        console,
        {
            "eigenvalues": " ".join(f"{value:.5f}" for value in summary["eigenvalues"]),
            "known labels": scores,
            "peak memory": f"{size(summary['peak_rss_bytes'])} in one process",
        },
    )
    for text in summary["warnings"]:
        _lines(console, {"warning": text})
    _lines(console, {"run directory": summary["run_dir"]})


def print_plan(plan: Plan, source: Source, resources: Resources) -> bool:
    """Stage by stage what, tasks, memory a process and disk; returns whether the memory limit can be kept."""
    console = _console()
    parts = count(len(plan.bounds) - 1, "partition")
    title = f"{source.name}: {plan.m:,} samples x {plan.f:,} features, {parts}"
    _title(console, title)
    table = _table("stage", "what", "tasks", "a worker", "this process", "disk")
    for stage in plan.stages:
        memory = size(stage.worker_bytes), size(stage.client_bytes)
        table.add_row(stage.name, stage.what, str(stage.tasks), *memory, size(stage.disk_bytes))
    total = size(plan.worker_bytes), size(plan.client_bytes), size(plan.disk_bytes)
    table.add_row("peak, sum", "", "", *total, style="bold")
    console.print(table)
    needed = max(plan.worker_bytes, plan.client_bytes)
    limit = resources.memory_limit
    fits = limit is None or needed <= limit
    if source.resident_bytes:
        text = f"{size(source.resident_bytes)} in this process (counted in ingest)"
        _lines(console, {"input": f"this format can't be read in parts, and takes {text}"})
    if limit is not None:
        _lines(
            console, {"memory limit": f"{size(limit)} a process: {'fits' if fits else size(needed) + ' are needed'}"}
        )
    for text in plan.warnings:
        _lines(console, {"warning": text})
    return fits


def print_status(manifest: dict[str, Any], directory: str) -> None:
    """What a run directory holds."""
    console = _console()
    m, f = manifest["input"]["shape"]
    _title(console, f"{manifest['input']['name']}: {m:,} samples x {f:,} features")
    table = _table("stage", "state", "seconds", "peak memory")
    done = {stage["name"]: stage for stage in manifest["stages"]}
    for name in STAGES:
        stage = done.get(name)
        if stage is None:
            table.add_row(name, "to do", "", "")
        else:
            word = "found there" if stage["skipped"] else "computed"
            table.add_row(name, word, f"{stage['seconds']:.2f}", size(stage["peak_rss_bytes"]))
    console.print(table)
    defaults = Params().as_dict()
    chosen = " ".join(f"{name}={value}" for name, value in manifest["params"].items() if value != defaults[name])
    finished = manifest["finished"]
    _lines(
        console,
        {
            "parameters": f"{chosen} (the rest by default)" if chosen else "all by default",
            "started": manifest["started"],
            "state": f"finished {finished}" if finished else "not finished: run the same command again to continue it",
            "run directory": directory,
        },
    )


def print_jobs(rows: list[dict[str, Any]]) -> None:
    """Submitted jobs and what became of them."""
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


def print_check(said: dict[str, Any]) -> None:
    """What a cluster's config would start, and what a worker of it found."""
    console = _console()
    _title(console, f"{said['config']}: {said['manager']}, every key and value is valid")
    console.print("would start", style="bold")
    console.print(said["starts"].rstrip(), soft_wrap=True, markup=False)
    for text in said["notes"]:
        _lines(console, {"to do": text})
    worker = said["worker"]
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
    for text in said["amiss"]:
        _lines(console, {"amiss": text})
    if not said["amiss"]:
        _lines(console, {"verdict": "a run would find what it needs"})
