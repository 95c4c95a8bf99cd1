"""A store behind a URL that loses acknowledgements, answers 503, or is slow: the same labels, or one line and a rerun.

The store is fsspec's in memory, with the faults of a network between it and whoever asks. Its client tries again as
often as a test says, as clients of object stores do. Each test has a control: the same with a guard taken out fails.
"""

from __future__ import annotations

import contextlib
import errno
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import fsspec
import numpy as np
import numpy.typing as npt
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from ips2_dask import Params, Resources, gc, open_run, run, verify
from ips2_dask.errors import IPS2Error
from ips2_dask.store import lock
from ips2_dask.store.cache import cache
from ips2_dask.store.files import RemoteFiles
from ips2_dask.store.remote import FreshStore
from ips2_dask.store.zarr_store import ZarrStore

RNG = np.random.default_rng(31)
X = RNG.normal(size=(60, 3)) + 2.0 * RNG.integers(0, 3, size=(60, 1))
PARAMS, RESOURCES = Params(n_clusters=3), Resources(partition_rows=20)
ROOT = "unreliable://bucket/run"
CHANGES = ("pipe_file", "rm_file", "_rm")

Weather = Callable[[str, str, int], str]
"""From a request's verb, its path and how often it was sent before: ``""``, ``"lost"``, ``"503"`` or ``"slow"``."""


def fair(verb: str, path: str, times: int) -> str:
    """Every request is answered."""
    del verb, path, times
    return ""


class Unreliable(MemoryFileSystem):
    """A store in memory behind a bad network."""

    protocol = ("unreliable",)
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    weather: ClassVar[Weather] = fair
    retries: ClassVar[int] = 0
    sent: ClassVar[Counter[tuple[str, str]]] = Counter()
    refused: ClassVar[int] = 0
    lock: ClassVar[Any] = threading.RLock()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + str(path).removeprefix("unreliable://").strip("/")

    def _request(self, verb: str, path: str, do: Callable[[], Any]) -> Any:
        error: Exception | None = None
        for _ in range(1 + Unreliable.retries):
            with Unreliable.lock:
                times = Unreliable.sent[verb, path]
                Unreliable.sent[verb, path] += 1
            outcome = Unreliable.weather(verb, path, times)
            if outcome == "slow":
                time.sleep(0.001 * random.Random(f"{verb} {path} {times}").randrange(20))
            if outcome != "503":
                with Unreliable.lock:  # a dictionary is no store for many threads
                    answer = do()
                if outcome != "lost":
                    return answer
            Unreliable.refused += 1
            error = TimeoutError("no answer") if outcome == "lost" else OSError(errno.EBUSY, "503: please slow down")
        assert error is not None
        raise error

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **more: Any) -> None:
        """One put."""
        self._request("pipe_file", path, lambda: super(Unreliable, self).pipe_file(path, value, mode=mode, **more))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **more: Any) -> bytes:
        """One get."""
        return self._request("cat_file", path, lambda: super(Unreliable, self).cat_file(path, start, end, **more))

    def ls(self, path: str, detail: bool = True, **more: Any) -> Any:
        """One listing."""
        return self._request("ls", path, lambda: super(Unreliable, self).ls(path, detail=detail, **more))

    def rm_file(self, path: str) -> None:
        """One removal."""

        def remove() -> None:
            with contextlib.suppress(FileNotFoundError):  # object stores say nothing of an object that is not there
                super(Unreliable, self).rm_file(path)

        self._request("rm_file", path, remove)


@pytest.fixture(autouse=True)
def _bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty store in fair weather, and no heartbeat, which follows the clock."""
    fsspec.register_implementation("unreliable", Unreliable, clobber=True)
    monkeypatch.setattr(lock, "HEARTBEAT", 3600.0)
    cache.clear()
    yield
    Unreliable.store.clear()
    Unreliable.pseudo_dirs[:] = [""]
    Unreliable.sent.clear()
    Unreliable.weather, Unreliable.retries, Unreliable.refused = fair, 0, 0
    Unreliable.clear_instance_cache()


@pytest.fixture(scope="module")
def labels() -> npt.NDArray[np.int32]:
    """Labels of an undisturbed run."""
    return run(X, PARAMS, RESOURCES).labels


def attempt() -> Any:
    """The run, or the error that it ends with; each is a process of its own."""
    cache.clear()
    try:
        return run(X, PARAMS, RESOURCES, store=ROOT)
    except IPS2Error as error:
        assert_one_line(str(error))
        return error


def assert_one_line(text: str) -> None:
    assert "\n" not in text
    assert "Remedy: " in text


def assert_sound(labels: npt.NDArray[np.int32]) -> None:
    """What is in the store is a whole run with these labels."""
    Unreliable.weather = fair
    cache.clear()
    np.testing.assert_array_equal(open_run(ROOT).labels, labels)
    found = verify(ROOT)
    assert found.sound, [fault.text for fault in found.faults]
    assert found.running is None


# ---- acknowledgements that get lost


def first_is_lost(verb: str, path: str, times: int) -> str:
    """Each change is made, and its first answer gets lost."""
    del path
    return "lost" if verb in CHANGES and times == 0 else ""


def test_a_client_that_asks_again_after_a_lost_answer_makes_no_difference(labels: npt.NDArray[np.int32]) -> None:
    Unreliable.weather, Unreliable.retries = first_is_lost, 1
    found = attempt()
    assert not isinstance(found, IPS2Error), found
    assert Unreliable.refused > 100
    assert_sound(labels)
    assert gc(ROOT).garbage == ()


def test_control_a_lock_that_is_not_known_as_ones_own_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "is_alive", lambda owner: True)  # our own lock, whose answer got lost, is another's
    Unreliable.weather, Unreliable.retries = first_is_lost, 1
    assert "one run at a time" in str(attempt())


def some_are_lost(seed: int, share: float = 0.01) -> Weather:
    """Some changes are made whose answers get lost, others each time; not by what attempts are called at random."""

    def weather(verb: str, path: str, times: int) -> str:
        path = re.sub(r"\.[0-9a-f]{8}(?=/|$)", "", path)
        lost = verb in CHANGES and random.Random(f"{seed} {verb} {path} {times}").random() < share
        return "lost" if lost else ""

    return weather


def until_done(weather: Callable[[int], Weather], most: int = 60) -> tuple[int, list[str]]:
    """Repeat the command until it ends well; returns how often it failed, and why."""
    failures: list[str] = []
    while len(failures) < most:
        Unreliable.weather = weather(len(failures))
        found = attempt()
        if not isinstance(found, IPS2Error):
            return len(failures), failures
        failures.append(str(found))
    raise AssertionError(f"no end: {failures[-1]}")


@pytest.mark.slow
def test_without_retries_a_lost_answer_is_one_line_and_the_same_command_goes_on(labels: npt.NDArray[np.int32]) -> None:
    failed, _ = until_done(lambda seed: some_are_lost(seed, 0.02))
    assert failed > 1
    assert_sound(labels)


@pytest.mark.slow
def test_a_part_whose_receipt_arrived_is_kept_though_the_answer_got_lost(labels: npt.NDArray[np.int32]) -> None:
    assert_receipts_hold(labels)


def assert_receipts_hold(labels: npt.NDArray[np.int32]) -> None:
    def receipts_are_lost(verb: str, path: str, times: int) -> str:
        is_receipt = path.rsplit("/", 1)[-1].startswith("p0") and path.endswith(".json")
        return "lost" if verb == "pipe_file" and is_receipt and times == 0 else ""

    failed, _ = until_done(lambda _: receipts_are_lost)
    assert failed > 3  # a partition each time, at least
    puts = {path: times for (verb, path), times in Unreliable.sent.items() if verb == "pipe_file"}
    alone = re.compile(r"/(ingest|neighbors|tensor|fuse)-\w+/p\d+\.json$")  # stages that compute each part by itself
    again = {path: times for path, times in puts.items() if alone.search(path)}
    assert len(again) >= 9
    assert set(again.values()) == {1}, again  # what has a receipt is never computed again
    assert_sound(labels)


@pytest.mark.slow
def test_control_arrays_that_went_after_a_lost_answer_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch, labels: npt.NDArray[np.int32]
) -> None:
    plain = ZarrStore.write

    def careless(self: ZarrStore, folder: str, part: str, arrays: Any, facts: Any) -> Any:
        try:
            return plain(self, folder, part, arrays, facts)
        except IPS2Error:  # as if nothing of the attempt could be there
            sealing = self.receipt(folder, part)
            if sealing is not None:
                self.files.remove(f"{folder}/{sealing['attempt']}")
            raise

    monkeypatch.setattr(ZarrStore, "write", careless)
    with pytest.raises(AssertionError):
        assert_receipts_hold(labels)


# ---- answers of 503


def busy_at_first(verb: str, path: str, times: int) -> str:
    """Each request is refused twice."""
    del verb, path
    return "503" if times < 2 else ""


def test_a_store_that_is_busy_for_a_while_makes_no_difference(labels: npt.NDArray[np.int32]) -> None:
    Unreliable.weather, Unreliable.retries = busy_at_first, 2
    found = attempt()
    assert not isinstance(found, IPS2Error), found
    assert Unreliable.refused > 200
    assert_sound(labels)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["pipe_file", "cat_file", "ls", "rm_file"])
def test_a_store_that_stays_busy_is_one_line_and_the_same_command_goes_on(
    verb: str, labels: npt.NDArray[np.int32]
) -> None:
    def busy(after: int) -> Weather:
        counted = iter(range(10**9))
        return lambda asked, path, times: "503" if asked == verb and next(counted) >= after else ""

    seen = []
    for after in (0, 1, 2, 5, 20, 40, 80):
        Unreliable.weather = busy(after)
        found = attempt()
        if isinstance(found, IPS2Error):
            seen.append(str(found))
            assert ROOT in seen[-1]
    assert seen  # control: with no refusal at all there is nothing to say
    Unreliable.weather = fair
    assert not isinstance(attempt(), IPS2Error)
    assert_sound(labels)


def test_control_without_retries_a_busy_store_is_noticed() -> None:
    Unreliable.weather = busy_at_first
    found = attempt()
    assert isinstance(found, IPS2Error)


# ---- slow answers


def receipts_before_their_arrays() -> list[str]:
    """Receipts that were stored when some of what they name was not."""
    early: list[str] = []
    plain = Unreliable.pipe_file

    def watched(self: Unreliable, path: str, value: bytes, mode: str = "overwrite", **more: Any) -> None:
        folder, _, name = path.rpartition("/")
        if name.startswith("p0") and name.endswith(".json"):
            attempt_name = bytes(value).split(b'"attempt": "')[1].split(b'"')[0].decode()
            with Unreliable.lock:
                there = {
                    key.removeprefix(f"{folder}/{attempt_name}/") for key in Unreliable.store if attempt_name in key
                }
            arrays = {key.split("/")[0] for key in there if "/" in key}
            if not {"zarr.json", *(f"{array}/zarr.json" for array in arrays)} <= there:
                early.append(path)
        plain(self, path, value, mode=mode, **more)

    Unreliable.pipe_file = watched  # type: ignore[method-assign]
    try:
        Unreliable.weather = lambda verb, path, times: "slow"
        found = attempt()
        assert not isinstance(found, IPS2Error), found
    finally:
        Unreliable.pipe_file = plain  # type: ignore[method-assign]
    return early


@pytest.mark.slow
def test_on_a_slow_store_a_receipt_comes_after_all_that_it_names(labels: npt.NDArray[np.int32]) -> None:
    assert receipts_before_their_arrays() == []
    assert_sound(labels)


@pytest.mark.slow
def test_control_a_receipt_that_does_not_wait_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(self: FreshStore) -> None:
        del self

    monkeypatch.setattr(FreshStore, "await_writes", at_once)
    assert receipts_before_their_arrays() != []


def test_two_that_want_the_lock_of_a_slow_store_at_once_do_not_both_get_it() -> None:
    Unreliable.weather = lambda verb, path, times: "slow"
    got: list[bool] = []
    threads = [
        threading.Thread(target=lambda: got.append(RemoteFiles(ROOT).create("lock.json", "{}"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [False] * 7 + [True]


def test_a_heartbeat_goes_on_after_the_store_gave_no_answer_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT", 0.01)
    refused = iter(range(1 << 30))
    files = RemoteFiles(ROOT)
    with lock.Lock(files, ROOT) as held:
        first = lock.owner_of(files)
        assert first is not None
        Unreliable.weather = lambda verb, path, times: "503" if next(refused) < 20 else ""
        deadline = time.monotonic() + 60
        while Unreliable.refused < 20 and time.monotonic() < deadline:
            time.sleep(0.01)
        later: Any = first
        while later["heartbeat"] == first["heartbeat"] and time.monotonic() < deadline:
            later = lock.owner_of(files) or first
        assert later["heartbeat"] > first["heartbeat"]
        held.check()
    assert lock.owner_of(files) is None
