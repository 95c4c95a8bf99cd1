"""The README: every command in it is one that there is, and those for one machine are run, in its own order."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ips2_dask.cli import _parser
from ips2_dask.evaluation.bench.tables import TABLES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")

RUN = ("run wine.csv", "plan wine.csv", "status wine-run", "verify wine-run", "gc wine-run", "sweep wine.csv",
       "predict wine-run", "report wine-run", "export wine-run")  # fmt: skip
"""What commands that are run begin with; the others need a cluster, data to fetch or many minutes."""


def blocks(language: str = "") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> Iterator[list[str]]:
    """Arguments of every call of ips2, in blocks and in running text, once each."""
    seen = set()
    inline = [re.sub(r"\s+", " ", text) for text in re.findall(r"`(ips2 [^`]+)`", README)]
    lines = [
        part for block in blocks() for line in block.splitlines() for part in re.split(r";|&&", line.split("#")[0])
    ]
    for text in [*lines, *inline]:
        match = re.search(r"(?:^|\s|/)ips2 (.+)$", text.strip())
        if match and match[1] not in seen and "..." not in match[1]:
            seen.add(match[1])
            yield shlex.split(match[1])


ALL = list(commands())


@pytest.mark.parametrize("words", ALL, ids=[" ".join(words)[:60] for words in ALL])
def test_every_command_is_one_that_there_is(words: list[str]) -> None:
    if words[-1] in ("--help",) or len(words) == 1:  # named as such, without what it needs
        assert words[0] in _parser([], every=False).format_help()
        return
    _parser(words).parse_args(words)


@pytest.mark.slow
def test_the_commands_on_a_table_of_ones_own_run_as_they_stand(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    make = re.search(r'\.venv/bin/python -c "\n(from sklearn.datasets import load_wine.*?)"\n', README, re.DOTALL)
    assert make is not None
    subprocess.run([sys.executable, "-c", make[1]], cwd=tmp_path, check=True)
    table = (tmp_path / "wine.csv").read_text().splitlines()
    (tmp_path / "new.csv").write_text("\n".join(line.rpartition(",")[0] for line in table[:20]) + "\n")
    ran = []
    for words in ALL:
        text = " ".join(words)
        if text.startswith(RUN):
            done = subprocess.run(
                [sys.executable, "-m", "ips2_dask.cli", *words], cwd=tmp_path, env=environment, capture_output=True,
                text=True,
            )  # fmt: skip
            assert done.returncode == 0, (text, done.stderr)
            ran.append(text)
    assert len(ran) >= 6, ran


@pytest.mark.slow
def test_the_python_examples_run_where_they_need_no_cluster(tmp_path: Path) -> None:
    (text,) = [block for block in blocks("python") if "fit_predict(X)" in block and "open_run" in block]
    lines = [line for line in text.splitlines() if "client=client" not in line and "x.zarr" not in line]
    begin = "import numpy as np\nfrom sklearn.datasets import make_blobs\nfrom ips2_dask import run\n" \
        "X, _ = make_blobs(200, 4, centers=10, random_state=0)\nX_new = X[:5]\nrun(X, __import__('ips2_dask').Params(" \
        "n_clusters=10), store='out')\n"  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    subprocess.run([sys.executable, "-c", begin + "\n".join(lines)], cwd=tmp_path, env=environment, check=True)


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
    for name in pictures:
        data = base64.b64encode((ROOT / name).read_bytes()).decode()
        assert data in flat, name


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_benchmarks_are_those_of_their_files(name: str) -> None:
    shown = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", README, re.DOTALL)
    file = ROOT / "notebooks" / "results" / f"{name}.json"
    assert shown is not None
    document = json.loads(file.read_text(encoding="utf-8"))
    assert shown[1] == TABLES[name](document)
    assert document["command"].partition(" --json")[0] in README
