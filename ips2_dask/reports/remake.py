"""The command, or the Python call, that makes a run again."""

from __future__ import annotations

import shlex
from typing import Any

from ips2_dask.params import Params
from ips2_dask.plan.choices import Choices, choose, partition_bounds, widest
from ips2_dask.readers.features import MISSING, Features, joined_list
from ips2_dask.runs.run import Run
from ips2_dask.wording import option


def chosen(run: Run) -> dict[str, Any]:
    """Parameters that are not the defaults; without the number of clusters if the run was to choose it.

    A manifest of an earlier version does not store the number of shards that the user set: the number that was used
    stands for it.
    """
    defaults = Params().as_dict()
    values = {name: value for name, value in run.params.as_dict().items() if value != defaults[name]}
    if run.params.max_clusters is not None:
        values.pop("n_clusters", None)
    if "shards" not in run.manifest["params"] and run.manifest["choices"]["n_shards"] != _usual(run).n_shards:
        values["shards"] = run.manifest["choices"]["n_shards"]
    return values


def _usual(run: Run) -> Choices:
    """The automatic choices for the run's partitions, if the user sets no other resource."""
    m, f = run.manifest["input"]["shape"]
    return choose(m, f, widest(run.params, m), rows=_partition_rows(run))


def _partition_rows(run: Run) -> int | None:
    """Samples of a partition, or None if they are the default for the input's shape."""
    bounds = tuple(run.manifest["bounds"])
    return None if bounds == partition_bounds(*run.manifest["input"]["shape"]) else bounds[1]


def resources(run: Run) -> dict[str, int | str]:
    """Resources that the user set and the result depends on: the partitions, and where block vectors are kept."""
    rows, vectors = _partition_rows(run), run.manifest["choices"]["vectors"]
    choices: dict[str, int | str] = {} if rows is None else {"partition_rows": rows}
    return choices if vectors == _usual(run).vectors else {**choices, "vectors": vectors}


def command(run: Run) -> str:
    """The command that repeats the run: ``ips2 run`` for a file, a Python call for data that came from a program."""
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
    for name, value in source.get("text", {}).items():
        words += [option(name), str(value)]
    if run.params.max_clusters is not None:
        words += [option("n_clusters"), "auto"]
    for name, value in {**chosen(run), **resources(run)}.items():
        words += [option(name), f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


def _call(run: Run) -> str:
    """The Python call that repeats the run, with ``X`` for the data."""
    params = ", ".join(f"{name}={value!r}" for name, value in chosen(run).items())
    arguments = ", ".join(f"{name}={value!r}" for name, value in resources(run).items())
    resources_text = f", ips2_dask.Resources({arguments})" if arguments else ""
    store = f", store={run.path!r}" if run.path else ""
    usual, asked_features = Features().as_dict(), run.manifest["input"].get("features", {})
    listed = ", ".join(f"{name}={value!r}" for name, value in asked_features.items() if value != usual[name])
    features = f", features=ips2_dask.Features({listed})" if listed else ""
    return f"ips2_dask.run(X, ips2_dask.Params({params}){resources_text}{store}{features})"
