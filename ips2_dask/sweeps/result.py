"""The result of a sweep: its points, ranked by a score, each of which can be opened as a run, and its files."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ips2_dask.errors import BadInput
from ips2_dask.kernels.validity import CENTRES_FROM, RESAMPLED_TOL, SHARE, STARTS
from ips2_dask.params import Params
from ips2_dask.plots import run as pictures
from ips2_dask.plots.style import saved, sheet
from ips2_dask.reports.page import Bold, Figure, Section, Table, encoded, page
from ips2_dask.runs.run import Run
from ips2_dask.store.files import write_atomically
from ips2_dask.store.integrity import Document, Facts
from ips2_dask.store.layout import STAGES
from ips2_dask.store.zarr_store import ZarrStore
from ips2_dask.wording import count, heading, plain, setting, unsure

_FOLDER = "sweep"
"""The folder of a run directory that a sweep's documents and files are in."""

_RESULT = f"{_FOLDER}/sweep.json"

VERSION = 3
"""Raised when a criterion changes: points of an earlier version are judged again."""

CRITERIA = ("stability", "modularity")
"""What is known of a point without labels, of which more is better; the score is the product of all."""


class JudgeSettings(NamedTuple):
    """How the runs of a sweep are judged: the number of subsamples, and the seed that draws them."""

    resamples: int
    seed: int

    def as_dict(self) -> dict[str, str | float]:
        """The settings and constants that the criteria depend on besides the run, as a point stores them."""
        resampled = {"share": SHARE, "starts": STARTS, "centres_from": CENTRES_FROM, "tol": RESAMPLED_TOL}
        return {**self._asdict(), **resampled, "version": VERSION}


@dataclasses.dataclass(frozen=True)
class Point:
    """One combination of parameters."""

    name: str  #: digest of what its labels depend on
    params: Params
    criteria: Mapping[str, float]  #: stability, modularity
    facts: Facts  #: sizes of clusters, digest of the labels, warnings, scores where labels are known, seconds
    stages: Mapping[str, Document]  #: of each its folder, and whether it was computed (again) for this point or reused
    manifest: Document = dataclasses.field(repr=False)  #: of its run
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)  #: of c, and where points differ
    rank: int = 0  #: 1 for the best one

    @classmethod
    def of_run(cls, name: str, run: Run, judgement: Document) -> Point:
        """The point of a finished run and its judgement, as `judge.judge_run` gives it."""
        kept = ("state", "folder", "seconds")
        stages = {stage["name"]: {fact: stage[fact] for fact in kept} for stage in run.manifest["stages"]}
        spent = sum(stage["seconds"] for stage in stages.values() if stage["state"] != "reused")
        facts = {**judgement, "seconds": {"run": spent, "criteria": judgement["seconds"]}}
        return cls(name, run.params, facts.pop("criteria"), facts, stages, run.manifest)

    @classmethod
    def read(cls, store: ZarrStore, name: str, settings: JudgeSettings) -> Point | None:
        """A point that an earlier call has judged in the same way, or None."""
        content = store.get_document(f"{_FOLDER}/point-{name}.json")
        if content is None or content["asked"] != settings.as_dict():
            return None
        params = Params(**content["manifest"]["params"])
        return cls(name, params, *(content[field] for field in _STORED))

    def write(self, store: ZarrStore, settings: JudgeSettings) -> None:
        """Store the point for later calls."""
        content = {"asked": settings.as_dict(), **{field: getattr(self, field) for field in _STORED}}
        store.put_document(f"{_FOLDER}/point-{self.name}.json", content)

    @property
    def score(self) -> float:
        """What points are ranked by; it does not depend on the other points."""
        return math.prod(self.criteria[name] for name in CRITERIA)

    @property
    def setting(self) -> str:
        """The swept parameters and their values, in words."""
        return setting(self.values)

    def row(self) -> dict[str, Any]:
        """A row of the table."""
        facts = self.facts
        return {
            "rank": self.rank,
            **self.values,
            "score": round(self.score, 6),
            **{name: round(self.criteria[name], 6) for name in CRITERIA},
            "smallest": facts["smallest"],
            "largest": facts["largest"],
            **{name: round(value, 6) for name, value in facts.get("known", {}).items()},
            "seconds": round(sum(facts["seconds"].values()), 3),
            "labels": facts["labels"],
        }


_STORED = ("criteria", "facts", "stages", "manifest")


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep's points, best first."""

    points: list[Point]
    settings: JudgeSettings  #: how they were judged
    input: str  #: its name
    shape: tuple[int, int]
    _store: ZarrStore = dataclasses.field(repr=False)

    @classmethod
    def ranked(
        cls, store: ZarrStore, points: Sequence[Point], settings: JudgeSettings, name: str, shape: tuple[int, ...]
    ) -> Sweep:
        """A sweep of these points, which get their ranks: of equal scores the larger number of clusters comes first."""
        best_first = sorted(points, key=lambda point: (-point.score, -point.params.n_clusters))
        ranked = [dataclasses.replace(point, rank=rank) for rank, point in enumerate(best_first, 1)]
        return cls(ranked, settings, name, (int(shape[0]), int(shape[1])), store)

    @property
    def best(self) -> Point:
        """The point of rank 1."""
        return self.points[0]

    @property
    def path(self) -> Path:
        """The run directory."""
        return Path(str(self._store.location))

    @property
    def computed(self) -> dict[str, int]:
        """How often each stage was computed for all points together."""
        return {stage: len({point.stages[stage]["folder"] for point in self.points}) for stage in STAGES}

    def table(self) -> list[dict[str, Any]]:
        """A row for each point, best first."""
        return [point.row() for point in self.points]

    def run(self, rank: int = 1) -> Run:
        """The run of a point, by its rank."""
        if not 1 <= rank <= len(self.points):
            why = "there would be no such point"
            raise BadInput("rank", str(rank), f"1 to {len(self.points)}", why, "give one of the table's")
        return Run(self._store, dict(self.points[rank - 1].manifest))

    def store_result(self) -> None:
        """Make the directory that of the best run, whose stages are all stored, and store the list of points."""
        points = {"points": [point.name for point in self.points], "values": [point.values for point in self.points]}
        about = {"asked": self.settings._asdict(), "input": self.input, "shape": list(self.shape)}
        with self._store.lock():
            self._store.put_document("manifest.json", self.best.manifest)
            self._store.put_document(_RESULT, {**points, **about})

    def write(self) -> Path:
        """Write the table as CSV and JSON, the figure as PNG and SVG, and the page, whose path is returned.

        The same points give the same bytes, but for seconds.
        """
        folder, rows = self.path / _FOLDER, self.table()
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(folder / "table.csv", buffer.getvalue())
        facts = {
            "input": self.input,
            "shape": list(self.shape),
            "criteria": self._criteria(),
            "computed": self.computed,
        }
        write_atomically(folder / "table.json", json.dumps({**facts, "points": rows}, indent=1) + "\n")
        with sheet(10.2, 3.6) as figure:
            pictures.criteria(rows, figure.subplots(1, 3).tolist())
            write_atomically(folder / "sweep.png", saved(figure))
            write_atomically(folder / "sweep.svg", saved(figure, "svg"))
            picture = saved(figure, transparent=True)
        write_atomically(folder / "sweep.html", self._page(rows, picture))
        return folder / "sweep.html"

    def _criteria(self) -> dict[str, str]:
        """An explanation of each column of the ranking."""
        subsamples = count(self.settings.resamples, "subsample")
        return {
            "stability": f"mean adjusted Rand index of the labels and those of {subsamples} of {SHARE:.0%} of the "
            f"samples, embedded and clustered anew (seed {self.settings.seed})",
            "modularity": "share of the weight of the pairwise similarity S that is within clusters, less that of a "
            "random graph whose samples have the same degrees",
            "score": "stability times modularity; of equal ones the larger number of clusters comes first",
        }

    def _page(self, rows: list[dict[str, Any]], picture: bytes) -> str:
        names = {name: heading(name) for name in rows[0] if name != "labels"}
        names |= {name: name.upper() for name in ("nmi", "acc") if name in names}
        best = {name: max(row[name] for row in rows) for name in CRITERIA}
        body = []
        for row in rows:
            cells = [plain(row[n]) if n in self.best.values else _FORMATS.get(n, "{:,}").format(row[n]) for n in names]
            of_best = [name in CRITERIA and (row["rank"] == 1 or best[name] == row[name]) for name in names]
            body.append([Bold(cell) if one else cell for cell, one in zip(cells, of_best, strict=True)])
        points, (m, f) = count(len(rows), "point"), self.shape
        caption = f"The criteria of all points; a ring marks the best one, {self.best.setting}."
        computed = ", ".join(f"{stage} {n}" for stage, n in self.computed.items())
        how = [f"{name.replace('_', ' ')}: {text}." for name, text in self._criteria().items()]
        how += [f"{text[0].upper()}{text[1:]}." for text in [unsure(self.best.values)] if text]
        how.append(f"How often each stage was computed for the {points}: {computed}.")
        sections = [
            Section("figure", "Criteria", [Figure("sweep", caption, encoded(picture))]),
            Section("table", "Points", [Table("Best first; best values are bold", list(names.values()), body)]),
            Section("how", "How they are ranked", how),
        ]
        lead = f"{m:,} samples × {f:,} features, {points}. Best: {self.best.setting}."
        return page(f"Sweep of {self.input}", lead, sections)


_FORMATS = {"seconds": "{:.2f}"}
_FORMATS |= dict.fromkeys(("score", *CRITERIA, "nmi", "acc"), "{:.3f}")
"""How the columns of a page's table are printed that are no whole numbers."""


def open_sweep(path: str | Path) -> Sweep:
    """The last finished sweep of a run directory.

    Raises
    ------
    BadInput
        Where there is none.
    """
    store = ZarrStore(path)
    content = store.get_document(_RESULT)
    if content is not None:
        settings = JudgeSettings(**content["asked"])
        points = [Point.read(store, name, settings) for name in content["points"]]
        stored = [
            dataclasses.replace(point, values=values)
            for point, values in zip(points, content.get("values", ()), strict=False)
            if point is not None
        ]
        if stored and len(stored) == len(points):
            return Sweep.ranked(store, stored, settings, content["input"], content["shape"])
    allowed, why = "the directory of `ips2 sweep`", "there would be nothing to show"
    raise BadInput(str(path), "no finished sweep", allowed, why, "run the sweep, which continues what is there")
