"""Checks of a run against its data and its machines: the shape of the samples, memory by role, and disk."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path

from ips2_dask.errors import BadInput, Refused
from ips2_dask.params import Params
from ips2_dask.plan.memory import EXACT, USABLE, Role, usable
from ips2_dask.plan.plan import Plan
from ips2_dask.plan.sizes import Sizes
from ips2_dask.wording import size

MAX_DISTANCES_SAMPLES = 20_000
"""Samples up to which a matrix of all distances is accepted: 1.6 GB."""

MAX_INDEX = 2**31
"""Samples, and entries of a sparse matrix in one process, that an int32 can't number."""


def check_shape(m: int, f: int, params: Params, name: str) -> None:
    """Refuse parameters that this many samples can't satisfy.

    Raises
    ------
    BadInput
    """
    if m < 2:
        otherwise = "there would be nothing to compare"
        raise BadInput(name, f"n_samples = {m}", "a minimum of 2 samples", otherwise, "give more than 1 sample")
    if f < 1:
        raise BadInput(name, "0 feature(s)", "a minimum of 1 feature", "all samples would be equal", "give a column")
    if m >= MAX_INDEX:
        raise BadInput(
            name,
            f"{m:,} samples",
            f"fewer than {MAX_INDEX:,}",
            "their numbers, which are int32, would overflow",
            "give fewer samples, such as every second one, and label the others with `ips2 predict`",
        )
    if params.n_components is not None and params.n_components > m:
        found, otherwise = f"{params.n_components} with {m} samples", "there would not be as many eigenvectors"
        raise BadInput("n_components", found, "at most one a sample", otherwise, f"give n_components={m} or less")
    if params.n_clusters > m:
        found, allowed = f"{params.n_clusters} with {m} samples", "at most one cluster a sample"
        raise BadInput("n_clusters", found, allowed, "some clusters would be empty", f"give n_clusters={m} or less")
    if params.n_eigenpairs is not None and params.n_eigenpairs > m:
        found, allowed = f"{params.n_eigenpairs} with {m} samples", "at most one a sample"
        raise BadInput("n_eigenpairs", found, allowed, "there would not be as many", f"give n_eigenpairs={m} or less")
    if params.n_neighbors > m:
        found, allowed = f"{params.n_neighbors} with {m} samples", "at most the number of samples"
        otherwise = "a neighbourhood would hold a sample twice"
        raise BadInput("n_neighbors", found, allowed, otherwise, f"give n_neighbors={m} or less")
    if params.metric == "precomputed" and m != f:
        found, allowed = f"{m} x {f} values with metric='precomputed'", "a square matrix, samples by samples"
        otherwise = "rows of features would be read as distances"
        raise BadInput(name, found, allowed, otherwise, "give the distances of all samples, or another metric")
    if params.metric == "precomputed" and m > MAX_DISTANCES_SAMPLES:
        found = f"distances of {m} samples"
        allowed = f"at most {MAX_DISTANCES_SAMPLES} samples with metric='precomputed'"
        otherwise = f"all distances would take {4 * m * m / 2**30:.0f} GiB"
        raise BadInput(name, found, allowed, otherwise, "give the samples, and a metric or a knn_graph")


def check_entries(plan: Plan, params: Params) -> None:
    """Refuse a run in core whose sparse matrices have more entries than an int32 numbers.

    SciPy would number them by int64: such a matrix takes half as much memory again, which is not planned for, and its
    products are not those of the compiled kernels.

    Raises
    ------
    BadInput
    """
    if plan.choices.vectors == "chunked":
        return
    sizes = Sizes(plan.m, plan.f, params, plan.choices, plan.bounds, plan.request.n_workers)
    entries = {"the fused similarity": 0 if sizes.is_dense else 2 * sizes.n_fused + plan.m}
    if params.tensor == "indecomposable":
        entries["the start's sample graph"] = (2 * sizes.k - 1) * plan.m
        if plan.choices.operator == "triplets":
            entries["the tensor"] = 2 * sizes.entries
    matrix, count = max(entries.items(), key=lambda entry: entry[1])
    if count < MAX_INDEX:
        return
    remedy = "give vectors='chunked'"
    if params.tensor == "decomposable":
        remedy = "give fewer samples, or tensor='indecomposable' with vectors='chunked'"
    found, allowed = f"in core with {count:,} entries of {matrix} at most", f"fewer than {MAX_INDEX:,} in one process"
    raise BadInput("vectors", found, allowed, "their numbers, which are int32, would overflow", remedy)


_WHO: dict[Role, str] = {"worker": "a worker", "driver": "the driver", "scheduler": "the scheduler"}


def keeps_limit(needed: int, limit: int | None, role: Role) -> bool:
    """Whether a process that needs so many bytes keeps its limit: a worker needs a share of it for itself, `USABLE`."""
    return limit is None or needed <= (usable(limit) if role == "worker" else limit)


def check_memory(
    plan: Plan,
    worker_limit: int | None,
    driver_limit: int | None,
    scheduler_limit: int | None = None,
    saving: Callable[[], str | None] = lambda: None,
) -> None:
    """Refuse a run whose workers, whose driver or whose scheduler could not keep their limit.

    Parameters
    ----------
    plan : Plan
    worker_limit, driver_limit, scheduler_limit : int, optional
        Bytes that each worker, the driver, and a scheduler of its own may use. A plan counts on `USABLE` of a worker's.
        The driver's process has the scheduler in it, unless that is known to be one of its own.
    saving : callable
        It says an option with which all limits would be kept, if there is one.

    Raises
    ------
    Refused
        With the stage and the term that are too large, and the smallest limit that would do.
    """
    limits: tuple[tuple[Role, int | None], ...] = (
        ("worker", worker_limit),
        ("driver", driver_limit),
        ("scheduler", scheduler_limit),
    )
    for role, limit in limits:
        if limit is None or (role == "scheduler" and not plan.scheduler_bytes):
            continue
        stage, phase = plan.peak(role)
        if keeps_limit(phase.bytes, limit, role):
            continue
        term, held = phase.largest
        share, of_limit = (USABLE, f", {USABLE:g} of which a plan counts on") if role == "worker" else (1.0, "")
        needed = phase.bytes / share
        if role == "worker" and driver_limit == limit:  # one option sets both
            needed = max(needed, plan.client_bytes)
        enough = f"{math.ceil(needed / 2**28) / 4:g}GiB"
        # a scheduler's pod is as large as the driver's, whatever the command line says
        remedy = f"give memory_limit='{enough}', or {role}.memory: {enough} in a cluster's file"
        remedy = f"give driver.memory: {enough} in the cluster's file" if role == "scheduler" else remedy
        smaller = saving()
        if phase.name == EXACT:
            remedy += ", or leave tol out (--tol), as labels do not need the pairs' eigenvectors"
        elif smaller is not None:
            remedy += f", or run it with {smaller}"
        raise Refused(
            f"memory_limit: stage {stage.name} needs {phase.bytes / 2**30:.2f} GiB in {_WHO[role]} ({phase.name}; "
            f"{term}: {held / 2**30:.2f} GiB) and the limit is {limit / 2**30:.2f} GiB{of_limit}, so the process would "
            f"be killed. Remedy: {remedy}."
        )


def keeps_limits(
    plan: Plan, worker_limit: int | None, driver_limit: int | None, scheduler_limit: int | None = None
) -> bool:
    """Whether `check_memory` accepts a plan."""
    try:
        check_memory(plan, worker_limit, driver_limit, scheduler_limit)
    except Refused:
        return False
    return True


def disk_warning(plan: Plan, folder: str | Path) -> str | None:
    """A warning if a run directory would not fit on its disk; None where it does, or nothing is known of the disk.

    Parameters
    ----------
    plan : Plan
    folder : path
        The run directory, or the folder in which it will be made.
    """
    there = Path(folder).absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        free = shutil.disk_usage(there).free
    except OSError:
        return None
    needed = plan.peak_disk_bytes
    if needed <= free:
        return None
    return f"the run directory takes up to {size(needed)} while the run goes on, and {there} has {size(free)} free"
