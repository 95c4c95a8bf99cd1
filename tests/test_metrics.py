"""Five scores against cases counted by hand, brute force, and scikit-learn."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix, pair_confusion_matrix

from ips2_dask import metrics
from ips2_dask.errors import BadInput

# six samples: class a is split 2 + 1, class b is 1 + 2
TRUE = ["a", "a", "a", "b", "b", "b"]
PRED = [7, 7, 3, 7, 3, 3]

two_labelings = st.integers(1, 40).flatmap(
    lambda m: st.tuples(
        st.lists(st.integers(-2, 4), min_size=m, max_size=m), st.lists(st.sampled_from("pqrst"), min_size=m, max_size=m)
    )
)


def test_accuracy_by_hand() -> None:
    assert metrics.accuracy(TRUE, PRED) == pytest.approx(4 / 6)


def test_a_class_without_a_cluster_counts_as_wrong() -> None:
    assert metrics.accuracy([0, 0, 1, 2], ["x", "x", "x", "x"]) == 0.5
    assert metrics.accuracy(["x", "x", "x", "x"], [0, 0, 1, 2]) == 0.5


def test_accuracy_matches_one_to_one_where_purity_does_not() -> None:
    true, pred = [0, 0, 0, 0, 1], [0, 0, 1, 1, 1]
    assert metrics.accuracy(true, pred) == pytest.approx(3 / 5)
    assert metrics.scores(true, pred)["purity"] == pytest.approx(4 / 5)


def test_purity_is_of_the_clusters_and_not_of_the_classes() -> None:
    assert metrics.scores([0, 0, 1, 1], [0, 1, 2, 3])["purity"] == 1
    assert metrics.scores([0, 1, 2, 3], [0, 0, 1, 1])["purity"] == 0.5


def test_f_score_by_hand() -> None:
    # pairs: 6 share a class, 6 share a cluster, 2 share both
    assert metrics.scores(TRUE, PRED)["fscore"] == pytest.approx(2 * 2 / 12)


def test_f_score_of_single_samples_is_one_and_of_all_pairs_missed_zero() -> None:
    assert metrics.scores([0, 1, 2], [2, 1, 0])["fscore"] == 1
    assert metrics.scores([0, 0], [0, 1])["fscore"] == 0


def test_adjusted_rand_by_hand() -> None:
    # sum over cells 2, expected 6 * 6 / 15, maximum 6
    assert metrics.scores(TRUE, PRED)["ari"] == pytest.approx((2 - 2.4) / (6 - 2.4))


def test_nmi_by_hand() -> None:
    mutual = sum(n / 6 * np.log2(n / 6 / 0.25) for n in (2, 1, 1, 2))
    assert metrics.scores(TRUE, PRED)["nmi"] == pytest.approx(mutual)  # both entropies are one bit


@given(two_labelings)
def test_scores_agree_with_scikit_learn(both: tuple[list[int], list[str]]) -> None:
    true, pred = both
    found = metrics.scores(true, pred)
    table = contingency_matrix(true, pred)
    (_, false_positive), (false_negative, both_pairs) = pair_confusion_matrix(true, pred)
    pairs = 2 * both_pairs + false_positive + false_negative
    assert list(found) == ["acc", "ari", "fscore", "nmi", "purity"]
    assert found["ari"] == pytest.approx(adjusted_rand_score(true, pred))
    assert found["nmi"] == pytest.approx(normalized_mutual_info_score(true, pred))
    assert found["purity"] == pytest.approx(table.max(axis=0).sum() / table.sum())
    assert found["fscore"] == pytest.approx(2 * both_pairs / pairs if pairs else 1)
    np.testing.assert_array_equal(metrics.contingency(true, pred).toarray(), table)


@given(st.integers(1, 30).flatmap(lambda m: st.tuples(*[st.lists(st.integers(0, 4), min_size=m, max_size=m)] * 2)))
def test_accuracy_is_that_of_the_best_of_all_matchings(both: tuple[list[int], list[int]]) -> None:
    true, pred = both
    right = [
        sum(matched[p] == t for t, p in zip(true, pred, strict=True)) for matched in itertools.permutations(range(5))
    ]
    assert metrics.accuracy(true, pred) == pytest.approx(max(right) / len(true))


@given(two_labelings, st.randoms())
def test_renaming_the_clusters_changes_no_score(both: tuple[list[int], list[str]], random: Any) -> None:
    true, pred = both
    names = sorted(set(pred))
    renamed = dict(zip(names, random.sample(range(100), len(names)), strict=True))
    assert metrics.scores(true, [renamed[p] for p in pred]) == pytest.approx(metrics.scores(true, pred))


def test_a_perfect_clustering_scores_one_everywhere() -> None:
    assert metrics.scores(["x", "y", "x"], [5, 2, 5]) == dict.fromkeys(("acc", "ari", "fscore", "nmi", "purity"), 1)


def test_labels_of_mixed_kinds_are_counted() -> None:
    mixed = np.array(["a", 1, None, "a"], dtype=object)
    assert metrics.scores(mixed, [0, 1, 2, 0])["acc"] == 1


def test_two_million_samples_with_many_clusters_fit() -> None:
    rng = np.random.default_rng(0)
    true = rng.integers(0, 50, 2_000_000)
    pred = np.where(rng.random(len(true)) < 0.25, rng.integers(0, 50, len(true)), true)
    found = metrics.scores(true, pred)
    assert found["acc"] == pytest.approx(0.755, abs=0.002)
    assert found["fscore"] == pytest.approx(0.755**2 + 0.25**2 * 0.02 * 0.98, abs=0.01)


@pytest.mark.parametrize(
    ("true", "pred", "named"),
    [([0, 1], [0], "1 labels for 2 samples"), ([], [], "labels_true"), ([0], [[0]], "labels_pred: found shape (1, 1)")],
)
def test_labels_that_do_not_match_are_named(true: list[int], pred: list[int], named: str) -> None:
    with pytest.raises(BadInput) as refusal:
        metrics.scores(true, pred)
    assert named in str(refusal.value)


@pytest.mark.parametrize(("classes", "clusters"), [(1, 1), (1, 3), (3, 1), (2, 2), (7, 4), (40, 40)])
def test_scores_of_a_table_are_those_of_the_labels(classes: int, clusters: int) -> None:
    rng = np.random.default_rng(classes + clusters)
    true = rng.integers(0, classes, 60)
    for pred in (rng.integers(0, clusters, 60), np.minimum(true, clusters - 1), rng.permutation(60)):
        table = metrics.contingency(true, pred)
        padded = csr_array((table.data, table.indices + 1, table.indptr), shape=(table.shape[0], table.shape[1] + 2))
        expected = metrics.scores(true, pred)
        for one in (table, padded):  # clusters without a sample change nothing
            found = metrics.scores_of_table(one)
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                assert found[name] == pytest.approx(value, rel=1e-12, abs=1e-15), name


def test_scores_of_an_empty_table_are_refused() -> None:
    with pytest.raises(BadInput, match="no sample"):
        metrics.scores_of_table(csr_array((3, 3), dtype=np.int64))
