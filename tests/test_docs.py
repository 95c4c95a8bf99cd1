"""The pages of docs and the README: links, headings and pointers to code lead somewhere; tables are their records'."""

from __future__ import annotations

import functools
import inspect
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import ips2_dask

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "ips2_dask"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = [path for folder in ("ips2_dask", "tests") for path in sorted((ROOT / folder).rglob("*.py"))]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@functools.cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@functools.cache
def flat(path: Path) -> str:
    """Code whose comments go on without a line break."""
    return re.sub(r"\s*\n\s*(?:#:? )?", " ", text_of(path))


def prose(path: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```", "", text_of(path), flags=re.MULTILINE | re.DOTALL)


@functools.cache
def headings(path: Path) -> list[str]:
    return re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """The anchors that code hosts give the headings of a page."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings(path)}


def pointers(page: Path) -> list[str]:
    """What stands in backticks in the running text of a page."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(page))


def defines(text: str, name: str) -> bool:
    """Whether a module's text defines a function, a class, a method or a constant of that name."""
    pattern = rf"^\s*(?:async )?(?:def|class) {name}\b|^(?:    )?{name}\b(?:: [^=\n]+)?(?: =|$)"
    return re.search(pattern, text, re.MULTILINE) is not None


def resolves(dotted: str) -> bool:
    """Whether ``kernels.fuse`` is in that package, ``kernels.rounding.choose`` in that file, ``Run.cut`` in a class."""
    place, names = PACKAGE, dotted.removeprefix("ips2_dask.").split(".")
    if names[0] in ips2_dask.__all__ and len(names) == 1:
        return True
    if names[0] in PUBLIC:
        bases = [base for base in getattr(ips2_dask, names[0]).__mro__ if base.__module__.startswith("ips2_dask")]
        text = "".join(text_of(Path(inspect.getfile(base))) for base in bases)
        return all(defines(text, name) or f"self.{name}" in text for name in names)
    while names and (place / names[0]).is_dir():
        place /= names.pop(0)
    if names and (place / f"{names[0]}.py").exists():
        place /= f"{names.pop(0)}.py"
    if place == PACKAGE:
        return False
    files = [place] if place.suffix else sorted(place.rglob("*.py"))
    return not names or any(all(defines(text_of(file), name) for name in names) for file in files)


PUBLIC = {name for name in ips2_dask.__all__ if inspect.isclass(getattr(ips2_dask, name))}
ROOMS = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}


@every_page
def test_links_lead_to_files_and_headings_that_are_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@every_page
def test_tables_are_tables_when_they_are_rendered(page: Path) -> None:
    rows = [line for line in prose(page).splitlines() if line.startswith("|") and not re.fullmatch(r"[|\- ]+", line)]
    tokens = MarkdownIt("commonmark").enable("table").parse(text_of(page))
    assert sum(token.type == "tr_open" for token in tokens) == len(rows)
    cells = {token.content for token in tokens if token.type == "inline" and token.content.startswith("|")}
    assert not cells


@every_page
def test_files_that_are_named_are_there(page: Path) -> None:
    for pointer in pointers(page):
        if re.fullmatch(r"(?:ips2_dask|notebooks|tests|docs|cluster_configs)/[\w./-]*", pointer):
            assert (ROOT / pointer).exists(), pointer
        elif re.fullmatch(r"[\w/]+\.py", pointer):
            assert [*ROOT.glob(f"tests/**/{pointer}"), *PACKAGE.glob(f"**/{pointer}")], pointer
        elif re.fullmatch(r"[\w-]+\.jsonl?", pointer) and page.name == "method.md":
            assert (ROOT / "notebooks" / "results" / pointer).exists(), pointer


@every_page
def test_code_that_is_named_is_there(page: Path) -> None:
    for pointer in pointers(page):
        dotted = re.match(r"([A-Za-z_]\w*)(?:\.[A-Za-z_]\w*)+(?=\(.*\)$|$)", pointer)
        if dotted and dotted[1] in {"ips2_dask", *ROOMS, *PUBLIC} and not pointer.endswith((".py", ".md")):
            assert resolves(dotted[0]), pointer
        elif re.fullmatch(r"[A-Z][A-Z_]{3,}", pointer) and page.parent.name == "docs":
            assert any(defines(text_of(file), pointer) for file in CODE), pointer


def test_a_pointer_that_leads_nowhere_is_noticed() -> None:
    for right in ("kernels.fuse", "ips2_dask.kernels.rounding.choose", "store.Context", "Run.cut", "ips2_dask.run"):
        assert resolves(right), right
    for wrong in ("kernels.nowhere", "kernels.rounding.nowhere", "kernels.nowhere.fuse", "Run.nowhere", "nowhere.fuse"):
        assert not resolves(wrong), wrong
    assert "the-restricted-basis" in anchors(ROOT / "docs" / "method.md")


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.name)
def test_headings_that_code_points_to_are_there(page: Path) -> None:
    """Code says ``docs/method.md, The restricted basis``; the name may go on in the next line."""
    for file in CODE:
        if file == Path(__file__):
            continue
        lines = flat(file)
        for place in re.findall(rf"docs/{re.escape(page.name)}, (.{{60}})", lines):
            assert place.startswith(tuple(headings(page))), f"{file.relative_to(ROOT)}: {place}"


def test_no_code_points_to_a_document_that_is_not_here() -> None:
    for file in CODE:
        if file != Path(__file__):
            assert re.search(r"\bDESIGN\b", text_of(file)) is None, f"{file.relative_to(ROOT)} cites DESIGN"
        for page in re.findall(r"docs/\w+\.md", text_of(file)):
            assert (ROOT / page).exists(), f"{file.relative_to(ROOT)}: {page}"


def test_the_steps_of_the_paper_are_where_the_package_says() -> None:
    steps = re.findall(r"\b(?:kernels|stages|paper\.explicit)\.\w+", ips2_dask.__doc__ or "")
    assert len(steps) > 20
    for step in steps:
        assert resolves(step), step
