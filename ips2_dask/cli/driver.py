"""``python -m ips2_dask.cli.driver FOLDER`` runs a submitted job where its manager put it, and leaves its status."""

from __future__ import annotations

import datetime
import json
import os
import socket
import sys
from pathlib import Path

from ips2_dask.cli.main import main
from ips2_dask.store.files import LocalFiles


def drive(folder: str) -> int:
    """Run the command of a job's record in its working directory, and return its exit status."""
    files = LocalFiles(folder)
    record = json.loads(Path(folder, "job.json").read_text(encoding="utf-8"))
    os.chdir(record["cwd"])
    files.remove("exit.json")  # of an earlier try, if the batch system starts the job again
    files.write("started.json", json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "at": _now()}))
    status = main(record["arguments"])
    files.write("exit.json", json.dumps({"status": status, "at": _now()}))
    return status


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    sys.exit(drive(sys.argv[1]))
