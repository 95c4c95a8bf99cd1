"""An S3 server on 127.0.0.1: moto's, whose log says every request that it was sent."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import re
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from processes import answers, free_port, server

KEY, SECRET = "AKIATESTKEY0000000", "onlyfortests/ThisMustNeverBeWrittenAnywhere"
"""Credentials that moto takes like any others; a test looks for the secret in everything that a run leaves."""

REQUEST = re.compile(r'"(?:\x1b\[\d+m)*(?P<verb>[A-Z]+) (?P<path>/\S*) HTTP/1\.\d(?:\x1b\[0m)?" (?P<status>\d{3})')


def missing() -> str | None:
    """Why there can be no server here, or None."""
    absent = [module for module in ("moto", "flask", "s3fs") if importlib.util.find_spec(module) is None]
    return f"S3: no {', '.join(absent)} (pip install s3fs 'moto[server]')" if absent else None


@dataclasses.dataclass(frozen=True)
class S3:
    """A server with a bucket.

    Attributes
    ----------
    port : int
    log : Path
        Its requests.
    environment : dict
        What a process that is to use it is given: the address and where the credentials are.
    """

    port: int
    log: Path
    environment: dict[str, str]
    bucket: str = "data"

    def url(self, name: str) -> str:
        """URL of an object or a prefix."""
        return f"s3://{self.bucket}/{name}"

    def requests(self) -> list[tuple[str, str, int]]:
        """Verb, path and status of every request until now."""
        found = (REQUEST.search(line) for line in self.log.read_text(errors="replace").splitlines())
        return [(hit["verb"], hit["path"], int(hit["status"])) for hit in found if hit]

    def count(self, since: int = 0) -> Counter[str]:
        """Requests by verb, after the first ``since`` ones."""
        return Counter(verb for verb, _, _ in self.requests()[since:])


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[S3]:
    """A server with an empty bucket; credentials are in a file such as ``~/.aws/credentials``."""
    port, log = free_port(), folder / "s3.log"
    (folder / "credentials").write_text(f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
    (folder / "config").write_text(
        f"[default]\nregion = us-east-1\nendpoint_url = http://127.0.0.1:{port}\ns3 =\n    addressing_style = path\n"
    )
    environment = {
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "credentials"),
        "AWS_CONFIG_FILE": str(folder / "config"),
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with server(command, log, lambda: answers(port), {"PYTHONWARNINGS": "ignore"}):
        made = S3(port, log, environment)
        bucket = urllib.request.Request(f"http://127.0.0.1:{port}/{made.bucket}", method="PUT")
        urllib.request.urlopen(bucket).close()
        yield made
