"""What the README and the pages of docs show: code blocks, and every call of ``ips2`` in blocks and in running text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}


def blocks(language: str = "", page: str = README) -> list[str]:
    """The text of every code block of a page that is of a language, or of none."""
    found: list[tuple[str, list[str]]] = []
    inside = False
    for line in page.splitlines(keepends=True):
        if line.startswith("```"):
            inside = not inside
            if inside:
                found.append((line.strip().removeprefix("```"), []))
        elif inside:
            found[-1][1].append(line)
    assert not inside
    return ["".join(lines) for of, lines in found if of == language]


def commands() -> Iterator[list[str]]:
    """Arguments of every call, in the order of the pages, once each; a command's mere name is no call."""
    seen = set()
    for text in (text for page in (README, *PAGES.values()) for text in _calls(page)):
        match = re.match(r"(?:\$ )?(?:\.venv/bin/)?ips2 (.+)$", text.strip())
        if match and match[1] not in seen and match[1] not in NAMES:
            seen.add(match[1])
            yield shlex.split(match[1])


def _calls(page: str) -> list[str]:
    """The lines of a page's blocks, and what stands in backticks outside them."""
    outside = "".join(part for at, part in enumerate(re.split(r"^```.*\n", page, flags=re.MULTILINE)) if not at % 2)
    inline = [re.sub(r"\s+", " ", text) for text in re.findall(r"`(ips2\s[^`]+)`", outside)]
    lines = [
        part for block in blocks("", page) for line in block.splitlines() for part in re.split(r";|&&", _code(line))
    ]
    return [*lines, *inline]


NAMES = (
    "bench",
    "bench graph",
    "cluster check",
    "plan",
    "plan --json",
    "plan --out DIR",
    "plan TABLE",
    "run",
    "run --cluster",
    "jobs submit",
    "sweep",
    "run wine.csv --clusters 3 --metric minkowski3 --out cubed",
)
"""Commands and options that running text speaks of by their names, and one of a metric that is yet to be written."""


def _code(line: str) -> str:
    """A line without its comment."""
    return line.split("#")[0]


ALL = list(commands())
TEXTS = [" ".join(words) for words in ALL]
