"""Files of records know their origin: commit, date, threads, other processes; figures know which file they show."""

from __future__ import annotations

import datetime
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ips2_dask.bench import activity, figures, numbers, origin
from ips2_dask.cli.main import main
from ips2_dask.kernels.parallel import usable_cores

ROOT = Path(__file__).parents[2]
TINY = ["bench", "product", "--samples", "200", "--repeats", "1", "--operators", "matrix-free"]

needs_git = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the checkout's history")


def git(folder: Path, *arguments: str) -> str:
    person = ["-c", "user.name=someone", "-c", "user.email=someone@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *person, "-C", str(folder), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package's folder in a checkout of one commit."""
    folder = tmp_path / "checkout" / "package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("a = 1\n")
    (folder.parent / "record.json").write_text("{}\n")
    git(folder.parent, "init", "-q")
    git(folder.parent, "add", ".")
    git(folder.parent, "commit", "-q", "-m", "first")
    return folder


# ---- which code


def test_a_clean_checkout_has_the_commit_alone(package: Path) -> None:
    assert origin.code(package) == (git(package, "rev-parse", "HEAD"), None)
    (package.parent / "record.json").write_text("{'new': 1}\n")  # what is written meanwhile is no change of the code
    assert origin.code(package) == (git(package, "rev-parse", "HEAD"), None)


def test_changed_and_new_files_of_the_package_are_dirty_each_in_their_way(package: Path) -> None:
    found = [origin.code(package)]
    (package / "__init__.py").write_text("a = 2\n")
    found.append(origin.code(package))
    (package / "more.py").write_text("b = 2\n")
    found.append(origin.code(package))
    (package / "more.py").write_text("b = 3\n")
    found.append(origin.code(package))
    assert {one.commit for one in found[1:]} == {f"{found[0].commit}-dirty"}
    assert len(set(found)) == 4
    assert origin.code(package) == found[-1]


def test_a_wheel_has_no_commit_not_even_inside_of_another_checkout(package: Path) -> None:
    (package.parent / ".gitignore").write_text("venv\n")
    wheel = package.parent / "venv" / "package"
    wheel.mkdir(parents=True)
    (wheel / "__init__.py").write_text("a = 1\n")
    assert origin.code(wheel) == (None, None)


# ---- what a file says


def test_a_file_says_where_its_records_come_from(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    assert main([*TINY, "--seed", "3", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert (found["commit"], found["changes"]) == tuple(origin.present())
    moment = datetime.datetime.fromisoformat(found["date"])
    assert moment.utcoffset() == datetime.timedelta(0)
    assert abs((datetime.datetime.now(datetime.UTC) - moment).total_seconds()) < 3600
    assert found["seed"] == 3
    assert found["complete"] is True
    assert found["threads"]["ours"] == usable_cores()
    assert set(found["threads"]) == {"ours", "blas", "openmp", "numba"}
    assert all(count >= 1 for count in found["threads"].values())
    assert set(found["load"]) == {"average_before", "average_after", "others_before", "others"}
    assert 0 <= found["load"]["others"] <= (os.cpu_count() or 1)
    assert {"cpu", "cores", "memory_bytes"} <= set(found["machine"])


@needs_git
def test_the_commit_is_that_of_the_checkout_that_is_imported() -> None:
    assert origin.present().commit is not None
    assert origin.present().commit.removesuffix("-dirty") == git(ROOT, "rev-parse", "HEAD")


# ---- a busy machine


@pytest.fixture
def spinning() -> Iterator[subprocess.Popen[bytes]]:
    """A process of nobody's tree that keeps a core busy: its parent has ended."""
    code = "import os\nif os.fork() == 0:\n    os.setsid()\n    print(os.getpid(), flush=True)\n    while True: pass"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.wait(30)
    try:
        yield parent
    finally:
        os.kill(pid, 9)
        parent.stdout.close()


needs_fork = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux")


@needs_fork
@pytest.mark.usefixtures("spinning")
def test_a_busy_machine_is_refused_and_recorded_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(activity, "SECONDS", 1.0)
    monkeypatch.setattr(activity, "MOST", 0.1)
    file = tmp_path / "out.json"
    assert main([*TINY, "--json", str(file)]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("ips2: --json: found a machine on which other processes take ")
    assert len(said.err.splitlines()) == 1
    assert "--busy" in said.err
    assert said.out == ""
    assert not file.exists()
    assert main(TINY) == 0  # nothing is recorded
    assert main([*TINY, "--busy", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert found["busy"] is True
    assert found["load"]["others_before"] > 0.1


def test_an_idle_machine_is_not_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else runs here: the bound is out of reach for it."""
    monkeypatch.setattr(activity, "MOST", float(os.cpu_count() or 1) + 1)
    assert main([*TINY, "--json", str(tmp_path / "out.json")]) == 0
    assert json.loads((tmp_path / "out.json").read_text())["busy"] is False


@needs_fork
def test_what_this_process_and_its_children_take_is_not_others() -> None:
    """The child spins for a second, which counts as ours while it lives and when it has ended."""
    spin = "import time\nuntil = time.process_time() + {}\nwhile time.process_time() < until: pass"
    before = activity.own_seconds()
    subprocess.run([sys.executable, "-c", spin.format(0.5)], check=True)
    ended = activity.own_seconds()
    assert ended - before >= 0.5
    child = subprocess.Popen([sys.executable, "-c", spin.format(100)])
    try:
        while activity.own_seconds() - ended < 0.5:
            assert child.poll() is None
            time.sleep(0.05)
    finally:
        child.kill()
        child.wait(30)


@needs_fork
@pytest.mark.usefixtures("spinning")
def test_another_process_is_noticed_while_a_benchmark_lasts() -> None:
    watch = activity.Watch()
    until = time.monotonic() + 1
    while time.monotonic() < until:
        sum(range(1000))
    assert watch.others() > 0.1


# ---- going on with a file


def test_records_of_other_code_are_not_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "numbers.json"
    old = {"commit": "0" * 40, "changes": None, "results": []}
    for document in (old, {"results": []}):
        file.write_text(json.dumps(document))
        assert main(["bench", "numbers", "--data", "iris", "--resume", "--json", str(file)]) == 2
        assert "--resume: found records of" in capsys.readouterr().err
        assert json.loads(file.read_text()) == document


def test_a_file_that_was_interrupted_says_that_it_is_not_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "noise.json"

    def interrupted(**_: Any) -> Iterator[dict[str, Any]]:
        yield {"shape": "uniform", "features": 1, "m": 10, "seed": 0, "known": 0, "n_clusters": 1}
        yield {"shape": "uniform", "features": 1, "m": 10, "seed": 1, "known": 0, "n_clusters": 1}
        raise KeyboardInterrupt

    monkeypatch.setattr(numbers, "noise", interrupted)
    assert main(["bench", "numbers", "--noise", "--json", str(file)]) == 130
    found = json.loads(file.read_text())
    assert (found["complete"], len(found["results"])) == (False, 2)


# ---- figures


def scaled() -> list[dict[str, Any]]:
    """Records of three sizes whose time is proportional to them."""
    shared = {"kind": "time", "k": 5, "outcome": "finished", "workers": 2}
    stages = [
        {**shared, "m": m, "stage": stage, "seconds": m / 1000, "peak_bytes": m, "projected_bytes": 2 * m}
        for m in (100, 1000, 10000)
        for stage in ("ingest", "eigen", "stages", "total")
    ]
    return [*stages, {"kind": "growth", "stage": "stages", "exponent": 1.0}]


def test_a_figure_of_growth_is_drawn_from_a_file_and_says_which_records_it_shows(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra [report]")
    record, picture = tmp_path / "scaling.json", tmp_path / "scaling.png"
    record.write_text(json.dumps({"command": "ips2 bench scaling", "results": scaled()}))
    assert main(["bench", "scaling", "--figure", str(picture), "--from", str(record)]) == 0
    assert figures.records_of(picture) == origin.digest(scaled())
    other = [{**r, "seconds": 2 * r["seconds"]} if "seconds" in r else r for r in scaled()]
    assert figures.records_of(picture) != origin.digest(other)
    assert main(["bench", "scaling", "--figure", str(tmp_path / "scaling.svg"), "--from", str(record)]) == 0
    assert "<svg" in (tmp_path / "scaling.svg").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--from", "RECORD"], "--figure: found none"),
        (["--from", "RECORD", "--figure", "a.png", "--json", "b.json"], "--json: found one"),
        (["--from", "none.json", "--figure", "a.png"], "none.json: found no record"),
        (["--from", "OTHER", "--figure", "a.png"], "records of another benchmark"),
        (["--from", "RECORD", "--figure", "a.gif"], "a.gif"),
    ],
)
def test_a_figure_that_cannot_be_drawn_is_refused_in_a_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra [report]")
    monkeypatch.chdir(tmp_path)
    Path("RECORD").write_text(json.dumps({"results": scaled()}))
    Path("OTHER").write_text(json.dumps({"results": [{"data": "iris", "accuracy": 1.0}]}))
    assert main(["bench", "scaling", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]
    assert not list(tmp_path.glob("a.*"))


def test_a_png_of_something_else_shows_no_records(tmp_path: Path) -> None:
    figure = pytest.importorskip("matplotlib.figure", reason="needs the extra [report]")
    figure.Figure().savefig(tmp_path / "plain.png")
    assert figures.records_of(tmp_path / "plain.png") is None


def test_the_digest_is_that_of_the_records_whatever_the_order_of_their_fields() -> None:
    first, second = [{"a": 1, "b": math.pi}], [{"b": math.pi, "a": 1}]
    assert origin.digest(first) == origin.digest(second) != origin.digest([{"a": 1, "b": 3.14}])
