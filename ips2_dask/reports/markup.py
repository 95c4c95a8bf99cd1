"""The page: HTML without scripts and without other files, and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1b1b; max-width: 1120px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.7em; } h2 { margin-top: 2.2em; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; margin: 1em 0; font-size: .87em; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .3em 0; }
th, td { padding: .2em .7em; text-align: right; border-bottom: 1px solid #e6e6e6; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
td { white-space: nowrap; } td:first-child, td.text { white-space: normal; overflow-wrap: break-word; }
thead th { border-bottom: 2px solid #888; }
td.best { font-weight: 700; } td.beats { background: #fdeedd; } td.no { color: #a32b00; } tr.paper td { color: #666; }
tr.paper td:first-child { color: inherit; }
tr.first td { border-top: 2px solid #bbb; }
.wide { overflow-x: auto; }
figure { margin: 1.2em 0; } figcaption { font-size: .87em; color: #444; }
figure img { display: block; max-width: 100%; min-width: 500px; }
nav a { margin-right: 1em; } code { font-size: .92em; } details { margin: 1em 0; }
@media (max-width: 600px) {
  th:first-child, td:first-child { position: sticky; left: 0; background: #fff; max-width: 7em; }
}
@media print { details > * { display: block; } }
"""


class Cell:
    """What a table's cell says, and its classes."""

    def __init__(self, text: str, *classes: str) -> None:
        self.text, self.classes = text, [name for name in classes if name]

    @property
    def is_text(self) -> bool:
        """Whether it holds words, which stand to the left."""
        return "text" in self.classes

    def html(self, tag: str = "td", label: str = "") -> str:
        """The cell; ``label`` names it where a narrow screen has no room for a head."""
        kind = f' class="{" ".join(self.classes)}"' if self.classes else ""
        named = f' data-label="{escape(label, quote=True)}"' if label else ""
        return f"<{tag}{kind}{named}>{escape(self.text)}</{tag}>"


class Row:
    """Cells, of which plain strings are ones without classes, and the row's class."""

    def __init__(self, cells: Sequence[Cell | str], kind: str = "") -> None:
        self.cells, self.kind = cells, kind

    def html(self, labels: Sequence[str] = ()) -> str:
        """The row; ``labels`` name its cells."""
        kind = f' class="{self.kind}"' if self.kind else ""
        cells = [cell if isinstance(cell, Cell) else Cell(cell) for cell in self.cells]
        named = labels or [""] * len(cells)
        inside = "".join(cell.html(label=label) for cell, label in zip(cells, named, strict=True))
        return f"<tr{kind}>{inside}</tr>"


def table(
    caption: str, head: Sequence[Cell | str], rows: Sequence[Row], *, timed: bool = False, stacked: bool = False
) -> str:
    """A table that scrolls by itself where the page is narrow.

    ``timed`` where its numbers are measured times, ``stacked`` where narrow screens show cells by name.
    """
    names = " ".join(name for name, given in (("time", timed), ("stacked", stacked)) if given)
    kind = f' class="{names}"' if names else ""
    words = {at for row in rows for at, cell in enumerate(row.cells) if isinstance(cell, Cell) and cell.is_text}
    cells = [
        cell if isinstance(cell, Cell) else Cell(cell, "text" if at in words else "") for at, cell in enumerate(head)
    ]
    top = "".join(cell.html("th") for cell in cells)
    labels = [cell.text for cell in cells] if stacked else ()
    body = "\n".join(row.html(labels) for row in rows)
    return (
        f'<div class="wide"><table{kind}><caption>{escape(caption)}</caption><thead><tr>{top}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def paragraph(text: str, *, timed: bool = False) -> str:
    """A paragraph."""
    return f'<p class="time">{escape(text)}</p>' if timed else f"<p>{escape(text)}</p>"


def listing(items: Sequence[str]) -> str:
    """A list."""
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>" if items else ""


def folded(title: str, content: str) -> str:
    """Something long that opens with a click, without a script."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def section(name: str, title: str, content: Sequence[str]) -> str:
    """A part of the page."""
    return f'<section id="{name}"><h2>{escape(title)}</h2>\n' + "\n".join(content) + "</section>"


def page(title: str, intro: Sequence[str], sections: dict[str, str], titles: dict[str, str]) -> str:
    """The whole page."""
    links = "".join(f'<a href="#{name}">{escape(titles[name])}</a> ' for name in sections)
    inside = "\n".join([*intro, f"<nav>{links}</nav>", *sections.values()])
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{STYLE}</style></head>\n'
        f"<body><h1>{escape(title)}</h1>\n{inside}\n</body></html>\n"
    )


def number(value: float | None, digits: int = 3) -> str:
    """A number as the paper prints it, a dash for None."""
    return "–" if value is None else f"{value:.{digits}f}"


def spread(mean: float, std: float | None) -> str:
    """A mean and its standard deviation."""
    return number(mean) if std is None else f"{number(mean)} ± {number(std)}"


def setting_text(params: dict[str, object]) -> str:
    """A setting in words, the scale last."""
    plain = {name: value for name, value in params.items() if name != "scale"}
    said = ", ".join(f"{name}={value}" for name, value in plain.items()) or "the estimator's defaults"
    return f"{said}; scale {params.get('scale', 'none')}"
