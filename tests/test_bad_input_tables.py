"""More bad input: damaged files of each format, directories of something else, addresses, Python arguments."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
import zarr
from test_bad_input import PARTS, refused
from test_readers import FORMATS, written

from ips2_dask import BadInput, Params, Resources, open_run, run
from ips2_dask.cli.main import main
from ips2_dask.errors import IPS2Error
from ips2_dask.store.layout import FORMAT

X = np.random.default_rng(0).normal(size=(20, 3))


def shot(folder: Path) -> dict[str, bytes | None]:
    """All that a folder holds."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def refused_untouched(arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must be refused and may touch nothing; returns its one line."""
    before = shot(folder)
    line = refused(arguments, capsys)
    assert shot(folder) == before
    return line


def cluster_arguments(source: str, out: Path) -> list[str]:
    return ["run", source, "--clusters", "2", "--neighbors", "2", "--out", str(out), "--serial", "--quiet"]


def half(path: Path) -> None:
    """Leave the first half of a file, or of each file of a folder, of at least one byte."""
    for file in [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]:
        file.write_bytes(file.read_bytes()[: max(1, file.stat().st_size // 2)])


def noise(path: Path) -> None:
    """Keep the size and nothing else of a file, or of each file of a folder."""
    for file in [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]:
        file.write_bytes(np.random.default_rng(1).bytes(file.stat().st_size))


NAMED = [name for name in FORMATS if name != "zarr-url"]


SPOILS = [half, noise]


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("name", NAMED)
def test_a_spoiled_file_of_any_format_is_refused(
    name: str, spoil: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, column, _, _ = written(name, tmp_path)
    path = Path(spec.partition("::")[0])
    spoil(path)
    line = refused_untouched(
        [*cluster_arguments(spec, tmp_path / "run"), "--labels-column", str(column)], tmp_path, capsys
    )
    assert str(path) in line or "labels-column" in line


def _npy_header(folder: Path, header: str) -> str:
    path = folder / "x.npy"
    text = header.encode().ljust(117) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + X.tobytes())
    return str(path)


def _zip(folder: Path, members: dict[str, bytes], name: str = "x.npz") -> str:
    with zipfile.ZipFile(folder / name, "w") as file:
        for member, content in members.items():
            file.writestr(member, content)
    return str(folder / name)


def _outside(folder: Path) -> str:
    np.save(folder / "secret.npy", X)
    return _zip(folder, {"../secret.npy": (folder / "secret.npy").read_bytes()[:40]})


def _h5(folder: Path, fill: Callable[[Any], Any], name: str = "x.h5") -> str:
    with h5py.File(folder / name, "w") as file:
        fill(file)
    return str(folder / name)


def _h5_external(file: Any) -> None:
    file.create_dataset("X", (20, 3), "f8", external=[("/etc/passwd", 0, 480)])


def _h5_link(file: Any) -> None:
    file["X"] = h5py.ExternalLink("/etc/hostname", "/X")


def _parquet(folder: Path, columns: dict[str, Any]) -> str:
    pq.write_table(pa.table(columns), folder / "x.parquet")
    return str(folder / "x.parquet")


def _file(folder: Path, name: str, content: bytes) -> str:
    (folder / name).write_bytes(content)
    return str(folder / name)


def _zarr_metadata(folder: Path, change: dict[str, Any]) -> str:
    zarr.create_array(str(folder / "x.zarr"), data=X, chunks=(10, 3))
    document = folder / "x.zarr" / "zarr.json"
    document.write_text(json.dumps({**json.loads(document.read_text()), **change}))
    return str(folder / "x.zarr")


def _link_to_nothing(folder: Path) -> str:
    (folder / "x.npy").symlink_to(folder / "nothing.npy")
    return str(folder / "x.npy")


SOURCES: dict[str, Callable[[Path], str]] = {
    "npy-negative-shape": lambda f: _npy_header(f, "{'descr': '<f8', 'fortran_order': False, 'shape': (-20, 3)}"),
    "npy-huge-shape": lambda f: _npy_header(f, "{'descr': '<f8', 'fortran_order': False, 'shape': (2000000000, 3)}"),
    "npy-code": lambda f: _npy_header(f, "{'descr': '<f8', 'fortran_order': False, 'shape': __import__('os')}"),
    "npy-no-type": lambda f: _npy_header(f, "{'descr': '<q9', 'fortran_order': False, 'shape': (20, 3)}"),
    "npy-records": lambda f: (np.save(f / "x.npy", np.zeros(9, "f4,f4")), str(f / "x.npy"))[1],
    "npz-empty": lambda f: _zip(f, {}),
    "npz-no-array": lambda f: _zip(f, {"readme.txt": b"hello"}),
    "npz-two-arrays": lambda f: (np.savez(f / "x.npz", A=X, B=X), str(f / "x.npz"))[1],
    "npz-no-such-member": lambda f: (np.savez(f / "x.npz", A=X), f"{f / 'x.npz'}::B")[1],
    "npz-member-outside": _outside,
    "zip-as-npy": lambda f: _zip(f, {"a": b"1"}, "x.npy"),
    "csv-nul-bytes": lambda f: _file(f, "x.csv", b"1,2\n\0\0\0\n3,4\n"),
    "csv-latin": lambda f: _file(f, "x.csv", b"a,b\n1,\xff\xfe\n3,4\n"),
    "csv-open-quote": lambda f: _file(f, "x.csv", b'a,b\n"1,2\n3,4\n'),
    "csv-only-blank-lines": lambda f: _file(f, "x.csv", b"\n\n\n"),
    "csv-gz-not-gzip": lambda f: _file(f, "x.csv.gz", b"1,2\n3,4\n"),
    "csv-gz-cut": lambda f: _file(f, "x.csv.gz", gzip.compress(b"1.5,2.5\n" * 4000)[:-20]),
    "h5-empty": lambda f: _h5(f, lambda file: None),
    "h5-text": lambda f: _h5(f, lambda file: file.create_dataset("X", data=["a", "b"])),
    "h5-no-such-dataset": lambda f: _h5(f, lambda file: file.create_dataset("X", data=X)) + "::Y",
    "h5-a-group": lambda f: _h5(f, lambda file: file.create_dataset("g/X", data=X)) + "::g",
    "h5-external-bytes": lambda f: _h5(f, _h5_external) + "::X",
    "h5-external-link": lambda f: _h5(f, _h5_link) + "::X",
    "h5-broken-link": lambda f: _h5(f, lambda file: file.__setitem__("X", h5py.SoftLink("/Y"))) + "::X",
    "h5ad-without-x": lambda f: _h5(f, lambda file: file.create_group("obs"), "x.h5ad"),
    "mat-no-matrix": lambda f: (scipy.io.savemat(f / "x.mat", {"s": "text"}), str(f / "x.mat"))[1],
    "mat-no-such-variable": lambda f: (scipy.io.savemat(f / "x.mat", {"A": X}), f"{f / 'x.mat'}::B")[1],
    "mtx-no-banner": lambda f: _file(f, "x.mtx", b"3 2 2\n1 1 5\n2 2 6\n"),
    "mtx-index-outside": lambda f: _file(f, "x.mtx", b"%%MatrixMarket matrix coordinate real general\n3 2 1\n9 1 5\n"),
    "mtx-too-few": lambda f: _file(f, "x.mtx", b"%%MatrixMarket matrix coordinate real general\n3 2 5\n1 1 5\n"),
    "parquet-text": lambda f: _parquet(f, {"a": ["x"] * 9, "b": [1.0] * 9}),
    "parquet-lists": lambda f: _parquet(f, {"a": [[1.0, 2.0]] * 8 + [[1.0]]}),
    "parquet-missing": lambda f: _parquet(f, {"a": [1.0, None, 3.0], "b": [1.0, 2.0, 3.0]}),
    "zarr-other-version": lambda f: _zarr_metadata(f, {"zarr_format": 9}),
    "zarr-negative-shape": lambda f: _zarr_metadata(f, {"shape": [-1, 3]}),
    "zarr-unknown-codec": lambda f: _zarr_metadata(f, {"codecs": [{"name": "magic"}]}),
    "zarr-unknown-type": lambda f: _zarr_metadata(f, {"data_type": "wide"}),
    "link-to-nothing": _link_to_nothing,
    "device": lambda f: "/dev/null",
    "empty-name": lambda f: "",
    "url-of-no-protocol": lambda f: "nowhere://bucket/x.zarr",
    "url-without-a-bucket": lambda f: "memory://nothing-here/x.zarr",
    "url-of-a-file": lambda f: f"file://{f}/none.zarr",
}


@pytest.mark.parametrize("case", SOURCES)
def test_a_source_that_is_not_what_it_should_be_is_refused(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = SOURCES[case](tmp_path)
    refused_untouched(cluster_arguments(source, tmp_path / "run"), tmp_path, capsys)


MANIFESTS: dict[str, str] = {
    "no-json": "{",
    "a-list": "[]",
    "a-number": "3",
    "empty": "",
    "no-format": '{"created": "x"}',
    "another-format": '{"format": 99, "created": "x"}',
    "format-as-text": '{"format": "1", "created": "x"}',
}
CHANGED: dict[str, dict[str, Any]] = {
    "nothing-else": {},
    "stages-of-another-kind": {"finished": "now", "stages": 5, "params": {}},
    "unknown-parameter": {"finished": "now", "stages": [], "params": {"speed": 9}},
    "parameter-outside": {"finished": "now", "stages": [], "params": {"sigma": -1}},
    "no-stages": {"finished": "now", "params": {}},
}
"""What a manifest of this format holds besides its format, written by hand."""


@pytest.mark.parametrize("case", MANIFESTS)
def test_a_directory_whose_manifest_is_no_runs_cannot_be_shown(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text(MANIFESTS[case])
    refused_untouched(["status", str(tmp_path / "run")], tmp_path, capsys)
    before = shot(tmp_path)
    with pytest.raises(BadInput) as caught:
        open_run(tmp_path / "run")
    assert all(part in str(caught.value) for part in PARTS)
    assert shot(tmp_path) == before


@pytest.mark.parametrize("case", CHANGED)
def test_a_manifest_that_was_changed_by_hand_is_one_line_and_no_traceback(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    content = {"format": FORMAT, "created": "x", **CHANGED[case]}
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(content))
    before = shot(tmp_path)
    assert main(["status", str(tmp_path / "run")]) in (1, 2)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "Remedy: " in said[0]
    with pytest.raises(IPS2Error):
        open_run(tmp_path / "run")
    assert shot(tmp_path) == before


OUTPUTS: dict[str, Callable[[Path], Path]] = {
    "below-a-file": lambda f: f / "x.npy" / "deep" / "run",
    "a-device": lambda f: Path("/dev/null"),
    "below-a-device": lambda f: Path("/dev/null/run"),
    "a-name-too-long": lambda f: f / ("a" * 300),
}


@pytest.mark.parametrize("case", OUTPUTS)
def test_an_output_that_cannot_be_written_is_refused(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", X)
    refused_untouched(cluster_arguments(str(tmp_path / "x.npy"), OUTPUTS[case](tmp_path)), tmp_path, capsys)


ARGUMENTS: dict[str, Callable[[], Any]] = {
    "none": lambda: run(None, Params(n_clusters=2)),
    "a-number": lambda: run(5, Params(n_clusters=2)),
    "a-dict": lambda: run({"a": 1}, Params(n_clusters=2)),
    "a-set": lambda: run({1.0, 2.0}, Params(n_clusters=2)),
    "bytes": lambda: run(b"1,2", Params(n_clusters=2)),
    "strings": lambda: run([["a", "b"], ["c", "d"]], Params(n_clusters=2)),
    "ragged-lists": lambda: run([[1, 2], [3]], Params(n_clusters=2)),
    "objects": lambda: run(np.array([[object()] * 2] * 4), Params(n_clusters=2)),
    "complex": lambda: run(X + 1j, Params(n_clusters=2)),
    "three-dimensions": lambda: run(np.zeros((3, 3, 3)), Params(n_clusters=2)),
    "nan": lambda: run(np.full((9, 2), np.nan), Params(n_clusters=2)),
    "no-rows": lambda: run(np.empty((0, 3)), Params(n_clusters=2)),
    "bandwidth-list": lambda: Params(bandwidth=[1.0]),  # type: ignore[arg-type]
    "affinity-list": lambda: Params(affinity=["gaussian"]),  # type: ignore[arg-type]
    "unknown-vectors": lambda: Resources(vectors="gpu"),
    "not-an-address": lambda: run(X, Params(n_clusters=2), Resources(scheduler="here"), own_cluster=True),
    "unknown-label": lambda: run(X, Params(n_clusters=2), labels_column=99),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_an_argument_that_cannot_be_used_raises_five_parts(case: str) -> None:
    with pytest.raises(BadInput) as caught:
        ARGUMENTS[case]()
    text = str(caught.value)
    assert all(part in text for part in PARTS), text
    assert "\n" not in text


def test_a_finished_run_that_lost_its_manifests_content_is_refused_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", X)
    arguments = cluster_arguments(str(tmp_path / "x.npy"), tmp_path / "run")
    assert main(arguments) == 0
    (tmp_path / "run" / "manifest.json").write_text('{"format": 99, "created": "x"}')
    assert "format 99" in refused_untouched(arguments, tmp_path, capsys)
