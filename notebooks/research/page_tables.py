"""The tables of README and docs from their records: ``python notebooks/research/page_tables.py`` writes them anew.

A page marks the place of a table by ``<!-- NAME -->`` and ``<!-- /NAME -->``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import battery
import certainty
import choosing
import copies
import fusion
import metrics
import number_of_clusters
import readings
import roundings
import steady
from known_sets import table

from ips2_dask.store.layout import STAGES
from ips2_dask.wording import size

ROOT = Path(__file__).parents[2]
NONE = "–"
"""What stands in a table for what a record does not say."""

Document = Mapping[str, Any]
Record = Mapping[str, Any]
Column = tuple[str, Callable[[Record], str | None]]
"""The head of a column, and the cell of a record: None where the record does not say."""


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table(head, rows, " --- ")


def _scaling(document: Document) -> str:
    """Seconds of each stage, memory and quality over the number of samples; growth exponents in the last row."""
    runs: dict[int, dict[str, Record]] = {}
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


def _columns(records: Sequence[Record], columns: Sequence[Column]) -> str:
    """A table of the columns that at least one record has; a dash in the place of others."""
    cells = {head: [cell(record) for record in records] for head, cell in columns}
    shown = [head for head, of in cells.items() if any(cell is not None for cell in of)]
    rows = zip(*(cells[head] for head in shown), strict=True)
    return _markdown(shown, [[NONE if cell is None else cell for cell in row] for row in rows])


def _number(name: str, digits: int) -> Callable[[Record], str | None]:
    return lambda record: None if record.get(name) is None else f"{record[name]:.{digits}f}"


def _whole(name: str) -> Callable[[Record], str | None]:
    return lambda record: None if record.get(name) is None else f"{record[name]}"


def _bytes(record: Record) -> str | None:
    return None if record["peak_bytes"] is None else size(record["peak_bytes"])


def _seconds(record: Record) -> str | None:
    """The median, and of several the least and the most; or how a record without seconds ended."""
    if record["seconds"] is None:
        return str(record["outcome"])
    text = f"{record['seconds']:.1f}"
    if record.get("repeats", 1) < 2 or record.get("seconds_least") is None:
        return text
    return f"{text} ({record['seconds_least']:.1f} to {record['seconds_most']:.1f})"


def _peers(document: Document) -> str:
    """Threads, graph, seconds, their ratio to the fastest spectral clustering that finished, and scores."""
    columns: list[Column] = [
        ("call", lambda r: f"`{r['call']}`"),
        ("threads", _whole("threads")),
        ("graph, k", lambda r: None if r.get("graph") is None else f"{r['graph']}, {r['k']}"),
        ("seconds", _seconds),
        ("ratio", _number("ratio", 2)),
        *((name.upper(), _number(name, 3)) for name in ("nmi", "acc", "ari")),
        ("memory", _bytes),
    ]
    return _columns(document["results"], columns)


def _product(document: Document) -> str:
    """Microseconds a sample of one product, beside SciPy's on the stored matrix."""
    columns: list[Column] = [
        *((name, _whole(name)) for name in ("operator", "k", "threads")),
        ("us a sample", _number("us_per_sample", 1)),
        ("SciPy's CSR, one thread", _number("csr_us_per_sample", 1)),
        ("times as fast", _number("ratio", 2)),
    ]
    return _columns(document["results"], columns)


def _recall(record: Record) -> str | None:
    """The recall, with a mark where it is below the one that was to be reached."""
    if record.get("recall") is None:
        return None
    return f"{record['recall']:.3f}" + ("" if record["reached"] else " (too low)")


def _graph(document: Document) -> str:
    """Seconds of each builder's cheapest setting, once compiled and in a fresh process, its recall and its memory."""
    columns: list[Column] = [
        ("builder", _whole("builder")),
        ("index", _whole("build")),
        ("threads", _whole("threads")),
        ("seconds", _seconds),
        ("in a fresh process", lambda r: r["seconds"] and f"{r['seconds'] + r['compile_seconds']:.1f}"),
        ("recall", _recall),
        ("memory", _bytes),
    ]
    return _columns([r for r in document["results"] if r.get("kind") != "tried"], columns)


def _sweep(document: Document) -> str:
    """Seconds of the run, of the sweep and their ratio, with what each stage took for all points together."""
    results = document["results"]
    (took,), (ratio,) = ([r for r in results if r["kind"] == kind] for kind in ("sweep", "ratio"))
    parts = [r for r in results if r["kind"] == "part"]
    rows = [
        ["the run", "1", f"{ratio['run_seconds']:.1f}", "1.00"],
        ["the sweep", str(took["points"]), f"{took['seconds']:.1f}", f"{ratio['ratio']:.2f}"],
        *([r["stage"], str(r["times"] or took["points"]), f"{r['seconds']:.1f}", ""] for r in parts),
    ]
    return _markdown(["what", "times", "seconds", "ratio"], rows)


TABLES: dict[str, Callable[[Document], str]] = {
    "scaling": _scaling,
    "peers": _peers,
    "peers-compiled": _peers,
    "graph-mnist": _graph,
    "graph-500k": _graph,
    "product": _product,
    "sweep": _sweep,
    "choosing": lambda document: choosing.means(document["results"]),
}
"""Of benchmarks, wherever a page has them."""

DOCS: dict[tuple[str, str], Callable[[Document], str]] = {
    ("method", "fusion"): lambda document: fusion.markdown(document["results"]),
    ("labels", "roundings"): lambda document: roundings.markdown(document["results"]),
    ("labels", "copies"): lambda document: copies.markdown(document["results"]),
    ("tables", "metrics"): lambda document: metrics.markdown(document["results"]),
    ("labels", "battery"): lambda document: battery.markdown(document["results"]),
    ("labels", "steady"): lambda document: steady.markdown(document["results"]),
    ("labels", "certainty"): lambda document: certainty.markdown(document["results"]),
    ("choosing", "numbers"): lambda document: number_of_clusters.markdown(document["results"]),
    ("choosing", "noise"): lambda document: number_of_clusters.markdown(document["results"]),
    ("choosing", "choosing"): lambda document: choosing.each_set(document["results"]),
    ("paper", "paper"): readings.overview,
}
"""Of the rules for labels and for the number of clusters, and of the paper, by page and name."""


def document_of(name: str) -> Document:
    """A record, or the records of a folder by their names."""
    path = ROOT / "notebooks" / "results" / name
    if path.is_dir():
        return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in path.glob("*.json")}
    found: Document = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    return found


def with_tables(page: str, text: str) -> str:
    """The text of a page with every table as its record has it."""
    for name in re.findall(r"<!-- /([\w-]+) -->", text):
        make = DOCS.get((page, name)) or TABLES.get(name)
        if make is not None:
            place = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
            made = make(document_of(name))
            text = re.sub(place, lambda found: found[1] + made + found[2], text, flags=re.DOTALL)  # noqa: B023
    return text


if __name__ == "__main__":
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        path.write_text(with_tables(path.stem, path.read_text(encoding="utf-8")), encoding="utf-8")
