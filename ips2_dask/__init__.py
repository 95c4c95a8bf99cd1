"""Out-of-core, distributed clustering by tensor similarity (IPS2).

Where each step of the paper (Peng et al., arXiv 1905.03920) stands:

====================================================  =======================================================
step of the paper                                      file
====================================================  =======================================================
pairwise similarity S (Algorithm 1, step 1)            kernels/similarity.py
k nearest neighbours (section 3.6)                     kernels/neighbors.py, stages/neighbors.py
indecomposable tensor, eq. (7), on neighbourhoods      kernels/tensor.py, stages/tensor.py
unfolding T-hat, Definition 3.1                        kernels/tensor.py (pairs), explicit.py (dense)
Laplacian L-hat = D^-1/2 T-hat D^-1/2                  kernels/operator.py, stages/degrees.py
top c eigenvectors (step 3)                            kernels/eigen.py, stages/eigen.py
decomposable tensor, Theorems 3.1 and 3.2              kernels/decomposable.py
high-order similarity V (Definition 3.3, step 4)       kernels/fusion.py, stages/fuse.py
fused similarity U = (S + V) / 2 (section 3.5)         kernels/fusion.py, stages/fuse.py
labels (step 5)                                        kernels/labels.py, stages/label.py
all of it letter by letter, dense                      explicit.py
====================================================  =======================================================
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ips2_dask import explicit, plots
    from ips2_dask.clusters import cluster
    from ips2_dask.errors import BadInput, Damaged, IPS2Error, IPS2Warning, Refused, StoreFailure, WorkersKilled
    from ips2_dask.estimator import IPS2, PPC
    from ips2_dask.params import PAPER, Params, Resources
    from ips2_dask.pipeline.run import run
    from ips2_dask.readers.features import Features
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
    "readers.features": ("Features",),
    "params": ("PAPER", "Params", "Resources"),
    "pipeline.run": ("run",),
    "runs.maintenance": ("gc", "status", "verify"),
    "runs.run": ("Run", "open_run"),
}
"""Where each public name is, imported when it is first asked for: a command that needs no SciPy, Numba or Dask does not
wait two seconds for them."""


def __getattr__(name: str) -> Any:
    if name in ("explicit", "plots"):
        return importlib.import_module(f"ips2_dask.{name}")
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'ips2_dask' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"ips2_dask.{home}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
