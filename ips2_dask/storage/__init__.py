"""Everything that is kept: the run directory and its arrays (the only importer of Zarr) and the input formats."""
