"""What a user without labels gets: the benchmark on data that are always there, and the README's tables."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from threadpoolctl import threadpool_info, threadpool_limits

from ips2_dask.bench import choosing, choosing_systems, options
from ips2_dask.bench.choosing_systems import SYSTEMS, Clustering, Problem, System
from ips2_dask.bench.document import Record
from ips2_dask.bench.labelled_data import LabelledData
from ips2_dask.cli.main import main
from ips2_dask.clusters import workers
from ips2_dask.datasets import Dataset, load
from ips2_dask.errors import BadInput
from ips2_dask.kernels.parallel import usable_cores

ROOT = Path(__file__).parents[2]
REAL = importlib.util.find_spec

SLOW = ("evoc", "evoc-c", "umap", "leiden", "leiden-c", "sweep")
"""Systems that take long here: their packages compile when they are first used."""

SYSTEM = [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in SYSTEMS]


def digits(m: int = 150) -> Dataset:
    """Some of the images of digits."""
    whole = load("digits")
    rows = np.random.default_rng(0).choice(len(whole.X), m, replace=False)
    return type(whole)(whole.name, whole.X[rows], whole.labels[rows], whole.description)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """What the benchmark finds under any name: a hundred and fifty digits."""
    data = digits()
    labels = np.unique(data.labels, return_inverse=True)[1]
    monkeypatch.setattr(choosing, "labelled_data", lambda name: LabelledData(name, 0, data.X, labels, "none"))
    monkeypatch.setattr(choosing, "FITS", 2)
    monkeypatch.setattr(choosing_systems, "MOST", 12)
    return data


def without(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """Let these packages be missing, and all others be there."""
    found = importlib.util.find_spec("json")

    def find(name: str) -> object:
        return None if name in modules else found if name in choosing_systems.PACKAGES else REAL(name)

    monkeypatch.setattr(importlib.util, "find_spec", find)


def record(system: str, data: str = "wine", **fields: float | None) -> Record:
    described: Record = {"data": data, "system": system, "call": system.upper(), "knows_c": SYSTEMS[system].knows_c}
    return {**described, **fields}


def test_the_options_know_all_systems() -> None:
    assert tuple(SYSTEMS) == options.CHOOSING
    assert set(choosing_systems.OURS) <= set(SYSTEMS)
    assert {module for system in SYSTEMS.values() for module in system.modules} == set(choosing_systems.PACKAGES)


@pytest.mark.parametrize("name", SYSTEM)
def test_a_system_finds_what_is_plain_in_a_few_digits(name: str, small: Dataset, tmp_path: Path) -> None:
    for module in SYSTEMS[name].modules:
        if REAL(module) is None:
            pytest.skip(f"needs {module}")
    (found,) = choosing.measure(["digits"], [name], tmp_path)
    assert found["outcome"] == "finished"
    assert found["knows_c"] is SYSTEMS[name].knows_c
    nmi, acc, ari, left_out = (float(str(found[field])) for field in ("nmi", "acc", "ari", "left_out"))
    least = 0.4 if found["knows_c"] or "leiden" in name else 0.1  # few samples: their clusters are hard to count
    assert least < nmi <= 1
    assert 0 < acc <= 1
    assert -0.5 <= ari <= 1
    assert 0 <= left_out < 1
    assert left_out == 0 or not (name in choosing_systems.OURS or name in ("kmeans", "spectral"))
    if found["knows_c"] and name != "evoc-c":  # whose number is approximate
        assert found["clusters"] == 10
    assert float(str(found["seconds"])) > 0
    assert "cold_seconds" not in found  # something may have been compiled before
    assert 1 <= int(str(found["threads"])) <= usable_cores()
    assert len(small.X) == found["m"]


@pytest.mark.slow
def test_a_fresh_process_gives_the_same_labels_and_the_seconds_of_a_first_fit(
    small: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in workers.THREADS:  # that Dask has set for workers which it has started in this process
        monkeypatch.delenv(name, raising=False)
    (warm,) = choosing.measure(["digits"], ["kmeans"], tmp_path)
    (cold,) = choosing.measure(["digits"], ["kmeans"], tmp_path, cold=True)
    assert float(str(cold["cold_seconds"])) > 0
    assert float(str(cold["seconds"])) > 0
    timed = ("seconds", "cold_seconds")
    assert {k: v for k, v in cold.items() if k not in timed} == {k: v for k, v in warm.items() if k not in timed}
    assert not list(tmp_path.iterdir())


def test_a_system_has_the_threads_that_it_takes_by_itself(
    small: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def fit(problem: Problem) -> Clustering:
        seen.append(max(pool["num_threads"] for pool in threadpool_info()))
        return Clustering(np.zeros(len(problem.X), int), {})

    monkeypatch.setitem(SYSTEMS, "kmeans", System("probe", fit, True, choosing_systems._of_libraries))
    for limit in (1, 3):
        with threadpool_limits(limit):
            (found,) = choosing.measure(["digits"], ["kmeans"], tmp_path)
        assert set(seen) == {found["threads"]} == {limit}
        seen.clear()


def test_ours_are_told_to_take_every_core() -> None:
    assert {SYSTEMS[name].threads() for name in choosing_systems.OURS} == {usable_cores()}


def test_noise_is_one_cluster_for_nmi_and_ari_and_wrong_for_acc() -> None:
    true = np.array([0, 0, 0, 1, 1, 1, 1, 1])
    labels = np.array([5, 5, -1, 7, 7, -1, -1, -2])
    found = choosing.scores_with_noise(true, labels)
    as_cluster = np.where(labels < 0, -1, labels)
    assert found["nmi"] == pytest.approx(normalized_mutual_info_score(true, as_cluster))
    assert found["ari"] == pytest.approx(adjusted_rand_score(true, as_cluster))
    assert found["acc"] == 4 / 8  # as a cluster the noise would stand for class 1 and give 5 of 8
    assert found["left_out"] == 4 / 8


def test_noise_alone_has_no_sample_right() -> None:
    found = choosing.scores_with_noise(np.array([0, 0, 1]), np.full(3, -1))
    assert (found["nmi"], found["acc"], found["ari"], found["left_out"]) == (0, 0, 0, 1)


def test_what_another_package_raises_is_its_result_and_what_ours_raises_is_a_fault(
    small: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(problem: Problem) -> Clustering:
        raise FloatingPointError

    for name in ("kmeans", "ips2"):
        monkeypatch.setitem(SYSTEMS, name, System("broken", fit, True, choosing_systems._one))
    (found,) = choosing.measure(["digits"], ["kmeans"], tmp_path)
    assert found["outcome"] == "failed: FloatingPointError"
    assert "nmi" not in found
    with pytest.raises(FloatingPointError):
        list(choosing.measure(["digits"], ["ips2"], tmp_path))


# ---- packages that are not installed


def test_a_system_whose_package_is_missing_is_left_out_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "umap")
    notes: list[str] = []
    names = choosing_systems.available(None, notes.append)
    assert set(SYSTEMS) - set(names) == {"umap", "leiden", "leiden-c"}
    assert notes[1] == "umap is left out, for umap-learn is not installed: pip install 'ips2-dask[bench]'"


def test_a_system_that_is_asked_for_must_be_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without(monkeypatch, "evoc")
    assert choosing_systems.available(["umap", "ips2"]) == ("umap", "ips2")
    with pytest.raises(BadInput, match="evoc"):
        choosing_systems.available(["ips2", "evoc-c"])
    assert main(["bench", "choosing", "--systems", "evoc", "--data", "digits"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "--systems: found evoc, which needs evoc" in said
    assert "pip install 'ips2-dask[bench]'" in said


def test_the_command_goes_on_with_the_systems_that_are_there(
    small: Dataset, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without(monkeypatch, "umap", "evoc", "igraph")
    for name in set(SYSTEMS) - {"kmeans", "hdbscan", "umap"}:
        monkeypatch.delitem(SYSTEMS, name)
    assert main(["bench", "choosing", "--data", "digits", "--markdown"]) == 0
    printed = capsys.readouterr()
    assert "umap is left out" in printed.err
    assert re.findall(r"^\| `(.*?)`", printed.out, re.MULTILINE) == ["kmeans", "hdbscan"]


# ---- tables


def test_the_tables_are_means_over_the_sets_for_told_c_and_not() -> None:
    records = [
        record("kmeans", nmi=0.5, acc=0.6, ari=-0.02, left_out=0.0, threads=2, seconds=0.5),
        record("kmeans", "glass", nmi=0.25, acc=0.8, ari=0.01, left_out=0.0, threads=2, seconds=20.5),
        record("evoc-c", nmi=0.9, acc=0.9, ari=0.9, left_out=0.5, threads=1, seconds=2.0),
        record("evoc-c", "glass"),  # failed
        record("umap", nmi=1.0, acc=1.0, ari=1.0, left_out=0.0, threads=1, seconds=0.01, cold_seconds=9.0),
    ]
    assert (
        choosing.means(records)
        == """\
Told c, the number of classes:

| system | call | NMI | ACC | ARI | left out | sets | threads | seconds |
|---|---|---|---|---|---|---|---|---|
| `kmeans` | `KMEANS` | **.375** | **.700** | **-.005** | 0% | 2 | 2 | 10 |
| `evoc-c` | `EVOC-C` | .900 | .900 | .900 | 50% | 1 | 1 | 2.0 |

Not told c:

| system | call | NMI | ACC | ARI | left out | sets | threads | seconds | seconds of a first fit |
|---|---|---|---|---|---|---|---|---|---|
| `umap` | `UMAP` | **1** | **1** | **1** | 0% | 1 | 1 | 0.01 | 9.0 |
"""
    )


def test_each_set_has_a_row_with_the_numbers_that_were_chosen() -> None:
    shape = {"m": 1_780, "f": 13, "classes": 3}
    records = [
        record("kmeans", ari=-0.02, clusters=3, **shape),
        record("kmeans", "glass", ari=0.5, clusters=6, m=214, f=9, classes=6),
        record("umap", ari=1.0, clusters=4, **shape),
        record("umap", "glass", m=214, f=9, classes=6),  # failed
    ]
    assert (
        choosing.each_set(records)
        == """\
ARI on each set, with the number of clusters where the system is not told it:

| data, samples x features, classes | `kmeans` | `umap` |
|---|---|---|
| wine, 1,780 x 13, 3 | -.020 | 1 (4) |
| glass, 214 x 9, 6 | .500 | – |
"""
    )


def test_the_tables_of_a_record_are_printed_without_measuring(
    small: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "choosing.json"
    words = ["bench", "choosing", "--data", "digits", "--systems", "kmeans,ips2"]
    assert main([*words, "--markdown", "--json", str(path)]) == 0
    measured = capsys.readouterr().out
    assert choosing.markdown(choosing.read(path)) == measured
    assert main(["bench", "choosing", "--markdown", str(path)]) == 0
    assert capsys.readouterr().out == measured
    assert main(["bench", "choosing", "--markdown", str(path), "--json", str(tmp_path / "other.json")]) == 2


@pytest.mark.parametrize("text", [None, "{", "[]", '{"results": [{"data": "wine"}]}', '{"results": [3]}'])
def test_a_file_that_is_no_record_is_refused(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.json"
    if text is not None:
        path.write_text(text)
    assert main(["bench", "choosing", "--markdown", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_tables_of_readme_and_docs_are_those_of_the_results() -> None:
    records = choosing.read(ROOT / "notebooks" / "results" / "choosing.json")
    assert {r["data"] for r in records} == {*options.OPEN, *options.TABLES}
    assert {r["system"] for r in records} == set(SYSTEMS)
    assert choosing.means(records) in (ROOT / "README.md").read_text(encoding="utf-8")
    assert choosing.each_set(records) in (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
