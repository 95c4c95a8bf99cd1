"""`ips2 bench scaling`: seconds and peak memory of each stage at several sizes, and how they grow."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.stats

from ips2_dask.bench.document import Record
from ips2_dask.bench.inputs import Data, generated
from ips2_dask.bench.runs import START, TOTAL, Input, records, run_apart
from ips2_dask.params import Params, Resources
from ips2_dask.plan.choices import choose

if TYPE_CHECKING:  # Matplotlib is the extra [report]
    from matplotlib.figure import Figure

COLUMNS = (
    "kind",
    "m",
    "stage",
    "outcome",
    "seconds",
    "peak_bytes",
    "projected_bytes",
    "recall",
    "residual",
    "nmi",
    "exponent",
    "low",
    "high",
)
SIZES = (10_000, 31_623, 100_000, 316_228, 1_000_000)
WARM_UP = 2_000


class Growth(NamedTuple):
    """time ~ m^exponent, with the limits of a 95 % interval; None with fewer than three sizes."""

    exponent: float
    low: float | None
    high: float | None


def growth(sizes: Sequence[float], seconds: Sequence[float]) -> Growth:
    """The exponent of time against size: least squares of log time on log size.

    Parameters
    ----------
    sizes, seconds : sequences (n,)
        n >= 2, all above 0, the sizes not all equal.
    """
    fit = scipy.stats.linregress(np.log(sizes), np.log(seconds))
    if len(sizes) < 3:
        return Growth(float(fit.slope), None, None)
    reach = float(scipy.stats.t.ppf(0.975, len(sizes) - 2) * fit.stderr)
    return Growth(float(fit.slope), float(fit.slope) - reach, float(fit.slope) + reach)


def measure(
    sizes: Sequence[int],
    f: int,
    params: Params,
    resources: Resources,
    folder: Path,
    serial: bool = False,
    limit: float | None = None,
    warm_up: bool = True,
) -> Iterator[Record]:
    """Records of kind "time" for each size and stage, and one of kind "growth" for each stage and the total.

    Data are `datasets.curved_gaussians` with as many clusters as ``params`` asks for, written before the clock starts.
    Each size is a fresh process on a cluster of its own; before it, small runs with the choices that the sizes
    will make compile the kernels that Numba caches on disk. ``compiled`` says that they did, and ``start_included``
    whether ``seconds`` hold the start of the interpreter's workers: those of "total" do, from the call of `run` to its
    return; those of "stages" go from the first stage's beginning to the last one's end, and are the README's `all, s`.

    Parameters
    ----------
    sizes : sequence of int
    f : int
    params : Params
    resources : Resources
    folder : Path
        For temporary files: X and a run directory.
    serial : bool
        Whether there is no cluster.
    limit : float, optional
        Seconds that a run may take.
    warm_up : bool
        Whether to make the small runs first.
    """
    if warm_up:
        compile_kernels(sizes, f, params, resources, serial, folder)
    times: dict[str, list[tuple[int, float]]] = {}
    for m in sizes:
        data = generated(m, f, params.n_clusters, params.random_state, folder)
        source = Input(data.name, data.X, data.labels)
        outcome = run_apart(source, params, resources, serial, folder, limit)
        for record in records(source, params, resources, serial, outcome):
            yield {"kind": "time", **record, "compiled": warm_up, "start_included": record["stage"] in (START, TOTAL)}
            stage, seconds = record["stage"], record["seconds"]
            if isinstance(stage, str) and isinstance(seconds, float) and stage != START:
                times.setdefault(stage, []).append((m, seconds))
        _remove(data)
    for stage, points in times.items():
        if len({m for m, _ in points}) > 1:
            fit = growth(*zip(*points, strict=True))
            yield {"kind": "growth", "stage": stage, "sizes": len(points), **fit._asdict()}


def compile_kernels(
    sizes: Sequence[int], f: int, params: Params, resources: Resources, serial: bool, folder: Path
) -> None:
    """Compile every kernel that the sizes will need, so that none of them has it in its time."""
    data = generated(max(WARM_UP, 2 * params.n_clusters), f, params.n_clusters, params.random_state, folder)
    chosen = (choose(m, f, params, resources.vectors) for m in sizes)
    for graph, operator, vectors in sorted({(c.graph, c.operator, c.vectors) for c in chosen}):
        small = dataclasses.replace(params, graph=graph, operator=operator, shards=None)
        near = dataclasses.replace(resources, vectors=vectors)
        run_apart(Input(data.name, data.X, data.labels), small, near, serial, folder)
    _remove(data)


def _remove(data: Data) -> None:
    """X of ten million samples should not wait on disk for the next size."""
    for file in (data.X, data.labels):
        Path(file).unlink()


def draw(results: Sequence[Record]) -> Figure:
    """Seconds over samples with the fitted power, the share of each stage, and memory beside the plan."""
    from matplotlib.figure import Figure  # noqa: PLC0415  the extra [report]

    from ips2_dask.bench.study import pictures  # noqa: PLC0415  studies are made of this module
    from ips2_dask.bench.study.measure import as_growth  # noqa: PLC0415  the same

    shown = as_growth(results)
    figure = Figure(figsize=(15, 4.2), layout="constrained")
    for ax, panel in zip(
        figure.subplots(1, 3), (pictures.draw_growth, pictures.draw_stages, pictures.draw_memory), strict=True
    ):
        panel(shown, ax)
    return figure
