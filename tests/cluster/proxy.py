"""A server that passes requests on to another one, late or unreliably, and knows when each began and ended."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import http.client
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect", "server", "date"}
"""Headers that are of one connection, which this server writes itself."""

Weather = Callable[[str, int], str]
"""From a request's verb and how often it was sent before to ``""``, ``"lost"`` or ``"503"``."""


@dataclasses.dataclass(frozen=True)
class Request:
    """One request, by the monotonic clock in seconds."""

    begun: float
    ended: float
    verb: str
    path: str


class Proxy(ThreadingHTTPServer):
    """Passes HTTP requests on to a port of 127.0.0.1, each after ``delay`` seconds, as far as the weather lets it."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, delay: float, weather: Weather) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind, self.delay, self.weather = port, delay, weather
        self.requests: list[Request] = []
        self.sent: Counter[tuple[str, str]] = Counter()
        self.outcomes: Counter[str] = Counter()

    @property
    def url(self) -> str:
        """The address of this server."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def _pass_on(self) -> None:
        begun = time.monotonic()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        outcome = self.server.weather(self.command, self.server.sent[self.command, self.path])
        self.server.sent[self.command, self.path] += 1
        self.server.outcomes[outcome] += 1
        if outcome == "503":
            self.send_response_only(503, "Slow Down")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        time.sleep(self.server.delay)
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
        self.server.requests.append(Request(begun, time.monotonic(), self.command, self.path))

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass_on  # noqa: N815 - the names that the base class looks for

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the name in the base class
        """Say nothing."""


@contextlib.contextmanager
def proxy(port: int, delay: float = 0.0, weather: Weather = lambda verb, times: "") -> Iterator[Proxy]:
    """A `Proxy` before a port of 127.0.0.1, which is closed at the end of the block."""
    with Proxy(port, delay, weather) as served:
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
