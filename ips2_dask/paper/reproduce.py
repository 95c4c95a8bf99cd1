"""``ips2 bench reproduce``: the paper's experiments, their records, tables and figures, in one call."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from ips2_dask.errors import BadInput
from ips2_dask.kernels.parallel import usable_cores
from ips2_dask.paper import data as sets
from ips2_dask.paper import figures
from ips2_dask.paper.experiments import FAMILIES
from ips2_dask.paper.work import Family, Record, Scope, Work, commit, quick
from ips2_dask.pipeline.manifest import versions
from ips2_dask.plots.style import check_matplotlib
from ips2_dask.store.files import write_atomically


def chosen(only: Sequence[str]) -> dict[str, Family]:
    """The families that ``--only`` names, in their own order; all of them where it names none.

    Raises
    ------
    BadInput
        A name that is none of theirs.
    """
    for name in only:
        if name not in FAMILIES:
            allowed, otherwise = ", ".join(FAMILIES), "nothing would be computed"
            raise BadInput("--only", repr(name), allowed, otherwise, "give some of these names")
    return {name: family for name, family in FAMILIES.items() if not only or name in only}


def runnable(data: str | None = None) -> list[str]:
    """Names of the families whose data sets are there; by default where the variable IPS2_DATA says."""
    there = set(sets.available(data))
    return [name for name, family in FAMILIES.items() if set(family.datasets) <= there]


def reproduce(
    out: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    *,
    only: Sequence[str] = (),
    brief: bool = False,
    jobs: int | None = None,
    seed: int = 0,
    tell: Callable[[str], object] = lambda line: None,
) -> list[Record]:
    """Run the paper's experiments, and write ``results.json``, ``about.json``, ``tables.md`` and ``figures/``.

    ``about.json`` says of each family of experiments which code made its records, and when. What an earlier call with
    the same arguments and code has done is not done again; the files are of what the last call asked for.

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
    tell : callable, optional
        Called with a line for each task that is done.

    Returns
    -------
    list of dict
        The records.

    Raises
    ------
    BadInput
        A data set, a package or an argument is missing or can't be used.
    """
    if jobs is not None and jobs < 1:
        raise BadInput("--jobs", str(jobs), "1 or more", "nobody would do the work", "give --jobs 1")
    if seed < 0:
        raise BadInput("--seed", str(seed), "0 or more", "no generator takes it", "give --seed 0")
    check_matplotlib()
    folder, where = Path(out).absolute(), None if data is None else str(Path(data).absolute())
    _check_folder(folder)
    families, scope = chosen(only), quick(seed) if brief else Scope(seed=seed)
    for name in dict.fromkeys(name for family in families.values() for name in family.datasets):
        sets.load(name, where)  # refused before anything is computed where it is missing or not the publisher's
    work, records = Work(folder, where, scope, jobs or min(4, usable_cores()), tell), []
    for name, family in families.items():
        records += family.make(work)
        figures.draw(name, folder / "figures", records, work.more)
    write_atomically(folder / "results.json", "[\n" + ",\n".join(json.dumps(one) for one in records) + "\n]\n")
    write_atomically(folder / "about.json", json.dumps(dict.fromkeys(families, _about(scope)), indent=1) + "\n")
    write_atomically(folder / "tables.md", tables(records))
    return records


def command(options: argparse.Namespace) -> int:
    """``ips2 bench reproduce``: progress on standard error, and what came out on standard output."""

    def tell(line: str) -> None:
        if not options.quiet:
            print(line, file=sys.stderr, flush=True)

    only = options.only.split(",") if options.only else ()
    how = {"brief": options.quick, "jobs": options.jobs, "seed": options.seed}
    records = reproduce(options.out, options.data, only=only, tell=tell, **how)
    files = {file.partition(".")[0]: str(Path(options.out).absolute() / file) for file in ("results.json", "tables.md")}
    if not options.quiet:
        print(f"{len(records)} records in {files['results']}\ntables: {files['tables']}")
    if options.json:
        print(json.dumps({"records": len(records), **files}))
    return 0


def _about(scope: Scope) -> dict[str, object]:
    """The commit of the code where it is a checkout, the date, sizes and packages."""
    made = {"commit": commit(), "date": datetime.now(UTC).date().isoformat()}
    return {**made, "runs": scope.runs, "budget": scope.budget, "seed": scope.seed, "versions": versions()}


def _check_folder(folder: Path) -> None:
    """Refuse a file, and a directory that holds something else."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else [folder.name] * folder.exists()
    if names and "tasks" not in names:
        found = f"{folder}, which holds something else ({', '.join(sorted(names)[:3])})"
        allowed, otherwise = "a new directory, or one of an earlier call", "files would mix with others"
        raise BadInput("--out", found, allowed, otherwise, "give another --out")


# tables


def tables(records: Sequence[Record]) -> str:
    """Each experiment, setting and measure as a Markdown table: data sets by methods, ours / the paper's."""
    parts: dict[tuple[str, str, str], dict[str, dict[str, str]]] = {}
    for r in records:
        cell = f"{r['mean']:.4g}" + ("" if r["paper"] is None else f" / {r['paper']:g}")
        k = r["params"].get("n_neighbors") if r["experiment"].startswith("neighbors") else None
        row = r["dataset"] if k is None else f"{r['dataset']}, k = {k}"
        parts.setdefault((r["experiment"], r["setting"], r["measure"]), {}).setdefault(row, {})[r["method"]] = cell
    text = []
    for names, rows in parts.items():
        methods = list(dict.fromkeys(method for row in rows.values() for method in row))
        lines = [["", *methods], ["---"] * (1 + len(methods))]
        lines += [[name, *(row.get(method, "") for method in methods)] for name, row in rows.items()]
        table = "".join("| " + " | ".join(line) + " |\n" for line in lines)
        text.append(f"## {', '.join(names)}\n\n{table}")
    return "\n".join(text)
