"""Progress of a run: the events that the stages report, and the base class of everything that listens to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial


class Progress:
    """A listener to the events of a run, which ignores them all: subclasses override what they show."""

    def connected(self, dashboard: str | None) -> None:
        """The run has connected to a cluster, whose dashboard has this address."""

    def begin(self, stage: str) -> None:
        """A stage starts."""

    def advance(self, stage: str, done: int, total: int) -> None:
        """A stage has done this many of its tasks; one that starts another round of tasks counts from 0 again."""

    def note(self, stage: str, facts: Mapping[str, object]) -> None:
        """A stage has numbers to show: the solver's products, residual and tolerance."""

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        """A stage is done, or was skipped because an earlier run did it."""


class Relay(Progress):
    """A listener that passes every event on to others, after a check that may raise to stop the run."""

    def __init__(self, *listeners: Progress, check: Callable[[], None] | None = None) -> None:
        self._listeners, self._check = listeners, check
        for event in ("connected", "begin", "advance", "note", "end"):
            setattr(self, event, partial(self._send, event))

    def _send(self, event: str, *arguments: object) -> None:
        if self._check is not None:
            self._check()
        for listener in self._listeners:
            getattr(listener, event)(*arguments)


class Reporter:
    """The progress of one stage, as the stage and its executor report it."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress, self._name = progress, name

    def __call__(self, done: int, total: int) -> None:
        """The stage has done this many of its tasks."""
        self._progress.advance(self._name, done, total)

    def note(self, facts: Mapping[str, object]) -> None:
        """The stage has numbers to show."""
        self._progress.note(self._name, facts)
