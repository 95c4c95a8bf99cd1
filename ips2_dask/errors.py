"""The errors a user may meet, each one line that says what is wrong and what to do, and its exit status."""

from __future__ import annotations


class IPS2Error(Exception):
    """Base of every error that is meant for the user; ``exit_status`` is what the command line returns."""

    exit_status = 1


class BadInput(IPS2Error, ValueError):
    """Something the user gave can't be used.

    Parameters
    ----------
    thing : str
        Which thing: a file, an option, an argument.
    found : str
        What was found.
    allowed : str
        What is allowed.
    otherwise : str
        What would have gone wrong.
    remedy : str
        What to do.
    """

    exit_status = 2

    def __init__(self, thing: str, found: str, allowed: str, otherwise: str, remedy: str) -> None:
        self.thing, self.found, self.allowed, self.otherwise, self.remedy = thing, found, allowed, otherwise, remedy
        message = f"{thing}: found {found}, allowed is {allowed}; otherwise {otherwise}. Remedy: {remedy}."
        super().__init__(" ".join(message.split()))

    def __reduce__(self) -> tuple[type[BadInput], tuple[str, str, str, str, str]]:
        return type(self), (self.thing, self.found, self.allowed, self.otherwise, self.remedy)


class Refused(IPS2Error):
    """The plan does not keep what was asked of it (a memory limit, say); nothing has been computed."""

    exit_status = 4


class Damaged(IPS2Error):
    """A stored array is not what was written; the message names array, chunk and remedy.

    Parameters
    ----------
    message : str
    folder, part : str
        Which part of which stage's folder, so that a run can compute it anew.
    """

    exit_status = 1

    def __init__(self, message: str, folder: str = "", part: str = "") -> None:
        self.folder, self.part = folder, part
        super().__init__(message)

    def __reduce__(self) -> tuple[type[Damaged], tuple[str, str, str]]:
        return type(self), (str(self), self.folder, self.part)


class StoreFailure(IPS2Error):
    """The run directory can't be written any more: full, read-only, taken over; nothing half-written counts."""

    exit_status = 1


class FatalTask(Exception):
    """A task has ended every worker that took it: Dask's own error says so; a run makes `WorkersKilled` of it."""

    def __init__(self, task: object, workers: int) -> None:
        super().__init__(task, workers)
        self.task, self.workers = task, workers


class WorkersKilled(IPS2Error):
    """A task has ended every worker that took it; the message names stage, part and remedy."""

    exit_status = 1


class Lost(IPS2Error):
    """Workers, or the scheduler, are gone and don't come back by themselves; what is stored stays.

    Parameters
    ----------
    thing : str
        What is gone, or what went wrong there.
    remedy : str
        What to do before the same command goes on.
    """

    exit_status = 1

    def __init__(self, thing: str, remedy: str) -> None:
        self.thing, self.remedy = thing, remedy
        message = f"{thing}; every finished partition is kept. Remedy: {remedy}, then run the same command again."
        super().__init__(" ".join(message.split()))

    def __reduce__(self) -> tuple[type[Lost], tuple[str, str]]:
        return type(self), (self.thing, self.remedy)


class IPS2Warning(UserWarning):
    """A result is worth less than it looks; the text says by how much."""
