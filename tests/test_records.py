"""Records and pictures that are shown: not older than their code, made by commands that are shown, too."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from records import ALL_MAY_BE_OLDER, EXCEPTIONS, SUCCESSORS, NoHistory, check_history, git, staleness

from ips2_dask.bench import everything, figures, origin, shown

ROOT = Path(__file__).parent.parent
PAGES = {
    path: re.sub(r"\s+", " ", path.read_text(encoding="utf-8"))
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
STEPS = {step.name: step for step in shown.STEPS}


@pytest.mark.parametrize("name", STEPS)
def test_no_record_is_older_than_its_code(name: str) -> None:
    try:
        check_history(ROOT)
    except NoHistory as reason:
        pytest.skip(f"no history to tell by: {reason}")
    step = STEPS[name]
    found = everything.origin_of(step, ROOT)
    assert found is not None, f"{step.record} is not there, or not whole"
    older = staleness(ROOT, found.get("commit"), step.code)
    if ALL_MAY_BE_OLDER:
        pytest.skip(ALL_MAY_BE_OLDER)
    if name in EXCEPTIONS:
        assert older is not None, f"{step.record} is as new as its code: take its line out of EXCEPTIONS"
    else:
        assert older is None, f"{step.record}: {older}; `ips2 bench all --out . --only {name}` makes it again"


def test_exceptions_are_of_records_that_there_are_and_have_a_reason() -> None:
    assert set(EXCEPTIONS) <= set(STEPS)
    assert all(len(reason) > 20 for reason in EXCEPTIONS.values())


def test_successors_are_of_commits_that_records_name() -> None:
    found = [everything.origin_of(step, ROOT) for step in STEPS.values()]
    assert set(SUCCESSORS) <= {origin["commit"] for origin in found if origin}


def test_every_record_has_a_step() -> None:
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / shown.RESULTS).rglob("*.json")}
    there |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "notebooks").glob("*.ipynb")}
    beside = {f"{shown.RESULTS}/paper/{name}" for name in (everything.ORIGIN, "about.json", "readings.json")}
    assert there - beside == {step.record for step in STEPS.values()}


def test_every_picture_has_a_step() -> None:
    there = [*(ROOT / shown.IMAGES).iterdir(), *(ROOT / "docs" / "images").iterdir()]
    made = [picture for step in STEPS.values() for picture in (*step.pictures, step.figure) if picture]
    assert sorted(made) == sorted(path.relative_to(ROOT).as_posix() for path in there)


@pytest.mark.parametrize("name", STEPS)
def test_every_command_is_one_that_is_shown(name: str) -> None:
    command = STEPS[name].command
    if command.startswith("ips2"):
        assert any(f"{command}`" in page or f"{command} " in page for page in PAGES.values()), command


@pytest.mark.parametrize("name", STEPS)
def test_every_pattern_of_code_finds_some(name: str) -> None:
    for pattern in STEPS[name].code:
        assert list(ROOT.glob(pattern)), pattern


@pytest.mark.parametrize("step", [step for step in STEPS.values() if step.figure], ids=lambda step: step.name)
def test_a_figure_shows_the_records_of_its_file(step: shown.Step) -> None:
    results = json.loads((ROOT / step.record).read_text(encoding="utf-8"))["results"]
    assert figures.records_of(ROOT / str(step.figure)) == origin.digest(results)


# ---- an old record is noticed


def commit(folder: Path, message: str) -> str:
    """Commit all files; the commit."""
    git(folder, "add", ".")
    person = ("-c", "user.name=someone", "-c", "user.email=someone@example.org", "-c", "commit.gpgsign=false")
    git(folder, *person, "commit", "-q", "--allow-empty", "-m", message)
    return git(folder, "rev-parse", "HEAD").strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "package" / "deep").mkdir(parents=True)
    (tmp_path / "package" / "fast.py").write_text('"""Fast."""\n\n\ndef f():\n    return 1  # one\n')
    (tmp_path / "package" / "deep" / "other.py").write_text("a = 1\n")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


def test_a_record_whose_module_has_changed_since_is_reported(checkout: Path) -> None:
    made = commit(checkout, "the code that the record measures")
    patterns = ["package/*.py"]
    assert staleness(checkout, made, patterns) is None
    commit(checkout, "the record")
    assert staleness(checkout, made, patterns) is None
    (checkout / "package" / "fast.py").write_text('"""Faster."""\n\n\ndef f():\n    """One."""\n    return 1\n')
    commit(checkout, "other comments")
    (checkout / "package" / "deep" / "other.py").write_text("a = 2\n")
    commit(checkout, "a module that the record does not depend on")
    assert staleness(checkout, made, patterns) is None
    (checkout / "package" / "fast.py").write_text('"""Faster."""\n\n\ndef f():\n    """One."""\n    return 2\n')
    last = commit(checkout, "another result")
    found = staleness(checkout, made, patterns)
    assert found is not None
    assert "package/fast.py" in found
    assert last[:7] in found
    assert staleness(checkout, last, patterns) is None
    (checkout / "package" / "new.py").write_text("b = 1\n")
    commit(checkout, "one more module")
    assert "package/new.py" in str(staleness(checkout, last, patterns))


def test_a_record_without_a_commit_or_of_files_that_no_commit_has_is_reported(checkout: Path) -> None:
    made = commit(checkout, "first")
    for one, said in ((None, "not known"), (f"{made}-dirty", "differ"), ("0" * 40, "not in this history")):
        assert said in str(staleness(checkout, one, ["package/*.py"]))


def test_a_shallow_clone_and_a_mere_folder_have_no_history(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    commit(checkout, "first")
    commit(checkout, "second")
    folder = tmp_path_factory.mktemp("clones")
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{checkout}", str(folder / "shallow")], check=True)
    check_history(checkout)
    for place in (folder / "shallow", checkout / "package", folder):
        with pytest.raises(NoHistory):
            check_history(place)
