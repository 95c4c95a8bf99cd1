"""The methods that IPS2 is compared with, as scikit-learn estimators with one surface."""

from __future__ import annotations

from ips2_dask.paper.baselines.cave import CAVE
from ips2_dask.paper.baselines.hgc import HGC
from ips2_dask.paper.baselines.spectral import SC
from ips2_dask.paper.baselines.ssc import SSC

__all__ = ["CAVE", "HGC", "SC", "SSC"]
