"""A file system of a few MiB that can be filled and be made read-only."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

SIZE = "48m"


class SmallDisk:
    """A tmpfs that is mounted while this lasts; where it can't be, the test is skipped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.filler = path / "filler"

    def __enter__(self) -> Self:
        self.path.mkdir()
        made = _mount("-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(self.path))
        if made.returncode != 0:
            pytest.skip(f"a file system can't be mounted here: {made.stderr.strip()}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)

    def close(self) -> bool:
        """Make it read-only, unless somebody is writing a file just now; returns whether it is."""
        return _mount("-o", "remount,ro", str(self.path)).returncode == 0

    def open(self) -> None:
        """Let it be written to again."""
        assert _mount("-o", "remount,rw", str(self.path)).returncode == 0


def _mount(*arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return subprocess.CompletedProcess([], 1, "", "there is no mount")
