"""A cluster of pods through Dask's Kubernetes operator, and the manifests of clusters and jobs."""

from __future__ import annotations

import contextlib
import secrets
import threading
import uuid
from collections.abc import Mapping, Sequence

import yaml
from distributed import Client

from ips2_dask.clusters import workers
from ips2_dask.clusters.config import Config, Kubernetes
from ips2_dask.clusters.extras import need
from ips2_dask.clusters.limits import DRIVER_MEMORY, submitted_driver_memory
from ips2_dask.errors import BadInput

API = "kubernetes.dask.org/v1"
SCHEDULER_PORT, DASHBOARD_PORT = 8786, 8787
ADDRESS = "$(DASK_SCHEDULER_ADDRESS)"
"""The operator sets this variable in a job's pod, and Kubernetes replaces it in the pod's arguments."""


def _quantity(octets: int) -> str:
    return f"{-(-octets // (1 << 20))}Mi"


def _resources(threads: int, memory: int) -> dict[str, dict[str, str]]:
    """Equal requests and limits, with which a pod is never the first to be evicted."""
    amount = {"cpu": str(threads), "memory": _quantity(memory)}
    return {"requests": amount, "limits": amount}


def _pod(
    config: Config,
    container: Mapping[str, object],
    threads: int,
    memory: int,
    environment: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """The specification of a pod of one container, with variables besides those of all pods."""
    machine = config.kind(Kubernetes)
    variables = {**(environment or {}), **workers.environment(config)}
    pod_container: dict[str, object] = {
        "image": machine.image,
        "imagePullPolicy": machine.pull_policy,
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": _resources(threads, memory),
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


def _worker(config: Config) -> dict[str, object]:
    memory = config.worker.memory or 0
    args = ["dask", "worker", "--name", "$(DASK_WORKER_NAME)", "--nthreads", "1", "--memory-limit", f"{memory}B"]
    if config.worker.scratch:
        args += ["--local-directory", config.worker.scratch]
    args += workers.arguments(config)
    container = {"name": "worker", "args": args}
    return _pod(config, container, config.worker.threads, memory, workers.as_environment(workers.memory_settings()))


def _scheduler(config: Config) -> dict[str, object]:
    probe = {"httpGet": {"path": "/health", "port": "http-dashboard"}}
    container = {
        "name": "scheduler",
        "args": ["dask", "scheduler", "--host", "0.0.0.0"],
        "ports": [
            {"name": "tcp-comm", "containerPort": SCHEDULER_PORT, "protocol": "TCP"},
            {"name": "http-dashboard", "containerPort": DASHBOARD_PORT, "protocol": "TCP"},
        ],
        "readinessProbe": {**probe, "periodSeconds": 1, "timeoutSeconds": 300},
        "livenessProbe": {**probe, "initialDelaySeconds": 15, "periodSeconds": 20},
    }
    return _pod(config, container, 1, config.driver.memory, workers.as_environment(workers.log_settings()))


def _spec(config: Config, name: str, idle_timeout: int) -> dict[str, object]:
    ports = [
        {"name": port, "protocol": "TCP", "port": number, "targetPort": port}
        for port, number in (("tcp-comm", SCHEDULER_PORT), ("http-dashboard", DASHBOARD_PORT))
    ]
    chosen = {"dask.org/cluster-name": name, "dask.org/component": "scheduler"}
    replicas = config.workers or (config.adaptive.maximum if config.adaptive else 1)
    return {
        "idleTimeout": idle_timeout,
        "worker": {"replicas": replicas, "spec": _worker(config)},
        "scheduler": {"spec": _scheduler(config), "service": {"type": "ClusterIP", "selector": chosen, "ports": ports}},
    }


def cluster_manifest(config: Config, name: str) -> dict[str, object]:
    """The ``DaskCluster`` of a config."""
    spec = _spec(config, name, config.kind(Kubernetes).idle_timeout)
    return {"apiVersion": API, "kind": "DaskCluster", "metadata": {"name": name}, "spec": spec}


def job_manifest(config: Config, name: str, arguments: Sequence[str]) -> dict[str, object]:
    """The ``DaskJob`` that runs ``ips2 run`` on a cluster of its own, which is deleted when the run ends.

    The operator deletes it with the driver's pod, however that ended, so it needs no timeout: the driver in the pod,
    which did not start the cluster, would not keep it awake.
    """
    run = ["python", "-m", "ips2_dask.cli", "run", *(word.replace("$(", "$$(") for word in arguments)]
    container = {"name": "driver", "args": [*run, "--scheduler", ADDRESS]}
    own = {DRIVER_MEMORY: str(submitted_driver_memory(config))}
    pod = _pod(config, container, config.driver.threads, config.driver.memory, own)
    cluster = _spec(config, name, idle_timeout=0)
    return {
        "apiVersion": API,
        "kind": "DaskJob",
        "metadata": {"name": name},
        "spec": {"job": {"spec": pod}, "cluster": {"spec": cluster}},
    }


def _unique_name(config: Config) -> str:
    """A name for the objects of one cluster."""
    return f"{config.kind(Kubernetes).name}-{secrets.token_hex(3)}"


def preview(config: Config) -> str:
    """The manifest that would be created."""
    return as_yaml(cluster_manifest(config, f"{config.kind(Kubernetes).name}-ID"))


class _Plain(yaml.SafeDumper):
    """A YAML dumper that repeats equal values instead of using aliases."""

    def ignore_aliases(self, data: object) -> bool:
        """Always."""
        del data
        return True


def as_yaml(manifest: dict[str, object]) -> str:
    """A manifest as `kubectl apply` takes it."""
    return str(yaml.dump(manifest, Dumper=_Plain, sort_keys=False))


def start(config: Config, stack: contextlib.ExitStack) -> Client:
    """Create a ``DaskCluster`` and connect to it; it is deleted with the stack.

    Raises
    ------
    BadInput
        If Kubernetes can't be reached, or has no operator.
    """
    module = need("dask_kubernetes.operator", "kubernetes", "a cluster on Kubernetes")
    machine = config.kind(Kubernetes)
    manifest = cluster_manifest(config, _unique_name(config))
    try:
        cluster = stack.enter_context(
            module.KubeCluster(
                custom_cluster_spec=manifest, namespace=machine.namespace, quiet=True, resource_timeout=config.timeout
            )
        )
    except Exception as error:  # three libraries, each with errors of its own
        raise no_kubernetes(error) from error
    if config.adaptive is not None:
        cluster.adapt(minimum=config.adaptive.minimum, maximum=config.adaptive.maximum)
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


def no_kubernetes(error: Exception) -> BadInput:
    """The error of a Kubernetes that fails to create or find an object."""
    return BadInput(
        "kubernetes",
        f"{type(error).__name__}: {error}",
        "a Kubernetes that kubectl reaches, with Dask's operator",
        "no pod would be made",
        "try `kubectl get daskclusters`, and install the operator's Helm chart",
    )
