"""Progress: what a run tells while it works, and how a terminal, a log and a machine are told of it."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from ips2_dask import Params, Resources, run
from ips2_dask.cli.display import JsonLog, LiveProgress, PlainProgress, in_words, progress
from ips2_dask.cli.main import main
from ips2_dask.progress import Progress
from ips2_dask.store.layout import STAGES
from ips2_dask.wording import duration


class Noted(Progress):
    """Progress that keeps the numbers it is told."""

    def __init__(self) -> None:
        self.facts: list[tuple[str, dict[str, Any]]] = []

    def note(self, stage: str, facts: Mapping[str, Any]) -> None:
        self.facts.append((stage, dict(facts)))


@pytest.mark.parametrize("vectors", ["in-core", "chunked"])
def test_the_solver_tells_each_cycles_residual_and_the_tolerance(vectors: str) -> None:
    X = np.random.default_rng(3).normal(size=(300, 4))
    noted = Noted()
    found = run(X, Params(n_clusters=3, tol=1e-5), Resources(vectors=vectors, partition_rows=150), progress=noted)
    assert {stage for stage, _ in noted.facts} == {"eigen"}
    told = [facts for _, facts in noted.facts]
    history = found._context.facts["eigen"]["history"]
    assert told == [{**entry, "tol": 1e-5} for entry in history]
    assert told[-1]["residual"] <= 1e-5 < told[0]["residual"]


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_stage_says_rate_and_time_left_and_starts_anew_with_another_round() -> None:
    clock = Clock()
    shown = PlainProgress(clock)
    shown.begin("tensor")
    assert in_words(shown._task) == ""
    clock.now += 4
    shown.advance("tensor", 40, 200)
    assert in_words(shown._task) == "40 of 200, 10/s, 16 s left"
    clock.now += 16
    shown.advance("tensor", 200, 200)
    assert "left" not in in_words(shown._task)
    shown.advance("tensor", 0, 10)
    clock.now += 29
    shown.advance("tensor", 1, 10)
    assert in_words(shown._task) == "1 of 10, 29.0 s each, 4 min 21 s left"


def test_the_solvers_bar_is_the_logarithm_of_its_residual() -> None:
    clock = Clock()
    shown = PlainProgress(clock)
    shown.begin("eigen")
    shown.note("eigen", {"residual": 1e-1, "tol": 1e-3})
    assert (shown._task.completed, shown._task.total) == (0.0, 1.0)
    clock.now += 10
    shown.note("eigen", {"residual": 1e-2, "tol": 1e-3})
    assert shown._task.completed == pytest.approx(0.5)
    assert in_words(shown._task) == "residual 1.0e-02, tolerance 1e-03, 10 s left"
    shown.note("eigen", {"residual": 1e-5, "tol": 1e-3})
    assert shown._task.completed == 1.0
    shown.note("eigen", {"something": "else"})
    shown.advance("eigen", 0, 1)
    assert in_words(shown._task) == "residual 1.0e-05, tolerance 1e-03"


def test_a_log_gets_a_line_a_stage_and_one_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    plain = PlainProgress(clock)
    plain.begin("tensor")
    for done in range(1, 8):
        clock.now += 10
        plain.advance("tensor", done, 8)
    plain.end("tensor", 80.0, skipped=False)
    plain.begin("eigen")
    clock.now += 31
    plain.note("eigen", {"residual": 0.1, "tol": 1e-3})
    plain.end("eigen", 31.0, skipped=True)
    assert capsys.readouterr().err.splitlines() == [
        "3/7 tensor    ... 3 of 8, 10.0 s each, 50 s left",
        "3/7 tensor    ... 6 of 8, 10.0 s each, 20 s left",
        "3/7 tensor    80.00 s",
        "5/7 eigen     ... residual 1.0e-01, tolerance 1e-03",
        "5/7 eigen     there already",
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_the_live_table_fits_its_terminal_and_keeps_a_line_a_stage(width: int) -> None:
    screen = io.StringIO()
    live = LiveProgress(Console(file=screen, width=width, force_terminal=True, color_system=None, legacy_windows=False))
    for stage in STAGES:
        live.begin(stage)
        live.advance(stage, 0, 12_345)
        live.advance(stage, 1234, 12_345)
        live.note(stage, {"residual": 3.21e-2, "tol": 1e-3})
        live.end(stage, 7384.0, skipped=stage == "ingest")
    live.close()
    shown = [re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", line) for line in re.split(r"[\r\n]+", screen.getvalue())]
    assert max(map(len, shown)) <= width
    first = max(i for i, line in enumerate(shown) if f"1/7 {STAGES[0]}" in line)  # it is drawn again and again
    last = "\n".join(shown[first:])
    assert all(f"{number}/7 {stage}" in last for number, stage in enumerate(STAGES, 1))
    assert last.count("there already") == 1
    assert last.count("2 h 03 min  residual 3.2e-02, tolerance 1e-03") == 6
    assert "…" not in last


def read(text: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in text.splitlines()]
    assert all(list(line) == ["time", "stage", "event", "done", "total", "seconds", "facts"] for line in lines)
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    return lines


def test_machines_get_a_json_object_a_line_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "X.npy", np.random.default_rng(3).normal(size=(300, 4)))
    asked = ["run", str(tmp_path / "X.npy"), "--clusters", "3", "--out", str(tmp_path / "run"), "--serial"]
    assert main([*asked, "--log-json", "-", "--quiet"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    lines = read(said.out)
    assert [line["stage"] for line in lines if line["event"] == "begin"] == list(STAGES)
    assert [line["facts"] for line in lines if line["event"] == "end"] == [{"skipped": False}] * 7
    assert lines[0]["event"] == "start"
    assert lines[-1]["event"] == "finish"
    notes = [line["facts"] for line in lines if line["event"] == "note"]
    assert set(notes[0]) == {"products", "residual"}
    assert set(notes[-1]) == {"products", "residual", "change"}
    for stage in STAGES:
        done = [line for line in lines if line["event"] == "advance" and line["stage"] == stage]
        assert done[-1]["done"] == done[-1]["total"]
    assert main([*asked, "--log-json", str(tmp_path / "log.jsonl")]) == 0
    said = capsys.readouterr()
    assert "3 clusters" in said.out
    assert "7/7 label     there already" in said.err
    assert [line["facts"] for line in read((tmp_path / "log.jsonl").read_text()) if line["event"] == "end"] == [
        {"skipped": True}
    ] * 7


@pytest.mark.parametrize(
    ("error", "event", "facts"),
    [(KeyboardInterrupt(), "interrupted", None), (ValueError("why"), "failed", {"error": "ValueError: why"})],
)
def test_a_log_says_how_a_run_ended(error: BaseException, event: str, facts: Any, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = progress(True, str(path))
    log.__enter__().begin("ingest")
    assert not log.__exit__(type(error), error, None)
    last = read(path.read_text())[-1]
    assert (last["event"], last["facts"]) == (event, facts)


def test_thousands_of_tasks_are_not_thousands_of_lines() -> None:
    clock, stream = Clock(), io.StringIO()
    log = JsonLog(stream, clock)
    log.begin("tensor")
    for done in range(1, 10_001):
        clock.now += 0.001
        log.advance("tensor", done, 10_000)
    lines = [line for line in read(stream.getvalue()) if line["event"] == "advance"]
    assert len(lines) <= 102
    assert lines[-1]["done"] == 10_000


def test_a_log_that_cannot_be_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "X.npy", np.random.default_rng(3).normal(size=(30, 4)))
    asked = ["run", str(tmp_path / "X.npy"), "--clusters", "3", "--out", str(tmp_path / "run"), "--serial"]
    assert main([*asked, "--log-json", str(tmp_path / "no" / "log")]) == 2
    assert "--log-json: found" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.417, "0.42 s"),
        (9.99, "9.99 s"),
        (9.996, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7_384, "2 h 03 min"),
    ],
)
def test_durations_are_for_people(seconds: float, said: str) -> None:
    assert duration(seconds) == said
