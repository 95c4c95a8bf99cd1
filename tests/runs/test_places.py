"""Where a run may be put and found: links, homes, odd names, URLs of files, other working folders, moved runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ips2_dask import BadInput, Params, open_run, run
from ips2_dask.cli.main import main

PARAMS = Params(n_clusters=2)


def refused(call: Callable[[], object], *words: str) -> None:
    with pytest.raises(BadInput) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, which is not the working folder."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def dead(folder: Path) -> tuple[Path, str]:
    (folder / "dead").symlink_to(folder / "gone")
    return folder / "dead", "a symbolic link that leads nowhere"


def below_dead(folder: Path) -> tuple[Path, str]:
    return dead(folder)[0] / "a" / "b", "a symbolic link that leads nowhere"


def loop(folder: Path) -> tuple[Path, str]:
    (folder / "loop").symlink_to(folder / "loop")
    return folder / "loop", "a symbolic link that leads nowhere"


def below_loop(folder: Path) -> tuple[Path, str]:
    return loop(folder)[0] / "run", "symbolic links"


def file(folder: Path) -> tuple[Path, str]:
    return folder / "x.npy", "a file"


def below_file(folder: Path) -> tuple[Path, str]:
    return folder / "x.npy" / "run", "which is a file"


def filled(folder: Path) -> tuple[Path, str]:
    return folder, "a directory that holds something else (x.npy)"


@pytest.mark.parametrize("place", [dead, below_dead, loop, below_loop, file, below_file, filled])
def test_places_where_no_run_can_be_are_refused_before_it_begins(
    place: Callable[[Path], tuple[Path, str]], blobs: npt.NDArray[Any], tmp_path: Path, capsys: Any
) -> None:
    np.save(tmp_path / "x.npy", blobs)
    path, why = place(tmp_path)
    before = sorted(tmp_path.iterdir()) if place is not filled else [tmp_path / "x.npy"]
    refused(lambda: run(blobs, PARAMS, store=path), why)
    assert main(["run", str(tmp_path / "x.npy"), "--clusters", "2", "--out", str(path)]) == 2
    assert why in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


def test_a_link_to_a_folder_is_one(blobs: npt.NDArray[Any], tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    run(blobs, PARAMS, store=tmp_path / "link" / "run")
    assert (tmp_path / "disk" / "run" / "manifest.json").is_file()


@pytest.mark.parametrize(
    ("store", "place"),
    [
        ("~/run", "home/run"),
        ("run/", "elsewhere/run"),
        ("mein Lauf äß", "elsewhere/mein Lauf äß"),
        ("./a/../b", "elsewhere/b"),
        ("file://{}/run", "run"),
    ],
)
def test_names_of_all_kinds_are_places(
    store: str, place: str, blobs: npt.NDArray[Any], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store.format(home.parent)
    if store == "./a/../b":
        Path("a").mkdir()
    made = run(blobs, PARAMS, store=store)
    again = open_run(store)
    monkeypatch.chdir(home.parent)  # what is open stays open
    assert (home.parent / place / "manifest.json").is_file()
    np.testing.assert_array_equal(again.labels, made.labels)
    np.testing.assert_array_equal(again.predict(blobs[:5]), made.labels[:5])


def test_a_tilde_is_the_home_in_inputs_and_outputs(blobs: npt.NDArray[Any], home: Path) -> None:
    np.save(home / "x.npy", blobs)
    found = run("~/x.npy", PARAMS)
    np.testing.assert_array_equal(run(f"file://{home}/x.npy", PARAMS).labels, found.labels)
    assert found.write_labels("~/labels.csv") == home / "labels.csv"
    options = ["--quiet", "--serial"]
    assert main(["run", "~/x.npy", "--clusters", "2", "--out=~/run", *options]) == 0
    assert main(["predict", "~/run", "~/x.npy", "--out=~/new.npy", *options]) == 0
    np.testing.assert_array_equal(np.load(home / "new.npy"), found.labels)
    assert not os.listdir()


def test_a_run_that_was_moved_is_said_to_be_gone(blobs: npt.NDArray[Any], tmp_path: Path) -> None:
    store = str(tmp_path / "run")
    run(blobs, PARAMS, store=store)
    opened = [open_run(store) for _ in range(3)]
    (tmp_path / "run").rename(tmp_path / "moved")
    refused(lambda: opened[0].certainty, "no run any more", "open_run")
    refused(lambda: opened[1].predict(blobs), "no run any more", "open_run")
    refused(lambda: opened[2].cut(2), "no run any more", "open_run")
    with pytest.raises(BadInput, match="no manifest"):
        open_run(store)
    assert len(open_run(tmp_path / "moved").labels) == len(blobs)
