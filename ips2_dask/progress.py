"""What is told of a run while it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Progress(Protocol):
    """Is told what a run does."""

    def connected(self, dashboard: str | None) -> None:
        """A cluster is there, and its dashboard."""
        ...

    def begin(self, stage: str) -> None:
        """A stage starts."""
        ...

    def advance(self, stage: str, done: int, total: int) -> None:
        """So many of a stage's tasks are done."""
        ...

    def note(self, stage: str, facts: Mapping[str, Any]) -> None:
        """Numbers that a stage has come to: the solver's products and residual."""
        ...

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        """A stage is done, or was there already."""
        ...


class Silent:
    """Progress that nobody looks at."""

    def connected(self, dashboard: str | None) -> None:
        """Say nothing."""

    def begin(self, stage: str) -> None:
        """Say nothing."""

    def advance(self, stage: str, done: int, total: int) -> None:
        """Say nothing."""

    def note(self, stage: str, facts: Mapping[str, Any]) -> None:
        """Say nothing."""

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        """Say nothing."""


class Reporter:
    """What a stage is given to tell a run's progress."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress, self._name = progress, name

    def __call__(self, done: int, total: int) -> None:
        """So many of the stage's tasks are done."""
        self._progress.advance(self._name, done, total)

    def note(self, facts: Mapping[str, Any]) -> None:
        """Numbers it has come to."""
        self._progress.note(self._name, facts)
