"""`ips2 bench all`: the command of each record that README and docs show, and a run of those that are not there."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from ips2_dask.errors import IPS2Error

ROOT, RESULTS = Path(__file__).parents[2], "notebooks/results"


class Made(NamedTuple):
    """The command that makes a record, as pages show it, and its seconds on two cores."""

    command: str
    seconds: int


IPS2, RESEARCH = "ips2 bench", "python notebooks/research"
PEERS = "ips2,ips2-auto,ips2-k10,ips2-k10-c,evoc,spectral-lobpcg,spectral-amg,kmeans"
TEN_MILLION = f"{IPS2} end-to-end --samples 10000000 --features 16 --clusters 10 --workers 2"
TWO_WORKERS = "--samples 200000 --features 64 --clusters 10 --vectors chunked --workers 2 --against 1 --repeats 3"
RECORDS = {
    "product": Made(f"{IPS2} product", 34),
    "graph-mnist": Made(f"{IPS2} graph --data mnist", 1_125),
    "graph-500k": Made(
        f"{IPS2} graph --samples 500000 --builders shards,pynndescent,faiss-ivf,faiss-hnsw,hnswlib,usearch", 1_756
    ),
    "peers": Made(f"{IPS2} peers --limit 200 --systems {PEERS}", 1_356),
    "peers-compiled": Made(f"{IPS2} peers --compiled --repeats 3 --systems ips2,ips2-auto,evoc", 300),
    "scaling": Made(f"{IPS2} scaling --clusters 20 --workers 2", 356),
    "sweep": Made(f"{IPS2} sweep", 116),
    "million-k10": Made(f"{IPS2} end-to-end --samples 1000000 --neighbors 10 --clusters 20 --workers 2", 709),
    "two-workers": Made(f"{IPS2} end-to-end {TWO_WORKERS}", 472),
    "ten-million": Made(f"{TEN_MILLION} --keep DIR", 2_725),
    "ten-million-3gib": Made(f"{TEN_MILLION} --memory-limit 3GiB --limit 14400 --keep DIR", 8_548),
    "choosing": Made(f"{RESEARCH}/choosing.py", 5_168),
    "roundings": Made(f"{RESEARCH}/roundings.py", 311),
    "numbers": Made(f"{RESEARCH}/number_of_clusters.py", 900),
    "noise": Made(f"{RESEARCH}/number_of_clusters.py --noise", 240),
    "copies": Made(f"{RESEARCH}/copies.py", 171),
    "certainty": Made(f"{RESEARCH}/certainty.py", 12),
    "battery": Made(f"{RESEARCH}/battery.py", 60),
    "fusion": Made(f"{RESEARCH}/fusion.py", 700),
    "steady": Made(f"{RESEARCH}/steady.py", 1_500),
    "metrics": Made(f"{RESEARCH}/metrics.py", 1_200),
}
"""In the order in which they are made. Those of the paper have a command of their own, which makes what is missing."""


class _StepFailed(IPS2Error):
    """A command has failed; what was made before stays."""


def hours() -> str:
    """How long the commands take on two cores, for the help."""
    each = ", ".join(f"{name} {_spelled(made.seconds)}" for name, made in RECORDS.items())
    return f"On two cores all take about {_spelled(sum(made.seconds for made in RECORDS.values()))}: {each}."


def _spelled(seconds: float) -> str:
    """``2 h 05``, or ``7 min``, at least one minute."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes // 60} h {minutes % 60:02}" if minutes >= 60 else f"{minutes} min"


def make_all(options: argparse.Namespace) -> int:
    """Make the records that are not there, one after the other, or list all with their commit and date."""
    out = Path(options.out).absolute()
    chosen = {name: made for name, made in RECORDS.items() if not options.only or name in options.only}
    files = {name: out / RESULTS / f"{name}.json" for name in chosen}
    if options.list:
        for name, made in chosen.items():
            found = json.loads(files[name].read_text(encoding="utf-8")) if files[name].exists() else None
            about = f"{str(found.get('commit'))[:9]} of {str(found.get('date'))[:10]}" if found else "not there"
            print(f"{name:<16} {about:<24} {made.command}")
        return 0
    todo = {name: made for name, made in chosen.items() if not files[name].exists()}
    print(f"{len(chosen) - len(todo)} of {len(chosen)} are there", file=sys.stderr)
    for number, (name, made) in enumerate(todo.items(), 1):
        print(f"{number}/{len(todo)} {name}: {made.command}", file=sys.stderr, flush=True)
        files[name].parent.mkdir(parents=True, exist_ok=True)
        _make(name, made, files[name])
    return 0


def _make(name: str, made: Made, file: Path) -> None:
    """Run one command in a process of its own; it writes its file when it is done."""
    program, *words = shlex.split(made.command)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory(prefix="ips2-bench-all-", dir=file.parent) as kept:
        words = [kept if word == "DIR" else word for word in words]
        words = ["-m", "ips2_dask.cli", *words, "--json"] if program == "ips2" else [*words, "--out"]
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run([sys.executable, *words, str(file)], cwd=ROOT, env=environment, check=False)
    if done.returncode:
        raise _StepFailed(
            f"bench all: the step {name} ended with status {done.returncode}; what was made before stays. Remedy: see "
            f"what it says above, and give the same command again, which goes on."
        )
