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
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
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


class _Shown(Progress):
    """A listener with a task of rich's for each stage: how much of it is done, since when, and the solver's residual.

    The residual falls about geometrically, so its logarithm measures what is left to do; once a stage has shown one,
    its tasks are ignored, as the solver is one task.
    """

    def __init__(self, bars: Bars) -> None:
        self._bars = bars

    @property
    def _task(self) -> Task:
        """The task of the stage at work."""
        return self._bars.tasks[-1]

    def _open(self, name: str, text: str = "") -> None:
        self._bars.add_task(name, total=None, text=text, first=None, begun=self._bars.get_time(), ended="")

    def advance(self, stage: str, done: int, total: int) -> None:
        task = self._task
        if task.fields["first"] is not None or (task.total is None and not done):  # a bar pulses until one is done
            return
        if task.total is not None and (done < task.completed or total != task.total):  # another round of tasks
            self._bars.reset(task.id)
        self._bars.update(task.id, completed=done, total=total, text=f"{done:,} of {total:,}")
        self._changed()

    def note(self, stage: str, facts: Mapping[str, Any]) -> None:
        if "residual" not in facts or "tol" not in facts:
            return
        task, residual, tol = self._task, max(float(facts["residual"]), 1e-300), float(facts["tol"])
        first = task.fields["first"] or max(residual, tol)
        if task.fields["first"] is None:
            self._bars.reset(task.id, **{**task.fields, "first": first})
        share = math.log(first / residual) / math.log(first / tol) if first > tol else 1.0
        text = f"residual {residual:.1e}, tolerance {tol:.0e}"
        self._bars.update(task.id, completed=min(max(share, 0.0), 1.0), total=1.0, text=text)
        self._changed()

    def _changed(self) -> None:
        """Show what is new of the stage at work."""


def in_words(task: Task) -> str:
    """How much of a stage is done, tasks a second or seconds a task, and the time that the rest will take."""
    done, elapsed, texts = task.completed, task.elapsed or 0.0, [task.fields["text"]]
    if done > 0 and elapsed > 0:
        if task.fields["first"] is None:  # the solver counts no tasks
            speed = done / elapsed
            slow = f"{1 / speed:.1f} s each"
            texts.append(f"{speed:,.0f}/s" if speed >= 9.95 else f"{speed:.1f}/s" if speed >= 0.95 else slow)
        if done < (task.total or 0):
            texts.append(f"{duration(elapsed * ((task.total or 0) - done) / done)} left")
    return ", ".join(filter(None, texts))


class PlainProgress(_Shown):
    """One line on standard error for each stage, and one every half minute while a stage goes on."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(Bars(get_time=clock))
        self._last_line = clock()

    def connected(self, dashboard: str | None) -> None:
        if dashboard:
            print(f"dashboard     {dashboard}", file=sys.stderr, flush=True)

    def begin(self, stage: str) -> None:
        self._open(_numbered(stage))
        self._last_line = self._bars.get_time()

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        print(f"{_numbered(stage)} {REUSED if skipped else f'{seconds:.2f} s'}", file=sys.stderr, flush=True)

    def _changed(self) -> None:
        if self._bars.get_time() - self._last_line >= LINE_SECONDS:
            self._last_line = self._bars.get_time()
            print(f"{self._task.description} ... {in_words(self._task)}", file=sys.stderr, flush=True)


class _Texts(ProgressColumn):
    """The column of a stage's elapsed time, tasks, rate and time left, computed anew each time the table is drawn."""

    def render(self, task: Task) -> Text:
        going_on = f"{duration(task.get_time() - task.fields['begun']):>8}  {in_words(task)}"
        return Text(task.fields["ended"] or going_on, no_wrap=True, overflow="ellipsis")


class LiveProgress(_Shown):
    """A table on a terminal, a line with a bar for each stage; the first line is for what comes before the stages."""

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        bar = BarColumn(max(8, min(40, console.width - TEXT_WIDTH)))
        super().__init__(Bars(TextColumn("{task.description}"), bar, _Texts(), console=console))
        self._bars.start()
        self._open(f"    {'start':<9}", "input and workers")

    def close(self) -> None:
        """Stop drawing, and give the terminal its cursor back."""
        self._bars.stop()

    def connected(self, dashboard: str | None) -> None:
        if dashboard:
            self._bars.console.print(f"    dashboard  {dashboard}", highlight=False, soft_wrap=True)

    def begin(self, stage: str) -> None:
        if not self._task.fields["ended"]:  # the start is over
            self._finish(duration(self._bars.get_time() - self._task.fields["begun"]))
        self._open(_numbered(stage))

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        residual = "" if self._task.fields["first"] is None else self._task.fields["text"]
        self._finish(REUSED if skipped else f"{duration(seconds):>8}  {residual}")

    def _finish(self, text: str) -> None:
        self._bars.update(self._task.id, completed=1, total=1, ended=f"{text:>8}")
        self._bars.stop_task(self._task.id)


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
