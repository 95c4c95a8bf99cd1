"""Kills at random instants, one after the other, of runs that are each resumed until they are done.

`IPS2_SOAK_KILLS` and `IPS2_SOAK_SEED` choose how many and which; `-rP` shows how many there were.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest
from faults.scene import Scene, write_input

from ips2_dask.store.layout import STAGES

KILLS = int(os.environ.get("IPS2_SOAK_KILLS", "50"))
KINDS = (("--tol", "2e-5"), ("--vectors", "chunked", "--tol", "2e-4"), ("--graph", "shards", "--shards", "3"))

CHEAP = ("/whole", "/queries")
"""Sums that the client makes of a stage's parts. It stores them with no look whether they are there, each time that it
begins the rest of a stage which was stopped."""

AT_ONCE = ("assemble/p", "eigen/p", "neighbors/samples-p", "neighbors/order-p")
"""Parts that one task gives together. Where it was stopped between two of them, it gives all of them again: degrees of
the partitions of a chunk, vectors of all partitions, samples and numbers of all partitions in the order of shards."""


def repeated_afterwards(scene: Scene) -> set[str]:
    """Parts of a stage that were stored again, whatever they are, after a later stage had begun to store its own."""
    latest, stored, found = 0, set[str](), set[str]()
    for line in scene.log:
        if line.what == "wrote":
            stage = STAGES.index(line.name.partition("/")[0])
            latest = max(latest, stage)
            if stage < latest and line.name in stored:
                found.add(line.name)
            stored.add(line.name)
    return found


def harm(scene: Scene, rng: np.random.Generator, lines: int) -> tuple[bool, bool]:
    """Start the command and kill something of it at a random length of its log; returns whether that was, and is done.

    Nothing is killed where the command ends first.
    """
    how = ("worker", "client", "SIGTERM")[rng.integers(3)]
    goal = len(scene.log) + int(rng.integers(1, lines))
    process = scene.start()
    while process.poll() is None and len(scene.log) < goal:
        psutil.wait_procs([psutil.Process(process.pid)], timeout=0.005)
    killed = process.poll() is None
    if killed:
        workers = scene.workers(process)
        if how == "worker" and workers:
            os.kill(workers[rng.integers(len(workers))], signal.SIGKILL)
        else:
            process.send_signal(signal.SIGTERM if how == "SIGTERM" else signal.SIGKILL)
    status, said = scene.end(process)
    assert status in (0, 130, -signal.SIGKILL), (how, said)
    assert "Traceback" not in said, (how, said)
    return killed, status == 0


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_runs_that_are_killed_at_random_instants_end_with_the_same_labels(tmp_path: Path) -> None:
    source = write_input(tmp_path / "x.npy")
    undisturbed = [Scene(tmp_path / f"undisturbed{n}", source, *kind) for n, kind in enumerate(KINDS)]
    for scene in undisturbed:
        scene.complete()
    rng = np.random.default_rng(int(os.environ.get("IPS2_SOAK_SEED", "0")))
    kills, runs = 0, 0
    while kills < KILLS:
        expected = undisturbed[runs % len(KINDS)]
        scene = Scene(tmp_path / f"run{runs}", source, *expected.options)
        done = False
        while not done and kills < KILLS:
            killed, done = harm(scene, rng, len(expected.log) // 2)
            kills += killed
        scene.complete()
        np.testing.assert_array_equal(scene.labels, expected.labels)
        assert repeated_afterwards(scene) == set()  # of a stage that was finished, nothing at all
        assert {name for name in scene.repeated() if not name.endswith(CHEAP) and not name.startswith(AT_ONCE)} == set()
        scene.close()
        runs += 1
    print(f"{kills} kills of {runs} runs, which all ended with the same labels")
