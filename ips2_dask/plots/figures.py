"""How figures are drawn and saved: one style, no date, the same bytes for the same numbers."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ips2_dask.store.files import write_atomically

if TYPE_CHECKING:  # Matplotlib is the extra [report]
    import numpy as np
    from matplotlib.figure import Figure as Sheet
    from numpy.typing import NDArray

SETTINGS = {
    "svg.hashsalt": "ips2",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
    "image.interpolation": "nearest",
    "savefig.dpi": 130,
}


class Figure(NamedTuple):
    """A saved figure: its name, its caption, its SVG, and whether it shows measured times."""

    name: str
    caption: str
    svg: bytes
    timed: bool

    @property
    def base64(self) -> str:
        """The SVG as a page that needs no other file embeds it."""
        return base64.b64encode(self.svg).decode()


@contextmanager
def canvas(
    width: float, height: float, rows: int = 1, columns: int = 1, **options: Any
) -> Iterator[tuple[Sheet, NDArray[np.object_]]]:
    """A figure of ``width`` x ``height`` inches and its axes: always an array (rows, columns)."""
    import matplotlib as mpl  # noqa: PLC0415  the extra [report]
    from matplotlib.figure import Figure as Sheet  # noqa: PLC0415  the same

    with mpl.rc_context(SETTINGS):
        sheet = Sheet(figsize=(width, height), layout="constrained")
        yield sheet, sheet.subplots(rows, columns, squeeze=False, **options)


def save(sheet: Sheet, folder: Path, name: str, caption: str, timed: bool = False) -> Figure:
    """Write a figure as PNG and SVG, and keep its SVG for the page."""
    import matplotlib as mpl  # noqa: PLC0415  the extra [report]

    files = {}
    with mpl.rc_context(SETTINGS):
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            file = io.BytesIO()
            sheet.savefig(file, format=kind, metadata=metadata)
            files[kind] = file.getvalue()
            write_atomically(folder / f"{name}.{kind}", files[kind])
    return Figure(name, caption, files["svg"], timed)
