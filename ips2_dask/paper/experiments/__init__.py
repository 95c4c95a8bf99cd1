"""The paper's experiments, and some beyond it: tasks on Dask whose results are kept, and flat records of them."""

from ips2_dask.paper.experiments.catalog import FAMILIES, chosen, experiments, runnable
from ips2_dask.paper.experiments.records import FIELDS, Record
from ips2_dask.paper.experiments.tasks import Results, Scope, quick

__all__ = ["FAMILIES", "FIELDS", "Record", "Results", "Scope", "chosen", "experiments", "quick", "runnable"]
