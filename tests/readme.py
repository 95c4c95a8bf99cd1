"""What the README shows: its code blocks, and every call of ``ips2`` in blocks and in running text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str = "") -> list[str]:
    """The text of every code block of a language, or of none."""
    found: list[tuple[str, list[str]]] = []
    inside = False
    for line in README.splitlines(keepends=True):
        if line.startswith("```"):
            inside = not inside
            if inside:
                found.append((line.strip().removeprefix("```"), []))
        elif inside:
            found[-1][1].append(line)
    assert not inside
    return ["".join(lines) for of, lines in found if of == language]


def commands() -> Iterator[list[str]]:
    """Arguments of every call, in the README's order, once each; a command's mere name is no call."""
    outside = "".join(part for at, part in enumerate(re.split(r"^```.*\n", README, flags=re.MULTILINE)) if not at % 2)
    inline = [re.sub(r"\s+", " ", text) for text in re.findall(r"`(ips2\s[^`]+)`", outside)]
    lines = [part for block in blocks() for line in block.splitlines() for part in re.split(r";|&&", _code(line))]
    seen = set()
    for text in [*lines, *inline]:
        match = re.match(r"(?:\$ )?(?:\.venv/bin/)?ips2 (.+)$", text.strip())
        if match and match[1] not in seen and match[1] not in NAMES:
            seen.add(match[1])
            yield shlex.split(match[1])


NAMES = ("plan", "submit")
"""Commands that running text speaks of by their names."""


def _code(line: str) -> str:
    """A line without its comment."""
    return line.split("#")[0]


ALL = list(commands())
TEXTS = [" ".join(words) for words in ALL]
