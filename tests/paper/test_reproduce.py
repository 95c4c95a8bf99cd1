"""``ips2 bench reproduce``: pieces are done once, and records, tables and figures are written in one call."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from ips2_dask.cli.main import main
from ips2_dask.errors import BadInput
from ips2_dask.paper import experiments
from ips2_dask.paper.data import VARIABLE
from ips2_dask.paper.reproduce import FAMILIES, chosen, reproduce, tables
from ips2_dask.paper.work import FIELDS, Scope, Work, record

DATA = os.environ.get(VARIABLE)
needs_data = pytest.mark.skipif(not DATA, reason="IPS2_DATA names no directory of the publishers' files")


def squares(data: str | None, n: int, log: str) -> list[int]:
    """A piece that leaves a trace, and fails below zero."""
    with Path(log).open("a") as file:
        file.write(f"{n} {os.getpid()}\n")
    if n < 0:
        raise BadInput("this", "nothing", "something", "it would fail", "give something")
    return [i * i for i in range(n)]


def run(out: Path, *numbers: int, jobs: int = 1, **how: Any) -> tuple[dict[Any, Any], list[str]]:
    """The results, and the names of the pieces that were not there already."""
    told: list[str] = []
    calls = {(str(n),): {"n": n, "log": str(out / "log")} for n in numbers}
    found = Work(out, None, Scope(), jobs, told.append).each("squares", squares, calls, **how)
    return found, [line.split()[1] for line in told if "there already" not in line]


def trace(out: Path) -> list[list[str]]:
    return [line.split() for line in (out / "log").read_text().splitlines()]


def test_a_piece_is_done_once_and_other_arguments_are_done_beside_it(tmp_path: Path) -> None:
    first, done = run(tmp_path, 2, 4)
    assert first == {("2",): [0, 1], ("4",): [0, 1, 4, 9]}
    assert sorted(done) == ["squares/2", "squares/4"]
    assert run(tmp_path, 2, 4) == (first, [])
    found, done = run(tmp_path, 5, 4)
    assert list(found) == [("5",), ("4",)]
    assert done == ["squares/5"]
    assert len(trace(tmp_path)) == 3


def test_other_code_does_all_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, 2, 4)
    monkeypatch.setattr("ips2_dask.paper.work._code_digest", lambda: "other")
    assert len(run(tmp_path, 2, 4)[1]) == 2


def test_a_torn_result_is_made_again(tmp_path: Path) -> None:
    first, _ = run(tmp_path, 2, 4)
    for file in tmp_path.rglob("output.pkl"):
        file.write_bytes(file.read_bytes()[:-3])
    assert run(tmp_path, 2, 4)[0] == first
    assert len(trace(tmp_path)) == 4


def test_a_piece_that_fails_leaves_the_others_done(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="give something"):
        run(tmp_path, 2, 4, -1)
    assert run(tmp_path, 2, 4)[1] == []


@pytest.mark.slow
def test_two_processes_give_what_one_gives_and_what_measures_time_is_done_in_this_one(tmp_path: Path) -> None:
    calls = {(str(f),): {"drawn": {"n_features": f}, "runs": 1, "seed": 3} for f in (8, 12)}
    one, two = (Work(tmp_path / str(n), None, Scope(), n).each("point", experiments.point, calls) for n in (1, 2))
    assert one == two
    run(tmp_path, 1, 2, 3, 4, jobs=2)
    assert len({pid for _, pid in trace(tmp_path)} - {str(os.getpid())}) > 0
    run(tmp_path, 5, 6, jobs=2, alone=True)
    assert trace(tmp_path)[-2:] == [["5", str(os.getpid())], ["6", str(os.getpid())]]


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
    small = Scope(runs=1, budget=12, draws=2, repeats=1)
    monkeypatch.setattr("ips2_dask.paper.reproduce.quick", lambda seed: small)
    records = reproduce(tmp_path, DATA, brief=True, jobs=1)
    assert {re.sub(r"-(printed|grid|draws)$", "", one["experiment"]) for one in records} == {*FAMILIES}
    assert all(tuple(one) == FIELDS for one in records)
    assert json.loads((tmp_path / "results.json").read_text()) == records
    scored = [one for one in records if one["experiment"] == "table2" and one["paper"] is not None]
    assert len({(one["dataset"], one["method"], one["measure"]) for one in scored}) == 5 * (4 * 6 + 6 + 3)
    names = {"tensors", "similarities", "distributions", "heatmaps", "neighbors", "neighbors_time"}
    assert {file.stem for file in (tmp_path / "figures").iterdir()} == {*names, *experiments.POINTS}
