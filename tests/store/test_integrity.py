"""Damage in a run directory: noticed wherever it is, named, listed by verify, and mended by the same command."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ips2_dask import Damaged, Params, Resources, open_run, run, verify
from ips2_dask.cli.main import main
from ips2_dask.store import arrays
from ips2_dask.store.arrays import chunks_of
from ips2_dask.store.cache import cache
from ips2_dask.store.layout import STAGES
from ips2_dask.store.zarr_store import ZarrStore

VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "triplets": ({"operator": "triplets", "fusion": "normalized"}, {}),
    "rows of U": ({"embedding": "none"}, {}),
    "matrix-free": ({"operator": "matrix-free", "affinity": "gaussian"}, {}),
    "decomposable": ({"tensor": "decomposable"}, {}),
    "chunked": ({}, {"vectors": "chunked"}),
    "sharded": ({"graph": "shards", "shards": 2}, {}),
}


def flip(chunk: Path) -> None:
    """One bit in the middle is another one."""
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 4
    chunk.write_bytes(content)


def truncate(chunk: Path) -> None:
    """The last byte is gone."""
    chunk.write_bytes(chunk.read_bytes()[:-1])


FAULTS: dict[str, Callable[[Path], None]] = {"flipped": flip, "truncated": truncate, "deleted": Path.unlink}


def table(place: Path) -> Path:
    """Sixty samples in four groups that touch, and a column of known labels."""
    rng = np.random.default_rng(5)
    group = rng.integers(0, 4, size=(60, 1))
    np.savetxt(place / "x.csv", np.hstack([rng.normal(size=(60, 3)) + 2 * group, group]), delimiter=",", fmt="%.9g")
    return place / "x.csv"


@pytest.fixture(
    scope="module",
    params=[name if name == "chunked" else pytest.param(name, marks=pytest.mark.slow) for name in sorted(VARIANTS)],
)
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose arrays have at least three chunks each, where they have rows; tests leave it as they found it."""
    place = tmp_path_factory.mktemp(request.param)
    params, resources = VARIANTS[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "rows_of_chunk", lambda kind, array: max(1, len(array) // 3) if array.ndim else 1)
        asked = Params(n_clusters=3, **params), Resources(partition_rows=16, **resources)
        run(table(place), *asked, store=place / "run", labels_column=3)
    return place / "run"


def every_array(directory: Path) -> dict[tuple[str, str], list[tuple[str, str, Path]]]:
    """Of each array of a run: part, chunk and file of all its chunks."""
    store, found = ZarrStore(str(directory)), {}
    for folder in store.stage_folders():
        for part, receipt in store.parts(folder).items():
            for name, described in receipt["arrays"].items():
                place = directory / folder / receipt["attempt"] / name
                chunks = [(part, chunk.key, place / chunk.key) for chunk in chunks_of(described)]
                found.setdefault((folder, name), []).extend(chunks)
    return {array: chunks for array, chunks in found.items() if chunks}  # some have no rows or columns


def some(chunks: list[Any]) -> list[Any]:
    """The first, the last, and one between."""
    return chunks if len(chunks) < 4 else [chunks[0], chunks[len(chunks) // 2], chunks[-1]]


@pytest.mark.slow
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_damage_of_any_array_is_noticed_when_it_is_read_and_named(finished: Path, fault: str) -> None:
    store, tried = ZarrStore(str(finished)), 0
    for (folder, name), chunks in every_array(finished).items():
        for part, key, file in some(chunks):
            content = file.read_bytes()
            receipt = store.receipt(folder, part)
            assert receipt is not None
            FAULTS[fault](file)
            with pytest.raises(Damaged) as caught:
                store.read(folder, part, name)
            file.write_bytes(content)
            text = str(caught.value)
            assert f"{folder}/{receipt['attempt']}/" in text
            assert f"/{name}: chunk {key} " in text
            assert text.endswith(f"with --verify, or the call with verify=True, which computes part {part} anew.")
            assert (caught.value.folder, caught.value.part) == (folder, part)
            tried += 1
    for (folder, name), chunks in every_array(finished).items():
        receipts = [store.receipt(folder, part) for part in {part for part, _, _ in chunks}]
        rows = sum(receipt["arrays"][name]["shape"][0] for receipt in receipts if receipt is not None)
        assert len(chunks) >= min(3, rows), name
    print(f"{fault}: {tried} chunks of {len(every_array(finished))} arrays, all noticed")


def test_verify_finds_a_run_sound_and_lists_every_damaged_chunk_of_it(finished: Path, tmp_path: Path) -> None:
    sound = verify(finished)
    assert (sound.faults, sound.stages, sound.running) == ([], 7, None)
    assert sound.chunks == sum(len(chunks) for chunks in every_array(finished).values())
    spoiled = Path(shutil.copytree(finished, tmp_path / "spoiled"))
    wanted = set()
    for at, ((folder, name), chunks) in enumerate(every_array(spoiled).items()):
        part, key, file = chunks[at % len(chunks)]
        FAULTS[sorted(FAULTS)[at % 3]](file)
        wanted.add((folder, part, name, key))
    found = verify(spoiled)
    assert {(f.folder, f.part, f.array, f.chunk) for f in found.faults} == wanted
    assert not found.sound


@pytest.mark.parametrize("name", ["owned", "values"])  # packed, and as they are
def test_every_flipped_byte_of_a_chunk_is_noticed(name: str, tmp_path: Path) -> None:
    store, dtype = ZarrStore(str(tmp_path)), {"owned": np.uint8, "values": np.float32}[name]
    store.write("tensor-x", name, {name: np.arange(6, dtype=dtype).reshape(3, 2)}, {})
    (chunk,) = (tmp_path / "tensor-x").glob(f"{name}.*/{name}/c/0/0")
    content = chunk.read_bytes()
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        chunk.write_bytes(changed)
        with pytest.raises(Damaged, match="chunk c/0/0 "):
            store.read("tensor-x", name, name)


def test_a_chunk_that_is_another_ones_is_noticed(tmp_path: Path) -> None:
    """Its bytes fit the checksum at its end, which is not the one of the receipt."""
    store = ZarrStore(str(tmp_path))
    for part in ("a", "b"):
        store.write("tensor-x", part, {"values": np.full((4, 2), ord(part), np.float32)}, {})
    (mine,), (other,) = ((tmp_path / "tensor-x").glob(f"{part}.*/values/c/0/0") for part in ("a", "b"))
    mine.write_bytes(other.read_bytes())
    with pytest.raises(Damaged, match="chunk c/0/0 holds other bytes than were written"):
        store.read("tensor-x", "a", "values")


def test_a_chunk_of_zeros_that_vanished_is_no_chunk_of_zeros(tmp_path: Path) -> None:
    store = ZarrStore(str(tmp_path))
    for name, dtype in (("owned", np.uint8), ("pairs", np.int32), ("values", np.float32)):
        store.write("tensor-x", name, {name: np.zeros((4, 2), dtype)}, {})
        (chunk,) = (tmp_path / "tensor-x").glob(f"{name}.*/{name}/c/0/0")
        chunk.unlink()
        for read in (store.read, lambda *where: store.read_rows(*where, 1, 3)):
            with pytest.raises(Damaged, match="chunk c/0/0 is missing"):
                read("tensor-x", name, name)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    place = tmp_path_factory.mktemp("small")
    run(table(place), PARAMS, RESOURCES, store=place / "run", labels_column=3)
    return place


PARAMS, RESOURCES = Params(n_clusters=3, operator="triplets"), Resources(partition_rows=16)


@pytest.fixture
def spoiled(small: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoiled."""
    cache.clear()
    shutil.copy2(small / "x.csv", tmp_path)
    shutil.copytree(small / "run", tmp_path / "run")
    return tmp_path


def again(place: Path, params: Params = PARAMS, *, check: bool = False) -> Any:
    return run(place / "x.csv", params, RESOURCES, store=place / "run", labels_column=3, verify=check)


def computed(found: Any) -> list[str]:
    return [stage["name"] for stage in found.report()["stages"] if not stage["skipped"]]


@pytest.mark.slow
@pytest.mark.parametrize("sampled", [12, pytest.param(40, marks=pytest.mark.slow)])
def test_any_flipped_byte_of_any_file_is_found_by_verify(spoiled: Path, sampled: int) -> None:
    rng = np.random.default_rng(0)
    files = sorted(path for path in (spoiled / "run").rglob("*") if path.is_file())
    documents = [spoiled / "run" / name for name in ("manifest.json", "zarr.json")]
    for file in files[:: len(files) // sampled] + documents:
        content = file.read_bytes()
        changed = bytearray(content)
        changed[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
        file.write_bytes(changed)
        assert not verify(spoiled / "run").sound, file
        file.write_bytes(content)
    assert verify(spoiled / "run").sound


ALONE = {"ingest", "neighbors", "tensor", "fuse"}
"""Stages whose partitions can be computed one by one."""


@pytest.mark.slow
@pytest.mark.parametrize("fault", [pytest.param("deleted", marks=pytest.mark.slow), "flipped"])
@pytest.mark.parametrize("stage", STAGES)
def test_the_same_command_computes_the_damaged_partition_again_and_nothing_after_it(
    spoiled: Path, stage: str, fault: str
) -> None:
    first = open_run(spoiled / "run")
    labels, folder = first.labels, first._context.folders[stage]
    store = ZarrStore(str(spoiled / "run"))
    before = store.parts(folder)
    part = next(p for p in ("p000001", "labels-p000001", "whole") if p in before and before[p]["arrays"])
    name = next(iter(before[part]["arrays"]))
    (file, *_) = [file for at, _, file in every_array(spoiled / "run")[folder, name] if at == part]
    cache.clear()
    FAULTS[fault](file)
    found = again(spoiled, check=fault == "flipped")  # a lost file shows at once
    assert computed(found) == [stage]
    np.testing.assert_array_equal(found.labels, labels)
    assert verify(spoiled / "run").sound
    after = store.parts(folder)
    assert after.keys() == before.keys()
    if stage in ALONE:
        numbered = [p for p in after if p.startswith("p0")]
        assert [p for p in numbered if after[p]["attempt"] != before[p]["attempt"]] == [part]
    (entry,) = [s for s in found.report()["stages"] if s["name"] == stage]
    assert entry["state"] == "computed again"
    assert f"{before[part]['attempt']}/{name}: chunk" in entry["why"][0]
    assert "the same bytes as before" in entry["why"][-1]


def test_damage_that_only_a_later_stage_meets_is_mended_on_the_way(spoiled: Path) -> None:
    folder = open_run(spoiled / "run")._context.folders["neighbors"]
    (file, *_) = [file for part, _, file in every_array(spoiled / "run")[folder, "indices"] if part == "p000002"]
    cache.clear()
    flip(file)
    changed = Params(n_clusters=3, operator="triplets", sigma=2.0)
    found = again(spoiled, changed)
    assert computed(found) == ["neighbors", "tensor", "assemble", "eigen", "fuse", "label"]
    np.testing.assert_array_equal(found.labels, run(spoiled / "x.csv", changed, RESOURCES, labels_column=3).labels)
    assert verify(spoiled / "run").sound


def test_flipped_labels_of_a_finished_run_are_mended_by_the_same_command(spoiled: Path) -> None:
    first = open_run(spoiled / "run")
    labels = first.labels
    ((_, _, file),) = every_array(spoiled / "run")[first._context.folders["label"], "labels"][-1:]
    cache.clear()
    flip(file)
    assert main(["verify", str(spoiled / "run"), "--quiet"]) == 1
    found = again(spoiled)
    assert computed(found) == ["label"]
    np.testing.assert_array_equal(found.labels, labels)


def test_where_the_bytes_are_others_what_was_made_of_them_is_computed_again(spoiled: Path) -> None:
    store = ZarrStore(str(spoiled / "run"))
    folder = open_run(spoiled / "run")._context.folders["tensor"]
    known = store.get_document(f"{folder}/stage.json")
    assert known is not None
    known["parts"]["p000001"]["content"] = "0123456789abcdef"  # as if another machine had computed it
    store.put_document(f"{folder}/stage.json", known)
    found = again(spoiled)
    assert computed(found) == list(STAGES[2:])
    assert found.manifest["stages"][-1]["why"] == ["tensor was computed again and gave other bytes"]
    assert found.manifest["generation"] == 1
    assert verify(spoiled / "run").sound
    assert computed(again(spoiled)) == []


def test_a_stage_that_was_made_of_other_bytes_than_there_are_is_not_used(spoiled: Path) -> None:
    store = ZarrStore(str(spoiled / "run"))
    folder = open_run(spoiled / "run")._context.folders["fuse"]
    known = store.get_document(f"{folder}/stage.json")
    assert known is not None
    known["made_from"]["eigen"] = "0123456789abcdef"
    store.put_document(f"{folder}/stage.json", known)
    found = again(spoiled)
    assert computed(found) == ["fuse", "label"]
    assert found.manifest["stages"][-2]["why"] == ["eigen was computed again and gave other bytes"]


@pytest.mark.parametrize("file", ["manifest.json", "stage.json", "receipt"])
def test_a_damaged_document_is_written_anew(spoiled: Path, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    first = open_run(spoiled / "run")
    folder = spoiled / "run" / first._context.folders["fuse"]
    place = {"manifest.json": spoiled / "run" / file, "stage.json": folder / file, "receipt": folder / "p000000.json"}
    text = place[file].read_text()
    place[file].write_text(text.replace(":", ": ", 1).replace("1", "2", 1))
    assert main(["verify", str(spoiled / "run"), "--json"]) == 1
    (fault,) = json.loads(capsys.readouterr().out)["faults"]
    assert "repeat the `ips2 run`" in fault["remedy"]
    if file == "manifest.json":
        with pytest.raises(Damaged, match=r"manifest\.json"):
            open_run(spoiled / "run")
    found = again(spoiled)
    assert computed(found) == ([] if file == "manifest.json" else ["fuse"])
    np.testing.assert_array_equal(found.labels, first.labels)
    assert verify(spoiled / "run").sound
