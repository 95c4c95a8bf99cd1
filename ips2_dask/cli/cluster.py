"""``ips2 cluster check``: what a cluster's config would start, and with ``--start`` whether its workers will do."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ips2_dask.cli.console import print_check
from ips2_dask.cli.options import add_security
from ips2_dask.clusters.config import TAKES, Config
from ips2_dask.clusters.connect import cluster, module_of, settled
from ips2_dask.clusters.loading import find, load
from ips2_dask.clusters.probe import probe
from ips2_dask.clusters.tls import missing
from ips2_dask.errors import BadInput


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ips2 cluster``."""
    parser.add_argument("what", choices=("check",), help="check: validate the config, and show what would be started")
    parser.add_argument("config", metavar="FILE|NAME", help="YAML file of a cluster, or a shipped one such as slurm")
    parser.add_argument("--start", action="store_true", help="start one worker and look at it from inside")
    parser.add_argument("--store", metavar="DIR", help="with --start: folder or URL that workers must reach")
    parser.add_argument("--workers", type=int, metavar="N", help="worker processes, instead of what the config says")
    add_security(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of standard output")


def command(options: argparse.Namespace) -> int:
    """``ips2 cluster check``: 0 where all is well, 1 where a worker would not do."""
    if options.store is not None and not options.start:
        raise BadInput(
            "--store", f"{options.store} without --start", "--store with --start",
            "no worker would look whether it reaches it", "add --start, or leave --store out",
        )  # fmt: skip
    config = load(options.config)
    workers = options.workers or (1 if options.start and "workers" in TAKES[config.manager] else None)
    config = settled(config, workers=workers, tls=options.tls, insecure=options.insecure)
    said: dict[str, Any] = {
        "config": str(find(options.config)),
        "manager": config.manager,
        "starts": module_of(config).preview(config),
        "notes": list(_notes(config)),
        "worker": None,
        "amiss": [],
    }
    if options.start:
        with cluster(config) as client:
            said["worker"], said["amiss"] = probe(client, options.store)
    if options.json:
        print(json.dumps(said))
    else:
        print_check(said)
    return 1 if said["amiss"] else 0


def _notes(config: Config) -> list[str]:
    """What has still to be done before it can start."""
    lacks = missing(config.tls) if config.tls else []
    return [f"{config.tls} lacks {', '.join(lacks)}: run `ips2 certs {config.tls}` first"] if lacks else []
