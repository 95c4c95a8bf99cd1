"""Settings of the methods: one default for each, and one published grid for each, all of the same length."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from ips2_dask.paper.baselines import ssc
from ips2_dask.params import PAPER

Setting = dict[str, Any]
"""Arguments of a method, and ``scale``; ``bandwidth_times`` stands for that multiple of the mean distance."""

METHODS = ("SC", "SSC", "CAVE", "HGC", "PPC", "IPS2")
"""The paper's six, in the order of its Table 2."""

COMPARED = ("SC", "PPC", "IPS2")
"""Those that the paper draws curves of."""

KINDS = {"SC": "pairwise", "SSC": "pairwise", "CAVE": "high order", "HGC": "high order", "PPC": "high order"}
KINDS["IPS2"] = "fused"

BUDGET = 200
"""Settings that each method is tried with."""

SHUFFLE = 20190509
"""Seed of the order in which a grid that is longer than the budget is cut off."""

SCALES = ("none", "l2", "zscore", "minmax")
FLAT = {"alpha": 1.0, "beta": 1.0, "gamma": 1.0}

DEFAULTS: dict[str, Setting] = {
    "SC": {"affinity": "heat-knn"},  # the pairwise similarity that IPS2 starts from, so that they differ by V alone
    "SSC": {},
    "CAVE": {},
    "HGC": {},
    "PPC": {},
    "IPS2": {},
}
"""One setting for all data sets: the estimators' own defaults, data as they are."""

PUBLISHED: dict[str, tuple[Setting, ...]] = {
    "SC": ({"affinity": "gaussian"},),
    "SSC": (dict(ssc.MOTION), dict(ssc.FACES)),
    "CAVE": (),
    "HGC": (dict(FLAT),),
    "PPC": ({name: value for name, value in PAPER.items() if name != "affinity"},),
    "IPS2": (dict(PAPER),),
}
"""Settings that a method's paper or authors name: in every grid, with each scale, before the rest is cut off."""


def _cross(**choices: tuple[object, ...]) -> Iterator[Setting]:
    return (dict(zip(choices, values, strict=True)) for values in product(*choices.values()))


def _kernels() -> tuple[Setting, ...]:
    return ({"bandwidth": "mean"}, {"bandwidth": "median"}, *({"bandwidth_times": t} for t in (0.25, 0.5, 2.0)))


def _labelled(settings: Iterator[Setting]) -> Iterator[Setting]:
    """Settings of an affinity, each with the two ways to labels that PPC and IPS2 are tried with too."""
    for setting in settings:
        yield setting
        yield {**setting, "embedding": "none"}


def _sc() -> Iterator[Setting]:
    yield from _labelled(_sc_affinities())


def _sc_affinities() -> Iterator[Setting]:
    for kernel in _kernels():
        for zero in (True, False):
            yield {"affinity": "gaussian", "zero_diagonal": zero, **kernel}
        for k in (2, 3, 4, 5, 6, 7, 9, 14):
            yield {"affinity": "heat-knn", "n_neighbors": k, **kernel}


def _ssc() -> Iterator[Setting]:
    yield from _labelled(_ssc_affinities())


def _ssc_affinities() -> Iterator[Setting]:
    alphas = (5.0, 10.0, 20.0, 50.0, 100.0, 800.0)
    yield from _cross(alpha=alphas, affine=(False, True), outliers=(False, True), keep=(1.0, 0.7))
    yield from _cross(solver=("omp",), n_nonzero=(3, 5, 10, 20))


def _cave() -> Iterator[Setting]:
    yield from _labelled(_cave_affinities())


def _cave_affinities() -> Iterator[Setting]:
    for shape in _cross(n_neighbors=(3, 4, 5, 6, 7, 8, 10, 12, 15), averaging=("separate", "joint")):
        for kernel in _kernels()[:4]:
            yield {**shape, **kernel}


def _hgc() -> Iterator[Setting]:
    priors = (1e-6, 1e-2, 0.5, 1.0)
    for shape in _cross(n_neighbors=(3, 5, 7, 10, 12, 15, 20), incidence=("knn", "knn-others")):
        for prior in priors:
            yield {**shape, "alpha": prior, "beta": prior, "gamma": prior}


def _ppc() -> Iterator[Setting]:
    yield from _cross(
        n_neighbors=(5, 7, 10, 15),
        sigma=(0.5, 1.0, 2.0, 4.0),
        high_order=("rms", "abs"),
        embedding=("spectral", "none"),
    )


def _ips2() -> Iterator[Setting]:
    similarities = (("heat-knn", "mean"), ("gaussian", "mean"), ("gaussian", "median"))
    for tensor, (affinity, bandwidth), fusion in product(_ppc(), similarities, ("average", "normalized")):
        yield {**tensor, "affinity": affinity, "bandwidth": bandwidth, "fusion": fusion}


_FULL = {"SC": _sc, "SSC": _ssc, "CAVE": _cave, "HGC": _hgc, "PPC": _ppc, "IPS2": _ips2}


def default(method: str) -> Setting:
    """The one setting of a method for all data sets."""
    return {"scale": "none", **DEFAULTS[method]}


def published(method: str) -> Setting:
    """What the paper prints of a method: dense Gaussian S, k = 10, k-means on rows; of a baseline, what its authors do.

    The paper refers to the authors of SSC and HGC for theirs. Of CAVE neither says anything, so this is its default.
    """
    return {"scale": "none", **(PUBLISHED[method] or (DEFAULTS[method],))[0]}


def printed() -> dict[str, Setting]:
    """The paper's own settings of the methods it draws curves of."""
    return {method: published(method) for method in COMPARED}


def _full_grid(method: str) -> list[Setting]:
    """The whole product that a method's grid is taken from."""
    return [{"scale": scale, **setting} for scale, setting in product(SCALES, _FULL[method]())]


def pool_size(method: str) -> int:
    """How many settings a method's grid is drawn from."""
    return len(_full_grid(method))


def grid(method: str, budget: int = BUDGET) -> list[Setting]:
    """The settings that a method is tuned over: ``budget`` of them, the default first.

    After the default and the published settings (with each scale) come those of the full product in a seeded random
    order, as many as there is room for, so that all methods are tried equally often. The products differ in size
    (`pool_size`); labels are found in the same three ways from every affinity. HGC's groups are its labels.

    Parameters
    ----------
    method : str
        One of ``METHODS``.
    budget : int

    Returns
    -------
    list of dict
        Distinct.
    """
    first = [default(method)]
    first += [{"scale": scale, **s} for s in (DEFAULTS[method], *PUBLISHED[method]) for scale in SCALES]
    whole = _full_grid(method)
    order = np.random.default_rng(SHUFFLE).permutation(len(whole))
    chosen: dict[str, Setting] = {}
    for setting in (*first, *(whole[i] for i in order)):
        chosen.setdefault(repr(sorted(setting.items())), setting)
    return list(chosen.values())[:budget]
