"""The layout of a run: of U or of drawn rows of the embedding, for any way of storing them, the same bits again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from harness import run_in_chunks
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from ips2_dask import PAPER, BadInput, Features, Params, Resources, Run, open_run, plots, run
from ips2_dask.kernels import layout as kernel
from ips2_dask.runs import layout as layouts
from ips2_dask.store.cache import clear_cache
from ips2_dask.store.zarr_store import ZarrStore

Array = npt.NDArray[Any]
C = 3

needs_umap = pytest.mark.skipif(not kernel.available(), reason="needs umap-learn: pip install 'ips2-dask[layout]'")
pytestmark = pytest.mark.filterwarnings("ignore::ips2_dask.errors.IPS2Warning")


@pytest.fixture
def without_umap(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if umap-learn were not installed."""
    monkeypatch.setattr(kernel, "available", lambda: False)


def table(m: int = 120) -> Array:
    """Three groups that overlap a little, (m, 4); every tenth row is the one after it again."""
    rng = np.random.default_rng(16)
    X = rng.normal(size=(m, 4)) + 3.0 * rng.integers(0, C, size=(m, 1))
    X[:-1:10] = X[1::10]
    return X


def agreement(points: Array, labels: Array, neighbors: int = 15) -> float:
    """Share of the points whose label most of their nearest neighbours have, themselves left out."""
    near = KNeighborsClassifier(neighbors).fit(points, labels).kneighbors(return_distance=False)
    return float(np.mean([np.bincount(labels[some]).argmax() == own for some, own in zip(near, labels, strict=True)]))


BOTH = [pytest.param(True, marks=[needs_umap, pytest.mark.slow]), False]
"""Whether UMAP lays out, which compiles for half a minute."""

WAYS: dict[str, tuple[Params, Resources]] = {
    "sparse": (Params(n_clusters=C), Resources(partition_rows=25)),
    "two clusters": (Params(n_clusters=2), Resources()),
    "all pairs": (Params(n_clusters=C, affinity="gaussian"), Resources(partition_rows=25)),
    "sharded and chunked": (Params(n_clusters=C, shards=3), Resources(partition_rows=25, vectors="chunked")),
    "PPC": (Params(n_clusters=C, method="ppc"), Resources()),
    "signed": (Params(n_clusters=C, high_order="signed"), Resources()),
    "without an embedding": (Params(**{**PAPER, "n_clusters": C}), Resources()),
    "equal rows kept": (Params(n_clusters=C, duplicates="keep"), Resources()),
}


@pytest.mark.parametrize("umap", BOTH)
@pytest.mark.parametrize("way", WAYS)
def test_every_kind_of_run_is_laid_out(way: str, umap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "available", lambda: umap)
    found = run(table(), *WAYS[way])
    points, samples, method, source = found.layout
    assert (method, source) == (("umap", "fused similarity") if umap else ("t-sne", "spectral embedding"))
    np.testing.assert_array_equal(samples, found.distinct)
    assert (points.dtype, samples.dtype, points.shape) == (np.float32, np.int64, (len(samples), 2))
    assert np.isfinite(points).all()
    assert found.layout is found.layout
    assert agreement(points, found.labels[samples], 5) > 0.8


@pytest.mark.slow
@needs_umap
def test_the_layout_of_digits_tells_clusters_apart_better_than_two_coordinates() -> None:
    """Measured: .98 against .93."""
    found = run(load_digits().data, Params(n_clusters=10))
    two = plots.coordinates(plots.points(found), found.labels).values[:, :2]
    assert agreement(found.layout.points, found.labels) > agreement(two, found.labels) + 0.03


@pytest.mark.slow
def test_so_does_t_sne(without_umap: None) -> None:
    """Measured: .98 against .93."""
    found = run(load_digits().data, Params(n_clusters=10))
    two = plots.coordinates(plots.points(found), found.labels).values[:, :2]
    assert agreement(found.layout.points, found.labels) > agreement(two, found.labels) + 0.03


@pytest.mark.slow
@pytest.mark.parametrize("umap", BOTH)
def test_partitions_change_no_bit_and_another_seed_gives_another_layout(
    umap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "available", lambda: umap)
    X = table()
    first = run(X, Params(n_clusters=C)).layout.points
    for rows in (None, 17, 40):
        again = run(X, Params(n_clusters=C), Resources(partition_rows=rows)).layout.points
        assert again.tobytes() == first.tobytes()
    other = run(X, Params(n_clusters=C, random_state=1)).layout.points
    assert other.tobytes() != first.tobytes()


def test_equal_rows_have_one_point_and_rows_that_were_left_out_have_none(without_umap: None) -> None:
    X = table()
    X[7, 2] = np.nan
    found = run(X, Params(n_clusters=C), features=Features(missing="drop"))
    by_row = found.layout_of_rows()
    assert (by_row.shape, by_row.dtype) == ((len(X), 2), np.float32)
    assert np.flatnonzero(np.isnan(by_row).any(axis=1)).tolist() == [7]
    np.testing.assert_array_equal(by_row[found.layout.samples], found.layout.points)
    np.testing.assert_array_equal(by_row[10], by_row[11])


# ---- drawn samples


@pytest.fixture(params=["exact", "shards"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Run, Run]:
    """A run in core, and the same in chunks with small buckets."""
    shards = {"graph": "shards", "shards": 4} if request.param == "shards" else {}
    params = Params(n_clusters=C, **shards)
    whole = run(table(400), params, Resources(partition_rows=50), store=tmp_path / "whole")
    return whole, run_in_chunks(table(400), params, tmp_path / "chunks", 50, 128)


@pytest.mark.slow
@pytest.mark.parametrize("umap", BOTH)
def test_of_a_large_run_drawn_rows_of_the_embedding_are_laid_out(
    both: tuple[Run, Run], umap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "available", lambda: umap)
    monkeypatch.setattr(layouts, "MOST_SAMPLES" if umap else "MOST_BY_T_SNE", 90)
    whole, chunks = (found.layout for found in both)
    assert (whole.method, whole.source) == ("umap" if umap else "t-sne", "spectral embedding")
    assert len(whole.samples) == 90
    assert (np.diff(whole.samples) > 0).all()
    assert np.isin(whole.samples, both[0].distinct).all()
    assert agreement(whole.points, both[0].labels[whole.samples], 5) > 0.8
    np.testing.assert_array_equal(chunks.samples, whole.samples)
    assert chunks.points.tobytes() == whole.points.tobytes()
    by_row = both[1].layout_of_rows()
    np.testing.assert_array_equal(by_row[whole.samples], whole.points)
    first = both[0].first_rows
    np.testing.assert_array_equal(np.isnan(by_row[:, 0]), ~np.isin(first, whole.samples))


def test_a_draw_does_not_depend_on_shards_or_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    X = table(200)
    runs = [run(X, Params(n_clusters=C), Resources(partition_rows=rows)) for rows in (None, 30)] + [
        run(X, Params(n_clusters=C, graph="shards", shards=3))
    ]
    drawn = [layouts.drawn(found._context, 50) for found in runs]
    for numbers, rows in drawn:
        np.testing.assert_array_equal(rows, drawn[0][1])
        assert len(np.unique(numbers)) == 50
    more = layouts.drawn(runs[0]._context, 70)[1]
    assert set(drawn[0][1]) < set(more)


def test_a_large_run_without_an_embedding_has_no_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "MOST_SAMPLES", 50)
    with pytest.raises(BadInput, match=r"layout: found .* samples and no embedding"):
        _ = run(table(), *WAYS["without an embedding"]).layout


@pytest.mark.slow
def test_of_a_large_run_in_chunks_no_array_of_all_samples_is_read(
    both: tuple[Run, Run], without_umap: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But the numbers of the rows, which equal rows need whole, and which shards need too."""
    monkeypatch.setattr(layouts, "MOST_BY_T_SNE", 40)
    read, seen = ZarrStore.read, {}

    def note(self: ZarrStore, folder: str, part: str, name: str, *rows: int) -> Array:
        array = read(self, folder, part, name, *rows)
        seen[name] = max(seen.get(name, 0), len(array))
        return array

    monkeypatch.setattr(ZarrStore, "read", note)
    clear_cache()
    assert len(open_run(str(both[1].path)).layout.samples) == 40
    assert 0 < seen.pop("embedding") <= 60
    assert set(seen) <= {"firsts", "order", "place"}
