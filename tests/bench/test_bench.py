"""Benchmarks at tiny sizes: what they write, what figures are made of, how they end; never how fast it was."""

import datetime
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from ips2_dask.bench import command, graph, harness, peers, runs
from ips2_dask.cli.main import main
from ips2_dask.datasets import curved_gaussians
from ips2_dask.estimator import IPS2
from ips2_dask.kernels.neighbors import exact_neighbors, recall
from ips2_dask.kernels.parallel import usable_cores
from ips2_dask.store.layout import STAGES

needs_proc = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs /proc, which Linux has")


def bench(*arguments, file):
    assert main(["bench", *map(str, arguments), "--json", str(file)]) == 0
    return json.loads(file.read_text())


# ---- the file


def test_a_file_holds_machine_versions_command_and_flat_records(tmp_path, capsys):
    found = bench("product", "--samples", 300, "--neighbors", "3,5", "--repeats", 3, file=tmp_path / "out.json")
    assert list(found)[-3:] == ["versions", "command", "results"]
    assert {"cpu", "cores", "memory_bytes", "os"} <= set(found["machine"])
    assert {"ips2_dask", "python", "numpy", "scipy", "numba"} <= set(found["versions"])
    assert found["command"] == "ips2 bench product --samples 300 --neighbors 3,5 --repeats 3 --json out.json"
    moment = datetime.datetime.fromisoformat(found["date"])
    assert abs((datetime.datetime.now(datetime.UTC) - moment).total_seconds()) < 3600
    assert (found["commit"], found["complete"], found["seed"]) == (harness.commit(), True, 0)
    assert set(found["threads"]) == {"ours", "blas", "openmp", "numba"}
    assert min(found["threads"].values()) >= 1
    assert set(found["load"]) == {"average_before", "average_after", "others"}
    assert 0 <= found["load"]["others"] <= (os.cpu_count() or 1) + 0.1
    assert all(not isinstance(value, dict | list) for record in found["results"] for value in record.values())
    assert len(capsys.readouterr().out.splitlines()) == len(found["results"])


def test_a_file_names_no_host_and_no_folder(tmp_path):
    text = json.dumps(
        bench("product", "--samples=200", "--repeats=1", "--operators=triplets", file=tmp_path / "o.json")
    )
    for name in (socket.gethostname(), str(tmp_path), str(Path.home()), str(Path.cwd())):
        assert len(name) < 3 or name not in text


def test_folders_are_left_out_of_a_command():
    given = ["ips2", "bench", "graph", "--json=/a/b.json", "--scratch", "/tmp/x y", "--samples", "5"]
    assert harness.command_line(given) == "ips2 bench graph --json=b.json --scratch 'x y' --samples 5"


def git(folder, *arguments):
    person = ["-c", "user.name=someone", "-c", "user.email=someone@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.check_output(["git", *person, "-C", str(folder), *arguments], text=True).strip()


def test_the_commit_is_dirty_where_files_of_the_package_differ(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("a = 1\n")
    assert harness.commit(package) is None
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        git(tmp_path, *words)
    clean = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "record.json").write_text("{}\n")  # what is written meanwhile is no change of the code
    assert harness.commit(package) == clean
    (package / "more.py").write_text("b = 2\n")
    assert harness.commit(package) == f"{clean}-dirty"
    (tmp_path / ".gitignore").write_text("venv\n")
    wheel = tmp_path / "venv" / "package"
    wheel.mkdir(parents=True)
    (wheel / "__init__.py").write_text("a = 1\n")
    assert harness.commit(wheel) is None  # not even inside of another checkout


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_record_that_is_not_plain_leaves_the_file_as_it_was(tmp_path, value):
    file = tmp_path / "out.json"
    file.write_text("before")
    with pytest.raises(ValueError, match="JSON"):
        harness.write(file, {}, [{"seconds": value}])
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


def test_a_result_file_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path, capsys):
    assert main(["bench", "product", "--json", str(tmp_path / "none" / "out.json")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "does not exist" in said.err
    assert main(["bench", "product", "--json", str(tmp_path)]) == 2


@pytest.mark.parametrize(
    "arguments", [["product", "--neighbors", "0"], ["graph", "--builders", "magic"], ["scaling", "--sizes", "1e4"], []]
)
def test_an_option_that_means_nothing_is_bad_input(arguments, capsys):
    assert main(["bench", *arguments]) == 2
    assert capsys.readouterr().err.startswith("ips2: ")


def test_the_options_name_what_there_is_to_measure():
    assert tuple(graph.BUILDERS) == command.BUILDERS
    assert tuple(peers.SYSTEMS) == command.SYSTEMS


# ---- product


def test_every_level_of_assembly_is_measured_against_the_same_product_of_scipy(tmp_path):
    found = bench("product", "--samples", 400, "--neighbors", "3,6", "--repeats", 3, file=tmp_path / "out.json")
    results, counts = found["results"], sorted({1, usable_cores()})
    assert [(r["k"], r["threads"], r["operator"]) for r in results] == [
        (k, n, operator) for k in (3, 6) for n in counts for operator in command.OPERATORS
    ]
    for record in results:
        assert record["ratio"] == pytest.approx(record["csr_us_per_sample"] / record["us_per_sample"])
        assert record["us_per_sample_least"] <= record["us_per_sample"]
        assert record["error"] < 1e-5
    # SciPy is timed once for each number of neighbors and threads; two of these times can be the same by chance
    assert len({(r["k"], r["threads"], r["csr_us_per_sample"]) for r in results}) == 2 * len(counts)
    free, triplets = (r["bytes_per_sample"] for r in results[-2:])
    assert free < triplets


# ---- graph


@pytest.mark.parametrize("name", [name for name in graph.BUILDERS if name != "pynndescent"])
def test_a_builder_ends_with_lists_that_a_run_could_use(name):
    if graph.BUILDERS[name].missing:
        pytest.skip(f"{graph.BUILDERS[name].package} is not installed")
    X = harness.centred(curved_gaussians(1500, 8, 5)[0])
    _, lengths = exact_neighbors(X, 0, X, 6)
    builder = graph.BUILDERS[name]
    index = builder.build(builder.prepare(X, 6), **builder.builds[-1])
    found = builder.search(index, X, 6, builder.efforts[-1])
    order = np.arange(len(X)) if found.order is None else found.order
    ordered = X[order]
    assert np.array_equal(found.indices[:, 0], np.arange(len(X)))
    assert (np.diff(found.distances, axis=1) >= 0).all()
    measured = np.linalg.norm(ordered[:, None] - ordered[found.indices], axis=2)
    assert np.allclose(found.distances, measured, atol=1e-5)
    assert recall(found.distances, lengths[order, -1]) >= 0.95


@pytest.mark.slow
def test_builders_are_measured_and_a_missing_one_is_named(tmp_path, monkeypatch):
    missing = graph.BUILDERS["hnswlib"]._replace(module="no_such_module_anywhere")
    monkeypatch.setitem(graph.BUILDERS, "hnswlib", missing)
    found = bench("graph", "--samples", 700, "--features", 4, "--builders", "exact,hnswlib", file=tmp_path / "out.json")
    tried, exact, skipped = found["results"]
    assert exact == {**tried, "kind": "cheapest"}
    assert (exact["outcome"], exact["threads"]) == ("finished", usable_cores())
    assert exact["recall"] == 1
    assert exact["reached"]
    assert exact["seconds"] == pytest.approx(exact["build_seconds"] + exact["search_seconds"])
    assert exact["compile_seconds"] == pytest.approx(max(0, exact["first_seconds"] - exact["seconds"]))
    assert skipped["outcome"] == "skipped: hnswlib is not installed"
    assert skipped["seconds"] is None


@pytest.mark.parametrize(
    "name", [pytest.param("pynndescent", marks=pytest.mark.slow), "faiss-ivf", "faiss-hnsw", "hnswlib", "usearch"]
)
def test_every_library_is_tried_at_several_settings_of_its_index(name):
    builder = graph.BUILDERS[name]
    assert len(builder.builds) >= 4
    assert len(builder.efforts) >= 7 or name == "pynndescent"
    if builder.missing:
        pytest.skip(f"{builder.package} is not installed")
    X = harness.centred(curved_gaussians(800, 8, 5)[0])
    _, lengths = exact_neighbors(X, 0, X, 6)
    recalls = []
    for settings in (builder.builds[0], builder.builds[-1]):
        index = builder.build(builder.prepare(X, 6), **settings)
        found = builder.search(index, X, 6, builder.efforts[-1])
        recalls.append(recall(found.distances, lengths[:, -1]))
    assert recalls[-1] >= 0.95
    assert recalls[0] <= recalls[-1]


def test_a_builder_counts_by_the_cheapest_setting_that_reaches_the_recall():
    tried = [
        {"build": "a", "seconds": 1.0, "recall": 0.9, "reached": False},
        {"build": "b", "seconds": 4.0, "recall": 0.99, "reached": True},
        {"build": "c", "seconds": 3.0, "recall": 0.96, "reached": True},
        {"build": "d", "seconds": None},
    ]
    assert graph.cheapest(tried)["build"] == "c"
    assert graph.cheapest([tried[0], {**tried[0], "build": "e", "recall": 0.93}, tried[3]])["build"] == "e"
    assert graph.cheapest(tried[3:])["build"] == "d"


# ---- end-to-end


@pytest.mark.slow
def test_every_stage_of_a_run_is_timed_beside_its_plan(tmp_path):
    found = bench(
        "end-to-end", "--samples", 500, "--features", 8, "--clusters", 4, "--serial", file=tmp_path / "out.json"
    )
    results = {r["stage"]: r for r in found["results"]}
    assert tuple(results) == ("start", *STAGES, "stages", "total")
    inside = sum(results[stage]["seconds"] for stage in STAGES)
    assert inside <= results["stages"]["seconds"] <= results["total"]["seconds"]
    assert all(results[stage]["projected_bytes"] > 0 for stage in STAGES)
    total = results["total"]
    assert total["recall"] == 1
    assert total["residual"] <= 1e-3
    assert 0 <= total["nmi"] <= 1
    assert total["workers"] == 0
    assert {r["c"] for r in found["results"]} == {4}


@pytest.mark.slow
def test_a_run_that_is_kept_is_gone_on_with(tmp_path):
    arguments = ["--features", 4, "--clusters", 3, "--serial", "--keep", tmp_path / "kept"]
    first, second = (
        bench("end-to-end", "--samples", 300, *arguments, file=tmp_path / name)["results"]
        for name in ("first.json", "second.json")
    )
    words = {r["stage"]: r["outcome"] for r in second}
    assert {r["outcome"] for r in first} == {"finished"}
    assert {words[stage] for stage in STAGES} == {"reused"}
    assert words["total"] == "finished"
    assert second[-2]["computed_seconds"] == pytest.approx(sum(r["computed_seconds"] for r in second[1:-2]))
    for before, after in zip(first[1:-2], second[1:-2], strict=True):
        assert after["computed_seconds"] <= before["seconds"]
    assert second[-1]["nmi"] == first[-1]["nmi"]
    assert (tmp_path / "kept" / "run").is_dir()
    other = bench("end-to-end", "--samples", 200, *arguments, file=tmp_path / "other.json")["results"]
    assert {r["m"] for r in other} == {200}
    assert "reused" not in {r["outcome"] for r in other}


@pytest.mark.parametrize("more", [("--repeats", "2"), ("--against", "1")])
def test_runs_that_are_compared_share_no_directory(more, tmp_path, capsys):
    assert main(["bench", "end-to-end", "--samples", "300", *more, "--keep", str(tmp_path / "kept")]) == 2
    assert "--keep: found more than one run" in capsys.readouterr().err
    assert not (tmp_path / "kept").exists()


def test_data_that_are_not_there_leave_nothing_to_keep(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("IPS2_DATA", str(tmp_path))
    options = ["--data", "mnist", "--serial", "--keep", str(tmp_path / "kept")]
    assert main(["bench", "end-to-end", *options]) == 2
    assert capsys.readouterr().err.startswith("ips2: ")
    assert not any((tmp_path / "kept").glob("*"))


@pytest.mark.slow
def test_a_run_that_fails_is_recorded_as_failed(tmp_path, capsys):
    arguments = ("--samples", 300, "--serial", "--memory-limit", "1MB")
    found = bench("end-to-end", *arguments, file=tmp_path / "out.json")
    (record,) = found["results"]
    assert (record["outcome"], record["stage"], record["seconds"]) == ("failed: Refused", "total", None)
    assert "memory_limit" in capsys.readouterr().err


# ---- peers


@pytest.mark.slow
def test_ratios_are_to_the_fastest_spectral_clustering_that_finished(tmp_path, capsys):
    systems = "spectral-lobpcg,spectral-arpack,kmeans"
    found = bench(
        "peers",
        "--samples",
        300,
        "--features",
        4,
        "--clusters",
        3,
        "--systems",
        systems,
        "--compiled",
        "--repeats",
        2,
        file=tmp_path / "out.json",
    )
    results = {r["system"]: r for r in found["results"]}
    assert list(results) == systems.split(",")
    fastest = min(results[f"spectral-{solver}"]["seconds"] for solver in ("lobpcg", "arpack"))
    for record in results.values():
        assert record["outcome"] == "finished"
        assert record["ratio"] == pytest.approx(record["seconds"] / fastest)
        assert 0 <= record["nmi"] <= 1
        assert 0 < record["acc"] <= 1
        assert -0.5 <= record["ari"] <= 1
        assert (record["clusters"], record["noise"]) == (3, 0)
        assert record["compilation"] == "before"
        assert record["repeats"] == 2
        assert record["seconds_least"] <= record["seconds"] <= record["seconds_most"]
        assert record["threads"] >= 1
    said = capsys.readouterr().err
    for name, record in results.items():
        first, *others = map(float, re.findall(rf"^{name}: finished ([\d.e-]+)$", said, re.MULTILINE))
        assert sorted(others) == [record["seconds_least"], record["seconds_most"]], first
    graphs = [(results[name]["graph"], results[name]["k"]) for name in results]
    assert graphs == [("exact", 10), ("exact", 10), (None, None)]


@pytest.mark.slow
def test_ours_are_compared_with_as_many_columns_and_neighbours(tmp_path):
    systems = "ips2,ips2-k10-c"
    arguments = ("--samples", 300, "--features", 4, "--clusters", 3, "--compiled", "--repeats", 1)
    ours, alike = bench("peers", *arguments, "--systems", systems, file=tmp_path / "out.json")["results"]
    assert [(r["graph"], r["k"], r["recall"], r["repeats"]) for r in (ours, alike)] == [
        ("exact", 5, 1.0, 1),
        ("exact", 10, 1.0, 1),
    ]
    X, _ = curved_gaussians(300, 4, 3)
    for arguments, columns in (({}, 3 + 8), ({"n_components": 3}, 3)):
        assert IPS2(3, **arguments).fit(X).embedding_.shape == (300, columns)


@pytest.mark.parametrize("system", [name for name, system in peers.SYSTEMS.items() if not system.module])
def test_a_system_clusters_what_it_is_given(system, tmp_path):
    data = harness.generated(400, 4, 3, 0, tmp_path)
    job = {"X": data.X, "labels": data.labels, "c": 3, "seed": 0}
    found = peers.work({**job, "system": system})
    assert found["seconds"] > 0
    assert found["nmi"] > 0.2
    assert found == {**peers.work({**job, "system": system}), "seconds": found["seconds"]}


def test_noise_is_a_cluster_that_is_scored_and_not_counted(tmp_path, monkeypatch):
    known = np.repeat([0, 1, 2], 20)
    for name, array in (("X", np.zeros((60, 2))), ("labels", known)):
        np.save(tmp_path / f"{name}.npy", array)
    found = np.where(known == 2, -1, known)
    monkeypatch.setitem(peers.SYSTEMS, "kmeans", peers.Method("", lambda X, c, seed: peers.Fit(found)))
    job = {"X": tmp_path / "X.npy", "labels": tmp_path / "labels.npy", "c": 3, "seed": 0}
    measured = peers.work({**job, "system": "kmeans"})
    assert (measured["clusters"], measured["noise"]) == (2, pytest.approx(1 / 3))
    assert measured["nmi"] == measured["acc"] == measured["ari"] == pytest.approx(1)


@pytest.mark.slow
def test_evoc_is_measured_where_it_is_installed(tmp_path):
    pytest.importorskip("evoc")
    arguments = ("--samples", 300, "--features", 8, "--clusters", 3, "--systems", "evoc", "--compiled")
    (record,) = bench("peers", *arguments, file=tmp_path / "out.json")["results"]
    assert (record["call"], record["outcome"]) == ("EVoC()", "finished")
    assert record["clusters"] >= 1
    assert 0 <= record["noise"] < 1


def test_a_system_over_its_time_is_killed_and_nothing_is_compared_with_it(tmp_path):
    found = bench(
        "peers",
        "--samples",
        50,
        "--systems",
        "spectral-arpack,kmeans",
        "--limit",
        0.05,
        "--repeats",
        2,
        file=tmp_path / "out.json",
    )
    for record in found["results"]:
        assert record["outcome"] == "stopped at the limit"
        assert record["repeats"] == 1
        assert record["seconds"] is record["ratio"] is record["nmi"] is record["noise"] is None


# ---- scaling


def test_growth_is_the_exponent_of_a_power_law():
    sizes = np.array([1e4, 3e4, 1e5, 3e5, 1e6])
    found = runs.growth(sizes, 3e-5 * sizes**1.12)
    assert found == pytest.approx((1.12, 1.12, 1.12), abs=1e-6)


def test_growth_covers_the_true_exponent_as_often_as_it_says():
    rng = np.random.default_rng(0)
    sizes = np.geomspace(1e4, 1e6, 5)
    found = [runs.growth(sizes, sizes * np.exp(0.1 * rng.standard_normal(5))) for _ in range(2000)]
    assert np.mean([g.low <= 1 <= g.high for g in found]) == pytest.approx(0.95, abs=0.02)


def test_two_sizes_have_an_exponent_without_an_interval():
    assert runs.growth([10, 100], [1, 100]) == (pytest.approx(2), None, None)


@pytest.mark.slow
def test_every_stage_has_a_time_for_each_size_and_a_growth(tmp_path):
    found = bench(
        "scaling",
        "--sizes",
        "300,900",
        "--features",
        4,
        "--clusters",
        3,
        "--serial",
        "--no-warm-up",
        file=tmp_path / "out.json",
    )
    times = [r for r in found["results"] if r["kind"] == "time"]
    grown = {r["stage"]: r for r in found["results"] if r["kind"] == "growth"}
    assert [(r["m"], r["stage"]) for r in times] == [
        (m, stage) for m in (300, 900) for stage in ("start", *STAGES, "stages", "total")
    ]
    assert {r["stage"] for r in times if r["start_included"]} == {"start", "total"}
    assert not any(r["compiled"] for r in times)
    assert set(grown) == {*STAGES, "stages", "total"}
    for stage, record in grown.items():
        seconds = [r["seconds"] for r in times if r["stage"] == stage]
        slope = np.polyfit(np.log([300, 900]), np.log(seconds), 1)[0]
        assert record["exponent"] == pytest.approx(slope)
        assert record["low"] is record["high"] is None


@pytest.mark.slow
@needs_proc
def test_a_run_on_workers_has_the_peak_of_all_its_processes(tmp_path):
    found = bench("scaling", "--sizes", "1500", "--features", 4, "--clusters", 3, file=tmp_path / "out.json")
    total = found["results"][-1]
    assert total["workers"] == 2
    assert total["peak_bytes"] > total["peak_client_bytes"] > 0
    assert total["peak_bytes"] > total["peak_worker_bytes"] > 0


# ---- what they share


def test_generated_data_in_a_file_are_those_of_the_generator(tmp_path):
    m = 65_536 + 100
    data = harness.generated(m, 2, 3, 7, tmp_path)
    X, labels = np.load(data.X), np.load(data.labels)
    truth, known = curved_gaussians(m, 2, 3, 7)
    assert np.array_equal(X, truth)
    assert np.array_equal(labels, known)


GROW = "import subprocess, sys, time; a = bytearray(96 << 20); time.sleep(60)"


@needs_proc
def test_a_grandchild_counts_in_the_memory_of_a_tree():
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {GROW!r}])"]
    )
    try:
        with harness.TreeSampler(parent.pid) as sampler:
            while not (found := harness.peak(sampler.samples)) or found.largest_child < 96 << 20:
                assert parent.poll() is None
        assert found.tree >= found.largest_child >= 96 << 20
        assert found.root < 96 << 20
    finally:
        for child in psutil.Process(parent.pid).children():
            child.kill()
        parent.wait(30)


def test_a_peak_is_that_of_its_span():
    samples = [harness.Sample(at, 10 * at, 3 * at, 2 * at) for at in (1, 2, 3)]
    assert harness.peak(samples, 0, 2.5)[1:] == (20, 6, 4)
    assert harness.peak(samples, 4, 5) is None


@pytest.mark.slow
def test_work_ends_when_nobody_waits_for_it_any_more(tmp_path):
    X = tmp_path / "X.npy"
    np.save(X, np.zeros((10, 2)))
    job = {"system": "kmeans", "X": str(X), "labels": str(X), "c": 2, "seed": 0}
    (tmp_path / "job.json").write_text(json.dumps(job))
    words = [sys.executable, "-m", harness.__name__, peers.__name__, str(tmp_path)]
    work = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
    work.stdin.close()
    assert work.wait(120) == -9
    assert not (tmp_path / "answer.json").exists()


def test_a_speedup_is_the_ratio_of_medians_of_stages_that_all_runs_finished() -> None:
    slow = [{"tensor": 2.0, "eigen": 8.0, "label": 1.0}, {"tensor": 4.0, "eigen": 8.0}, {"tensor": 9.0, "eigen": 1.0}]
    fast = [{"tensor": 2.0, "eigen": 3.0}]
    found = runs.speedups(slow, fast)
    assert found == {"tensor": 2.0, "eigen": pytest.approx(8 / 3), "tensor and eigen": 2.0}


# ---- sweep


@pytest.mark.slow
def test_a_sweep_is_measured_between_two_runs_of_its_largest_c_and_k(tmp_path):
    found = bench(
        "sweep",
        "--samples",
        200,
        "--features",
        4,
        "--clusters",
        "3,5",
        "--neighbors",
        "4,5",
        "--sigma",
        "1",
        "--workers",
        1,
        file=tmp_path / "out.json",
    )
    results = found["results"]
    assert [r["kind"] for r in results if r["kind"] != "part"] == ["first run", "run", "sweep", "run", "ratio"]
    assert all(r["outcome"] == "finished" for r in results if "outcome" in r)
    (swept,) = [r for r in results if r["kind"] == "sweep"]
    assert swept["points"] == 4
    first, second = (r["seconds"] for r in results if r["kind"] == "run")
    assert results[-1]["ratio"] == pytest.approx(swept["seconds"] / ((first + second) / 2))
    times = {r["stage"]: r["times"] for r in results if r["kind"] == "part"}
    assert list(times) == [*STAGES, "criteria"]
    # both k lie within the neighbours that are stored anyway
    assert [times[s] for s in ("ingest", "neighbors", "tensor", "eigen", "label")] == [1, 1, 2, 2, 4]
