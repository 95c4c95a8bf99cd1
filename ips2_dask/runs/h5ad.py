"""Results of a run in an .h5ad file, written by blocks of rows, so that memory does not follow the samples.

Embedding and similarity are stored by partition, in the run's numbering. They are put into the order of the input by
files beside the target, one for each range of rows.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import h5py
import numpy as np
from scipy import sparse

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults
from ips2_dask.runs import label_results
from ips2_dask.runs.label_results import BLOCK_ROWS, SAMPLE_COLUMNS, sample_columns
from ips2_dask.stages.similarity_views import fused_entries, user_numbers
from ips2_dask.store.files import RowFiles
from ips2_dask.typing import AnyArray

if TYPE_CHECKING:
    from ips2_dask.runs.results import Results as Run

Node: TypeAlias = h5py.Group | h5py.Dataset
KEY = "ips2"
TEXT = h5py.string_dtype("utf-8")
RANGE_ROWS = 1 << 15
"""Rows of a range whose embedding or entries of U are in memory at a time: some tens of entries a row."""

REMEDY = "rename it there, or write the labels to a .csv or .parquet file"
WRITTEN = "written"  # the entry of ``uns[key]`` that lists what was written by a key, as ``part/name``


def anndata_io() -> Any:
    """anndata's readers and writers of a file's parts."""
    try:
        return import_module("anndata.io")
    except ModuleNotFoundError:
        found, why = "no anndata of version 0.11 or later", "results could not be written to the file"
        raise BadInput("anndata", found, "an installed one", why, "run pip install 'ips2-dask[anndata]'") from None


def names_of(key: str) -> list[str]:
    """Names under which results may be written by a key, but for layers, as ``part/name``."""
    obs = [f"obs/{key}", *(f"obs/{key}_{name}" for name in SAMPLE_COLUMNS)]
    pairs = [f"obsp/{key}_{name}" for name in ("connectivities", "distances")]
    return [*obs, f"obsm/X_{key}", f"obsm/X_{key}_layout", *pairs, f"uns/{key}"]


def own_results(thing: str, key: str, there: Collection[str], written: Iterable[object], remedy: str) -> list[str]:
    """Return what an earlier call wrote by a key and is still there, as ``part/name``.

    ``there`` is what the AnnData has, ``written`` what it says of earlier calls in ``uns[key]["written"]``. Raises
    ``BadInput`` about ``thing`` where something else has a name under which results may be written.
    """
    layer, names = re.compile(rf"obs/{re.escape(key)}_layer_[0-9]+"), names_of(key)
    taken = sorted(name for name in there if name in names or layer.fullmatch(name))
    earlier = {str(name) for name in written}
    others = [f"{part}[{name!r}]" for part, _, name in (name.partition("/") for name in taken if name not in earlier)]
    if others:
        found = f"{', '.join(others)} already there, which no earlier call wrote by the key {key!r}"
        raise BadInput(thing, found, "names that are free", "it would be replaced", remedy)
    return taken


def write_h5ad(run: Run, partial: Path, source: str | Path | None) -> None:
    """Write the run's results into a copy of ``source``, else of the run's own .h5ad input, else into a new file."""
    own, old = Path(str(run.manifest["input"]["name"]).partition("::")[0]), []
    origin = Path(source) if source is not None else own if own.suffix == ".h5ad" and own.is_file() else None
    if origin is not None:
        if not origin.is_file():
            allowed, otherwise = "the .h5ad that was clustered", "there would be nothing to copy"
            raise BadInput(str(origin), "no such file", allowed, otherwise, "check the path, or leave --input out")
        with faults.reading(str(origin)), h5py.File(origin, "r") as file:
            _check_samples(file, run, str(origin))
            old = old_results(file, str(origin), KEY, REMEDY)
        shutil.copyfile(origin, partial)
    with faults.reading(str(origin or partial)), h5py.File(partial, "a" if origin else "w") as file:
        if origin is None:
            _make_anndata(file, run)
        for name in old:
            del file[name]
        _write_results(file, run, partial.parent)


def old_results(file: h5py.File, thing: str, key: str, remedy: str) -> list[str]:
    """Return what an earlier call wrote into a file by a key, as `own_results` does."""
    there = {f"{part}/{name}" for part in ("obs", "obsm", "obsp", "uns") if part in file for name in file[part]}
    place = f"uns/{key}/{WRITTEN}"
    written = file[place].asstr()[...].ravel() if place in file else ()
    return own_results(thing, key, there, written, remedy)


def _encoded(node: Node, kind: str, **more: object) -> Node:
    """Return a node after saying how it is to be read, as anndata writes it."""
    node.attrs.update({"encoding-type": kind, "encoding-version": "0.2.0", **more})
    return node


def _check_samples(file: h5py.File, run: Run, name: str) -> None:
    """Raise ``BadInput`` where the samples of a file are not the run's, by their number and names, block by block."""
    frame, m = file.get("obs"), run.n_rows
    if not isinstance(frame, h5py.Group):
        found, allowed = "an obs that is no group", "the .h5ad of anndata 0.7 or later"
        otherwise = "labels could not be added to it"
        raise BadInput(name, found, allowed, otherwise, "write the file again with a recent anndata")
    index = frame[frame.attrs.get("_index", "_index")]
    text = index.asstr() if h5py.check_string_dtype(index.dtype) else index
    actual = f"{len(index)} samples" if len(index) != m else ""
    for low in () if actual else range(0, m, BLOCK_ROWS):
        high = min(low + BLOCK_ROWS, m)
        names = run.names_between(low, high)
        if names is not None and not np.array_equal(text[low:high].astype(np.str_), names):
            actual = "samples of other names"
    if actual:
        allowed = f"the {m} samples that were clustered, in their order"
        otherwise = "labels would be written beside other samples"
        raise BadInput(name, actual, allowed, otherwise, "give the .h5ad that was the run's input")


def _make_anndata(file: h5py.File, run: Run) -> None:
    """The skeleton of an AnnData without X."""
    anndata_io().write_elem(file, "/", import_module("anndata").AnnData())
    del file["obs/_index"]
    index = _encoded(file["obs"].create_dataset("_index", (run.n_rows,), TEXT), "string-array")
    for low in range(0, run.n_rows, BLOCK_ROWS):
        high = min(low + BLOCK_ROWS, run.n_rows)
        names = run.names_between(low, high)
        names = np.arange(low, high).astype(np.str_) if names is None else names
        index[low:high] = names.astype(object)


def _write_results(file: h5py.File, run: Run, folder: Path) -> None:
    """Write what the run found; what has to be put into order first is kept beside, in a folder."""
    obs, write = file["obs"], anndata_io().write_elem
    for part in {"obsm", "obsp", "uns"} - {*file}:
        write(file, part, {})
    labels = _encoded(obs.create_group(KEY), "categorical", ordered=False)
    clusters = [str(cluster) for cluster in range(run.params.n_clusters)]
    kind = np.int8 if len(clusters) < 128 else np.int32
    write(labels, "categories", np.array(clusters, object))
    _encoded(labels.create_dataset("codes", (run.n_rows,), kind), "array")
    columns: dict[str, h5py.Dataset] = {}
    for block in run.iter_labels():
        rows = slice(block.first, block.first + len(block.labels))
        labels["codes"][rows] = block.labels.astype(kind)
        for name, values in sample_columns(block).items():
            name = f"{KEY}_{name}"
            if name not in columns:
                columns[name] = _encoded(obs.create_dataset(name, (run.n_rows,), values.dtype), "array")
            columns[name][rows] = values
    own = [KEY, *columns]
    others = [str(column) for column in obs.attrs.get("column-order", []) if str(column) in obs and column not in own]
    obs.attrs["column-order"] = np.array([*others, *own], TEXT)
    with tempfile.TemporaryDirectory(prefix=".ips2-", dir=folder) as aside:
        _write_embedding(file["obsm"], run, Path(aside))
        _write_similarity(file["obsp"], run, Path(aside))
        _write_distances(file["obsp"], run, Path(aside))
    part, _, name = (str(run.manifest["input"]["name"]).partition("::")[2] or "X").partition("/")
    where = {"X": {"use_rep": "X"}, "obsm": {"use_rep": name}, "layers": {"layer": name}}.get(part, {})
    params = where | {"method": "ips2"} | run.params.as_dict()
    about: dict[str, object] = {"params": {name: value for name, value in params.items() if value is not None}}
    # where scanpy's functions look for them
    about |= {f"{name}_key": f"{KEY}_{name}" for name in ("connectivities", "distances")}
    others = [name for name in names_of(KEY) if not name.startswith("obs/") and (name in file or "uns/" in name)]
    write(file["uns"], KEY, about | {WRITTEN: np.array([*(f"obs/{name}" for name in own), *others], object)})


def _write_embedding(obsm: h5py.Group, run: Run, folder: Path) -> None:
    """Write the spectral embedding of all rows, if the run has one."""
    context, name = run._context, f"X_{KEY}"
    if label_results.n_columns(context) is None:
        return

    def of_partition(b: int) -> AnyArray:
        return label_results.of_partition(context, "embedding", b)

    for low, rows in _row_blocks(run, folder / "embedding", of_partition, np.nan):
        if name not in obsm:
            _encoded(obsm.create_dataset(name, (run.n_rows, rows.shape[1]), rows.dtype), "array")
        obsm[name][low : low + len(rows)] = rows


def _row_blocks(
    run: Run, path: Path, of_partition: Callable[[int], AnyArray], missing: object
) -> Iterator[tuple[int, AnyArray]]:
    """What is stored by partition in the order of the run's rows: the number of a block's first row, and the block.

    ``path`` is of a file that is made here; ``missing`` stands for rows that were left out.
    """
    context = run._context
    for b in range(context.n_partitions):
        rows = of_partition(b)
        kind, shape = rows.dtype, (context.m, rows.shape[1])
        if b == 0:
            _reserve(path, kind.itemsize * shape[0] * shape[1])
        # opened anew each time: the pages that were touched leave memory with it
        np.memmap(path, kind, "r+", shape=shape)[context.distinct_numbers(b)] = rows
    for low in range(0, context.n_rows, RANGE_ROWS):
        high = min(low + RANGE_ROWS, context.n_rows)
        places = context.distinct_places(low, high) if context.merged else np.arange(low, high)
        block = np.array(np.memmap(path, kind, "r", shape=shape)[places])
        block[places < 0] = missing
        yield low, block


def _reserve(path: Path, size: int) -> None:
    """Make a file of zeros that has its bytes on the disk; raises ``OSError`` where that is full.

    Without them the disk would be found full by a write to the memory map, which ends the process (SIGBUS).
    """
    with path.open("wb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except (AttributeError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            # neither every system nor every file system reserves bytes
            for low in range(0, size, 1 << 20):
                file.write(bytes(min(1 << 20, size - low)))


def _write_csr(
    obsp: h5py.Group, name: str, m: int, kinds: tuple[Any, Any], ranges: Iterable[tuple[AnyArray, AnyArray, AnyArray]]
) -> None:
    """Write a matrix (m, m) as CSR from ranges of its rows: how many entries each row has, their columns and values.

    ``kinds`` are the types of columns and pointers.
    """
    name, io = f"{KEY}_{name}", anndata_io()
    for counts, columns, values in ranges:
        block = sparse.csr_array((values, columns, np.append(0, np.cumsum(counts))), shape=(len(counts), m))
        if name in obsp:
            io.sparse_dataset(obsp[name]).append(block)
            continue
        block.indices = block.indices.astype(kinds[0])
        io.write_elem(obsp, name, block, dataset_kwargs={"compression": "gzip", "indptr_dtype": kinds[1]})


NEIGHBOR = np.dtype([("column", np.int32), ("distance", np.float64)])  # A neighbour of a row


def _write_distances(obsp: h5py.Group, run: Run, folder: Path) -> None:
    """Write the distances of each row to its nearest others, as CSR by rows of the input."""
    context = run._context

    def nearest(b: int) -> AnyArray:
        indices, distances = (
            np.asarray(context.fetch("neighbors", b, name))[:, 1 : run.params.n_neighbors]
            for name in ("indices", "distances")
        )
        records = np.empty(indices.shape, NEIGHBOR)
        records["column"] = user_numbers(context, indices)
        records["distance"] = np.asarray(distances, np.float64) * run.unit
        return records

    def ranges() -> Iterator[tuple[AnyArray, AnyArray, AnyArray]]:
        for _, rows in _row_blocks(run, folder / "neighbors", nearest, np.array((-1, np.nan), NEIGHBOR)):
            there = rows["column"] >= 0
            yield there.sum(axis=1), rows["column"][there], rows["distance"][there]

    _write_csr(obsp, "distances", run.n_rows, (np.int32, np.int64), ranges())


ENTRY = np.dtype([("row", np.int32), ("column", np.int32), ("value", np.float64)])  # an entry of U


def _write_similarity(obsp: h5py.Group, run: Run, folder: Path) -> None:
    """Write U as CSR by rows of the input; equal rows have their entries at the first of them alone."""
    m = run.n_rows
    if run._context.facts["fuse"]["dense"]:
        U = _dense_similarity(run)
        _write_csr(obsp, "connectivities", m, (U.indices.dtype,) * 2, [(np.diff(U.indptr), U.indices, U.data)])
        return
    files = RowFiles(folder / "entries", ENTRY, RANGE_ROWS)
    for (i, j), values in fused_entries(run._context):
        apart = i != j
        entries = np.empty(len(i) + np.count_nonzero(apart), ENTRY)
        entries["row"], entries["column"] = np.append(i, j[apart]), np.append(j, i[apart])
        entries["value"] = np.append(values, values[apart])
        files.add(entries)
    # as SciPy has them of a matrix made of numbers of rows
    kind = np.int64 if run._context.m < m else sparse.get_index_dtype(maxval=max(files.count, m))

    def ranges() -> Iterator[tuple[AnyArray, AnyArray, AnyArray]]:
        for low in range(0, m, RANGE_ROWS):
            entries = files.take(low)
            entries = entries[np.lexsort((entries["column"], entries["row"]))]
            counts = np.bincount(entries["row"] - low, minlength=min(RANGE_ROWS, m - low))
            yield counts, entries["column"], entries["value"]

    _write_csr(obsp, "connectivities", m, (kind, kind), ranges())


def _dense_similarity(run: Run) -> sparse.csr_array:
    """U of a run that keeps all pairs, as CSR."""
    m, U = run.n_rows, run.similarity("fused", distinct=True)
    if len(run.distinct) < m:
        U = sparse.coo_array(U)
        U = sparse.csr_array((U.data, tuple(run.distinct[end] for end in U.coords)), shape=(m, m))
    return sparse.csr_array(U)
