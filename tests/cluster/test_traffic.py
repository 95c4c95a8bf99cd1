"""What passes the scheduler while eigenvectors are found does not grow with the data, and is little beside the rest."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
import traffic

from ips2_dask.plan.plan import make_plan
from ips2_dask.plan.traffic import Case, product_traffic

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="the bytes of connections are counted by Linux"),
]


def test_vectors_go_from_worker_to_worker_and_only_small_matrices_by_the_scheduler(tmp_path: Path) -> None:
    found = []
    for samples in (20_000, 80_000):
        (tmp_path / str(samples)).mkdir()
        found.append(traffic.measure(samples, tmp_path / str(samples), rows=samples // 8))
    small, large = found
    assert small.chunks == large.chunks == 4
    assert small.products == large.products  # what is sent once counts alike
    assert large.scheduler < 1.5 * small.scheduler  # heartbeats take their part, and the larger one takes longer
    assert large.workers > 3 * small.workers
    assert large.share < 0.01


@pytest.mark.parametrize(("samples", "parts"), [(12_000, 8), (30_000, 12)])
def test_the_model_of_a_plan_bounds_what_is_measured_at_sizes_that_it_was_not_made_from(
    samples: int, parts: int, tmp_path: Path
) -> None:
    rows = samples // parts
    found = traffic.measure(samples, tmp_path, rows=rows, shards=parts, spread=1.5)
    plan = make_plan(samples, 16, dataclasses.replace(traffic.PARAMS, shards=parts), rows=rows, vectors="chunked")
    case = Case(found.shared)
    modelled = product_traffic(plan, traffic.PARAMS, 2, case)
    print(found, modelled, sep="\n")
    assert modelled is not None
    assert 0.7 < modelled.tasks / found.tasks < 1.4  # cells are not of one size, nor are chunks then
    assert 1 <= modelled.block / found.block < 1.5  # the model's pairs a sample are a bound
    assert 1 / 1.5 < modelled.scheduler / found.scheduler < 2
    # blocks as small as these go to idle workers as a whole now and then; the model counts what a product asks for
    assert modelled.workers * found.block / modelled.block < found.workers < modelled.workers + 1.5 * found.block
    assert found.share < modelled.share
