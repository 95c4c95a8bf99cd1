"""Scaling studies: runs of several sizes and numbers of workers measured, kept, fitted and drawn; `ips2 study`."""

from ips2_dask.bench.study.config import Study, read_config
from ips2_dask.bench.study.fits import growth_table, memory_table, stage_table, strong_table, weak_table
from ips2_dask.bench.study.measure import kept, measure, read_bench
from ips2_dask.bench.study.notebook import Studied, study
from ips2_dask.bench.study.pictures import draw_growth, draw_memory, draw_stages, draw_workers

__all__ = [
    "Studied",
    "Study",
    "draw_growth",
    "draw_memory",
    "draw_stages",
    "draw_workers",
    "growth_table",
    "kept",
    "measure",
    "memory_table",
    "read_bench",
    "read_config",
    "stage_table",
    "strong_table",
    "study",
    "weak_table",
]
