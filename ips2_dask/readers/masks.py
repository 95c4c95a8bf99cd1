"""Masked arrays of NumPy: what is under a mask is no data, and scikit-learn would drop the mask without a word."""

from __future__ import annotations

from typing import Any

import numpy as np

from ips2_dask.errors import BadInput


def refuse_masked(given: Any, name: str) -> None:
    """Refuse a masked array, or a list of masked rows, in which a value is masked; one without such values passes.

    Parameters
    ----------
    given : array or list of rows
    name : str
        What the message calls it.

    Raises
    ------
    BadInput
        Says how many values are masked and where the first one is.
    """
    if isinstance(given, list | tuple) and any(isinstance(row, np.ma.MaskedArray) for row in given):
        for number, row in enumerate(given):
            if np.ma.is_masked(row):
                at = (number, *(int(index) for index in np.argwhere(np.ma.getmaskarray(row))[0]))
                raise _refused(name, sum(int(np.ma.getmaskarray(other).sum()) for other in given), at)
    elif np.ma.is_masked(given):
        masked = np.ma.getmaskarray(given)
        raise _refused(name, int(masked.sum()), tuple(int(index) for index in np.argwhere(masked)[0]))


def _refused(name: str, count: int, where: tuple[int, ...]) -> BadInput:
    return BadInput(
        name,
        f"{count} masked values, the first at {where}",
        "an array without masked values",
        "what is under the mask would be clustered as if it were data",
        "fill them in with array.filled(value), or drop these rows",
    )
