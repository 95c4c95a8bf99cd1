"""``python -m ips2_dask.cli.driver FOLDER`` runs a submitted job where its manager put it, and leaves its status."""

from __future__ import annotations

import json
import os
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path

from ips2_dask.cli.main import main
from ips2_dask.store.files import LocalFiles


def _drive(folder: str) -> int:
    """Run the command of a job's record in its working directory, and return its exit status."""
    files = LocalFiles(folder)
    record = json.loads(Path(folder, "job.json").read_text(encoding="utf-8"))
    os.chdir(record["cwd"])
    files.remove("exit.json")  # of an earlier try, if the batch system starts the job again
    begun = {"host": socket.gethostname(), "pid": os.getpid(), "at": datetime.now(UTC).isoformat(timespec="seconds")}
    files.write("started.json", json.dumps(begun))
    status = main(record["arguments"])
    ended = {"status": status, "at": datetime.now(UTC).isoformat(timespec="seconds")}
    files.write("exit.json", json.dumps(ended))
    return status


if __name__ == "__main__":
    sys.exit(_drive(sys.argv[1]))
