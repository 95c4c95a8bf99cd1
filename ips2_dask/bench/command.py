"""`ips2 bench`: from options to a benchmark, its records printed as they come and written when they are all there."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType

from ips2_dask.bench import (
    certainty,
    change,
    choosing,
    choosing_systems,
    cluster,
    copies,
    document,
    end_to_end,
    figures,
    graph,
    islands,
    numbers,
    origin,
    peers,
    product,
    roundings,
    scaling,
    slope,
    solve,
    sweeping,
)
from ips2_dask.bench.document import Record
from ips2_dask.bench.inputs import CLUSTERS, Data, generated, kept, named
from ips2_dask.bench.options import FEATURES
from ips2_dask.bench.origin import Recording
from ips2_dask.bench.runs import Input
from ips2_dask.errors import BadInput
from ips2_dask.params import Params, Resources, parse_bytes
from ips2_dask.store.layout import folder_of

MODULES: dict[str, ModuleType] = {
    "product": product,
    "graph": graph,
    "solve": solve,
    "end-to-end": end_to_end,
    "peers": peers,
    "scaling": scaling,
    "choosing": choosing,
    "roundings": roundings,
    "numbers": numbers,
    "copies": copies,
    "islands": islands,
    "certainty": certainty,
    "sweep": sweeping,
    "change": change,
    "cluster": cluster,
    "slope": slope,
}


def bench(
    options: argparse.Namespace,
    params_of: Callable[[argparse.Namespace], Params],
    resources_of: Callable[[argparse.Namespace], Resources],
) -> int:
    """Run the benchmark that ``options`` name; ``options.given`` is the command as it was typed.

    Raises
    ------
    BadInput
        Where the data, a parameter or the result file can't be used.
    """
    table = getattr(options, "markdown", False)
    if isinstance(table, Path):
        return _print_recorded(options, table)
    drawn = getattr(options, "drawn", None)
    if drawn is not None:
        return _draw_recorded(options, drawn)
    if getattr(options, "figure", None) is not None:
        figures.check(options.figure)
    recording = None
    if options.json is not None:
        document.check_writable(options.json)
        recording = Recording(options.given, getattr(options, "random_state", None), options.busy)
    module = MODULES[options.benchmark]
    results: list[Record] = _earlier(options)
    scratch = getattr(options, "scratch", None)
    with tempfile.TemporaryDirectory(prefix="ips2-bench-", dir=scratch, ignore_cleanup_errors=True) as name:
        for record in _records(options, params_of, resources_of, Path(name), results):
            print(document.line(record, module.COLUMNS), flush=True, file=sys.stderr if table else sys.stdout)
            results.append(record)
            if options.benchmark == "numbers" and recording is not None:
                document.write(options.json, recording.head(complete=False), results)
            if options.stopping.interrupted:  # an interrupt that a callback of the garbage collector has lost
                raise KeyboardInterrupt
    if recording is not None:
        document.write(options.json, recording.head(), results)
    if table:
        print(module.markdown(results), end="")
    if getattr(options, "figure", None) is not None:
        figures.save(module.draw(results), options.figure, results)
    return 0


def _draw_recorded(options: argparse.Namespace, path: Path) -> int:
    """Draw the figure of a file of ``--json``, and measure nothing."""
    for name, value, needed in (("--figure", options.figure, True), ("--json", options.json, False)):
        if (value is not None) != needed:
            raise BadInput(
                name,
                f"{'none' if needed else 'one'} beside --from {path}",
                "--figure FILE --from RECORD",
                "there would be nothing new to write",
                f"{'give' if needed else 'leave out'} {name}",
            )
    figures.check(options.figure)
    results = document.read(path)
    try:
        figure = MODULES[options.benchmark].draw(results)
    except (KeyError, ValueError, TypeError):
        raise BadInput(
            str(path),
            "records of another benchmark",
            f"a file of `ips2 bench {options.benchmark} --json FILE`",
            "the figure would show something else",
            "give such a file",
        ) from None
    figures.save(figure, options.figure, results)
    return 0


def _print_recorded(options: argparse.Namespace, path: Path) -> int:
    """Print the tables of a file of ``--json``, and measure nothing."""
    if options.json is not None:
        raise BadInput(
            "--json",
            f"one beside --markdown {path}",
            "one of them",
            "there would be nothing new to write",
            "leave --json out, or give --markdown alone",
        )
    module = MODULES[options.benchmark]
    print(module.markdown(module.read(path)), end="")
    return 0


def _earlier(options: argparse.Namespace) -> list[Record]:
    """The records that are gone on with."""
    if not getattr(options, "resume", False):
        return []
    if options.json is None:
        raise BadInput(
            "--resume",
            "no --json",
            "one with the file of --json",
            "there would be nothing to go on with",
            "name the file with --json, or leave --resume out",
        )
    if not options.json.exists():
        return []
    made_by = document.head(options.json)
    if (made_by.get("commit"), made_by.get("changes")) != tuple(origin.present()):
        raise BadInput(
            "--resume",
            f"records of {made_by.get('commit') or 'an unknown commit'} in {options.json}",
            f"those of this code, {origin.present().commit or 'of no checkout'}",
            "one file would hold records of two versions",
            "name a new file, or leave --resume out",
        )
    return numbers.complete(numbers.read(options.json))


def _records(
    options: argparse.Namespace,
    params_of: Callable[[argparse.Namespace], Params],
    resources_of: Callable[[argparse.Namespace], Resources],
    folder: Path,
    earlier: Sequence[Record],
) -> Iterator[Record]:
    if options.benchmark in ("end-to-end", "scaling", "slope"):
        if not (options.workers or options.serial or options.scheduler or options.cluster):
            options.workers = 2
        params, resources = params_of(options), resources_of(options)
        if options.benchmark == "scaling":
            return _scaling(options, params, resources, folder)
        if options.benchmark == "slope":
            return _slope(options, params, resources, folder)
        return _end_to_end(options, params, resources, folder)
    if options.benchmark == "choosing":
        return _choosing(options, folder)
    if options.benchmark == "roundings":
        return roundings.measure(options.data, options.draws, options.peers, options.random_state)
    if options.benchmark == "numbers":
        return _numbers(options, folder, list(earlier))
    if options.benchmark == "copies":
        return copies.measure(options.data, options.random_state)
    if options.benchmark == "islands":
        return islands.measure(options.samples, options.features, options.groups, options.random_state)
    if options.benchmark == "certainty":
        return certainty.measure(options.data, options.random_state)
    parts = {
        "product": _product,
        "graph": _graph,
        "solve": _solve,
        "peers": _peers,
        "sweep": _sweep,
        "change": _change,
        "cluster": _cluster,
    }
    return parts[options.benchmark](options, folder)


def _choosing(options: argparse.Namespace, folder: Path) -> Iterator[Record]:
    systems = choosing_systems.available(options.systems, lambda text: print(text, file=sys.stderr))
    return choosing.measure(options.data, systems, folder, options.random_state, cold=options.cold)


def _numbers(options: argparse.Namespace, folder: Path, earlier: Sequence[Record]) -> Iterator[Record]:
    if options.noise:
        return numbers.noise(seed=options.random_state, done=earlier)
    return numbers.measure(options.data, options.draws, folder, options.random_state, done=earlier)


def _product(options: argparse.Namespace, folder: Path) -> Iterator[Record]:
    del folder
    return product.measure(
        options.samples,
        options.features,
        options.neighbors,
        options.columns,
        options.operators,
        options.repeats,
        options.threads,
        options.random_state,
    )


def _graph(options: argparse.Namespace, folder: Path) -> Iterator[Record]:
    data = _data(options, folder)
    return graph.measure(
        data, folder, options.neighbors, options.builders, options.recall, options.limit, options.threads
    )


def _solve(options: argparse.Namespace, folder: Path) -> Iterator[Record]:
    data = _data(options, folder)
    return solve.measure(
        data,
        folder,
        options.neighbors,
        options.clusters,
        options.tol,
        options.solvers,
        options.limit,
        options.random_state,
    )


def _peers(options: argparse.Namespace, folder: Path) -> Iterator[Record]:
    data = _data(options, folder)
    return peers.measure(
        data,
        folder,
        options.systems,
        options.clusters,
        options.workers or 0,
        options.limit,
        options.repeats,
        options.random_state,
        cold=not options.compiled,
        threads=options.threads,
        report=lambda text: print(text, file=sys.stderr),
    )


def _sweep(options: argparse.Namespace, folder: Path) -> Iterator[Record]:
    data = _data(options, folder)
    swept = sweeping.SweptValues(options.swept_clusters, options.swept_neighbors, options.swept_sigma)
    params, resources = Params(random_state=options.random_state), Resources(n_workers=options.workers)
    return sweeping.measure(data, swept, params, resources, folder, options.limit)


def _change(options: argparse.Namespace, folder: Path) -> Iterator[Record]:
    data = _data(options, folder)
    return change.measure(
        data, folder, options.clusters, options.then, options.repeats, options.limit, options.random_state
    )


def _cluster(options: argparse.Namespace, folder: Path) -> Iterator[Record]:
    return cluster.measure(options.workers, options.chunks, options.near, options.samples, options.clusters, folder)


def _end_to_end(options: argparse.Namespace, params: Params, resources: Resources, folder: Path) -> Iterator[Record]:
    if options.keep is not None and (options.repeats > 1 or options.against is not None):
        raise BadInput(
            "--keep",
            "more than one run",
            "one, without --repeats and --against",
            "later runs would find the stages of the first",
            "leave --keep out",
        )
    for name, value in (("--labels-column", options.labels_column), ("--transpose", options.transpose or None)):
        if value is not None and options.input is None:
            raise BadInput(
                name, "no --input", "one of a file, with --input", "it would count for nothing", f"leave {name} out"
            )
    if options.input is not None and options.features != FEATURES:
        raise BadInput(
            "--features",
            "one with --input",
            "generated data (--samples)",
            "it would count for nothing",
            "leave --features out",
        )
    if options.input is not None:
        source = Input(Path(options.input).name, options.input, None, options.labels_column, options.transpose)
    else:
        make = partial(_data, options, seed=params.random_state)
        data = make(folder) if options.keep is None else kept(options.keep / _data_folder(options, params), make)
        source = Input(data.name, data.X, data.labels)
        if options.n_clusters is None:
            params = dataclasses.replace(params, n_clusters=data.c)
    return end_to_end.measure(
        source,
        params,
        resources,
        folder,
        options.serial,
        options.repeats,
        options.limit,
        options.against,
        None if options.keep is None else options.keep / "run",
    )


def _scaling(options: argparse.Namespace, params: Params, resources: Resources, folder: Path) -> Iterator[Record]:
    if options.n_clusters is None:
        params = dataclasses.replace(params, n_clusters=CLUSTERS)
    return scaling.measure(
        options.sizes,
        options.features,
        params,
        resources,
        folder,
        options.serial,
        options.limit,
        warm_up=not options.no_warm_up,
    )


def _slope(options: argparse.Namespace, params: Params, resources: Resources, folder: Path) -> Iterator[Record]:
    if options.n_clusters is None:
        params = dataclasses.replace(params, n_clusters=CLUSTERS)
    if options.scheduler or options.cluster or options.serial:
        raise BadInput(
            "bench slope",
            "another cluster than its own",
            "workers of this machine, with --workers",
            "their memory could not be measured",
            "leave --scheduler, --cluster and --serial out",
        )
    driver_limit = parse_bytes(options.driver_limit, "--driver-limit")
    return slope.measure(options.sizes, options.features, params, resources, driver_limit, folder, options.limit)


def _data_folder(options: argparse.Namespace, params: Params) -> str:
    """The folder's name for the data that are asked for: others have another."""
    if options.samples is None and options.data is not None:
        return folder_of("data", {"name": options.data})
    made = {"samples": options.samples or options.default_samples, "features": options.features}
    return folder_of("data", {**made, "clusters": options.n_clusters, "seed": params.random_state})


DRAWS_NOTHING = ("graph",)
"""Benchmarks whose seed is that of generated data alone."""


def _check_named(options: argparse.Namespace) -> None:
    """Refuse options of generated data beside named ones."""
    conflicts = {"--features": options.features != FEATURES}
    if options.benchmark in DRAWS_NOTHING:
        conflicts["--seed"] = options.random_state != 0
    for name, wrong in conflicts.items():
        if wrong:
            raise BadInput(
                name,
                f"one with the data set {options.data}",
                "generated data (--samples)",
                "it would count for nothing, as these data are what they are",
                f"leave {name} out, or give --samples",
            )


def _data(options: argparse.Namespace, folder: Path, seed: int | None = None) -> Data:
    """Named data, or generated ones where their number is given or no name is."""
    if options.samples is None and options.data is not None:
        _check_named(options)
        return named(options.data, folder)
    clusters = getattr(options, "clusters", None) or getattr(options, "n_clusters", None) or CLUSTERS
    m = options.samples or options.default_samples
    return generated(m, options.features, clusters, options.random_state if seed is None else seed, folder)
