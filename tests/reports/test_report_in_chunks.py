"""The report of a run in chunks: sums over partitions, pictures of a drawn sample, and no array of all samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from harness import run_in_chunks

from ips2_dask import Params, Resources, Run, open_run, plots, report, run
from ips2_dask.kernels import layout as layout_kernel
from ips2_dask.metrics import scores
from ips2_dask.plots.style import KINDS
from ips2_dask.readers.base import matrix_table
from ips2_dask.reports import run_page
from ips2_dask.reports.run_page import ReportData, render
from ips2_dask.runs import layout, sample
from ips2_dask.store.cache import clear_cache
from ips2_dask.store.zarr_store import ZarrStore

Array = npt.NDArray[Any]

C, PARTITION, DRAWN = 3, 50, 90


def groups(m: int) -> Array:
    """Three groups that touch, in mixed order: (m, 3); every seventh row of the first half is another row again."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(m, 3)) + 3.0 * rng.integers(0, C, size=(m, 1)) * np.array([1.0, -1.0, 0.5])
    X[: m // 2 : 7] = X[m // 2 : m // 2 + len(X[: m // 2 : 7])]
    return X


def made(m: int, folder: Path, **changes: Any) -> tuple[Run, Run]:
    """A run in core with known labels, and the same in chunks with small buckets."""
    X = groups(m)
    source = matrix_table(X, "three groups", label_pieces=lambda: iter([np.arange(m) % 4]))
    params = Params(n_clusters=C, **changes)
    whole = run(source, params, Resources(partition_rows=PARTITION), store=folder / "whole")
    return whole, run_in_chunks(source, params, folder / "chunks", PARTITION, 128)


@pytest.fixture(scope="module", params=["exact", "shards", "kmeans"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    changes: dict[str, Any] = {
        "exact": {"duplicates": "keep"},
        "shards": {"graph": "shards", "shards": 4},
        "kmeans": {"assign_labels": "kmeans"},
    }[request.param]
    return made(400, tmp_path_factory.mktemp(request.param), **changes)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    return made(400, tmp_path_factory.mktemp("one"), graph="shards", shards=4)


@pytest.fixture(autouse=True)
def without_umap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layouts are t-SNE's: UMAP takes many seconds to compile."""
    monkeypatch.setattr(layout_kernel, "available", lambda: False)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of more than 90 samples are shown by a drawn sample without layers; t-SNE lays 90 of them out."""
    monkeypatch.setattr(sample, "SHOWN", DRAWN)
    monkeypatch.setattr(run_page, "LAYERED", DRAWN)
    monkeypatch.setattr(layout, "MOST_BY_T_SNE", DRAWN)


@pytest.mark.slow
def test_a_small_run_in_chunks_has_the_page_of_a_run_in_core(sharded: tuple[Run, Run]) -> None:
    whole, chunks = (render(found).split("<h2") for found in sharded)
    differing = [a[:40] for a, b in zip(whole, chunks, strict=True) if a != b]
    expected = ("<!DOCTYPE", "asked", "Stages", "again")  # the directory, the vectors, the seconds
    assert all(any(one in text for one in expected) for text in differing), differing


def shown_whole(make: Callable[[], Any]) -> Any:
    """What is made of a run while all of its samples are shown."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample, "SHOWN", 100_000)
        return make()


@pytest.mark.slow
def test_what_is_counted_and_summed_is_that_of_all_samples(both: tuple[Run, Run], drawn: None) -> None:
    whole, chunks = shown_whole(lambda: ReportData(both[0])), ReportData(both[1])
    assert isinstance(chunks.run, sample.RunSample)
    assert chunks.is_sample
    assert DRAWN <= len(chunks.run.labels) <= DRAWN + sample.UNCERTAIN
    np.testing.assert_array_equal(chunks.sizes, whole.sizes)
    assert chunks.n_samples == whole.n_samples
    assert chunks.scores == whole.scores == pytest.approx(scores(both[0].known_labels, both[0].labels), rel=1e-12)
    assert chunks.left_out == whole.left_out
    sure = whole.run.certainty
    assert chunks.certainty == pytest.approx(float(np.mean(sure, dtype=np.float64)), rel=1e-12)
    assert chunks.unsure == (sure < 0.5).mean()
    expected, found = whole.similarities, chunks.similarities
    np.testing.assert_array_equal(found.limits, expected.limits)
    for kind in KINDS:
        np.testing.assert_allclose(found.means[kind], expected.means[kind], rtol=1e-10)
        for name in ("within", "between", "pairs"):
            counts = [getattr(one.distributions[kind], name) for one in (found, expected)]
            np.testing.assert_array_equal(*counts)


@pytest.mark.slow
def test_what_is_said_of_a_sample_is_what_the_whole_run_says_of_its_row(both: tuple[Run, Run], drawn: None) -> None:
    whole, data = both[0], ReportData(both[1])
    rows = data.run.rows
    assert (np.diff(rows) > 0).all()
    for name in ("labels", "certainty", "known_labels"):
        np.testing.assert_array_equal(getattr(data.run, name), getattr(whole, name)[rows], err_msg=name)
    assert data.run.embedding is not None
    assert whole.embedding is not None
    np.testing.assert_allclose(data.run.embedding, whole.embedding[rows], rtol=1e-6)
    np.testing.assert_allclose(data.similarities.own, shown_whole(lambda: plots.summarize(whole)).own[rows], rtol=1e-10)
    least = np.argsort(whole.certainty[whole.distinct], kind="stable")[: sample.UNCERTAIN]
    assert set(whole.distinct[least]) <= set(rows.tolist())


@pytest.mark.slow
def test_cells_of_heat_maps_are_means_of_blocks(tmp_path: Path, drawn: None) -> None:
    """Without shards the run's order is the input's, so that the pictures are those of the whole run."""
    whole, chunks = made(300, tmp_path, duplicates="keep")
    expected, found = shown_whole(lambda: plots.summarize(whole, cells=70)), plots.summarize(chunks, cells=70)
    assert len(found.own) < len(expected.own)
    for kind in KINDS:
        np.testing.assert_allclose(found.cells[kind], expected.cells[kind], rtol=1e-10)


@pytest.mark.slow
def test_the_page_of_a_large_run_says_what_was_drawn(sharded: tuple[Run, Run], drawn: None, tmp_path: Path) -> None:
    text = report(str(sharded[1].path), tmp_path / "report.html").read_text()
    n = len(sample.shown(sharded[1]).labels)
    assert f"are of {n} samples: drawn, and the least certain ones" in text
    assert "of 400 samples" in text
    laid_out = text[text.index("t-SNE lays samples out") :]
    assert f"It has {DRAWN} of {len(sharded[1].distinct)} samples" in laid_out[: laid_out.index("</p>")]


@pytest.mark.slow
@pytest.mark.parametrize("graph", ["exact", "shards"])
def test_no_array_that_is_read_grows_with_the_samples(
    graph: str, drawn: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Twice the samples in partitions of the same rows: the longest array of each name stays as long.

    Except the user's numbers of all samples, which a run in chunks stores by partition too and which `user_numbers`
    looks up there.
    """
    most: dict[tuple[str, str], int] = {}
    read = ZarrStore.read

    def note(folder: str, name: str, array: Array) -> Array:
        stage = folder.split("-")[0]
        most[stage, name] = max(most.get((stage, name), 0), array.shape[0])
        return array

    monkeypatch.setattr(ZarrStore, "read", lambda self, f, p, n, *rows: note(f, n, read(self, f, p, n, *rows)))
    found = []
    for m in (600, 1200):
        shards = {"shards": m // 100} if graph == "shards" else {}
        X = np.random.default_rng(6).normal(size=(m, 3)) + 4.0 * (np.arange(m) % C)[:, None]
        params = Params(n_clusters=C, graph=graph, **shards)
        path = str(run_in_chunks(X, params, tmp_path / f"chunks-{m}", PARTITION, 128).path)
        clear_cache()
        most.clear()
        ReportData(open_run(path))
        most.pop(("neighbors", "order"), None)
        found.append(dict(most))
    assert found[0].keys() == found[1].keys()
    assert ("fuse", "entries") in found[0]
    assert ("label", "embedding") in found[0]
    growing = {name: (rows, found[1][name]) for name, rows in found[0].items() if found[1][name] > 1.5 * rows}
    assert growing == {}
