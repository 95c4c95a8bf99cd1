"""`ips2 bench all`: records in order, none made twice, each by the command that pages show; on tiny records."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from readme import PAGES, README, ROOT

from ips2_dask.bench import records
from ips2_dask.cli.main import main

TINY = "ips2 bench product --samples 200 --repeats 1"
SHOWN = re.sub(r"\s+", " ", " ".join((README, *PAGES.values())))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "shown" not in request.node.name:
        made = {"first": records.Made(TINY, 1), "second": records.Made(f"{TINY} --neighbors 3,4", 1)}
        monkeypatch.setattr(records, "RECORDS", made)


@pytest.mark.slow
def test_what_is_there_is_not_made_again_and_is_listed_with_its_commit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (tmp_path / records.RESULTS / f"{name}.json" for name in ("first", "second"))
    first.parent.mkdir(parents=True)
    first.write_text(json.dumps({"commit": "1" * 40, "date": "2030-01-02T03:04:05", "results": []}))
    before = first.read_text()
    assert main(["bench", "all", "--out", str(tmp_path)]) == 0
    assert "1/1 second" in capsys.readouterr().err
    assert first.read_text() == before
    found = json.loads(second.read_text())
    assert {r["k"] for r in found["results"]} == {3, 4}
    assert found["command"] == f"{TINY} --neighbors 3,4 --json second.json"
    assert [path.name for path in first.parent.iterdir()] == ["first.json", "second.json"]
    second.unlink()
    assert main(["bench", "all", "--out", str(tmp_path), "--list"]) == 0
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:4] for line in said] == [
        ["first", "111111111", "of", "2030-01-02"],
        ["second", "not", "there", "ips2"],
    ]
    assert not second.exists()


@pytest.mark.slow
def test_a_command_that_fails_ends_all_and_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(records.RECORDS, "first", records.Made("ips2 bench product --samples 0", 1))
    assert main(["bench", "all", "--out", str(tmp_path)]) == 1
    assert "the step first ended with status 2" in capsys.readouterr().err
    assert not list((tmp_path / records.RESULTS).iterdir())


def test_a_script_of_research_and_a_kept_run_get_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []

    def run(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        given.append(words[1:])
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(records.subprocess, "run", run)  # type: ignore[attr-defined]
    monkeypatch.setitem(records.RECORDS, "first", records.Made("ips2 bench end-to-end --keep DIR", 1))
    monkeypatch.setitem(records.RECORDS, "second", records.Made("python notebooks/research/copies.py", 1))
    assert main(["bench", "all", "--out", str(tmp_path)]) == 0
    kept, script = given
    assert kept[:5] == ["-m", "ips2_dask.cli", "bench", "end-to-end", "--keep"]
    assert Path(kept[5]).parent == tmp_path / records.RESULTS
    assert script == ["notebooks/research/copies.py", "--out", str(tmp_path / records.RESULTS / "second.json")]


def test_every_record_that_is_shown_has_a_command_and_says_by_which_commit_it_was_made() -> None:
    assert {path.stem for path in (ROOT / records.RESULTS).glob("*.json")} == set(records.RECORDS)
    for name in records.RECORDS:
        found = json.loads((ROOT / records.RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", found["commit"]), name


@pytest.mark.parametrize("name", records.RECORDS)
def test_the_command_of_a_record_is_one_that_is_shown(name: str) -> None:
    command = records.RECORDS[name].command
    program, word, *_ = shlex.split(command)
    if program == "python":
        assert (ROOT / word).exists()
    else:
        assert any(f"{command}{end}" in SHOWN for end in ("`", " ")), command


@pytest.mark.parametrize("words", [["bench", "product", "--samples", "9"], ["bench", "all"]])
def test_a_wheel_says_in_a_line_that_benchmarks_need_a_checkout(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *of: None if name == "ips2_dask.bench" else real(name, *of)
    )
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ips2: bench: found an installation from a wheel")


def test_the_help_says_how_long_it_takes_as_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "10000")  # lines may break within a name
    assert main(["bench", "all", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "ten-million 45 min" in said
    assert "choosing 1 h 26" in said
