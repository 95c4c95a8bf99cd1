"""What the command line shows: live or plain progress, a report, a plan, a status."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ips2_dask.params import Resources
from ips2_dask.plan import Plan
from ips2_dask.storage.layout import STAGES
from ips2_dask.storage.readers import Source


class PlainProgress:
    """One line a stage, for logs and pipes."""

    def begin(self, stage: str) -> None:
        """Remember when the stage began."""
        self._begun = time.perf_counter()

    def advance(self, stage: str, done: int, total: int) -> None:
        """Say nothing: a log wants no bar."""

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        """Say what it took."""
        took = "there already" if skipped else f"{seconds:.2f} s"
        print(f"{STAGES.index(stage) + 1}/{len(STAGES)} {stage:<10} {took}", file=sys.stderr, flush=True)


class LiveProgress:
    """A bar a stage on a terminal."""

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"), console=Console(stderr=True),
        )  # fmt: skip
        self._task: Any = None

    def begin(self, stage: str) -> None:
        """Open the stage's bar."""
        self._bars.start()
        self._task = self._bars.add_task(stage, total=None, note="")

    def advance(self, stage: str, done: int, total: int) -> None:
        """Move the stage's bar."""
        self._bars.update(self._task, completed=done, total=total)

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        """Close the stage's bar."""
        task = self._bars.tasks[self._task]
        total = task.total or 1
        self._bars.update(self._task, completed=total, total=total, note="there already" if skipped else "")
        self._bars.stop_task(self._task)
        if stage == STAGES[-1]:
            self._bars.stop()


def size(n: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return ""


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=110)


def print_report(summary: dict[str, Any]) -> None:
    """Sizes, times, eigenvalues, scores, warnings, and where the run is."""
    console = _console()
    table = Table("stage", "seconds", title=f"{summary['m']:,} samples x {summary['f']:,} features")
    for stage in summary["stages"]:
        table.add_row(stage["name"], "there already" if stage["skipped"] else f"{stage['seconds']:.2f}")
    table.add_row("total", f"{sum(s['seconds'] for s in summary['stages'] if not s['skipped']):.2f}", style="bold")
    console.print(table)
    nnz = "" if summary["nnz"] is None else f", {summary['nnz']:,} tensor entries"
    console.print(f"k = {summary['k']}, c = {summary['c']}: {summary['P']:,} active pairs{nnz}", highlight=False)
    console.print("eigenvalues " + " ".join(f"{v:.5f}" for v in summary["eigenvalues"]), highlight=False)
    gap = "" if summary["gap"] is None else f", gap {summary['gap']:.2g}"
    console.print(
        f"largest residual {summary['residual_max']:.2g} after {summary['products']} products{gap}, "
        f"{summary['components']} component(s), recall {summary['recall']:.4f}, "
        f"peak {size(summary['peak_rss_bytes'])} a process",
        highlight=False,
    )
    if "acc" in summary:
        names = {"acc": "ACC", "nmi": "NMI", "ari": "ARI", "fscore": "F-score", "purity": "purity"}
        console.print("known labels: " + ", ".join(f"{names[n]} {summary[n]:.3f}" for n in names), highlight=False)
    for text in summary["warnings"]:
        console.print(f"warning: {text}", highlight=False, soft_wrap=True)
    if summary["run_dir"]:
        console.print(f"run directory: {summary['run_dir']}", highlight=False, soft_wrap=True)


def print_plan(plan: Plan, source: Source, resources: Resources) -> None:
    """Stage by stage: what, tasks, memory a process, disk."""
    console = _console()
    title = f"{source.name}: {plan.m:,} x {plan.f:,}, {len(plan.bounds) - 1} partition(s)"
    table = Table("stage", "what", "tasks", "worker", "client", "disk", title=title)
    for stage in plan.stages:
        table.add_row(
            stage.name,
            stage.what,
            str(stage.tasks),
            size(stage.worker_bytes),
            size(stage.client_bytes),
            size(stage.disk_bytes),
        )
    table.add_row(
        "peak, sum", "", "", size(plan.worker_bytes), size(plan.client_bytes), size(plan.disk_bytes), style="bold"
    )
    console.print(table)
    if source.resident_bytes:
        console.print(
            f"this format can't be read in parts: {size(source.resident_bytes)} in the client, counted in ingest",
            highlight=False,
        )
    if resources.memory_limit is not None:
        needed = max(plan.worker_bytes, plan.client_bytes)
        verdict = "fits" if needed <= resources.memory_limit else f"does not fit: {size(needed)} needed"
        console.print(f"memory limit {size(resources.memory_limit)} a process: {verdict}", highlight=False)
    for text in plan.warnings:
        console.print(f"warning: {text}", highlight=False)


def print_status(manifest: dict[str, Any], directory: str) -> None:
    """What a run directory holds."""
    console = _console()
    m, f = manifest["input"]["shape"]
    state = f"finished {manifest['finished']}" if manifest["finished"] else "not finished: run the same command again"
    table = Table(
        "stage", "state", "seconds", "peak", title=f"{directory}: {manifest['input']['name']}, {m:,} x {f:,}, {state}"
    )
    done = {stage["name"]: stage for stage in manifest["stages"]}
    for name in STAGES:
        stage = done.get(name)
        if stage is None:
            table.add_row(name, "to do", "", "")
        else:
            word = "reused" if stage["skipped"] else "computed"
            table.add_row(name, word, f"{stage['seconds']:.2f}", size(stage["peak_rss_bytes"]))
    console.print(table)
