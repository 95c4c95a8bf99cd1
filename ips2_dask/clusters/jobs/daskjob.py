"""A driver as a pod: a ``DaskJob`` of Dask's Kubernetes operator, which creates the cluster and deletes it again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ips2_dask.clusters import kubernetes
from ips2_dask.clusters.config import Config, Kubernetes
from ips2_dask.clusters.extras import need
from ips2_dask.clusters.jobs.record import Job, Native
from ips2_dask.errors import BadInput

if TYPE_CHECKING:  # kr8s comes with the extra [kubernetes]
    from kr8s.objects import APIObject

STATES = {"Running": "running", "Successful": "done", "Failed": "failed"}
FLAGS, WITH_VALUE = ("--insecure",), ("--workers", "--tls", "--cluster")
"""Options of a cluster, which the driver in the pod does not start: it is given the address of its scheduler."""


def run_arguments(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments of ``ips2 run`` in the pod: without those that would start a cluster."""
    words = iter(arguments)
    for word in words:
        if word in WITH_VALUE:
            next(words, None)
        elif word not in FLAGS and not word.startswith(tuple(f"{name}=" for name in WITH_VALUE)):
            yield word


def launch(job: Job, config: Config) -> Native:
    """Create the ``DaskJob``."""
    name = f"{config.kind(Kubernetes).name}-{job.id}"
    manifest = kubernetes.job_manifest(config, name, list(run_arguments(job.arguments[1:])))
    (job.folder / "script").write_text(kubernetes.as_yaml(manifest), encoding="utf-8")
    try:
        daskjob = _class()(manifest, namespace=config.kind(Kubernetes).namespace)
        daskjob.create()
        return {"name": name, "namespace": daskjob.namespace}
    except Exception as error:  # kr8s, httpx and the reader of kubeconfig each have errors of their own
        raise kubernetes.no_kubernetes(error) from error


def _class() -> type[APIObject]:
    objects = need("kr8s.objects", "kubernetes", "a job on Kubernetes")
    return objects.new_class("DaskJob", kubernetes.API, asyncio=False)


def _daskjob(job: Job) -> APIObject | None:
    """The ``DaskJob`` of a job, or None if it was deleted."""
    kr8s = need("kr8s", "kubernetes", "a job on Kubernetes")
    try:
        return _class().get(job.native["name"], namespace=job.native["namespace"])
    except kr8s.NotFoundError:
        return None
    except Exception as error:
        raise kubernetes.no_kubernetes(error) from error


def state(job: Job) -> str | None:
    """The state that the operator reports of the job, or None if the job was deleted."""
    daskjob = _daskjob(job)
    if daskjob is None:
        return None
    return STATES.get(str(daskjob.raw.get("status", {}).get("jobStatus")), "pending")


def cancel(job: Job) -> None:
    """Delete the job, its cluster with it."""
    daskjob = _daskjob(job)
    if daskjob is not None:
        daskjob.delete()


def log_lines(job: Job, follow: bool) -> Iterator[str]:
    """The lines of the log of the driver's pod."""
    objects = need("kr8s.objects", "kubernetes", "a job on Kubernetes")
    daskjob = _daskjob(job)
    name = daskjob and daskjob.raw.get("status", {}).get("jobRunnerPodName")
    if not name:
        raise BadInput(
            "job",
            f"{job.id}, which has no pod",
            "one that is running, or has ended and was not deleted",
            "there would be nothing to show",
            "look at `ips2 jobs`",
        )
    for line in objects.Pod.get(name, namespace=job.native["namespace"]).logs(follow=follow):
        yield line + "\n"
