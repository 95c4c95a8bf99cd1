"""The tables of the report, each from records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from ips2_dask.paper.experiments import series
from ips2_dask.paper.experiments.reading_tasks import WITHIN as CLOSE
from ips2_dask.paper.experiments.reading_tasks import reaches, within
from ips2_dask.paper.experiments.readings import BASES
from ips2_dask.paper.experiments.records import SETTINGS, Record, mean_of, select
from ips2_dask.paper.experiments.series import K
from ips2_dask.paper.experiments.settings import COMPARED, KINDS, METHODS, grid
from ips2_dask.paper.report.figures import AXES, VARIANT
from ips2_dask.paper.report.findings import NAMES, SAME, Deviation, Match, Target
from ips2_dask.reports.html import Cell, Row, table

DATA = {
    "soybean": "Soybean",
    "scadi": "SCADI, 70 samples",
    "scadi57": "SCADI, 57 samples",
    "bbcsport60": "BBCSports, first 20 of 3 classes",
    "bbcsport-draws": "BBCSports, random draws",
    "yale5": "Yale, subjects 1-5",
}


def data_name(name: str) -> str:
    """A data set's name as the paper says it."""
    return DATA.get(name, name)


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many decimals, as the paper prints it; a dash for None."""
    return "–" if value is None else f"{value:.{digits}f}"


def spread(mean: float, std: float | None) -> str:
    """A mean and its standard deviation."""
    return number(mean) if std is None else f"{number(mean)} ± {number(std)}"


def _setting_text(params: dict[str, object]) -> str:
    """The parameters of a setting in a line, the scale last."""
    others = (
        ", ".join(f"{name}={value}" for name, value in params.items() if name != "scale") or "the estimator's defaults"
    )
    return f"{others}; scale {params.get('scale', 'none')}"


def _datasets(records: Sequence[Record], experiment: str) -> list[str]:
    return list(dict.fromkeys(r["dataset"] for r in select(list(records), experiment=experiment)))


def sizes(records: Sequence[Record]) -> Markup:
    """Table 1."""
    rows = []
    for name in _datasets(records, "table1"):
        of = {r["measure"]: r for r in select(list(records), experiment="table1", dataset=name)}
        ours = [number(of[key]["mean"], 0) for key in ("samples", "features", "clusters")]
        theirs = [number(of[key]["paper"], 0) for key in ("samples", "features", "clusters")]
        rows.append(Row([data_name(name), *ours, *theirs]))
    head = ["data set", "samples", "features", "clusters", "paper: samples", "features", "clusters"]
    return table("Table 1. Sizes of the data, and as the paper prints them", head, rows)


def scores(records: Sequence[Record], experiment: str, measure: str, number_: str) -> Markup:
    """One measure of all methods: a line for the paper and for each setting; the best bold, what beats IPS2 shaded."""
    rows = []
    for name in _datasets(records, experiment):
        of = select(list(records), experiment=experiment, dataset=name, measure=measure)
        printed = {r["method"]: r["paper"] for r in of}
        kind = "first"
        if any(value is not None for value in printed.values()):
            cells = [number(printed[method]) for method in METHODS]
            rows.append(Row([data_name(name), Cell("paper", "text"), *cells], "paper first"))
            kind = ""
        for setting in SETTINGS:
            line = {r["method"]: r for r in select(of, setting=setting)}
            if line:
                label = data_name(name) if kind else ""
                rows.append(Row([label, Cell(setting, "text"), *(_score(line, m) for m in METHODS)], kind))
                kind = ""
    head = ["data set", "setting", *(f"{method} ({KINDS[method]})" for method in METHODS)]
    return table(f"{number_}. {NAMES[measure]}, mean ± standard deviation", head, rows)


def _score(line: dict[str, Record], method: str) -> Cell:
    mean, best, own = line[method]["mean"], max(r["mean"] for r in line.values()), line["IPS2"]["mean"]
    beats = "beats" if method != "IPS2" and mean >= own - SAME else ""
    return Cell(spread(mean, line[method]["std"]), "best" if mean >= best - SAME else "", beats)


def target_table(printed: Sequence[Target], tuned: Sequence[Target]) -> Markup:
    """The twenty cells of IPS2 in Table 2: the paper's figure, ours as printed and tuned, and whether they reach it."""
    rows = [
        Row([data_name(t.dataset), Cell(NAMES[t.measure], "text"), number(t.paper), _reached(p), _reached(t)])
        for p, t in zip(printed, tuned, strict=True)
    ]
    return table("IPS2's twenty cells of Table 2", ["data set", "measure", "paper", "printed", "tuned"], rows)


def _reached(t: Target) -> Cell:
    """Our figure, marked where it is below the paper's."""
    return Cell(number(t.found), "") if t.reached else Cell(f"{number(t.found)} (not reached)", "no")


def readings(document: Mapping[str, Any], base: str, method: str) -> Markup:
    """ACC of each change of one choice of a base reading: bold where its mean has the figure, a plus where above."""
    figures = document["figures"]
    names = list(dict.fromkeys(name for dataset in figures for name in document[base][dataset]))
    rows = [Row([Cell("the paper", "text"), *(number(figures[dataset][method]) for dataset in figures)], "paper first")]
    for name in names:
        cells = []
        for dataset in figures:
            one = document[base][dataset].get(name, {}).get(method)
            cells.append(Cell("–") if one is None else _reading(one, figures[dataset][method]))
        rows.append(Row([Cell(name, "text"), *cells]))
    caption = f"{method}, {base} reading and each change of one choice: ACC, mean ± standard deviation (best)"
    return table(caption, ["reading", *(data_name(dataset) for dataset in figures)], rows)


def _reading(one: Mapping[str, float], paper: float) -> Cell:
    plus = " +" if one["mean"] > paper + CLOSE else ""
    same = within(one["mean"], paper)
    return Cell(f"{spread(one['mean'], one['std'])} ({number(one['best'])}){plus}", "best" if same else "")


def reading_grid(records: Sequence[Record]) -> Markup:
    """What share of the grid's readings have, or reach, each printed figure."""
    rows = []
    for dataset in _datasets(records, "readings-grid"):
        for method in (*COMPARED, "all"):
            of = select(list(records), experiment="readings-grid", dataset=dataset, method=method)
            if not of:
                continue
            kinds = [f"{s}_{k}" for s in ("mean", "best") for k in ("within", "reached", "highest")]
            values = [mean_of(of, measure=kind) for kind in kinds]
            name = "all three at once" if method == "all" else method
            first = "first" if method == COMPARED[0] else ""
            cells = [number(of[0]["paper"]), *(number(v) for v in values)]
            rows.append(Row([data_name(dataset) if first else "", Cell(name, "text"), *cells], first))
    head = [
        "data set",
        "method",
        "paper",
        "share with it, mean",
        "share at or above",
        "highest mean",
        "share with it, best start",
        "share at or above",
        "highest best",
    ]
    count = select(list(records), experiment="readings-grid")[0]["runs"]
    return table(f"The grid of {count} readings", head, rows)


def reading_samples(document: Mapping[str, Any]) -> Markup:
    """ACC of both base readings on other samples."""
    rows = [
        Row([Cell(name, "text"), *(spread(r[base][m]["mean"], r[base][m]["std"]) for base in BASES for m in COMPARED)])
        for name, r in document["samples"].items()
    ]
    head = ["samples", *(f"{base}: {m}" for base in BASES for m in COMPARED)]
    return table(
        "Other samples: the first 20 documents of three classes (the fifth has 19), and all of SCADI", head, rows
    )


def reading_draws(document: Mapping[str, Any]) -> Markup:
    """ACC of some readings over random draws of samples."""
    rows = []
    for dataset, results in document["draws"].items():
        for name, result in results.items():
            for method in COMPARED:
                values, paper = np.array(result[method]), document["figures"][dataset][method]
                share = float(np.mean([reaches(value, paper) for value in values]))
                cells = [
                    number(paper),
                    spread(float(values.mean()), float(values.std())),
                    f"{number(values.min())} to {number(values.max())}",
                    number(share),
                ]
                label = data_name(dataset).partition(",")[0]
                rows.append(Row([label, Cell(name, "text"), Cell(method, "text"), *cells]))
    n = len(next(iter(next(iter(document["draws"].values())).values()))["IPS2"])
    head = ["data set", "reading", "method", "paper", "mean ± standard deviation", "range", "share at or above"]
    return table(f"ACC over {n} random draws of samples", head, rows)


def deviation_table(deviations: Sequence[Deviation]) -> Markup:
    """Baselines whose default ACC is far from the paper's, with the range of their grid."""
    rows = [
        Row(
            [
                data_name(d.dataset),
                Cell(d.method, "text"),
                number(d.paper),
                number(d.found),
                f"{number(d.low)} to {number(d.high)}",
                number(d.nearest),
                Cell(_setting_text(dict(d.params)), "text"),
            ]
        )
        for d in deviations
    ]
    head = ["data set", "method", "paper", "default", "range over the grid", "nearest to the paper", "its setting"]
    return table("Baselines whose default ACC is more than .10 from the paper's", head, rows)


def match_table(matches: Sequence[Match]) -> Markup:
    """NMI by each average of labellings that have a printed cell's ACC, ARI and F-score."""
    names = list(matches[0].averages)
    rows = [
        Row(
            [
                data_name(m.dataset),
                Cell(m.method, "text"),
                number(m.printed),
                *(number(m.averages[n], 4) for n in names),
            ]
        )
        for m in matches
    ]
    return table(
        "NMI of labellings with a printed cell's ACC, ARI and F-score", ["data set", "cell", "paper", *names], rows
    )


def times(records: Sequence[Record], experiment: str, caption: str) -> Markup:
    """Median seconds of the methods, where the paper prints them beside its own."""
    rows = []
    methods = METHODS if experiment in ("table3", "beyond") else COMPARED
    for name in _datasets(records, experiment):
        of = {
            r["method"]: r
            for measure in ("seconds", "seconds_median")  # the median, where there is one
            for r in select(list(records), experiment=experiment, dataset=name, measure=measure)
        }
        printed = [of[method]["paper"] for method in methods]
        if any(value is not None for value in printed):
            rows.append(Row([data_name(name), Cell("paper", "text"), *(number(v, 2) for v in printed)], "paper first"))
        ours = [number(of[method]["mean"], 4) for method in methods]
        rows.append(Row([data_name(name), Cell("here", "text"), *ours]))
    return table(caption, ["data set", "seconds", *methods], rows, timed=True)


def points(records: Sequence[Record], name: str, variant: str) -> Markup:
    """ACC along a series."""
    experiment = series.experiment_name(name, variant)
    rows = []
    for point in series.POINTS[name]:
        of = select(list(records), experiment=experiment, dataset=series.dataset_name(name, point))
        line = {r["method"]: r for r in select(of, measure="acc")}
        gain = mean_of(of, measure="gain")
        cells = [_score(line, method) for method in COMPARED]
        rows.append(Row([point, *cells, "–" if gain is None else f"{round(gain, 3) + 0.0:+.3f}"]))
    caption = f"ACC with {VARIANT[variant]}, mean ± standard deviation"
    return table(caption, [AXES[name], *COMPARED, "gain over SC"], rows)


def neighbors(records: Sequence[Record], measure: str) -> Markup:
    """ACC or seconds over k."""
    head = ["k", *(VARIANT[variant] for variant in series.VARIANTS)]
    columns = []
    for variant in series.VARIANTS:
        of = select(list(records), experiment=series.experiment_name("neighbors", variant), measure=measure)
        columns.append({r["params"]["n_neighbors"]: r for r in of})

    def text(r: Record) -> str:
        return spread(r["mean"], r["std"]) if measure == "acc" else number(r["mean"], 4)

    rows = [Row([str(k), *(text(column[k]) for column in columns)]) for k in K]
    quantity = "ACC, mean ± standard deviation" if measure == "acc" else "Median seconds of a fit"
    return table(f"{quantity}, over k", head, rows, timed=measure != "acc")


def ranks(records: Sequence[Record]) -> Markup:
    """Mean ranks, critical differences and the test's p."""
    rows = []
    of = select(list(records), experiment="ranks")
    for setting in SETTINGS:
        for measure in ("acc", "nmi"):
            line = {r["method"]: r for r in select(of, setting=setting, measure=f"rank_{measure}")}
            if line:
                best = min(r["mean"] for r in line.values())
                cells = [Cell(number(r["mean"], 2), "best" if r["mean"] == best else "") for r in line.values()]
                distance = mean_of(of, setting=setting, measure=f"critical_difference_{measure}")
                p = mean_of(of, setting=setting, measure=f"friedman_p_{measure}") or 0.0
                cells_before = [NAMES[measure], str(line["IPS2"]["runs"])]
                rows.append(Row([setting, *cells_before, *cells, number(distance, 2), f"{p:.2g}"]))
    head = ["setting", "measure", "data sets", *METHODS, "critical difference", "Friedman's p"]
    return table("Mean ranks, 1 the best", head, rows)


def grid_table(method: str, budget: int) -> Markup:
    """The settings that a method was tuned over."""
    rows = [Row([str(i + 1), Cell(_setting_text(s), "text")]) for i, s in enumerate(grid(method, budget))]
    return table(f"{method}: {len(rows)} settings", ["", "setting"], rows)


def chosen(records: Sequence[Record], experiment: str) -> Markup:
    """The tuned and unsupervised setting of each data set and method."""
    rows = []
    for name in _datasets(records, experiment):
        for method in METHODS:
            for setting in ("tuned", "unsupervised"):
                for r in select(
                    list(records), experiment=experiment, dataset=name, method=method, setting=setting, measure="acc"
                ):
                    cells = [Cell(method, "text"), Cell(setting, "text"), Cell(_setting_text(r["params"]), "text")]
                    rows.append(Row([data_name(name), *cells]))
    return table("Chosen settings", ["data set", "method", "chosen", "setting"], rows) if rows else Markup()
