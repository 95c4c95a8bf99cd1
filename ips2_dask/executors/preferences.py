"""Preferred workers that are gone: a task that prefers one runs on any other, also if none was running meanwhile.

The scheduler itself sends such a task elsewhere only if another worker is running at that moment. Else it marks it as
one without a worker, and a worker that starts or resumes later takes only tasks that may run on it alone: the task
waits for ever, whatever ``allow_other_workers`` says.
"""

from __future__ import annotations

import contextlib
from typing import Any

from distributed import Client

PLUGIN = "ips2-preferences"
"""Name of the scheduler's plugin."""


def release_preferences(client: Client) -> None:
    """Have the scheduler forget what a task prefers when there is no worker for it; once for each scheduler.

    A scheduler that runs no code of clients stays as it is.
    """

    def add(dask_scheduler: Any) -> None:  # a function of its own: the scheduler need not have this package
        from distributed.diagnostics.plugin import SchedulerPlugin  # noqa: PLC0415

        class Preferences(SchedulerPlugin):  # type: ignore[misc, unused-ignore]
            def transition(self, key: Any, start: str, finish: str, *_: Any, **__: Any) -> None:
                task = dask_scheduler.tasks.get(key) if finish == "no-worker" else None
                if task is not None and task.loose_restrictions:
                    task.worker_restrictions = None

        dask_scheduler.add_plugin(Preferences(), name=name, idempotent=True)

    name = PLUGIN  # the function brings it along
    with contextlib.suppress(AttributeError, ImportError, TypeError, ValueError):
        client.run_on_scheduler(add)
