"""Where no folder for compiled code can be written, as in containers, it lies in a temporary one, or is not kept."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import ips2_dask

USE = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from ips2_dask.kernels import sparse
import numpy as np
lists = sparse.reverse_lists(np.array([[0, 1], [1, 0], [2, 1]], np.int32))
stats = sparse._reverse.stats
print(lists.centers.tolist(), stats.cache_path is None, sum(stats.cache_misses.values()))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package in whose folders nothing can be written, not even by root, and a home that is none."""
    copy = tmp_path / "site" / "ips2_dask"
    shutil.copytree(Path(ips2_dask.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "kernels" / "__pycache__").touch()
    (tmp_path / "home").touch()
    return copy.parent


def use(package: Path, temporary: Path) -> subprocess.CompletedProcess[str]:
    home = str(package.parent / "home")
    names = {"PATH": os.environ["PATH"], "HOME": home, "XDG_CACHE_HOME": home}
    return subprocess.run(
        [sys.executable, "-B", "-c", USE, str(temporary)],
        cwd=package,
        env=names,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
def test_compiled_code_is_kept_in_a_temporary_folder_of_this_user(package: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    first, second = use(package, temporary), use(package, temporary)
    assert (first.stderr, second.stderr) == ("", "")
    assert (first.stdout, second.stdout) == ("[0, 1, 0, 1, 2, 2] False 1\n", "[0, 1, 0, 1, 2, 2] False 0\n")
    (folder,) = temporary.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert list(folder.rglob("*.nbi"))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["no folder", "open to others", "a link"])
def test_without_any_folder_it_says_so_and_computes(case: str, package: Path, tmp_path: Path) -> None:
    temporary, own = tmp_path / "temporary", tmp_path / "temporary" / f"ips2-numba-{os.getuid()}"
    if case == "open to others":  # Numba unpickles what it finds there
        own.mkdir(parents=True)
        own.chmod(0o777)
    elif case == "a link":
        temporary.mkdir()
        (tmp_path / "elsewhere").mkdir()
        own.symlink_to(tmp_path / "elsewhere")
    done = use(package, temporary)
    assert done.stdout.startswith("[0, 1, 0, 1, 2, 2] True")
    assert done.stderr.count("IPS2Warning: no folder for compiled code can be written") == 1
    assert "set NUMBA_CACHE_DIR" in done.stderr
