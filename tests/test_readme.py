"""README and docs: files that are named are there, pictures are the notebooks', tables of benchmarks of their files."""

from __future__ import annotations

import json
import re

import pytest
from readme import PAGES, README, ROOT

from ips2_dask.bench.document import TABLES


def test_every_file_that_is_shown_or_named_is_there() -> None:
    for name in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / name).exists(), name
    for name in set(re.findall(r"`(notebooks/[\w./-]+)`", README)):
        assert (ROOT / name).exists(), name


def test_the_readme_is_short_enough_to_decide_by() -> None:
    assert len(README.splitlines()) <= 180


def test_pictures_are_those_of_the_notebooks() -> None:
    import base64  # noqa: PLC0415  used here alone

    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "notebooks").glob("*.ipynb"))
    flat = text.replace("\\n", "")
    pictures = {
        name for page in (README, *PAGES.values()) for name in re.findall(r"\((?:../)?(notebooks/images/[^)]+)\)", page)
    }
    assert len(pictures) >= 2
    for name in pictures:
        assert base64.b64encode((ROOT / name).read_bytes()).decode() in flat, name


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_benchmarks_are_those_of_their_files(name: str) -> None:
    (page, shown), *others = (
        (page, found)
        for page in (README, *PAGES.values())
        for found in re.findall(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", page, re.DOTALL)
        if not (name == "choosing" and page == PAGES["choosing"])  # each set: tests/test_docs.py
    )
    assert not others
    document = json.loads((ROOT / "notebooks" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    assert shown == TABLES[name](document)
    command = document["command"].partition(" --json")[0].replace("ips2 bench choosing", "choosing.py")
    assert command in " ".join(page.split())
