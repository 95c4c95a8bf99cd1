"""Pictures of a run, each on a Matplotlib axis: what `ips2_dask.report` shows, for a page or paper of one's own.

Matplotlib is the extra ``report``. Every function takes a finished `Run` and an optional axis, and returns the axis;
what each picture shows is to be had as numbers too: `spectrum`, `summarize`, `coordinates`, `silhouette`, `certainty`,
`spent`.

Examples
--------
>>> from ips2_dask import open_run, plots  # doctest: +SKIP
>>> run = open_run("run")  # doctest: +SKIP
>>> plots.eigenvalues(run).figure.savefig("eigenvalues.pdf")  # doctest: +SKIP
"""

from ips2_dask.plots.clusters import cluster_sizes, embedding, layout, silhouettes
from ips2_dask.plots.layers import layers
from ips2_dask.plots.matrices import distribution, similarity
from ips2_dask.plots.points import certainty, coordinates, points, silhouette
from ips2_dask.plots.resources import spent, stage_memory, stage_times
from ips2_dask.plots.similarities import summarize
from ips2_dask.plots.spectrum import convergence, eigenvalues, spectrum

__all__ = [
    "certainty",
    "cluster_sizes",
    "convergence",
    "coordinates",
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
