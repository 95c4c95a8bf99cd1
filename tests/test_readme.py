"""The README: files that it names are there, pictures are the notebooks' or of records, tables are of their files."""

from __future__ import annotations

import json
import re

import pytest
from page_tables import TABLES
from readme import README, ROOT


def test_every_file_that_is_shown_or_named_is_there() -> None:
    for name in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / name).exists(), name
    for name in set(re.findall(r"`(notebooks/[\w./-]+)`", README)):
        assert (ROOT / name).exists(), name


def test_pictures_are_those_of_the_notebooks() -> None:
    import base64  # noqa: PLC0415  used here alone

    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "notebooks").glob("*.ipynb"))
    flat = text.replace("\\n", "")
    pictures = re.findall(r"\]\((notebooks/images/[^)]+)\)", README)
    assert len(pictures) >= 2
    for name in set(pictures):
        data = base64.b64encode((ROOT / name).read_bytes()).decode()
        assert data in flat, name


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_benchmarks_are_those_of_their_files(name: str) -> None:
    shown = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", README, re.DOTALL)
    file = ROOT / "notebooks" / "results" / f"{name}.json"
    assert shown is not None
    document = json.loads(file.read_text(encoding="utf-8"))
    assert shown[1] == TABLES[name](document)
    command = document["command"].partition(" --json")[0].partition(" --out")[0]
    assert command.replace("ips2 bench choosing", "choosing") in " ".join(README.split())
