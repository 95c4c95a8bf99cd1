"""The graph by shards: candidates, merging, narrowing down against naive code, and lists that promise what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ips2_dask import Params, Resources, open_run, run
from ips2_dask.cli.main import main
from ips2_dask.datasets import curved_gaussians
from ips2_dask.kernels import duplicates, projection, shards
from ips2_dask.kernels.neighbors import exact_neighbors
from ips2_dask.kernels.sparse import reverse_lists
from ips2_dask.plan import choices
from ips2_dask.stages import graph_refinement

Array = npt.NDArray[Any]


def lists_of(m: int, n: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    others = [rng.permutation(np.delete(np.arange(m), p))[: n - 1] for p in range(m)]
    return np.column_stack([np.arange(m), others]).astype(np.int32)


@given(seed=st.integers(0, 2**32 - 1), m=st.integers(3, 30), cells=st.integers(1, 6), n=st.integers(2, 4))
@settings(deadline=None, max_examples=50)
def test_candidates_are_neighbours_neighbours_that_no_search_has_compared(
    seed: int, m: int, cells: int, n: int
) -> None:
    n = min(n, m)
    N = lists_of(m, n, seed)
    both = np.random.default_rng(seed).integers(0, cells, (m, 2)).astype(np.int32)
    reverse = reverse_lists(N)
    rows = np.arange(m // 2, m)
    found = shards.second_neighbors(N, reverse.start, reverse.centers, both, rows)
    for p, listed in zip(rows, found, strict=True):
        naming = [q for q in range(m) if p in N[q]][:n]
        reached = {int(j) for a in [*N[p, 1:], *naming] for j in N[a, 1:]} | set(naming)
        fresh = {j for j in reached if j not in N[p] and not set(both[j]) & set(both[p])}
        assert sorted(listed[listed >= 0]) == sorted(fresh)


@given(seed=st.integers(0, 2**32 - 1), width=st.integers(1, 8))
@settings(deadline=None, max_examples=50)
def test_merged_lists_hold_the_nearest_of_both_by_distance_and_the_users_number(seed: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    m, n = 12, 4
    user = rng.permutation(m).astype(np.int32)
    gaps = rng.integers(0, 4, (m, m)).astype(np.float32)
    N = lists_of(m, n, seed)
    for p in range(m):
        N[p, 1:] = sorted(N[p, 1:], key=lambda j, p=p: (gaps[p, j], user[j]))
    lengths = np.take_along_axis(gaps, N.astype(np.int64), axis=1)
    lengths[:, 0] = 0
    others = rng.integers(-1, m, (m, width)).astype(np.int32)
    other = np.where(others < 0, np.inf, np.take_along_axis(gaps, others.astype(np.int64), axis=1)).astype(np.float32)
    before = N.copy()
    changed = shards.merge_lists(N, lengths, others, other, np.arange(m), user, np.argsort(user).astype(np.int32))
    for p in range(m):
        among = ({int(j) for j in before[p, 1:]} | {int(j) for j in others[p]}) - {-1, p}
        wanted = sorted(among, key=lambda j, p=p: (gaps[p, j], user[j]))[: n - 1]
        assert N[p].tolist() == [p, *wanted]
        assert lengths[p, 1:].tolist() == [gaps[p, j] for j in wanted]
    assert changed == (before != N).sum()


@given(seed=st.integers(0, 2**32 - 1), m=st.integers(1, 60), count=st.integers(1, 12), least=st.integers(1, 8))
@settings(deadline=None, max_examples=50)
def test_no_cell_that_anyone_is_in_stays_too_small(seed: int, m: int, count: int, least: int) -> None:
    rng = np.random.default_rng(seed)
    nearest = rng.integers(0, count, (m, 2)).astype(np.int32)
    least = min(least, m)
    cell = shards.join_small(shards.count_pairs(nearest), rng.standard_normal((count, 2)).astype(np.float32), least)
    joined = cell[nearest]
    members = [int(((joined == s).any(axis=1)).sum()) for s in range(count)]
    assert all(number == 0 or number >= least for number in members)
    enough = [int(((nearest == s).any(axis=1)).sum()) >= least for s in range(count)]
    if all(enough):
        assert cell.tolist() == list(range(count))


@pytest.mark.parametrize("repeated", [False, True], ids=["different", "copies"])
def test_narrowing_down_finds_the_nearest_of_wide_data_and_measures_them_exactly(repeated: bool) -> None:
    X = curved_gaussians(1500, 600, 4, 3)[0]
    if repeated:
        X = np.concatenate([X[:900], X[:600]])
    narrow = projection.project(X, 0)
    assert narrow is not None
    rows = np.arange(len(X))
    groups = duplicates.group_rows(X)
    assert (groups is None) is not repeated
    N, d = duplicates.nearest_rows(rows, X, groups, 6, narrow)
    exact, lengths = exact_neighbors(X, 0, X, 6)
    right = exact == N
    assert right.mean() >= 0.99
    np.testing.assert_array_equal(d[right], lengths[right])
    assert (N[:, 0] == rows).all()
    assert all(len(set(row)) == 6 for row in N.tolist())


def test_few_rows_are_not_narrowed_down() -> None:
    assert projection.project(np.zeros((projection.DIRECTIONS, 1000), np.float32), 0) is None


def test_what_narrowing_down_passed_over_is_found_by_refinement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "DIRECTIONS", 16)
    X = curved_gaussians(1500, 600, 4, 3)[0]
    found = run(X, Params(n_clusters=4, shards=2), Resources(partition_rows=400))
    history = found._context.facts["neighbors"]["recall_history"]
    assert history[0] < 0.95 <= history[-1]


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 7, 300], ids=lambda count: f"{count}-shards")
@pytest.mark.parametrize("name", ["curved", "far-apart"])
def test_lists_are_of_different_samples_in_order_and_their_recall_is_what_is_reported(
    name: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ips2_dask.kernels.neighbors.RECALL_ROWS", 600)
    X = curved_gaussians(600, 8, 3, 1)[0]
    if name == "far-apart":
        X[:4] += 50  # fewer samples than a list has, in a place of their own
    found = run(X, Params(n_clusters=3, n_neighbors=6, shards=count), Resources(partition_rows=100))
    N, d = found.neighbors
    assert (N[:, 0] == np.arange(600)).all()
    assert all(len(set(row)) == 6 and min(row) >= 0 for row in N.tolist())
    assert (np.diff(d, axis=1) >= 0).all()
    Y = (X - X.mean(axis=0, dtype=np.float64)).astype(np.float32)
    np.testing.assert_allclose(d, np.linalg.norm(Y[:, None] - Y[N], axis=2), rtol=1e-5, atol=1e-6)
    _, lengths = exact_neighbors(Y, 0, Y, 6)
    recall = (d[:, 1:] <= lengths[:, 5:] * (1 + 1e-5)).mean()
    assert found.report()["recall"] == pytest.approx(recall)
    assert recall >= 0.95
    assert not any("recall@5" in text for text in found.report()["warnings"])
    assert found.report()["searched_exactly"] == (count == 300)
    if count <= 2:
        np.testing.assert_allclose(d, lengths, rtol=1e-6)


def test_rounds_go_on_until_nothing_is_found_any_more_and_what_falls_short_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graph_refinement, "LEAST_RECALL", 1.1)
    monkeypatch.setattr(graph_refinement, "MOST_ROUNDS", 30)
    monkeypatch.setattr(choices, "EXACT_AFTER_WORK", 0.0)
    X = curved_gaussians(900, 12, 3, 1)[0]
    found = run(X, Params(n_clusters=3, shards=45), Resources(partition_rows=100))
    history = found._context.facts["neighbors"]["recall_history"]
    assert 2 < len(history) < 30
    assert history == sorted(history)
    assert history[0] < history[-1] - 0.005
    assert any("and 1.1 was promised" in text for text in found.report()["warnings"])


def noise() -> Array:
    """As many dimensions as features: neighbours of neighbours are not near, so that refinement finds next to none."""
    return np.random.default_rng(0).standard_normal((1500, 40)).astype(np.float32)


def crowded() -> Array:
    """Noise of whole numbers, with ties everywhere and a crowd of copies."""
    X = np.random.default_rng(1).integers(0, 3, (900, 20)).astype(np.float32)
    X[100:300] = X[0]
    return X


@pytest.mark.slow
@pytest.mark.parametrize("make", [noise, crowded])
def test_where_refinement_does_not_keep_the_promise_every_pair_is_compared(make: Any) -> None:
    X = make()
    wanted = run(X, Params(n_clusters=3, graph="exact")).neighbors
    for rows in (100, 333):
        found = run(X, Params(n_clusters=3, shards=30), Resources(partition_rows=rows))
        history = found._context.facts["neighbors"]["recall_history"]
        assert history[-2] < 0.95
        assert (history[-1], found.report()["recall"], found.report()["searched_exactly"]) == (1.0, 1.0, True)
        np.testing.assert_array_equal(found.neighbors.indices, wanted.indices)
        assert found.neighbors.distances.tobytes() == wanted.distances.tobytes()
        assert found.report()["warnings"] == run(X, Params(n_clusters=3, graph="exact")).report()["warnings"]


@pytest.mark.slow
def test_where_comparing_every_pair_costs_too_much_one_line_says_what_was_reached_and_strict_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(choices, "EXACT_AFTER_WORK", 1500 * 1500 * (40 + 64) - 1.0)
    np.save(tmp_path / "x.npy", noise())
    arguments = ["run", str(tmp_path / "x.npy"), "--clusters", "3", "--shards", "30", "--out", str(tmp_path / "run")]
    assert main([*arguments, "--serial", "--strict", "--quiet"]) == 3
    assert "promise not kept: recall of the sample graph: found 0." in capsys.readouterr().err
    found = open_run(tmp_path / "run").report()
    assert not found["searched_exactly"]
    (said,) = [text for text in found["warnings"] if "recall@5" in text]
    assert f"is {found['recall']:.3f} and 0.95 was promised" in said
    assert "--graph exact" in said
    assert "\n" not in said
    monkeypatch.undo()
    assert main([*arguments, "--serial", "--strict", "--quiet"]) == 0
    assert open_run(tmp_path / "run").report()["searched_exactly"]


@pytest.mark.parametrize("most", [shards.MAX_IN_TREE, 3])
def test_ranges_of_cells_are_compact(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MAX_IN_TREE", most)
    rng = np.random.default_rng(0)
    groups = np.repeat(np.eye(4, 6, dtype=np.float32), 400, axis=0)
    sample = rng.permutation(groups + 0.01 * rng.normal(size=groups.shape).astype(np.float32))
    found = shards.centers(sample.copy(), 32, 0)
    assert len(np.unique(found, axis=0)) == 32
    group = np.argmax(found[:, :4], axis=1)
    assert np.count_nonzero(np.diff(group)) == 3  # each group's cells in one range


@pytest.mark.parametrize("cells", [1, 2, 3])
def test_few_cells_have_an_order_too(cells: int) -> None:
    sample = np.arange(12, dtype=np.float32).reshape(6, 2)
    assert shards.centers(sample.copy(), cells, 0).shape == (cells, 2)
