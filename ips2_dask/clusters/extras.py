"""Packages of single cluster managers: optional, and named with the command that installs them."""

from __future__ import annotations

import importlib
from typing import Any

from ips2_dask.errors import BadInput


def need(module: str, extra: str, what: str) -> Any:
    """Import an optional module.

    Raises
    ------
    BadInput
        Where it is not installed, with the command that does it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise BadInput(
            what, f"no package {package} that can be imported ({error})", "an installed one",
            f"{what} would not work", f"run: pip install 'ips2-dask[{extra}]'",
        ) from error  # fmt: skip
