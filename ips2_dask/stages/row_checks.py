"""Checks of rows that a metric can't compare, of the input and of new samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ips2_dask.errors import BadInput
from ips2_dask.kernels.ingest import directionless
from ips2_dask.kernels.metrics import METRICS


def check_rows(rows: NDArray[np.float64], numbers: NDArray[np.int64] | list[int], name: str, metric: str) -> None:
    """Refuse rows without a direction, and negative values in rows of shares.

    Parameters
    ----------
    rows : (rows, f) float64
        With their columns scaled.
    numbers : (rows,) int
        What the user calls each of them.
    name : str
        What the user calls the input.
    metric : str

    Raises
    ------
    BadInput
    """
    if not METRICS[metric].needs_direction:
        return
    if METRICS[metric].rows == "root shares":
        bad = np.flatnonzero((rows < 0).any(axis=1))
        if len(bad):
            raise BadInput(
                name,
                f"the value {rows[bad[0]].min():.6g} in row {numbers[bad[0]]}",
                "values of at least 0",
                "a negative share of a row's sum has no square root",
                "use metric='euclidean'",
            )
    bad = np.flatnonzero(directionless(rows, metric))
    if len(bad):
        centred = METRICS[metric].rows == "centred unit"
        values = "the same value in every column" if centred else "nothing but zeros"
        raise BadInput(
            name,
            f"{values} in row {numbers[bad[0]]}",
            "rows that vary" if centred else "rows that are not zero",
            f"its {metric} with any other would be 0 / 0",
            "drop such rows, or use metric='euclidean'",
        )
