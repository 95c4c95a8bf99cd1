"""The paper's small generated sets: USdata1 and USdata2 (section 4.4), their noises, and the sets of section 3.4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from ips2_dask.datasets.loaders import Dataset
from ips2_dask.errors import BadInput

Noise = Literal["gaussian", "uniform", "rayleigh", "gamma", "none"]

US_MEANS = (0.1, 0.5, 1.0)
DEVIATION = 0.5
USDATA1_FEATURES = tuple(range(60, 1861, 200))  # the paper's text; its figure begins with the second
USDATA2_FEATURES = 2360
USDATA2_THIRDS = tuple(range(10, 236, 25))  # sizes of the third cluster: 50 to 275 samples in all
NOISE_LEVELS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
FIFTY = (17, 17, 16)  # the paper says 50 samples in three clusters


def usdata1(n_features: int, noise: Noise = "gaussian", level: float = 0.5, seed: int = 0) -> Dataset:
    """USdata1: three normal clusters of 20 samples, means .1, .5 and 1, deviation .5, and noise on top.

    Parameters
    ----------
    n_features : int
        Features; ``USDATA1_FEATURES`` are the paper's.
    noise : {"gaussian", "uniform", "rayleigh", "gamma", "none"}
        The distribution of the noise. The paper's four at level .5: N(0, .5), U(0, 1), Rayleigh with B = .5, Gamma with
        A = 5 and B = 10.
    level : float
        The strength: each noise is proportional to it. ``NOISE_LEVELS`` are the paper's.
    seed : int
        Of a NumPy Generator; the same seed gives the same data.

    Returns
    -------
    Dataset
        X float64 (60, n_features), labels 0 to 2.

    Raises
    ------
    BadInput
        Fewer than one feature, an unknown noise or a negative level.
    """
    return _clusters(f"usdata1-{n_features}", (20, 20, 20), US_MEANS, n_features, noise, level, seed)


def usdata2(n_third: int, seed: int = 0, noise: Noise = "gaussian", level: float = 0.5) -> Dataset:
    """USdata2: the clusters of USdata1 in 2,360 features, the third with ``n_third`` samples instead of 20.

    The paper does not say whether USdata1's noise is on it; ``noise="none"`` leaves it out.

    Parameters
    ----------
    n_third : int
        Samples of the third cluster; ``USDATA2_THIRDS`` are the paper's.
    seed, noise, level
        As of `usdata1`.

    Returns
    -------
    Dataset
        X float64 (40 + n_third, 2360), labels 0 to 2.

    Raises
    ------
    BadInput
        As `usdata1`.
    """
    return _clusters(f"usdata2-{n_third}", (20, 20, n_third), US_MEANS, USDATA2_FEATURES, noise, level, seed)


def three_clusters(seed: int = 0) -> Dataset:
    """The set of section 3.4: 50 samples, 500 features, three normal clusters, means 1, 2.5 and 5, deviation .5."""
    return _clusters("three_clusters", FIFTY, (1.0, 2.5, 5.0), 500, "none", 0.0, seed)


def two_clusters(seed: int = 0) -> Dataset:
    """The two-cluster version: the first two clusters of `three_clusters` of the same seed, 34 samples."""
    whole = three_clusters(seed)
    in_first_two = whole.labels < 2
    return Dataset(
        "two_clusters", whole.X[in_first_two], whole.labels[in_first_two], f"{whole.description}, the third left out"
    )


def _clusters(
    name: str, sizes: Sequence[int], means: Sequence[float], f: int, noise: Noise, level: float, seed: int
) -> Dataset:
    if min(*sizes, f) < 1:
        problem = f"{sizes[-1]} samples and {f} features"
        raise BadInput(name, problem, "one or more of both", "there would be nothing to cluster", "raise them")
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    X = np.array(means)[labels][:, None] + DEVIATION * rng.standard_normal((len(labels), f))
    X += _noise(rng, noise, level, X.shape)
    drawn = ", ".join(f"{size} around {mean:g}" for size, mean in zip(sizes, means, strict=True))
    return Dataset(
        name, X, labels, f"{f} features, normal clusters ({drawn}; deviation {DEVIATION}), {noise} noise {level:g}"
    )


def _noise(rng: np.random.Generator, noise: str, level: float, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    if not level >= 0:
        raise BadInput("level", str(level), "0 or more", "noise would have no strength", "give the paper's level=0.5")
    if noise == "none":
        return np.zeros(shape)
    if noise == "gaussian":
        return level * rng.standard_normal(shape)
    if noise == "uniform":
        return 2 * level * rng.random(shape)
    if noise == "rayleigh":
        return rng.rayleigh(level, shape)
    if noise == "gamma":
        return 20 * level * rng.standard_gamma(5.0, shape)
    allowed = "gaussian, uniform, rayleigh, gamma or none"
    raise BadInput("noise", repr(noise), allowed, "there would be nothing to draw from", "give one of these")
