"""The grid of a sweep: lists and ranges as they are typed, and its points in the order that shares the most."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Iterable, Sequence

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
    if params.tensor == "decomposable" and len(sigmas) > 1:
        raise BadInput(
            "sigma",
            "several with tensor='decomposable'",
            "one",
            "every point would be the same, as that tensor has no sigma",
            "leave it out",
        )
    _check_swept(params, ks, sigmas, cs)
    if 1 in cs:
        raise BadInput(
            "n_clusters",
            "1 in a sweep",
            "numbers of at least 2",
            "it would win: one cluster is that of any subsample, and it has no silhouette",
            "leave 1 out",
        )
    for name, values in (("neighbors", ks), ("sigma", sigmas), ("clusters", cs)):
        if not values:
            raise BadInput(name, "no value", "at least one", "there would be nothing to compare", f"give {name}")
    if len(ks) * len(sigmas) * len(cs) > MAX_POINTS:
        raise BadInput(
            "clusters, neighbors and sigma",
            "more than 10,000 combinations",
            "10,000 at most",
            "it would not end in a lifetime",
            "give shorter lists",
        )
    n_eigenpairs = None if params.tensor == "decomposable" else max(cs)
    return [
        dataclasses.replace(params, n_clusters=c, n_neighbors=k, sigma=s, n_eigenpairs=n_eigenpairs, max_clusters=None)
        for k in ks
        for s in sigmas
        for c in cs
    ]


def _check_swept(params: Params, ks: list[int], sigmas: list[float], cs: list[int]) -> None:
    """Refuse values of the swept parameters that the lists contradict."""
    swept: tuple[tuple[str, float, Sequence[float]], ...] = (
        ("n_neighbors", params.n_neighbors, ks),
        ("sigma", params.sigma, sigmas),
    )
    for name, value, values in swept:
        if value != getattr(Params, name) and value not in values:
            raise BadInput(
                name,
                f"{value} beside a list without it",
                "one that is in the list",
                "no point would have it",
                "leave it out",
            )
    if params.max_clusters is not None:
        raise BadInput(
            "max_clusters",
            f"{params.max_clusters} in a sweep",
            "the list of clusters alone",
            "it would count for nothing, as the sweep chooses c",
            "leave it out",
        )
    if params.n_eigenpairs is not None and cs and params.n_eigenpairs != max(cs):
        raise BadInput(
            "n_eigenpairs",
            f"{params.n_eigenpairs} in a sweep",
            f"none, or the largest c, {max(cs)}",
            "it would count for nothing, as a sweep solves for its largest c",
            "leave it out",
        )
