"""Fields of a checked record, such as `Params`: how a value is read, and what is said where it can't be used."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from ips2_dask.errors import BadInput


def whole(name: str, value: Any, low: int, high: int | None, why: str) -> int:
    """The whole number, from ``low`` to ``high``; of ``high`` samples there may be fewer, which the remedy says."""
    is_whole = hasattr(value, "__index__") and not isinstance(value, bool)
    if is_whole and low <= int(value) and (high is None or int(value) <= high):
        return int(value)
    allowed, remedy = f"a whole number of at least {low}", f"give {name}={low} or more"
    if high is not None:
        allowed += f" and at most {high}"
        if is_whole and int(value) > high:
            remedy = f"give {name}={high} or less, but no more than there are samples"
    raise BadInput(name, repr(value), allowed, why, remedy)


def real(name: str, value: Any, low: float, high: float, why: str, closed: bool) -> float:
    """The number between two others, which are allowed themselves if ``closed``."""
    inside = False
    try:
        number = float(value)
        inside = (low <= number <= high) if closed else (low < number < high)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool | str) or not inside or math.isinf(number):
        between = f"a number from {low:g} to {high:g}" if closed else f"a number above {low:g}"
        if not closed and math.isfinite(high):
            between += f" and below {high:g}"
        raise BadInput(name, repr(value), between, why, f"give {name} inside that range")
    return number


def word(name: str, value: object, *words: str) -> str:
    """The word, one of some."""
    if value not in words:
        allowed = f"one of {', '.join(words)}"
        raise BadInput(name, repr(value), allowed, "there would be no rule for it", "choose one of them")
    return str(value)


def mean_or_number(name: str, value: Any) -> str | float:
    """The bandwidth of a kernel: ``mean``, ``median`` or a number above 0."""
    why = "the kernel exp(-d^2 / 2 t^2) would not be defined"
    if not isinstance(value, str):
        return real(name, value, 0.0, math.inf, why, False)
    if value not in ("mean", "median"):
        raise BadInput("bandwidth", repr(value), "mean, median or a number above 0", why, "give bandwidth='mean'")
    return value


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_bytes(text: str | int | None, name: str = "memory_limit") -> int | None:
    """Number of bytes in a size such as ``4GiB``, ``512 MB`` or ``2000000000``; None stays None.

    Raises
    ------
    BadInput
        If the text is no size above zero.
    """
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?\s*", str(text).lower())
    size = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 1 <= size < 2**63:
        raise BadInput(
            name, repr(text), "a size such as 4GiB or 512MB", "no limit could be kept", "give a number with a unit"
        )
    return int(size)


def made(default: Any, read: Callable[[str, Any], Any], words: Sequence[str] = (), metavar: str | None = None) -> Any:
    """A field whose value is what ``read(name, value)`` gives, or None where that is the default.

    ``metavar`` is what the help of its option calls the value.
    """
    return dataclasses.field(default=default, metadata={"read": read, "words": tuple(words), "metavar": metavar})


def text(metavar: str) -> Any:
    """A field for any text, by default None; the help of its option calls it ``metavar``."""
    return made(None, lambda _, value: value, metavar=metavar)


def number(default: int | None, low: int, high: int | None, why: str) -> Any:
    """A field for whole numbers from ``low`` to ``high``; ``why`` says what would go wrong with others."""
    return made(default, lambda name, value: whole(name, value, low, high, why))


def between(default: float | None, low: float, high: float, why: str, *, closed: bool = False) -> Any:
    """A field for numbers between two others, which are allowed themselves if ``closed``."""
    return made(default, lambda name, value: real(name, value, low, high, why, closed))


def one_of(*words: str) -> Any:
    """A field for some words, of which the first one is the default."""
    return made(words[0], lambda name, value: word(name, value, *words), words)


def checked(record: Any) -> dict[str, Any]:
    """The values of a record's fields as they are read."""
    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    for field in dataclasses.fields(record):
        if "read" in field.metadata and not (values[field.name] is None and field.default is None):
            values[field.name] = field.metadata["read"](field.name, values[field.name])
    return values
