"""Runs and inputs behind URLs, on fsspec's store in memory: object stores take the same code to their servers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import fsspec
import numpy as np
import numpy.typing as npt
import pytest
import zarr
from fsspec.implementations.memory import MemoryFileSystem
from zarr.storage import FsspecStore

from ips2_dask import BadInput, Params, Resources, open_run, run
from ips2_dask.errors import Damaged
from ips2_dask.readers import open_source
from ips2_dask.stages import chunks
from ips2_dask.store import lock, remote
from ips2_dask.store.zarr_store import ZarrStore

Array = npt.NDArray[Any]

SECRET = "onlyfortests"
PARAMS = Params(n_clusters=3)


@pytest.fixture(name="X")
def samples() -> Array:
    rng = np.random.default_rng(41)
    return rng.normal(size=(240, 4)) + 2.5 * rng.integers(0, 3, size=(240, 1))


@pytest.fixture(name="root")
def place() -> Iterator[str]:
    yield "memory://tests/place"
    system = fsspec.filesystem("memory")
    if system.exists("/tests"):
        system.rm("/tests", recursive=True)


def put_npy(url: str, X: Array) -> str:
    with fsspec.open(url, "wb") as stream:
        np.save(stream, X)
    return url


def test_a_run_behind_a_url_has_the_labels_of_one_in_memory(X: Array, root: str) -> None:
    found = run(X, PARAMS, Resources(partition_rows=50), store=f"{root}/run")
    np.testing.assert_array_equal(open_run(f"{root}/run").labels, run(X, PARAMS).labels)
    assert found.path == f"{root}/run"


@pytest.mark.slow
@pytest.mark.parametrize("assign", ["kmeans", pytest.param("density", marks=pytest.mark.slow)])
@pytest.mark.parametrize("vectors", ["in-core", pytest.param("chunked", marks=pytest.mark.slow)])
def test_a_partition_takes_the_same_number_of_requests_in_any_run(
    root: str, vectors: str, assign: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()  # requests go side by side, and appending is one step
    monkeypatch.setattr(lock, "HEARTBEAT", 3600.0)  # how many there are follows the clock
    monkeypatch.setattr(chunks.Checkpoints, "keep", lambda self, state: None)
    for verb in ("cat_file", "pipe_file", "info", "ls", "rm_file"):
        plain = getattr(MemoryFileSystem, verb)

        def counted(*arguments: Any, plain: Any = plain, verb: str = verb, **options: Any) -> Any:
            asked.append(verb)
            return plain(*arguments, **options)

        monkeypatch.setattr(MemoryFileSystem, verb, counted)
    totals = []
    X = np.random.default_rng(42).normal(size=(300, 4)) + 9.0 * (np.arange(300) % 3)[:, None]
    params = dataclasses.replace(PARAMS, assign_labels=assign)
    for parts in (4, 8, 12):
        asked.clear()
        found = run(X[: 25 * parts], params, Resources(partition_rows=25, vectors=vectors), store=f"{root}/{parts}")
        totals.append(len(asked))
        assert [one["rounding"] for one in found.report()["roundings"] if one["chosen"]] == [assign]
    more = np.diff(totals)  # what a partition reads of others follows how many are near it: here it is all of them
    assert more[1] < 1.5 * more[0]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("transpose", [False, True])
def test_an_array_file_is_read_by_ranges(X: Array, root: str, order: str, transpose: bool) -> None:
    url = put_npy(f"{root}/x.npy", np.asarray(X, order=order))  # type: ignore[call-overload]
    source = open_source(url, transpose=transpose)
    expected = X.T if transpose else X
    assert source.shape == expected.shape
    for span in ((0, 1), (1, 3), (len(expected) - 1, len(expected))):
        np.testing.assert_array_equal(source.read(*span), expected[slice(*span)])
    np.testing.assert_array_equal(np.concatenate(list(source.blocks(100))), expected)


def test_a_label_column_is_taken_out_of_an_array_file(X: Array, root: str) -> None:
    labelled = np.column_stack([X, np.arange(len(X)) % 3])
    source = open_source(put_npy(f"{root}/x.npy", labelled), labels_column=-1)
    np.testing.assert_array_equal(source.read(0, len(X)), X)
    np.testing.assert_array_equal(source.labels(), np.arange(len(X)) % 3)


def test_an_array_file_that_is_cut_off_is_refused(X: Array, root: str) -> None:
    url = put_npy(f"{root}/x.npy", X)
    with fsspec.open(url, "rb") as stream:
        content = stream.read()
    with fsspec.open(url, "wb") as stream:
        stream.write(content[:-8])
    with pytest.raises(BadInput, match="cut off"):
        open_source(url)


def test_a_file_without_the_header_of_an_array_is_refused(root: str) -> None:
    with fsspec.open(f"{root}/x.npy", "wb") as stream:
        stream.write(b"nothing of the kind")
    with pytest.raises(BadInput, match="bytes that can't be read"):
        open_source(f"{root}/x.npy")


@pytest.mark.parametrize("name", ["x.npy", "x.zarr"])
def test_a_url_with_nothing_behind_it_is_named(root: str, name: str) -> None:
    with pytest.raises(BadInput, match=name):
        open_source(f"{root}/{name}")


def test_a_format_that_is_not_read_from_afar_is_named(root: str) -> None:
    with pytest.raises(BadInput, match=r"a URL of a \.csv file"):
        open_source(f"{root}/x.csv")


@pytest.mark.parametrize(
    "url",
    [
        f"s3://key:{SECRET}@bucket/run",
        f"https://host/x.npy?X-Amz-Signature={SECRET}",
        f"simplecache::https://user:{SECRET}@host/x.zarr",
        f"https://host/x.zarr?sig={SECRET}::labels",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    for use in (open_source, open_run, lambda url: ZarrStore(url).create()):
        with pytest.raises(BadInput, match="a URL with") as caught:
            use(url)
        assert SECRET not in str(caught.value)


def test_a_url_may_say_which_version_is_meant() -> None:
    remote.check_url("s3://bucket/x.npy?versionId=abc")


def test_an_unknown_protocol_is_named() -> None:
    with pytest.raises(BadInput, match="nosuch"):
        open_source("nosuch://bucket/x.zarr")


def test_a_fresh_place_gives_back_metadata_without_asking(root: str) -> None:
    store = remote.open_zarr(f"{root}/fresh", kind=remote.FreshStore)
    group = zarr.create_group(store=store)
    group.create_array("x", data=np.arange(6.0), chunks=(4,))
    again = zarr.open_array(store=remote.open_zarr(f"{root}/fresh/x", read_only=True), mode="r")
    np.testing.assert_array_equal(again[...], np.arange(6.0))


FOLDER = "ingest-0123456789abcdef"


def test_an_array_is_read_by_requests_for_its_chunks_alone(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values, asked = np.arange(12.0, dtype=np.float32).reshape(6, 2), list[str]()
    ZarrStore(root).write(FOLDER, "p000000", {"samples": values}, {})
    get = FsspecStore.get

    async def counted(self: FsspecStore, key: str, *arguments: Any) -> Any:
        asked.append(key)
        return await get(self, key, *arguments)

    monkeypatch.setattr(FsspecStore, "get", counted)
    np.testing.assert_array_equal(ZarrStore(root).read(FOLDER, "p000000", "samples"), values)
    assert asked == ["c/0/0"]


def test_a_part_that_another_process_has_made_again_is_read_as_it_is_now(root: str) -> None:
    mine, other = ZarrStore(root), ZarrStore(root)
    for value in (1.0, 2.0):
        other.drop(FOLDER, "p000000")
        other.write(FOLDER, "p000000", {"center": np.full(3, value)}, {})
        np.testing.assert_array_equal(mine.read(FOLDER, "p000000", "center"), np.full(3, value))
    mine.drop(FOLDER, "p000000")
    assert mine.listed(FOLDER) == frozenset()
    with pytest.raises(Damaged):
        mine.read(FOLDER, "p000000", "center")


def test_a_receipt_says_the_stored_bytes_without_a_listing(root: str) -> None:
    store = ZarrStore(root)
    receipt = store.write(FOLDER, "p000000", {"samples": np.zeros((5, 3), np.float32)}, {})
    sizes = store.files.sizes(f"{FOLDER}/{receipt['attempt']}")
    assert receipt["arrays"]["samples"]["bytes"] == [sizes["samples/c/0/0"]]
    assert not store.scan(FOLDER, None, True).faults
