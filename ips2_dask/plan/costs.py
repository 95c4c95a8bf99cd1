"""About how many products and seconds a stage will take: rates of one machine, so a guess to a factor of about three.

The rates are those of `notebooks/results/scaling.json`: two workers on the two threads of one core of a server. Wider
machines are faster, and so are tasks of stages that more workers share.
"""

from __future__ import annotations

import math

PRODUCTS = 20.0
"""Products of the eigensolver for each decimal of the tolerance: 30 to 90 in all to 1e-3 (measured)."""

SETTLED_PRODUCTS = 50
"""Products where no tolerance is asked for: 14 to 75 on the open sets, 72 at a million samples (measured)."""

OVERHEAD = 0.3
"""Seconds of a stage that has next to nothing to do."""

INGEST = 9e-8  # per value
COMPARE = 4e-11  # per pair of samples that is compared, and feature, of which there are 64 more than there are
TENSOR = 1.1e-6  # per sample and local pair
ASSEMBLE = 8e-7
START = 3.5e-5  # per sample: the operator put together, the sample graph's eigenvectors
ENTRY = 1.8e-10  # per stored entry and column of a product
BLOCK, COLUMN = 1.2e-9, 6e-11  # per entry of a block that is made anew, and for each column that it multiplies
SENT = 4.0  # times as long takes a product whose chunks are tasks, their rows sent and written anew
FUSE = 1.3e-6
LABEL = 3.3e-6  # per sample and cluster


def products(tol: float | None) -> int:
    """About how many products the eigensolver needs."""
    return SETTLED_PRODUCTS if tol is None else round(PRODUCTS * max(1.0, -math.log10(tol)))


def comparison(m: int, compared: int, f: int, n_workers: int) -> float:
    """About how long it takes to compare each of m samples of f features with so many others."""
    return COMPARE * m * compared * (f + 64) * 2 / max(1, n_workers)


def seconds(
    m: int,
    f: int,
    k: int,
    c: int,
    *,
    compared: int,
    columns: int,
    tol: float | None,
    stored: int,
    n_workers: int,
    chunked: bool,
) -> dict[str, float]:
    """About how long each stage takes.

    Parameters
    ----------
    m, f, k, c : int
    compared : int
        Samples that each sample is compared with for the graph.
    columns : int
        Of a block of vectors.
    tol : float or None
    stored : int
        Entries of a stored operator; 0 where products make their blocks anew.
    n_workers : int
    chunked : bool
        Whether the workers share the degrees and the products; the start is the driver's.
    """
    q = k * (k + 1) // 2
    each = ENTRY * columns * stored if stored else m * q * q * (BLOCK + COLUMN * columns)
    spread = 2 / max(1, n_workers)  # of what was measured with two
    solve = spread if chunked else 1.0
    sent = SENT if chunked else 1.0
    work = {
        "ingest": INGEST * m * f * spread,
        "neighbors": comparison(m, compared, f, n_workers),
        "tensor": TENSOR * m * q * spread,
        "assemble": ASSEMBLE * m * q * solve,
        "eigen": START * m + products(tol) * each * sent * solve,
        "fuse": FUSE * m * q * spread,
        "label": LABEL * m * c,
    }
    return {stage: OVERHEAD + taken for stage, taken in work.items()}
