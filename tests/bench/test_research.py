"""The scripts that justify constants: rules, scores and draws that they make, and tables of records."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import certainty
import choosing
import copies
import known_sets
import number_of_clusters as numbers
import numpy as np
import page_tables
import pytest
import roundings
import steady
from readme import ROOT
from sklearn.datasets import make_moons
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from ips2_dask import Params, datasets, run
from ips2_dask.kernels import density, rounding
from ips2_dask.metrics import accuracy

Record = dict[str, Any]
RESULTS = ROOT / "notebooks" / "results"
NEEDED = pytest.mark.skipif(not density.available(), reason="fast-plscan is not installed")

# ---- scripts and tables


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words", "records"),
    [
        ("certainty", ["--data", "iris", "--figure", "curve.png"], 10),
        ("choosing", ["--data", "iris", "--systems", "ips2,kmeans,auto"], 3),
        ("copies", ["--data", "iris,digits:8@300"], 2 * len(copies.VARIANTS)),
        ("fusion", ["--data", "iris"], 12),
        ("metrics", ["--data", "soybean"], 54),
        ("roundings", ["--data", "iris", "--draws", "1"], 2 * len(roundings.VARIANTS)),
        ("steady", ["--data", "soybean"], 23),
        ("number_of_clusters", ["--data", "iris"], 3 * len(numbers.VARIANTS)),
    ],
)
def test_a_script_writes_records_of_which_its_tables_are_made(
    script: str, words: list[str], records: int, tmp_path: Path
) -> None:
    path = [sys.executable, str(ROOT / "notebooks" / "research" / f"{script}.py")]
    subprocess.run([*path, *words, "--out", "out.json"], cwd=tmp_path, check=True)
    found = json.loads((tmp_path / "out.json").read_text())
    assert len(found["results"]) == records
    assert all(type(value) in (bool, int, float, str, type(None)) for r in found["results"] for value in r.values())
    assert all(0 <= r.get("nmi", 0) <= 1 for r in found["results"])
    name = {"number_of_clusters": "numbers"}.get(script, script)
    makers = [make for place, make in page_tables.TABLES.items() if place == name]
    makers += [make for (_, place), make in page_tables.DOCS.items() if place == name]
    assert makers
    for make in makers:
        assert "| " in make(found)
    assert (tmp_path / "curve.png").exists() is (script == "certainty")


def test_every_table_of_research_is_made_of_its_record_and_is_where_it_is_said_to_be() -> None:
    for (page, name), make in page_tables.DOCS.items():
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        assert f"<!-- {name} -->\n{make(page_tables.document_of(name))}<!-- /{name} -->" in text, name


def test_tables_that_are_written_anew_change_no_page_unless_a_record_has_changed() -> None:
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        assert page_tables.with_tables(path.stem, text) == text
    document = json.loads((RESULTS / "product.json").read_text(encoding="utf-8"))
    old = f"<!-- product -->\n| nothing |\n<!-- /product -->\n<!-- product -->{page_tables.TABLES['product'](document)}"
    assert page_tables.with_tables("other", old).count(page_tables.TABLES["product"](document)) == 2


def test_a_table_marks_a_recall_that_was_not_reached() -> None:
    shared = {"builder": "x", "build": "M=8", "threads": 2, "seconds": 1.0, "compile_seconds": 0.5, "peak_bytes": 2**30}
    results = [
        {**shared, "kind": kind, "recall": value, "reached": value >= 0.95}
        for kind, value in (("tried", 0.5), ("cheapest", 0.94), ("cheapest", 0.96))
    ]
    head, _, low, high = page_tables.TABLES["graph-mnist"]({"results": results}).splitlines()
    assert head == "| builder | index | threads | seconds | in a fresh process | recall | memory |"
    assert low == "| x | M=8 | 2 | 1.0 | 1.5 | 0.940 (too low) | 1.0 GiB |"
    assert high == "| x | M=8 | 2 | 1.0 | 1.5 | 0.960 | 1.0 GiB |"


def test_a_table_has_no_column_that_no_record_knows_and_a_dash_where_some_do_not() -> None:
    old = {"call": "f()", "seconds": 2.0, "ratio": None, "nmi": 0.5, "acc": 0.25, "peak_bytes": None}
    new = {**old, "threads": 2, "graph": "exact", "k": 10, "repeats": 3, "seconds_least": 1, "seconds_most": 4}
    alone, both = (page_tables.TABLES["peers"]({"results": of}).splitlines() for of in ([old], [old, new]))
    assert alone[::2] == ["| call | seconds | NMI | ACC |", "| `f()` | 2.0 | 0.500 | 0.250 |"]
    assert both[0] == "| call | threads | graph, k | seconds | NMI | ACC |"
    assert both[2:] == [
        "| `f()` | – | – | 2.0 | 0.500 | 0.250 |",
        "| `f()` | 2 | exact, 10 | 2.0 (1.0 to 4.0) | 0.500 | 0.250 |",
    ]


def record(system: str, data: str = "wine", **fields: float | None) -> Record:
    knows_c = choosing.SYSTEMS[system].knows_c
    return {"data": data, "system": system, "call": system.upper(), "knows_c": knows_c, **fields}


def test_the_means_of_what_is_told_c_and_of_what_is_not() -> None:
    records = [
        record("kmeans", nmi=0.5, acc=0.6, ari=-0.02, left_out=0.0, threads=2, seconds=0.5),
        record("kmeans", "glass", nmi=0.25, acc=0.8, ari=0.01, left_out=0.0, threads=2, seconds=20.5),
        record("evoc-c", nmi=0.9, acc=0.9, ari=0.9, left_out=0.5, threads=1, seconds=2.0),
        record("evoc-c", "glass"),  # failed
        record("umap", nmi=1.0, acc=1.0, ari=1.0, left_out=0.0, threads=1, seconds=0.01),
    ]
    lines = choosing.means(records).splitlines()
    assert "| `kmeans` | `KMEANS` | **.375** | **.700** | **-.005** | 0% | 2 | 2 | 10 |" in lines
    assert "| `evoc-c` | `EVOC-C` | .900 | .900 | .900 | 50% | 1 | 1 | 2.0 |" in lines
    assert lines[lines.index("Not told c:") + 4] == "| `umap` | `UMAP` | **1** | **1** | **1** | 0% | 1 | 1 | 0.01 |"


def test_the_record_has_every_set_and_system() -> None:
    records = json.loads((RESULTS / "choosing.json").read_text(encoding="utf-8"))["results"]
    assert {r["data"] for r in records} == {*known_sets.OPEN, *known_sets.TABLES}
    assert {r["system"]: r["call"] for r in records} == {name: of.call for name, of in choosing.SYSTEMS.items()}


# ---- sets and scores


def test_draws_are_seeded_parts_of_the_whole_and_sets_are_scaled_as_their_names_say() -> None:
    whole, first, again, second = (known_sets.labelled_data("digits", draw) for draw in (0, 1, 1, 2))
    rows = {row.tobytes() for row in whole.X}
    for drawn in (first, second):
        assert len(drawn.X) == len(drawn.known) == round(0.8 * 1797)
        assert {row.tobytes() for row in drawn.X} <= rows
        assert drawn.classes == 10
    assert np.array_equal(first.X, again.X)
    assert not np.array_equal(first.X, second.X)
    iris, lengths = known_sets.labelled_data("iris"), known_sets.labelled_data("digits-l2")
    assert np.allclose(iris.X.std(axis=0), 1)
    assert np.allclose(np.linalg.norm(lengths.X, axis=1), 1)
    plain, coarse = known_sets.labelled_data("digits"), copies.rounded("digits:4")
    np.testing.assert_array_equal(coarse.X, np.floor(plain.X / 4) * 4)
    assert copies.rounded("digits@100").X.shape == (100, 64)
    names = {name.removesuffix("-l2") for name in (*known_sets.OPEN, *known_sets.TABLES)}
    assert {*names, *(name.partition("@")[0].partition(":")[0] for name in copies.COPIED)} <= set(datasets.names())


def test_noise_is_one_cluster_for_nmi_and_ari_and_wrong_for_acc() -> None:
    true, labels = np.array([0, 0, 0, 1, 1, 1, 1, 1]), np.array([5, 5, -1, 7, 7, -1, -1, -2])
    found, as_cluster = choosing.scores_with_noise(true, labels), np.where(labels < 0, -1, labels)
    assert found["nmi"] == pytest.approx(normalized_mutual_info_score(true, as_cluster))
    assert found["ari"] == pytest.approx(adjusted_rand_score(true, as_cluster))
    assert (found["acc"], found["left_out"]) == (4 / 8, 4 / 8)  # as a cluster the noise would give 5 of 8
    nothing = choosing.scores_with_noise(np.array([0, 0, 1]), np.full(3, -1))
    assert list(nothing.values()) == [1, 0, 0, 0]
    X = np.array([[0.0], [1.0], [1.2], [5.0], [4.0], [9.0]])
    assert roundings.without_noise(X, np.array([0, -1, -1, 1, -1, -1])).tolist() == [0, 0, 0, 1, 1, 1]


def test_labels_are_right_where_their_cluster_is_matched_to_their_class() -> None:
    known, labels = ["a", "a", "b", "b", "b", "c"], [7, 7, 7, 3, 3, 9]
    assert certainty.right(known, labels).tolist() == [True, True, False, True, True, True]
    rng = np.random.default_rng(0)
    for _ in range(20):
        known, labels = rng.integers(0, 4, 50), rng.integers(0, 6, 50)
        assert certainty.right(known, labels).mean() == pytest.approx(accuracy(known, labels))


# ---- rules for labels


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("name", "graph"), [("iris", "auto"), ("moons", "auto"), ("digits", "shards")])
def test_the_candidate_that_a_run_keeps_is_found_again_from_its_parts(name: str, graph: str) -> None:
    X, c = make_moons(300, noise=0.05, random_state=0)[0], 2
    if name != "moons":
        given = known_sets.labelled_data(name)
        X, c = given.X[:: 4 if name == "digits" else 1], given.classes
    found = run(X, Params(n_clusters=c, graph=graph, shards=4 if graph == "shards" else None, duplicates="keep"))
    all_of_them, facts, U = roundings.candidates(found), roundings._facts(found), found.similarity("fused")
    (kept,) = (it for it in all_of_them if (it[0].rounding, it[0].columns) == (facts["rounding"], facts["columns"]))
    assert (kept[0].cut, kept[0].left_out) == (facts["cut"], facts["left_out"])
    assert adjusted_rand_score(found.labels, kept[1]) == 1
    assert roundings.chosen([one for one, _ in all_of_them], roundings.Rule()) is kept[0]
    assert roundings.known_cut(found, 2 * kept[1] + 1) == pytest.approx(kept[0].cut, abs=1e-6)  # numbers are missing
    for one, labels in all_of_them:
        assert one.cut == pytest.approx(rounding.cut_of(U, labels, c), abs=1e-6)
    if name == "moons" and density.available():
        assert {one.rounding for one, _ in all_of_them} == {"kmeans", "density"}


def candidate(way: str, columns: int, cut: float, left_out: float = 0.0, clusters: int = 3) -> rounding.Candidate:
    return rounding.Candidate(way, columns, clusters, cut, left_out)


@pytest.mark.parametrize(
    ("densities", "rule", "kept"),
    [
        ([("density", 11, 1.5)], {"most_cut": 1.0}, "kmeans 3"),
        ([("density", 11, 1.5)], {}, "density 11"),
        ([("density", 11, 1.0)], {"most_cut": 1.0}, "density 11"),
        ([("density", 11, 0.1, 0.9)], {"most_cut": np.inf}, "kmeans 3"),  # left too much out
        ([("density", 11, 0.1, 0.3)], {"most_left_out": 0.3}, "density 11"),
        ([("density", 11, 19.0, 0.0, 4)], {"most_cut": 1.0}, "density 11"),  # tells more clusters apart
        ([("density", 11, 0.1, 0.2), ("density", 3, 3.0, 0.1)], {"most_cut": np.inf}, "density 3"),
        ([], {"margin": 1.2}, "kmeans 11"),
        ([], {"margin": 1.05}, "kmeans 3"),
    ],
)
def test_a_rule_keeps_the_density_up_to_its_limits(densities: list[Any], rule: dict[str, float], kept: str) -> None:
    few = () if "margin" in rule else (candidate("kmeans", 12, 0.5, clusters=2),)
    found = [*(candidate(*one) for one in densities), *few, candidate("kmeans", 11, 1.1), candidate("kmeans", 3, 1.0)]
    taken = roundings.chosen(found, roundings.Rule(**rule))
    assert f"{taken.rounding} {taken.columns}" == kept


@NEEDED
def test_rules_choose_among_the_roundings_of_the_same_run() -> None:
    records = json.loads((RESULTS / "roundings.json").read_text(encoding="utf-8"))["results"]
    for draw in (0, 1):
        of = {r["variant"]: r for r in roundings.with_rules(records) if (r["data"], r["draw"]) == ("iris", draw)}
        single = [of[name] for name in roundings.WAYS]
        for rule in ("default", "least cut", "density first", "oracle"):
            assert any((r["rounding"], r["columns"]) == (of[rule]["rounding"], of[rule]["columns"]) for r in single)
        assert of["least cut"]["cut"] <= min(one["cut"] for one in single if one["rounding"] == "kmeans")


def test_another_winner_counts_where_no_candidate_changes_much() -> None:
    two = {candidate("density", 11, 1.0, 0.2): 0.9, candidate("kmeans", 11, 1.0): 0.5}
    changes = {
        "none": two,
        "seed 1": {candidate("density", 11, 1.1, 0.24): 0.905, candidate("kmeans", 11, 1.2): 0.5},
        "seed 2": {candidate("density", 11, 1.1, 0.26): 0.905, candidate("kmeans", 11, 1.2): 0.5},  # over the limit
        "draw 1": {candidate("kmeans", 11, 1.2): 0.5},  # the cut is lost
        "draw 2": {candidate("density", 11, 1.1, 0.26): 0.8, candidate("kmeans", 11, 1.2): 0.5},  # not small
    }
    found = steady.tally([changes], roundings.Rule())
    assert (found.small, found.moved, found.worse) == (3, 2, 2)
    assert (found.every, found.every_moved) == (4, 3)
    assert found.spans == [pytest.approx(0.405)]
    assert {name for names in steady.KINDS.values() for name in names} == {
        *known_sets.OPEN,
        *known_sets.TABLES,
        "mnist",
    }


# ---- rules for the number of clusters


def test_a_kind_is_scored_by_the_variant_that_is_the_best_on_the_others() -> None:
    scored = {"default": {"a": 0.9, "b": 0.2, "c": 0.5}, "columns 1": {"a": 0.1, "b": 0.8, "c": 0.6}}
    records: list[Record] = [
        {"variant": variant, "kind": kind, "data": f"{kind}{i}", "draw": draw, "ari": ari + (draw - 1) / 10}
        for variant, of in scored.items()
        for kind, ari in of.items()
        for i in range(2)
        for draw in range(3)
    ]
    means = numbers.by_kind(records)
    assert {v: {k: pytest.approx(x) for k, x in of.items()} for v, of in scored.items()} == means
    found = numbers.unseen(means)
    assert {kind: rule for kind, (rule, _) in found.items()} == {"a": "columns 1", "b": "default", "c": "default"}
    assert [value for _, value in found.values()] == [pytest.approx(x) for x in (0.1, 0.2, 0.5)]


def test_a_draw_keeps_the_labels_of_its_rows() -> None:
    whole, drawn, few = (numbers.known(name, draw, 0) for name, draw in (("iris", 0), ("iris", 1), ("digits@200", 0)))
    assert (len(whole.X), len(drawn.X), len(few.X)) == (150, 120, 200)
    rows = {tuple(x): int(y) for x, y in zip(whole.X, whole.references[0], strict=True)}
    assert [rows[tuple(x)] for x in drawn.X] == drawn.references[0].tolist()
    assert few.score(few.references[0]) == 1.0
    assert numbers.kind_of("digits@200") == "shapes"
    assert numbers.kind_of("digits@400") == "images"


@NEEDED
@pytest.mark.slow
def test_the_default_is_what_a_run_chooses_and_says_of_noise() -> None:
    of = {r["variant"]: r for r in numbers.measure(["iris"])}
    data = known_sets.labelled_data("iris", 2)
    with known_sets.measuring():
        found = run(data.X, Params(n_clusters="auto")).choice
    assert found is not None
    assert of["default"]["n_clusters"] == found["n_clusters"]
    assert of["known"]["n_clusters"] == data.classes
    noise = list(numbers.of_noise((2,), {40: 1}))
    assert [(r["shape"], r["m"]) for r in noise] == [(shape, 40) for shape, c in numbers.SHAPES.items() if 10 * c <= 40]
    assert all(r["warned"] == (r["value"] <= r["bound"]) for r in noise)
    bare = [r for r in noise if not r["known"]]
    assert f"In all {sum(r['warned'] for r in bare)} of {len(bare)} sets" in numbers.markdown(noise)


def test_points_have_as_many_clusters_as_their_shape_says_and_the_bound_covers_all_values() -> None:
    blobs = numbers.points("blobs-3", 60, 2, 0)
    centers = np.array([blobs[number::3].mean(axis=0) for number in range(3)])
    lengths = np.linalg.norm(centers[:, None] - centers[None], axis=2)[np.triu_indices(3, 1)]
    assert lengths.min() == pytest.approx(numbers.APART, abs=1.5)
    assert not np.array_equal(numbers.points("normal", 50, 2, 0), numbers.points("normal", 50, 2, 1))
    a, b = numbers.covering([0.5, 0.2, 0.15, 0.1], [1.0, 2.0, 4.0, 8.0])
    assert all(a + b / d >= value - 1e-9 for value, d in ((0.5, 1.0), (0.2, 2.0), (0.15, 4.0), (0.1, 8.0)))
