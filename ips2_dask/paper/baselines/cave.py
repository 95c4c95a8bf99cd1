"""CAVE: clique averaging of nearest-neighbour hyperedges, then normalised cut (Agarwal et al. 2005)."""

from __future__ import annotations

from typing import Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.optimize import lsq_linear
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from ips2_dask.paper.baselines._common import (
    BLOCK,
    Ints,
    bandwidth_of,
    check_clusters,
    check_count,
    check_option,
    gaussian,
    neighborhoods,
    spectral_labels,
)
from ips2_dask.readers.objects import refuse_masked
from ips2_dask.typing import Float64

AVERAGINGS = ("separate", "joint")


class CAVE(ClusterMixin, BaseEstimator):
    """Clique averaging and normalised cut: a hypergraph, the graph that approximates it best, its partition.

    Hyperedge e is a sample with its ``n_neighbors`` - 1 nearest others; its weight h_e is the mean Gaussian affinity
    exp(-d_ij^2 / 2t^2) of its C(k, 2) pairs. Clique averaging looks for the graph whose edges reproduce the hyperedges
    in least squares: each h_e is taken for a noisy average of the weights w_ij on the clique of e (the paper's
    generalised mean with exponent 1). The graph is cut by the normalised cut: the leading generalised eigenvectors of
    (W, D), rows scaled to length 1, k-means.

    Parameters
    ----------
    n_clusters : int
        Clusters, at most the number of samples.
    n_neighbors : int
        Samples k of a hyperedge, its own sample counted, from 2 to m.
    averaging : {"separate", "joint"}
        ``separate``: w_ij = mean of h_e over the hyperedges that hold i and j, which minimises sum_e sum_{ij in e}
        (w_ij - h_e)^2 pair by pair. ``joint``: minimises sum_e (h_e - mean_{ij in e} w_ij)^2 over 0 <= w <= 1, all
        pairs together; with fewer hyperedges than pairs the answer is not unique, and the smallest is taken where it
        lies within the bounds.
    bandwidth : {"mean", "median"} or float
        t: the mean or median distance over i < j, or a number; above 5,000 samples over the pairs of 2,000 seeded ones.
    random_state : int, RandomState or None
        Seed of k-means and of Lanczos.

    Attributes
    ----------
    labels_ : (m,) int
    affinity_matrix_ : (m, m) CSR, the weights w_ij, zero diagonal
    hyperedges_ : (m, k) int, the samples of each hyperedge, its own first
    hyperedge_weights_ : (m,) float, h_e
    n_features_in_ : int
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        n_neighbors: int = 5,
        averaging: str = "separate",
        bandwidth: str | float = "mean",
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_neighbors = n_neighbors
        self.averaging = averaging
        self.bandwidth = bandwidth
        self.random_state = random_state

    def fit(self, X: npt.ArrayLike, y: object = None) -> Self:
        """Cluster X (m, f); y is ignored.

        Raises
        ------
        BadInput
            A parameter out of range.
        """
        refuse_masked(X, "X")
        data: Float64 = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        m = len(data)
        check_option("averaging", self.averaging, AVERAGINGS)
        c = check_clusters(self.n_clusters, m)
        k = check_count("n_neighbors", self.n_neighbors, 2, m, f"a hyperedge of {m} samples would have no pair or no k")
        rng = check_random_state(self.random_state)
        self.hyperedges_ = neighborhoods(data, k)
        self.hyperedge_weights_ = mean_affinities(data, self.hyperedges_, bandwidth_of(data, self.bandwidth, rng))
        average = average_separately if self.averaging == "separate" else average_jointly
        self.affinity_matrix_ = average(self.hyperedges_, self.hyperedge_weights_, m)
        self.labels_ = spectral_labels(self.affinity_matrix_, c, rng)
        return self


def mean_affinities(X: Float64, hyperedges: Ints, t: float) -> Float64:
    """h_e, the mean of exp(-d_ij^2 / 2t^2) over the pairs of each hyperedge (n, k), (n,)."""
    k, f = hyperedges.shape[1], X.shape[1]
    i, j = np.triu_indices(k, 1)
    step = max(1, BLOCK // (k * f + k * k))
    means = np.empty(len(hyperedges))
    for p in range(0, len(means), step):
        points = X[hyperedges[p : p + step]]  # (b, k, f)
        points -= points[:, :1]  # around the first sample, so that the products below keep the distances' digits
        G = points @ points.transpose(0, 2, 1)  # (b, k, k)
        square = np.einsum("bii->bi", G)
        D = np.sqrt(np.maximum(square[:, i] + square[:, j] - 2 * G[:, i, j], 0))
        means[p : p + step] = gaussian(D, t).mean(axis=1)
    return means


def average_separately(hyperedges: Ints, h: Float64, m: int) -> sp.csr_array:
    """w_ij = mean of h_e over the hyperedges that hold i and j, CSR (m, m), symmetric, zero diagonal.

    Parameters
    ----------
    hyperedges : array (n, k)
        Distinct samples of each hyperedge.
    h : array (n,)
        Their weights.
    m : int
        Samples.
    """
    n, k = hyperedges.shape
    H = sp.csr_array((np.ones(n * k), hyperedges.ravel(), np.arange(n + 1) * k), shape=(n, m))
    total, count = sp.csr_array(H.T @ (H * h[:, None])), sp.csr_array(H.T @ H)
    for A in (total, count):
        A.setdiag(0)
        A.eliminate_zeros()
    count.data = 1 / count.data
    return sp.csr_array(total.multiply(count))


def average_jointly(hyperedges: Ints, h: Float64, m: int) -> sp.csr_array:
    """w that minimises sum_e (h_e - mean_{ij in e} w_ij)^2 over 0 <= w <= 1, CSR (m, m), symmetric, zero diagonal.

    Parameters are those of ``average_separately``.
    """
    i, j = np.triu_indices(hyperedges.shape[1], 1)
    first, second = np.sort(np.stack([hyperedges[:, i], hyperedges[:, j]]), axis=0)  # (n, q) each
    pairs, pair = np.unique((first * m + second).ravel(), return_inverse=True)
    n, q = first.shape
    G = sp.csr_array((np.full(n * q, 1 / q), pair.ravel(), np.arange(n + 1) * q), shape=(n, len(pairs)))
    w = np.clip(lsq_linear(G, h, bounds=(0, 1), lsmr_tol=1e-12).x, 0, 1)
    W = sp.csr_array((w, (pairs // m, pairs % m)), shape=(m, m))
    W.eliminate_zeros()
    return sp.csr_array(W + W.T)
