"""Pictures of a run, each on a Matplotlib axis: what `ips2_dask.report` shows, for a page or paper of one's own.

Matplotlib is the extra ``report``. Every function takes a finished `Run` and an optional axis, pyplot's current one if
none is given, and returns the axis. What each picture shows is to be had as numbers too, and they may be given instead
of the run: `spectrum`, `summarize`, `coordinates`, `silhouette`, `certainty`, `spent`.

Examples
--------
>>> from ips2_dask import open_run, plots  # doctest: +SKIP
>>> run = open_run("run")  # doctest: +SKIP
>>> plots.eigenvalues(run).figure.savefig("eigenvalues.pdf")  # doctest: +SKIP
"""

from ips2_dask.plots.clusters import (
    certainty,
    cluster_sizes,
    coordinates,
    embedding,
    layers,
    layout,
    points,
    silhouette,
    silhouettes,
)
from ips2_dask.plots.run import convergence, criteria, eigenvalues, spectrum, spent, stage_memory, stage_times
from ips2_dask.plots.similarities import distribution, similarity, summarize

__all__ = [
    "certainty",
    "cluster_sizes",
    "convergence",
    "coordinates",
    "criteria",
    "distribution",
    "eigenvalues",
    "embedding",
    "layers",
    "layout",
    "points",
    "silhouette",
    "silhouettes",
    "similarity",
    "spectrum",
    "spent",
    "stage_memory",
    "stage_times",
    "summarize",
]
