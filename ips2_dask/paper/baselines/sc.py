"""SC: spectral clustering by pairwise affinity (Ng, Jordan, Weiss 2002)."""

from __future__ import annotations

from typing import Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import validate_data

from ips2_dask.errors import BadInput
from ips2_dask.paper.baselines._common import (
    Affinity,
    bandwidth_of,
    check_clusters,
    check_count,
    check_option,
    distances,
    gaussian,
    nearest_others,
    spectral_labels,
)
from ips2_dask.readers.objects import refuse_masked
from ips2_dask.typing import Float64

AFFINITIES = ("gaussian", "heat-knn", "precomputed")


class SC(ClusterMixin, BaseEstimator):
    """Spectral clustering: Gaussian affinity, normalised Laplacian, rows of length 1, k-means.

    A = exp(-d_ij^2 / 2t^2), L = D^-1/2 A D^-1/2, its ``n_clusters`` leading eigenvectors as columns, each row scaled to
    length 1, k-means on the rows (steps 1-6 of the paper's algorithm).

    Parameters
    ----------
    n_clusters : int
        Clusters, at most the number of samples.
    affinity : {"gaussian", "heat-knn", "precomputed"}
        ``gaussian``: all pairs, dense. ``heat-knn``: the same kernel where one of two samples is among the
        ``n_neighbors`` nearest others of the other, symmetric by maximum, zero diagonal, sparse. ``precomputed``: X is
        the affinity, (m, m), dense or sparse, and its diagonal counts as it is.
    bandwidth : {"mean", "median"} or float
        t: the mean or median distance over i < j, or a number; above 5,000 samples over the pairs of 2,000 seeded ones.
    n_neighbors : int
        Neighbours of ``heat-knn``, the sample itself not counted.
    zero_diagonal : bool
        Whether the diagonal of ``gaussian`` is 0, as in the paper, or 1.
    random_state : int, RandomState or None
        Seed of k-means and of Lanczos.

    Attributes
    ----------
    labels_ : (m,) int
    affinity_matrix_ : (m, m) array, CSR where ``heat-knn`` or a sparse ``precomputed``
    n_features_in_ : int
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        affinity: str = "gaussian",
        bandwidth: str | float = "mean",
        n_neighbors: int = 5,
        zero_diagonal: bool = True,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.n_clusters = n_clusters
        self.affinity = affinity
        self.bandwidth = bandwidth
        self.n_neighbors = n_neighbors
        self.zero_diagonal = zero_diagonal
        self.random_state = random_state

    def fit(self, X: npt.ArrayLike, y: object = None) -> Self:
        """Cluster X (m, f), or an affinity (m, m) where it is ``precomputed``; y is ignored.

        Raises
        ------
        BadInput
            A parameter out of range, or an affinity that is not square, symmetric and free of negative entries.
        """
        check_option("affinity", self.affinity, AFFINITIES)
        sparse = "csr" if self.affinity == "precomputed" else False
        refuse_masked(X, "X")
        data = validate_data(self, X, dtype=np.float64, accept_sparse=sparse, ensure_min_samples=2)
        c = check_clusters(self.n_clusters, data.shape[0])
        rng = check_random_state(self.random_state)
        self.affinity_matrix_ = self._affinity(data, rng)
        self.labels_ = spectral_labels(self.affinity_matrix_, c, rng)
        return self

    def _affinity(self, X: Affinity, rng: np.random.RandomState) -> Affinity:
        if self.affinity == "precomputed":
            return _checked_affinity(X)
        if self.affinity == "heat-knn":
            k = check_count("n_neighbors", self.n_neighbors, 1, len(X) - 1, f"{len(X)} samples have no more others")
            return _heat_knn(X, k, bandwidth_of(X, self.bandwidth, rng))
        W = gaussian(distances(X, X), bandwidth_of(X, self.bandwidth, rng))
        np.fill_diagonal(W, 0 if self.zero_diagonal else 1)
        return W

    def __sklearn_tags__(self) -> Tags:
        """A precomputed affinity is pairwise, positive and may be sparse."""
        tags = super().__sklearn_tags__()
        precomputed = self.affinity == "precomputed"
        tags.input_tags.pairwise = tags.input_tags.sparse = tags.input_tags.positive_only = precomputed
        return tags


def _heat_knn(X: Float64, k: int, t: float) -> sp.csr_array:
    """exp(-d_ij^2 / 2t^2) where j is among the k nearest others of i or the reverse, CSR (m, m), zero diagonal."""
    N, d = nearest_others(X, k)
    m = len(N)
    graph = sp.csr_array((gaussian(d, t).ravel(), N.ravel(), np.arange(m + 1) * k), shape=(m, m))
    return sp.csr_array(graph.maximum(graph.T))


def _checked_affinity(W: Affinity) -> Affinity:
    """The given affinity, if it is one."""
    thing = "affinity='precomputed'"
    if W.shape[0] != W.shape[1]:
        raise BadInput(
            thing, f"shape {W.shape}", "(m, m)", "it says nothing of pairs", "give the affinity of all pairs"
        )
    if W.min() < 0:
        raise BadInput(
            thing, f"Negative values in data, {W.min():g}", "none", "degrees could vanish", "give similarities"
        )
    gap = float(abs(W - W.T).max())
    if gap > 1e-8 * float(W.max()):
        raise BadInput(
            thing, f"W and W' {gap:g} apart", "a symmetric array", "eigenvectors would be complex", "give (W + W') / 2"
        )
    return W if isinstance(W, np.ndarray) else sp.csr_array(W)
