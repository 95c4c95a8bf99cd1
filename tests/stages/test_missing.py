"""Missing values: medians are NumPy's to the last bit, and rows that are left out leave no trace in the others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from harness import slowly
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from sklearn.datasets import make_blobs
from sklearn.impute import SimpleImputer
from test_bad_input import refused

from ips2_dask import BadInput, Features, Params, Resources, open_run, plots, report, run, sweep
from ips2_dask.cli.main import main
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.kernels import ingest
from ips2_dask.metrics import scores
from ips2_dask.runs import sample
from ips2_dask.store.zarr_store import ZarrStore

Array = NDArray[Any]
MEDIAN, DROP = Features(missing="median"), Features(missing="drop")
PARAMS = Params(n_clusters=3, scale="zscore")


def with_gaps(m: int = 120, seed: int = 0, share: float = 0.06) -> tuple[Array, Array]:
    """Three groups with gaps, in the first row too, and the groups."""
    X, y = make_blobs(m, 4, centers=3, random_state=seed)
    X[np.random.default_rng(seed).random(X.shape) < share] = np.nan
    X[0, 2] = np.nan
    return X, y


def complete(X: Array) -> Array:
    kept: Array = ~np.isnan(X).any(axis=1)
    return kept


def medians(X: Array, cuts: list[int]) -> Array:
    """Medians by counting over the parts of X."""
    search = ingest.Medians((~np.isnan(X)).sum(axis=0))
    for step in range(len(ingest.MEDIAN_SHIFTS)):
        parts = [ingest.digit_counts(part, search.prefixes, step) for part in np.split(X, cuts)]
        search.narrow(np.sum(parts, axis=0, dtype=np.int64), step)
    return search.values()


@given(
    X=arrays(
        np.float64, st.tuples(st.integers(1, 12), st.integers(1, 3)), elements=st.floats(-1e38, 1e38) | st.just(np.nan)
    ),
    cut=st.integers(0, 12),
)
def test_medians_are_those_of_numpy_wherever_rows_are_cut(X: Array, cut: int) -> None:
    X[0] = np.where(np.isnan(X[0]), -0.0, X[0])
    np.testing.assert_array_equal(medians(X, [min(cut, len(X))]), np.nanmedian(X, axis=0))


@pytest.mark.parametrize("seed", range(3))
def test_medians_of_ties_and_of_any_magnitude(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.integers(-2, 3, 501), rng.normal(size=501) * 10.0 ** rng.integers(-300, 300, 501)])
    X[rng.random(X.shape) < 0.3] = np.nan
    np.testing.assert_array_equal(medians(X, [100, 100, 371]), np.nanmedian(X, axis=0))


def test_numbers_come_back_from_their_order() -> None:
    X = np.sort(np.random.default_rng(0).normal(size=1000) * 10.0 ** np.arange(-500, 500).clip(-300, 300))
    keys = ingest._sortable_keys(X[:, None])[:, 0]
    assert (np.diff(keys.astype(object)) >= 0).all()
    np.testing.assert_array_equal(ingest._from_sortable_keys(keys), X)


@pytest.mark.parametrize("rows", [None, 17])
@pytest.mark.parametrize("scale", ["none", "zscore"])
def test_medians_take_the_place_of_gaps(rows: int | None, scale: str) -> None:
    X, _ = with_gaps()
    params = Params(n_clusters=3, scale=scale)
    imputer = SimpleImputer(strategy="median").fit(X)
    filled = imputer.transform(X)
    found, expected = run(X, params, Resources(partition_rows=rows), features=MEDIAN), run(filled, params)
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_array_equal(found.certainty, expected.certainty)
    assert found.report()["missing"] == {
        "rule": "median",
        "values": int(np.isnan(X).sum()),
        "rows": int((~complete(X)).sum()),
    }
    new, _ = with_gaps(40, seed=9, share=0.3)
    np.testing.assert_array_equal(found.predict_proba(new), expected.predict_proba(imputer.transform(new)))
    np.testing.assert_array_equal(found.predict(X), found.labels)


def test_medians_are_kept_for_columns_without_gaps_too() -> None:
    X, _ = with_gaps(share=0)
    X[0, 2] = 0.0
    found = run(X.astype(np.float32), PARAMS, features=MEDIAN)
    new = X[:5].copy()
    new[:, 1] = np.nan
    filled = np.where(np.isnan(new), np.median(X.astype(np.float32).astype(float), axis=0), new)
    np.testing.assert_array_equal(found.predict_proba(new), found.predict_proba(filled))
    whole = run(np.rint(X).astype(np.int64), PARAMS, features=MEDIAN)
    np.testing.assert_array_equal(whole.labels, run(np.rint(X).astype(np.int64), PARAMS).labels)


@pytest.mark.parametrize("features", [MEDIAN, DROP], ids=["median", "drop"])
def test_gaps_of_single_precision_are_taken(features: Features) -> None:
    X = with_gaps()[0].astype(np.float32)
    found, double = (run(values, PARAMS, features=features) for values in (X, X.astype(np.float64)))
    np.testing.assert_array_equal(found.labels, double.labels)


DROPPED: list[tuple[dict[str, Any], int | None]] = [
    ({}, None),
    ({}, 17),
    ({"duplicates": "merge"}, 17),
    ({"metric": "cosine"}, 31),
    ({"metric": "correlation", "scale": "zscore"}, 31),
    ({"affinity": "gaussian"}, None),
    ({"embedding": "none", "assign_labels": "kmeans"}, None),
]


@pytest.mark.parametrize(("more", "rows"), DROPPED)
def test_rows_that_are_left_out_leave_no_trace_in_the_others(more: dict[str, Any], rows: int | None) -> None:
    X, y = with_gaps()
    X = np.concatenate([X, X[20:60]])
    params, kept = Params(n_clusters=3, **more), complete(X)
    found = run(
        np.column_stack([X, np.append(y, y[20:60])]),
        params,
        Resources(partition_rows=rows),
        features=DROP,
        labels_column=4,
    )
    alone = run(X[kept], params, Resources(partition_rows=rows))
    assert found.labels.shape == (160,)
    assert (found.labels[~kept] == -1).all()
    np.testing.assert_array_equal(found.labels[kept], alone.labels)
    for name in ("certainty", "embedding"):
        mine, other = getattr(found, name), getattr(alone, name)
        if other is not None:
            np.testing.assert_array_equal(mine[kept], other)
            assert np.isnan(mine[~kept]).all()
    np.testing.assert_array_equal(found.shares()[kept], alone.shares())
    np.testing.assert_array_equal(found.distinct, np.flatnonzero(kept)[alone.distinct])
    np.testing.assert_array_equal(found.first_rows[kept], np.flatnonzero(kept)[alone.first_rows])
    U, other = (
        np.asarray(one.todense() if hasattr(one, "todense") else one)
        for one in (found.similarity(), alone.similarity())
    )
    np.testing.assert_array_equal(U[kept][:, kept], other)
    assert not U[~kept].any()
    assert not U[:, ~kept].any()
    np.testing.assert_array_equal(found.neighbors.distances[kept], alone.neighbors.distances)
    assert (found.neighbors.indices[~kept] == -1).all()
    assert found.report()["dropped"] == (~kept).sum()
    shown = sample.shown(found)
    np.testing.assert_array_equal(shown.labels, alone.labels)
    np.testing.assert_array_equal(shown.rows, np.flatnonzero(kept))
    assert shown.known_labels is not None
    assert shown.known_labels.tolist() == np.append(y, y[20:60])[kept].tolist()
    if more.get("embedding") != "none":
        np.testing.assert_array_equal(found.predict(X), found.labels)
        np.testing.assert_array_equal(found.predict_proba(X)[kept], alone.predict_proba(X[kept]))
        np.testing.assert_array_equal(found.predict(X[~kept]), np.full((~kept).sum(), -1))


@pytest.mark.slow
def test_workers_find_the_same_in_any_partitions(dask_executor: DaskExecutor, tmp_path: Path) -> None:
    X, _ = with_gaps()
    table = pd.DataFrame(X, columns=list("abcd")).assign(kind=np.array(["u", "v", None])[np.arange(120) % 3])
    table.to_csv(tmp_path / "x.csv", index=False)
    for missing in ("median", "drop"):
        features = Features(one_hot="kind", missing=missing)
        found = run(
            tmp_path / "x.csv", PARAMS, Resources(partition_rows=23), client=dask_executor.client, features=features
        )
        serial = run(table, PARAMS, features=features)
        np.testing.assert_array_equal(found.labels, serial.labels)
        np.testing.assert_array_equal(found.certainty, serial.certainty)
        np.testing.assert_array_equal(found.predict(tmp_path / "x.csv"), serial.predict(table))
        np.testing.assert_array_equal((found.labels < 0), (missing == "drop") & table.isna().any(axis=1))
        assert found.features is not None
        kind = ["kind_u", "kind_v", *(["kind_nan"] if missing == "median" else [])]
        assert found.features.feature_names == ["a", "b", "c", "d", *kind]


@pytest.mark.parametrize("word", slowly(["", "?", "NA", "nan", "NULL", "#N/A", " "], "", "?"))
@pytest.mark.parametrize("kind", ["frame", "csv", "parquet"])
def test_what_counts_as_missing_does_so_in_every_format(word: str, kind: str, tmp_path: Path) -> None:
    lines = ["a,b,kind", *(f"{i % 7},{i * i % 11},{'uv'[i % 2]}" for i in range(20)), f"{word},1,u", f"2,3,{word}"]
    (tmp_path / "x.csv").write_text("\n".join(lines) + "\n")
    source: Any = tmp_path / "x.csv"
    if kind != "csv":
        source = pd.read_csv(source, na_values=["?", " "])
    if kind == "parquet":
        source.to_parquet(tmp_path / "x.parquet")
        source = tmp_path / "x.parquet"
    with pytest.raises(BadInput, match=r"row (20|21)"):
        run(source, Params(n_clusters=2), features=Features(one_hot="kind"))
    found = run(source, Params(n_clusters=2), features=Features(one_hot="kind", missing="drop"))
    assert np.flatnonzero(found.labels < 0).tolist() == [20, 21]
    found = run(source, Params(n_clusters=2), features=Features(one_hot="kind", missing="median"))
    assert found.labels.min() == 0
    assert found.report()["missing"]["values"] == 1  # that of the column of categories is one of these
    assert found.report()["f"] == 5


def test_infinite_values_columns_without_values_and_too_few_rows_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    X, _ = with_gaps(40)
    infinite = X.copy()
    infinite[7, 1] = np.inf
    for features in (MEDIAN, DROP):
        with pytest.raises(BadInput, match=r"inf at row 7, column 1"):
            run(infinite, PARAMS, features=features)
    with pytest.raises(BadInput, match="no value in column 1"):
        run(np.column_stack([np.ones(9), np.full(9, np.nan)]), PARAMS, features=MEDIAN)
    with pytest.raises(BadInput, match=r"a missing value in every row"):
        run(np.column_stack([np.ones(9), np.full(9, np.nan)]), PARAMS, features=DROP)
    few = np.where(np.arange(9)[:, None] < 7, np.nan, np.random.default_rng(0).normal(size=(9, 3)))
    with pytest.raises(BadInput, match=r"n_clusters: found 3 with 2 samples"):
        run(few, PARAMS, features=DROP)
    for beside in ("knn_graph", "similarity"):
        params = Params(n_clusters=3, affinity="precomputed" if beside == "similarity" else "heat-knn")
        with pytest.raises(BadInput, match=f"{beside}.*missing='drop'"):
            run(X, params, features=DROP, **{beside: np.ones((40, 40))})  # type: ignore[arg-type]
    np.savetxt(tmp_path / "x.csv", infinite, delimiter=",")
    for missing in ("median", "drop"):
        words = ["run", str(tmp_path / "x.csv"), "--out", str(tmp_path / "run"), "--serial", "--missing", missing]
        assert "the value 'inf' at row 7 (line 8), column 1" in refused(words, capsys)
        assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_is_gone_on_with_and_lost_parts_are_made_again(tmp_path: Path) -> None:
    X, _ = with_gaps()
    for features in (MEDIAN, DROP):
        out, resources = tmp_path / features.missing, Resources(partition_rows=23)
        first = run(X, PARAMS, resources, store=out, features=features)
        again = run(X, PARAMS, resources, store=out, features=features)
        assert {stage["state"] for stage in again.manifest["stages"]} == {"reused"}
        store, folder = ZarrStore(str(out)), again.manifest["stages"][0]["folder"]
        kept = sorted(store.parts(folder, cached=True))
        assert not [part for part in kept if part.startswith(("raw-", "counts"))]
        for part in ("whole", *(kept[-1:])):
            store.drop(folder, part)
        mended = run(X, PARAMS, resources, store=out, features=features)
        assert mended.manifest["stages"][0]["state"] == "computed again"
        assert {stage["state"] for stage in mended.manifest["stages"][1:]} == {"reused"}
        np.testing.assert_array_equal(mended.labels, first.labels)


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["median", "drop"])
def test_a_run_that_is_killed_in_its_ingest_goes_on(missing: str, tmp_path: Path) -> None:
    X, _ = with_gaps(2000)
    np.save(tmp_path / "x.npy", X)
    words = ["run", str(tmp_path / "x.npy"), "--out", str(tmp_path / "run"), "--clusters", "3", "--missing", missing]
    words += ["--partition-rows", "200", "--serial", "--quiet"]
    with subprocess.Popen([sys.executable, "-m", "ips2_dask.cli", *words]) as process:
        while process.poll() is None and not list((tmp_path / "run").rglob("gaps-p000003*")):
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["finished"] is None
    assert main(words) == 0
    found = open_run(tmp_path / "run")
    expected = run(X, Params(n_clusters=3), Resources(partition_rows=200), features=Features(missing=missing))
    np.testing.assert_array_equal(found.labels, expected.labels)


@pytest.mark.slow
def test_the_command_exports_scores_and_reports_of_kept_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    X, y = with_gaps()
    kept = complete(X)
    table = pd.DataFrame(X, columns=list("abcd")).assign(known=y)
    table.to_csv(tmp_path / "x.csv", index=False)
    words = ["run", str(tmp_path / "x.csv"), "--out", str(tmp_path / "run"), "--clusters", "3", "--serial"]
    assert main([*words, "--missing", "drop", "--labels-column", "known", "--json"]) == 0
    said, found = capsys.readouterr().out, open_run(tmp_path / "run")
    dropped = int((~kept).sum())
    assert f"{dropped} rows left out for missing values" in said
    summary = json.loads(said.strip().splitlines()[-1])
    assert summary["dropped"] == dropped
    assert summary["acc"] == scores(y[kept], found.labels[kept])["acc"]
    assert main(["export", str(tmp_path / "run"), "--to", str(tmp_path / "labels.csv")]) == 0
    labels = pd.read_csv(tmp_path / "labels.csv")
    assert labels["cluster"].tolist() == found.labels.tolist()
    assert labels["certainty"].isna().tolist() == (~kept).tolist()
    for ending in ("parquet", "h5ad"):
        assert found.write_labels(tmp_path / f"labels.{ending}").is_file()
    new = ["predict", str(tmp_path / "run"), str(tmp_path / "x.csv"), "--out", str(tmp_path / "new.csv")]
    assert main([*new, "--labels-column", "known", "--proba", "--embedding"]) == 0
    assert f"{dropped} rows with a missing value: label -1" in capsys.readouterr().out
    predicted = pd.read_csv(tmp_path / "new.csv")
    assert predicted["label"].tolist() == found.labels.tolist()
    page = Path(report(found, tmp_path / "report.html")).read_text(encoding="utf-8")
    alone = run(table[kept], Params(n_clusters=3), labels_column="known")
    least = int(np.flatnonzero(kept)[np.argmin(alone.certainty)])
    assert f"{least:,}" in page
    import matplotlib  # noqa: PLC0415  pictures alone need it

    matplotlib.use("agg")
    for draw in (plots.embedding, plots.cluster_sizes, plots.silhouettes):
        draw(found)


@pytest.mark.slow
def test_a_sweep_judges_the_rows_that_are_kept(tmp_path: Path) -> None:
    X, _ = with_gaps()
    found = sweep(X, {"n_clusters": [2, 3]}, store=tmp_path / "gaps", features=DROP, files=False)
    alone = sweep(X[complete(X)], {"n_clusters": [2, 3]}, store=tmp_path / "kept", files=False)
    assert [point.criteria for point in found.points] == [point.criteria for point in alone.points]
