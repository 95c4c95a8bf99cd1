"""How plots look: colours of a light page, and markers and hatches that tell clusters apart without colours."""

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
"""A colour map of one hue from light to dark: it can be printed, and a dark page can invert it."""

KINDS = {"pairwise": "pairwise S", "high_order": "high-order V", "fused": "fused U"}
"""The three similarities as pictures name them."""

LAYOUTS = {"umap": "UMAP", "t-sne": "t-SNE"}
"""The methods of a layout as pictures name them."""


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
    """Refuse to draw without Matplotlib, before anything is computed.

    Raises
    ------
    BadInput
        If Matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise BadInput(
            "matplotlib",
            "no such package",
            "matplotlib 3.9 or later",
            "there would be no figures",
            "pip install 'ips2-dask[report]'",
        )


def heading(kind: str) -> str:
    """A similarity's name with a capital letter, for a title."""
    return KINDS[kind][0].upper() + KINDS[kind][1:]


def axis(ax: Axes | None, *, grid: Literal["both", "x", "y"] | None = "both") -> Axes:
    """The given Matplotlib axis, or pyplot's current one, without the upper and right spine and with a pale grid."""
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
    """The axis with a title, and labels of its x and y axis."""
    ax.set_title(title, loc="left", color=INK, fontsize="medium", fontweight="bold")
    ax.set_xlabel(x, color=INK)
    ax.set_ylabel(y, color=INK)
    return ax


def halo(text: Text) -> Text:
    """The same text with a pale outline, so that it can be read on top of marks."""
    from matplotlib.patheffects import withStroke  # noqa: PLC0415  the extra [report]

    text.set_path_effects([withStroke(linewidth=2.5, foreground=PAPER)])
    return text
