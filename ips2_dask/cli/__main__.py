"""``python -m ips2_dask.cli``: the command ``ips2``."""

from ips2_dask.cli.main import entry

if __name__ == "__main__":
    entry()
