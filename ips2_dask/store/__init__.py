"""Where the arrays of a run are kept: Zarr on disk or object storage, or memory."""
