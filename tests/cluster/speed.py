"""How much longer a run takes from and to a loopback S3 server than from and to the local disk, and its requests.

``python tests/cluster/speed.py`` clusters the 10,000 test images of MNIST (``IPS2_DATA``), or generated samples, on two
workers, on disk and in the bucket in turn, and prints one line of JSON. Two runs go ahead and are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import fsspec
import numpy as np
from s3_server import S3, s3_server
from shell import groups, mnist

import ips2_dask
from ips2_dask import Params, Resources


def measure(folder: Path, served: S3, samples: int | None, rows: int | None, repeat: int) -> dict[str, object]:
    """Seconds on disk and in the bucket, the median of their ratios, requests, and the last turn's stages."""
    X = mnist() if samples is None else None
    X = groups(samples or 10_000, 64) if X is None else X
    np.save(folder / "x.npy", X)
    fsspec.filesystem("s3").put_file(str(folder / "x.npy"), served.url("x.npy"))
    params, resources = Params(n_clusters=10), Resources(partition_rows=rows)
    seconds: dict[str, list[float]] = {"disk": [], "s3": []}
    stages: dict[str, dict[str, float]] = {}
    with ips2_dask.cluster("local", workers=2) as client:
        for turn in range(repeat + 1):
            places = {"disk": f"{folder}/", "s3": served.url("")}
            for kind, place in places.items():
                before, begun = len(served.requests()), time.perf_counter()
                run = ips2_dask.run(f"{place}x.npy", params, resources, store=f"{place}run-{turn}", client=client)
                seconds[kind].append(time.perf_counter() - begun)
                stages[kind] = {stage["name"]: round(stage["seconds"], 2) for stage in run.manifest["stages"]}
            requests = served.count(before)
    partitions = len(run.manifest["bounds"]) - 1
    ratios = [s3 / disk for disk, s3 in zip(*seconds.values(), strict=True)][1:]
    return {
        "samples": len(X),
        "features": X.shape[1],
        "partitions": partitions,
        "seconds": seconds,
        "stages": stages,
        "ratios": ratios,
        "ratio": median(ratios),
        "requests": dict(requests),
        "requests_per_partition": requests.total() / partitions,
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, help="generated ones, in place of MNIST's")
    parser.add_argument("--partition-rows", type=int)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ips2-speed-") as name, s3_server(Path(name)) as served:
        os.environ.update(served.environment)
        found = measure(Path(name), served, options.samples, options.partition_rows, options.repeat)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
