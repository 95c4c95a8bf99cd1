"""Runs judged one after another: here, or by the workers while the next run goes on; points in the order asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from distributed import Client

from ips2_dask.executors.failures import RETRIES, losses
from ips2_dask.runs.run import Run
from ips2_dask.store.zarr_store import ZarrStore
from ips2_dask.sweeps.criteria import Asked, judged, judged_there
from ips2_dask.sweeps.result import Point

AHEAD = 2
"""Runs that may wait for each worker's judgement."""


LAST = -10
"""Priority of judging: nobody waits for it, and the next run waits for its own tasks."""


class Judge:
    """Makes points of runs.

    Parameters
    ----------
    location : str
        The run directory.
    asked : Asked
    client : distributed.Client, optional
        Whose workers judge; without one this process does, before the next run.
    """

    def __init__(self, location: str, asked: Asked, client: Client | None) -> None:
        self._location, self._asked, self._client = location, asked, client
        self._waiting: deque[tuple[str, Run, Any]] = deque()

    def points(
        self, kept: ZarrStore, names: Sequence[str], there: Mapping[str, Point], runs: Iterator[Run]
    ) -> Iterator[Point]:
        """Points in the order of their names: those that are there, and those of the runs, stored as they are judged.

        The runs are those of the names that are missing.
        """
        made = self._made(kept, [name for name in names if name not in there], runs)
        for name in names:
            yield there[name] if name in there else next(made)
        for _ in made:  # nothing is left: the runs end
            pass

    def _made(self, kept: ZarrStore, missing: Sequence[str], runs: Iterator[Run]) -> Iterator[Point]:
        room = 0 if self._client is None else AHEAD * max(1, len(self._client.scheduler_info(n_workers=-1)["workers"]))
        for name, run in zip(missing, runs, strict=True):
            self._waiting.append((name, run, self._begun(run)))
            if len(self._waiting) > room:
                yield self._ended(kept)
        while self._waiting:
            yield self._ended(kept)

    def _begun(self, run: Run) -> Any:
        if self._client is None:
            return judged(run, self._asked)
        with losses(self._client):
            return self._client.submit(
                judged_there, self._location, run.manifest, self._asked, pure=False, retries=RETRIES, priority=LAST
            )

    def _ended(self, kept: ZarrStore) -> Point:
        name, run, found = self._waiting.popleft()
        if self._client is not None:
            with losses(self._client):
                found = found.result()
        point = Point.of(name, run, found)
        point.write(kept, self._asked)
        return point

    def stop(self) -> None:
        """Give up what is waiting."""
        if self._client is not None and self._client.status == "running":
            self._client.cancel([future for _, _, future in self._waiting])
        self._waiting.clear()
