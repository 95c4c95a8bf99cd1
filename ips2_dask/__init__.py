"""Out-of-core, distributed clustering by tensor similarity (IPS2).

Where each step of the paper (Peng et al., arXiv 1905.03920) is computed. ``kernels.fuse`` is the function ``fuse`` of
the package ``ips2_dask.kernels``; docs/architecture.md walks through all of it, docs/method.md has the mathematics.

====================================================  ============================================  ==================
step of the paper                                     kernel                                        stage
====================================================  ============================================  ==================
pairwise similarity S (Algorithm 1, step 1)           kernels.heat, kernels.graph_edges             stages.fuse
k nearest neighbours (section 3.6)                    kernels.nearest_in, kernels.merge_lists       stages.neighbors
indecomposable tensor, eq. (7), on neighbourhoods     kernels.block_distances, kernels.triplets     stages.tensor
unfolding T-hat, Definition 3.1                       kernels.owned_pairs, paper.explicit.unfold    stages.tensor
Laplacian L-hat = D^-1/2 T-hat D^-1/2                 kernels.NeighborhoodOperator                  stages.degrees
top c eigenvectors (step 3)                           kernels.leading_eigenpairs                    stages.eigen
decomposable tensor, Theorems 3.1 and 3.2             kernels.leading_products                      stages.eigen
high-order similarity V (Definition 3.3, step 4)      kernels.high_order_values                     stages.fuse
fused similarity U = (S + V) / 2 (section 3.5)        kernels.fuse                                  stages.fuse
labels (step 5)                                       kernels.embedding, kernels.kmeans_best        stages.label
all of it letter by letter, dense                     paper.explicit
====================================================  ============================================  ==================
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ips2_dask import plots
    from ips2_dask.clusters import cluster
    from ips2_dask.errors import BadInput, Damaged, IPS2Error, IPS2Warning, Refused, StoreFailure, WorkersKilled
    from ips2_dask.estimator import IPS2, PPC
    from ips2_dask.paper import explicit
    from ips2_dask.params import PAPER, Params, Resources
    from ips2_dask.pipeline.run import run
    from ips2_dask.readers.features import Features, TextFormat
    from ips2_dask.reports import report
    from ips2_dask.runs.maintenance import gc, status, verify
    from ips2_dask.runs.run import Run, open_run
    from ips2_dask.sweeps import open_sweep, sweep

__version__ = "0.1.0"

__all__ = [
    "IPS2",
    "PAPER",
    "PPC",
    "BadInput",
    "Damaged",
    "Features",
    "IPS2Error",
    "IPS2Warning",
    "Params",
    "Refused",
    "Resources",
    "Run",
    "StoreFailure",
    "TextFormat",
    "WorkersKilled",
    "__version__",
    "cluster",
    "explicit",
    "gc",
    "open_run",
    "open_sweep",
    "plots",
    "report",
    "run",
    "status",
    "sweep",
    "verify",
]

_HOMES = {
    "clusters": ("cluster",),
    "errors": ("BadInput", "Damaged", "IPS2Error", "IPS2Warning", "Refused", "StoreFailure", "WorkersKilled"),
    "estimator": ("IPS2", "PPC"),
    "reports": ("report",),
    "sweeps": ("open_sweep", "sweep"),
    "readers.features": ("Features", "TextFormat"),
    "params": ("PAPER", "Params", "Resources"),
    "pipeline.run": ("run",),
    "runs.maintenance": ("gc", "status", "verify"),
    "runs.run": ("Run", "open_run"),
}
"""Where each public name is, imported when it is first asked for: a command that needs no SciPy, Numba or Dask does not
wait two seconds for them."""


def __getattr__(name: str) -> Any:
    if name in ("explicit", "plots"):
        return importlib.import_module({"explicit": "ips2_dask.paper.explicit", "plots": "ips2_dask.plots"}[name])
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'ips2_dask' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"ips2_dask.{home}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
