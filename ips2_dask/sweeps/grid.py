"""The grid of a sweep: lists and ranges as they are typed, and its points in the order that shares the most."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Iterable

from ips2_dask.errors import BadInput
from ips2_dask.params import Params

MAX_POINTS = 10_000


def whole_numbers(text: str) -> tuple[int, ...]:
    """``5:15`` (both ends included), ``5:15:5`` and ``5,7,9``, or several of them with commas, as numbers."""
    values: list[int] = []
    for word in text.split(","):
        match = re.fullmatch(r"(\d+)(?::(\d+)(?::(\d+))?)?", word.strip())
        step = int(match[3] or 1) if match else 0
        if match is None or step < 1:
            raise argparse.ArgumentTypeError(f"{text!r} is no list such as 5,7,9 and no range such as 5:15 or 5:15:5")
        values += range(int(match[1]), int(match[2] or match[1]) + 1, step)
    if not values:
        raise argparse.ArgumentTypeError(f"{text!r} is a range without a number in it")
    return tuple(values)


def numbers(text: str) -> tuple[float, ...]:
    """``.2,1,4`` as numbers."""
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers such as .2,1,4") from None


def grid(params: Params, clusters: Iterable[int], neighbors: Iterable[int], sigma: Iterable[float]) -> list[Params]:
    """Every combination once, in an order in which each stage is computed once: by k, then sigma, then c.

    One solve serves all numbers of clusters: eigenpairs are those of the largest one.

    Raises
    ------
    BadInput
        Where a value is outside its range, there is nothing to combine, or the labels can't be judged.
    """
    ks, sigmas, cs = sorted(set(neighbors)), sorted(set(sigma)), sorted(set(clusters))
    out = "leave it out"
    if params.tensor == "decomposable" and len(sigmas) > 1:
        why = "every point would be the same, as that tensor has no sigma"
        raise BadInput("sigma", "several with tensor='decomposable'", "one", why, out)
    for name, value, swept in (("n_neighbors", params.n_neighbors, ks), ("sigma", params.sigma, sigmas)):
        if value != getattr(Params, name) and value not in swept:
            found = f"{value} beside a list without it"
            raise BadInput(name, found, "one that is in the list", "no point would have it", out)
    if params.max_clusters is not None:
        found, why = f"{params.max_clusters} in a sweep", "it would count for nothing, as the sweep chooses c"
        raise BadInput("max_clusters", found, "the list of clusters alone", why, out)
    if params.n_eigenpairs is not None and cs and params.n_eigenpairs != max(cs):
        found, allowed = f"{params.n_eigenpairs} in a sweep", f"none, or the largest c, {max(cs)}"
        why = "it would count for nothing, as a sweep solves for its largest c"
        raise BadInput("n_eigenpairs", found, allowed, why, out)
    if 1 in cs:
        why = "it would win: one cluster is that of any subsample, and it has no silhouette"
        raise BadInput("n_clusters", "1 in a sweep", "numbers of at least 2", why, "leave 1 out")
    for name, values in (("neighbors", ks), ("sigma", sigmas), ("clusters", cs)):
        if not values:
            raise BadInput(name, "no value", "at least one", "there would be nothing to compare", f"give {name}")
    if len(ks) * len(sigmas) * len(cs) > MAX_POINTS:
        found, why = "more than 10,000 combinations", "it would not end in a lifetime"
        raise BadInput("clusters, neighbors and sigma", found, "10,000 at most", why, "give shorter lists")
    n_eigenpairs = None if params.tensor == "decomposable" else max(cs)
    return [
        dataclasses.replace(params, n_clusters=c, n_neighbors=k, sigma=s, n_eigenpairs=n_eigenpairs, max_clusters=None)
        for k in ks
        for s in sigmas
        for c in cs
    ]
