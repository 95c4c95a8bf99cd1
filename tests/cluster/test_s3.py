"""Runs from and to an object store: the same labels, credentials nowhere, few requests, plain words when it fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import numpy as np
import pytest
import zarr
from request_table import PARTITIONS, a_partition, lines, request_table
from s3_server import KEY, S3, SECRET
from shell import Shell, Table, groups

from ips2_dask import BadInput, Params, open_run, run
from ips2_dask.errors import StoreFailure
from ips2_dask.readers import open_source
from ips2_dask.store.zarr_store import ZarrStore

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

PARAMS = Params(n_clusters=5)

READ_BY_NEARNESS = ("tensor", "eigen", "fuse", "label")
"""Stages whose tasks read those parts of others that are near: of four partitions other numbers than of more."""

MOST_A_PARTITION = {"auto": 125, "chunked": 400}
"""Requests of a run in one process that a partition takes, over all stages, fewer than these."""

FOLDER = "ingest-0123456789abcdef"
ARRAYS = {"center": np.arange(3.0), "rows": np.empty(0, np.int64)}
"""Arrays of a part, one of them without a chunk: with the group's metadata four objects."""


def test_a_run_in_the_bucket_has_the_labels_of_one_on_disk(ips2: Shell, in_s3: S3, table: Table) -> None:
    out = in_s3.url("run")
    ips2("run", table.url, "--out", out, *table.options, "--workers", 2)
    found = open_run(out)
    assert found.path == out
    np.testing.assert_array_equal(found.labels, table.labels)
    assert "label" in ips2("status", out).stdout


def test_the_same_command_again_computes_nothing(in_s3: S3) -> None:
    X = groups(200)
    for _ in range(2):
        again = run(X, PARAMS, store=in_s3.url("again"))
    assert all(stage["skipped"] for stage in again.manifest["stages"])


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("transpose", [False, True])
def test_an_array_in_the_bucket_is_read_by_ranges(
    in_s3: S3, put: Callable[[Path, str], str], tmp_path: Path, order: str, transpose: bool
) -> None:
    X = np.asarray(groups(50, 6), order=order)
    np.save(tmp_path / "x.npy", X)
    source = open_source(put(tmp_path / "x.npy", f"{order}-{transpose}.npy"), transpose=transpose)
    expected = X.T if transpose else X
    assert source.shape == expected.shape
    for span in ((0, 1), (2, 5), (len(expected) - 1, len(expected))):
        np.testing.assert_array_equal(source.read(*span), expected[slice(*span)])


def test_labels_are_the_same_from_every_kind_of_url(in_s3: S3, put: Callable[[Path, str], str], tmp_path: Path) -> None:
    X = groups(300)
    np.save(tmp_path / "x.npy", X)
    expected = run(X, PARAMS).labels
    urls = [put(tmp_path / "x.npy", "kinds/x.npy"), in_s3.url("kinds/x.zarr")]
    zarr.create_array(store=urls[1], data=X, chunks=(64, 16))
    fsspec.filesystem("s3").chmod(in_s3.url("kinds"), "public-read", recursive=True)
    urls += [url.replace("s3:/", f"http://127.0.0.1:{in_s3.port}") for url in urls]
    for url in urls:
        np.testing.assert_array_equal(run(url, PARAMS).labels, expected)


def test_an_object_that_changes_changes_the_fingerprint_and_stops_a_reader(
    in_s3: S3, put: Callable[[Path, str], str], tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", groups(50))
    url = put(tmp_path / "x.npy", "changing.npy")
    before = open_source(url)
    np.save(tmp_path / "x.npy", groups(50) + 1)
    put(tmp_path / "x.npy", "changing.npy")
    assert open_source(url).fingerprint != before.fingerprint
    with pytest.raises(BadInput, match="stays as it is"):
        before.read(0, 1)


def test_the_secret_is_in_nothing_that_is_printed_or_written(ips2: Shell, in_s3: S3, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", groups(300))
    with pytest.MonkeyPatch.context() as patch:  # from the environment this time
        patch.setenv("AWS_ACCESS_KEY_ID", KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        out = in_s3.url("secret")
        done = ips2("run", tmp_path / "x.npy", "--out", out, "--clusters", 5, "--workers", 2)
        said = done.stdout + done.stderr + ips2("status", out).stdout
    bucket = fsspec.filesystem("s3")
    written = bucket.cat(bucket.find(out))
    assert len(written) > 50
    assert SECRET not in said
    assert not [name for name, content in written.items() if SECRET.encode() in content]
    logs = [path for path in (*in_s3.log.parent.glob("*.log"), *tmp_path.rglob("*")) if path.is_file()]
    assert not [path for path in logs if SECRET.encode() in path.read_bytes()]


@pytest.mark.parametrize("vectors", ["auto", "chunked"])
def test_a_partition_takes_no_more_requests_the_more_there_are(in_s3: S3, vectors: str) -> None:
    table = request_table(in_s3, PARTITIONS, rows=200, vectors=vectors)
    print(*lines(PARTITIONS, table), sep="\n")
    for stage, counts in table.items():
        first, *further = a_partition(PARTITIONS, counts)
        if stage in READ_BY_NEARNESS:
            assert max(further) < 1.5 * first, stage
        else:
            assert further == [first] * len(further), stage
    assert sum(a_partition(PARTITIONS, counts)[0] for counts in table.values()) < MOST_A_PARTITION[vectors]


def test_many_parts_are_dropped_by_three_requests_and_no_object_of_theirs_stays(in_s3: S3) -> None:
    store, parts = ZarrStore(in_s3.url("dropped")), [f"p{b:06d}" for b in range(260)]  # more than a thousand objects
    kept = ["kept", "moved"]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda part: store.write(FOLDER, part, ARRAYS, {}), [*parts, kept[0]]))
    store.rename_many(FOLDER, {parts[0]: kept[1]})
    before = len(in_s3.requests())
    store.drop_many(FOLDER, [*parts, "none"])
    # a listing, and for each thousand objects that go one more: 259 receipts, and then 4 objects of each part
    assert in_s3.count(before) == {"GET": 1, "POST": 3}
    assert sorted(store.parts(FOLDER)) == kept
    for part in kept:
        np.testing.assert_array_equal(store.read(FOLDER, part, "center"), ARRAYS["center"])
    attempts = {receipt["attempt"] for receipt in store.parts(FOLDER).values()}
    assert {name.partition("/")[0].removesuffix(".json") for name in store.files.sizes(FOLDER)} == {*kept, *attempts}


def test_parts_that_another_process_has_written_are_dropped_and_renamed_too(in_s3: S3) -> None:
    url, parts = in_s3.url("others"), [f"p{b:06d}" for b in range(6)]
    for part in parts:
        ZarrStore(url).write(FOLDER, part, ARRAYS, {})
    store = ZarrStore(url)
    store.drop_many(FOLDER, parts[2:])
    store.rename_many(FOLDER, {part: f"new-{part}" for part in parts})
    assert sorted(store.parts(FOLDER)) == [f"new-{part}" for part in parts[:2]]
    assert not store.scan(FOLDER, None, True).faults
    assert len(store.files.sizes(FOLDER)) == 2 * 5


def test_an_object_that_may_not_be_deleted_is_told_and_no_array_goes_before_its_receipt(in_s3: S3) -> None:
    bucket, name = fsspec.filesystem("s3"), "protected"
    bucket.mkdir(name)
    store, parts = ZarrStore(f"s3://{name}/run"), ["p000000", "p000001"]
    for part in parts:
        store.write(FOLDER, part, ARRAYS, {})
    denied = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:DeleteObject",
        "Resource": f"arn:aws:s3:::{name}/run/{FOLDER}/{parts[1]}.json",
    }
    bucket.call_s3(
        "put_bucket_policy", Bucket=name, Policy=json.dumps({"Version": "2012-10-17", "Statement": [denied]})
    )
    with pytest.raises(StoreFailure, match="no permission to write"):
        store.drop_many(FOLDER, parts)
    assert list(store.parts(FOLDER)) == [parts[1]]
    assert not store.scan(FOLDER, None, True).faults


def test_a_missing_bucket_is_named(in_s3: S3) -> None:
    with pytest.raises(BadInput, match="s3://nowhere/run"):
        run(groups(60), PARAMS, store="s3://nowhere/run")


def test_a_missing_object_is_named(in_s3: S3) -> None:
    for name in ("nothing.npy", "nothing.zarr"):
        with pytest.raises(BadInput, match=name):
            open_source(in_s3.url(name))


def test_missing_credentials_are_told_in_one_line(ips2: Shell, in_s3: S3, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", groups(60))
    (tmp_path / "none").touch()
    nobody = ips2.where({"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none")})
    said = nobody("run", "x.npy", "--out", in_s3.url("closed"), "--clusters", 5, status=2).stderr
    assert len(said.splitlines()) == 1
    assert "AWS_ACCESS_KEY_ID" in said


def test_a_server_that_is_not_there_is_told_in_one_line(ips2: Shell, in_s3: S3, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", groups(60))
    away = ips2.where({"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_MAX_ATTEMPTS": "1"})
    said = away("run", "x.npy", "--out", in_s3.url("away"), "--clusters", 5, status=2).stderr
    assert len(said.splitlines()) == 1
    assert in_s3.url("away") in said
