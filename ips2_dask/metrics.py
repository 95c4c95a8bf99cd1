"""The paper's five scores of a clustering against known labels, from one sparse contingency table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array
from scipy.stats import entropy
from sklearn.metrics import mutual_info_score

from ips2_dask.errors import BadInput
from ips2_dask.typing import Int64


def accuracy(labels_true: npt.ArrayLike, labels_pred: npt.ArrayLike) -> float:
    """ACC: the share of samples that are right under the best matching of clusters to classes (Hungarian).

    Parameters
    ----------
    labels_true, labels_pred : arrays (m,)
        Strings or integers; the names in one need not occur in the other, nor their numbers be the same.

    Returns
    -------
    float
        In (0, 1]; a cluster without a class, or a class without a cluster, counts as wrong.

    Raises
    ------
    BadInput
        The arrays are empty, not one-dimensional or of different lengths.
    """
    table = contingency(labels_true, labels_pred).toarray()
    rows, columns = linear_sum_assignment(table, maximize=True)
    return float(table[rows, columns].sum() / table.sum())


def scores(labels_true: npt.ArrayLike, labels_pred: npt.ArrayLike) -> dict[str, float]:
    """All five scores; parameters and errors as of `accuracy`.

    Returns
    -------
    dict
        ``acc`` (`accuracy`), ``ari`` (adjusted Rand index, Hubert and Arabie 1985), ``fscore`` (the harmonic mean of
        precision and recall over pairs of samples that share a cluster, or a class; 1 where no pair does), ``nmi``
        (mutual information over the mean of both entropies), ``purity`` (the share of samples that belong to the
        largest class of their cluster).
    """
    return scores_of_table(contingency(labels_true, labels_pred))


def scores_of_table(table: csr_array) -> dict[str, float]:
    """`scores` from the counts alone, for labels too many for memory.

    Parameters
    ----------
    table : CSR (classes, clusters) int64
        How many samples of each class are in each cluster; classes and clusters without any are left out.

    Raises
    ------
    BadInput
        Where there is no sample.
    """
    counts = csr_array(table)
    classes, clusters = (np.asarray(counts.sum(axis=axis)).ravel() for axis in (1, 0))
    n = int(classes.sum())
    if n == 0:
        raise BadInput(
            "table", "no sample", "at least one", "there would be nothing to compare", "count labels of some samples"
        )
    counts = csr_array(counts[classes > 0][:, clusters > 0])
    counts.sum_duplicates()
    classes, clusters = classes[classes > 0], clusters[clusters > 0]
    rows, columns = linear_sum_assignment(dense := counts.toarray(), maximize=True)
    together, classed, clustered = _pairs(counts.data), _pairs(classes), _pairs(clusters)
    return {
        "acc": float(dense[rows, columns].sum() / n),
        "ari": _adjusted_rand(together, classed, clustered, n * (n - 1) // 2),
        "fscore": 2 * together / (clustered + classed) if clustered + classed else 1.0,
        "nmi": _nmi(counts, classes, clusters),
        "purity": float(dense.max(axis=0).sum() / n),
    }


def _adjusted_rand(together: int, classed: int, clustered: int, pairs: int) -> float:
    """ARI from numbers of pairs: of one class and cluster, of one class, of one cluster, and all; as scikit-learn's."""
    if together == classed == clustered:
        return 1.0
    missed, wrong = classed - together, clustered - together
    apart = pairs - together - missed - wrong
    expected = (together + missed) * (missed + apart) + (together + wrong) * (wrong + apart)
    return 2.0 * (together * apart - missed * wrong) / expected


def _nmi(counts: csr_array, classes: Int64, clusters: Int64) -> float:
    """NMI from a contingency table and its sums, divided by the mean of both entropies; as scikit-learn's."""
    if len(classes) == len(clusters) == 1:
        return 1.0
    information = float(mutual_info_score(None, None, contingency=counts))
    if information <= np.finfo(np.float64).eps:
        return 0.0
    return float(np.clip(information / np.mean([entropy(classes), entropy(clusters)]), 0.0, 1.0))


def contingency(labels_true: npt.ArrayLike, labels_pred: npt.ArrayLike) -> csr_array:
    """How many samples of each class are in each cluster, int64 (classes, clusters), both in sorted order."""
    true, pred = _codes(labels_true, "labels_true"), _codes(labels_pred, "labels_pred")
    if len(true) != len(pred):
        found, why = f"{len(pred)} labels for {len(true)} samples", "labels would be compared with others'"
        raise BadInput("labels_pred", found, "one a sample", why, "pass both whole")
    shape = (int(true.max()) + 1, int(pred.max()) + 1)
    table = csr_array((np.ones(len(true), dtype=np.int64), (true, pred)), shape=shape)
    table.sum_duplicates()
    return table


def _codes(labels: npt.ArrayLike, name: str) -> Int64:
    """Return labels as integers 0, 1, 2, ..., int64 (m,), in sorted order, objects in the order they appear in."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or len(labels) == 0:
        problem = f"shape {labels.shape}"
        raise BadInput(name, problem, "(m,), m >= 1", "there would be nothing to compare", "pass one label a sample")
    if labels.dtype == object:  # mixed kinds can't be sorted, but counted they can be
        seen: dict[object, int] = {}
        return np.array([seen.setdefault(label, len(seen)) for label in labels], dtype=np.int64)
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def _pairs(sizes: npt.NDArray[np.int64]) -> int:
    """Return the number of pairs within groups of these sizes, summed in Python's integers, which don't overflow."""
    return sum(int(size) * (int(size) - 1) // 2 for size in np.asarray(sizes).ravel())
