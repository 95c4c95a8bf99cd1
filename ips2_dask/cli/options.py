"""Options that several commands share, and the `Params`, `Resources`, `Features` and `TextFormat` of their values."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ips2_dask.errors import BadInput
from ips2_dask.params import LEAST_RECALL, MAX_CLUSTERS, PRESETS, Params, Resources
from ips2_dask.readers.features import HANDLE_UNKNOWN, USUAL, Features, TextFormat, split_list
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

Part = str | Callable[[Any], None]
"""Some options of a command: a text for `add`, or a function that adds them."""


def add(
    parser: argparse._ActionsContainer, *parts: Part, types: Mapping[str, Callable[[str], Any]] = {"N": int}
) -> None:
    """Add options and arguments, by a function or one a line: its name, what it takes, and after two blanks its help.

    One that takes nothing is a flag, and ``types`` has how others are read, by what they take. Lower-case words with
    ``|`` between them are the choices, one with ``!`` is required, and after ``=`` comes the default, which its help
    tells. A line without a name goes on with the help of the one before it.
    """
    for part in parts:
        if callable(part):
            part(parser)
        for line in () if callable(part) else filter(None, re.sub(r"\n   +", " ", part).splitlines()):
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
    "int | str": {"metavar": "SIZE"},
    "str | Sequence[str | int]": {"metavar": "LIST"},
    "bool": {"action": "store_true"},
}
"""How an option is read whose field is of a type; others are words."""

LISTS = {"int": whole_numbers, "int | Any": whole_numbers, "float": numbers}
"""How a sweep's list is read of a parameter that is of a type; others are words."""


def add_fields(
    group: argparse._ActionsContainer,
    record: type[Params | Resources | Features | TextFormat],
    *names: str,
    lists: bool = False,
    **defaults: object,
) -> None:
    """Add an option for each field of a record, or for some: its words or its type, and what its docstring says first.

    What is not given is None; ``defaults`` are told where they are others than the record's. With ``lists`` each option
    takes a list, for a sweep.
    """
    explained = dict(re.findall(r"^    (\w+) : .*\n((?:\n| {8}.*\n)+)", str(record.__doc__), re.MULTILINE))
    for name, field in record.__dataclass_fields__.items():
        if names and name not in names:
            continue
        sentence = re.split(r"(?<!eq)\.\s|; None", " ".join(explained[name].split()) + " ")[0].replace("`", "")
        words, kind = field.metadata.get("words"), str(field.type).removesuffix(" | None")
        other = {"metavar": field.metadata.get("metavar")}
        extra: dict[str, Any] = {"choices": words} if words else TYPES.get(kind, other)
        if lists:
            one = str(extra.get("metavar", "|".join(words or ()))).removesuffix("|auto")
            extra = {"type": LISTS.get(kind, _words), "metavar": f"{one},..."}
        default = defaults.get(name, field.default)
        sentence += "" if default in (None, ()) or default is False else f" (default {default})"
        group.add_argument(option(name), dest=name, default=None, help=sentence.replace("%", "%%"), **extra)


def add_params(parser: argparse.ArgumentParser, lists: Mapping[str, str | None] | None = None) -> None:
    """Add an option for each parameter of the method.

    With ``lists`` each of them takes a list, for a sweep. The names in it have this default, or no option where it is
    None.
    """
    lists_of = (
        "" if lists is None else ": lists such as .2,1 and none,zscore; of whole numbers also ranges such as 5:15"
    )
    group = parser.add_argument_group(f"method{lists_of}")
    group.add_argument("--preset", choices=sorted(PRESETS), default="default", help="a set of the options below")
    defaults = {"max_clusters": MAX_CLUSTERS, **(lists or {})}
    names = [name for name in Params.__dataclass_fields__ if defaults.get(name, name) is not None]
    add_fields(group, Params, *names, lists=lists is not None, **defaults)


def add_input(parser: argparse.ArgumentParser, optional: bool = False) -> None:
    """Add the input, and the options on its labels and features."""
    nargs: dict[str, Any] = {"nargs": "?"} if optional else {}
    parser.add_argument("input", help="data file, file::dataset, folder or URL of a Zarr array", **nargs)
    add(parser, SCORED)
    columns = "columns by name, by number from 0, and ranges of both with their ends, such as A,B,5,7-20"
    add_fields(parser.add_argument_group(f"features: {columns}"), Features)
    add_text_format(parser)


def add_text_format(parser: argparse.ArgumentParser) -> None:
    """Add the options on how a text file is read."""
    add_fields(parser.add_argument_group("text files"), TextFormat)


def add_cluster(group: argparse._ActionsContainer, serial: bool = True) -> None:
    """Add the options for a cluster, a scheduler or this process, and for certificates."""
    where = group.add_mutually_exclusive_group()
    add_fields(where, Resources, "cluster", "scheduler")
    if serial:
        add(where, "--serial  no cluster: everything in this process")
    add_security(group)


def add_security(group: argparse._ActionsContainer) -> None:
    """Add the options on certificates."""
    add_fields(group, Resources, "tls", "insecure")


def add_resources(parser: argparse.ArgumentParser, cuts: bool = True) -> None:
    """Add the options on resources; without ``cuts`` those on partitions and block vectors are left out."""
    group = parser.add_argument_group("machine")
    add_cluster(group)
    add(group, "--workers N  worker processes (default: cores, up to 4)")
    add_fields(group, Resources, "memory_limit", "scratch", *(("partition_rows", "vectors") if cuts else ()))


def _add_swept(parser: argparse.ArgumentParser) -> None:
    """Add the options on what a sweep tries."""
    from ips2_dask.sweeps import RESAMPLES  # noqa: PLC0415  for this command alone
    from ips2_dask.sweeps.grid import CLUSTERS, NOT_SWEPT  # noqa: PLC0415  the same

    add_params(parser, {"n_clusters": f"{CLUSTERS[0]}:{CLUSTERS[-1]}", **dict.fromkeys(NOT_SWEPT)})
    add(parser, f"--resamples N={RESAMPLES}  subsamples for stability")


OUTPUT = f"""
{JSON}
{QUIET}
--log-json FILE|-  progress as JSON lines; - writes them to standard output, and no report
--strict  exit with 3 if a promise was not kept: residuals to tol, recall of {LEAST_RECALL:g}, as many clusters as were
    asked for and no more components, no empty pair
"""

RUN = """
--out DIR!  run directory; an earlier run is continued
--fresh  take away what earlier runs left there, and start over
--verify  read every byte of what is reused, and compute again what is damaged
--performance-report FILE  Dask's own report of the run, an HTML file
"""

PREDICT = f"""
directory  directory of a finished run
new  new samples: data file, file::dataset, folder or URL of a Zarr array
--out FILE!  labels and their certainty: .csv, .tsv or .parquet; labels: .npy
--proba  also the probability of each cluster
--embedding  also the extended embedding
--handle-unknown {"|".join(HANDLE_UNKNOWN)}={HANDLE_UNKNOWN[0]}  a category that the run has not seen: refuse it, or
    make all features of its column 0
{JSON}
{QUIET}
{SCORED}
"""

PLAN = """
--shape MxF  samples x features, such as 1000000x64, in place of an input
--out DIR  the run directory, whose disk's free space is compared
--json  the whole plan as one JSON object, and no table
"""

SWEEP = f"""
--out DIR!  run directory; an earlier sweep is continued
--top N=10  points that are shown
{JSON}
{QUIET}
"""


def _add_page(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", dest="page", metavar="FILE", help="the page (default: DIR/report.html)")


def _add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json`` to a command and to its words alike, of which the last one given counts."""
    says = "one JSON array as the last line of standard output"
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=says)


CHECK = f"""
config FILE|NAME  YAML file of a cluster, or a shipped one such as slurm
--start  start one worker and look at it from inside
--store DIR  with --start: folder or URL that workers must reach
--workers N  worker processes, instead of what the config says
{JSON}
"""

JOB = "job ID  of `ips2 jobs submit` or `ips2 jobs list`, or an unmistakable beginning of it"

OPTIONS: dict[str, tuple[Part, ...]] = {
    "run": (add_input, SIDE_INPUTS, RUN, OUTPUT, add_params, add_resources),
    "plan": (partial(add_input, optional=True), PLAN, add_params, add_resources),
    "predict": (PREDICT, add_text_format, partial(add_resources, cuts=False)),
    "sweep": (add_input, _add_swept, SWEEP, SIDE_INPUTS, add_resources),
    "demo": ("--out DIR=ips2-demo  run directory", partial(add_cluster, serial=False), OUTPUT),
    "status": (
        "directory  run directory or URL",
        JSON,
        "--why  say for each stage because of what it was computed or not",
    ),
    "verify": (
        "directory  run directory or URL",
        JSON,
        QUIET,
        "--gc  instead take away the files and folders that no key of the run points to",
        "--dry-run  say what --gc would take away, and take nothing away",
    ),
    "export": (
        "directory  run directory",
        "--to FILE!  labels.csv, .parquet or .h5ad",
        "--input FILE  the .h5ad to copy (default: what was clustered)",
    ),
    "report": ("directory DIR  directory of a finished run", "--quiet  do not say where the page is", _add_page),
    "cluster": (),
    "jobs": (_add_json,),
}
"""The options of each command."""

WORDS: dict[str, dict[str, tuple[str, tuple[Part, ...]]]] = {
    "cluster": {
        "check": ("validate the config, and show what would be started", (CHECK, add_security)),
        "certs": (
            "make certificates for a cluster (TLS), and print the paths of their files",
            ("directory DIR  a new folder; the shipped configs use ~/.config/ips2_dask/tls",),
        ),
    },
    "jobs": {
        "submit": ("hand a whole run over to a cluster, and return at once; options as of `ips2 run`", OPTIONS["run"]),
        "list": ("what was submitted, and what became of it (default)", (_add_json,)),
        "logs": ("what a submitted job prints", (JOB, "--follow  go on until the job ends")),
        "cancel": ("end a submitted job", (JOB,)),
    },
}
"""The words that follow a command, each with its help and its options."""


# ---- what they say


def input_of(options: argparse.Namespace) -> dict[str, Any]:
    """How the options say that the input is read, as arguments of `ips2_dask.run` and of `readers.open_source`."""
    given = _given(options, Features)
    lists = {name: split_list(text, option(name)) for name, text in given.items() if name != "missing"}
    features = Features(**given | lists)
    taken = {"labels_column": options.labels_column, "transpose": options.transpose}
    return {**taken, "features": features, "text": text_of(options)}


def _given(options: argparse.Namespace, record: type[Params | Resources | Features | TextFormat]) -> dict[str, Any]:
    """The values of a record's fields that the options give."""
    values = {name: getattr(options, name, None) for name in record.__dataclass_fields__}
    return {name: value for name, value in values.items() if value is not None}


def text_of(options: argparse.Namespace, usual: TextFormat | None = None) -> TextFormat | None:
    """How the options say that a text file is read, other settings as of ``usual``; None if they don't say it."""
    given = _given(options, TextFormat)
    return dataclasses.replace(usual or USUAL, **given) if given else None


def params_of(options: argparse.Namespace) -> Params:
    """The parameters of the method, by the options and the preset."""
    given = _given(options, Params)
    if given.get("assign_labels") == "leiden":
        given.setdefault("n_clusters", "auto")  # it finds the number
    if given.get("n_clusters") != "auto" and "max_clusters" in given:
        found, allowed = "a number of clusters that is not auto", "--max-clusters with --clusters auto"
        why, remedy = "one of the two would count for nothing", "give --clusters auto, or leave --max-clusters out"
        raise BadInput("--max-clusters", found, allowed, why, remedy)
    return Params(**PRESETS[options.preset] | given)


def resources_of(options: argparse.Namespace) -> Resources:
    """The resources that the options set; those of a command that has no option for them are the defaults."""
    if options.workers is not None and (options.scheduler or options.serial):
        other = "--scheduler" if options.scheduler else "--serial"
        found, allowed = f"{options.workers}, not allowed with argument {other}", "workers of a new cluster"
        raise BadInput("--workers", found, allowed, "they would not be there", f"leave out --workers or {other}")
    return Resources(**_given(options, Resources) | {"n_workers": options.workers})
