"""The flat records of results.json: one for every cell of a table and every point of a curve."""

from __future__ import annotations

from typing import Any

from ips2_dask.paper.experiments.settings import Setting
from ips2_dask.paper.experiments.trials import Summary

FIELDS = ("experiment", "dataset", "method", "measure", "setting", "params", "runs", "mean", "std", "paper")

Record = dict[str, Any]

SETTINGS = ("printed", "default", "tuned", "unsupervised")


def record(
    experiment: str,
    dataset: str,
    method: str,
    measure: str,
    *,
    mean: float,
    std: float | None = None,
    runs: int = 1,
    setting: str = "default",
    params: Setting | None = None,
    paper: float | None = None,
) -> Record:
    """One record, with all ``FIELDS``; ``paper`` is None where the paper prints nothing."""
    values = (experiment, dataset, method, measure, setting, params or {}, runs, mean, std, paper)
    return dict(zip(FIELDS, values, strict=True))


def of_summary(
    experiment: str, dataset: str, method: str, setting: str, summary: Summary, paper: dict[str, float | None]
) -> list[Record]:
    """A record for each measure of a summary."""
    return [
        record(
            experiment,
            dataset,
            method,
            measure,
            mean=mean,
            std=summary["std"][measure],
            runs=summary["runs"],
            setting=setting,
            params=summary["params"],
            paper=paper.get(measure),
        )
        for measure, mean in summary["mean"].items()
    ]


def select(records: list[Record], **wanted: object) -> list[Record]:
    """The records whose fields have these values; a tuple stands for any of its members."""
    return [r for r in records if all(r[k] in v if isinstance(v, tuple) else r[k] == v for k, v in wanted.items())]


def mean_of(records: list[Record], **wanted: object) -> float | None:
    """The mean of the one record with these values, or None."""
    matches = select(records, **wanted)
    return float(matches[0]["mean"]) if matches else None
