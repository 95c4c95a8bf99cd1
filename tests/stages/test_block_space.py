"""Blocks that stay on their workers give the same bits, whoever has which chunk, in files too, and after a loss."""

from __future__ import annotations

import bisect
import dataclasses
import os
import shutil
import signal
import threading
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from distributed import Client, LocalCluster
from harness import at_byte, run_on

from ips2_dask import Params
from ips2_dask.errors import Lost
from ips2_dask.executors import exchange
from ips2_dask.executors.base import Executor, SerialExecutor
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.kernels import buffers, eigen
from ips2_dask.kernels import labels as label_kernel
from ips2_dask.kernels.components import MIN_SHARE
from ips2_dask.kernels.operator import ChunkOperator
from ips2_dask.plan import memory_chunked, terms
from ips2_dask.stages import (
    block_copies,
    block_rounds,
    block_space,
    checkpoints,
    chunked_label,
    label_parts,
    resident_blocks,
    sample_operator,
    sample_space,
)
from ips2_dask.stages.block_operator import chunk_partitions
from ips2_dask.stages.block_space import Block, ChunkedSpace
from ips2_dask.stages.similarity_views import read_affinity
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.zarr_store import ZarrStore

PARAMS = Params(n_clusters=3, tol=1e-4)


def samples() -> npt.NDArray[np.float64]:
    rng = np.random.default_rng(5)
    return rng.normal(size=(1200, 4)) + 3 * rng.integers(0, 3, size=(1200, 1))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run in chunks in this process."""
    return run_on(SerialExecutor(), samples(), PARAMS, 120, tmp_path_factory.mktemp("runs") / "one", "chunked")


class Silent:
    """Hears nothing of the progress."""

    def __call__(self, done: int, total: int) -> None:
        pass

    def note(self, facts: Any) -> None:
        pass


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Three workers of several threads in this process."""
    with (
        LocalCluster(n_workers=3, threads_per_worker=2, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def solved(executor: Executor, tmp_path: Path) -> Any:
    return run_on(executor, samples(), PARAMS, 120, tmp_path / "run", "chunked")


def test_eigenvectors_do_not_depend_on_who_has_a_chunk(reference: Any, client: Client, tmp_path: Path) -> None:
    assert reference.report()["products"] > 1
    assert len(chunk_partitions(reference._context)) > 3
    found = solved(DaskExecutor(client), tmp_path)
    np.testing.assert_array_equal(found.eigenvectors, reference.eigenvectors)
    np.testing.assert_array_equal(found.labels, reference.labels)


def space_of(context: Context, executor: Executor, **options: Any) -> ChunkedSpace:
    return opened(ChunkedSpace(context, executor, 16, **options))


def opened(space: ChunkedSpace) -> ChunkedSpace:
    space.reopen()
    return space


def gathered(space: ChunkedSpace, y: Block) -> npt.NDArray[np.float32]:
    return np.concatenate(space.for_each(y, _rows))


def _rows(context: Context, g: int, y: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.array(y)


def algebra(space: ChunkedSpace, width: int = 16) -> list[npt.NDArray[np.floating]]:
    """One of everything that a solver asks for."""
    y = eigen.orthonormalize(space, space.deflate(space.random(width, 0)))
    y = eigen.chebyshev_filter(space, y, -0.5, 0.8, 1.0, 7)
    y, values, residuals, _ = eigen.rayleigh_ritz(space, eigen.orthonormalize(space, space.deflate(y)))
    return [gathered(space, y), values, residuals, np.array(eigen.lowest_estimate(space, 1))]


@pytest.mark.parametrize("panels", [False, True], ids=["whole", "panels"])
@pytest.mark.parametrize("rows", ["pairs", pytest.param("graph", marks=pytest.mark.slow)])
def test_the_algebra_has_the_same_bits_on_workers_and_in_files(
    rows: str, panels: bool, reference: Any, client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if panels:
        monkeypatch.setitem(eigen.PANELS_ABOVE, "chunked", 0)
    context = reference._context
    sample_operator.store_graph(context, SerialExecutor(), Silent())
    results = [
        algebra(space_of(context, executor, rows=rows, scratch=scratch, streams=streams))
        for executor, scratch, streams in (
            (SerialExecutor(), False, False), (SerialExecutor(), True, False), (SerialExecutor(), True, True),
            (DaskExecutor(client), True, False), (DaskExecutor(client), True, True),
        )
    ]  # fmt: skip
    for other in results[1:]:
        for one, another in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(one, another)


@pytest.mark.parametrize("operator", ["triplets", "elements", "matrix-free"])
@pytest.mark.parametrize("rows", ["pairs", pytest.param("graph", marks=pytest.mark.slow)])
def test_the_memory_of_a_solve_is_that_of_the_rows_and_operators_which_its_workers_hold(
    rows: str, operator: str, client: Client, tmp_path: Path
) -> None:
    params = dataclasses.replace(PARAMS, operator=operator)
    context = run_on(SerialExecutor(), samples(), params, 120, tmp_path / "run", "chunked")._context
    sample_operator.store_graph(context, SerialExecutor(), Silent())
    space = space_of(context, DaskExecutor(client), rows=rows)
    gathered(space, space.random(16, 0))  # after the setup
    _, solve = space._counted()
    stores = [found for owner in range(3) if (found := resident_blocks.store_of(space._team.space, owner)) is not None]
    held, exchanged, owned = [], [], []
    for store in stores:
        arrays = [one for part in store._arrays.values() for one in _arrays_of(part.operator)]
        arrays += [part.scale for part in store._arrays.values()]
        arrays += [source.index for part in store._arrays.values() for source in part.sources]
        arrays += [store.known(g).vector for g in store.chunks]
        held.append(sum(array.nbytes for array in arrays))
        exchanged.append(sum(len(indices) for parts in store._sent.values() for _, indices in parts))
        owned.append(sum(len(store.get(name, g)) for name, g in store._memory))
    assert solve.rows == space.n == sum(owned)
    spread = solve.spread(space._counted()[0])
    assert spread.owned == pytest.approx(max(owned) / sum(owned))
    assert spread.touched == max(part.operator.touched for store in stores for part in store._arrays.values())
    assert 0 < max(exchanged) <= spread.exchanged
    assert max(held) <= solve.operator_bytes <= 1.5 * max(held)


def _arrays_of(operator: Any) -> list[npt.NDArray[Any]]:
    """The arrays that an operator keeps."""
    if isinstance(operator, ChunkOperator):
        return [operator._blocks, operator._owned, operator._ids, operator._elements]
    return [operator._matrix.data, operator._matrix.indices, operator._matrix.indptr]


@pytest.mark.parametrize("operator", ["elements", "matrix-free"])
def test_narrow_panels_of_files_have_the_bits_of_whole_blocks(operator: str, tmp_path: Path) -> None:
    params = dataclasses.replace(PARAMS, operator=operator)
    context = run_on(SerialExecutor(), samples(), params, 120, tmp_path / "run", "chunked")._context
    whole, narrow = (opened(ChunkedSpace(context, SerialExecutor(), 24, scratch=scratch)) for scratch in (False, True))
    assert (whole.panels, narrow.panels) == (1, 3)
    for one, another in zip(algebra(whole, 24), algebra(narrow, 24), strict=True):
        np.testing.assert_array_equal(one, another)


@pytest.mark.parametrize("operator", ["elements", pytest.param("matrix-free", marks=pytest.mark.slow)])
def test_wide_panels_have_the_bits_of_a_filter_by_the_parts_of_a_block(
    operator: str, client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(eigen.PANELS_ABOVE, "chunked", 0)
    params = dataclasses.replace(PARAMS, operator=operator)
    context = run_on(SerialExecutor(), samples(), params, 120, tmp_path / "run", "chunked")._context
    by_parts, *others = (
        opened(ChunkedSpace(context, executor, 24, wide=wide, scratch=False))
        for executor, wide in ((SerialExecutor(), False), (SerialExecutor(), True), (DaskExecutor(client), True))
    )
    assert (by_parts.panels, *(space.panels for space in others)) == (3, 1, 1)
    assert by_parts.random(24, 0).widths == others[0].random(24, 0).widths == (8, 8, 8)
    known = algebra(by_parts, 24)
    assert by_parts.steps == 3 * 7 + 2 * 3 + 8 + 8
    for space in others:
        for one, another in zip(known, algebra(space, 24), strict=True):
            np.testing.assert_array_equal(one, another)
        assert space.steps == 7 + 2 * 3 + 8 + 8


def test_ritz_pairs_by_parts_hold_one_part_beside_the_block(reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(eigen.PANELS_ABOVE, "chunked", 0)
    space = opened(ChunkedSpace(reference._context, SerialExecutor(), 24, wide=False, scratch=False))
    y = eigen.orthonormalize(space, space.deflate(space.random(24, 0)))
    held: list[int] = []
    plain = resident_blocks.BlockStore.put

    def counted(self: resident_blocks.BlockStore, name: str, g: int, block: Any, *, parked: bool = False) -> None:
        plain(self, name, g, block, parked=parked)
        held.append(sum(one == g for _, one in self._memory))

    monkeypatch.setattr(resident_blocks.BlockStore, "put", counted)
    eigen.rayleigh_ritz(space, y)
    assert max(held) == 3 + 1


def test_columns_side_by_side_leave_no_memory_to_a_product(reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(eigen.PANELS_ABOVE, "chunked", 0)
    monkeypatch.setattr(buffers, "MIN_BYTES", 0)
    space = opened(ChunkedSpace(reference._context, SerialExecutor(), 24, wide=False, scratch=False))
    y = space.random(24, 0)
    Ly = space.apply(y)
    space.gram(y, y)  # after a product, which is tidy; nothing is dropped that would take the place of what it joins
    kept: list[int] = []
    multiply_chunk = resident_blocks.BlockStore.multiply_chunk

    def multiplied(store: resident_blocks.BlockStore, *arguments: Any) -> None:
        kept.extend(len(piece) for piece in buffers._free)
        multiply_chunk(store, *arguments)

    monkeypatch.setattr(resident_blocks.BlockStore, "multiply_chunk", multiplied)
    LLy = space.apply(Ly)
    space.gram(y, LLy)
    assert max(kept, default=0) <= 4 * 8 * max(np.diff(space._bounds))  # rows of one panel


def test_a_filter_has_the_widest_panels_for_which_workers_are_known_to_have_memory(
    reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(eigen.PANELS_ABOVE, "chunked", 0)
    space = opened(ChunkedSpace(reference._context, SerialExecutor(), 40))
    assert space.panels == 5  # nothing is known of the memory

    def panels(limit: int) -> int:
        sizes, solve = space._counted()
        return solve.filter_panels(dataclasses.replace(sizes, worker_limit=limit))

    _, solve = space._counted()
    needed = {}
    for count in (1, 2, 3, 5):
        phases = solve.workers(space._counted()[0], held=True, panels=count)
        needed[count] = max(phase.bytes for phase in phases)
        least = bisect.bisect_left(range(1, 1 << 32), needed[count], key=terms.usable) + 1
        assert needed[panels(least)] == needed[count]
        assert panels(least) <= count
        assert count == 5 or panels(least - 1) > count
    assert needed[1] > needed[2] > needed[5]


def test_a_solve_goes_on_within_a_wide_panel(reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(eigen.PANELS_ABOVE, "chunked", 0)
    context = reference._context

    class Stopped(Exception):
        """The process ends within a filter."""

    def solved(space: ChunkedSpace, state: eigen.State | None, stops: bool) -> npt.NDArray[Any]:
        kept = checkpoints.Chunked(context, space, share=0)

        def keep(reached: eigen.State) -> None:
            kept.keep(reached)
            if stops and reached.step:
                raise Stopped

        found = eigen.leading_eigenpairs(space, 8, lambda: space.random(16, 0), tol=1e-6, state=state, checkpoint=keep)
        return gathered(space, found.vectors)

    def wide() -> ChunkedSpace:
        return opened(ChunkedSpace(context, SerialExecutor(), 16, wide=True, scratch=False))

    try:
        undisturbed = solved(wide(), None, stops=False)
        with pytest.raises(Stopped):
            solved(wide(), None, stops=True)
        again = wide()
        state = checkpoints.Chunked(context, again).latest()
        assert state is not None
        assert (state.panel, state.step > 0) == (0, True)
        assert state.previous.widths == (16,)
        np.testing.assert_array_equal(solved(again, state, stops=False), undisturbed)
    finally:
        context.store.drop_many(context.folders["eigen"], checkpoints.checkpoint_parts(context))


def test_a_checkpoint_within_a_filter_of_other_panels_is_left_out(reference: Any) -> None:
    context = reference._context
    whole, narrow = (space_of(context, SerialExecutor(), scratch=scratch) for scratch in (False, True))
    state = eigen.State(whole.random(16, 0), np.zeros(16), np.ones(16), 0.0, 12, [], 0, 3, whole.random(16, 1))
    try:
        for step in (0, 3):
            checkpoints.Chunked(context, whole, share=0).keep(dataclasses.replace(state, step=step))
            same, other = (checkpoints.Chunked(context, space).latest() for space in (whole, narrow))
            assert same is not None
            assert (other is None) == (step > 0)
    finally:
        context.store.drop_many(context.folders["eigen"], checkpoints.checkpoint_parts(context))


def test_a_filter_of_a_small_block_takes_fewer_rounds_and_has_the_same_bits(
    reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    run = ChunkedSpace._run

    def counted(space: ChunkedSpace, *operations: Any) -> Any:
        sent.append(1)
        return run(space, *operations)

    def filtered(**options: Any) -> npt.NDArray[np.float32]:
        space = space_of(reference._context, SerialExecutor(), **options)
        sent.clear()
        return gathered(space, eigen.chebyshev_filter(space, space.random(16, 0), -0.5, 0.8, 1.0, 2 * most))

    monkeypatch.setattr(ChunkedSpace, "_run", counted)
    least, most = block_space.STEPS
    short, n_short = filtered(short_rounds=True), len(sent)
    long, n_long = filtered(), len(sent)
    np.testing.assert_array_equal(long, short)
    assert n_short - n_long == 2 * most // least - 2


def test_blocks_go_when_nobody_refers_to_them(reference: Any) -> None:
    space = space_of(reference._context, SerialExecutor())
    (store,) = space._stores
    y = space.random(16, 0)
    for _ in range(5):
        y = space.rotate(space.apply(y), np.eye(16))
        space.gram(y, y)
    del y
    space.gram(*[space.random(1, 1)] * 2)
    space.gram(*[space.random(1, 1)] * 2)
    assert len(store._memory) <= 2 * len(chunk_partitions(reference._context))


def test_a_round_reads_nothing_that_an_earlier_one_has_read(reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: Counter[tuple[str, str]] = Counter()
    read = ZarrStore.read

    def counted(store: ZarrStore, folder: str, part: str, name: str) -> Any:
        reads[part, name] += 1
        return read(store, folder, part, name)

    monkeypatch.setattr(ZarrStore, "read", counted)
    space = space_of(dataclasses.replace(reference._context), SerialExecutor())
    y = space.deflate(space.random(16, 0))
    space.gram(y, space.apply(y))
    assert reads
    reads.clear()
    y = space.deflate(space.random(16, 0))
    space.gram(y, space.apply(y))
    assert not reads


def test_files_of_blocks_go_with_their_store(reference: Any) -> None:
    space = space_of(reference._context, SerialExecutor(), scratch=True)
    (store,) = space._stores
    folder = store._folder
    y = space.random(16, 0)
    space.gram(y, y)
    assert folder is not None
    assert list(folder.iterdir())
    del store
    space.close()
    assert not folder.exists()


@pytest.mark.parametrize("panels", [False, True], ids=["whole", "panels"])
def test_of_blocks_in_files_one_panel_is_in_memory_while_it_is_multiplied(
    panels: bool, reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if panels:
        monkeypatch.setitem(eigen.PANELS_ABOVE, "chunked", 0)
    held: list[tuple[str, set[str]]] = []
    multiply_chunk = resident_blocks.BlockStore.multiply_chunk

    def multiplied(store: resident_blocks.BlockStore, g: int, step: resident_blocks.Step, received: Any) -> None:
        multiply_chunk(store, g, step, received)
        held.append((step.y, {name for name, _ in store._memory}))

    monkeypatch.setattr(resident_blocks.BlockStore, "multiply_chunk", multiplied)
    space = space_of(reference._context, SerialExecutor(), scratch=True)
    (store,) = space._stores
    y = eigen.orthonormalize(space, space.deflate(space.random(16, 0)))
    y = eigen.chebyshev_filter(space, y, -0.5, 0.8, 1.0, 7)
    y, *_ = eigen.rayleigh_ritz(space, y)
    assert held
    assert len(y.names) == 2  # of eight columns each, however small the block is
    assert all(names == {name} for name, names in held)
    assert not store._memory


def test_where_a_panel_is_in_files_too_memory_holds_what_one_chunk_needs(
    reference: Any, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = list[int]()
    multiply_chunk = resident_blocks.BlockStore.multiply_chunk

    def multiplied(store: resident_blocks.BlockStore, g: int, step: resident_blocks.Step, received: Any) -> None:
        multiply_chunk(store, g, step, received)
        assert not received
        if store.is_parked(step.y, g):
            assert not store._memory
        assert not store._arrays
        assert not store._known
        pieces.append(len(store._pieces))

    monkeypatch.setattr(resident_blocks.BlockStore, "multiply_chunk", multiplied)
    space = space_of(reference._context, DaskExecutor(client), scratch=True, streams=True)
    algebra(space)
    assert max(pieces) > 1
    stores = [resident_blocks.store_of(space._team.space, owner) for owner in range(3)]
    for store in stores:
        assert store is not None
        assert store._folder is not None
        assert not store._pieces
        assert not list(store._folder.glob("from-*"))


# ---- losses


@pytest.fixture
def processes() -> Iterator[Client]:
    """Three workers in processes of their own."""
    with (
        LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.mark.slow
def test_a_lost_worker_ends_nobody_else_s_waiting_and_the_solve_goes_on(
    reference: Any, processes: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    processes.run(load_space)
    victim = sorted(processes.run(os.getpid).values())[1]
    killed: list[str] = []
    keep, run_round = block_space.ChunkedSpace.store_checkpoint, block_space.ChunkedSpace._run

    def kill_after(space: ChunkedSpace, y: Block, name: str, previous: Block | None = None) -> None:
        keep(space, y, name, previous)
        if not killed and space._rows == "pairs" and previous is not None:
            killed.append(space._team.space)
            threading.Timer(0.02, os.kill, [victim, signal.SIGKILL]).start()

    rounds = Counter[str]()

    def counted(space: ChunkedSpace, *operations: Any) -> Any:
        rounds[space._team.space] += 1
        return run_round(space, *operations)

    monkeypatch.setattr(block_space.ChunkedSpace, "store_checkpoint", kill_after)
    monkeypatch.setattr(block_space.ChunkedSpace, "_run", counted)
    monkeypatch.setattr("ips2_dask.stages.checkpoints.SHARE", 0)
    monkeypatch.setattr(block_space, "ROUND_ENTRIES", 0)
    found = solved(DaskExecutor(processes), tmp_path)
    np.testing.assert_array_equal(found.eigenvectors, reference.eigenvectors)
    assert killed
    spaces = list(rounds)
    assert spaces.index(killed[0]) < len(spaces) - 1  # another space went on


def load_space() -> None:
    """Have the modules of a solve in memory."""


class Loss:
    """Ends a worker's process in the round that follows the n-th state of the pairs' solve; counts what is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pids: list[int], at: int) -> None:
        self.steps = Counter[str]()
        self.read: list[str] = []
        self.states = 0
        copy, run_round = ChunkedSpace.copy, ChunkedSpace._run
        recur, read = ChunkedSpace.recur, ChunkedSpace.read_checkpoint

        def copied(space: ChunkedSpace, state: eigen.State) -> None:
            copy(space, state)
            self.states += space._rows == "pairs"

        def rounds(space: ChunkedSpace, *operations: Any) -> Any:
            if pids and space._rows == "pairs" and self.states == at:
                os.kill(pids.pop(), signal.SIGKILL)
            return run_round(space, *operations)

        def counted(space: ChunkedSpace, *arguments: Any) -> Any:
            self.steps[space._rows] += 1
            return recur(space, *arguments)

        def noted(space: ChunkedSpace, name: str) -> Block:
            self.read.append(name)
            return read(space, name)

        for name, function in (("copy", copied), ("_run", rounds), ("recur", counted), ("read_checkpoint", noted)):
            monkeypatch.setattr(ChunkedSpace, name, function)
        monkeypatch.setattr(memory_chunked, "COPIED_FROM", 2)


@pytest.mark.slow
@pytest.mark.parametrize("at", [2, 6])
def test_with_copies_a_lost_worker_repeats_no_more_than_two_rounds(
    at: int, reference: Any, processes: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    processes.run(load_space)
    undisturbed = Loss(monkeypatch, [], 0)
    solved(SerialExecutor(), tmp_path / "whole")
    needed = undisturbed.steps["pairs"]
    loss = Loss(monkeypatch, [sorted(processes.run(os.getpid).values())[1]], at)
    monkeypatch.setattr("ips2_dask.stages.checkpoints.SHARE", 10**9)  # but for the first state none is stored
    monkeypatch.setattr(block_space, "ROUND_ENTRIES", 0)
    found = solved(DaskExecutor(processes), tmp_path / "lost")
    np.testing.assert_array_equal(found.eigenvectors, reference.eigenvectors)
    np.testing.assert_array_equal(found.labels, reference.labels)
    assert loss.states > at
    assert not loss.read
    assert 0 < loss.steps["pairs"] - needed <= 2 * block_space.STEPS[0]


@pytest.mark.parametrize("lost", [(1,), (0, 2), (1, 2)], ids=str)
def test_rows_come_from_who_has_them_or_not_at_all(
    lost: tuple[int, ...], reference: Any, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = ChunkedSpace(reference._context, DaskExecutor(client), 16, copies=True, scratch=False)
    space.reopen()
    state = eigen.State(space.random(16, 0), np.zeros(16), np.ones(16), 0.0, 12, [], 0, 3, space.random(16, 1))
    before = [gathered(space, block) for block in (state.y, state.previous)]
    space.copy(state)
    assert space.copied() is None  # nobody was lost
    gathered(space, space.random(16, 2))
    space.copy(dataclasses.replace(state, products=13, y=space.random(16, 3)))  # with a round that is not made
    gone = [space._team.addresses[owner] for owner in lost]
    there = [address for address in space._executor.addresses() if address not in gone]
    monkeypatch.setattr(DaskExecutor, "_staying", lambda self: {a: w for a, w in self._workers().items() if a in there})
    space.give_up()
    space.reopen()
    found = space.copied()
    if len(lost) > 1:  # of three workers each keeps the rows of the next one
        assert found is None
        return
    assert found is not None
    assert found.products == 12
    for block, rows in zip((found.y, found.previous), before, strict=True):
        np.testing.assert_array_equal(gathered(space, block), rows)
    space.close()
    assert space.copied() is None


@pytest.mark.parametrize("step", [0, 3])
def test_copies_of_a_state_serve_a_filter_of_other_panels_unless_they_are_within_one(
    step: int, reference: Any, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(eigen.PANELS_ABOVE, "chunked", 0)
    space = opened(ChunkedSpace(reference._context, DaskExecutor(client), 16, copies=True, wide=True, scratch=False))
    state = eigen.State(space.random(16, 0), np.zeros(16), np.ones(16), 0.0, 12, [], 0, step, space.random(16, 1))
    before = gathered(space, state.y)
    space.copy(state)
    for seed in (2, 3):
        gathered(space, space.random(16, seed))  # a round that makes the copies, and one after it
    space.give_up()
    space._wide_asked = False  # as where those that are left have less memory
    space.reopen()
    assert space.panels == 2
    found = space.copied()
    assert (found is None) == (step > 0)
    if found is not None:
        np.testing.assert_array_equal(gathered(space, found.y), before)
    space.close()


@pytest.mark.parametrize("kept", ["copied", "restored"])
def test_a_product_leaves_the_rows_of_a_copy_as_they_are(kept: str, reference: Any) -> None:
    space = space_of(reference._context, SerialExecutor(), scratch=False, copies=True)
    before, y = space.random(16, 0), space.random(16, 1)
    (name,) = before.names
    rows = gathered(space, before)
    store = resident_blocks.store_of(space._team.space, 0)
    assert store is not None
    held = {g: store.get(name, g) for g in space._chunks}
    if kept == "copied":
        store.copies.update({(name, g): block for g, block in held.items()})
    else:
        store.restored.update((name, g) for g in space._chunks)
    found = gathered(space, space.recur(y, before, 0.5, 0.25, -0.5))
    np.testing.assert_array_equal(np.concatenate(list(held.values())), rows)
    assert not store.restored
    again = space.recur(space.random(16, 1), space.random(16, 0), 0.5, 0.25, -0.5)
    np.testing.assert_array_equal(gathered(space, again), found)


def test_copies_of_states_that_no_one_needs_any_more_go(reference: Any, client: Client) -> None:
    space = ChunkedSpace(reference._context, DaskExecutor(client), 16, copies=True, scratch=False)
    space.reopen()
    for number in range(5):
        y = space.random(16, number)
        space.copy(eigen.State(y, np.zeros(16), np.ones(16), 0.0, number, []))
        gathered(space, y)
    names = set(y.names) | space._copied[0].names
    assert len(space._copied) == 2
    stores = [resident_blocks.store_of(space._team.space, owner) for owner in range(3)]
    for store in stores:
        assert store is not None
        assert {name for name, _ in store.copies} == names
        assert len({g for _, g in store.copies}) > len(store.chunks)
    assert {g for store in stores if store is not None for _, g in store.copies} == set(space._chunks)


def test_few_workers_and_those_without_memory_make_no_copies(reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_chunked, "COPIED_FROM", 4)

    def makes_copies(n_workers: int, limit: int) -> bool:
        executor = Shrinking(limit)
        executor.workers = n_workers
        space = ChunkedSpace(reference._context, executor, 16)
        space.reopen()
        return space.makes_copies

    assert not makes_copies(2, 1 << 40)
    assert makes_copies(4, 1 << 40)
    assert not makes_copies(4, 1 << 28)


@pytest.mark.parametrize("at", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_solve_stopped_within_a_filter_goes_on_there(
    at: int, reference: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Stopped(Exception):
        pass

    monkeypatch.setattr("ips2_dask.stages.checkpoints.SHARE", 0)
    monkeypatch.setattr(block_space, "ROUND_ENTRIES", 0)
    stored: list[tuple[int, int]] = []
    keep = block_space.ChunkedSpace.store_checkpoint
    steps = Counter[str]()
    step = resident_blocks.Step.all_chunks

    def stop_after(space: ChunkedSpace, y: Block, name: str, previous: Block | None = None) -> None:
        keep(space, y, name, previous)
        stored.append((len(stored), int(previous is not None)))

    def counted(self: Any, store: Any, context: Any, label: Any) -> None:
        if len(stored) == at + 1 and stopping:
            raise Stopped
        steps[store.team.rows] += 1
        step(self, store, context, label)

    stopping = True
    monkeypatch.setattr(block_space.ChunkedSpace, "store_checkpoint", stop_after)
    monkeypatch.setattr(resident_blocks.Step, "all_chunks", counted)
    with pytest.raises(Stopped):
        solved(SerialExecutor(), tmp_path)
    before, stopping = steps["pairs"], False
    found = solved(SerialExecutor(), tmp_path)
    np.testing.assert_array_equal(found.eigenvectors, reference.eigenvectors)
    # lowest_estimate has eight products of its own, and each Ritz step one
    assert steps["pairs"] <= found.report()["products"] + 20
    assert before < steps["pairs"]


@pytest.mark.slow
def test_a_worker_that_is_lost_in_a_solve_s_first_setup_is_done_without(
    reference: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    setup, lost = resident_blocks.Setup.all_chunks, list[str]()

    def lose_first(self: Any, store: Any, context: Any, label: Any) -> None:
        if store.team.rows not in lost:
            lost.append(store.team.rows)
            raise exchange.BlocksLost("the worker at tcp://somewhere has left")
        setup(self, store, context, label)

    monkeypatch.setattr(resident_blocks.Setup, "all_chunks", lose_first)
    monkeypatch.setattr(eigen, "DENSE_BELOW", 100)  # the start and the embedding are solved in chunks too
    found = run_on(SerialExecutor(), samples(), PARAMS, 120, tmp_path / "lost", "chunked")
    assert lost == ["graph", "pairs", "fused", "walk"]
    monkeypatch.setattr(resident_blocks.Setup, "all_chunks", setup)
    undisturbed = run_on(SerialExecutor(), samples(), PARAMS, 120, tmp_path / "undisturbed", "chunked")
    np.testing.assert_array_equal(found.eigenvectors, undisturbed.eigenvectors)
    np.testing.assert_array_equal(found.labels, undisturbed.labels)


def test_a_run_that_loses_workers_again_and_again_says_so_in_one_line(
    reference: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    losses = list[int]()

    def lose(self: Any, store: Any, context: Any, label: Any) -> None:
        losses.append(1)
        raise exchange.BlocksLost("the worker at tcp://somewhere has left")

    monkeypatch.setattr(resident_blocks.Setup, "all_chunks", lose)
    with pytest.raises(Lost, match=r"stage eigen: workers were lost 5 times .* tcp://somewhere has left") as caught:
        solved(SerialExecutor(), tmp_path)
    assert len(losses) == block_rounds.ATTEMPTS
    assert "\n" not in str(caught.value)
    assert "run the same command again" in str(caught.value)
    monkeypatch.undo()
    np.testing.assert_array_equal(solved(SerialExecutor(), tmp_path).labels, reference.labels)


class Shrinking(SerialExecutor):
    """Says of each of its workers, which are fewer and fewer, how much memory it may use."""

    def __init__(self, limit: int) -> None:
        self.limit, self.workers = limit, 4

    @property
    def n_workers(self) -> int:
        return self.workers

    def worker_memory(self) -> int | None:
        return self.limit


def test_blocks_go_into_files_once_the_workers_left_have_no_memory_for_them(reference: Any) -> None:
    context = reference._context
    columns = eigen.block_width(3)

    def fits(limit: int) -> bool:
        space = ChunkedSpace(context, Shrinking(limit), columns)
        space._owners = (0,) * len(space._chunks)
        space._choose_place()
        return not space._scratch

    limits = range(1 << 20, 1 << 40, 1 << 14)
    first = bisect.bisect(limits, False, key=fits)
    executor = Shrinking(limits[first])
    space = ChunkedSpace(context, executor, columns)
    space.reopen()
    assert not space._scratch
    executor.limit = limits[first - 1]
    before = space.panels
    y = gathered(space, space.random(columns, 0))
    space.reopen()
    assert space._scratch
    assert space.panels >= before
    np.testing.assert_array_equal(gathered(space, space.random(columns, 0)), y)


def test_rows_that_do_not_come_are_not_waited_for_when_the_solve_is_over() -> None:
    box = exchange.Mailbox("some-0")
    threading.Timer(0.1, box.close, ["a worker is lost"]).start()
    with pytest.raises(exchange.BlocksLost, match="a worker is lost"):
        box.take((0, 0), 1, 60.0)
    with pytest.raises(exchange.BlocksLost, match="has sent nothing"):
        exchange.Mailbox("some-1").take((0, 0), 1, 0.01)


@pytest.mark.parametrize("begin", [0, 7])
def test_copies_of_others_rows_are_aligned_wherever_their_message_began(begin: int) -> None:
    rows = np.arange(24, dtype=np.float32).reshape(3, 8)
    arrived = at_byte(begin, rows)
    for g, some in block_copies._divided(arrived, [0, 2], [0, 1, 5, 7]).items():
        assert some.flags.aligned
        assert np.shares_memory(some, arrived) == (begin == 0)  # none is copied without need
        np.testing.assert_array_equal(some, rows[:1] if g == 0 else rows[1:])


def test_residuals_of_a_chunk_take_the_memory_of_some_rows_and_are_summed_row_after_row() -> None:
    rng, values = np.random.default_rng(0), np.linspace(0.2, 0.9, 8)
    found = {name: rng.random((1 << 17, 8), np.float32) for name in ("y", "Ly")}

    class Blocks:
        @staticmethod
        def columns(names: tuple[str, ...], g: int) -> npt.NDArray[np.float32]:
            return found[names[0]]

    tracemalloc.start()
    try:
        squares = resident_blocks.ResidualSquares(("Ly",), ("y",), values).chunk(Blocks, None, 0)  # type: ignore[arg-type]
        assert tracemalloc.get_traced_memory()[1] < found["y"].nbytes
    finally:
        tracemalloc.stop()
    differences = (found["Ly"] - found["y"] * values.astype(np.float32)).astype(np.float64)
    np.testing.assert_array_equal(squares, np.square(differences).sum(axis=0))


# ---- the solve on U


@pytest.mark.parametrize("workers", [False, True], ids=["one process", "workers"])
def test_the_embedding_in_chunks_is_that_of_one_process(workers: bool, reference: Any, client: Client) -> None:
    context = dataclasses.replace(reference._context, folders={**reference._context.folders, "label": "label-0"})
    executor: Executor = DaskExecutor(client) if workers else SerialExecutor()
    asked = {"wanted": 3, "columns": 9, "tol": 1e-5, "settled": None}
    chunked_label.divide(context, executor, Silent(), MIN_SHARE, 3, asked)
    facts = sample_space.solve_fused(context, executor, Silent())
    expected = label_kernel.spectrum(read_affinity(context), 3, 1e-5, 0, columns=9)
    np.testing.assert_allclose(facts["values"], expected.values, atol=1e-3)
    np.testing.assert_allclose(facts["values"][:3], expected.values[:3], atol=1e-6)
    parts = [label_parts.VECTORS + part_name(b) for b in range(context.n_partitions)]
    vectors = np.concatenate(list(context.store.read_many("label-0", parts, "vectors")))
    cosines = np.linalg.svd(vectors[:, :3].T.astype(np.float64) @ expected.vectors[:, :3])[1]
    np.testing.assert_allclose(cosines, 1.0, atol=1e-4)
    shutil.rmtree(Path(context.store.location or "") / "label-0")
