"""What is kept of a submitted job: a folder of its own below the user's state folder, readable by that user alone."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import platformdirs

from ips2_dask.errors import BadInput
from ips2_dask.store.files import LocalFiles

VARIABLE = "IPS2_STATE"
"""Environment variable that names another state folder."""

CONFIG = "cluster.yaml"
"""The copy of the cluster's config in a job's folder."""


def state_folder() -> Path:
    """Where the records are: what the variable says, else the platform's place (``$XDG_STATE_HOME/ips2_dask``)."""
    given = os.environ.get(VARIABLE)
    place = Path(os.path.expanduser(given)) if given else platformdirs.user_state_path("ips2_dask", appauthor=False)
    return place.absolute() / "jobs"


@dataclasses.dataclass(frozen=True)
class Job:
    """A submitted job.

    Attributes
    ----------
    id : str
        The name of its folder.
    manager : str
        Who runs it, as in the config.
    arguments : tuple of str
        Of the command that its driver runs.
    cwd, out : str
        Where that runs, and its run directory.
    submitted : str
        When, in UTC.
    native : dict
        How the manager calls it: a process, a job's number, an object's name.
    cancelled : bool
        Whether somebody asked for its end.
    """

    id: str
    manager: str
    arguments: tuple[str, ...]
    cwd: str
    out: str
    submitted: str
    native: dict[str, Any] = dataclasses.field(default_factory=dict)
    cancelled: bool = False

    @property
    def folder(self) -> Path:
        """Where its record, its config, its script and its log are."""
        return state_folder() / self.id

    @property
    def log(self) -> Path:
        """What its driver prints."""
        return self.folder / "log"

    @property
    def exit_status(self) -> int | None:
        """The exit status that its driver left, or None where it has not come to its end."""
        text = LocalFiles(str(self.folder)).read("exit.json")
        return None if text is None else int(json.loads(text)["status"])

    def save(self) -> Job:
        """Write the record, whole."""
        LocalFiles(str(self.folder)).write("job.json", json.dumps(dataclasses.asdict(self), indent=1))
        return self


def new(manager: str, arguments: Sequence[str], out: str) -> Job:
    """A job with a folder of its own, not handed over yet."""
    now = datetime.datetime.now(datetime.UTC)
    name = f"{now:%y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    out = out if "://" in out else os.path.abspath(out)
    job = Job(name, manager, tuple(arguments), os.getcwd(), out, now.isoformat(timespec="seconds"))
    try:
        job.folder.mkdir(parents=True, mode=0o700)
    except OSError as error:
        raise BadInput(
            VARIABLE, f"{str(state_folder())!r}, where no folder can be made ({error.strerror})", "one of this user",
            "the job could not be found again", f"set {VARIABLE} to another folder",
        ) from error  # fmt: skip
    return job


def jobs() -> list[Job]:
    """All records, the oldest first; what is no record is passed over."""
    root = state_folder()
    names = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
    return [job for job in map(_read, names) if job is not None]


def find(name: str) -> Job:
    """The record of a job, by its id or an unmistakable beginning of it.

    Raises
    ------
    BadInput
        Where there is none, or more than one.
    """
    known = jobs()
    found = [job for job in known if job.id == name] or [job for job in known if name and job.id.startswith(name)]
    if len(found) == 1:
        return found[0]
    newest = ", ".join(job.id for job in known[:-4:-1]) or "none was submitted"
    raise BadInput(
        "job", f"{name!r}, which {'is several' if found else 'is not known'}", f"the id of a job ({newest})",
        "there would be nothing to show", "look at `ips2 jobs`",
    )  # fmt: skip


def _read(name: str) -> Job | None:
    text = LocalFiles(str(state_folder() / name)).read("job.json")
    try:
        return from_record(json.loads(text)) if text else None
    except (ValueError, TypeError, KeyError):
        return None


def from_record(content: Mapping[str, Any]) -> Job:
    """The job that `Job.save` wrote."""
    return Job(**{**content, "arguments": tuple(content["arguments"])})
