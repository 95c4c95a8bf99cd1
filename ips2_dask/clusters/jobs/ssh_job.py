"""A driver as a process of the first host of a cluster by SSH, which goes on when this machine is switched off."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import queue
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ips2_dask.clusters import ssh
from ips2_dask.clusters.config import Config, Ssh
from ips2_dask.clusters.extras import need
from ips2_dask.clusters.jobs.record import CONFIG, Job
from ips2_dask.clusters.loading import load
from ips2_dask.errors import BadInput
from ips2_dask.store.files import LocalFiles

REMOTE_MODULE = "ips2_dask.clusters.jobs.ssh_host"
CONNECT_SECONDS = 30
"""Seconds that a host may take to accept or refuse a connection."""


def launch(job: Job, config: Config) -> dict[str, Any]:
    """Start the driver on the first host and return at once."""
    path = job.folder / CONFIG
    config_file = {"config_text": path.read_text(encoding="utf-8"), "config_path": str(path)}
    return {**_ask(job, config, "start", **config_file), "by": config.kind(Ssh).hosts[0]}


def state(job: Job) -> str | None:
    """``running``, ``on HOST`` if the host can't be reached, or None if the driver ended; stores its exit status."""
    try:
        answer = _ask(job, load(job.folder / CONFIG), "look")
    except BadInput:
        return f"on {job.native['by']}"
    if answer["status"] is not None:
        LocalFiles(str(job.folder)).write("exit.json", json.dumps({"status": answer["status"]}))
    return None if answer["state"] is None else str(answer["state"])


def cancel(job: Job) -> None:
    """Ask the driver to end: it closes its cluster first."""
    _ask(job, load(job.folder / CONFIG), "cancel")


def log_lines(job: Job, follow: bool) -> Iterator[str]:
    """The lines of the driver's log, as they come over one connection."""
    config = load(job.folder / CONFIG)
    lines: queue.SimpleQueue[str | BaseException | None] = queue.SimpleQueue()

    def fetch() -> None:
        try:
            asyncio.run(_run_on_host(config, _request(job, follow=follow), "logs", lines.put))
            lines.put(None)
        except BaseException as error:
            lines.put(error)

    threading.Thread(target=fetch, name="ips2-logs", daemon=True).start()
    while (line := lines.get()) is not None:
        if isinstance(line, BaseException):
            raise line
        yield line


def _request(job: Job, **more: object) -> str:
    return json.dumps({"record": dataclasses.asdict(job), **more}) + "\n"


def _ask(job: Job, config: Config, verb: str, **more: object) -> dict[str, Any]:
    """The answer of the first host, in another thread because a notebook's own runs an event loop already."""
    lines: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, _run_on_host(config, _request(job, **more), verb, lines.append)).result()
    return dict(json.loads(lines[-1]))


async def _run_on_host(config: Config, request: str, verb: str, take: Callable[[str], None]) -> None:
    """Run a verb on the first host, and give each line that it prints to ``take``.

    Raises
    ------
    BadInput
        If the host can't be reached, or the package does not run there.
    """
    asyncssh = need("asyncssh", "ssh", "a job by SSH")
    machine = config.kind(Ssh)
    command = shlex.join([machine.python or sys.executable, "-m", REMOTE_MODULE, verb])
    try:
        async with (
            asyncio.timeout(CONNECT_SECONDS) as deadline,
            asyncssh.connect(machine.hosts[0], **ssh.connection(machine)) as connection,
        ):
            deadline.reschedule(None)
            async with connection.create_process(command) as process:
                process.stdin.write(request)
                process.stdin.write_eof()
                async for line in process.stdout:
                    if line:  # the last one may be empty
                        take(line)
                error = await process.stderr.read()
                await process.wait()
                if process.exit_status:
                    last = (error.strip().splitlines() or ["no word"])[-1]
                    raise RuntimeError(f"`{command}` ended with status {process.exit_status}: {last}")
    except (OSError, TimeoutError, asyncssh.Error, RuntimeError) as error:
        raise ssh.unreachable(machine, error) from error
