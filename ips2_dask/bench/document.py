"""The file of a benchmark: machine, versions, command and flat records, written whole."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from ips2_dask.errors import BadInput
from ips2_dask.kernels.parallel import usable_cores
from ips2_dask.pipeline.run import versions as versions_of_the_run

Value = bool | int | float | str | None
Record = dict[str, Value]

PEERS = ("evoc", "faiss-cpu", "fast-plscan", "hnswlib", "igraph", "leidenalg", "pyamg", "usearch")
"""Optional packages that some benchmark measures."""


def machine() -> Record:
    """What was measured on: processor, cores, memory, system, and how busy it was; no name, no path."""
    return {
        "cpu": _processor(),
        "cores": usable_cores(),
        "memory_bytes": _memory(),
        "os": _system(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory() -> int:
    """Bytes of this machine, or of the control group that holds this process to fewer."""
    total = int(psutil.virtual_memory().total)
    with contextlib.suppress(OSError, ValueError):  # no control group, or "max"
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return f"{platform.system()} {platform.release()}"


def versions() -> dict[str, str]:
    """Versions of what the figures depend on, those of optional peers where they are installed."""
    found = versions_of_the_run()
    for name in PEERS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def command_line(arguments: Sequence[str]) -> str:
    """The command, folders left out: a file says what was run and not where."""
    return " ".join(["ips2", *(_without_folder(text) for text in arguments)])


def _without_folder(text: str) -> str:
    option, equals, value = text.partition("=") if text.startswith("--") else ("", "", text)
    name = Path(value).name if os.sep in value else value
    name = f"'{name}'" if " " in name else name
    return f"{option}{equals}{name}"


def check_writable(path: Path) -> None:
    """Refuse a result file that could not be written, before hours are spent on what goes in.

    Raises
    ------
    BadInput
    """
    found = None
    if path.is_dir():
        found = "a directory"
    elif not path.absolute().parent.is_dir():
        found = "a file in a directory that does not exist"
    elif not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        found = "a file in a directory where this user may not write"
    if found:
        raise BadInput(
            str(path), found, "a file, new or to be replaced, in a directory that exists",
            "the results would be lost", "give another --json",
        )  # fmt: skip


def write(path: Path, facts: Mapping[str, object], results: Sequence[Record]) -> None:
    """Write facts and ``results`` whole: aside first, then renamed.

    Raises
    ------
    ValueError
        Where a record is not flat, or holds a number that JSON has no word for.
    """
    for record in results:
        deep = [name for name, value in record.items() if not isinstance(value, Value)]
        if deep:
            raise ValueError(f"a record's {deep[0]} is no plain value: {record[deep[0]]!r}")
    text = json.dumps({**facts, "results": list(results)}, indent=1, allow_nan=False, ensure_ascii=False)
    aside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        aside.write_text(text + "\n", encoding="utf-8")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def line(record: Record, columns: Sequence[str]) -> str:
    """A record for people: the named columns that it has, in one line."""
    return "  ".join(f"{name} {_spelled(record[name])}" for name in columns if record.get(name) is not None)


def _spelled(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
