"""The decomposable tensor without the tensor: eigenpairs of L kron L from those of L (Theorem 3.2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ips2_dask.typing import Float64, Integer

TIE = 1e-9


def leading_products(values: Float64, wanted: int) -> tuple[Float64, NDArray[np.int64]]:
    """The largest products lambda_a lambda_b, a <= b, descending, and their (a, b): (n,), (n, 2).

    The swap-symmetric eigenvectors of L kron L are v_a (x) v_b + v_b (x) v_a; each a < b also has an antisymmetric
    twin, which a symmetric similarity leaves out. ``wanted`` are given and whatever ties with the last of them, so
    that the mean over them depends on an eigenspace and not on its basis.

    Parameters
    ----------
    values : (n,) float64
        Eigenvalues of L, from both ends of its spectrum.
    """
    a, b = np.triu_indices(len(values))
    products = values[a] * values[b]
    order = np.lexsort((b, a, -products))
    products, a, b = products[order], a[order], b[order]
    last = products[min(wanted, len(products)) - 1]
    largest = products >= last - TIE
    return products[largest], np.stack([a[largest], b[largest]], axis=1)


def high_order_at(vectors: Float64, chosen: Integer, i: Integer, j: Integer, rule: str) -> Float64:
    """V at the pairs (i, j) from eigenvectors of L (m, n), not yet scaled to maximum 1.

    Each chosen (a, b) gives V_ij = (v_ia v_jb + v_ib v_ja) / sqrt(2), or v_ia v_ja where a = b, in the matrix form of
    the folded eigenvector; the rules are those of the indecomposable tensor.
    """
    total = np.zeros(len(i))
    for a, b in chosen:
        left, right = vectors[:, a], vectors[:, b]
        part = left[i] * right[j]
        sign = 1.0
        if a != b:
            part = (part + right[i] * left[j]) / np.sqrt(2.0)
        if rule == "signed":
            sign = -1.0 if left.sum() * right.sum() < 0 else 1.0
        total += {"rms": part**2, "abs": np.abs(part), "signed": sign * part}[rule]
    total /= len(chosen)
    return np.sqrt(total) if rule == "rms" else total
