"""Pages without scripts or other files: text, figures and tables in the package's one template."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from ips2_dask.plots.style import saved, sheet

if TYPE_CHECKING:  # Matplotlib is the extra [report]
    from matplotlib.axes import Axes


class Bold(str):
    """The text of a table's cell that stands out."""

    bold = True


class Code(NamedTuple):
    """Text of fixed width, such as a command."""

    code: str


class Table(NamedTuple):
    """A table; columns of ``words`` are aligned to the left, and with ``folds`` a long one opens with a click."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[int] = ()
    folds: bool = False


class Figure(NamedTuple):
    """A picture, as the base64 text of a PNG, and a caption that says what is to be seen."""

    name: str
    caption: str
    png: str


class Section(NamedTuple):
    """A part of a page: its anchor, its heading, and paragraphs, tables, figures, code, or lists of such in a row."""

    name: str
    title: str
    blocks: Sequence[Any]


def figure(
    name: str, caption: str, draw: Callable[[Axes], object], *, width: float = 4.7, height: float = 3.3
) -> Figure:
    """A figure of ``width`` x ``height`` inches whose one axis ``draw`` draws on."""
    with sheet(width, height) as drawn:
        draw(drawn.subplots())
        return Figure(name, caption, encoded(saved(drawn, transparent=True)))


def encoded(png: bytes) -> str:
    """A file as text, for a page that needs no other."""
    return base64.b64encode(png).decode()


def page(title: str, lead: str, sections: Sequence[Section], **more: Any) -> str:
    """The whole page as HTML; ``more``: ``tiles`` of (name, value, remark), ``warnings`` and a ``footer``."""
    loader = PackageLoader("ips2_dask.reports")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    values = {"tiles": (), "warnings": (), "footer": ""} | more
    return made.get_template("page.html.j2").render(title=title, lead=lead, sections=sections, **values)
