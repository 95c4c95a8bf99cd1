"""Rules for the number of clusters as a benchmark: variants, a small real run, points without clusters, tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ips2_dask import Params, run
from ips2_dask.bench import labelled_data, numbers, options
from ips2_dask.cli.main import main
from ips2_dask.errors import BadInput
from ips2_dask.kernels import choice, density
from ips2_dask.kernels.density import Level

Record = dict[str, Any]

NEEDED = pytest.mark.skipif(not density.available(), reason="fast-plscan is not installed")
VARIED = {variant.name: variant for variant in numbers.VARIED}


# ---- rules


def trees(seed: int) -> list[list[Level]]:
    """Two trees with a few cuts each, of which some may have none."""
    rng = np.random.default_rng(seed)
    cuts = (rng.choice(np.arange(2, 12), rng.integers(0, 6), replace=False) for _ in range(2))
    return [[Level(int(c), rng.random(), 3 * rng.random(), 2.0) for c in sorted(own)] for own in cuts]


@pytest.mark.parametrize("name", ["widths 1+0.64", "close 0.8", "penalty 1", "few 100", "nearly 0.98"])
def test_a_variant_with_the_default_s_value_is_the_default(name: str) -> None:
    assert VARIED[name]._replace(name="", says="") == numbers.Variant("", "")
    for seed in range(200):
        found, expected = (
            numbers.by_density(trees(seed), (38, 24), VARIED[name]),
            choice.by_density(trees(seed), (38, 24)),
        )
        assert (found is None) == (expected is None)
        if expected is not None:
            assert found == expected.candidates[0]


def test_variants_of_the_rule_weigh_persistence_and_span_otherwise() -> None:
    cuts = [[Level(2, 0.8, 0.1, 2.0), Level(4, 0.6, 0.4, 2.0), Level(8, 0.5, 1.0, 2.0)]]

    def chosen(name: str) -> int:
        found = numbers.by_density(cuts, [38] * len(cuts), VARIED[name])
        assert found is not None
        return found.n_clusters

    # scores .4, .45 and .4375
    assert [chosen(name) for name in ("close 0.8", "close 0.95", "close 1")] == [8, 8, 4]
    assert [chosen(name) for name in ("penalty 0", "penalty 1")] == [2, 8]
    assert chosen("product 0.3") == 8
    assert numbers.by_density(cuts, [38] * len(cuts), numbers.Variant("", "", close=1.0, penalty=0.0)).n_clusters == 2  # type: ignore[union-attr]


def test_the_fewest_clusters_near_the_greatest_modularity_are_chosen() -> None:
    found = {2: 0.5, 3: 0.595, 4: 0.6, 5: 0.55}
    assert [numbers.by_modularity(found, nearly).n_clusters for nearly in (0.8, 0.9, 0.98, 1.0)] == [2, 3, 3, 4]
    assert numbers.by_modularity({}, 0.9).n_clusters == 2


def test_modularities_are_those_of_the_kernel_s_rule() -> None:
    rng = np.random.default_rng(0)
    points = rng.standard_normal((40, 3)) + 6 * np.eye(3)[np.arange(40) % 3]
    U = np.exp(-np.square(points[:, None] - points[None]).sum(axis=2))
    found = numbers.modularities(U, points, 6, 0)
    expected = choice.by_modularity(U, points, 6, 0)
    assert {one.n_clusters: one.score for one in expected.candidates} == pytest.approx(found)
    assert numbers.by_modularity(found, choice.NEARLY) == expected.candidates[0]


# ---- known sets


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """Of iris and soybean, whole and drawn once."""
    return list(numbers.measure(["iris", "soybean"], 1, tmp_path_factory.mktemp("numbers")))


@NEEDED
@pytest.mark.slow
def test_every_variant_has_a_record_of_each_set_and_draw(records: list[Record]) -> None:
    assert [(r["data"], r["draw"], r["variant"]) for r in records] == [
        (name, draw, variant) for name in ("iris", "soybean") for draw in (0, 1) for variant in numbers.VARIANTS
    ]
    assert all(type(value) in (bool, int, float, str, type(None)) for r in records for value in r.values())
    for r in records:
        assert 2 <= r["n_clusters"] <= min(numbers.MOST, r["m"] - 1)
        assert r["nmi"] >= 0
        assert r["seconds"] >= 0
    same: dict[tuple[object, ...], set[tuple[float, ...]]] = {}
    for r in records:
        same.setdefault((r["data"], r["draw"], r["n_clusters"]), set()).add(tuple(r[s] for s in labelled_data.SCORES))
    assert all(len(found) == 1 for found in same.values())  # one run of each number
    assert list(numbers.measure(["iris", "soybean"], 1, Path("nowhere"), done=records)) == []


@NEEDED
@pytest.mark.slow
@pytest.mark.parametrize("name", ["iris", "soybean"])
def test_the_default_is_what_a_run_chooses(records: list[Record], name: str) -> None:
    of = {r["variant"]: r for r in records if (r["data"], r["draw"]) == (name, 0)}
    data = labelled_data.labelled_data(name)
    with labelled_data.measuring():
        found = run(data.X, Params(max_clusters=numbers.MOST)).choice
    assert found is not None
    default = of["default"]
    assert (default["n_clusters"], default["rule"]) == (found["n_clusters"], found["rule"])
    assert default["bound"] == pytest.approx(found["noise"])
    evidence = found["candidates"][0]["persistence" if found["rule"] == "density" else "score"]
    assert default["value"] == pytest.approx(evidence, abs=1e-6)
    assert of["known"]["n_clusters"] == data.classes
    for variant in ("widths 1+0.64", "close 0.8", "penalty 1", "few 100", "nearly 0.98"):
        assert of[variant]["n_clusters"] == default["n_clusters"]


@NEEDED
@pytest.mark.slow
def test_tables_of_real_records_name_every_variant_and_set(records: list[Record]) -> None:
    variants, sets = numbers.markdown(records).split("\n\nEach whole set")
    assert all(f"| {variant} |" in variants for variant in numbers.VARIANTS)
    assert [line.split("|")[1].strip() for line in sets.splitlines()[4:]] == ["iris", "soybean"]


# ---- points without clusters


def test_points_have_as_many_clusters_as_their_shape_says() -> None:
    blobs = numbers.points("blobs-3", 60, 2, 0)
    centers = np.array([blobs[number::3].mean(axis=0) for number in range(3)])
    lengths = np.linalg.norm(centers[:, None] - centers[None], axis=2)[np.triu_indices(3, 1)]
    assert lengths.min() == pytest.approx(numbers.APART, abs=1.5)
    uniform = numbers.points("uniform", 500, 4, 0)
    assert uniform.shape == (500, 4)
    assert uniform.min() >= 0
    assert uniform.max() <= 1
    assert not np.array_equal(numbers.points("normal", 50, 2, 0), numbers.points("normal", 50, 2, 1))
    np.testing.assert_array_equal(numbers.points("normal", 50, 2, 1), numbers.points("normal", 50, 2, 1))


@NEEDED
@pytest.mark.slow
def test_what_is_said_of_noise_and_of_blobs_is_recorded() -> None:
    found: list[Record] = list(numbers.noise((2, 8), {40: 1, 120: 1}))
    assert [(r["shape"], r["features"], r["m"]) for r in found] == [
        (shape, features, m)
        for m in (40, 120)
        for features in (2, 8)
        for shape, c in numbers.SHAPES.items()
        if m >= 10 * c
    ]
    for r in found:
        assert r["rule"] == "density" or (r["rule"] == "modularity" and r["m"] < choice.FEW)
        assert r["bound"] == choice.noise_bound(r["rule"], r["dimension"])
        assert r["warned"] == (r["value"] <= r["bound"])
    assert list(numbers.noise((2, 8), {40: 1, 120: 1}, done=found)) == []
    table = numbers.markdown(found)
    assert table.count("| density |") == table.count("| modularity |") == 2
    bare = [r for r in found if not r["known"]]
    assert f"In all {sum(r['warned'] for r in bare)} of {len(bare)} sets" in table


# ---- tables


def made(data: str, variant: str, c: int, ari: float, draw: int = 0) -> Record:
    return {
        "data": data,
        "draw": draw,
        "m": 1_200,
        "known": 3,
        "variant": variant,
        "n_clusters": c,
        "nmi": 0.5,
        "acc": 0.6,
        "ari": ari,
        "seconds": 1.0,
    }


def test_tables_hold_means_over_draws_and_sets_and_the_worst_losses() -> None:
    of = {
        "default": (0.5, 0.2),
        "eigengap": (0.4, 0.25),
        "modularity": (0.1, 0.1),
        "total persistence": (0.1, 0.1),
        "known": (0.5, 0.5),
    }
    found = [
        made(data, variant, 4, ari + (0.1 if draw else -0.1), draw)
        for variant, both in of.items()
        for data, ari in zip("ab", both, strict=True)
        for draw in (0, 1)
    ]
    lines = numbers.markdown(found).splitlines()
    says = numbers.VARIANTS["default"]
    assert f"| default | {says} | .500 / .600 / .350 | .050 (b) | .300 (b) |" in lines
    assert any(line.startswith("| known ") and line.endswith("| none | none |") for line in lines)
    assert "| a | 1,200 | 4: .400 | 4: .400 | 4: .300 | 4: .000 | 4: .000 |" in lines


def test_the_smallest_bound_covers_all_values() -> None:
    a, b = numbers.covering([0.5, 0.2, 0.15, 0.1], [1.0, 2.0, 4.0, 8.0])
    assert all(a + b / d >= value - 1e-9 for value, d in ((0.5, 1.0), (0.2, 2.0), (0.15, 4.0), (0.1, 8.0)))
    assert numbers.covering([0.6, 0.225, 0.1 + 0.5 / 32], [1.0, 4.0, 32.0]) == pytest.approx((0.1, 0.5))


# ---- the command


def test_the_options_are_known_and_wrong_ones_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "numbers", "--data", "nowhere"]) == 2
    assert main(["bench", "numbers", "--draws", "-1"]) == 2
    assert main(["bench", "numbers", "--resume"]) == 2
    assert main(["bench", "numbers", "--markdown", str(tmp_path / "nothing.json")]) == 2
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"results": [{"data": "iris", "variant": "default"}]}))
    assert main(["bench", "numbers", "--markdown", str(other)]) == 2
    with pytest.raises(BadInput, match="another benchmark"):
        numbers.read(other)
    assert "Traceback" not in capsys.readouterr().err
    assert {*options.OPEN, *options.TABLES} >= {"iris", "soybean", "htru2"}


@NEEDED
@pytest.mark.slow
def test_a_benchmark_that_was_stopped_goes_on_and_its_record_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.json"
    assert main(["bench", "numbers", "--data", "soybean", "--json", str(file)]) == 0
    document = json.loads(file.read_text())
    assert {r["variant"] for r in document["results"]} == set(numbers.VARIANTS)
    assert len(numbers.complete([*document["results"], made("iris", "default", 3, 0.5)])) == len(numbers.VARIANTS)
    capsys.readouterr()
    assert main(["bench", "numbers", "--data", "soybean", "--resume", "--json", str(file)]) == 0
    assert capsys.readouterr().out == ""
    assert json.loads(file.read_text())["results"] == document["results"]
    assert main(["bench", "numbers", "--markdown", str(file)]) == 0
    assert capsys.readouterr().out == numbers.markdown(document["results"])
