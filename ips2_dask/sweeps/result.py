"""What a sweep has found: its points, ranked, each of which can be opened as a run."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ips2_dask.errors import BadInput
from ips2_dask.params import Params
from ips2_dask.runs.run import Run
from ips2_dask.store.layout import STAGES
from ips2_dask.store.zarr_store import ZarrStore
from ips2_dask.sweeps.criteria import Asked
from ips2_dask.sweeps.ranking import CRITERIA, order

FOLDER = "sweep"
"""Of a run directory: what a sweep puts there."""


@dataclasses.dataclass(frozen=True)
class Point:
    """One combination of parameters.

    Attributes
    ----------
    name : str
        Digest of what its labels depend on.
    params : Params
    criteria : mapping
        ``stability``, ``silhouette``, ``conductance``.
    facts : mapping
        Sizes of the clusters, digest of the labels, warnings, scores where labels are known, seconds.
    stages : mapping
        Of each stage: its folder, and whether it was ``computed`` (or ``computed again``) for this point or ``reused``.
    manifest : mapping
        Of its run.
    rank : int
        1 for the best one.
    mean_rank : float
    """

    name: str
    params: Params
    criteria: Mapping[str, float]
    facts: Mapping[str, Any]
    stages: Mapping[str, Mapping[str, Any]]
    manifest: Mapping[str, Any] = dataclasses.field(repr=False)
    rank: int = 0
    mean_rank: float = 0.0

    @classmethod
    def of(cls, name: str, run: Run, found: dict[str, Any]) -> Point:
        """The point of a finished run and what was found of it."""
        stages = {
            stage["name"]: {"state": stage["state"], "folder": stage["folder"], "seconds": stage["seconds"]}
            for stage in run.manifest["stages"]
        }
        spent = sum(stage["seconds"] for stage in stages.values() if stage["state"] != "reused")
        facts = {**found, "seconds": {"run": spent, "criteria": found["seconds"]}}
        criteria = facts.pop("criteria")
        return cls(name, run.params, criteria, facts, stages, run.manifest)

    @classmethod
    def read(cls, store: ZarrStore, name: str, asked: Asked) -> Point | None:
        """A point that an earlier call has judged in the same way, or None."""
        held = store.get_document(_document(name))
        if held is None or held["asked"] != asked.as_dict():
            return None
        params = Params.of_manifest(held["manifest"]["params"])
        return cls(name, params, held["criteria"], held["facts"], held["stages"], held["manifest"])

    def write(self, store: ZarrStore, asked: Asked) -> None:
        """Keep the point."""
        content = {"asked": asked.as_dict(), **{name: getattr(self, name) for name in _KEPT}}
        store.put_document(_document(self.name), content)

    @property
    def setting(self) -> str:
        """What tells it from the others, in words."""
        p = self.params
        return f"c = {p.n_clusters}, k = {p.n_neighbors}, sigma = {p.sigma:g}"

    def row(self) -> dict[str, Any]:
        """A row of the table."""
        p, facts = self.params, self.facts
        return {
            "rank": self.rank, "clusters": p.n_clusters, "neighbors": p.n_neighbors, "sigma": p.sigma,
            "mean_rank": round(self.mean_rank, 4), **{name: round(self.criteria[name], 6) for name in CRITERIA},
            "smallest": facts["smallest"], "largest": facts["largest"],
            **{name: round(value, 6) for name, value in facts.get("known", {}).items()},
            "seconds": round(sum(facts["seconds"].values()), 3), "labels": facts["labels"],
        }  # fmt: skip


_KEPT = ("criteria", "facts", "stages", "manifest")


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep's points, best first.

    Attributes
    ----------
    points : list of Point
    asked : Asked
        How they were judged.
    input : str
        Name of the input.
    shape : (int, int)
    """

    points: list[Point]
    asked: Asked
    input: str
    shape: tuple[int, int]
    _store: ZarrStore = dataclasses.field(repr=False)

    @classmethod
    def ranked(
        cls, store: ZarrStore, points: Sequence[Point], asked: Asked, name: str, shape: tuple[int, ...]
    ) -> Sweep:
        """Points in order."""
        places, mean = order([one.criteria for one in points], [one.params.n_clusters for one in points])
        ranked = [
            dataclasses.replace(points[at], rank=rank, mean_rank=float(mean[at])) for rank, at in enumerate(places, 1)
        ]
        return cls(ranked, asked, name, (int(shape[0]), int(shape[1])), store)

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
        return {stage: len({one.stages[stage]["folder"] for one in self.points}) for stage in STAGES}

    @property
    def states(self) -> dict[str, dict[str, int]]:
        """Of each stage, for how many points it was ``computed``, and for how many it was ``reused``."""
        return {
            stage: dict(Counter(one.stages[stage]["state"].removesuffix(" again") for one in self.points))
            for stage in STAGES
        }

    def table(self) -> list[dict[str, Any]]:
        """A row for each point, best first."""
        return [one.row() for one in self.points]

    def run(self, rank: int = 1) -> Run:
        """The run of a point, by its rank."""
        if not 1 <= rank <= len(self.points):
            raise BadInput(
                "rank", str(rank), f"1 to {len(self.points)}", "there would be no such point", "give one of the table's"
            )
        return Run(self._store, dict(self.points[rank - 1].manifest))

    def settle(self) -> None:
        """Make the directory that of the best run, whose stages are all there; and keep what was found."""
        with self._store.lock():
            self._store.put_document("manifest.json", self.best.manifest)
            asked = {"asked": self.asked._asdict(), "points": [one.name for one in self.points]}
            self._store.put_document(f"{FOLDER}/sweep.json", {**asked, "input": self.input, "shape": list(self.shape)})


def open_sweep(path: str | Path) -> Sweep:
    """The last finished sweep of a run directory.

    Raises
    ------
    BadInput
        Where there is none.
    """
    store = ZarrStore(str(Path(path).absolute()))
    held = store.get_document(f"{FOLDER}/sweep.json")
    asked = Asked(**held["asked"]) if held is not None else Asked(1, 0)
    points = [Point.read(store, name, asked) for name in (held or {"points": []})["points"]]
    if held is None or not points or any(one is None for one in points):
        raise BadInput(
            str(path), "no finished sweep", "the directory of `ips2 sweep`", "there would be nothing to show",
            "run the sweep, which continues what is there",
        )  # fmt: skip
    return Sweep.ranked(store, [one for one in points if one], asked, held["input"], held["shape"])


def _document(name: str) -> str:
    return f"{FOLDER}/point-{name}.json"
