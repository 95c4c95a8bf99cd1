"""CAVE: clique averaging of nearest-neighbour hyperedges, then normalised cut (Agarwal et al. 2005)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np
import scipy.sparse as sp
from scipy.optimize import lsq_linear

from ips2_dask.paper.baselines import spectral
from ips2_dask.paper.baselines.spectral import BLOCK, Baseline, bandwidth_of, check_count, check_option, gaussian
from ips2_dask.typing import Float64, Integer

AVERAGINGS = ("separate", "joint")


@dataclass(eq=False, repr=False)
class CAVE(Baseline):
    """Clique averaging and normalised cut: a hypergraph, the graph that approximates it best, its partition.

    Hyperedge e is a sample with its ``n_neighbors`` - 1 nearest others; its weight h_e is the mean Gaussian affinity
    exp(-d_ij^2 / 2t^2) of its C(k, 2) pairs. Clique averaging looks for the graph whose edges reproduce the hyperedges
    in least squares: each h_e is taken for a noisy average of the weights w_ij on the clique of e (the paper's
    generalised mean with exponent 1). The graph is cut by the normalised cut: the leading generalised eigenvectors of
    (W, D), rows scaled to length 1, k-means.

    Attributes
    ----------
    labels_ : (m,) int
    affinity_matrix_ : (m, m) CSR, the weights w_ij, zero diagonal
    hyperedges_ : (m, k) int, the samples of each hyperedge, its own first
    hyperedge_weights_ : (m,) float, h_e
    n_features_in_ : int
    """

    n_clusters: int = 8  # at most the number of samples
    _: KW_ONLY
    n_neighbors: int = 5  # samples k of a hyperedge, its own sample counted, from 2 to m
    # separate: w_ij = mean of h_e over the hyperedges that hold i and j, which minimises sum_e sum_{ij in e}
    # (w_ij - h_e)^2 pair by pair. joint: minimises sum_e (h_e - mean_{ij in e} w_ij)^2 over 0 <= w <= 1, all pairs
    # together; with fewer hyperedges than pairs the answer is not unique, and the smallest is taken where it lies
    # within the bounds
    averaging: str = "separate"
    bandwidth: str | float = "mean"  # t, as of SC
    random_state: int | np.random.RandomState | None = 0  # of k-means and of Lanczos

    def _affinity(self, X: Float64, rng: np.random.RandomState) -> sp.csr_array:
        m = len(X)
        check_option("averaging", self.averaging, AVERAGINGS)
        k = check_count("n_neighbors", self.n_neighbors, 2, m, f"a hyperedge of {m} samples would have no pair or no k")
        self.hyperedges_ = spectral.neighborhoods(X, k)
        self.hyperedge_weights_ = mean_affinities(X, self.hyperedges_, bandwidth_of(X, self.bandwidth, rng))
        average = average_separately if self.averaging == "separate" else average_jointly
        return average(self.hyperedges_, self.hyperedge_weights_, m)


def mean_affinities(X: Float64, hyperedges: Integer, t: float) -> Float64:
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


def average_separately(hyperedges: Integer, h: Float64, m: int) -> sp.csr_array:
    """w_ij = mean of h_e (n,) over the hyperedges (n, k) that hold i and j, CSR (m, m), symmetric, zero diagonal."""
    n, k = hyperedges.shape
    H = sp.csr_array((np.ones(n * k), hyperedges.ravel(), np.arange(n + 1) * k), shape=(n, m))
    total, count = sp.csr_array(H.T @ (H * h[:, None])), sp.csr_array(H.T @ H)
    for A in (total, count):
        A.setdiag(0)
        A.eliminate_zeros()
    count.data = 1 / count.data
    return sp.csr_array(total.multiply(count))


def average_jointly(hyperedges: Integer, h: Float64, m: int) -> sp.csr_array:
    """w that minimises sum_e (h_e - mean_{ij in e} w_ij)^2 over 0 <= w <= 1, CSR (m, m), symmetric, zero diagonal."""
    i, j = np.triu_indices(hyperedges.shape[1], 1)
    first, second = np.sort(np.stack([hyperedges[:, i], hyperedges[:, j]]), axis=0)  # (n, q) each
    pairs, pair = np.unique((first * m + second).ravel(), return_inverse=True)
    n, q = first.shape
    G = sp.csr_array((np.full(n * q, 1 / q), pair.ravel(), np.arange(n + 1) * q), shape=(n, len(pairs)))
    w = np.clip(lsq_linear(G, h, bounds=(0, 1), lsmr_tol=1e-12).x, 0, 1)
    W = sp.csr_array((w, (pairs // m, pairs % m)), shape=(m, m))
    W.eliminate_zeros()
    return sp.csr_array(W + W.T)
