"""A planted hierarchy for tests: groups far apart, each of blobs near each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

NEAR = {2: 3.5, 8: 3.5, 64: 4.5}
"""Distance of near blobs of unit variance, by features: they touch, so that a group is one component of U."""


def blobs_of_blobs(m: int, f: int, seed: int, groups: int = 4, blobs: int = 3) -> tuple[Array, Array, Array]:
    """Samples (m, f) float32 of far groups of near blobs each, and of which group and of which blob each is.

    Centres of one level are on a sphere, at least .9 radii apart.
    """
    rng = np.random.default_rng(seed)

    def centers(n: int, radius: float) -> Array:
        while True:
            found = rng.normal(size=(n, f))
            found *= radius / np.linalg.norm(found, axis=1, keepdims=True)
            lengths = np.linalg.norm(found[:, None] - found, axis=2)
            if lengths[~np.eye(n, dtype=bool)].min() > 0.9 * radius:
                return found

    places = np.concatenate([middle + centers(blobs, NEAR[f]) for middle in centers(groups, 40.0)])
    blob = np.arange(m) % (groups * blobs)
    return (places[blob] + rng.normal(size=(m, f))).astype(np.float32), blob // blobs, blob
