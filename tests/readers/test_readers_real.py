"""Real files, as their publishers wrote them; found through the environment variable IPS2_DATA."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from ips2_dask.errors import BadInput
from ips2_dask.readers import open_source

pytestmark = pytest.mark.slow

DATA = Path(os.environ.get("IPS2_DATA", "nowhere"))


def file(name: str) -> Path:
    """Return the path of a data file, or skip the test."""
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not in the folder that IPS2_DATA names")
    return DATA / name


@pytest.mark.parametrize(
    ("name", "column", "shape", "counts"),
    [
        ("scadi/SCADI.csv", "Classes", (70, 205), [2, 7, 1, 12, 3, 29, 16]),
        ("soybean/soybean-small.data", -1, (47, 35), [10, 10, 10, 17]),
        ("wine/wine.data", 0, (178, 13), [59, 71, 48]),
        ("glass/glass.data", "-1", (214, 10), [70, 76, 17, 13, 9, 29]),
        ("pendigits/pendigits.tes", 16, (3498, 16), [363, 364, 364, 336, 364, 335, 336, 364, 336, 336]),
        ("usps/zip.test.gz", "0", (2007, 256), [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]),
        ("yale/Yale.mat", "Y", (165, 1024), [11] * 15),
        ("allaml/ALLAML.mat", "Y", (72, 7129), [47, 25]),
        ("lung/lung_small.mat", "Y", (73, 325), [6, 5, 5, 16, 7, 13, 21]),
    ],
)
def test_published_files_have_their_known_shape_and_classes(
    name: str, column: str | int, shape: tuple[int, int], counts: list[int]
) -> None:
    source = pickle.loads(pickle.dumps(open_source(file(name), labels_column=column)))
    assert source.shape == shape
    assert np.unique(source.labels(), return_counts=True)[1].tolist() == counts
    whole = np.concatenate(list(source.blocks(50)))
    assert whole.shape == shape
    assert np.isfinite(whole).all()
    assert np.array_equal(source.read(3, 40), whole[3:40])


def test_letter_agrees_with_numpy() -> None:
    path = file("letter/letter-recognition.data")
    source = open_source(path, labels_column=0)
    assert np.array_equal(source.read(0, 20000), np.loadtxt(path, delimiter=",", usecols=range(1, 17)))
    labels = source.labels()
    assert labels is not None
    assert "".join(labels[:5]) == "TIDNG"
    assert len(np.unique(labels)) == 26


def test_usps_agrees_with_numpy() -> None:
    path = file("usps/zip.test.gz")
    known = np.loadtxt(path)
    assert np.array_equal(open_source(path, labels_column=0).read(0, 2007), known[:, 1:])


def test_yale_is_transposed_and_labelled_by_another_variable() -> None:
    path = file("yale/Yale_64x64.mat")
    source = open_source(f"{path}::fea", labels_column="gnd", transpose=True)
    known = scipy.io.loadmat(path)
    assert source.shape == (165, 4096)
    assert source.dtype == np.uint8
    assert np.array_equal(source.read(0, 165), known["fea"].T)
    assert np.array_equal(source.labels(), known["gnd"].ravel())  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="165 labels in 'gnd' for 4096 samples"):
        open_source(f"{path}::fea", labels_column="gnd")


def test_a_view_of_bbcsport_is_an_element_of_a_cell() -> None:
    path = file("bbcsport/bbcsport3vbigRnSp.mat")
    known = scipy.io.loadmat(path)
    for spec in (f"{path}::X[1]", f"{path}::X{{2}}"):
        source = open_source(spec, labels_column="truth", transpose=True)
        assert source.shape == (282, 2544)
        assert np.array_equal(source.read(0, 282), known["X"][0, 1].T)
        labels = source.labels()
        assert labels is not None
        assert np.bincount(labels)[1:].tolist() == [23, 63, 97, 80, 19]
    with pytest.raises(BadInput, match=r"X\[0\] \(2582, 282\), X\[1\] \(2544, 282\), X\[2\] \(2465, 282\)"):
        open_source(f"{path}::X")


def test_the_text_columns_of_kddcup_are_named() -> None:
    path = file("kddcup99/kddcup.data_10_percent.gz")
    with pytest.raises(BadInput, match=r"3 columns \(column 1, column 2, column 3\), the first is 'tcp' in row 0"):
        open_source(path, labels_column=-1)
