"""From Python and from the command line to a cluster: what it gives, says and refuses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import dask
import numba
import numpy as np
import pytest
from dask.utils import parse_timedelta

import ips2_dask
from ips2_dask import IPS2, BadInput, Params, Resources, clusters, run
from ips2_dask.cli.main import main
from ips2_dask.clusters import local, workers
from ips2_dask.clusters.config import load
from ips2_dask.clusters.connect import check_worker
from ips2_dask.runs.maintenance import versions

X = np.random.default_rng(0).normal(size=(90, 4)) + 5 * (np.arange(90) % 3)[:, None]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A local cluster of one worker, with every key that its processes show."""
    path = tmp_path / "mine.yaml"
    path.write_text(
        f"manager: local\nworkers: 1\nshared: {tmp_path}/shared\n"
        f"worker: {{threads: 2, memory: 1500MiB, scratch: {tmp_path}/scratch, environment: {{IPS2_TEST: 7}}}}\n"
    )
    return path


def _seen(dask_worker: object) -> tuple[str | None, int, str, int]:
    worker = dask_worker
    return (
        os.environ.get("IPS2_TEST"),
        worker.memory_manager.memory_limit,  # type: ignore[attr-defined]
        worker.local_directory,  # type: ignore[attr-defined]
        worker.state.nthreads,  # type: ignore[attr-defined]
    )


def test_workers_have_what_the_config_gives_them_and_an_estimator_runs_there(config: Path, tmp_path: Path) -> None:
    with clusters.executor(Resources(cluster=str(config))) as executor:
        client = executor.client
        assert executor._threads == 2  # of a task
        ((variable, memory, scratch, tasks),) = client.run(_seen).values()
        assert (variable, memory, tasks) == ("7", 1500 << 20, 1)
        assert scratch.startswith(str(tmp_path / "scratch"))
        found = IPS2(n_clusters=3, client=client).fit(X)
        assert Path(str(found.run_.path)).parent == tmp_path / "shared"
        with pytest.raises(BadInput, match="a serial run"):
            run(X, Params(n_clusters=3), performance_report=tmp_path / "report.html")
    np.testing.assert_array_equal(found.labels_, IPS2(n_clusters=3).fit(X).labels_)


@pytest.mark.slow
def test_the_command_line_says_the_dashboard_and_writes_dasks_report(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("bokeh")
    np.save(tmp_path / "x.npy", X)
    report = tmp_path / "report.html"
    arguments = ["run", str(tmp_path / "x.npy"), "--clusters", "3", "--out", str(tmp_path / "run")]
    assert main([*arguments, "--cluster", str(config), "--performance-report", str(report)]) == 0
    assert "http://127.0.0.1:" in capsys.readouterr().err
    assert "<html" in report.read_text()


@pytest.mark.slow
def test_one_worker_is_looked_at_from_inside(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    assert main(["cluster", "check", str(config), "--start", "--store", str(store)]) == 0
    said = capsys.readouterr().out
    assert "a run would find what it needs" in said
    assert str(tmp_path / "scratch") in said
    assert versions()["numpy"] in said
    assert not store.exists()


def test_a_store_that_the_worker_can_not_reach_and_other_versions_are_named(tmp_path: Path) -> None:
    class Elsewhere:
        """A client whose worker answers from another machine, with another NumPy and another disk."""

        def submit(self, function: object, store: str, name: str, pure: bool) -> Elsewhere:
            return self

        def result(self) -> dict[str, object]:
            return {"versions": {**versions(), "numpy": "1.0"}, "scratch": "/s", "scratch_free": 1, "store": None}

    _, amiss = check_worker(Elsewhere(), str(tmp_path))  # type: ignore[arg-type]
    assert any(line.startswith("numpy: 1.0 on the worker") for line in amiss)
    assert any("is not seen here" in line for line in amiss)


def test_a_missing_package_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(BadInput, match=r"pip install 'ips2-dask\[jobqueue\]'"):
        clusters.need("dask_jobqueue_that_is_not_there", "jobqueue", "a cluster on SLURM")


def test_every_package_that_is_asked_for_has_an_extra() -> None:
    import tomllib  # noqa: PLC0415 - only here

    root = Path(__file__).parents[2]
    known = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    everything = known["all"][0]
    for name in ("jobqueue", "kubernetes", "gateway", "ssh", "s3", "tls", "dashboard"):
        assert known[name]
        assert name in everything


def test_workers_of_a_running_scheduler_are_not_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", X)
    arguments = ["run", str(tmp_path / "x.npy"), "--clusters", "3", "--out", str(tmp_path / "run"), "--workers", "2"]
    assert main([*arguments, "--scheduler", "tcp://127.0.0.1:1"]) == 2
    assert "--scheduler" in capsys.readouterr().err


@pytest.mark.slow
def test_kernels_are_compiled_once_a_node_before_the_first_task(tmp_path: Path) -> None:
    given = {
        "manager": "local",
        "workers": 2,
        "worker": {"warm": True, "environment": {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}},
    }
    with ips2_dask.cluster(given) as client:
        client.wait_for_workers(2, timeout=300)
        compiled = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.nbc")}
        assert compiled
        run(X, Params(n_clusters=3, operator="matrix-free"), client=client)
    later = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.nbc")}
    assert {name: later[name] for name in compiled} == compiled  # the second worker wrote none of them again


@pytest.mark.slow
def test_a_cluster_whose_workers_follow_the_work_gives_the_same_labels(tmp_path: Path) -> None:
    given = {"manager": "local", "adaptive": {"minimum": 1, "maximum": 2}}
    params, resources = Params(n_clusters=3), Resources(partition_rows=5)
    with ips2_dask.cluster(given) as client:
        found = run(X, params, resources, store=tmp_path / "run", client=client)
    np.testing.assert_array_equal(found.labels, run(X, params, resources).labels)


@pytest.mark.slow
def test_a_local_cluster_leaves_this_process_its_environment_and_workers_have_their_own(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a worker has been replaced, before which Dask changes it once more.

    Where Numba's threads have started, it compiles nothing more with another number of them.
    """
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    before = dict(os.environ)
    with ips2_dask.cluster(str(config)) as client:
        assert dict(os.environ) == before
        assert list(client.run(_threads).values()) == [("1", "7")]  # what the user has set is left to workers, too
        assert list(client.run(_numba_threads).values()) == [("1", 1)]
        assert list(client.run(_shares).values()) == [(0.6, 0.7, False, 0.95)]  # as Dask does, and it never pauses
        lengths = client.run_on_scheduler(
            lambda dask_scheduler: [s.recent_message_log.maxlen for s in dask_scheduler.stream_comms.values()]
        )
        assert lengths == [100]
        client.restart()
        assert list(client.run(_threads).values()) == [("1", "7")]
    assert dict(os.environ) == before


def _threads() -> tuple[str | None, ...]:
    return tuple(os.environ.get(name) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"))


def _numba_threads() -> tuple[str | None, int]:
    numba.njit(lambda x: x + 1)(1)  # what it compiles, Numba looks at the environment for
    return os.environ.get("NUMBA_NUM_THREADS"), int(numba.config.NUMBA_NUM_THREADS)


def _shares(dask_worker: Any) -> tuple[Any, ...]:
    manager = dask_worker.memory_manager
    fractions = (getattr(manager, f"memory_{name}_fraction") for name in ("target", "spill", "pause"))
    return (*fractions, dask.config.get("distributed.worker.memory.terminate"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("distributed.worker.memory.spill", 0.5),
        ("distributed.admin.low-level-log-length", 20),
        ("distributed.deploy.lost-worker-timeout", "40s"),
    ],
)
def test_what_the_user_has_set_in_dask_is_kept(key: str, value: object) -> None:
    with dask.config.set({key: value}):
        assert local.settings(load("local"))[key] == value
        assert str(value) in workers.as_environment({key: (None, None)}).values()


def test_a_local_cluster_waits_for_the_replacement_of_a_worker_however_long_it_takes_to_start() -> None:
    kept = local.settings(load("local"))["distributed.deploy.lost-worker-timeout"]
    assert parse_timedelta(kept) > 24 * 3600  # the nanny that starts it is no lost one
