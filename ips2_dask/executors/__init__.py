"""Who computes the tasks of a stage: this process, or the workers of a Dask cluster."""
