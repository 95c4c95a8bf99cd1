"""Stage after stage on an executor: what is there under the right key is used, what is lost or damaged is made again.

A stage is finished when its ``stage.json`` is written, which holds its key, its facts and the digest of each of its
parts. Before a stage is used its files are compared with that; damage that only a reader notices comes back as an
error that names the part, which is then computed again. What was computed from it stays as long as the bytes are the
same as before.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import importlib.metadata
import platform
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from ips2_dask import __version__
from ips2_dask.errors import BadInput, Damaged, FatalTask, WorkersKilled
from ips2_dask.executors.base import Executor, Report
from ips2_dask.executors.process_memory import peak_rss
from ips2_dask.kernels.parallel import usable_cores
from ips2_dask.params import Params
from ips2_dask.pipeline.keys import MODULES, Key, changes, keys_of
from ips2_dask.plan.plan import Plan, widest
from ips2_dask.progress import Progress, Reporter
from ips2_dask.readers import Source, features_of
from ips2_dask.runs.directory import withdraw
from ips2_dask.runs.run import Run
from ips2_dask.stages import choose, side_inputs
from ips2_dask.stages.side_inputs import SideInputs
from ips2_dask.store.base import Parts, Store
from ips2_dask.store.cache import cache
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.integrity import Receipt, Scan, content_of
from ips2_dask.store.layout import FORMAT, STAGES, key_digest

Facts = dict[str, Any]

TIDIED = 1 << 30
"""Bytes of a process from which on a stage's leavings matter: those of smaller runs are not worth the messages."""


def execute(
    source: Source,
    params: Params,
    plan: Plan,
    store: Store,
    executor: Executor,
    progress: Progress,
    asked: Mapping[str, Any] | None = None,
    given: SideInputs | None = None,
    *,
    fresh: bool = False,
    verify: bool = False,
) -> Run:
    """Run the stages that are not there yet; one that refuses its input leaves nothing behind.

    Parameters
    ----------
    asked : mapping, optional
        How the source was to be read; the manifest keeps it for the command that makes the run again.
    given : SideInputs, optional
        What was given beside the samples.
    fresh : bool
        Take away what earlier runs left in the store, and start over.
    verify : bool
        Read every byte of what is reused, and compute again what is damaged.

    Raises
    ------
    BadInput
        Where the input can't be used, or another run is at work in the store.
    StoreFailure
        Where the store can't be written any more.
    """
    with store.lock() as check:
        if fresh:
            store.clear()
        held = given or SideInputs()
        try:
            return _Execution(source, params, plan, store, executor, progress, check, verify, asked or {}, held).run()
        finally:
            cache.unpin_all()  # a run's graph is not kept in this process when the run has ended


class _OtherBytes(Exception):
    """A stage that was computed again has given other bytes: what comes after it must follow."""


class _CheckingReporter(Reporter):
    """A stage's progress, told on while the run's lock is its own."""

    def __init__(self, progress: Progress, name: str, check: Callable[[], None]) -> None:
        super().__init__(progress, name)
        self._check = check

    def __call__(self, done: int, total: int) -> None:
        """So many of the stage's tasks are done."""
        self._check()
        super().__call__(done, total)


class _Execution:
    """One run of the stages in one store."""

    def __init__(
        self, source: Source, params: Params, plan: Plan, store: Store, executor: Executor, progress: Progress,
        check: Callable[[], None], verify: bool, asked: Mapping[str, Any], given: SideInputs,
    ) -> None:  # fmt: skip
        self._source, self._plan, self._store = source, plan, store
        self._given_params, self._params = params, widest(params, plan.m)
        self._executor, self._progress, self._check, self._verify = executor, progress, check, verify
        self._asked, self._given = asked, given
        self._keys = keys_of(self._params, plan.choices, plan.bounds, source.fingerprint, given.digests)
        self._before = store.get_document("manifest.json")
        if self._before is not None and self._before.get("format") != FORMAT:
            self._before = None
        self._manifest = self._new_manifest()
        self._changes = changes(self._keys, self._manifest["done"])
        self._facts: dict[str, Facts] = {}
        self._digests: dict[str, str] = {}
        self._mended: set[tuple[str, str]] = set()
        self._other_bytes = ""

    def _new_manifest(self) -> dict[str, Any]:
        before = self._before or {"created": now()}
        fitted = features_of(self._source)
        return {
            "format": FORMAT,
            "created": before["created"],
            "params": self._params.as_dict(),
            "input": {
                "name": self._source.name, "shape": [self._plan.m, self._plan.f],
                "fingerprint": self._source.fingerprint, **self._asked,
                **({} if fitted is None else {"fitted_features": fitted.as_dict()}),
            },
            "bounds": list(self._plan.bounds),
            "choices": dataclasses.asdict(self._plan.choices),
            "plan": [dataclasses.asdict(stage) for stage in self._plan.stages],
            "beside": {},
            "generation": before.get("generation", 0),
            "versions": dict(versions()),
            "started": now(),
            "finished": None,
            "stages": [],
            "keys": described(self._keys),
            "choice": None,
            "done": dict(before.get("done", {})),
        }  # fmt: skip

    def run(self) -> Run:
        """All stages in their order, and the finished run."""
        self._store.create()
        self._put_manifest()
        self._keep_beside()
        if self._params.max_clusters is not None:
            self._settle(self._chosen())
        self._through(STAGES[-1], len(self._manifest["stages"]))
        if self._manifest["stages"][-1]["skipped"]:
            self._look_at_labels()
        self._manifest["finished"] = now()
        self._put_manifest()
        return Run(self._store, self._manifest)

    def _through(self, last: str, first: int = 0) -> None:
        """The stages in their order, to this one, ``first`` of which are done."""
        at = first
        while at <= STAGES.index(last):
            try:
                self._stage(STAGES[at])
                at += 1
            except _OtherBytes as changed:
                at = STAGES.index(str(changed)) + 1

    # ---- the number of clusters, where it is to be chosen

    def _chosen(self) -> dict[str, Any]:
        """The number of clusters with its evidence: that of an earlier run where nothing it depends on has changed.

        The fused similarity that it is read from has its V of as many vectors as clusters are considered.
        """
        key = choose.key(self._params, self._keys["fuse"].folder)
        known = (self._before or {}).get("choice")
        if known is not None and (known["key"], known["generation"]) == (key, self._manifest["generation"]):
            return dict(known)
        first = 0
        while True:
            self._through("fuse", first)
            try:
                evidence = self._work("label", choose.run)
            except _OtherBytes as changed:
                first = STAGES.index(str(changed)) + 1
                continue
            return {**evidence, "key": key, "generation": self._manifest["generation"]}

    def _settle(self, choice: dict[str, Any]) -> None:
        """From here on the run is that of the number of clusters that was chosen."""
        self._params = dataclasses.replace(self._params, n_clusters=choice["n_clusters"])
        self._keys = keys_of(
            self._params, self._plan.choices, self._plan.bounds, self._source.fingerprint, self._given.digests
        )
        stages = [s for s in self._manifest["stages"] if s["folder"] == self._keys[s["name"]].folder]
        kept = {s["name"] for s in stages}
        done = {name: content for name, content in self._manifest["done"].items() if name in kept}
        self._manifest |= {
            "params": self._params.as_dict(), "choice": choice, "keys": described(self._keys), "stages": stages,
            "done": {**(self._before or {}).get("done", {}), **done},
        }  # fmt: skip
        self._changes = changes(self._keys, self._manifest["done"])
        self._put_manifest()

    def _keep_beside(self) -> None:
        """Store sample names and what was given beside the samples."""
        kept, digests = self._manifest["beside"], self._given.digests
        if self._source.sample_names is not None:
            kept[side_inputs.NAMES] = side_inputs.store_names(self._store, self._source.sample_names)
        if digests:
            kept[side_inputs.FOLDER] = side_inputs.folder_of(digests)
            side_inputs.store_matrices(self._store, kept[side_inputs.FOLDER], self._given)
        if kept:
            self._put_manifest()

    def _put_manifest(self) -> None:
        self._store.put_document("manifest.json", self._manifest)

    # ---- one stage

    def _stage(self, name: str) -> None:
        """Use what is there of a stage, or compute it."""
        self._check()
        self._progress.begin(name)
        begun = time.perf_counter()
        key = self._keys[name]
        known = self._store.get_document(f"{key.folder}/stage.json")
        other = [] if known is None else [s for s, held in known["made_from"].items() if held != self._digests[s]]
        if other:
            self._forget_after(other[-1])
            known = None
        survey = self._store.scan(key.folder, known["parts"] if known else None, self._verify)
        skipped = known is not None and not survey.faults
        if known is not None and survey.faults:
            known, why = self._compute_again(name, known, survey)
            self._enter(name, known, "computed again", why)
        elif known is not None:
            why = [f"same input, parameters and code as when it was computed, {known['finished']}"]
            self._enter(name, known, "reused", why)
        else:
            why = self._why(name, survey)
            self._drop(survey, key.folder)
            try:
                known = self._compute(name, begun)
            except BadInput:
                first_time = self._before is None and name == STAGES[0]
                for kept in self._manifest["beside"].values() if first_time else ():
                    self._store.remove(kept)
                withdraw(self._store, key.folder, self._before if name == STAGES[0] else self._manifest)
                raise
            self._seal(name, known)
            again = name in self._manifest["done"] or bool(self._other_bytes)
            self._enter(name, known, "computed again" if again else "computed", why)
        self._progress.end(name, time.perf_counter() - begun, skipped)

    def _enter(self, name: str, known: dict[str, Any], state: str, why: list[str]) -> None:
        """Write into the manifest what became of a stage; an earlier entry is replaced."""
        self._facts[name] = known["facts"]
        self._digests[name] = _digest(known)
        entry = {
            "name": name, "folder": self._keys[name].folder, "seconds": known["seconds"], "skipped": state == "reused",
            "state": state, "why": why, "peak_rss_bytes": known["peak_rss_bytes"], "facts": known["facts"],
        }  # fmt: skip
        stages = self._manifest["stages"]
        stages[:] = [*(s for s in stages if s["name"] != name), entry]
        stages.sort(key=lambda s: STAGES.index(s["name"]))
        self._manifest["done"][name] = self._keys[name].content
        if name == STAGES[0] and "bounds" in known["facts"]:
            self._plan_for_distinct(known["facts"]["bounds"][-1])
        self._put_manifest()

    def _plan_for_distinct(self, m: int) -> None:
        """Plan the stages that are left for m distinct samples, as if the input held no other rows."""
        chosen = None if self._manifest["choice"] is None else self._params.n_clusters
        self._params = widest(self._given_params, m)
        if chosen is not None:
            self._params = dataclasses.replace(self._params, n_clusters=chosen)
        self._plan = self._plan.of_distinct(m, self._params)
        self._keys = keys_of(
            self._params, self._plan.choices, self._plan.bounds, self._source.fingerprint, self._given.digests
        )
        self._changes = changes(self._keys, self._manifest["done"])
        self._manifest |= {
            "params": self._params.as_dict(), "choices": dataclasses.asdict(self._plan.choices),
            "plan": [dataclasses.asdict(stage) for stage in self._plan.stages], "keys": described(self._keys),
        }  # fmt: skip

    def _why(self, name: str, survey: Scan) -> list[str]:
        """Why a stage without a ``stage.json`` is computed."""
        before = self._manifest["done"].get(name)
        if self._other_bytes:
            said = [f"{self._other_bytes} was computed again and gave other bytes"]
        elif before is None:
            said = ["it had not been computed here"]
        elif before == self._keys[name].content:
            said = ["its folder was gone"] if not survey.receipts else ["its stage.json was gone or damaged"]
        else:
            said = list(self._changes[name])
        if survey.receipts:
            there = len(survey.receipts) - len(survey.lost)
            said.append(f"{there} of its parts were there")
        return [*said, *(fault.text for fault in survey.faults)]

    def _drop(self, survey: Scan, folder: str) -> None:
        for part in survey.lost:
            self._store.drop(folder, part)

    def _compute(self, name: str, begun: float) -> dict[str, Any]:
        """Run a stage; returns what its ``stage.json`` is to hold."""
        facts = self._work(name)
        if max(self._plan.worker_bytes, self._plan.client_bytes) > TIDIED:
            self._executor.free_memory()  # the plan counts each stage without what the one before it left
        receipts = self._store.parts(self._keys[name].folder, cached=True)
        return {
            "key": self._keys[name].content,
            "facts": facts,
            "seconds": time.perf_counter() - begun,
            "peak_rss_bytes": _peak(receipts),
            "parts": _inventory(receipts),
            "made_from": {stage: self._digests[stage] for stage in STAGES[: STAGES.index(name)]},
            "finished": now(),
        }

    def _seal(self, name: str, known: dict[str, Any]) -> None:
        """Say that a stage is finished."""
        self._store.put_document(f"{self._keys[name].folder}/stage.json", known)

    def _work(self, name: str, function: Callable[..., Facts] | None = None) -> Facts:
        """Run a stage's function, or another in its place; damage in what it reads is mended first."""
        while True:
            try:
                return dict((function or MODULES[name].run)(self._context(name), self._executor, self._reporter(name)))
            except Damaged as damage:
                self._mend(name, damage)
            except FatalTask as error:
                raise _killed(name, error) from error

    def _context(self, name: str) -> Context:
        """What a stage's tasks are given: the folders and facts of the stages before it."""
        before = STAGES[: STAGES.index(name)]
        context = Context(
            self._store, self._params, self._plan.bounds, self._plan.f, self._plan.choices, threads=usable_cores(),
            source=self._source if name == STAGES[0] else None, generation=self._manifest["generation"],
        )  # fmt: skip
        for stage in before:
            context.facts[stage] = self._facts[stage]
            context.adopt(self._facts[stage])
        context.folders = {stage: self._keys[stage].folder for stage in (*before, name)}
        context.folders |= self._manifest["beside"]
        return context

    def _reporter(self, name: str) -> Report:
        return _CheckingReporter(self._progress, name, self._check)

    # ---- damage

    def _look_at_labels(self) -> None:
        """Read what a finished run is opened for; where that is damaged, mend it."""
        folder = self._keys["label"].folder
        try:
            self._store.read(folder, "whole", "labels")
        except Damaged as damage:
            self._mend("label", damage)

    def _mend(self, reader: str, damage: Damaged) -> None:
        """Compute the damaged parts of a stage again; the reader is the stage that met one of them.

        Raises
        ------
        Damaged
            Where the part had been mended before: then memory or disk can't be trusted.
        _OtherBytes
            Where the stage has other bytes than before, so that more than it must be computed again.
        """
        stage = next((s for s, key in self._keys.items() if key.folder == damage.folder), None)
        if stage is None or (damage.folder, damage.part) in self._mended:
            raise damage
        self._mended.add((damage.folder, damage.part))
        known = self._store.get_document(f"{damage.folder}/stage.json")
        survey = self._store.scan(damage.folder, known["parts"] if known else None, True)
        if known is None:  # the reader's own stage, in the middle of it
            self._drop(survey, damage.folder)
            self._store.drop(damage.folder, damage.part)
            return
        known, why = self._compute_again(stage, known, survey, damage.part)
        self._enter(stage, known, "computed again", why)
        if self._other_bytes == stage and stage != reader:
            raise _OtherBytes(stage)

    def _compute_again(
        self, name: str, known: dict[str, Any], survey: Scan, part: str | None = None
    ) -> tuple[dict[str, Any], list[str]]:
        """Compute the lost parts of a finished stage; returns its new ``stage.json``, and why."""
        folder = self._keys[name].folder
        lost = sorted({*survey.lost, *([part] if part else [])})
        for one in lost:
            self._store.drop(folder, one)
        again = self._compute(name, time.perf_counter())
        same = _digest(again) == _digest(known)
        why = [fault.text for fault in survey.faults[:5]]
        if len(survey.faults) > 5:
            why.append(f"and {len(survey.faults) - 5} more")
        rewritten = sum(
            known["parts"].get(one, {}).get("attempt") != held["attempt"] for one, held in again["parts"].items()
        )
        why.append(
            f"{rewritten} of {len(again['parts'])} parts were written again, with "
            f"{'the same bytes as before' if same else 'other bytes than before'}"
        )
        if not same:
            self._forget_after(name)
        self._seal(name, again)  # last: until then the stage is one that has lost parts
        return again, why

    def _forget_after(self, name: str) -> None:
        """Take away what was computed from a stage that has other bytes now."""
        self._other_bytes = name
        self._manifest["generation"] += 1
        later = STAGES[STAGES.index(name) + 1 :]
        for folder in self._store.stage_folders():
            if folder.rpartition("-")[0] in later:
                self._store.remove(folder)


def described(keys: Mapping[str, Key]) -> dict[str, Any]:
    """The keys as the manifest holds them."""
    return {name: {**key.content, "folder": key.folder} for name, key in keys.items()}


def _digest(known: dict[str, Any]) -> str:
    """Digest of what a stage holds and found, but for the names that the input goes by; nothing for one in memory."""
    if not known["parts"]:
        return ""
    held = {part: one["content"] for part, one in known["parts"].items()}
    facts = {name: fact for name, fact in known["facts"].items() if name != "source"}
    return key_digest({"parts": held, "facts": facts})[:16]


def _inventory(receipts: dict[str, Receipt]) -> Parts:
    """Attempt and content of each part; those in memory can't get lost."""
    return {
        part: {"attempt": receipt["attempt"], "content": content_of(receipt)}
        for part, receipt in sorted(receipts.items())
        if "attempt" in receipt
    }


def _peak(receipts: dict[str, Receipt]) -> int:
    """Largest peak of any process that worked on a stage, this one included."""
    return max([peak_rss(), *(int(r["facts"].get("peak_rss_bytes", 0)) for r in receipts.values())])


def _killed(name: str, error: FatalTask) -> WorkersKilled:
    """A task ended every worker that took it: which, and what that most likely means."""
    key = error.task
    chunk = re.search(r"-(\d+)-[0-9a-f]{32}$", str(key))
    which = f"task {key}"
    if isinstance(key, tuple) and isinstance(key[-1], int):
        which = f"partition {part_name(key[-1])}"
    elif chunk:
        which = f"chunk {chunk[1]}, or one that the same workers had in hand"
    return WorkersKilled(
        f"stage {name}, {which}: found that {error.workers} workers ended while they computed it, most "
        f"likely killed because their memory went beyond their limit; allowed is --memory-limit a process; otherwise "
        f"the run would never end. What was finished is kept. Remedy: give more --memory-limit, fewer --workers, or a "
        f"smaller --partition-rows, and run the same command again, which continues."
    )


def now() -> str:
    """The time, to the second, in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@functools.cache
def versions() -> dict[str, str]:
    """Versions of what the numbers depend on: looked up once, since that takes longer than a stage of a small fit."""
    names = ("dask", "distributed", "numba", "numpy", "pynndescent", "scikit-learn", "scipy", "zarr")
    return {
        "ips2_dask": __version__,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in names},
    }
