"""`ips2 bench end-to-end`: seconds, peak memory and the plan's projection of each stage of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ips2_dask.evaluation.bench.document import Record
from ips2_dask.evaluation.bench.runs import Input, records, run_apart
from ips2_dask.params import Params, Resources

COLUMNS = (
    "stage", "outcome", "seconds", "peak_bytes", "projected_bytes", "builder", "recall", "residual", "nmi", "acc",
)  # fmt: skip


def measure(
    given: Input,
    params: Params,
    resources: Resources,
    folder: Path,
    serial: bool = False,
    repeats: int = 1,
    limit: float | None = None,
) -> Iterator[Record]:
    """The records of each of ``repeats`` runs, as of `runs.records`.

    Parameters
    ----------
    given : Input
    params : Params
    resources : Resources
    folder : Path
        For temporary files, the run directory among them.
    serial : bool
        Whether there is no cluster.
    repeats : int
    limit : float, optional
        Seconds that a run may take in all.
    """
    for repeat in range(repeats):
        outcome = run_apart(given, params, resources, serial, folder, limit)
        for record in records(given, params, resources, serial, outcome):
            yield {**record, "repeat": repeat}
