"""The plan is kept: what a run's processes hold at most, stage by stage, is what was projected, and not far below."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ips2_dask.bench import runs
from ips2_dask.params import Params, Resources

SIZES = (3_000, 12_000, 48_000)
PARTS = {"peak_bytes": "projected_bytes", "peak_client_bytes": "projected_client_bytes"}
WAYS: dict[str, tuple[Params, Resources]] = {
    "in core": (Params(n_clusters=10), Resources(n_workers=2)),
    "chunked": (Params(n_clusters=10), Resources(n_workers=2, vectors="chunked")),
    "matrix-free": (Params(n_clusters=10, n_neighbors=8), Resources(n_workers=2)),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.slow if way == "in core" else pytest.mark.long) for way in WAYS]
)
def test_no_stage_takes_more_than_the_plan_says_and_the_largest_not_far_less(way: str, tmp_path: Path) -> None:
    params, resources = WAYS[way]
    found: list[dict[str, Any]] = [
        r for r in runs.timed([(m, 2) for m in SIZES], 32, runs.How(params, resources, tmp_path), warm_up=False)
    ]
    stages = [r for r in found if r["stage"] not in ("start", "total")]
    assert {r["outcome"] for r in found} == {"finished"}
    assert {r["m"] for r in stages} == set(SIZES)
    over = [
        (r["m"], r["stage"], peak, r[peak] >> 20, r[projected] >> 20)
        for r in stages
        for peak, projected in {**PARTS, "peak_worker_bytes": "projected_worker_bytes"}.items()
        if r[peak] is not None and r[peak] > r[projected]
    ]
    assert over == []
    loose = [
        (r["stage"], r["peak_bytes"] >> 20, r["projected_bytes"] >> 20)
        for r in stages
        if r["m"] == SIZES[-1] and r["peak_bytes"] is not None and r["projected_bytes"] > 3 * r["peak_bytes"]
    ]
    assert loose == []
