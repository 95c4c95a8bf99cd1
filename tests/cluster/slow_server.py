"""A server that passes requests on to another one after a while, and knows when each began and ended."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import http.client
import threading
import time
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}
"""Headers that are of one connection, which this server writes itself."""


@dataclasses.dataclass(frozen=True)
class Request:
    """One request, by the monotonic clock in seconds."""

    begun: float
    ended: float
    verb: str
    path: str


class SlowServer(ThreadingHTTPServer):
    """Passes HTTP requests on to a port of 127.0.0.1, each after ``delay`` seconds, as many at a time as come."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, delay: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind, self.delay = port, delay
        self.requests: list[Request] = []

    @property
    def url(self) -> str:
        """The address of this server."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: SlowServer

    def _pass_on(self) -> None:
        begun = time.monotonic()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        time.sleep(self.server.delay)
        behind = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        behind.request(self.command, self.path, body, headers)
        answer = behind.getresponse()
        content = answer.read()
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        behind.close()
        self.server.requests.append(Request(begun, time.monotonic(), self.command, self.path))

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass_on  # noqa: N815 - the names that the base class looks for

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the name in the base class
        """Say nothing."""


@contextlib.contextmanager
def slow_server(port: int, delay: float) -> Iterator[SlowServer]:
    """A `SlowServer` before a port of 127.0.0.1, which is closed at the end of the block."""
    with SlowServer(port, delay) as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield served
        finally:
            served.shutdown()
            thread.join()


def one_after_another(requests: Iterable[Request]) -> int:
    """The most requests of which each began when the one before it had ended: these take time whatever else is sent."""
    count, free = 0, float("-inf")
    for request in sorted(requests, key=lambda request: request.ended):
        if request.begun >= free:
            count, free = count + 1, request.ended
    return count


def within(requests: Iterable[Request], begun: float, ended: float) -> list[Request]:
    """The requests that began in a span of time."""
    ordered = sorted(requests, key=lambda request: request.begun)
    times = [request.begun for request in ordered]
    return ordered[bisect.bisect_left(times, begun) : bisect.bisect_left(times, ended)]
