"""What a user without labels gets: the benchmark on data that are always there, and the README's table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ips2_dask.bench import choosing, options

ROOT = Path(__file__).parents[2]


def test_the_options_know_all_systems() -> None:
    assert tuple(choosing.SYSTEMS) == options.CHOOSING == tuple(choosing.HEADS)


@pytest.mark.slow
def test_every_system_has_a_record_or_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ips2_dask.datasets import load  # noqa: PLC0415  replaced below

    whole = load("digits")
    rows = np.random.default_rng(0).choice(len(whole.X), 150, replace=False)
    small = type(whole)(whole.name, whole.X[rows], whole.labels[rows], whole.description)
    monkeypatch.setattr(choosing, "load", lambda name: small)
    monkeypatch.setattr(choosing, "MOST", 12)
    records = list(choosing.measure(["digits"], tuple(choosing.SYSTEMS), tmp_path))
    assert [r["system"] for r in records] == list(choosing.SYSTEMS)
    for record in records:
        if record["outcome"] == "finished":
            assert 0 <= float(str(record["nmi"])) <= 1
            assert -0.5 <= float(str(record["ari"])) <= 1
            assert int(str(record["clusters"])) >= 1
        else:
            assert "not installed" in str(record["outcome"])
    assert records[0]["clusters"] == 10
    table = choosing.markdown(records)
    assert table.count("\n") == 3
    assert "**" in table


def test_the_table_of_the_readme_is_that_of_the_results() -> None:
    records = json.loads((ROOT / "notebooks" / "results" / "choosing.json").read_text())["results"]
    assert {r["data"] for r in records} == set(options.SETS)
    assert choosing.markdown(records) in (ROOT / "README.md").read_text(encoding="utf-8")
