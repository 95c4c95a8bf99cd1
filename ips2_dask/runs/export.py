"""Files of a run's results: labels and certainty as a table or in an .h5ad, and predictions block by block."""

from __future__ import annotations

import contextlib
import csv
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import h5py
import numpy as np
from scipy import sparse

from ips2_dask.errors import BadInput
from ips2_dask.readers import faults
from ips2_dask.runs.label_results import BLOCK_ROWS
from ips2_dask.store.base import AnyArray
from ips2_dask.store.files import partial_file

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetWriter

    from ips2_dask.runs.label_results import LabelBlock
    from ips2_dask.runs.run import Run

Node: TypeAlias = h5py.Group | h5py.Dataset

KEY = "ips2"
TEXT = h5py.string_dtype("utf-8")

SAMPLE_COLUMNS = ("certainty", "left_out")
"""Columns of a table of labels that not every run has."""

PREDICTION_ENDINGS = (".csv", ".tsv", ".parquet", ".npy")

Columns = dict[str, AnyArray]
"""Names, and as many values of each."""


def write_labels(run: Run, path: str | Path, input: str | Path | None = None) -> Path:  # noqa: A002  the user's word
    """Write the labels of a run beside the names of its samples, whole or not at all.

    ``.csv`` and ``.parquet`` get the columns ``sample`` (the name, or the number from 0 where there are no names),
    ``cluster``, ``certainty`` (of the cluster, 0 to 1) and, where labels come from a density, ``left_out`` (whether its
    tree left the sample out, so that the label comes from the fused similarity). Runs of earlier versions have neither
    of the last two.

    ``.h5ad`` gets a copy of the input, if that was an .h5ad, with ``obs["ips2"]``, ``obs["ips2_certainty"]`` and
    ``obs["ips2_left_out"]`` (the same columns), ``obsm["X_ips2"]`` (the spectral embedding, where there is one),
    ``obsp["ips2_connectivities"]`` (the fused similarity) and ``uns["ips2"]`` (the parameters); otherwise a new file
    with these alone.

    Parameters
    ----------
    run : Run
    path : path
        An existing file is replaced.
    input : path, optional
        The .h5ad to copy; None takes the run's own input.

    Returns
    -------
    Path

    Raises
    ------
    BadInput
        Where the ending is another one, the place can't be written, or the .h5ad is not of these samples.
    """
    target = Path(path)
    writers: dict[str, Callable[[Run, Path], None]] = {
        ".csv": _write_csv,
        ".parquet": _write_parquet,
        ".h5ad": lambda run, partial: _write_h5ad(run, partial, input),
    }
    if target.suffix.lower() not in writers:
        raise BadInput(
            str(target), f"the ending {target.suffix or 'none'!r}", ", ".join(writers),
            "the format would be guessed at", "name the file with one of these endings",
        )  # fmt: skip
    if input is not None and target.suffix.lower() != ".h5ad":
        raise BadInput(
            "input", f"{input} for a {target.suffix} file", "an input for an .h5ad file", "it would be ignored",
            "leave it out",
        )  # fmt: skip
    if not target.absolute().parent.is_dir() or target.is_dir():
        raise BadInput(
            str(target), "no such folder, or a folder", "a file in a folder that exists",
            "there would be nowhere to write", "make the folder first, or name another file",
        )  # fmt: skip
    try:
        with partial_file(target) as partial:
            writers[target.suffix.lower()](run, partial)
    except OSError as error:
        raise BadInput(
            str(target), f"a file that can't be written ({error.strerror or error})", "a place this user may write to",
            "the labels would be lost", "free some room, change the permissions, or name another file",
        ) from None  # fmt: skip
    return target


def _blocks(run: Run) -> Iterator[Columns]:
    """The columns of a table of labels, by blocks of rows."""
    for block in run.iter_labels():
        names = run.names_between(block.first, block.first + len(block.labels))
        samples = np.arange(block.first, block.first + len(block.labels)) if names is None else names
        yield {"sample": samples, "cluster": block.labels, **_sample_columns(block)}


def _sample_columns(block: LabelBlock) -> Columns:
    """Certainty of each label, and what a density left out, as far as the run has them, by the name of the column."""
    columns = dict(zip(SAMPLE_COLUMNS, (block.certainty, block.left_out), strict=True))
    return {name: values for name, values in columns.items() if values is not None}


def _write_csv(run: Run, partial: Path) -> None:
    with partial.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        for number, columns in enumerate(_blocks(run)):
            if "certainty" in columns:
                columns["certainty"] = columns["certainty"].astype(str)  # the shortest that float32 reads back from
            if number == 0:
                writer.writerow(columns)
            writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))


def _write_parquet(run: Run, partial: Path) -> None:
    with contextlib.closing(_ParquetWriter(partial)) as writer:
        for columns in _blocks(run):
            writer.write({**columns, "sample": columns["sample"].tolist()})


def _write_h5ad(run: Run, partial: Path, source: str | Path | None) -> None:
    """Write the run's results into a copy of ``source``, else of the run's own .h5ad input, else into a new file."""
    origin = _origin(run) if source is None else Path(source)
    if origin is not None:
        if not origin.is_file():
            raise BadInput(
                str(origin), "no such file", "the .h5ad that was clustered", "there would be nothing to copy",
                "name it with --input",
            )  # fmt: skip
        shutil.copyfile(origin, partial)
    with faults.reading(str(origin or partial)), h5py.File(partial, "a" if origin else "w") as file:
        if origin is None:
            _make_anndata(file, run)
        _check_samples(file, run, str(origin))
        _write_results(file, run)


def _origin(run: Run) -> Path | None:
    """The .h5ad that the run read, if it was one and is still there."""
    name = str(run.manifest["input"]["name"]).partition("::")[0]
    return Path(name) if name.endswith(".h5ad") and Path(name).is_file() else None


def _encoded(node: Node, kind: str, version: str, **more: object) -> Node:
    node.attrs["encoding-type"], node.attrs["encoding-version"] = kind, version
    for name, value in more.items():
        node.attrs[name] = value
    return node


def _index(file: h5py.File) -> tuple[h5py.Group, h5py.Dataset | None]:
    """The data frame of the samples, and its index."""
    frame = file.get("obs")
    if not isinstance(frame, h5py.Group):
        return frame, None
    return frame, frame[frame.attrs.get("_index", "_index")]


def _names(index: h5py.Dataset, low: int, high: int) -> AnyArray:
    """Rows low .. high - 1 of an index as text."""
    text = h5py.check_string_dtype(index.dtype)
    return index.asstr()[low:high] if text else index[low:high].astype(np.str_)


def _same_names(index: h5py.Dataset, run: Run) -> bool:
    """Whether an index has the names of the run's samples, if these have any, compared by blocks."""
    for low in range(0, run.n_rows, BLOCK_ROWS):
        high = min(low + BLOCK_ROWS, run.n_rows)
        names = run.names_between(low, high)
        if names is not None and not np.array_equal(_names(index, low, high), names):
            return False
    return True


def _check_samples(file: h5py.File, run: Run, name: str) -> None:
    frame, index = _index(file)
    if index is None or not isinstance(frame, h5py.Group):
        raise BadInput(
            name, "an obs that is no group", "the .h5ad of anndata 0.7 or later", "labels could not be added to it",
            "write the file again with a recent anndata",
        )  # fmt: skip
    m = run.n_rows
    if len(index) != m or not _same_names(index, run):
        actual = f"{len(index)} samples" if len(index) != m else "samples of other names"
        raise BadInput(
            name, actual, f"the {m} samples that were clustered, in their order",
            "labels would be written beside other samples", "give the .h5ad that was the run's input",
        )  # fmt: skip


def _make_anndata(file: h5py.File, run: Run) -> None:
    """The skeleton of an AnnData without X."""
    _encoded(file, "anndata", "0.1.0")
    for frame, n in (("obs", run.n_rows), ("var", 0)):
        group = _encoded(file.create_group(frame), "dataframe", "0.2.0", _index="_index")
        group.attrs["column-order"] = np.array([], TEXT)
        index = _encoded(group.create_dataset("_index", (n,), TEXT), "string-array", "0.2.0")
        for low in range(0, n, BLOCK_ROWS):
            high = min(low + BLOCK_ROWS, n)
            names = run.names_between(low, high)
            names = np.arange(low, high).astype(np.str_) if names is None else names
            index[low:high] = names.astype(object)
    for name in ("layers", "obsm", "obsp", "varm", "varp", "uns"):
        _encoded(file.create_group(name), "dict", "0.1.0")


def _remove_old(parent: h5py.Group, name: str) -> None:
    if name in parent:
        del parent[name]


def _group(file: h5py.File, name: str) -> h5py.Group:
    return file[name] if name in file else _encoded(file.create_group(name), "dict", "0.1.0")


def _write_results(file: h5py.File, run: Run) -> None:
    obs = file["obs"]
    _remove_old(obs, KEY)
    labels = _encoded(obs.create_group(KEY), "categorical", "0.2.0", ordered=False)
    clusters = [str(cluster) for cluster in range(run.params.n_clusters)]
    kind = np.int8 if len(clusters) < 128 else np.int32
    labels["categories"] = np.array(clusters, object)
    _encoded(labels.create_dataset("codes", (run.n_rows,), kind), "array", "0.2.0")
    _encoded(labels["categories"], "string-array", "0.2.0")
    for name in SAMPLE_COLUMNS:
        _remove_old(obs, f"{KEY}_{name}")
    columns: dict[str, h5py.Dataset] = {}
    for block in run.iter_labels():
        rows = slice(block.first, block.first + len(block.labels))
        labels["codes"][rows] = block.labels.astype(kind)
        for name, values in _sample_columns(block).items():
            name = f"{KEY}_{name}"
            if name not in columns:
                columns[name] = _encoded(obs.create_dataset(name, (run.n_rows,), values.dtype), "array", "0.2.0")
            columns[name][rows] = values
    own = {KEY, *(f"{KEY}_{name}" for name in SAMPLE_COLUMNS)}
    others = [str(column) for column in obs.attrs.get("column-order", []) if str(column) not in own]
    obs.attrs["column-order"] = np.array([*others, KEY, *columns], TEXT)
    _remove_old(_group(file, "obsm"), f"X_{KEY}")
    if run.embedding is not None:
        file["obsm"][f"X_{KEY}"] = run.embedding
        _encoded(file["obsm"][f"X_{KEY}"], "array", "0.2.0")
    U = run.similarity("fused", distinct=True)
    m = run.n_rows
    if len(run.distinct) < m:  # equal rows have their entries at the first of them alone
        U = sparse.coo_array(U)
        U = sparse.csr_array((U.data, tuple(run.distinct[end] for end in U.coords)), shape=(m, m))
    _write_similarity(_group(file, "obsp"), U)
    _remove_old(_group(file, "uns"), KEY)
    about = _encoded(file["uns"].create_group(KEY), "dict", "0.1.0")
    about["params"] = json.dumps(run.params.as_dict())
    _encoded(about["params"], "string", "0.2.0")


def _write_similarity(obsp: h5py.Group, U: sparse.csr_array | AnyArray) -> None:
    name = f"{KEY}_connectivities"
    _remove_old(obsp, name)
    U = sparse.csr_array(U)
    group = _encoded(obsp.create_group(name), "csr_matrix", "0.1.0", shape=np.array(U.shape))
    for part in ("data", "indices", "indptr"):
        group.create_dataset(part, data=getattr(U, part), compression="gzip" if part != "indptr" else None)


class _Writer(Protocol):
    def write(self, columns: Columns) -> None: ...

    def close(self) -> None: ...


class _TextWriter:
    def __init__(self, path: Path, mark: str) -> None:
        self._stream, self._mark, self._begun = path.open("w", encoding="utf-8"), mark, False

    def write(self, columns: Columns) -> None:
        if not self._begun:
            self._stream.write(self._mark.join(columns) + "\n")
            self._begun = True
        words = [[self._word(value) for value in values.tolist()] for values in columns.values()]
        self._stream.writelines(self._mark.join(row) + "\n" for row in zip(*words, strict=True))

    def _word(self, value: object) -> str:
        if isinstance(value, float):
            return f"{value:.9g}"
        text = str(value)
        special = any(mark in text for mark in (self._mark, '"', "\n", "\r"))
        return '"' + text.replace('"', '""') + '"' if special else text

    def close(self) -> None:
        self._stream.close()


class _ParquetWriter:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: ParquetWriter | None = None

    def write(self, columns: Columns) -> None:
        import pyarrow  # noqa: PLC0415  it takes a while, and other formats do without
        import pyarrow.parquet  # noqa: PLC0415

        table = pyarrow.table({name: pyarrow.array(values) for name, values in columns.items()})
        self._writer = self._writer or pyarrow.parquet.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _LabelWriter:
    """Writes labels to a .npy file as they come; the number of them goes into its header at the end."""

    def __init__(self, path: Path) -> None:
        self._stream, self._n = path.open("wb"), 0
        self._write_header()

    def _write_header(self) -> None:
        header = {
            "descr": np.lib.format.dtype_to_descr(np.dtype(np.int32)),
            "fortran_order": False,
            "shape": (self._n,),
        }
        np.lib.format.write_array_header_1_0(self._stream, header)  # equally long for every length of the array

    def write(self, columns: Columns) -> None:
        self._stream.write(np.ascontiguousarray(columns["label"], "<i4").tobytes())
        self._n += len(columns["label"])

    def close(self) -> None:
        self._stream.seek(0)
        self._write_header()
        self._stream.close()


def check_prediction_file(name: str, labels_only: bool) -> Path:
    """The path of a file that can be written.

    Raises
    ------
    BadInput
        Where its ending says no known format, its folder is missing, or .npy shall hold more than labels.
    """
    path = Path(name)
    ending = path.suffix.lower()
    if ending not in PREDICTION_ENDINGS:
        allowed = ", ".join(PREDICTION_ENDINGS)
        raise BadInput(name, f"the ending {ending!r}", allowed, "its format would be unknown", "give one of these")
    if ending == ".npy" and not labels_only:
        raise BadInput(
            name, "more than labels for .npy", "labels alone, or .csv, .tsv, .parquet",
            "columns of different types would have no place", "give another ending",
        )  # fmt: skip
    if not path.absolute().parent.is_dir() or path.is_dir():
        raise BadInput(
            name, "no folder to put it in, or a folder of that name", "a file in a folder that exists",
            "there would be nowhere to write", "make the folder first",
        )  # fmt: skip
    return path


@contextlib.contextmanager
def prediction_writer(path: Path) -> Iterator[_Writer]:
    """A writer of blocks of columns to a file, which appears as a whole when the block ends without an error."""
    ending = path.suffix.lower()
    writer: _Writer
    with partial_file(path) as partial:
        if ending == ".parquet":
            writer = _ParquetWriter(partial)
        elif ending == ".npy":
            writer = _LabelWriter(partial)
        else:
            writer = _TextWriter(partial, "\t" if ending == ".tsv" else ",")
        try:
            yield writer
        finally:
            writer.close()
