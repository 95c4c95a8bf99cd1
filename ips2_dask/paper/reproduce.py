"""``ips2 bench reproduce``: the paper's experiments and their records, in one call."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import ips2_dask
from ips2_dask.errors import BadInput
from ips2_dask.kernels.parallel import usable_cores
from ips2_dask.paper.experiments import Record, Scope, chosen, experiments, quick
from ips2_dask.paper.experiments.catalog import Progress
from ips2_dask.paper.experiments.tasks import Done
from ips2_dask.paper.report.findings import targets
from ips2_dask.pipeline.manifest import versions
from ips2_dask.store.files import write_atomically


class Reproduced(NamedTuple):
    """The files of the results, the number of records, and how many of IPS2's cells in Table 2 are reached."""

    results: Path
    n_records: int
    verdicts: dict[str, int]  # cells that are reached, and all: empty where Table 2 was left out


class Lines:
    """A line on standard error for every task that is done."""

    def begin(self, total: int) -> None:
        """Remember how many there are."""
        self._total, self._done = total, 0

    def done(self, task: Done) -> None:
        """Say which one, and how long it took."""
        self._done += 1
        took = "there already" if task.skipped else f"{task.seconds:.1f} s"
        print(f"{self._done:>4}/{self._total} {task.name:<34} {took}", file=sys.stderr, flush=True)


class Quiet:
    """Progress that prints nothing."""

    def begin(self, total: int) -> None:
        """Say nothing."""

    def done(self, task: Done) -> None:
        """Say nothing."""


def reproduce(
    out: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    *,
    only: Sequence[str] = (),
    brief: bool = False,
    jobs: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Reproduced:
    """Run the paper's experiments, and write ``results.json`` and ``about.json``.

    ``about.json`` says of each family of experiments which code made its records, and when; ``readings.json`` has what
    the records leave out of the family ``readings``. What an earlier call with the same arguments and code has done is
    not done again; records are of what the last call asked for.

    Parameters
    ----------
    out : path
        A directory, new or of an earlier call.
    data : path, optional
        The directory of data; by default that of the environment variable IPS2_DATA.
    only : list of str
        Names of families of experiments; all of them by default.
    brief : bool
        Five runs and smaller grids.
    jobs : int, optional
        Processes that work side by side; by default one for each core, at most four.
    seed : int
        Of the first run.
    progress : Progress, optional

    Returns
    -------
    Reproduced

    Raises
    ------
    BadInput
        A data set, a package or an argument is missing or can't be used.
    """
    if jobs is not None and jobs < 1:
        raise BadInput("--jobs", str(jobs), "1 or more", "nobody would do the work", "give --jobs 1")
    if seed < 0:
        raise BadInput("--seed", str(seed), "0 or more", "no generator takes it", "give --seed 0")
    folder = Path(out).absolute()
    _check_folder(folder)
    families, scope = chosen(only), quick(seed) if brief else Scope(seed=seed)
    where = None if data is None else str(Path(data).absolute())
    records, results = experiments(families, scope, folder, where, jobs or min(4, usable_cores()), progress or Quiet())
    write_atomically(folder / "results.json", _pretty(records))
    write_atomically(folder / "about.json", json.dumps(_about(families, scope), indent=1) + "\n")
    for name, family in families.items():
        if family.document is not None:
            write_atomically(folder / f"{name}.json", json.dumps(family.document(scope, results)) + "\n")
    cells = targets(records)
    verdicts = {"cells_reached": sum(cell.reached for cell in cells), "cells": len(cells)} if cells else {}
    return Reproduced(folder / "results.json", len(records), verdicts)


def command(options: argparse.Namespace) -> int:
    """``ips2 reproduce``: progress on standard error, and what came out on standard output."""
    done = reproduce(
        options.out,
        options.data,
        only=[name for text in options.only for name in text.split(",")],
        brief=options.quick,
        jobs=options.jobs,
        seed=options.seed,
        progress=Quiet() if options.quiet else Lines(),
    )
    if not options.quiet:
        print(f"{done.n_records} records in {done.results}")
    if options.json:
        summary = {"records": done.n_records, "results": str(done.results)}
        print(json.dumps({**summary, **done.verdicts}))
    return 0


def _about(names: Iterable[str], scope: Scope) -> dict[str, object]:
    """Of each family: the commit of the code where it is a checkout, its version, the date, sizes and packages."""
    made = {
        "commit": _commit(Path(ips2_dask.__file__).parent),
        "date": datetime.now(UTC).date().isoformat(),
        "runs": scope.runs,
        "budget": scope.budget,
        "seed": scope.seed,
        "versions": versions(),
    }
    return {name: made for name in names}


def _commit(package: Path) -> str | None:
    """The commit of a checkout's package, with a plus where files of it have changed since; else None."""
    try:

        def said(*words: str) -> str:
            return subprocess.run(
                ["git", "-C", str(package), *words], capture_output=True, text=True, check=True
            ).stdout.strip()

        said("ls-files", "--error-unmatch", "__init__.py")
        return said("rev-parse", "--short=12", "HEAD") + ("+" if said("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _check_folder(folder: Path) -> None:
    """Refuse a directory that holds something else."""
    if folder.exists() and not folder.is_dir():
        raise BadInput("--out", f"the file {folder}", "a directory", "it would be overwritten", "give another --out")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if names and "tasks" not in names:
        raise BadInput(
            "--out",
            f"{folder}, which holds something else ({', '.join(sorted(names)[:3])})",
            "a new directory, or one of an earlier call",
            "files would mix with others",
            "give another --out",
        )


def _pretty(records: Sequence[Record]) -> str:
    """JSON with one record on each line."""
    return "[\n" + ",\n".join(json.dumps(record) for record in records) + "\n]\n"
