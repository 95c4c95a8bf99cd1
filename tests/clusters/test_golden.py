"""Job scripts and manifests are, letter by letter, those of tests/clusters/golden, and what their schemas allow.

``IPS2_GOLDEN=write`` writes them anew.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from ips2_dask.clusters import jobs, kubernetes, workers
from ips2_dask.clusters.config import Config, load, shipped
from ips2_dask.clusters.connect import module_of
from ips2_dask.clusters.jobs import Job
from ips2_dask.clusters.resources import settled

GOLDEN = Path(__file__).parent / "golden"
SYSTEMS = ("slurm", "pbs", "lsf", "sge")
ARGUMENTS = ["run", "s3://bucket/x.zarr", "--out", "s3://bucket/run", "--clusters", "10"]


def compare(name: str, text: str) -> None:
    """A text with a golden file."""
    path = GOLDEN / name
    if os.environ.get("IPS2_GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text()


def full(system: str) -> Config:
    """A config with every key that shows in a script."""
    section: dict[str, Any] = {
        "queue": "long",
        "account": "physics",
        "walltime": "1-02:00:00",
        "margin": 600,
        "processes": 2,
        "name": "mine",
        "python": "/opt/python",
        "logs": "/shared/logs",
        "directives": ["-x first", "-y"],
        "prologue": ["module load python", "ulimit -c 0"],
    }
    section |= {"sge": {"parallel_environment": "smp", "memory_resource": "mem_free"}, "lsf": {"units": "gb"}}.get(
        system, {}
    )
    worker = {
        "threads": 4,
        "memory": "16GiB",
        "scratch": "/local/scratch",
        "environment": {"MALLOC_ARENA_MAX": 2},
        "preload": ["my_module"],
        "warm": True,
    }
    driver = {"threads": 2, "memory": "8GiB", "walltime": "2-00:00:00"}
    given = {"manager": system, "workers": 4, "worker": worker, "driver": driver, system: section}
    return settled({**given, "tls": "/shared/tls", "bind": {"interface": "ib0"}})


def job(monkeypatch: pytest.MonkeyPatch, manager: str) -> Job:
    """A job whose record would be at a fixed place."""
    monkeypatch.setenv("IPS2_STATE", "/home/me/.local/state/ips2_dask")
    return Job("260102-030405-abcd", manager, tuple(ARGUMENTS), "/home/me/my work", "s3://bucket/run", "2026-01-02")


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_script_of_a_worker_is_the_golden_one(system: str) -> None:
    pytest.importorskip("dask_jobqueue")
    config = full(system)
    compare(f"{system}-worker.sh", module_of(config).preview(config))


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_script_of_a_driver_is_the_golden_one(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dask_jobqueue")
    compare(f"{system}-driver.sh", jobs.script(job(monkeypatch, system), full(system)))


@pytest.mark.parametrize(("resource", "mebibytes"), [("mem_free", 4096), ("h_vmem", 4608), ("s_vmem", 4608)])
def test_a_limit_of_addresses_leaves_room_beside_the_memory(resource: str, mebibytes: int) -> None:
    pytest.importorskip("dask_jobqueue")
    given = {"manager": "sge", "worker": {"threads": 4, "memory": "16GiB"}, "sge": {"memory_resource": resource}}
    config = settled({**given, "insecure": True})
    assert f"#$ -l {resource}={mebibytes}M\n" in module_of(config).preview(config)  # of each of four slots


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.sh")), ids=lambda path: path.name)
def test_a_script_is_one_that_the_shell_reads(path: Path) -> None:
    subprocess.run(["bash", "-n", str(path)], check=True)


def test_workers_leave_together_at_few_instants_before_their_jobs_are_killed() -> None:
    """The lines of the script, run by bash at the times at which two hundred jobs start within a third of an hour."""
    pytest.importorskip("dask_jobqueue")
    hour = {"manager": "slurm", "worker": {"memory": "4GiB"}, "slurm": {"walltime": "01:00:00", "margin": 300}}
    script = module_of(config := settled({**hour, "workers": 200, "insecure": True})).preview(config).splitlines()
    assert any(f"--lifetime ${{{workers.LIFETIME}}}s" in line for line in script)
    lines = [line for line in script if line.startswith("ips2_")]
    starts = range(1_790_000_123, 1_790_000_123 + 1200, 6)
    each = f"for at in {' '.join(map(str, starts))}; do\n{chr(10).join(lines)}\necho ${workers.LIFETIME}\ndone"
    said = subprocess.run(["bash", "-c", f"date() {{ echo $at; }}\n{each}"], check=True, capture_output=True, text=True)
    lives = [int(word) for word in said.stdout.split()]
    assert len(lives) == 200
    assert max(lives) <= 3600 - 300
    assert min(lives) > (3600 - 300) // 2  # of which docs and configs say 27 minutes
    left = Counter(start + life for start, life in zip(starts, lives, strict=True))
    assert len(left) <= 4  # one by one they would be two hundred
    assert max(left.values()) < 150  # some stay whenever others leave


def schema(kind: str) -> dict[str, Any]:
    """The schema of one of the operator's objects, as its chart installs it; unknown keys are errors here."""
    package = resources.files(pytest.importorskip("dask_kubernetes"))
    crds = package / "operator" / "deployment" / "helm" / "dask-kubernetes-operator" / "crds"
    definition = yaml.safe_load((crds / f"{kind}.yaml").read_text())
    return closed(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


def closed(node: Any) -> Any:
    """An OpenAPI schema as a JSON schema that allows no key which it does not name."""
    if isinstance(node, list):
        return [closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    out = {key: closed(value) for key, value in node.items()}
    if isinstance(node.get("properties"), dict) and not node.get("x-kubernetes-preserve-unknown-fields"):
        out.setdefault("additionalProperties", False)
    if node.get("x-kubernetes-int-or-string"):
        out.pop("type", None)
        out["type"] = ["integer", "string"]
    return out


def validate(manifest: dict[str, Any], kind: str) -> None:
    """Against the operator's schema; what Kubernetes itself knows of every object is taken away first."""
    jsonschema = pytest.importorskip("jsonschema")
    body = {key: value for key, value in manifest.items() if key not in ("apiVersion", "kind", "metadata")}
    jsonschema.Draft7Validator(schema(kind)).validate(body)


def on_kubernetes() -> Config:
    """A config with every key that shows in a manifest."""
    section = {
        "namespace": "science",
        "name": "mine",
        "image": "registry.example.org/ips2:1",
        "pull_policy": "Always",
        "service_account": "store-reader",
        "idle_timeout": 3600,
        "env_from": ["s3-access"],
        "node_selector": {"disk": "ssd"},
    }
    worker = {"threads": 4, "memory": "16GiB", "scratch": "/scratch", "environment": {"A": "b"}, "warm": True}
    given = {"manager": "kubernetes", "workers": 20, "worker": worker, "driver": {"threads": 2, "memory": "8GiB"}}
    return settled({**given, "kubernetes": section, "insecure": True})


def test_the_manifest_of_a_cluster_is_the_golden_one_and_valid() -> None:
    manifest = kubernetes.cluster_manifest(on_kubernetes(), "mine-abc")
    compare("daskcluster.yaml", kubernetes.as_yaml(manifest))
    validate(manifest, "daskcluster")


def test_the_manifest_of_a_job_is_the_golden_one_and_valid() -> None:
    of_a_cluster = ["--workers", "20", "--insecure", "--tls=x"]  # which the driver in the pod does not start
    arguments = [*ARGUMENTS[1:], *of_a_cluster, "--labels-column", "$(HOME)"]
    manifest = kubernetes.job_manifest(on_kubernetes(), "mine-abc", arguments)
    compare("daskjob.yaml", kubernetes.as_yaml(manifest))
    validate(manifest, "daskjob")


def test_the_shipped_job_is_what_the_shipped_config_gives_and_valid() -> None:
    manifest = yaml.safe_load(shipped()["daskjob"].read_text())
    assert manifest == kubernetes.job_manifest(settled(load("kubernetes")), "ips2", ARGUMENTS[1:])
    validate(manifest, "daskjob")


def test_the_schema_refuses_a_manifest_that_is_wrong() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    manifest = kubernetes.cluster_manifest(on_kubernetes(), "mine-abc")
    manifest["spec"]["worker"]["spec"]["containers"][0]["imagePolicy"] = "Always"
    with pytest.raises(jsonschema.ValidationError, match="imagePolicy"):
        validate(manifest, "daskcluster")


def test_the_pods_are_what_the_models_of_kubernetes_take() -> None:
    client = pytest.importorskip("kubernetes.client")
    pod = kubernetes.cluster_manifest(on_kubernetes(), "mine-abc")["spec"]["worker"]["spec"]

    read = client.ApiClient()._ApiClient__deserialize(pod, "V1PodSpec")  # the public one has changed its arguments
    assert client.ApiClient().sanitize_for_serialization(read) == pod
