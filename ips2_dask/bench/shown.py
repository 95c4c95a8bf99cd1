"""What README, docs and notebooks show: the command that makes each record and picture, and the code that it measures.

``ips2 bench all`` goes through these steps; a test fails where a record is older than its code. This file is light to
import, for the help of the command line shows the steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

RESULTS, IMAGES = "notebooks/results", "notebooks/images"
"""Folders of a checkout; `ips2 bench all --out DIR` makes the same ones in DIR."""

GRAPH = (
    *(
        f"ips2_dask/kernels/{name}.py"
        for name in ("distances", "llvm", "neighbors", "projection", "rounding", "shards")
    ),
    *(f"ips2_dask/stages/{name}.py" for name in ("graph_refinement", "ingest", "shard_search", "sharding")),
)
"""Code of the graph of nearest neighbours."""

PRODUCT = tuple(
    f"ips2_dask/kernels/{name}.py" for name in ("llvm", "operator", "parallel", "product", "sparse", "tensor")
)
"""Code of a product with the tensor's Laplacian."""

RUN = (
    "ips2_dask/kernels/*.py",
    "ips2_dask/stages/*.py",
    "ips2_dask/executors/*.py",
    "ips2_dask/pipeline/*.py",
    "ips2_dask/plan/choices.py",
    "ips2_dask/plan/sizes.py",
    "ips2_dask/store/zarr_store.py",
)
"""Code of a whole run."""

MANIFOLD = "ips2_dask/datasets/manifold.py"
"""The generated data."""

NOTEBOOK_PACKAGES = ("nbclient", "ipykernel", "matplotlib", "pandas")

PIP = {"faiss": "faiss-cpu", "umap": "umap-learn"}
"""Modules whose packages pip calls otherwise."""


class Step(NamedTuple):
    """What one command makes.

    Attributes
    ----------
    name : str
    command : str
        As README, docs or a notebook show it.
    record : str
        The file that it makes, in a checkout.
    code : tuple of str
        Patterns of the files that decide what the record says: it may not be older than these.
    seconds : int
        How long it takes on two cores.
    measured : bool
        Whether the records say so; else ``seconds`` is an estimate.
    packages : tuple of str
        Modules that it needs besides the package's dependencies.
    needs_data : bool
        Whether it needs the data sets of ``IPS2_DATA``.
    figure : str, optional
        A picture that the same command draws of its records.
    pictures : dict
        Of a notebook: pictures, and which of its images each is, counted from 0.
    more : tuple of str
        Options besides those that the command is shown with.
    """

    name: str
    command: str
    record: str
    code: tuple[str, ...]
    seconds: int
    measured: bool = False
    packages: tuple[str, ...] = ()
    needs_data: bool = False
    figure: str | None = None
    pictures: Mapping[str, int] = {}
    more: tuple[str, ...] = ()


def _bench(name: str, command: str, code: Sequence[str], seconds: int, **more: Any) -> Step:
    module = command.split()[0].replace("-", "_")
    module = {"sweep": "sweeping"}.get(module, module)
    measuring = (f"ips2_dask/bench/{module}.py", "ips2_dask/bench/process.py")
    return Step(name, f"ips2 bench {command}", f"{RESULTS}/{name}.json", (*code, *measuring), seconds, **more)


def _notebook(name: str, code: Sequence[str], seconds: int, packages: Sequence[str] = (), **pictures: int) -> Step:
    return Step(
        f"notebook-{name[:2]}",
        f"python -m ips2_dask.bench.notebooks {name}",
        f"notebooks/{name}.ipynb",
        (f"notebooks/{name}.py", *code),
        seconds,
        packages=(*NOTEBOOK_PACKAGES, *packages),
        pictures={f"{IMAGES}/{picture}.png": number for picture, number in pictures.items()},
    )


SIX = "shards,pynndescent,faiss-ivf,faiss-hnsw,hnswlib,usearch"
OURS = "ips2,ips2-auto,ips2-k10,ips2-k10-c"
INDEXES = ("faiss", "hnswlib", "usearch")
RUNS = "ips2_dask/bench/runs.py"
PLOTS = "ips2_dask/plots/*.py"
SETS = "ips2_dask/bench/labelled_data.py"

STEPS: tuple[Step, ...] = (
    _bench("product", "product", (*PRODUCT, MANIFOLD), 34, measured=True),
    _bench("graph-mnist", "graph --data mnist", GRAPH, 1_125, measured=True, packages=INDEXES, needs_data=True),
    _bench(
        "graph-500k",
        f"graph --samples 500000 --builders {SIX}",
        (*GRAPH, MANIFOLD),
        1_756,
        measured=True,
        packages=INDEXES,
    ),
    _bench(
        "peers",
        f"peers --limit 200 --systems {OURS},evoc,spectral-lobpcg,spectral-amg,kmeans",
        (*RUN, "ips2_dask/estimator.py"),
        1_356,
        measured=True,
        packages=("evoc", "pyamg"),
        needs_data=True,
    ),
    _bench(
        "peers-compiled",
        "peers --compiled --repeats 3 --systems ips2,ips2-auto,evoc",
        (*RUN, "ips2_dask/estimator.py"),
        300,
        measured=True,
        packages=("evoc",),
        needs_data=True,
    ),
    _bench(
        "scaling",
        "scaling --clusters 20 --workers 2",
        (*RUN, RUNS, MANIFOLD),
        356,
        measured=True,
        packages=("matplotlib",),
        figure=f"{IMAGES}/scaling.png",
    ),
    _bench(
        "choosing",
        "choosing",
        (*RUN, SETS, "ips2_dask/bench/choosing_systems.py", "ips2_dask/estimator.py", "ips2_dask/sweeps/*.py"),
        5_168,
        measured=True,
        packages=("evoc", "igraph", "umap"),
        needs_data=True,
    ),
    _bench("roundings", "roundings", (*RUN, SETS), 311, measured=True, packages=("evoc",), needs_data=True),
    _bench("numbers", "numbers", (*RUN, SETS), 123, measured=True, needs_data=True, more=("--resume",)),
    _bench("noise", "numbers --noise", RUN, 142, measured=True, more=("--resume",)),
    _bench("copies", "copies", (*RUN, SETS), 171, measured=True, needs_data=True),
    _bench(
        "certainty",
        "certainty --data mnist",
        (*RUN, SETS),
        12,
        measured=True,
        packages=("matplotlib",),
        needs_data=True,
        figure="docs/images/certainty.png",
    ),
    _bench("sweep", "sweep", (*RUN, "ips2_dask/sweeps/*.py"), 116, measured=True, needs_data=True),
    _bench(
        "million-k10",
        "end-to-end --samples 1000000 --neighbors 10 --clusters 20 --workers 2",
        (*RUN, RUNS, MANIFOLD),
        709,
        measured=True,
    ),
    _bench(
        "two-workers",
        "end-to-end --samples 200000 --features 64 --clusters 10 --vectors chunked --workers 2 --against 1 --repeats 3",
        (*RUN, RUNS, MANIFOLD),
        472,
        measured=True,
    ),
    _bench(
        "ten-million",
        "end-to-end --samples 10000000 --features 16 --clusters 10 --workers 2 --keep DIR",
        (*RUN, RUNS, MANIFOLD),
        2_725,
        measured=True,
    ),
    _bench(
        "ten-million-3gib",
        "end-to-end --samples 10000000 --features 16 --clusters 10 --workers 2 "
        "--memory-limit 3GiB --limit 14400 --keep DIR",
        (*RUN, RUNS, MANIFOLD),
        8_548,
        measured=True,
    ),
    Step(
        "paper",
        "ips2 reproduce --data DIR --out paper",
        f"{RESULTS}/paper/results.json",
        (*RUN, "ips2_dask/paper/*/*.py"),
        3_601,
        measured=True,
        packages=("matplotlib",),
        needs_data=True,
    ),
    _notebook("01_quickstart", (*RUN, PLOTS), 31, clusters=1, similarities=2),
    _notebook("02_paper", ("ips2_dask/paper/*/*.py",), 15),
    _notebook("03_scaling_study", (*RUN, RUNS, "ips2_dask/bench/study/*.py"), 207),
    _notebook("04_on_a_cluster", ("ips2_dask/clusters/*.py",), 33),
    _notebook("05_choosing_parameters", (*RUN, "ips2_dask/sweeps/*.py", PLOTS), 32, sweep=1),
    _notebook("06_single_cells", (*RUN, "ips2_dask/scanpy.py", PLOTS), 18, packages=("scanpy", "igraph", "umap")),
)
"""In the order in which they are made: notebooks show what is before them."""


def spelled(seconds: float) -> str:
    """``2 h 05``, or ``7 min``, at least one minute."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes // 60} h {minutes % 60:02}" if minutes >= 60 else f"{minutes} min"


def hours() -> str:
    """How long the steps take on two cores, for the help."""
    measured = sum(step.seconds for step in STEPS if step.measured)
    whole = sum(step.seconds for step in STEPS)
    each = ", ".join(f"{step.name} {'' if step.measured else '~'}{spelled(step.seconds)}" for step in STEPS)
    return (
        f"On two cores all steps take about {spelled(whole)}: {spelled(measured)} of these are seconds of the records, "
        f"the others, marked ~, are estimates. {each}."
    )
