"""From eigenvectors to the high-order similarity V, and V fused with the pairwise similarity S to U.

Letters, as in docs/method.md: y_a eigenvectors of the pairs' normalised matrix, V_a,ij their matrices on samples i
and j, S, V and U (m, m) similarities of samples, w the weight of V in U.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ips2_dask.kernels.sparse import pairs_of
from ips2_dask.typing import Float, Float64, Int32, Int64, Integer

TIED_PRODUCTS = 1e-9

# ---- how many eigenpairs a number of clusters needs: one solve may serve several

TIE = 1e-6
"""Eigenvalues closer than this to the last wanted one count as tied with it."""


class Leading(NamedTuple):
    """The eigenvalues outside those of the component vectors that V is made of, and the gap after them."""

    values: Float64  # (n,) descending, ties included
    gap: float | None  # between the last one and the next, where that is known


def wanted_pairs(n_clusters: int, components: int) -> int:
    """How many eigenvectors outside eigenvalue 1 V is made of (docs/method.md, High-order similarity)."""
    return n_clusters - components if components < n_clusters else n_clusters


def solved_pairs(n_solved: int, shared: bool, components: int) -> int:
    """How many eigenvectors outside eigenvalue 1 are solved for: enough for so many clusters, and for fewer if shared.

    Where there are as many components as clusters, c of them are wanted; one cluster more may need none.
    """
    return max(wanted_pairs(c, components) for c in range(2 if shared else n_solved, n_solved + 1))


def with_ties(values: Float64, wanted: int) -> int:
    """How many of the descending ``values`` V is made of: the wanted ones and those tied with the last of them."""
    wanted = min(wanted, len(values))
    count = wanted
    while 0 < count < len(values) and values[count] > values[wanted - 1] - TIE:
        count += 1
    return count


def leading(values: Float64, n_clusters: int, components: int, gap: float | None) -> Leading:
    """The eigenvalues of the eigenvectors that V of c clusters is made of.

    ``values`` (n,): stored eigenvalues outside eigenvalue 1, descending; ``gap``: between the last of ``values``
    and the next one.
    """
    count = with_ties(values, wanted_pairs(n_clusters, components))
    if count == len(values):
        return Leading(values, gap)
    return Leading(values[:count], float(values[count - 1] - values[count]) if count else None)


# ---- V and U


def column_signs(sums: Float64) -> Float64:
    """The signs that make every eigenvector's entries sum to something positive (0 counts as positive)."""
    return np.where(sums < 0, -1.0, 1.0)


def high_order_values(y: Float, trivial: Float, diagonal: NDArray[np.bool_], rule: str, signs: Float64) -> Float64:
    """V on the given pairs, not yet scaled to maximum 1: (n,).

    Averages the matrices V_a,ij = y_a,ij / sqrt(2), y_a,ii over the eigenvectors: as root mean square, which depends on
    their span alone, as mean of absolute values, or as the paper's signed mean (docs/method.md, High-order similarity).
    A common factor is left out, since V is scaled afterwards.

    ``y`` (n, columns): leading eigenvectors outside eigenvalue 1; ``trivial`` (n,): the entry of the component
    vectors at each pair: they have disjoint supports, so one column holds them all; ``diagonal`` (n,) bool: where i
    = j; ``rule`` {"rms", "abs", "signed"}; ``signs`` (columns,).
    """
    y = np.asarray(y, np.float64)
    trivial = np.asarray(trivial, np.float64)
    if rule == "rms":
        values = np.sqrt(np.square(trivial) + np.square(y).sum(axis=1))
    elif rule == "abs":
        values = np.abs(trivial) + np.abs(y).sum(axis=1)
    else:
        values = trivial + y @ signs
    return np.where(diagonal, values, values / np.sqrt(2.0))


def trivial_values(root: Float, volumes: Float64, label: Int32, n_clusters: int) -> Float64:
    """Entry of the eigenvectors of eigenvalue 1 at each pair: (n,).

    With fewer components than clusters each component's own normalised vector counts. With as many or more, each is
    weighted by the square root of its share of the volume, so that no island of few samples sets the maximum; all of
    them together are then the vector of one component (docs/method.md, High-order similarity). Measured on Letter at
    k = 5 (73 components, 26 clusters): NMI .474 so, .465 with each component's own normalised vector, .472 without any.
    """
    root = np.asarray(root, np.float64)
    if len(volumes) < n_clusters:
        return root / np.sqrt(np.where(volumes > 0, volumes, 1.0))[label]
    return root / np.sqrt(volumes.sum())


def merge_entries(
    first: tuple[NDArray[np.integer], Float], second: tuple[NDArray[np.integer], Float]
) -> tuple[Int32, Float64, Float64]:
    """The union of two sorted lists of pairs (n, 2), with the values of both lists; 0 where a list lacks the pair."""
    one, other = (pairs[:, 0].astype(np.int64) << 32 | pairs[:, 1] for pairs, _ in (first, second))
    place = np.searchsorted(other, one)
    missing = np.append(other, -1)[place] != one
    union = np.insert(other, place[missing], one[missing])
    values = np.zeros(len(union))
    values[place + np.cumsum(missing) - missing] = first[1]
    others = np.insert(np.asarray(second[1], np.float64), place[missing], 0.0)
    return pairs_of(union), values, others


def among(pairs: Int32, others: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Which of some sorted pairs (n, 2) are among ``others`` (o, 2), all of which are pairs of the first list: (n,)."""
    first, second = (ids.astype(np.int64) @ np.array([1 << 31, 1]) for ids in (pairs, np.asarray(others)))
    found = np.zeros(len(pairs), np.bool_)
    found[np.searchsorted(first, second)] = True
    return found


def fuse(S: Float64, V: Float64, weight: float) -> Float64:
    """U = (1 - w) S + w V, the paper's average for w = 1/2."""
    return (1.0 - weight) * S + weight * V


def exact_halves(values: Float64) -> tuple[Float64, Float64]:
    """``values`` of at most 1 as high + low, multiples of 2^-26 and 2^-52, whose sums are the same in any order."""
    high = np.rint(values * 2.0**26) / 2.0**26
    return high, np.rint((values - high) * 2.0**52) / 2.0**52


# ---- V of the decomposable tensor, without the tensor: eigenpairs of L kron L from those of L (Theorem 3.2)


def leading_products(values: Float64, wanted: int) -> tuple[Float64, Int64]:
    """The largest products lambda_a lambda_b, a <= b, descending, and their (a, b): (n,), (n, 2).

    The swap-symmetric eigenvectors of L kron L are v_a (x) v_b + v_b (x) v_a; each a < b also has an antisymmetric
    twin, which a symmetric similarity leaves out. ``wanted`` are given and whatever ties with the last of them, so
    that the mean over them depends on an eigenspace and not on its basis.

    ``values`` (n,) float64: eigenvalues of L, from both ends of its spectrum.
    """
    a, b = np.triu_indices(len(values))
    products = values[a] * values[b]
    order = np.lexsort((b, a, -products))
    products, a, b = products[order], a[order], b[order]
    last = products[min(wanted, len(products)) - 1]
    largest = products >= last - TIED_PRODUCTS
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
