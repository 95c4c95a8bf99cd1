"""The record of a submitted job, in a folder below the user's state folder that this user alone can read."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import platformdirs

from ips2_dask.errors import BadInput
from ips2_dask.store.files import LocalFiles

VARIABLE = "IPS2_STATE"  # of the environment: it names another state folder
CONFIG = "cluster.yaml"  # the copy of the cluster's config in a job's folder


def _state_folder() -> Path:
    """The folder of the records: of the environment variable, or of the platform (``$XDG_STATE_HOME/ips2_dask``)."""
    own = os.environ.get(VARIABLE)
    folder = Path(os.path.expanduser(own)) if own else platformdirs.user_state_path("ips2_dask", appauthor=False)
    return folder.absolute() / "jobs"


@dataclasses.dataclass(frozen=True)
class Job:
    """A submitted job; ``native`` is the manager's identifier of its driver, ``out`` the run directory."""

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
        found = f"{str(_state_folder())!r}, where no folder can be made ({error.strerror})"
        otherwise, remedy = "the job could not be found again", f"set {VARIABLE} to another folder"
        raise BadInput(VARIABLE, found, "one of this user", otherwise, remedy) from error
    return job


def jobs() -> list[Job]:
    """All records, the oldest first; other files are ignored."""
    found = []
    for path in sorted(_state_folder().glob("*/job.json")):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            content = json.loads(path.read_text(encoding="utf-8"))
            found.append(Job(**{**content, "arguments": tuple(content["arguments"])}))
    return found


def find(name: str) -> Job:
    """The record of a job, by its id or an unambiguous prefix of it."""
    records = jobs()
    matches = [job for job in records if job.id == name] or [job for job in records if name and job.id.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    newest = ", ".join(job.id for job in records[:-4:-1]) or "none was submitted"
    found = f"{name!r}, which {'is several' if matches else 'is not known'}"
    allowed = f"the id of a job ({newest})"
    raise BadInput("job", found, allowed, "there would be nothing to show", "look at `ips2 jobs list`")
