"""Options that several commands share, and the `Params`, `Resources`, `Features` and `TextFormat` of their values."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ips2_dask.errors import BadInput
from ips2_dask.params import CHOICES, MAX_CLUSTERS, PRESETS, Params, Resources, entries
from ips2_dask.readers.features import HEADER, MISSING, MOST_CATEGORIES, USUAL, Features, TextFormat, split_list
from ips2_dask.wording import option

JSON = "--json  one JSON object as the last line of standard output"
QUIET = "--quiet  no progress and no report"
SCORED = """
--labels-column NAME  column of known labels, by name or number: for scores
--transpose  the input is features by samples
"""
SIDE_INPUTS = """
--similarity FILE  S of all samples, for --affinity precomputed: .npz, .npy, a.h5ad::obsp/b
--knn-graph FILE  sparse matrix whose entries in a row are a sample's candidate neighbours
"""
SECURITY = """
--tls DIR  certificates, as `ips2 cluster certs DIR` makes them
--insecure  let the scheduler listen beyond 127.0.0.1 without certificates
"""


Part = str | Callable[[argparse.ArgumentParser], None]
"""Some options of a command: a text for `add`, or a function that adds them."""


def add(
    parser: argparse._ActionsContainer, *texts: str, types: Mapping[str, Callable[[str], Any]] = {"N": int}
) -> None:
    """Add options and arguments, one a line: its name, what it takes, and after two blanks its help.

    One that takes nothing is a flag, and ``types`` has how others are read, by what they take. Lower-case words with
    ``|`` between them are the choices, one with ``!`` is required, and after ``=`` comes the default, which its help
    tells. A line without a name goes on with the help of the one before it.
    """
    for line in filter(None, re.sub(r"\n   +", " ", "\n".join(texts)).splitlines()):
        (name, _, takes), text = line.split("  ", 1)[0].partition(" "), line.split("  ", 1)[1]
        takes, _, default = takes.partition("=")
        more: dict[str, Any] = {"metavar": takes.rstrip("!") or None}
        if "|" in takes and takes.islower():
            more = {"choices": takes.split("|")}
        elif name.startswith("--"):
            more = {**more, "required": takes.endswith("!")} if takes else {"action": "store_true"}
        more |= {"type": types[takes.rstrip("!")]} if takes.rstrip("!") in types else {}
        more |= {"default": default} if default else {}
        parser.add_argument(name, help=text + (f" (default {default})" if default else ""), **more)


def add_all(parser: argparse.ArgumentParser, parts: Sequence[Part]) -> None:
    """Add all options of a command."""
    for part in parts:
        if callable(part):
            part(parser)
        else:
            add(parser, part)


def _word_or_number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def _words(text: str) -> list[str | float]:
    """``none,zscore`` and ``mean,2``; `Params` knows which there are."""
    return [_word_or_number(word) for word in text.split(",")]


def _clusters(text: str) -> int | str:
    try:
        return text if text == "auto" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a whole number nor auto") from None


def whole_numbers(text: str) -> tuple[int, ...]:
    """``5:15`` (both ends included), ``5:15:5`` and ``5,7,9``, or several of them with commas, as numbers."""
    values: list[int] = []
    for word in text.split(","):
        match = re.fullmatch(r"(\d+)(?::(\d+)(?::(\d+))?)?", word.strip())
        step = int(match[3] or 1) if match else 0
        if match is None or step < 1:
            raise argparse.ArgumentTypeError(f"{text!r} is no list such as 5,7,9 and no range such as 5:15 or 5:15:5")
        values += range(int(match[1]), int(match[2] or match[1]) + 1, step)
    if not values:
        raise argparse.ArgumentTypeError(f"{text!r} is a range without a number in it")
    return tuple(values)


def numbers(text: str) -> tuple[float, ...]:
    """``.2,1,4`` as numbers."""
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers such as .2,1,4") from None


TYPES: dict[str, dict[str, Any]] = {
    "int": {"type": int, "metavar": "N"},
    "float": {"type": float, "metavar": "X"},
    "int | Any": {"type": _clusters, "metavar": "N|auto"},
    "str | float": {"type": _word_or_number, "metavar": "mean|median|X"},
}
"""How an option is read whose parameter in `Params` is of a type."""

LISTS = {"int": whole_numbers, "int | Any": whole_numbers, "float": numbers}
"""How a sweep's list is read of a parameter that is of a type; others are words."""


def add_params(parser: argparse.ArgumentParser, lists: Mapping[str, str | None] | None = None) -> None:
    """Add an option for each parameter of the method, as the docstring of it begins.

    With ``lists`` each of them takes a list, for a sweep. The names in it have this default, or no option where it is
    None.
    """
    lists_of = (
        "" if lists is None else ": lists such as .2,1 and none,zscore; of whole numbers also ranges such as 5:15"
    )
    group = parser.add_argument_group(f"method{lists_of}")
    group.add_argument("--preset", choices=sorted(PRESETS), default="default", help="a set of the options below")
    explained = entries(Params.__dataclass_fields__)
    defaults = {name: field.default for name, field in Params.__dataclass_fields__.items()}
    for name, default in {**defaults, "max_clusters": MAX_CLUSTERS, **(lists or {})}.items():
        if lists is None or lists.get(name, name) is not None:
            text = " ".join(re.findall(r"^ {8}(\S.*)", explained[name], re.MULTILINE)) + " "
            sentence = re.split(r"(?<!eq)\.\s", text)[0].strip().replace("``", "").replace("%", "%%")
            kind = str(Params.__dataclass_fields__[name].type).removesuffix(" | None")
            extra: dict[str, Any] = {"choices": CHOICES[name]} if name in CHOICES else TYPES[kind]
            if lists is not None:
                one = str(extra.get("metavar", "|".join(CHOICES.get(name, ())))).removesuffix("|auto")
                extra = {"type": LISTS.get(kind, _words), "metavar": f"{one},..."}
            sentence += "" if default is None else f" (default {default})"
            group.add_argument(option(name), dest=name, default=None, help=sentence, **extra)


def add_input(parser: argparse.ArgumentParser, optional: bool = False) -> None:
    """Add the input, and the options on its labels and features."""
    nargs: dict[str, Any] = {"nargs": "?"} if optional else {}
    parser.add_argument("input", help="data file, file::dataset, folder or URL of a Zarr array", **nargs)
    add(parser, SCORED)
    group = parser.add_argument_group(
        "features: columns by name, by number from 0, and ranges of both with their ends, such as A,B,5,7-20"
    )
    lines = f"""
--columns LIST  columns that are features (default: all)
--drop-columns LIST  columns that are none
--one-hot LIST  columns of text or numbers that become a 0 or 1 for each category, of at most {MOST_CATEGORIES:,}
--missing {"|".join(MISSING)}={MISSING[0]}  what is done about NaN, nulls and, in text files, empty fields, ?, NA and
    such: refuse them, take the column's median, or drop the row, whose label is then -1
"""
    add(group, lines)
    add_text_format(parser)


def add_text_format(parser: argparse.ArgumentParser) -> None:
    """Add the options on how a text file is read; those that are not given are None."""
    group = parser.add_argument_group("text files")
    group.add_argument("--decimal", choices=(".", ","), help="decimal mark (default: a point)")
    lines = rf"""
--header {"|".join(HEADER)}  whether the first line names the columns (default: auto, by what is in it)
--delimiter CHAR  between fields; \t: a tab, a blank: runs of them (default: as found)
--encoding NAME  such as latin-1, cp1252 or utf-16 (default: utf-8)
--thousands CHAR  mark between groups of three digits
--comment CHAR  character at which a line ends, unless it is in quotes
--skip-lines N  lines before the table, such as titles
"""
    add(group, lines)


def add_cluster(group: argparse._ActionsContainer, serial: bool = True) -> None:
    """Add the options for a cluster, a scheduler or this process, and for certificates."""
    where = group.add_mutually_exclusive_group()
    add(where, "--cluster FILE|NAME  YAML file of a cluster, or a shipped one such as slurm")
    add(where, "--scheduler ADDRESS  address of a running Dask scheduler")
    if serial:
        add(where, "--serial  no cluster: everything in this process")
    add(group, SECURITY)


def add_resources(parser: argparse.ArgumentParser, cuts: bool = True) -> None:
    """Add the options on resources; without ``cuts`` those on partitions and block vectors are left out."""
    group = parser.add_argument_group("machine")
    add_cluster(group)
    lines = """
--workers N  worker processes (default: cores, up to 4)
--memory-limit SIZE  bytes a process may use, such as 4GiB
--scratch DIR  folder for what workers spill
"""
    add(group, lines)
    if cuts:
        add(group, "--partition-rows N  samples in a partition (default: by the shape)")
        add(group, f"--vectors {'|'.join(CHOICES['vectors'])}=auto  where block vectors live")


def input_of(options: argparse.Namespace) -> dict[str, Any]:
    """How the options say that the input is read, as arguments of `ips2_dask.run` and of `readers.open_source`."""
    return {
        "labels_column": options.labels_column,
        "transpose": options.transpose,
        "features": _features_of(options),
        "text": text_of(options),
    }


def _features_of(options: argparse.Namespace) -> Features:
    """The features that the options select from the input's columns."""
    texts = {name: getattr(options, name) for name in ("columns", "drop_columns", "one_hot")}
    lists = {name: split_list(text, option(name)) for name, text in texts.items() if text is not None}
    return Features(**lists, missing=options.missing)


def text_of(options: argparse.Namespace, usual: TextFormat | None = None) -> TextFormat | None:
    """How the options say that a text file is read, other settings as of ``usual``; None if they don't say it."""
    given = {name: getattr(options, name) for name in TextFormat.__dataclass_fields__}
    given = {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(usual or USUAL, **given) if given else None


def params_of(options: argparse.Namespace) -> Params:
    """The parameters of the method, by the options and the preset."""
    values = {name: getattr(options, name, None) for name in Params.__dataclass_fields__}
    if values["n_clusters"] is None and values["assign_labels"] == "leiden":
        values["n_clusters"] = "auto"  # it finds the number
    if values["n_clusters"] != "auto" and values["max_clusters"] is not None:
        found, allowed = "a number of clusters that is not auto", "--max-clusters with --clusters auto"
        why, remedy = "one of the two would count for nothing", "give --clusters auto, or leave --max-clusters out"
        raise BadInput("--max-clusters", found, allowed, why, remedy)
    return Params(**{**PRESETS[options.preset], **{name: value for name, value in values.items() if value is not None}})


def resources_of(options: argparse.Namespace) -> Resources:
    """The resources that the options set; those of a command that has no option for them are the defaults."""
    if options.workers is not None and (options.scheduler or options.serial):
        other = "--scheduler" if options.scheduler else "--serial"
        found, allowed = f"{options.workers}, not allowed with argument {other}", "workers of a new cluster"
        raise BadInput("--workers", found, allowed, "they would not be there", f"leave out --workers or {other}")
    given = {name: getattr(options, name) for name in Resources.__dataclass_fields__ if hasattr(options, name)}
    return Resources(**given | {"n_workers": options.workers})
