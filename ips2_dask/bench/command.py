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


def _swept(name: str, text: str) -> tuple[float, ...]:
    """A list or range of a sweep, as of ``ips2 sweep``."""
    from ips2_dask.sweeps.grid import numbers, whole_numbers  # noqa: PLC0415  for one benchmark alone

    return tuple(numbers(text) if name == "--sigma" else whole_numbers(text))


def _add(parser: argparse._ActionsContainer, lines: str) -> None:
    """Add options, one a line: its name, what it takes with its default, and after two blanks its help.

    ``N`` is a whole number above 0, ``N,...`` a list of such, ``NAME,...`` a list of the default's words, ``LIST`` a
    list or range of a sweep. What takes nothing is a flag.
    """
    for line in filter(None, lines.splitlines()):
        given, _, says = line.partition("  ")
        name, _, takes = given.partition(" ")
        kind, _, default = takes.partition("=")
        types: dict[str, Callable[[str], Any]] = {"N": _whole_number, "N,...": whole_numbers, "DIR": Path, "SEED": int}
        types |= {"X": float, "SECONDS": float, "LIST": partial(_swept, name)}
        types |= {"NAME,...": partial(words, tuple(default.split(",")))}
        more: dict[str, Any] = {"dest": f"swept_{name[2:]}"} if kind == "LIST" else {}
        more |= {"metavar": kind, "type": types[kind]} if kind else {"action": "store_true"}
        more |= {"default": default} if default else {}
        parser.add_argument(name, help=f"{says} (default {default})" if default else says, **more)


class Benchmark(NamedTuple):
    """A benchmark: what it measures, the function that yields its records, and its options."""

    says: str
    # "module.name" in this package; its parameters are the options' names, and what `_made` makes of them
    function: str
    options: str  # as of `_add`
    samples: int = 0  # that are generated where no data are named; 0 for a benchmark without named data
    data: str | None = None  # the default set
    whole: bool = False  # takes the options of `ips2 run`


BENCHMARKS = {
    "product": Benchmark(
        "one product with the tensor's Laplacian, by level of assembly, against SciPy's CSR",
        "product.measure",
        f"""
--samples N=20000  generated samples
--features N={FEATURES}  their features
--neighbors N,...=10  values of k
--columns N=10  of the block that is multiplied
--repeats N=9  products whose median counts
--operators NAME,...={",".join(OPERATORS)}  levels of assembly
--seed SEED=0  of data and starts
""",
    ),
    "graph": Benchmark(
        "builders of the nearest-neighbour graph at equal recall",
        "graph.measure",
        f"""
--neighbors N=6  columns of the graph, the sample itself included
--builders NAME,...={",".join(BUILDERS)}  ours and libraries
--recall X=0.95  to be reached
--limit SECONDS=900  after which a measured process is killed
--seed SEED=0  of data and starts
""",
        70_000,
        "mnist",
    ),
    "end-to-end": Benchmark(
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
    "scaling": Benchmark(
        "stages of runs of growing size, and how their time grows; of more workers, and what they bring",
        "runs.scaling",
        f"""
--sizes N,...=10000,31623,100000,316228,1000000  samples of each run
--workers N,...  for every size each (default 2)
--features N={FEATURES}  of generated samples
--no-warm-up  compile inside the first times
--limit SECONDS=7200  after which a measured process is killed
""",
        whole=True,
    ),
    "peers": Benchmark(
        "IPS2 against scikit-learn's SpectralClustering and KMeans, and EVoC",
        "peers.measure",
        f"""
--clusters N  c (default: the classes of the data, 20 of generated data)
--systems NAME,...={",".join(SYSTEMS)}  ours and others
--repeats N=3  fits of each, whose median counts
--compiled  make one fit of each first that does not count
--limit SECONDS=900  after which a measured process is killed
--seed SEED=0  of data and starts
""",
        70_000,
        "mnist",
    ),
    "sweep": Benchmark(
        "a sweep, against one run with its largest c and k",
        "sweep.measure",
        """
--clusters LIST=5:15  values of c
--neighbors LIST=7,10  values of k
--sigma LIST=.2,1,4  values of sigma
--workers N=2  processes of each cluster
--limit SECONDS=3600  after which a measured process is killed
--seed SEED=0  of data and starts
""",
        10_000,
        "mnist10k",
    ),
    "cluster": Benchmark(
        "what a run's solves cost Dask's scheduler on a large cluster, with simulated workers",
        "cluster.measure",
        f"""
--workers N=200  simulated workers
--chunks N  of the samples, at most (default: the plan's for so many samples)
--near N=20  chunks of which each chunk needs rows
--samples N=100000000  of the simulated run
--clusters N={CLUSTERS}  of the simulated run
""",
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
            _add(which, "--samples N  so many generated samples")
            _add(one, f"--features N={FEATURES}  of generated samples")
        _add(one, of.options)
    says = "every record that README and docs show; what is there is not made again"
    everything = benchmarks.add_parser("all", allow_abbrev=False, help=says, description=says, epilog=records.hours())
    everything.add_argument("--out", required=True, metavar="DIR", help="where notebooks/results is, or is made")
    some: dict[str, Any] = {"type": partial(words, tuple(records.RECORDS)), "default": (), "metavar": "NAME,..."}
    everything.add_argument("--only", **some, help=f"of {', '.join(records.RECORDS)} (default: all)")
    _add(everything, "--list  print what there is, with its commit and date, and make nothing")


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
        made |= {"workers": (None,) if elsewhere else workers or (2,), "warm_up": not options.no_warm_up}
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
