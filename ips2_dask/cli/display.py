"""Progress of a run as the command line shows it: a live table on a terminal, lines in a pipe, JSON lines in a log."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from ips2_dask.errors import BadInput
from ips2_dask.progress import Progress, Relay
from ips2_dask.store.layout import STAGES
from ips2_dask.wording import duration

REUSED = "there already"

LINE_SECONDS = 30.0
"""Seconds between two lines of `PlainProgress` on the same stage."""

JSON_SECONDS = 0.1
"""Least seconds between two JSON lines on the same stage's tasks, of which there may be thousands."""

TEXT_WIDTH = 62
"""Columns of a terminal that the texts of the live table take; the bars have the rest."""


class Pace:
    """How much of a stage is done, its rate, and the time that the rest will take.

    ``done`` and ``total`` are tasks, or for the solver the share of the residual's fall in logarithms, of a total of 1;
    ``text`` is the same in words.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.begun = self._since = self._last = clock()
        self._first: float | None = None
        self.done, self.total, self.text = 0.0, 0.0, ""

    @property
    def seconds(self) -> float:
        """Seconds since the stage began."""
        return self._clock() - self.begun

    def advance(self, done: int, total: int) -> None:
        """Note how many tasks are done; a stage that starts another round of tasks counts from 0 again.

        If a round's first event is not its start but a finished task, it began when the round before it ended. Once
        the stage has shown a residual, tasks are ignored: the solver is one task.
        """
        if self._first is not None:
            return
        if done < self.done or total != self.total:
            self._since = self._last if done else self._clock()
        self._last = self._clock()
        self.done, self.total = float(done), float(total)
        self.text = f"{done:,} of {total:,}"

    def note(self, facts: Mapping[str, Any]) -> None:
        """Note the solver's residual, which falls about geometrically: its logarithm measures what is left to do."""
        if "residual" not in facts or "tol" not in facts:
            return
        residual, tol = max(float(facts["residual"]), 1e-300), float(facts["tol"])
        if self._first is None:
            self._first, self._since = max(residual, tol), self._clock()
        whole = math.log(self._first / tol)
        self.done, self.total = (min(1.0, math.log(self._first / residual) / whole) if whole > 0 else 1.0), 1.0
        self.done = max(self.done, 0.0)
        self.text = f"residual {residual:.1e}, tolerance {tol:.0e}"

    def left(self) -> float | None:
        """Seconds that the rest takes at the rate so far; None while there is no rate."""
        elapsed = self._clock() - self._since
        if not 0 < self.done < self.total or elapsed <= 0:
            return None
        return elapsed * (self.total - self.done) / self.done

    def rate(self) -> str:
        """Tasks a second, or seconds a task; empty for the solver, which counts no tasks."""
        elapsed = self._clock() - self._since
        if self._first is not None or self.done <= 0 or elapsed <= 0:
            return ""
        speed = self.done / elapsed
        return f"{speed:,.0f}/s" if speed >= 9.95 else f"{speed:.1f}/s" if speed >= 0.95 else f"{1 / speed:.1f} s each"

    def __str__(self) -> str:
        left = self.left()
        remaining = "" if left is None else f"{duration(max(left, 0.0))} left"
        return ", ".join(filter(None, (self.text, self.rate(), remaining)))


class PlainProgress(Progress):
    """One line on standard error for each stage, and one every half minute while a stage goes on."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pace, self._last_line = Pace(clock), clock()

    def connected(self, dashboard: str | None) -> None:
        if dashboard:
            print(f"dashboard     {dashboard}", file=sys.stderr, flush=True)

    def begin(self, stage: str) -> None:
        self._pace, self._last_line = Pace(self._clock), self._clock()

    def advance(self, stage: str, done: int, total: int) -> None:
        self._pace.advance(done, total)
        self._go_on(stage)

    def note(self, stage: str, facts: Mapping[str, Any]) -> None:
        self._pace.note(facts)
        self._go_on(stage)

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        print(f"{_numbered(stage)} {REUSED if skipped else f'{seconds:.2f} s'}", file=sys.stderr, flush=True)

    def _go_on(self, stage: str) -> None:
        if self._clock() - self._last_line >= LINE_SECONDS:
            self._last_line = self._clock()
            print(f"{_numbered(stage)} ... {self._pace}", file=sys.stderr, flush=True)


class _Texts(ProgressColumn):
    """The column of a stage's elapsed time, tasks, rate and time left, computed anew each time the table is drawn."""

    def render(self, task: Task) -> Text:
        pace: Pace | None = task.fields["pace"]
        text = task.fields["text"] if pace is None else f"{duration(pace.seconds):>8}  {pace}"
        return Text(text, no_wrap=True, overflow="ellipsis")


class LiveProgress(Progress):
    """A table on a terminal, a line with a bar for each stage; the first line is for what comes before the stages."""

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        bar = BarColumn(max(8, min(40, console.width - TEXT_WIDTH)))
        self._bars = Bars(TextColumn("{task.description}"), bar, _Texts(), console=console)
        self._bars.start()
        self._task: TaskID | None = None
        self._open(f"    {'start':<9}", "input and workers")

    def close(self) -> None:
        """Stop drawing, and give the terminal its cursor back."""
        self._bars.stop()

    def connected(self, dashboard: str | None) -> None:
        if dashboard:
            self._bars.console.print(f"    dashboard  {dashboard}", highlight=False, soft_wrap=True)

    def begin(self, stage: str) -> None:
        if self._task is not None:  # the start is over
            self._finish(duration(self._pace.seconds))
        self._open(_numbered(stage), "")

    def advance(self, stage: str, done: int, total: int) -> None:
        if done:  # the bar pulses until the first task is done
            self._pace.advance(done, total)
            self._move()

    def note(self, stage: str, facts: Mapping[str, Any]) -> None:
        self._pace.note(facts)
        self._move()

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        residual = self._pace.text if self._pace.text.startswith("residual") else ""
        self._finish(REUSED if skipped else f"{duration(seconds):>8}  {residual}")

    def _open(self, name: str, text: str) -> None:
        self._pace = Pace()
        self._pace.text = text
        self._task = self._bars.add_task(name, total=None, pace=self._pace, text="")

    def _move(self) -> None:
        if self._task is not None and self._pace.total:
            self._bars.update(self._task, completed=self._pace.done, total=self._pace.total)

    def _finish(self, text: str) -> None:
        if self._task is not None:
            self._bars.update(self._task, completed=1, total=1, pace=None, text=f"{text:>8}")
            self._bars.stop_task(self._task)
            self._task = None


class JsonLog(Progress):
    """One JSON object a line, with the keys time, stage, event, done, total, seconds and facts, null where none is.

    Events are start, connected, begin, advance, note, end, and finish, interrupted or failed.
    """

    def __init__(self, stream: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock, self._last_advance = stream, clock, -math.inf
        self._begun = self._stage_begun = clock()
        self.write("start")

    def connected(self, dashboard: str | None) -> None:
        self.write("connected", facts={"dashboard": dashboard})

    def begin(self, stage: str) -> None:
        self._stage_begun, self._last_advance = self._clock(), -math.inf
        self.write("begin", stage)

    def advance(self, stage: str, done: int, total: int) -> None:
        now = self._clock()
        if done == total or now - self._last_advance >= JSON_SECONDS:
            self._last_advance = now
            self.write("advance", stage, done=done, total=total, seconds=now - self._stage_begun)

    def note(self, stage: str, facts: Mapping[str, Any]) -> None:
        self.write("note", stage, seconds=self._clock() - self._stage_begun, facts=facts)

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        self.write("end", stage, seconds=seconds, facts={"skipped": skipped})

    def leave(self, event: str, **facts: object) -> None:
        """Write how the run ended."""
        self.write(event, seconds=self._clock() - self._begun, facts=facts or None)

    def write(self, event: str, stage: str | None = None, **values: Any) -> None:
        """Write a line."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": now, "stage": stage, "event": event}
        line |= dict.fromkeys(("done", "total", "seconds", "facts")) | values
        if line["seconds"] is not None:
            line["seconds"] = round(line["seconds"], 6)
        print(json.dumps(line), file=self._stream, flush=True)


@contextlib.contextmanager
def progress(quiet: bool, log: str | None = None) -> Iterator[Progress]:
    """The progress of a command: nothing if quiet, else a live table on a terminal, or lines; and a log if named.

    The log is a file of JSON lines, or standard output for ``-``.
    """
    with contextlib.ExitStack() as stack:
        display = Progress()
        if not quiet and sys.stderr.isatty():
            display = LiveProgress()
            stack.callback(display.close)
        elif not quiet:
            display = PlainProgress()
        if log is None:
            yield display
            return
        lines = JsonLog(sys.stdout if log == "-" else stack.enter_context(_open_log(log)))
        try:
            yield Relay(display, lines)
        except KeyboardInterrupt:
            lines.leave("interrupted")
            raise
        except Exception as error:
            lines.leave("failed", error=f"{type(error).__name__}: {error}")
            raise
        lines.leave("finish")


def _open_log(name: str) -> IO[str]:
    try:
        return open(name, "w", encoding="utf-8")
    except OSError as error:
        found, allowed = f"{name} ({error.strerror})", "a file that can be written, or - for standard output"
        raise BadInput("--log-json", found, allowed, "nobody could follow the run", "give another one") from error


def _numbered(stage: str) -> str:
    return f"{STAGES.index(stage) + 1}/{len(STAGES)} {stage:<9}"
