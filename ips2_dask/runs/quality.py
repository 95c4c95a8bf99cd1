"""What a run has promised, beside what it found."""

from __future__ import annotations

from typing import Any

from ips2_dask.params import LEAST_RECALL, Params


def promises(params: Params, facts: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Each promise, what was wanted, what was found, and whether it was kept.

    Parameters
    ----------
    facts : dict
        What each stage has found.
    """
    c = params.n_clusters
    label, eigen = facts["label"], facts["eigen"]
    out = [
        _at_least("recall of the sample graph", LEAST_RECALL, facts["neighbors"]["recall"]),
        _stop("eigenpairs", eigen.get("stop") or _residual(params.tol, eigen["residual_max"])),
        _at_least("eigenpairs", c, len(eigen["eigenvalues"])),
        _at_most("large components of the pairs", c, eigen.get("components", facts["assemble"]["components"])),
        _at_most("pairs whose entries are all zero in float32", 0, facts["assemble"]["empty"]),
    ]
    if label["u_components"] is not None:
        out.append(_at_most("large components of the fused similarity", c, label.get("large", label["u_components"])))
        out.append(
            _stop(
                "embedding",
                label.get("embedding_stop") or _residual(label["embedding_tol"], label["embedding_residual"]),
            )
        )
    return [*out, _at_least("clusters", c, label["clusters"])]


def _residual(wanted: float | None, found: float) -> dict[str, Any]:
    """What runs of earlier versions said of a solve."""
    return {"measure": "largest residual", "wanted": wanted, "found": found}


def _stop(what: str, stop: dict[str, Any]) -> dict[str, Any]:
    """That a solve was as exact as it was to be: by the measure that it ended by."""
    return _at_most(f"{what}: {stop['measure']}", stop["wanted"], stop["found"])


def _at_most(promise: str, wanted: float, found: float) -> dict[str, Any]:
    return {"promise": promise, "rule": "at most", "wanted": wanted, "found": found, "kept": bool(found <= wanted)}


def _at_least(promise: str, wanted: float, found: float) -> dict[str, Any]:
    return {"promise": promise, "rule": "at least", "wanted": wanted, "found": found, "kept": bool(found >= wanted)}
