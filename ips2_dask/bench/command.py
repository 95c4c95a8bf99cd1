"""`ips2 bench`: the benchmarks with their options, and from options to a benchmark's records."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ips2_dask.bench import records
from ips2_dask.errors import BadInput
from ips2_dask.params import Params, Resources

FEATURES, CLUSTERS = 64, 20  # of generated data, unless told
OPERATORS = ("matrix-free", "triplets")
BUILDERS = ("exact", "shards", "pynndescent", "faiss-ivf", "faiss-hnsw", "hnswlib", "usearch")
SYSTEMS = (
    *("ips2", "ips2-auto", "ips2-k10", "ips2-k10-c", "ips2-kmeans"),
    *("spectral-lobpcg", "spectral-amg", "spectral-arpack", "kmeans", "evoc"),
)
SIZES = (10_000, 31_623, 100_000, 316_228, 1_000_000)


def whole_numbers(text: str) -> tuple[int, ...]:
    """``10000,31623`` as numbers above 0."""
    try:
        numbers = tuple(int(word) for word in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers above 0 such as 5,10")
    return numbers


def _whole_number(text: str) -> int:
    """A number above 0."""
    numbers = whole_numbers(text)
    if len(numbers) != 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return numbers[0]


def words(allowed: tuple[str, ...], text: str) -> tuple[str, ...]:
    """``exact,shards`` as words of ``allowed``."""
    chosen = tuple(text.split(","))
    if not set(chosen) <= set(allowed):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of {', '.join(allowed)}")
    return chosen


Option = tuple[str, dict[str, Any]]


def _swept(name: str, text: str) -> tuple[float, ...]:
    """A list or range of a sweep, as of ``ips2 sweep``."""
    from ips2_dask.sweeps.grid import numbers, whole_numbers  # noqa: PLC0415  for one benchmark alone

    return tuple(numbers(text) if name == "sigma" else whole_numbers(text))


def _number(name: str, default: int | None, says: str) -> Option:
    says = says if default is None else f"{says} (default {default:,})"
    return name, {"type": _whole_number, "default": default, "metavar": "N", "help": says}


def _numbers(name: str, default: tuple[int, ...], says: str) -> Option:
    says = f"{says} (default {','.join(map(str, default))})"
    return name, {"type": whole_numbers, "default": default, "metavar": "N,...", "help": says}


def _words(name: str, allowed: tuple[str, ...]) -> Option:
    says = f"of {', '.join(allowed)}"
    return name, {"type": partial(words, allowed), "default": allowed, "metavar": "NAME,...", "help": says}


def _limit(seconds: float) -> Option:
    says = f"after which a measured process is killed (default {seconds:g})"
    return "--limit", {"type": float, "default": seconds, "metavar": "SECONDS", "help": says}


def _range(name: str, default: str) -> Option:
    kind = partial(_swept, name)
    shown = {"type": kind, "default": default, "metavar": "LIST", "help": f"(default {default})"}
    return f"--{name}", {"dest": f"swept_{name}", **shown}


SEED = "--seed", {"type": int, "default": 0, "metavar": "N", "help": "of data and starts"}


class Benchmark(NamedTuple):
    """A benchmark: what it measures, the function that yields its records, and its options."""

    says: str
    function: (
        str  # "module.name" in this package; its parameters are the options' names, and what `_made` makes of them
    )
    options: tuple[Option, ...]
    samples: int = 0  # that are generated where no data are named; 0 for a benchmark without named data
    data: str | None = None  # the default set
    whole: bool = False  # takes the options of `ips2 run`


BENCHMARKS = {
    "product": Benchmark(
        "one product with the tensor's Laplacian, by level of assembly, against SciPy's CSR",
        "product.measure",
        (
            _number("--samples", 20_000, "generated samples"),
            _number("--features", FEATURES, "their features"),
            _numbers("--neighbors", (10,), "values of k"),
            _number("--columns", 10, "of the block that is multiplied"),
            _number("--repeats", 9, "products whose median counts"),
            _words("--operators", OPERATORS),
            SEED,
        ),
    ),
    "graph": Benchmark(
        "builders of the nearest-neighbour graph at equal recall",
        "graph.measure",
        (
            _number("--neighbors", 6, "columns of the graph, the sample itself included"),
            _words("--builders", BUILDERS),
            ("--recall", {"type": float, "default": 0.95, "metavar": "X", "help": "to be reached (default .95)"}),
            _limit(900),
            SEED,
        ),
        70_000,
        "mnist",
    ),
    "end-to-end": Benchmark(
        "stages of a run, with their peak memory and the plan's",
        "runs.end_to_end",
        (
            _number("--repeats", 1, "runs"),
            _number("--against", None, "workers of other runs, made by turns with these: how many times as fast"),
            ("--keep", {"type": Path, "metavar": "DIR", "help": "where data and the run stay; both are gone on with"}),
            _limit(7200),
        ),
        20_000,
        whole=True,
    ),
    "scaling": Benchmark(
        "stages of runs of growing size, and how their time grows; of more workers, and what they bring",
        "runs.scaling",
        (
            _numbers("--sizes", SIZES, "samples of each run"),
            ("--workers", {"type": whole_numbers, "metavar": "N,...", "help": "for every size each (default 2)"}),
            _number("--features", FEATURES, "of generated samples"),
            ("--no-warm-up", {"dest": "warm_up", "action": "store_false", "help": "compile inside the first times"}),
            _limit(7200),
        ),
        whole=True,
    ),
    "peers": Benchmark(
        "IPS2 against scikit-learn's SpectralClustering and KMeans, and EVoC",
        "peers.measure",
        (
            _number("--clusters", None, "c (default: the classes of the data, 20 of generated data)"),
            _words("--systems", SYSTEMS),
            _number("--repeats", 3, "fits of each, whose median counts"),
            ("--compiled", {"action": "store_true", "help": "make one fit of each first that does not count"}),
            _limit(900),
            SEED,
        ),
        70_000,
        "mnist",
    ),
    "sweep": Benchmark(
        "a sweep, against one run with its largest c and k",
        "sweep.measure",
        (
            _range("clusters", "5:15"),
            _range("neighbors", "7,10"),
            _range("sigma", ".2,1,4"),
            _number("--workers", 2, "processes of each cluster"),
            _limit(3600),
            SEED,
        ),
        10_000,
        "mnist10k",
    ),
    "cluster": Benchmark(
        "what a run's solves cost Dask's scheduler on a large cluster, with simulated workers",
        "cluster.measure",
        (
            _number("--workers", 200, "simulated workers"),
            _number("--chunks", None, "of the samples (default: the plan's for so many samples)"),
            _number("--near", 20, "chunks of which each chunk needs rows"),
            _number("--samples", 100_000_000, "of the simulated run"),
            _number("--clusters", CLUSTERS, "of the simulated run"),
        ),
    ),
}


def add_benchmarks(parser: argparse.ArgumentParser, *of_a_run: Callable[[argparse.ArgumentParser], None]) -> None:
    """Give the parser of ``ips2 bench`` its benchmarks; ``of_a_run`` add the options of ``ips2 run`` to some."""
    benchmarks = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    for name, of in BENCHMARKS.items():
        resolve: Any = {"help": of.says, "description": of.says, "conflict_handler": "resolve"}
        one = benchmarks.add_parser(name, allow_abbrev=False, **resolve)  # --workers of scaling is a list
        text = "where to write the records with their origin: commit, date, machine, threads, load, versions, command"
        one.add_argument("--json", type=Path, metavar="FILE", help=text)
        for add_options in of_a_run if of.whole else ():
            add_options(one)
        if of.samples:
            which = one.add_mutually_exclusive_group()
            default = f" (default: {of.data})" if of.data else ""
            which.add_argument("--data", default=of.data, metavar="NAME", help=f"a set of `datasets.load`{default}")
            which.add_argument("--samples", **_number("--samples", None, "so many generated samples")[1])
            one.add_argument("--features", **_number("--features", FEATURES, "of generated samples")[1])
        for option, more in of.options:
            one.add_argument(option, **more)
    says = "every record that README and docs show; what is there is not made again"
    everything = benchmarks.add_parser("all", allow_abbrev=False, help=says, description=says, epilog=records.hours())
    everything.add_argument("--out", required=True, metavar="DIR", help="where notebooks/results is, or is made")
    everything.add_argument("--only", **{**_words("--only", tuple(records.RECORDS))[1], "default": ()})
    text = "print what there is, with its commit and date, and make nothing"
    everything.add_argument("--list", action="store_true", help=text)


def bench(
    options: argparse.Namespace,
    params_of: Callable[[argparse.Namespace], Params],
    resources_of: Callable[[argparse.Namespace], Resources],
) -> int:
    """Run the benchmark that ``options`` name; ``options.given`` is the command as it was typed."""
    from ips2_dask.bench import harness  # noqa: PLC0415  the parser does without

    if options.benchmark == "all":
        return records.make_all(options)
    module, _, name = BENCHMARKS[options.benchmark].function.partition(".")
    measuring = importlib.import_module(f"ips2_dask.bench.{module}")
    measure = getattr(measuring, name)
    scratch = getattr(options, "scratch", None)
    with tempfile.TemporaryDirectory(prefix="ips2-bench-", dir=scratch, ignore_cleanup_errors=True) as folder:
        given = {**vars(options), **_made(options, params_of, resources_of, Path(folder))}
        found = measure(**{name: given[name] for name in inspect.signature(measure).parameters if name in given})
        seed = given.get("seed", given.get("random_state"))
        command = ["ips2", *options.given]
        harness.record(found, measuring.COLUMNS, options.json, command, seed, lambda: options.stopping.interrupted)
    return 0


def _made(
    options: argparse.Namespace,
    params_of: Callable[[argparse.Namespace], Params],
    resources_of: Callable[[argparse.Namespace], Resources],
    folder: Path,
) -> dict[str, Any]:
    """The arguments of a benchmark that are made of several options."""
    from ips2_dask.bench.inputs import kept  # noqa: PLC0415  the parser does without
    from ips2_dask.bench.runs import How  # noqa: PLC0415  the same

    made: dict[str, Any] = {"folder": folder, "report": lambda text: print(text, file=sys.stderr)}
    of = BENCHMARKS[options.benchmark]
    _check(options)
    if not of.whole:
        return {**made, "data": _data(options, options.seed, folder)} if of.samples else made
    elsewhere, workers = options.serial or options.scheduler, options.workers
    if options.benchmark == "scaling":
        made["workers"] = (None,) if elsewhere else workers or (2,)
        options.workers = workers and workers[0]  # whether there may be any is asked below
    elif not (elsewhere or options.cluster):
        options.workers = workers or 2
    params, c = params_of(options), CLUSTERS
    if of.samples:
        make = partial(_data, options, params.random_state)
        facts = (options.data, options.samples, options.features, options.n_clusters, params.random_state)
        name = "-".join(str(fact) for fact in ("data", *facts) if fact is not None)
        data = make(folder) if options.keep is None else kept(options.keep / name, make)
        made |= {"data": data, "keep": None if options.keep is None else options.keep / "run"}
        c = data.c
    params = params if options.n_clusters is not None else dataclasses.replace(params, n_clusters=c)
    return {**made, "how": How(params, resources_of(options), folder, options.serial, options.limit)}


def _data(options: argparse.Namespace, seed: int, folder: Path) -> Any:
    """Named data, or generated ones where their number is given or no name is."""
    from ips2_dask.bench.inputs import generated, named  # noqa: PLC0415  the parser does without

    if options.samples is None and options.data is not None:
        return named(options.data, folder)
    clusters = getattr(options, "clusters", None) or getattr(options, "n_clusters", None) or CLUSTERS
    samples = options.samples or BENCHMARKS[options.benchmark].samples
    return generated(samples, options.features, clusters, seed, folder)


def _check(options: argparse.Namespace) -> None:
    """Refuse options that would count for nothing beside others."""
    given = vars(options).get
    named = given("data") if given("samples") is None else None
    features, repeated = given("features", FEATURES) != FEATURES, given("repeats", 1) > 1 or given("against")
    elsewhere = f"one with the data set {named}", "generated data (--samples)"
    conflicts = (
        ("--features", named and features, *elsewhere),
        ("--seed", named and options.benchmark == "graph" and options.seed, *elsewhere),
        ("--keep", given("keep") and repeated, "more than one run", "one, without --repeats and --against"),
    )
    for name, wrong, found, allowed in conflicts:
        if wrong:
            raise BadInput(name, found, allowed, "the records would be of something else", f"leave {name} out")
