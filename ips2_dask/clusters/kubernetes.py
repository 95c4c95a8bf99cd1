"""A cluster of pods through Dask's Kubernetes operator, and the manifests of clusters and jobs."""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from distributed import Client

from ips2_dask.clusters import need, workers
from ips2_dask.clusters.config import DRIVER_MEMORY, Config, Kubernetes, shipped
from ips2_dask.errors import BadInput

ADDRESS = "$(DASK_SCHEDULER_ADDRESS)"
"""The operator sets this variable in a job's pod, and Kubernetes replaces it in the pod's arguments."""


def _pod(
    config: Config, container: Mapping[str, object], threads: int, memory: int, environment: Mapping[str, str]
) -> dict[str, object]:
    """The specification of a pod of one container, with variables besides those of all pods."""
    machine = config.kind(Kubernetes)
    variables = {**environment, **workers.environment(config)}
    amount = {"cpu": str(threads), "memory": f"{-(-memory // (1 << 20))}Mi"}
    pod_container: dict[str, object] = {
        "image": machine.image,
        "imagePullPolicy": machine.pull_policy,
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": {"requests": amount, "limits": amount},  # equal ones: it is never the first to be evicted
        **container,
    }
    if machine.env_from:
        pod_container["envFrom"] = [{"secretRef": {"name": name}} for name in machine.env_from]
    pod: dict[str, object] = {"containers": [pod_container]}
    if config.worker.scratch:
        pod_container["volumeMounts"] = [{"name": "scratch", "mountPath": config.worker.scratch}]
        pod["volumes"] = [{"name": "scratch", "emptyDir": {}}]
    if machine.service_account:
        pod["serviceAccountName"] = machine.service_account
    if machine.node_selector:
        pod["nodeSelector"] = {name: str(value) for name, value in machine.node_selector.items()}
    return pod


def _spec(config: Config, name: str, idle_timeout: int) -> dict[str, object]:
    """A cluster, whose scheduler has the arguments, ports and probes of the shipped job."""
    scheduler = yaml.safe_load(shipped()["daskjob"].read_text(encoding="utf-8"))["spec"]["cluster"]["spec"]["scheduler"]
    scheduler["service"]["selector"]["dask.org/cluster-name"] = name
    (container,) = scheduler["spec"]["containers"]
    for key in ("image", "imagePullPolicy", "env", "resources", "volumeMounts"):
        del container[key]
    logs, memory = workers.as_environment(workers.LOGS), config.worker.memory or 0
    args = ["dask", "worker", "--name", "$(DASK_WORKER_NAME)", "--nthreads", "1", "--memory-limit", f"{memory}B"]
    if config.worker.scratch:
        args += ["--local-directory", config.worker.scratch]
    worker = {"name": "worker", "args": [*args, *workers.arguments(config)]}
    shares = workers.as_environment(workers.MEMORY)
    replicas = config.workers or (config.adaptive.maximum if config.adaptive else 1)
    return {
        "idleTimeout": idle_timeout,
        "worker": {"replicas": replicas, "spec": _pod(config, worker, config.worker.threads, memory, shares)},
        "scheduler": {**scheduler, "spec": _pod(config, container, 1, config.driver.memory, logs)},
    }


def _manifest(kind: str, name: str, spec: dict[str, object]) -> dict[str, object]:
    return {"apiVersion": "kubernetes.dask.org/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def cluster_manifest(config: Config, name: str) -> dict[str, Any]:
    """The ``DaskCluster`` of a config."""
    return _manifest("DaskCluster", name, _spec(config, name, config.kind(Kubernetes).idle_timeout))


def job_manifest(config: Config, name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """The ``DaskJob`` that runs ``ips2 run`` on a cluster of its own, which is deleted when the run ends.

    The operator deletes it with the driver's pod, however that ended, so it needs no timeout: the driver in the pod,
    which did not start the cluster, would not keep it awake.
    """
    words = (word.replace("$(", "$$(") for word in _without_cluster(arguments))
    run = ["python", "-m", "ips2_dask.cli", "run", *words]
    container = {"name": "driver", "args": [*run, "--scheduler", ADDRESS]}
    own = {DRIVER_MEMORY: str(config.driver.memory)}
    pod = _pod(config, container, config.driver.threads, config.driver.memory, own)
    return _manifest("DaskJob", name, {"job": {"spec": pod}, "cluster": {"spec": _spec(config, name, idle_timeout=0)}})


def _without_cluster(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments of ``ips2 run`` in a pod: without those of a cluster, which the driver there does not start."""
    words = iter(arguments)
    for word in words:
        if word in ("--workers", "--tls", "--cluster"):
            next(words, None)
        elif word != "--insecure" and not word.startswith(("--workers=", "--tls=", "--cluster=")):
            yield word


def preview(config: Config) -> str:
    """The manifest that would be created."""
    return as_yaml(cluster_manifest(config, f"{config.kind(Kubernetes).name}-ID"))


def as_yaml(manifest: dict[str, object]) -> str:
    """A manifest as `kubectl apply` takes it."""
    return str(yaml.safe_dump(json.loads(json.dumps(manifest)), sort_keys=False))  # equal values without aliases


def start(config: Config, stack: contextlib.ExitStack) -> Client:
    """Create a ``DaskCluster`` and connect to it; it is deleted with the stack."""
    module = need("dask_kubernetes.operator", "kubernetes", "a cluster on Kubernetes")
    machine = config.kind(Kubernetes)
    manifest = cluster_manifest(config, f"{machine.name}-{secrets.token_hex(3)}")
    more = {"namespace": machine.namespace, "quiet": True, "resource_timeout": config.timeout}
    try:
        cluster = stack.enter_context(module.KubeCluster(custom_cluster_spec=manifest, **more))
    except Exception as error:  # three libraries, each with errors of its own
        raise no_kubernetes(f"{type(error).__name__}: {error}") from error
    client = stack.enter_context(Client(cluster, set_as_default=False))
    if machine.idle_timeout:
        keep_awake(client, machine.idle_timeout / TASKS_A_TIMEOUT, stack)
    return client


TASKS_A_TIMEOUT = 4
"""Tasks that the driver sends within ``idle_timeout``, so that one which is late does no harm."""


def keep_awake(client: Client, seconds: float, stack: contextlib.ExitStack) -> None:
    """Send a task that does nothing every so many seconds, from a thread that ends with the stack.

    The operator asks the scheduler since when it has had no task, waiting ones included, and deletes the cluster when
    that is too long, as while the driver works alone on block vectors in core. If the driver dies, nobody sends tasks
    any more, and the operator takes the cluster away.
    """
    ended = threading.Event()

    def send() -> None:
        while not ended.wait(seconds) and client.status in ("running", "connecting"):
            with contextlib.suppress(Exception):  # a client that is being closed, or has lost its scheduler
                client.submit(abs, 0, key=f"awake-{uuid.uuid4().hex}")

    threading.Thread(target=send, name="ips2-awake", daemon=True).start()
    stack.callback(ended.set)


def no_kubernetes(found: str) -> BadInput:
    """The error of a Kubernetes that fails to create or find an object."""
    remedy = "try `kubectl get daskclusters`, and install the operator's Helm chart"
    allowed = "a Kubernetes that kubectl reaches, with Dask's operator"
    return BadInput("kubernetes", found, allowed, "no pod would be made", remedy)
