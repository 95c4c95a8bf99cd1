"""Commands that set up a cluster: ``ips2 cluster check`` and ``ips2 certs``."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from ips2_dask.clusters import tls
from ips2_dask.clusters.config import MANAGERS, Config
from ips2_dask.errors import BadInput

if TYPE_CHECKING:
    from ips2_dask.cli.console import ClusterCheck


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ips2 cluster``."""
    from ips2_dask.cli.options import add_security  # noqa: PLC0415  it loads SciPy, which certs does not need

    parser.add_argument("what", choices=("check",), help="check: validate the config, and show what would be started")
    parser.add_argument("config", metavar="FILE|NAME", help="YAML file of a cluster, or a shipped one such as slurm")
    parser.add_argument("--start", action="store_true", help="start one worker and look at it from inside")
    parser.add_argument("--store", metavar="DIR", help="with --start: folder or URL that workers must reach")
    parser.add_argument("--workers", type=int, metavar="N", help="worker processes, instead of what the config says")
    add_security(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of standard output")


def cluster_command(options: argparse.Namespace) -> int:
    """Show what a config would start; the exit status is 1 if ``--start`` finds a worker that could not do a run."""
    # `ips2 certs` needs neither the kernels nor a table of rich
    from ips2_dask.cli.console import print_check  # noqa: PLC0415
    from ips2_dask.clusters.connect import cluster, module_of  # noqa: PLC0415
    from ips2_dask.clusters.loading import find, load  # noqa: PLC0415
    from ips2_dask.clusters.resources import settled  # noqa: PLC0415
    from ips2_dask.clusters.worker_check import check_worker  # noqa: PLC0415

    if options.store is not None and not options.start:
        raise BadInput(
            "--store",
            f"{options.store} without --start",
            "--store with --start",
            "no worker would look whether it reaches it",
            "add --start, or leave --store out",
        )
    config = load(options.config)
    workers = options.workers or (1 if options.start and "workers" in MANAGERS[config.manager].takes else None)
    config = settled(config, workers=workers, tls=options.tls, insecure=options.insecure)
    check: ClusterCheck = {
        "config": str(find(options.config)),
        "manager": config.manager,
        "starts": module_of(config).preview(config),
        "notes": _notes(config),
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


def _notes(config: Config) -> list[str]:
    """Steps that are left to the user before the cluster can start."""
    files = tls.missing(config.tls) if config.tls else []
    return [f"{config.tls} lacks {', '.join(files)}: run `ips2 certs {config.tls}` first"] if files else []


def add_certs_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ips2 certs``."""
    parser.add_argument(
        "directory", metavar="DIR", help="a new folder; the shipped configs use ~/.config/ips2_dask/tls"
    )


def certs_command(options: argparse.Namespace) -> int:
    """Make a folder of certificates, and print the paths of its files."""
    for path in tls.make(options.directory):
        print(path)
    return 0
