"""The notebooks: each runs on small sizes, is committed with outputs that name no machine, and equals its script."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from ips2_dask.paper.methods import METHODS

FOLDER = Path(__file__).parent.parent / "notebooks"
NAMES = [
    "01_quickstart",
    "02_paper",
    "03_scaling_study",
    "04_on_a_cluster",
    "05_choosing_parameters",
    "06_single_cells",
]
SMALL: dict[str, dict[str, Any]] = {
    "01_quickstart": {"n_clusters": 10, "n_new": 1197},
    "02_paper": {"only": ["tensors", "similarities"]},
    "03_scaling_study": {
        "name": "small",
        "sizes": [300, 600, 1200],
        "features": 8,
        "clusters": 4,
        "workers": 0,
        "strong_samples": 0,
        "weak_samples": 0,
        "results": "small",
    },
    "04_on_a_cluster": {"samples": 400, "workers": 1},
    "05_choosing_parameters": {"samples": 200, "clusters": [8, 10], "neighbors": [5], "sigma": [1.0], "resamples": 1},
    "06_single_cells": {"n_clusters": 4},
}
MACHINE = re.compile(r"/(?:home|root|tmp|work|Users|usr|private)/|[A-Z]:\\\\Users|127\.0\.0\.1:\d|Traceback")
"""What an output must not hold: folders of somebody's machine, ports, errors."""

LARGEST = 1_000_000

needs_notebooks = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("papermill", "ipykernel", "jupytext")),
    reason="needs the extra [notebooks]",
)


def contents(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    return found


def test_these_are_all_notebooks() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == NAMES


@needs_notebooks
@pytest.mark.parametrize("name", NAMES)
def test_script_and_notebook_are_one(name: str) -> None:
    import jupytext  # noqa: PLC0415  the extra [notebooks]

    script, notebook = (jupytext.read(FOLDER / f"{name}.{kind}") for kind in ("py", "ipynb"))
    assert [(c.cell_type, c.source.strip()) for c in script.cells] == [
        (c.cell_type, c.source.strip()) for c in notebook.cells
    ]


@pytest.mark.parametrize("name", NAMES)
def test_there_is_one_cell_of_parameters(name: str) -> None:
    tags = [cell["metadata"].get("tags", []) for cell in contents(name)["cells"]]
    assert sum("parameters" in tag for tag in tags) == 1


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_there_name_no_machine_and_are_small(name: str) -> None:
    assert (FOLDER / f"{name}.ipynb").stat().st_size < LARGEST
    cells = [cell for cell in contents(name)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= (0 if name == "04_on_a_cluster" else 2)
    for output in outputs:
        assert output["output_type"] != "error"
        data = {k: v for k, v in output.get("data", {}).items() if not k.startswith("image/")}
        found = MACHINE.search(json.dumps([data, output.get("text", "")]))
        assert found is None, found


@pytest.mark.parametrize("name", NAMES)
def test_no_notebook_defines_more_than_what_shows_something(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    assert len(re.findall(r"^(?:def|class) ", text, re.MULTILINE)) <= 2


def executed(name: str, folder: Path, **parameters: Any) -> list[dict[str, Any]]:
    """The cells of a notebook that was run with small parameters, or with others."""
    import papermill  # noqa: PLC0415  the extra [notebooks]

    out = folder / f"{name}.ipynb"
    papermill.execute_notebook(
        str(FOLDER / f"{name}.ipynb"),
        str(out),
        {**SMALL[name], **parameters},
        kernel_name="python3",
        progress_bar=False,
        cwd=str(folder),
    )
    found: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))["cells"]
    return found


@needs_notebooks
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in NAMES])
def test_every_notebook_runs_on_small_sizes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "06_single_cells":
        pytest.importorskip("scanpy")
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    cells = executed(name, tmp_path)
    assert all(o["output_type"] != "error" for cell in cells for o in cell.get("outputs", []))
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code)


@needs_notebooks
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_paper_shows_table_2_and_the_curves_of_a_results_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    text = (FOLDER / "results" / "paper" / "results.json").read_text(encoding="utf-8")
    (tmp_path / "results" / "paper").mkdir(parents=True)
    (tmp_path / "results" / "paper" / "results.json").write_text(text)
    cells = executed("02_paper", tmp_path, only=[])
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    pages = ["".join(data["text/html"]) for data in outputs if "text/html" in data]
    assert len(pages) == 3
    for page, setting in zip(pages, ("printed", "default", "tuned"), strict=True):
        of = [
            f"{r['mean']:.3f} / {r['paper']:.3f}"
            for r in json.loads(text)
            if (r["experiment"], r["dataset"], r["measure"], r["setting"]) == ("table2", "yale5", "acc", setting)
        ]
        assert len(of) == len(METHODS)
        assert all(cell in page for cell in of)
    assert sum("image/png" in data for data in outputs) == 2
