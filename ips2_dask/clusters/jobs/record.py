"""The record of a submitted job, in a folder below the user's state folder that this user alone can read."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import platformdirs

from ips2_dask.errors import BadInput
from ips2_dask.store.files import LocalFiles

VARIABLE = "IPS2_STATE"
"""Environment variable that names another state folder."""

CONFIG = "cluster.yaml"
"""The copy of the cluster's config in a job's folder."""


def _state_folder() -> Path:
    """The folder of the records: of the environment variable, or of the platform (``$XDG_STATE_HOME/ips2_dask``)."""
    variable = os.environ.get(VARIABLE)
    folder = (
        Path(os.path.expanduser(variable)) if variable else platformdirs.user_state_path("ips2_dask", appauthor=False)
    )
    return folder.absolute() / "jobs"


class Native(TypedDict, total=False):
    """The manager's identifier of a driver; each launcher stores the keys that it reads again."""

    pid: int  # a process, of this machine or of an SSH host
    created: float  # seconds since 1970, by which a later process with the same id is told apart
    host: str
    by: str  # the SSH host, as the config names it
    job: str  # a batch system's number
    name: str  # a DaskJob
    namespace: str | None


@dataclasses.dataclass(frozen=True)
class Job:
    """A submitted job.

    Attributes
    ----------
    id : str
        The name of its folder.
    manager : str
        The manager of its cluster, as in the config.
    arguments : tuple of str
        The arguments of the command that its driver runs.
    cwd, out : str
        The working directory of the driver, and the run directory.
    submitted : str
        The time in UTC.
    native : Native
        The manager's identifier: a process, a job's number, an object's name.
    cancelled : bool
        Whether a user has cancelled it.
    """

    id: str
    manager: str
    arguments: tuple[str, ...]
    cwd: str
    out: str
    submitted: str
    native: Native = dataclasses.field(default_factory=Native)
    cancelled: bool = False

    @property
    def folder(self) -> Path:
        """The folder of its record, config, script and log."""
        return _state_folder() / self.id

    @property
    def log(self) -> Path:
        """The file of its driver's log."""
        return self.folder / "log"

    @property
    def exit_status(self) -> int | None:
        """The exit status of its driver, or None if the driver has not ended in order."""
        text = LocalFiles(str(self.folder)).read("exit.json")
        return None if text is None else int(json.loads(text)["status"])

    def save(self) -> Job:
        """Write the record atomically."""
        LocalFiles(str(self.folder)).write("job.json", json.dumps(dataclasses.asdict(self), indent=1))
        return self


def new(manager: str, arguments: Sequence[str], out: str) -> Job:
    """A job with a folder of its own, not submitted yet."""
    now = datetime.datetime.now(datetime.UTC)
    name = f"{now:%y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    out = out if "://" in out else os.path.abspath(out)
    job = Job(name, manager, tuple(arguments), os.getcwd(), out, now.isoformat(timespec="seconds"))
    try:
        job.folder.mkdir(parents=True, mode=0o700)
    except OSError as error:
        raise BadInput(
            VARIABLE,
            f"{str(_state_folder())!r}, where no folder can be made ({error.strerror})",
            "one of this user",
            "the job could not be found again",
            f"set {VARIABLE} to another folder",
        ) from error
    return job


def jobs() -> list[Job]:
    """All records, the oldest first; other files are ignored."""
    root = _state_folder()
    names = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
    return [job for job in map(_read, names) if job is not None]


def find(name: str) -> Job:
    """The record of a job, by its id or an unambiguous prefix of it.

    Raises
    ------
    BadInput
        If there is none, or more than one.
    """
    records = jobs()
    matches = [job for job in records if job.id == name] or [job for job in records if name and job.id.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    newest = ", ".join(job.id for job in records[:-4:-1]) or "none was submitted"
    raise BadInput(
        "job",
        f"{name!r}, which {'is several' if matches else 'is not known'}",
        f"the id of a job ({newest})",
        "there would be nothing to show",
        "look at `ips2 jobs`",
    )


def _read(name: str) -> Job | None:
    text = LocalFiles(str(_state_folder() / name)).read("job.json")
    try:
        return from_record(json.loads(text)) if text else None
    except (ValueError, TypeError, KeyError):
        return None


def from_record(content: Mapping[str, Any]) -> Job:
    """The job that `Job.save` wrote."""
    return Job(**{**content, "arguments": tuple(content["arguments"])})
