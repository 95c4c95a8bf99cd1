"""Every family of experiments by its name, and what it takes to do some of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ips2_dask import datasets
from ips2_dask.errors import BadInput
from ips2_dask.paper.experiments import beyond, neighbors, ranks, series, similarities, table1, table2, table3
from ips2_dask.paper.experiments.records import Record
from ips2_dask.paper.experiments.runner import Progress, run_tasks
from ips2_dask.paper.experiments.scope import Family, Results, Scope

FAMILIES: dict[str, Family] = {
    "table1": table1.FAMILY,
    "table2": table2.FAMILY,
    "table3": table3.FAMILY,
    **similarities.FAMILIES,
    **series.FAMILIES,
    "neighbors": neighbors.FAMILY,
    "beyond": beyond.FAMILY,
    "ranks": ranks.FAMILY,
}
"""In the order of the report."""


def chosen(only: Sequence[str]) -> dict[str, Family]:
    """The families that ``--only`` names, in the order of the report; all of them where it names none.

    Raises
    ------
    BadInput
        A name that is none of theirs.
    """
    for name in only:
        if name not in FAMILIES:
            raise BadInput(
                "--only", repr(name), ", ".join(FAMILIES), "nothing would be computed", "give some of these names"
            )
    return {name: family for name, family in FAMILIES.items() if not only or name in only}


def runnable(data: str | None = None) -> list[str]:
    """Names of the families whose data sets are there; by default where the variable IPS2_DATA says."""
    there = set(datasets.available(data))
    return [name for name, family in FAMILIES.items() if set(family.datasets) <= there]


def check_data(families: Mapping[str, Family], data: str | None) -> None:
    """Refuse before the first task where a data set is missing or is not the publisher's.

    Raises
    ------
    BadInput
        It says what to fetch, and from where.
    """
    for name in dict.fromkeys(name for family in families.values() for name in family.datasets):
        datasets.load(name, data)


def experiments(
    families: Mapping[str, Family], scope: Scope, out: Path, data: str | None, jobs: int, progress: Progress
) -> tuple[list[Record], Results]:
    """Do what is not done of some families: their records, and the results of their tasks.

    Raises
    ------
    BadInput
        A data set is missing.
    """
    check_data(families, data)
    tasks = [task for family in families.values() for task in family.tasks(scope)]
    results = run_tasks(tasks, out, data, jobs, progress)
    return [one for family in families.values() for one in family.records(scope, results)], results
