"""IPS2 and PPC as scikit-learn estimators: they translate, and hold no logic of their own."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from ips2_dask.errors import IPS2Warning
from ips2_dask.params import Params, Resources, parse_bytes
from ips2_dask.pipeline import run


class IPS2(ClusterMixin, BaseEstimator):
    """Clustering by pairwise and tensor similarity, fused (Peng et al., arXiv 1905.03920).

    Without ``client`` it runs serially in this process, and with ``store=None`` in memory.

    Parameters
    ----------
    n_clusters : int, default=8
        c.
    n_neighbors : int, default=5
        k, the size of a neighbourhood, the sample itself included.
    sigma, epsilon : float
        Of the indecomposable tensor, eq. (7).
    tensor : {"indecomposable", "decomposable"}
    affinity : {"heat-knn", "gaussian"}
    bandwidth : {"mean", "median"} or float
    high_order : {"rms", "abs", "signed"}
    fusion : {"average", "normalized"}
    fusion_weight : float, default=0.5
    assign_labels : {"spectral", "kmeans", "rows"}
    scale : {None, "none", "zscore", "minmax", "l2"}
    operator : {"auto", "triplets"}
    tol : float, default=1e-3
    random_state : int, RandomState instance or None, default=0
    client : distributed.Client, optional
        Its workers compute; a second cluster is never started. Clones share it.
    store : path or URL, optional
        Run directory; None keeps everything in memory.
    memory_limit : int or str, optional
        Bytes a process may use, such as "4GiB"; a run that would need more is refused.
    verbose : bool, default=False

    Attributes
    ----------
    labels_ : (n_samples,) int32
    affinity_matrix_ : (n_samples, n_samples)
        The fused similarity U: CSR, or dense where all pairs are kept.
    pairwise_similarity_, high_order_similarity_ : (n_samples, n_samples)
        S and V.
    eigenvalues_ : (n_clusters,)
        Leading eigenvalues of the unfolded tensor's Laplacian.
    embedding_ : (n_samples, n_clusters) or None
    n_features_in_ : int
    run_ : Run
    """

    _method = "ips2"

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        n_neighbors: int = 5,
        sigma: float = 1.0,
        epsilon: float = 1e-4,
        tensor: str = "indecomposable",
        affinity: str = "heat-knn",
        bandwidth: str | float = "mean",
        high_order: str = "rms",
        fusion: str = "average",
        fusion_weight: float = 0.5,
        assign_labels: str = "spectral",
        scale: str | None = None,
        operator: str = "auto",
        tol: float = 1e-3,
        random_state: Any = 0,
        client: Any = None,
        store: Any = None,
        memory_limit: int | str | None = None,
        verbose: bool = False,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_neighbors = n_neighbors
        self.sigma = sigma
        self.epsilon = epsilon
        self.tensor = tensor
        self.affinity = affinity
        self.bandwidth = bandwidth
        self.high_order = high_order
        self.fusion = fusion
        self.fusion_weight = fusion_weight
        self.assign_labels = assign_labels
        self.scale = scale
        self.operator = operator
        self.tol = tol
        self.random_state = random_state
        self.client = client
        self.store = store
        self.memory_limit = memory_limit
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def __sklearn_clone__(self) -> IPS2:
        """A clone shares the client, which can't be copied."""
        return type(self)(**self.get_params(deep=False))

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer) and not isinstance(self.random_state, bool):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _params(self) -> Params:
        names = (
            "n_clusters", "n_neighbors", "sigma", "epsilon", "tensor", "affinity", "bandwidth", "high_order", "fusion",
            "fusion_weight", "assign_labels", "operator", "tol",
        )  # fmt: skip
        chosen = {name: getattr(self, name) for name in names}
        return Params(**chosen, scale=self.scale or "none", method=self._method, random_state=self._seed())

    def fit(self, X: Any, y: Any = None) -> IPS2:
        """Cluster the rows of X.

        Parameters
        ----------
        X : (n_samples, n_features) array, data frame, SciPy sparse matrix, Dask or Zarr array
        y : ignored

        Returns
        -------
        self

        Raises
        ------
        BadInput
            A ValueError: where X or a parameter can't be used.
        Refused
            Where ``memory_limit`` can't be kept.
        """
        del y
        params = self._params()
        if hasattr(X, "chunks"):  # Dask and Zarr arrays are read by rows, never as a whole
            self.n_features_in_ = int(X.shape[1])
        else:
            X = validate_data(self, X, accept_sparse="csr", dtype="numeric", ensure_min_samples=2)
        resources = Resources(memory_limit=parse_bytes(self.memory_limit))
        self.run_ = run(X, params, resources, store=self.store, client=self.client)
        for text in self.run_.report()["warnings"]:
            warnings.warn(text, IPS2Warning, stacklevel=2)
        if self.verbose:
            print(self.run_)
        self.labels_ = self.run_.labels
        self.eigenvalues_ = self.run_.eigenvalues
        self.embedding_ = self.run_.embedding
        return self

    @property
    def affinity_matrix_(self) -> Any:
        """The fused similarity U."""
        return self._fitted("fused")

    @property
    def pairwise_similarity_(self) -> Any:
        """The pairwise similarity S."""
        return self._fitted("pairwise")

    @property
    def high_order_similarity_(self) -> Any:
        """The high-order similarity V, maximum 1."""
        return self._fitted("high_order")

    def _fitted(self, kind: str) -> Any:
        if "run_" not in vars(self):
            raise AttributeError(f"{type(self).__name__} is not fitted yet: call fit first")
        return self.run_.similarity(kind)


class PPC(IPS2):
    """Pair-to-pair clustering: the same with the high-order similarity V alone.

    Parameters and attributes are those of `IPS2`; ``affinity_matrix_`` is V.
    """

    _method = "ppc"
