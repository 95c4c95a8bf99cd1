"""`ips2 bench change`: another number of clusters in the directory of a finished run, beside that run, as commands."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ips2_dask.bench.document import Record, Value
from ips2_dask.bench.inputs import Data
from ips2_dask.metrics import scores
from ips2_dask.runs.run import open_run

COLUMNS = ("kind", "c", "outcome", "seconds", "ratio", "stage_seconds", "stage_ratio", "reused", "nmi", "ari")


def measure(
    data: Data, folder: Path, clusters: int | None, then: Sequence[int], repeats: int, limit: float, seed: int = 0
) -> Iterator[Record]:
    """The whole run's record, then one for each number of clusters that follows it in its directory.

    ``seconds`` is the time of the whole command ``ips2 run``, the interpreter's start included; ``stage_seconds`` is
    what the stages took that were computed; the ratios are to the whole run's. A run before the first one compiles.

    Parameters
    ----------
    data : Data
    folder : Path
        For the run directory, which goes.
    clusters : int, optional
        Of the whole run; None takes the classes of the data.
    then : sequence of int
        Numbers of clusters that follow, one after the other.
    repeats : int
        Whole runs, each with all that follow it.
    limit : float
        Seconds after which a command is killed.
    seed : int
        Of the runs.
    """
    first = clusters or data.c
    _command(data, first, folder / "warm", limit, seed)
    for repeat in range(repeats):
        whole: Record = {}
        for c in (first, *then):
            record = _command(data, c, folder / "run", limit, seed)
            whole = whole or record
            ratios = {
                "ratio": _share(record["seconds"], whole["seconds"]),
                "stage_ratio": _share(record["stage_seconds"], whole["stage_seconds"]),
            }
            kind = "whole" if record is whole else "changed"
            yield {"kind": kind, "data": data.name, "m": data.m, "f": data.f, **record, **ratios, "repeat": repeat}
        shutil.rmtree(folder / "run", ignore_errors=True)


def _share(part: Value, whole: Value) -> float | None:
    return part / whole if isinstance(part, float) and isinstance(whole, float) and whole > 0 else None


def _command(data: Data, c: int, out: Path, limit: float, seed: int) -> Record:
    """One command in a process of its own: how it ended, seconds, what it computed, and scores."""
    command = ["run", data.X, "--out", str(out), "--clusters", str(c), "--seed", str(seed), "--quiet", "--json"]
    begun = time.perf_counter()
    nothing: Record = {"c": c, "seconds": None, "stage_seconds": None}
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "ips2_dask.cli", *command], capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return {**nothing, "outcome": "stopped at the limit"}
    seconds = time.perf_counter() - begun
    if ended.returncode != 0:
        print(ended.stderr, end="", file=sys.stderr)
        return {**nothing, "outcome": f"failed with status {ended.returncode}"}
    stages: list[dict[str, Any]] = json.loads(ended.stdout.splitlines()[-1])["stages"]
    measures = scores(np.load(data.labels), open_run(out).labels)
    return {
        "c": c,
        "outcome": "finished",
        "seconds": seconds,
        "stage_seconds": float(sum(s["seconds"] for s in stages if not s["skipped"])),
        "reused": sum(s["skipped"] for s in stages),
        "nmi": measures["nmi"],
        "ari": measures["ari"],
    }
