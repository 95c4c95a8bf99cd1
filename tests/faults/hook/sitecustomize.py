"""Loaded by every Python process of a run under test: says what was stored, and stops or harms it at one point.

`IPS2_TEST_FAULT` names a folder with a `fault.json`: at the event it names, the first process that comes there writes
the file `reached` and does what is asked. Every part that is stored, and every cycle of a solver, is a line of `log`.
`IPS2_TEST_BOUNDS` says what constants of the package are in such a run.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib.abc
import importlib.machinery
import json
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(os.environ.get("IPS2_TEST_FAULT", os.devnull))
WAIT_SECONDS = 150
BOUNDS: dict[str, dict[str, int]] = {}
for _place, _bound in json.loads(os.environ.get("IPS2_TEST_BOUNDS", "{}")).items():
    _module, _, _name = _place.rpartition(".")
    BOUNDS.setdefault(f"ips2_dask.{_module}", {})[_name] = _bound


def log(*words: object) -> None:
    """One line, whole, whatever other processes write."""
    line = " ".join(str(word) for word in (os.getpid(), *words)) + "\n"
    handle = os.open(FOLDER / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, line.encode())
    os.close(handle)


def event(name: str) -> None:
    """Do what is asked if this is the point, and nobody was here before."""
    try:
        fault = json.loads((FOLDER / "fault.json").read_text())
    except FileNotFoundError:
        return
    if fault["past"] and not (FOLDER / "past").exists():
        if name == f"written {fault['past']}":
            (FOLDER / "past").touch()
        return
    if not re.fullmatch(fault["at"], name) or not first(fault["after"]):
        return
    log("reached", *name.split()[-1:])
    (FOLDER / "reached.partial").write_text(str(os.getpid()))
    (FOLDER / "reached.partial").rename(FOLDER / "reached")
    ACTIONS[fault["do"]]()


def first(after: int) -> bool:
    """Whether so many came before, over all processes."""
    for number in range(after + 1):
        try:
            os.close(os.open(FOLDER / f"passed{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        return number == after
    return False


def wait() -> None:
    """Stay here until the test says `go`, or ends this process."""
    end = time.monotonic() + WAIT_SECONDS
    while not (FOLDER / "go").exists():
        if time.monotonic() > end:
            os._exit(99)
        time.sleep(0.01)


def hoard() -> None:
    """Take memory until Dask ends this process."""
    held = []
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        if len(held) < 400:
            held.append(b"x" * (16 << 20))
        time.sleep(0.002)
    os._exit(99)


def starve() -> None:
    """Ask for more memory than the system gives, as under `ulimit -d`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    held = int(re.findall(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (held + (64 << 20), hard))
    try:
        bytearray(1 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def fill() -> None:
    """Leave no byte on the file system of the run."""
    with contextlib.suppress(OSError), Path(os.environ["IPS2_TEST_FILLER"]).open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))


ACTIONS: dict[str, Callable[[], None]] = {"wait": wait, "hoard": hoard, "starve": starve, "fill": fill}


def watched_write(write: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(write)
    def watched(self: Any, folder: str, part: str, arrays: Any, facts: Any) -> Any:
        name = f"{folder.split('-')[0]}/{part}"
        event(f"write {name}")
        receipt = write(self, folder, part, arrays, facts)
        log("wrote", name)
        event(f"written {name}")
        return receipt

    return watched


def watched_call(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def watched(*arguments: Any, **options: Any) -> Any:
        event(f"call {name}")
        found = function(*arguments, **options)
        log("called", name)
        return found

    return watched


def watch_store(module: Any) -> None:
    module.ZarrStore.write = watched_write(module.ZarrStore.write)


def watch_solver(module: Any) -> None:
    module.chebyshev_filter = watched_call(module.chebyshev_filter, "filter")


def watch_chunks(module: Any) -> None:
    module.multiply = watched_call(module.multiply, "product")


def set_bounds(module: Any) -> None:
    for name, bound in BOUNDS[module.__name__].items():
        assert hasattr(module, name), (module, name)
        setattr(module, name, bound)


WATCHED: dict[str, Callable[[Any], None]] = {
    "ips2_dask.store.zarr_store": watch_store,
    "ips2_dask.kernels.eigen": watch_solver,
    "ips2_dask.stages.block_tasks": watch_chunks,
}


assert not WATCHED.keys() & BOUNDS.keys()
WATCHED |= dict.fromkeys(BOUNDS, set_bounds)


class Finder(importlib.abc.MetaPathFinder):
    """Finds what is watched where any other module is found, and has it changed once it is loaded."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name in WATCHED else None
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                WATCHED[name](module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if "IPS2_TEST_FAULT" in os.environ:
    sys.meta_path.insert(0, Finder())
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # a test that waited too long asks where they all are
