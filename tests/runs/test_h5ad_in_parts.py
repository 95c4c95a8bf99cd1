"""An .h5ad of a run is written by ranges of rows: the same as from whole arrays, and none of those is in memory."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gathers
import h5py
import numpy as np
import numpy.typing as npt
import pytest
from scipy import sparse

from ips2_dask import Features, Params, Resources, Run, open_run, run
from ips2_dask.runs import h5ad, label_results
from ips2_dask.stages import label
from ips2_dask.store.cache import clear_cache
from ips2_dask.store.files import RowFiles

Array = npt.NDArray[Any]

PARTITION, RANGE = 50, 64


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(h5ad, "RANGE_ROWS", RANGE)
    monkeypatch.setattr(h5ad, "BLOCK_ROWS", 90)
    monkeypatch.setattr(label_results, "BLOCK_ROWS", 90)


def groups(m: int) -> Array:
    """Three groups that touch, in mixed order: (m, 3)."""
    rng = np.random.default_rng(8)
    return rng.normal(size=(m, 3)) + 4.0 * rng.integers(0, 3, size=(m, 1)) * np.array([1.0, -1.0, 0.5])


def repeated(m: int) -> Array:
    """`groups`, of which many rows are equal to earlier and later ones, and seven lack a value."""
    X = groups(m)
    X[::9] = X[5]
    X[m - 60 : m - 30] = X[40:70]
    X[100:107, 1] = np.nan
    return X


def expected(found: Run) -> tuple[Array | None, sparse.csr_array]:
    """Embedding and U of all rows, from whole arrays; equal rows have their entries at the first of them."""
    U, m = found.similarity("fused", distinct=True), found.n_rows
    if len(found.distinct) < m:
        entries = sparse.coo_array(U)
        at = tuple(found.distinct[end] for end in entries.coords)
        return found.embedding, sparse.csr_array((entries.data, at), shape=(m, m))
    return found.embedding, sparse.csr_array(U)


def check(found: Run, path: Path) -> None:
    """Assert that a file has the embedding and U of a run, value by value and of the same types."""
    anndata = pytest.importorskip("anndata")
    embedding, U = expected(found)
    found.write_labels(path)
    with h5py.File(path) as file:
        if embedding is None:
            assert "X_ips2" not in file["obsm"]
        else:
            assert file["obsm/X_ips2"].dtype == embedding.dtype
            np.testing.assert_array_equal(file["obsm/X_ips2"][...], embedding)
        for part in ("data", "indices", "indptr"):
            stored, wanted = file["obsp/ips2_connectivities"][part], getattr(U, part)
            assert stored.dtype == wanted.dtype
            np.testing.assert_array_equal(stored[...], wanted)
    adata = anndata.read_h5ad(path)
    near, D = found.neighbors, adata.obsp["ips2_distances"]
    there = near.indices[:, 1:] >= 0
    np.testing.assert_array_equal(np.diff(D.indptr), there.sum(axis=1))
    np.testing.assert_array_equal(D.indices, near.indices[:, 1:][there])
    np.testing.assert_array_equal(D.data, near.distances[:, 1:][there])
    assert abs(adata.obsp["ips2_connectivities"] - U).max() == 0
    np.testing.assert_array_equal(adata.obs["ips2"].cat.codes, found.labels)
    assert [p for p in path.parent.iterdir() if p.name.startswith(".")] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "vectors"),
    [
        ({"shards": 4}, "chunked"),
        ({"shards": 4, "duplicates": "merge"}, "chunked"),
        ({"shards": 4, "duplicates": "merge"}, "in-core"),
        ({"embedding": "none"}, "in-core"),
        ({"affinity": "gaussian", "duplicates": "merge"}, "in-core"),
    ],
)
def test_embedding_and_similarity_are_those_of_whole_arrays(
    changes: dict[str, Any], vectors: Any, tmp_path: Path
) -> None:
    X, merges = (repeated(250), True) if changes.get("duplicates") == "merge" else (groups(250), False)
    found = run(
        X,
        Params(n_clusters=3, **changes),
        Resources(partition_rows=PARTITION, vectors=vectors),
        features=Features(missing="drop") if merges else None,
        store=tmp_path / "run",
    )
    (tmp_path / "files").mkdir()
    check(found, tmp_path / "files" / "x.h5ad")


def test_a_sparse_similarity_in_one_process_is_written_by_ranges_too(tmp_path: Path) -> None:
    check(run(groups(200), Params(n_clusters=3), Resources(partition_rows=PARTITION)), tmp_path / "x.h5ad")


@pytest.mark.slow
def test_no_array_of_an_export_grows_with_the_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    monkeypatch.setattr(label, "BUCKET_ROWS", 90)
    for m in (300, 600):
        found = run(
            repeated(m),
            Params(n_clusters=3, shards=m // 100, duplicates="merge"),
            Resources(partition_rows=PARTITION, vectors="chunked"),
            features=Features(missing="drop"),
            store=tmp_path / str(m),
        )
        clear_cache()
        recorder = gathers.Recorder()
        with gathers.recording(recorder):
            open_run(str(found.path)).write_labels(tmp_path / f"{m}.h5ad")
        sizes.append(recorder.sizes)
    small, large = sizes
    assert {"read label/embedding-p#/embedding", "read fuse/fused-p#/fused"} <= {entry.what for entry in large}
    assert [str(entry) for entry, size in large.items() if gathers.grows(small.get(entry), size, 300)] == []


@pytest.mark.parametrize("reserves", [True, False])
def test_a_file_has_all_its_bytes_before_rows_are_written_to_its_memory_map(
    reserves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not reserves:
        monkeypatch.delattr(os, "posix_fallocate")  # as on macOS
    monkeypatch.setattr(h5ad, "RANGE_ROWS", 1 << 18)
    path, m, taken = tmp_path / "rows", 300_000, []
    numbers = np.arange(2 * m).reshape(2, m)
    context = SimpleNamespace(n_partitions=2, m=2 * m, n_rows=2 * m, merged=False, distinct_numbers=numbers.__getitem__)

    def of_partition(b: int) -> Array:
        taken.append(path.stat().st_blocks * 512 if b else 0)
        return numbers[b][:, None].astype(np.float64)

    found: Any = SimpleNamespace(_context=context)
    blocks = [block for _, block in h5ad._row_blocks(found, path, of_partition, np.nan)]
    assert taken[1] >= path.stat().st_size == 2 * m * 8
    np.testing.assert_array_equal(np.concatenate(blocks)[:, 0], np.arange(2 * m))


def test_a_full_disk_is_an_error_of_the_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    context = SimpleNamespace(n_partitions=1, m=4, n_rows=4, merged=False, distinct_numbers=lambda b: np.arange(4))
    found: Any = SimpleNamespace(_context=context)
    with pytest.raises(OSError, match="No space left"):
        next(h5ad._row_blocks(found, tmp_path / "rows", lambda b: np.ones((4, 2)), np.nan))


def test_records_come_back_range_by_range(tmp_path: Path) -> None:
    kind = np.dtype([("row", np.int32), ("value", np.float64)])
    files = RowFiles(tmp_path / "rows", kind, 10)
    rng = np.random.default_rng(0)
    records = np.zeros(500, kind)
    records["row"], records["value"] = rng.choice([*range(20), *range(30, 47)], 500), np.arange(500)
    for low in range(0, 500, 120):
        files.add(records[low : low + 120])
    assert files.count == 500
    for low in range(0, 60, 10):
        inside = (records["row"] >= low) & (records["row"] < low + 10)
        np.testing.assert_array_equal(files.take(low), records[inside])
    assert list((tmp_path / "rows").iterdir()) == []
