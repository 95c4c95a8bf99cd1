"""Data sets by name, from a directory of the publishers' files, and generated ones."""

from ips2_dask.datasets.loaders import Dataset, available, bbcsport_draw, load, names
from ips2_dask.datasets.manifold import curved_gaussians
from ips2_dask.datasets.synthetic import three_clusters, two_clusters, usdata1, usdata2

__all__ = [
    "Dataset",
    "available",
    "bbcsport_draw",
    "curved_gaussians",
    "load",
    "names",
    "three_clusters",
    "two_clusters",
    "usdata1",
    "usdata2",
]
