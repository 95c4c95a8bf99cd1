"""The number of workers that a run will have: a plan needs it, and starts no cluster to find out."""

from __future__ import annotations

from ips2_dask.clusters.config import MOST_WORKERS, Config, Ssh
from ips2_dask.kernels.parallel import usable_cores
from ips2_dask.params import Resources


def expected_workers(resources: Resources) -> int:
    """The number of workers of a run with these resources, each of which does one task at a time."""
    if resources.n_workers is not None or resources.cluster is None:
        return resources.n_workers or min(MOST_WORKERS, usable_cores())
    from ips2_dask.clusters.connect import config_of  # noqa: PLC0415  it loads Dask, and most plans name no cluster

    return _workers_of_config(config_of(resources))


def _workers_of_config(config: Config) -> int:
    """The number of workers of a config's cluster, the largest one if it adapts to the work."""
    if config.adaptive is not None:
        return config.adaptive.maximum
    if isinstance(config.machine, Ssh):
        return max(len(config.machine.hosts) - 1, 1) * config.machine.processes
    return config.workers or (min(MOST_WORKERS, usable_cores()) if config.manager == "local" else 1)
