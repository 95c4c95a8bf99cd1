"""Scaling studies: their config, what is measured once and kept, and fits against laws that are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ips2_dask import BadInput
from ips2_dask.bench import study
from ips2_dask.bench.study.measure import PlannedRun, planned_runs
from ips2_dask.cli.main import main

EXAMPLE = Path(__file__).parents[2] / "notebooks" / "study.yaml"


def record(part: str, m: int, stage: str, seconds: float, **more: Any) -> dict[str, Any]:
    named = {"part": part, "m": m, "k": 5, "operator": "auto", "workers": 2, "f": 8, "c": 3, "seed": 0}
    return {**named, "cluster": "local", "outcome": "finished", "stage": stage, "seconds": seconds, **more}


def test_the_shipped_example_is_valid_and_names_every_key() -> None:
    found = study.read_config(EXAMPLE)
    assert set(yaml.safe_load(EXAMPLE.read_text())) == set(found.as_dict())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sizs: [1000]", "Remedy: write sizes"),
        ("sizes: 1000", "a list of whole numbers"),
        ("sizes: [10]", "at least 100"),
        ("operators: [fast]", "auto, matrix-free, elements, triplets"),
        ("neighbors: [1]", "at least 2"),
        ("neighbors: [99]", "2 to 64"),
        ("workers: -1", "workers"),
        ("limit: no", "seconds"),
        ("name: a/b", "letters"),
        ("warm_up: 3", "true or false"),
        ("{cluster: slurm, scheduler: 'tcp://a:1'}", "one of them"),
        ("[1, 2]", "keys with values"),
        ("sizes: [1000", "no YAML"),
        ("{sizes: [100], clusters: 200}", "above clusters"),
    ],
)
def test_a_config_that_can_t_be_is_refused_in_a_line(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "study.yaml").write_text(text)
    assert main(["study", str(tmp_path / "study.yaml"), "--out", str(tmp_path / "out")]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert said in lines[0]
    assert "Remedy:" in lines[0]
    assert not (tmp_path / "out").exists()


def test_a_config_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none\.yaml"):
        study.read_config(tmp_path / "none.yaml")


def test_the_jobs_are_every_size_k_and_operator_and_both_parts_with_workers() -> None:
    asked = study.Study(
        sizes=(200, 400),
        neighbors=(5, 7),
        operators=("auto", "triplets"),
        clusters=5,
        strong_samples=300,
        strong_workers=(1, 2),
        weak_samples=100,
        weak_workers=(1, 3),
    )
    found = planned_runs(asked)
    assert len(found) == 8 + 2 + 2
    assert PlannedRun("growth", 400, 7, "triplets", 2) in found
    assert found[-1] == PlannedRun("weak", 300, 5, "auto", 3)


def test_the_exponent_of_a_power_law_is_found_with_an_interval_around_it() -> None:
    records = [
        record("growth", m, "stages", 3e-6 * m**1.25 * noise)
        for m, noise in ((1000, 1.02), (4000, 0.98), (16000, 1.01), (64000, 0.99))
    ]
    (row,) = study.growth_table(records)
    assert (row["from"], row["to"], row["sizes"]) == (1000, 64000, 4)
    assert row["exponent"] == pytest.approx(1.25, abs=0.02)
    assert row["low"] < 1.25 < row["high"]
    (two,) = study.growth_table(records[:2])
    assert two["low"] is None


def test_speed_ups_efficiencies_and_the_serial_share_follow_amdahl() -> None:
    serial = 0.25
    strong = [record("strong", 900, "stages", 8 * (serial + (1 - serial) / w)) | {"workers": w} for w in (1, 2, 4)]
    rows = study.strong_table(strong)
    assert [row["workers"] for row in rows] == [1, 2, 4]
    assert rows[0]["serial_share"] is None
    assert [row["serial_share"] for row in rows[1:]] == pytest.approx([serial, serial])
    assert rows[2]["speedup"] == pytest.approx(1 / (serial + (1 - serial) / 4))
    weak = [record("weak", 500 * w, "stages", 2.0 * w) | {"workers": w} for w in (1, 2)]
    assert [row["efficiency"] for row in study.weak_table(weak)] == [1.0, 0.5]


def test_memory_is_measured_over_planned_and_failed_runs_are_left_out() -> None:
    rows = study.memory_table(
        [
            record("growth", 900, "total", 2.0, peak_bytes=300, projected_bytes=400),
            record("growth", 9000, "total", 2.0, peak_bytes=None, projected_bytes=400),
            record("growth", 90000, "total", 2.0, peak_bytes=300, projected_bytes=400)
            | {"outcome": "ended by signal 9"},
        ]
    )
    assert [(row["m"], row["ratio"]) for row in rows] == [(900, 0.75)]


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "study.jsonl").write_text("hello\n")
    with pytest.raises(BadInput, match="line 1"):
        study.kept(study.Study(), tmp_path)


def test_a_file_of_the_benchmark_is_read_as_growth(tmp_path: Path) -> None:
    results = [
        {"kind": "time", "k": 5, "m": m, "stage": "stages", "seconds": m / 100, "outcome": "finished"}
        for m in (100, 1000, 10000)
    ]
    content = {"machine": {"cpu": "a processor"}, "results": [*results, {"kind": "growth"}]}
    (tmp_path / "scaling.json").write_text(json.dumps(content))
    (row,) = study.growth_table(study.read_bench(tmp_path / "scaling.json"))
    assert row["exponent"] == pytest.approx(1.0)
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(BadInput, match="bench scaling"):
        study.read_bench(tmp_path / "other.json")


@pytest.mark.slow
def test_what_was_measured_is_kept_and_not_measured_again(tmp_path: Path) -> None:
    asked = study.Study(
        sizes=(200, 400), clusters=3, features=4, workers=0, strong_samples=0, weak_samples=0, warm_up=False
    )
    lines: list[str] = []
    records = study.measure(asked, tmp_path, report=lines.append)
    assert len(lines) == 2
    assert {r["m"] for r in records} == {200, 400}
    assert all(r["outcome"] == "finished" for r in records)
    file = tmp_path / "study.jsonl"
    before = file.read_text()
    assert study.measure(asked, tmp_path, report=lines.append) == records
    assert file.read_text() == before
    assert lines[-1] == "all runs were there already"
    assert {row["stage"] for row in study.growth_table(records)} >= {"eigen", "stages", "total"}
    again = study.measure(asked, tmp_path, again=True, report=lines.append)
    assert len(file.read_text().splitlines()) == 2 * len(before.splitlines())
    assert len(again) == len(records)
    assert str(tmp_path) not in before


@pytest.mark.slow
def test_the_command_writes_notebook_page_records_and_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("papermill", reason="needs the extra [notebooks]")
    (tmp_path / "small.yaml").write_text(
        "{name: small, sizes: [200, 400, 800], clusters: 3, features: 4, workers: 0, strong_samples: 0, "
        "weak_samples: 0, warm_up: false}"
    )
    assert main(["study", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "out"), "--json"]) == 0
    said = capsys.readouterr().out
    assert "growth     k = 5, operator auto: m^" in said
    found = json.loads(said.strip().splitlines()[-1])
    assert {row["stage"] for row in found["growth"]} >= {"ingest", "stages"}
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"small.ipynb", "small.html", "small.json", "small.jsonl"}
