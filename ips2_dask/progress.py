"""What is told of a run while it goes on."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Is told what a run does."""

    def begin(self, stage: str) -> None:
        """A stage starts."""
        ...

    def advance(self, stage: str, done: int, total: int) -> None:
        """So many of a stage's tasks are done."""
        ...

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        """A stage is done, or was there already."""
        ...


class Silent:
    """Progress that nobody looks at."""

    def begin(self, stage: str) -> None:
        """Say nothing."""

    def advance(self, stage: str, done: int, total: int) -> None:
        """Say nothing."""

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        """Say nothing."""
