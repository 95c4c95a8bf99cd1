"""A masked array is refused by every entry of the package, unless nothing in it is masked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ips2_dask import IPS2, PPC, BadInput, Params, explicit, run, sweep
from ips2_dask.paper.baselines import CAVE, HGC, SC, SSC
from ips2_dask.readers import open_source

Array = npt.NDArray[Any]
X = np.random.default_rng(5).normal(size=(40, 4)) + 3 * np.eye(3, 4)[np.arange(40) % 3]
S = np.exp(-np.square(X[:, None] - X).sum(axis=2))
ENTRIES: dict[str, tuple[Array, Callable[[Any, Path], Any]]] = {
    "fit": (X, lambda given, _: IPS2(3).fit(given).labels_),
    "fit_predict": (X, lambda given, _: IPS2(3).fit_predict(given)),
    "fit_transform": (X, lambda given, _: PPC(3).fit_transform(given)),
    "predict": (X, lambda given, _: IPS2(3).fit(X).predict(given)),
    "predict_proba": (X, lambda given, _: IPS2(3).fit(X).predict_proba(given)),
    "transform": (X, lambda given, _: IPS2(3).fit(X).transform(given)),
    "run": (X, lambda given, _: run(given, Params(n_clusters=3)).labels),
    "run-of-rows": (X, lambda given, _: run(list(given), Params(n_clusters=3)).labels),
    "fit-of-rows": (X, lambda given, _: IPS2(3).fit(list(given)).labels_),
    "run-predict": (X, lambda given, _: run(X, Params(n_clusters=3)).predict(given)),
    "source": (X, lambda given, _: open_source(given).read(0, 40)),
    "sweep": (
        X,
        lambda given, folder: len(sweep(given, {"n_clusters": (2, 3)}, store=folder / "s", files=False).points),
    ),
    "similarity": (S, lambda given, _: IPS2(3, affinity="precomputed").fit(X, similarity=given).labels_),
    "knn_graph": (S, lambda given, _: IPS2(3).fit(X, knn_graph=given).labels_),
    "sc": (X, lambda given, _: SC(3).fit(given).labels_),
    "ssc": (X, lambda given, _: SSC(3).fit(given).labels_),
    "cave": (X, lambda given, _: CAVE(3).fit(given).labels_),
    "hgc": (X, lambda given, _: HGC(3).fit(given).labels_),
    "explicit": (X, lambda given, _: explicit.pairwise_similarity(given)),
    "laplacian": (S, lambda given, _: explicit.laplacian(given)),
    "unfold": (S, lambda given, _: explicit.unfold(given)),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_masked_values_are_refused_in_one_line(entry: str, tmp_path: Path) -> None:
    whole, call = ENTRIES[entry]
    mask = np.zeros(whole.shape, bool)
    mask[7, 2] = mask[9, 1] = True
    with pytest.raises(BadInput, match=r"2 masked values, the first at \(7, 2\)") as caught:
        call(np.ma.masked_array(whole, mask), tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_masked_array_without_masked_values_is_an_array(entry: str, tmp_path: Path) -> None:
    whole, call = ENTRIES[entry]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    found, expected = call(np.ma.masked_array(whole), tmp_path / "a"), call(whole, tmp_path / "b")
    np.testing.assert_array_equal(found, expected)
