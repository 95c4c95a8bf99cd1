"""Stage 4: degrees of the pairs in the full T-hat, the connected components, and how large the left-out part is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.kernels.antisymmetric import element_bytes, largest_eigenvalue
from ips2_dask.kernels.components import neighborhood_components
from ips2_dask.kernels.tensor import pair_ids
from ips2_dask.params import Params
from ips2_dask.plan.choices import Choices
from ips2_dask.stages import block_operator
from ips2_dask.stages.component_labels import label_components
from ips2_dask.stages.near import neighborhood_edges
from ips2_dask.stages.views import n_pairs, neighborhood_operator, neighborhoods, read_pairs, restricted_tensor, unit
from ips2_dask.store.base import TaskResult, present
from ips2_dask.store.context import Context, part_name

VERSION = 2

Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]


def depends_on(params: Params, choices: Choices) -> dict[str, object]:
    """The parameters that this stage's arrays depend on, besides the tensor."""
    own: dict[str, object] = {"n_neighbors": params.n_neighbors, "operator": choices.operator}
    if params.tensor == "indecomposable":
        own |= {"sigma": params.sigma, "epsilon": params.epsilon}
    return own


def degrees_of(context: Context, g: int) -> TaskResult:
    """Degrees of the pairs of chunk g, each partition's written as a part of its own."""
    partitions = block_operator.degrees(context, g)
    first, _ = block_operator.chunk_partitions(context)[g]
    for b, degrees in enumerate(partitions, first):
        context.store.write(context.folders["assemble"], part_name(b), {"degrees": degrees}, {})
    return {}, {"empty": sum(int(np.count_nonzero(degrees == 0)) for degrees in partitions)}


def run(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store degrees by partition and components; returns how many there are and warnings."""
    chunked = context.choices.vectors == "chunked"
    if chunked:
        sizes = label_components(context, executor, report, "assemble", neighborhood_edges)
        context.store.write(context.folders["assemble"], "whole", {"sizes": sizes}, {})
    else:
        N, _ = neighborhoods(context, context.params.n_neighbors)
        component, _ = neighborhood_components(N)
        context.store.write(context.folders["assemble"], "whole", {"components": component}, {})
        sizes = np.bincount(component)
    empty, antisymmetric = 0, None
    if context.params.tensor == "indecomposable" and chunked:
        chunks = range(len(block_operator.chunk_partitions(context)))
        _drop_incomplete_chunks(context)
        block_operator.assign_chunk_owners(context, executor)
        receipts = executor.map(
            Job("assemble", degrees_of, "chunk-", block_operator.CHUNK_KIND), context, chunks, report
        )
        empty = sum(int(r["facts"]["empty"]) for r in receipts)
    elif context.params.tensor == "indecomposable":
        empty, antisymmetric = _degrees_here(context, report)
    warnings = []
    if empty:
        warnings.append(f"{empty} of {n_pairs(context)} pairs have no entry above zero in float32: sigma is too large")
    return {
        "components": len(sizes), "largest": int(sizes.max()), "empty": empty, "antisymmetric": antisymmetric,
        "warnings": warnings,
    }  # fmt: skip


def _drop_incomplete_chunks(context: Context) -> None:
    """Drop the part of each chunk of which a partition has lost its degrees, so that the chunk is computed again."""
    chunks, folder = block_operator.chunk_partitions(context), context.folders["assemble"]
    names = ["chunk-" + part_name(g) for g in range(len(chunks))]
    there = frozenset(present(context.store, folder, [*names, *map(part_name, range(context.n_partitions))]))
    incomplete = [
        name for name, (first, last) in zip(names, chunks, strict=True)
        if name in there and not there.issuperset(map(part_name, range(first, last)))
    ]  # fmt: skip
    context.store.drop_many(folder, incomplete)


def _degrees_here(context: Context, report: Report) -> tuple[int, float | None]:
    """Store the degrees, computed in this process; returns how many are zero, and `_antisymmetric`."""
    pairs = read_pairs(context)
    ones = unit(pairs)
    if context.choices.operator == "triplets":
        degrees = (restricted_tensor(context) @ ones) / ones
    else:
        operator = neighborhood_operator(context, np.float64)
        degrees = operator.matmat(ones[:, None])[:, 0] / ones
    offsets = context.facts["tensor"]["pair_offsets"]
    for b in range(context.n_partitions):
        part = {"degrees": degrees[offsets[b] : offsets[b + 1]]}
        context.store.write(context.folders["assemble"], part_name(b), part, {})
        report(b + 1, context.n_partitions)
    return int(np.count_nonzero(degrees == 0)), _antisymmetric(context, pairs, degrees)


def _antisymmetric(context: Context, pairs: Int32, degrees: Float64) -> float | None:
    """An estimate of the antisymmetric part's largest eigenvalue; None where its elements would take too much room.

    The solver leaves that part out. This stage estimates it, since it depends on neither c nor the tolerance.
    """
    params = context.params
    if not element_bytes(context.m, params.n_neighbors):
        return None
    N, _ = neighborhoods(context, params.n_neighbors)
    blocks, owned = (context.read_all("tensor", name) for name in ("blocks", "owned"))
    return largest_eigenvalue(blocks, owned, N, pair_ids(N, pairs), degrees, params.sigma, params.epsilon)
