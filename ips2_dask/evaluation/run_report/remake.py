"""The command, or the Python call, that makes a run again."""

from __future__ import annotations

import shlex
from typing import Any

from ips2_dask.features import MISSING, Features, joined_list
from ips2_dask.params import Params
from ips2_dask.plan import choose, partition_bounds, widest
from ips2_dask.spelling import option
from ips2_dask.storage.run import Run


def chosen(run: Run) -> dict[str, Any]:
    """Parameters that are not the defaults; without the number of clusters where that was to be chosen."""
    defaults = Params().as_dict()
    made = {name: value for name, value in run.params.as_dict().items() if value != defaults[name]}
    if run.params.max_clusters is not None:
        made.pop("n_clusters", None)
    return made


def resources(run: Run) -> dict[str, Any]:
    """What was asked of the machine and decides about the result: partitions, shards, where block vectors live."""
    manifest = run.manifest
    m, f = manifest["input"]["shape"]
    bounds, made = tuple(manifest["bounds"]), manifest["choices"]
    out: dict[str, Any] = {} if bounds == partition_bounds(m, f) else {"partition_rows": bounds[1]}
    usual = choose(m, f, widest(run.params, m), rows=out.get("partition_rows"))
    if made["n_shards"] != usual.n_shards:
        out["shards"] = made["n_shards"]
    if made["vectors"] != usual.vectors:
        out["vectors"] = made["vectors"]
    return out


def command(run: Run) -> str:
    """What to type to get the same run: ``ips2 run`` for a file, Python for data that came from a program."""
    source = run.manifest["input"]
    if source.get("location") is None:
        return _call(run)
    words = ["ips2", "run", source["location"], "--out", run.path or "run"]
    if source.get("labels_column") is not None:
        words += ["--labels-column", str(source["labels_column"])]
    if source.get("transpose"):
        words.append("--transpose")
    for name, value in source.get("features", {}).items():
        if name == "missing":
            words += [option(name), value] if value != MISSING[0] else []
        elif value:
            words += [option(name), joined_list(value)]
    if run.params.max_clusters is not None:
        words += [option("n_clusters"), "auto"]
    for name, value in {**chosen(run), **resources(run)}.items():
        words += [option(name), f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


def _call(run: Run) -> str:
    """The same in Python, X being the data."""
    params = ", ".join(f"{name}={value!r}" for name, value in chosen(run).items())
    asked = ", ".join(f"{name}={value!r}" for name, value in resources(run).items())
    given = f", ips2_dask.Resources({asked})" if asked else ""
    store = f", store={run.path!r}" if run.path else ""
    usual, asked_features = Features().as_dict(), run.manifest["input"].get("features", {})
    listed = ", ".join(f"{name}={value!r}" for name, value in asked_features.items() if value != usual[name])
    features = f", features=ips2_dask.Features({listed})" if listed else ""
    return f"ips2_dask.run(X, ips2_dask.Params({params}){given}{store}{features})"
