"""An S3 server behind a bad network: lost acknowledgements and 503 that clients get over, and 503 that stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from proxy import Weather, proxy
from s3_server import S3
from shell import Shell, groups

from ips2_dask import Params, Resources, open_run, run, verify

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

CLUSTERS = 3
OPTIONS = ("--clusters", CLUSTERS, "--partition-rows", 50, "--serial", "--quiet")


def lost_at_first(verb: str, times: int) -> str:
    """Each change is made, and nobody hears of it the first time."""
    return "lost" if verb in ("PUT", "POST", "DELETE") and times == 0 else ""


def busy_at_first(verb: str, times: int) -> str:
    """Each request is refused once."""
    del verb
    return "503" if times == 0 else ""


def fetch_table(folder: Path) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Write the table of a test; (200, f)."""
    X = groups(200)
    np.save(folder / "x.npy", X)
    return X


@pytest.mark.parametrize(("weather", "outcome"), [(lost_at_first, "lost"), (busy_at_first, "503")])
def test_a_client_that_asks_again_gets_the_same_labels(
    weather: Weather, outcome: str, ips2: Shell, in_s3: S3, tmp_path: Path
) -> None:
    X = fetch_table(tmp_path)
    out = in_s3.url(f"unreliable-{outcome}")
    with proxy(in_s3.port, weather=weather) as served:
        there = ips2.where({"AWS_ENDPOINT_URL": served.url})
        there("run", "x.npy", "--out", out, *OPTIONS)
    assert served.outcomes[outcome] > 100
    np.testing.assert_array_equal(open_run(out).labels, run(X, Params(n_clusters=CLUSTERS), Resources()).labels)
    assert verify(out).sound


def test_a_server_that_stays_busy_is_one_line_and_costs_no_finished_part(
    ips2: Shell, in_s3: S3, tmp_path: Path
) -> None:
    X = fetch_table(tmp_path)
    out, puts = in_s3.url("busy"), iter(range(1 << 30))

    def bad_after_a_while(verb: str, times: int) -> str:
        return "503" if verb == "PUT" and next(puts) >= 120 else ""

    with proxy(in_s3.port, weather=bad_after_a_while) as served:
        there = ips2.where({"AWS_ENDPOINT_URL": served.url})
        said = there("run", "x.npy", "--out", out, *OPTIONS, status=2).stderr
    assert len(said.splitlines()) == 1, said
    assert "run the same command again" in said
    ips2("run", "x.npy", "--out", out, *OPTIONS)
    found = open_run(out)
    np.testing.assert_array_equal(found.labels, run(X, Params(n_clusters=CLUSTERS), Resources()).labels)
    assert found.manifest["stages"][0]["skipped"]  # what was finished was kept
