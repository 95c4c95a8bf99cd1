"""Imports of optional packages: an error names the extra of ips2-dask that installs the package."""

from __future__ import annotations

import importlib
from types import ModuleType

from ips2_dask.errors import BadInput


def need(module: str, extra: str, what: str) -> ModuleType:
    """Import an optional module.

    Parameters
    ----------
    module : str
    extra : str
        The extra of ips2-dask that installs it.
    what : str
        What needs it, for the error.

    Raises
    ------
    BadInput
        If it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise BadInput(
            what,
            f"no package {package} that can be imported ({error})",
            "an installed one",
            f"{what} would not work",
            f"run: pip install 'ips2-dask[{extra}]'",
        ) from error
