"""Stage 4: degrees of the pairs in the full T-hat, and the connected components."""

from __future__ import annotations

from typing import Any

import numpy as np

from ips2_dask.executors import Executor, Report
from ips2_dask.kernels import reverse
from ips2_dask.params import Params
from ips2_dask.storage.context import Context, part_name
from ips2_dask.storage.graph import neighborhoods, read_pairs, restricted_tensor, unit

VERSION = 1


def depends_on(params: Params) -> dict[str, Any]:
    """The parameters that this stage's arrays depend on, besides the tensor."""
    return {"n_neighbors": params.n_neighbors}


def run(context: Context, executor: Executor, report: Report) -> dict[str, Any]:
    """Store degrees by partition and components; returns how many there are and warnings."""
    del executor
    store, folder = context.store, context.folders["assemble"]
    N, _ = neighborhoods(context, context.params.n_neighbors)
    component, count = reverse.components(N)
    store.write(folder, "whole", {"components": component}, {})
    warnings = []
    if context.params.tensor == "indecomposable":
        ones = unit(read_pairs(context))
        degrees = (restricted_tensor(context) @ ones) / ones
        empty = int(np.count_nonzero(degrees == 0))
        if empty:
            warnings.append(f"{empty} of {len(degrees)} pairs have no entry above zero in float32: sigma is too large")
        offsets = context.facts["tensor"]["pair_offsets"]
        for b in range(context.n_partitions):
            store.write(folder, part_name(b), {"degrees": degrees[offsets[b] : offsets[b + 1]]}, {})
            report(b + 1, context.n_partitions)
    return {"components": count, "largest": int(np.bincount(component).max()), "warnings": warnings}
