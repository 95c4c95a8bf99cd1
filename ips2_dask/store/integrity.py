"""What can be wrong with a stored run: one fault, and what was found in a folder."""

from __future__ import annotations

import dataclasses
from typing import Any

from ips2_dask.errors import Damaged
from ips2_dask.store.receipts import Receipt


@dataclasses.dataclass(frozen=True)
class Fault:
    """Something in a run directory that is not what was written.

    Attributes
    ----------
    folder, part : str
        Where; a fault of a document has no part.
    place : str
        The path below the run directory.
    found : str
        What was found there.
    array, chunk : str
        Which; empty where no array is meant.
    """

    folder: str
    part: str
    place: str
    found: str
    array: str = ""
    chunk: str = ""

    @property
    def text(self) -> str:
        """One line without the remedy."""
        return f"{self.place}: {f'chunk {self.chunk} ' if self.chunk else ''}{self.found}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, with the remedy."""
        return {**dataclasses.asdict(self), "remedy": remedy(self)}

    def error(self, root: str, more: int = 0) -> Damaged:
        """The error that names this fault and how many others there are with it."""
        others = f" (and {more} more)" if more else ""
        text = f"{root}/{self.text}{others}. Remedy: {remedy(self)}."
        return Damaged(text, folder=self.folder, part=self.part)


def remedy(fault: Fault) -> str:
    """What to do about a fault."""
    if not fault.part:
        return "run the same command again, which writes it anew"
    return f"run the same command again with --verify, which computes part {fault.part} anew"


@dataclasses.dataclass
class Survey:
    """What was found in a folder: the receipts of its parts, faults, and how much was looked at."""

    receipts: dict[str, Receipt] = dataclasses.field(default_factory=dict)
    faults: list[Fault] = dataclasses.field(default_factory=list)
    arrays: int = 0
    chunks: int = 0
    octets: int = 0

    @property
    def lost(self) -> list[str]:
        """The parts with a fault, in their order."""
        return sorted({fault.part for fault in self.faults if fault.part})
