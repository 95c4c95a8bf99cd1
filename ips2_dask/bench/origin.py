"""The origin of a file of records: commit of the code, date, machine, threads, and how busy the machine was."""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numba
from threadpoolctl import threadpool_info

from ips2_dask.bench import activity, document
from ips2_dask.kernels.parallel import usable_cores

PACKAGE = Path(__file__).parent.parent


class Code(NamedTuple):
    """The code that measures: two records of one `Code` were made by the same files.

    Attributes
    ----------
    commit : str or None
        Of the checkout that the package was imported from, with ``-dirty`` behind it where files of the package
        differ; None of an installed wheel.
    changes : str or None
        Digest of these differences; None where there are none.
    """

    commit: str | None
    changes: str | None


def code(package: Path = PACKAGE) -> Code:
    """The code of a package's folder.

    Files outside the package don't count: records and pictures are files of the checkout too, and are written while
    others are still measured.
    """
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:  # a wheel, or a copy without its history
        return Code(None, None)
    commit = (_git(package, "rev-parse", "HEAD") or b"").decode().strip()
    difference = _git(package, "diff", "HEAD", "--", ".") or b""
    added = (_git(package, "ls-files", "--others", "--exclude-standard", "-z", ".") or b"").split(b"\0")
    if not difference and not any(added):
        return Code(commit, None)
    digest = hashlib.sha256(difference)
    for name in sorted(filter(None, added)):
        digest.update(name + b"\0" + (package / os.fsdecode(name)).read_bytes())
    return Code(f"{commit}-dirty", digest.hexdigest()[:16])


@functools.cache
def present() -> Code:
    """The code of this process; files that are changed later count for nothing in it."""
    return code()


def _git(folder: Path, *arguments: str) -> bytes | None:
    """Output of git in a folder; None where there is no git, no checkout, or no success."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def now() -> str:
    """The moment: UTC, ISO 8601, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def pools() -> dict[str, int]:
    """Threads that the pools of this process may take: ours, BLAS's, OpenMP's and Numba's.

    A benchmark that gives its processes fewer says so in its records.
    """
    found = threadpool_info()
    most = {
        kind: max((int(pool["num_threads"]) for pool in found if pool["user_api"] == kind), default=1)
        for kind in ("blas", "openmp")
    }
    return {"ours": usable_cores(), **most, "numba": int(numba.config.NUMBA_NUM_THREADS)}


class Recording:
    """The head of a file of records, begun before anything is measured.

    Parameters
    ----------
    arguments : sequence of str
        The command as it was typed, without ``ips2``.
    seed : int, optional
    allow_busy : bool
        Record on a busy machine, too.

    Raises
    ------
    BadInput
        Where the machine is busy and may not be.
    """

    def __init__(self, arguments: Sequence[str], seed: int | None = None, allow_busy: bool = False) -> None:
        self._average, self._before = _load_average(), activity.others_now()
        if not allow_busy:
            activity.check_idle(self._before)
        self._code, self._date, self._seed = present(), now(), seed
        self._command = document.command_line(arguments)
        self._begun, self._watch = time.monotonic(), activity.Watch()

    def head(self, complete: bool = True) -> dict[str, object]:
        """The document without its results, as of now."""
        return {
            **self._code._asdict(),
            "date": self._date,
            "seconds": round(time.monotonic() - self._begun, 1),
            "complete": complete,
            "busy": self._before > activity.MOST,
            "seed": self._seed,
            "machine": document.machine(),
            "threads": pools(),
            "load": {
                "average_before": self._average,
                "average_after": _load_average(),
                "others_before": round(self._before, 3),
                "others": round(self._watch.others(), 3),
            },
            "versions": document.versions(),
            "command": self._command,
        }


def _load_average() -> float | None:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def digest(results: Sequence[Mapping[str, Any]]) -> str:
    """Digest of a document's records, by which a picture says which ones it shows."""
    return hashlib.sha256(json.dumps(list(results), sort_keys=True).encode()).hexdigest()
