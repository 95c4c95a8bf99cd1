"""The report of a run: one page with every picture and number, its own bytes again, fit for a browser."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import shlex
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import browser
import numpy as np
import pytest

from ips2_dask import PAPER, BadInput, Params, Resources, Run, open_run, report, run
from ips2_dask.cli.console import print_report
from ips2_dask.cli.main import main
from ips2_dask.kernels import layout as layout_kernel
from ips2_dask.reports import command
from ips2_dask.store.layout import STAGES

VOID = {"meta", "link", "img"}
FIGURES = [
    "layout",
    "sizes",
    "silhouettes",
    "layers",
    "times",
    "memory",
    "eigenvalues",
    "convergence",
    "map-pairwise",
    "map-high_order",
    "map-fused",
    "values-pairwise",
    "values-high_order",
    "values-fused",
    "embedding-12",
    "embedding-13",
]
SECTIONS = [
    "clusters",
    "layers",
    "asked",
    "stages",
    "eigenvalues",
    "similarities",
    "labels",
    "embedding",
    "doubtful",
    "again",
]


class Page(HTMLParser):
    """A page taken apart: tags closed in order, names, links, figures, and the rows of its tables by caption."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.values: dict[str, list[str]] = {}
        self.tables: dict[str, list[list[str]]] = {}
        self._caption = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attributes:
            assert not name.startswith("on"), f"{tag} has a script: {name}"
            self.values.setdefault(name, []).append(value or "")
        if tag == "tr" and self._caption:
            self.tables[self._caption].append([])
        if tag in ("td", "th"):
            self.tables[self._caption][-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        inside = self.open[-1] if self.open else ""
        if inside == "caption":
            self._caption = data
            self.tables[data] = []
        if inside in ("td", "th"):
            self.tables[self._caption][-1][-1] += data

    def rows(self, caption: str) -> list[list[str]]:
        """The rows of the table whose caption begins so, without its head."""
        return next(rows for name, rows in self.tables.items() if name.startswith(caption))[1:]


def check_page(path: Path) -> Page:
    text = path.read_text()
    found = Page(text)
    assert found.open == []
    assert not {"script", "iframe", "object", "embed", "form"} & set(found.tags)
    assert all(link.startswith("data:image/png;base64,") for link in found.values["src"])
    assert len(found.values["id"]) == len(set(found.values["id"]))
    for link in [*found.values["href"], *found.values.get("xlink:href", [])]:
        assert link.startswith("data:") or link.removeprefix("#") in found.values["id"], link
    assert not re.search(r"@import|url\((?!#)", text)
    assert not re.findall(r"https?://(?!www\.w3\.org)", text)
    return found


@pytest.fixture(scope="module")
def made() -> Run:
    """Three groups that overlap a little, (90, 4), in memory."""
    rng = np.random.default_rng(16)
    return run(rng.normal(size=(90, 4)) + 1.2 * rng.integers(0, 3, size=(90, 1)), Params(n_clusters=3))


@pytest.fixture(scope="module")
def page(made: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Its page, with a layout by t-SNE: UMAP takes many seconds to compile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout_kernel, "available", lambda: False)
        yield report(made, tmp_path_factory.mktemp("report") / "report.html")


def test_the_page_needs_no_other_file_and_no_script_and_has_every_figure_and_section(page: Path) -> None:
    found = check_page(page)
    assert [name for name in found.values["id"] if name.startswith("figure-")] == [f"figure-{n}" for n in FIGURES]
    assert [name for name in found.values["id"] if name in SECTIONS] == SECTIONS
    assert found.tags.count("img") == len(FIGURES)
    assert len(found.values["alt"]) == len(FIGURES)
    assert all(found.values["alt"])


def test_the_numbers_under_the_pictures_are_those_of_the_run(made: Run, page: Path) -> None:
    found = Page(page.read_text())
    eigenvalues = [row[1] for row in found.rows("Eigenvalues")]
    assert eigenvalues[:3] == [f"{value:.6f}" for value in made.eigenvalues]
    assert [row[0] for row in found.rows("Stages")] == list(STAGES)
    assert [row[1] for row in found.rows("Clusters")] == [str(n) for n in np.bincount(made.labels)]
    asked = {row[0]: row[1] for row in found.rows("Parameters")}
    assert (asked["n_clusters"], asked["sigma"], asked["tensor"]) == ("3", "1", "indecomposable")
    doubtful = found.rows("The 20 least certain")
    assert [int(row[1]) for row in doubtful] == [made.labels[int(row[0])] for row in doubtful]
    assert [row[3] for row in doubtful] == [f"{value:.3f}" for value in np.sort(made.certainty)[:20]]
    versions = {row[0]: row[1] for row in found.rows("Versions")}
    assert versions == made.manifest["versions"]


def test_layers_have_a_row_each_with_what_splits_into_what(made: Run, page: Path) -> None:
    rows = Page(page.read_text()).rows("Layers")
    assert [row[:3] for row in rows] == [
        [str(one.n_clusters), f"{one.stability:.2f}", f"{one.persistence:.2f}"] for one in made.layers
    ]
    for row, one in zip(rows, made.layers, strict=True):
        parts = {k: one.parts(k) for k in range(one.n_clusters)}
        told = [f"{k} → {', '.join(map(str, into))}" for k, into in parts.items() if len(into) > 1]
        assert row[4] == ("; ".join(told) or "–")


def test_every_way_to_find_the_labels_is_in_a_table_with_the_one_that_was_chosen(made: Run, page: Path) -> None:
    found = Page(page.read_text())
    ways = made.report()["roundings"]
    rows = found.rows("Ways to find the labels")
    assert len(rows) == len(ways) == 4
    for row, way in zip(rows, ways, strict=True):
        assert row[0] == {"kmeans": "k-means", "density": "density"}[way["rounding"]]
        assert row[1] == str(way["columns"])
        assert row[3] == ("–" if way["cut"] is None else f"{way['cut']:.3f}")
        assert row[5] == ("yes" if way["chosen"] else "no")
        if way["rounding"] == "kmeans" or not way["clusters"]:
            assert row[4] == "–"
        else:
            assert row[4] == f"{way['left_out']:.1%}"
    assert [row[5] for row in rows].count("yes") == 1
    (kept,) = (way for way in ways if way["chosen"])
    by = {"kmeans": "k-means", "density": "density"}[kept["rounding"]]
    assert found.rows("Stages")[-1][1] == f"3 clusters by {by} on {kept['columns']} columns"


def test_the_mean_certainty_and_what_is_below_one_half_are_said_at_the_top(made: Run, page: Path) -> None:
    low = (made.certainty < 0.5).mean()
    assert low > 0  # else any share of nothing might pass
    tile = f"<dt>certainty</dt><dd>{made.certainty.mean():.3f}<small>mean; {low:.1%} of samples below 0.5</small>"
    assert tile in page.read_text()


def way(name: str, columns: int, cut: float | None, **more: Any) -> dict[str, Any]:
    """A way to find labels, as `Run.report` has it."""
    return {"rounding": name, "columns": columns, "clusters": 3, "cut": cut, "left_out": 0.0, "chosen": False} | more


@pytest.mark.parametrize(
    ("ways", "line", "stage"),
    [
        (
            [
                way("density", 11, 0.244, chosen=True, left_out=0.09),
                way("density", 3, None),
                way("kmeans", 11, 0.16),
                way("kmeans", 3, 0.14),
            ],
            "density on 11: normalised cut 0.24, 9% left out; k-means on 11: 0.16, on 3: 0.14",
            "3 clusters by density on 11 columns",
        ),
        (
            [way("density", 11, 0.44, left_out=0.09), way("kmeans", 11, 0.16), way("kmeans", 3, 0.14, chosen=True)],
            "k-means on 3: normalised cut 0.14; density on 11: 0.44, k-means on 11: 0.16",
            "3 clusters by k-means on 3 columns",
        ),
        (
            [way("kmeans", 0, 1.5, chosen=True)],
            "k-means on rows of U: normalised cut 1.50",
            "3 clusters by k-means on rows of U",
        ),
        ([], None, "3 clusters"),
    ],
)
def test_the_summary_says_in_a_line_how_labels_were_found(
    made: Run, ways: list[dict[str, Any]], line: str | None, stage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_report(made.report() | {"roundings": ways}, "data")
    said = capsys.readouterr().out.splitlines()
    named = [text.removeprefix("labels ").strip() for text in said if text.startswith("labels ")]
    assert named == ([] if line is None else [line])
    assert any(re.match(rf" *label +{re.escape(stage)}  ", text) for text in said)


@pytest.mark.slow
def test_the_same_run_gives_the_same_bytes(made: Run, page: Path, tmp_path: Path) -> None:
    assert report(made, tmp_path / "again.html").read_bytes() == page.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["again.html"]


WAYS: dict[str, tuple[Params, Resources]] = {
    "chunked": (Params(n_clusters=3, shards=3), Resources(partition_rows=30, vectors="chunked")),
    "decomposable": (Params(n_clusters=2, tensor="decomposable"), Resources()),
    "PPC": (Params(n_clusters=3, method="ppc"), Resources()),
    "paper": (Params(**{**PAPER, "n_clusters": 3}), Resources()),
    "many clusters": (Params(n_clusters=30), Resources()),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_every_kind_of_run_has_its_page(way: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(16)
    X = rng.normal(size=(120, 4)) + 2.5 * rng.integers(0, 3, size=(120, 1))
    finished = run(X, *WAYS[way])
    found = check_page(report(finished, tmp_path / "report.html"))
    always = set(FIGURES) - {"embedding-13", "convergence"}
    if way == "paper":  # labels without an embedding have no tree of density
        always.remove("layers")
    assert {f"figure-{name}" for name in always} <= set(found.values["id"])
    cycles = finished.manifest["stages"][STAGES.index("eigen")]["facts"]["history"]
    assert ("figure-convergence" in found.values["id"]) == bool(cycles)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three groups and their names as CSV: (60, 4) and the class."""
    rng = np.random.default_rng(0)
    kind = np.arange(60) % 3
    rows = [
        ",".join([*map(str, x), "abc"[c]])
        for x, c in zip(rng.normal(size=(60, 4)) + 6 * kind[:, None], kind, strict=True)
    ]
    path = tmp_path / "my table.csv"
    path.write_text("\n".join(["x0,x1,x2,x3,kind", *rows]) + "\n")
    return path


def test_the_command_writes_the_page_into_the_run_directory_and_says_where(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    asked = ["run", str(table), "--clusters", "3", "--labels-column", "kind", "--out", str(out), "--serial", "--quiet"]
    assert main(asked) == 0
    assert main(["report", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}/report.html\n"
    found = check_page(out / "report.html")
    assert "known" in found.values["id"]
    assert ["NMI", "1.0000"] in found.rows("Scores")
    assert main(["report", str(out), "--out", str(tmp_path / "new" / "page.html"), "--quiet"]) == 0
    assert (tmp_path / "new" / "page.html").read_bytes() == (out / "report.html").read_bytes()
    assert main([*asked[:-1], "--quiet"]) == 0  # a page in its directory does not keep a run from going on


@pytest.mark.slow
def test_the_command_of_the_report_makes_the_run_again(table: Path, tmp_path: Path) -> None:
    options = [
        "--neighbors",
        "6",
        "--sigma",
        "0.25",
        "--labels-column",
        "kind",
        "--partition-rows",
        "20",
        "--shards",
        "3",
        "--scale",
        "zscore",
    ]
    first = tmp_path / "first run"
    assert main(["run", str(table), "--clusters", "3", "--out", str(first), "--serial", "--quiet", *options]) == 0
    said = shlex.split(command(open_run(first)))
    assert said[:2] == ["ips2", "run"]
    again = tmp_path / "again"
    said[said.index("--out") + 1] = str(again)
    assert main([*said[1:], "--serial", "--quiet"]) == 0
    kept, made_again = open_run(first), open_run(again)
    assert made_again.params == kept.params
    assert made_again.labels.tobytes() == kept.labels.tobytes()
    folders = [[stage["folder"] for stage in one.manifest["stages"]] for one in (kept, made_again)]
    assert folders[0] == folders[1]  # every stage has the same key


def test_data_from_a_program_is_made_again_by_a_python_call(made: Run) -> None:
    assert command(made) == "ips2_dask.run(X, ips2_dask.Params(n_clusters=3))"


def test_what_is_no_finished_run_and_no_place_for_a_page_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "no manifest.json" in capsys.readouterr().err
    assert main(["report", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "--out: found the directory" in capsys.readouterr().err
    assert main(["report", "s3://bucket/run"]) == 2
    assert "give --out report.html" in capsys.readouterr().err


def test_without_matplotlib_a_report_is_refused(made: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else found(name, *rest)
    )
    with pytest.raises(BadInput, match=r"pip install 'ips2-dask\[report\]'"):
        report(made, tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


LAYOUT = """(() => {
  const box = document.documentElement, images = [...document.querySelectorAll('figure img')];
  const shown = images.filter(i => {
    const r = i.getBoundingClientRect(); return i.complete && i.naturalWidth > 400 && r.width > 200 && r.height > 100;
  }).map(i => i.closest('figure').id);
  return {scroll: box.scrollWidth, width: box.clientWidth, figures: shown, filter: getComputedStyle(images[0]).filter,
          back: getComputedStyle(document.body).backgroundColor};
})()"""
"""What a page looks like: its widths, the figures that are there, and its colours."""


@pytest.mark.cluster
@pytest.mark.skipif(browser.browser() is None, reason="needs Chromium: apt-get install chromium")
def test_a_browser_shows_every_figure_without_a_message_or_a_horizontal_scroll_bar(page: Path, tmp_path: Path) -> None:
    async def look() -> tuple[list[Any], list[Any], list[str]]:
        async with browser.tab(tmp_path) as tab:
            await tab.show(page, 1280)
            seen = []
            for width, dark, media in (
                (1280, False, ""),
                (1280, True, ""),
                (400, False, ""),
                (400, True, ""),
                (720, True, "print"),
            ):
                await tab.fit(width, dark=dark, media=media)
                seen.append(await tab.value(LAYOUT))
            return seen, tab.console, tab.requests

    seen, messages, requests = asyncio.run(look())
    assert messages == []
    assert requests[0] == page.as_uri()
    assert all(url.startswith(("file:", "data:")) for url in requests)
    for found in seen:
        assert found["figures"] == [f"figure-{name}" for name in FIGURES]
        assert found["scroll"] <= found["width"]
    light, dark, _, _, printed = ((found["back"], found["filter"]) for found in seen)
    assert light == printed == ("rgb(255, 255, 255)", "none")
    assert light[0] != dark[0]
    assert "invert" in dark[1]
