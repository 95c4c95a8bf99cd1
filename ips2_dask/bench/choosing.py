"""`ips2 bench choosing`: what a user without labels gets on known data sets, beside what others offer, with time."""

from __future__ import annotations

import importlib
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from ips2_dask.bench.choosing_systems import OURS, SYSTEMS, Problem
from ips2_dask.bench.document import Record
from ips2_dask.bench.labelled_data import labelled_data
from ips2_dask.bench.process import FINISHED, work_apart
from ips2_dask.errors import BadInput
from ips2_dask.metrics import accuracy, adjusted_rand, nmi
from ips2_dask.typing import Integer

COLUMNS = (
    "data",
    "m",
    "classes",
    "system",
    "outcome",
    "clusters",
    "left_out",
    "k",
    "sigma",
    "nmi",
    "acc",
    "ari",
    "threads",
    "seconds",
    "cold_seconds",
)

FITS = 3
"""Of each system: the second may still compile a part that the first had no need of."""


class Job(TypedDict):
    """The argument of `work`: files of X and of the known labels, one system, and a seed."""

    X: str
    labels: str
    system: str
    seed: int


def measure(
    names: Sequence[str], systems: Sequence[str], folder: Path, seed: int = 0, *, cold: bool = False
) -> Iterator[Record]:
    """A record for each data set and system: clusters found, scores and seconds.

    Each system is fitted three times with the threads that it takes by itself: ``threads`` says how many it may take.
    The labels are the last fit's, and ``seconds`` those of the faster of the last two, for which all or nearly all is
    compiled. ``cold_seconds`` are the first fit's in a fresh process whose folder for Numba's compiled code is empty.
    Neither holds imports, nor what Numba compiles during these, as it does for UMAP and EVoC. These two have no seed,
    which would make them slower: their scores differ a little from run to run.

    ``left_out`` is the share of samples that a system puts into no cluster, as HDBSCAN does with noise. For NMI and ARI
    they are one cluster of their own, for ACC they are wrong; ``clusters`` does not count them.

    Parameters
    ----------
    names : sequence of str
        Of `labelled_data`, which scales some of them: every system gets the same X.
    systems : sequence of str
        Of ``SYSTEMS``; their packages are installed.
    folder : Path
        For temporary files.
    seed : int
    cold : bool
        Make the fits of each system in a fresh process.
    """
    for name in names:
        data = labelled_data(name)
        X = np.asarray(data.X, np.float64)
        facts: Record = {"data": name, "m": len(X), "f": X.shape[1], "classes": data.classes, "scale": data.scale}
        with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as place:
            for system in systems:
                if cold:
                    measured = _in_a_fresh_process(system, X, data.known, Path(place), seed)
                else:
                    measured = _in_this_process(system, Problem(X, data.classes, Path(place), seed), data.known)
                described: Record = {"system": system, "call": SYSTEMS[system].call, "knows_c": SYSTEMS[system].knows_c}
                yield {**facts, **described, **measured}


def _in_this_process(name: str, problem: Problem, true_labels: Integer) -> Record:
    try:
        measured = _measured(name, problem, true_labels)
    except Exception as error:
        if name in OURS:
            raise
        return {"outcome": f"failed: {type(error).__name__}"}  # whatever another package raises is its result
    del measured["cold_seconds"]  # of a process where something may have been compiled before
    return {"outcome": FINISHED, **measured}


def _in_a_fresh_process(name: str, X: NDArray[np.floating], true_labels: Integer, folder: Path, seed: int) -> Record:
    files = {"X": folder / "X.npy", "labels": folder / "labels.npy"}
    for path, array in zip(files.values(), (X, true_labels), strict=True):
        if not path.exists():
            np.save(path, array)
    job = Job(X=str(files["X"]), labels=str(files["labels"]), system=name, seed=seed)
    outcome = work_apart("choosing", job, folder, cold=True)
    return {"outcome": outcome.word, **outcome.answer}


def work(job: Job) -> Record:
    """The fits of one system, in a process of its own."""
    X, true_labels = np.load(job["X"]), np.load(job["labels"])
    problem = Problem(X, len(np.unique(true_labels)), Path(tempfile.gettempdir()), job["seed"])
    return _measured(job["system"], problem, true_labels)


def _measured(name: str, problem: Problem, true_labels: Integer) -> Record:
    """Scores of a system's last fit, and the seconds of its first one and of the others."""
    system = SYSTEMS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the scores show the quality of a result
        for module in system.modules:
            importlib.import_module(module)
        threads, seconds = system.threads(), []
        for _ in range(FITS):
            begun = time.perf_counter()
            labels, facts = system.fit(problem)
            seconds.append(time.perf_counter() - begun)
    return {
        "clusters": len(np.unique(labels[labels >= 0])),
        **facts,
        **scores_with_noise(true_labels, labels),
        "threads": threads,
        "seconds": min(seconds[1:]),
        "cold_seconds": seconds[0],
    }


def scores_with_noise(true_labels: Integer, labels: Integer) -> dict[str, float]:
    """NMI, ACC and ARI, where labels below 0 say that a sample is in no cluster, and the share of these samples.

    For NMI and ARI they are one cluster of their own; for ACC each of them is wrong.
    """
    labels = np.maximum(labels, -1)
    labelled = labels >= 0
    share = float(np.mean(labelled))
    return {
        "left_out": 1 - share,
        "nmi": nmi(true_labels, labels),
        "acc": share * accuracy(true_labels[labelled], labels[labelled]) if share else 0.0,
        "ari": adjusted_rand(true_labels, labels),
    }


# ---- tables


class Column(NamedTuple):
    """A field of the records whose mean over the data sets is shown, and whether the largest one is bold."""

    head: str
    field: str
    best: bool = False


SCORES = (Column("NMI", "nmi", True), Column("ACC", "acc", True), Column("ARI", "ari", True))
SECONDS = (Column("seconds", "seconds"), Column("seconds of a first fit", "cold_seconds"))


def read(path: Path) -> list[Record]:
    """The records of a file that this benchmark has written.

    Raises
    ------
    BadInput
        Where there is none.
    """
    try:
        records: list[Record] = json.loads(path.read_text(encoding="utf-8"))["results"]
        if all({"data", "system", "knows_c"} <= record.keys() for record in records):
            return records
        problem = "records of another benchmark"
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        problem = f"no record ({type(error).__name__})"
    raise BadInput(
        str(path),
        problem,
        "a file of `ips2 bench choosing --json FILE`",
        "there would be no table to print",
        "give such a file, or --markdown alone to measure",
    )


def markdown(records: Sequence[Record]) -> str:
    """The records as tables: `means`, and `each_set`."""
    return f"{means(records)}\n{each_set(records)}"


def means(records: Sequence[Record]) -> str:
    """The records as two tables, systems that are told c and those that are not: means over the data sets.

    The best of each score is bold, among systems that have a result on every set.
    """
    titles = {True: "Told c, the number of classes:", False: "Not told c:"}
    parts = []
    for knows_c, title in titles.items():
        chosen = [record for record in records if record["knows_c"] is knows_c]
        if chosen:
            parts.append(f"{title}\n\n{_table(chosen)}")
    return "\n".join(parts)


def each_set(records: Sequence[Record]) -> str:
    """The ARI of every system on each data set, with the number of clusters where the system has chosen it."""
    systems = list(dict.fromkeys(str(r["system"]) for r in records))
    found = {(r["data"], r["system"]): r for r in records}
    lines = [
        "ARI on each set, with the number of clusters where the system is not told it:",
        "",
        "| data, samples x features, classes | " + " | ".join(f"`{name}`" for name in systems) + " |",
        "|---|" + "---|" * len(systems),
    ]
    for data in dict.fromkeys(r["data"] for r in records):
        of = [found.get((data, name)) for name in systems]
        shape = next(r for r in of if r is not None)
        head = f"{data}, {shape.get('m', 0):,} x {shape.get('f', 0):,}, {shape.get('classes', 0)}"
        lines.append(f"| {head} | " + " | ".join(_ari(r) for r in of) + " |")
    return "\n".join(lines) + "\n"


def _ari(record: Record | None) -> str:
    ari = None if record is None else record.get("ari")
    if record is None or not isinstance(ari, float):
        return "–"
    return _score(ari, None) if record["knows_c"] else f"{_score(ari, None)} ({record.get('clusters')})"


def _table(records: Sequence[Record]) -> str:
    seconds = [column for column in SECONDS if any(r.get(column.field) is not None for r in records)]
    rows = {name: [r for r in records if r["system"] == name] for name in dict.fromkeys(r["system"] for r in records)}
    most = max(_count(of) for of in rows.values())
    rivals = [of for of in rows.values() if _count(of) == most]
    best = {column: max((_mean(of, column.field) or 0.0 for of in rivals), default=0.0) for column in SCORES}
    lines = [
        "| system | call | "
        + " | ".join(column.head for column in SCORES)
        + " | left out | sets | threads | "
        + " | ".join(column.head for column in seconds)
        + " |",
        "|---|---|" + "---|" * (len(SCORES) + 3 + len(seconds)),
    ]
    for name, of in rows.items():
        scores = [_score(_mean(of, column.field), best[column] if of in rivals else None) for column in SCORES]
        left_out = _mean(of, "left_out")
        cells = [
            f"`{name}`",
            f"`{of[0]['call']}`",
            *scores,
            "–" if left_out is None else f"{left_out:.0%}",
            str(_count(of)),
            _threads(of),
            *(_short(_mean(of, column.field)) for column in seconds),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _values(records: Sequence[Record], field: str) -> list[Any]:
    return [r[field] for r in records if r.get(field) is not None]


def _count(records: Sequence[Record]) -> int:
    return len(_values(records, "nmi"))


def _mean(records: Sequence[Record], field: str) -> float | None:
    values = _values(records, field)
    return statistics.fmean(values) if values else None


def _score(score: float | None, best: float | None) -> str:
    if score is None:
        return "–"
    text = f"{score:.3f}".replace("0.", ".", 1) if abs(score) < 0.9995 else f"{score:.0f}"
    return f"**{text}**" if best is not None and score > best - 5e-4 else text


def _threads(records: Sequence[Record]) -> str:
    counts = sorted(set(_values(records, "threads")))
    return " or ".join(map(str, counts)) or "–"


def _short(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds:.2f}" if seconds < 1 else f"{seconds:.1f}" if seconds < 10 else f"{seconds:.0f}"
