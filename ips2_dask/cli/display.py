"""Progress for whoever follows a run: a live table on a terminal, lines in a log, JSON lines for machines."""

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
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from ips2_dask.errors import BadInput
from ips2_dask.progress import Progress as Told
from ips2_dask.store.layout import STAGES
from ips2_dask.wording import duration

THERE = "there already"

EVERY = 30.0
"""Seconds between the lines that a log gets of a stage that goes on."""

LEAST = 0.1
"""Seconds between two JSON lines on the same stage's tasks, of which there may be thousands."""

WORDS = 62
"""Columns of a terminal that the live table's words take; the bars have the rest."""


class Pace:
    """How far a stage is, how fast it goes, and how long it takes yet."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.begun = self._since = self._last = clock()
        self._first: float | None = None
        self.done, self.total, self.words = 0.0, 0.0, ""

    @property
    def seconds(self) -> float:
        """Since the stage began."""
        return self._clock() - self.begun

    def advance(self, done: int, total: int) -> None:
        """So many tasks are done; a stage that starts another round of tasks counts from 0 again.

        A round that tells of its first task alone began when the one before it ended. A solver is one task, and its
        residual says more.
        """
        if self._first is not None:
            return
        if done < self.done or total != self.total:
            self._since = self._last if done else self._clock()
        self._last = self._clock()
        self.done, self.total = float(done), float(total)
        self.words = f"{done:,} of {total:,}"

    def note(self, facts: Mapping[str, Any]) -> None:
        """The solver's residual, which falls about as a power: its logarithm is what is left to do."""
        if "residual" not in facts or "tol" not in facts:
            return
        residual, tol = max(float(facts["residual"]), 1e-300), float(facts["tol"])
        if self._first is None:
            self._first, self._since = max(residual, tol), self._clock()
        whole = math.log(self._first / tol)
        self.done, self.total = (min(1.0, math.log(self._first / residual) / whole) if whole > 0 else 1.0), 1.0
        self.done = max(self.done, 0.0)
        self.words = f"residual {residual:.1e}, tolerance {tol:.0e}"

    def left(self) -> float | None:
        """Seconds that the rest takes at the pace so far, where there is one."""
        taken = self._clock() - self._since
        if not 0 < self.done < self.total or taken <= 0:
            return None
        return taken * (self.total - self.done) / self.done

    def rate(self) -> str:
        """Tasks a second, or seconds a task; nothing for the solver, whose residual is no count."""
        taken = self._clock() - self._since
        if self._first is not None or self.done <= 0 or taken <= 0:
            return ""
        speed = self.done / taken
        return f"{speed:,.0f}/s" if speed >= 9.95 else f"{speed:.1f}/s" if speed >= 0.95 else f"{1 / speed:.1f} s each"

    def __str__(self) -> str:
        left = self.left()
        remaining = "" if left is None else f"{duration(max(left, 0.0))} left"
        return ", ".join(filter(None, (self.words, self.rate(), remaining)))


class PlainProgress:
    """One line a stage, and one every half a minute of a stage that goes on, for logs and pipes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pace, self._said = Pace(clock), clock()

    def connected(self, dashboard: str | None) -> None:
        """Say where the cluster's dashboard is."""
        if dashboard:
            print(f"dashboard     {dashboard}", file=sys.stderr, flush=True)

    def begin(self, stage: str) -> None:
        """Say nothing yet."""
        self._pace, self._said = Pace(self._clock), self._clock()

    def advance(self, stage: str, done: int, total: int) -> None:
        """Say how far it is, now and then."""
        self._pace.advance(done, total)
        self._now_and_then(stage)

    def note(self, stage: str, facts: Mapping[str, Any]) -> None:
        """Say how far the residual has come, now and then."""
        self._pace.note(facts)
        self._now_and_then(stage)

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        """Say what it took."""
        self._say(stage, THERE if skipped else f"{seconds:.2f} s")

    def _now_and_then(self, stage: str) -> None:
        if self._clock() - self._said >= EVERY:
            self._said = self._clock()
            self._say(stage, f"... {self._pace}")

    def _say(self, stage: str, text: str) -> None:
        print(f"{_numbered(stage)} {text}", file=sys.stderr, flush=True)


class _Words(ProgressColumn):
    """What a stage has taken, how far it is, its rate and the time left, as they are when the line is drawn."""

    def render(self, task: Task) -> Text:
        """The words of a stage's line."""
        pace: Pace | None = task.fields["pace"]
        if pace is None:
            return Text(task.fields["said"], no_wrap=True)
        return Text(f"{duration(pace.seconds):>8}  {pace}", no_wrap=True, overflow="ellipsis")


class LiveProgress:
    """A table of stages on a terminal, each with a bar; the first line is that of what comes before the stages."""

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        bar = BarColumn(max(8, min(40, console.width - WORDS)))
        self._bars = Progress(TextColumn("{task.description}"), bar, _Words(), console=console)
        self._bars.start()
        self._task: TaskID | None = None
        self._open(f"    {'start':<9}", "input and workers")

    def close(self) -> None:
        """Leave the terminal as it was, whatever the bars have come to."""
        self._bars.stop()

    def connected(self, dashboard: str | None) -> None:
        """Say where the cluster's dashboard is, above the bars."""
        if dashboard:
            self._bars.console.print(f"    dashboard  {dashboard}", highlight=False, soft_wrap=True)

    def begin(self, stage: str) -> None:
        """Open the stage's line."""
        if self._task is not None:  # the start is over
            self._finish(duration(self._pace.seconds))
        self._open(_numbered(stage), "")

    def advance(self, stage: str, done: int, total: int) -> None:
        """Move the stage's bar; until the first task is done it only shows that something is going on."""
        if done:
            self._pace.advance(done, total)
            self._move()

    def note(self, stage: str, facts: Mapping[str, Any]) -> None:
        """Show the solver's residual against the tolerance."""
        self._pace.note(facts)
        self._move()

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        """Close the stage's line."""
        words = self._pace.words if self._pace.words.startswith("residual") else ""
        self._finish(THERE if skipped else f"{duration(seconds):>8}  {words}")

    def _open(self, name: str, words: str) -> None:
        self._pace = Pace()
        self._pace.words = words
        self._task = self._bars.add_task(name, total=None, pace=self._pace, said="")

    def _move(self) -> None:
        if self._task is not None and self._pace.total:
            self._bars.update(self._task, completed=self._pace.done, total=self._pace.total)

    def _finish(self, said: str) -> None:
        if self._task is not None:
            self._bars.update(self._task, completed=1, total=1, pace=None, said=f"{said:>8}")
            self._bars.stop_task(self._task)
            self._task = None


class JsonLog:
    """One JSON object a line, with the keys time, stage, event, done, total, seconds and facts, null where none is.

    Events are start, connected, begin, advance, note, end, and finish, interrupted or failed.
    """

    def __init__(self, stream: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock, self._told = stream, clock, -math.inf
        self._begun = self._of_stage = clock()
        self.write("start")

    def connected(self, dashboard: str | None) -> None:
        """Write where the cluster's dashboard is."""
        self.write("connected", facts={"dashboard": dashboard})

    def begin(self, stage: str) -> None:
        """Write that a stage starts."""
        self._of_stage, self._told = self._clock(), -math.inf
        self.write("begin", stage)

    def advance(self, stage: str, done: int, total: int) -> None:
        """Write how many tasks are done, not more often than `LEAST` allows."""
        now = self._clock()
        if done == total or now - self._told >= LEAST:
            self._told = now
            self.write("advance", stage, done=done, total=total, seconds=now - self._of_stage)

    def note(self, stage: str, facts: Mapping[str, Any]) -> None:
        """Write a stage's numbers."""
        self.write("note", stage, seconds=self._clock() - self._of_stage, facts=facts)

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        """Write that a stage is done."""
        self.write("end", stage, seconds=seconds, facts={"skipped": skipped})

    def leave(self, event: str, **facts: Any) -> None:
        """Write how it ended."""
        self.write(event, seconds=self._clock() - self._begun, facts=facts or None)

    def write(self, event: str, stage: str | None = None, **known: Any) -> None:
        """Write a line."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": now, "stage": stage, "event": event, "done": None, "total": None, "seconds": None, "facts": None,
            **known,
        }  # fmt: skip
        if line["seconds"] is not None:
            line["seconds"] = round(line["seconds"], 6)
        print(json.dumps(line), file=self._stream, flush=True)


class _Both:
    """Progress that is told to two."""

    def __init__(self, first: Told, second: Told) -> None:
        self._both = first, second

    def connected(self, dashboard: str | None) -> None:
        for one in self._both:
            one.connected(dashboard)

    def begin(self, stage: str) -> None:
        for one in self._both:
            one.begin(stage)

    def advance(self, stage: str, done: int, total: int) -> None:
        for one in self._both:
            one.advance(stage, done, total)

    def note(self, stage: str, facts: Mapping[str, Any]) -> None:
        for one in self._both:
            one.note(stage, facts)

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        for one in self._both:
            one.end(stage, seconds, skipped)


@contextlib.contextmanager
def logged(told: Told, name: str | None) -> Iterator[Told]:
    """The same progress, written as JSON lines too: to a file, or to standard output for ``-``; None writes none.

    Raises
    ------
    BadInput
        Where the file can't be written.
    """
    with contextlib.ExitStack() as stack:
        if name is None:
            yield told
            return
        log = JsonLog(sys.stdout if name == "-" else stack.enter_context(_opened(name)))
        try:
            yield _Both(told, log)
        except KeyboardInterrupt:
            log.leave("interrupted")
            raise
        except Exception as error:
            log.leave("failed", error=f"{type(error).__name__}: {error}")
            raise
        log.leave("finish")


def _opened(name: str) -> IO[str]:
    try:
        return open(name, "w", encoding="utf-8")
    except OSError as error:
        raise BadInput(
            "--log-json", f"{name} ({error.strerror})", "a file that can be written, or - for standard output",
            "nobody could follow the run", "give another one",
        ) from error  # fmt: skip


def _numbered(stage: str) -> str:
    return f"{STAGES.index(stage) + 1}/{len(STAGES)} {stage:<9}"
