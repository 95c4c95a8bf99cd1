"""Tables with names in memory: frames of polars, pyarrow, DuckDB and xarray; and objects that are numbers."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from sklearn.datasets import make_blobs

from ips2_dask import IPS2, BadInput, Features, Params, run
from ips2_dask.readers import open_source

pl = pytest.importorskip("polars")
xr = pytest.importorskip("xarray")

Array = NDArray[Any]
X, KNOWN = make_blobs(60, 3, centers=3, random_state=0)
NAMES = ["height", "width", "depth"]
PARAMS = Params(n_clusters=3)


def frame(names: list[str] = NAMES) -> pd.DataFrame:
    return pd.DataFrame(X, columns=NAMES)[names]


def of_duckdb(table: pd.DataFrame) -> Any:
    duckdb = pytest.importorskip("duckdb")
    return duckdb.from_df(table)


def of_xarray(table: pd.DataFrame) -> Any:
    return xr.DataArray(table.to_numpy(), dims=("sample", "feature"), coords={"feature": list(table.columns)})


CONTAINERS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "polars": pl.from_pandas,
    "arrow": pa.Table.from_pandas,
    "batch": pa.RecordBatch.from_pandas,
    "duckdb": of_duckdb,
    "xarray": of_xarray,
    "xarray-dask": lambda table: of_xarray(table).chunk({"sample": 25}),
}


def refused(spec: Any, **options: Any) -> BadInput:
    with pytest.raises(BadInput) as caught:
        list(open_source(spec, **options).blocks(10))
    return caught.value


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_table_in_memory_has_its_names_in_every_container(kind: str) -> None:
    make = CONTAINERS[kind]
    source = open_source(make(frame()))
    assert source.feature_names == NAMES
    for one in (source, pickle.loads(pickle.dumps(source))):
        np.testing.assert_array_equal(one.read(0, 60), X)
        np.testing.assert_array_equal(np.concatenate(list(one.blocks(7))), X)
    np.testing.assert_array_equal(open_source(make(frame()), transpose=True).read(0, 3), X.T)
    assert open_source(make(frame())).fingerprint == source.fingerprint
    if kind != "xarray-dask":  # known by the name that Dask gave it
        assert open_source(make(frame() + 1)).fingerprint != source.fingerprint
    scored = open_source(make(frame().assign(known=KNOWN)), labels_column="known")
    assert np.array_equal(scored.labels(), KNOWN)  # type: ignore[arg-type]
    assert scored.fingerprint != source.fingerprint
    assert open_source(make(frame()), features=Features(columns="depth,height")).feature_names == ["height", "depth"]
    assert "no column 'widht'" in refused(make(frame()), features=Features(drop_columns="widht")).found


@pytest.mark.parametrize("kind", CONTAINERS)
def test_the_estimator_and_a_run_know_the_names(kind: str) -> None:
    make, expected = CONTAINERS[kind], IPS2(3).fit(X).labels_
    fitted = IPS2(3).fit(make(frame()))
    assert fitted.feature_names_in_.tolist() == NAMES
    assert np.array_equal(fitted.labels_, expected)
    turned = make(frame(NAMES[::-1]))
    assert np.array_equal(fitted.predict(turned), expected)
    assert np.array_equal(run(make(frame()), PARAMS).predict(turned), expected)
    with pytest.raises(BadInput, match="no column 'depth'"):
        fitted.predict(make(frame(NAMES[:2])))


def test_polars_types_are_numbers_lists_and_categories() -> None:
    table = pl.DataFrame(
        {
            "small": pl.Series([1, None, 3], dtype=pl.UInt8),
            "money": pl.Series([Decimal("1.5"), Decimal("2.25"), None]),
            "flag": [True, False, True],
            "e": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
            "f": pl.Series([[1, 2], [3, 4], [5, 6]], dtype=pl.Array(pl.Int16, 2)),
            "kind": pl.Series(["u", "v", "u"], dtype=pl.Categorical),
        }
    )
    source = open_source(table, features=Features(one_hot="kind", missing="median"))
    assert source.feature_names == ["small", "money", "flag", "e_0", "e_1", "f_0", "f_1", "kind_u", "kind_v"]
    expected = [[1, 1.5, 1, 1, 2, 1, 2, 1, 0], [np.nan, 2.25, 0, 3, 4, 3, 4, 0, 1], [3, np.nan, 1, 5, 6, 5, 6, 1, 0]]
    np.testing.assert_array_equal(source.read(0, 3), expected)
    assert "null) at row 1, column 'small'" in refused(table.drop("kind")).found
    assert "no numbers in the columns 'kind' (dictionary" in refused(table.select("e", "kind")).found
    assert open_source(table.select("e", "kind"), features=Features(drop_columns="kind")).shape == (3, 2)


def test_a_lazy_frame_is_refused_and_helped_by_its_remedy() -> None:
    lazy = pl.from_pandas(frame()).lazy()
    for give in (open_source, IPS2(3).fit, lambda spec: run(spec, PARAMS)):
        with pytest.raises(BadInput, match=r"LazyFrame.*Remedy: give frame\.collect\(\)"):
            give(lazy)
    assert open_source(lazy.collect()).feature_names == NAMES
    for series in (pl.Series([1.0, 2]), pd.Series([1.0, 2]), pa.chunked_array([[1.0, 2]])):
        assert "1 dimension" in refused(series).found
        assert open_source(np.asarray(series).reshape(2, -1)).shape == (2, 1)


def test_xarray_names_its_samples_too_and_a_dataset_is_refused() -> None:
    array = of_xarray(frame()).assign_coords(sample=[f"s{i}" for i in range(60)])
    for given in (array, array.chunk({"sample": 25})):
        names = open_source(given).sample_names
        assert names is not None
        assert names.tolist() == [f"s{i}" for i in range(60)]
        turned = open_source(given.T, transpose=True)
        assert turned.feature_names == NAMES
        np.testing.assert_array_equal(turned.read(0, 60), X)
    assert open_source(xr.DataArray(X)).feature_names is None
    assert "1 dimension" in refused(array[0]).found
    fault = refused(xr.Dataset({"x": array}))
    assert "dataset['x']" in fault.remedy
    columns = xr.Dataset({name: ("sample", column) for name, column in zip(NAMES, X.T, strict=True)})
    source = open_source(columns.to_dataarray().T)
    assert source.feature_names == NAMES
    np.testing.assert_array_equal(source.read(0, 60), X)
    wrong = array.chunk({"sample": 20})
    wrong.data = wrong.data.map_blocks(lambda block: block[:5], dtype=float, meta=np.empty((0, 0)))
    assert "the shape (5, 3)" in refused(wrong).found


OBJECTS = [[1, Decimal("2.5")], [None, True], [np.float32(3), Fraction(1, 4)], [2**70, pd.NA]]
NUMBERS = [[1, 2.5], [np.nan, 1], [3, 0.25], [2.0**70, np.nan]]


def test_objects_that_are_numbers_are_numbers() -> None:
    array = np.array(OBJECTS, dtype=object)
    for spec in (array, OBJECTS, pd.DataFrame(array), pd.DataFrame(array, columns=["a", "b"])):
        np.testing.assert_array_equal(open_source(spec).read(0, 4), NUMBERS)
    assert np.array_equal(run(X.astype(object), PARAMS).labels, IPS2(3).fit(X.astype(object)).labels_)
    frame_of_objects = frame().astype(object)
    assert np.array_equal(run(frame_of_objects, PARAMS).labels, IPS2(3).fit(frame_of_objects).labels_)
    assert np.isnan(open_source(pd.DataFrame(array), features=Features(missing="median")).read(1, 2)[0, 0])
    with pytest.raises(BadInput, match=r"found nan .* at row 1, column 0"):
        run(np.array(OBJECTS * 3, dtype=object), Params(n_clusters=2))


@pytest.mark.parametrize("value", ["1", b"1", 1j, [1], np.array([1]), pd.Timestamp(0), 10**400, {}])
def test_other_objects_are_named_by_row_and_value(value: Any) -> None:
    array = np.empty((3, 2), dtype=object)
    array[:] = 1
    array[2, 1] = value
    assert "in row 2, column 1" in refused(array).found
    fault = refused(pd.DataFrame(array, columns=["a", "b"]))
    assert "'b'" in fault.thing + fault.found
    assert "in row 2" in fault.found
    dropped = open_source(pd.DataFrame(array), features=Features(drop_columns=[1]))  # of most remedies
    assert dropped.read(0, 3).tolist() == [[1]] * 3


def test_text_in_an_array_can_be_encoded_in_a_frame_of_it() -> None:
    for array in (np.array([["1", "u"], ["2", "v"]]), np.array([[1, "u"], [2, "v"]], dtype=object)):
        assert "give a data frame" in refused(array).remedy
        source = open_source(pd.DataFrame(array), features=Features(one_hot=[0, 1]))
        assert source.read(0, 2).tolist() == [[1, 0, 1, 0], [0, 1, 0, 1]]
    lists = pd.DataFrame({"a": [[1, 2], [3, 4]]})
    assert "numpy.stack(column.tolist())" in refused(lists).remedy
    assert open_source(np.stack(lists["a"].tolist())).read(0, 2).tolist() == [[1, 2], [3, 4]]
