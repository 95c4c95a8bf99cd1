"""Roundings and certainty as benchmarks: candidates of a run, rules, draws, and tables made of records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_moons

from ips2_dask import Params, datasets, run
from ips2_dask.bench import certainty, labelled_data, options, roundings
from ips2_dask.cli.main import main
from ips2_dask.kernels import density, rounding
from ips2_dask.metrics import accuracy, adjusted_rand

Record = dict[str, Any]

NEEDED = pytest.mark.skipif(not density.available(), reason="fast-plscan is not installed")


def data_of(name: str) -> tuple[Any, int]:
    if name == "moons":
        return make_moons(300, noise=0.05, random_state=0)[0], 2
    if name == "few":
        return np.random.default_rng(0).standard_normal((8, 3)), 3
    given = labelled_data.labelled_data(name)
    return given.X[::4] if name == "digits" else given.X, given.classes


def test_the_options_know_all_peers_and_sets() -> None:
    assert tuple(roundings.PEERS) == options.ROUNDING_PEERS
    names = [name.removesuffix(labelled_data.LENGTH_1) for name in (*options.OPEN, *options.TABLES)]
    assert set(names) <= set(datasets.names())
    assert set(labelled_data.SCALED) <= {*names, *(name.partition("@")[0] for name in options.COPIED)}
    assert len(options.OPEN) == 18


# ---- candidates and rules


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("name", "graph"), [("iris", "auto"), ("digits", "auto"), ("moons", "auto"), ("few", "auto"), ("digits", "shards")]
)
def test_the_candidate_that_a_run_keeps_is_found_again_from_its_parts(name: str, graph: str) -> None:
    X, c = data_of(name)
    found = run(X, Params(n_clusters=c, graph=graph, shards=4 if graph == "shards" else None, duplicates="keep"))
    assert (found._order is None) == (graph == "auto")  # that of shards numbers the samples anew
    all_of_them = roundings.candidates(found)
    facts = roundings._facts(found)
    (kept,) = (
        one
        for one in all_of_them
        if (one.candidate.rounding, one.candidate.columns) == (facts["rounding"], facts["columns"])
    )
    assert (kept.candidate.cut, kept.candidate.left_out) == (facts["cut"], facts["left_out"])
    assert adjusted_rand(found.labels, kept.labels) == 1
    assert roundings.chosen([one.candidate for one in all_of_them], roundings.Rule()) is kept.candidate
    for known in (kept.labels, 2 * kept.labels + 1):  # numbers may be missing
        assert roundings.known_cut(found, known) == pytest.approx(kept.candidate.cut, abs=1e-6)
    U = found.similarity("fused")
    for one in all_of_them:
        assert len(one.labels) == len(X)
        assert one.candidate.cut == pytest.approx(rounding.cut_of(U, one.labels, c), abs=1e-6)
    ways = [(one.candidate.rounding, one.candidate.columns) for one in all_of_them]
    widths = sorted({min(c + 8, len(X)), c})
    assert {way for way in ways if way[0] == "kmeans"} == {("kmeans", width) for width in widths}
    assert len(set(ways)) == len(ways)


@NEEDED
def test_moons_have_candidates_of_both_ways() -> None:
    X, c = data_of("moons")
    ways = {one.candidate.rounding for one in roundings.candidates(run(X, Params(n_clusters=c)))}
    assert ways == {"kmeans", "density"}


def candidate(way: str, columns: int, cut: float, left_out: float = 0.0, clusters: int = 3) -> rounding.Candidate:
    return rounding.Candidate(way, columns, clusters, cut, left_out)


@pytest.mark.parametrize(
    ("densities", "rule", "kept"),
    [
        ([("density", 11, 1.5)], {"most_cut": 1.0}, "kmeans 3"),
        ([("density", 11, 1.5)], {}, "density 11"),
        ([("density", 11, 1.0)], {"most_cut": 1.0}, "density 11"),
        ([("density", 11, 19.0)], {"most_cut": np.inf}, "density 11"),
        ([("density", 11, 0.1, 0.9)], {"most_cut": np.inf}, "kmeans 3"),  # left too much out
        ([("density", 11, 0.1, 0.3)], {}, "kmeans 3"),
        ([("density", 11, 0.1, 0.3)], {"most_left_out": 0.3}, "density 11"),
        ([("density", 11, 19.0, 0.0, 4)], {"most_cut": 1.0}, "density 11"),  # tells more clusters apart
        ([("density", 11, 0.1, 0.2), ("density", 3, 3.0, 0.1)], {"most_cut": np.inf}, "density 3"),
        ([("density", 11, 0.1, 0.2), ("density", 3, 3.0, 0.1)], {}, "kmeans 3"),
        ([], {}, "kmeans 3"),
    ],
)
def test_a_rule_keeps_the_density_up_to_its_limits(densities: list[Any], rule: dict[str, float], kept: str) -> None:
    found = [candidate(*one) for one in densities]
    found += [candidate("kmeans", 11, 0.5, clusters=2), candidate("kmeans", 3, 1.0)]
    taken = roundings.chosen(found, roundings.Rule(**rule))
    assert f"{taken.rounding} {taken.columns}" == kept


@pytest.mark.parametrize(("margin", "kept"), [(1.0, 3), (1.05, 3), (1.2, 11)])
def test_fewer_columns_have_to_be_better_by_a_margin(margin: float, kept: int) -> None:
    found = [candidate("kmeans", 11, 1.1), candidate("kmeans", 3, 1.0)]
    assert roundings.chosen(found, roundings.Rule(margin=margin)).columns == kept


def test_noise_has_the_label_of_the_nearest_sample_that_is_none() -> None:
    X = np.array([[0.0], [1.0], [1.2], [5.0], [4.0], [9.0]])
    assert roundings.without_noise(X, np.array([0, -1, -1, 1, -1, -1])).tolist() == [0, 0, 0, 1, 1, 1]
    assert roundings.without_noise(X, np.full(6, -1)).tolist() == [0] * 6
    assert roundings.without_noise(X, np.arange(6)).tolist() == list(range(6))


# ---- data


def test_draws_are_seeded_parts_of_the_whole_without_repeats() -> None:
    whole, first, again, second = (labelled_data.labelled_data("digits", draw) for draw in (0, 1, 1, 2))
    other = labelled_data.labelled_data("digits", 1, seed=1)
    rows = {row.tobytes() for row in whole.X}
    for drawn in (first, second, other):
        assert len(drawn.X) == len(drawn.known) == round(0.8 * 1797)
        assert {row.tobytes() for row in drawn.X} <= rows
        assert len(np.unique(drawn.X, axis=0)) == len(drawn.X)
        assert drawn.classes == 10
    assert np.array_equal(first.X, again.X)
    assert not np.array_equal(first.X, second.X)
    assert not np.array_equal(first.X, other.X)
    assert np.array_equal(whole.X, datasets.load("digits").X)


def test_sets_are_scaled_as_their_names_say() -> None:
    for draw in (0, 1):
        iris, lengths = labelled_data.labelled_data("iris", draw), labelled_data.labelled_data("digits-l2", draw)
        assert (iris.scale, lengths.scale) == ("zscore", "l2")
        assert np.allclose(iris.X.mean(axis=0), 0, atol=1e-12)
        assert np.allclose(iris.X.std(axis=0), 1)
        assert np.allclose(np.linalg.norm(lengths.X, axis=1), 1)


# ---- records


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """Of iris, whole and drawn once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(roundings.PEERS, "evoc", roundings.PEERS["evoc"]._replace(module="no_such_module"))
        return list(roundings.measure(["iris"], 1))


def test_every_variant_has_a_record_of_each_draw(records: list[Record]) -> None:
    assert sorted((r["draw"], r["variant"]) for r in records) == sorted(
        (draw, variant) for draw in (0, 1) for variant in roundings.VARIANTS
    )
    for record in records:
        assert (record["m"], record["classes"]) == ((150, 120)[record["draw"]], 3)
        if record["variant"] == "EVoC(c)":
            assert record["outcome"] == "skipped: no_such_module is not installed"
            assert "nmi" not in record
        elif not str(record["outcome"]).startswith("skipped"):
            assert 0 <= record["nmi"] <= 1
            assert 0 < record["acc"] <= 1
            assert ("cut" in record) == (record["variant"] not in ("KMeans(c)", "SpectralClustering(c)"))
    assert all(type(value) in (bool, int, float, str, type(None)) for r in records for value in r.values())


@NEEDED
def test_rules_choose_among_the_roundings_of_the_same_run(records: list[Record]) -> None:
    for draw in (0, 1):
        of = {r["variant"]: r for r in roundings.with_rules(records) if r["draw"] == draw}
        single = [of[name] for name in roundings.WAYS]
        for rule in ("default", "least cut", "density first", "oracle"):
            same = [r for r in single if (r["rounding"], r["columns"]) == (of[rule]["rounding"], of[rule]["columns"])]
            assert same
            for name in ("nmi", "acc", "ari", "cut", "left_out", "products", "embedding_products"):
                assert same[0][name] == pytest.approx(of[rule][name], rel=1e-12)
        assert sum(of["oracle"][name] for name in labelled_data.SCORES) == pytest.approx(
            max(sum(one[name] for name in labelled_data.SCORES) for one in single)
        )
        kmeans = min(one["cut"] for one in single if one["rounding"] == "kmeans")
        assert of["least cut"]["cut"] <= kmeans
        for name in ("density c+8", "density c"):
            stood_in = of[name]["rounding"] == "kmeans"
            assert stood_in == (of[name]["outcome"] == "k-means, for no cut has c clusters")


def test_a_peer_that_fails_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(X: Any, c: int, seed: int) -> Any:
        raise ZeroDivisionError

    monkeypatch.setitem(roundings.PEERS, "kmeans", roundings.Peer("KMeans(c)", "", fail))
    (record,) = roundings._peer("kmeans", labelled_data.labelled_data("iris"), 0)
    assert record["outcome"] == "failed: ZeroDivisionError"
    assert "nmi" not in record


# ---- tables


def made(data: str, draw: int, variant: str, scores: tuple[float, float, float] | None, m: int = 100) -> Record:
    record = {
        "data": data,
        "draw": draw,
        "m": m,
        "f": 4,
        "classes": 3,
        "variant": variant,
        "rounding": "density",
        "columns": 11,
        "left_out": 0.125,
    }
    return record if scores is None else {**record, **dict(zip(labelled_data.SCORES, scores, strict=True))}


def test_tables_hold_means_errors_and_the_worst_loss_of_what_was_measured() -> None:
    of = {
        "default": {"a": (0.5, 0.6, 0.4), "b": (0.7, 0.8, 0.6), "htru2": (0.3, 0.9, 0.5)},
        "tol-1e-3": {"a": (0.4, 0.6, 0.4), "b": (0.8, 0.6, 0.6), "htru2": (0.3, 0.9, 0.5)},
        "kmeans c+8": {"a": (0.4, 0.5, 0.45), "b": (0.6, 0.7, 0.5), "htru2": (0.2, 0.8, 0.4)},
        "KMeans(c)": {"a": (0.4, 0.8, 0.4), "b": (0.7, 0.8, 0.6), "htru2": (0.4, 0.9, 0.5)},
        "EVoC(c)": {"a": None, "b": (0.1, 0.1, 0.1), "htru2": (0.1, 0.1, 0.1)},
    }
    sizes = {"a": 100, "b": 2000, "htru2": 5000}
    records = [
        made(data, draw, variant, None if scores is None else tuple(x - 0.1 * (draw == 2) for x in scores), sizes[data])
        for variant, sets in of.items()
        for data, scores in sets.items()
        for draw in (0, 1, 2)
    ]
    whole, drawn, difference, per_set = roundings.markdown(records).split("\n\n| ")[1:]
    lines = [line for part in (whole, drawn, difference, per_set) for line in part.splitlines()]
    assert "labels by | open sets (2) | of these with 1,000 samples or more (1) | tables (1) |" in lines
    assert "| default | .600 / .700 / .500 | .700 / .800 / .600 | .300 / .900 / .500 |" in lines
    assert "| default | .550 ± .100 / .650 ± .100 / .450 ± .100 | .650 / .750 / .550 | .250 / .850 / .450 |" in lines
    assert "| EVoC(c) | .100 / .100 / .100 (1 sets) | .100 / .100 / .100 | .100 / .100 / .100 |" in lines
    expected = "+.000 ± .100 / +.100 ± .100 / +.000 ± .000 | -.100 / +.200 / +.000 | +.000 / +.000 / +.000 |"
    assert sum(line.replace("-.000", "+.000").endswith(expected) for line in lines) == 2
    a, b, table = (line for line in lines if line.startswith(("| a,", "| b,", "| htru2,")))
    assert a.endswith("| density c+8 | .125 | .200 ACC to KMeans(c) | .200 ACC to KMeans(c) |")
    assert b.endswith("| none | none |")
    assert table.startswith("| htru2, 5,000 x 4, 3 | .300 / .900 / .500 |")
    assert ".100 NMI to KMeans(c)" in table


def test_the_tables_of_real_records_name_every_variant(records: list[Record]) -> None:
    text = roundings.markdown(records)
    assert all(f"| {variant} " in text for variant in roundings.ROWS)
    assert "oracle (knows the classes)" in text
    whole_alone = roundings.markdown([r for r in records if r["draw"] == 0])
    assert "±" in text
    assert "Draws" in text
    assert "Draws" not in whole_alone


# ---- certainty


def test_labels_are_right_where_their_cluster_is_matched_to_their_class() -> None:
    known, labels = ["a", "a", "b", "b", "b", "c"], [7, 7, 7, 3, 3, 9]
    assert certainty.right(known, labels).tolist() == [True, True, False, True, True, True]
    assert certainty.right([0, 0, 0, 1], [0, 0, 1, 2]).tolist() == [True, True, False, True]
    rng = np.random.default_rng(0)
    for _ in range(20):
        known, labels = rng.integers(0, 4, 50), rng.integers(0, 6, 50)
        assert certainty.right(known, labels).mean() == pytest.approx(accuracy(known, labels))


def test_tenths_hold_all_samples_from_the_least_certain_on() -> None:
    found: list[Any] = list(certainty.measure(["iris"]))
    assert [r["tenth"] for r in found] == list(range(1, 11))
    assert [r["samples"] for r in found] == [15] * 10
    given = labelled_data.labelled_data("iris")
    labels = run(given.X, Params(n_clusters=3)).labels
    assert np.mean([r["accuracy"] for r in found]) == pytest.approx(accuracy(given.known, labels))
    bounds = [value for r in found for value in (r["least"], r["most"])]
    assert bounds == sorted(bounds)
    assert 0 <= bounds[0] < bounds[-1] < 1 + 1e-5
    assert 0 <= found[0]["auc"] <= 1


def test_with_markdown_the_tables_are_all_that_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    assert main(["bench", "certainty", "--data", "iris", "--markdown", "--json", str(file)]) == 0
    said, results = capsys.readouterr(), json.loads(file.read_text())["results"]
    assert said.out == certainty.markdown(results)
    assert said.out.count("\n| ") == 11  # a head and ten tenths
    assert len(said.err.splitlines()) == len(results) == 10


def test_roundings_are_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    arguments = ["--data", "iris", "--draws", "0", "--peers", "kmeans", "--json", str(file)]
    assert main(["bench", "roundings", *arguments]) == 0
    results = json.loads(file.read_text())["results"]
    assert {r["variant"] for r in results} == set(roundings.VARIANTS) - {"SpectralClustering(c)", "EVoC(c)"}
    assert len(capsys.readouterr().out.splitlines()) == len(results)
    assert main(["bench", "roundings", "--data", "no-such-set"]) == 2
    assert main(["bench", "roundings", "--draws", "-1"]) == 2


def test_the_curve_of_certainty_is_drawn_and_a_wrong_place_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "curve.png"
    assert main(["bench", "certainty", "--data", "breast_cancer,iris", "--figure", str(picture), "--markdown"]) == 0
    assert "iris, 150 samples" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")
    for wrong in (tmp_path / "curve.txt", tmp_path / "nowhere" / "curve.png"):
        assert main(["bench", "certainty", "--data", "iris", "--figure", str(wrong)]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
