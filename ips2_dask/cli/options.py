"""Options that several commands share, and the `Params`, `Resources`, `Features` and `TextFormat` of their values."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

from ips2_dask.errors import BadInput
from ips2_dask.params import CHOICES, MAX_CLUSTERS, PRESETS, Params, Resources
from ips2_dask.readers.features import HEADER, MISSING, MOST_CATEGORIES, USUAL, Features, TextFormat, split_list
from ips2_dask.wording import option

HELP = {
    "n_clusters": "number of clusters c, or auto",
    "max_clusters": "with --clusters auto: the largest number that is considered",
    "n_eigenpairs": "eigenpairs that are solved for where that is more than c: several c then share them",
    "n_components": "columns of the spectral embedding; default: c and 8 more",
    "n_neighbors": "size k of a neighbourhood, the sample itself included",
    "sigma": "sigma of the tensor",
    "epsilon": "epsilon of the tensor, below 0.001, where samples lie 32 to 64 from their mean",
    "tensor": "which tensor similarity",
    "metric": "distance of two samples; cosine and correlation are chords sqrt(2 (1 - cos)); jaccard: of the sets of "
    "features that are not 0; precomputed: the input",
    "affinity": "pairwise similarity S; precomputed: see --similarity",
    "bandwidth": "mean, median or a number: t of exp(-d^2 / 2 t^2)",
    "high_order": "how eigenvectors become V",
    "fusion": "how S and V become U",
    "fusion_weight": "w of U = (1 - w) S + w V",
    "method": "ips2, or ppc for V alone",
    "embedding": "what is clustered: the spectral embedding of U, that of the graph of its rows, or its rows (none)",
    "assign_labels": "how labels come from it: k-means, leaves of a tree of density, or the better of the two "
    "(auto); leiden: communities of U, which need 'ips2-dask[graph]'",
    "resolution": "of leiden's modularity: larger ones give more clusters; for a given number of clusters it is sought",
    "scale": "what is done to the columns (l2: rows) first",
    "duplicates": "whether rows that are equal once scaled become one sample, or stay samples of their own",
    "operator": "how far the tensor is assembled",
    "graph": "how the nearest neighbours are found",
    "shards": "number of shards of the sample graph; default: by the shape of the data",
    "tol": "largest residual of an eigenpair; default: as exact as labels need",
    "random_state": "seed of everything random",
}

KINDS: dict[str, type] = {"int": int, "int | None": int, "float": float, "float | None": float}
METAVARS = {"int": "N", "int | None": "N", "float": "X", "float | None": "X", "str | float": "mean|median|X"}


def _bandwidth(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def _clusters(text: str) -> int | str:
    try:
        return text if text == "auto" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a whole number nor auto") from None


def add_params(parser: argparse.ArgumentParser, without: Sequence[str] = ()) -> None:
    """Add an option for each parameter of the method, except those in ``without``."""
    group = parser.add_argument_group("method")
    group.add_argument("--preset", choices=sorted(PRESETS), default="default", help="a set of the options below")
    for name, field in Params.__dataclass_fields__.items():
        if name in without:
            continue
        extra: dict[str, Any] = {"choices": CHOICES[name]} if name in CHOICES else {}
        if name == "n_clusters":
            extra = {"type": _clusters, "metavar": "N|auto"}
        elif name not in CHOICES:
            kind = str(field.type)
            extra = {"type": KINDS.get(kind, _bandwidth), "metavar": METAVARS[kind]}
        default = MAX_CLUSTERS if name == "max_clusters" else field.default
        group.add_argument(option(name), dest=name, default=None, help=f"{HELP[name]} (default {default})", **extra)


def add_input(parser: argparse.ArgumentParser, optional: bool = False) -> None:
    """Add the input, and the options on its labels and features."""
    nargs: dict[str, Any] = {"nargs": "?"} if optional else {}
    parser.add_argument("input", help="data file, file::dataset, folder or URL of a Zarr array", **nargs)
    parser.add_argument("--labels-column", metavar="NAME", help="column of known labels, by name or number: for scores")
    parser.add_argument("--transpose", action="store_true", help="the input is features by samples")
    group = parser.add_argument_group(
        "features: columns by name, by number from 0, and ranges of both with their ends, such as A,B,5,7-20"
    )
    group.add_argument("--columns", metavar="LIST", help="columns that are features (default: all)")
    group.add_argument("--drop-columns", metavar="LIST", help="columns that are none")
    group.add_argument(
        "--one-hot",
        metavar="LIST",
        help=f"columns of text or numbers that become a 0 or 1 for each category, of at most {MOST_CATEGORIES:,}",
    )
    group.add_argument(
        "--missing",
        choices=MISSING,
        default=MISSING[0],
        help="what is done about NaN, nulls and, in text files, empty fields, ?, NA and such: refuse them (default), "
        "take the column's median, or drop the row, whose label is then -1",
    )
    add_text_format(parser)


def add_text_format(parser: argparse.ArgumentParser) -> None:
    """Add the options on how a text file is read; those that are not given are None."""
    group = parser.add_argument_group("text files")
    group.add_argument(
        "--header", choices=HEADER, help="whether the first line names the columns (default: auto, by what is in it)"
    )
    group.add_argument(
        "--delimiter", metavar="CHAR", help=r"between fields; \t: a tab, a blank: runs of them (default: as found)"
    )
    group.add_argument("--encoding", metavar="NAME", help="such as latin-1, cp1252 or utf-16 (default: utf-8)")
    group.add_argument("--decimal", choices=(".", ","), help="decimal mark (default: a point)")
    group.add_argument("--thousands", metavar="CHAR", help="mark between groups of three digits")
    group.add_argument("--comment", metavar="CHAR", help="character at which a line ends, unless it is in quotes")
    group.add_argument("--skip-lines", type=int, metavar="N", help="lines before the table, such as titles")


def features_of(options: argparse.Namespace) -> Features:
    """The features that the options select from the input's columns."""
    texts = {name: getattr(options, name) for name in ("columns", "drop_columns", "one_hot")}
    lists = {name: split_list(text, option(name)) for name, text in texts.items() if text is not None}
    return Features(**lists, missing=options.missing)


def text_of(options: argparse.Namespace, usual: TextFormat | None = None) -> TextFormat | None:
    """How the options say that a text file is read, other settings as of ``usual``; None if they don't say it."""
    given = {name: getattr(options, name) for name in TextFormat.__dataclass_fields__}
    given = {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(usual or USUAL, **given) if given else None


def add_side_inputs(parser: argparse.ArgumentParser) -> None:
    """Add the options for a similarity and a neighbour graph of the user's."""
    parser.add_argument(
        "--similarity", metavar="FILE", help="S of all samples, for --affinity precomputed: .npz, .npy, a.h5ad::obsp/b"
    )
    parser.add_argument(
        "--knn-graph", metavar="FILE", help="sparse matrix whose entries in a row are a sample's candidate neighbours"
    )


def add_cluster(group: argparse._ActionsContainer, serial: bool = True) -> None:
    """Add the options for a cluster, a scheduler or this process."""
    where = group.add_mutually_exclusive_group()
    where.add_argument("--cluster", metavar="FILE|NAME", help="YAML file of a cluster, or a shipped one such as slurm")
    where.add_argument("--scheduler", metavar="ADDRESS", help="address of a running Dask scheduler")
    if serial:
        where.add_argument("--serial", action="store_true", help="no cluster: everything in this process")
    add_security(group)


def add_security(group: argparse._ActionsContainer) -> None:
    """Add the options for certificates."""
    group.add_argument("--tls", metavar="DIR", help="certificates, as `ips2 certs DIR` makes them")
    group.add_argument(
        "--insecure", action="store_true", help="let the scheduler listen beyond 127.0.0.1 without certificates"
    )


def add_resources(parser: argparse.ArgumentParser, cuts: bool = True) -> None:
    """Add the options on resources; without ``cuts`` those on partitions and block vectors are left out."""
    group = parser.add_argument_group("machine")
    add_cluster(group)
    group.add_argument("--workers", type=int, metavar="N", help="worker processes (default: cores, up to 4)")
    group.add_argument("--memory-limit", metavar="SIZE", help="bytes a process may use, such as 4GiB")
    group.add_argument("--scratch", metavar="DIR", help="folder for what workers spill")
    if not cuts:
        parser.set_defaults(partition_rows=None, shards=None, vectors="auto")
        return
    group.add_argument("--partition-rows", type=int, metavar="N", help="samples in a partition (default: by the shape)")
    group.add_argument(
        "--vectors", choices=CHOICES["vectors"], default="auto", help="where block vectors live (default auto)"
    )


def params_of(options: argparse.Namespace) -> Params:
    """The parameters of the method, by the options and the preset.

    Raises
    ------
    BadInput
        If --max-clusters is given together with a number of clusters.
    """
    values = {name: getattr(options, name, None) for name in Params.__dataclass_fields__}
    if values["n_clusters"] is None and values["assign_labels"] == "leiden":
        values["n_clusters"] = "auto"  # it finds the number
    if values["n_clusters"] != "auto" and values["max_clusters"] is not None:
        raise BadInput(
            "--max-clusters",
            "a number of clusters that is not auto",
            "--max-clusters with --clusters auto",
            "one of the two would count for nothing",
            "give --clusters auto, or leave --max-clusters out",
        )
    return Params(**{**PRESETS[options.preset], **{name: value for name, value in values.items() if value is not None}})


def resources_of(options: argparse.Namespace) -> Resources:
    """The resources that the options set.

    Raises
    ------
    BadInput
        If --workers is given with --scheduler or --serial, which start no workers.
    """
    if options.workers is not None and (options.scheduler or options.serial):
        other = "--scheduler" if options.scheduler else "--serial"
        raise BadInput(
            "--workers",
            f"{options.workers}, not allowed with argument {other}",
            "workers of a new cluster",
            "they would not be there",
            f"leave out --workers or {other}",
        )
    return Resources(
        n_workers=options.workers,
        memory_limit=options.memory_limit,
        scheduler=options.scheduler,
        cluster=options.cluster,
        tls=options.tls,
        insecure=options.insecure,
        scratch=options.scratch,
        partition_rows=options.partition_rows,
        vectors=options.vectors,
    )
