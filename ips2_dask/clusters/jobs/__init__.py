"""Jobs that were handed over whole, driver included: submitted, listed, read, cancelled."""

from ips2_dask.clusters.jobs.record import Job, find, jobs
from ips2_dask.clusters.jobs.submit import cancel, log_lines, state, submit

__all__ = ["Job", "cancel", "find", "jobs", "log_lines", "state", "submit"]
