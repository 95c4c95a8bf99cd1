"""`ips2 bench slope`: how the memory of driver and workers grows with the samples, by stage."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ips2_dask.bench import options, slope
from ips2_dask.cli.main import main
from ips2_dask.store.layout import STAGES

needs_linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs /proc, which Linux has")

LIMIT = 8.0
"""Bytes a sample by which a process may grow: the driver in every stage, a worker in every stage but `SHARED`."""

SHARED = ("eigen", "label")
"""Stages in which a worker has its share of what grows with the samples: block vectors, operators and rows of U."""

MIB = 1 << 20

HOLDS = """
import mmap, sys
with mmap.mmap(-1, 100 << 20) as pages:
    for place in range(0, len(pages), mmap.PAGESIZE):
        pages[place] = 1
print("freed", flush=True); sys.stdin.readline()
"""
"""Takes pages of the system and gives them back by itself. An allocator may keep what is freed, as glibc's does in a
child of a process that has started a local cluster: the workers' thresholds stay in its environment."""


@needs_linux
def test_a_reset_peak_forgets_what_a_process_has_given_back() -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"freed\n"
        before = slope.peaks(process.pid).driver
        slope.reset_peaks(process.pid)
        after = slope.peaks(process.pid).driver
        process.stdin.write(b"\n")
        process.stdin.close()
    assert before > 100 * MIB
    assert before - after > 90 * MIB


@needs_linux
def test_a_process_that_is_gone_has_no_peak() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        assert slope.peaks(process.pid) == (0, 0)


def test_slopes_are_differences_of_peaks_by_samples() -> None:
    small: dict[str, Any] = {"m": 100, "driver_peak_bytes": 1000, "worker_peak_bytes": 50, "planned_worker_bytes": None}
    large: dict[str, Any] = {"m": 300, "driver_peak_bytes": 2000, "worker_peak_bytes": 50, "planned_worker_bytes": 7}
    found = slope._slope(small, {**large, "stage": "fuse"})
    assert (found["from"], found["to"], found["stage"]) == (100, 300, "fuse")
    assert found["driver_bytes_a_sample"] == 5
    assert found["worker_bytes_a_sample"] == 0
    assert found["planned_worker_bytes_a_sample"] is None


def test_rows_of_a_partition_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "slope", "--sizes", "100,200"]) == 2
    assert "--partition-rows" in capsys.readouterr().err
    assert options.SLOPE_SIZES == slope.SIZES


@needs_linux
@pytest.mark.parametrize(
    ("sizes", "rows", "noise", "chunks"),
    [
        pytest.param(
            "100000,200000,400000", 8192, 16 * MIB, "few", marks=[pytest.mark.slow, pytest.mark.timeout(3600)]
        ),
        pytest.param(
            "1000000,2000000,4000000", 65536, 8 * MIB, "many", marks=[pytest.mark.long, pytest.mark.timeout(0)]
        ),
    ],
)
def test_driver_and_workers_grow_by_few_bytes_a_sample(
    sizes: str, rows: int, noise: int, chunks: str, tmp_path: Path
) -> None:
    """From the smallest size to the largest: the peaks of one size differ by up to 17 MB from one run to the next.

    ``noise`` is what one run's allocator may keep more than another's: at small sizes more than what is measured.

    A chunk has 131,072 samples or more. Where there are few, what one touches of the others grows with their number,
    and so does a worker's share, by whole chunks: there workers are held to their plan alone.
    """
    words = ["--sizes", sizes, "--partition-rows", str(rows), "--clusters", "10", "--driver-limit", "600MiB"]
    command = ["bench", "slope", *words, "--vectors", "chunked", "--workers", "2", "--json", str(tmp_path / "s.json")]
    assert main(command) == 0
    records = json.loads((tmp_path / "s.json").read_text())["results"]
    peaks = [r for r in records if r["kind"] == "peak"]
    assert {r["outcome"] for r in peaks} == {"finished"}
    assert len(peaks) == len(sizes.split(",")) * len(STAGES)
    over = [
        ("worker", r["stage"], r["m"], r["worker_peak_bytes"], r["planned_worker_bytes"])
        for r in peaks
        if r["worker_peak_bytes"] > r["planned_worker_bytes"]
    ]
    first, *_, last = map(int, sizes.split(","))
    slopes = [r for r in records if r["kind"] == "slope" and (r["from"], r["to"]) == (first, last)]
    assert [r["stage"] for r in slopes] == list(STAGES)
    for record in slopes:
        allowance = noise / (record["to"] - record["from"])
        worker = record["planned_worker_bytes_a_sample"] if record["stage"] in SHARED else LIMIT
        if record["driver_bytes_a_sample"] >= LIMIT + allowance:
            over.append(("driver", record["stage"], record["from"], record["driver_bytes_a_sample"]))
        if chunks == "many" and record["worker_bytes_a_sample"] >= worker + allowance:
            over.append(("worker", record["stage"], record["from"], record["worker_bytes_a_sample"]))
    assert over == []
