"""How many workers a run will have, said without Dask where that is possible: a plan needs no cluster."""

from __future__ import annotations

from ips2_dask.clusters.config import MOST_WORKERS
from ips2_dask.kernels.parallel import usable_cores
from ips2_dask.params import Resources


def expected_workers(resources: Resources) -> int:
    """How many workers will share the work, each with one task at a time; nothing is started to find out."""
    if resources.n_workers is not None or resources.cluster is None:
        return resources.n_workers or min(MOST_WORKERS, usable_cores())
    from ips2_dask.clusters import connect  # noqa: PLC0415  it loads Dask

    return connect.workers_of(connect.config_of(resources))
