"""A kill in the middle of this process's writing: from one change of a directory on, nothing more is changed in it.

Python says each change of a file system before it is made (`sys.addaudithook`), whoever makes it, in any thread: a file
that is opened for writing, and names that are made, moved and removed. A `Kill` lets some of them pass and refuses all
others by an error that no ``except Exception`` catches. So ``finally`` blocks run, and change nothing: files are what
they were after a SIGKILL at that place. What was opened last exists and is empty, since nothing was written yet.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FOLDERS_AT = {"os.rename": 2, "os.link": 2, "os.remove": 1, "os.mkdir": 2, "os.rmdir": 1}
"""Events that change names, and which of their arguments is the descriptor of the folder that a path is relative to."""


class Killed(BaseException):
    """The process is dead: what is raised afterwards reaches nobody."""


class Kill:
    """A block in which a directory is changed ``after`` times, and then no more.

    Parameters
    ----------
    root : str
        The directory.
    after : int
        Changes that are made, of those that count.
    counted : str
        What the name of a file has to hold for its change to count.
    strike : callable, optional
        Called in the place of raising `Killed`: a real kill.
    """

    _installed = False
    _current: Kill | None = None

    def __init__(self, root: str, after: int, strike: Callable[[], None] | None = None, *, counted: str = "") -> None:
        self._root, self._left, self._strike, self._counted = root, after, strike, counted
        self._lock = threading.Lock()
        self._own = threading.local()
        self.happened = False

    def __enter__(self) -> Self:
        if not Kill._installed:  # it can't be removed, and does nothing outside of a block
            sys.addaudithook(_look)
            Kill._installed = True
        Kill._current = self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        Kill._current = None
        return isinstance(error, Killed)

    def see(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Count a change, or refuse it."""
        if getattr(self._own, "busy", False) or not self._is_change(event, arguments):
            return
        with self._lock:
            counts = self._counted in os.path.basename(str(arguments[0]))
            if not self.happened and (self._left > 0 or not counts):
                self._left -= counts
                return
            if not self.happened:
                self.happened = True
                if event == "open":
                    self._open(arguments[0], arguments[2])
                if self._strike is not None:
                    self._strike()
        raise Killed

    def _open(self, path: str, flags: int) -> None:
        self._own.busy = True
        try:
            os.close(os.open(path, flags & ~os.O_EXCL, 0o644))
        except OSError:
            pass  # the kill came first
        finally:
            self._own.busy = False

    def _is_change(self, event: str, arguments: tuple[Any, ...]) -> bool:
        if event == "open":
            path, _, flags = arguments
            return isinstance(path, str | os.PathLike) and bool(flags & WRITING) and self._holds(os.fspath(path))
        if event not in FOLDERS_AT:
            return False
        folder = arguments[FOLDERS_AT[event]]
        return (isinstance(folder, int) and folder >= 0) or self._holds(os.fspath(arguments[0]))

    def _holds(self, path: str | bytes) -> bool:
        return str(path).startswith(self._root)


def _look(event: str, arguments: tuple[Any, ...]) -> None:
    current = Kill._current
    if current is not None and (event == "open" or event in FOLDERS_AT):
        current.see(event, arguments)
