"""Benchmarks of equal rows and of islands: their data, one record a variant, and the table made of records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from ips2_dask import datasets
from ips2_dask.bench import copies, islands, labelled_data, options
from ips2_dask.cli.main import main
from ips2_dask.stages.similarity_views import weighed

Record = dict[str, Any]


def test_the_options_name_sets_that_are_known() -> None:
    assert {name.partition("@")[0].partition(":")[0] for name in options.COPIED} <= set(datasets.names())


def test_rounded_rows_are_multiples_of_the_step_and_drawn_rows_are_the_sets() -> None:
    plain, coarse, few = labelled_data.labelled_data("digits"), copies.rounded("digits:4"), copies.rounded("digits@100")
    np.testing.assert_array_equal(coarse.X, np.floor(plain.X / 4) * 4)
    np.testing.assert_array_equal(coarse.known, plain.known)
    assert few.X.shape == (100, 64)
    assert {tuple(row) for row in few.X} <= {tuple(row) for row in plain.X}
    np.testing.assert_array_equal(copies.rounded("digits@100").X, few.X)


def test_an_entry_is_multiplied_by_the_weights_of_both_samples() -> None:
    U = np.random.default_rng(0).random((5, 5))
    weights = np.array([1.0, 2, 3, 0.5, 4])
    np.testing.assert_allclose(weighed(U, weights), U * np.outer(weights, weights))
    np.testing.assert_allclose(weighed(sp.csr_array(U), weights).toarray(), U * np.outer(weights, weights))
    assert weighed(U, None) is U


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return list(copies.measure(["iris", "digits:8@300"]))


def test_there_is_a_record_for_each_set_and_variant(records: list[Record]) -> None:
    assert [(r["data"], r["variant"]) for r in records] == [
        (name, variant) for name in ("iris", "digits:8@300") for variant in copies.VARIANTS
    ]
    assert {r["distinct"] for r in records if r["data"] == "iris"} == {149}
    for r in records:
        assert 0 <= r["nmi"] <= 1
        assert r["outcome"] == "finished"


def test_the_table_has_means_and_the_largest_loss(records: list[Record]) -> None:
    means, sets = copies.markdown(records).split("\n\n")
    of = {(r["data"], r["variant"]): r for r in records}
    for line in means.splitlines()[2:]:
        variant, mean, loss = (cell.strip() for cell in line.strip("|").split("|"))
        both = [of[name, variant] for name in ("iris", "digits:8@300")]
        assert mean == " / ".join(f"{np.mean([r[name] for r in both]):.3f}" for name in labelled_data.SCORES)
        losses = [of[r["data"], "edges one, k-means one"]["nmi"] - r["nmi"] for r in both]
        assert loss.startswith(f"{max(losses):.3f} (")
    assert len(sets.splitlines()) == 4


def test_groups_that_are_cut_off_are_islands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(islands, "SIZE", 12)
    monkeypatch.setattr(islands, "CLUSTERS", 3)
    assert main(["bench", "islands", "--samples", "1500", "--features", "8", "--groups", "2,4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["groups 0", "groups 2", "groups 4"]
    assert "islands 0 " in lines[0]
    assert "islands 2 " in lines[1]
    assert "islands 4 " in lines[2]
