"""How plots look: colours of a light page, and markers and hatches that tell clusters apart without them."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Literal

from ips2_dask.errors import BadInput

if TYPE_CHECKING:  # Matplotlib is the extra [report]
    from matplotlib.axes import Axes
    from matplotlib.text import Text

INK = "#1d2126"
MUTED = "#5c636b"
GRID = "#dfe2e6"
PAPER = "#fffffe"
PALETTE = ("#0067a5", "#c4520a", "#00805a", "#a8437f", "#8a6d00", "#2f8fc4", "#5b4db1", "#6b6f76")
"""Near Okabe and Ito's, dark enough for thin marks on white."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
"""Eleven beside eight colours: a pair comes again after 88 clusters."""

HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "++++")
SEQUENTIAL = "Blues"
"""From paper to ink in one hue: it prints, and a dark page can turn it round."""

KINDS = {"pairwise": "pairwise S", "high_order": "high-order V", "fused": "fused U"}
"""The three similarities as pictures name them."""


def color(cluster: int) -> str:
    """Colour of a cluster."""
    return PALETTE[cluster % len(PALETTE)]


def marker(cluster: int) -> str:
    """Marker of a cluster."""
    return MARKERS[cluster % len(MARKERS)]


def hatch(cluster: int) -> str:
    """Hatch of a cluster's bar."""
    return HATCHES[cluster % len(HATCHES)]


def check_matplotlib() -> None:
    """Refuse before anything is computed where there is nothing to draw with.

    Raises
    ------
    BadInput
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise BadInput(
            "matplotlib", "no such package", "matplotlib 3.9 or later", "there would be no figures",
            "pip install 'ips2-dask[report]'",
        )  # fmt: skip


def heading(kind: str) -> str:
    """A similarity's name at the beginning of a line."""
    return KINDS[kind][0].upper() + KINDS[kind][1:]


def axis(ax: Axes | None, *, grid: Literal["both", "x", "y"] | None = "both") -> Axes:
    """The given Matplotlib axis, or pyplot's current one, cleared of what carries no information."""
    if ax is None:
        check_matplotlib()
        import matplotlib.pyplot as plt  # noqa: PLC0415  the extra [report]

        ax = plt.gca()
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(MUTED)
    ax.tick_params(colors=INK, labelcolor=INK)
    ax.set_axisbelow(True)
    if grid:
        ax.grid(axis=grid, color=GRID, linewidth=0.8)
    return ax


def titled(ax: Axes, title: str, x: str = "", y: str = "") -> Axes:
    """The axis with its title and what its axes mean."""
    ax.set_title(title, loc="left", color=INK, fontsize="medium", fontweight="bold")
    ax.set_xlabel(x, color=INK)
    ax.set_ylabel(y, color=INK)
    return ax


def halo(text: Text) -> Text:
    """A text that can be read on top of marks."""
    from matplotlib.patheffects import withStroke  # noqa: PLC0415  the extra [report]

    text.set_path_effects([withStroke(linewidth=2.5, foreground=PAPER)])
    return text
