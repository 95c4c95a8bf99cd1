"""Findings of the report: sentences and verdicts computed from the records, so that they are true of these runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ips2_dask.paper.experiments import series
from ips2_dask.paper.experiments.ranks import PAPER_SETS
from ips2_dask.paper.experiments.reading_tasks import WITHIN as CLOSE
from ips2_dask.paper.experiments.reading_tasks import within
from ips2_dask.paper.experiments.records import SETTINGS, Record, mean_of, select
from ips2_dask.paper.experiments.settings import METHODS, Setting
from ips2_dask.paper.experiments.tables import MEASURES, SCADI70, printed_score
from ips2_dask.paper.experiments.tasks import Results

WITHIN = 0.10
"""How far a baseline's ACC may be from the paper's before it is explained."""

SAME = 5e-7
"""Means closer than this are a tie."""

ROUNDED = 6e-4
"""A printed figure of three digits may be this far from the value it was rounded, or cut, from."""

OURS = ("PPC", "IPS2")
"""The paper's methods; the others are its baselines."""

NAMES = {"acc": "ACC", "ari": "ARI", "fscore": "F-score", "nmi": "NMI", "purity": "purity"}


class Target(NamedTuple):
    """A cell of Table 2: the paper's IPS2 and ours, in one setting."""

    dataset: str
    measure: str
    paper: float
    found: float

    @property
    def reached(self) -> bool:
        """Whether ours, to the digits that the paper prints, is at least the paper's."""
        return round(self.found, 3) >= self.paper


def targets(records: Sequence[Record], setting: str = "tuned") -> list[Target]:
    """The twenty cells of IPS2."""
    cells = []
    for dataset in PAPER_SETS:
        of = select(list(records), experiment="table2", dataset=dataset, method="IPS2", setting=setting)
        cells += [
            Target(dataset, measure, r["paper"], r["mean"]) for measure in MEASURES for r in select(of, measure=measure)
        ]
    return cells


ADVERBS = {
    "printed": "With the settings that the paper prints",
    "default": "With its defaults",
    "tuned": "Tuned by the known labels",
}


def targets_text(records: Sequence[Record], setting: str = "tuned") -> str:
    """A sentence that counts the cells that IPS2 reaches, and names the others."""
    cells = targets(records, setting)
    missed = [f"{t.dataset} {NAMES[t.measure]} {t.found:.3f} < {t.paper:.3f}" for t in cells if not t.reached]
    text = f"{ADVERBS[setting]}, IPS2 reaches at least the paper's IPS2 in {len(cells) - len(missed)} of {len(cells)} "
    text += "cells of Table 2"
    return f"{text}; not in: {', '.join(missed)}." if missed else f"{text}."


def rivals(records: Sequence[Record], experiment: str, dataset: str, setting: str, measure: str = "acc") -> list[str]:
    """Methods that tie or beat IPS2 on a data set, with what they reach, the best first."""
    of = select(list(records), experiment=experiment, dataset=dataset, setting=setting, measure=measure)
    own = mean_of(of, method="IPS2")
    if own is None:
        return []
    better = [r for r in of if r["method"] != "IPS2" and r["mean"] >= own - SAME]
    better.sort(key=lambda r: (-r["mean"], METHODS.index(r["method"])))
    return [f"{r['method']} {r['mean']:.3f}{' (a tie)' if abs(r['mean'] - own) < SAME else ''}" for r in better]


def rivals_text(records: Sequence[Record], experiment: str) -> list[str]:
    """A line for each data set and setting in which some method ties or beats IPS2 in ACC."""
    lines = []
    for dataset in dict.fromkeys(r["dataset"] for r in select(list(records), experiment=experiment, measure="acc")):
        for setting in SETTINGS:
            own = mean_of(
                list(records), experiment=experiment, dataset=dataset, setting=setting, measure="acc", method="IPS2"
            )
            better = rivals(records, experiment, dataset, setting)
            if better:
                lines.append(f"{dataset}, {setting}: IPS2 {own:.3f}; tied or beaten by {', '.join(better)}.")
    return lines


def paper_text(records: Sequence[Record]) -> str:
    """How often a baseline's default does better here than in the paper, and how often runs differ at all."""
    of = [r for r in select(list(records), experiment="table2", measure="acc") if r["dataset"] != "bbcsport-draws"]
    compared = [r for r in of if r["setting"] == "default" and r["paper"] is not None and r["method"] not in OURS]
    better = sum(r["mean"] > r["paper"] for r in compared)
    still = sum(r["std"] < SAME for r in of)
    return (
        f"In {better} of {len(compared)} cells a baseline's default ACC is above the paper's figure for it. In "
        f"{still} of {len(of)} all runs have the same ACC: k-means takes the best of ten starts here, while the "
        "paper's standard deviations, .03 to .10, point to single starts."
    )


def below_text(records: Sequence[Record]) -> str:
    """Which baselines do worse here by default than the paper prints: there the comparison may favour IPS2."""
    below = []
    for r in select(list(records), experiment="table2", measure="acc", setting="default"):
        if r["method"] not in OURS and r["paper"] is not None and round(r["mean"], 3) < r["paper"]:
            is_of_70 = r["method"] in SCADI70
            if (r["dataset"], is_of_70) not in (("scadi57", True), ("scadi", False)):
                below.append(f"{r['method']} on {r['dataset']} {r['mean']:.3f} < {r['paper']:.3f}")
    if not below:
        return "No baseline's default ACC is below the paper's figure for it."
    return f"A baseline's default ACC is below the paper's figure in {len(below)} cells: {', '.join(below)}."


class Deviation(NamedTuple):
    """A baseline's ACC that is more than .10 from the paper's, and what its grid reaches."""

    dataset: str
    method: str
    paper: float
    found: float
    low: float
    high: float
    nearest: float
    params: Setting


def deviations(records: Sequence[Record], results: Results) -> list[Deviation]:
    """Baselines whose default is more than ``WITHIN`` from the paper's ACC, and the setting that comes nearest."""
    cells = []
    for dataset in PAPER_SETS:
        for method in METHODS:
            if method in OURS:
                continue
            of = "scadi" if dataset == "scadi57" and method in SCADI70 else dataset
            printed, own = (
                printed_score(of, method, "acc"),
                mean_of(
                    list(records), experiment="table2", dataset=of, method=method, measure="acc", setting="default"
                ),
            )
            if printed is None or own is None or abs(own - printed) <= WITHIN:
                continue
            tried = results[f"table2/{of}/{method}"]["tried"]
            reached = [entry["acc"] for entry in tried]
            near = min(tried, key=lambda entry: abs(entry["acc"] - printed))
            spread = (min(reached), max(reached))
            cells.append(Deviation(of, method, printed, own, *spread, near["acc"], near["params"]))
    return cells


class Match(NamedTuple):
    """A labelling with a printed ACC, ARI and F-score, the NMI printed beside them, and its own by each average."""

    dataset: str
    method: str
    printed: float
    averages: Mapping[str, float]


def matches(results: Results) -> list[Match]:
    """Labellings of the grids that have all of a printed cell's ACC, ARI and F-score, with their NMIs."""
    cells = []
    for dataset in PAPER_SETS:
        tried = [entry for method in METHODS for entry in results[f"table2/{dataset}/{method}"]["tried"]]
        for method in METHODS:
            wanted = {name: printed_score(dataset, method, name) for name in ("acc", "ari", "fscore")}
            printed = printed_score(dataset, method, "nmi")
            same = [e for e in tried if all(abs(e[name] - (v or 0)) < ROUNDED for name, v in wanted.items())]
            if same and printed is not None:
                averages = {"arithmetic": same[0]["nmi"]}
                averages |= {name: same[0][f"nmi_{name}"] for name in ("geometric", "max", "min")}
                cells.append(Match(dataset, method, printed, averages))
    return cells


def matches_text(cells: Sequence[Match]) -> str:
    """A sentence that names the average of entropies which the paper's NMI fits."""
    if not cells:
        return "No labelling that was tried has a printed cell's ACC, ARI and F-score, so NMI's average can't be told."
    worst = {name: max(abs(m.averages[name] - m.printed) for m in cells) for name in cells[0].averages}
    differences = ", ".join(f"{name} {value:.4f}" for name, value in worst.items())
    best = [name for name, value in worst.items() if value <= min(worst.values()) + ROUNDED]
    return (
        f"NMI: labellings with exactly the ACC, ARI and F-score of {len(cells)} printed cells differ from the NMI "
        f"printed there by at most: {differences}. So the paper's NMI is over the {' or the '.join(best)} mean of the "
        "entropies; ours is over the arithmetic mean."
    )


def series_text(records: Sequence[Record], name: str, variant: str) -> str:
    """A sentence that counts the points where IPS2 is above SC, and names those where it is level or below."""
    experiment = series.experiment_name(name, variant)
    above: list[str] = []
    tied: list[str] = []
    below: list[str] = []
    for point in series.POINTS[name]:
        of = select(list(records), experiment=experiment, dataset=series.dataset_name(name, point), measure="acc")
        own, other = mean_of(of, method="IPS2"), mean_of(of, method="SC")
        if own is None or other is None:
            continue
        side = tied if abs(own - other) < SAME else above if own > other else below
        side.append(f"{point} ({own:.3f} against {other:.3f})")
    parts = [f"IPS2 is above SC at {len(above)} of {len(above) + len(tied) + len(below)} points"]
    parts += [f"level with it at {', '.join(tied)}"] if tied else []
    parts += [f"below it at {', '.join(below)}"] if below else []
    return "; ".join(parts) + "."


def times_text(records: Sequence[Record], experiment: str = "table3") -> str:
    """How IPS2's time compares with the paper's and with SC's of the same run."""
    parts = []
    for dataset in dict.fromkeys(r["dataset"] for r in select(list(records), experiment=experiment)):
        of = select(list(records), experiment=experiment, dataset=dataset, measure="seconds_median")
        own, other = select(of, method="IPS2")[0], mean_of(of, method="SC") or 0.0
        parts.append(
            f"{dataset} {own['mean'] * 1000:.0f} ms, {own['mean'] / other:.1f} times SC's, the paper's "
            f"{own['paper']:.1f} s divided by {own['paper'] / own['mean']:.0f}"
        )
    return f"IPS2, median of {own['runs']} fits: " + "; ".join(parts) + "."


def readings_text(document: Mapping[str, Any]) -> list[str]:
    """For each data set: what the two base readings give, the changes with the figure, and the grid."""
    lines = []
    for dataset, papers in document["figures"].items():
        paper = papers["IPS2"]
        bases = ", ".join(
            f"{base} {document[base][dataset]['unchanged']['IPS2']['mean']:.3f}" for base in ("printed", "later code")
        )
        same, above = [], 0
        for base in ("printed", "later code"):
            for name, result in document[base][dataset].items():
                mean = result["IPS2"]["mean"]
                same += [f"{base}, {name}"] if within(mean, paper) else []
                above += mean > paper + CLOSE
        columns = document["grid"][dataset]["IPS2"]["mean"]
        near = sum(within(value, paper) for value in columns)
        high = sum(value > paper + CLOSE for value in columns)
        lines.append(
            f"{dataset}: the paper's IPS2 {paper:.3f}; {bases}. Single changes with the figure, by the mean: "
            f"{'; '.join(same) or 'none'}; {above} are above it. Of the grid's {len(columns)}, {near} have it and "
            f"{high} are above; the highest is {max(columns):.3f}."
        )
    return lines


def together_text(document: Mapping[str, Any]) -> str:
    """On how many data sets some reading has the figures of SC, PPC and IPS2 at once."""
    parts = []
    for dataset, papers in document["figures"].items():
        columns = document["grid"][dataset]
        count = sum(
            all(within(columns[m]["mean"][i], papers[m]) for m in papers) for i in range(len(columns["IPS2"]["mean"]))
        )
        parts.append(f"{dataset} {count}")
    return f"Readings of the grid that have the figures of SC, PPC and IPS2 at once, by the mean: {', '.join(parts)}."


def overview(records: Sequence[Record], document: Mapping[str, Any]) -> str:
    """ACC of IPS2 on the paper's four data sets as a Markdown table: the paper's, each setting's, and the readings'."""
    figures = document["figures"]
    of = select(list(records), experiment="table2", measure="acc")

    def line(name: str, method: str, setting: str) -> list[str]:
        return [name, *(f"{mean_of(of, dataset=d, method=method, setting=setting):.3f}" for d in figures)]

    def counts(condition: Callable[[float, float], bool]) -> list[str]:
        return [
            str(sum(condition(v, p["IPS2"]) for v in document["grid"][d]["IPS2"]["mean"])) for d, p in figures.items()
        ]

    total = len(next(iter(document["grid"][d] for d in figures))["IPS2"]["mean"])
    rows = [
        ["ACC", *figures],
        ["---"] * (len(figures) + 1),
        ["IPS2 in the paper", *(f"{p['IPS2']:.3f}" for p in figures.values())],
        line("IPS2 as printed", "IPS2", "printed"),
        line("SC as printed", "SC", "printed"),
        line("IPS2 by default", "IPS2", "default"),
        line("SC by default", "SC", "default"),
        line("IPS2 tuned by the known labels", "IPS2", "tuned"),
        line("SC tuned by the known labels", "SC", "tuned"),
        [
            "IPS2 by the later code's recipe",
            *(f"{document['later code'][d]['unchanged']['IPS2']['mean']:.3f}" for d in figures),
        ],
        [f"of {total:,} readings have the figure", *counts(within)],
        [f"of {total:,} readings are above it", *counts(lambda v, p: v > p + CLOSE)],
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"
