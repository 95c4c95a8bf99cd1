"""Results of a run in chunks, by partition and bucket: the same as of whole arrays, and never read all at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from harness import run_in_chunks, slowly
from pyarrow import parquet

from ips2_dask import BadInput, Params, Resources, Run, open_run, run
from ips2_dask.cli.main import main
from ips2_dask.runs import layers
from ips2_dask.runs.maintenance import gc, verify
from ips2_dask.store.cache import clear_cache
from ips2_dask.store.zarr_store import ZarrStore

Array = npt.NDArray[Any]

M, C = 330, 4
PARTITION, BUCKET = 40, 64


def groups(m: int = M, seed: int = 21) -> Array:
    """Four groups that touch, in mixed order: (m, 3)."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(m, 3)) + 4.0 * rng.integers(0, C, size=(m, 1)) * np.array([1.0, -1.0, 0.5])


def with_equal_and_incomplete_rows() -> Array:
    """`groups`, of which rows 100 to 119 repeat the first ones and rows 50 to 56 lack a value."""
    X = groups()
    X[100:120] = X[:20]
    X[50:57, 1] = np.nan
    return X


CASES: dict[str, dict[str, Any]] = {
    "exact": {},
    "shards": {"graph": "shards", "shards": 3},
    "density": {"assign_labels": "density"},
    "kmeans": {"assign_labels": "kmeans", "fusion": "normalized"},
    "incomplete": {"graph": "shards", "shards": 3},
}


@pytest.fixture(scope="module", params=slowly(CASES, "incomplete"))
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """A run in core, and the same in chunks with small buckets."""
    folder = tmp_path_factory.mktemp(request.param)
    X, features = groups(), None
    if request.param == "incomplete":
        from ips2_dask.readers.features import Features  # noqa: PLC0415  this case alone

        X, features = with_equal_and_incomplete_rows(), Features(missing="drop")
    resources = Resources(partition_rows=PARTITION)
    params = Params(n_clusters=C, **CASES[request.param])
    run(X, params, resources, store=folder / "whole", features=features)
    chunks = run_in_chunks(X, params, folder / "chunks", PARTITION, BUCKET, features=features)
    return open_run(folder / "whole"), chunks


@pytest.mark.slow
def test_what_is_asked_for_whole_is_the_same(both: tuple[Run, Run]) -> None:
    whole, chunks = both
    for name in ("labels", "certainty", "left_out", "embedding"):
        expected, found = getattr(whole, name), getattr(chunks, name)
        assert (expected is None) == (found is None), name
        if expected is not None:
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected, err_msg=name)
    np.testing.assert_array_equal(chunks.shares(), whole.shares())
    assert chunks.n_rows == whole.n_rows == len(whole.labels)
    assert chunks.report()["roundings"] == whole.report()["roundings"]


@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.slow), 50, 64, 1000])
def test_blocks_of_rows_make_up_the_whole(both: tuple[Run, Run], rows: int) -> None:
    for found in both:
        blocks = list(found.iter_labels(rows))
        assert [block.first for block in blocks] == np.cumsum([0, *(len(b.labels) for b in blocks)])[:-1].tolist()
        assert max(len(block.labels) for block in blocks) <= rows
        np.testing.assert_array_equal(np.concatenate([block.labels for block in blocks]), found.labels)
        np.testing.assert_array_equal(np.concatenate([block.certainty for block in blocks]), found.certainty)
        if found.left_out is not None:
            np.testing.assert_array_equal(np.concatenate([block.left_out for block in blocks]), found.left_out)
        else:
            assert all(block.left_out is None for block in blocks)


def test_a_block_has_at_least_a_row(both: tuple[Run, Run]) -> None:
    with pytest.raises(BadInput, match="rows: found 0"):
        next(both[1].iter_labels(0))


def test_predictions_are_the_same(both: tuple[Run, Run]) -> None:
    """Of new samples, and of the training samples themselves, some of which lack a value."""
    whole, chunks = both
    new = groups(200, 5)
    if whole.manifest["input"].get("fitted_features"):
        new = np.concatenate([new, with_equal_and_incomplete_rows()])
    else:
        new = np.concatenate([new, groups()])
    np.testing.assert_array_equal(chunks.predict(new), whole.predict(new))
    np.testing.assert_array_equal(chunks.predict_proba(new), whole.predict_proba(new))
    np.testing.assert_array_equal(chunks.transform(new), whole.transform(new))


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".h5ad"])
def test_exported_files_are_the_same(both: tuple[Run, Run], ending: str, tmp_path: Path) -> None:
    whole, chunks = (found.write_labels(tmp_path / f"{number}{ending}") for number, found in enumerate(both))
    if ending == ".parquet":  # a bucket is a group of rows
        tables = [parquet.read_table(path).to_pandas() for path in (chunks, whole)]
        pd.testing.assert_frame_equal(*tables)
    else:
        assert chunks.read_bytes() == whole.read_bytes()


def test_a_run_in_chunks_is_sound_and_has_no_garbage_but_what_was_replaced(both: tuple[Run, Run]) -> None:
    path = str(both[1].path)
    assert verify(path).faults == []
    assert gc(path, dry_run=True).garbage == ()


def test_cuts_are_the_same_and_too_large_ones_are_refused(
    both: tuple[Run, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    if both[0].params.assign_labels == "kmeans":
        for found in both:
            with pytest.raises(BadInput, match="without a tree of density"):
                found.cut(3)
        return
    n = next(n for n in range(2, 12) if _cut_or_none(both[0], n) is not None)
    np.testing.assert_array_equal(both[1].cut(n), both[0].cut(n))
    monkeypatch.setattr(layers, "MOST_SAMPLES", 100)
    with pytest.raises(BadInput, match=r"samples of a run in chunks.*at most 100"):
        both[1].cut(n)


def _cut_or_none(found: Run, n_clusters: int) -> Array | None:
    """The labels, or None where the tree has no cut into so many clusters."""
    try:
        return found.cut(n_clusters)
    except BadInput:
        return None


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], int]:
    """The most rows that a store read at once of each array of the later stages, by stage and name."""
    clear_cache()
    most: dict[tuple[str, str], int] = {}
    read = ZarrStore.read

    def note(folder: str, name: str, array: Array) -> Array:
        stage = folder.split("-")[0]
        most[stage, name] = max(most.get((stage, name), 0), len(array))
        return array

    monkeypatch.setattr(ZarrStore, "read", lambda self, f, p, n, *rows: note(f, n, read(self, f, p, n, *rows)))
    return most


def test_predictions_of_a_run_in_chunks_read_no_more_than_a_partition_at_once(
    both: tuple[Run, Run], rows_read: dict[tuple[str, str], int]
) -> None:
    open_run(str(both[1].path)).transform(groups(50, 6))
    label = {name: rows for (stage, name), rows in rows_read.items() if stage == "label"}
    assert {"pairwise_basis", "high_order_basis", "shares"} <= set(label)
    assert max(label.values()) <= PARTITION + PARTITION // 2  # a partition of a shard has at most half as many more


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_tables_of_labels_are_written_bucket_by_bucket(
    both: tuple[Run, Run], ending: str, rows_read: dict[tuple[str, str], int], tmp_path: Path
) -> None:
    open_run(str(both[1].path)).write_labels(tmp_path / f"labels{ending}")
    assert max(rows_read.values()) <= BUCKET
    assert ("label", "labels") in rows_read


def test_predictions_are_written_block_by_block(both: tuple[Run, Run], tmp_path: Path) -> None:
    np.save(tmp_path / "new.npy", new := groups(70, 7))
    out = tmp_path / "labels.npy"
    arguments = ["predict", str(both[1].path), str(tmp_path / "new.npy"), "--out", str(out), "--quiet"]
    assert main(arguments) == 0
    np.testing.assert_array_equal(np.load(out), both[0].predict(new))
