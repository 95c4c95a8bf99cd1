"""A state machine over a run directory: runs, kills, damage and commands in any order, against undisturbed runs."""

from __future__ import annotations

import contextlib
import csv
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec

import numpy as np
import numpy.typing as npt
import pytest
from faults.kills import Kill
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from ips2_dask import BadInput, Damaged, Params, Resources, gc, open_run, run, status, verify
from ips2_dask.errors import IPS2Error
from ips2_dask.pipeline import execution
from ips2_dask.store import lock
from ips2_dask.store.cache import cache
from ips2_dask.store.integrity import opened
from ips2_dask.store.layout import STAGES
from ips2_dask.store.zarr_store import FOLDER, ZarrStore, is_receipt

Array = npt.NDArray[Any]
Drawn = ParamSpec("Drawn")

ROWS = 30
RNG = np.random.default_rng(12)
X = RNG.normal(size=(ROWS, 3)) + 1.7 * RNG.integers(0, 3, size=(ROWS, 1))
NEW = X[:6] + 0.05
RESOURCES = Resources(partition_rows=15)

ALONE = ("ingest", "neighbors", "tensor", "fuse")
"""Stages whose partitions are computed one by one, so that one that is lost is computed without the others."""

PARAMS = st.builds(
    Params,
    n_clusters=st.sampled_from([2, 3]),
    n_neighbors=st.sampled_from([4, 5]),
    sigma=st.sampled_from([1.0, 2.0]),
    random_state=st.sampled_from([0, 1]),
    assign_labels=st.sampled_from(["kmeans", "density"]),
)
MOMENTS = st.one_of(
    st.tuples(st.just(name), st.integers(0, most)) for name, most in (("", 1150), (".json", 180), ("manifest", 5))
)
"""After how many changes of a run's directory a kill comes: of any file, of documents, or of the manifest alone."""

WHICH = st.integers(0, 10**6)

SELDOM = st.sampled_from([False, False, False, False, True])

PLACE = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""A file system in memory, where there is one: a killed process loses nothing that it has written, synced or not."""

written: list[tuple[str, str]] = []
"""Folder and part of each part that was stored since the last command began."""


@contextlib.contextmanager
def watched_writes() -> Iterator[None]:
    """Note each part that is stored."""
    plain = ZarrStore.write

    @functools.wraps(plain)
    def noted(self: ZarrStore, folder: str, part: str, *more: Any) -> Any:
        receipt = plain(self, folder, part, *more)
        written.append((folder, part))
        return receipt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ZarrStore, "write", noted)
        patch.setattr(lock, "HEARTBEAT", 3600.0)  # it follows the clock
        patch.setattr(execution, "usable_cores", lambda: 1)  # changes come in the same order each time
        yield


class Undisturbed(NamedTuple):
    """Results of a run to which nothing happens."""

    labels: Array
    predicted: Array


@functools.cache
def undisturbed(params: Params) -> Undisturbed:
    """Results of a run in memory."""
    found = run(X, params, RESOURCES)
    return Undisturbed(found.labels, found.predict(NEW))


class Harm(NamedTuple):
    """A file that is not what a run wrote: its content now (None: it is gone), and as it was."""

    now: bytes | None
    before: bytes


class State(NamedTuple):
    """What the manifest says: the parameters that were asked for last, and whether their run has ended."""

    params: Params
    finished: bool


Step = Callable[Concatenate["RunDirectory", Drawn], None]


def only_if(holds: Callable[[RunDirectory], object]) -> Callable[[Step[Drawn]], Step[Drawn]]:
    """Make a step that does nothing where something does not hold.

    `hypothesis.stateful.precondition` chooses the next step by what the directory holds. The order in which the files
    of an attempt are made and removed is not the same each time, and so neither is what a kill leaves: a sequence that
    is tried again would have other steps, which Hypothesis refuses as a flaky strategy.
    """

    def wrap(step: Step[Drawn]) -> Step[Drawn]:
        @functools.wraps(step)
        def done(self: RunDirectory, /, *given: Drawn.args, **drawn: Drawn.kwargs) -> None:
            if holds(self):
                step(self, *given, **drawn)

        return done

    return wrap


class Command(NamedTuple):
    """A step of the machine, and what it is given."""

    name: str
    given: dict[str, Any]

    def __call__(self, machine: RunDirectory) -> None:
        getattr(machine, self.name)(**self.given)


COMMANDS: dict[str, list[st.SearchStrategy[Command]]] = {"run": [], "harm": [], "check": [], "read": []}
"""Commands by kind.

Hypothesis leaves out some rules of a machine in each sequence, most of them in many. So each kind is one rule: if each
command were, few sequences would both do damage and look for it.
"""


def command(kind: str, **drawn: st.SearchStrategy[Any]) -> Callable[[Step[Drawn]], Step[Drawn]]:
    """Make a step a command of some kind, which is given what is drawn."""

    def add(step: Step[Drawn]) -> Step[Drawn]:
        COMMANDS[kind].append(st.builds(Command, st.just(step.__name__), st.fixed_dictionaries(drawn)))
        return step

    return add


class RunDirectory(RuleBasedStateMachine):
    """Whatever was done before: labels as of an undisturbed run, or one line; nothing lost, nothing half-written."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="ips2-faults-", dir=PLACE))
        self.out = self.folder / "run"
        self.state: State | None = None
        self.harmed: dict[Path, Harm] = {}
        self.strays: set[Path] = set()

    def teardown(self) -> None:
        """After all of it the last command, run to its end, has the labels, and every byte is right."""
        try:
            if self.state is not None and self._completed(self.state.params, check=True) is not None:
                found = verify(self.out)
                assert found.sound, [fault.text for fault in found.faults]
        finally:
            shutil.rmtree(self.folder)

    # ---- runs

    @initialize(params=PARAMS)
    def begin(self, params: Params) -> None:
        """Most directories begin with a run."""
        self._completed(params)

    @command("run", params=PARAMS, check=st.booleans(), fresh=SELDOM)
    def runs(self, params: Params, check: bool, fresh: bool) -> None:
        """A run with some parameters, which may take away what was there."""
        self._completed(params, check=check, fresh=fresh)

    @command("run", check=st.booleans())
    @only_if(lambda self: self.state is not None)
    def goes_on(self, check: bool) -> None:
        """The same command again."""
        assert self.state is not None
        self._completed(self.state.params, check=check)

    @command("run", params=PARAMS, moment=MOMENTS, fresh=SELDOM, check=st.booleans())
    def is_killed(self, params: Params, moment: tuple[str, int], fresh: bool, check: bool) -> None:
        """A run that is killed at some change of the directory, unless it ends before."""
        before, intact, harm = self.state, self._intact(), self._live()
        with Kill(str(self.out), moment[1], counted=moment[0]) as kill:
            self._completed(params, check=check, fresh=fresh)
        if not kill.happened:
            return
        if not fresh:
            lost = self._finished(intact) - self._intact()
            assert not lost, f"a killed run took away {lost}"
        self._look_after_kill(before, State(params, False), harm, fresh)

    def _look_after_kill(self, before: State | None, begun: State, harm: dict[Path, Harm], fresh: bool) -> None:
        """The manifest is the one before or the new one; never half of it."""
        try:
            found = status(self.out)
        except IPS2Error as error:
            assert_allowed(error, before is None or fresh or bool(harm))
            if fresh:
                self.state = None
            return
        now = State(params_of(found), found["finished"] is not None)
        assert now in (before, begun, begun._replace(finished=True)), (before, begun, now)
        assert found["running"] is None, "who is dead holds the lock"
        self.state = now
        if not harm:
            left = verify(self.out)
            assert left.sound, [fault.text for fault in left.faults]

    @command("run", params=PARAMS, other=PARAMS, stage=st.sampled_from(STAGES))
    @only_if(lambda self: self.state is not None)
    def has_a_rival(self, params: Params, other: Params, stage: str) -> None:
        """A second run, and `gc`, while one is at work; readers are let in."""
        out, sound = self.out, not self._live()

        class Rival:
            """Progress of a run whose directory others want when a stage begins."""

            def begin(self, name: str) -> None:
                if name != stage:
                    return
                for want in (lambda: run(X, other, RESOURCES, store=out), lambda: gc(out)):
                    assert_refused(want, "one run at a time")
                assert status(out)["running"]
                if sound:
                    found = verify(out)
                    assert found.running
                    assert found.sound, [fault.text for fault in found.faults]

            def advance(self, name: str, done: int, total: int) -> None: ...
            def end(self, name: str, seconds: float, skipped: bool) -> None: ...

        self._completed(params, progress=Rival())

    def _completed(self, params: Params, *, check: bool = False, fresh: bool = False, **more: Any) -> Any:
        """A run that ends well, or is refused in one line because the directory's own documents are damaged."""
        intact, harm = self._intact(), self._live()
        finished = self._finished(intact)
        cache.clear()  # each command is a process of its own
        written.clear()
        try:
            found = run(X, params, RESOURCES, store=self.out, fresh=fresh, verify=check, **more)
        except BadInput as error:
            assert_allowed(error, self._roots(harm))
            return None
        np.testing.assert_array_equal(found.labels, undisturbed(params).labels)
        self.state = State(params, True)
        assert not (self.out / lock.NAME).exists()
        if not fresh:
            again = [part for part in written if part in intact and (part in finished or is_alone(part))]
            assert not again, f"computed again, and was there: {again}"
        assert harm or len(set(written)) == len(written), "computed twice"  # a stage that meets damage begins again
        return found

    # ---- damage

    @command("harm", which=WHICH, at=WHICH, how=st.sampled_from(["flip", "truncate", "delete"]), verified=st.booleans())
    @only_if(lambda self: self._files())
    def is_damaged(self, which: int, at: int, how: str, verified: bool) -> None:
        """A file that a run wrote is changed, cut or deleted; half the time `verify` has to find it at once.

        Later it might not have to: after a run with other parameters the file's stage is not looked at any more.
        """
        files = self._files()
        self._damage(files[which % len(files)], at, how)
        if verified:
            self.is_verified()

    def _damage(self, path: Path, at: int, how: str) -> None:
        content = path.read_bytes()
        if not content:
            return
        where = at % len(content)
        if how == "delete":
            path.unlink()
            self.harmed[path] = Harm(None, content)
            return
        flipped = content[:where] + bytes([content[where] ^ (1 << at % 8)]) + content[where + 1 :]
        self.harmed[path] = Harm(flipped if how == "flip" else content[:where], content)
        path.write_bytes(self.harmed[path].now or b"")

    @command("harm", which=WHICH, name=st.sampled_from(["notes.txt", ".hidden", "x.partial", "p000009.json"]))
    @only_if(lambda self: self.out.exists())
    def gets_a_stray_file(self, which: int, name: str) -> None:
        """A file that no run has written, in the directory or in a folder of it."""
        folders = sorted((path for path in self.out.iterdir() if path.is_dir()), key=str)
        path = (folders[which % len(folders)] if folders and which % 2 else self.out) / name
        path.write_text("not of a run")
        if path.parent == self.out and not name.endswith(".partial"):
            self.strays.add(path)

    @command("harm")
    @only_if(lambda self: self.harmed)
    def is_restored(self) -> None:
        """What was damaged and is still needed comes back from a backup, but for stages that are being mended."""
        live = self._live()
        self.harmed = {path: harm for path, harm in live.items() if self._is_being_mended(path)}
        for path, harm in live.items():
            if path not in self.harmed:
                path.write_bytes(harm.before)

    # ---- other commands

    @command("check")
    @only_if(lambda self: self.state is not None)
    def is_verified(self) -> None:
        """Damage is found where there is some, and none where there is none."""
        cache.clear()
        harm = self._live()
        try:
            found = verify(self.out)
        except IPS2Error as error:
            assert_allowed(error, self._roots(harm))
            return
        assert found.running is None
        if not harm:
            assert found.sound, [fault.text for fault in found.faults]
        wanted = {path for path in harm if self._is_of_finished_part(path)}
        missed = wanted - {
            path for path in wanted for fault in found.faults if f"{fault.place}/".startswith(self._place(path))
        }
        if not self._roots(harm):
            assert not missed, f"verify did not find {missed}"

    @command("check")
    @only_if(lambda self: self.state is not None)
    def is_collected(self) -> None:
        """Garbage goes, and nothing that was complete."""
        self._collect()

    @command("check", after=st.integers(0, 60))
    @only_if(lambda self: self.state is not None)
    def is_killed_at_collection(self, after: int) -> None:
        """`gc` that is killed in the middle."""
        with Kill(str(self.out), after):
            self._collect()

    def _collect(self) -> None:
        cache.clear()
        harm, intact = self._live(), self._intact()
        folders = self._current()
        try:
            gc(self.out)
        except IPS2Error as error:
            assert_allowed(error, self._roots(harm))
            return
        finally:
            kept = {part for part in self._finished(intact) if part[0] in folders}
            assert kept <= self._intact(), "gc took something that was needed"
        names = [path for path in self.out.rglob("*") if path.name.endswith(".partial")]
        assert not [path for path in names if FOLDER.fullmatch(path.parent.name) or path.parent == self.out]
        assert {path.name for path in self.out.iterdir() if FOLDER.fullmatch(path.name)} <= folders

    @command("read")
    @only_if(lambda self: self.state is not None)
    def is_asked_for_its_status(self) -> None:
        """`status` says what was asked for last."""
        harm = self._live()
        try:
            found = status(self.out)
        except IPS2Error as error:
            assert_allowed(error, self._roots(harm))
            return
        assert State(params_of(found), found["finished"] is not None) == self.state

    @command("read")
    @only_if(lambda self: self.state is not None)
    def is_read(self) -> None:
        """Its labels."""
        self._read(lambda: open_run(self.out).labels, lambda known: known.labels)

    @command("read")
    @only_if(lambda self: self.state is not None)
    def predicts(self) -> None:
        """Clusters of new samples."""
        self._read(lambda: open_run(self.out).predict(NEW), lambda known: known.predicted)

    @command("read")
    @only_if(lambda self: self.state is not None)
    def is_exported(self) -> None:
        """A file with all labels, or none."""

        def exported() -> Array:
            path = self.folder / "labels.csv"
            try:
                open_run(self.out).write_labels(path)
                with path.open() as stream:
                    return np.array([int(row["cluster"]) for row in csv.DictReader(stream)])
            finally:
                path.unlink(missing_ok=True)

        self._read(exported, lambda known: known.labels)
        assert [path for path in self.folder.iterdir() if path != self.out] == []

    def _read(self, read: Callable[[], Array], known: Callable[[Undisturbed], Array]) -> None:
        """Results of a finished run are those of an undisturbed one, or what is damaged is said in one line."""
        assert self.state is not None
        cache.clear()
        harm = self._live()
        try:
            found = read()
        except (BadInput, Damaged) as error:
            assert_allowed(error, bool(harm) or not self.state.finished)
            return
        assert self.state.finished, "an unfinished run was read"
        np.testing.assert_array_equal(found, known(undisturbed(self.state.params)))

    # ---- kinds of commands

    @rule(command=st.one_of(COMMANDS["run"]))
    def runs_or_is_killed(self, command: Command) -> None:
        """A run, which may be killed or have a rival."""
        command(self)

    @rule(command=st.one_of(COMMANDS["harm"]))
    def is_harmed(self, command: Command) -> None:
        """Something happens to its files, or is undone."""
        command(self)

    @rule(command=st.one_of(COMMANDS["check"]))
    def is_checked(self, command: Command) -> None:
        """It is verified, or loses its garbage."""
        command(self)

    @rule(command=st.one_of(COMMANDS["read"]))
    def is_used(self, command: Command) -> None:
        """Its state or its results are asked for."""
        command(self)

    # ---- what is on disk

    def _files(self) -> list[Path]:
        """Files that runs have written and nobody has damaged, in an order that random names don't change."""
        if not self.out.exists():
            return []
        found = [self.out / name for name in ("manifest.json", "zarr.json")]
        for folder in (entry for entry in self.out.iterdir() if FOLDER.fullmatch(entry.name)):
            found += [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".partial")]
        usable = (path for path in found if path not in self.harmed and path.is_file())
        return sorted((path for path in usable if path.name not in STRAY_NAMES), key=without_attempt)

    def _live(self) -> dict[Path, Harm]:
        """Damage that is still there: of the root's documents, of receipts and stages, and of parts that have one.

        Damage takes files alone: where their folder is gone too, a command has taken the attempt away.

        A command that mends parts takes their receipts away first; if it is killed there, parts are missing, though
        nothing of what was damaged may be left, until they are computed again.
        """
        found = {}
        for path, harm in self.harmed.items():
            now = path.read_bytes() if path.is_file() else None
            if now == harm.now and path.parent.is_dir():
                attempt = path.relative_to(self.out).parts[1:2]
                receipt = self._receipt(path) if len(path.relative_to(self.out).parts) > 2 else None
                if receipt is None or receipt["attempt"] == attempt[0]:
                    found[path] = harm
            elif self._is_being_mended(path):
                found[path] = harm
        return found

    def _is_being_mended(self, path: Path) -> bool:
        """Whether parts are missing that the document of the file's stage names."""
        folder = path.relative_to(self.out).parts[0]
        document, whole = self._document(self.out / folder / "stage.json")
        return whole and any(not (self.out / folder / f"{part}.json").exists() for part in document["parts"])

    def _document(self, path: Path) -> tuple[Any, bool]:
        """A sealed document, and whether it is there and whole."""
        content, whole = opened(path.read_text(errors="replace") if path.is_file() else None)
        return content, whole and content is not None

    def _receipt(self, path: Path) -> Any:
        """The receipt of the part that a file of an attempt belongs to, or None."""
        folder, attempt, *_ = path.relative_to(self.out).parts
        receipt = self.out / folder / f"{attempt.rpartition('.')[0]}.json"
        content, whole = self._document(receipt)
        return content if whole else None

    def _place(self, path: Path) -> str:
        """What the place of a fault begins with that is about a file of an attempt."""
        return f"{path.relative_to(self.out).parts[0]}/{path.relative_to(self.out).parts[1]}/"

    def _is_of_finished_part(self, path: Path) -> bool:
        """Whether a file is of an attempt that a receipt of the last run's stages names."""
        parts = path.relative_to(self.out).parts
        return len(parts) > 2 and parts[0] in self._current() and self._receipt(path) is not None

    def _roots(self, harm: dict[Path, Harm]) -> bool:
        """Whether the documents are damaged that say what the directory is."""
        return any(path.parent == self.out for path in harm)

    def _current(self) -> set[str]:
        """Folders of the last run's stages; none where its manifest is damaged."""
        manifest, whole = self._document(self.out / "manifest.json")
        return {key["folder"] for key in manifest["keys"].values()} if whole else set()

    def _intact(self) -> set[tuple[str, str]]:
        """Parts that have a receipt and no damage."""
        bad = {self._place(path) for path in self._live() if len(path.relative_to(self.out).parts) > 2}
        found = set()
        for folder in self.out.iterdir() if self.out.exists() else ():
            if not FOLDER.fullmatch(folder.name):
                continue
            for entry in os.scandir(folder):
                if entry.is_file() and is_receipt(entry.name):
                    receipt, whole = opened(Path(entry.path).read_text(errors="replace"))
                    if whole and receipt is not None and f"{folder.name}/{receipt['attempt']}/" not in bad:
                        found.add((folder.name, entry.name.removesuffix(".json")))
        return found

    def _finished(self, intact: set[tuple[str, str]]) -> set[tuple[str, str]]:
        """Of these, the parts of stages that are finished and miss nothing."""
        found = set()
        for folder in {folder for folder, _ in intact}:
            document, whole = self._document(self.out / folder / "stage.json")
            if whole and {(folder, part) for part in document["parts"]} <= intact:
                found |= {(folder, part) for part in document["parts"]}
        return found


STRAY_NAMES = {"notes.txt", ".hidden", "p000009.json"}


def params_of(found: dict[str, Any]) -> Params:
    """The parameters that `status` tells."""
    return Params(**found["params"])


def is_alone(part: tuple[str, str]) -> bool:
    """Whether a part is of one partition, and computed without the others of its stage."""
    return part[0].startswith(ALONE) and re.fullmatch(r"p\d{6}", part[1]) is not None


def without_attempt(path: Path) -> str:
    """The path without what is drawn anew by each attempt."""
    return re.sub(r"\.[0-9a-f]{8}(?=/|$)", "", str(path))


def assert_allowed(error: IPS2Error, has_reason: bool) -> None:
    """An error for the user is one line with a remedy, and has a reason in what was done before."""
    assert "\n" not in str(error)
    assert "Remedy: " in str(error)
    assert has_reason, f"refused without a reason: {error}"


def assert_refused(want: Callable[[], object], reason: str) -> None:
    """Something is refused in one line, because of a reason."""
    try:
        want()
    except BadInput as error:
        assert_allowed(error, reason in str(error))
    else:
        raise AssertionError(f"not refused: {reason}")
