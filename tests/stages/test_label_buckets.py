"""Known labels of a run in chunks lie in buckets of rows, and say the same as those of a run in core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ips2_dask import Features, Params, Resources, Run, open_run, run
from ips2_dask.runs import label_results
from ips2_dask.runs.sample import RunSample
from ips2_dask.stages import known_labels

Array = npt.NDArray[Any]

M, BUCKET = 300, 70
NAMES = np.array(["wren", "auk", "owl"])
PARAMS = Params(n_clusters=3, duplicates="merge", shards=4)
CHUNKS = Resources(partition_rows=50, vectors="chunked")


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_labels, "BUCKET_ROWS", BUCKET)
    monkeypatch.setattr(label_results, "BLOCK_ROWS", 90)


def write_birds(folder: Path) -> tuple[Path, Array]:
    """A table with equal rows, a row that lacks a value, and names of birds; and the code of each row's bird."""
    rng = np.random.default_rng(3)
    kind = rng.integers(0, 3, M)
    X = rng.normal(size=(M, 3)) + 4 * np.eye(3)[kind]
    X[5:60:7] = X[200:208]
    rows = [",".join([*map(repr, row.tolist()), name]) for row, name in zip(X, NAMES[kind], strict=True)]
    rows[100] = ",1.0" + rows[100][rows[100].index(",", rows[100].index(",") + 1) :]
    if not (folder / "birds.csv").exists():  # a file that is written again is another input
        (folder / "birds.csv").write_text("\n".join(["a,b,c,kind", *rows]))
    return folder / "birds.csv", np.searchsorted(np.sort(NAMES), NAMES[kind])


def made(folder: Path, **options: Any) -> tuple[Run, Array]:
    """A run in chunks of `write_birds` that leaves incomplete rows out, in a directory."""
    path, codes = write_birds(folder)
    found = run(
        path, PARAMS, CHUNKS, labels_column="kind", features=Features(missing="drop"), store=folder / "run", **options
    )
    return found, codes


def check(found: Run, codes: Array) -> None:
    """Assert that a run has these known labels, and counts them by class and cluster."""
    np.testing.assert_array_equal(found.known_labels, codes)  # type: ignore[arg-type]
    assert found._context.facts["ingest"]["label_names"] == sorted(NAMES)
    inside = found.labels >= 0
    counts = np.zeros((3, 3), np.int64)
    np.add.at(counts, (codes[inside], found.labels[inside]), 1)
    table = found.known_table()
    assert table is not None
    np.testing.assert_array_equal(table.toarray(), counts)
    some = RunSample(found, np.array([3, 69, 71, 140, 250]))
    np.testing.assert_array_equal(some.known_labels, codes[some.rows])  # type: ignore[arg-type]
    context = found._context
    for low, high in ((0, M), (0, 0), (69, 71), (70, 140), (139, 300), (299, 300)):
        np.testing.assert_array_equal(known_labels.read_codes(context, low, high), codes[low:high])


def lengths(found: Run) -> list[int]:
    """Rows of each part of a run's directory that has codes of known labels."""
    context = found._context
    parts = context.store.parts(context.folders["ingest"])
    return [one["arrays"]["known"]["shape"][0] for _, one in sorted(parts.items()) if "known" in one["arrays"]]


@pytest.mark.slow
def test_no_part_has_the_labels_of_all_rows(tmp_path: Path) -> None:
    found, codes = made(tmp_path)
    assert lengths(found) == [70, 70, 70, 70, 20]
    check(found, codes)
    check(open_run(tmp_path / "run"), codes)
    whole = run(tmp_path / "birds.csv", PARAMS, labels_column="kind", features=Features(missing="drop"))
    np.testing.assert_array_equal(whole.known_labels, codes)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_bucket_that_is_lost_is_made_again(tmp_path: Path) -> None:
    found, codes = made(tmp_path)
    found._store.drop(found._context.folders["ingest"], known_labels.bucket_name(2))
    again, _ = made(tmp_path)
    assert [stage["name"] for stage in again.report()["stages"] if not stage["skipped"]] == ["ingest"]
    assert lengths(again) == [70, 70, 70, 70, 20]
    check(again, codes)
    np.testing.assert_array_equal(again.labels, found.labels)
