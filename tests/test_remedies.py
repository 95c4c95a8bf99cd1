"""Whoever does what an error's remedy says gets further: each remedy that names an option or a call is tried."""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import errno
import hashlib
import itertools
import json
import os
import re
import shlex
import socket
import tomllib
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import anndata
import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from remedies import PACKAGE, parts, remedies
from scipy import sparse
from scipy.spatial.distance import cdist
from sklearn.neighbors import kneighbors_graph
from test_readers_remedies import CASES as READERS_CASES

from ips2_dask import IPS2, Features, IPS2Error, Params, Resources, datasets, explicit, open_run, run, sweep
from ips2_dask.cli.main import main
from ips2_dask.clusters import jobs as record
from ips2_dask.clusters.config import load, shipped
from ips2_dask.clusters.connect import wait_for_workers
from ips2_dask.clusters.jobs import cancel
from ips2_dask.clusters.resources import settled
from ips2_dask.clusters.tls import security
from ips2_dask.clusters.workers import local_scratch
from ips2_dask.datasets import curved_gaussians
from ips2_dask.errors import Refused
from ips2_dask.paper import data as files
from ips2_dask.paper.baselines import SSC
from ips2_dask.params import CHOICES, check_shape
from ips2_dask.pipeline.prepare import Inputs, Prepared, plan_run
from ips2_dask.readers import open_source
from ips2_dask.readers.features import TextFormat
from ips2_dask.scanpy import ips2
from ips2_dask.store import remote
from ips2_dask.store.files import writing
from ips2_dask.store.zarr_store import ZarrStore
from ips2_dask.sweeps.result import open_sweep
from ips2_dask.wording import option

Array = npt.NDArray[Any]

POD: dict[str, Any] = {"manager": "kubernetes", "worker": {"memory": "1GiB"}}
QUICK = "bench product --samples 200 --neighbors 3 --repeats 1 --operators triplets"

rng = np.random.default_rng(5)
X = rng.normal(size=(24, 3)) + 4 * np.eye(3)[np.arange(24) % 3]
D = cdist(X, X)
S = np.exp(-D)
GRAPH = sparse.csr_array(np.argsort(np.argsort(D, axis=1), axis=1) < 9, dtype=np.float64)


def _shaped(shape: tuple[int, int]) -> Any:
    """A table without data, of which a plan needs no more."""
    return SimpleNamespace(shape=shape, name="a table", resident_bytes=0)


TWICE = sparse.csr_array(kneighbors_graph(np.repeat(X, 2, axis=0), 5, mode="distance"))
"""Distances of samples that are there twice to so few others that some of them are copies."""
SHARES = np.abs(X)
T = explicit.tensor_similarity(X[:5])


class Said(Exception):
    """The line with which a command ended."""


class Desk:
    """A folder with inputs and runs, and the command line."""

    def __init__(
        self, shelf: Path, folder: Path, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch
    ) -> None:
        self.shelf, self.folder, self._capsys, self.patch = shelf, folder, capsys, patch

    @property
    def out(self) -> Path:
        """A place for a file or folder that is not there yet."""
        return self.folder / f"out{len(list(self.folder.iterdir()))}"

    def ips2(self, line: str | list[str]) -> str:
        """What a command prints; raises `Said` where it is refused."""
        words = shlex.split(line) if isinstance(line, str) else line
        status = main([word.format(at=self.shelf, here=self.folder, out=self.out) for word in words])
        said = self._capsys.readouterr()
        if status:
            raise Said(said.err.strip().splitlines()[-1])
        return said.out

    def file(self, name: str, content: str | Array) -> Path:
        """A new file in the folder."""
        if isinstance(content, str):
            (self.folder / name).write_text(content)
        else:
            np.save(self.folder / name, content)
        return self.folder / name


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs and finished runs that all cases read."""
    folder = tmp_path_factory.mktemp("shelf")
    for name, array in {"x": X, "D": D, "S": S}.items():
        np.save(folder / f"{name}.npy", array)
    sparse.save_npz(folder / "graph.npz", GRAPH)
    with (folder / "gaps.csv").open("w") as stream:
        stream.write("a,b,c,none\n" + "".join(f"{i},{i * i % 7},{'' if i < 5 else i % 4},\n" for i in range(24)))
    for name, (data, params, more) in RUNS.items():
        run(data, params, store=folder / name, **more)
    return folder


THREE = Params(n_clusters=3)
RUNS: dict[str, tuple[Array, Params, dict[str, Any]]] = {
    "run": (X, THREE, {}),
    "none-run": (X, dataclasses.replace(THREE, embedding="none"), {}),
    "distances-run": (D, dataclasses.replace(THREE, metric="precomputed"), {}),
    "given-run": (X, dataclasses.replace(THREE, affinity="precomputed"), {"similarity": S}),
    "kmeans-run": (X, dataclasses.replace(THREE, assign_labels="kmeans"), {}),
    "decomposable-run": (X, dataclasses.replace(THREE, tensor="decomposable"), {}),
}


@pytest.fixture
def desk(shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A desk of each test's own."""
    return Desk(shelf, tmp_path, capsys, monkeypatch)


Step = str | Callable[[Desk], Any]


class Case(NamedTuple):
    """A message, what provokes it, and what its remedy says; without that the words of the remedy are followed."""

    key: str
    wrong: Step
    rights: tuple[Step, ...] = ()


def one_in_four(key: str) -> tuple[pytest.MarkDecorator, ...]:
    """The mark of those that `pytest -m grid` alone tries: three of four."""
    return () if zlib.crc32(key.encode()) % 4 == 0 else (pytest.mark.grid,)


class Asked(NamedTuple):
    """Arguments of a run, for Python and for the command line."""

    values: dict[str, Any]

    def __call__(self, desk: Desk) -> None:
        """Run it in Python."""
        values = {"n_clusters": 3, **self.values}
        of_params, of_resources = (
            {name: values.pop(name) for name in list(values) if name in record.__dataclass_fields__}
            for record in (Params, Resources)
        )
        run(values.pop("X", X), Params(**of_params), Resources(**of_resources), store=desk.out, **values)

    def words(self, desk: Desk) -> list[str]:
        """The same on the command line."""
        values = {"n_clusters": 3, **self.values}
        words = ["run", str(source(values.pop("X", X), desk)), "--out", "{out}", "--quiet"]
        words += [] if values.pop("own_cluster", False) else ["--serial"]
        for name, value in values.items():
            words += [option(name), str(value if np.isscalar(value) else source(value, desk))]
        return words


def source(value: Any, desk: Desk) -> Path:
    """A file with a matrix."""
    path = desk.folder / f"given{len(list(desk.folder.iterdir()))}"
    if sparse.issparse(value):
        sparse.save_npz(path.with_suffix(".npz"), value)
        return path.with_suffix(".npz")
    np.save(path.with_suffix(".npy"), value)
    return path.with_suffix(".npy")


def alternatives(message: str) -> list[str]:
    """What a remedy says, one for each ``or``."""
    thing, remedy = parts(message)
    return re.split(
        r",? or (?=give|leave|use|run|lower|raise|add)", remedy.replace("leave it out", f"leave {thing} out")
    )


def literal(text: str) -> Any:
    """A value as it is written in Python, or a word."""
    with contextlib.suppress(ValueError, SyntaxError):
        return ast.literal_eval(text)
    return text


def followed(asked: Asked, text: str) -> Asked:
    """The arguments of a run after an instruction in Python's words."""
    values = dict(asked.values)
    set_ = re.findall(r"\b(\w+)='?([^\s',]*[^\s',.])", text)
    left = re.findall(r"leave (\w+) out", text)
    assert set_ or left, text
    for name in left:
        del values[name]
    return Asked({**values, **{name: literal(value) for name, value in set_}})


def followed_words(words: list[str], text: str) -> list[str]:
    """The words of a command after an instruction in the command line's words."""
    words = list(words)
    left = re.findall(r"leave (--[\w-]+) out", text)
    set_ = [] if left else re.findall(r"(--[\w-]+)(?: ([^\s,();]*[^\s,();.]))?", text)
    assert set_ or left, text
    for name in left:
        place = words.index(name)
        del words[
            place : place + (1 if words[place + 1 : place + 2] in ([], *[[w] for w in words if w[:2] == "--"]) else 2)
        ]
    for name, value in set_:
        if name in words:
            place = words.index(name)
            del words[place : place + 2]
        words += [name, value] if value else [name]
    return words


def refused(key: str, step: Step, desk: Desk) -> str:
    """The message with which a step is refused, which is the one of the key."""
    with pytest.raises((IPS2Error, Said)) as caught:
        done(step, desk)
    message = str(caught.value)
    assert "\n" not in message
    (remedy,) = [one for one in remedies() if one.key == key] or [None]
    assert remedy is not None, f"no remedy has the key {key!r}"
    assert remedy.fits(message), (message, key)
    return message


def done(step: Step, desk: Desk) -> Any:
    """Do what a step says."""
    return desk.ips2(step) if isinstance(step, str) else step(desk)


# ---- runs, in Python and on the command line: what the remedy says is done word for word

FIELDS, PARAMS, CHECKS, PLAN = "fields.py", "params.py", "pipeline/prepare.py", "plan/plan.py"
BESIDE = "stages/side_inputs.py"
LEAVE = f"{CHECKS}: {{}}: leave {{}} out"

ASKED: list[tuple[str, dict[str, Any]]] = [
    (f"{FIELDS}: {{}}: give {{}}={{}} or more", {"n_clusters": 0}),
    (f"{FIELDS}: {{}}: give {{}}={{}} or more", {"random_state": -1}),
    (f"{FIELDS}: {{}}: give {{}}={{}} or more", {"shards": 0}),
    (f"{FIELDS}: {{}}: give {{}}={{}} or more", {"n_components": 1}),
    (f"{FIELDS}: bandwidth: give bandwidth='mean'", {"bandwidth": "mode"}),
    (
        f"{PARAMS}: scale: leave scale out, or use metric='euclidean'",
        {"X": SHARES, "metric": "hellinger", "scale": "zscore"},
    ),
    (f"{PARAMS}: scale: leave scale out, or use metric='euclidean'", {"metric": "jaccard", "scale": "minmax"}),
    (f"{PARAMS}: assign_labels: use embedding='spectral'", {"embedding": "none", "assign_labels": "density"}),
    (f"{PARAMS}: assign_labels: use embedding='spectral'", {"embedding": "none", "assign_labels": "leiden"}),
    (f"{PARAMS}: n_eigenpairs: leave it out", {"tensor": "decomposable", "n_eigenpairs": 5}),
    (f"{PARAMS}: graph: leave graph out", {"X": D, "metric": "precomputed", "graph": "pynndescent"}),
    (f"{FIELDS}: {{}}: give {{}}={{}} or more", {"partition_rows": 0}),
    (LEAVE, {"tensor": "decomposable", "sigma": 2.0}),
    (LEAVE, {"method": "ppc", "fusion_weight": 0.2}),
    (LEAVE, {"embedding": "none", "n_components": 4}),
    (LEAVE, {"affinity": "precomputed", "similarity": S, "bandwidth": "median"}),
    (LEAVE, {"resolution": 2.0}),
    (LEAVE, {"graph": "exact", "shards": 2}),
    (LEAVE, {"X": D, "metric": "precomputed", "shards": 2}),
    (LEAVE, {"knn_graph": GRAPH, "shards": 2}),
    (LEAVE, {"tensor": "decomposable", "vectors": "chunked"}),
    (LEAVE, {"scratch": "/tmp"}),
    (LEAVE, {"cluster": "slurm"}),
    (
        f"{CHECKS}: resolution: give n_clusters='auto', or leave resolution out",
        {"assign_labels": "leiden", "resolution": 2.0},
    ),
    (f"{PARAMS}: {{}}: give {{}}={{}} or less", {"n_eigenpairs": 25}),
    (f"{PARAMS}: {{}}: give {{}}={{}} or less", {"n_components": 25}),
    (f"{PARAMS}: {{}}: give {{}}={{}} or less", {"n_clusters": 25}),
    (f"{PARAMS}: {{}}: give {{}}={{}} or less", {"n_neighbors": 25}),
    (f"{BESIDE}: similarity: give affinity='precomputed', or leave similarity out", {"similarity": S}),
    (f"{BESIDE}: knn_graph: leave graph out", {"knn_graph": GRAPH, "graph": "exact"}),
    ("stages/ingest.py: {}: use metric='euclidean'", {"metric": "hellinger"}),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ips2_dask.errors.IPS2Warning")
@pytest.mark.parametrize(("key", "values"), [pytest.param(*asked, marks=one_in_four(asked[0])) for asked in ASKED])
def test_a_refused_run_goes_on_where_its_remedy_is_followed_in_python(
    key: str, values: dict[str, Any], desk: Desk
) -> None:
    asked = Asked(values)
    if "cluster" in values:
        pytest.importorskip("dask_jobqueue")
    for text in alternatives(refused(key, asked, desk)):
        if "n_clusters='auto'" in text:
            IPS2("auto", assign_labels="leiden", resolution=2.0, max_clusters=4).fit(X)
        else:
            followed(asked, text)(desk)


@pytest.mark.parametrize(
    ("key", "values"),
    [pytest.param(*asked, marks=one_in_four(asked[0])) for asked in ASKED if "cluster" not in asked[1]],
)
def test_a_refused_run_goes_on_where_its_remedy_is_followed_on_the_command_line(
    key: str, values: dict[str, Any], desk: Desk
) -> None:
    words = Asked(values).words(desk)
    for text in alternatives(refused(key, lambda desk: desk.ips2(words), desk)):
        desk.ips2(followed_words(words, text))


# ---- the other messages: what the remedy says is done by hand, where its words are no option of the same call


def opened(name: str) -> Callable[[Desk], Any]:
    """A run of the shelf."""
    return lambda desk: open_run(desk.shelf / name)


def fit(**values: Any) -> Callable[[Desk], Any]:
    """A run in memory."""
    return lambda desk: run(
        values.get("X", X),
        Params(**{"n_clusters": 3, **{k: v for k, v in values.items() if k in Params.__dataclass_fields__}}),
        **{k: v for k, v in values.items() if k not in Params.__dataclass_fields__ and k != "X"},
    )


def of(name: str, what: Callable[[Any, Desk], Any]) -> Callable[[Desk], Any]:
    """Something of a run of the shelf."""
    return lambda desk: what(open_run(desk.shelf / name), desk)


def predicted(**change: Any) -> Callable[[Desk], Any]:
    """New samples in a run with other parameters."""
    return lambda desk: run(X, dataclasses.replace(THREE, **change)).predict(X)


class Stop(Exception):
    """The end of a run that is not finished."""


class Stopped:
    """Progress that ends a run before its third stage."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        def report(stage: str = "", *_: object) -> None:
            if name == "begin" and stage == "tensor":
                raise Stop

        return report


def stopped(desk: Desk) -> None:
    """Leave a run unfinished, and open it."""
    with contextlib.suppress(Stop):
        run(X, THREE, store=desk.folder / "unfinished", progress=Stopped())  # type: ignore[arg-type]
    open_run(desk.folder / "unfinished")


def commas(line: str) -> Callable[[Desk], Any]:
    """A command with a run of a text file with decimal commas, and with a file that has points."""

    def step(desk: Desk) -> str:
        frame = pd.DataFrame(X, columns=list("abc"))
        frame.to_csv(desk.folder / "commas.csv", index=False, sep=";", decimal=",")
        frame.to_csv(desk.folder / "points.csv", index=False)
        if not (desk.folder / "commas").exists():
            run(
                desk.folder / "commas.csv",
                THREE,
                store=desk.folder / "commas",
                text=TextFormat(decimal=",", delimiter=";"),
            )
        return desk.ips2(line)

    return step


def linked(line: str) -> Callable[[Desk], Any]:
    """A command with a link that leads nowhere."""

    def step(desk: Desk) -> str:
        (desk.folder / "link").symlink_to(desk.folder / "target")
        return desk.ips2(line)

    return step


def made(line: str) -> Callable[[Desk], Any]:
    """The same command with the directory that the link leads to."""

    def step(desk: Desk) -> str:
        (desk.folder / "target").mkdir()
        return desk.ips2(line)

    return step


def moved(desk: Desk) -> None:
    """Ask for something of a run whose directory was moved after it was opened."""
    run(X, THREE, store=desk.folder / "there")
    found = open_run(desk.folder / "there")
    (desk.folder / "there").rename(desk.folder / "moved")
    found.predict(X)


def of_another_format(line: str) -> Callable[[Desk], Any]:
    """A command with a run of another version."""

    def step(desk: Desk) -> str:
        if not (desk.folder / "old").exists():
            run(X, THREE, store=desk.folder / "old")
            manifest = desk.folder / "old" / "manifest.json"
            manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 0}))
        return desk.ips2(line)

    return step


def in_parts(words: list[str]) -> Callable[[Desk], Any]:
    """A run on a folder of two Parquet files, by some words for it."""

    def step(desk: Desk) -> str:
        folder = desk.folder / "parts"
        folder.mkdir(exist_ok=True)
        for number, rows in enumerate((X[:12], X[12:])):
            pd.DataFrame(rows, columns=list("abc")).to_parquet(folder / f"{number}.parquet")
        return desk.ips2(["run", *words, "--clusters", "3", "--serial", "--quiet", "--out", "{out}"])

    return step


def cells(obsm: dict[str, Array] | None = None, **more: Any) -> Any:
    """An AnnData with a representation, a layer and a column of its own."""
    obs = pd.DataFrame({"kind": ["a", "b"] * 12}, index=[f"c{i}" for i in range(24)])
    return anndata.AnnData(X, obs, obsm={"X_rep": X, **(obsm or {})}, layers={"again": X}, **more)


def without(adata: Any, column: str) -> Any:
    """An AnnData without a column."""
    del adata.obs[column]
    return adata


def backed(desk: Desk, mode: str = "r+") -> Any:
    """The same in a file."""
    path = desk.folder / f"cells{len(list(desk.folder.iterdir()))}.h5ad"
    cells().write_h5ad(path)
    return anndata.read_h5ad(path, backed=mode)


def full_disk(step: Callable[[Desk], Any]) -> Callable[[Desk], Any]:
    """A step on a disk without room."""

    def inner(desk: Desk) -> None:
        with desk.patch.context() as patch:
            patch.setattr("shutil.disk_usage", lambda folder: argparse.Namespace(free=10))
            step(desk)

    return inner


def failing_disk(step: Callable[[Desk], Any]) -> Callable[[Desk], Any]:
    """A step on a disk that is full once something is written to a file."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def inner(desk: Desk) -> None:
        with desk.patch.context() as patch:
            patch.setattr("anndata.io.write_elem", full)
            step(desk)

    return inner


def numbers_of(found: Any) -> list[int]:
    """The numbers of clusters that the refusal of another one says a run has."""
    with pytest.raises(IPS2Error) as caught:
        found.cut(20)
    return [int(number) for number in re.findall(r"\d+", str(caught.value).partition("has: ")[2].partition(";")[0])]


def small(module: str, name: str, value: int, step: Step) -> Callable[[Desk], Any]:
    """A step where a limit of the package is as small as the table."""

    def inner(desk: Desk) -> None:
        desk.patch.setattr(f"ips2_dask.{module}.{name}", value)
        done(step, desk)

    return inner


def swept(grid: Any, **values: Any) -> Callable[[Desk], Any]:
    """A sweep."""
    return lambda desk: sweep(X, grid, Params(**values), store=desk.out, files=False, resamples=1)


TWO = {"n_clusters": [2]}
SWEPT, RAN, PREDICT = "sweeps/grid.py", "runs/run.py", "runs/predict.py"
RESULTS = "runs/results.py"
DIRECTORY, SCANPY = "runs/maintenance.py", "scanpy.py"

CASES: list[Case] = [
    Case(f"{FIELDS}: {{}}: give {{}} inside that range", fit(sigma=0), (fit(sigma=0.1),)),
    Case(
        f"{FIELDS}: {{}}: give {{}}={{}} or less, but no more than there are samples",
        fit(n_neighbors=65),
        (fit(n_neighbors=24),),
    ),
    Case(
        "stages/ingest.py: {}: give distances, such as 1 - similarity, and np.fill_diagonal(D, 0) where their "
        "rounding is more than that",
        fit(X=D + 0.01 * np.eye(24), metric="precomputed"),
        (
            fit(X=np.sqrt(2 * (1 - np.corrcoef(X)).clip(0)), metric="precomputed"),
            fit(X=D * (1 - np.eye(24)), metric="precomputed"),
        ),
    ),
    Case(
        "stages/neighbors.py: metric='precomputed': give the distances of more neighbours, or duplicates='keep'",
        fit(X=TWICE, metric="precomputed"),
        (
            fit(X=sparse.csr_array(cdist(np.repeat(X, 2, axis=0), np.repeat(X, 2, axis=0))), metric="precomputed"),
            fit(X=TWICE, metric="precomputed", duplicates="keep"),
        ),
    ),
    Case("sweeps/grid.py: n_clusters: leave 1 out", swept({"n_clusters": [1, 2]}), (swept({"n_clusters": [2]}),)),
    Case(
        f"{FIELDS}: {{}}: choose one of them", fit(fusion="both"), tuple(fit(fusion=one) for one in CHOICES["fusion"])
    ),
    Case(
        f"{PARAMS}: {{}}: give fewer samples, such as every second one, and label the others with `ips2 predict`",
        lambda desk: check_shape(2**31, 4, THREE, "data"),
        (lambda desk: check_shape(2**30, 4, THREE, "data"), "predict {at}/run {at}/x.npy --out {out}.csv"),
    ),
    Case(
        f"{PARAMS}: {{}}: give the samples, and a metric or a knn_graph",
        "plan --shape 20001x20001 --metric precomputed --clusters 3",
        (
            "plan --shape 20001x64 --metric cosine --clusters 3",
            lambda desk: plan_run(_shaped((20001, 64)), THREE, Resources(), knn_graph=True),
        ),
    ),
    Case(f"{PLAN}: vectors: give vectors='chunked'", "plan --shape 1000000000x4 --vectors in-core --clusters 3"),
    Case(
        f"{PLAN}: vectors: give fewer samples, or tensor='indecomposable' with vectors='chunked'",
        "plan --shape 1000000000x4 --tensor decomposable --clusters 3",
        (
            "plan --shape 1000000x4 --tensor decomposable --clusters 3",
            "plan --shape 1000000000x4 --tensor indecomposable --vectors chunked --clusters 3",
        ),
    ),
    Case(
        "pipeline/prepare.py: {}: take the incomplete rows out of both beforehand",
        fit(X=np.vstack([X[:-1], [[np.nan, 0, 0]]]), knn_graph=GRAPH, features=Features(missing="drop")),
        (fit(X=X[:-1], knn_graph=GRAPH[:-1, :-1]),),
    ),
    Case(
        "pipeline/prepare.py: {}: leave them out, or give the samples and another metric",
        fit(X=D, metric="precomputed", features=Features(missing="median")),
        (fit(X=D, metric="precomputed"), fit(features=Features(missing="median"))),
    ),
    # beside
    Case(
        f"{BESIDE}: similarity: give the samples as the input and similarity=S",
        fit(X=S, affinity="precomputed"),
        (fit(affinity="precomputed", similarity=S),),
    ),
    Case(
        f"{BESIDE}: knn_graph: leave it out, or give the samples and the metric that measures them",
        fit(X=D, metric="precomputed", knn_graph=GRAPH),
        (fit(X=D, metric="precomputed"), fit(knn_graph=GRAPH)),
    ),
    Case(
        f"{BESIDE}: similarity: give a similarity, such as exp(-distance)",
        fit(similarity=-D, affinity="precomputed"),
        (fit(similarity=np.exp(-D), affinity="precomputed"),),
    ),
    Case(
        f"{BESIDE}: similarity: give (S + S.T) / 2, or the larger of both",
        fit(similarity=np.triu(S), affinity="precomputed"),
        (
            fit(similarity=(np.triu(S) + np.triu(S).T) / 2, affinity="precomputed"),
            fit(similarity=np.maximum(np.triu(S), np.triu(S).T), affinity="precomputed"),
        ),
    ),
    Case(
        f"{BESIDE}: knn_graph: build it with {{}} neighbours or more",
        fit(knn_graph=sparse.csr_array(np.eye(24))),
        (fit(knn_graph=GRAPH),),
    ),
    # stages
    Case(
        "stages/ingest.py: {}: drop columns (--drop-columns), or fill gaps with medians (--missing median)",
        "run {at}/gaps.csv --clusters 3 --missing drop --out {out} --serial",
        (
            "run {at}/gaps.csv --clusters 3 --missing drop --drop-columns none --out {out} --serial --quiet",
            "run {at}/gaps.csv --clusters 3 --missing median --columns a,b,c --out {out} --serial --quiet",
        ),
    ),
    Case(
        "stages/ingest_missing.py: {}: drop the column (drop_columns, --drop-columns)",
        "run {at}/gaps.csv --clusters 3 --missing median --out {out} --serial --quiet",
        ("run {at}/gaps.csv --clusters 3 --missing median --drop-columns none --out {out} --serial --quiet",),
    ),
    Case(
        "stages/ingest.py: {}: give (D + D.T) / 2 where both directions mean the same",
        fit(X=D + np.triu(D), metric="precomputed"),
        (fit(X=(3 * D) / 2, metric="precomputed"),),
    ),
    Case(
        "stages/ingest.py: {}: drop such rows, or use metric='euclidean'",
        fit(X=np.vstack([X, np.zeros(3)]), metric="cosine"),
        (fit(metric="cosine"), fit(X=np.vstack([X, np.zeros(3)]), metric="euclidean")),
    ),
    # a run, opened
    Case(
        f"{PREDICT}: metric: run it with metric='euclidean' on the samples themselves",
        of("distances-run", lambda found, _: found.predict(D)),
        (predicted(metric="euclidean"),),
    ),
    Case(
        f"{PREDICT}: affinity: run it with affinity='heat-knn', and leave similarity out",
        of("given-run", lambda found, _: found.predict(X)),
        (predicted(affinity="heat-knn"),),
    ),
    Case(
        f"{RAN}: {{}}: repeat the `ips2 run` or the call that made it, which continues it",
        stopped,
        (lambda desk: (run(X, THREE, store=desk.folder / "unfinished"), open_run(desk.folder / "unfinished").labels),),
    ),
    Case(
        f"{PREDICT}: {{}}: {{}}; if it is not written as the run's input was, give {{}} as of this file",
        commas("predict {here}/commas {here}/points.csv --out {out}.csv --quiet"),
        (commas("predict {here}/commas {here}/points.csv --out {out}.csv --quiet --decimal . --delimiter ,"),),
    ),
    Case(
        f"{DIRECTORY}: {{}}: give another --out",
        "run {at}/x.npy --clusters 3 --serial --quiet --out {at}",
        ("run {at}/x.npy --clusters 3 --serial --quiet --out {out}",),
    ),
    Case(
        f"{DIRECTORY}: {{}}: make the directory that it leads to, or give another --out",
        linked("run {at}/x.npy --clusters 3 --serial --quiet --out {here}/link"),
        (
            made("run {at}/x.npy --clusters 3 --serial --quiet --out {here}/link"),
            "run {at}/x.npy --clusters 3 --serial --quiet --out {out}",
        ),
    ),
    Case(f"{DIRECTORY}: {{}}: give the directory that was --out of `ips2 run`", "status {here}", ("status {at}/run",)),
    Case(
        f"{DIRECTORY}: {{}}: open it where it is now, with ips2_dask.open_run, or run it again",
        moved,
        (
            lambda desk: open_run(desk.folder / "moved").predict(X),
            lambda desk: run(X, THREE, store=desk.folder / "there").predict(X),
        ),
    ),
    Case(
        f"{DIRECTORY}: {{}}: open it with the version of ips2_dask that wrote it, or start over with "
        "`ips2 run --fresh`",
        of_another_format("run {at}/x.npy --clusters 3 --serial --quiet --out {here}/old"),
        (of_another_format("run {at}/x.npy --clusters 3 --serial --quiet --out {here}/old --fresh"),),
    ),
    Case(
        "cli/main.py: {}: put the pattern in quotes, as in '{}', or name the folder, {}",
        in_parts(["{here}/parts/0.parquet", "{here}/parts/1.parquet"]),
        (in_parts(["{here}/parts/*.parquet"]), in_parts(["{here}/parts"])),
    ),
    # an AnnData
    Case(
        f"{SCANPY}: adata: use ips2_dask.run or IPS2 for other data",
        lambda _: ips2(X, 3),
        (lambda _: run(X, THREE), lambda _: IPS2(3).fit(X)),
    ),
    Case(
        f"{SCANPY}: copy: give adata.copy(filename)",
        lambda desk: ips2(backed(desk), 3, copy=True),
        (lambda desk: ips2(backed(desk).copy(desk.folder / "copy.h5ad"), 3),),
    ),
    Case(
        f"{SCANPY}: key_added: give another key, such as 'ips2_{{}}'",
        lambda _: ips2(cells(), 3, use_rep="X_rep", key_added="rep"),
        (lambda _: ips2(cells(), 3, use_rep="X_rep", key_added="ips2_rep"),),
    ),
    Case(
        f"{SCANPY}: {{}}: give another key, such as 'ips2_{{}}', or remove or rename what is there",
        lambda _: ips2(cells(), 3, key_added="kind"),
        (
            lambda _: ips2(cells(), 3, key_added="ips2_kind"),
            lambda _: ips2(without(cells(), "kind"), 3, key_added="kind"),
        ),
    ),
    Case(
        f"{SCANPY}: {{}}: make room, or open it by backed='r', which leaves results in memory",
        full_disk(lambda desk: ips2(backed(desk), 3)),
        (lambda desk: ips2(backed(desk), 3), full_disk(lambda desk: ips2(backed(desk, "r"), 3))),
    ),
    Case(
        f"{SCANPY}: {{}}: make room, or open it by backed='r'",
        failing_disk(lambda desk: ips2(backed(desk), 3)),
        (lambda desk: ips2(backed(desk), 3), failing_disk(lambda desk: ips2(backed(desk, "r"), 3))),
    ),
    Case(
        f"{SCANPY}: {{}}: run scanpy.pp.neighbors, or leave it out",
        lambda _: ips2(cells(), 3, knn_graph="connectivities"),
        (
            lambda _: ips2(cells(obsp={"connectivities": GRAPH}), 3, knn_graph="connectivities"),
            lambda _: ips2(cells(), 3),
        ),
    ),
    Case(
        "readers/objects.py: layer: leave one of them out",
        lambda _: ips2(cells(), 3, use_rep="X_rep", layer="again"),
        (lambda _: ips2(cells(), 3, use_rep="X_rep"), lambda _: ips2(cells(), 3, layer="again")),
    ),
    Case(
        "readers/objects.py: {}: name one of them, or compute it first",
        lambda _: ips2(cells(), 3, use_rep="X_pca"),
        (lambda _: ips2(cells(), 3, use_rep="X_rep"), lambda _: ips2(cells(obsm={"X_pca": X}), 3, use_rep="X_pca")),
    ),
    Case(
        f"{RESULTS}: rows: leave it out",
        of("run", lambda found, _: list(found.iter_labels(rows=0))),
        (of("run", lambda found, _: list(found.iter_labels())),),
    ),
    Case(
        f"{RESULTS}: kind: choose one of them",
        of("run", lambda found, _: found.similarity("best")),
        tuple(
            of("run", lambda found, _, kind=kind: found.similarity(kind))
            for kind in ("pairwise", "high_order", "fused")
        ),
    ),  # type: ignore[misc]
    Case(
        f"{RESULTS}: similarity: ask for similarity(..., distinct=True)",
        small("runs.results", "MOST_ENTRIES", 9, lambda desk: run(np.vstack([X, X]), THREE).similarity("fused")),
        (lambda desk: run(np.vstack([X, X]), THREE).similarity("fused", distinct=True),),
    ),
    Case(
        f"{RAN}: embedding: run it with embedding='spectral'",
        of("none-run", lambda found, _: found.transform(X)),
        (of("run", lambda found, _: found.transform(X)),),
    ),
    Case(
        f"{RAN}: embedding: run it with embedding='spectral'",
        "predict {at}/none-run {at}/x.npy --embedding --out {out}.csv",
        ("predict {at}/run {at}/x.npy --embedding --out {out}.csv",),
    ),
    Case(
        f"{RESULTS}: {{}}: use ips2_dask.explicit.tensor_similarity(S, kind='decomposable') on the S of few samples",
        of("decomposable-run", lambda found, _: found.eigenvectors),
        (lambda desk: explicit.tensor_similarity(explicit.pairwise_similarity(X[:9]), kind="decomposable"),),
    ),
    Case(
        "runs/layers.py: {}: run it again with embedding='spectral' and assign_labels='auto'",
        of("none-run", lambda found, _: found.cut(3)),
        (
            lambda desk: run(
                X, dataclasses.replace(RUNS["none-run"][1], embedding="spectral", assign_labels="auto")
            ).cut(3),
        ),
    ),
    Case(
        "runs/layers.py: {}: run it again with embedding='spectral' and assign_labels='auto'",
        of("kmeans-run", lambda found, _: found.layers),
        (lambda desk: run(X, THREE).layers,),
    ),
    Case(
        "runs/layers.py: n_clusters: give one of these, or {}",
        of("run", lambda found, _: found.cut(20)),
        (
            of("run", lambda found, _: [found.cut(number) for number in numbers_of(found)]),
            lambda desk: run(X, dataclasses.replace(THREE, n_clusters=20), store=desk.folder / "again"),
        ),
    ),
    Case(
        "runs/layers.py: {}: run it again with this number of clusters into the same directory, which computes the last "
        "stages alone",
        small(
            "runs.layers",
            "MOST_SAMPLES",
            9,
            lambda desk: run(X, THREE, Resources(vectors="chunked"), store=desk.folder / "big").cut(2),
        ),
        (lambda desk: run(X, Params(n_clusters=2), Resources(vectors="chunked"), store=desk.folder / "big").labels,),
    ),
    Case(
        "runs/layout.py: layout: run it with embedding='spectral'",
        small("runs.layout", "MOST_SAMPLES", 9, of("none-run", lambda found, _: found.layout)),
        (of("run", lambda found, _: found.layout),),
    ),
    Case(
        "runs/export.py: input: leave it out",
        "export {at}/run --to {out}.csv --input {at}/x.npy",
        ("export {at}/run --to {out}.csv",),
    ),
    Case(
        "runs/export.py: {}: name the file with one of these endings",
        "predict {at}/run {at}/x.npy --out {out}.txt",
        tuple("predict {at}/run {at}/x.npy --out {out}" + ending for ending in (".csv", ".tsv", ".parquet", ".npy")),
    ),
    Case(
        "runs/h5ad.py: {}: check the path, or leave --input out",
        "export {at}/run --to {out}.h5ad --input {here}/none.h5ad",
        ("export {at}/run --to {out}.h5ad",),
    ),
    # sweeps
    Case(
        f"{SWEPT}: grid: give names of parameters, each with a list of values",
        swept([2, 3]),
        (swept({"n_clusters": [2, 3]}),),
    ),
    Case(f"{SWEPT}: grid: give a field of Params", swept({"neighbors": [5]}), (swept({"n_neighbors": [5]}),)),
    Case(f"{SWEPT}: {{}}: leave it out", swept(TWO, max_clusters=5), (swept(TWO),)),
    Case(
        "sweeps/result.py: rank: give one of the table's",
        lambda desk: swept(TWO)(desk).run(2),
        (lambda desk: swept(TWO)(desk).run(1),),
    ),
    Case(
        "sweeps/result.py: {}: run the sweep, which continues what is there",
        lambda desk: open_sweep(desk.folder / "sweep"),
        (lambda desk: (sweep(X, TWO, store=desk.folder / "sweep", files=False), open_sweep(desk.folder / "sweep")),),
    ),
    # commands
    Case(
        "cli/options.py: --max-clusters: give --clusters auto, or leave --max-clusters out",
        "plan {at}/x.npy --clusters 3 --max-clusters 5",
    ),
    Case(
        "cli/options.py: --max-clusters: give --clusters auto, or leave --max-clusters out",
        "plan {at}/x.npy --max-clusters 5",
    ),
    Case(
        "cli/options.py: --workers: leave out --workers or {}",
        "plan {at}/x.npy --clusters 3 --workers 2 --serial",
        ("plan {at}/x.npy --clusters 3 --serial", "plan {at}/x.npy --clusters 3 --workers 2"),
    ),
    Case(
        "cli/run.py: --shape: name a file, or give --shape 1000000x64",
        "plan --clusters 3",
        ("plan {at}/x.npy --clusters 3", "plan --shape 1000000x64 --clusters 3"),
    ),
    Case(
        "cli/run.py: --shape: name a file, or give --shape 1000000x64",
        "plan {at}/x.npy --shape 24x3 --clusters 3",
        ("plan {at}/x.npy --clusters 3", "plan --shape 24x3 --clusters 3"),
    ),
    Case(
        "cli/run.py: --shape: write it as 1000000x64",
        "plan --shape 1000000,64 --clusters 3",
        ("plan --shape 1000000x64 --clusters 3",),
    ),
    Case(
        "cli/maintenance.py: --out: give {}/report.html",
        "report {at}/run --out {here}",
        ("report {at}/run --out {here}/report.html",),
    ),
    Case(
        "cli/maintenance.py: --out: give --out report.html",
        "report file://{at}/run",
        ("report file://{at}/run --out {here}/report.html",),
    ),
    Case(
        "cli/cluster.py: --store: add --start, or leave --store out",
        "cluster check local --store {out}",
        ("cluster check local",),
    ),
]


def config(text: str, options: str = "") -> Callable[[Desk], Any]:
    """The check of a cluster's config."""
    return lambda desk: desk.ips2(["cluster", "check", str(desk.file("my.yaml", text)), *shlex.split(options)])


def held(desk: Desk) -> None:
    """Begin a run where another one is at work."""
    with ZarrStore(str(desk.folder / "held")).lock():
        run(X, THREE, store=desk.folder / "held")


def damaged(desk: Desk) -> None:
    """Predict from a run that has lost a chunk."""
    found = run(X, THREE, store=desk.folder / "damaged")
    for chunk in (desk.folder / "damaged" / found._context.folders["label"]).rglob("c/0/0"):
        chunk.write_bytes(b"")
    open_run(desk.folder / "damaged").predict(X)


def repaired(*words: str) -> Callable[[Desk], Any]:
    """Repeat a command that made a damaged run."""
    line = "run {at}/x.npy --clusters 3 --out {here}/damaged --serial --quiet "
    return lambda desk: (desk.ips2(line + " ".join(words)), open_run(desk.folder / "damaged").predict(X))


def read_only(desk: Desk) -> None:
    """Write to a place that refuses it."""
    with writing(str(desk.folder)):
        raise OSError(errno.EACCES, "permission denied")


def published(**values: Any) -> Callable[[Desk], Any]:
    """A published data set, from a folder that the variable names or an argument."""

    def step(desk: Desk) -> None:
        desk.patch.delenv(files.VARIABLE, raising=False)
        files.content(
            files.PublishedFile("a/set.csv", hashlib.sha256(b"1,2").hexdigest(), "https://example.org/set.csv"),
            values.get("data", desk.folder / "data" if values else None),
        )

    return step


def with_published(content: str = "1,2") -> Callable[[Desk], Any]:
    """The same where there is a file."""

    def step(desk: Desk) -> None:
        (desk.folder / "data" / "a").mkdir(parents=True, exist_ok=True)
        (desk.folder / "data" / "a" / "set.csv").write_text(content)
        published(put=True)(desk)

    return step


def elsewhere(desk: Desk, host: str = "far-away") -> None:
    """Cancel a job of another machine."""
    desk.patch.setenv(record.VARIABLE, str(desk.folder / "state"))
    job = record.new("local", ["run"], str(desk.out))
    cancel(dataclasses.replace(job, native={"host": host, "pid": 2**22 - 1, "created": 0.0}))


def state_at(make: Callable[[Desk], Path], step: Callable[[], Any]) -> Callable[[Desk], Any]:
    """A step where records of jobs are in this folder."""

    def inner(desk: Desk) -> None:
        desk.patch.setenv(record.VARIABLE, str(make(desk)))
        step()

    return inner


def found_first(desk: Desk) -> None:
    """Look for the job that `ips2 jobs list` lists."""
    desk.patch.setenv(record.VARIABLE, str(desk.folder / "jobs"))
    record.new("local", ["run"], str(desk.out)).save()
    (listed,) = json.loads(desk.ips2("jobs --json"))
    record.find(listed["id"])


def waited(desk: Desk, patience: float = 0.01, each: int = 1 << 30) -> None:
    """Wait for a client's workers, which have a GiB each, where one has to have more."""
    with local_client(each) as client:
        wait_for_workers(client, lambda *_: 3 << 29, None, patience)


@contextlib.contextmanager
def local_client(each: int) -> Iterator[Any]:
    """A client of a worker in this process with so much memory."""
    from distributed import Client, LocalCluster  # noqa: PLC0415  heavy, and for one case

    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, memory_limit=each, dashboard_address="127.0.0.1:0"
        ) as there,
        Client(there, set_as_default=False) as client,
    ):
        yield client


def nobody_answers(line: str) -> Callable[[Desk], Any]:
    """A command that gets as far as to an address where nothing listens."""

    def step(desk: Desk) -> None:
        with pytest.raises(Said, match="nothing answers"):
            desk.ips2(line)

    return step


LOAD, BENCH = "clusters/config.py", "bench/command.py"
LOCAL = "manager: local\n"

CASES += [
    Case(
        f"{LOAD}: {{}}: give it where the store or the manager looks for it: ~/.aws, an instance's role, SSH's "
        "agent, Kubernetes' secrets; or the environment of the command",
        config(LOCAL + "worker: {environment: {AWS_SECRET_ACCESS_KEY: x}}"),
        (config(LOCAL),),
    ),
    Case(f"{LOAD}: {{}}: {{}}", config(LOCAL + "workers: many"), (config(LOCAL + "workers: 1"),)),
    Case(f"{LOAD}: {{}}: {{}}", config(LOCAL + "bind: {port: 70000}"), (config(LOCAL + "bind: {port: 1}"),)),
    Case(
        f"{LOAD}: {{}}: {{}}",
        lambda _: load({**POD, "kubernetes": {"idle_timeout": 3}}),
        (lambda _: load({**POD, "kubernetes": {"idle_timeout": 0}}),),
    ),
    Case(f"{LOAD}: {{}}: {{}}", config(LOCAL + "insecure: 'true'"), (config(LOCAL + "insecure: true"),)),
    Case(
        f"{LOAD}: {{}}: {{}}",
        config(LOCAL + "worker: {preload: json}"),
        (config(LOCAL + 'worker: {preload: ["json", "csv"]}'),),
    ),
    Case(
        f"{LOAD}: {{}}: {{}}",
        lambda _: load({"manager": "ssh", "ssh": {"hosts": []}}),
        (lambda _: load({"manager": "ssh", "ssh": {"hosts": ["node1", "node2"]}}),),
    ),
    Case(
        f"{LOAD}: {{}}: {{}}",
        config(LOCAL + "worker: {environment: A=1}"),
        (config(LOCAL + 'worker: {environment: {NAME: "value"}}'),),
    ),
    Case(
        f"{LOAD}: {{}}: {{}}",
        lambda _: load({"manager": "gateway", "gateway": {"options": 3}}),
        (lambda _: load({"manager": "gateway", "gateway": {"options": {"name": "value"}}}),),
    ),
    Case(
        f"{LOAD}: {{}}: {{}}",
        lambda _: load({"manager": "gateway", "gateway": {"auth": "none"}}),
        tuple(
            (lambda _, auth=auth: load({"manager": "gateway", "gateway": {"auth": auth}}))
            for auth in ("kerberos", "basic")
        ),
    ),
    Case(
        f"{LOAD}: {{}}: {{}}",
        config(LOCAL + "bind: {dashboard: here}"),
        (config(LOCAL + "bind: {dashboard: '127.0.0.1:0'}"),),
    ),
    Case(
        f"{LOAD}: {{}}: {{}}",
        lambda _: load({"manager": "scheduler", "scheduler": {"address": "host"}}),
        (lambda _: load({"manager": "scheduler", "scheduler": {"address": "tls://HOST:8786"}}),),
    ),
    Case(
        "clusters/config.py: {}: leave one of them out",
        config(LOCAL + "bind: {host: 127.0.0.1, interface: lo}"),
        (config(LOCAL + "bind: {host: 127.0.0.1}"), config(LOCAL + "bind: {interface: lo}")),
    ),
    Case(
        "clusters/config.py: {}: leave one of them out, or write null",
        config(LOCAL + "workers: 2\nadaptive: {maximum: 4}"),
        (config(LOCAL + "workers: 2"), config(LOCAL + "workers: null\nadaptive: {maximum: 4}")),
    ),
    Case(
        "clusters/resources.py: tls: leave tls out, and write insecure: true",
        lambda _: settled({**POD, "tls": "x"}),
        (lambda _: settled({**POD, "insecure": True}),),
    ),
    Case(
        "clusters/resources.py: bind: write insecure: true",
        lambda _: settled(POD),
        (lambda _: settled({**POD, "insecure": True}),),
    ),
    Case("clusters/resources.py: {}: leave it out", "cluster check gateway --insecure", ()),
    Case(
        "clusters/connect.py: performance_report: leave out --serial or the report",
        "run {at}/x.npy --clusters 3 --out {out} --serial --quiet --performance-report {here}/report.html",
        ("run {at}/x.npy --clusters 3 --out {out} --serial --quiet",),
    ),
    Case(
        "clusters/jobs.py: job: run `ips2 jobs cancel {}` on {}",
        elsewhere,
        (lambda desk: elsewhere(desk, socket.gethostname()),),
    ),
    Case(
        "clusters/jobs.py: IPS2_STATE: set {} to another folder",
        state_at(lambda desk: desk.file("state.txt", ""), lambda: record.new("local", ["run"], "out")),
        (state_at(lambda desk: desk.out, lambda: record.new("local", ["run"], "out")),),
    ),
    Case("clusters/jobs.py: job: look at `ips2 jobs list`", "jobs cancel nothing", (found_first,)),
    Case(f"{LOAD}: cluster: give {{}}", "cluster check locl", ("cluster check local",)),
    Case(
        f"{LOAD}: cluster: copy one from cluster_configs and give its path",
        "cluster check zzz",
        (lambda desk: config(shipped()["local"].read_text())(desk),),
    ),
    Case(
        f"{LOAD}: {{}}: mend that line, or start from a file of cluster_configs",
        config(LOCAL + "workers: ["),
        (config(LOCAL),),
    ),
    Case(
        f"{LOAD}: {{}}: start from a file of cluster_configs",
        config("- local"),
        (lambda desk: config(shipped()["local"].read_text())(desk),),
    ),
    Case(f"{LOAD}: {{}}: manager: write manager: {{}}", config("manager: loca"), (config(LOCAL),)),
    Case(f"{LOAD}: {{}}{{}}: leave it out", config(LOCAL + "driver: {threads: 2}"), (config(LOCAL),)),
    Case(
        f"{LOAD}: {{}}: write them below {{}}: with two spaces before each",
        config(LOCAL + "worker: 3"),
        (config(LOCAL + "worker:\n  threads: 3"),),
    ),
    *(
        Case(f"{LOAD}: {{}}{{}}: write {{}}", config(LOCAL + wrong), (config(LOCAL + right),))
        for wrong, right in {
            "threads: 2": "worker: {threads: 2}",
            "worker: {thread: 2}": "worker: {threads: 2}",
            "worker: {workers: 2}": "workers: 2",
        }.items()
    ),
    Case(f"{LOAD}: {{}}{{}}: leave it out", config(LOCAL + "qqqqqq: 2"), (config(LOCAL),)),
    Case(
        "clusters/remote.py: scheduler: start `dask scheduler`, or leave the option out",
        "run {at}/x.npy --clusters 3 --out {out} --quiet --scheduler tcp://127.0.0.1:1",
        ("run {at}/x.npy --clusters 3 --out {out} --quiet --serial",),
    ),
    Case(
        "clusters/tls.py: tls: run: ips2 cluster certs {}",
        lambda desk: security(str(desk.folder / "tls")),
        ("cluster certs {here}/tls", lambda desk: security(str(desk.folder / "tls"))),
    ),
    Case(
        "clusters/tls.py: tls: run: ips2 cluster certs DIR, with a new DIR, and give tls=DIR",
        lambda desk: security(str(desk.file("mine.txt", "").parent)),
        ("cluster certs {here}/tls", lambda desk: security(str(desk.folder / "tls"))),
    ),
    Case(
        "clusters/resources.py: bind: run `ips2 cluster certs DIR` and write tls: DIR, or allow it with --insecure (insecure: true)",
        config(LOCAL + "bind: {host: 0.0.0.0}"),
        (
            "cluster certs {here}/tls",
            lambda desk: config(LOCAL + f"bind: {{host: 0.0.0.0}}\ntls: {desk.folder}/tls")(desk),
            config(LOCAL + "bind: {host: 0.0.0.0}", "--insecure"),
            config(LOCAL + "bind: {host: 0.0.0.0}\ninsecure: true"),
        ),
    ),
    Case(
        "clusters/resources.py: bind.dashboard: write 127.0.0.1:8787 and use an SSH tunnel, or add --insecure",
        config(LOCAL + "bind: {dashboard: '0.0.0.0:8787'}"),
        (
            config(LOCAL + "bind: {dashboard: '127.0.0.1:8787'}"),
            config(LOCAL + "bind: {dashboard: '0.0.0.0:8787'}", "--insecure"),
        ),
    ),
    Case(
        "clusters/connect.py: timeout: look at the jobs' logs and the queue, raise timeout or worker.memory, and run "
        "the same command again",
        waited,
        (lambda desk: waited(desk, each=2 << 30),),
    ),
    Case(
        "clusters/workers.py: scratch: give another one, or leave it out",
        lambda desk: local_scratch(str(desk.file("file", "") / "scratch")),
        (lambda desk: local_scratch(str(desk.out)), lambda desk: local_scratch(None)),
    ),
    Case(
        "clusters/remote.py: tls: give --tls DIR (in a config: tls: DIR)",
        "run {at}/x.npy --clusters 3 --out {out} --scheduler tls://127.0.0.1:1",
        (
            "cluster certs {here}/tls",
            nobody_answers("run {at}/x.npy --clusters 3 --out {out} --scheduler tls://127.0.0.1:1 --tls {here}/tls"),
        ),
    ),
    Case(
        "cli/run.py: --memory-limit: add --workers, or leave it out",
        "predict {at}/run {at}/x.npy --out {out}.csv --memory-limit 4GiB",
        (
            "predict {at}/run {at}/x.npy --out {out}.csv",
            "predict {at}/run {at}/x.npy --out {out}.csv --memory-limit 4GiB --workers 1",
        ),
    ),
    # stores
    Case(
        "store/lock.py: {}: wait until it has ended, or give another --out",
        held,
        (lambda desk: run(X, THREE, store=desk.folder / "held"), lambda desk: run(X, THREE, store=desk.out)),
    ),
    Case("store/integrity.py: {}: {}", damaged, (repaired("--verify"),)),
    Case(
        "store/files.py: {}: {}, and run the same command again, which continues",
        read_only,
        (lambda desk: run(X, THREE, store=desk.out),),
    ),
    Case(
        "store/remote.py: {}: leave them out, and put them where the tools of that store look for them (environment "
        "variables, ~/.aws)",
        "run {at}/x.npy --clusters 3 --out memory://me:word@bucket/run --serial",
        ("run {at}/x.npy --clusters 3 --out memory://bucket/run --serial --quiet",),
    ),
    # data sets, explicit tensors, scores, baselines
    Case(
        "paper/data.py: {}: fetch the publisher's file, {}, or load yours as a file of your own",
        with_published("3,4"),
        (with_published(), lambda desk: open_source(str(desk.file("mine.csv", "1,2\n3,5\n")))),
    ),
    Case(
        "paper/data.py: {}: fetch {} and put it there, or pass download=True (needs pooch and a network)",
        published(put=False),
        (with_published(),),
    ),
    Case(
        "paper/data.py: data: give data=, or set {}, to a directory with {} (from {}), or download=True",
        published(),
        (with_published(), lambda desk: published(data=desk.folder / "data")(desk)),
    ),
    Case(
        "paper/data.py: data set: give one of these names",
        lambda _: datasets.load("digit"),
        (lambda _: datasets.load("digits"),),
    ),
    Case("datasets.py: {}: raise {}", lambda _: curved_gaussians(0, 3, 2), (lambda _: curved_gaussians(9, 3, 2),)),
    Case(
        "datasets.py: rows: take [::step] of the result",
        lambda _: curved_gaussians(9, 3, 2, rows=slice(0, 9, 2)),
        (lambda _: curved_gaussians(9, 3, 2)[0][::2],),
    ),
    Case(
        "paper/data.py: level: give the paper's level=0.5",
        lambda _: files.usdata1(9, level=-1),
        (lambda _: files.usdata1(9, level=0.5),),
    ),
    Case(
        "paper/data.py: noise: give one of these",
        lambda _: files.usdata1(9, noise="pink"),
        tuple(
            (lambda _, noise=noise: files.usdata1(9, noise=noise))
            for noise in ("gaussian", "uniform", "rayleigh", "gamma", "none")
        ),
    ),
    Case(
        "paper/explicit.py: n_neighbors: leave it out",
        lambda _: explicit.tensor_similarity(S[:5, :5], kind="decomposable", n_neighbors=3),
        (lambda _: explicit.tensor_similarity(S[:5, :5], kind="decomposable"),),
    ),
    Case(
        "paper/explicit.py: samples: use ips2_dask.IPS2 or ips2_dask.run, whose sparse tensor keeps active pairs alone",
        lambda _: explicit.tensor_similarity(np.vstack([X] * 9)),
        (lambda _: IPS2(3).fit(X), fit()),
    ),
    Case(
        "paper/baselines.py: solver='omp': take solver='admm'",
        lambda _: SSC(3, solver="omp", affine=True).fit(X),
        (lambda _: SSC(3, solver="admm", affine=True).fit(X),),
    ),
    # benchmarks
    Case(
        "bench/harness.py: {}: give another --json",
        f"{QUICK} --json {{here}}",
        (f"{QUICK} --json {{here}}/record.json",),
    ),
    Case(f"{BENCH}: {{}}: leave {{}} out", "bench end-to-end --samples 300 --serial --keep {here}/kept --repeats 2"),
]


SLOW = {
    "runs/layers.py: {}: run it again with this number of clusters into the same directory, which computes the last "
    "stages alone",
    "cli/maintenance.py: --out: give --out report.html",
    "cli/maintenance.py: --out: give {}/report.html",
    "runs/layout.py: layout: run it with embedding='spectral'",
    "cli/run.py: --memory-limit: add --workers, or leave it out",
    f"{BENCH}: {{}}: leave {{}} out",
    "bench/harness.py: {}: give another --json",
}
"""Messages whose remedies start processes or draw figures."""


@pytest.mark.filterwarnings("ignore::ips2_dask.errors.IPS2Warning")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.key, marks=pytest.mark.slow if case.key in SLOW else one_in_four(case.key))
        for case in CASES
    ],
)
def test_what_a_remedy_says_gets_further(case: Case, desk: Desk) -> None:
    patch = desk.patch
    with patch.context() as desk.patch:
        message = refused(case.key, case.wrong, desk)
    desk.patch = patch
    for right in case.rights:
        done(right, desk)
    if not case.rights:
        assert isinstance(case.wrong, str)
        for text in alternatives(message):
            desk.ips2(followed_words(shlex.split(case.wrong), text))


MEMORY = "plan/plan.py: {}: {}"


def limited(shape: tuple[int, int], values: dict[str, Any]) -> str | None:
    """The message with which a run of such a table is refused for its memory before it begins, if it is."""
    of_params = {name: value for name, value in values.items() if name in Params.__dataclass_fields__}
    params, resources = Params(**of_params), Resources(**{k: v for k, v in values.items() if k not in of_params})
    source: Any = _shaped(shape)
    plan = plan_run(source, params, resources)
    try:
        Prepared(Inputs(source), params, resources, params, plan).check()
    except Refused as error:
        return str(error)
    return None


def test_a_limit_that_a_refusal_names_suffices_and_so_does_the_option_beside_it() -> None:
    offered = set()
    asked = itertools.product(
        [(5_000, 64), (200_000, 64), (1_000_000, 64), (10_000_000, 64)],
        [
            {},
            {"n_neighbors": 20},
            {"graph": "exact"},
            {"tensor": "decomposable"},
            {"vectors": "chunked"},
            {"vectors": "in-core"},
            {"partition_rows": 10**7},
            {"n_clusters": 200, "vectors": "chunked", "n_workers": 2},
        ],
        ["300MiB", "2GiB", "3GiB"],
    )
    for shape, given, limit in [*asked, ((10**8, 64), {"n_clusters": 20, "n_workers": 200}, "2GiB")]:
        values = {**given, "memory_limit": limit}
        message = limited(shape, values)
        if message is None:
            continue
        (remedy,) = [one for one in remedies() if one.key == MEMORY]
        assert remedy.fits(message)
        enough = re.search(r"give memory_limit='(\S+)'", message)
        assert enough is not None, message
        assert limited(shape, {**values, "memory_limit": enough[1]}) is None, message
        other = re.search(r"run it with (\w+)=(\S+)\.$", message)
        if other is not None:
            assert limited(shape, {**values, other[1]: literal(other[2])}) is None, message
            offered.add(other[1])
    assert {"vectors", "partition_rows", "n_neighbors"} <= offered


def test_a_limit_that_is_too_small_is_answered_with_one_that_is_not_at_every_door(desk: Desk) -> None:
    with pytest.raises(Refused, match="memory_limit") as caught:
        IPS2(3, memory_limit=64 << 20).fit(X)
    found = re.search(r"give memory_limit='(\S+)'", str(caught.value))
    assert found is not None
    IPS2(3, memory_limit=found[1]).fit(X)
    run(X, THREE, Resources(memory_limit=found[1]))
    with pytest.raises(Said, match=rf"^ips2: --memory-limit: .*Remedy: give --memory-limit {found[1]}, or worker"):
        desk.ips2("run {at}/x.npy --clusters 3 --out {out} --serial --memory-limit 400MiB")


def test_options_stand_in_a_remedy_for_parameters_and_a_name_in_a_path_stays(desk: Desk) -> None:
    with pytest.raises(Said) as caught:
        desk.ips2("run {here}/n_clusters/tol/x.npy --clusters 3 --out {out} --serial")
    assert f"{desk.folder}/n_clusters/tol/x.npy: found no such file" in str(caught.value)
    assert f"as {desk.folder}/n_clusters/tol does not exist" in str(caught.value)


# ---- completeness

OF_A_SERVER = "needs a server that tests/cluster starts, or one that no test has"
OF_CALLERS = "tests/executors/test_callers.py does what it says"
OF_HOURS = "what it names takes minutes or hours; its options are those of a run or a benchmark that other tests make"
EXCUSED: dict[str, str] = {
    "paper/reproduce.py: --jobs: give --jobs 1": OF_HOURS,
    "paper/reproduce.py: --seed: give --seed 0": OF_HOURS,
    "paper/reproduce.py: --out: give another --out": OF_HOURS,
    "clusters/jobs.py: {}: do it on a login node, and look at the directives with `ips2 cluster check`": (OF_A_SERVER),
    "clusters/kubernetes.py: kubernetes: try `kubectl get daskclusters`, and install the operator's Helm chart": OF_A_SERVER,
    "clusters/remote.py: ssh.hosts: try `ssh HOST true`, then look at keys, known_hosts and python in the config": OF_A_SERVER,
    "readers/dask_collections.py: the Dask array given: give client=, as in IPS2(client=client)": "tests/readers/test_readers_dask.py gives the client of a persisted array",
    "executors/failures.py: workers: a task got no memory in each of {} tries ({}): give each worker more memory, by "
    "a larger memory_limit or fewer workers": "tests/executors/test_process_memory.py asks for more than the limit, "
    "and for less",
    "executors/failures.py: client: give client=Client(address), of a new scheduler if the old one is gone": OF_CALLERS,
    "executors/failures.py: client: give client=Client(address), or await asyncio.to_thread(function, ...) while the "
    "loop runs": OF_CALLERS,
    "executors/failures.py: client: give client=Client(that address or cluster)": OF_CALLERS,
    "clusters/local.py: {}: put if __name__ == '__main__': before that line and indent what follows": OF_CALLERS,
    "clusters/local.py: {}: write it into a file, with a main guard": OF_CALLERS,
    "executors/failures.py: {} for {} s: {}": "tests/executors/test_failures.py goes on when there are other workers",
    "clusters/config.py: {}: {}: {}": "hands on the remedy of another error",
    "paper/data.py: {}: fetch it by other means and put it at {}": "needs a network",
    "pipeline/execution.py: {}: run it again, which continues, with a larger memory_limit, a smaller n_workers or "
    "a smaller partition_rows": "tests/store/test_store_failure.py kills the workers, and continues",
    "store/remote.py: {}: put the credentials where its own tools look for them, for S3 AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY or ~/.aws/credentials, here and on the workers": OF_A_SERVER,
    "store/remote.py: {}: check the URL, the network and, for S3, AWS_ENDPOINT_URL and the region, and run the same "
    "command again, which continues": OF_A_SERVER,
}
"""Messages whose remedies no test of this file follows, and why."""


def test_every_remedy_that_names_an_option_or_a_call_is_followed_by_a_test() -> None:
    named = {one.key: one for one in remedies() if one.names}
    followed_ = {key for key, _ in ASKED} | {case.key for case in (*CASES, *READERS_CASES)} | {MEMORY}
    installs = {key for key in named if "pip install" in key}
    assert sorted(named.keys() - followed_ - installs - EXCUSED.keys()) == []
    assert sorted(EXCUSED.keys() - named.keys()) == []
    assert sorted(EXCUSED.keys() & followed_) == []


def test_a_package_that_a_remedy_installs_is_one_of_an_extra() -> None:
    extras = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    source = "".join(path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py")))
    asked = {name for names in re.findall(r"ips2-dask\[([\w,]+)\]", source) for name in names.split(",")}
    asked |= set(re.findall(r"\bneed\(\s*\"[\w.]+\", \"(\w+)\"", source)) | set(remote.EXTRAS.values())
    assert len(asked) > 9
    assert asked <= extras.keys()
