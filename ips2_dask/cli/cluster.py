"""Commands on clusters: ``ips2 cluster check``, ``certs``, and ``ips2 jobs submit``, ``list``, ``logs``, ``cancel``."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from ips2_dask.cli.console import print_check, print_jobs
from ips2_dask.cli.options import JSON, SECURITY, Part, add, add_all, input_of, params_of, resources_of
from ips2_dask.clusters import jobs, tls
from ips2_dask.clusters.config import MANAGERS, find, load
from ips2_dask.clusters.connect import check_worker, cluster, module_of
from ips2_dask.clusters.resources import config_of, settled
from ips2_dask.errors import BadInput

JOB_HELP = "of `ips2 jobs submit` or `ips2 jobs list`, or an unmistakable beginning of it"


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add what ``ips2 cluster`` does, and its options."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="WHAT")
    text = "validate the config, and show what would be started"
    check = verbs.add_parser("check", help=text, description=text)
    lines = """
config FILE|NAME  YAML file of a cluster, or a shipped one such as slurm
--start  start one worker and look at it from inside
--store DIR  with --start: folder or URL that workers must reach
--workers N  worker processes, instead of what the config says
"""
    add(check, lines, SECURITY, JSON)
    check.set_defaults(function=_check)
    text = "make certificates for a cluster (TLS), and print the paths of their files"
    certs = verbs.add_parser("certs", help=text, description=text)
    add(certs, "directory DIR  a new folder; the shipped configs use ~/.config/ips2_dask/tls")
    certs.set_defaults(function=_certs)


def _check(options: argparse.Namespace) -> int:
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


def _certs(options: argparse.Namespace) -> int:
    for path in tls.make(options.directory):
        print(path)
    return 0


def _add_jobs(parser: argparse.ArgumentParser) -> None:
    """Add what ``ips2 jobs`` does, and its options; without a word it lists them."""
    as_json: dict[str, Any] = {"action": "store_true", "help": "one JSON array as the last line of standard output"}
    parser.add_argument("--json", **as_json)
    parser.set_defaults(function=_list)
    verbs = parser.add_subparsers(metavar="WHAT")
    whats = {
        _submit: "hand a whole run over to a cluster, and return at once; options as of `ips2 run`",
        _list: "what was submitted, and what became of it (default)",
        _logs: "what a submitted job prints",
        _cancel: "end a submitted job",
    }
    for function, text in whats.items():
        name = function.__name__.removeprefix("_")
        lazily: dict[str, Any] = {"fill": _run_arguments} if name == "submit" else {}
        verb = verbs.add_parser(name, help=text, description=text, **lazily)
        verb.set_defaults(function=function)
        if name in ("logs", "cancel"):
            verb.add_argument("job", metavar="ID", help=JOB_HELP)
        if name == "logs":
            verb.add_argument("--follow", action="store_true", help="go on until the job ends")
        if name == "list":
            verb.add_argument("--json", default=argparse.SUPPRESS, **as_json)


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    from ips2_dask.cli.run import OPTIONS as OF_RUNS  # noqa: PLC0415  it loads every stage, and the others don't

    add_all(parser, OF_RUNS["run"])


OPTIONS: dict[str, tuple[Part, ...]] = {"cluster": (_add_cluster,), "jobs": (_add_jobs,)}


def _submit(options: argparse.Namespace) -> int:
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


def _list(options: argparse.Namespace) -> int:
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


def _logs(options: argparse.Namespace) -> int:
    """Print the log of a job's driver; with ``--follow`` also the lines that it still writes."""
    for line in jobs.log_lines(jobs.find(options.job), options.follow):
        print(line, end="", flush=True)
    return 0


def _cancel(options: argparse.Namespace) -> int:
    """Ask a job to end, and print its state."""
    job = jobs.cancel(jobs.find(options.job))
    now = jobs.state(job)
    print(f"{job.id}: {'told to end' if job.cancelled and now in ('running', 'pending') else now}")
    return 0
