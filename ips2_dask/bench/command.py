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
from ips2_dask.cli.options import Part, add, add_params, add_resources, numbers, params_of, resources_of, whole_numbers
from ips2_dask.errors import BadInput

FEATURES, CLUSTERS = 64, 20  # of generated data, unless told
OPERATORS = ("matrix-free", "triplets")
BUILDERS = ("exact", "shards", "pynndescent", "faiss-ivf", "faiss-hnsw", "hnswlib", "usearch")
SYSTEMS = (
    *("ips2", "ips2-auto", "ips2-k10", "ips2-k10-c", "ips2-kmeans"),
    *("spectral-lobpcg", "spectral-amg", "spectral-arpack", "kmeans", "evoc"),
)


def _positive(text: str) -> tuple[int, ...]:
    """``10000,31623`` as numbers above 0, or a range as of ``ips2 sweep``."""
    found = whole_numbers(text)
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} has a number that is not above 0")
    return found


def _one(text: str) -> int:
    """A whole number above 0."""
    found = _positive(text)
    if len(found) != 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return found[0]


def _words(allowed: tuple[str, ...], text: str) -> tuple[str, ...]:
    """``exact,shards`` as words of ``allowed``."""
    chosen = tuple(text.split(","))
    if not set(chosen) <= set(allowed):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of {', '.join(allowed)}")
    return chosen


TYPES: dict[str, Callable[[str], Any]] = {
    **{
        "N": _one,
        "N,...": _positive,
        "X,...": numbers,
        "X": float,
        "SECONDS": float,
        "SEED": int,
        "COUNT": int,
        "DIR": Path,
    },
    **{"OPERATOR,...": partial(_words, OPERATORS), "BUILDER,...": partial(_words, BUILDERS), "FILE": Path},
    **{"SYSTEM,...": partial(_words, SYSTEMS), "RECORD,...": partial(_words, tuple(records.RECORDS))},
}
"""How an option is read by what it takes."""


class _Benchmark(NamedTuple):
    """A benchmark: what it measures, the function that yields its records, and its options."""

    says: str
    # "module.name" in this package; its parameters are the options' names, and what `_made` makes of them
    function: str
    options: str  # as of `cli.options.add`
    samples: int = 0  # that are generated where no data are named; 0 for a benchmark without named data
    data: str | None = None  # the default set
    whole: bool = False  # takes the options of `ips2 run`


BENCHMARKS = {
    "product": _Benchmark(
        "one product with the tensor's Laplacian, by level of assembly, against SciPy's CSR",
        "product.measure",
        f"""
--samples N=20000  generated samples
--features N={FEATURES}  their features
--neighbors N,...=10  values of k
--columns N=10  of the block that is multiplied
--repeats N=9  products whose median counts
--operators OPERATOR,...={",".join(OPERATORS)}  levels of assembly
--seed SEED=0  of data and starts
""",
    ),
    "graph": _Benchmark(
        "builders of the nearest-neighbour graph at equal recall",
        "graph.measure",
        f"""
--neighbors N=6  columns of the graph, the sample itself included
--builders BUILDER,...={",".join(BUILDERS)}  ours and libraries
--recall X=0.95  to be reached
--limit SECONDS=900  after which a measured process is killed
--seed SEED=0  of data and starts
""",
        70_000,
        "mnist",
    ),
    "end-to-end": _Benchmark(
        "stages of a run, with their peak memory and the plan's",
        "runs.end_to_end",
        """
--repeats N=1  runs
--against N  workers of other runs, made by turns with these: how many times as fast
--keep DIR  where data and the run stay; both are gone on with
--limit SECONDS=7200  after which a measured process is killed
""",
        20_000,
        whole=True,
    ),
    "scaling": _Benchmark(
        "stages of runs of growing size, and how their time grows",
        "runs.scaling",
        f"""
--sizes N,...=10000,31623,100000,316228,1000000  samples of each run
--features N={FEATURES}  of generated samples
--no-warm-up  compile inside the first times
--limit SECONDS=7200  after which a measured process is killed
""",
        whole=True,
    ),
    "peers": _Benchmark(
        "IPS2 against scikit-learn's SpectralClustering and KMeans, and EVoC",
        "peers.measure",
        f"""
--clusters N  c (default: the classes of the data, 20 of generated data)
--systems SYSTEM,...={",".join(SYSTEMS)}  ours and others
--repeats N=3  fits of each, whose median counts
--compiled  make one fit of each first that does not count
--limit SECONDS=900  after which a measured process is killed
--seed SEED=0  of data and starts
""",
        70_000,
        "mnist",
    ),
    "sweep": _Benchmark(
        "a sweep, against one run with its largest c and k",
        "sweep.measure",
        """
--clusters N,...=5:15  values of c
--neighbors N,...=7,10  values of k
--sigma X,...=.2,1,4  values of sigma
--workers N=2  processes of each cluster
--limit SECONDS=3600  after which a measured process is killed
--seed SEED=0  of data and starts
""",
        10_000,
        "mnist10k",
    ),
}


REPRODUCE = """
--data DIR  data sets (default: the environment variable IPS2_DATA)
--out DIR!  results; what an earlier call did is kept
--only NAME,...  some experiments, such as table2 (default: all)
--quick  five runs and smaller grids, in minutes
--jobs COUNT  processes side by side (default: cores, up to 4)
--seed SEED=0  of the first run
--json  one JSON object as the last line of standard output
--quiet  no progress and no report
"""

ALL = """
--out DIR!  where notebooks/results is, or is made
--only RECORD,...  some of the records (default: all)
--list  print what there is, with its commit and date, and make nothing
"""

RECORD = (
    "--json FILE  where to write the records with their origin: commit, date, machine, threads, load, versions, command"
)


def _add_benchmarks(parser: argparse.ArgumentParser) -> None:
    """Give the parser of ``ips2 bench`` its benchmarks, and the paper's experiments."""
    benchmarks = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    own: dict[str, Any] = {"allow_abbrev": False}
    for name, of in BENCHMARKS.items():
        one = benchmarks.add_parser(name, help=of.says, description=of.says, **own)
        add(one, RECORD, types=TYPES)
        for add_options in (add_params, add_resources) if of.whole else ():
            add_options(one)
        if of.samples:
            which = one.add_mutually_exclusive_group()
            default = f" (default: {of.data})" if of.data else ""
            which.add_argument("--data", default=of.data, metavar="NAME", help=f"a set of `datasets.load`{default}")
            add(which, "--samples N  so many generated samples", types=TYPES)
            add(one, f"--features N={FEATURES}  of generated samples", types=TYPES)
        add(one, of.options, types=TYPES)
    says = "every record that README and docs show; what is there is not made again"
    everything = benchmarks.add_parser("all", help=says, description=says, epilog=records.hours(), **own)
    add(everything, ALL, types=TYPES)
    says = "the paper's experiments again, beside its printed figures"
    add(benchmarks.add_parser("reproduce", help=says, description=says, **own), REPRODUCE, types=TYPES)


OPTIONS: dict[str, tuple[Part, ...]] = {"bench": (_add_benchmarks,)}


def bench_command(options: argparse.Namespace) -> int:
    """Run the benchmark that ``options`` name, all of them, or the paper's experiments."""
    if options.benchmark == "all":
        return records.make_all(options)
    if options.benchmark == "reproduce":
        from ips2_dask.paper import reproduce  # noqa: PLC0415  it loads every experiment

        return reproduce.command(options)
    from ips2_dask.bench import harness  # noqa: PLC0415  the parser does without

    module, _, name = BENCHMARKS[options.benchmark].function.partition(".")
    measuring = importlib.import_module(f"ips2_dask.bench.{module}")
    measure, scratch = getattr(measuring, name), getattr(options, "scratch", None)
    with tempfile.TemporaryDirectory(prefix="ips2-bench-", dir=scratch, ignore_cleanup_errors=True) as folder:
        given = {**vars(options), **_made(options, Path(folder))}
        found = measure(**{name: given[name] for name in inspect.signature(measure).parameters if name in given})
        seed = given.get("seed", given.get("random_state"))
        words = ["ips2", *options.given]  # the command as it was typed
        harness.record(found, measuring.COLUMNS, options.json, words, seed, lambda: options.stopping.interrupted)
    return 0


def _made(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The arguments of a benchmark that are made of several options."""
    from ips2_dask.bench.harness import kept  # noqa: PLC0415  the parser does without
    from ips2_dask.bench.runs import How  # noqa: PLC0415  the same

    made: dict[str, Any] = {"folder": folder, "report": lambda text: print(text, file=sys.stderr)}
    of = BENCHMARKS[options.benchmark]
    _check(options)
    if not of.whole:
        return {**made, "data": _data(options, options.seed, folder)} if of.samples else made
    if not (options.serial or options.scheduler or options.cluster):
        options.workers = options.workers or 2
    made["warm_up"] = not getattr(options, "no_warm_up", False)
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
    from ips2_dask.bench.harness import generated, named  # noqa: PLC0415  the parser does without

    if options.samples is None and options.data is not None:
        return named(options.data, folder)
    asked = (getattr(options, name, None) for name in ("clusters", "n_clusters"))
    clusters = next((c for c in asked if isinstance(c, int)), CLUSTERS)  # a sweep has several
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
