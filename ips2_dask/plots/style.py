"""How pictures look, and how they are saved: colours of a light page, markers and hatches that tell clusters apart."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from ips2_dask.errors import BadInput

if TYPE_CHECKING:  # Matplotlib is the extra [report]
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend
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

_SETTINGS = {
    "svg.hashsalt": "ips2",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "hatch.linewidth": 0.7,
    "savefig.dpi": 192,  # two pixels for each of a page's
    "image.interpolation": "nearest",
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def color(cluster: int) -> str:
    """Colour of a cluster."""
    return PALETTE[cluster % len(PALETTE)]


def marker(cluster: int) -> str:
    """Marker of a cluster."""
    return MARKERS[cluster % len(MARKERS)]


def look(cluster: int) -> dict[str, Any]:
    """How the points of a cluster are drawn."""
    return {"marker": marker(cluster), "facecolor": color(cluster), "edgecolor": PAPER, "linewidth": 0.3}


def bar(cluster: int) -> dict[str, Any]:
    """How the bar of a cluster is drawn."""
    return {"facecolor": "none", "edgecolor": color(cluster), "hatch": HATCHES[cluster % len(HATCHES)]}


def check_matplotlib() -> None:
    """Refuse to draw without Matplotlib, before anything is computed."""
    if importlib.util.find_spec("matplotlib") is None:
        allowed, remedy = "matplotlib 3.9 or later", "pip install 'ips2-dask[report]'"
        raise BadInput("matplotlib", "no such package", allowed, "there would be no figures", remedy)


@contextmanager
def sheet(width: float, height: float) -> Iterator[Figure]:
    """An empty figure of ``width`` x ``height`` inches; what is drawn in the block has the style of the package."""
    import matplotlib as mpl  # noqa: PLC0415  the extra [report]
    from matplotlib.figure import Figure  # noqa: PLC0415  the same

    with mpl.rc_context(_SETTINGS):
        yield Figure(figsize=(width, height), layout="constrained")


def saved(figure: Figure, kind: Literal["png", "svg"] = "png", *, transparent: bool = False) -> bytes:
    """The file of a figure drawn on a `sheet`, without a date, so that the same numbers give the same bytes."""
    import matplotlib as mpl  # noqa: PLC0415  the extra [report]

    file = io.BytesIO()
    metadata: dict[str, Any] = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
    with mpl.rc_context(_SETTINGS):
        figure.savefig(file, format=kind, metadata=metadata, transparent=transparent)
    return file.getvalue()


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


def titled(ax: Axes, title: str, x: str = "", y: str = "", *, pad: float | None = None) -> Axes:
    """The axis with a title, ``pad`` points above it, and labels of its x and y axis."""
    ax.set_title(title, loc="left", color=INK, fontsize="medium", fontweight="bold", pad=pad)
    ax.set_xlabel(x, color=INK)
    ax.set_ylabel(y, color=INK)
    return ax


def legend(ax: Axes, marks: Sequence[Any] | None = None, names: Sequence[str] | None = None, **where: Any) -> Legend:
    """A small legend without a frame, of ``marks`` with their names, or of what the axis names."""
    given = () if marks is None else (marks, names)
    return ax.legend(*given, frameon=False, labelcolor=INK, fontsize="small", **where)


def scale(ax: Axes, marks: Sequence[Any], names: Sequence[str]) -> Legend:
    """A legend in one line, at the right end of the title's."""
    place: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.2}
    return legend(ax, marks, names, ncols=len(marks), handletextpad=0.1, columnspacing=0.8, **place)


def halo(text: Text) -> Text:
    """The same text with a pale outline, so that it can be read on top of marks."""
    from matplotlib.patheffects import withStroke  # noqa: PLC0415  the extra [report]

    text.set_path_effects([withStroke(linewidth=2.5, foreground=PAPER)])
    return text
