"""Figures as SVG elements of the page: their text can be selected, their colours follow the page, light or dark."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from markupsafe import Markup

from ips2_dask.plots.style import GRID, INK, MUTED, PALETTE, PAPER
from ips2_dask.reports.html import drawing

if TYPE_CHECKING:  # Matplotlib is the extra [report]
    from matplotlib.axes import Axes

VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    PAPER: "paper",
    **{color: f"c{number}" for number, color in enumerate(PALETTE)},
}
"""Which of the page's colours stands for each colour of a plot."""

SETTINGS = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "hatch.linewidth": 0.7,
    "savefig.dpi": 200,
    "image.interpolation": "nearest",
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def picture(
    name: str,
    caption: str,
    draw: Callable[[Axes], object],
    *,
    width: float = 4.7,
    height: float = 3.3,
    tones: bool = False,
) -> Markup:
    """A figure of the page.

    Parameters
    ----------
    name : str
        Of the figure, unique on the page.
    caption : str
        What is to be seen, in a sentence.
    draw : callable
        Draws on the axis it is given.
    width, height : float
        Inches, at 96 pixels each on a wide screen.
    tones : bool
        Whether it holds an image whose tones run from paper to ink.
    """
    import matplotlib as mpl  # noqa: PLC0415  the extra [report]
    from matplotlib.figure import Figure  # noqa: PLC0415  the same

    file = io.BytesIO()
    with mpl.rc_context({**SETTINGS, "svg.hashsalt": name}):
        sheet = Figure(figsize=(width, height), layout="constrained")
        draw(sheet.subplots())
        sheet.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    view_box, content = _themed(file.getvalue().decode(), name)
    return drawing(name, caption, view_box, content, tones=tones)


def _themed(svg: str, name: str) -> tuple[str, str]:
    """The ``viewBox`` and the content of Matplotlib's SVG, with ids of its own and the page's colours and font.

    Matplotlib writes literal colours and fonts into the style of each element, and has no setting for a CSS variable
    or for a prefix of all ids, so both are replaced in its text.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(href="|url\()#', rf"\1#{name}-", svg)
    svg = re.sub(r"font: ((?:bold )?[\d.]+px)[^;\"]*", r"font: \1 var(--sans)", svg)
    for color, variable in VARIABLES.items():
        svg = svg.replace(color, f"var(--{variable})")
    head, _, rest = svg.partition(">")
    view_box = re.search(r'viewBox="([^"]*)"', head)
    assert view_box is not None
    return view_box[1], rest
