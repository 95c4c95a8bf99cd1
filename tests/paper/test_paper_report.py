"""The report: one page without scripts or other files, the same bytes each time, and sentences that are true."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ips2_dask.cli.main import main
from ips2_dask.datasets import files
from ips2_dask.errors import BadInput
from ips2_dask.paper.experiments import beyond, catalog
from ips2_dask.paper.experiments.records import FIELDS, Record, record
from ips2_dask.paper.experiments.settings import METHODS
from ips2_dask.paper.experiments.tasks import Done, Family, Scope
from ips2_dask.paper.report import findings, tables, write_report
from ips2_dask.paper.report.figures import groups
from ips2_dask.paper.report.tables import number
from ips2_dask.paper.reproduce import _commit, reproduce
from ips2_dask.reports.html import Cell, Row, table

DATA = os.environ.get(files.VARIABLE)
needs_data = pytest.mark.skipif(not DATA, reason="IPS2_DATA names no directory of the publishers' files")

GENERATED = ["tensors", "similarities", "noises", "neighbors"]
VOID = {"meta", "link", "img", "br"}


class Silence:
    """Progress that nobody looks at."""

    def begin(self, total: int) -> None:
        """Say nothing."""

    def done(self, task: Done) -> None:
        """Say nothing."""


class Page(HTMLParser):
    """A page taken apart: its tags closed in order, its links, its pictures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.values: dict[str, list[str]] = {"href": [], "src": [], "id": [], "class": []}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attributes:
            assert not name.startswith("on"), f"{tag} has a script: {name}"
            self.values.setdefault(name, []).append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_page(page: Path) -> Page:
    found = Page(page.read_text())
    assert found.open == []
    assert not {"script", "iframe", "object", "embed"} & set(found.tags)
    assert all(source.startswith("data:image/svg+xml;base64,") for source in found.values["src"])
    for link in found.values["href"]:
        assert link == "data:," or link.removeprefix("#") in found.values["id"]
    assert not re.search(r"@import|url\(", page.read_text())
    return found


def without_times(page: Path) -> str:
    """The page but for the elements of class ``time``."""
    return re.sub(r'<(table|p|figure) class="time">.*?</\1>', "", page.read_text(), flags=re.DOTALL)


def made(families: dict[str, Family], out: Path, scope: Scope, data: str | None = None) -> list[Record]:
    tasks = [task for family in families.values() for task in family.tasks(scope)]
    results = catalog.run_tasks(tasks, out, data, 1, Silence())
    records = [one for family in families.values() for one in family.records(scope, results)]
    write_report(families, records, results, scope, out)
    return records


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("generated")
    made(catalog.chosen(GENERATED), out, Scope(runs=1, repeats=1))
    return out


def test_the_page_needs_no_other_file_and_no_script(generated: Path) -> None:
    page = check_page(generated / "report.html")
    assert page.tags.count("section") == len(GENERATED)
    assert page.tags.count("figure") == page.tags.count("img") == len(list((generated / "figures").glob("*.svg")))


def test_every_figure_is_there_as_png_and_svg(generated: Path) -> None:
    pictures = {file.name for file in (generated / "figures").iterdir()}
    names = {name.partition(".")[0] for name in pictures}
    assert pictures == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert {"tensors", "similarities", "distributions", "noises", "neighbors", "neighbors_time"} == names
    for name in names:
        svg = (generated / "figures" / f"{name}.svg").read_text()
        assert "<dc:date>" not in svg
        assert (generated / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_everything_is_made_again_byte_for_byte_but_for_times(generated: Path, tmp_path: Path) -> None:
    made(catalog.chosen(GENERATED), tmp_path, Scope(runs=1, repeats=1))
    for file in sorted((generated / "figures").iterdir()):
        if not file.name.startswith("neighbors_time"):
            assert file.read_bytes() == (tmp_path / "figures" / file.name).read_bytes(), file.name
    one, two = (without_times(out / "report.html") for out in (generated, tmp_path))
    assert one == two
    assert "neighbors_time" not in one
    assert "neighbors" in one


def test_the_command_writes_flat_records_and_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    status = main(["reproduce", "--out", str(out), "--only", "similarities", "--quick", "--jobs", "1", "--json"])
    said = capsys.readouterr()
    assert status == 0
    assert "1/1 similarities" in said.err
    assert json.loads(said.out.splitlines()[-1])["report"] == str(out / "report.html")
    about = json.loads((out / "about.json").read_text())
    assert list(about) == ["similarities"]
    assert about["similarities"]["runs"] == 5
    assert set(about["similarities"]) == {"commit", "date", "runs", "budget", "seed", "versions"}
    records = json.loads((out / "results.json").read_text())
    assert [one["method"] for one in records] == ["SC", "PPC", "IPS2"]
    assert all(tuple(one) == FIELDS for one in records)
    check_page(out / "report.html")
    assert main(["reproduce", "--out", str(out), "--only", "similarities", "--quick", "--jobs", "1"]) == 0
    assert "there already" in capsys.readouterr().err
    assert json.loads((out / "results.json").read_text()) == records


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "table7"], "--only"),
        (["--only", "similarities", "--jobs", "0"], "--jobs"),
        (["--only", "similarities", "--seed", "-1"], "--seed"),
    ],
)
def test_arguments_that_can_not_be_used_are_named(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "--out", str(tmp_path), *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"ips2: {said}: found ")
    assert not list(tmp_path.iterdir())


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(BadInput, match=r"thesis\.tex"):
        reproduce(tmp_path, only=["similarities"])
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_without_matplotlib_nothing_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else found(name, *rest)
    )
    with pytest.raises(BadInput, match=r"ips2-dask\[report\]"):
        reproduce(tmp_path / "out", only=["similarities"])
    assert not (tmp_path / "out").exists()


# what the report says


def cells(dataset: str, means: dict[str, float], setting: str = "tuned", measure: str = "acc") -> list[Record]:
    return [
        record("table2", dataset, method, measure, mean=mean, std=0.0, setting=setting, paper=0.5)
        for method, mean in means.items()
    ]


def test_a_baseline_that_ties_or_beats_ips2_is_named_the_best_first() -> None:
    means = dict(zip(METHODS, (0.9, 0.95, 0.7, 0.1, 0.8, 0.9), strict=True))
    said = findings.rivals_text(cells("soybean", means) + cells("yale5", means | {"IPS2": 0.99}), "table2")
    assert said == ["soybean, tuned: IPS2 0.900; tied or beaten by SSC 0.950, SC 0.900 (a tie)."]


def test_cells_that_are_not_reached_are_named() -> None:
    reached = [
        record("table2", "soybean", "IPS2", "acc", mean=0.93617, setting="tuned", paper=0.936),
        record("table2", "soybean", "IPS2", "ari", mean=0.8, setting="tuned", paper=0.829),
    ]
    assert findings.targets_text(reached).endswith("in 1 of 2 cells of Table 2; not in: soybean ARI 0.800 < 0.829.")
    assert findings.targets_text(reached[:1]).endswith("in 1 of 1 cells of Table 2.")


def test_points_where_ips2_is_not_above_sc_are_named() -> None:
    means = {"uniform": (0.9, 0.8), "gaussian": (0.7, 0.7), "rayleigh": (0.6, 0.65), "gamma": (0.5, 0.4)}
    found = [
        record("noises", f"usdata1-60-{at}", method, "acc", mean=mean)
        for at, pair in means.items()
        for method, mean in zip(("IPS2", "SC"), pair, strict=True)
    ]
    said = findings.series_text(found, "noises", "default")
    assert said == (
        "IPS2 is above SC at 2 of 4 points; level with it at gaussian (0.700 against 0.700); "
        "below it at rayleigh (0.600 against 0.650)."
    )


def test_baselines_below_the_papers_figures_are_named_each_on_the_samples_that_the_figure_is_of() -> None:
    found = [
        record("table2", dataset, method, "acc", mean=mean, paper=0.5)
        for dataset, method, mean in (
            ("soybean", "SC", 0.4),
            ("soybean", "IPS2", 0.4),
            ("yale5", "SC", 0.49996),
            ("scadi57", "CAVE", 0.4),
            ("scadi", "CAVE", 0.3),
            ("scadi", "SC", 0.2),
        )
    ]
    said = findings.below_text(found)
    assert said == (
        "A baseline's default ACC is below the paper's figure in 2 cells: "
        "SC on soybean 0.400 < 0.500, CAVE on scadi 0.300 < 0.500."
    )
    assert findings.below_text([]) == "No baseline's default ACC is below the paper's figure for it."


def reading(mean: float) -> dict[str, Any]:
    one = {"mean": mean, "std": 0.01, "best": mean + 0.01, "least_inertia": mean}
    return {"changes": {}, "SC": one, "PPC": one, "IPS2": one}


def test_readings_with_a_printed_figure_and_above_it_are_counted() -> None:
    single = {"unchanged": reading(0.50), "k 5": reading(0.604), "k 7": reading(0.70)}
    grid = {m: {"mean": [0.599, 0.7, 0.2]} for m in ("SC", "PPC")} | {"IPS2": {"mean": [0.601, 0.9, 0.6]}}
    document = {
        "figures": {"yale5": {"SC": 0.6, "PPC": 0.6, "IPS2": 0.6}},
        "printed": {"yale5": single},
        "later code": {"yale5": {"unchanged": reading(0.61)}},
        "grid": {"yale5": grid},
    }
    assert findings.readings_text(document) == [
        "yale5: the paper's IPS2 0.600; printed 0.500, later code 0.610. Single changes with the figure, by the mean: "
        "printed, k 5; 2 are above it. Of the grid's 3, 2 have it and 1 are above; the highest is 0.900."
    ]
    assert "yale5 1." in findings.together_text(document)
    shown = unescape(tables.readings(document, "printed", "IPS2"))
    assert '<td class="best">0.604 ± 0.010 (0.614)' in shown
    assert "0.700 ± 0.010 (0.710) +" in shown


def test_the_commit_of_a_checkout_is_told_and_none_of_another_folder(tmp_path: Path) -> None:
    assert _commit(tmp_path) is None
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    found = _commit(package)
    assert found is not None
    assert re.fullmatch("[0-9a-f]{12}", found)
    (package / "__init__.py").write_text("x = 1")
    assert _commit(package) == found + "+"


def test_a_baseline_far_from_the_paper_is_shown_with_its_nearest_setting() -> None:
    tried = [{"params": {"scale": scale}, "acc": acc} for scale, acc in (("none", 1.0), ("l2", 0.6), ("minmax", 0.7))]
    found = [record("table2", "soybean", "SSC", "acc", mean=1.0), record("table2", "soybean", "SC", "acc", mean=0.80)]
    (far,) = findings.deviations(found, {"table2/soybean/SSC": {"tried": tried}, "table2/soybean/SC": {"tried": tried}})
    assert (far.method, far.paper, far.found, far.low, far.high) == ("SSC", 0.542, 1.0, 0.6, 1.0)
    assert (far.nearest, far.params) == (0.6, {"scale": "l2"})


def test_bars_join_methods_that_are_not_told_apart() -> None:
    assert groups([1.0, 2.0, 2.5, 4.0, 6.0], 1.6) == [(1.0, 2.5), (2.5, 4.0)]
    assert groups([1.0, 3.0, 5.0], 1.5) == []
    assert groups([1.0, 1.5, 2.0], 2.0) == [(1.0, 2.0)]


def test_text_in_tables_is_escaped() -> None:
    assert "a&lt;b" in table("x & y", ["head"], [Row([Cell("a<b", "best")])])
    assert number(None) == "–"
    assert number(0.8296) == "0.830"


# the publishers' data


@needs_data
@pytest.mark.slow
def test_all_parts_of_the_report_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beyond, "LARGE", ("digits",))  # the others take minutes
    scope = Scope(runs=1, budget=12, draws=2, repeats=1, large_runs=1, tunes_beyond=False, starts=1, reading_draws=2)
    records = made(dict(catalog.FAMILIES), tmp_path, scope, DATA)
    page = check_page(tmp_path / "report.html")
    assert page.tags.count("section") == len(catalog.FAMILIES)
    assert {re.sub(r"-(printed|grid|draws)$", "", one["experiment"]) for one in records} == set(catalog.FAMILIES)
    assert all(tuple(one) == FIELDS for one in records)
    scored = [one for one in records if one["experiment"] == "table2" and one["paper"] is not None]
    assert len({(one["dataset"], one["method"], one["measure"]) for one in scored}) == 5 * (4 * 6 + 6 + 3)
    text = unescape((tmp_path / "report.html").read_text())
    for said in (
        "cells of Table 2",
        "tied or beaten by",
        "Friedman",
        "divided by",
        "The grid of HGC",
        "the paper's NMI",
        "With the settings that the paper prints, IPS2 reaches",
        "Single changes with the figure",
    ):
        assert said in text
