"""The data of a benchmark: a generated set or one by name, written once as .npy files that every process can read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ips2_dask.datasets import curved_gaussians, load
from ips2_dask.datasets.manifold import BLOCK
from ips2_dask.errors import BadInput
from ips2_dask.typing import Float, Float32


class Data(NamedTuple):
    """Samples and known labels in files; ``c`` known classes."""

    name: str
    X: str  # (m, f), raw values
    labels: str  # (m,) int64
    m: int
    f: int
    c: int


def generated(m: int, f: int, c: int, seed: int, folder: Path) -> Data:
    """`datasets.curved_gaussians`, written block by block: it needs memory for one block."""
    data = Data("curved_gaussians", str(folder / f"X-{m}x{f}.npy"), str(folder / f"labels-{m}x{f}.npy"), m, f, c)
    X = np.lib.format.open_memmap(data.X, "w+", np.float32, (m, f))
    labels = np.lib.format.open_memmap(data.labels, "w+", np.int64, (m,))
    for start in range(0, m, BLOCK):
        rows = slice(start, min(start + BLOCK, m))
        X[rows], labels[rows] = curved_gaussians(m, f, c, seed, rows)
    X.flush()
    labels.flush()
    return data


def named(name: str, folder: Path) -> Data:
    """A data set of `datasets.load`, as the publisher has it; `BadInput` where it is not there."""
    dataset = load(name)
    m, f = dataset.X.shape
    data = Data(name, str(folder / "X.npy"), str(folder / "labels.npy"), m, f, dataset.n_clusters)
    np.save(data.X, dataset.X)
    np.save(data.labels, np.unique(dataset.labels, return_inverse=True)[1].astype(np.int64))
    return data


def kept(folder: Path, make: Callable[[Path], Data]) -> Data:
    """The data in ``folder``, made by ``make`` if there are none, only once: a run tells its input by its mtime."""
    facts = folder / "data.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not facts.exists():
            facts.write_text(json.dumps(make(folder)._asdict()))
        return Data(**json.loads(facts.read_text()))
    except BadInput:
        folder.rmdir()  # nothing was made
        raise
    except (OSError, ValueError, TypeError) as error:
        allowed = "a folder that can be written, or one of a benchmark that was kept"
        raise BadInput(
            "--keep", f"{folder}: {error}", allowed, "there would be no data", "name another folder"
        ) from error


def centred(X: Float) -> Float32:
    """X as a run sees it after ingest: centred in float64, then float32 (docs/method.md, Samples and distances)."""
    return np.ascontiguousarray(X - X.mean(axis=0, dtype=np.float64), np.float32)
