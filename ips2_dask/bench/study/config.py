"""The settings of a scaling study, from a YAML file or keyword arguments, every key and value checked."""

from __future__ import annotations

import dataclasses
import difflib
from pathlib import Path
from typing import Any

import yaml

from ips2_dask.errors import BadInput
from ips2_dask.params import CHOICES, MAX_NEIGHBORS

LEAST = {"sizes": 100, "neighbors": 2, "workers": 1, "strong_workers": 1, "weak_workers": 1}
"""Smallest values of the lists of whole numbers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """The settings of a study; the names are the keys of the file and of the notebook's parameters.

    Parameters
    ----------
    name : str
        Of the file of results.
    sizes : list of int
        Samples of each run of the growth part.
    neighbors : list of int
        Values of k; every size is measured with each.
    operators : list of str
        Levels of assembly of the tensor; every size is measured with each.
    features, clusters : int
        Of the generated data, `datasets.curved_gaussians`.
    workers : int
        Worker processes of the growth part; 0 runs serially in one process.
    strong_samples : int
        Samples of the runs with growing numbers of workers; 0 leaves the part out.
    strong_workers : list of int
    weak_samples : int
        Samples for each worker where both grow; 0 leaves the part out.
    weak_workers : list of int
    cluster : str, optional
        A YAML file of a cluster or the name of a shipped one; by default processes of this machine.
    scheduler : str, optional
        Address of a running scheduler instead; its workers are as many as they are.
    scratch : str, optional
        Folder for data and run directories, which the cluster's nodes must share; by default a temporary one.
    limit : float
        Seconds after which a run is given up.
    seed : int
    warm_up : bool
        Compile the kernels by small runs first, so that no time holds it.
    """

    name: str = "study"
    sizes: tuple[int, ...] = (2_000, 6_325, 20_000, 63_246, 200_000)
    neighbors: tuple[int, ...] = (5,)
    operators: tuple[str, ...] = ("auto",)
    features: int = 64
    clusters: int = 20
    workers: int = 2
    strong_samples: int = 20_000
    strong_workers: tuple[int, ...] = (1, 2)
    weak_samples: int = 10_000
    weak_workers: tuple[int, ...] = (1, 2)
    cluster: str | None = None
    scheduler: str | None = None
    scratch: str | None = None
    limit: float = 7200.0
    seed: int = 0
    warm_up: bool = True

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            name: _numbers(name, getattr(self, name), LEAST[name]) for name in LEAST if name != "workers"
        }
        if max(checked["neighbors"]) > MAX_NEIGHBORS:
            raise _bad("neighbors", self.neighbors, f"numbers from 2 to {MAX_NEIGHBORS}")
        checked["operators"] = _words("operators", self.operators, CHOICES["operator"])
        for name, low in (
            ("features", 1),
            ("clusters", 2),
            ("workers", 0),
            ("seed", 0),
            ("strong_samples", 0),
            ("weak_samples", 0),
        ):
            checked[name] = _whole(name, getattr(self, name), low)
        if isinstance(self.limit, bool) or not isinstance(self.limit, int | float) or self.limit <= 0:
            raise _bad("limit", self.limit, "a number of seconds above 0")
        if not isinstance(self.warm_up, bool):
            raise _bad("warm_up", self.warm_up, "true or false")
        if not (isinstance(self.name, str) and self.name and set(self.name) <= _PLAIN):
            raise _bad("name", self.name, "letters, digits, - and _")
        for name in ("cluster", "scheduler", "scratch"):
            if getattr(self, name) is not None and not isinstance(getattr(self, name), str):
                raise _bad(name, getattr(self, name), "a text, or null")
        if self.cluster is not None and self.scheduler is not None:
            raise BadInput(
                "cluster and scheduler",
                "both",
                "one of them",
                "it would not be known where to measure",
                "leave one of them out",
            )
        if min(checked["sizes"]) <= self.clusters:
            raise _bad("sizes", self.sizes, f"numbers above clusters ({self.clusters})")
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, lists for tuples."""
        return {n: list(v) if isinstance(v, tuple) else v for n, v in dataclasses.asdict(self).items()}


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


def read_config(path: str | Path) -> Study:
    """The study that a YAML file describes.

    Raises
    ------
    BadInput
        Where the file, a key or a value can't be used.
    """
    file = Path(path)
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no text"
        raise BadInput(
            str(path),
            f"a file that can't be read ({reason})",
            "a YAML file",
            "there would be nothing to measure",
            "check the path",
        ) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark is not None else "it"
        raise BadInput(
            str(path),
            f"what is no YAML ({where})",
            "keys with values",
            "its settings would be guessed at",
            f"mend {where}",
        ) from None
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise BadInput(
            str(path),
            f"a {type(content).__name__}",
            "keys with values",
            "nothing would say what to measure",
            "write lines such as `sizes: [2000, 20000]`",
        )
    names = {field.name for field in dataclasses.fields(Study)}
    for key in content:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, 1)
            raise BadInput(
                f"{path}: {key}",
                "an unknown key",
                ", ".join(sorted(names)),
                "it would count for nothing",
                f"write {near[0]}" if near else "take it out",
            )
    return Study(**content)


def _bad(name: str, value: object, allowed: str) -> BadInput:
    return BadInput(name, repr(value), allowed, "the study could not be made", "give such a value")


def _whole(name: str, value: object, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise _bad(name, value, f"a whole number of at least {low}")
    return value


def _numbers(name: str, values: object, low: int) -> tuple[int, ...]:
    if not isinstance(values, list | tuple) or not values:
        raise _bad(name, values, "a list of whole numbers")
    return tuple(_whole(name, value, low) for value in values)


def _words(name: str, values: object, allowed: tuple[str, ...]) -> tuple[str, ...]:
    if not isinstance(values, list | tuple) or not values or not set(values) <= set(allowed):
        raise _bad(name, values, f"a list of {', '.join(allowed)}")
    return tuple(values)
