"""Whoever does what a reader's error says gets the table: each remedy that names an option or a call is tried."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import anndata
import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import h5py
import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
import pytest
import scipy.io
import xarray as xr
from remedies import remedies
from scipy import sparse
from sklearn.neighbors import kneighbors_graph
from test_readers import matlab

from ips2_dask import BadInput, Features, Params, TextFormat, run
from ips2_dask.readers import open_source
from ips2_dask.readers.features import split_list
from ips2_dask.runs.run import Run

Array = npt.NDArray[Any]
Step = Callable[[Path], Any]

rng = np.random.default_rng(7)
X = rng.normal(size=(24, 3)) + 4 * np.eye(3)[np.arange(24) % 3]
WORDS = np.array(["a", "b"] * 12)
FRAME = pd.DataFrame(X, columns=list("abc"))
TIMES = np.datetime64("2020-01-01", "s") + np.arange(48).reshape(24, 2)
NEAR = kneighbors_graph(X, 9, mode="distance")
NEAR = NEAR.maximum(NEAR.T)
PRECOMPUTED = Params(n_clusters=3, metric="precomputed")
CELL = np.empty(2, object)
CELL[:] = [X, X[:9]]
GAPPY = FRAME.where(FRAME.min() < FRAME)


class Case(NamedTuple):
    """A message, what provokes it, and what its remedy says."""

    key: str
    wrong: Step
    rights: tuple[Step, ...]


def read(spec: Any, **options: Any) -> Any:
    """Read all of a table, its labels too; returns what was opened."""
    source = open_source(spec, **options)
    rows = np.concatenate(list(source.blocks(10)))
    assert rows.shape == source.shape
    if options.get("labels_column") is not None:
        assert source.labels() is not None
    return source


def given(spec: Any, **options: Any) -> Step:
    """Read something; names of files are in the folder, and names of `Features` are its own."""
    own = {name: options.pop(name) for name in list(options) if name in Features.__dataclass_fields__}
    if own:
        options["features"] = Features(**own)
    return lambda folder: read(folder / spec if isinstance(spec, str) else spec, **options)


def text(content: str | bytes, **options: Any) -> Step:
    """Read a text file of this content; options of `TextFormat` are its own."""
    own = {name: options.pop(name) for name in list(options) if name in TextFormat.__dataclass_fields__}

    def step(folder: Path) -> Any:
        data = content.encode() if isinstance(content, str) else content
        (folder / "x.csv").write_bytes(data)
        return given("x.csv", text=TextFormat(**own), **options)(folder)

    return step


def parquet(frame: Any, **options: Any) -> Step:
    """Read a Parquet file of a frame."""

    def step(folder: Path) -> Any:
        pd.DataFrame(frame).to_parquet(folder / "x.parquet")
        return given("x.parquet", **options)(folder)

    return step


def hdf5(fill: Callable[[Any], Any], member: str = "", **options: Any) -> Step:
    """Read an HDF5 file that is filled so; of another ending by ``file``."""
    file = options.pop("file", "x.h5")

    def step(folder: Path) -> Any:
        with h5py.File(folder / file, "w") as opened:
            fill(opened)
        return given(f"{file}{member}", **options)(folder)

    return step


def archive(member: str = "", label: Any = None, **arrays: Array) -> Step:
    """Read a .npz file, or a member of it."""

    def step(folder: Path) -> Any:
        np.savez(folder / "x.npz", **arrays)
        return read(f"{folder}/x.npz{member}", labels_column=label)

    return step


def mat(member: str, **values: Any) -> Step:
    """Read a variable of a MATLAB file."""

    def step(folder: Path) -> Any:
        scipy.io.savemat(folder / "x.mat", values)
        return read(f"{folder}/x.mat::{member}")

    return step


def mat73(member: str) -> Step:
    """Read a variable of a MATLAB 7.3 file with a matrix, X, and a cell of it, C."""

    def step(folder: Path) -> Any:
        with h5py.File(folder / "x.mat", "w", userblock_size=512) as file:
            matlab(file, "X", X, "double")
            cell = file.create_dataset("C", (1, 1), h5py.ref_dtype)
            cell[0, 0] = file["X"].ref
            cell.attrs["MATLAB_class"] = np.bytes_("cell")
        with (folder / "x.mat").open("r+b") as stream:
            stream.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM")
        return read(f"{folder}/x.mat::{member}")

    return step


def parts(*frames: pd.DataFrame, of: str = "") -> Step:
    """Read a folder of Parquet files, or one of them."""

    def step(folder: Path) -> Any:
        (folder / "parts").mkdir(exist_ok=True)
        for number, frame in enumerate(frames):
            frame.to_parquet(folder / "parts" / f"{number}.parquet")
        return read(folder / "parts" / of)

    return step


def divided(how: Callable[[Path], Any]) -> Step:
    """Read Parquet files in folders that are named by a column."""

    def step(folder: Path) -> Any:
        FRAME.assign(kind=WORDS).to_parquet(folder / "parts", partition_cols=["kind"])
        return how(folder / "parts")

    return step


def blocks(function: Callable[[Array], Any], **options: Any) -> da.Array:
    """A Dask array of two blocks, of which the first is made by a function."""
    return da.from_array(X, chunks=(12, 3)).map_blocks(
        function, **{"dtype": float, "meta": np.empty((0, 0)), **options}
    )


def filtered(block: Array) -> Array:
    return block[block[:, 0] > 0]


def frame_of_bag(_: Path) -> Any:
    with dask.config.set(scheduler="synchronous"):
        return read(db.from_sequence(FRAME.to_dict("records")).to_dataframe())


class Device:
    """An array on a device of its own, which no NumPy array is made of without asking."""

    def __init__(self, values: Array) -> None:
        self.values, self.ndim, self.shape, self.dtype = values, values.ndim, values.shape, values.dtype

    def __array__(self, *_: Any, **__: Any) -> Array:
        raise TypeError("ask for it by get()")

    def get(self) -> Array:
        """The values in memory."""
        return self.values


def changing(persisted: bool) -> Step:
    """Read a Dask DataFrame whose partition loses a row at each computation after the first."""

    def step(_: Path) -> Any:
        rows = iter(range(24, 0, -1))

        def make(__: int) -> pd.DataFrame:
            return FRAME[: next(rows)]

        frame = dd.from_map(make, [0], meta=FRAME[:0])
        return read(frame.persist(scheduler="synchronous") if persisted else frame)

    return step


def matched(new: Callable[[Run], Any], column: str = "c", **options: Any) -> Step:
    """Predict with a run on the frame, with a column of words."""

    def step(_: Path) -> Any:
        found = run(FRAME.assign(w=WORDS), Params(n_clusters=2), features=Features(one_hot=["w"]))
        assert found.feature_names is not None
        return found.predict(new(found), **options)

    return step


def changed(again: bool) -> Step:
    """Read a file that is written to after it was opened, and perhaps open it again."""

    def step(folder: Path) -> Any:
        np.save(folder / "x.npy", X)
        source = open_source(folder / "x.npy")
        np.save(folder / "x.npy", X[:20])
        return read(folder / "x.npy") if again else list(source.blocks(10))

    return step


def pickled(kind: type) -> Step:
    def step(folder: Path) -> Any:
        np.save(folder / "x.npy", X.astype(kind), allow_pickle=True)
        return read(folder / "x.npy")

    return step


def cells(**more: Any) -> Any:
    return anndata.AnnData(obs=pd.DataFrame({"t": WORDS}, index=[f"s{i}" for i in range(24)]), **more)


def annotated(adata: Any, spoil: Callable[[Any], Any] = lambda file: None, member: str = "", **options: Any) -> Step:
    """Read a .h5ad file, after something was done to it."""

    def step(folder: Path) -> Any:
        adata.write_h5ad(folder / "x.h5ad")
        with h5py.File(folder / "x.h5ad", "r+") as file:
            spoil(file)
        return read(f"{folder}/x.h5ad{member}", **options)

    return step


def odd_encoding(file: Any) -> None:
    del file["X"]
    file.create_group("X").attrs["encoding-type"] = "nobody-knows"


def without_columns(file: Any) -> None:
    del file["obs"]
    file.create_dataset("obs", data=np.zeros(24))


def backed(how: Callable[[Any, Path], Any]) -> Step:
    """Read a part of a backed AnnData."""

    def step(folder: Path) -> Any:
        cells(X=X).write_h5ad(folder / "x.h5ad")
        return read(how(anndata.read_h5ad(folder / "x.h5ad", backed="r")[:12], folder))

    return step


def other_filter(file: Any) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((3, 3))
    properties.set_filter(305, h5py.h5z.FLAG_OPTIONAL)
    h5py.h5d.create(file.id, b"X", h5py.h5t.NATIVE_DOUBLE, h5py.h5s.create_simple((24, 3)), dcpl=properties)


def nested(file: Any) -> None:
    anndata.io.write_elem(file, "mod/rna", cells(X=X))


def measured(D: Any) -> Step:
    return lambda _: run(D, PRECOMPUTED)


def one_way(share: float) -> Any:
    """Distances to neighbours that are other ones backwards."""
    D = sparse.lil_matrix(NEAR)
    i, j = (int(place[0]) for place in NEAR.nonzero())
    D[i, j] *= share
    return sparse.csr_matrix(D)


DASK, FAULTS, COLUMNS, TEXT = (
    "readers/dask_collections.py",
    "readers/faults.py",
    "readers/columns.py",
    "readers/text.py",
)
INIT, FEATURES, LABELS, OBJECTS = (
    "readers/__init__.py",
    "readers/features.py",
    "readers/labels.py",
    "readers/objects.py",
)
RECORDS, BASE, SCIPY = "readers/records.py", "readers/base.py", "readers/scipy_files.py"
ANNDATA = "readers/trees.py"
GIVEN = "the Dask array given"
MEMBER = "name it after '::', as in file::{}"
ENCODE = (
    "encode these columns (one_hot, --one-hot), drop them (drop_columns, --drop-columns), or name the label column "
    "(labels_column, --labels-column)"
)
NUMBERS = "".join(f"{a:.3f},{b:.3f},{c:.3f}\n" for a, b, c in X)
LABELLED = "a,b,c\n" + NUMBERS
WITH_WORDS = "a,b,c,w\n" + "".join(f"{row},{word}\n" for row, word in zip(NUMBERS.split(), WORDS, strict=True))
GAPS = LABELLED + "1,,2\n"
UNEVEN = [[1.0, 2.0], [3.0]] * 12

CASES: list[Case] = [
    Case(
        f"{INIT}: the Dataset given: give one variable, as in dataset['x'], or dataset.to_dataarray().T, if each "
        "variable is a feature",
        given(xr.Dataset({"x": (("s", "f"), X)})),
        (
            given(xr.Dataset({"x": (("s", "f"), X)})["x"]),
            given(xr.Dataset({name: ("s", X[:, i]) for i, name in enumerate("abc")}).to_dataarray().T),
        ),
    ),
    Case(
        f"{INIT}: {{}}: leave it out: {{}}",
        lambda folder: (text(LABELLED)(folder), read(f"{folder}/x.csv::a")),
        (text(LABELLED),),
    ),
    Case(f"{INIT}: {{}}: leave {{}} ({{}}) out", given(X, text=TextFormat(decimal=",")), (given(X),)),
    Case(f"{INIT}: {{}}: check the path, as {{}} does not exist either", given("nowhere/x.csv"), (text(LABELLED),)),
    Case(
        f"{INIT}: {{}}: give the pattern {{}}, which leaves these columns out, or in Python "
        "dask.dataframe.read_parquet(folder), which reads them",
        divided(read),
        (
            divided(lambda folder: read(f"{folder}/**/*.parquet")),
            divided(lambda folder: read(dd.read_parquet(folder), features=Features(one_hot=["kind"]))),
        ),
    ),
    Case(f"{ANNDATA}: {{}}: {MEMBER}", hdf5(nested), (hdf5(nested, "::mod/rna"),)),
    Case(
        f"{ANNDATA}: {{}}: name another matrix after '::' ({{}}), or write it as an array",
        annotated(cells(X=X, obsm={"pca": X[:, :2]}), odd_encoding),
        (annotated(cells(X=X, obsm={"pca": X[:, :2]}), odd_encoding, "::obsm/pca"), annotated(cells(X=X))),
    ),
    Case(
        f"{ANNDATA}: {{}}, {{}}: write the file again with a recent anndata, or leave labels_column "
        "(--labels-column) out",
        annotated(cells(X=X), without_columns, "::X", labels_column="t"),
        (annotated(cells(X=X), labels_column="t"), annotated(cells(X=X), without_columns, "::X")),
    ),
    Case(
        f"{RECORDS}: {{}}: make the lists equally long, or drop their columns (drop_columns, --drop-columns "
        "{}_0-{}_{})",
        parquet({"a": X[:, 0], "e": UNEVEN}),
        (
            parquet({"a": X[:, 0], "e": [[1.0, 2.0]] * 24}),
            parquet({"a": X[:, 0], "e": UNEVEN}, drop_columns=["e_0-e_1"]),
        ),
    ),
    Case(
        f"{RECORDS}: {{}}: drop these columns (drop_columns, --drop-columns)",
        parquet(FRAME.assign(n=None)),
        (parquet(FRAME.assign(n=None), drop_columns=["n"]),),
    ),
    Case(
        f"{RECORDS}: {{}}: drop these columns (drop_columns, --drop-columns), or store them as numbers, such as times "
        "in seconds",
        parquet(FRAME.assign(t=TIMES[:, 0])),
        (
            parquet(FRAME.assign(t=TIMES[:, 0]), drop_columns=["t"]),
            parquet(FRAME.assign(t=TIMES[:, 0].astype(np.int64))),
        ),
    ),
    Case(
        f"{BASE}: {{}}: reshape it, for instance array.reshape(len(array), -1)",
        given(X.reshape(12, 2, 3)),
        (given(X.reshape(12, 2, 3).reshape(12, -1)), given(X[:, 0].reshape(24, -1))),
    ),
    Case(
        f"{BASE}: {{}}: drop such columns, or give times as numbers, for instance (times - times.min()) / "
        "np.timedelta64(1, 's')",
        given(TIMES),
        (given((TIMES - TIMES.min()) / np.timedelta64(1, "s")),),
    ),
    Case(
        f"{BASE}: {{}}: convert them, for instance with array.astype(np.float64)",
        given(X.astype(np.longdouble)),
        (given(X.astype(np.longdouble).astype(np.float64)),),
    ),
    Case(
        f"{COLUMNS}: {{}}: take it out of {{}} ({{}})",
        given(FRAME.assign(w=WORDS), columns=["a", "w"], labels_column="w"),
        (given(FRAME.assign(w=WORDS), columns=["a", "b"], labels_column="w"),),
    ),
    Case(
        f"{COLUMNS}: {{}}: take it out of {{}} ({{}}) or drop_columns (--drop-columns)",
        given(FRAME.assign(w=WORDS), one_hot=["w"], drop_columns=["w"]),
        (given(FRAME.assign(w=WORDS), one_hot=["w"]), given(FRAME.assign(w=WORDS), drop_columns=["w"])),
    ),
    Case(
        f"{COLUMNS}: {{}}: add it to columns (--columns), or take it out of one_hot (--one-hot)",
        given(FRAME.assign(w=WORDS), columns=["a"], one_hot=["w"]),
        (given(FRAME.assign(w=WORDS), columns=["a", "w"], one_hot=["w"]), given(FRAME.assign(w=WORDS), columns=["a"])),
    ),
    Case(
        f"{COLUMNS}: {{}}: drop fewer columns (drop_columns, --drop-columns)",
        given(FRAME, drop_columns=[0, 1, 2]),
        (given(FRAME, drop_columns=[0, 1]),),
    ),
    Case(
        f"{COLUMNS}: {{}}: give the run's columns (Run.feature_names) under the names that they had",
        matched(lambda _: FRAME.assign(w=WORDS).rename(columns=str.upper)),
        (matched(lambda found: FRAME.assign(w=WORDS)[[*found.feature_names[:3], "w"]]),),
    ),
    Case(f"{COLUMNS}: {{}}: correct {{}} ({{}})", given(FRAME, columns=["A"]), (given(FRAME, columns=["a"]),)),
    Case(
        f"{COLUMNS}: {{}}: drop the column (drop_columns, --drop-columns), or group its categories",
        given(pd.DataFrame({"x": np.arange(1001.0), "n": [f"n{i}" for i in range(1001)]}), one_hot=["n"]),
        (
            given(pd.DataFrame({"x": np.arange(1001.0), "n": [f"n{i}" for i in range(1001)]}), drop_columns=["n"]),
            given(pd.DataFrame({"x": np.arange(1001.0), "n": [f"n{i % 9}" for i in range(1001)]}), one_hot=["n"]),
        ),
    ),
    Case(
        f"{COLUMNS}: {{}}: drop the column (drop_columns, --drop-columns)",
        text("a,b,w\n" + "1,2,\n3,4,\n" * 9, one_hot=["w"], missing="drop"),
        (text("a,b,w\n" + "1,2,\n3,4,\n" * 9, drop_columns=["w"]),),
    ),
    Case(
        f"{COLUMNS}: {{}}: correct it, or give handle_unknown='ignore' (--handle-unknown ignore), which makes all of "
        "its features 0",
        matched(lambda _: FRAME.assign(w="z")),
        (matched(lambda _: FRAME.assign(w=WORDS)), matched(lambda _: FRAME.assign(w="z"), handle_unknown="ignore")),
    ),
    Case(
        f"{COLUMNS}: {{}}: leave one_hot out, or give the categories beside others",
        given(sparse.csr_matrix(X), one_hot=[0]),
        (given(sparse.csr_matrix(X)), given(FRAME.round(), one_hot=["a"])),
    ),
    Case(
        f"{DASK}: {GIVEN}: make an array of it, as with dask.array.from_delayed(value, shape, dtype)",
        given(dask.delayed(X)),
        (given(da.from_delayed(dask.delayed(X), X.shape, X.dtype)),),
    ),
    Case(
        f"{DASK}: {GIVEN}: give series.to_frame()",
        given(dd.from_pandas(FRAME["a"], npartitions=2)),
        (given(dd.from_pandas(FRAME["a"], npartitions=2).to_frame()),),
    ),
    Case(
        f"{DASK}: {GIVEN}: give bag.to_dataframe()", given(db.from_sequence(FRAME.to_dict("records"))), (frame_of_bag,)
    ),
    Case(
        f"{DASK}: {GIVEN}: call array.compute_chunk_sizes() first",
        given(dd.from_pandas(FRAME, npartitions=2).to_dask_array()),
        (lambda _: read(dd.from_pandas(FRAME, npartitions=2).to_dask_array().compute_chunk_sizes()),),
    ),
    Case(
        f"{DASK}: block {{}} of {{}}: give array.astype(float), and say what is done about gaps (missing)",
        given(da.from_array(np.ma.masked_equal(np.arange(48).reshape(24, 2), 5), chunks=(12, 2))),
        (
            given(
                da.from_array(np.ma.masked_equal(np.arange(48).reshape(24, 2), 5), chunks=(12, 2)).astype(float),
                missing="median",
            ),
        ),
    ),
    Case(
        f"{DASK}: block {{}} of {{}}: make NumPy arrays of the blocks by array.map_blocks, as with lambda block: "
        "block.get()",
        given(blocks(Device)),
        (given(blocks(Device).map_blocks(lambda block: block.get(), dtype=float, meta=np.empty((0, 0)))),),
    ),
    Case(
        f"{DASK}: {{}}: call array.compute_chunk_sizes() first, best after array = array.persist()",
        given(blocks(filtered)),
        (lambda _: read(blocks(filtered).persist(scheduler="synchronous").compute_chunk_sizes()),),
    ),
    Case(
        f"{DASK}: {{}}: declare their type, as in array.map_blocks(numpy.asarray, dtype='{{}}')",
        given(blocks(lambda block: block, dtype=np.int64, meta=np.empty((0, 0), np.int64))),
        (
            given(
                blocks(lambda block: block, dtype=np.int64, meta=np.empty((0, 0), np.int64)).map_blocks(
                    np.asarray, dtype="float64"
                )
            ),
        ),
    ),
    Case(
        "readers/dask_collections.py: partition {} of {}: {}",
        given(dd.from_pandas(FRAME.assign(w=WORDS.astype(object)), npartitions=2)),
        (
            given(dd.from_pandas(FRAME.assign(w=WORDS.astype(object)), npartitions=2), one_hot=["w"]),
            given(dd.from_pandas(FRAME.assign(w=WORDS.astype(object)), npartitions=2), drop_columns=["w"]),
            given(dd.from_pandas(FRAME.assign(w=WORDS.astype(object)), npartitions=2), labels_column="w"),
        ),
    ),
    Case(
        "readers/dask_collections.py: {}: give frame.persist(), so that its partitions stay as they are",
        changing(False),
        (changing(True),),
    ),
    Case(
        f"{BASE}: {{}}: give it computed, as array.compute() returns it",
        measured(da.from_array(NEAR, chunks=24, asarray=False)),
        (lambda _: run(da.from_array(NEAR, chunks=24, asarray=False).compute(), PRECOMPUTED),),
    ),
    Case(
        f"{BASE}: {{}}: give the distances of {{}} neighbours or more, such as kneighbors_graph(X, {{}}, "
        "mode='distance')",
        measured(kneighbors_graph(X, 3, mode="distance")),
        (measured(kneighbors_graph(X, 5, mode="distance")),),
    ),
    Case(
        f"{BASE}: {{}}: give distances such as 1 - similarity, and leave entries of samples that are no neighbours out",
        measured(-NEAR),
        (measured(sparse.csr_matrix(1 - np.corrcoef(X))),),
    ),
    Case(
        f"{BASE}: {{}}: give D.maximum(D.T) where both directions mean the same",
        measured(one_way(0.5)),
        (lambda _: run(one_way(0.5).maximum(one_way(0.5).T), PRECOMPUTED),),
    ),
    Case(f"{FAULTS}: {{}}: start again once nothing writes to it", changed(False), (changed(True),)),
    Case(f"{FAULTS}: {{}}: {MEMBER}", archive(a=X, b=X), (archive("::a", a=X, b=X),)),
    Case(f"{FAULTS}: {{}}: {MEMBER}", archive("::z", a=X, b=X), (archive("::a", a=X, b=X),)),
    Case(
        f"{FAULTS}: {{}}: save it as an array of numbers, for instance with np.save(path, array.astype(np.float32))",
        pickled(object),
        (pickled(np.float32),),
    ),
    Case(
        f"{FAULTS}: {{}}: {{}}{{}}{ENCODE}",
        text(WITH_WORDS),
        (text(WITH_WORDS, one_hot=["w"]), text(WITH_WORDS, drop_columns=["w"]), text(WITH_WORDS, labels_column="w")),
    ),
    Case(
        f"{FAULTS}: {{}}: {{}}{{}}{ENCODE}",
        text('a,b\n"1,000",2\n"3,500",4\n'),
        (text('a,b\n"1,000",2\n"3,500",4\n', thousands=","),),
    ),
    Case(
        f"{FAULTS}: {{}}: give a data frame, a text file or a Parquet file of it, whose columns of text can be "
        "encoded (one_hot, --one-hot) or dropped (drop_columns, --drop-columns)",
        given(np.array([WORDS, WORDS]).T),
        (
            given(pd.DataFrame(np.array([WORDS, WORDS]).T), one_hot=[0, 1]),
            parquet(FRAME.assign(w=WORDS), one_hot=["w"]),
            text(WITH_WORDS, drop_columns=["w"]),
        ),
    ),
    Case(
        f"{FAULTS}: {{}}: drop the row or fill the value in (a value that is missing: missing, --missing)",
        text(GAPS),
        (text(GAPS, missing="drop"), text(GAPS, missing="median"), text(LABELLED)),
    ),
    Case(
        f"{FEATURES}: columns: name a column, or leave columns (--columns) out",
        lambda _: Features(columns=[]),
        (given(FRAME, columns=["a"]), given(FRAME)),
    ),
    Case(
        f"{FEATURES}: {{}}: take the superfluous comma out",
        lambda _: split_list("a,,b", "columns"),
        (lambda _: read(FRAME, features=Features(columns=split_list("a,b", "columns"))),),
    ),
    Case(
        f"{FEATURES}: {{}}: give {{}}=['A', 5, '7-20'], for instance",
        lambda _: Features(columns=[1.5]),  # type: ignore[list-item]
        (given(pd.DataFrame(np.tile(X, 9)).rename(columns={0: "A"}), columns=["A", 5, "7-20"]),),
    ),
    Case(
        "fields.py: {}: choose one of them",
        lambda _: Features(missing="guess"),
        (given(FRAME, missing="refuse"), given(GAPPY, missing="drop"), given(GAPPY, missing="median")),
    ),
    Case(
        "readers/trees.py: {}: write the dataset again with gzip, for instance with h5repack -f GZIP=4",
        hdf5(other_filter),
        (hdf5(lambda file: file.create_dataset("X", data=X, compression="gzip")),),
    ),
    Case(
        f"{COLUMNS}: {{}}: correct labels_column (--labels-column), or leave it out",
        given(FRAME, labels_column="z"),
        (given(FRAME.round(), labels_column="a"), given(FRAME)),
    ),
    Case(
        f"{COLUMNS}: {{}}: name the variable that belongs to these samples{{}}",
        archive("::a", "y", a=X, y=np.arange(9), z=np.arange(24)),
        (archive("::a", "z", a=X, y=np.arange(9), z=np.arange(24)),),
    ),
    Case(
        f"{LABELS}: {{}}: name the column that holds the classes (labels_column, --labels-column)",
        given(X, labels_column=0),
        (given(X.round(), labels_column=0),),
    ),
    Case(
        f"{LABELS}: {{}}: fill the label in, drop the row, or leave labels_column (--labels-column) out",
        given(GAPPY.round(), labels_column="a"),
        (
            given(GAPPY.round().fillna(9), labels_column="a"),
            given(GAPPY.round().dropna(), labels_column="a"),
            given(FRAME),
        ),
    ),
    Case(f"{SCIPY}: {{}}: name {{}}[0]", mat("C", C=CELL), (mat("C[0]", C=CELL), mat("C{1}", C=CELL))),
    Case(f"{SCIPY}: {{}}: name {{}} itself", mat("X[0]", X=X), (mat("X", X=X),)),
    Case(f"{SCIPY}: {{}}: name {{}}[0]", mat73("C"), (mat73("C[0]"), mat73("C{1}"))),
    Case(f"{SCIPY}: {{}}: name {{}}[0]", mat73("C[7]"), (mat73("C[0]"),)),
    Case(f"{SCIPY}: {{}}: name {{}} itself", mat73("X[0]"), (mat73("X"),)),
    Case(
        f"{OBJECTS}: {{}}: give frame.collect()",
        given(pl.LazyFrame({"a": X[:, 0]})),
        (given(pl.LazyFrame({"a": X[:, 0]}).collect()),),
    ),
    Case(
        f"{OBJECTS}: {{}}: convert or drop such columns (lists of equal length are a matrix by "
        "numpy.stack(column.tolist()))",
        given(pd.DataFrame({"e": X.tolist()})),
        (
            given(np.stack(pd.DataFrame({"e": X.tolist()})["e"].tolist())),
            given(FRAME.assign(e=X.tolist()), drop_columns=["e"]),
        ),
    ),
    Case(
        f"{OBJECTS}: {{}}: fill them in with array.filled(value), or drop these rows",
        given(np.ma.masked_less(X, -1)),
        (given(np.ma.masked_less(X, -1).filled(0)), given(np.ma.compress_rows(np.ma.masked_less(X, -1)))),
    ),
    Case(
        f"{OBJECTS}: the AnnData given: give one of its matrices, such as adata.obsm['X_pca']",
        given(cells(obsm={"other": X})),
        (given(cells(obsm={"other": X}).obsm["other"]),),
    ),
    Case(
        f"{OBJECTS}: the AnnData given: give adata.to_memory(), or adata.copy(filename) of the part",
        backed(lambda part, _: part),
        (backed(lambda part, _: part.to_memory()), backed(lambda part, folder: part.copy(folder / "part.h5ad"))),
    ),
    Case(
        "readers/records.py: {}: write that part again with the columns of the others, or name one of the parts alone",
        parts(FRAME, FRAME[["a", "b"]]),
        (parts(FRAME, FRAME), parts(FRAME, FRAME[["a", "b"]], of="1.parquet")),
    ),
    Case(
        f"{TEXT}: {{}}: give the encoding that it was saved in (encoding, --encoding): {{}}, for instance",
        text(("größe" + LABELLED[1:]).encode("latin-1")),
        (text(("größe" + LABELLED[1:]).encode("latin-1"), encoding="latin-1"),),
    ),
    Case(
        f"{TEXT}: {{}}: take that quote out, or end it",
        text('a,b\n1,2\n"3,4\n5,6\n'),
        (text("a,b\n1,2\n3,4\n5,6\n"), text('a,b\n1,2\n"3",4\n5,6\n')),
    ),
    Case(
        f"{TEXT}: {{}}: {{}}, and leave the column out of one_hot (--one-hot)",
        text('a,b\n"1,000",2\n"3,500",4\n', one_hot=["a"]),
        (text('a,b\n"1,000",2\n"3,500",4\n', thousands=","),),
    ),
    Case(
        f"{TEXT}: {{}}: correct or drop {{}}",
        text("a,b\n1,2\n3,4,5\n6,7\n8,9\n"),
        (text("a,b\n1,2\n3,4\n6,7\n8,9\n"), text("a,b\n1,2\n6,7\n8,9\n")),
    ),
    Case(
        f"{TEXT}: {{}}: give encoding='utf-16' (--encoding utf-16), or the file the ending of its format",
        text(LABELLED.encode("utf-16")),
        (text(LABELLED.encode("utf-16"), encoding="utf-16"),),
    ),
    Case(
        f"{TEXT}: {{}}: leave it out: skip_lines={{}} (--skip-lines {{}}){{}}; other delimiters: delimiter "
        "(--delimiter)",
        text("A title\n" + LABELLED),
        (text("A title\n" + LABELLED, skip_lines=1),),
    ),
    Case(
        f"{FEATURES}: {{}}: change {{}} or {{}}",
        lambda _: TextFormat(decimal=",", thousands=","),
        (lambda _: TextFormat(decimal=",", thousands="."), lambda _: TextFormat(thousands=",")),
    ),
    Case(
        "fields.py: {}: give {}={} or more",
        lambda _: TextFormat(skip_lines=-1),
        (text("A title\n" + LABELLED, skip_lines=1),),
    ),
    Case(
        f"{FEATURES}: {{}}: give another one, or leave it out",
        lambda _: TextFormat(delimiter="ab"),
        (text(LABELLED.replace(",", "|"), delimiter="|"), text(LABELLED)),
    ),
]


@pytest.mark.filterwarnings("ignore::ips2_dask.errors.IPS2Warning")
@pytest.mark.parametrize("case", [pytest.param(case, id=case.key) for case in CASES])
def test_what_a_readers_remedy_says_gets_further(case: Case, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        case.wrong(tmp_path)
    (remedy,) = [one for one in remedies() if one.key == case.key] or [None]
    assert remedy is not None, f"no remedy has the key {case.key!r}"
    assert remedy.fits(str(caught.value)), (str(caught.value), case.key)
    for number, right in enumerate(case.rights):
        (tmp_path / str(number)).mkdir()
        right(tmp_path / str(number))
