"""Starts of k-means: how many of so many points, in how many tasks, and from where on they see a sample."""

from __future__ import annotations

RESTARTS = 10
"""Starts of k-means, at least."""

FEW = 500
"""Below so many samples the starts of k-means take less time than dealing them to tasks."""

SAMPLED_ABOVE = 50_000
"""Above so many samples k-means starts on some of them, and goes on from the best start with all."""

SAMPLE = 1 << 15
"""Samples that it starts on then. On embeddings of 70,000 to a million samples the best of ten starts on so many has
the inertia of the best on all, or on four times as many, to within what seeds differ by (2 %), in a third of the time.
"""


def restarts(m: int) -> int:
    """Starts of k-means: ten, and up to fifty for some hundred to some thousand points.

    On the embedding of digits one start in twelve finds the best partition (measured): ten find it every other time.
    """
    return RESTARTS if m < FEW else min(50, max(RESTARTS, 100_000 // m))


def tasks(m: int) -> int:
    """Tasks that the starts are dealt to: one where dealing takes longer, or where they share a sample."""
    return 5 if FEW <= m <= SAMPLED_ABOVE else 1
