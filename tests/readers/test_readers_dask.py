"""Dask arrays whose blocks are not what their metadata say, and Dask DataFrames."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.datasets import make_blobs

from ips2_dask import IPS2, BadInput, Features, Params, run
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.readers import open_source

Array = NDArray[Any]
X = make_blobs(60, 3, centers=3, random_state=0)[0]
PARAMS = Params(n_clusters=3)
BY_ROW = da.from_array(X, chunks=(20, 3))


def mapped(function: Callable[[Array], Any], dtype: Any = float, array: Any = BY_ROW) -> Any:
    """An array of which Dask believes that the function changes no block's shape."""
    return array.map_blocks(function, dtype=dtype, meta=np.empty((0, 0), dtype))


def later(block: Array, function: Callable[[Array], Any]) -> Any:
    """Return the third block changed, the others as they are."""
    return function(block) if np.array_equal(block, X[40:]) else block


WRONG: dict[str, tuple[Callable[[Array], Any], str]] = {
    "fewer-rows": (lambda block: block[block[:, 0] > 1], r"block \(\d, 0\).* found the shape \(\d+, 3\), .*\(20, 3\)"),
    "more-rows": (lambda block: np.vstack([block, block]), r"\(40, 3\), allowed is \(20, 3\)"),
    "no-rows": (lambda block: later(block, lambda b: b[:0]), r"block \(2, 0\).* found the shape \(0, 3\)"),
    "fewer-columns": (lambda block: block[:, :2], r"\(20, 2\), allowed is \(20, 3\)"),
    "more-columns": (lambda block: np.hstack([block, block]), r"\(20, 6\), allowed is \(20, 3\)"),
    "one-dimension": (lambda block: block[:, 0], r"\(20,\), allowed is .* two dimensions"),
    "complex": (lambda block: later(block, lambda b: b * 1j), r"block \(2, 0\).* complex"),
    "text": (lambda block: block.astype(str), r"block \(\d, 0\).* text"),
    "strange": (lambda block: later(block, lambda b: {1: 2}), r"block \(2, 0\)"),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (case not in ("fewer-rows", "text"))) for case in WRONG]
)
def test_a_block_that_is_not_what_the_metadata_say_is_named(case: str, dask_executor: DaskExecutor) -> None:
    function, said = WRONG[case]
    for client in (None, dask_executor.client):
        with pytest.raises(BadInput, match=said):
            run(mapped(function), PARAMS, client=client)


@pytest.mark.slow
def test_new_samples_are_checked_by_block_too(dask_executor: DaskExecutor) -> None:
    fitted = IPS2(3).fit(BY_ROW)
    finished = run(BY_ROW, PARAMS, client=dask_executor.client)
    for predict in (fitted.predict, fitted.transform, lambda new: finished.predict(new, client=dask_executor.client)):
        with pytest.raises(BadInput, match=r"block \(2, 0\).*\(10, 3\), allowed is \(20, 3\)"):
            predict(mapped(lambda block: later(block, lambda b: b[:10])))
    assert np.array_equal(finished.predict(BY_ROW, client=dask_executor.client), finished.labels)


@pytest.mark.parametrize("case", ["fewer-rows", "more-rows", "fewer-columns", "more-columns"])
def test_sizes_that_are_computed_help(case: str) -> None:
    for array in (mapped(WRONG[case][0]), mapped(WRONG[case][0]).persist(scheduler="synchronous")):
        array.compute_chunk_sizes()
        expected = np.concatenate([WRONG[case][0](block) for block in (X[:20], X[20:40], X[40:])])
        assert np.array_equal(open_source(array).read(0, len(expected)), expected)


def test_blocks_of_another_type_are_converted_if_no_value_changes() -> None:
    whole = np.rint(X)
    for array in (
        mapped(lambda block: np.rint(block), int),
        mapped(lambda block: np.rint(block).astype(object)),
        mapped(lambda block: np.rint(block).astype("int8")),
        mapped(lambda block: np.rint(block)).astype(object),
        mapped(lambda block: sp.csr_array(np.rint(block))),
        mapped(lambda block: np.ma.masked_array(np.rint(block)), int),
        mapped(lambda block: OnDevice(np.rint(block))),
    ):
        assert np.array_equal(open_source(array).read(0, 60), whole)
    rounded = mapped(lambda block: block, int)
    with pytest.raises(BadInput, match=r"values of type float64, allowed is int64.*dtype='float64'"):
        run(rounded, PARAMS)
    declared = rounded.map_blocks(np.asarray, dtype="float64")
    assert np.array_equal(open_source(declared).read(0, 60), X)


class OnDevice:
    """An array as CuPy's, which NumPy can't read by itself."""

    def __init__(self, values: Array) -> None:
        self._values, self.shape, self.dtype = values, values.shape, values.dtype
        self.__cuda_array_interface__: dict[str, Any] = {}

    def __array__(self, *args: Any, **kwargs: Any) -> Array:
        raise TypeError("implicit conversion")

    def get(self) -> Array:
        return self._values


def test_masked_integers_are_refused_and_floats_lack_a_value() -> None:
    masked = da.ma.masked_equal(da.from_array(np.arange(12).reshape(6, 2), chunks=(2, 2)), 7)
    with pytest.raises(BadInput, match=r"block \(1, 0\).*masked values in an array of type int64.*astype\(float\)"):
        run(masked, Params(n_clusters=2))
    assert np.isnan(open_source(masked.astype(float)).read(3, 4)).tolist() == [[False, True]]
    found = run(masked.astype(float), Params(n_clusters=2, n_neighbors=2), features=Features(missing="median"))
    assert found.report()["missing"] == {"rule": "median", "values": 1, "rows": 1}


def test_the_labels_of_a_persisted_array_are_read_with_a_client(dask_executor: DaskExecutor) -> None:
    client = dask_executor.client
    known = np.column_stack([X, np.arange(60) % 3])
    array = client.persist(da.from_array(known, chunks=(20, 4)))
    with pytest.raises(BadInput, match=r"give client=, as in IPS2\(client=client\)"):
        run(array, PARAMS)
    found = run(array, PARAMS, client=client, labels_column=-1)
    assert np.array_equal(found.known_labels, np.arange(60) % 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [lambda x: x.to_bag(), lambda x: x["a"]])
def test_other_collections_are_refused_with_what_makes_a_table_of_them(make: Callable[[Any], Any]) -> None:
    frame = dd.from_pandas(pd.DataFrame({"a": [1, 2], "b": [3, 4]}), npartitions=1)
    with dask.config.set(scheduler="synchronous"):
        as_frames = frame["a"].to_frame(), frame.to_bag().to_dataframe()
    assert [open_source(each).shape for each in as_frames] == [(2, 1), (2, 2)]
    with pytest.raises(BadInput, match=r"a Dask (Bag|Series).* give (bag\.to_dataframe|series\.to_frame)\(\)"):
        open_source(make(frame))


# ---- data frames


def pandas_frame(m: int = 60) -> pd.DataFrame:
    """Numbers of several types with gaps, categories, a class, and names of the rows."""
    known = np.arange(m) % 3
    frame = pd.DataFrame(make_blobs(m, 2, centers=3, random_state=0)[0], columns=["x", "y"])
    frame["n"] = pd.array([None, *range(m - 1)], dtype="Int64")
    frame["kind"] = np.array(["u", "v", "w"])[known]
    frame["level"] = pd.Categorical(np.array(["low", "high"])[np.arange(m) % 2])
    frame["code"] = np.array(["01", "1"])[np.arange(m) // 2 % 2]
    frame["class"] = np.array(["p", "q", "r"])[known]
    frame.index = [f"s{i}" for i in range(m)]
    return frame


def in_parts(frame: pd.DataFrame, npartitions: int = 4) -> Any:
    return dd.from_pandas(frame, npartitions=npartitions, sort=False)


FEATURES = Features(one_hot="kind,level,code", missing="median")


def test_a_dask_frame_is_the_table_of_the_pandas_frame() -> None:
    frame = pandas_frame()
    for features in (FEATURES, Features(columns="y,x"), Features(columns="n,level", one_hot="level", missing="drop")):
        expected = open_source(frame, labels_column="class", features=features)
        found = open_source(in_parts(frame), labels_column="class", features=features)
        assert found.feature_names == expected.feature_names
        assert found.shape == expected.shape
        np.testing.assert_array_equal(found.read(0, 60), expected.read(0, 60))
        np.testing.assert_array_equal(np.concatenate(list(found.blocks(7))), expected.read(0, 60))
        assert np.array_equal(found.labels(), expected.labels())  # type: ignore[arg-type]
        assert np.array_equal(found.sample_names, expected.sample_names)  # type: ignore[arg-type]
    numbers = frame[["x", "y"]]
    np.testing.assert_array_equal(open_source(in_parts(numbers), transpose=True).read(0, 2), numbers.to_numpy().T)
    assert open_source(in_parts(numbers.reset_index(drop=True))).sample_names is None


@pytest.mark.slow
def test_runs_on_a_dask_frame_are_those_on_the_pandas_frame(dask_executor: DaskExecutor, tmp_path: Path) -> None:
    frame, client = pandas_frame(), dask_executor.client
    expected = run(frame, PARAMS, labels_column="class", features=FEATURES)
    turned = frame[["kind", "y", "level", "n", "code", "x"]]
    for parts, given in ((in_parts(frame), None), (in_parts(frame), client), (client.persist(in_parts(frame)), client)):
        found = run(parts, PARAMS, client=given, labels_column="class", features=FEATURES)
        assert np.array_equal(found.labels, expected.labels)
        assert np.array_equal(found.known_labels, expected.known_labels)  # type: ignore[arg-type]
        assert found.sample_names.tolist() == list(frame.index)  # type: ignore[union-attr]
        np.testing.assert_array_equal(found.predict(in_parts(turned, 3), client=given), expected.labels)
    found = run(in_parts(frame), PARAMS, store=tmp_path / "run", labels_column="class", features=FEATURES)
    again = run(in_parts(frame), PARAMS, store=tmp_path / "run", labels_column="class", features=FEATURES)
    assert {stage["state"] for stage in again.manifest["stages"]} == {"reused"}


def test_the_estimator_takes_a_dask_frame_with_its_names(dask_executor: DaskExecutor) -> None:
    frame = pandas_frame()[["x", "y"]]
    expected = IPS2(3).fit(frame)
    for client in (None, dask_executor.client):
        fitted = IPS2(3, client=client).fit(in_parts(frame))
        assert fitted.feature_names_in_.tolist() == ["x", "y"]
        assert np.array_equal(fitted.labels_, expected.labels_)
        assert np.array_equal(fitted.predict(in_parts(frame[["y", "x"]], 3)), expected.labels_)
        with pytest.raises(BadInput, match="no column 'y'"):
            fitted.predict(in_parts(frame[["x"]]))


def test_new_samples_whose_columns_are_counted_are_those_of_a_run_with_named_columns() -> None:
    frame = pandas_frame()
    features = Features(one_hot="kind,level,code", drop_columns="n")  # what is kept does not count on without a gap
    fitted = open_source(frame, labels_column="class", features=features).fitted
    assert fitted is not None
    counted = frame.set_axis(range(frame.shape[1]), axis=1)
    expected, found = (open_source(new, features=fitted) for new in (counted, in_parts(counted)))
    np.testing.assert_array_equal(found.read(0, 60), expected.read(0, 60))


def test_no_more_than_a_partition_of_a_frame_is_computed_at_a_time_and_each_of_them_twice() -> None:
    lengths: list[int] = []

    def part(frame: pd.DataFrame) -> pd.DataFrame:
        lengths.append(len(frame))
        return frame

    frame = pandas_frame()[["x", "y"]]
    IPS2(3).fit(in_parts(frame).map_partitions(part, meta=frame[:0]))
    assert [length for length in lengths if length] == [15] * 8  # once to count the rows


def test_what_is_wrong_with_a_partition_is_said_with_its_number() -> None:
    frame = pandas_frame()
    with pytest.raises(BadInput, match=r"partition 0 of the Dask DataFrame given.* \('kind'\).*'u' in row 0"):
        run(in_parts(frame), PARAMS, features=Features(drop_columns="n"))
    found = run(in_parts(frame), PARAMS, features=Features(drop_columns="kind,level,code,class,n"))
    assert len(found.labels) == 60
    many = pd.DataFrame({"a": [f"v{i}" for i in range(2000)], "b": 1.0})
    with pytest.raises(BadInput, match=r"more than 1,000 categories in column 0 \('a'\)"):
        open_source(in_parts(many), features=Features(one_hot="a"))
    with pytest.raises(BadInput, match="several columns named 'x'"):
        open_source(in_parts(pd.DataFrame(X, columns=["x", "x", "y"])))
    wobbling = in_parts(frame[["x", "y"]]).map_partitions(Wobbling(), meta=frame[["x", "y"]][:0])
    with pytest.raises(BadInput, match=r"partition 0 .*\(\d+, 2\), allowed is \(\d+, 2\).*frame\.persist\(\)"):
        run(wobbling, PARAMS)


class Wobbling:
    """A function that leaves out one row more each time."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, part: pd.DataFrame) -> pd.DataFrame:
        self.calls += 1
        return part[self.calls :]


def test_parquet_that_dask_has_written_is_read_by_both(tmp_path: Path) -> None:
    frame = pandas_frame()[["x", "y"]].reset_index(drop=True)
    in_parts(frame, 12).to_parquet(tmp_path / "parts", write_metadata_file=True)
    expected = frame.to_numpy()
    for source in (open_source(tmp_path / "parts"), open_source(dd.read_parquet(tmp_path / "parts"))):
        assert source.feature_names == ["x", "y"]
        assert source.sample_names is None
        np.testing.assert_array_equal(source.read(0, 60), expected)
    in_parts(pandas_frame()[["x", "y", "kind"]]).to_parquet(tmp_path / "kinds", partition_on="kind")
    with pytest.raises(BadInput, match="folders of Parquet files") as caught:
        open_source(tmp_path / "kinds")
    assert open_source(caught.value.remedy.split()[3].strip(",")).shape == (60, 2)
    features = Features(one_hot="kind")
    assert open_source(dd.read_parquet(tmp_path / "kinds"), features=features).shape == (60, 5)
