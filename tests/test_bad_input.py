"""Bad input ends with one line of five parts and exit status 2, and leaves nothing behind; odd input is warned of."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
import zarr

from ips2_dask.cli.main import main

Array = npt.NDArray[Any]
Maker = Callable[[Path], str]

PARTS = (": found ", ", allowed is ", "; otherwise ", ". Remedy: ")


def _table(rows: int = 20, columns: int = 3) -> Array:
    return np.random.default_rng(0).normal(size=(rows, columns))


def _npy(array: Callable[[], Any], name: str = "x.npy") -> Maker:
    def make(folder: Path) -> str:
        np.save(folder / name, array(), allow_pickle=True)
        return str(folder / name)

    return make


def _text(content: str, name: str = "x.csv") -> Maker:
    def make(folder: Path) -> str:
        opener = gzip.open if name.endswith(".gz") else open
        with opener(folder / name, "wt") as stream:
            stream.write(content)
        return str(folder / name)

    return make


def _with(value: Any, row: int, column: int, dtype: Any = np.float64) -> Callable[[], Array]:
    def make() -> Array:
        X = _table(40).astype(dtype)
        X[row, column] = value
        return X

    return make


def _zarr(folder: Path) -> str:
    stored = zarr.create_array(str(folder / "x.zarr"), shape=(40, 3), chunks=(10, 3), dtype="f8")
    stored[...] = _with(np.nan, 33, 2)()
    return str(folder / "x.zarr")


def _pickled(name: str) -> Maker:
    def make(folder: Path) -> str:
        (folder / name).write_bytes(pickle.dumps(_Trap(folder)))
        return str(folder / name)

    return make


class _Trap:
    """Whoever loads it leaves a mark."""

    def __init__(self, folder: Path) -> None:
        self.mark = folder / "loaded"

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.mark,)


def _trapped_array(folder: Path) -> str:
    array = np.empty(30, object)
    array[:] = [_Trap(folder)] * 30
    np.save(folder / "x.npy", array.reshape(10, 3), allow_pickle=True)
    return str(folder / "x.npy")


def _sparse(folder: Path) -> str:
    X = sp.csr_array(_with(np.nan, 5, 2)())
    sp.save_npz(folder / "x.npz", X)
    return str(folder / "x.npz")


def _folder(folder: Path) -> str:
    (folder / "x.csv").mkdir()
    return str(folder / "x.csv")


def _absent(folder: Path) -> str:
    return str(folder / "x.npy")


GOOD = _npy(_table)
CSV = "a,b,kind\n" + "".join(f"{i % 7}.5,{i % 5},{'xy'[i % 2]}\n" for i in range(30))

INPUTS: dict[str, tuple[Maker, str]] = {
    "nan": (_npy(_with(np.nan, 31, 1)), "nan at row 31, column 1"),
    "nan-first-row": (_npy(_with(np.nan, 0, 2)), "nan at row 0, column 2"),
    "infinity": (_npy(_with(-np.inf, 7, 0)), "-inf at row 7, column 0"),
    "nan-zarr": (_zarr, "nan at row 33, column 2"),
    "nan-sparse": (_sparse, "nan at row 5, column 2"),
    "nan-csv": (_text("a,b\n1,2\n3,nan\n5,6\n"), "at row 1 (line 3), column 1 ('b')"),
    "nan-named": (_text("a,b\n1,2\n3,4\n5,inf\n"), "('b')"),
    "overflow": (_npy(_with(1e302, 3, 1)), "1e+302 at row 3, column 1"),
    "text-column": (_text(CSV), "'x'"),
    "text-array": (_npy(lambda: np.array([["a", "b"]] * 9)), "text"),
    "ragged": (_text("1,2,3\n4,5,6\n7,8\n9,10,11\n"), "2 fields (divided by ',') in line 3"),
    "empty-file": (_text(""), "empty file"),
    "empty-gzip": (_text("", "x.csv.gz"), "no row of data"),
    "header-only": (_text("a,b,c\n"), "no row of data"),
    "empty-array": (_npy(lambda: np.empty((0, 3))), "0 rows"),
    "no-columns": (_npy(lambda: np.empty((9, 0))), "0 columns"),
    "one-sample": (_npy(lambda: _table(1)), "n_samples = 1"),
    "one-dimension": (_npy(lambda: np.arange(30.0)), "1 dimension"),
    "three-dimensions": (_npy(lambda: np.zeros((4, 4, 4))), "3 dimensions"),
    "complex": (_npy(lambda: _table() + 1j), "complex"),
    "dates": (_npy(lambda: np.zeros((9, 2), "M8[s]")), "datetime64"),
    "object-array": (_trapped_array, "Python objects"),
    "pickle": (_pickled("x.pkl"), "pickle"),
    "pickle-as-npy": (_pickled("x.npy"), "pickle"),
    "missing": (_absent, "no such file"),
    "directory": (_folder, "a directory"),
    "unknown-format": (_text("1 2", "x.docx"), "unknown format (.docx)"),
    "truncated": (_text("\x93NUMPY", "x.npy"), "bytes that can't be read"),
    "two-names": (_text("1,2\n3,4\n", "x.csv"), "::"),
}

OPTIONS: dict[str, tuple[list[str], str]] = {
    "few-samples": (["--clusters", "21"], "--clusters: found 21 with 20 samples"),
    "no-cluster": (["--clusters", "0"], "--clusters: found 0"),
    "large-k": (["--neighbors", "21"], "--neighbors: found 21 with 20 samples"),
    "larger-k": (["--neighbors", "65"], "at most 64"),
    "k-of-one": (["--neighbors", "1"], "--neighbors: found 1"),
    "sigma-zero": (["--sigma", "0"], "--sigma: found 0.0"),
    "sigma-negative": (["--sigma", "-1"], "--sigma: found -1.0"),
    "sigma-nan": (["--sigma", "nan"], "--sigma: found nan"),
    "epsilon-zero": (["--epsilon", "0"], "--epsilon: found 0.0"),
    "epsilon-large": (["--epsilon", ".001"], "--epsilon: found 0.001"),
    "bandwidth-word": (["--bandwidth", "mode"], "--bandwidth: found 'mode'"),
    "bandwidth-zero": (["--bandwidth", "0"], "--bandwidth: found 0.0"),
    "weight": (["--fusion-weight", "1.5"], "--fusion-weight: found 1.5"),
    "tol": (["--tol", "0"], "--tol: found 0.0"),
    "seed": (["--seed", "-1"], "--seed: found -1"),
    "memory": (["--memory-limit", "lots"], "--memory-limit: found 'lots'"),
    "partition-rows": (["--partition-rows", "0"], "--partition-rows: found 0"),
    "shards": (["--shards", "0"], "--shards: found 0"),
    "label-number": (["--labels-column", "3"], "no column 3"),
    "label-name": (["--labels-column", "kind"], "no column 'kind'"),
    "labels-not-whole": (["--labels-column", "0"], "the label"),
}


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must be refused; returns its one line."""
    status = main(arguments)
    said = capsys.readouterr()
    assert status == 2, said.err
    assert said.out == ""
    lines = said.err.splitlines()
    assert len(lines) == 1, said.err
    assert lines[0].startswith("ips2: ")
    places = [lines[0].find(part) for part in PARTS]
    assert -1 not in places, lines[0]
    assert places == sorted(places)
    assert lines[0].endswith(".")
    return lines[0]


@pytest.mark.parametrize("case", INPUTS)
def test_an_input_that_cannot_be_clustered_is_one_line_and_status_2(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, said = INPUTS[case]
    source = make(tmp_path) + ("::x" if case == "two-names" else "")
    before = sorted(path.name for path in tmp_path.iterdir())
    out = tmp_path / "out" / "run"
    (tmp_path / "out").mkdir()
    line = refused(["run", source, "--clusters", "2", "--neighbors", "2", "--out", str(out), "--serial"], capsys)
    assert said in line
    assert not out.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*before, "out"])  # nor has a trap gone off


@pytest.mark.parametrize("case", OPTIONS)
def test_an_option_that_cannot_be_is_named_as_the_user_wrote_it(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, said = OPTIONS[case]
    arguments = ["run", GOOD(tmp_path), "--out", str(tmp_path / "run"), "--serial", "--clusters", "2", *options]
    assert said in refused(arguments, capsys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.npy"]
    plan = ["plan", str(tmp_path / "x.npy"), "--clusters", "2", *options]
    if case == "labels-not-whole":  # found when labels are read, which a plan does not
        assert main(plan) == 0
    else:
        assert said in refused(plan, capsys)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda out: (out.mkdir(), (out / "thesis.txt").write_text("mine")), id="a-file-of-the-user"),
        pytest.param(lambda out: (out.mkdir(), (out / "manifest.json").write_text("{}")), id="a-manifest-of-another"),
        pytest.param(lambda out: zarr.create_group(str(out)), id="a-zarr-group"),
        pytest.param(lambda out: zarr.create_array(str(out), shape=(3,), dtype="f4"), id="a-zarr-array"),
        pytest.param(lambda out: out.write_text("mine"), id="a-file"),
    ],
)
def test_an_output_that_holds_something_else_is_not_touched(
    spoil: Callable[[Path], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    spoil(out)
    before = _contents(tmp_path)
    source = GOOD(tmp_path)
    line = refused(["run", source, "--clusters", "2", "--out", str(out), "--serial"], capsys)
    assert str(out) in line
    Path(source).unlink()
    assert _contents(tmp_path) == before


def test_a_scratch_folder_below_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = GOOD(tmp_path)
    arguments = ["run", source, "--clusters", "2", "--out", str(tmp_path / "run"), "--scratch", source + "/scratch"]
    assert "--scratch: found" in refused(arguments, capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


def test_an_output_below_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = GOOD(tmp_path)
    line = refused(["run", source, "--clusters", "2", "--out", source + "/run", "--serial"], capsys)
    assert "which is a file" in line


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_an_empty_output_directory_stays_empty_after_a_refusal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    source = _npy(_with(np.nan, 3, 1))(tmp_path)
    refused(["run", source, "--clusters", "2", "--out", str(out), "--serial"], capsys)
    assert out.is_dir()
    assert list(out.iterdir()) == []


def test_a_refusal_leaves_an_earlier_run_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    good, bad = GOOD(tmp_path), _npy(_with(np.nan, 3, 1), "bad.npy")(tmp_path)
    assert main(["run", good, "--clusters", "2", "--out", str(out), "--serial", "--quiet"]) == 0
    before = _contents(out)
    refused(["run", bad, "--clusters", "2", "--out", str(out), "--serial", "--quiet"], capsys)
    assert _contents(out) == before
    assert main(["run", good, "--clusters", "2", "--out", str(out), "--serial", "--quiet", "--json"]) == 0
    assert all(stage["skipped"] for stage in json.loads(capsys.readouterr().out)["stages"])


def test_a_directory_of_another_format_version_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    arguments = ["run", GOOD(tmp_path), "--clusters", "2", "--out", str(out), "--serial", "--quiet"]
    assert main(arguments) == 0
    manifest = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    assert "format 99" in refused(arguments, capsys)


def _constant() -> Array:
    X = _table(40)
    X[:, 1] = 3.0
    return X


def _equal_rows() -> Array:
    return np.tile([1.0, 2.0, 3.0], (20, 1))


def _copies() -> Array:
    X = _table(40)
    X[:9] = X[0]
    return X


def _large_integers() -> Array:
    X = np.arange(60, dtype=np.int64).reshape(20, 3) ** 2
    X[4, 1] = 2**40 + 1
    return X


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (_constant, ["1 of 3 columns are constant"]),
        (_equal_rows, ["all 20 rows are equal", "20 of 20 samples have an exact duplicate"]),
        (_copies, ["9 of 40 samples have an exact duplicate", "9 samples see only copies of themselves"]),
        (_large_integers, ["whole numbers have more digits than float32 keeps"]),
    ],
)
def test_odd_input_is_clustered_with_a_warning_that_counts(
    array: Callable[[], Array], said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    command = ["run", _npy(array)(tmp_path), "--clusters", "2", "--out", str(out), "--serial", "--json"]
    assert main([*command, "--duplicates", "keep"]) == 0
    printed = capsys.readouterr().out
    found = json.loads(printed.splitlines()[-1])["warnings"]
    for text in said:
        assert any(text in warning for warning in found), found
        assert text in printed
        assert any(character.isdigit() for character in text) or "whole numbers" in text
