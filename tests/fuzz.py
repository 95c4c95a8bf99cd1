"""A fuzzer of readers, runs and configs: `python tests/fuzz.py FORMAT --minutes 10`; default tests share its cases.

Every case follows from its number: bytes of one file are flipped, overwritten, cut, dropped, inserted, swapped
or repeated, and what reads it must read it or refuse it. Whatever else is raised, a process that dies and a case that
takes longer than a time limit are findings; `--case N` runs one of them again in this process.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from test_readers import FORMATS, written

from ips2_dask import Params, open_run, run
from ips2_dask.cli.main import main as ips2
from ips2_dask.clusters.config import NOT_CLUSTERS, shipped
from ips2_dask.errors import BadInput, Damaged
from ips2_dask.readers import open_source
from ips2_dask.store.cache import cache

MOST = 10_000  # rows and columns that are read of a table whose damaged header promises more
LIMIT_SECONDS = 30.0
SMALL = np.array([0, 1, 2, 3, 7, 8, 127, 128, 254, 255], np.uint8)


def damage(data: bytes, rng: np.random.Generator) -> bytes:
    """Change some bytes."""
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        at = int(rng.integers(0, max(1, len(changed))))
        size = int(rng.integers(1, 9))
        kind = rng.integers(9)
        if kind == 0 and changed:
            changed[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            changed[at : at + size] = rng.bytes(size)
        elif kind == 2:
            del changed[at:]
        elif kind == 3:
            del changed[at : at + size]
        elif kind == 4:
            changed[at:at] = rng.bytes(size)
        elif kind == 5:  # sizes and offsets are small numbers, and break most at their limits
            changed[at : at + size] = bytes(rng.choice(SMALL, size))
        elif kind == 6:
            changed[at : at + 8] = int(rng.choice([0, -1, 1 << 31, 1 << 40, -(1 << 63), (1 << 63) - 1])).to_bytes(
                8, "little", signed=True
            )
        elif kind == 7:
            changed[at:at] = changed[at : at + size * 8]
        else:
            other = int(rng.integers(0, max(1, len(changed))))
            changed[at : at + size], changed[other : other + size] = (
                changed[other : other + size],
                changed[at : at + size],
            )
    return bytes(changed)


def damage_one(root: Path, rng: np.random.Generator, names: str = "*") -> None:
    """Damage a file, or one of a folder's."""
    files = sorted(path for path in root.rglob(names) if path.is_file()) if root.is_dir() else [root]
    path = files[int(rng.integers(len(files)))]
    path.write_bytes(damage(path.read_bytes(), rng))


def read(spec: str, column: str | int) -> None:
    """Open a source and read what it promises."""
    source = open_source(spec, labels_column=column)
    m, f = source.shape
    if m < MOST and f < MOST:
        assert sum(len(block) for block in source.blocks(16)) == m
        labels = source.labels()
        assert labels is not None
        assert len(labels) == m


def reader_case(name: str) -> Callable[[np.random.Generator, Path], None]:
    """A case of one input format."""

    def case(rng: np.random.Generator, folder: Path) -> None:
        spec, column, _, _ = written(name, folder)
        damage_one(Path(spec.partition("::")[0]), rng)
        with contextlib.suppress(BadInput):
            read(spec, column)

    return case


def manifest_case(rng: np.random.Generator, folder: Path) -> None:
    """A damaged JSON document of a run: the run is shown, or refused, and the same command mends it or says why not."""
    X = np.random.default_rng(0).normal(size=(24, 3))
    run(X, Params(n_clusters=2, n_neighbors=3), store=folder / "run")
    np.save(folder / "x.npy", X)
    name = ("manifest.json", "stage.json", "p000000.json", "whole.json")[int(rng.integers(4))]
    damage_one(folder / "run", rng, name)
    cache.clear()
    with contextlib.suppress(BadInput, Damaged):
        opened = open_run(folder / "run")
        opened.report()
        assert opened.labels.shape == (24,)
    options = ["--clusters", "2", "--neighbors", "3", "--out", str(folder / "run"), "--serial", "--quiet"]
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere), contextlib.redirect_stdout(nowhere):
        assert ips2(["status", str(folder / "run")]) in (0, 1, 2)
        status = ips2(["run", str(folder / "x.npy"), *options])
    assert status in (0, 2), f"ips2 run ended with {status}"


ODD = (
    "",
    "~",
    "null",
    "true",
    "-1",
    "0",
    "1e400",
    ".nan",
    "4GiB",
    "4 ZiB",
    "1:30:00",
    '"01:00:00"',
    "2001-99-99",
    "0x",
    "[]",
    "{}",
    "[[1]]",
    "{a: {b: 1}}",
    "&a [*a]",
    "*a",
    "!!set {a}",
    "!!map [1]",
    "!!binary x",
    "!!timestamp x",
    "!!int x",
    "!!python/name:os.system",
    "? [a]",
    "<<: 3",
    "'\\0'",
    '"\\ud800"',
    "\u2028",
    "1" * 5000,
    "[" * 2000,
    "tls://h:99999",
    "http://u:p@h",
    "0.0.0.0",
    "${HOME}",
    "~root",
    "/dev/null",
    "|",
)
"""Values that a YAML file may have where another one belongs."""


def yaml_case(rng: np.random.Generator, folder: Path) -> None:
    """A cluster's config with odd values or damaged bytes: checked, or refused in one line, and nothing is made."""
    known = [path for name, path in shipped().items() if name not in NOT_CLUSTERS]
    lines = known[int(rng.integers(len(known)))].read_text().splitlines()
    for _ in range(int(rng.integers(0, 4))):
        at = int(rng.integers(len(lines)))
        key, colon, _ = lines[at].partition(":")
        odd = ODD[int(rng.integers(len(ODD)))]
        lines[at] = f"{key}: {odd}" if colon and "#" not in key else odd
    path = folder / "cluster.yaml"
    data = "\n".join(lines).encode(errors="surrogatepass")
    path.write_bytes(damage(data, rng) if rng.random() < 0.6 else data)
    said = io.StringIO()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(said), contextlib.redirect_stdout(nowhere):
        status = ips2(["cluster", "check", str(path)])
    assert status in (0, 2), f"ips2 cluster check ended with {status}: {said.getvalue()}"
    assert len(said.getvalue().splitlines()) == (status == 2), said.getvalue()
    assert [path.name for path in folder.iterdir()] == ["cluster.yaml"]


CASES = {name: reader_case(name) for name in FORMATS if name != "zarr-url"} | {
    "manifest": manifest_case,
    "yaml": yaml_case,
}
ALIKE = {"csv.gz": "csv", "tsv": "csv", "blanks": "csv", "mat73": "mat", "mtx.gz": "mtx"}
GROUPS: dict[str, list[str]] = {}
for case in CASES:
    GROUPS.setdefault(ALIKE.get(kind := case.split("-")[0], kind), []).append(case)
"""The formats of the command line, and the kinds of files that each is tried with."""


def one(name: str, number: int) -> None:
    """Run a case; raises what it finds."""
    folder = Path(tempfile.mkdtemp(prefix="ips2-fuzz-"))
    try:
        CASES[name](np.random.default_rng([number, list(CASES).index(name)]), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _serve(pipe: Any) -> None:
    """Run the cases that are asked for, one after the other."""
    while True:
        name, number = pipe.recv()
        try:
            one(name, number)
            pipe.send(None)
        except Exception:
            pipe.send(traceback.format_exc())


class Runner:
    """Runs cases in a process that may die or hang, and is then replaced."""

    def __init__(self) -> None:
        self._process: Any = None

    def __call__(self, name: str, number: int) -> str | None:
        """What a case has found, if anything."""
        if self._process is None:
            self._pipe, other = multiprocessing.get_context("spawn").Pipe()
            self._process = multiprocessing.get_context("spawn").Process(target=_serve, args=(other,), daemon=True)
            self._process.start()
            other.close()
        self._pipe.send((name, number))
        said: str | None = f"it took more than {LIMIT_SECONDS:g} s"
        try:
            if self._pipe.poll(LIMIT_SECONDS):
                return self._pipe.recv()
        except EOFError:
            self._process.join()
            said = f"the process died of {signal.Signals(-self._process.exitcode).name}"
        self.close()
        return said

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def main() -> int:
    """Fuzz for some minutes; returns 1 where something was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("format", choices=[*GROUPS, *CASES], help="one of the readers, manifest, or yaml")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first case")
    parser.add_argument("--case", type=int, metavar="N", help="run this one in this process")
    options = parser.parse_args()
    names = GROUPS.get(options.format) or [options.format]
    if options.case is not None:
        for name in names:
            one(name, options.case)
        return 0
    runner, number, done, found = Runner(), options.first, 0, 0
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end:
        for name in names:
            said = runner(name, number)
            done += 1
            if said is not None:
                found += 1
                print(f"--- {name} --case {number}\n{said}", flush=True)
        number += 1
    runner.close()
    print(f"{options.format}: {done} cases, the last of number {number - 1}; {found} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
