"""The plan follows from shapes alone, holds what a run needs, and refuses before anything is computed."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import pickle
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ips2_dask import Params, Refused, Resources, run
from ips2_dask.cli.main import main
from ips2_dask.errors import BadInput
from ips2_dask.executors.base import Job, Report, SerialExecutor
from ips2_dask.fields import parse_bytes
from ips2_dask.params import check_shape
from ips2_dask.pipeline.execution import execute
from ips2_dask.pipeline.prepare import Inputs, plan_run, prepare
from ips2_dask.plan.choices import LARGE_PARTITION, MAX_PARTITIONS, choose, partition_bounds
from ips2_dask.plan.plan import check_memory, make_plan
from ips2_dask.plan.work import MAX_TASKS, SCHEDULER_TASK, USABLE
from ips2_dask.progress import Progress
from ips2_dask.readers import open_source
from ips2_dask.store.context import Context
from ips2_dask.store.integrity import Receipt
from ips2_dask.store.layout import STAGES
from ips2_dask.store.zarr_store import ZarrStore


@given(m=st.integers(2, 10**9), f=st.integers(1, 10**5))
def test_partitions_cover_all_samples_once_and_are_not_too_many(m: int, f: int) -> None:
    few, many = MAX_PARTITIONS
    rows = min(-(-m // few), max(-(-m // many), LARGE_PARTITION))
    bounds = partition_bounds(m, f)
    assert bounds[0] == 0
    assert bounds[-1] == m
    assert len(bounds) - 1 <= many
    widths = {b - a for a, b in itertools.pairwise(bounds[:-1])}
    assert len(widths) <= 1  # all but the last are equally long
    assert all(1024 <= width <= max(16384, rows) for width in widths)
    assert 0 < bounds[-1] - bounds[-2] <= max(16384, rows)


@given(m=st.integers(1, 500), rows=st.integers(1, 600))
def test_partitions_of_a_given_length(m: int, rows: int) -> None:
    bounds = partition_bounds(m, 3, rows)
    assert [min(rows, m - a) for a in range(0, m, rows)] == [b - a for a, b in itertools.pairwise(bounds)]


def test_wide_data_gets_shorter_partitions_down_to_1024() -> None:
    lengths = [partition_bounds(10**6, f)[1] for f in (1, 100, 784, 4096, 10**5)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 16384
    assert lengths[-1] == 1024
    assert 4 * 784 * lengths[2] <= 16 << 20


@pytest.mark.parametrize("n_workers", [1, 2, 7])
def test_partitions_do_not_depend_on_workers_or_memory(n_workers: int) -> None:
    source = open_source(np.zeros((5000, 10)))
    few, many = (
        plan_run(source, Params(), Resources(n_workers=n_workers, memory_limit=limit)) for limit in (None, 8 << 30)
    )
    assert few.bounds == many.bounds == plan_run(source, Params(), Resources()).bounds


@pytest.mark.parametrize(
    ("m", "f", "params", "thing", "found"),
    [
        (1, 4, Params(n_clusters=2), "data", "n_samples = 1"),
        (10, 0, Params(n_clusters=2), "data", "0 feature"),
        (6, 4, Params(n_clusters=7, n_neighbors=2), "n_clusters", "7 with 6 samples"),
        (6, 4, Params(n_clusters=2, n_neighbors=7), "n_neighbors", "7 with 6 samples"),
    ],
)
def test_a_shape_that_cannot_be_clustered_is_named(m: int, f: int, params: Params, thing: str, found: str) -> None:
    with pytest.raises(BadInput) as caught:
        check_shape(m, f, params, "data")
    assert caught.value.thing == thing
    assert found in caught.value.found


def test_as_many_clusters_or_neighbours_as_samples_are_allowed() -> None:
    check_shape(6, 1, Params(n_clusters=6, n_neighbors=6), "data")


def test_a_bad_shape_is_refused_before_the_run_directory_exists(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="n_neighbors"):
        run(np.zeros((4, 2)), Params(n_clusters=2), store=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_the_plan_has_every_stage_once_in_order() -> None:
    plan = make_plan(1000, 10, Params())
    assert tuple(stage.name for stage in plan.stages) == STAGES
    assert all(stage.tasks >= 1 and stage.what and stage.disk_bytes > 0 for stage in plan.stages)
    assert plan.worker_bytes == max(stage.worker_bytes for stage in plan.stages)
    assert plan.disk_bytes == sum(stage.disk_bytes for stage in plan.stages)


def test_vectors_are_cut_where_samples_or_neighbours_make_their_blocks_large() -> None:
    def chosen(m: int, k: int) -> str:
        return choose(m, 64, Params(n_clusters=20, n_neighbors=k)).vectors

    assert [chosen(m, 5) for m in (10**5, 10**6, 3 * 10**6)] == ["in-core", "in-core", "chunked"]
    assert [chosen(10**6, k) for k in (3, 10, 20)] == ["in-core", "in-core", "chunked"]


@given(
    m=st.integers(200, 10**6),
    f=st.integers(1, 2000),
    k=st.integers(2, 30),
    c=st.integers(2, 60),
    what=st.sampled_from(["m", "f", "k", "c"]),
)
def test_more_of_anything_never_needs_less_memory_where_the_same_is_chosen(
    m: int, f: int, k: int, c: int, what: str
) -> None:
    more = {"m": (2 * m, f, k, c), "f": (m, 2 * f, k, c), "k": (m, f, k + 1, c), "c": (m, f, k, c + 1)}[what]
    smaller, larger = (
        make_plan(size[0], size[1], Params(n_neighbors=size[2], n_clusters=size[3]), rows=1024)
        for size in ((m, f, k, c), more)
    )
    assume(
        dataclasses.replace(larger.choices, n_shards=0, exact_after=False)
        == dataclasses.replace(smaller.choices, n_shards=0, exact_after=False)
    )
    assert larger.client_bytes >= smaller.client_bytes
    assert larger.worker_bytes >= smaller.worker_bytes
    assert larger.disk_bytes >= smaller.disk_bytes


def test_an_input_that_has_to_be_held_whole_is_counted() -> None:
    free, held = (make_plan(1000, 10, Params(), resident=bytes_).stages[0].client_bytes for bytes_ in (0, 1 << 30))
    assert held - free == 1 << 30


def test_too_little_memory_is_refused_with_a_limit_that_would_do() -> None:
    plan = make_plan(200_000, 64, Params(n_neighbors=10))
    with pytest.raises(Refused) as caught:
        check_memory(plan, 1 << 30, 1 << 30)
    assert caught.value.exit_status == 4
    found = re.search(r"memory_limit=.(\w[\w.]*)", str(caught.value))
    assert found is not None
    worst = max(plan.stages, key=lambda stage: stage.worker_bytes)  # workers are looked at first
    assert f"stage {worst.name} needs" in str(caught.value)
    assert "in a worker (sums of pairs; touched pairs: " in str(caught.value)
    check_memory(plan, parse_bytes(found[1]), parse_bytes(found[1]))
    with pytest.raises(Refused, match=r"in a worker .*worker\.memory: [\d.]+GiB in a cluster's file"):
        check_memory(plan, 1 << 29, None)


def test_no_limit_and_a_generous_one_are_accepted() -> None:
    plan = make_plan(1000, 10, Params())
    check_memory(plan, None, None)
    check_memory(plan, math.ceil(plan.worker_bytes / USABLE), plan.client_bytes)
    with pytest.raises(Refused, match="in the driver"):
        check_memory(plan, None, plan.client_bytes - 1)


def test_a_run_over_its_limit_is_refused_before_the_run_directory_exists(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="memory_limit"):
        run(np.zeros((100, 4)), Params(), Resources(memory_limit=64 << 20), store=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_fewer_than_two_partitions_a_worker_are_warned_about() -> None:
    assert make_plan(90, 2, Params(), rows=30, n_workers=2).warnings
    assert not make_plan(120, 2, Params(), rows=30, n_workers=2).warnings
    assert not make_plan(90, 2, Params(), rows=90, n_workers=2).warnings


@pytest.mark.parametrize("k", [2, 5, 12])
def test_a_run_has_no_more_pairs_and_entries_than_its_plan_says(k: int) -> None:
    X = np.random.default_rng(k).normal(size=(400, 30))
    params = Params(n_clusters=2, n_neighbors=k)
    report = run(X, params).report()
    what = next(stage.what for stage in make_plan(400, 30, params).stages if stage.name == "tensor")
    pairs, entries = (int(number.replace(",", "")) for number in re.findall(r"([\d,]+) \w+ at most", what))
    assert report["P"] <= pairs
    assert report["nnz"] <= 2 * entries


def test_a_plan_can_be_sent_to_another_process() -> None:
    plan = make_plan(1000, 10, Params())
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_the_seconds_of_a_plan_are_about_those_that_were_measured() -> None:
    recorded = json.loads((Path(__file__).parents[2] / "notebooks" / "results" / "scaling.json").read_text())
    taken = [r for r in recorded["results"] if r["kind"] == "time" and r["seconds"] > 1 and r["stage"] in STAGES]
    assert len(taken) > 15
    taken = [r for r in taken if r["stage"] != "eigen"]  # recorded when pairs were solved for
    for record in taken:
        params = Params(n_clusters=record["c"], n_neighbors=record["k"])
        plan = make_plan(record["m"], record["f"], params, n_workers=record["workers"])
        (stage,) = (s for s in plan.stages if s.name == record["stage"])
        assert record["seconds"] / 3 < stage.seconds < 3 * record["seconds"], record


def test_more_workers_make_a_plan_shorter_and_a_smaller_tolerance_makes_it_longer() -> None:
    plans = [make_plan(100_000, 50, Params(tol=tol), n_workers=n) for tol, n in ((1e-3, 2), (1e-3, 8), (1e-6, 2))]
    assert plans[1].seconds < plans[0].seconds < plans[2].seconds
    assert [sum(s.products for s in plan.stages) for plan in plans] == [60, 60, 120]


@given(m=st.integers(10**5, 10**9), f=st.integers(1, 10**4), k=st.sampled_from([5, 10]), c=st.integers(2, 40))
def test_no_stage_has_more_tasks_than_a_scheduler_can_hand_out(m: int, f: int, k: int, c: int) -> None:
    plan = make_plan(m, f, Params(n_neighbors=k, n_clusters=c), n_workers=2)
    assert all(stage.tasks <= 50_000 or SCHEDULER_TASK * stage.tasks < 0.15 * stage.seconds for stage in plan.stages)
    assert max(stage.tasks_known for stage in plan.stages) <= MAX_TASKS
    assert not [text for text in plan.warnings if "scheduler" in text]


def test_too_many_tasks_that_were_asked_for_are_warned_about() -> None:
    (text,) = make_plan(10**7, 4, Params(), rows=100).warnings
    assert "use larger partitions" in text


def test_chunks_of_vectors_that_are_too_few_for_the_workers_are_warned_about() -> None:
    few, enough = (make_plan(10**7, 64, Params(), vectors="chunked", n_workers=n).warnings for n in (23, 22))
    assert any("20 chunks of vectors for 23 workers" in text for text in few)
    assert not enough


@pytest.mark.slow
def test_a_sharded_run_has_the_tasks_that_its_plan_says(tmp_path: Path) -> None:
    counted: Counter[str] = Counter()

    class Counting(SerialExecutor):
        def map(self, job: Job, context: Context, items: Sequence[Any], report: Report) -> list[Receipt]:
            counted[job.stage] += len(items)
            return super().map(job, context, items, report)

    X = np.random.default_rng(1).normal(size=(900, 5))
    X[400] = X[5]  # so that equal rows are looked for to the end
    source, resources = open_source(X), Resources(partition_rows=100, vectors="chunked")
    params = Params(n_clusters=3, shards=6)
    prepared = prepare(Inputs(source), params, resources)
    plan = prepared.plan
    execute(prepared, ZarrStore(str(tmp_path / "run")), Counting(), Progress())
    planned = {stage.name: stage.tasks for stage in plan.stages}
    for stage in ("ingest", "neighbors", "tensor", "assemble", "fuse"):
        assert 0 < counted[stage] <= planned[stage], stage
    for stage in ("ingest", "neighbors"):
        assert planned[stage] / 2 < counted[stage], stage


def test_the_plan_of_a_shape_needs_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--shape", "1000x20"]) == 0
    assert "1,000 samples x 20 features" in capsys.readouterr().out
    assert main(["plan", "--shape", "100000x64"]) == 0
    assert "if it stays below 0.95, an exact search follows: about 51 s more" in capsys.readouterr().out
    assert main(["plan", "--shape", "1000000x64"]) == 0
    assert "exact search" not in capsys.readouterr().out
    for given_ in ([], ["x.npy", "--shape", "1000x20"], ["--shape", "1000"]):
        assert main(["plan", *given_]) == 2
        assert "--shape" in capsys.readouterr().err


def test_the_large_plan_of_docs_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "plan.md").read_text()
    asked = re.search(r"^\$ ips2 (plan --shape .*)\n((?:.*\n)*?)```", text, re.MULTILINE)
    assert asked is not None
    assert main(asked[1].split()) == 0
    said = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert said == asked[2].splitlines()
