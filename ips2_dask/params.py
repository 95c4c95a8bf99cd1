"""The options of a run: ``Params`` decide the labels, ``Resources`` limit the run; both are frozen and checked."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from typing import Any

from ips2_dask.errors import BadInput
from ips2_dask.fields import between, checked, made, mean_or_number, number, one_of, parse_bytes, text, whole
from ips2_dask.kernels.metrics import METRICS

MAX_DISTANCES_SAMPLES = 20_000
"""Samples up to which a matrix of all distances is accepted: 1.6 GB."""

MAX_INDEX = 2**31
"""Samples, and entries of a sparse matrix in one process, that an int32 can't number."""

AT_MOST_SAMPLES = {
    "n_components": ("at most one a sample", "there would not be as many eigenvectors"),
    "n_clusters": ("at most one cluster a sample", "some clusters would be empty"),
    "n_eigenpairs": ("at most one a sample", "there would not be as many"),
    "n_neighbors": ("at most the number of samples", "a neighbourhood would hold a sample twice"),
}

LEAST_RECALL = 0.95
"""Recall that the sample graph is refined to: below it too many true neighbours are missing."""

N_AFFINITY_NEIGHBORS = 5
"""Nearest others that the heat-kernel graph joins each sample with, whatever ``n_neighbors`` is."""

MAX_NEIGHBORS = 64
"""Largest k: the tensor has about m k^4 / 8 entries, and at k = 64 one sample's block already holds two million."""

MAX_CLUSTERS = 100
"""Default of ``max_clusters``, the largest number of clusters considered where the run chooses it."""

DENSE_MAX_SAMPLES = 5000
"""Samples up to which a Gaussian affinity is kept for all pairs; above, it is kept for the active pairs alone."""

PAPER: dict[str, Any] = dict(
    n_neighbors=10,
    affinity="gaussian",
    embedding="none",
    assign_labels="kmeans",
    tol=1e-3,
    duplicates="keep",
    fusion="average",
)
"""The paper's settings, for ``IPS2(**PAPER, n_clusters=4)``; all other parameters keep their defaults."""

EMBEDDED_BEYOND = 8
"""Default number of columns of the embedding after the c-th. With c columns alone a cluster is lost where lambda_c and
lambda_c+1 are all but equal, since either vector may be the c-th. See docs/method.md, Tuned constants."""

PRESETS: dict[str, dict[str, Any]] = {"default": {}, "paper": PAPER}

ONE_COLUMN = "rows of a single column, scaled to length 1, would all be the same point"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Params:
    """The parameters of the method, checked when the record is made. All labels follow from them and the data.

    A parameter that others make meaningless, such as ``fusion_weight`` with ``method="ppc"``, is refused when a run
    begins. docs/method.md has the mathematics.

    Parameters
    ----------
    n_clusters : int or "auto"
        Number of clusters c, at least 1. With "auto" the run chooses c by the density of the embedding, and the
        parameters of the finished run hold it. With ``assign_labels="leiden"`` c is then the number of communities.
    max_clusters : int, optional
        The largest c that "auto" considers, 100 by default, and never more than one for five samples. If given, at
        least 2, ``n_clusters`` need not be "auto" for c to be chosen. Leiden's communities may be more: V and the
        embedding are those of this number then.
    n_eigenpairs : int, optional
        Number of the tensor's eigenpairs to solve for, if more than c. Runs of several c in one directory then share
        one solve; V is still made of the c leading eigenvectors. Not for a decomposable tensor.
    n_components : int, optional
        Columns of the spectral embedding, at least 2 unless there is one cluster: leading eigenvectors of the
        normalised U, weighted by commute times (`kernels.commute_weights`). By default c + 8, at most one a sample;
        ``n_components=n_clusters`` is the default of scikit-learn's SpectralClustering.
        Labels are sought both in all columns and in the first c.
    n_neighbors : int
        k, the size of a neighbourhood, the sample itself included (2 to 64).
    sigma : float
        Of the indecomposable tensor, eq. (7) of the paper. Above 0; it has no unit.
    epsilon : float
        Of the indecomposable tensor, eq. (7) of the paper. Above 0 and below 0.001, in the unit of the run
        (`Run.unit`), in which samples lie 32 to 64 from their mean (root mean square).
    tensor : {"indecomposable", "decomposable"}
        Which tensor similarity.
    metric : (those of `METRICS`)
        Distance d of two samples, as SciPy and pynndescent define it under this name, but for two: ``cosine`` is the
        chord sqrt(2 (1 - cos)) between the directions of two rows, and ``correlation`` the same of rows less their
        means, sqrt(2 (1 - r)). They order neighbours as 1 - cos and 1 - r do, and are metrics, which those are not.
        ``hellinger`` is sqrt(1 - sum_t sqrt(p_t q_t)) of rows divided by their sums; no value may be negative.
        ``hamming`` is a share of the features. ``jaccard`` compares the sets of features that are not 0.
        ``precomputed``: the input is the (m, m) matrix of distances. Of a sparse one, such as scikit-learn's
        ``kneighbors_graph(mode="distance")``, what is not stored is no neighbour; zeros that are
        stored are distances (docs/tables.md, Distances).
    affinity : {"heat-knn", "gaussian", "precomputed"}
        The pairwise similarity S. ``precomputed``: S is given beside the samples.
    bandwidth : {"mean", "median"} or float
        t of the kernel exp(-d^2 / 2 t^2). A number is in the unit of the (scaled) data, whatever the unit of the run.
    high_order : {"rms", "abs", "signed"}
        How the c eigenvectors become one high-order similarity V.
    fusion : {"normalized", "average"}
        How S and V become U. ``normalized``: V is taken on the pairs of S, and both are divided by the roots of their
        row sums, on both sides. ``average``: V on all active pairs and both as they are, as in the paper.
    fusion_weight : float
        w of U = (1 - w) S + w V, 0 to 1.
    method : {"ips2", "ppc"}
        ``ppc`` labels V alone.
    embedding : {"spectral", "none"}
        The points that are clustered: the spectral embedding of U, or its rows, as in Algorithm 1 of the paper.
    assign_labels : {"auto", "kmeans", "density", "leiden"}
        How the points become labels: by ``kmeans``; by ``density``, the leaves of HDBSCAN*'s tree, where samples
        outside all leaves get their label from U; or by ``auto``, the better of the two (docs/labels.md, What a run
        does). Without an embedding it is k-means. ``leiden``: labels are the communities of U, and not the points';
        with ``n_clusters`` its resolution is sought, with ``max_clusters`` there are as many as there are.
    resolution : float
        Of the modularity, above 0, for ``assign_labels="leiden"`` with ``max_clusters``: larger ones give more
        clusters.
    scale : {"none", "zscore", "minmax", "l2"}
        How the columns of X are scaled before distances are measured; ``l2`` scales its rows.
    duplicates : {"merge", "keep"}
        Whether rows that are equal after scaling become one sample, with one label, or stay samples of their own, as in
        the paper. See docs/method.md, Equal rows, for how a sample of several rows counts. With
        ``affinity="precomputed"`` all rows stay samples, because a given similarity may tell them apart.
    operator : {"auto", "matrix-free", "triplets"}
        How far the tensor is assembled: ``triplets`` stores its entries, ``matrix-free`` keeps each neighbourhood's
        distances alone. ``auto`` takes triplets for few entries, and matrix-free otherwise and for vectors in chunks.
    graph : {"auto", "exact", "shards", "pynndescent"}
        How the nearest neighbours are found.
    shards : int, optional
        Number of overlapping shards of the sample graph, at least 1. None follows the shape of the data. With
        ``graph="auto"`` a number asks for a sharded graph; the other builders refuse it.
    tol : float, optional
        Largest residual ||L y - lambda y|| of an eigenpair, 0 < tol < 1. By default the solve ends when a filter hardly
        changes the sum of the wanted 1 - lambda any more, which is as exact as labels need.
    random_state : int
        Seed of everything random.

    Raises
    ------
    BadInput
        If a value is outside its range.
    """

    # an int once the record is made: "auto" is spelt by ``max_clusters`` in it
    n_clusters: int | Any = number(8, 1, None, "there would be no cluster to put samples into")  # noqa: RUF009
    n_neighbors: int = number(5, 2, MAX_NEIGHBORS, "neighbourhoods would hold no pair, or blocks beyond any memory")
    sigma: float = between(1.0, 0.0, 1e30, "every tensor entry would be 1, or grow with the distance")
    epsilon: float = between(1e-4, 1e-30, 1e-3, "equal samples would divide by zero, or it is not the paper's tensor")
    tensor: str = one_of("indecomposable", "decomposable")
    metric: str = one_of(*METRICS)
    affinity: str = one_of("heat-knn", "gaussian", "precomputed")
    bandwidth: str | float = made("mean", mean_or_number)
    high_order: str = one_of("rms", "abs", "signed")
    fusion: str = one_of("normalized", "average")
    fusion_weight: float = between(0.5, 0.0, 1.0, "the fused similarity would not lie between S and V", closed=True)
    method: str = one_of("ips2", "ppc")
    embedding: str = one_of("spectral", "none")
    assign_labels: str = one_of("auto", "kmeans", "density", "leiden")
    resolution: float = between(1.0, 0.0, 1e30, "all samples would be one community")
    scale: str = one_of("none", "zscore", "minmax", "l2")
    duplicates: str = one_of("merge", "keep")
    operator: str = one_of("auto", "matrix-free", "triplets")
    graph: str = one_of("auto", "exact", "shards", "pynndescent")
    tol: float | None = between(None, 0.0, 1.0, "the solver would never stop, or stop at once")
    random_state: int = number(0, 0, None, "no later run could be made to give the same labels")
    max_clusters: int | None = number(None, 2, None, "there would be nothing to choose from")
    n_eigenpairs: int | None = number(None, 1, None, "there would be nothing to share")
    n_components: int | None = number(None, 1, None, ONE_COLUMN)
    shards: int | None = number(None, 1, None, "no shard would hold the samples")

    def __post_init__(self) -> None:
        if isinstance(self.n_clusters, str) and self.n_clusters == "auto":
            object.__setattr__(self, "n_clusters", 2)
            if self.max_clusters is None:
                object.__setattr__(self, "max_clusters", MAX_CLUSTERS)
        for name, value in checked(self).items():
            object.__setattr__(self, name, value)
        self._check_together()

    def _check_together(self) -> None:
        """Refuse values that do not go with each other."""
        if self.n_components is not None and (self.n_clusters > 1 or self.max_clusters is not None):
            whole("n_components", self.n_components, 2, None, ONE_COLUMN)
        rows = METRICS[self.metric].rows
        by_sets, by_shares = rows == "presence", rows == "root shares"
        if (by_shares and self.scale == "zscore") or (by_sets and self.scale in ("zscore", "minmax")):
            negative = "about half of all values would be negative, and have no square root"
            found = f"{self.scale!r} with metric={self.metric!r}"
            allowed = "none or l2" if by_sets else "none, minmax or l2"
            why = "scaling would change which features are 0" if by_sets else negative
            raise BadInput("scale", found, allowed, why, "leave scale out, or use metric='euclidean'")
        if self.metric == "precomputed" and self.scale != "none":
            found = f"{self.scale!r} with metric='precomputed'"
            allowed = "none, as there are no columns to scale"
            why = "the distances would no longer be those given"
            raise BadInput("scale", found, allowed, why, "scale the samples before you measure their distances")
        if self.metric == "precomputed" and self.graph not in ("auto", "exact"):
            found, allowed = f"{self.graph!r} with metric='precomputed'", "auto or exact"
            raise BadInput("graph", found, allowed, "the search would have no samples to look at", "leave graph out")
        if self.embedding == "none" and self.assign_labels == "density":
            allowed = "auto or kmeans without an embedding"
            why = "no density would show clusters: rows of U are as far apart within a cluster as between two"
            raise BadInput("assign_labels", "'density' with embedding='none'", allowed, why, "use embedding='spectral'")
        if self.embedding != "spectral" and self.assign_labels == "leiden":
            found = f"'leiden' with embedding={self.embedding!r}"
            why = "two graphs would be at odds: Leiden's communities are those of U itself"
            raise BadInput("assign_labels", found, "embedding='spectral'", why, "use embedding='spectral'")
        if self.n_eigenpairs is not None and self.tensor == "decomposable":
            found = f"{self.n_eigenpairs} with tensor='decomposable'"
            why = "it would have no effect: the tensor's eigenpairs follow from those of the samples' own Laplacian"
            raise BadInput("n_eigenpairs", found, "an indecomposable tensor", why, "leave it out")

    @property
    def clusters_rows(self) -> bool:
        """Whether the rows of U are clustered as they are, without an embedding."""
        return self.embedding == "none"

    @property
    def n_stored_neighbors(self) -> int:
        """Columns of the stored graph: k, but no fewer than the heat-kernel graph needs, the sample itself included."""
        return max(self.n_neighbors, N_AFFINITY_NEIGHBORS + 1)

    @property
    def merges_rows(self) -> bool:
        """Whether equal rows become one sample; not where a given similarity may tell them apart."""
        return self.duplicates == "merge" and self.affinity != "precomputed"

    @property
    def n_solved(self) -> int:
        """Number of eigenpairs to solve for: `n_sought`, or more where runs of several c share them."""
        return max(self.n_sought, self.n_eigenpairs or 0)

    @property
    def n_sought(self) -> int:
        """Number of clusters that V and the embedding are made for: c, or the most where Leiden finds c on them."""
        if self.assign_labels == "leiden" and self.max_clusters is not None:
            return self.max_clusters
        return self.n_clusters

    @property
    def n_embedded(self) -> int:
        """Columns of the embedding, if there are as many samples."""
        return self.n_sought + EMBEDDED_BEYOND if self.n_components is None else self.n_components

    def as_dict(self) -> dict[str, Any]:
        """All parameters as plain values that JSON can hold."""
        return dataclasses.asdict(self)


_METRICS = ", ".join(f'"{name}"' for name in METRICS)
Params.__doc__ = (Params.__doc__ or "").replace("(those of `METRICS`)", f"{{{_METRICS}}}")

NOT_READ: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("tensor", "decomposable", ("sigma", "epsilon", "operator"), "that tensor is made of S, and is never assembled"),
    ("method", "ppc", ("fusion_weight",), "labels are those of V alone, and nothing is fused"),
    ("affinity", "precomputed", ("bandwidth",), "S is given"),
    ("embedding", "none", ("n_components",), "the rows of U are clustered, without an embedding"),
    *(("graph", graph, ("shards",), "nothing is in shards") for graph in ("exact", "pynndescent")),
    *(("assign_labels", by, ("resolution",), "only Leiden has one") for by in ("auto", "kmeans", "density")),
)
"""A parameter, one of its values, the parameters that no stage reads with that value, and why."""


def entries(names: Collection[str]) -> dict[str, str]:
    """The entries of some parameters in the docstring of `Params`, for those who take them too."""
    section = (Params.__doc__ or "").partition("----------\n")[2].partition("\n\n    Raises")[0] + "\n"
    found = re.split(r"^(?=    \w)", section, flags=re.MULTILINE)
    return {name: one for one in found if (name := one.partition(" :")[0].strip()) in names}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resources:
    """The resources that a run may use; no label depends on workers and memory.

    ``vectors`` decides where a solve is made, and chunks of vectors follow ``partition_rows``: with other ones single
    samples between clusters may get another label. A run that starts no workers refuses the options that describe them.

    Parameters
    ----------
    n_workers : int, optional
        Worker processes of a local cluster; None means one per core, at most four.
    threads_per_worker : int
        Threads that a task of one worker may use.
    memory_limit : int or str, optional
        Bytes that each process may use, or a size such as ``"4GiB"``; None means an equal share of the machine, of
        whose memory local workers keep half free by having block vectors in files.
    scratch : str, optional
        Folder to which workers spill data.
    scheduler : str, optional
        Address of a running scheduler; None starts a cluster.
    cluster : str, optional
        The cluster to start: a YAML file, or the name of a shipped one such as ``"slurm"``; None means local processes.
    tls : str, optional
        Folder of certificates, as `ips2 cluster certs` makes it.
    insecure : bool
        Allow a scheduler to listen beyond 127.0.0.1 without certificates.
    vectors : {"auto", "in-core", "chunked"}
        Where block vectors live: in this process, or in chunks on the workers.
    partition_rows : int, optional
        Samples in a partition, by default by the shape of the data.
    """

    n_workers: int | None = number(None, 1, None, "nothing would do the work")
    threads_per_worker: int = number(1, 1, None, "nothing would do the work")
    memory_limit: int | str | None = made(None, lambda name, value: parse_bytes(value, name))
    scratch: str | None = text("DIR")
    scheduler: str | None = text("ADDRESS")
    cluster: str | None = text("FILE|NAME")
    tls: str | None = text("DIR")
    insecure: bool = False
    partition_rows: int | None = number(None, 1, None, "no partition would hold the samples")
    vectors: str = one_of("auto", "in-core", "chunked")

    def __post_init__(self) -> None:
        for name, value in checked(self).items():
            object.__setattr__(self, name, value)


CHOICES: dict[str, tuple[str, ...]] = {
    field.name: field.metadata["words"]
    for record in (Params, Resources)
    for field in dataclasses.fields(record)
    if field.metadata.get("words")
}
"""The allowed values of every option whose value is a word."""


def check_shape(m: int, f: int, params: Params, name: str) -> None:
    """Refuse parameters that this many samples can't satisfy.

    Raises
    ------
    BadInput
    """
    if m < 2:
        otherwise = "there would be nothing to compare"
        raise BadInput(name, f"n_samples = {m}", "a minimum of 2 samples", otherwise, "give more than 1 sample")
    if f < 1:
        raise BadInput(name, "0 feature(s)", "a minimum of 1 feature", "all samples would be equal", "give a column")
    if m >= MAX_INDEX:
        otherwise = "their numbers, which are int32, would overflow"
        remedy = "give fewer samples, such as every second one, and label the others with `ips2 predict`"
        raise BadInput(name, f"{m:,} samples", f"fewer than {MAX_INDEX:,}", otherwise, remedy)
    for option, (allowed, otherwise) in AT_MOST_SAMPLES.items():
        value = getattr(params, option)
        if value is not None and value > m:
            raise BadInput(option, f"{value} with {m} samples", allowed, otherwise, f"give {option}={m} or less")
    if params.metric == "precomputed" and m != f:
        found, allowed = f"{m} x {f} values with metric='precomputed'", "a square matrix, samples by samples"
        otherwise = "rows of features would be read as distances"
        raise BadInput(name, found, allowed, otherwise, "give the distances of all samples, or another metric")
    if params.metric == "precomputed" and m > MAX_DISTANCES_SAMPLES:
        allowed = f"at most {MAX_DISTANCES_SAMPLES} samples with metric='precomputed'"
        otherwise = f"all distances would take {4 * m * m / 2**30:.0f} GiB"
        remedy = "give the samples, and a metric or a knn_graph"
        raise BadInput(name, f"distances of {m} samples", allowed, otherwise, remedy)
