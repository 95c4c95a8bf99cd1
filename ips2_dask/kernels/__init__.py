"""The method on arrays and numbers: pure NumPy, SciPy and Numba, without Dask, Zarr or paths."""
