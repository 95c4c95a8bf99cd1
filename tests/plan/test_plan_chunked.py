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
from ips2_dask.clusters.resources import machines_of
from ips2_dask.errors import BadInput
from ips2_dask.fields import parse_bytes
from ips2_dask.params import check_shape
from ips2_dask.pipeline.prepare import plan_run
from ips2_dask.plan.choices import choose, partition_bounds
from ips2_dask.plan.plan import Plan, check_entries, check_memory, disk_warning, keeps_limits, make_plan
from ips2_dask.plan.sizes import Role
from ips2_dask.plan.work import MAX_TASKS, USABLE
from ips2_dask.readers import open_source

GIB = 1 << 30
TWENTY = Params(n_clusters=20)


def _terms(plan: Plan, stage: str, role: Role, name: str) -> dict[str, int]:
    """The terms of one phase."""
    (one,) = (s for s in plan.stages if s.name == stage)
    (phase,) = (p for p in one.phases if p.role == role and p.name == name)
    return dict(phase.terms)


@pytest.mark.parametrize(
    ("m", "workers", "worker", "driver", "hours"), [(10**8, 200, 3, 1.5, 0.3), (10**9, 1000, 6, 2.5, 0.7)]
)
def test_large_runs_fit_into_common_machines(m: int, workers: int, worker: int, driver: float, hours: float) -> None:
    plan = make_plan(m, 64, TWENTY, n_workers=workers)
    assert plan.worker_bytes <= worker * GIB
    assert plan.client_bytes <= driver * GIB
    assert plan.seconds <= hours * 3600
    assert max(stage.tasks_known for stage in plan.stages) <= MAX_TASKS


def test_terms_of_a_large_solve_are_those_that_a_pencil_gives() -> None:
    """100,000,000 samples at k = 5, 32 columns, 191 chunks of 524,288 samples on 200 workers."""
    plan = make_plan(10**8, 64, TWENTY, n_workers=200)
    chunk, block = 524_288, 524_288 * 32 * 4
    filter_ = _terms(plan, "eigen", "worker", "filter of the sample graph")
    assert filter_["blocks of the filter"] == pytest.approx(3 * block, rel=0.01)
    # y, the one before it and the result, and twice the rows that are touched: as they come, and side by side
    assert filter_["product of a chunk"] == pytest.approx((3 + 2 * 1.75) * block, rel=0.01)
    # nine entries of a row, each an int32 and a float32, and 40 bytes of a node
    assert filter_["matrix of its chunks"] == pytest.approx(chunk * (9 * 8 + 40), rel=0.01)
    pairs = _terms(plan, "eigen", "worker", "sums of pairs")
    # 11 pairs of a sample at most: X, L X and what they are made of, of 16,384 samples
    assert pairs["columns of its pairs"] == pytest.approx(16_384 * 11 * 3 * 32 * 4, rel=0.01)
    (eigen,) = (stage for stage in plan.stages if stage.name == "eigen")
    assert eigen.disk_bytes == 32 * 4 * 10**8
    # 65,524 members of a mean shard, four times that in the largest; two copies of 64 features, 64 values of lists
    search = _terms(plan, "neighbors", "worker", "search")
    assert search["shard"] == pytest.approx(4 * 65_524 * 4 * 192, rel=0.01)


def test_no_task_and_no_process_holds_vectors_of_all_pairs() -> None:
    """Of a million samples at k = 5 they would be 1.3 GiB."""
    for vectors in ("in-core", "chunked"):
        plan = make_plan(10**6, 64, TWENTY, vectors=vectors)
        assert not plan.choices.exact
        (eigen,) = (stage for stage in plan.stages if stage.name == "eigen")
        assert all(size < GIB for phase in eigen.phases for _, size in phase.terms)


def test_results_that_do_not_fit_go_to_disk_and_change_no_choice() -> None:
    free = make_plan(10**7, 16, TWENTY, n_workers=2)
    assert make_plan(10**7, 16, TWENTY, n_workers=2, worker_limit=2 * free.worker_bytes).blocks == "memory"
    tight = make_plan(10**7, 16, TWENTY, n_workers=2, worker_limit=3 * GIB)
    assert (free.blocks, tight.blocks) == ("memory", "disk")
    assert free.scratch_bytes == 0
    assert tight.scratch_bytes > 3 * 4 * 32 * 10**7 // 2  # three blocks, of which a worker has half
    assert tight.worker_bytes < free.worker_bytes
    assert tight.choices == free.choices
    check_memory(tight, 3 * GIB, 3 * GIB)
    assert make_plan(10**5, 16, TWENTY).blocks == "driver"


def test_a_limit_is_of_a_role_and_its_message_names_stage_phase_and_term() -> None:
    plan = make_plan(10**8, 64, TWENTY, n_workers=200)
    check_memory(plan, 3 * GIB, 2 * GIB)
    with pytest.raises(Refused, match=r"stage label needs 1\.\d\d GiB in a worker \(") as caught:
        check_memory(plan, GIB, 2 * GIB)
    with pytest.raises(Refused, match=r"stage label needs 1\.\d\d GiB in the driver .* driver\.memory") as caught:
        check_memory(plan, 4 * GIB, GIB)
    assert len(str(caught.value).splitlines()) == 1
    assert keeps_limits(plan, None, None)
    assert not keeps_limits(plan, GIB, None)


def test_a_solve_on_pairs_that_does_not_fit_is_refused_with_what_it_takes_and_that_labels_need_none() -> None:
    params = dataclasses.replace(TWENTY, tol=1e-3)
    plan = make_plan(10**7, 16, params)
    assert plan.choices.exact
    with pytest.raises(Refused, match=r"stage eigen needs \d+\.\d\d GiB in the driver .*labels do not need") as caught:
        check_memory(plan, None, 8 * GIB)
    assert "tol" in str(caught.value)
    check_memory(make_plan(10**7, 16, TWENTY), None, 8 * GIB)  # the remedy


def test_workers_and_samples_in_proportion_leave_a_worker_as_it_is() -> None:
    """At fixed rows of a partition, and samples a worker, no term of a worker grows but by rounding."""
    plans = [
        make_plan(m, 64, Params(n_clusters=20, shards=m // 4_000), rows=16_384, vectors="chunked", n_workers=m // 10**6)
        for m in (512 * 10**6, 1024 * 10**6, 2048 * 10**6)
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
        for m in (100 * 10**6, 200 * 10**6)
    ]
    few, many = ({stage.name: stage.peak("driver") for stage in plan.stages} for plan in plans)
    for name, phase in few.items():
        more = many[name]
        assert phase is not None
        assert more is not None
        if name == "ingest":  # which reads a partition now and then
            assert more.bytes - phase.bytes == 24 * 16 * (200_000 - 100_000)
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
    (10**5, 64, 7, 64, "in-core", 16_384),
    (10**6, 64, 62, 640, "in-core", 62_500),
    (3 * 10**6, 784, 561, 1954, "chunked", 187_500),
    (2 * 10**7, 16, 1221, 2500, "chunked", 524_288),
    (2 * 10**7, 64, 1221, 2500, "chunked", 524_288),
    (8 * 10**7, 64, 2500, 2500, "chunked", 524_288),
]
"""Choices for data of fewer than eighty million samples: (m, f) and what is chosen."""


@pytest.mark.parametrize(("m", "f", "partitions", "shards", "vectors", "chunk"), CHOSEN)
def test_choices_below_eighty_million_samples(
    m: int, f: int, partitions: int, shards: int, vectors: str, chunk: int
) -> None:
    choices = choose(m, f, TWENTY)
    assert (choices.n_shards, choices.vectors, choices.chunk_samples) == (shards, vectors, chunk)
    assert len(partition_bounds(m, f)) - 1 == partitions


def test_larger_data_have_more_partitions_shards_and_chunks_and_workers_enough_to_do() -> None:
    billion, choices = make_plan(10**9, 64, TWENTY, n_workers=1000), choose(10**9, 64, TWENTY)
    assert len(billion.bounds) - 1 == 5000
    assert choices.n_shards == 4096
    assert choices.chunk_samples == 1_000_000
    assert billion.warnings == ()
    assert choices == make_plan(10**9, 64, TWENTY, n_workers=3).choices


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


def test_a_worker_s_limit_is_planned_with_up_to_where_dask_writes_results_to_disk() -> None:
    plan = make_plan(10**8, 64, TWENTY, n_workers=200)
    least = math.ceil(plan.worker_bytes / USABLE)
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
    assert machines_of(resources).limits[2] == 4 * GIB
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
        (2 * 10**8, TWENTY, "in-core", "fused similarity"),
        (2 * 10**8, Params(tensor="decomposable"), "auto", "fused similarity"),
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
    assert {key: value for key, value in found.items() if key != "fits"} == plan.document()
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


def test_a_solve_whose_results_go_to_disk_is_planned_to_take_longer() -> None:
    free, spilled = (make_plan(10**7, 16, Params(n_clusters=10), worker_limit=limit) for limit in (None, 3 * 2**30))
    assert spilled.seconds > 1.1 * free.seconds
