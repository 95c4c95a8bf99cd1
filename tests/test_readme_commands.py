"""Commands of the README and docs: each is one that there is and is run, small where it is large."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import zarr
from readme import ALL, PAGES, README, ROOT, TEXTS, blocks

from ips2_dask import cluster
from ips2_dask.cli.main import _parser

ON_A_RUN = ("run wine.csv", "status wine-run", "verify", "predict wine-run", "report wine-run")
"""What commands begin with that make the run of the README's example, or look into it."""

ON_A_TABLE = ("run --help", "bench --help", "bench graph --help", "sweep wine.csv", "plan --shape", "demo")
"""Those that need nothing but its table, or not even that."""

ON_TEXT = ("run kddcup", "predict kdd")
"""Those on a table with text and without a header."""

ON_A_CLUSTER = ("cluster certs", "cluster check", "run x.zarr", "jobs")
"""Those that a cluster of this machine is enough for."""

SMALLER = {
    "bench all": ["--list"],
    "bench scaling": ["--sizes", "500,1000", "--features", "4", "--no-warm-up"],
    "bench end-to-end": ["--samples", "300", "--features", "4"],
    "bench graph --data": ["--data", "digits", "--builders", "exact,shards"],
    "bench graph --samples": ["--samples", "400", "--features", "4", "--builders", "exact,shards"],
    "bench peers": ["--samples", "300", "--features", "4", "--systems", "ips2,kmeans", "--compiled", "--repeats", "1"],
    "bench product": ["--samples", "300", "--repeats", "3"],
    "bench reproduce": ["--only", "similarities", "--jobs", "1"],
    "bench sweep": ["--samples", "200", "--features", "4", "--clusters", "3,4", "--neighbors", "5", "--sigma", "1"],
}
"""Those that take minutes or hours, and the options that make them small."""

ELSEWHERE = {
    "run s3://": "tests/cluster/test_ways.py",
    "run parts/*.parquet": "tests/readers/test_readers_parts.py",
    "export RUN": "tests/runs/test_export.py",
}
"""Those that need a server or files that other tests make, or arguments that they call the benchmark with."""


def chosen(*beginnings: str) -> list[list[str]]:
    return [words for words, text in zip(ALL, TEXTS, strict=True) if text.startswith(beginnings)]


def ips2(folder: Path, words: list[str], environment: Mapping[str, str] | None = None) -> str:
    """Run a command in a folder, and return what it prints."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "ips2_dask.cli", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **(environment or {})},
    )
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def python(folder: Path, text: str, environment: Mapping[str, str] | None = None) -> None:
    """Run a script in a folder."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    (folder / "example.py").write_text(text)
    subprocess.run(
        [sys.executable, "example.py"],
        cwd=folder,
        check=True,
        env={**os.environ, "PYTHONPATH": path, **(environment or {})},
    )


@pytest.mark.parametrize("words", ALL, ids=[text[:60] for text in TEXTS])
def test_every_command_is_one_that_there_is(words: list[str]) -> None:
    if "--help" in words or "..." in words:
        assert words[0] in _parser().format_help()
        return
    _parser().parse_args(words)


@pytest.mark.parametrize("text", TEXTS, ids=[text[:60] for text in TEXTS])
def test_every_command_is_run_by_a_test(text: str) -> None:
    ways = [
        beginning
        for beginning in (*ON_A_RUN, *ON_A_TABLE, *ON_TEXT, *ON_A_CLUSTER, *SMALLER, *ELSEWHERE)
        if text.startswith(beginning)
    ]
    assert len(ways) == 1, ways
    if ways[0] in ELSEWHERE:
        assert re.search(rf'"{ways[0].split()[0]}"', (ROOT / ELSEWHERE[ways[0]]).read_text())


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The folder where the README's own lines have made its table, and a few samples more."""
    make = re.search(r'\.venv/bin/python -c "\n(from sklearn.datasets import load_wine.*?)"\n', README, re.DOTALL)
    assert make is not None
    environment = {**os.environ, **_without_pandas(tmp_path)}
    subprocess.run([sys.executable, "-c", make[1]], cwd=tmp_path, check=True, env=environment)
    lines = (tmp_path / "wine.csv").read_text().splitlines()
    (tmp_path / "new.csv").write_text("\n".join(line.rpartition(",")[0] for line in lines[:20]) + "\n")
    return tmp_path


@pytest.mark.slow
def test_the_commands_of_the_example_run_one_after_the_other(table: Path) -> None:
    printed = [ips2(table, words, _without_pandas(table)) for words in chosen(*ON_A_RUN)]
    (shown,) = (block for block in blocks() if block.startswith("wine.csv: "))
    assert _without_times(printed[0]) == _without_times(shown)
    assert {path.name for path in table.iterdir()} >= {"wine-run", "labels.csv"}


def _without_times(summary: str) -> list[str]:
    """The words of each line of a run's summary, but for seconds, memory and folder, which no two runs share."""
    lines = [line for line in summary.splitlines() if line.strip() and not line.startswith(("peak memory", "run dir"))]
    return [" ".join(re.sub(r"\s+\d+\.\d\d$", "", line.rstrip()).split()) for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("beginning", ON_A_TABLE)
def test_commands_on_a_table_of_ones_own_run_as_they_stand(beginning: str, table: Path) -> None:
    for words in chosen(beginning):
        whole = [one for word in words for one in (["wine.csv", "--out", "auto-run"] if word == "..." else [word])]
        said = ips2(table, whole, _without_pandas(table))
        for page in (README, *PAGES.values()):
            for shown in (block for block in blocks("", page) if block.startswith(f"$ ips2 {' '.join(words)}\n")):
                assert said.split() == shown.partition("\n")[2].split()


@pytest.mark.slow
def test_the_commands_on_a_table_with_text_run_on_a_small_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def text(services: list[str], label: list[str]) -> str:
        X = rng.normal(size=(300, 38)) + 3 * (np.arange(300) % 30)[:, None]
        rows = [[f"{x:.3f}" for x in row] for row in X]
        words = [[row[0], "tcp", services[at % len(services)], "SF", *row[1:], *label] for at, row in enumerate(rows)]
        return "".join(",".join(row) + "\n" for row in words)

    with gzip.open(tmp_path / "kddcup.data_10_percent.gz", "wt") as stream:
        stream.write(text(["http", "smtp"], ["normal."]))
    (tmp_path / "new.csv").write_text(text(["http", "icmp"], []))
    for words in chosen(*ON_TEXT):
        ips2(tmp_path, words, _without_pandas(tmp_path))
    assert len((tmp_path / "labels.csv").read_text().splitlines()) == 301


def _without_pandas(folder: Path) -> dict[str, str]:
    """An environment without a package that tests have and a plain installation has not."""
    (folder / "plain").mkdir(exist_ok=True)
    (folder / "plain" / "pandas.py").write_text("raise ImportError('not in a plain installation')\n")
    return {"PYTHONPATH": os.pathsep.join([str(folder / "plain"), str(ROOT), os.environ.get("PYTHONPATH", "")])}


@pytest.mark.slow
def test_the_commands_of_a_cluster_run_on_one_of_this_machine(tmp_path: Path) -> None:
    for package in ("cryptography", "dask_jobqueue"):
        pytest.importorskip(package, reason="needs the extras [tls] and [jobqueue]")
    home, shared = tmp_path / "home", tmp_path / "shared"
    home.mkdir()
    shared.mkdir()
    _samples(tmp_path)
    environment = {"HOME": str(home), "IPS2_STATE": str(tmp_path / "state")}
    words = {"20": "2"}  # workers
    others = sorted(chosen(*ON_A_CLUSTER), key=lambda words: words[:2] != ["cluster", "certs"])
    while others[0][:2] == ["cluster", "certs"]:
        ips2(tmp_path, _with(others.pop(0), words, home), environment)
    with cluster("local", workers=1, tls=str(home / ".config" / "ips2_dask" / "tls")) as client:
        words["tls://host:8786"] = client.scheduler.address
        for at, command in enumerate(others):
            words["/shared/run"] = str(shared / f"run{at}")
            if command[:2] == ["jobs", "cancel"]:
                words["ID"] = _submitted(tmp_path, others, words, home, environment)
            said = ips2(tmp_path, _with(command, words, home), environment)
            if command[:2] == ["jobs", "submit"]:
                words["ID"] = said.split()[-1]
            if command[:2] == ["jobs", "logs"]:
                assert "10 clusters" in said
    _until_all_have_ended(tmp_path, environment)


def _samples(folder: Path) -> None:
    """The files that the README's cluster commands name."""
    shutil.copy(ROOT / "cluster_configs" / "local.yaml", folder / "my.yaml")
    X = np.random.default_rng(0).normal(size=(300, 4)) + 6 * (np.arange(300) % 10)[:, None]
    zarr.create_array(str(folder / "x.zarr"), data=X, chunks=(100, 4))


def _with(words: list[str], others: Mapping[str, str], home: Path) -> list[str]:
    return [others.get(word, word).replace("~", str(home)) for word in words]


def _submitted(
    folder: Path, commands: list[list[str]], words: Mapping[str, str], home: Path, environment: Mapping[str, str]
) -> str:
    """Submit once more what is to be cancelled; the id."""
    submit, *_ = [command for command in commands if command[:2] == ["jobs", "submit"]]
    return ips2(folder, _with(submit, words, home), environment).split()[-1]


def _until_all_have_ended(folder: Path, environment: Mapping[str, str]) -> None:
    until = time.monotonic() + 120
    while {row["state"] for row in json.loads(ips2(folder, ["jobs", "list", "--json"], environment))} & {
        "running",
        "pending",
    }:
        assert time.monotonic() < until
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.parametrize("beginning", SMALLER)
def test_long_commands_run_when_they_are_made_small(beginning: str, tmp_path: Path) -> None:
    (tmp_path / "DIR").mkdir()
    for words in chosen(beginning):
        ips2(tmp_path, [*words, *SMALLER[beginning]])


@pytest.mark.slow
def test_the_python_examples_run_as_they_stand(tmp_path: Path) -> None:
    (first,) = blocks("python")
    whole = [block for page in PAGES.values() for block in blocks("python", page) if "my.yaml" not in block]
    on_a_cluster = [block for block in blocks("python", PAGES["clusters"]) if "my.yaml" in block]
    assert whole  # scripts that need nothing that they don't make
    _samples(tmp_path)
    begin = [
        "import dask.array",
        "import numpy as np",
        "import ips2_dask",
        "from ips2_dask import IPS2, cluster",
        "if __name__ == '__main__':",
        "    X = np.random.default_rng(0).normal(size=(200, 4))",
        "    X += 6 * (np.arange(200) % 10)[:, None]",
        "    X_new, dask_array = X[:5], dask.array.from_array(X)",
        "    with cluster('local', workers=2) as client:",
    ]
    lines = [line for line in first.splitlines() if line]
    lines += [line for block in on_a_cluster for line in block.splitlines()]
    python(tmp_path, "\n".join([*begin, *(f"        {line}" for line in lines)]))
    for text in whole:
        python(tmp_path, text)
