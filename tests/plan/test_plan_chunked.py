"""The plan of runs in chunks: no process needs what grows with the samples, terms are named, and limits are by role."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ips2_dask import IPS2Warning, Params, Refused, Resources, run
from ips2_dask.cli.main import main
from ips2_dask.errors import BadInput
from ips2_dask.params import parse_bytes
from ips2_dask.pipeline.prepare import memory_limits, plan_run
from ips2_dask.plan import memory_chunked
from ips2_dask.plan.checks import check_entries, check_memory, check_shape, disk_warning, keeps_limits
from ips2_dask.plan.choices import choose, partition_bounds
from ips2_dask.plan.document import document
from ips2_dask.plan.plan import Plan, StagePlan, make_plan
from ips2_dask.plan.sizes import Sizes
from ips2_dask.plan.tasks import MAX_TASKS
from ips2_dask.plan.terms import SPILL, Phase, Role
from ips2_dask.readers import open_source

GIB = 1 << 30
TWENTY = Params(n_clusters=20)


def _terms(plan: Plan, stage: str, role: Role, name: str) -> dict[str, int]:
    """The terms of one phase."""
    (one,) = (s for s in plan.stages if s.name == stage)
    (phase,) = (p for p in one.phases if p.role == role and p.name == name)
    return dict(phase.terms)


@pytest.mark.parametrize(
    ("m", "workers", "worker", "driver", "hours"), [(10**8, 200, 8, 4, 1.0), (10**9, 1000, 16, 8, 3.0)]
)
def test_large_runs_fit_into_common_machines(m: int, workers: int, worker: int, driver: int, hours: float) -> None:
    plan = make_plan(m, 64, TWENTY, n_workers=workers)
    assert plan.worker_bytes <= worker * GIB
    assert plan.client_bytes <= driver * GIB
    assert plan.seconds <= hours * 3600
    assert max(stage.tasks_known for stage in plan.stages) <= MAX_TASKS


def test_terms_of_a_large_solve_are_those_that_a_pencil_gives() -> None:
    """100,000,000 samples at k = 5: 11 pairs each, 32 columns in two panels, chunks of 262,144 to 302,144 samples."""
    plan = make_plan(10**8, 64, TWENTY, n_workers=200)
    filter_ = _terms(plan, "eigen", "worker", "filter of pairs")
    # 382 chunks on 200 workers: two on one, 604,288 samples, 6,647,168 pairs; a panel has 16 columns of 4 bytes
    panel = 425.4e6
    assert filter_["other panels of the block"] == pytest.approx(panel, rel=0.01)
    assert filter_["blocks of the filter"] == pytest.approx(2 * panel, rel=0.01)
    # 114 bytes of neighbourhood a sample, 24 a pair, a quarter more for those that two chunks hold
    assert filter_["operators of its chunks"] == pytest.approx(1.25 * 604_288 * (114 + 11 * 24), rel=0.02)
    assert filter_["rows from other workers"] == pytest.approx(0.9 * panel, rel=0.02)
    (eigen,) = (stage for stage in plan.stages if stage.name == "eigen")
    # a checkpoint of 1.1e9 pairs x 32 columns x 4 bytes and half of it more, twice; the start of 1e8 samples
    assert eigen.transient_bytes == pytest.approx(2 * 1.5 * 140.8e9 + 12.8e9, rel=0.01)
    assert eigen.disk_bytes == 20 * 4 * 1_100_000_000
    # 65,524 members of a mean shard, four times that in the largest; two copies of 64 features, 64 values of lists
    search = _terms(plan, "neighbors", "worker", "search")
    assert search["shard"] == pytest.approx(4 * 65_524 * 4 * 192, rel=0.01)


def test_workers_and_samples_in_proportion_leave_a_worker_as_it_is() -> None:
    """At fixed rows of a partition, and samples a worker, no term of a worker grows but by rounding."""
    plans = [
        make_plan(m, 64, Params(n_clusters=20, shards=m // 4_000), rows=16_384, vectors="chunked", n_workers=m // 10**6)
        for m in (512 * 10**6, 1024 * 10**6, 2048 * 10**6)  # all blocks in two panels: larger than `PANELS_TO`
    ]
    few = plans[0]
    for more in plans[1:]:
        for one, other in zip(few.stages, more.stages, strict=True):
            phases = [phase for phase in one.phases if phase.role == "worker"]
            for phase in phases:
                held = _terms(more, other.name, "worker", phase.name)
                grown = {n: (size, held[n]) for n, size in phase.terms if held[n] > 1.08 * size}
                # 200 rows a shard, of which there are 2,500 at most where their number is not given
                assert set(grown) <= {"sample for the cells"}, (one.name, phase.name, grown)


def test_more_workers_need_less_each_down_to_a_floor_that_does_not_follow_the_samples() -> None:
    floors = []
    for m in (16 * 10**6, 64 * 10**6):
        needed = [
            make_plan(m, 16, TWENTY, rows=16_384, vectors="chunked", n_workers=w).worker_bytes
            for w in (1, 4, 16, 64, 256, 4096)
        ]
        assert needed == sorted(needed, reverse=True)
        assert needed[0] > 4 * needed[-1]
        floors.append(needed[-1])
    assert floors[1] <= 1.02 * floors[0]


def test_a_driver_with_as_many_partitions_does_not_follow_the_samples() -> None:
    plans = [
        make_plan(m, 16, Params(n_clusters=20, shards=1000), rows=m // 1000, vectors="chunked", n_workers=20)
        for m in (20 * 10**6, 200 * 10**6)
    ]
    few, many = ({stage.name: stage.peak("driver") for stage in plan.stages} for plan in plans)
    for name, phase in few.items():
        more = many[name]
        assert phase is not None
        assert more is not None
        if name == "ingest":  # which reads a partition now and then
            assert more.bytes - phase.bytes == 24 * 16 * (200_000 - 20_000)
        else:
            assert more.bytes <= phase.bytes


def test_tasks_on_chunks_hold_no_graph_of_all_samples() -> None:
    """One of all samples, of 56 bytes each, would be 5.2 GiB at a hundred million."""
    plan = make_plan(10**8, 64, TWENTY, n_workers=200)
    sizes = [size for stage in plan.stages for phase in stage.phases for _, size in phase.terms]
    assert max(sizes) < 1.25 * GIB


@given(m=st.integers(10**6, 2**31 - 1), f=st.integers(1, 2000), k=st.sampled_from([3, 5, 10]), w=st.integers(1, 2000))
def test_every_peak_is_the_sum_of_its_terms(m: int, f: int, k: int, w: int) -> None:
    plan = make_plan(m, f, Params(n_neighbors=k, n_clusters=7), n_workers=w)
    for stage in plan.stages:
        worker, driver = stage.peak("worker"), stage.peak("driver")
        assert worker is not None
        assert driver is not None
        assert stage.worker_bytes == sum(size for _, size in worker.terms)
        assert stage.client_bytes == sum(size for _, size in driver.terms)
        assert all(size > 0 for phase in stage.phases for _, size in phase.terms)
        assert len({phase.name for phase in stage.phases if phase.role == "worker"}) >= 1
    assert plan.peak_disk_bytes >= plan.disk_bytes


CHOSEN = [
    (10**5, 64, 7, 25, "in-core", 16_384),
    (10**6, 64, 62, 245, "in-core", 25_000),
    (3 * 10**6, 784, 561, 1954, "chunked", 75_000),
    (2 * 10**7, 16, 1221, 2500, "chunked", 262_144),
    (2 * 10**7, 64, 1221, 2500, "chunked", 262_144),
    (8 * 10**7, 64, 2500, 2500, "chunked", 262_144),
]
"""Choices of before partitions, shards and chunks became more for large data: (m, f) and what was chosen."""


@pytest.mark.parametrize(("m", "f", "partitions", "shards", "vectors", "chunk"), CHOSEN)
def test_choices_below_eighty_million_samples_are_those_of_before(
    m: int, f: int, partitions: int, shards: int, vectors: str, chunk: int
) -> None:
    choices = choose(m, f, TWENTY)
    assert (choices.n_shards, choices.vectors, choices.chunk_samples) == (shards, vectors, chunk)
    assert len(partition_bounds(m, f)) - 1 == partitions


def test_larger_data_have_more_partitions_shards_and_chunks_and_workers_enough_to_do() -> None:
    billion, choices = make_plan(10**9, 64, TWENTY, n_workers=1000), choose(10**9, 64, TWENTY)
    assert len(billion.bounds) - 1 == 5000
    assert choices.n_shards == 4096
    assert choices.chunk_samples == 500_000
    assert billion.warnings == ()
    assert choices == make_plan(10**9, 64, TWENTY, n_workers=3).choices


def test_a_filter_has_wide_panels_where_the_memory_is_known_to_suffice() -> None:
    free = make_plan(10**7, 16, TWENTY, n_workers=2)
    filter_ = _terms(free, "eigen", "worker", "filter of pairs")
    block = 4 * filter_["other panels of the block"] / 3  # of 32 columns: three parts of eight, and one of the filter's
    assert filter_["blocks of the filter"] == pytest.approx(2 * block / 4, rel=0.01)
    ample = make_plan(10**7, 16, TWENTY, n_workers=2, worker_limit=1 << 40)
    wide = _terms(ample, "eigen", "worker", "filter of pairs")
    assert "other panels of the block" not in wide
    assert wide["blocks of the filter"] == pytest.approx(2 * block, rel=0.01)
    (eigen, before) = (next(stage for stage in plan.stages if stage.name == "eigen") for plan in (ample, free))
    # of two checkpoints the block before the last product: 24 more of 1.1e8 pairs' columns
    assert eigen.transient_bytes - before.transient_bytes == 2 * 24 * 4 * 110_000_000
    # whatever the limit, a run whose filter is as wide as it allows stays below it, and no plan asks for more
    least = math.ceil(free.worker_bytes / SPILL)
    for limit in np.linspace(least + 1, ample.worker_bytes * 1.2, 12).astype(int).tolist():
        plan = make_plan(10**7, 16, TWENTY, n_workers=2, worker_limit=limit)
        assert plan.blocks == "memory"
        assert free.worker_bytes <= plan.worker_bytes <= limit


def test_wide_panels_leave_room_for_the_copies_of_a_lost_workers_blocks() -> None:
    ample = make_plan(10**8, 64, TWENTY, n_workers=50, worker_limit=1 << 40)
    least = make_plan(10**8, 64, TWENTY, n_workers=50).worker_bytes
    found = []
    for limit in np.linspace(least * 1.2, ample.worker_bytes * 1.2, 16).astype(int).tolist():
        plan = make_plan(10**8, 64, TWENTY, n_workers=50, worker_limit=limit)
        assert plan.worker_bytes <= limit
        (eigen,) = (stage for stage in plan.stages if stage.name == "eigen")
        found += [phase for phase in eigen.phases if phase.name == "filter of pairs in wide panels"]
    assert any("copies for a lost worker" in dict(phase.terms) for phase in found)


def test_blocks_that_do_not_fit_beside_a_filter_go_to_scratch_and_change_no_choice() -> None:
    free = make_plan(10**7, 16, TWENTY, n_workers=4)
    least = math.ceil(free.worker_bytes / SPILL)
    assert make_plan(10**7, 16, TWENTY, n_workers=4, worker_limit=least + 1).blocks == "memory"
    tight = make_plan(10**7, 16, TWENTY, n_workers=4, worker_limit=least - 2)
    assert (free.blocks, tight.blocks) == ("memory", "scratch")
    assert free.scratch_bytes == 0
    assert tight.scratch_bytes > 2 * 4 * 32 * 110_000_000 // 4  # two blocks, of which a worker has a fourth
    assert tight.worker_bytes < free.worker_bytes
    assert tight.choices == free.choices
    filter_, filter_on_scratch = (_terms(plan, "eigen", "worker", "filter of pairs") for plan in (free, tight))
    assert "other panels of the block" not in filter_on_scratch
    # the one before y is in files as well
    assert filter_["blocks of the filter"] == pytest.approx(2 * filter_on_scratch["blocks of the filter"], rel=1e-6)
    assert make_plan(10**5, 16, TWENTY).blocks == "driver"


@pytest.mark.parametrize("limit", [6 * GIB, 12 * GIB])
def test_a_run_with_fewer_pairs_than_the_bound_takes_no_more_than_is_planned(limit: int) -> None:
    """A run of 10 million samples had 77 million pairs of at most 110: its blocks may fit where the plan's do not."""
    plan = make_plan(10**7, 16, TWENTY, n_workers=2, worker_limit=limit)
    assert plan.blocks == "scratch"
    (planned,) = (stage.worker_bytes for stage in plan.stages if stage.name == "eigen")
    sizes = Sizes(10**7, 16, TWENTY, plan.choices, plan.bounds, 2, limit)
    solve = memory_chunked.solve_of_pairs(sizes)
    of_runs = [dataclasses.replace(solve, rows=rows) for rows in range(10**6, solve.rows, 10**6)]  # a run knows it
    in_memory = [one for one in of_runs if not one.needs_scratch(sizes)]
    assert 0 < len(in_memory) < len(of_runs)
    for of_run in in_memory:
        assert max(phase.bytes for phase in of_run.workers(sizes, held=True)) <= planned
    assert planned > 0.95 * SPILL * limit


def test_four_million_samples_are_planned_with_two_workers_of_three_gigabytes() -> None:
    params = Params(n_clusters=10)
    assert make_plan(4_000_000, 16, params, n_workers=2).worker_bytes > 4 << 30
    plan = make_plan(4_000_000, 16, params, n_workers=2, worker_limit=3 << 30)
    assert plan.blocks == "scratch"
    check_memory(plan, 3 << 30, 3 << 30)
    assert plan.worker_bytes <= SPILL * (3 << 30)  # Dask begins to write results to disk there


def test_a_scheduler_of_its_own_takes_its_terms_from_the_driver() -> None:
    shared, apart = (make_plan(10**8, 64, TWENTY, n_workers=200, scheduler_apart=a) for a in (False, True))
    assert shared.scheduler_bytes == 0
    assert apart.scheduler_bytes > 8_500 * max(stage.tasks_known for stage in apart.stages)
    assert apart.client_bytes < shared.client_bytes
    assert apart.worker_bytes == shared.worker_bytes
    source = open_source(np.zeros((500, 4)))
    kubernetes, slurm = (plan_run(source, Params(), Resources(cluster=name)) for name in ("kubernetes", "slurm"))
    assert kubernetes.scheduler_bytes > 0
    assert slurm.scheduler_bytes == 0


def test_a_limit_is_of_a_role_and_its_message_names_stage_phase_and_term() -> None:
    plan = make_plan(10**8, 64, TWENTY, n_workers=200)
    check_memory(plan, 4 * GIB, 2 * GIB)
    with pytest.raises(Refused, match=r"stage eigen needs 3\.\d\d GiB in a worker \(filter of pairs; blocks of"):
        check_memory(plan, 3 * GIB, 2 * GIB)
    with pytest.raises(Refused, match=r"stage label needs 1\.\d\d GiB in the driver .* driver\.memory") as caught:
        check_memory(plan, 4 * GIB, GIB)
    assert len(str(caught.value).splitlines()) == 1
    assert keeps_limits(plan, None, None)
    assert not keeps_limits(plan, GIB, None)


def test_ten_million_samples_fit_where_operators_and_panels_are_read_chunk_by_chunk() -> None:
    params = Params(n_clusters=10)
    plan = make_plan(10**7, 16, params, n_workers=2, worker_limit=3 * GIB)
    check_memory(plan, 3 * GIB, 3 * GIB)
    assert plan.blocks == "scratch"
    terms = {name: {t for t, _ in phase.terms} for stage in plan.stages for name, phase in _phases(stage)}
    assert "operator of a chunk" in terms["filter of pairs"]
    assert "operators of its chunks" not in terms["filter of pairs"]
    wider = make_plan(10**7, 16, params, n_workers=2, worker_limit=8 * GIB)
    terms = {name: {t for t, _ in phase.terms} for stage in wider.stages for name, phase in _phases(stage)}
    assert "operators of its chunks" in terms["filter of pairs"]


def _phases(stage: StagePlan) -> list[tuple[str, Phase]]:
    return [(phase.name, phase) for phase in stage.phases]


def test_copies_for_a_lost_worker_are_made_of_memory_that_is_left() -> None:
    def terms(limit: int | None, workers: int = 200) -> set[str]:
        plan = make_plan(10**8, 64, TWENTY, n_workers=workers, worker_limit=limit)
        assert plan.copies_bytes > 0
        check_memory(plan, limit, None)
        phases = (phase for stage in plan.stages for phase in stage.phases if phase.name == "filter of pairs")
        return {name for phase in phases for name, _ in phase.terms}

    assert "copies for a lost worker" in terms(8 * GIB)
    assert "copies for a lost worker" not in terms(4 * GIB)
    assert "copies for a lost worker" not in terms(None)
    assert make_plan(10**7, 16, TWENTY, n_workers=4, worker_limit=64 * GIB).copies_bytes == 0


def test_a_worker_s_limit_is_planned_with_up_to_where_dask_writes_results_to_disk() -> None:
    plan = make_plan(10**8, 64, TWENTY, n_workers=200)
    least = math.ceil(plan.worker_bytes / SPILL)
    check_memory(plan, least + 1, None)
    with pytest.raises(Refused, match=r"0\.9 of which a plan counts on") as caught:
        check_memory(plan, plan.worker_bytes, None)
    found = re.search(r"memory_limit=.(\w[\w.]*)", str(caught.value))
    assert found is not None
    check_memory(plan, parse_bytes(found[1]), None)


def test_a_scheduler_s_pod_is_too_small_for_many_tasks_and_the_line_says_so() -> None:
    plan = make_plan(10**8, 64, TWENTY, n_workers=200, scheduler_apart=True)
    check_memory(plan, None, None, plan.scheduler_bytes)
    with pytest.raises(Refused, match=r"GiB in the scheduler \(.*Remedy: give driver\.memory: .*GiB in") as caught:
        check_memory(plan, None, None, plan.scheduler_bytes - 1)
    assert "\n" not in str(caught.value)
    together = make_plan(10**8, 64, TWENTY, n_workers=200)
    check_memory(together, None, None, 1)  # its scheduler is in the driver
    shape = open_source(np.zeros((500, 4)))
    resources = Resources(cluster="kubernetes")
    assert memory_limits(resources)[2] == 4 * GIB
    assert plan_run(shape, Params(), resources).scheduler_bytes > 0


def test_samples_that_int32_cannot_number_are_refused() -> None:
    check_shape(2**31 - 1, 4, Params(), "data")
    with pytest.raises(BadInput) as caught:
        check_shape(2**31, 4, Params(), "data")
    assert caught.value.found == "2,147,483,648 samples"
    assert main(["plan", "--shape", "2147483648x4"]) == 2


@pytest.mark.parametrize(
    ("m", "params", "vectors", "matrix"),
    [
        (10**8, TWENTY, "in-core", "fused similarity"),
        (10**8, Params(tensor="decomposable"), "auto", "fused similarity"),
        (10**7, Params(operator="triplets"), "in-core", "tensor"),
    ],
)
def test_matrices_in_core_that_int32_cannot_number_are_refused(
    m: int, params: Params, vectors: str, matrix: str
) -> None:
    plan = make_plan(m, 4, params, vectors=vectors)
    with pytest.raises(BadInput, match=matrix) as caught:
        check_entries(plan, params)
    assert "chunked" in caught.value.remedy
    check_entries(make_plan(10**6, 4, params, vectors=vectors), params)
    if params.tensor == "indecomposable":
        check_entries(make_plan(m, 4, params, vectors="chunked"), params)


def test_a_disk_that_is_too_small_is_warned_about(tmp_path: Path) -> None:
    text = disk_warning(make_plan(2 * 10**9, 64, TWENTY), tmp_path / "not" / "there")
    assert text is not None
    assert str(tmp_path) in text
    assert disk_warning(make_plan(1000, 4, Params()), tmp_path) is None


def test_a_run_warns_of_a_disk_that_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1 << 10}))
    with pytest.warns(IPS2Warning, match=r"has 1\.0 KiB free"):
        run(np.random.default_rng(1).normal(size=(60, 3)), Params(n_clusters=2), store=tmp_path / "run")


def _json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    main(["plan", *arguments, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_plan_as_json_has_every_term_and_the_keys_that_its_page_explains(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = _json(["--shape", "100000000x64", "--clusters", "20", "--workers", "200"], capsys)
    assert found["fits"]
    plan = make_plan(10**8, 64, TWENTY, n_workers=200)
    assert {key: value for key, value in found.items() if key != "fits"} == document(plan)
    for stage in found["stages"]:
        for role in ("worker", "driver"):
            memory = stage["memory"][role]
            phases = memory["phases"]
            assert all(phase["bytes"] == sum(phase["terms"].values()) for phase in phases.values())
            assert memory["bytes"] == phases[memory["phase"]]["bytes"] == max(p["bytes"] for p in phases.values())
        assert stage["memory"]["scheduler"] is None
    page = (Path(__file__).parents[2] / "docs" / "plan.md").read_text()
    explained = set(re.findall(r"^\| `([a-z_.\[\]]+)` \|", page, re.MULTILINE))
    assert explained == _keys({**found, "stages": found["stages"][0]})


def _keys(value: dict[str, Any], before: str = "") -> set[str]:
    """Dotted names of the keys that are not names of phases and terms."""
    keys: set[str] = set()
    for name, inner in value.items():
        dotted = f"{before}{name}" + ("[]" if name == "stages" else "")
        if not isinstance(inner, dict) or name == "phases":
            keys.add(dotted)
        elif before == "stages[]." and name == "memory":
            keys |= {f"{dotted}.{key}" for key in inner["worker"]}
        else:
            keys |= _keys(inner, dotted + ".")
    return keys


def test_the_plan_as_json_says_that_a_limit_is_too_small(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "--shape", "1000000x64", "--memory-limit", "1GiB", "--json"]
    assert main(arguments) == 4
    assert json.loads(capsys.readouterr().out)["fits"] is False


def test_a_plan_for_distinct_samples_keeps_limits_and_roles() -> None:
    plan = make_plan(10**7, 16, TWENTY, n_workers=4, worker_limit=6 * GIB, scheduler_apart=True)
    fewer = plan.of_distinct(9 * 10**6, TWENTY)
    assert dataclasses.asdict(fewer.request) == dataclasses.asdict(plan.request)
    assert fewer.scheduler_bytes > 0


def test_a_solve_that_reads_what_does_not_fit_is_planned_to_take_longer() -> None:
    recorded = json.loads((Path(__file__).parents[2] / "notebooks" / "results" / "ten-million-3gib.json").read_text())
    (taken,) = (record["seconds"] for record in recorded["results"] if record["stage"] == "eigen")
    free, on_scratch, streamed = (
        make_plan(10**7, 16, Params(n_clusters=10), worker_limit=limit) for limit in (None, 5 * 2**30, 3 * 2**30)
    )
    seconds = [
        next(stage.seconds for stage in plan.stages if stage.name == "eigen") for plan in (free, on_scratch, streamed)
    ]
    assert seconds[0] < seconds[1] < seconds[2]
    assert taken / 3 < seconds[2] < 3 * taken
