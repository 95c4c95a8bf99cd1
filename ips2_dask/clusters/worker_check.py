"""A check of one worker from inside: versions that must match, memory, cores, scratch, and access to a store."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import uuid
from typing import Any

from distributed import Client, get_worker

from ips2_dask.kernels.parallel import usable_cores
from ips2_dask.runs.maintenance import versions
from ips2_dask.store.files import open_files


def _describe_worker(store: str | None, name: str) -> dict[str, Any]:
    """The worker that runs this task, as it sees itself; ``store`` and ``scratch_error`` say why it can't use them."""
    worker = get_worker()
    free, fault = None, None
    try:
        with tempfile.TemporaryFile(dir=worker.local_directory) as file:
            file.write(b"0" * 4096)
        free = shutil.disk_usage(worker.local_directory).free
    except OSError as error:
        fault = str(error)
    return {
        "host": socket.gethostname(),
        "versions": versions(),
        "cores": usable_cores(),
        "threads": worker.state.nthreads,
        "memory": worker.memory_manager.memory_limit,  # bytes, as scratch_free; None where nobody knows
        "scratch": worker.local_directory,
        "scratch_free": free,
        "scratch_error": fault,
        "store": _store_fault(store, name) if store else None,
    }


def _store_fault(store: str, name: str) -> str | None:
    """The reason why this process can't read the client's file in a store or write its own; None if it can do both."""
    try:
        files = open_files(store)
        if files.read(f"{name}.asked") != name:
            return "it does not see what the client wrote there"
        files.write(f"{name}.answered", name)
    except Exception as error:  # a store may be any of fsspec's
        return f"{type(error).__name__}: {error}"
    return None


def check_worker(client: Client, store: str | None = None) -> tuple[dict[str, Any], list[str]]:
    """Check one worker of a cluster.

    Parameters
    ----------
    client : Client
    store : path or URL, optional
        The place of a run's directory; two small files are written there and removed again.

    Returns
    -------
    worker : dict
        The description by `_describe_worker`.
    faults : list of str
        A line for each fault that would make a run fail, or give other labels than on this machine.
    """
    name = f".ips2-probe-{uuid.uuid4().hex[:8]}"
    if store is None:
        worker = client.submit(_describe_worker, None, name, pure=False).result()
    else:
        store = store if "://" in store else os.path.abspath(store)
        files = open_files(store)
        created = files.make_root()
        files.write(f"{name}.asked", name)
        try:
            worker = client.submit(_describe_worker, store, name, pure=False).result()
            if worker["store"] is None and files.read(f"{name}.answered") != name:
                worker["store"] = "what it writes there is not seen here"
        finally:
            for end in ("asked", "answered"):
                files.remove(f"{name}.{end}")
            if created and not files.names(""):
                files.remove("")
    faults = [
        f"{package}: {worker['versions'].get(package)} on the worker, {here} here; install the same version"
        for package, here in versions().items()
        if worker["versions"].get(package) != here
    ]
    if worker["scratch_free"] is None:
        faults.append(f"scratch: the worker can't write to {worker['scratch']} ({worker['scratch_error']})")
    if worker["store"]:
        faults.append(f"store: the worker can't use {store}: {worker['store']}")
    return worker, faults
