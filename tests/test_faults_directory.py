"""A run directory after anything: runs, kills, damage and commands in any order leave right labels or one line.

`IPS2_DIRECTORY_EXAMPLES` says how many sequences of 30 commands the slow test tries in all, `IPS2_DIRECTORY_SEED` which
ones: the same each time, unless that is another number, or ``random``.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults.run_directory import RESOURCES, RunDirectory, X, undisturbed, watched_writes
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import Flaky, HypothesisException
from hypothesis.stateful import run_state_machine_as_test
from zarr.codecs import Crc32cCodec

from ips2_dask import Params, run, verify
from ips2_dask.executors import base
from ips2_dask.store import arrays, lock, zarr_store
from ips2_dask.store.cache import cache
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.files import LocalFiles
from ips2_dask.store.integrity import sealed
from ips2_dask.store.zarr_store import ZarrStore

STEPS = 30
EXAMPLES = int(os.environ.get("IPS2_DIRECTORY_EXAMPLES", "200"))
SHARES = max(8, EXAMPLES // 10)
"""Tests that share the examples: processes work side by side, and `--seconds` can leave some out."""


def check(examples: int, *, found: int | None = None, shrink: bool = True) -> None:
    """Try so many sequences of commands, drawn by a seed, or always the same ones."""
    chosen = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        derandomize=found is None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
    )
    machine = type("RunDirectory", (RunDirectory,), {})
    if found is not None:
        machine = seed(found)(machine)
    with watched_writes():
        run_state_machine_as_test(machine, settings=chosen)


@pytest.mark.slow
def test_a_run_directory_survives_a_sequence_of_commands_kills_and_damage() -> None:
    check(1, found=0)


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(2))
def test_a_run_directory_survives_commands_kills_and_damage_in_any_order(number: int) -> None:
    check(5, found=number)


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("share", range(SHARES))
def test_many_sequences_of_commands_kills_and_damage(share: int) -> None:
    wanted = os.environ.get("IPS2_DIRECTORY_SEED", "202")
    drawn = secrets.randbelow(1 << 32) if wanted == "random" else int(wanted)
    print(f"IPS2_DIRECTORY_SEED={drawn + share}")  # the first share of that seed is this one
    check(EXAMPLES // SHARES, found=drawn + share)


# ---- the same with a guard taken out


def unchecked(patch: pytest.MonkeyPatch) -> None:
    """Nobody compares bytes with their checksums."""

    async def decoded(self: Crc32cCodec, chunk_bytes: Any, chunk_spec: Any) -> Any:
        del self, chunk_spec
        return type(chunk_bytes).from_bytes(chunk_bytes.to_bytes()[:-4])

    for module in (arrays, zarr_store):
        patch.setattr(module, "crc32c", lambda octets: 0)
    patch.setattr(Crc32cCodec, "_decode_single", decoded)
    patch.setattr(
        Crc32cCodec,
        "_decode_sync",
        lambda self, chunk, spec: type(chunk).from_bytes(chunk.to_bytes()[:-4]),
        raising=False,
    )


def torn(patch: pytest.MonkeyPatch) -> None:
    """Documents are written in their places, and not renamed into them."""

    def write(self: LocalFiles, name: str, text: str) -> None:
        path = Path(self.root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    patch.setattr(LocalFiles, "write", write)


def unlocked(patch: pytest.MonkeyPatch) -> None:
    """Every owner of a lock counts as dead."""
    patch.setattr(lock, "is_alive", lambda owner: False)


def hasty(patch: pytest.MonkeyPatch) -> None:
    """A receipt is written before the arrays that it names."""
    plain = ZarrStore.write

    def write(self: ZarrStore, folder: str, part: str, given: Mapping[str, Any], facts: Mapping[str, object]) -> Any:
        receipt = plain(self, folder, part, given, facts)
        attempt = Path(str(self.location), folder, receipt["attempt"])
        content = {path: path.read_bytes() for path in attempt.rglob("*") if path.is_file()}
        for path in content:  # as if they had not been written yet
            path.unlink()
        self.files.write(f"{folder}/{part}.json", sealed(receipt))
        for path, octets in content.items():
            path.write_bytes(octets)
        return receipt

    patch.setattr(ZarrStore, "write", write)


def forgetful(patch: pytest.MonkeyPatch) -> None:
    """Parts that are there are computed again."""
    plain = base.compute_part

    def compute(item: Any, job: base.Job, context: Context, *rows: Any) -> Any:
        context.store.drop(context.folders[job.stage], job.prefix + part_name(item))
        return plain(item, job, context, *rows)

    patch.setattr(base, "compute_part", compute)


def timed_out(error: BaseException | None) -> bool:
    """Whether pytest's time limit is among what led to an error; Hypothesis calls it flaky."""
    if error is None or isinstance(error, pytest.fail.Exception):
        return error is not None
    parts = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return any(map(timed_out, (error.__cause__, *parts)))


SLOW = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.faults
@pytest.mark.parametrize(
    "take_out", [unlocked, *(pytest.param(other, marks=SLOW) for other in (forgetful, hasty, unchecked, torn))]
)
def test_control_a_guard_that_is_taken_out_is_missed(
    take_out: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 200 sequences are needed; each guard was missed after 4 to 20."""
    undisturbed(Params(n_clusters=2))  # compiled before anything is taken out
    take_out(monkeypatch)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever the lack of a guard leads to
        check(200, shrink=False)
    assert not isinstance(caught.value, HypothesisException) or isinstance(caught.value, Flaky), caught.value
    assert not timed_out(caught.value), "no sequence failed, the test took too long"
    print(f"{type(caught.value).__name__}: {str(caught.value).splitlines()[:1]}")


# ---- real kills

KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from faults.kills import Kill
from faults.run_directory import RESOURCES, X
from ips2_dask import Params, run
with Kill(sys.argv[2], int(sys.argv[3]), lambda: os.kill(os.getpid(), signal.SIGKILL)):
    run(X, Params(n_clusters=3, n_neighbors=4), RESOURCES, store=sys.argv[2])
"""


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_processes_that_are_killed_at_any_change_leave_a_directory_that_goes_on(tmp_path: Path) -> None:
    place, params, rng = tmp_path / "run", Params(n_clusters=3, n_neighbors=4), np.random.default_rng(5)
    kills = 0
    for _ in range(6):
        command = [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(place), str(rng.integers(5, 150))]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
        if ended.returncode == 0:
            break
        kills += 1
        if (place / "manifest.json").exists():
            found = verify(place)
            assert found.sound, [fault.text for fault in found.faults]
    assert kills > 2
    cache.clear()
    np.testing.assert_array_equal(run(X, params, RESOURCES, store=place).labels, undisturbed(params).labels)
    assert verify(place).sound
    assert not (place / lock.NAME).exists()
