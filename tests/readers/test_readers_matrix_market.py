"""Matrix Market files of every kind, against SciPy's reader, and the sparse variables of MATLAB files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
from harness import slowly
from scipy import sparse

from ips2_dask.readers import open_source


def dense(matrix: Any) -> Any:
    return matrix.toarray() if sparse.issparse(matrix) else matrix


@pytest.mark.parametrize(
    ("symmetry", "field", "thin"),
    [
        ("general", "pattern", True),
        ("symmetric", "real", True),
        ("symmetric", "integer", False),
        ("skew-symmetric", "real", True),
        ("skew-symmetric", "integer", False),
    ],
)
def test_every_kind_of_file_agrees_with_scipy(symmetry: str, field: str, thin: bool, tmp_path: Path) -> None:
    path, m = tmp_path / "x.mtx", 5
    X = np.random.default_rng(0).integers(-3, 4, (m, m if symmetry != "general" else 3))
    if symmetry != "general":
        X = X + X.T if symmetry == "symmetric" else X - X.T
    pattern = field == "pattern" and thin and symmetry != "skew-symmetric"
    kind = "pattern" if pattern else "integer" if field == "integer" else "real"
    values = X if kind != "real" else X / 7
    scipy.io.mmwrite(path, sparse.coo_array(values) if thin else values, field=kind, symmetry=symmetry, precision=17)
    known = dense(scipy.io.mmread(path))
    source = open_source(path)
    assert source.shape == known.shape
    assert np.array_equal(source.read(0, len(known)), known)
    assert source.dtype == known.dtype


def test_comments_blank_lines_and_capitals_are_passed_over(tmp_path: Path) -> None:
    text = "%%MatrixMarket MATRIX Coordinate REAL general\n% a\n\n%b\n 2  3 2\n\n1 1\t 5\r\n 2 3 -.5e1 \n\n"
    (tmp_path / "x.mtx").write_text(text)
    assert open_source(tmp_path / "x.mtx").read(0, 2).tolist() == [[5, 0, 0], [0, 0, -5]]


def test_integers_too_large_for_a_float_keep_their_digits(tmp_path: Path) -> None:
    (tmp_path / "x.mtx").write_text("%%MatrixMarket matrix array integer general\n1 1\n9007199254740993\n")
    assert open_source(tmp_path / "x.mtx").read(0, 1).tolist() == [[9007199254740993]]


@pytest.mark.parametrize("version", ["4", "5"])
@pytest.mark.parametrize("kind", slowly(["f8", "?"], "f8"))
def test_sparse_variables_of_matlab_files_agree_with_scipy(version: Any, kind: str, tmp_path: Path) -> None:
    X = (np.random.default_rng(0).random((9, 4)) > 0.6).astype(kind) * np.array(3, kind)
    variables = {"before": np.eye(3), "X": sparse.csc_array(X), "after": sparse.csc_array(np.eye(2))}
    for packed in (False, True):
        if version == "4":
            variables = {name: value.astype(float) for name, value in variables.items()}
        scipy.io.savemat(tmp_path / "x.mat", variables, format=version, do_compression=packed and version == "5")
        for name in ("X", "after"):
            known = dense(scipy.io.loadmat(tmp_path / "x.mat")[name])
            source = open_source(f"{tmp_path}/x.mat::{name}")
            assert np.array_equal(source.read(0, len(known)), known)
