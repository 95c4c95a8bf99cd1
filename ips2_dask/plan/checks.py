"""Checks of a run against its data and its machine: the shape of the samples, and the memory of a process."""

from __future__ import annotations

import math

from ips2_dask.errors import BadInput, Refused
from ips2_dask.params import Params
from ips2_dask.plan.plan import Plan

MAX_DISTANCES_SAMPLES = 20_000
"""Samples up to which a matrix of all distances is accepted: 1.6 GB."""


def check_shape(m: int, f: int, params: Params, name: str) -> None:
    """Refuse parameters that this many samples can't satisfy.

    Raises
    ------
    BadInput
    """
    if m < 2:
        raise BadInput(
            name,
            f"n_samples = {m}",
            "a minimum of 2 samples",
            "there would be nothing to compare",
            "give more than 1 sample",
        )
    if f < 1:
        raise BadInput(name, "0 feature(s)", "a minimum of 1 feature", "all samples would be equal", "give a column")
    if params.n_eigenpairs is not None and params.n_eigenpairs > m:
        raise BadInput(
            "n_eigenpairs", f"{params.n_eigenpairs} with {m} samples", "at most one a sample",
            "there would not be as many", f"give n_eigenpairs={m} or less",
        )  # fmt: skip
    if params.n_components is not None and params.n_components > m:
        raise BadInput(
            "n_components", f"{params.n_components} with {m} samples", "at most one a sample",
            "there would not be as many eigenvectors", f"give n_components={m} or less",
        )  # fmt: skip
    if params.n_clusters > m:
        raise BadInput(
            "n_clusters", f"{params.n_clusters} with {m} samples", "at most one cluster a sample",
            "some clusters would be empty", f"give n_clusters={m} or less",
        )  # fmt: skip
    if params.n_neighbors > m:
        raise BadInput(
            "n_neighbors", f"{params.n_neighbors} with {m} samples", "at most the number of samples",
            "a neighbourhood would hold a sample twice", f"give n_neighbors={m} or less",
        )  # fmt: skip
    if params.metric == "precomputed" and m != f:
        raise BadInput(
            name, f"{m} x {f} values with metric='precomputed'", "a square matrix, samples by samples",
            "rows of features would be read as distances", "give the distances of all samples, or another metric",
        )  # fmt: skip
    if params.metric == "precomputed" and m > MAX_DISTANCES_SAMPLES:
        raise BadInput(
            name, f"distances of {m} samples", f"at most {MAX_DISTANCES_SAMPLES} samples with metric='precomputed'",
            f"all distances would take {4 * m * m / 2**30:.0f} GiB", "give the samples, and a metric or a knn_graph",
        )  # fmt: skip


def check_memory(plan: Plan, limit: int | None) -> None:
    """Refuse a run that could not keep the memory limit.

    Raises
    ------
    Refused
        With the smallest limit that would do.
    """
    needed = max(plan.worker_bytes, plan.client_bytes)
    if limit is not None and needed > limit:
        worst = max(plan.stages, key=lambda s: max(s.worker_bytes, s.client_bytes))
        raise Refused(
            f"memory_limit: stage {worst.name} needs {needed / 2**30:.2f} GiB in one process and the limit is "
            f"{limit / 2**30:.2f} GiB, so the process would be killed. "
            f"Remedy: give --memory-limit {math.ceil(needed / 2**28) / 4:g}GiB, or {_smaller(plan, worst.name)}."
        )


def _smaller(plan: Plan, stage: str) -> str:
    """The option that makes a stage's share of memory smaller."""
    if stage == "neighbors" and not plan.choices.n_shards:
        return "--shards 8, so that no process reads all samples"
    if stage == "neighbors":
        return f"--shards {2 * plan.choices.n_shards}"
    if stage in ("assemble", "eigen") and plan.choices.vectors == "in-core":
        return "--vectors chunked, so that the workers share the block vectors"
    if stage == "ingest":
        return "a smaller --partition-rows"
    return "lower n_neighbors"
