"""Storage of a run's arrays: Zarr on disk or object storage, or memory."""
