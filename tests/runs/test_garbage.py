"""Starting over, and taking away what no key points to: what goes, what stays, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from faults.kills import Kill

from ips2_dask import BadInput, Damaged, Params, Resources, gc, open_run, run, verify
from ips2_dask.cli.main import main
from ips2_dask.runs import maintenance
from ips2_dask.store.layout import STAGES
from ips2_dask.store.zarr_store import ZarrStore

X = np.random.default_rng(4).normal(size=(40, 3))


@pytest.fixture(scope="module", name="twice")
def run_twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which two runs with other numbers of clusters were."""
    place = tmp_path_factory.mktemp("twice") / "run"
    for c in (2, 3):
        run(X, Params(n_clusters=c), store=place)
    return place


@pytest.fixture
def directory(twice: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(twice, tmp_path / "run"))


def size(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


def test_gc_takes_the_stages_that_no_key_points_to_and_says_how_much(directory: Path) -> None:
    kept = {stage["folder"] for stage in open_run(directory).manifest["stages"]}
    old = {path.name for path in directory.iterdir() if path.is_dir()} - kept
    assert {name.split("-")[0] for name in old} == {"eigen", "fuse", "label"}
    before = size(directory)
    collected = gc(directory)
    assert {one.path for one in collected.garbage} == old
    assert collected.bytes == before - size(directory) > 0
    assert {path.name for path in directory.iterdir() if path.is_dir()} == kept
    assert open_run(directory).labels.shape == (40,)
    assert verify(directory).sound
    assert gc(directory).garbage == ()


def test_a_dry_run_says_the_same_and_takes_nothing(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(str(path) for path in directory.rglob("*"))
    assert main(["verify", str(directory), "--gc", "--dry-run", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert sorted(str(path) for path in directory.rglob("*")) == before
    assert main(["verify", "--gc", str(directory)]) == 0
    printed = capsys.readouterr().out
    assert len(said["garbage"]) == 3
    for one in said["garbage"]:
        assert f"removed         {one['path']}, " in printed
        assert not (directory / one["path"]).exists()


def test_gc_takes_attempts_without_a_receipt_and_files_half_written(directory: Path) -> None:
    gc(directory)
    folder = open_run(directory)._context.folders["tensor"]
    store = ZarrStore(str(directory))
    receipt = store.receipt(folder, "p000000")
    assert receipt is not None
    arrays = {name: store.read(folder, "p000000", name) for name in receipt["arrays"]}
    store.write(folder, "p000000", arrays, receipt["facts"])  # a second attempt: the first is nobody's now
    (directory / ".manifest.json.1234.partial").write_text("{")
    attempt = store.receipt(folder, "p000000")["attempt"]
    (directory / folder / attempt / "blocks" / "c" / "0" / "0.5678.partial").write_text("half")
    (directory / folder / "raw-p000000.json").write_text("{")
    (directory / "notes.txt").write_text("mine")
    gone = {one.path: one.why for one in gc(directory).garbage}
    assert set(gone) == {
        f"{folder}/{receipt['attempt']}",
        ".manifest.json.1234.partial",
        f"{folder}/raw-p000000.json",
        f"{folder}/{attempt}/blocks/c/0/0.5678.partial",
    }
    assert (directory / "notes.txt").read_text() == "mine"
    assert verify(directory).sound


def test_gc_leaves_what_an_unfinished_run_will_need(directory: Path) -> None:
    class Stop:
        """Progress that stops at a stage."""

        def begin(self, stage: str) -> None:
            if stage == "fuse":
                raise KeyboardInterrupt

        def advance(self, stage: str, done: int, total: int) -> None: ...
        def end(self, stage: str, seconds: float, skipped: bool) -> None: ...

    with pytest.raises(KeyboardInterrupt):
        run(X, Params(n_clusters=4), store=directory, progress=Stop())
    gc(directory)
    again = run(X, Params(n_clusters=4), store=directory)
    assert [stage["name"] for stage in again.report()["stages"] if not stage["skipped"]] == ["fuse", "label"]


def test_gc_refuses_what_is_no_run_and_does_nothing_where_the_manifest_is_damaged(
    directory: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "label-0123456789abcdef").mkdir()
    with pytest.raises(BadInput, match=r"no manifest\.json"):
        gc(tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["label-0123456789abcdef"]
    before = size(directory)
    text = (directory / "manifest.json").read_text()
    (directory / "manifest.json").write_text(text.replace("eigen", "eigem"))
    with pytest.raises(Damaged):
        gc(directory)
    assert size(directory) == before


def test_fresh_starts_over_and_leaves_what_no_run_has_written(directory: Path) -> None:
    (directory / "notes.txt").write_text("mine")
    found = run(X, Params(n_clusters=3), store=directory, fresh=True)
    assert [stage["state"] for stage in found.report()["stages"]] == ["computed"] * len(STAGES)
    assert (directory / "notes.txt").read_text() == "mine"
    assert len([path for path in directory.iterdir() if path.is_dir()]) == len(STAGES)
    assert verify(directory).sound


def test_fresh_starts_over_where_a_run_of_another_format_was(directory: Path) -> None:
    manifest = json.loads((directory / "manifest.json").read_text())
    (directory / "manifest.json").write_text(json.dumps({**manifest, "format": 1}))
    with pytest.raises(BadInput, match="--fresh"):
        run(X, Params(n_clusters=3), store=directory)
    assert run(X, Params(n_clusters=3), store=directory, fresh=True).manifest["format"] == manifest["format"]


@pytest.mark.parametrize("held", ["photos", "zarr group", "file"])
def test_fresh_refuses_to_delete_what_is_no_run_directory(
    held: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", X)
    out = tmp_path / "out"
    if held == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        name = "a.jpg" if held == "photos" else "zarr.json"
        (out / name).write_text('{"zarr_format": 3, "node_type": "group"}')
    before = size(tmp_path)
    assert main(["run", str(tmp_path / "x.npy"), "--clusters", "2", "--out", str(out), "--serial", "--fresh"]) == 2
    assert "Remedy" in capsys.readouterr().err
    assert size(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize("step", [35, pytest.param(7, marks=pytest.mark.slow)])
def test_a_collection_that_is_killed_leaves_no_receipt_of_arrays_that_are_gone(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "REMOVED_AT_ONCE", 1)  # changes come in the same order each time
    place, other, resources = tmp_path / "run", Params(n_clusters=3, n_neighbors=4), Resources(partition_rows=15)
    labels = run(X, other, resources, store=place).labels
    run(X, Params(n_clusters=2, n_neighbors=5), resources, store=place)
    kills = 0
    for after in range(0, 1000, step):
        copy = tmp_path / f"copy-{after}"
        shutil.copytree(place, copy)
        with Kill(str(copy), after) as kill:
            gc(copy)
        kills += kill.happened
        store = ZarrStore(str(copy))
        for folder in store.stage_folders():
            found = store.scan(folder, None, deep=False)
            assert not found.faults, (after, [fault.text for fault in found.faults])
            document = store.get_document(f"{folder}/stage.json")
            assert document is None or set(document["parts"]) <= set(found.receipts), (after, folder)
        if not kill.happened:
            break
    assert kills > 140 // step
    np.testing.assert_array_equal(run(X, other, resources, store=copy).labels, labels)
