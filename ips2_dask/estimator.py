"""IPS2 and PPC as scikit-learn estimators: they translate arguments, and hold no logic of their own."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from ips2_dask.errors import IPS2Warning
from ips2_dask.executors.failures import check_client
from ips2_dask.params import MAX_CLUSTERS, Params, Resources, entries
from ips2_dask.pipeline.run import run
from ips2_dask.progress import Progress
from ips2_dask.readers import is_anndata, is_chunked, named_like, open_source
from ips2_dask.readers.columns import match_columns
from ips2_dask.readers.objects import index_names, is_frame, refuse_masked

if TYPE_CHECKING:
    from pathlib import Path

    import dask.array as da
    import numpy.typing as npt
    import pandas as pd
    from distributed import Client
    from scipy.sparse import csr_array, sparray, spmatrix
    from sklearn.utils import Tags

    SparseMatrix: TypeAlias = "sparray | spmatrix"
    Samples: TypeAlias = "npt.ArrayLike | SparseMatrix | pd.DataFrame | da.Array"  # a zarr.Array is an ArrayLike
    Similarity: TypeAlias = "csr_array | npt.NDArray[np.floating]"

NAMED = ("__arrow_c_stream__", "collect_schema", "dims")
"""What tables of polars, pyarrow and DuckDB and arrays of xarray have, and no plain array."""


def _opens_itself(X: object) -> bool:
    """Whether a reader opens X with its names, and not scikit-learn: not arrays, sparse matrices and pandas' frames."""
    return is_anndata(X) or is_chunked(X) or (not is_frame(X) and any(hasattr(X, name) for name in NAMED))


class _Spoken(Progress):
    """Progress that prints a line for each stage, for ``verbose=True``."""

    def end(self, stage: str, seconds: float, skipped: bool) -> None:
        """Print the time that the stage took, or that its result was stored already."""
        print(f"[IPS2] {stage}: {'there already' if skipped else f'{seconds:.2f} s'}", flush=True)


class IPS2(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):
    """Clustering by pairwise and tensor similarity, fused (Peng et al., arXiv 1905.03920).

    Without ``client`` it runs serially in this process; with ``store=None`` it stays in memory. An `IPS2Warning` says
    what makes a result worth less than it looks. Data that can't be clustered raise a ValueError.

    Parameters
    ----------
    n_clusters : int or "auto", default=8
        c, 1 or more; "auto" chooses it by the density of the embedding (``run_.choice`` has the evidence), or
        takes as many as Leiden finds.
    max_clusters : int, default=100
        The largest c that ``n_clusters="auto"`` considers.
    (those of `Params`)
    random_state : int, RandomState instance or None, default=0
        None draws a new seed at each fit; ``run_.params.random_state`` holds it.
    client : distributed.Client, optional
        Dask client whose workers compute; an estimator never starts a cluster. Clones share the client, pickles and
        copies are without it. Of an asynchronous client call ``await asyncio.to_thread(IPS2(client=client).fit, X)``.
    store : path or URL, optional
        Run directory; None keeps everything in memory.
    memory_limit : int or str, optional
        Bytes that a process may use, such as "4GiB"; a run that would need more is refused.
    verbose : bool, default=False
        Print a line for each stage.

    Attributes
    ----------
    labels_ : (n_samples,) int32
        0 to n_clusters - 1, numbered by each cluster's first sample.
    affinity_matrix_ : (n_samples, n_samples)
        The fused similarity U: CSR, or dense where all pairs are kept.
    pairwise_similarity_ : (n_samples, n_samples)
        The pairwise similarity S.
    high_order_similarity_ : (n_samples, n_samples)
        The high-order similarity V, maximum 1.
    eigenvalues_ : (n_clusters,)
        Leading eigenvalues of the unfolded tensor's Laplacian.
    embedding_ : (n_samples, n_components) or None
        The spectral embedding, rows of length 1; None for ``embedding="none"``.
    certainty_ : (n_samples,) float32
        How sure each label is, 0 to 1; see `Run.certainty`.
    n_features_in_ : int
    feature_names_in_ : (n_features,)
        Only if X has names of its columns, as a data frame or an AnnData has. New samples are matched by them:
        further columns are left out with an `IPS2Warning`, a missing one is a ValueError. Any order will do, but of a
        pandas.DataFrame with text as names: there scikit-learn demands the order of the fit.
    run_ : Run
        All other results: neighbours, pairs, tensor, eigenvectors, report.

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> from ips2_dask import IPS2
    >>> X, _ = make_blobs(100, centers=3, random_state=5)
    >>> len(set(IPS2(n_clusters=3).fit(X).labels_.tolist()))
    3

    In a pipeline, with a data frame whose index names the samples, by the angle between them:

    >>> import pandas as pd
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> frame = pd.DataFrame(X, columns=["height", "width"], index=[f"leaf{i}" for i in range(100)])
    >>> pipeline = make_pipeline(StandardScaler().set_output(transform="pandas"), IPS2(n_clusters=3, metric="cosine"))
    >>> _ = pipeline.fit(frame)
    >>> pipeline[-1].run_.sample_names[:2].tolist()
    ['leaf0', 'leaf1']
    """

    _method = "ips2"
    n_clusters: int | str
    metric: str
    scale: str | None
    random_state: int | np.random.RandomState | None
    client: Client | None
    store: str | Path | None
    memory_limit: int | str | None
    verbose: bool

    def __init__(
        self,
        n_clusters: int | str = 8,
        *,
        n_neighbors: int = 5,
        sigma: float = 1.0,
        epsilon: float = 1e-4,
        tensor: str = "indecomposable",
        metric: str = "euclidean",
        affinity: str = "heat-knn",
        bandwidth: str | float = "mean",
        high_order: str = "rms",
        fusion: str = "normalized",
        fusion_weight: float = 0.5,
        n_components: int | None = None,
        embedding: str = "spectral",
        assign_labels: str = "auto",
        resolution: float = 1.0,
        scale: str | None = None,
        duplicates: str = "merge",
        operator: str = "auto",
        tol: float | None = None,
        max_clusters: int = MAX_CLUSTERS,
        random_state: int | np.random.RandomState | None = 0,
        client: Client | None = None,
        store: str | Path | None = None,
        memory_limit: int | str | None = None,
        verbose: bool = False,
    ) -> None:
        given = dict(locals())
        for name in self._get_param_names():
            setattr(self, name, given[name])

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.pairwise = self.metric == "precomputed"
        return tags

    def __sklearn_clone__(self) -> Self:
        """A clone shares the client, which can't be copied."""
        params = self.get_params(deep=False)
        return type(self)(**{n: v if n == "client" else clone(v, safe=False) for n, v in params.items()})

    def __getstate__(self) -> dict[str, Any]:
        """Without the client, a connection of this process: a copy has none until it is set."""
        return {**super().__getstate__(), "client": None}

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer) and not isinstance(self.random_state, bool):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _params(self) -> Params:
        given = self.get_params(deep=False)
        chosen = {name: value for name, value in given.items() if name in Params.__dataclass_fields__}
        if not isinstance(self.n_clusters, str):  # ``max_clusters``, which has a default here, is not read then
            del chosen["max_clusters"]
        own = {"scale": self.scale or "none", "method": self._method, "random_state": self._seed()}
        return Params(**{**chosen, **own})

    def fit(
        self,
        X: Samples,
        y: object = None,
        *,
        similarity: npt.ArrayLike | SparseMatrix | None = None,
        knn_graph: SparseMatrix | None = None,
    ) -> Self:
        """Cluster the rows of X.

        Parameters
        ----------
        X : (n_samples, n_features) array, data frame, SciPy sparse matrix, Dask or Zarr array, or AnnData
            A data frame may be one of pandas, polars or Dask, a pyarrow.Table or an xarray.DataArray. Chunked arrays
            and Dask's frames are read or computed by rows, never as a whole; with a client the workers do that. Of an
            AnnData ``obsm["X_pca"]`` is clustered if there is one, else X, which is read from its file if it is backed.
        y : ignored
        similarity : (n_samples, n_samples) array or SciPy sparse matrix, optional
            S, for ``affinity="precomputed"``.
        knn_graph : (n_samples, n_samples) SciPy sparse matrix, optional
            Each row's entries are the candidates for its neighbours; the fit measures their distances in X.

        Returns
        -------
        self

        Raises
        ------
        BadInput
            A ValueError, if X or a parameter can't be used.
        Refused
            If the run would need more than ``memory_limit``.
        """
        del y
        check_client(self.client)
        itself = _opens_itself(X)
        if itself:
            source = open_source(X, client=self.client)
            validate_data(self, np.broadcast_to(np.float32(0), source.shape), skip_check_array=True)
        else:
            refuse_masked(X, "X")
            checked = validate_data(self, X, accept_sparse="csr", dtype="numeric", ensure_min_samples=2)
            source = named_like(open_source(checked), X)
        progress = _Spoken() if self.verbose else Progress()
        given: dict[str, Any] = {"store": self.store, "client": self.client, "progress": progress}
        given |= {"similarity": similarity, "knn_graph": knn_graph}
        self.run_ = run(source, self._params(), Resources(memory_limit=self.memory_limit), **given)
        for text in self.run_.report()["warnings"]:
            warnings.warn(text, IPS2Warning, stacklevel=2)
        if itself and self.run_.feature_names is not None:  # others have those that scikit-learn knows of
            self.feature_names_in_ = self.run_.feature_names.astype(object)
        self.labels_ = self.run_.labels
        self.eigenvalues_ = self.run_.eigenvalues
        self.embedding_ = self.run_.embedding
        self.certainty_ = self.run_.certainty
        return self

    def predict(self, X: Samples) -> npt.NDArray[np.int32]:
        """Cluster of each new sample, (n_samples,) int32; one that equals a training sample gets its label."""
        return self._new(X, "predict")

    def predict_proba(self, X: Samples) -> npt.NDArray[np.float64]:
        """Probability of each cluster for each new sample, (n_samples, n_clusters); see `Run.predict_proba`."""
        return self._new(X, "predict_proba")

    def transform(self, X: Samples) -> npt.NDArray[np.float64]:
        """Extension of ``embedding_`` to new samples, (n_samples, n_components), rows of length 1."""
        return self._new(X, "transform")

    def _new(self, X: Samples, method: Literal["predict", "predict_proba", "transform"]) -> Any:
        """Return the result of a method of `Run` for new samples, after scikit-learn's checks of them."""
        check_is_fitted(self, "run_")
        if _opens_itself(X):
            source = self.run_.open_new(X, client=self.client)
        else:
            refuse_masked(X, "X")
            X = self._own_columns(X) if is_frame(X) else X
            checked = validate_data(self, X, accept_sparse="csr", dtype="numeric", reset=False)
            source = named_like(open_source(checked), X)
        return getattr(self.run_, method)(source, client=self.client)

    def _own_columns(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return a frame without columns that the fit did not have.

        Where scikit-learn knows the names they stay in the frame's order, and it refuses another one than that of the
        fit, as well as names that are missing. It knows no names but text: other ones are put into order.
        """
        names, known = index_names(X.columns), getattr(self, "feature_names_in_", None)
        if names is None or not (known is None or set(known) <= set(X.columns)):
            return X
        places = match_columns("X", self.run_.columns, names.tolist(), X.shape[1])
        return X.iloc[:, list(places) if known is None else sorted(places)]

    @property
    def _n_features_out(self) -> int:
        """Number of columns of the embedding, which scikit-learn names after the class."""
        return 0 if self.embedding_ is None else int(self.embedding_.shape[1])

    # Dense or CSR by the data. As a union, every caller would have to test for a type it knows by its settings.
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

    def _fitted(self, kind: str) -> Similarity:
        check_is_fitted(self, "run_")
        return self.run_.similarity(kind)


_OWN = {"n_clusters", "max_clusters", "random_state"}  # those whose entries are not those of `Params`
IPS2.__doc__ = (IPS2.__doc__ or "").replace(
    "    (those of `Params`)\n", "".join(entries({*IPS2._get_param_names()} - _OWN).values())
)


class PPC(IPS2):
    """Pair-to-pair clustering: `IPS2` with the high-order similarity V alone.

    Parameters and attributes are those of `IPS2`; ``affinity_matrix_`` is V.

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> from ips2_dask import PPC
    >>> X, y = make_blobs(100, centers=3, random_state=5)
    >>> fitted = PPC(n_clusters=3).fit(X)
    >>> float(fitted.affinity_matrix_.max())
    1.0
    >>> fitted.eigenvalues_.shape
    (3,)
    """

    _method = "ppc"
