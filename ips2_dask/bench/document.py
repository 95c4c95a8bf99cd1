"""The file of a benchmark (origin, machine, command, flat records), and its Markdown tables for the README."""

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
from ips2_dask.store.layout import STAGES
from ips2_dask.wording import size

Value = bool | int | float | str | None
Record = dict[str, Value]

PEERS = ("evoc", "faiss-cpu", "fast-plscan", "hnswlib", "igraph", "pyamg", "umap-learn", "usearch")
"""Optional packages that some benchmark measures."""


def machine() -> Record:
    """The machine that was measured on: processor, cores, memory, system; no name, no path."""
    return {"cpu": _processor(), "cores": usable_cores(), "memory_bytes": _memory(), "os": _system()}


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
    from ips2_dask.pipeline.manifest import versions as versions_of_the_run  # noqa: PLC0415  it loads every stage

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
            str(path),
            obstacle,
            "a file, new or to be replaced, in a directory that exists",
            "the results would be lost",
            "give another --json",
        )


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


def _document(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict) and isinstance(content.get("results"), list):
            return content
        problem = "no records"
    except (OSError, ValueError) as error:
        problem = f"no record ({type(error).__name__})"
    raise BadInput(
        str(path),
        problem,
        "a file of `ips2 bench ... --json FILE`",
        "there would be nothing to read",
        "give such a file",
    )


def read(path: Path) -> list[Record]:
    """The records of a file.

    Raises
    ------
    BadInput
        Where there are none.
    """
    results: list[Record] = _document(path)["results"]
    return results


def head(path: Path) -> dict[str, Any]:
    """The origin of a file's records; what files did not say when it was written is missing.

    Raises
    ------
    BadInput
        Where it is no file of records.
    """
    return {name: value for name, value in _document(path).items() if name != "results"}


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


NONE = "–"
"""What stands in a table for what a record does not say."""

Column = tuple[str, Callable[[Results], str | None]]
"""The head of a column, and the cell of a record: None where the record does not say."""


def _columns(records: Sequence[Results], columns: Sequence[Column]) -> str:
    """A table of the columns that at least one record has; a dash in the place of others."""
    cells = {head: [cell(record) for record in records] for head, cell in columns}
    shown = [head for head, _ in columns if any(cell is not None for cell in cells[head])]
    rows = [
        [NONE if cell is None else cell for cell in row] for row in zip(*(cells[head] for head in shown), strict=True)
    ]
    return _markdown(shown, rows)


def _number(name: str, digits: int) -> Callable[[Results], str | None]:
    """The cell of a number, where there is one."""
    return lambda record: None if record.get(name) is None else f"{record[name]:.{digits}f}"


def _whole(name: str) -> Callable[[Results], str | None]:
    return lambda record: None if record.get(name) is None else f"{record[name]}"


def _bytes(record: Results) -> str | None:
    return None if record["peak_bytes"] is None else size(record["peak_bytes"])


def _seconds(record: Results) -> str | None:
    """The median, and of several the least and the most; or how a record without seconds ended."""
    if record["seconds"] is None:
        return str(record["outcome"])
    text = f"{record['seconds']:.1f}"
    if record.get("repeats", 1) < 2 or record.get("seconds_least") is None:
        return text
    return f"{text} ({record['seconds_least']:.1f} to {record['seconds_most']:.1f})"


def _graph_and_k(record: Results) -> str | None:
    return None if record.get("graph") is None else f"{record['graph']}, {record['k']}"


def _peers(document: Results) -> str:
    """Threads, graph, seconds, their ratio to the fastest spectral clustering that finished, and scores."""
    return _columns(
        document["results"],
        (
            ("call", lambda r: f"`{r['call']}`"),
            ("threads", _whole("threads")),
            ("graph, k", _graph_and_k),
            ("seconds", _seconds),
            ("ratio", _number("ratio", 2)),
            ("NMI", _number("nmi", 3)),
            ("ACC", _number("acc", 3)),
            ("ARI", _number("ari", 3)),
            ("memory", _bytes),
        ),
    )


def _product(document: Results) -> str:
    """Microseconds a sample of one product, beside SciPy's on the stored matrix."""
    rows = [
        [
            r["operator"],
            str(r["k"]),
            str(r["threads"]),
            f"{r['us_per_sample']:.1f}",
            f"{r['csr_us_per_sample']:.1f}",
            f"{r['ratio']:.2f}",
        ]
        for r in document["results"]
    ]
    return _markdown(["operator", "k", "threads", "us a sample", "SciPy's CSR, one thread", "times as fast"], rows)


def _recall(record: Results) -> str | None:
    """The recall, with a mark where it is below the one that was to be reached."""
    if record.get("recall") is None:
        return None
    return f"{record['recall']:.3f}" + ("" if record["reached"] else " (too low)")


def _fresh(record: Results) -> str | None:
    return None if record["seconds"] is None else f"{record['seconds'] + record['compile_seconds']:.1f}"


def _graph(document: Results) -> str:
    """Seconds of each builder's cheapest setting, once compiled and in a fresh process, its recall and its memory."""
    return _columns(
        [r for r in document["results"] if r.get("kind") != "tried"],
        (
            ("builder", _whole("builder")),
            ("index", _whole("build")),
            ("threads", _whole("threads")),
            ("seconds", _seconds),
            ("in a fresh process", _fresh),
            ("recall", _recall),
            ("memory", _bytes),
        ),
    )


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
    "scaling": _scaling,
    "peers": _peers,
    "peers-compiled": _peers,
    "graph-mnist": _graph,
    "graph-500k": _graph,
    "product": _product,
    "sweep": _sweep,
}
