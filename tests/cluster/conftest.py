"""What the tests on clusters share: the servers, each skipped with its reason, a table, and a command line to run."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dask_scheduler
import fsspec
import numpy as np
import numpy.typing as npt
import pytest
import s3_server
import slurm_server
import ssh_server

import ips2_dask

Array = npt.NDArray[Any]

SECONDS = 600
"""What one command may take on a machine that does other things besides."""


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3_server.S3]:
    """An S3 server; processes that are to use it need its ``environment``."""
    _skip_without(s3_server.missing())
    with s3_server.s3_server(tmp_path_factory.mktemp("s3")) as served:
        yield served


@pytest.fixture
def in_s3(s3: s3_server.S3, monkeypatch: pytest.MonkeyPatch) -> s3_server.S3:
    """The S3 server, for this process too."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3


@pytest.fixture(scope="session")
def environment(s3: s3_server.S3, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What users have in their environment everywhere: where the store, its credentials and the package are."""
    return {
        **s3.environment,
        "PYTHONPATH": str(Path(ips2_dask.__file__).parents[1]),
        "IPS2_STATE": str(tmp_path_factory.mktemp("state")),
    }


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


@pytest.fixture
def ips2(environment: dict[str, str], tmp_path: Path) -> Shell:
    """The command line, in an empty folder."""
    return Shell(environment, tmp_path)


@pytest.fixture(scope="session")
def slurm(
    environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[slurm_server.Slurm, Path]]:
    """A SLURM cluster and the configuration that names it."""
    _skip_without(slurm_server.missing())
    pytest.importorskip("dask_jobqueue", reason="SLURM: pip install dask-jobqueue")
    folder = tmp_path_factory.mktemp("slurm")
    with slurm_server.slurm_cluster(folder) as served:
        yield served, _slurm_configuration(folder)


@pytest.fixture(scope="session")
def ssh(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ssh_server.SSH, Path]]:
    """An SSH server, and the configuration of a cluster of two workers behind it."""
    _skip_without(ssh_server.missing())
    folder = tmp_path_factory.mktemp("ssh")
    with ssh_server.ssh_server(folder, environment) as served:
        yield served, _ssh_configuration(folder, served)


@pytest.fixture(scope="session")
def tls(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dask_scheduler.Scheduler]:
    """A running scheduler with two workers that speak TLS alone, by certificates of ``ips2 certs``."""
    pytest.importorskip("cryptography", reason="TLS: pip install cryptography")
    folder = tmp_path_factory.mktemp("tls")
    Shell(environment, folder)("certs", folder / "certificates")
    with dask_scheduler.dask_scheduler(folder, folder / "certificates", environment) as served:
        yield served


def _skip_without(reason: str | None) -> None:
    if reason is not None:
        pytest.skip(reason)


def _common(folder: Path) -> str:
    return f"""
workers: 2
worker: {{threads: 1, memory: 2GiB, scratch: {folder}/scratch}}
bind: {{host: 127.0.0.1}}
shared: {folder}
timeout: 120
"""


def _slurm_configuration(folder: Path) -> Path:
    written = folder / "slurm.yaml"
    written.write_text(
        f"manager: slurm{_common(folder)}"
        'driver: {threads: 1, memory: 2GiB, walltime: "00:30:00"}\n'
        f'slurm: {{queue: {slurm_server.PARTITION}, walltime: "00:30:00", logs: {folder}/logs}}\n'
    )
    return written


def _ssh_configuration(folder: Path, served: ssh_server.SSH) -> Path:
    written = folder / "ssh.yaml"
    written.write_text(
        f"manager: ssh{_common(folder)}"
        f"ssh: {{hosts: [127.0.0.1, 127.0.0.1, 127.0.0.1], username: {served.user}, port: {served.port}, "
        f"keys: [{served.key}], known_hosts: {served.known_hosts}, python: {sys.executable}}}\n"
    )
    return written


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


@pytest.fixture(scope="session")
def put(s3: s3_server.S3) -> Callable[[Path, str], str]:
    """Copies a file into the bucket; returns its URL."""

    def copy(path: Path, name: str) -> str:
        url = s3.url(name)
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in s3.environment.items():
                patch.setenv(variable, value)
            fsspec.filesystem("s3").put_file(str(path), url)
        return url

    return copy


@pytest.fixture(scope="session")
def table(put: Callable[[Path, str], str], tmp_path_factory: pytest.TempPathFactory) -> Table:
    """MNIST's test images, or 4,000 generated samples where they are not at hand, in twelve partitions or so."""
    folder = tmp_path_factory.mktemp("table")
    images = mnist()
    X, c = (groups(4000), 5) if images is None else (images, 10)
    rows = len(X) // 12
    np.save(folder / "x.npy", X)
    run = ips2_dask.run(folder / "x.npy", ips2_dask.Params(n_clusters=c), ips2_dask.Resources(partition_rows=rows))
    options = ("--clusters", str(c), "--partition-rows", str(rows))
    return Table(folder / "x.npy", put(folder / "x.npy", "table.npy"), options, run.labels)
