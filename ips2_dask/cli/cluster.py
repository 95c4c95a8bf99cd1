"""Commands on clusters: ``ips2 cluster check``, ``certs``, and ``ips2 jobs submit``, ``list``, ``logs``, ``cancel``."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from ips2_dask.cli.console import print_check, print_jobs
from ips2_dask.cli.options import input_of, params_of, resources_of
from ips2_dask.clusters import jobs, tls
from ips2_dask.clusters.config import MANAGERS, find, load
from ips2_dask.clusters.connect import check_worker, cluster, module_of
from ips2_dask.clusters.resources import config_of, settled
from ips2_dask.errors import BadInput


def cluster_check(options: argparse.Namespace) -> int:
    """Show what a config would start; the exit status is 1 if ``--start`` finds a worker that could not do a run."""
    if options.store is not None and not options.start:
        found, why = f"{options.store} without --start", "no worker would look whether it reaches it"
        raise BadInput("--store", found, "--store with --start", why, "add --start, or leave --store out")
    config = load(options.config)
    workers = options.workers or (1 if options.start and "workers" in MANAGERS[config.manager].takes else None)
    config = settled(config, workers=workers, tls=options.tls, insecure=options.insecure)
    lacking = tls.missing(config.tls) if config.tls else []
    note = f"{config.tls} lacks {', '.join(lacking)}: run `ips2 cluster certs {config.tls}` first"
    check: dict[str, Any] = {
        "config": str(find(options.config)),
        "manager": config.manager,
        "starts": module_of(config).preview(config),
        "notes": [note] if lacking else [],
        "worker": None,
        "amiss": [],
    }
    if options.start:
        with cluster(config) as client:
            check["worker"], check["amiss"] = check_worker(client, options.store)
    if options.json:
        print(json.dumps(check))
    else:
        print_check(check)
    return 1 if check["amiss"] else 0


def cluster_certs(options: argparse.Namespace) -> int:
    for path in tls.make(options.directory):
        print(path)
    return 0


def jobs_submit(options: argparse.Namespace) -> int:
    """Check the options on this machine, submit the run to the cluster, and print the job's id."""
    from ips2_dask.pipeline.prepare import check_params  # noqa: PLC0415  for this command alone

    params, resources = params_of(options), resources_of(options)
    check_params(params, resources)
    input_of(options)
    given = options.given[options.given.index("submit") + 1 :]
    job = jobs.submit(given, config_of(resources), options.cluster, options.out)
    if not options.quiet:
        print(f"submitted; ips2 jobs logs {job.id} --follow, ips2 jobs cancel {job.id}", file=sys.stderr)
    print(job.id)
    return 0


def jobs_list(options: argparse.Namespace) -> int:
    """Print one line for each submitted job, the oldest first."""
    names = ("manager", "submitted", "out", "native")
    rows = [
        {"id": job.id, "state": jobs.state(job), **{name: getattr(job, name) for name in names}} for job in jobs.jobs()
    ]
    if options.json:
        print(json.dumps(rows))
    else:
        print_jobs(rows)
    return 0


jobs_command = jobs_list


def jobs_logs(options: argparse.Namespace) -> int:
    """Print the log of a job's driver; with ``--follow`` also the lines that it still writes."""
    for line in jobs.log_lines(jobs.find(options.job), options.follow):
        print(line, end="", flush=True)
    return 0


def jobs_cancel(options: argparse.Namespace) -> int:
    """Ask a job to end, and print its state."""
    job = jobs.cancel(jobs.find(options.job))
    now = jobs.state(job)
    print(f"{job.id}: {'told to end' if job.cancelled and now in ('running', 'pending') else now}")
    return 0
