"""What strangers' files and neighbours can do: each claim of docs/security.md that can be tried is tried by a test."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr

from ips2_dask import BadInput, Damaged, Params, gc, open_run, report, run, status, verify
from ips2_dask.executors.dask import DaskExecutor
from ips2_dask.kernels import layout as layout_kernel
from ips2_dask.readers import open_source
from ips2_dask.store.arrays import METADATA
from ips2_dask.store.files import LocalFiles, RemoteFiles
from ips2_dask.store.integrity import Receipt, crc32c, sealed
from ips2_dask.store.zarr_store import ZarrStore

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")

X = np.random.default_rng(6).normal(size=(40, 3))
PARAMS = Params(n_clusters=2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run; tests change copies of it."""
    place = tmp_path_factory.mktemp("finished") / "run"
    run(X, PARAMS, store=place)
    return place


@pytest.fixture
def stranger(finished: Path, tmp_path: Path) -> Path:
    """A run directory that a stranger gave us, beside a folder of ours."""
    (tmp_path / "ours" / "deep").mkdir(parents=True)
    (tmp_path / "ours" / "notes.json").write_text("{}")
    (tmp_path / "ours" / "deep" / "thesis.txt").write_text("ours")
    return Path(shutil.copytree(finished, tmp_path / "run"))


def is_ours_whole(stranger: Path) -> bool:
    """Whether our folder has lost nothing, and gained nothing."""
    ours = stranger.parent / "ours"
    return {str(path.relative_to(ours)) for path in ours.rglob("*")} == {"notes.json", "deep", "deep/thesis.txt"}


def folder_of(directory: Path, stage: str) -> str:
    """The name of a stage's folder."""
    return str(open_run(directory).manifest["keys"][stage]["folder"])


# ---- the page


def test_every_test_that_the_page_names_is_there() -> None:
    named = re.findall(r"`(tests/[\w/.]+\.py)::(\w+)`", PAGE)
    assert len(named) > 20
    for file, name in named:
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), (file, name)


def test_every_test_of_this_file_is_named_by_the_page() -> None:
    tests = re.findall(r"^def (test_\w+)\(", Path(__file__).read_text(encoding="utf-8"), re.MULTILINE)
    own = {name for name in tests if "the_page" not in name}
    assert own == set(re.findall(r"`tests/test_security\.py::(\w+)`", PAGE))


# ---- a run directory of a stranger


def read(place: Path) -> object:
    """Labels of a run."""
    return open_run(place).labels


def again(place: Path) -> object:
    """The same run."""
    return run(X, PARAMS, store=place)


@pytest.mark.parametrize("use", [read, verify, gc, again])
@pytest.mark.parametrize("name", ["../ours", "/etc"])
def test_a_folder_that_a_manifest_puts_outside_is_not_read(
    stranger: Path, use: Callable[[Path], object], name: str
) -> None:
    store = ZarrStore(str(stranger))
    manifest = store.document("manifest.json")[0]
    assert manifest is not None
    for entry in (*manifest["keys"].values(), *manifest["stages"]):
        entry["folder"] = name
    store.put_document("manifest.json", manifest)
    if use in (read, gc):
        with pytest.raises(BadInput, match=f"a manifest with the folder '{name}'"):
            use(stranger)
    elif use is verify:
        assert not verify(stranger).sound
    else:  # a run names folders by its own keys
        use(stranger)
    assert is_ours_whole(stranger)


def test_a_receipt_whose_arrays_are_outside_counts_for_nothing(stranger: Path) -> None:
    folder = folder_of(stranger, "label")
    shutil.copytree(stranger / folder, stranger.parent / "elsewhere")
    store = ZarrStore(str(stranger))
    receipt = store.receipt(folder, "rows-000000")
    assert receipt is not None
    for change in ({"attempt": f"../../elsewhere/{receipt['attempt']}"}, {"arrays": {"../x": {}}}):
        store.files.write(f"{folder}/rows-000000.json", sealed({**receipt, **change}))
        with pytest.raises(Damaged, match="the receipt is missing or damaged"):
            _ = open_run(stranger).labels
    np.testing.assert_array_equal(run(X, PARAMS, store=stranger).labels, run(X, PARAMS).labels)


def test_parts_with_names_outside_are_not_removed(stranger: Path) -> None:
    folder = folder_of(stranger, "tensor")
    store = ZarrStore(str(stranger))
    document = store.get_document(f"{folder}/stage.json")
    assert document is not None
    document["parts"]["../../ours/notes"] = {"attempt": "x", "content": "0123456789abcdef"}
    store.put_document(f"{folder}/stage.json", document)
    with pytest.raises(BadInput, match="leads out of the run directory"):  # a part that is lost is dropped first
        run(X, PARAMS, store=stranger)
    assert is_ours_whole(stranger)


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/x", ".."])
@pytest.mark.parametrize("kind", [LocalFiles, RemoteFiles])
def test_no_name_leads_out_of_a_store(name: str, kind: type[Any], tmp_path: Path) -> None:
    files = kind(str(tmp_path / "run") if kind is LocalFiles else "memory://security/run")
    uses: list[Callable[[str], object]] = [
        files.read,
        files.names,
        files.sizes,
        files.remove,
        lambda at: files.write(at, "x"),
        lambda at: files.create(at, "x"),
        lambda at: files.read_many([at]),
        lambda at: files.remove_many([at]),
    ]
    for use in uses:
        with pytest.raises(BadInput, match="leads out of the run directory"):
            use(name)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_removed_by_way_of_a_link(stranger: Path) -> None:
    folder = folder_of(stranger, "label")
    shutil.rmtree(stranger / folder)
    (stranger / folder).symlink_to(stranger.parent / "ours")
    with pytest.raises(BadInput, match="leads out of the run directory"):
        gc(stranger)
    assert is_ours_whole(stranger)
    (stranger / "eigen-0123456789abcdef").symlink_to(stranger.parent / "ours")  # of other parameters: the link goes
    (stranger / folder).unlink()
    gc(stranger)
    assert not (stranger / "eigen-0123456789abcdef").exists()
    assert is_ours_whole(stranger)


def test_a_file_behind_a_link_is_not_written_to(stranger: Path) -> None:
    (stranger / "manifest.json").rename(stranger.parent / "manifest.json")
    before = (stranger.parent / "manifest.json").read_bytes()
    (stranger / "manifest.json").symlink_to(stranger.parent / "manifest.json")
    run(X, Params(n_clusters=3), store=stranger)
    assert (stranger.parent / "manifest.json").read_bytes() == before
    assert not (stranger / "manifest.json").is_symlink()


def test_an_array_of_a_run_with_another_codec_is_refused(stranger: Path) -> None:
    folder = folder_of(stranger, "label")
    store = ZarrStore(str(stranger))
    receipt = store.receipt(folder, "rows-000000")
    assert receipt is not None
    labels = run(X, PARAMS).labels
    place = stranger / folder / receipt["attempt"] / "labels"
    shutil.rmtree(place)
    zarr.create_array(place, data=labels, chunks=labels.shape, compressors=[zarr.codecs.GzipCodec()], zarr_format=3)
    _seal_anew(store, folder, receipt, place)
    with pytest.raises(Damaged, match="'gzip', which no run uses"):
        _ = open_run(stranger).labels


def _seal_anew(store: ZarrStore, folder: str, receipt: Receipt, place: Path) -> None:
    """A receipt that is right about what is stored, as a stranger would write it."""
    receipt["arrays"]["labels"]["metadata"] = crc32c((place / METADATA).read_bytes())
    receipt["arrays"]["labels"]["bytes"] = [(place / "c" / "0").stat().st_size]
    store.files.write(f"{folder}/rows-000000.json", sealed(receipt))


def test_documents_of_a_run_are_read_as_json_alone(stranger: Path) -> None:
    (stranger / "manifest.json").write_bytes(b"\x80\x04cos\nsystem\n(S'touch x'\ntR.")  # a pickle, say
    for use in (status, open_run, verify):
        try:
            found = use(stranger)
        except BadInput:
            continue
        assert use is verify
        assert not found.sound  # type: ignore[union-attr]


# ---- a table of a stranger, and the page that shows it


@pytest.mark.slow
def test_names_of_files_and_columns_are_text_in_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_kernel, "available", lambda: False)  # UMAP takes many seconds to compile
    attack = "<script>alert(1)</script>"
    frame = pd.DataFrame(X, index=[f"{attack}{i}" for i in range(len(X))], columns=[f"{attack}a", "b", "c"])
    (tmp_path / "<img src=x onerror=alert(1)>").mkdir()
    path = tmp_path / "<img src=x onerror=alert(1)>" / "x.parquet"
    frame.assign(**{attack: [f"{attack}{i % 2}" for i in range(len(X))]}).to_parquet(path)
    text = report(run(path, PARAMS, labels_column=attack), tmp_path / "report.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;" in text
    assert "&lt;img src=x" in text
    assert "<script" not in text
    assert text.count("<img") == text.count('src="data:image/png;base64,')


def test_a_header_of_an_array_is_no_code(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    content = (tmp_path / "x.npy").read_bytes()
    header = re.search(rb"\{.*?\}", content)
    assert header is not None
    code = f"__import__('pathlib').Path({str(tmp_path / 'made')!r}).touch()".encode()
    size = int.from_bytes(content[8:10], "little")
    for attack in (code, b"{'descr': '<f8', 'fortran_order': False, 'shape': (" + b"1," * 9000 + b")}"):
        long = attack.ljust(max(size, len(attack)))
        (tmp_path / "x.npy").write_bytes(content[:8] + len(long).to_bytes(2, "little") + long + content[10 + size :])
        with pytest.raises(BadInput):
            open_source(tmp_path / "x.npy")
    assert not (tmp_path / "made").exists()


# ---- neighbours


def test_a_local_cluster_is_reached_from_this_machine_alone(dask_executor: DaskExecutor) -> None:
    info = dask_executor.client.scheduler_info()
    addresses = [info["address"], *info["workers"]]
    assert len(addresses) == 3
    assert all(re.match(r"\w+://127\.0\.0\.1:", address) for address in addresses), addresses


def test_a_lock_tells_who_runs_and_nothing_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "onlyfortests")
    run(X, PARAMS, store=tmp_path / "run")
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 50
    assert not [path for path in files if b"onlyfortests" in path.read_bytes()]
    assert "user" not in json.loads((tmp_path / "run" / "manifest.json").read_text())
