"""The faults that several formats share, each written once as a five-part ``BadInput``."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from ips2_dask.errors import BadInput

LISTED = 8  # how many names a message lists before it says how many more there are


def listing(names: Sequence[str], nothing: str = "nothing") -> str:
    """Return ``names`` joined by commas, the first few of them if there are many."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more if names else nothing


def nearest(wanted: str, names: Sequence[str]) -> str:
    """Return the names most like ``wanted``, or all of them where none is near."""
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
    return f"the nearest names are {listing(near)}" if near else f"there is {listing(names)}"


def unreadable(name: str, error: BaseException | str) -> BadInput:
    """Return the fault of a file whose bytes its own library can't make sense of."""
    message = " ".join(str(error).split())[:200] or "no reason"
    kind = "" if isinstance(error, str) else f"{type(error).__name__}: "
    found = f"bytes that can't be read ({kind}{message})"
    allowed, remedy = "a whole, undamaged file of the format its name says", "write or download the file again"
    return BadInput(name, found, allowed, "part of the samples would be missing or wrong", remedy)


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Raise a library's exceptions about the bytes of ``name`` as a ``BadInput`` that quotes them.

    It catches every `Exception`, as libraries raise anything from KeyError to AssertionError for damaged bytes. So the
    body should hold the library's calls alone.
    """
    try:
        yield
    except BadInput:
        raise
    except MemoryError as error:
        found, otherwise = f"more than this process may hold ({error})", "the process would be killed"
        remedy = "convert it to .zarr or .npy, which are read in parts, or raise the memory limit"
        throw(BadInput(name, found, "what fits in memory, as this format can't be read in parts", otherwise, remedy))
    except Exception as error:
        throw(unreadable(name, error))


def throw(fault: BadInput) -> NoReturn:
    """Raise a fault without the exception it comes from.

    A worker's exceptions travel with their causes, and not every library's can be unpickled: the user would see that
    error in place of this one.
    """
    try:
        raise fault
    finally:
        fault.__context__ = None


def changed(name: str) -> BadInput:
    """Return the fault of a file that changed after it was opened."""
    found = "another size or modification time than when it was opened"
    allowed, otherwise = "a file that stays as it is during a run", "rows of two versions would be mixed"
    return BadInput(name, found, allowed, otherwise, "start again once nothing writes to it")


def cut_off(name: str, size: int, needed: int, header: str, place: str = "") -> BadInput:
    """Return the fault of a file, or of a place in one, that is shorter than its header says."""
    found, allowed = f"{size} bytes{place}", f"at least {needed}, by its header ({header})"
    otherwise = "the last rows would be missing"
    return BadInput(name, found, allowed, otherwise, "the file was cut off: write or download it again")


def absent(name: str, kind: str, wanted: str, there: Sequence[str]) -> BadInput:
    """Return the fault of a variable, dataset or member that a file does not hold."""
    allowed = f"a {kind} that is in it ({nearest(wanted, there)})"
    remedy = f"name it after '::', as in file::{there[0] if there else 'name'}"
    return BadInput(name, f"no {kind} {wanted!r}", allowed, "there would be nothing to read", remedy)


def only_matrix(
    name: str, kind: str, found: Sequence[tuple[str, str, bool]], other: object, wanted: str | None = None
) -> str:
    """Return the part of a file that is wanted, or the only one with a matrix besides that of another name, of labels.

    ``found`` are name and description of each part, and whether it may be the matrix; raises ``BadInput``.
    """
    if wanted is not None and wanted not in (parts := [title for title, _, _ in found]):
        raise absent(name, kind, wanted, parts)
    if wanted is not None:
        return wanted
    suitable = [title for title, _, suits in found if suits and title != str(other).strip("/")]
    if len(suitable) == 1:
        return suitable[0]
    there = [f"{title} {what}" for title, what, _ in found]
    count = f"{len(suitable)} of them ({listing(suitable)})" if suitable else f"none (it holds {listing(there)})"
    seen = f"{count} where one {kind} of two dimensions, with numbers and with several rows and columns, was looked for"
    remedy = f"name it after '::', as in file::{(suitable or there or ['name'])[0].split()[0]}"
    raise BadInput(name, seen, "exactly one, or one that is named", "the wrong data might be clustered", remedy)


def outside(name: str, what: str) -> BadInput:
    """Return the fault of a file that refers to bytes outside of itself."""
    otherwise = "a file from elsewhere could make this process read any other file"
    return BadInput(name, what, "data that are inside the file", otherwise, "copy the data into the file")


def pickled(name: str, what: str) -> BadInput:
    """Return the fault of data that could be read only by running code that they hold."""
    remedy = "save it as an array of numbers, for instance with np.save(path, array.astype(np.float32))"
    return BadInput(name, what, "plain numbers", "loading it could run any code, so it is never loaded", remedy)


def textual(name: str, found: str, first: str = "") -> BadInput:
    """Return the fault of text where numbers are needed; ``first`` is a remedy before the others."""
    allowed = "numbers in every column but the label column"
    remedy = (
        f"{first}{'; or ' * bool(first)}encode these columns (one_hot, --one-hot), drop them (drop_columns, "
        "--drop-columns), or name the label column (labels_column, --labels-column)"
    )
    return BadInput(name, found, allowed, "distances between samples would be undefined", remedy)


def text_in_array(name: str, found: str) -> BadInput:
    """Return the fault of text in an array, whose columns can't be encoded one by one."""
    remedy = (
        "give a data frame, a text file or a Parquet file of it, whose columns of text can be encoded (one_hot, "
        "--one-hot) or dropped (drop_columns, --drop-columns)"
    )
    return BadInput(name, found, "an array of numbers", "distances between samples would be undefined", remedy)


def missing_value(name: str, where: str, found: str) -> BadInput:
    """Return the fault of a value that is missing, not a number or not finite."""
    seen = f"{found} at {where}"
    remedy = "drop the row or fill the value in (a value that is missing: missing, --missing)"
    return BadInput(name, seen, "finite numbers", "every distance to that row would be undefined", remedy)
