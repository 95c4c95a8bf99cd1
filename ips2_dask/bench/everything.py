"""`ips2 bench all`: every record and picture that README, docs and notebooks show, one command after the other.

Each is made by a fresh process in a folder aside, and moved to its place when it is whole. What is there already, made
by the code that is here now, is not made again.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ips2_dask.bench import document, figures, shown
from ips2_dask.bench.origin import PACKAGE, Code, code, digest, now
from ips2_dask.bench.shown import PIP, RESULTS, Step
from ips2_dask.errors import BadInput, IPS2Error
from ips2_dask.store.files import write_atomically

ASIDE = ".bench-all"
"""Folder of what is being made."""

ORIGIN = "origin.json"
"""Beside records of commands that write no origin themselves."""

STUDY = "two-cores.jsonl"
"""Records of the scaling notebook, which it measures where they are missing."""


class StepFailed(IPS2Error):
    """A command has failed; what was made before stays."""


# ---- what is there


def origin_of(step: Step, root: Path) -> dict[str, Any] | None:
    """Commit, changes, date and more of the record of a step; None where there is no whole one.

    Keys are missing that a record does not have, as those of records that were made before they knew their origin.
    """
    file = root / step.record
    try:
        if file.parent.name == "paper":
            file.stat()
            file = file.with_name(ORIGIN)
            return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}
        content = json.loads(file.read_text(encoding="utf-8"))
        found = content["metadata"].get("ips2_dask", {}) if file.suffix == ".ipynb" else content
        return {name: value for name, value in found.items() if name != "results"} if _whole(found) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _whole(found: Mapping[str, Any]) -> bool:
    """Records from before this was said are whole."""
    return bool(found.get("complete", True))


def is_there(step: Step, root: Path, here: Code) -> bool:
    """Whether all that a step makes is there, and made by this code."""
    origin = origin_of(step, root)
    if origin is None or not all((root / picture).exists() for picture in step.pictures):
        return False
    if step.figure and not _shows(root / step.figure, root / step.record):
        return False
    return "commit" in origin and (origin["commit"], origin.get("changes")) == tuple(here)


def _shows(figure: Path, record: Path) -> bool:
    """Whether a figure is there, and is one of these records."""
    return figure.exists() and figures.records_of(figure) == digest(document.read(record))


def line(step: Step, root: Path, here: Code) -> str:
    """A step, its state, the commit and the date of its record, and its command."""
    origin = origin_of(step, root)
    if origin is None:
        return f"{step.name:<16} {'not there':<19} {'':<16} {'':<11} {step.command}"
    state = "there" if is_there(step, root, here) else "of other code"
    state += ", busy" if origin.get("busy") else ""
    commit, _, dirty = str(origin.get("commit") or "no commit").partition("-")
    short = commit[:9] + (dirty and f"-{dirty}")
    return f"{step.name:<16} {state:<19} {short:<16} {str(origin.get('date', ''))[:10]:<11} {step.command}"


# ---- making it


def make_all(options: argparse.Namespace) -> int:
    """Make or list the steps that ``options`` name.

    Raises
    ------
    BadInput
        Where packages, data or the checkout are missing.
    StepFailed
    """
    root = Path(options.out).absolute()
    steps = [step for step in shown.STEPS if not options.only or step.name in options.only]
    if options.list:
        for step in steps:
            print(line(step, root, code()))
        return 0
    todo = [step for step in steps if not is_there(step, root, code())]
    _check(todo)
    print(
        f"{len(steps) - len(todo)} of {len(steps)} are there; the others take about "
        f"{shown.spelled(sum(step.seconds for step in todo))}",
        file=sys.stderr,
    )
    for number, step in enumerate(todo, 1):
        print(f"{number}/{len(todo)} {step.name}: {step.command}", file=sys.stderr, flush=True)
        make(step, root, busy=options.busy)
    return 0


def _check(steps: Sequence[Step]) -> None:
    """Refuse to begin what could not be ended."""
    needed = {module: step.name for step in reversed(steps) for module in step.packages}
    missing = sorted(module for module in needed if importlib.util.find_spec(module) is None)
    if missing:
        names = ", ".join(PIP.get(module, module) for module in missing)
        raise BadInput(
            "bench all",
            f"no {names}",
            "all packages that the benchmarks compare with or draw by",
            f"{' and '.join(dict.fromkeys(needed[module] for module in missing))} would lack rows or fail",
            "pip install scanpy 'ips2-dask[bench,notebooks]', or leave these steps out with --only",
        )
    folder = _data()
    if any(step.needs_data for step in steps) and (folder is None or not folder.is_dir()):
        raise BadInput(
            "IPS2_DATA",
            "no folder" if folder is None else f"{folder}, which is none",
            "the folder of the data sets",
            "half of the records would be missing",
            "set it, or name others with --only",
        )
    if any(step.record.endswith(".ipynb") for step in steps) and not (PACKAGE.parent / "notebooks").is_dir():
        raise BadInput(
            "bench all",
            "no folder of notebooks",
            "a checkout, which has them",
            "there would be nothing to execute",
            "run it in a checkout, or leave the notebooks out with --only",
        )


def _data() -> Path | None:
    """The folder of data sets, as `datasets` finds it."""
    return Path(os.environ["IPS2_DATA"]).expanduser() if os.environ.get("IPS2_DATA") else None


def make(step: Step, root: Path, busy: bool = False) -> None:
    """Make a step's record and pictures, aside first.

    Raises
    ------
    StepFailed
    """
    aside = root / ASIDE
    aside.mkdir(parents=True, exist_ok=True)
    for file in (step.record, step.figure, *step.pictures):
        if file:
            (root / file).parent.mkdir(parents=True, exist_ok=True)
    begun: dict[str, Any] = {**code()._asdict(), "date": now(), "complete": True, "command": step.command}
    _run(step.name, words(step, root, busy), aside)
    if step.command.startswith("ips2 bench"):
        for file in (step.record, step.figure):
            if file:
                (aside / Path(file).name).replace(root / file)
    elif step.name == "paper":
        for made in sorted((aside / "paper").glob("*.json")):  # and what its parts were made by
            shutil.copyfile(made, (root / step.record).with_name(made.name))
        write_atomically((root / step.record).with_name(ORIGIN), json.dumps(begun, indent=1) + "\n")
    shutil.rmtree(aside / step.name, ignore_errors=True)  # what --keep has kept
    with contextlib.suppress(OSError):
        aside.rmdir()  # if it is empty


def words(step: Step, root: Path, busy: bool) -> list[str]:
    """The command of a step as arguments of this Python; what an earlier one has left behind is taken away."""
    aside = root / ASIDE
    given = shlex.split(step.command)[1:]
    if step.command.startswith("ips2 bench"):
        target = aside / Path(step.record).name
        if target.exists() and not _may_go_on(target):
            target.unlink()
        shutil.rmtree(aside / step.name, ignore_errors=True)  # a run that was interrupted has other seconds
        given = [str(aside / step.name) if word == "DIR" else word for word in given]
        given += ["--json", str(target), *step.more, *(["--busy"] if busy else [])]
        given += ["--figure", str(aside / Path(step.figure).name)] if step.figure else []
    elif step.name == "paper":
        given = [{"DIR": str(_data()), "paper": str(aside / "paper")}.get(word, word) for word in given]
    else:
        if step.name == "notebook-03":
            _forget_study(root / RESULTS / STUDY)
        *module, _ = given
        pictures = [
            word for file, number in step.pictures.items() for word in ("--picture", str(number), str(root / file))
        ]
        source = PACKAGE.parent / step.record
        return [sys.executable, *module, str(source), str(root / step.record), *pictures]
    return [sys.executable, "-m", "ips2_dask.cli", *given]


def _may_go_on(file: Path) -> bool:
    """Whether records that were interrupted are those of this code."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return (found["commit"], found["changes"]) == tuple(code())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _forget_study(file: Path) -> None:
    """Take away the study's records if some are those of other code: the notebook measures what is missing."""
    if not file.exists():
        return
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    if any((r.get("commit"), r.get("changes")) != tuple(code()) for r in records):
        file.unlink()


def _run(name: str, arguments: Sequence[str], folder: Path) -> None:
    path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(arguments, cwd=folder, env={**os.environ, "PYTHONPATH": path})
    try:
        status = process.wait()
    except BaseException:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        raise
    if status:
        raise StepFailed(
            f"bench all: the step {name} ended with status {status}; what was made before stays. Remedy: see what it "
            f"says above, and give the same command again, which goes on."
        )
