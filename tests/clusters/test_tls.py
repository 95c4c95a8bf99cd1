"""Certificates: what `ips2 cluster certs` makes, and that a scheduler which has them talks to nobody without."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

from ips2_dask import BadInput, Params, Resources, cluster, run
from ips2_dask.cli.main import main
from ips2_dask.clusters import tls

pytest.importorskip("cryptography")
DEADLINE = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of a cluster."""
    place = tmp_path_factory.mktemp("certs") / "tls"
    tls.make(place)
    return place


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of another cluster."""
    place = tmp_path_factory.mktemp("foreign") / "tls"
    tls.make(place)
    return place


def test_keys_are_for_their_owner_alone(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert names == {"ca.pem"} | {f"{role}.{end}" for role in tls.ROLES for end in ("pem", "key")}
    assert {path.stat().st_mode & 0o777 for path in folder.glob("*.key")} == {0o600}


def test_a_folder_that_holds_something_is_left_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / "client.key").read_bytes()
    assert main(["cluster", "certs", str(folder)]) == 2
    assert "keys that are in use would be lost" in capsys.readouterr().err
    assert (folder / "client.key").read_bytes() == before


def test_a_folder_without_certificates_is_named_with_the_command_that_makes_them(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"ips2 cluster certs {tmp_path}"):
        tls.security(str(tmp_path))


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def process(arguments: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of Dask's command line, ended with the block."""
    with log.open("wb") as stream:
        command = [sys.executable, "-m", "dask", *arguments]
        started = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            yield started
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGTERM)
            try:
                started.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(started.pid, signal.SIGKILL)
                started.wait()


def wait_for(log: Path, word: str) -> None:
    """Until a log says something."""
    until = time.monotonic() + DEADLINE
    while word not in log.read_text(errors="replace"):
        assert time.monotonic() < until, log.read_text(errors="replace")
        time.sleep(0.1)


def files(folder: Path, role: str) -> list[str]:
    """Options of Dask's command line for one role."""
    return [
        "--tls-ca-file",
        str(folder / "ca.pem"),
        "--tls-cert",
        str(folder / f"{role}.pem"),
        "--tls-key",
        str(folder / f"{role}.key"),
    ]


@pytest.fixture(scope="module")
def secured(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a scheduler with certificates and one worker, both processes of their own."""
    logs = tmp_path_factory.mktemp("logs")
    port = free_port()
    address = f"tls://127.0.0.1:{port}"
    scheduler = ["scheduler", "--protocol", "tls", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
    worker = ["worker", address, "--nthreads", "1", "--no-dashboard", "--no-nanny", "--host", "127.0.0.1"]
    with process([*scheduler, *files(folder, "scheduler")], logs / "scheduler"):
        wait_for(logs / "scheduler", "Scheduler at")
        with process([*worker, "--local-directory", str(logs), *files(folder, "worker")], logs / "worker"):
            wait_for(logs / "worker", "Registered to")
            yield address


@pytest.mark.slow
def test_a_run_on_a_scheduler_with_certificates_gives_the_same_labels(
    secured: str, folder: Path, tmp_path: Path
) -> None:
    X = np.random.default_rng(0).normal(size=(90, 4)) + 5 * (np.arange(90) % 3)[:, None]
    params = Params(n_clusters=3)
    (tmp_path / "my.yaml").write_text(f"manager: scheduler\nscheduler: {{address: '{secured}'}}\ntls: {folder}\n")
    for given in (Resources(scheduler=secured, tls=str(folder)), Resources(cluster=str(tmp_path / "my.yaml"))):
        there = run(X, params, given, store=tmp_path / str(given.cluster is None), own_cluster=True)
        np.testing.assert_array_equal(there.labels, run(X, params).labels)


@pytest.mark.slow
def test_a_worker_without_a_certificate_of_the_cluster_is_rejected(
    secured: str, folder: Path, foreign: Path, tmp_path: Path
) -> None:
    worker = ["--nthreads", "1", "--no-dashboard", "--no-nanny", "--death-timeout", "4"]
    plain = secured.replace("tls://", "tcp://")
    strangers = {"nobody's": (plain, []), "another's": (secured, files(foreign, "worker"))}
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(
                process(["worker", address, *worker, "--local-directory", str(tmp_path), *given], tmp_path / whose)
            )
            for whose, (address, given) in strangers.items()
        ]
        assert all(refused.wait(DEADLINE) != 0 for refused in started)
    assert not [whose for whose in strangers if "Registered to" in (tmp_path / whose).read_text()]
    with Client(secured, security=tls.security(str(folder)), set_as_default=False) as client:
        assert len(client.scheduler_info()["workers"]) == 1


def test_a_client_without_certificates_is_refused_in_one_line(
    secured: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.eye(9))
    arguments = ["run", str(tmp_path / "x.npy"), "--clusters", "2", "--out", str(tmp_path / "run"), "--quiet"]
    assert main([*arguments, "--scheduler", secured]) == 2
    assert "--tls DIR" in capsys.readouterr().err


def test_a_local_cluster_may_have_certificates_too(folder: Path) -> None:
    with cluster("local", workers=1, tls=str(folder)) as client:
        assert client.scheduler.address.startswith("tls://127.0.0.1")
        assert client.submit(sum, [1, 2]).result() == 3


NOBODY = "~nobody-is-called-so/certs"


def test_the_home_of_nobody_is_no_folder_and_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert tls.missing(NOBODY) == ["ca.pem", "client.pem", "client.key"]
    with pytest.raises(BadInput, match=r"tls: found .*nobody-is-called-so"):
        tls.security(NOBODY)
    assert main(["cluster", "check", f"{NOBODY}/cluster.yaml"]) == 2
    assert "nobody-is-called-so" in capsys.readouterr().err
