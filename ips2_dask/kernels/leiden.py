"""Communities of a weighted graph by the Leiden algorithm (Traag et al. 2019), as igraph has it; a seed decides."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import random
import threading
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ips2_dask.kernels.labels import renumber
from ips2_dask.typing import Float64, Int32, Integer

MOST_ITERATIONS = 100
"""Iterations of one search at most; a few are usual."""

MOST_TRIALS = 30
"""Resolutions that are tried at most for a given number of communities."""

_one_at_a_time = threading.Lock()  # igraph's source of random numbers is one of the process


def available() -> bool:
    """Whether igraph is installed."""
    return importlib.util.find_spec("igraph") is not None


def version() -> str:
    """The version of igraph, empty where it is not installed: another one may give other communities."""
    return importlib.metadata.version("igraph") if available() else ""


class Communities(NamedTuple):
    """The communities of one resolution."""

    labels: Int32  # (n,) numbered by each one's first vertex
    clusters: int
    resolution: float
    modularity: float  # with that resolution


class _Near(NamedTuple):
    """The communities that come nearest to a wanted number of them."""

    found: Communities
    above: Communities | None  # of the next larger number that was met, where none is exact


class Graph:
    """An undirected graph whose communities are the same for the same edges, in whatever order they are given.

    ``n``: vertices. Their numbers decide: the caller gives them in an order that does not depend on how work is
    cut; ``i``, ``j`` (edges,): ends of the edges, each pair once and no loops; ``weights`` (edges,): above 0.
    """

    def __init__(self, n: int, i: Integer, j: Integer, weights: NDArray[np.floating]) -> None:
        import igraph  # noqa: PLC0415  an extra, which few runs need

        edges = np.stack([np.minimum(i, j), np.maximum(i, j)], axis=1).astype(np.int64)
        order = np.lexsort((edges[:, 1], edges[:, 0]))  # sums of weights follow the order of the edges
        self._weights: Float64 = np.asarray(weights, np.float64)[order]
        self._igraph, self._graph = igraph, igraph.Graph(n=n, edges=np.ascontiguousarray(edges[order]))

    def communities(self, resolution: float, seed: int) -> Communities:
        """Leiden's communities for the modularity with a resolution, iterated until that no longer grows.

        The iterations are counted here: igraph's own way to iterate until nothing changes does not end on some graphs
        before version 1.0.

        ``resolution``: above 0; larger ones give more communities.
        """
        with _one_at_a_time:
            self._igraph.set_random_number_generator(random.Random(seed))
            try:
                members, quality = self._iteration(None, resolution)
                for _ in range(MOST_ITERATIONS - 1):
                    more, better = self._iteration(members, resolution)
                    if better <= quality:
                        break
                    members, quality = more, better
            finally:
                self._igraph.set_random_number_generator(random)  # igraph's own default
        labels = renumber(np.asarray(members, np.int32))
        return Communities(labels, int(labels.max(initial=-1)) + 1, resolution, quality)

    def _iteration(self, members: list[int] | None, resolution: float) -> tuple[list[int], float]:
        """The community of each vertex after one iteration more, and their modularity, 0 without edges."""
        found: list[int] = self._graph.community_leiden(
            objective_function="modularity",
            weights=self._weights,
            resolution=resolution,
            n_iterations=1,
            initial_membership=members,
        ).membership
        quality = float(self._graph.modularity(found, weights=self._weights, resolution=resolution))
        return found, 0.0 if math.isnan(quality) else quality

    def so_many(self, clusters: int, seed: int) -> _Near:
        """Communities of the resolution that gives ``clusters`` of them, found by bisection from 1.

        Where no resolution is found that does, the next smaller number that was met counts. There is one unless the
        graph has more components. One community is that of resolution 0, of which igraph keeps components apart.
        """
        if clusters == 1:
            return _Near(Communities(np.zeros(self._graph.vcount(), np.int32), 1, 0.0, 1.0), None)
        below: Communities | None = None
        above: Communities | None = None
        resolution = 1.0
        for _ in range(MOST_TRIALS):
            found = self.communities(resolution, seed)
            if found.clusters == clusters:
                return _Near(found, None)
            below, above = (found, above) if found.clusters < clusters else (below, found)
            if below is None or above is None:
                resolution *= 2.0 if above is None else 0.5
            elif above.resolution < 1.001 * below.resolution:
                break
            else:
                resolution = math.sqrt(below.resolution * above.resolution)
        nearest = below or above
        assert nearest is not None
        return _Near(nearest, None if nearest is above else above)
