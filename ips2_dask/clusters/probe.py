"""Looking at a worker from inside: versions that must match, memory, cores, scratch, reach of a store."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import tempfile
import uuid
from typing import Any

from distributed import Client, get_worker

from ips2_dask import __version__
from ips2_dask.kernels.parallel import usable_cores
from ips2_dask.store.files import open_files

PACKAGES = ("dask", "distributed", "numba", "numpy", "pynndescent", "scikit-learn", "scipy", "zarr")
"""Whose versions the labels depend on, or the talk between processes."""


def versions() -> dict[str, str]:
    """Versions in this process."""
    found = {"ips2_dask": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


def look(store: str | None, name: str) -> dict[str, Any]:
    """What a worker finds where it runs; a task."""
    worker = get_worker()
    return {
        "host": socket.gethostname(),
        "versions": versions(),
        "cores": usable_cores(),
        "threads": worker.state.nthreads,
        "memory": worker.memory_manager.memory_limit,
        **_scratch(worker.local_directory),
        "store": _reach(store, name) if store else None,
    }


def _scratch(folder: str) -> dict[str, Any]:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0" * 4096)
        return {"scratch": folder, "scratch_free": shutil.disk_usage(folder).free}
    except OSError as error:
        return {"scratch": folder, "scratch_free": None, "scratch_error": str(error)}


def _reach(store: str, name: str) -> str | None:
    """What keeps this process from reading what the client wrote and answering there; None where nothing does."""
    try:
        files = open_files(store)
        if files.read(f"{name}.asked") != name:
            return "it does not see what the client wrote there"
        files.write(f"{name}.answered", name)
    except Exception as error:  # a store may be any of fsspec's
        return f"{type(error).__name__}: {error}"
    return None


def probe(client: Client, store: str | None = None) -> tuple[dict[str, Any], list[str]]:
    """Look at one worker, and say what is amiss.

    Parameters
    ----------
    client : Client
    store : path or URL, optional
        Where a run's directory will be; two small files are written there and taken away again.

    Returns
    -------
    found : dict
        What the worker found.
    amiss : list of str
        A line for each thing that would make a run fail, or give other labels than this machine's.
    """
    name = f".ips2-probe-{uuid.uuid4().hex[:8]}"
    if store is None:
        return _judged(client.submit(look, None, name, pure=False).result(), None)
    if "://" not in store:
        store = os.path.abspath(store)
    files = open_files(store)
    made = files.make_root()
    files.write(f"{name}.asked", name)
    try:
        found = client.submit(look, store, name, pure=False).result()
        if found["store"] is None and files.read(f"{name}.answered") != name:
            found["store"] = "what it writes there is not seen here"
        return _judged(found, store)
    finally:
        for end in ("asked", "answered"):
            files.remove(f"{name}.{end}")
        if made and not files.names(""):
            files.remove("")


def _judged(found: dict[str, Any], store: str | None) -> tuple[dict[str, Any], list[str]]:
    amiss = [
        f"{package}: {found['versions'].get(package)} on the worker, {here} here; install the same version"
        for package, here in versions().items()
        if found["versions"].get(package) != here
    ]
    if found["scratch_free"] is None:
        amiss.append(f"scratch: the worker can't write to {found['scratch']} ({found['scratch_error']})")
    if found["store"]:
        amiss.append(f"store: the worker can't use {store}: {found['store']}")
    return found, amiss
