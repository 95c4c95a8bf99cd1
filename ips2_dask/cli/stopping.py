"""Ctrl-C and SIGTERM for the command line: the first stops in order and closes the cluster, the second at once."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NoReturn, Self

from ips2_dask.progress import Progress


class Stopping:
    """While this lasts, the signals raise KeyboardInterrupt, in the main thread, once.

    Python loses an exception that is raised inside a callback of its garbage collector, of which distributed has one
    (about every thirtieth interrupt, measured). So `told` raises it again at the next sign of progress.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._stop) for number in self.SIGNALS}
        self._hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        if self.asked:
            logging.disable(logging.NOTSET)
        sys.unraisablehook = self._hook

    def told(self, progress: Progress) -> Progress:
        """The same progress, which raises KeyboardInterrupt where one was lost."""
        return _Checked(self, progress)

    def _stop(self, *_: object) -> NoReturn:
        if self.asked:
            _leave()
        self.asked = True
        logging.disable(logging.CRITICAL)  # what Dask says of tasks that are given up is nothing to act on
        raise KeyboardInterrupt

    def _unraisable(self, lost: Any) -> None:
        if lost.exc_type is not KeyboardInterrupt:
            self._hook(lost)


class _Checked:
    """Progress that looks whether the run was to stop."""

    def __init__(self, stopping: Stopping, inner: Progress) -> None:
        self._stopping, self._inner = stopping, inner

    def connected(self, dashboard: str | None) -> None:
        self._check()
        self._inner.connected(dashboard)

    def begin(self, stage: str) -> None:
        self._check()
        self._inner.begin(stage)

    def advance(self, stage: str, done: int, total: int) -> None:
        self._check()
        self._inner.advance(stage, done, total)

    def note(self, stage: str, facts: Mapping[str, Any]) -> None:
        self._check()
        self._inner.note(stage, facts)

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        self._check()
        self._inner.end(stage, seconds, skipped)

    def _check(self) -> None:
        if self._stopping.asked:
            raise KeyboardInterrupt


def _leave() -> NoReturn:
    """End this process; its workers notice that nobody holds their pipe, and end themselves."""
    if sys.stderr.isatty():
        sys.stderr.write("\x1b[?25h")  # the cursor that live progress hid
    sys.stderr.write("ips2: interrupted again\n")
    sys.stderr.flush()
    os._exit(130)
