"""The README: short, and what it names is there; pictures of README and docs are those of the notebooks."""

from __future__ import annotations

import base64
import re

from page_tables import DOCS, TABLES
from readme import PAGES, README, ROOT


def test_every_file_that_is_shown_or_named_is_there() -> None:
    for name in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / name).exists(), name
    for name in set(re.findall(r"`(notebooks/[\w./-]+)`", README)):
        assert (ROOT / name).exists(), name


def test_the_readme_is_short_enough_to_decide_by() -> None:
    assert len(README.splitlines()) <= 180


def test_pictures_are_those_of_the_notebooks() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "notebooks").glob("*.ipynb"))
    flat = text.replace("\\n", "")
    pictures = {
        name for page in (README, *PAGES.values()) for name in re.findall(r"\((?:../)?(notebooks/images/[^)]+)\)", page)
    }
    assert len(pictures) >= 2
    for name in pictures:
        assert base64.b64encode((ROOT / name).read_bytes()).decode() in flat, name


def test_every_table_of_a_record_is_on_one_page() -> None:
    places = [name for page in (README, *PAGES.values()) for name in re.findall(r"<!-- /([\w-]+) -->", page)]
    assert {*TABLES, *(name for _, name in DOCS)} <= set(places)
    assert all(places.count(name) == 1 + (name == "choosing") for name in places)
