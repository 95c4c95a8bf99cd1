"""Ctrl-C, SIGTERM and SIGUSR2 for the command line: the first ends the cluster in order, the second at once."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import NoReturn, Self

from ips2_dask.progress import Progress, Relay

Handler = Callable[[int, FrameType | None], object] | int | None
"""A handler of a signal, as `signal.signal` takes and returns it; None for one that Python has not set."""


class Stopping:
    """A context in which the first SIGINT, SIGTERM or SIGUSR2 raises KeyboardInterrupt in the main thread.

    SIGUSR2 is what Grid Engine sends a minute before it kills a job that was submitted with ``-notify``.

    Python loses an exception that is raised inside a callback of its garbage collector, and distributed has such a
    callback (about every thirtieth interrupt was lost, measured). So `guard` raises it again at the next event.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)

    def __init__(self) -> None:
        self.interrupted = False
        self._before: dict[int, Handler] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._stop) for number in self.SIGNALS}
        self._hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        if self.interrupted:
            logging.disable(logging.NOTSET)
        sys.unraisablehook = self._hook

    def guard(self, progress: Progress) -> Progress:
        """A progress that passes events on to another one, and raises a KeyboardInterrupt that Python lost."""
        return Relay(progress, check=self._check)

    def _check(self) -> None:
        if self.interrupted:
            raise KeyboardInterrupt

    def _stop(self, *_: object) -> NoReturn:
        if self.interrupted:
            _leave()
        self.interrupted = True
        logging.disable(logging.CRITICAL)  # Dask would log an error for each task that it gives up
        raise KeyboardInterrupt

    def _unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            self._hook(unraisable)


def _leave() -> NoReturn:
    """End this process at once; its workers end themselves when their pipe to it closes."""
    if sys.stderr.isatty():
        sys.stderr.write("\x1b[?25h")  # the cursor that live progress hid
    sys.stderr.write("ips2: interrupted again\n")
    sys.stderr.flush()
    os._exit(130)
