"""Executors: this process, or the workers of a Dask cluster, compute the tasks of a stage."""
