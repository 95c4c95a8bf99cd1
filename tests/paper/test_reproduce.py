"""``ips2 reproduce``: tasks are done once, and records, tables and figures are written in one call."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ips2_dask.cli.main import main
from ips2_dask.errors import BadInput
from ips2_dask.paper import experiments
from ips2_dask.paper.data import VARIABLE
from ips2_dask.paper.reproduce import FAMILIES, _commit, chosen, reproduce, tables
from ips2_dask.paper.tasks import FIELDS, Results, Scope, Task, quick, record, run_tasks

DATA = os.environ.get(VARIABLE)
needs_data = pytest.mark.skipif(not DATA, reason="IPS2_DATA names no directory of the publishers' files")


def squares(data: str | None, n: int, log: str) -> list[int]:
    """A task's function that leaves a trace."""
    with Path(log).open("a") as file:
        file.write(f"squares {n} {os.getpid()}\n")
    return [i * i for i in range(n)]


def total(data: str | None, numbers: dict[str, list[int]], log: str) -> dict[str, int]:
    """One that comes after others."""
    with Path(log).open("a") as file:
        file.write(f"total 0 {os.getpid()}\n")
    return {name: sum(values) for name, values in numbers.items()}


def refuse(data: str | None) -> None:
    """One that fails."""
    raise BadInput("this", "nothing", "something", "it would fail", "give something")


def chain(log: Path, n: int = 4) -> list[Task]:
    first = [Task(f"squares/{i}", squares, {"n": i, "log": str(log)}) for i in (2, n)]

    def arguments(results: Results) -> dict[str, Any]:
        return {"numbers": {task.name: results[task.name] for task in first}, "log": str(log)}

    return [Task("total", total, arguments, weight=9.0), *first]


def run(tasks: list[Task], out: Path, jobs: int = 1) -> tuple[Results, list[str]]:
    """The results, and the names of the tasks that were not there already."""
    told: list[str] = []
    found = run_tasks(tasks, out, None, jobs, told.append)
    assert len(told) == len(found)
    return found, [line.split()[1] for line in told if "there already" not in line]


def trace(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines()]


def test_a_task_is_given_the_results_of_others_and_is_done_once(tmp_path: Path) -> None:
    first, done = run(chain(tmp_path / "log"), tmp_path)
    assert first["total"] == {"squares/2": 1, "squares/4": 14}
    assert sorted(done) == ["squares/2", "squares/4", "total"]
    again, done = run(chain(tmp_path / "log"), tmp_path)
    assert again == first
    assert done == []
    assert len(trace(tmp_path / "log")) == 3


def test_changed_arguments_are_done_again_with_all_that_comes_after_and_nothing_else(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run(chain(log), tmp_path)
    other = chain(log)
    other[2] = other[2]._replace(arguments={"n": 5, "log": str(log)})
    found, done = run(other, tmp_path)
    assert found["total"]["squares/4"] == 30
    assert sorted(done) == ["squares/4", "total"]


def test_other_code_does_all_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(chain(tmp_path / "log"), tmp_path)
    monkeypatch.setattr("ips2_dask.paper.tasks._code_digest", lambda: "other")
    assert len(run(chain(tmp_path / "log"), tmp_path)[1]) == 3


def test_a_torn_result_is_made_again(tmp_path: Path) -> None:
    first, _ = run(chain(tmp_path / "log"), tmp_path)
    for file in tmp_path.rglob("output.pkl"):
        file.write_bytes(file.read_bytes()[:-3])
    assert run(chain(tmp_path / "log"), tmp_path)[0] == first
    assert len(trace(tmp_path / "log")) == 6


def test_a_task_that_fails_leaves_the_others_done(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="give something"):
        run([*chain(tmp_path / "log")[1:], Task("refuse", refuse, {}, weight=0.1)], tmp_path)
    assert run(chain(tmp_path / "log"), tmp_path)[1] == ["total"]


@pytest.mark.slow
def test_two_processes_give_what_one_gives_and_what_measures_time_comes_last_in_this_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    points = [
        Task(f"point/{f}", experiments.point, {"drawn": {"n_features": f}, "runs": 1, "seed": 3}) for f in (8, 12)
    ]
    timed = Task("timed", squares, {"n": 1, "log": str(log)}, timed=True, weight=99.0)
    one, two = (run([timed, *points, *chain(log)], tmp_path / str(jobs), jobs)[0] for jobs in (1, 2))
    assert one == two
    assert trace(log)[-1] == ["squares", "1", str(os.getpid())]
    assert len({pid for _, _, pid in trace(log)}) > 1  # the second time, others worked


# families


def test_an_unknown_family_is_named_and_known_ones_keep_their_order() -> None:
    with pytest.raises(BadInput, match=r"--only: found 'table9', allowed is table1, table2"):
        chosen(["table1", "table9"])
    assert list(chosen(["levels", "table1"])) == ["table1", "levels"]
    assert list(chosen([])) == list(FAMILIES)


def test_missing_data_are_refused_before_the_first_task(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"soybean-small\.data"):
        reproduce(tmp_path / "out", tmp_path, only=["similarities", "table2"], jobs=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_names_tasks_apart(name: str) -> None:
    tasks = FAMILIES[name].tasks(Scope())
    assert len(tasks) == len({task.name for task in tasks})


def test_large_data_have_the_machine_for_themselves_but_in_the_quick_version() -> None:
    for scope, timed in ((Scope(), True), (quick(), False)):
        large = [one for one in FAMILIES["beyond"].tasks(scope) if one.name.split("/")[1] in experiments.LARGE]
        assert len(large) == len(experiments.LARGE) * 6
        assert {task.timed for task in large} == {timed}


# the command


def test_the_command_writes_flat_records_tables_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ["bench", "reproduce", "--out", str(out), "--only", "similarities", "--quick", "--jobs", "1", "--json"]
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert "1/1 similarities" in said.err
    assert json.loads(said.out.splitlines()[-1])["tables"] == str(out / "tables.md")
    about = json.loads((out / "about.json").read_text())
    assert list(about) == ["similarities"]
    assert about["similarities"]["runs"] == 5
    assert set(about["similarities"]) == {"commit", "date", "runs", "budget", "seed", "versions"}
    records = json.loads((out / "results.json").read_text())
    assert [one["method"] for one in records] == ["SC", "PPC", "IPS2"]
    assert all(tuple(one) == FIELDS for one in records)
    names = {"similarities", "distributions"}
    pictures = {file.name: file.read_bytes() for file in (out / "figures").iterdir()}
    assert set(pictures) == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert main(arguments) == 0
    assert capsys.readouterr().err.count("there already") == 1
    assert json.loads((out / "results.json").read_text()) == records
    assert {file.name: file.read_bytes() for file in (out / "figures").iterdir()} == pictures


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "table7"], "--only"),
        (["--only", "similarities", "--jobs", "0"], "--jobs"),
        (["--only", "similarities", "--seed", "-1"], "--seed"),
    ],
)
def test_arguments_that_can_not_be_used_are_named(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "reproduce", "--out", str(tmp_path), *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"ips2: {said}: found ")
    assert not list(tmp_path.iterdir())


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(BadInput, match=r"thesis\.tex"):
        reproduce(tmp_path, only=["similarities"])
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_without_matplotlib_nothing_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else find(name))
    with pytest.raises(BadInput, match=r"ips2-dask\[report\]"):
        reproduce(tmp_path / "out", only=["similarities"])
    assert not (tmp_path / "out").exists()


def test_the_commit_of_a_checkout_is_told_and_none_of_another_folder(tmp_path: Path) -> None:
    assert _commit(tmp_path) is None
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    found = _commit(package)
    assert found is not None
    assert re.fullmatch("[0-9a-f]{12}", found)
    (package / "__init__.py").write_text("x = 1")
    assert _commit(package) == found + "+"


def test_tables_have_ours_beside_the_papers() -> None:
    records = [
        record("table2", "soybean", "SC", "acc", mean=0.78723, paper=0.787),
        record("table2", "soybean", "IPS2", "acc", mean=0.5, paper=0.936),
        record("table2", "wine", "IPS2", "acc", mean=1.0),
    ]
    rows = ["|  | SC | IPS2 |", "| --- | --- | --- |", "| soybean | 0.7872 / 0.787 | 0.5 / 0.936 |", "| wine |  | 1 |"]
    assert tables(records) == "## table2, default, acc\n\n" + "\n".join(rows) + "\n"


@needs_data
@pytest.mark.slow
def test_all_parts_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "LARGE", ("digits",))  # the others take minutes
    small: dict[str, Any] = {"repeats": 1, "large_runs": 1, "tunes_beyond": False, "starts": 1, "reading_draws": 2}
    monkeypatch.setattr("ips2_dask.paper.reproduce.quick", lambda seed: Scope(runs=1, budget=12, draws=2, **small))
    records = reproduce(tmp_path, DATA, brief=True, jobs=1)
    assert {re.sub(r"-(printed|grid|draws)$", "", one["experiment"]) for one in records} == {*FAMILIES} - {"readings"}
    assert all(tuple(one) == FIELDS for one in records)
    assert json.loads((tmp_path / "results.json").read_text()) == records
    scored = [one for one in records if one["experiment"] == "table2" and one["paper"] is not None]
    assert len({(one["dataset"], one["method"], one["measure"]) for one in scored}) == 5 * (4 * 6 + 6 + 3)
    names = {"tensors", "similarities", "distributions", "heatmaps", "neighbors", "neighbors_time"}
    assert {file.stem for file in (tmp_path / "figures").iterdir()} == {*names, *experiments.POINTS}
    assert set(json.loads((tmp_path / "readings.json").read_text())) == {
        *("starts", "figures", "printed", "later code", "samples", "grid", "draws")
    }
