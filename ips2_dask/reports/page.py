"""The page around the sections: one file without scripts, for screens wide and narrow, light and dark, and paper."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ips2_dask.plots.style import GRID, INK, MUTED, PALETTE

DARK = {
    "ink": "#e6e8eb", "muted": "#a2a9b2", "grid": "#343a42", "paper": "#15181c", "soft": "#1e2329", "warn": "#3a2a12",
    "edge": "#e0a03c",
}  # fmt: skip
DARK_PALETTE = ("#5fb0ee", "#ff8f4d", "#35c796", "#ea86c0", "#e0b93a", "#8fd3ff", "#a99bff", "#aab0b8")
LIGHT = {"ink": INK, "muted": MUTED, "grid": GRID, "paper": "#ffffff", "soft": "#f4f6f8", "warn": "#fff6e3",
         "edge": "#b86e00"}  # fmt: skip

LAYOUT = """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { font: 16px/1.55 var(--sans); color: var(--ink); background: var(--paper); max-width: 1120px; margin: 0 auto;
  padding: 2.2rem 1.25rem 4rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 3rem 0 .8rem; padding-top: .6rem; border-top: 1px solid var(--grid); }
p { max-width: 46rem; margin: .5rem 0; } .lead { color: var(--muted); margin: 0 0 1.4rem; }
a { color: var(--c0); } nav { margin: 1.4rem 0 0; } nav a { margin-right: 1.1rem; white-space: nowrap; }
code, pre { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: .86em; }
pre { background: var(--soft); padding: .8rem 1rem; border-radius: 6px; white-space: pre-wrap;
  overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(11.5rem, 1fr)); gap: .7rem; margin: 0; }
.tiles div { background: var(--soft); border-radius: 8px; padding: .65rem .85rem; }
.tiles dt { color: var(--muted); font-size: .8rem; } .tiles dd { margin: 0; font-size: 1.2rem; font-weight: 650;
  font-variant-numeric: tabular-nums; } .tiles dd small { font-weight: 400; color: var(--muted); font-size: .74rem;
  display: block; line-height: 1.3; }
.warnings { background: var(--warn); border-left: 4px solid var(--edge); border-radius: 0 6px 6px 0; margin: 1.2rem 0;
  padding: .5rem 1rem; } .warnings ul { margin: .3rem 0; padding-left: 1.1rem; } .warnings strong { color: var(--ink); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); gap: 1.2rem 1.6rem;
  margin: 1rem 0; align-items: start; }
.figures.two { grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); }
figure { margin: 0; min-width: 0; } figure svg { display: block; width: 100%; height: auto; max-width: 34rem;
  overflow: visible; }
figcaption { color: var(--muted); font-size: .84rem; line-height: 1.4; max-width: 34rem; margin-top: .3rem; }
.table { overflow-x: auto; margin: 1rem 0; } .tables { display: flex; flex-wrap: wrap; gap: 0 3rem; }
table { border-collapse: collapse; font-size: .84rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .2rem 0 .4rem; }
th, td { padding: .22rem .75rem; text-align: right; border-bottom: 1px solid var(--grid); }
th { vertical-align: bottom; font-weight: 600; color: var(--muted); }
th:first-child, td:first-child { padding-left: 0; text-align: left; } td.text, th.text { text-align: left; }
td.text { overflow-wrap: anywhere; } td.set { font-weight: 650; } thead th { border-bottom: 1.5px solid var(--muted); }
details { margin: 1rem 0; } summary { cursor: pointer; color: var(--c0); }
footer { margin-top: 3rem; color: var(--muted); font-size: .84rem; }
@media (max-width: 560px) {
  body { padding: 1.2rem .9rem 3rem; font-size: 15px; } th, td { padding: .2rem .42rem; } table { font-size: .78rem; }
  .tiles { grid-template-columns: 1fr 1fr; } h1 { font-size: 1.4rem; }
  .stacked, .stacked caption, .stacked tbody, .stacked tr { display: block; } .stacked thead { display: none; }
  .stacked tr { border-bottom: 1.5px solid var(--grid); padding: .35rem 0; }
  .stacked td, .stacked td:first-child { display: flex; justify-content: space-between; gap: 1rem; border: 0;
    padding: .05rem 0; text-align: right; }
  .stacked td::before { content: attr(data-label); color: var(--muted); text-align: left; white-space: nowrap; }
  .stacked td:first-child { font-weight: 650; }
}
@media print {
  @page { margin: 14mm; }
  body { max-width: none; padding: 0; font-size: 10.5pt; } nav { display: none; } a { color: inherit; }
  figure, tr, .tiles div, .warnings { break-inside: avoid; } h2, caption { break-after: avoid; }
  .figures, .figures.two { grid-template-columns: 1fr 1fr; } .table { overflow: visible; }
  table { font-size: 8.5pt; } th, td { padding: .12rem .4rem; }
  details::details-content { content-visibility: visible; block-size: auto; } summary { display: none; }
}
"""


def _variables(colors: dict[str, str], palette: Sequence[str]) -> str:
    named = {**colors, **{f"c{number}": color for number, color in enumerate(palette)}}
    return " ".join(f"--{name}: {color};" for name, color in named.items())


STYLE = (
    f':root {{ color-scheme: light dark; --sans: system-ui, "Segoe UI", Roboto, "DejaVu Sans", Helvetica, Arial, '
    f"sans-serif; {_variables(LIGHT, PALETTE)} }}\n"
    f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK, DARK_PALETTE)} }}\n"
    "  .tones image { filter: invert(1) hue-rotate(180deg); } }\n"
    f"{LAYOUT}"
)


def page(
    title: str, lead: str, top: Sequence[str], sections: Sequence[tuple[str, str, Sequence[str]]], end: str
) -> str:
    """The whole page.

    Parameters
    ----------
    title, lead : str
        The heading and the line below it.
    top : list of HTML
        What comes before the sections.
    sections : list of (id, title, list of HTML)
    end : str
        The last line.
    """
    links = "".join(f'<a href="#{name}">{escape(heading)}</a> ' for name, heading, _ in sections)
    parts = "\n".join(
        f'<section id="{name}"><h2>{escape(heading)}</h2>\n' + "\n".join(content) + "\n</section>"
        for name, heading, content in sections
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>\n{STYLE}</style></head>\n'
        f'<body><header><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>\n'
        + "\n".join(top)
        + f"\n<nav>{links}</nav></header>\n<main>{parts}</main>\n<footer>{escape(end)}</footer></body></html>\n"
    )


def tiles(facts: Sequence[tuple[str, str, str]]) -> str:
    """A run's most important numbers: name, value, and a remark."""
    inside = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(remark)}</small></dd></div>"
        for name, value, remark in facts
    )
    return f'<dl class="tiles">{inside}</dl>'


def warnings(texts: Sequence[str]) -> str:
    """What makes the result worth less than it looks, or nothing."""
    if not texts:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f'<div class="warnings" role="note"><strong>Warnings</strong><ul>{items}</ul></div>'


def figures(pictures: Sequence[str], *, two: bool = False) -> str:
    """Pictures side by side where there is room."""
    return f'<div class="figures{" two" if two else ""}">{"".join(pictures)}</div>'


def framed(table: str) -> str:
    """A table that a narrow screen may scroll by itself."""
    return f'<div class="table">{table}</div>'
