"""What the tests on clusters call: a command line, a table to cluster, and ends of processes."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SECONDS = 600
"""What one command may take on a machine that does other things besides."""


@dataclasses.dataclass(frozen=True)
class Shell:
    """A shell in which ``ips2`` is run."""

    environment: Mapping[str, str]
    folder: Path

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        """Start a command and don't wait for it."""
        return subprocess.Popen(
            [sys.executable, "-m", "ips2_dask.cli", *map(str, arguments)],
            env={**os.environ, **self.environment},
            cwd=self.folder,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def where(self, more: Mapping[str, str]) -> Shell:
        """The same shell with more variables."""
        return dataclasses.replace(self, environment={**self.environment, **more})

    def __call__(self, *arguments: object, status: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, which is to be a given exit status."""
        started = self.start(*arguments)
        try:
            out, error = started.communicate(timeout=SECONDS)
        finally:
            kill(started)
        assert started.returncode == status, f"ips2 {' '.join(map(str, arguments))}:\n{out}\n{error}"
        return subprocess.CompletedProcess(arguments, started.returncode, out, error)


def kill(started: subprocess.Popen[str]) -> None:
    """End a command and all that it has started on this machine, as a power cut does."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    for stream in (started.stdout, started.stderr):
        if stream is not None:
            stream.close()


def mnist() -> Array | None:
    """The 10,000 test images of MNIST, or None where they are not at hand: (10000, 784) uint8."""
    file = Path(os.environ.get("IPS2_DATA", ""), "mnist", "t10k-images-idx3-ubyte.gz")
    if not file.is_file():
        return None
    return np.frombuffer(gzip.decompress(file.read_bytes()), np.uint8, offset=16).reshape(-1, 784)


def groups(m: int, f: int = 16, c: int = 5) -> Array:
    """c groups that overlap, whose neighbours are spread over all partitions: (m, f) float32."""
    rng = np.random.default_rng(31)
    centers = 2.5 * rng.normal(size=(c, f))
    return (rng.normal(size=(m, f)) + centers[rng.integers(0, c, size=m)]).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Table:
    """An input on disk and in the bucket, and the labels that a run in one process gives it."""

    path: Path
    url: str
    options: tuple[str, ...]
    labels: Array
