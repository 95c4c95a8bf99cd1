"""Submitted jobs: runs whose driver, too, runs on a cluster. Submit, list, read and cancel them."""

from ips2_dask.clusters.jobs.record import Job, find, jobs
from ips2_dask.clusters.jobs.submit import cancel, log_lines, state, submit

__all__ = ["Job", "cancel", "find", "jobs", "log_lines", "state", "submit"]
