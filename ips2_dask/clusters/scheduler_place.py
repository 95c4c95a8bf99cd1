"""Whether a run's scheduler is a process of its own: a plan needs it, and starts no cluster to find out."""

from __future__ import annotations

from ips2_dask.params import Resources

SHARED = ("local", "slurm", "pbs", "lsf", "sge")
"""Managers whose scheduler runs in the driver's process."""


def scheduler_is_apart(resources: Resources) -> bool:
    """Whether the scheduler of a run with these resources does not share the driver's process."""
    if resources.cluster is None:
        return resources.scheduler is not None
    from ips2_dask.clusters.connect import config_of  # noqa: PLC0415  it loads Dask, and most plans name no cluster

    return config_of(resources).manager not in SHARED
