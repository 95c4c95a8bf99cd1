"""Stage 4: degrees of the pairs in the full T-hat, and the connected components."""

from __future__ import annotations

from typing import Any

from ips2_dask.executors.base import Executor, Job, Report
from ips2_dask.params import Params
from ips2_dask.plan.choices import Choices
from ips2_dask.stages.component_labels import label_components
from ips2_dask.stages.near import neighborhood_edges
from ips2_dask.stages.views import n_pairs, pair_degrees
from ips2_dask.store.context import Context

VERSION = 4


def depends_on(params: Params, choices: Choices) -> dict[str, object]:
    """The parameters that this stage's arrays depend on, besides the tensor."""
    own: dict[str, object] = {"n_neighbors": params.n_neighbors, "operator": choices.operator}
    if params.tensor == "indecomposable":
        own |= {"sigma": params.sigma, "epsilon": params.epsilon}
    return own


def run(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store degrees by partition and components; returns how many there are and warnings."""
    sizes = label_components(context, executor, report, "assemble", neighborhood_edges)
    context.store.write(context.folders["assemble"], "whole", {"sizes": sizes}, {})
    empty = 0
    if context.params.tensor == "indecomposable":
        receipts = executor.map(Job("assemble", pair_degrees), context, range(context.n_partitions), report)
        empty = sum(int(r["facts"]["empty"]) for r in receipts)
    warnings = []
    if empty:
        warnings.append(f"{empty} of {n_pairs(context)} pairs have no entry above zero in float32: sigma is too large")
    return {"components": len(sizes), "largest": int(sizes.max()), "empty": empty, "warnings": warnings}
