"""Numba's decorator for the functions of this package, with a folder for its cache wherever one can be written."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import stat
import tempfile
import warnings
from typing import Any

import numba

from ips2_dask.errors import IPS2Warning


def njit(**options: Any) -> Any:
    """`numba.njit`, without a cache where no folder for it can be written."""
    return numba.njit(**{**options, "cache": CACHED and options["cache"]})


def _finds_folder() -> bool:
    """Whether Numba finds a folder for its cache: beside this file, in the user's cache, or in a temporary folder.

    It knows the first two, and ``NUMBA_CACHE_DIR``, itself. In a container it may be able to write neither, and would
    refuse to compile anything.
    """
    if _can_cache():
        return True
    with contextlib.suppress(OSError):
        folder = _own_temporary_folder()
        if folder is not None:
            numba.config.CACHE_DIR = os.environ["NUMBA_CACHE_DIR"] = folder  # of worker processes too
            if _can_cache():
                return True
    if multiprocessing.parent_process() is None:  # its workers need not say it again
        warnings.warn(
            "no folder for compiled code can be written, so each process compiles for itself, which takes half a "
            "minute: set NUMBA_CACHE_DIR to one that can",
            IPS2Warning,
            stacklevel=2,
        )
    return False


def _can_cache() -> bool:
    try:
        numba.njit(cache=True)(lambda: None)
    except RuntimeError:
        return False
    return True


def _own_temporary_folder() -> str | None:
    """A temporary folder of this user alone, as Numba unpickles what it finds there; None where others may write."""
    if not hasattr(os, "getuid"):
        return None
    folder = os.path.join(tempfile.gettempdir(), f"ips2-numba-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return folder if is_own else None


CACHED = _finds_folder()
