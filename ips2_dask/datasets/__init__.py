"""Data sets by name, from a directory of the publishers' files, and generated ones of any size."""

from ips2_dask.datasets.manifold import curved_gaussians
from ips2_dask.paper.data import Dataset, available, load, names

__all__ = ["Dataset", "available", "curved_gaussians", "load", "names"]
