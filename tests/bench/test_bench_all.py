"""`ips2 bench all`: steps in order, one that was interrupted made again, one that is there not; on tiny steps."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ips2_dask.bench import everything, figures, origin, shown
from ips2_dask.bench.notebooks import execute, images
from ips2_dask.cli.main import main

FIRST = shown.Step(
    "first",
    "ips2 bench product --samples 200 --repeats 1 --operators matrix-free",
    "notebooks/results/first.json",
    ("ips2_dask/kernels/*.py",),
    1,
)
SECOND = shown.Step(
    "second",
    "ips2 bench product --samples 500 --repeats 200 --neighbors 3,4,5,6,7",
    "notebooks/results/second.json",
    ("ips2_dask/kernels/*.py",),
    1,
)
STEPS = (FIRST, SECOND)

DRIVER = f"""
import sys
from ips2_dask.bench import shown
from ips2_dask.bench.shown import Step
from ips2_dask.cli.main import main
shown.STEPS = {STEPS!r}
sys.exit(main(sys.argv[1:]))
"""
"""The command with two steps that take seconds, as a process that can be killed."""


def command(out: Path) -> list[str]:
    return [sys.executable, "-c", DRIVER, "bench", "all", "--busy", "--out", str(out)]


def made(out: Path, step: shown.Step) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / step.record).read_text())
    return found


@pytest.mark.slow
def test_a_run_that_is_killed_half_way_is_gone_on_with(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if line.startswith("2/2 second"):
                break
        # the first record of the second step is there, and its file is not
        assert any("k 3 " in line for line in process.stdout)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
        process.stdout.close()
        process.stderr.close()
    assert made(tmp_path, FIRST)["complete"]
    assert not (tmp_path / SECOND.record).exists()
    before = (tmp_path / FIRST.record).stat().st_mtime_ns
    done = subprocess.run(command(tmp_path), capture_output=True, text=True, check=True)
    assert "1 of 2 are there" in done.stderr
    assert "1/1 second" in done.stderr
    assert (tmp_path / FIRST.record).stat().st_mtime_ns == before
    assert {r["k"] for r in made(tmp_path, SECOND)["results"]} == set(range(3, 8))
    for step in STEPS:
        found = made(tmp_path, step)
        assert (found["commit"], found["changes"]) == tuple(origin.present())
        assert found["command"] == f"{step.command} --json {Path(step.record).name} --busy"
    assert not (tmp_path / everything.ASIDE).exists()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "STEPS", STEPS)


def write(out: Path, step: shown.Step, **head: Any) -> None:
    (out / step.record).parent.mkdir(parents=True, exist_ok=True)
    (out / step.record).write_text(
        json.dumps({**origin.present()._asdict(), "date": "2030-01-02", **head, "results": []})
    )


@pytest.mark.usefixtures("small")
def test_the_list_says_what_is_there_by_which_commit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, FIRST)
    assert main(["bench", "all", "--out", str(tmp_path), "--list"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.split()[:2] == ["first", "there"]
    assert (origin.present().commit or "no commit")[:9] in first
    assert "2030-01-02" in first
    assert first.endswith(FIRST.command)
    assert second.split()[:3] == ["second", "not", "there"]
    write(tmp_path, FIRST, commit="1" * 40, changes=None)
    write(tmp_path, SECOND, complete=False)
    assert main(["bench", "all", "--out", str(tmp_path), "--list"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "of other code" in first
    assert "111111111" in first
    assert "not there" in second
    write(tmp_path, SECOND, busy=True)
    assert main(["bench", "all", "--out", str(tmp_path), "--list", "--only", "second"]) == 0
    (second,) = capsys.readouterr().out.splitlines()
    assert second.split()[:3] == ["second", "there,", "busy"]


@pytest.mark.parametrize(
    ("change", "there"),
    [
        ({}, True),
        ({"complete": False}, False),
        ({"commit": "1" * 40}, False),
        ({"changes": "other"}, False),
        ({"commit": None}, False),
    ],
)
def test_only_a_whole_record_of_this_code_is_not_made_again(
    change: dict[str, Any], there: bool, tmp_path: Path
) -> None:
    write(tmp_path, FIRST, **change)
    assert everything.is_there(FIRST, tmp_path, origin.Code(*origin.present())) is (
        there or (change == {"commit": None} and origin.present().commit is None)
    )


def test_a_step_whose_figure_is_missing_or_shows_other_records_is_made_again(tmp_path: Path) -> None:
    figure = pytest.importorskip("matplotlib.figure", reason="needs the extra [report]")
    step = FIRST._replace(figure="notebooks/images/first.png")
    write(tmp_path, step)
    assert not everything.is_there(step, tmp_path, origin.present())
    (tmp_path / "notebooks" / "images").mkdir()
    for records, there in (([{"seconds": 1.0}], False), ([], True)):
        figures.save(figure.Figure(), tmp_path / "notebooks" / "images" / "first.png", records)
        assert everything.is_there(step, tmp_path, origin.present()) is there


def test_a_notebook_whose_picture_is_missing_is_made_again(tmp_path: Path) -> None:
    step = FIRST._replace(pictures={"notebooks/images/first.png": 0})
    write(tmp_path, step)
    assert not everything.is_there(step, tmp_path, origin.present())
    (tmp_path / "notebooks" / "images").mkdir()
    (tmp_path / "notebooks" / "images" / "first.png").touch()
    assert everything.is_there(step, tmp_path, origin.present())


def test_records_before_they_knew_their_origin_are_whole_and_of_other_code(tmp_path: Path) -> None:
    (tmp_path / FIRST.record).parent.mkdir(parents=True)
    (tmp_path / FIRST.record).write_text(json.dumps({"machine": {}, "command": "ips2 bench product", "results": []}))
    assert everything.origin_of(FIRST, tmp_path) == {"machine": {}, "command": "ips2 bench product"}
    assert not everything.is_there(FIRST, tmp_path, origin.Code(None, None))


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (FIRST._replace(packages=("no_such_module", "faiss_of_nobody")), "found no faiss_of_nobody, no_such_module"),
        (FIRST._replace(needs_data=True), "IPS2_DATA: found no folder"),
    ],
)
def test_what_is_missing_is_said_in_a_line_before_anything_is_made(
    step: shown.Step, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shown, "STEPS", (FIRST, step._replace(name="third", record="third.json")))
    monkeypatch.delenv("IPS2_DATA", raising=False)
    assert main(["bench", "all", "--out", str(tmp_path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_fails_ends_the_command_and_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = FIRST._replace(command="ips2 bench product --samples 0")
    monkeypatch.setattr(shown, "STEPS", (failing, SECOND))
    write(tmp_path, failing, commit="1" * 40)
    before = (tmp_path / failing.record).read_text()
    assert main(["bench", "all", "--out", str(tmp_path)]) == 1
    assert "the step first ended with status 2" in capsys.readouterr().err
    assert (tmp_path / failing.record).read_text() == before
    assert not (tmp_path / SECOND.record).exists()


def test_the_commands_are_those_that_are_shown_with_files_of_their_own(tmp_path: Path) -> None:
    (ten,) = [step for step in shown.STEPS if step.name == "ten-million"]
    given = everything.words(ten, tmp_path, busy=False)
    aside = tmp_path / everything.ASIDE
    shown_words = ten.command.replace("DIR", str(aside / "ten-million")).split()[1:]
    assert given == [sys.executable, "-m", "ips2_dask.cli", *shown_words, "--json", str(aside / "ten-million.json")]
    (growth,) = [step for step in shown.STEPS if step.name == "scaling"]
    assert everything.words(growth, tmp_path, busy=True)[-5:] == [
        "--json",
        str(aside / "scaling.json"),
        "--busy",
        "--figure",
        str(aside / "scaling.png"),
    ]


def test_records_of_an_interrupted_step_are_gone_on_with_if_they_are_of_this_code(tmp_path: Path) -> None:
    (step,) = [step for step in shown.STEPS if step.name == "noise"]
    file = tmp_path / everything.ASIDE / "noise.json"
    file.parent.mkdir()
    for commit, stays in ((origin.present().commit, True), ("1" * 40, False)):
        file.write_text(json.dumps({**origin.present()._asdict(), "commit": commit, "complete": False, "results": []}))
        assert "--resume" in everything.words(step, tmp_path, busy=False)
        assert file.exists() is stays


def test_the_help_says_how_long_it_takes_and_what_is_an_estimate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "10000")  # lines may break within a name
    assert main(["bench", "all", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "are estimates" in said
    assert "ten-million 45 min" in said
    assert "notebook-02 ~1 min" in said
    for word in ("--out", "--only", "--list", "--busy"):
        assert word in said


@pytest.mark.parametrize(("seconds", "text"), [(1, "1 min"), (3599, "1 h 00"), (7500, "2 h 05"), (840, "14 min")])
def test_a_time_is_spelled_in_hours_and_minutes(seconds: int, text: str) -> None:
    assert shown.spelled(seconds) == text


def test_a_notebook_is_executed_with_its_origin_and_gives_its_pictures(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs the extra [notebooks]")
    pytest.importorskip("nbclient", reason="needs the extra [notebooks]")
    text = base64.b64encode(b"a picture").decode()
    new = nbformat.v4
    cells = [
        new.new_code_cell("1 + 1"),
        new.new_code_cell(f"from IPython.display import display\ndisplay({{'image/png': {text!r}}}, raw=True)"),
    ]
    notebook = new.new_notebook(cells=cells)
    nbformat.write(notebook, tmp_path / "source.ipynb")
    (tmp_path / "out").mkdir()
    found = execute(tmp_path / "source.ipynb", tmp_path / "out" / "source.ipynb")
    assert images(found) == [b"a picture"]
    assert found["cells"][0]["outputs"][0]["data"]["text/plain"] in ("2", ["2"])
    written = json.loads((tmp_path / "out" / "source.ipynb").read_text())
    assert (written["metadata"]["ips2_dask"]["commit"], written["cells"]) == (origin.present().commit, found["cells"])
    step = shown.Step("notebook-00", "", "out/source.ipynb", (), 1)
    assert everything.is_there(step, tmp_path, origin.present())
