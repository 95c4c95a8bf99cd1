"""Clusters: from a YAML file of machines to a Dask client, a submitted job, certificates and a check of all that."""

from ips2_dask.clusters.connect import cluster, config_of, executor, expected_workers, shared_folder
from ips2_dask.clusters.load import load, shipped
from ips2_dask.clusters.observe import dashboard, performance_report

__all__ = [
    "cluster",
    "config_of",
    "dashboard",
    "executor",
    "expected_workers",
    "load",
    "performance_report",
    "shared_folder",
    "shipped",
]
