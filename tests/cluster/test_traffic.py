"""What passes the scheduler while eigenvectors are found does not grow with the data, and is little beside the rest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import traffic

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="the bytes of connections are counted by Linux"),
]


def test_vectors_go_from_worker_to_worker_and_only_small_matrices_by_the_scheduler(tmp_path: Path) -> None:
    found = []
    for samples in (5_000, 20_000):
        (tmp_path / str(samples)).mkdir()
        found.append(traffic.measure(samples, tmp_path / str(samples), rows=samples // 8))
    small, large = found
    assert small.chunks == large.chunks == 4
    assert large.scheduler < 1.5 * small.scheduler  # heartbeats take their part, and the larger one takes longer
    assert large.workers > 3 * small.workers
    assert large.share < 0.01
