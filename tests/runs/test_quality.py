"""Quality checks: a promise that a run did not keep is in the report, in the JSON and in the exit status."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ips2_dask import Params, run
from ips2_dask.cli.main import main
from ips2_dask.runs.run import quality_checks

X = np.random.default_rng(7).normal(size=(60, 3))


@pytest.fixture(scope="module", name="facts")
def facts_of_a_run() -> dict[str, Any]:
    """Facts of the stages of a run that kept its promises."""
    return dict(run(X, Params(n_clusters=3))._context.facts)


def broken(facts: dict[str, Any]) -> list[str]:
    return [one["promise"] for one in quality_checks(Params(n_clusters=3), facts) if not one["kept"]]


def test_a_good_run_keeps_them_all(facts: dict[str, Any]) -> None:
    assert broken(facts) == []
    assert all(set(one) == {"promise", "rule", "wanted", "found", "kept"} for one in quality_checks(Params(), facts))


@pytest.mark.parametrize(
    ("stage", "fact", "found", "promise"),
    [
        ("neighbors", "recall", 0.949, "recall of the sample graph"),
        ("eigen", "stop", {"measure": "residual", "wanted": 1e-3, "found": 1.1e-3}, "eigenpairs: residual"),
        ("eigen", "stop", {"measure": "change", "wanted": 2.0, "found": float("nan")}, "eigenpairs: change"),
        ("eigen", "eigenvalues", [1.0, 0.9], "eigenpairs"),
        ("eigen", "components", 4, "large components of the pairs"),
        ("assemble", "empty", 1, "pairs whose entries are all zero in float32"),
        ("label", "large", 4, "large components of the fused similarity"),
        ("label", "embedding_stop", {"measure": "change", "wanted": 0.5, "found": 0.6}, "embedding: change"),
        ("label", "clusters", 2, "clusters"),
    ],
)
def test_each_that_is_not_kept_is_named(stage: str, fact: str, found: Any, promise: str, facts: dict[str, Any]) -> None:
    spoiled = copy.deepcopy(facts)
    assert fact in spoiled[stage]
    spoiled[stage][fact] = found
    assert broken(spoiled) == [promise]


@pytest.mark.parametrize(
    ("make", "clusters", "promise"),
    [(lambda: X + 90 * np.eye(3)[np.arange(60) % 3], 2, "large components of the pairs")],
)
@pytest.mark.filterwarnings("ignore:Number of distinct clusters")  # scikit-learn's k-means may say it too
def test_strict_returns_3_and_the_json_says_which(
    make: Any, clusters: int, promise: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", make())
    arguments = [
        "run",
        str(tmp_path / "x.npy"),
        "--clusters",
        str(clusters),
        "--out",
        str(tmp_path / "run"),
        "--serial",
    ]
    assert main([*arguments, "--json", "--strict", "--quiet"]) == 3
    printed = capsys.readouterr()
    said = json.loads(printed.out)["promises"]
    assert promise in [one["promise"] for one in said if not one["kept"]]
    assert f"ips2: promise not kept: {promise}: found" in printed.err
    assert main([*arguments, "--quiet"]) == 0
