"""The pages of docs: links lead somewhere, tables are those of their records."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from ips2_dask.bench import certainty, copies, roundings

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_files_that_are_named_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / name).exists(), name
    for name in re.findall(r"`((?:ips2_dask|notebooks|tests)/[\w./-]+)`", text):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize(("name", "module"), [("roundings", roundings), ("copies", copies), ("certainty", certainty)])
def test_tables_of_labels_are_those_of_their_records(name: str, module: ModuleType) -> None:
    text = (ROOT / "docs" / "labels.md").read_text(encoding="utf-8")
    shown = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", text, re.DOTALL)
    assert shown is not None
    document = json.loads((ROOT / "notebooks" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    assert shown[1] == module.markdown(document["results"])
