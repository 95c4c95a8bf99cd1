"""The options of `ips2 bench`; light to import, for the command line builds its parser before it knows the command."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ips2_dask.bench import shown

Add = Callable[[argparse.ArgumentParser], None]


def whole_numbers(text: str) -> tuple[int, ...]:
    """``10000,31623`` as numbers above 0."""
    try:
        numbers = tuple(int(word) for word in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers above 0 such as 5,10")
    return numbers


def whole_number(text: str) -> int:
    """A number above 0."""
    numbers = whole_numbers(text)
    if len(numbers) != 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return numbers[0]


def _number_from_0(text: str) -> int:
    """A number of at least 0."""
    return 0 if text == "0" else whole_number(text)


def words(allowed: tuple[str, ...], text: str) -> tuple[str, ...]:
    """``exact,shards`` as words of ``allowed``."""
    chosen = tuple(text.split(","))
    if not set(chosen) <= set(allowed):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of {', '.join(allowed)}")
    return chosen


OPERATORS = ("matrix-free", "triplets")
BUILDERS = ("exact", "shards", "pynndescent", "faiss-ivf", "faiss-hnsw", "hnswlib", "usearch")
SOLVERS = ("ips2", "lobpcg", "eigsh")
SYSTEMS = (
    "ips2",
    "ips2-auto",
    "ips2-k10",
    "ips2-k10-c",
    "ips2-kmeans",
    "spectral-lobpcg",
    "spectral-amg",
    "spectral-arpack",
    "kmeans",
    "evoc",
)
CHOOSING = (
    "ips2",
    "plain",
    "pairwise",
    "ips2-leiden-c",
    "spectral",
    "kmeans",
    "leiden-c",
    "evoc-c",
    "auto",
    "ips2-leiden",
    "sweep",
    "hdbscan",
    "umap",
    "evoc",
    "leiden",
)
SETS = (
    "soybean",
    "scadi",
    "bbcsport",
    "yale",
    "allaml",
    "lung",
    "wine",
    "glass",
    "usps",
    "pendigits",
    "letter",
    "mnist10k",
)
OPEN = (*SETS, "digits", "iris", "breast_cancer", "colon", "leukemia", "bbcsport-l2")
TABLES = ("htru2", "satimage")
COPIED = (
    "iris",
    "breast_cancer:2",
    "digits:6",
    "satimage:16",
    "pendigits:20",
    "pendigits:34",
    "htru2:.5",
    "htru2:1",
    "letter",
    "letter:2",
    "kddcup-all@10000",
    "kddcup-all@50000",
    "kddcup-all",
)
"""Tables with equal rows: as they are, or rounded down to multiples of a step, or a draw of so many rows."""
ROUNDING_PEERS = ("kmeans", "spectral", "evoc")
FEATURES = 64
SLOPE_SIZES = (1_000_000, 2_000_000, 4_000_000)
LIST_OF_SIZES = (10_000, 31_623, 100_000, 316_228, 1_000_000)


def add_benchmarks(parser: argparse.ArgumentParser, method: Add, machine: Add) -> None:
    """Give ``ips2 bench`` its benchmarks.

    Parameters
    ----------
    parser : ArgumentParser
        That of ``ips2 bench``.
    method, machine : callable
        Add the options of ``ips2 run``, for the benchmarks that run all of it.
    """
    benchmarks = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    add = partial(_add, benchmarks)
    _product(add("product", "one product with the tensor's Laplacian, by level of assembly, against SciPy's CSR"))
    _graph(add("graph", "builders of the nearest-neighbour graph at equal recall"))
    _solve(add("solve", "the eigensolver against SciPy's lobpcg and eigsh"))
    whole = add("end-to-end", "stages of a run, with their peak memory and the plan's")
    _end_to_end(whole)
    peers = add("peers", "IPS2 against scikit-learn's SpectralClustering and KMeans")
    _peers(peers)
    scaling = add("scaling", "stages of runs of growing size, and how their time grows")
    _scaling(scaling)
    _change(add("change", "another number of clusters in a finished run's directory, beside the run"))
    _choosing(
        add("choosing", "what users get, told the number of clusters and not, beside what others offer, on known data")
    )
    _roundings(add("roundings", "ways from an embedding to labels, and rules that choose one, beside peers told c"))
    _numbers(add("numbers", "rules that choose the number of clusters, on known data and on points without clusters"))
    _copies(add("copies", "whether a row that stands for many equal ones counts more"))
    _islands(add("islands", "labels and products where small groups of samples touch no others"))
    _certainty(add("certainty", "how often labels are right among samples of a certainty, on known data"))
    _sweep(add("sweep", "a sweep, against one run with its largest c and k"))
    slope = add("slope", "bytes that each sample more takes in the driver and in a worker, by stage")
    _slope(slope)
    _cluster(add("cluster", "what a run's solves cost Dask's scheduler on a large cluster, with simulated workers"))
    _all(benchmarks)
    for each in (whole, scaling, slope):
        method(each)
        machine(each)


def _add(
    benchmarks: argparse._SubParsersAction[argparse.ArgumentParser], name: str, what: str
) -> argparse.ArgumentParser:
    parser = benchmarks.add_parser(name, allow_abbrev=False, help=what, description=what)
    text = "where to write the records with their origin: commit, date, machine, threads, load, versions, command"
    parser.add_argument("--json", type=Path, metavar="FILE", help=text)
    text = "record where other processes take more than a tenth of a core, too; the file says that it was so"
    parser.add_argument("--busy", action="store_true", help=text)
    return parser


def _all(benchmarks: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    what = "every record and picture that README, docs and notebooks show, in order; what is there is not made again"
    parser = benchmarks.add_parser("all", allow_abbrev=False, help=what, description=what, epilog=shown.hours())
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="where notebooks/results, notebooks/images and docs/images are made"
    )
    names = tuple(step.name for step in shown.STEPS)
    parser.add_argument(
        "--only", type=partial(words, names), default=(), metavar="NAME,...", help=f"of {', '.join(names)}"
    )
    text = "print what would be made and what is there, with commit and date, and make nothing"
    parser.add_argument("--list", action="store_true", help=text)
    text = "go on where other processes take more than a tenth of a core; the records say that it was so"
    parser.add_argument("--busy", action="store_true", help=text)


def _number(parser: argparse.ArgumentParser, name: str, default: int | None, what: str) -> None:
    text = what if default is None else f"{what} (default {default})"
    parser.add_argument(name, type=whole_number, default=default, metavar="N", help=text)


def _limit(parser: argparse.ArgumentParser, default: float) -> None:
    what = f"after which a measured process is killed (default {default:g})"
    parser.add_argument("--limit", type=float, default=default, metavar="SECONDS", help=what)


def _seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", dest="random_state", type=int, default=0, metavar="N", help="of data and starts")


def _data(parser: argparse.ArgumentParser, name: str | None, samples: int, file: bool = False) -> None:
    """Named data, generated data or, where it may be, a file."""
    which = parser.add_mutually_exclusive_group()
    default = " (default: {})"
    name_note = default.format(name) if name else ""
    count_note = "" if name else default.format(f"{samples:,}")
    which.add_argument("--data", default=name, metavar="NAME", help=f"a set of evaluation.datasets{name_note}")
    which.add_argument("--samples", type=whole_number, metavar="N", help=f"so many generated samples{count_note}")
    if file:
        which.add_argument("--input", metavar="FILE", help="whatever `ips2 run` reads")
        parser.add_argument("--labels-column", metavar="NAME", help="of --input")
        parser.add_argument("--transpose", action="store_true", help="--input is features by samples")
    _number(parser, "--features", FEATURES, "of generated samples")
    parser.set_defaults(default_samples=samples)


def _product(parser: argparse.ArgumentParser) -> None:
    _number(parser, "--samples", 20_000, "generated samples")
    _number(parser, "--features", 64, "their features")
    parser.add_argument("--neighbors", type=whole_numbers, default=(10,), metavar="K,...", help="(default 10)")
    _number(parser, "--columns", 10, "of the block that is multiplied")
    _number(parser, "--repeats", 9, "products whose median counts")
    _number(parser, "--threads", None, "of ours (default: one, then all cores); SciPy takes one")
    _list(parser, "--operators", OPERATORS)
    _seed(parser)


def _list(parser: argparse.ArgumentParser, name: str, allowed: tuple[str, ...]) -> None:
    kind = partial(words, allowed)
    parser.add_argument(name, type=kind, default=allowed, metavar="NAME,...", help=f"of {', '.join(allowed)}")


def _graph(parser: argparse.ArgumentParser) -> None:
    _data(parser, "mnist", 70_000)
    _number(parser, "--neighbors", 6, "columns of the graph, the sample itself included")
    _list(parser, "--builders", BUILDERS)
    parser.add_argument("--recall", type=float, default=0.95, metavar="X", help="to be reached (default .95)")
    _number(parser, "--threads", None, "cores that each builder is held to (default: all)")
    _limit(parser, 900)
    _seed(parser)


def _solve(parser: argparse.ArgumentParser) -> None:
    _data(parser, None, 20_000)
    _number(parser, "--neighbors", 5, "k")
    _number(parser, "--clusters", None, "c (default: the classes of the data, 20 of generated data)")
    parser.add_argument("--tol", type=float, default=1e-3, metavar="X", help="largest residual (default .001)")
    _list(parser, "--solvers", SOLVERS)
    _limit(parser, 900)
    _seed(parser)


def _end_to_end(parser: argparse.ArgumentParser) -> None:
    _data(parser, None, 20_000, file=True)
    _number(parser, "--repeats", 1, "runs")
    _number(
        parser, "--against", None, "workers of other runs, made by turns with these: how many times faster these are"
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="where generated data and the run's directory stay; both are gone on with",
    )
    _limit(parser, 7200)


def _peers(parser: argparse.ArgumentParser) -> None:
    _data(parser, "mnist", 70_000)
    _number(parser, "--clusters", None, "c (default: the classes of the data, 20 of generated data)")
    _list(parser, "--systems", SYSTEMS)
    _number(parser, "--workers", None, "processes of a cluster for IPS2 (default: one process on all cores)")
    _number(parser, "--repeats", 3, "fits of each, whose median counts")
    _number(parser, "--threads", None, "cores that each fit is held to (default: all)")
    parser.add_argument("--compiled", action="store_true", help="make one fit of each first that does not count")
    _limit(parser, 900)
    _seed(parser)


def _scaling(parser: argparse.ArgumentParser) -> None:
    text = f"(default {','.join(map(str, LIST_OF_SIZES))})"
    parser.add_argument("--sizes", type=whole_numbers, default=LIST_OF_SIZES, metavar="M,...", help=text)
    _number(parser, "--features", 64, "of generated samples")
    parser.add_argument("--no-warm-up", action="store_true", help="compile inside the first sizes' times")
    _figure(parser)
    _limit(parser, 7200)


def _change(parser: argparse.ArgumentParser) -> None:
    _data(parser, "mnist10k", 10_000)
    _number(parser, "--clusters", None, "c of the whole run (default: the classes of the data, 20 of generated data)")
    text = "c of the runs that follow, one after the other (default 12,9,15)"
    parser.add_argument("--then", type=whole_numbers, default=(12, 9, 15), metavar="C,...", help=text)
    _number(parser, "--repeats", 1, "whole runs, each with those that follow")
    _limit(parser, 900)
    _seed(parser)


def _choosing(parser: argparse.ArgumentParser) -> None:
    names = (*OPEN, *TABLES)
    text = f"(default {','.join(names)})"
    parser.add_argument("--data", type=partial(words, names), default=names, metavar="NAME,...", help=text)
    text = f"of {', '.join(CHOOSING)} (default: all whose packages are installed)"
    parser.add_argument("--systems", type=partial(words, CHOOSING), metavar="NAME,...", help=text)
    text = "make the fits of each in a fresh process, and record seconds with and without compilation"
    parser.add_argument("--cold", action="store_true", help=text)
    _recorded(parser)
    _seed(parser)


def _recorded(parser: argparse.ArgumentParser) -> None:
    """Tables of what is measured, or of a file of records."""
    text = (
        "print tables in Markdown at the end and nothing else, lines as they come go to standard error; "
        "with RECORD, a file of --json, measure nothing and print its tables"
    )
    parser.add_argument("--markdown", nargs="?", type=Path, const=True, default=False, metavar="RECORD", help=text)


def _numbers(parser: argparse.ArgumentParser) -> None:
    names = (*OPEN, *TABLES)
    text = f"(default {','.join(names)})"
    parser.add_argument("--data", type=partial(words, names), default=names, metavar="NAME,...", help=text)
    text = "random draws of 80 %% of each set, besides the whole (default 0)"
    parser.add_argument("--draws", type=_number_from_0, default=0, metavar="N", help=text)
    text = "measure what the default says of points without clusters, and of blobs, in place of known data"
    parser.add_argument("--noise", action="store_true", help=text)
    text = "go on with the records in the file of --json, which is written after each of them"
    parser.add_argument("--resume", action="store_true", help=text)
    _recorded(parser)
    _seed(parser)


def _known(parser: argparse.ArgumentParser, default: tuple[str, ...]) -> None:
    """Known sets, and whether they are to be a table."""
    kind = partial(words, tuple(dict.fromkeys((*OPEN, *TABLES, "mnist", *default))))
    text = f"(default {','.join(default)})"
    parser.add_argument("--data", type=kind, default=default, metavar="NAME,...", help=text)
    text = "print tables in Markdown at the end and nothing else; lines as they come go to standard error"
    parser.add_argument("--markdown", action="store_true", help=text)
    _seed(parser)


def _roundings(parser: argparse.ArgumentParser) -> None:
    _known(parser, (*OPEN, *TABLES))
    text = "random draws of 80 %% of each set, besides the whole (default 5)"
    parser.add_argument("--draws", type=_number_from_0, default=5, metavar="N", help=text)
    _list(parser, "--peers", ROUNDING_PEERS)


def _copies(parser: argparse.ArgumentParser) -> None:
    _known(parser, COPIED)


def _islands(parser: argparse.ArgumentParser) -> None:
    _number(parser, "--samples", 240_000, "generated samples")
    _number(parser, "--features", 64, "their features")
    text = "numbers of groups, besides none (default 30,100)"
    parser.add_argument("--groups", type=whole_numbers, default=(30, 100), metavar="N,...", help=text)
    _seed(parser)


def _certainty(parser: argparse.ArgumentParser) -> None:
    _known(parser, ("mnist10k",))
    _figure(parser)


def _figure(parser: argparse.ArgumentParser) -> None:
    """A figure of what is measured, or of a file of records."""
    parser.add_argument("--figure", type=Path, metavar="FILE", help="also draw them: .png, .svg or .pdf")
    text = "with --figure: measure nothing, and draw this file of --json"
    parser.add_argument("--from", dest="drawn", type=Path, metavar="RECORD", help=text)


def _sweep(parser: argparse.ArgumentParser) -> None:
    from ips2_dask.sweeps.grid import numbers  # noqa: PLC0415  only this benchmark's parser needs it
    from ips2_dask.sweeps.grid import whole_numbers as ranges  # noqa: PLC0415  the same

    _data(parser, "mnist10k", 10_000)
    for name, kind, default in (
        ("clusters", ranges, "5:15"),
        ("neighbors", ranges, "7,10"),
        ("sigma", numbers, ".2,1,4"),
    ):
        parser.add_argument(
            f"--{name}",
            dest=f"swept_{name}",
            type=kind,
            default=kind(default),
            metavar="LIST",
            help=f"(default {default})",
        )
    _number(parser, "--workers", 2, "processes of each cluster")
    _limit(parser, 3600)
    _seed(parser)


def _cluster(parser: argparse.ArgumentParser) -> None:
    _number(parser, "--workers", 200, "simulated workers")
    _number(parser, "--chunks", None, "of the samples (default: the plan's for so many samples)")
    _number(parser, "--near", 20, "chunks of which each chunk needs rows")
    _number(parser, "--samples", 100_000_000, "of the simulated run")
    _number(parser, "--clusters", 20, "of the simulated run")


def _slope(parser: argparse.ArgumentParser) -> None:
    text = f"(default {','.join(map(str, SLOPE_SIZES))})"
    parser.add_argument("--sizes", type=whole_numbers, default=SLOPE_SIZES, metavar="M,...", help=text)
    _number(parser, "--features", 8, "of generated samples")
    what = "bytes that the driver may hold, such as 600MiB (default: no limit)"
    parser.add_argument("--driver-limit", metavar="SIZE", help=what)
    _limit(parser, 7200)
