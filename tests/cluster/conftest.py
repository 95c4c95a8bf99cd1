"""What the tests on clusters share: the servers, each skipped with its reason, a table, and a command line to run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import dask_scheduler
import fsspec
import numpy as np
import pytest
import s3_server
import sge_server
import slurm_server
import ssh_server
from shell import Shell, Table, groups, mnist

import ips2_dask


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
def sge(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[sge_server.Sge, Path]]:
    """A cell of Grid Engine and the configuration that names it."""
    _skip_without(sge_server.missing())
    pytest.importorskip("dask_jobqueue", reason="Grid Engine: pip install dask-jobqueue")
    folder = tmp_path_factory.mktemp("sge")
    with sge_server.sge_cell(folder, environment) as served:
        yield served, _sge_configuration(folder)


@pytest.fixture(scope="session")
def ssh(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ssh_server.SSH, Path]]:
    """An SSH server, and the configuration of a cluster of two workers behind it."""
    _skip_without(ssh_server.missing())
    folder = tmp_path_factory.mktemp("ssh")
    with ssh_server.ssh_server(folder, {**environment, "DASK_IPS2__ALONE": "10 s"}) as served:
        yield served, _ssh_configuration(folder, served)


@pytest.fixture(scope="session")
def tls(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dask_scheduler.Scheduler]:
    """A running scheduler with two workers that speak TLS alone, by certificates of ``ips2 cluster certs``."""
    pytest.importorskip("cryptography", reason="TLS: pip install cryptography")
    folder = tmp_path_factory.mktemp("tls")
    Shell(environment, folder)("cluster", "certs", folder / "certificates")
    with dask_scheduler.dask_scheduler(folder, folder / "certificates", environment) as served:
        yield served


def _skip_without(reason: str | None) -> None:
    if reason is not None:
        pytest.skip(reason)


def _common(folder: Path) -> str:
    # SSH hands no variables on, and OpenBLAS rounds otherwise with the kernels of another processor
    kernels = {
        name: value for name, value in os.environ.items() if name.startswith("OPENBLAS_") and "THREADS" not in name
    }
    return f"""
worker: {{threads: 1, memory: 2GiB, scratch: {folder}/scratch, environment: {json.dumps(kernels)}}}
bind: {{host: 127.0.0.1}}
shared: {folder}
timeout: 120
"""


def _slurm_configuration(folder: Path) -> Path:
    written = folder / "slurm.yaml"
    written.write_text(
        f"manager: slurm\nworkers: 2{_common(folder)}"
        'driver: {threads: 1, memory: 2GiB, walltime: "00:30:00"}\n'
        f'slurm: {{queue: {slurm_server.PARTITION}, walltime: "00:30:00", logs: {folder}/logs}}\n'
    )
    return written


def _sge_configuration(folder: Path) -> Path:
    written = folder / "sge.yaml"
    written.write_text(
        f"manager: sge\nworkers: 2{_common(folder)}"
        'driver: {threads: 1, memory: 2GiB, walltime: "00:30:00"}\n'
        f"sge: {{queue: {sge_server.QUEUE}, parallel_environment: {sge_server.PARALLEL_ENVIRONMENT}, "
        f'walltime: "00:30:00", logs: {folder}/logs}}\n'
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
