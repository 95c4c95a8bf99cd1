"""The errors that a user may meet: each is one line that says what is wrong and what to do, with an exit status."""

from __future__ import annotations


class IPS2Error(Exception):
    """Base of every error that is meant for the user."""

    exit_status = 1  #: what the command line returns


class BadInput(IPS2Error, ValueError):
    """An input, option or argument that can't be used. Its message has five parts.

    The ``thing`` is a file, option or argument, ``found`` its value or what is wrong with it, ``allowed`` the values
    that are, ``otherwise`` the consequence if the run went on, ``remedy`` an instruction: "give a number with a unit".
    """

    exit_status = 2

    def __init__(self, thing: str, found: str, allowed: str, otherwise: str, remedy: str) -> None:
        self.thing, self.found, self.allowed, self.otherwise, self.remedy = thing, found, allowed, otherwise, remedy
        message = f"{thing}: found {found}, allowed is {allowed}; otherwise {otherwise}. Remedy: {remedy}."
        super().__init__(" ".join(message.split()))

    def __reduce__(self) -> tuple[type[BadInput], tuple[str, str, str, str, str]]:
        return type(self), (self.thing, self.found, self.allowed, self.otherwise, self.remedy)


class Unreachable(BadInput):
    """A store that gives no access or no answer. It may be another's fault, and what was finished there stays."""


class Refused(IPS2Error):
    """The plan breaks a limit that the user set, on memory for instance; nothing has been computed."""

    exit_status = 4


class Damaged(IPS2Error):
    """A stored array differs from what was written; the message names array, chunk and remedy.

    By the stage's ``folder`` and the ``part`` in it a run can compute the part anew.
    """

    def __init__(self, message: str, folder: str = "", part: str = "") -> None:
        self.folder, self.part = folder, part
        super().__init__(message)

    def __reduce__(self) -> tuple[type[Damaged], tuple[str, str, str]]:
        return type(self), (str(self), self.folder, self.part)


class StoreFailure(IPS2Error):
    """The run directory can no longer be written: it is full, read-only or taken over. Finished parts stay whole."""


class FatalTask(Exception):
    """A task, in words or by its position in a job, has ended all workers that took it, by Dask's own error.

    A run turns it into `WorkersKilled`.
    """

    def __init__(self, task: str | int, workers: int) -> None:
        super().__init__(task, workers)
        self.task, self.workers = task, workers


class WorkersKilled(IPS2Error):
    """A task has ended every worker that took it; the message names stage, part and remedy."""


class Lost(IPS2Error):
    """Workers or the scheduler are gone and don't come back by themselves; all stored parts stay.

    The ``thing`` is the lost process, or its fault, and the ``remedy`` to be followed before the command is run again.
    """

    def __init__(self, thing: str, remedy: str) -> None:
        self.thing, self.remedy = thing, remedy
        message = f"{thing}; every finished partition is kept. Remedy: {remedy}, then run the same command again."
        super().__init__(" ".join(message.split()))

    def __reduce__(self) -> tuple[type[Lost], tuple[str, str]]:
        return type(self), (self.thing, self.remedy)


class IPS2Warning(UserWarning):
    """A result is worth less than it looks; the text says by how much."""
