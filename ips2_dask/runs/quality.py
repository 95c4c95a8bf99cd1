"""Quality checks of a run: what it promised, and whether the results keep it."""

from __future__ import annotations

from typing import Any, TypedDict, cast

from ips2_dask.params import LEAST_RECALL, Params


class Stop(TypedDict):
    """The measure that a solve ended by, its bound, and its value."""

    measure: str
    wanted: float
    found: float


class Check(TypedDict):
    """One promise of a run: ``found`` shall be at most, or at least (``rule``), the value ``wanted``."""

    promise: str
    rule: str
    wanted: float
    found: float
    kept: bool


def quality_checks(params: Params, facts: dict[str, dict[str, Any]]) -> list[Check]:
    """The checks of a run, each with its promise, the value wanted, the value found, and whether it was kept.

    Parameters
    ----------
    facts : dict
        Facts of each stage.
    """
    c = params.n_sought
    label, eigen = facts["label"], facts["eigen"]
    checks = [
        _at_least("recall of the sample graph", LEAST_RECALL, facts["neighbors"]["recall"]),
        _stop("eigenpairs", eigen.get("stop") or _residual(cast(float, params.tol), eigen["residual_max"])),
        _at_least("eigenpairs", c, len(eigen["eigenvalues"])),
        _at_most("large components of the pairs", c, eigen.get("components", facts["assemble"]["components"])),
        _at_most("pairs whose entries are all zero in float32", 0, facts["assemble"]["empty"]),
    ]
    if label["u_components"] is not None:
        checks.append(
            _at_most("large components of the fused similarity", c, label.get("large", label["u_components"]))
        )
        checks.append(
            _stop(
                "embedding",
                label.get("embedding_stop") or _residual(label["embedding_tol"], label["embedding_residual"]),
            )
        )
    return [*checks, _at_least("clusters", params.n_clusters, label["clusters"])]


def _residual(wanted: float, found: float) -> Stop:
    """The stop of a solve, for runs of earlier versions, which stored the residual alone."""
    return {"measure": "largest residual", "wanted": wanted, "found": found}


def _stop(what: str, stop: Stop) -> Check:
    """The check that a solve was exact enough, by the measure that it ended by."""
    return _at_most(f"{what}: {stop['measure']}", stop["wanted"], stop["found"])


def _at_most(promise: str, wanted: float, found: float) -> Check:
    return {"promise": promise, "rule": "at most", "wanted": wanted, "found": found, "kept": bool(found <= wanted)}


def _at_least(promise: str, wanted: float, found: float) -> Check:
    return {"promise": promise, "rule": "at least", "wanted": wanted, "found": found, "kept": bool(found >= wanted)}
