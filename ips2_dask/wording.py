"""Words for people: options of the command line, bytes, seconds and counts, and the results of a run's stages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

OPTION_NAMES = {
    "n_clusters": "clusters",
    "n_neighbors": "neighbors",
    "assign_labels": "labels",
    "random_state": "seed",
    "n_workers": "workers",
    "n_eigenpairs": "eigenpairs",
    "n_components": "components",
}
"""The names of options that are not the parameter's."""


def option(name: str) -> str:
    """The command line's option of a parameter."""
    return "--" + OPTION_NAMES.get(name, name).replace("_", "-")


LETTERS = {"n_clusters": "c", "n_neighbors": "k"}
"""Parameters that have a letter."""


def heading(name: str) -> str:
    """The head of a column: a parameter's letter, or the name in words."""
    return LETTERS.get(name, name.replace("_", " "))


def plain(value: object) -> str:
    """The value of a parameter."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def setting(values: Mapping[str, object]) -> str:
    """Parameters and their values: c = 5, k = 10, metric = cosine."""
    return ", ".join(f"{heading(name)} = {plain(value)}" for name, value in values.items())


def unsure(swept: Collection[str]) -> str | None:
    """What is to be said of a ranking that compares metrics or scales."""
    if {"metric", "scale"}.isdisjoint(swept):
        return None
    return "without labels the better metric or scale can't be told reliably; docs/tables.md says what to try first"


def size(n: float) -> str:
    """A number of bytes with its unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return ""


def duration(seconds: float) -> str:
    """Seconds with their unit: 0.42 s, 12 s, 3 min 05 s, 2 h 07 min."""
    if seconds < 59.5:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours} h {minutes_left:02d} min" if hours else f"{minutes} min {rest:02d} s"


def count(n: int, one: str, many: str | None = None) -> str:
    """A number with its noun, as in 1 part and 2 parts."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


SCORES = {"acc": "ACC", "nmi": "NMI", "ari": "ARI", "fscore": "F-score", "purity": "purity"}
"""The names of the scores against known labels."""

WAYS = {"kmeans": "k-means", "density": "density", "leiden": "Leiden"}
"""The names of the ways from points to labels."""


def without_columns(rounding: dict[str, Any]) -> str:
    """What a rounding is on that is on no columns of the embedding: the rows of U, or U itself."""
    return "U" if rounding["rounding"] == "leiden" else "rows of U"


def stage_results(summary: dict[str, Any]) -> dict[str, str]:
    """The result of each stage in a few words, from `Run.report`."""
    nnz = "" if summary["nnz"] is None else f", {summary['nnz']:,} tensor entries"
    gap = "" if summary["gap"] is None else f", gap {summary['gap']:.2g}"
    islands = summary["islands"]
    small = {
        kind: f", {count(islands[kind], 'of them too small', 'of them too small')}" if islands[kind] else ""
        for kind in ("pairs", "fused")
    }
    parts = summary["fused_components"]
    clustered = summary["m"] - summary["dropped"]
    equal = "" if summary["distinct"] == clustered else f", {summary['distinct']:,} rows are distinct"
    if summary["dropped"]:
        equal += f", {count(summary['dropped'], 'row')} left out for missing values"
    elif summary["missing"] and summary["missing"]["values"]:
        equal += f", {count(summary['missing']['values'], 'missing value')} replaced by medians"
    chosen = next((one for one in summary["roundings"] if one["chosen"]), None)
    then = ", then compared all pairs" if summary["searched_exactly"] else ""
    by = ""
    if chosen is not None:
        on = count(chosen["columns"], "column") if chosen["columns"] else without_columns(chosen)
        by = f" by {WAYS[chosen['rounding']]} on {on}"
    return {stage["name"]: "" for stage in summary["stages"]} | {
        "ingest": count(summary["partitions"], "partition") + equal,
        "neighbors": f"{summary['builder']} graph{then}, recall {summary['recall']:.4f}",
        "tensor": f"{summary['P']:,} active pairs{nnz}",
        "assemble": count(summary["components"], "connected component") + small["pairs"],
        "eigen": f"largest residual {summary['residual_max']:.2g}, {count(summary['products'], 'product')}{gap}",
        "fuse": "" if parts is None else f"U has {count(parts, 'component')}{small['fused']}",
        "label": count(summary["c"], "cluster") + by,
    }
