"""Chooses the size of the shards of the sample graph: seconds and recall on kinds of data, a kind left out in turn.

python notebooks/research/cells.py --data DIR --out notebooks/results/cells.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ips2_dask import Params, run
from ips2_dask.datasets import load
from ips2_dask.datasets.manifold import curved_gaussians
from ips2_dask.params import LEAST_RECALL
from ips2_dask.plan import choices
from ips2_dask.stages import shard_search, tensor
from ips2_dask.store.zarr_store import ZarrStore

MEMBERS = (1536, 2048, 3072, 4096, 6144, 8192)


class _Stop(Exception):
    """The graph is there."""


def sets(data: str) -> dict[str, Any]:
    """Samples of each kind, made when they are asked for."""
    noise = np.random.default_rng(0)
    return {
        "mnist 70,000 x 784": lambda: load("mnist", data).X,
        "curved 300,000 x 64": lambda: curved_gaussians(300_000, 64, 20, seed=0)[0],
        "curved 100,000 x 192": lambda: curved_gaussians(100_000, 192, 20, seed=0)[0],
        "curved 1,000,000 x 16": lambda: curved_gaussians(1_000_000, 16, 20, seed=0)[0],
        "noise 150,000 x 8": lambda: noise.normal(size=(150_000, 8)).astype(np.float32),
        "noise 100,000 x 32": lambda: noise.normal(size=(100_000, 32)).astype(np.float32),
        "kdd 494,021 x 38": lambda: load("kddcup-all", data).X,
    }


def measured(X: Any, members: int) -> dict[str, Any]:
    """Seconds and recall of the graph with shards of at most so many members."""
    choices.SHARD_MEMBERS = shard_search.SHARD_MEMBERS = (members, members)

    def stop(*_: object) -> None:
        raise _Stop

    made, tensor.run = tensor.run, stop
    try:
        with tempfile.TemporaryDirectory() as folder:
            with contextlib.suppress(_Stop):
                run(X, Params(graph="shards"), store=folder)
            manifest = ZarrStore(folder).get_document("manifest.json")
            assert manifest is not None
            stage = manifest["stages"][1]
            return {
                "members": members,
                "seconds": stage["seconds"],
                "recall": stage["facts"]["recall"],
                "facts": {k: v for k, v in stage["facts"].items() if isinstance(v, (int, float, str))},
            }
    finally:
        tensor.run = made


def main() -> None:
    """Make the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    records: list[dict[str, Any]] = []
    for name, make in sets(options.data).items():
        if options.only not in name:
            continue
        X = make()
        for members in MEMBERS:
            records.append({"set": name, **measured(X, members)})
            print(records[-1], flush=True)
    names = list(dict.fromkeys(record["set"] for record in records))
    best = {n: min(r["seconds"] for r in records if r["set"] == n and r["recall"] >= LEAST_RECALL) for n in names}

    def loss(members: int, some: list[str]) -> float:
        mine = [r for r in records if r["members"] == members and r["set"] in some]
        return float(np.mean([np.log(r["seconds"] / best[r["set"]]) for r in mine]))

    chosen = []
    for left_out in names:
        others = [name for name in names if name != left_out]
        members = min(MEMBERS, key=lambda one: loss(one, others)) if others else MEMBERS[0]
        chosen.append(
            {"left_out": left_out, "members": members, "times_the_best": float(np.exp(loss(members, [left_out])))}
        )
        print(chosen[-1])
    Path(options.out).write_text(json.dumps({"records": records, "chosen": chosen}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
