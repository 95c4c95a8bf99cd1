"""Tables of few distinct rows: every door works, or says in one line of five parts what there is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from harness import few_examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.spatial.distance import cdist

from ips2_dask import IPS2, PAPER, PPC, BadInput, Features, Params, Refused, Resources, Run, run, sweep
from ips2_dask.cli.main import main

Array = npt.NDArray[Any]

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": PAPER,
    "ppc": {"method": "ppc"},
    "keep": {"duplicates": "keep"},
    "decomposable": {"tensor": "decomposable"},
    "gaussian": {"affinity": "gaussian"},
    "density": {"assign_labels": "density"},
    "leiden": {"assign_labels": "leiden"},
    "hamming": {"metric": "hamming"},
    "cosine": {"metric": "cosine"},
    "jaccard": {"metric": "jaccard"},
    "zscore": {"scale": "zscore"},
    "pairs": {"n_neighbors": 2},
    "shards": {"graph": "shards"},
    "descent": {"graph": "pynndescent"},
    "signed": {"high_order": "signed"},
    "normalized": {"fusion": "normalized"},
    "matrix-free": {"operator": "matrix-free"},
    "exactly": {"tol": 1e-6},
    "few columns": {"n_components": 2},
}


class Few(NamedTuple):
    """A table of 1 to 12 distinct rows, and what any door is asked for."""

    X: Array | pd.DataFrame
    features: Features | None

    @property
    def numbers(self) -> Array:
        """The rows as numbers."""
        return self.X if isinstance(self.X, np.ndarray) else pd.get_dummies(self.X).to_numpy(np.float64)


@st.composite
def tables(draw: st.DrawFn) -> Few:
    n = draw(st.integers(1, 12))
    kind = draw(st.sampled_from(["one-hot", "binary", "ordinal", "text", "numbers"]))
    rng = np.random.default_rng(draw(st.integers(0, 10)))
    rows: Array = np.eye(n)
    if kind == "binary":
        rows = np.unique(rng.integers(0, 2, (n, draw(st.integers(1, 4)))), axis=0).astype(np.float64)
    elif kind == "ordinal":
        rows = np.arange(1.0, n + 1)[:, None]
    elif kind == "numbers":
        rows = rng.normal(size=(n, 2))
    copies = rng.integers(1, draw(st.sampled_from([2, 5])), len(rows))
    which = rng.permutation(np.repeat(np.arange(len(rows)), copies))
    if len(which) == 1:
        which = np.zeros(2, np.int64)
    if kind == "text":
        frame = pd.DataFrame({"answer": np.array([f"answer {i}" for i in range(n)])[which]})
        return Few(frame, Features(one_hot=["answer"]))
    return Few(rows[which], None)


def said(door: Callable[[], Any]) -> Any:
    """What a door gives; None where it says in one line why not."""
    try:
        return door()
    except (BadInput, Refused) as error:
        refusal = error
    assert "\n" not in str(refusal)
    assert not isinstance(refusal, BadInput) or all((refusal.found, refusal.allowed, refusal.otherwise, refusal.remedy))
    return None


def check(found: Run, few: Few, wanted: int | str) -> None:
    """Whatever a run gives is finite and fits together, and equal rows have one label."""
    labels, c = found.labels, len(found.sizes)
    assert set(labels.tolist()) == set(range(c))
    assert np.isfinite(found.certainty).all()
    assert found.certainty.min() >= 0
    assert found.certainty.max() <= 1
    if wanted == 1:
        assert c == 1
        assert found.certainty.min() == 1
        np.testing.assert_array_equal(found.cut(1), labels)
    if found.params.merges_rows and found.params.metric not in ("cosine", "precomputed"):
        _, same = np.unique(few.numbers, axis=0, return_inverse=True)
        assert len({*zip(same.ravel().tolist(), labels.tolist(), strict=True)}) == len(np.unique(same))
    np.testing.assert_allclose(found.shares().sum(axis=1), 1, rtol=1e-5)
    json.dumps(found.report(), allow_nan=False)
    said(lambda: [layer.labels for layer in found.layers])
    for n in (1, 2, 3):
        said(lambda n=n: found.cut(n))  # type: ignore[misc]
    again = said(lambda: found.predict(few.X))
    if again is not None and found.params.merges_rows:
        np.testing.assert_array_equal(again, labels)
    shares = said(lambda: found.predict_proba(few.X))
    assert shares is None or np.allclose(shares.sum(axis=1), 1)
    said(lambda: found.transform(few.X))


def through(few: Few, name: str, n_clusters: int | str, vectors: str) -> None:
    options = {**SETTINGS[name], "n_clusters": n_clusters}
    found = said(lambda: run(few.X, Params(**options), Resources(vectors=vectors), features=few.features))
    if found is not None:
        check(found, few, n_clusters)


NUMBERS = [1, 2, 3, 8, "auto"]


@few_examples()
@given(
    tables(), st.lists(st.sampled_from([*SETTINGS]), min_size=3, max_size=3), st.sampled_from(NUMBERS), st.booleans()
)
def test_every_setting_works_or_says_why_not(few: Few, names: list[str], n_clusters: int | str, chunked: bool) -> None:
    for name in names:
        through(few, name, n_clusters, "chunked" if chunked else "auto")


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
@settings(max_examples=12)
@given(few=tables())
def test_every_setting_and_number_works_or_says_why_not(name: str, few: Few) -> None:
    for n_clusters in NUMBERS:
        through(few, name, n_clusters, "auto")
    through(few, name, 2, "chunked")
    through(few, name, "auto", "chunked")


@few_examples()
@given(tables(), st.sampled_from(NUMBERS))
def test_given_matrices_work_or_say_why_not(few: Few, n_clusters: int | str) -> None:
    X = few.numbers
    D = cdist(X, X)
    S = np.exp(-D)
    near = sparse.csr_array(D + 1e-9) if len(X) < 8 else sparse.csr_array(np.where(np.median(D) >= D, D + 1e-9, 0))
    for source, options, beside in (
        (D, {"metric": "precomputed"}, {}),
        (near, {"metric": "precomputed"}, {}),
        (X, {"affinity": "precomputed"}, {"similarity": S}),
        (X, {}, {"knn_graph": sparse.csr_array(np.ones_like(D))}),
    ):
        params: dict[str, Any] = {**options, "n_clusters": n_clusters}
        found = said(lambda: run(source, Params(**params), **beside))  # type: ignore[arg-type]  # noqa: B023
        if found is not None:
            check(found, Few(source, None) if "metric" in options else few, n_clusters)


@pytest.mark.filterwarnings("ignore::ips2_dask.IPS2Warning")
@few_examples()
@given(tables(), st.sampled_from([IPS2, PPC]), st.sampled_from(NUMBERS))
def test_the_estimators_work_or_say_why_not(few: Few, kind: type[IPS2], n_clusters: int | str) -> None:
    fitted = said(lambda: kind(n_clusters).fit(few.numbers))
    if fitted is not None:
        np.testing.assert_array_equal(fitted.predict(few.numbers), fitted.labels_)


@settings(max_examples=3)
@given(few=tables(), name=st.sampled_from(["default", "paper", "leiden", "ppc", "keep"]))
def test_a_sweep_works_or_says_why_not(few: Few, name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("sweep")
    params = Params(**SETTINGS[name])
    found = said(
        lambda: sweep(few.X, {"n_clusters": (2, 3, 5)}, params, store=folder, features=few.features, files=False)
    )
    if found is not None:
        assert [len(found.points), np.isfinite([[*p.criteria.values()] for p in found.points]).all()] == [3, True]


ANSWERS = {
    "all equal": [3] * 6,
    "yes and no": [0, 1, 1, 0, 1, 1],
    "three": [0, 1, 2] * 3,
    "one to five": [1] * 9 + [2] * 3 + [3] * 4 + [4] * 2 + [5],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["all equal", "yes and no", "three", "one to five"])
def test_the_command_line_takes_one_answer_of_each_person(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, out = str(tmp_path / "answers.csv"), str(tmp_path / "run")
    pd.DataFrame({"answer": ANSWERS[name]}).to_csv(table, index=False)
    for words in (["--clusters", "1"], ["--clusters", "auto"], ["--clusters", "2", "--labels", "leiden"]):
        assert main(["run", table, *words, "--out", out, "--serial", "--quiet"]) == 0
        assert main(["predict", out, table, "--out", str(tmp_path / "labels.csv"), "--proba"]) == 0
    swept = ["sweep", table, "--clusters", "2:6", "--out", str(tmp_path / "sweep"), "--serial", "--quiet"]
    assert main(swept) == 0
    assert main([*swept[:2], "--clusters", "1:3", *swept[4:]]) == 2
    assert "leave 1 out" in capsys.readouterr().err


def test_categories_without_any_structure_are_warned_of() -> None:
    found = run(np.repeat(np.eye(5), 3, axis=0), Params(n_clusters="auto"))
    assert found.choice is not None
    assert any("or for any: no tree of density" in text for text in found.report()["warnings"])


@pytest.mark.parametrize("vectors", ["in-core", "chunked"])
@pytest.mark.parametrize("assign", ["auto", "kmeans", "leiden"])
def test_one_cluster_holds_everything_however_far_apart(assign: str, vectors: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 2)) + 100 * rng.integers(0, 5, (90, 1))
    found = run(X, Params(n_clusters=1, assign_labels=assign), Resources(vectors=vectors))
    assert not found.labels.any()
    assert found.certainty.min() == 1
    assert found.shares().shape == (90, 1)
    assert not found.predict(X + 1).any()
    assert found.embedding is not None
    assert found.embedding.shape == (90, 9)
    assert found.report()["warnings"] == []


def test_a_cut_that_the_tree_has_not_is_answered_by_those_that_it_has() -> None:
    rng = np.random.default_rng(0)
    found = run(rng.normal(size=(60, 2)) + 30 * np.repeat(np.eye(3, 2), 20, axis=0), Params(n_clusters=3))
    with pytest.raises(BadInput, match="a number of leaves that the tree of density has: ") as caught:
        found.cut(40)
    numbers = [int(word) for word in caught.value.allowed.rpartition(":")[2].split(",")]
    assert [len(np.unique(found.cut(c))) for c in numbers] == numbers
    assert 3 in numbers


@pytest.mark.slow
def test_a_report_of_one_cluster_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = run(np.repeat(np.eye(3), 2, axis=0), Params(n_clusters=1), store=tmp_path / "run")
    from ips2_dask.reports import report  # noqa: PLC0415  it needs Matplotlib

    assert report(found, tmp_path / "page.html").stat().st_size > 10_000


def test_points_that_coincide_are_said_in_the_runs_own_words() -> None:
    found = run(np.eye(9), Params(n_clusters=8, n_components=2))
    assert any("of 8 clusters could be told apart" in text for text in found.report()["warnings"])
