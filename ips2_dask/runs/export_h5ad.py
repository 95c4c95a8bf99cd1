"""A run's results in an .h5ad, by h5py alone: labels and certainty in ``obs``, embedding in ``obsm``, U in ``obsp``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from scipy import sparse

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults
from ips2_dask.runs.run import Run

KEY = "ips2"
TEXT = h5py.string_dtype("utf-8")


BESIDE = ("certainty", "left_out")
"""What a run may keep of each sample beside its label."""


def beside_labels(run: Run) -> dict[str, Any]:
    """Certainty of each label, and what a density left out, as far as the run has them, by the name of the column."""
    try:
        found: dict[str, Any] = {"certainty": run.certainty}
    except BadInput:  # a run of an earlier version
        found = {}
    if run.left_out is not None:
        found["left_out"] = run.left_out
    return found


def write_h5ad(run: Run, aside: Path, source: str | Path | None) -> None:
    """Write ``aside``: a copy of ``source``, or of the run's own .h5ad input, or a new file, with the run's results."""
    origin = _origin(run) if source is None else Path(source)
    if origin is not None:
        if not origin.is_file():
            raise BadInput(
                str(origin), "no such file", "the .h5ad that was clustered", "there would be nothing to copy",
                "name it with --input",
            )  # fmt: skip
        shutil.copyfile(origin, aside)
    with faults.reading(str(origin or aside)), h5py.File(aside, "a" if origin else "w") as file:
        if origin is None:
            _make(file, run)
        _check(file, run, str(origin))
        _write(file, run)


def _origin(run: Run) -> Path | None:
    """The .h5ad that the run read, if it was one and is still there."""
    name = str(run.manifest["input"]["name"]).partition("::")[0]
    return Path(name) if name.endswith(".h5ad") and Path(name).is_file() else None


def _encoded(thing: Any, kind: str, version: str, **more: Any) -> Any:
    thing.attrs["encoding-type"], thing.attrs["encoding-version"] = kind, version
    for name, value in more.items():
        thing.attrs[name] = value
    return thing


def _index(file: Any) -> tuple[Any, Any]:
    """The data frame of the samples, and the names in its index."""
    frame = file.get("obs")
    if not isinstance(frame, h5py.Group):
        return frame, None
    names = frame[frame.attrs.get("_index", "_index")]
    return frame, names.asstr()[...] if h5py.check_string_dtype(names.dtype) else names[...].astype(np.str_)


def _check(file: Any, run: Run, name: str) -> None:
    frame, names = _index(file)
    if not isinstance(frame, h5py.Group):
        raise BadInput(
            name, "an obs that is no group", "the .h5ad of anndata 0.7 or later", "labels could not be added to it",
            "write the file again with a recent anndata",
        )  # fmt: skip
    m = len(run.labels)
    if len(names) != m or (run.sample_names is not None and not np.array_equal(names, run.sample_names)):
        found = f"{len(names)} samples" if len(names) != m else "samples of other names"
        raise BadInput(
            name, found, f"the {m} samples that were clustered, in their order",
            "labels would be written beside other samples", "give the .h5ad that was the run's input",
        )  # fmt: skip


def _make(file: Any, run: Run) -> None:
    """The skeleton of an AnnData without X."""
    m = len(run.labels)
    names = np.arange(m).astype(np.str_) if run.sample_names is None else run.sample_names
    _encoded(file, "anndata", "0.1.0")
    for frame, index in (("obs", names), ("var", np.empty(0, np.str_))):
        group = _encoded(file.create_group(frame), "dataframe", "0.2.0", _index="_index")
        group.attrs["column-order"] = np.array([], TEXT)
        group.create_dataset("_index", data=index.astype(object), dtype=TEXT)
        _encoded(group["_index"], "string-array", "0.2.0")
    for name in ("layers", "obsm", "obsp", "varm", "varp", "uns"):
        _encoded(file.create_group(name), "dict", "0.1.0")


def _replaced(parent: Any, name: str) -> None:
    if name in parent:
        del parent[name]


def _group(file: Any, name: str) -> Any:
    return file[name] if name in file else _encoded(file.create_group(name), "dict", "0.1.0")


def _write(file: Any, run: Run) -> None:
    obs = file["obs"]
    _replaced(obs, KEY)
    labels = _encoded(obs.create_group(KEY), "categorical", "0.2.0", ordered=False)
    clusters = [str(cluster) for cluster in range(run.params.n_clusters)]
    kind = np.int8 if len(clusters) < 128 else np.int32
    labels["codes"], labels["categories"] = run.labels.astype(kind), np.array(clusters, object)
    _encoded(labels["codes"], "array", "0.2.0")
    _encoded(labels["categories"], "string-array", "0.2.0")
    for name in BESIDE:
        _replaced(obs, f"{KEY}_{name}")
    beside = {f"{KEY}_{name}": values for name, values in beside_labels(run).items()}
    for name, values in beside.items():
        obs[name] = values
        _encoded(obs[name], "array", "0.2.0")
    own = {KEY, *(f"{KEY}_{name}" for name in BESIDE)}
    others = [str(column) for column in obs.attrs.get("column-order", []) if str(column) not in own]
    obs.attrs["column-order"] = np.array([*others, KEY, *beside], TEXT)
    _replaced(_group(file, "obsm"), f"X_{KEY}")
    if run.embedding is not None:
        file["obsm"][f"X_{KEY}"] = run.embedding
        _encoded(file["obsm"][f"X_{KEY}"], "array", "0.2.0")
    U = run.similarity("fused", distinct=True)
    m = len(run.labels)
    if len(run.distinct) < m:  # equal rows have their entries at the first of them alone
        U = sparse.coo_array(U)
        U = sparse.csr_array((U.data, tuple(run.distinct[end] for end in U.coords)), shape=(m, m))
    _write_similarity(_group(file, "obsp"), U)
    _replaced(_group(file, "uns"), KEY)
    about = _encoded(file["uns"].create_group(KEY), "dict", "0.1.0")
    about["params"] = json.dumps(run.params.as_dict())
    _encoded(about["params"], "string", "0.2.0")


def _write_similarity(obsp: Any, U: Any) -> None:
    name = f"{KEY}_connectivities"
    _replaced(obsp, name)
    U = sparse.csr_array(U)
    group = _encoded(obsp.create_group(name), "csr_matrix", "0.1.0", shape=np.array(U.shape))
    for part in ("data", "indices", "indptr"):
        group.create_dataset(part, data=getattr(U, part), compression="gzip" if part != "indptr" else None)
