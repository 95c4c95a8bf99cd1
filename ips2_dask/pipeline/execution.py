"""Execute the stages of a run one after another: reuse what is finished under the same key, compute the rest.

A stage is finished when its ``stage.json`` is written, which holds its key, its facts and the digest of each of its
parts. Before a stage is reused, its files are compared with that. Damage that only a reader notices comes back as an
error that names the part, which is then computed again. Stages that were computed from it stay as long as the new part
has the same bytes.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Mapping, Sequence

from ips2_dask.errors import BadInput, Damaged, FatalTask, Unreachable, WorkersKilled
from ips2_dask.executors.base import Executor, SerialExecutor
from ips2_dask.executors.process_memory import peak_rss
from ips2_dask.kernels.parallel import threads, usable_cores
from ips2_dask.pipeline import manifest as documents
from ips2_dask.pipeline.keys import MODULES, changes
from ips2_dask.pipeline.manifest import Manifest, StageDocument, now, read_stage
from ips2_dask.pipeline.prepare import Prepared
from ips2_dask.progress import Progress, Relay, Reporter
from ips2_dask.runs.run import Run
from ips2_dask.stages import choose, side_inputs
from ips2_dask.store.base import MemoryStore, Parts, StagedStore, Store
from ips2_dask.store.cache import cache
from ips2_dask.store.context import Context
from ips2_dask.store.integrity import Document, Facts, Receipt, Scan, content_of
from ips2_dask.store.layout import STAGES, key_digest

STAGED = ("assemble", "label")
"""Stages of a run in core whose parts stay in memory until they end, where this process computes them."""

MIN_BYTES_TO_TIDY = 1 << 30
"""Projected bytes of a process from which on a run in core frees its processes' memory after each stage: below,
messages would cost more. A run in chunks always does: what a stage leaves is a large part of what a worker may hold."""


def execute(
    prepared: Prepared,
    store: Store,
    executor: Executor,
    progress: Progress,
    *,
    fresh: bool = False,
    verify: bool = False,
) -> Run:
    """Execute the stages that are not finished yet; one that refuses its input leaves nothing behind.

    ``fresh`` takes away first what earlier runs left in the store, and ``verify`` reads every byte of what is reused,
    and computes again what is damaged.
    """
    with threads(usable_cores()), store.lock() as check:  # one thread for BLAS: more of them sum in another order
        if fresh:
            store.clear()
        try:
            return _Execution(prepared, store, executor, progress, check, verify).run()
        finally:
            cache.unpin_all()  # a run's graph is not kept in this process when the run has ended


class _OtherBytes(Exception):
    """A stage that was computed again has given other bytes, so the stages after it must follow."""


class _Execution:
    """One run of the stages in one store; ``check`` raises where another run has taken over the store."""

    def __init__(
        self,
        prepared: Prepared,
        store: Store,
        executor: Executor,
        progress: Progress,
        check: Callable[[], None],
        verify: bool,
    ) -> None:
        self._prepared, self._store, self._executor = prepared, store, executor
        self._progress, self._check, self._verify = Relay(progress, check=check), check, verify
        self._earlier = documents.read_manifest(store)
        self._manifest = Manifest.begin(prepared, self._earlier)
        self._changes = changes(prepared.keys, self._manifest.done)
        self._facts: dict[str, Facts] = {}
        self._digests: dict[str, str] = {}
        self._repaired: set[tuple[str, str]] = set()  # (folder, part)
        self._other_bytes = ""  # the stage that gave other bytes when it was computed again

    def run(self) -> Run:
        """All stages in their order, and the finished run."""
        self._store.create()
        self._manifest.write(self._store)
        self._store_side_inputs()
        if self._prepared.params.max_clusters is not None:
            choice = self._choice()
            self._go_on_as(self._prepared.with_clusters(choice["n_clusters"]), choice)
            self._manifest.write(self._store)
        self._take(self._stages, len(self._manifest.stages))
        if self._manifest.stages[-1]["skipped"]:  # nothing was computed: labels are read, and repaired if damaged
            try:
                part = "rows-000000" if "buckets" in self._facts["label"] else "whole"
                self._store.read(self._folder("label"), part, "labels")
            except Damaged as damage:
                self._repair("label", damage)
        self._manifest.finished = now()
        self._manifest.write(self._store)
        return Run(self._store, self._manifest.as_dict())

    @property
    def _stages(self) -> list[Callable[[], None]]:
        """A step for each stage."""
        return [functools.partial(self._run_stage, name) for name in STAGES]

    def _take(self, steps: Sequence[Callable[[], None]], first: int = 0) -> None:
        """Take steps in their order, the first ``first`` of which are done; where a stage has other bytes, go back."""
        while first < len(steps):
            try:
                steps[first]()
                first += 1
            except _OtherBytes as changed:
                first = STAGES.index(str(changed)) + 1

    def _store_side_inputs(self) -> None:
        """Store the names of samples and features, and the similarity and graph that the caller gave."""
        folders, inputs, source = self._manifest.beside, self._prepared.side_inputs, self._prepared.source
        digests = inputs.digests
        if source.sample_names is not None:
            folders[side_inputs.NAMES] = side_inputs.store_names(self._store, source.sample_names.tolist())
        titles = source.feature_names if source.fitted is None else None  # its columns have their names
        if titles is not None and titles != list(map(str, range(len(titles)))):
            folders[side_inputs.FEATURE_NAMES] = side_inputs.store_names(self._store, titles)
        if digests:
            folders[side_inputs.FOLDER] = side_inputs.folder_of(digests)
            side_inputs.store_matrices(self._store, folders[side_inputs.FOLDER], inputs)
        if folders:
            self._manifest.write(self._store)

    # ---- the number of clusters, where it is to be chosen

    def _choice(self) -> Document:
        """The number of clusters with its evidence: that of an earlier run where nothing it depends on has changed.

        It is read from the fused similarity whose V has as many vectors as clusters are considered.
        """
        key = choose.key(self._prepared.params, self._prepared.keys["fuse"].folder)
        generation = self._manifest.generation
        choice: Document | None = (self._earlier or {}).get("choice")
        if choice is not None and (choice["key"], choice["generation"]) == (key, generation):
            return choice.copy()
        evidence: Document = {}
        self._take([*self._stages[:-1], lambda: evidence.update(self._work("label", choose.run))])
        return {**evidence, "key": key, "generation": self._manifest.generation}

    def _go_on_as(self, prepared: Prepared, choice: Document | None = None) -> None:
        """Go on with the number of clusters that was chosen, or with the plan for the distinct samples."""
        self._prepared = prepared
        self._manifest.take(prepared, choice, self._earlier)
        self._changes = changes(prepared.keys, self._manifest.done)

    # ---- one stage

    def _run_stage(self, name: str) -> None:
        """Reuse a finished stage, or compute it."""
        self._check()
        self._progress.begin(name)
        begun = time.perf_counter()
        folder = self._folder(name)
        document = read_stage(self._store, folder)
        if document is not None:
            replaced = [stage for stage, digest in document["made_from"].items() if digest != self._digests[stage]]
            if replaced:
                self._forget_after(replaced[-1])
                document = None
        survey = self._store.scan(folder, document["parts"] if document else None, self._verify)
        skipped = document is not None and not survey.faults
        if document is None or not skipped:
            self._compute_stage(name, document, survey)
        else:
            why = [f"same input, parameters and code as when it was computed, {document['finished']}"]
            self._enter(name, document, "reused", why)
        self._progress.end(name, time.perf_counter() - begun, skipped)

    def _compute_stage(self, name: str, document: StageDocument | None, survey: Scan, part: str | None = None) -> None:
        """Compute the parts of a stage that are not stored, and those that are lost, ``part`` among them.

        ``document`` is its ``stage.json`` if it was finished. The new one comes last: until then the stage is not
        finished, or is one that has lost parts.
        """
        folder, why = self._folder(name), [] if document is not None else self._why(name, survey)
        self._store.drop_many(folder, sorted({*survey.lost, *([part] if part else [])}))
        try:
            found = self._compute(name)
        except Unreachable:  # not the input's fault: what is finished stays
            raise
        except BadInput:
            if document is None:
                self._withdraw(name)
            raise
        if document is not None:
            why = _rewritten(document, found, survey)
            if _digest(found) != _digest(document):
                self._forget_after(name)
        self._store.put_document(f"{folder}/stage.json", found)
        again = document is not None or name in self._manifest.done or bool(self._other_bytes)
        self._enter(name, found, "computed again" if again else "computed", why)

    def _withdraw(self, name: str) -> None:
        """Take back a stage that refused its input: its folder goes, and the manifest is what it was before.

        Where there was none, nothing of the run stays, nor its directory if the run made it.
        """
        before = self._earlier if name == STAGES[0] else self._manifest.as_dict()
        if before is None:
            for there in (*self._manifest.beside.values(), self._folder(name), documents.MANIFEST, "zarr.json"):
                self._store.remove(there)
        else:
            self._store.remove(self._folder(name))
            self._store.put_document(documents.MANIFEST, before)

    def _folder(self, name: str) -> str:
        """The folder of a stage's results."""
        return self._prepared.keys[name].folder

    def _enter(self, name: str, document: StageDocument, state: str, why: list[str]) -> None:
        """Record a finished stage in the manifest."""
        facts = document["facts"]
        self._facts[name], self._digests[name] = facts, _digest(document)
        key = self._prepared.keys[name]
        entry: Document = {"name": name, "folder": key.folder, "skipped": state == "reused", "state": state, "why": why}
        entry |= {"seconds": document["seconds"], "peak_rss_bytes": document["peak_rss_bytes"], "facts": facts}
        self._manifest.enter(entry, key.content)
        if name == STAGES[0] and "bounds" in facts:
            n_clusters = None if self._manifest.choice is None else self._manifest.choice["n_clusters"]
            self._go_on_as(self._prepared.for_distinct(facts["bounds"][-1], n_clusters))
        self._manifest.write(self._store)

    def _why(self, name: str, survey: Scan) -> list[str]:
        """Why a stage without a ``stage.json`` is computed."""
        earlier = self._manifest.done.get(name)
        if self._other_bytes:
            reasons = [f"{self._other_bytes} was computed again and gave other bytes"]
        elif earlier is None:
            reasons = ["it had not been computed here"]
        elif earlier == self._prepared.keys[name].content:
            reasons = ["its folder was gone"] if not survey.receipts else ["its stage.json was gone or damaged"]
        else:
            reasons = list(self._changes[name])
        if survey.receipts:
            n_stored = len(survey.receipts) - len(survey.lost)
            reasons.append(f"{n_stored} of its parts were there")
        return [*reasons, *(fault.text for fault in survey.faults)]

    def _compute(self, name: str) -> StageDocument:
        """Run a stage; returns the content of its ``stage.json``."""
        begun = time.perf_counter()
        facts = self._work(name)
        plan = self._prepared.plan
        is_large = max(plan.worker_bytes, plan.client_bytes) > MIN_BYTES_TO_TIDY
        if is_large or plan.choices.vectors == "chunked":
            self._executor.free_memory()  # the plan counts each stage without memory that the one before it left
        key = self._prepared.keys[name]
        receipts = self._store.parts(key.folder, cached=True)
        return {
            "key": key.content,
            "facts": facts,
            "seconds": time.perf_counter() - begun,
            "peak_rss_bytes": max([peak_rss(), *(int(r["facts"].get("peak_rss_bytes", 0)) for r in receipts.values())]),
            "parts": _parts(receipts),
            "made_from": {stage: self._digests[stage] for stage in STAGES[: STAGES.index(name)]},
            "finished": now(),
        }

    def _work(self, name: str, function: Callable[..., Facts] | None = None) -> Facts:
        """Run a stage's function, or another in its place; damage in what it reads is repaired first."""
        while True:
            try:
                context = self._context(name)
                staged = StagedStore(self._store) if self._is_staged(name) else None
                context.store = staged or self._store
                work, report = function or MODULES[name].run, Reporter(self._progress, name)
                facts = dict(work(context, self._executor, report))
                if staged is not None:
                    staged.flush()
                return facts
            except Damaged as damage:
                self._repair(name, damage)
            except FatalTask as error:
                raise _killed(name, error) from error

    def _is_staged(self, name: str) -> bool:
        """Whether this process computes all of a stage, in a few seconds, and few of its parts stay."""
        here = isinstance(self._executor, SerialExecutor) and not isinstance(self._store, MemoryStore)
        return here and name in STAGED and self._prepared.plan.choices.vectors == "in-core"

    def _context(self, name: str) -> Context:
        """The context of a stage's tasks, with the folders and facts of the stages before it."""
        before = STAGES[: STAGES.index(name)]
        prepared, plan = self._prepared, self._prepared.plan
        context = Context(self._store, prepared.params, plan.bounds, plan.f, plan.choices, threads=usable_cores())
        context.source = prepared.source if name == STAGES[0] else None
        context.generation = self._manifest.generation
        for stage in before:
            context.facts[stage] = self._facts[stage]
            context.adopt(self._facts[stage])
        context.folders = {stage: self._folder(stage) for stage in (*before, name)} | self._manifest.beside
        return context

    # ---- damage

    def _repair(self, reader: str, damage: Damaged) -> None:
        """Compute the damaged parts of a stage again; ``reader`` is the stage that came upon one of them.

        A part that was repaired before is not repaired again: then memory or disk can't be trusted. ``_OtherBytes`` is
        raised where the stage has other bytes than before, so that the stages after it must follow.
        """
        stage = next((s for s, key in self._prepared.keys.items() if key.folder == damage.folder), None)
        if stage is None or (damage.folder, damage.part) in self._repaired:
            raise damage
        self._repaired.add((damage.folder, damage.part))
        document = read_stage(self._store, damage.folder)
        survey = self._store.scan(damage.folder, document["parts"] if document else None, True)
        if document is None:  # the reader's own stage, in the middle of it
            self._store.drop_many(damage.folder, [*survey.lost, damage.part])
            return
        self._compute_stage(stage, document, survey, damage.part)
        if self._other_bytes == stage and stage != reader:
            raise _OtherBytes(stage)

    def _forget_after(self, name: str) -> None:
        """Remove what was computed from a stage that has other bytes now."""
        self._other_bytes = name
        self._manifest.generation += 1
        later = STAGES[STAGES.index(name) + 1 :]
        for folder in self._store.stage_folders():
            if folder.rpartition("-")[0] in later:
                self._store.remove(folder)


def _rewritten(before: StageDocument, after: StageDocument, survey: Scan) -> list[str]:
    """Why lost parts of a finished stage were computed again, and what came of it."""
    attempts = {one: part["attempt"] for one, part in before["parts"].items()}
    n_rewritten = sum(attempts.get(one) != new["attempt"] for one, new in after["parts"].items())
    result = "the same bytes as before" if _digest(after) == _digest(before) else "other bytes than before"
    more = [f"and {len(survey.faults) - 5} more"] if len(survey.faults) > 5 else []
    said = f"{n_rewritten} of {len(after['parts'])} parts were written again, with {result}"
    return [*(fault.text for fault in survey.faults[:5]), *more, said]


def _digest(document: StageDocument) -> str:
    """Digest of a stage's parts and facts, but for the names that the input goes by; empty for one in memory."""
    if not document["parts"]:
        return ""
    contents = {part: receipt["content"] for part, receipt in document["parts"].items()}
    facts = {name: fact for name, fact in document["facts"].items() if name != "source"}
    return key_digest({"parts": contents, "facts": facts})[:16]


def _parts(receipts: Mapping[str, Receipt]) -> Parts:
    """Attempt and content of each part; those in memory can't get lost."""
    return {
        part: {"attempt": receipt["attempt"], "content": content_of(receipt)}
        for part, receipt in sorted(receipts.items())
        if "attempt" in receipt
    }


def _killed(name: str, error: FatalTask) -> WorkersKilled:
    """The error for a task that ended every worker that took it: which task, and the likely cause."""
    chunk = re.search(r"-(\d+)-[0-9a-f]{32}$", str(error.task))
    which = f"chunk {chunk[1]}, or one that the same workers had in hand" if chunk else error.task
    return WorkersKilled(
        f"stage {name}, {which}: found that {error.workers} workers ended while they computed it, most "
        f"likely killed because their memory went beyond their limit; allowed is memory_limit a process; otherwise "
        f"the run would never end. What was finished is kept. Remedy: run it again, which continues, with a larger "
        f"memory_limit, a smaller n_workers or a smaller partition_rows."
    )
