"""The file of a benchmark (machine, versions, command, flat records), and its Markdown tables for the README."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from ips2_dask.errors import BadInput
from ips2_dask.kernels.parallel import usable_cores
from ips2_dask.pipeline.manifest import versions as versions_of_the_run
from ips2_dask.store.layout import STAGES
from ips2_dask.wording import size

Value = bool | int | float | str | None
Record = dict[str, Value]

PEERS = ("evoc", "faiss-cpu", "fast-plscan", "hnswlib", "igraph", "pyamg", "umap-learn", "usearch")
"""Optional packages that some benchmark measures."""


def machine() -> Record:
    """The machine that was measured on: processor, cores, memory, system, and how busy it was; no name, no path."""
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
    packages = versions_of_the_run()
    for name in PEERS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    return packages


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
    obstacle = None
    if path.is_dir():
        obstacle = "a directory"
    elif not path.absolute().parent.is_dir():
        obstacle = "a file in a directory that does not exist"
    elif not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        obstacle = "a file in a directory where this user may not write"
    if obstacle:
        raise BadInput(
            str(path), obstacle, "a file, new or to be replaced, in a directory that exists",
            "the results would be lost", "give another --json",
        )  # fmt: skip


def write(path: Path, facts: Mapping[str, object], results: Sequence[Record]) -> None:
    """Write facts and ``results`` whole: aside first, then renamed.

    Raises
    ------
    ValueError
        Where a record is not flat, or holds a number that JSON can't represent (NaN or an infinity).
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


Results = Mapping[str, Any]
Cells = Sequence[str]


def _markdown(head: Cells, rows: Sequence[Cells]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _scaling(document: Results) -> str:
    """Seconds of each stage, memory and quality over the number of samples; growth exponents in the last row."""
    runs: dict[int, dict[str, Results]] = {}
    for record in document["results"]:
        if record["kind"] == "time":
            runs.setdefault(record["m"], {})[record["stage"]] = record
    growth = {r["stage"]: f"{r['exponent']:.2f}" for r in document["results"] if r["kind"] == "growth"}
    rows = []
    for m, stages in sorted(runs.items()):
        total = stages["total"]
        seconds = [f"{stages[name]['seconds']:.1f}" for name in (*STAGES, "stages")]
        memory = size(total["peak_bytes"]), size(total["projected_bytes"])
        quality = f"{total['recall']:.3f}", f"{total['residual']:.1e}", str(total["products"]), f"{total['nmi']:.2f}"
        rows.append([f"{m:,}", *seconds, *memory, *quality])
    rows.append(["exponent", *(growth[name] for name in (*STAGES, "stages")), *[""] * 6])
    head = ["samples", *STAGES, "all, s", "memory", "planned", "recall", "residual", "products", "NMI"]
    return _markdown(head, rows)


def _peers(document: Results) -> str:
    """Seconds, their ratio to the fastest spectral clustering that finished, and scores."""
    rows = []
    for record in document["results"]:
        if record["seconds"] is None:
            rows.append([f"`{record['call']}`", record["outcome"], "", "", "", ""])
            continue
        scores = f"{record['nmi']:.3f}", f"{record['acc']:.3f}"
        rows.append([
            f"`{record['call']}`", f"{record['seconds']:.1f}", f"{record['ratio']:.2f}", *scores,
            size(record["peak_bytes"]),
        ])  # fmt: skip
    return _markdown(["call", "seconds", "ratio", "NMI", "ACC", "memory"], rows)


def _product(document: Results) -> str:
    """Microseconds a sample of one product, beside SciPy's on the stored matrix."""
    rows = [
        [
            r["operator"], str(r["k"]), str(r["threads"]), f"{r['us_per_sample']:.1f}",
            f"{r['csr_us_per_sample']:.1f}", f"{r['ratio']:.2f}",
        ]
        for r in document["results"]
    ]  # fmt: skip
    return _markdown(["operator", "k", "threads", "us a sample", "SciPy's CSR, one thread", "times as fast"], rows)


def _graph(document: Results) -> str:
    """Seconds of each builder of the graph, once compiled and in a fresh process, its recall and its memory."""
    rows = []
    for record in document["results"]:
        if record["seconds"] is None:
            rows.append([record["builder"], record["outcome"], "", "", ""])
            continue
        seconds = f"{record['seconds']:.1f}", f"{record['seconds'] + record['compile_seconds']:.1f}"
        rows.append([record["builder"], *seconds, f"{record['recall']:.3f}", size(record["peak_bytes"])])
    return _markdown(["builder", "seconds", "in a fresh process", "recall", "memory"], rows)


def _sweep(document: Results) -> str:
    """Seconds of the run, of the sweep and their ratio, with what each stage took for all points together."""
    results = document["results"]
    (took,) = [r for r in results if r["kind"] == "sweep"]
    (ratio,) = [r for r in results if r["kind"] == "ratio"]
    parts = [r for r in results if r["kind"] == "part"]
    rows = [
        ["the run", "1", f"{ratio['run_seconds']:.1f}", "1.00"],
        ["the sweep", str(took["points"]), f"{took['seconds']:.1f}", f"{ratio['ratio']:.2f}"],
        *([r["stage"], str(r["times"] or took["points"]), f"{r['seconds']:.1f}", ""] for r in parts),
    ]
    return _markdown(["what", "times", "seconds", "ratio"], rows)


TABLES: dict[str, Callable[[Results], str]] = {
    "scaling": _scaling, "peers": _peers, "graph-mnist": _graph, "graph-500k": _graph, "product": _product,
    "sweep": _sweep,
}  # fmt: skip
