"""The estimators in scikit-learn's pipelines, searches and frames, and in a user's own typed code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score, silhouette_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import ips2_dask
from ips2_dask import IPS2, PPC

Array = npt.NDArray[Any]
predicts = pytest.mark.skipif(not hasattr(IPS2, "predict"), reason="needs predict")
transforms = pytest.mark.skipif(not hasattr(IPS2, "transform"), reason="needs transform")


def blobs() -> tuple[Array, Array]:
    rng = np.random.default_rng(3)
    y = np.repeat(np.arange(3), 25)
    return rng.normal(size=(75, 4)) + 9 * np.eye(3, 4)[y], y


def without_labels(fitted: Any, X: Array, y: Any = None) -> float:
    del y
    return float(silhouette_score(X, fitted.labels_))


def with_labels(fitted: Any, X: Array, y: Array) -> float:
    del X
    return float(adjusted_rand_score(y, fitted.labels_))


def test_a_pipeline_ends_in_labels() -> None:
    X, y = blobs()
    found = make_pipeline(StandardScaler(), IPS2(n_clusters=3)).fit_predict(X)
    assert adjusted_rand_score(y, found) == 1
    np.testing.assert_array_equal(found, IPS2(n_clusters=3).fit_predict(StandardScaler().fit_transform(X)))


@pytest.mark.filterwarnings("ignore::ips2_dask.IPS2Warning")  # two clusters of three far groups
@pytest.mark.parametrize("scoring", [without_labels, with_labels])
def test_a_grid_search_finds_the_number_of_clusters_with_and_without_labels(scoring: Any) -> None:
    X, y = blobs()
    everything = [(np.arange(75), np.arange(75))]  # labels of the training data are scored
    search = GridSearchCV(IPS2(), {"n_clusters": [2, 3, 5], "metric": ["euclidean", "manhattan"]}, scoring=scoring)
    search.set_params(cv=everything).fit(X, y if scoring is with_labels else None)
    assert search.best_params_["n_clusters"] == 3
    assert search.best_score_ > 0.6
    assert search.best_estimator_.labels_.shape == (75,)


@pytest.mark.filterwarnings("ignore::ips2_dask.IPS2Warning")
@predicts
def test_a_grid_search_scores_predictions_of_samples_left_out() -> None:
    X, y = blobs()
    mixed = np.random.default_rng(0).permutation(75)
    search = GridSearchCV(IPS2(), {"n_clusters": [2, 3]}, scoring="adjusted_rand_score", cv=3).fit(X[mixed], y[mixed])
    assert search.best_params_["n_clusters"] == 3


@pytest.mark.filterwarnings("ignore::ips2_dask.IPS2Warning")
def test_a_distance_matrix_is_cut_on_both_sides_in_a_search() -> None:
    X, _ = blobs()
    d = np.linalg.norm(X[:, None] - X, axis=2)

    def size(fitted: Any, D: Array, y: Any = None) -> float:
        del D, y
        return float(fitted.n_features_in_)

    search = GridSearchCV(IPS2(metric="precomputed"), {"n_clusters": [2, 3]}, scoring=size, cv=3).fit(d)
    assert search.cv_results_["mean_test_score"].tolist() == [50, 50]


def test_the_columns_of_the_embedding_are_named_after_the_class() -> None:
    X, _ = blobs()
    assert IPS2(n_clusters=3).fit(X).get_feature_names_out().tolist() == [f"ips2{j}" for j in range(3 + 8)]
    assert PPC(n_clusters=3, n_components=3).fit(X).get_feature_names_out().tolist() == ["ppc0", "ppc1", "ppc2"]


@transforms
def test_set_output_gives_a_frame_with_the_samples_names() -> None:
    X, _ = blobs()
    frame = pd.DataFrame(X, columns=list("abcd"), index=[f"s{i}" for i in range(75)])
    found = IPS2(n_clusters=3, n_components=3).set_output(transform="pandas").fit(frame).transform(frame)
    assert found.columns.tolist() == ["ips20", "ips21", "ips22"]
    assert found.index.tolist() == frame.index.tolist()


def test_a_clone_has_the_metric_and_no_fit() -> None:
    again = clone(IPS2(n_clusters=3, metric="cosine").fit(blobs()[0]))
    assert again.metric == "cosine"
    assert not hasattr(again, "labels_")


USERS_FILE = """
from typing import assert_type

import numpy as np
from numpy.typing import NDArray

from ips2_dask import IPS2, PAPER, PPC, BadInput, Params, Resources, Run, open_run, run


def cluster(X: NDArray[np.float64], folder: str) -> NDArray[np.int32]:
    found = run(X, Params(n_clusters=3, metric="cosine"), Resources(memory_limit=2**30), store=folder)
    assert_type(found, Run)
    assert_type(found.neighbors.distances, NDArray[np.floating])
    path = open_run(folder).write_labels(folder + "/labels.csv")
    print(path.name, found.report()["m"])
    return found.labels


def fitted(X: NDArray[np.float64]) -> PPC:
    assert_type(IPS2(n_clusters=3, **PAPER).fit(X), IPS2)
    estimator = PPC(n_clusters=3, random_state=None).fit(X)
    assert_type(estimator.labels_, NDArray[np.int32])
    return estimator


def refused(X: NDArray[np.float64]) -> str:
    try:
        IPS2(n_clusters=0).fit(X)
    except BadInput as error:
        return error.remedy
    return ""
"""


@pytest.mark.slow
def test_a_users_file_passes_strict_mypy_and_a_wrong_one_does_not(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(USERS_FILE)
    (tmp_path / "wrong.py").write_text(USERS_FILE.replace("n_clusters=0", "n_clusters=[0]"))
    package = str(Path(ips2_dask.__file__).parent.parent)
    shown = {
        name: subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", f"{name}.py"],
            cwd=tmp_path,
            env={**os.environ, "MYPYPATH": package},
            capture_output=True,
            text=True,
            check=False,
        )
        for name in ("user", "wrong")
    }
    assert shown["user"].returncode == 0, shown["user"].stdout
    assert "wrong.py" in shown["wrong"].stdout
    assert "n_clusters" in shown["wrong"].stdout
