"""The report as a reader sees it: in a browser it says nothing on the console, shows everything, and fits its width."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import browser
import pytest
from test_paper_report import DATA, GENERATED, made, needs_data

from ips2_dask.paper.experiments import catalog
from ips2_dask.paper.experiments.tasks import Scope

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(browser.browser() is None, reason="needs Chromium: apt-get install chromium"),
]

WIDTHS = (1280, 400)

SEEN = """({
    width: document.documentElement.clientWidth,
    needed: document.documentElement.scrollWidth,
    figures: [...document.images].map(i => [i.alt, i.complete && i.naturalWidth > 0, i.getBoundingClientRect().width]),
    tables: [...document.querySelectorAll('table')].map(t => [
        t.caption.textContent, t.tBodies[0].rows.length, t.scrollWidth, t.closest('.wide').clientWidth]),
})"""
"""What a page needs, and what it shows with every folded part open."""


async def look(page: Path, width: int, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What a page shows at a width, and what its console says."""
    async with browser.tab(folder) as tab:
        await tab.show(page, width)
        await tab.value("document.querySelectorAll('details').forEach(d => d.open = true)")
        await tab.value("Promise.all([...document.images].map(i => i.decode()))")
        return await tab.value(SEEN), tab.console


def check(page: Path, width: int, folder: Path, figures: set[str]) -> dict[str, Any]:
    seen, said = asyncio.run(look(page, width, folder))
    assert said == []
    assert seen["width"] == width
    assert seen["needed"] <= width
    assert {name for name, _, _ in seen["figures"]} == figures
    for name, there, wide in seen["figures"]:
        assert there, name
        assert wide >= 500, name  # narrower, its letters could not be read
    assert all(rows > 0 for _, rows, _, _ in seen["tables"])
    return seen


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("generated")
    made(catalog.chosen(GENERATED), out, Scope(runs=1, repeats=1))
    return out


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_is_silent_shows_every_figure_and_fits(generated: Path, width: int, tmp_path: Path) -> None:
    names = {file.stem for file in (generated / "figures").glob("*.svg")}
    seen = check(generated / "report.html", width, tmp_path, names)
    assert len(seen["tables"]) == 4  # two variants of the noises, two over k


def test_a_console_message_and_a_page_that_is_too_wide_would_be_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<!DOCTYPE html><p style='width:900px'>wide</p><script>console.warn('here')</script>")
    seen, said = asyncio.run(look(page, 400, tmp_path))
    assert len(said) == 1
    assert seen["needed"] >= 900


@needs_data
def test_the_widest_tables_fit_too(tmp_path: Path) -> None:
    made(catalog.chosen(["table1", "table2", "table3"]), tmp_path, Scope(runs=1, budget=9, draws=1, repeats=1), DATA)
    for width in WIDTHS:
        seen = check(tmp_path / "report.html", width, tmp_path / str(width), {"table2"})
        if width == max(WIDTHS):
            for caption, _, needed, given in seen["tables"]:
                assert needed <= given, caption
