"""Every fault in the middle of every stage: workers that go are made good, and what can't be is said and resumed.

Each test is a run of the command in processes of its own, which an event of the stage stops while the fault happens.
Then: labels are an undisturbed run's bit for bit, no partition is computed a second time, and a solve does again at
most what came after its last checkpoint.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
from faults.file_systems import SmallDisk
from faults.scene import Scene, family, outside_cluster, until, write_input

from ips2_dask import verify

CHUNKED, IN_CORE = ("--vectors", "chunked"), ("--vectors", "in-core")
LONG, LOOSE = ("--tol", "2e-5"), ("--tol", "1e-2")
"""A solve of several checkpoints where it is what is stopped, and a short one elsewhere."""


class Point(NamedTuple):
    """Where in a run a fault happens.

    ``at`` is reached by a worker, or, where a stage is one computation of the client, by the client: then it is an
    idle worker that goes.
    """

    stage: str
    at: str
    after: int = 0
    options: tuple[str, ...] = CHUNKED + LOOSE
    in_client: bool = False
    past: str = ""


POINTS = {
    "ingest": Point("ingest", "write ingest/p.*", 2),
    "neighbors": Point("neighbors", "write neighbors/p.*", 2),
    "tensor": Point("tensor", "write tensor/p.*", 9),
    "assemble": Point("assemble", "write assemble/p.*", 2),
    "eigen": Point("eigen", "call product", 7, CHUNKED),
    "fuse": Point("fuse", "write fuse/fused-.*", 2),
    "label": Point("label", "write label/rounding-.*"),  # of so few samples one task takes all starts of k-means
    "eigen-in-client": Point("eigen", "call filter", 0, IN_CORE + LONG, True, past="eigen/state0"),
}
SHARDED = ("--graph", "shards", "--shards", "3", *CHUNKED)
RESUMED = {
    "sharded-neighbors": Point("neighbors", "write neighbors/shard-.*", 1, SHARDED + LOOSE),
    "sharded-tensor": Point("tensor", "write tensor/pairs-p.*", 2, SHARDED + LOOSE),
    "sharded-eigen": Point("eigen", "call product", 7, SHARDED),
    "sharded-fuse": Point("fuse", "write fuse/fused-.*", 2, SHARDED + LOOSE),
}
"""Where runs with a graph of shards are stopped that go on with workers."""

ANYWHERE = POINTS | RESUMED

BY_CLIENT = {"ingest/whole", "neighbors/whole", "assemble/whole", "label/embedding", "label/whole"}
"""Small sums that the client makes of a stage's parts, and its choice among the starts: they may be made again."""

BOUNDS = {"plan.choices.EXACT_PAIRS": 0, "kernels.levels.COARSEST": 20}
"""Pairs are solved for with a tolerance alone, and graphs of so few samples have levels, as those of many have."""

PRODUCTS_IN_FLIGHT = 60
"""Products of chunks that Dask may make again for results that were lost: a filter of the chunks near them."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_input(tmp_path_factory.mktemp("input") / "x.npy")


class Undisturbed(dict[tuple[str, ...], Scene]):
    """A run of each kind to which nothing happens, made when it is first asked for."""

    def __init__(self, folder: Path, source: Path) -> None:
        super().__init__()
        self._folder, self._source = folder, source

    def __missing__(self, kind: tuple[str, ...]) -> Scene:
        self[kind] = Scene(self._folder / str(len(self)), self._source, *kind, bounds=BOUNDS)
        self[kind].complete()
        return self[kind]


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(tmp_path_factory.mktemp("undisturbed"), source)


@pytest.fixture
def scene(request: pytest.FixtureRequest, source: Path, tmp_path: Path) -> Iterator[Scene]:
    """A run directory for the point that a test is about."""
    made = Scene(tmp_path, source, *ANYWHERE[request.param].options, bounds=BOUNDS)
    yield made
    made.close()


def each_point(*quick: str, among: Iterable[str] = tuple(POINTS)) -> Any:
    """All points of some; those that are not ``quick`` are left to the long tests."""
    cases = [
        pytest.param(
            name,
            name,
            id=name,
            marks=[pytest.mark.timeout(600), pytest.mark.faults if name in quick else pytest.mark.long],
        )
        for name in among
    ]
    return pytest.mark.parametrize(("scene", "point"), cases, indirect=["scene"])


def assert_nothing_is_lost(scene: Scene, expected: Scene, point: str) -> None:
    """Equal labels; no part was made twice, and no more of a solve than came after its checkpoint."""
    np.testing.assert_array_equal(scene.labels, expected.labels)
    assert scene.repeated() <= BY_CLIENT | in_flight(scene, point)
    for name in ("product", "filter"):
        once = expected.count("called", name)
        if ANYWHERE[point].stage == "eigen":
            assert scene.count("called", name) <= once + scene.since_checkpoint(name) + PRODUCTS_IN_FLIGHT
        elif ANYWHERE[point].stage not in ("fuse", "label"):
            assert scene.count("called", name) == once


def in_flight(scene: Scene, point: str) -> set[str]:
    """What tasks had stored besides their own parts when the fault came before these: samples of a shard."""
    if point == "sharded-neighbors":
        begun: dict[int, set[str]] = {}
        for line in scene.before_fault():
            if line.what == "wrote" and line.name.startswith("neighbors/shard-"):
                begun[line.pid] = set()
            elif line.what == "wrote" and line.name.startswith(("neighbors/samples-p", "neighbors/order-p")):
                begun.setdefault(line.pid, set()).add(line.name)
        return set().union(*begun.values())
    return set()


def arm(scene: Scene, point: str, do: str = "wait") -> None:
    scene.arm(ANYWHERE[point].at, do, ANYWHERE[point].after, ANYWHERE[point].past)


def victim(scene: Scene, process: subprocess.Popen[str], point: str) -> int:
    """The worker that came to the point, or an idle one where the client did."""
    there = scene.reached(process)
    assert (there == process.pid) == ANYWHERE[point].in_client
    return scene.workers(process)[0] if ANYWHERE[point].in_client else there


# ---- 1 to 3: a worker goes, and the run completes by itself


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def assert_completes(scene: Scene, process: subprocess.Popen[str], expected: Scene, point: str) -> None:
    status, said = scene.end(process)
    assert (status, said) == (0, "")
    assert_nothing_is_lost(scene, expected, point)


@each_point("eigen")
def test_a_worker_that_is_killed_is_replaced(scene: Scene, point: str, undisturbed: Undisturbed) -> None:
    arm(scene, point)
    process = scene.start()
    pid = victim(scene, process, point)
    kill(pid)
    until(lambda: not alive(pid), "the worker's death")
    until(lambda: len(scene.workers(process)) == 2, "another worker")
    scene.go()
    assert_completes(scene, process, undisturbed[ANYWHERE[point].options], point)


@each_point()
def test_a_worker_that_stops_answering_is_replaced(scene: Scene, point: str, undisturbed: Undisturbed) -> None:
    arm(scene, point)
    process = scene.start(DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL="3s")
    pid = victim(scene, process, point)
    stop(pid)
    if ANYWHERE[point].in_client:
        until(lambda: not alive(pid), "the end of the silent worker")
    scene.go()
    assert_completes(scene, process, undisturbed[ANYWHERE[point].options], point)
    assert not alive(pid)


@each_point()
def test_a_worker_that_takes_too_much_memory_is_replaced(scene: Scene, point: str, undisturbed: Undisturbed) -> None:
    if ANYWHERE[point].in_client:
        pytest.skip("this stage runs no task on a worker")
    arm(scene, point, "hoard")
    process = scene.start("--memory-limit", "1.5GiB")
    assert_completes(scene, process, undisturbed[ANYWHERE[point].options], point)


@each_point()
def test_a_task_that_gets_no_memory_is_tried_again(scene: Scene, point: str, undisturbed: Undisturbed) -> None:
    if ANYWHERE[point].in_client:
        pytest.skip("this stage runs no task on a worker")
    arm(scene, point, "starve")
    assert_completes(scene, scene.start(), undisturbed[ANYWHERE[point].options], point)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# ---- 4 to 6: the scheduler or the client goes, and the same command goes on


def assert_one_message(said: str, *parts: str) -> None:
    lines = said.splitlines()
    assert len(lines) == 1, said
    assert lines[0].startswith("ips2: ")
    assert "Remedy: " in lines[0]
    for part in parts:
        assert part in lines[0]


@each_point("tensor")
def test_a_scheduler_that_is_killed_is_said_and_the_run_goes_on_with_another(
    scene: Scene, point: str, undisturbed: Undisturbed
) -> None:
    arm(scene, point)
    with outside_cluster(scene) as (address, scheduler):
        process = scene.start("--scheduler", address, workers=False)
        scene.reached(process)
        for member in family(scheduler.pid):
            kill(member.pid)
        scene.go()
        status, said = scene.end(process)
    assert status == 1, said
    assert_one_message(said, address, "every finished partition is kept", "run the same command again")
    scene.complete()
    assert_nothing_is_lost(scene, undisturbed[ANYWHERE[point].options], point)


def assert_given_up(scene: Scene, process: subprocess.Popen[str], said_of: str, expected: Scene, point: str) -> None:
    status, said = scene.end(process)
    assert status == 1, said
    assert_one_message(said, said_of, "every finished partition is kept", "run the same command again")
    scene.complete()
    assert_nothing_is_lost(scene, expected, point)


PATIENCE = {"DASK_DISTRIBUTED__SCHEDULER__NO_WORKERS_TIMEOUT": "12s"}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("scene", "point"), [("tensor", "tensor"), ("eigen", "eigen")], indirect=["scene"])
def test_a_run_whose_workers_all_end_and_are_not_replaced_does_not_wait_for_ever(
    scene: Scene, point: str, undisturbed: Undisturbed
) -> None:
    arm(scene, point)
    with outside_cluster(scene) as (address, _):
        process = scene.start("--scheduler", address, workers=False, **PATIENCE)
        there = scene.reached(process)
        for member in family(os.getsid(there)):
            kill(member.pid)
        scene.go()
        assert_given_up(scene, process, "no worker for 12 s", undisturbed[ANYWHERE[point].options], point)


@each_point(among=["tensor", "eigen"])
def test_a_scheduler_that_stops_answering_is_not_waited_for_for_ever(
    scene: Scene, point: str, undisturbed: Undisturbed
) -> None:
    arm(scene, point)
    with outside_cluster(scene) as (address, scheduler):
        process = scene.start("--scheduler", address, workers=False, **PATIENCE)
        scene.reached(process)
        for member in family(scheduler.pid):
            stop(member.pid)
        scene.go()
        assert_given_up(scene, process, "has not answered for 12 s", undisturbed[ANYWHERE[point].options], point)


@each_point("tensor")
def test_a_run_whose_client_was_killed_leaves_no_process_and_goes_on(
    scene: Scene, point: str, undisturbed: Undisturbed
) -> None:
    arm(scene, point)
    process = scene.start()
    scene.reached(process)
    kill(process.pid)
    status, said = scene.end(process)
    assert status == -signal.SIGKILL
    assert "Traceback" not in said
    scene.complete()
    assert_nothing_is_lost(scene, undisturbed[ANYWHERE[point].options], point)


@each_point(among=RESUMED)
def test_a_sharded_run_whose_client_was_killed_goes_on_with_two_workers(
    scene: Scene, point: str, undisturbed: Undisturbed
) -> None:
    arm(scene, point)
    process = scene.start()
    scene.reached(process)
    kill(process.pid)
    status, _ = scene.end(process)
    assert status == -signal.SIGKILL
    lines = len(scene.log)
    scene.complete(cluster=True)
    assert len({line.pid for line in scene.log[lines:] if line.what == "wrote"}) > 1  # workers computed the rest
    assert_nothing_is_lost(scene, undisturbed[ANYWHERE[point].options], point)


@each_point(among=RESUMED)
def test_a_sharded_run_whose_scheduler_was_killed_goes_on_with_another(
    scene: Scene, point: str, undisturbed: Undisturbed
) -> None:
    arm(scene, point)
    with outside_cluster(scene) as (address, scheduler):
        process = scene.start("--scheduler", address, workers=False)
        scene.reached(process)
        for member in family(scheduler.pid):
            kill(member.pid)
        scene.go()
        status, said = scene.end(process)
    assert status == 1, said
    assert_one_message(said, address, "run the same command again")
    scene.complete(cluster=True)
    assert_nothing_is_lost(scene, undisturbed[ANYWHERE[point].options], point)


def terminate(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)


def interrupt(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it


@pytest.mark.parametrize("tell", [terminate, interrupt], ids=["SIGTERM", "Ctrl-C"])
@each_point("neighbors")
def test_a_run_that_is_told_to_stop_says_how_it_goes_on(
    scene: Scene, point: str, tell: Callable[[subprocess.Popen[str]], None], undisturbed: Undisturbed
) -> None:
    arm(scene, point)
    process = scene.start()
    scene.reached(process)
    tell(process)
    status, said = scene.end(process)
    assert status == 130, said
    assert len(said.splitlines()) == 1, said
    assert said.startswith(f"ips2: interrupted; the same command continues the run in {scene.out}")
    scene.complete()
    assert_nothing_is_lost(scene, undisturbed[ANYWHERE[point].options], point)


# ---- 7 to 9: the store goes, and the same command goes on when it is back


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "disk") as disk:
        yield disk


@each_point()
def test_a_full_disk_is_said_and_the_run_goes_on_when_there_is_room(
    scene: Scene, point: str, small_disk: SmallDisk, undisturbed: Undisturbed
) -> None:
    scene.out = small_disk.path / "run"
    arm(scene, point, "fill")
    process = scene.start(IPS2_TEST_FILLER=str(small_disk.filler))
    scene.reached(process)
    status, said = scene.end(process)
    assert status == 1, said
    assert_one_message(said, str(small_disk.path))
    small_disk.filler.unlink()
    scene.complete()
    assert_nothing_is_lost(scene, undisturbed[ANYWHERE[point].options], point)


@each_point()
def test_a_store_that_becomes_read_only_is_said_and_the_run_goes_on_when_it_is_not(
    scene: Scene, point: str, small_disk: SmallDisk, undisturbed: Undisturbed
) -> None:
    scene.out = small_disk.path / "run"
    arm(scene, point)
    process = scene.start()
    scene.reached(process)
    until(small_disk.close, "the writers of the disk")
    scene.go()
    status, said = scene.end(process)
    small_disk.open()
    assert status == 1, said
    assert_one_message(said, str(small_disk.path))
    scene.complete()
    assert_nothing_is_lost(scene, undisturbed[ANYWHERE[point].options], point)


WRITTEN = {
    "ingest": ("ingest/p", "samples"),
    "neighbors": ("neighbors/p", "indices"),
    "tensor": ("tensor/pairs-p", "pairs"),
    "assemble": ("assemble/p", "degrees"),
    "eigen": ("assemble/p", "degrees"),
    "fuse": ("fuse/fused-p", "fused"),
    "label": ("label/embedding", "embedding"),
    "eigen-in-client": ("assemble/p", "degrees"),
}
"""An array that is there when the point is reached, and which a later stage, or the rest of this one, reads."""


@each_point()
def test_a_chunk_that_vanishes_is_made_again_or_said_and_made_by_the_same_command(
    scene: Scene, point: str, undisturbed: Undisturbed
) -> None:
    arm(scene, point)
    process = scene.start()
    scene.reached(process)
    prefix, array = WRITTEN[point]
    part = next(line.name for line in scene.log if line.what == "wrote" and line.name.startswith(prefix))
    chunk = chunk_of(scene.out, part, array)
    chunk.unlink()
    scene.go()
    status, said = scene.end(process)
    if status != 0:
        assert status == 1, said
        assert_one_message(said, str(scene.out), array)
        scene.complete()
    np.testing.assert_array_equal(scene.labels, undisturbed[ANYWHERE[point].options].labels)
    if part not in scene.repeated():  # who needs it had read it before: it is not noticed until somebody looks
        faults = verify(scene.out).faults
        assert {f"{fault.folder.split('-')[0]}/{fault.part} {fault.array}" for fault in faults} == {f"{part} {array}"}
        scene.complete()
    again = scene.repeated() - BY_CLIENT
    assert part in scene.repeated()
    assert verify(scene.out).sound
    assert again <= {part, *together(part)}


def chunk_of(out: Path, part: str, array: str) -> Path:
    """A file that holds some of a part's array."""
    stage, name = part.split("/")
    return next(path for path in sorted(out.glob(f"{stage}-*/{name}.*/{array}/c/**/*")) if path.is_file())


def together(part: str) -> set[str]:
    """Parts that one task gives with another: a chunk's degrees by partition."""
    return {f"assemble/{kind}{b:06d}" for kind in ("p", "chunk-p") for b in range(6)} if "assemble/" in part else set()
