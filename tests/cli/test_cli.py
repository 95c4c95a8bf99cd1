"""The command line: what it prints, its exit statuses, that it continues, and that it ends its cluster."""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from sklearn.datasets import load_digits

from ips2_dask import IPS2, Params, clusters, open_run, run
from ips2_dask.cli.display import LiveProgress
from ips2_dask.cli.main import COMMANDS, RENAMED, Stopping, main, whole_parser
from ips2_dask.metrics import scores
from ips2_dask.params import CHOICES, PAPER, Resources
from ips2_dask.store.cache import cache
from ips2_dask.store.layout import STAGES
from ips2_dask.wording import size

KEYS = {"m", "f", "k", "c", "P", "nnz", "stages", "peak_rss_bytes", "eigenvalues", "residual_max", "components"}
KEYS |= {"recall", "run_dir", "warnings"}
SCORES = {"acc", "ari", "fscore", "nmi", "purity"}
OPTIONS = (
    "preset clusters neighbors sigma epsilon affinity bandwidth fusion fusion-weight tensor high-order method labels "
    "scale operator tol workers memory-limit scheduler seed labels-column json out strict quiet serial log-json "
    "scratch transpose partition-rows graph shards vectors"
)
SAID = (
    *("--cluster FILE|NAME", "--scheduler ADDRESS", "--tls DIR", "--scratch DIR", "--encoding NAME"),
    *("--delimiter CHAR", "--thousands CHAR", "--comment CHAR"),
    *(r"as found; \t is a tab", "by the shape of the data", "NaN, nulls and, in text files, empty fields, ?, NA"),
)
WITHOUT_DECIMALS = ("components", "P", "nnz", "m", "f", "k", "c")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three groups with their names in the last column, as CSV: (60, 4) and the class."""
    rng = np.random.default_rng(0)
    kind = np.arange(60) % 3
    X = rng.normal(size=(60, 4)) + 6 * kind[:, None]
    lines = [",".join([*(f"{x:.6f}" for x in row), "abc"[c]]) for row, c in zip(X, kind, strict=True)]
    path = tmp_path_factory.mktemp("table") / "table.csv"
    path.write_text("\n".join(["x0,x1,x2,x3,kind", *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def finished(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run on the table with three clusters, whose tests change nothing in it."""
    out = tmp_path_factory.mktemp("finished") / "run"
    assert main([*_words(table, out), "--quiet"]) == 0
    return out


def _words(table: Path, out: Path) -> list[str]:
    """The command that made `finished`."""
    return ["run", str(table), "--clusters", "3", "--labels-column", "kind", "--out", str(out), "--serial"]


def last_json(out: str) -> dict[str, Any]:
    """The last line of standard output, which must be one JSON object of plain values."""
    found = json.loads(out.splitlines()[-1], parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert isinstance(found, dict)
    return found


def test_a_run_prints_its_report_and_as_the_last_line_what_json_promises(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main([*_words(table, out), "--json"]) == 0
    said = capsys.readouterr()
    found, opened = last_json(said.out), open_run(out)
    assert set(found) >= KEYS | SCORES
    assert (found["m"], found["f"], found["k"], found["c"]) == (60, 4, 5, 3)
    assert all(isinstance(found[name], int) for name in WITHOUT_DECIMALS)
    assert [set(stage) for stage in found["stages"]] == [{"name", "seconds", "skipped", "state", "why"}] * 7
    assert [stage["name"] for stage in found["stages"]] == list(STAGES)
    assert not any(stage["skipped"] for stage in found["stages"])
    assert (found["P"], found["nnz"]) == (len(opened.pairs), opened.tensor().nnz)
    assert found["eigenvalues"] == opened.eigenvalues.tolist()
    assert found["run_dir"] == str(out)
    kind = np.loadtxt(table, delimiter=",", skiprows=1, usecols=4, dtype=str)
    assert {name: found[name] for name in SCORES} == scores(kind, opened.labels)
    assert found["acc"] == 1.0
    assert "60 samples x 4 features, k = 5, c = 3" in said.out
    assert f"{len(opened.pairs):,} active pairs, {opened.tensor().nnz:,} tensor entries" in said.out
    assert "eigenvalues     " + " ".join(f"{v:.5f}" for v in opened.eigenvalues) in said.out
    assert "ACC 1.000  NMI 1.000" in said.out
    assert f"run directory   {out}" in said.out
    assert [line.split()[1] for line in said.err.splitlines()] == list(STAGES)


def test_the_same_command_again_does_nothing_and_says_so(
    table: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    assert main([*_words(table, out), "--json"]) == 0
    said = capsys.readouterr()
    again = last_json(said.out)
    assert all(stage["skipped"] for stage in again["stages"])
    assert said.err.count("there already") == 7
    assert again["eigenvalues"] == open_run(finished).eigenvalues.tolist()
    assert main([*_words(table, out), "--json", "--quiet", "--sigma", "2"]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 1
    assert said.err == ""
    stages = last_json(said.out)["stages"]
    assert [stage["name"] for stage in stages if stage["skipped"]] == ["ingest", "neighbors"]
    assert main([*_words(table, out), "--sigma", "2", "--quiet", "--strict"]) == 0  # it kept its promises
    assert capsys.readouterr() == ("", "")


def test_without_known_labels_there_are_no_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(1).normal(size=(40, 3)))
    words = ["run", str(tmp_path / "x.npy"), "--clusters", "2", "--out", str(tmp_path / "run"), "--serial", "--json"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert not SCORES & set(last_json(said))
    assert "known labels" not in said


def test_every_option_of_the_method_reaches_the_run(table: Path, tmp_path: Path) -> None:
    given = {
        "--clusters": ("n_clusters", 4),
        "--neighbors": ("n_neighbors", 6),
        "--sigma": ("sigma", 2.5),
        "--epsilon": ("epsilon", 5e-4),
        "--affinity": ("affinity", "gaussian"),
        "--bandwidth": ("bandwidth", "median"),
        "--high-order": ("high_order", "abs"),
        "--fusion": ("fusion", "normalized"),
        "--fusion-weight": ("fusion_weight", 0.25),
        "--labels": ("assign_labels", "kmeans"),
        "--duplicates": ("duplicates", "keep"),
        "--scale": ("scale", "zscore"),
        "--operator": ("operator", "triplets"),
        "--tol": ("tol", 1e-4),
        "--seed": ("random_state", 9),
    }
    wanted: dict[str, Any] = dict(given.values())
    arguments = ["run", str(table), "--labels-column", "kind", "--serial", "--quiet", "--out", str(tmp_path / "run")]
    for option, (_, value) in given.items():
        arguments += [option, str(value)]
    assert main(arguments) == 0
    opened = open_run(tmp_path / "run")
    assert opened.params == Params(**wanted)
    rows: dict[str, tuple[str, Any]]
    rows = {"--method": ("method", "ppc"), "--tensor": ("tensor", "decomposable"), "--embedding": ("embedding", "none")}
    rows["--bandwidth"] = "bandwidth", 1.5
    for name, (field, value) in rows.items():
        assert main([*arguments[: arguments.index("--clusters")], "--clusters", "3", name, str(value)]) == 0
        assert getattr(open_run(tmp_path / "run").params, field) == value
    X = np.loadtxt(table, delimiter=",", skiprows=1, usecols=range(4))
    assert np.array_equal(opened.labels, run(X, Params(**wanted)).labels)


def test_a_preset_is_taken_and_options_given_explicitly_win(table: Path, tmp_path: Path) -> None:
    arguments = ["run", str(table), "--labels-column", "kind", "--serial", "--quiet", "--clusters", "3"]
    assert main([*arguments, "--preset", "paper", "--out", str(tmp_path / "a")]) == 0
    assert open_run(tmp_path / "a").params == Params(**PAPER, n_clusters=3)
    assert main([*arguments, "--preset", "paper", "--neighbors", "5", "--out", str(tmp_path / "b")]) == 0
    assert open_run(tmp_path / "b").params == Params(**{**PAPER, "n_neighbors": 5}, n_clusters=3)


def test_the_machines_options_change_no_label(table: Path, tmp_path: Path) -> None:
    arguments = ["run", str(table), "--labels-column", "kind", "--serial", "--quiet", "--clusters", "3"]
    assert main([*arguments, "--out", str(tmp_path / "a")]) == 0
    assert main([*arguments, "--out", str(tmp_path / "b"), "--partition-rows", "13", "--memory-limit", "64GiB"]) == 0
    a, b = open_run(tmp_path / "a"), open_run(tmp_path / "b")
    assert (a.report()["partitions"], b.report()["partitions"]) == (1, 5)
    assert np.array_equal(a.labels, b.labels)


def test_a_transposed_file_is_read_by_columns(tmp_path: Path) -> None:
    X = np.random.default_rng(2).normal(size=(50, 4))
    np.save(tmp_path / "x.npy", np.ascontiguousarray(X.T))
    arguments = ["run", str(tmp_path / "x.npy"), "--transpose", "--clusters", "3", "--out", str(tmp_path / "run")]
    assert main([*arguments, "--serial", "--quiet"]) == 0
    assert np.array_equal(open_run(tmp_path / "run").labels, IPS2(n_clusters=3).fit(X).labels_)


def test_the_help_names_every_option_and_explains_every_parameter(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert not {option for option in OPTIONS.split() if f"--{option}" not in said}
    for words in CHOICES.values():
        assert [word for word in words if word not in said] == []
    assert "k, the size of a neighbourhood" in said
    assert [words for words in SAID if words not in said] == []
    known = commands()
    for command in ("run", "plan"):
        dests = {action.dest: action for action in known[command]._actions}
        assert set(Params.__dataclass_fields__) <= set(dests)
        for name in Params.__dataclass_fields__:
            text = str(dests[name].help)
            assert len(text.split("(default")[0].strip()) > 10, name


def commands() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command."""
    actions = whole_parser()._actions
    return next(dict(action.choices) for action in actions if isinstance(action, argparse._SubParsersAction))


def test_the_help_lists_eleven_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if re.match(r"    [a-z]", line)]
    assert listed == [name for name, (_, text) in COMMANDS.items() if text]
    assert len(listed) == 11
    assert commands().keys() == COMMANDS.keys()


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_says_the_new_one_which_there_is(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([old, "run"]) == 2
    said = capsys.readouterr().err
    assert said == f"ips2 {old}: is now `{RENAMED[old]}`\n"
    name, *words = RENAMED[old].split()
    parser: Any = commands()[words[0]] if name == "ips2" else None
    for word in words[1:] if name == "ips2" else ():
        found = next((a for a in parser._actions if isinstance(a, argparse._SubParsersAction)), None)
        if not word.startswith("-") and found is not None and word in found.choices:
            parser = found.choices[word]
        elif word.startswith("--"):
            assert word in parser._option_string_actions


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "COMMAND"),
        (["klaster"], "invalid choice: 'klaster'"),
        (["run"], "input, --out"),
        (["run", "x.npy"], "--out"),
        (["run", "x.npy", "--out", "o", "--clusters", "two"], "--clusters: 'two' is neither a whole number nor auto"),
        (["run", "x.npy", "--out", "o", "--sigma", "big"], "--sigma: invalid float value: 'big'"),
        (["run", "x.npy", "--out", "o", "--affinity", "rbf"], "--affinity: invalid choice: 'rbf'"),
        (["run", "x.npy", "--out", "o", "--klusters", "3"], "unrecognized arguments: --klusters 3"),
        (["run", "x.npy", "--out", "o", "--serial", "--scheduler", "tcp://a:1"], "not allowed with argument"),
        (["plan", "x.npy", "--strict"], "unrecognized arguments: --strict"),
        (["status"], "directory"),
    ],
)
def test_a_command_that_cannot_be_parsed_is_one_line_and_status_2(
    arguments: Sequence[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert len(found.err.splitlines()) == 1
    assert found.err.startswith("ips2: ")
    assert said in found.err
    assert "--help" in found.err


def test_strict_returns_3_where_a_residual_is_above_tol(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(3).normal(size=(400, 5)))
    arguments = ["run", str(tmp_path / "x.npy"), "--clusters", "3", "--out", str(tmp_path / "run"), "--tol", "1e-300"]
    assert main([*arguments, "--serial", "--quiet", "--json"]) == 0
    assert any("above tol" in text for text in last_json(capsys.readouterr().out)["warnings"])
    assert main([*arguments, "--serial", "--quiet", "--json", "--strict"]) == 3
    said = capsys.readouterr()
    assert last_json(said.out)["residual_max"] > 1e-300
    assert said.err.startswith("ips2: promise not kept: eigenpairs: largest residual: found ")
    assert len(said.err.splitlines()) == 1


def test_a_plan_says_every_stage_and_runs_nothing(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(table), "--labels-column", "kind", "--clusters", "3", "--partition-rows", "20"]) == 0
    said = capsys.readouterr().out
    for name in STAGES:
        assert f" {name} " in said
    assert "60 samples x 4 features, 3 partitions" in said
    assert "MiB" in said
    assert list(tmp_path.iterdir()) == []


def test_a_plan_that_exceeds_the_limit_returns_4_and_so_does_the_run(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = [str(table), "--labels-column", "kind", "--clusters", "3", "--memory-limit", "500MiB"]
    assert main(["plan", *shared]) == 4
    assert "are needed" in capsys.readouterr().out
    assert main(["run", *shared, "--out", str(tmp_path / "run")]) == 4
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert "--memory-limit" in said.err
    assert not (tmp_path / "run").exists()


def test_a_plan_says_what_a_format_without_parts_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "%%MatrixMarket matrix array real general\n30 2\n" + "\n".join(str(i % 7) for i in range(60)) + "\n"
    (tmp_path / "x.mtx").write_text(text)
    assert main(["plan", str(tmp_path / "x.mtx"), "--clusters", "2"]) == 0
    assert "can't be read in parts" in capsys.readouterr().out


def test_status_of_a_finished_run(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(finished)]) == 0
    said = capsys.readouterr().out
    assert said.count("computed") == 7
    assert "state           finished " in said
    assert "n_clusters=3 (the rest by default)" in said


def test_status_of_an_unfinished_run_says_what_is_done(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"

    class Stop:
        """Progress that has seen enough."""

        def begin(self, stage: str) -> None:
            if stage == "eigen":
                raise KeyboardInterrupt

        def advance(self, stage: str, done: int, total: int) -> None: ...
        def end(self, stage: str, seconds: float, skipped: bool) -> None: ...

    with pytest.raises(KeyboardInterrupt):
        run(str(table), Params(n_clusters=3), store=out, labels_column="kind", progress=Stop())
    assert main(["status", str(out)]) == 0
    said = capsys.readouterr().out
    assert (said.count("computed"), said.count("to do")) == (4, 3)
    assert "not finished" in said
    shared = ["run", str(table), "--labels-column", "kind", "--clusters", "3", "--serial", "--json", "--quiet"]
    assert main([*shared, "--out", str(out)]) == 0
    skipped = [stage["skipped"] for stage in last_json(capsys.readouterr().out)["stages"]]
    assert skipped == [True] * 4 + [False] * 3


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_text("")])
def test_status_of_what_is_no_run_is_refused(make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "x")
    assert main(["status", str(tmp_path / "x")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_fault_of_ours_shows_its_traceback_and_returns_1(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a fault put in by this test")

    monkeypatch.setattr("ips2_dask.stages.tensor.run", broken)
    assert main(["run", str(table), "--labels-column", "kind", "--out", str(tmp_path / "run"), "--serial"]) == 1
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "a fault put in by this test" in said
    assert "please report it" in said.splitlines()[-1]


def test_a_damaged_part_that_is_needed_again_is_mended(
    table: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    arguments = ["run", str(table), "--labels-column", "kind", "--clusters", "3", "--out", str(out), "--quiet"]
    cache.clear()  # what this process has read would hide the damage
    chunk = next(path for path in sorted(out.glob("neighbors-*/p000000.*/indices/c/**/*")) if path.is_file())
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"?")
    assert main(["verify", str(out)]) == 1
    said = capsys.readouterr().out
    assert "indices" in said
    assert "Remedy" in said
    assert main([*arguments, "--serial", "--sigma", "3"]) == 0
    capsys.readouterr()
    assert main([*arguments, "--serial", "--sigma", "3", "--verify"]) == 0
    assert main(["verify", str(out)]) == 0


@pytest.mark.parametrize(
    ("given", "said"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 20, "3.0 MiB"), (5 << 40, "5120.0 GiB")]
)
def test_sizes_are_for_people(given: int, said: str) -> None:
    assert size(given) == said


def test_live_bars_leave_the_terminal_as_it_was_also_after_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    bars = LiveProgress()
    bars.begin("ingest")
    bars.advance("ingest", 0, 3)
    bars.advance("ingest", 2, 3)
    bars.end("ingest", 0.1, skipped=False)
    bars.begin("neighbors")
    bars.close()
    bars.close()
    assert "2/7 neighbors" in capsys.readouterr().err


class Counted:
    """Progress that counts what it is told."""

    def __init__(self) -> None:
        self.calls = 0

    def begin(self, stage: str) -> None:
        self.calls += 1

    def advance(self, stage: str, done: int, total: int) -> None:
        self.calls += 1

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        self.calls += 1


def test_an_interrupt_that_the_garbage_collector_loses_comes_again_at_the_next_sign_of_progress(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def collected(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and not stopping.interrupted:
            signal.raise_signal(signal.SIGTERM)

    counted = Counted()
    with Stopping() as stopping:
        told = stopping.guard(counted)
        told.advance("eigen", 0, 2)
        gc.callbacks.append(collected)
        try:
            gc.collect()  # prints, and goes on
        finally:
            gc.callbacks.remove(collected)
        assert stopping.interrupted
        with pytest.raises(KeyboardInterrupt):
            told.advance("eigen", 1, 2)
    assert counted.calls == 1
    assert capsys.readouterr().err == ""


def test_signals_are_handled_as_before_once_a_command_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(number) for number in Stopping.SIGNALS]
    assert main(["--version"]) == 0
    assert [signal.getsignal(number) for number in Stopping.SIGNALS] == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR2])
def test_every_signal_of_a_terminal_or_a_batch_system_is_an_interrupt(number: signal.Signals) -> None:
    with Stopping(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)


def test_a_second_interrupt_ends_the_process_at_once() -> None:
    script = """
import signal
from ips2_dask.cli.main import Stopping
with Stopping():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        signal.raise_signal(signal.SIGTERM)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 130
    assert ended.stderr == "ips2: interrupted again\n"


# The command as a user starts it, in a process of its own with its cluster. Each costs seconds, so there are few.


def command(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """``ips2`` in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "ips2_dask.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def family(pid: int) -> list[psutil.Process]:
    """Living processes of a session."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == pid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def wait_until(condition: Any, seconds: float = 60.0) -> bool:
    """Whether something comes true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.slow
def test_the_demo_runs_on_a_cluster_and_finds_the_digits(tmp_path: Path) -> None:
    process = command("demo", "--json", cwd=tmp_path)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    found = last_json(out)
    assert found["acc"] >= 0.93
    assert found["nmi"] >= 0.9
    assert found["run_dir"] == str(tmp_path / "ips2-demo")
    dashboard, *lines = err.splitlines()
    assert dashboard.startswith("dashboard ")
    assert [line.split()[1] for line in lines] == list(STAGES)
    assert "scikit-learn's digits: 1,797 samples x 64 features, k = 5, c = 10" in out
    opened = open_run(tmp_path / "ips2-demo")
    assert np.array_equal(opened.labels, IPS2(n_clusters=10).fit(_digits()).labels_)
    assert found["acc"] == scores(load_digits(return_X_y=True)[1], opened.labels)["acc"]
    assert wait_until(lambda: not family(process.pid))


def _digits() -> Any:
    X = load_digits(return_X_y=True)[0]
    return X[:, X.min(axis=0) < X.max(axis=0)]  # constant columns are warned of, and change no distance


@pytest.fixture(scope="module")
def long_input(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An input that keeps two workers busy for a while."""
    path = tmp_path_factory.mktemp("long") / "x.npy"
    np.save(path, np.random.default_rng(4).normal(size=(25_000, 50)).astype(np.float32))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGTERM", pytest.param("Ctrl-C", marks=pytest.mark.slow)])
def test_an_interrupted_run_returns_130_closes_its_cluster_and_can_be_continued(
    how: str, long_input: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    arguments = ["run", str(long_input), "--clusters", "5", "--neighbors", "12", "--out", str(out), "--workers", "2"]
    process = command(*arguments, "--partition-rows", "2000")
    assert process.stderr is not None
    assert process.stderr.readline().startswith("dashboard ")
    first = process.stderr.readline()
    assert first.startswith("1/7 ingest"), first
    assert len(family(process.pid)) >= 3  # the client and two workers
    if how == "SIGTERM":
        process.send_signal(signal.SIGTERM)
    else:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
    _, err = process.communicate(timeout=100)
    assert process.returncode == 130, err
    said = f"ips2: interrupted; the same command continues the run in {out}: "
    assert err.splitlines()[-1].startswith(f"{said}ips2 run ")
    assert "Traceback" not in err
    assert wait_until(lambda: not family(process.pid))
    assert main(["status", str(out)]) == 0


@pytest.mark.slow
def test_a_cluster_that_meets_bad_input_is_closed_and_nothing_is_left(tmp_path: Path) -> None:
    X = np.random.default_rng(5).normal(size=(3000, 4))
    X[2222, 3] = np.nan
    np.save(tmp_path / "x.npy", X)
    arguments = ["run", str(tmp_path / "x.npy"), "--clusters", "2", "--out", str(tmp_path / "run"), "--workers", "2"]
    process = command(*arguments, "--partition-rows", "500", "--scratch", str(tmp_path / "scratch"))
    out, err = process.communicate(timeout=200)
    assert process.returncode == 2, err
    assert out == ""
    assert len(err.splitlines()) == 2, err  # where the dashboard was, and what is wrong
    assert "nan at row 2222, column 3" in err
    assert not (tmp_path / "run").exists()
    assert wait_until(lambda: not family(process.pid))
    left = [path for path in (tmp_path / "scratch").rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert left == []


@pytest.mark.parametrize("address", ["nowhere", "tcp://127.0.0.1:9"])
def test_a_scheduler_that_is_not_there_is_bad_input(
    address: str, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", str(table), "--labels-column", "kind", "--clusters", "3", "--out", str(tmp_path / "run")]
    assert main([*arguments, "--scheduler", address]) == 2
    assert "--scheduler: found" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_running_scheduler_is_used_and_left_running(table: Path, tmp_path: Path) -> None:
    arguments = ["run", str(table), "--labels-column", "kind", "--clusters", "3", "--quiet", "--partition-rows", "20"]
    with clusters.executor(Resources(n_workers=1)) as executor:
        address = executor.client.scheduler.address
        assert main([*arguments, "--scheduler", address, "--out", str(tmp_path / "a")]) == 0
        assert executor.n_workers == 1
        assert executor.client.submit(math.factorial, 5).result() == 120
    assert main([*arguments, "--serial", "--out", str(tmp_path / "b")]) == 0
    assert np.array_equal(open_run(tmp_path / "a").labels, open_run(tmp_path / "b").labels)
