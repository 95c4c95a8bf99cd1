"""Figures of records: where they may be written, and the digest of the records inside a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ips2_dask.bench.document import Record
from ips2_dask.bench.origin import digest
from ips2_dask.errors import BadInput
from ips2_dask.plots.style import check_matplotlib

if TYPE_CHECKING:  # Matplotlib is the extra [report]
    from matplotlib.figure import Figure

KINDS = (".png", ".svg", ".pdf")

RECORDS = "Records"
"""The text of a PNG that holds `origin.digest` of the records that it shows."""


def check(path: Path) -> None:
    """Refuse a figure that could not be drawn or written.

    Raises
    ------
    BadInput
    """
    check_matplotlib()
    if path.suffix.lower() not in KINDS or not path.absolute().parent.is_dir():
        raise BadInput(
            "--figure",
            str(path),
            f"a file in a folder that exists, ending in {', '.join(KINDS)}",
            "the figure would be lost",
            "name another file",
        )


def save(figure: Figure, path: Path, records: Sequence[Record]) -> None:
    """Write a figure; a PNG says by their digest which records it shows."""
    about = {RECORDS: digest(records)} if path.suffix.lower() == ".png" else None
    figure.savefig(path, dpi=150, metadata=about)


def records_of(path: Path) -> str | None:
    """The digest of the records that a PNG shows; None where it does not say."""
    content, at = path.read_bytes(), 8  # behind the signature
    while at < len(content):
        length = int.from_bytes(content[at : at + 4], "big")
        kind, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        name, _, text = data.partition(b"\0")
        if kind == b"tEXt" and name == RECORDS.encode():
            return text.decode("latin-1")
        at += length + 12
    return None
