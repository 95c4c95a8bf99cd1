"""An S3 server behind a bad network: lost acknowledgements and 503 that clients get over, and 503 that stay."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from s3_server import S3
from shell import Shell, groups

from ips2_dask import Params, Resources, open_run, run, verify

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

CLUSTERS = 3
OPTIONS = ("--clusters", CLUSTERS, "--partition-rows", 50, "--serial", "--quiet")
HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive", "server", "date"}

Weather = Callable[[str, int], str]
"""From a request's verb and how often it was sent before to ``""``, ``"lost"`` or ``"503"``."""


class _Server(ThreadingHTTPServer):
    """Passes requests on to a port of this machine, as far as the weather lets it."""

    daemon_threads = True

    def __init__(self, port: int, weather: Weather) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind, self.weather = port, weather
        self.sent: Counter[tuple[str, str]] = Counter()
        self.outcomes: Counter[str] = Counter()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        times = self.server.sent[self.command, self.path]
        self.server.sent[self.command, self.path] += 1
        outcome = self.server.weather(self.command, times)
        self.server.outcomes[outcome] += 1
        if outcome == "503":
            self.send_response_only(503, "Slow Down")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        behind = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        behind.request(self.command, self.path, body, headers)
        answer = behind.getresponse()
        content = answer.read()
        behind.close()
        if outcome == "lost":
            self.close_connection = True  # and not a word
            return
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass_on  # noqa: N815 - the names that the base class looks for

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the name in the base class
        """Say nothing."""


@contextlib.contextmanager
def unreliable(port: int, weather: Weather) -> Iterator[_Server]:
    """A server before a port, which is closed at the end of the block."""
    with _Server(port, weather) as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield served
        finally:
            served.shutdown()
            thread.join()


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
    with unreliable(in_s3.port, weather) as served:
        there = ips2.where({"AWS_ENDPOINT_URL": f"http://127.0.0.1:{served.server_address[1]}"})
        there("run", "x.npy", "--out", out, *OPTIONS)
    assert served.outcomes[outcome] > 100
    np.testing.assert_array_equal(open_run(out).labels, run(X, Params(n_clusters=CLUSTERS), Resources()).labels)
    assert verify(out).sound


def test_a_server_that_stays_busy_is_one_line_and_costs_no_finished_part(
    ips2: Shell, in_s3: S3, tmp_path: Path
) -> None:
    X = fetch_table(tmp_path)
    out, puts = in_s3.url("busy"), iter(range(1 << 30))
    with unreliable(in_s3.port, lambda verb, _: "503" if verb == "PUT" and next(puts) >= 120 else "") as served:
        there = ips2.where({"AWS_ENDPOINT_URL": f"http://127.0.0.1:{served.server_address[1]}"})
        said = there("run", "x.npy", "--out", out, *OPTIONS, status=2).stderr
    assert len(said.splitlines()) == 1, said
    assert "run the same command again" in said
    ips2("run", "x.npy", "--out", out, *OPTIONS)
    found = open_run(out)
    np.testing.assert_array_equal(found.labels, run(X, Params(n_clusters=CLUSTERS), Resources()).labels)
    assert found.manifest["stages"][0]["skipped"]  # what was finished was kept
