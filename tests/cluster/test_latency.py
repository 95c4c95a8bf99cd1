"""The driver of a run waits for few requests to its store one after another, since each of them takes 25 ms."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from latency import spans_of
from proxy import Proxy, Request, one_after_another, proxy, within
from request_table import OUTSIDE
from s3_server import S3
from shell import groups

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

DELAY = 0.025
ROWS = 60
PARTITIONS = (8, 24)
MOST_A_PARTITION = 2.0
"""Requests of the driver one after another that a further partition may take, over all stages."""


@pytest.fixture
def slow(in_s3: S3) -> Iterator[Proxy]:
    """A server before the store that takes its time."""
    with proxy(in_s3.port, DELAY) as served:
        yield served


def requests_of(slow: Proxy, in_s3: S3, partitions: int, folder: Path) -> dict[str, list[Request]]:
    """The driver's requests in each stage of a sharded run in chunks; workers go to the store behind ``slow``."""
    source = folder / f"{partitions}.npy"
    np.save(source, groups(ROWS * partitions))
    slow.requests.clear()
    spans = spans_of(str(source), partitions, in_s3.url(f"latency-{uuid.uuid4().hex[:8]}"), slow.url)
    found = {stage: within(slow.requests, *span) for stage, span in spans.items()}
    inside = {id(request) for requests in found.values() for request in requests}
    return {**found, OUTSIDE: [request for request in slow.requests if id(request) not in inside]}


def test_a_partition_takes_few_requests_of_the_driver_one_after_another(slow: Proxy, in_s3: S3, tmp_path: Path) -> None:
    few, many = (requests_of(slow, in_s3, partitions, tmp_path) for partitions in PARTITIONS)
    more, total = PARTITIONS[1] - PARTITIONS[0], 0.0
    print(f"\n{'requests of the driver':25}{'all':>14}{'in turn':>14}   a further partition takes in turn")
    for stage in few:
        chains = [one_after_another(requests[stage]) for requests in (few, many)]
        total += (chains[1] - chains[0]) / more
        print(
            f"{stage:25}{len(few[stage]):7}{len(many[stage]):7}{chains[0]:7}{chains[1]:7}   "
            f"{(chains[1] - chains[0]) / more:.2f}"
        )
    print(f"{'in all':25}{'':28}   {total:.2f}")
    assert total <= MOST_A_PARTITION


def test_requests_in_turn_are_told_from_those_side_by_side() -> None:
    def request(begun: float, ended: float) -> Request:
        return Request(begun, ended, "GET", "/")

    assert one_after_another([]) == 0
    assert one_after_another([request(0, 1), request(0, 1), request(0.5, 1.5)]) == 1
    assert one_after_another([request(0, 1), request(1, 2), request(0.5, 1.5), request(2, 3)]) == 3
