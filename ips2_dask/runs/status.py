"""How far a run is, why each stage was computed or not, and who is at work, from its documents alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ips2_dask.runs.run import read_manifest
from ips2_dask.store import lock
from ips2_dask.store.layout import STAGES
from ips2_dask.store.zarr_store import ZarrStore


def status(path: str | Path) -> dict[str, Any]:
    """What a run directory holds, as plain values; a run that is going on does not hinder it.

    Returns
    -------
    dict
        ``input``, ``params``, ``started``, ``finished``, ``running`` (who is at work now, or None), and ``stages``: of
        each its ``state`` (``computed``, ``computed again``, ``reused`` or ``to do``), ``why``, ``seconds`` and
        ``peak_rss_bytes``.

    Raises
    ------
    BadInput
        Where there is no run, or one of another format.
    Damaged
        Where the manifest is not what was written.
    """
    store = ZarrStore(str(path))
    manifest = read_manifest(store)
    owner = lock.owner_of(store.files)
    running = lock.describe(owner) if owner is not None and lock.is_alive(owner) else None
    done = {stage["name"]: stage for stage in manifest["stages"]}
    fields = ("name", "state", "why", "seconds", "peak_rss_bytes")
    undone: dict[str, Any] = {"state": "to do", "why": [], "seconds": None, "peak_rss_bytes": None}
    return {
        "directory": str(path),
        "input": manifest["input"],
        "params": manifest["params"],
        "versions": manifest["versions"],
        "created": manifest["created"],
        "started": manifest["started"],
        "finished": manifest["finished"],
        "running": running,
        "stages": [
            {field: done[name][field] for field in fields} if name in done else {"name": name, **undone}
            for name in STAGES
        ],
    }
