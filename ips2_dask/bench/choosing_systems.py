"""The systems that `ips2 bench choosing` compares: ours and what a user would pick instead, told c or not."""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.cluster import HDBSCAN, KMeans, SpectralClustering
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_info

from ips2_dask.bench.document import Record
from ips2_dask.errors import BadInput
from ips2_dask.kernels import leiden
from ips2_dask.kernels.parallel import usable_cores
from ips2_dask.params import Params
from ips2_dask.pipeline.run import run
from ips2_dask.sweeps import sweep

MOST = 30
"""Clusters up to which auto and the sweep look."""

NEIGHBORS = (5, 10)
FEW = 1_000
"""Up to so many samples a sweep tries all of these k; above it, where k = 10 costs ten times as much, the first."""

SCANPY_NEIGHBORS, SCANPY_COLUMNS = 15, 50
"""Scanpy's defaults: neighbours of a sample, itself included, and principal components that wider data become."""


class Problem(NamedTuple):
    """The input of every system: data, the number of known classes, a folder for temporary files, and a seed."""

    X: NDArray[np.floating]  # (m, f)
    classes: int
    folder: Path
    seed: int


class Clustering(NamedTuple):
    """The labels (m,) of a system, -1 for samples that it puts into no cluster, and more fields of its record."""

    labels: NDArray[np.integer]
    facts: Record


# ---- ours


def _default(problem: Problem) -> Clustering:
    return Clustering(run(problem.X, Params(n_clusters=problem.classes, random_state=problem.seed)).labels, {})


def _plain(problem: Problem) -> Clustering:
    params = Params(n_clusters=problem.classes, n_components=problem.classes, random_state=problem.seed)
    return Clustering(run(problem.X, params).labels, {})


def _pairwise(problem: Problem) -> Clustering:
    """The pairwise similarity S alone, in the place of the fused one: what the tensor adds is the rest."""
    params = Params(n_clusters=problem.classes, fusion_weight=0.0, random_state=problem.seed)
    return Clustering(run(problem.X, params).labels, {})


def _ips2_leiden_c(problem: Problem) -> Clustering:
    params = Params(n_clusters=problem.classes, assign_labels="leiden", random_state=problem.seed)
    return Clustering(run(problem.X, params).labels, {})


def _auto(problem: Problem) -> Clustering:
    return Clustering(run(problem.X, Params(max_clusters=_most(problem), random_state=problem.seed)).labels, {})


def _ips2_leiden(problem: Problem) -> Clustering:
    params = Params(max_clusters=_most(problem), assign_labels="leiden", random_state=problem.seed)
    return Clustering(run(problem.X, params).labels, {})


def _most(problem: Problem) -> int:
    return min(MOST, len(problem.X) - 1)


def _sweep(problem: Problem) -> Clustering:
    most = min(MOST, len(problem.X) // 3)
    neighbors = NEIGHBORS if len(problem.X) <= FEW else NEIGHBORS[:1]
    params = Params(random_state=problem.seed)
    with tempfile.TemporaryDirectory(dir=problem.folder) as name:
        result = sweep(problem.X, range(2, most + 1), neighbors, params=params, store=f"{name}/sweep", files=False)
        best = result.best.params
        return Clustering(
            result.run().labels, {"k": best.n_neighbors, "sigma": best.sigma, "points": len(result.points)}
        )


# ---- scikit-learn


def _spectral(problem: Problem) -> Clustering:
    k = min(10, len(problem.X) - 1)
    model = SpectralClustering(problem.classes, affinity="nearest_neighbors", n_neighbors=k, random_state=problem.seed)
    return Clustering(model.fit(problem.X).labels_, {})


def _kmeans(problem: Problem) -> Clustering:
    return Clustering(KMeans(problem.classes, n_init=10, random_state=problem.seed).fit(problem.X).labels_, {})


def _hdbscan(problem: Problem) -> Clustering:
    return Clustering(HDBSCAN(copy=True).fit(problem.X).labels_, {})


# ---- other packages


def _umap(problem: Problem) -> Clustering:
    """HDBSCAN on UMAP's embedding, as umap-learn's documentation has it ("Using UMAP for Clustering").

    Of UMAP ``n_neighbors=30``, ``min_dist=0`` and 10 components, fewer where there are too few samples. Of HDBSCAN
    ``min_samples=10``, and a smallest cluster of 1/140 of the samples, at least 5, HDBSCAN's own default: the page's
    values for MNIST's 70,000 are 10 and 500. Without a seed, which would hold UMAP to one thread.
    """
    import umap  # noqa: PLC0415  the extra [bench]

    m = len(problem.X)
    model = umap.UMAP(n_neighbors=min(30, m - 1), min_dist=0.0, n_components=min(10, m - 2))
    embedding = model.fit_transform(problem.X)
    smallest = max(5, round(m / 140))
    labels = HDBSCAN(min_samples=min(10, m), min_cluster_size=smallest, copy=True).fit(embedding).labels_
    return Clustering(labels, {"min_cluster_size": smallest})


def _evoc(problem: Problem) -> Clustering:
    return _evoc_labels(problem, None)


def _evoc_c(problem: Problem) -> Clustering:
    return _evoc_labels(problem, problem.classes)


def _evoc_labels(problem: Problem, clusters: int | None) -> Clustering:
    """EVoC with its defaults: a seed would make it take a slower, reproducible path."""
    import evoc  # noqa: PLC0415  the extra [bench]

    return Clustering(evoc.EVoC(approx_n_clusters=clusters).fit(problem.X.astype(np.float32)).labels_, {})


def _leiden(problem: Problem) -> Clustering:
    found = _scanpy_graph(problem.X).communities(1.0, problem.seed)
    return Clustering(found.labels, {"resolution": found.resolution})


def _leiden_c(problem: Problem) -> Clustering:
    found = _scanpy_graph(problem.X).so_many(problem.classes, problem.seed).found
    return Clustering(found.labels, {"resolution": found.resolution})


def _scanpy_graph(X: NDArray[np.floating]) -> leiden.Graph:
    """The graph that Scanpy gives Leiden: UMAP's connectivities of nearest neighbours in principal components.

    `scanpy.pp.neighbors` with its defaults, but that neighbours are exact however many samples there are.
    """
    from umap.umap_ import fuzzy_simplicial_set  # noqa: PLC0415  the extra [bench]

    m, f = X.shape
    if f > SCANPY_COLUMNS:
        X = PCA(min(SCANPY_COLUMNS, m - 1), svd_solver="arpack", random_state=0).fit_transform(X)
    k = min(SCANPY_NEIGHBORS, m)
    distances, neighbors = NearestNeighbors(n_neighbors=k).fit(X).kneighbors(X)  # (m, k) each
    no_samples = sp.coo_array((m, 1))  # what Scanpy gives: the neighbours are there
    connectivities = fuzzy_simplicial_set(no_samples, k, None, None, knn_indices=neighbors, knn_dists=distances)[0]
    upper = sp.triu(connectivities, 1, format="coo")
    joins = upper.data > 0
    return leiden.Graph(m, upper.row[joins], upper.col[joins], upper.data[joins])


# ---- all of them


def _of_libraries() -> int:
    """Threads that OpenMP and BLAS take by default, whichever takes more."""
    return max((int(pool["num_threads"]) for pool in threadpool_info()), default=1)


def _of_numba() -> int:
    """Threads that Numba's parallel loops take by default."""
    return int(importlib.import_module("numba").get_num_threads())


def _one() -> int:
    return 1


OURS = ("ips2", "plain", "pairwise", "ips2-leiden-c", "auto", "ips2-leiden", "sweep")
"""Systems of this package."""


class System(NamedTuple):
    """A way to cluster: its call as users would write it, and what it takes."""

    call: str
    fit: Callable[[Problem], Clustering]
    knows_c: bool
    threads: Callable[[], int]  # that it may take by default; not each of its steps takes them all
    modules: tuple[str, ...] = ()  # that it needs besides our dependencies

    @property
    def missing(self) -> tuple[str, ...]:
        """Packages that are not installed, by the names that pip knows."""
        return tuple(PACKAGES[name] for name in self.modules if importlib.util.find_spec(name) is None)


PACKAGES = {"umap": "umap-learn", "evoc": "evoc", "igraph": "igraph"}
"""Modules of other packages, and what pip calls these."""

INSTALL = "pip install 'ips2-dask[bench]'"

_SCANPY = "Leiden of igraph on Scanpy's connectivities (k = 15)"

SYSTEMS = {
    "ips2": System("IPS2(c)", _default, True, usable_cores),
    "plain": System("IPS2(c, n_components=c)", _plain, True, usable_cores),
    "pairwise": System("IPS2(c, fusion_weight=0)", _pairwise, True, usable_cores),
    "ips2-leiden-c": System('IPS2(c, assign_labels="leiden")', _ips2_leiden_c, True, usable_cores, ("igraph",)),
    "spectral": System('SpectralClustering(c, affinity="nearest_neighbors")', _spectral, True, _of_libraries),
    "kmeans": System("KMeans(c, n_init=10)", _kmeans, True, _of_libraries),
    "leiden-c": System(
        f"{_SCANPY}, resolution sought by bisection", _leiden_c, True, _of_libraries, ("igraph", "umap")
    ),
    "evoc-c": System("EVoC(approx_n_clusters=c)", _evoc_c, True, _of_numba, ("evoc",)),
    "auto": System(f'IPS2("auto", max_clusters={MOST})', _auto, False, usable_cores),
    "ips2-leiden": System(
        f'IPS2("auto", max_clusters={MOST}, assign_labels="leiden")', _ips2_leiden, False, usable_cores, ("igraph",)
    ),
    "sweep": System(
        f"sweep(X, range(2, {MOST + 1}), {NEIGHBORS}), above {FEW:,} samples {NEIGHBORS[:1]}",
        _sweep,
        False,
        usable_cores,
    ),
    "hdbscan": System("HDBSCAN()", _hdbscan, False, _one),
    "umap": System(
        "HDBSCAN(min_samples=10, min_cluster_size=max(5, m / 140)) on UMAP(n_neighbors=30, min_dist=0, "
        "n_components=10)",
        _umap,
        False,
        _of_numba,
        ("umap",),
    ),
    "evoc": System("EVoC()", _evoc, False, _of_numba, ("evoc",)),
    "leiden": System(f"{_SCANPY}, resolution 1", _leiden, False, _of_libraries, ("igraph", "umap")),
}


def available(names: Sequence[str] | None, note: Callable[[str], None] = lambda _: None) -> tuple[str, ...]:
    """The systems whose packages are all installed.

    Parameters
    ----------
    names : sequence of str, optional
        Of ``SYSTEMS``, if some are asked for; all that are installed otherwise.
    note : callable, optional
        Is told of each system that is left out, in one line.

    Raises
    ------
    BadInput
        Where a package of a system that is asked for is not installed.
    """
    chosen = []
    for name in SYSTEMS if names is None else names:
        missing = ", ".join(SYSTEMS[name].missing)
        if missing and names is not None:
            raise BadInput(
                "--systems",
                f"{name}, which needs {missing}",
                "a system whose packages are installed",
                f"{name} would be left out",
                f"{INSTALL}, or leave {name} out",
            )
        if missing:
            note(f"{name} is left out, for {missing} is not installed: {INSTALL}")
        else:
            chosen.append(name)
    return tuple(chosen)
