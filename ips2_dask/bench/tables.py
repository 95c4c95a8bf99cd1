"""Markdown tables of benchmark files, as the README has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ips2_dask.store.layout import STAGES
from ips2_dask.wording import size

Document = Mapping[str, Any]
Row = Sequence[str]


def _table(head: Row, rows: Sequence[Row]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def scaling(document: Document) -> str:
    """Seconds of each stage, memory and quality over the number of samples; growth exponents in the last row."""
    runs: dict[int, dict[str, Any]] = {}
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
    return _table(head, rows)


def peers(document: Document) -> str:
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
    return _table(["call", "seconds", "ratio", "NMI", "ACC", "memory"], rows)


def product(document: Document) -> str:
    """Microseconds a sample of one product, beside SciPy's on the stored matrix."""
    rows = [
        [r["operator"], str(r["k"]), f"{r['us_per_sample']:.1f}", f"{r['csr_us_per_sample']:.1f}", f"{r['ratio']:.2f}"]
        for r in document["results"]
    ]
    return _table(["operator", "k", "us a sample", "SciPy's CSR", "times as fast"], rows)


def graph(document: Document) -> str:
    """Seconds of each builder of the graph, once compiled and in a fresh process, its recall and its memory."""
    rows = []
    for record in document["results"]:
        if record["seconds"] is None:
            rows.append([record["builder"], record["outcome"], "", "", ""])
            continue
        seconds = f"{record['seconds']:.1f}", f"{record['seconds'] + record['compile_seconds']:.1f}"
        rows.append([record["builder"], *seconds, f"{record['recall']:.3f}", size(record["peak_bytes"])])
    return _table(["builder", "seconds", "in a fresh process", "recall", "memory"], rows)


def sweep(document: Document) -> str:
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
    return _table(["what", "times", "seconds", "ratio"], rows)


TABLES: dict[str, Callable[[Document], str]] = {
    "scaling": scaling, "peers": peers, "graph-mnist": graph, "graph-500k": graph, "product": product, "sweep": sweep,
}  # fmt: skip
