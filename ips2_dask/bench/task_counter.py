"""A plugin of Dask's scheduler that counts tasks: those it was sent, those done, and the most it knew at one time.

A module of its own, which the scheduler's process imports, and nothing else of the benchmarks with it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from distributed import Scheduler, SchedulerPlugin

NAME = "ips2-task-counter"
"""The plugin's name at the scheduler."""


class TaskCounter(SchedulerPlugin):
    """Counts tasks at the scheduler.

    Attributes
    ----------
    sent : int
        Tasks that clients have sent.
    done : int
        Tasks that workers have finished; one that is done again counts again.
    redone : int
        Tasks that were done again, though the scheduler still knew them as done before.
    known : int
        Most tasks that the scheduler knew at one time since the last `counts`.
    """

    name = NAME

    def __init__(self) -> None:
        self.sent = self.done = self.redone = self.known = 0
        self._finished: set[Any] = set()
        self._scheduler: Scheduler | None = None

    async def start(self, scheduler: Scheduler) -> None:
        """Called by the scheduler when the plugin is registered."""
        self._scheduler = scheduler

    def update_graph(self, scheduler: Scheduler, *, keys: Collection[Any], **_: Any) -> None:
        """Called by the scheduler when a client has sent tasks, all of which it asks for."""
        self.sent += len(keys)  # `tasks` has those that they depend on as well
        self.known = max(self.known, len(scheduler.tasks))

    def transition(self, key: Any, start: str, finish: str, *_: Any, **__: Any) -> None:
        """Called by the scheduler for each change of a task's state."""
        if finish == "forgotten":
            self._finished.discard(key)
        elif start == "processing" and finish == "memory":
            self.done += 1
            self.redone += key in self._finished
            self._finished.add(key)


def counts(dask_scheduler: Scheduler) -> tuple[int, int, int, int]:
    """Tasks sent, done, redone, and most known since the last call: for `distributed.Client.run_on_scheduler`."""
    counter = dask_scheduler.plugins[NAME]
    assert isinstance(counter, TaskCounter)
    known, counter.known = counter.known, len(dask_scheduler.tasks)
    return counter.sent, counter.done, counter.redone, known
