"""A notebook executed and written with its origin, its pictures beside it: ``python -m ips2_dask.bench.notebooks``."""

from __future__ import annotations

import argparse
import base64
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ips2_dask.bench.origin import now, present
from ips2_dask.store.files import write_atomically


def execute(source: Path, target: Path) -> dict[str, Any]:
    """Execute ``source`` in the folder of ``target``, write it there whole, and return its content.

    Its metadata get the commit of the code and the date under ``ips2_dask``.
    """
    import nbformat  # noqa: PLC0415  the extra [notebooks]
    from nbclient import NotebookClient  # noqa: PLC0415  the same

    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # a warning of the debugger that nobody asked for
    notebook = nbformat.read(source, as_version=4)
    date = now()
    NotebookClient(notebook, timeout=None, resources={"metadata": {"path": str(target.parent)}}).execute()
    notebook.metadata["ips2_dask"] = {**present()._asdict(), "date": date, "complete": True}
    text = nbformat.writes(notebook)
    write_atomically(target, text + "\n")
    content: dict[str, Any] = json.loads(text)
    return content


def images(notebook: Mapping[str, Any]) -> list[bytes]:
    """The PNGs among the outputs, in their order."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    found = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    return [base64.b64decode("".join(text)) for text in found]


def main() -> None:
    """Execute one notebook, and write the pictures that it is asked for."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--picture", nargs=2, action="append", default=[], metavar=("NUMBER", "FILE"))
    options = parser.parse_args()
    found = images(execute(options.source.absolute(), options.target.absolute()))
    for number, file in options.picture:
        Path(file).write_bytes(found[int(number)])


if __name__ == "__main__":
    main()
