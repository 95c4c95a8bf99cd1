"""A store that can not be written any more, and workers that die: one clear line, and a rerun goes on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from harness import run_on

from ips2_dask import Params, Resources, StoreFailure, WorkersKilled, gc, open_run, run, verify
from ips2_dask.cli.main import main
from ips2_dask.clusters import executor as cluster
from ips2_dask.errors import IPS2Warning
from ips2_dask.executors.base import Job
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.pipeline.keys import MODULES
from ips2_dask.stages import tensor
from ips2_dask.store.cache import cache
from ips2_dask.store.files import partial_file, write_atomically

X = np.random.default_rng(8).normal(size=(400, 8))
PARAMS, RESOURCES = Params(n_clusters=3, operator="triplets"), Resources(partition_rows=100)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    made = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "ips2-test", str(place)], capture_output=True, check=False
    )
    if not made or made.returncode:
        pytest.skip("no file system can be mounted here: this needs root on Linux")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def mount(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "table.csv"
    write_atomically(path, "old")
    for content in ("new", b"bytes"):
        write_atomically(path, content)
        assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    with pytest.raises(UnicodeEncodeError), partial_file(path) as partial:
        partial.write_text("half" + "\udc80", encoding="utf-8")
    assert [entry.name for entry in path.parent.iterdir()] == ["table.csv"]
    assert path.read_bytes() == b"bytes"


def test_a_full_disk_is_one_line_and_a_rerun_goes_on(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(disk.parent / "x.npy", X)
    arguments = ["run", str(disk.parent / "x.npy"), "--clusters", "3", "--operator", "triplets", "--out"]
    arguments += [str(disk / "run"), "--serial", "--partition-rows", "100", "--quiet"]
    assert main(arguments) == 1
    foreseen, line = capsys.readouterr().err.splitlines()
    assert "while the run goes on, and" in foreseen  # by the plan
    assert "no space left" in line
    assert line.endswith("Remedy: free some space, and run the same command again, which continues.")
    there = {path.parent.name for path in (disk / "run").rglob("p*.json")}
    assert there  # what was finished
    assert not [path for path in (disk / "run").rglob("*.partial")]
    assert verify(disk / "run").faults == []
    cache.clear()
    mount(disk, "size=64m")
    assert gc(disk / "run").garbage == ()  # nothing half-written was left
    assert main(arguments) == 0
    np.testing.assert_array_equal(open_run(disk / "run").labels, run(X, PARAMS, RESOURCES).labels)


class MakeReadOnly:
    """Progress that makes a file system read-only when a stage begins."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def begin(self, stage: str) -> None:
        if stage == "assemble":
            mount(self._place, "ro")

    def advance(self, stage: str, done: int, total: int) -> None: ...
    def end(self, stage: str, seconds: float, skipped: bool) -> None: ...


def test_a_store_that_becomes_read_only_is_one_line_and_a_rerun_goes_on(disk: Path) -> None:
    mount(disk, "size=64m")
    with pytest.raises(StoreFailure, match=r"a read-only file system.*make it writable"):
        run(X, PARAMS, RESOURCES, store=disk / "run", progress=MakeReadOnly(disk))
    mount(disk, "rw")
    found = run(X, PARAMS, RESOURCES, store=disk / "run")
    assert [stage["skipped"] for stage in found.report()["stages"]] == [True] * 3 + [False] * 4
    np.testing.assert_array_equal(found.labels, run(X, PARAMS, RESOURCES).labels)


@pytest.mark.slow
def test_a_full_disk_under_a_worker_is_the_same_line(disk: Path, dask_executor: DaskExecutor) -> None:
    with (
        pytest.warns(IPS2Warning, match=r"takes up to .* while the run goes on"),  # the plan sees it beforehand
        pytest.raises(StoreFailure, match="no space left"),
    ):
        run(X, PARAMS, RESOURCES, store=disk / "run", client=dask_executor.client)
    mount(disk, "size=64m")
    found = run(X, PARAMS, RESOURCES, store=disk / "run", client=dask_executor.client)
    np.testing.assert_array_equal(found.labels, run(X, PARAMS, RESOURCES).labels)


def die(context: Any, b: int) -> Any:
    """A stage's own task, which ends its worker, as the system does when memory runs out, on one of the partitions."""
    if b == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return tensor.pairs(context, b)


@pytest.mark.long
def test_a_task_that_ends_every_worker_is_named_with_its_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = MODULES["tensor"]

    def deadly(context: Any, executor: Any, report: Any) -> Any:
        return executor.map(Job("tensor", die, "pairs-"), context, range(4), report)

    monkeypatch.setitem(
        MODULES, "tensor", SimpleNamespace(VERSION=module.VERSION, depends_on=module.depends_on, run=deadly)
    )
    with cluster(Resources(n_workers=1)) as executor:
        with pytest.raises(WorkersKilled, match=r"stage tensor, partition p000002: .* memory_limit") as caught:
            run_on(executor, X, PARAMS, 100, tmp_path / "run")
        assert "\n" not in str(caught.value)
        monkeypatch.undo()
        found = run_on(executor, X, PARAMS, 100, tmp_path / "run")
    np.testing.assert_array_equal(found.labels, run(X, PARAMS, RESOURCES).labels)
