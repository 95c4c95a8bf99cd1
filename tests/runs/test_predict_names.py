"""New samples are matched by the names of their columns, in whatever container they come, from every door."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import anndata
import dask.dataframe as dd
import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
import xarray as xr
from sklearn.datasets import make_blobs
from test_readers_anndata import write_zarr

from ips2_dask import IPS2, BadInput, Features, IPS2Warning, Params, open_run, run
from ips2_dask.cli.main import main
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.readers import open_source
from ips2_dask.runs import predict

Array = npt.NDArray[Any]
Make = Callable[[pd.DataFrame, Path], Any]

NAMES = ["mass", "height", "9", "hue/od"]
PARAMS = Params(n_clusters=3)


def table() -> pd.DataFrame:
    """60 samples of 4 features of different spread, so that columns in another order would be other samples."""
    X, _ = make_blobs(60, 4, centers=3, random_state=4)
    return pd.DataFrame(X * [1, 2, 3, 4], columns=NAMES, index=[f"s{i}" for i in range(60)])


def _text(frame: pd.DataFrame, folder: Path, ending: str, **options: Any) -> Path:
    path = folder / f"new.{ending}"
    frame.to_csv(path, index=False, **options)
    return path


def _parquet(frame: pd.DataFrame, folder: Path) -> Path:
    frame.to_parquet(folder / "new.parquet")
    return folder / "new.parquet"


def _annotated(frame: pd.DataFrame, values: Any = None) -> anndata.AnnData:
    values = frame.to_numpy(float) if values is None else values
    return anndata.AnnData(values, pd.DataFrame(index=frame.index), pd.DataFrame(index=list(map(str, frame.columns))))


def _h5ad(adata: anndata.AnnData, folder: Path) -> Path:
    adata.write_h5ad(folder / "new.h5ad")
    return folder / "new.h5ad"


FILES: dict[str, Make] = {
    "csv": lambda frame, folder: _text(frame, folder, "csv"),
    "csv.gz": lambda frame, folder: _text(frame, folder, "csv.gz"),
    "tsv": lambda frame, folder: _text(frame, folder, "tsv", sep="\t"),
    "csv with row names": lambda frame, folder: _text(frame.reset_index(names=""), folder, "csv"),
    "parquet": _parquet,
    "h5ad": lambda frame, folder: _h5ad(_annotated(frame), folder),
    "h5ad, sparse": lambda frame, folder: _h5ad(_annotated(frame, sp.csr_matrix(frame.to_numpy(float))), folder),
    "h5ad, sparse by column": lambda frame, folder: _h5ad(
        _annotated(frame, sp.csc_matrix(frame.to_numpy(float))), folder
    ),
    "zarr": lambda frame, folder: write_zarr(_annotated(frame), folder / "new.zarr", 3),
    "zarr, sparse": lambda frame, folder: write_zarr(
        _annotated(frame, sp.csr_matrix(frame.to_numpy(float))), folder / "new.zarr", 2
    ),
}
OBJECTS: dict[str, Make] = {
    "pandas": lambda frame, folder: frame,
    "pandas, nullable": lambda frame, folder: frame.convert_dtypes(),
    "anndata": lambda frame, folder: _annotated(frame),
    "anndata, sparse": lambda frame, folder: _annotated(frame, sp.csr_matrix(frame.to_numpy(float))),
    "anndata, backed": lambda frame, folder: anndata.read_h5ad(_h5ad(_annotated(frame), folder), backed="r"),
    "anndata, view": lambda frame, folder: _annotated(frame)[:, :],
    "polars": lambda frame, folder: pl.from_pandas(frame),
    "pyarrow": lambda frame, folder: pa.Table.from_pandas(frame, preserve_index=False),
    "xarray": lambda frame, folder: xr.DataArray(
        frame.to_numpy(float), dims=("sample", "feature"), coords={"feature": list(frame.columns)}
    ),
    "dask frame": lambda frame, folder: dd.from_pandas(frame, npartitions=2, sort=False),
}
CONTAINERS = FILES | OBJECTS

CHANGES: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "same": lambda frame: frame,
    "reversed": lambda frame: frame.iloc[:, ::-1],
    "shuffled": lambda frame: frame[["9", "mass", "hue/od", "height"]],
    "further": lambda frame: frame[["hue/od", "mass", "height", "9"]].assign(more=1.5),
    "missing": lambda frame: frame.drop(columns="height"),
    "renamed": lambda frame: frame.rename(columns={"height": "heigth"}),
}
SAID = {
    "further": r"'more' is no feature of the run, and left out",
    "missing": r"no column 'height' .*Remedy: ",
    "renamed": r"no column 'height' \(the nearest names are heigth\).*Remedy: ",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run on the table."""
    folder = tmp_path_factory.mktemp("names") / "run"
    run(table(), PARAMS, store=folder)
    return folder


@pytest.fixture(scope="module")
def fitted() -> IPS2:
    """An estimator of the table."""
    return IPS2(3).fit(table())


def told(change: str, call: Callable[[], Array]) -> Array | None:
    """What a call gives, after a look at what it says; None where it refuses."""
    if change in ("missing", "renamed"):
        with pytest.raises(BadInput, match=SAID[change]) as refusal:
            call()
        assert "\n" not in str(refusal.value)
        return None
    if change == "further":
        with pytest.warns(IPS2Warning, match=SAID[change]):
            return call()
    return call()


def turned(containers: Iterable[str]) -> pytest.MarkDecorator:
    """Each container with one change in turn by default, with all of them in slow tests."""
    cases = []
    for number, container in enumerate(containers):
        for place, change in enumerate(CHANGES):
            marks = () if number % len(CHANGES) == place else (pytest.mark.slow,)
            cases.append(pytest.param(container, change, marks=marks))
    return pytest.mark.parametrize(("container", "change"), cases)


@turned(CONTAINERS)
def test_a_run_matches_new_samples_by_name(container: str, change: str, place: Path, tmp_path: Path) -> None:
    found, new = open_run(place), CONTAINERS[container](CHANGES[change](table()), tmp_path)
    labels = told(change, lambda: found.predict(new))
    if labels is not None:
        np.testing.assert_array_equal(labels, found.labels)


@turned(OBJECTS)
def test_an_estimator_matches_new_samples_by_name(
    container: str, change: str, fitted: IPS2, place: Path, tmp_path: Path
) -> None:
    """Of a pandas frame scikit-learn demands the order of the fit, in its own words."""
    new = CONTAINERS[container](CHANGES[change](table()), tmp_path)
    if not container.startswith("pandas") or change == "same":
        labels = told(change, lambda: fitted.predict(new))
        if labels is not None:
            np.testing.assert_array_equal(labels, fitted.labels_)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IPS2Warning)
        with pytest.raises(ValueError, match=r"in the same order|now missing:\n- height"):
            fitted.predict(new)
    in_order = table().assign(more="text").iloc[:, [4, 0, 1, 2, 3]]
    with pytest.warns(IPS2Warning, match=SAID["further"]):
        np.testing.assert_array_equal(fitted.predict(in_order), fitted.labels_)


@turned(FILES)
def test_the_command_line_matches_new_samples_by_name(
    container: str, change: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new, out = FILES[container](CHANGES[change](table()), tmp_path), tmp_path / "labels.npy"
    refused = change in ("missing", "renamed")
    assert main(["predict", str(place), str(new), "--out", str(out), "--quiet"]) == (2 if refused else 0)
    said = capsys.readouterr().err
    assert said.count("\n") == (change in SAID)
    assert re.match(f"ips2: .*{SAID[change]}" if change in SAID else "$", said)
    if refused:
        assert not out.exists()
    else:
        np.testing.assert_array_equal(np.load(out), open_run(place).labels)


@pytest.mark.parametrize("label", ["kind", 0, -1])
@pytest.mark.parametrize("kind", ["csv", "parquet", "pandas"])
def test_the_training_table_predicts_with_its_labels_in_it(kind: str, label: str | int, tmp_path: Path) -> None:
    columns = ["kind", *NAMES] if label == 0 else [*NAMES, "kind"]
    training = CONTAINERS[kind](table().assign(kind=["a", "b"] * 30)[columns], tmp_path)
    by_command = kind != "pandas" and label == "kind"
    found = run(training, PARAMS, store=tmp_path / "run" if by_command else None, labels_column=label)
    assert found.feature_names is not None
    assert found.feature_names.tolist() == NAMES
    with pytest.warns(IPS2Warning, match="the column 'kind' is no feature of the run, and left out"):
        np.testing.assert_array_equal(found.predict(training), found.labels)
    np.testing.assert_array_equal(found.predict(table()), found.labels)
    np.testing.assert_array_equal(found.predict(table().to_numpy()), found.labels)
    if by_command:
        given = ["predict", str(tmp_path / "run"), str(training), "--out", str(tmp_path / "labels.npy"), "--quiet"]
        for more in ([], ["--labels-column", "kind"]):
            assert main([*given, *more]) == 0
            np.testing.assert_array_equal(np.load(tmp_path / "labels.npy"), found.labels)


@pytest.mark.parametrize("label", [0, 2, -1])
def test_the_training_table_predicts_with_its_labels_in_it_where_nothing_has_a_name(label: int, tmp_path: Path) -> None:
    X = np.insert(table().to_numpy(), label if label >= 0 else 4, np.arange(60) % 2, axis=1)
    np.savetxt(tmp_path / "x.csv", X, delimiter=",")
    for training in (X, tmp_path / "x.csv"):
        found = run(training, PARAMS, labels_column=label)
        assert found.feature_names is None
        with pytest.warns(IPS2Warning, match=f"the column {label % 5}, where the run's input has the labels,"):
            np.testing.assert_array_equal(found.predict(training), found.labels)
        np.testing.assert_array_equal(found.predict(table()), found.labels)
        with pytest.raises(BadInput, match="found 3 features, allowed is the 4 features of the run, or these and the"):
            found.predict(X[:, :3])


@pytest.mark.parametrize(
    ("training", "new"),
    [(list("abcd"), None), (None, list("abcd")), (None, None), ([0, 1, 2, 3], list("abcd")), (list("abcd"), range(4))],
)
def test_without_names_on_either_side_columns_go_by_position(training: Any, new: Any) -> None:
    X = table().to_numpy()
    first, second = (X if names is None else pd.DataFrame(X, columns=names) for names in (training, new))
    found = run(first, PARAMS)
    np.testing.assert_array_equal(found.predict(second), found.labels)
    with pytest.raises(BadInput, match="found 3 features"):
        found.predict(X[:, 1:])


@pytest.mark.parametrize(
    "names", [range(4), [2001, 2002, 2003, 2004], pd.MultiIndex.from_product([["a", "b"], [1, 2]]), [0.5, 1.0, 1.5, 2]]
)
def test_names_that_are_no_text_are_matched_too(names: Any, tmp_path: Path) -> None:
    frame = table().set_axis(names, axis=1)
    found, fit = run(frame, PARAMS), IPS2(3).fit(frame)
    assert not hasattr(fit, "feature_names_in_")
    for new in (frame, frame.iloc[:, ::-1], frame.iloc[:, [2, 0, 3, 1]]):
        np.testing.assert_array_equal(found.predict(new), found.labels)
        if not isinstance(names, range):
            np.testing.assert_array_equal(fit.predict(new), found.labels)
        if isinstance(names, list):
            new.to_csv(tmp_path / "new.csv", index=False)
            np.testing.assert_array_equal(found.predict(tmp_path / "new.csv"), found.labels)


REPEATED = ["a", "b", "a", "c"]


@pytest.mark.parametrize("kind", ["csv", "pandas", "anndata"])
@pytest.mark.filterwarnings("ignore:Variable names are not unique")
def test_repeated_names_have_to_be_in_the_runs_order(kind: str, tmp_path: Path) -> None:
    frame = table().set_axis(REPEATED, axis=1)
    found = run(CONTAINERS[kind](frame, tmp_path), PARAMS)
    np.testing.assert_array_equal(found.predict(CONTAINERS[kind](frame, tmp_path)), found.labels)
    np.testing.assert_array_equal(found.predict(frame.to_numpy()), found.labels)
    for new in (frame.iloc[:, ::-1], frame.assign(d=1.0)):
        with pytest.raises(BadInput, match="several columns named 'a', and other columns than the run's, or another"):
            found.predict(CONTAINERS[kind](new, tmp_path))
    plain = run(table().set_axis(list("abcd"), axis=1), PARAMS)
    with pytest.raises(BadInput, match="several columns named 'a'"):
        plain.predict(CONTAINERS[kind](table().assign(e=1.0).set_axis(list("abcda"), axis=1), tmp_path))
    twice = table().assign(y=1.0, z=1.0).set_axis([*"dcba", "z", "z"], axis=1)
    with pytest.warns(IPS2Warning, match="2 columns are no features of the run, and left out: 'z', 'z'"):
        plain.predict(CONTAINERS[kind](twice, tmp_path))


def test_repeated_names_beside_labels_predict_the_training_file(tmp_path: Path) -> None:
    path = _text(table().assign(kind=["x", "y"] * 30).set_axis([*REPEATED, "kind"], axis=1), tmp_path, "csv")
    found = run(path, PARAMS, labels_column="kind")
    with pytest.warns(IPS2Warning, match="'kind'"):
        np.testing.assert_array_equal(found.predict(path), found.labels)


def test_a_feature_that_is_given_as_labels_is_missing(place: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no column 'height' \(it is given as labels_column \(--labels-column\)\)"):
        open_run(place).open_new(CONTAINERS["csv"](table().round(), tmp_path), labels_column="height")


def test_text_in_further_columns_is_not_read(place: Path, tmp_path: Path) -> None:
    found, new = open_run(place), table().assign(note="text", gap=np.nan)
    for kind in ("csv", "parquet", "pandas"):
        with pytest.warns(IPS2Warning, match="2 columns are no features of the run, and left out: 'note', 'gap'"):
            np.testing.assert_array_equal(found.predict(CONTAINERS[kind](new, tmp_path)), found.labels)


def test_names_of_rows_are_those_of_features_in_a_transposed_table(place: Path, tmp_path: Path) -> None:
    found, turned = open_run(place), table()[["9", "hue/od", "mass", "height"]].T
    turned.to_csv(tmp_path / "new.csv", index_label="")
    for new in (turned, tmp_path / "new.csv"):
        np.testing.assert_array_equal(found.predict(found.open_new(new, transpose=True)), found.labels)
    with pytest.raises(BadInput, match="no column 'mass'"):
        found.open_new(turned.drop(index="mass"), transpose=True)


@pytest.mark.parametrize("features", [Features(missing="median"), Features(columns=["hue/od", "mass", "9"])])
def test_chosen_columns_and_medians_are_matched_in_the_same_way(features: Features, tmp_path: Path) -> None:
    training = table()
    training.iloc[::7, 0] = np.nan if features.missing == "median" else 0
    found = run(training, PARAMS, features=features)
    new = training.iloc[:, ::-1].assign(more=0.0)
    for kind in ("csv", "parquet", "pandas"):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            np.testing.assert_array_equal(found.predict(CONTAINERS[kind](new, tmp_path)), found.labels)
        told = [one for one in said if "the column 'more' is no feature" in str(one.message)]
        assert len(told) == len(said) == (0 if features.columns else 1)


def test_names_compute_nothing_again_and_a_run_without_them_goes_by_position(tmp_path: Path) -> None:
    X = table().to_numpy()
    assert run(X, PARAMS, store=tmp_path / "run").feature_names is None
    found = open_run(tmp_path / "run")
    np.testing.assert_array_equal(found.predict(table().set_axis(list("abcd"), axis=1)), found.labels)
    for names in (NAMES, list("dcba")):
        again = run(pd.DataFrame(X, columns=names), PARAMS, store=tmp_path / "run")
        assert {stage["state"] for stage in again.manifest["stages"]} == {"reused"}
        found = open_run(tmp_path / "run")
        assert found.feature_names is not None
        assert found.feature_names.tolist() == names
        np.testing.assert_array_equal(found.predict(pd.DataFrame(X, columns=names).iloc[:, ::-1]), found.labels)


def test_a_source_is_matched_as_what_it_was_opened_from(place: Path) -> None:
    found = open_run(place)
    np.testing.assert_array_equal(found.predict(open_source(table().iloc[:, ::-1])), found.labels)
    with pytest.raises(BadInput, match="no column 'mass'"):
        found.predict(open_source(table().rename(columns={"mass": "weight"})))
    chosen = run(table(), PARAMS, features=Features(columns=["9", "mass"]))
    for new in (table()[["mass", "9"]], table()[["9", "mass"]], table()):
        np.testing.assert_array_equal(chosen.predict(open_source(new)), chosen.labels)
    made = open_source(table(), features=Features(columns=["9", "mass"]))
    np.testing.assert_array_equal(chosen.predict(made), chosen.labels)


def test_tasks_take_no_names_of_a_wide_table(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    f = 1_000
    X = sp.random_array((40, f), density=0.01, rng=rng, format="csr")
    names = [f"gene {i}" for i in range(f)]
    order = rng.permutation(f)
    found = run(_annotated(pd.DataFrame(index=list(map(str, range(40))), columns=names), X), Params(n_clusters=2))
    turned = _annotated(pd.DataFrame(index=list(map(str, range(40))), columns=np.array(names)[order]), X[:, order])
    np.testing.assert_array_equal(found.predict(turned), found.labels)
    monkeypatch.setattr("ips2_dask.runs.predict.MOST_NAMES", 999)
    source = found.open_new(turned)
    held = len(pickle.dumps(source)) - X.data.nbytes - X.indices.nbytes
    assert held < 8 * f + 4_000  # the place of each column
    np.testing.assert_array_equal(found.predict(source), found.labels)


@pytest.mark.slow
def test_workers_match_names_too(
    place: Path, tmp_path: Path, dask_executor: DaskExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = open_run(place)
    monkeypatch.setattr(predict, "partition_bounds", lambda n, f: (*range(0, n, 20), n))
    for kind in ("csv", "parquet", "h5ad, sparse", "pandas", "anndata, sparse"):
        new = CONTAINERS[kind](table()[["9", "mass", "hue/od", "height"]], tmp_path)
        np.testing.assert_array_equal(found.predict(new, client=dask_executor.client), found.labels)


def test_an_anndata_gives_the_estimator_its_names(fitted: IPS2) -> None:
    found = IPS2(3).fit(_annotated(table()))
    assert found.feature_names_in_.tolist() == NAMES
    assert found.feature_names_in_.dtype == object
    np.testing.assert_array_equal(found.predict(table()), fitted.labels_)
    with pytest.warns(UserWarning, match="X does not have valid feature names, but IPS2 was fitted with"):
        np.testing.assert_array_equal(found.predict(table().to_numpy()), fitted.labels_)
    assert not hasattr(found.fit(anndata.AnnData(table().to_numpy())), "feature_names_in_")
