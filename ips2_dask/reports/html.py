"""HTML pages without scripts or other files: their blocks and tables, filled into the package's Jinja templates."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ips2_dask.plots.figures import Figure


class Cell:
    """The text of a table's cell, and its CSS classes; class ``text`` aligns it to the left."""

    def __init__(self, text: str, *classes: str) -> None:
        self.text, self.classes = text, " ".join(name for name in classes if name)

    @property
    def is_text(self) -> bool:
        """Whether it holds words and not numbers."""
        return "text" in self.classes.split()


class Row:
    """The cells of a table's row, of which plain strings have no class, and the row's CSS classes."""

    def __init__(self, cells: Sequence[Cell | str], classes: str = "") -> None:
        self.cells, self.classes = [_cell(cell) for cell in cells], classes


class Section(NamedTuple):
    """A part of a page: its anchor, its heading, its blocks, and its name in the navigation if that is shorter."""

    name: str
    title: str
    blocks: Sequence[Markup]
    short: str = ""

    @property
    def link(self) -> str:
        """Its name in the navigation."""
        return self.short or self.title


@cache
def _environment() -> Environment:
    """The package's templates, which escape all text except `Markup`."""
    return Environment(
        loader=PackageLoader("ips2_dask.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _blocks() -> Any:
    """The macros of ``blocks.html.j2``, each of which returns `Markup`."""
    return _environment().get_template("blocks.html.j2").module


def page(template: str, **values: object) -> str:
    """The whole page: ``run.html.j2`` or ``article.html.j2`` with the values it names."""
    return _environment().get_template(template).render(values)


def article(title: str, intro: Sequence[Markup], sections: Sequence[Section]) -> str:
    """A page of text, tables and figures.

    Parameters
    ----------
    title : str
    intro : list of Markup
        The blocks before the navigation.
    sections : list of Section
    """
    return page("article.html.j2", title=title, intro=intro, sections=sections)


def paragraph(text: str, *, timed: bool = False) -> Markup:
    """A paragraph, ``timed`` if it states measured times."""
    return _blocks().paragraph(text, timed)


def preformatted(text: str) -> Markup:
    """Text of fixed width, such as a command."""
    return _blocks().preformatted(text)


def listing(items: Sequence[str]) -> Markup:
    """A list with a bullet for each item; nothing without items."""
    return _blocks().listing(items) if items else Markup()


def folded(title: str, content: Markup) -> Markup:
    """A block that opens with a click on its title, without a script."""
    return _blocks().folded(title, content)


def group(classes: str, contents: Sequence[Markup]) -> Markup:
    """Blocks in a ``div`` of these CSS classes."""
    return _blocks().group(classes, contents)


def image(figure: Figure) -> Markup:
    """A saved figure as an image inside the page, which scrolls by itself where the page is narrow."""
    return _blocks().image(figure.name, figure.caption, figure.base64, figure.timed)


def drawing(name: str, caption: str, view_box: str, svg: str, *, tones: bool = False) -> Markup:
    """A figure whose SVG elements are part of the page and follow its colours.

    Parameters
    ----------
    name : str
        Unique on the page.
    caption : str
    view_box : str
        The drawing's ``viewBox``.
    svg : str
        The content of the ``svg`` element with its closing tag.
    tones : bool
        Whether it holds an image whose tones a dark page inverts.
    """
    return _blocks().drawing(name, caption, view_box, Markup(svg), tones)


def table(
    caption: str, head: Sequence[Cell | str], rows: Sequence[Row], *, timed: bool = False, stacked: bool = False
) -> Markup:
    """A table that scrolls by itself where the page is narrow.

    Parameters
    ----------
    caption : str
    head : list of str or Cell
        The columns' names, aligned as the cells below them.
    rows : list of Row
    timed : bool
        Whether its numbers are measured times.
    stacked : bool
        Whether a narrow screen shows each row as lines of names and values.
    """
    words = {column for row in rows for column, cell in enumerate(row.cells) if cell.is_text}
    cells = [
        Cell(name, "text" if column in words else "") if isinstance(name, str) else name
        for column, name in enumerate(head)
    ]
    classes = " ".join(name for name, wanted in (("time", timed), ("stacked", stacked)) if wanted)
    labels = [cell.text if stacked else "" for cell in cells]
    return _blocks().table(caption, cells, rows, classes, labels)


def _cell(cell: Cell | str) -> Cell:
    return Cell(cell) if isinstance(cell, str) else cell


def number(value: float | None, digits: int = 3) -> str:
    """A number with ``digits`` decimals, or a dash for None."""
    return "–" if value is None else f"{value:.{digits}f}"


def spread(mean: float, std: float | None) -> str:
    """A mean and its standard deviation."""
    return number(mean) if std is None else f"{number(mean)} ± {number(std)}"
