"""The number of clusters: the right one where it is plain, with its evidence, and the same however it is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from harness import slowly
from sklearn.datasets import make_blobs

from ips2_dask import IPS2, BadInput, Params, Resources, gc, open_run, reports, run, verify
from ips2_dask.cli.main import main
from ips2_dask.datasets import load
from ips2_dask.kernels import choice as kernel
from ips2_dask.kernels import density
from ips2_dask.kernels.density import Layer
from ips2_dask.paper import data as synthetic
from ips2_dask.pipeline.prepare import plan_run
from ips2_dask.progress import Progress
from ips2_dask.readers import open_source
from ips2_dask.stages import choose
from ips2_dask.store.layout import STAGES

Array = npt.NDArray[Any]


def chosen(X: Array, most: int = 20) -> int:
    return run(X, Params(max_clusters=most)).params.n_clusters


def test_the_gap_is_relative_to_how_far_below_one_it_ends() -> None:
    gaps = kernel.relative_gaps(np.array([1.0, 0.99, 0.9, 0.7]))
    np.testing.assert_allclose(gaps, [0.01 / 0.02, 0.09 / 0.11, 0.2 / 0.31])


def test_the_largest_gap_from_two_on_wins_and_the_others_are_listed() -> None:
    found = kernel.by_eigengap(np.array([1.0, 0.5, 0.49, 0.2, 0.19]), 4)
    assert found.n_clusters == 3
    assert [one.n_clusters for one in found.candidates] == [3, 2, 4]
    assert json.dumps(found.as_dict())


def test_components_count_as_clusters() -> None:
    assert kernel.by_eigengap(np.array([1.0, 1.0, 1.0, 0.6, 0.59]), 4).n_clusters == 3


def test_no_more_than_the_largest_number_is_chosen() -> None:
    assert kernel.by_eigengap(np.array([1.0, 1.0, 1.0, 1.0, 0.1]), 3).n_clusters == 2


@pytest.mark.parametrize("values", [[1.0], [1.0, 0.5]])
def test_where_nothing_can_be_compared_there_are_two(values: list[float]) -> None:
    assert kernel.by_eigengap(np.array(values), 5).n_clusters == 2


@pytest.mark.parametrize("most", slowly([25, 80], 25))
@pytest.mark.parametrize("c", slowly([3, 8, 20, 60], 3, 20))
def test_blobs_are_counted(c: int, most: int) -> None:
    X, _ = make_blobs(60 * c, 16, centers=c, random_state=1)
    assert chosen(X, max(c + 5, most)) == c


def test_the_papers_sets_are_counted() -> None:
    assert chosen(synthetic.usdata1(1060).X) == 3
    assert chosen(synthetic.usdata2(60).X) == 3
    assert chosen(synthetic.three_clusters().X) == 3
    assert chosen(synthetic.two_clusters().X) == 2


def test_weak_evidence_is_said_with_the_runner_up() -> None:
    choice = run(np.random.default_rng(0).normal(size=(200, 6)), Params(max_clusters=20)).choice
    assert choice is not None
    (said,) = choice["warnings"]
    first, second = (one["n_clusters"] for one in choice["candidates"][:2])
    assert said.startswith(f"weak evidence for {first} clusters, or for any")
    assert said.endswith(f"the runner-up is {second}")


@pytest.mark.parametrize("m", slowly([50, 150, 600], 50, 600))
@pytest.mark.parametrize("f", slowly([2, 8, 64], 2, 64))
def test_uniform_noise_is_no_clusters_without_a_warning(m: int, f: int) -> None:
    choice = run(np.random.default_rng([m, f]).uniform(size=(m, f)), Params(max_clusters=20)).choice
    assert choice is not None
    assert any(text.startswith("weak evidence") for text in choice["warnings"])


@pytest.mark.parametrize(("m", "c"), [(90, 3), (300, 5), (800, 8)])
@pytest.mark.parametrize("f", [4, 64])
def test_blobs_are_clusters_without_a_warning(m: int, c: int, f: int) -> None:
    choice = run(make_blobs(m, f, centers=c, random_state=3)[0], Params(max_clusters=20)).choice
    assert choice is not None
    assert choice["n_clusters"] == c
    assert choice["warnings"] == []


def layer(c: int, persistence: float, span: float) -> Layer:
    return Layer(np.zeros(1, np.int32), persistence * span, persistence, span, 2.0, np.zeros(c))


def test_the_most_stable_cut_is_chosen_and_of_equal_ones_the_one_into_fewer() -> None:
    found = kernel.by_density([layer(2, 0.5, 1.0), layer(4, 0.8, 0.2), layer(6, 0.7, 0.9), layer(9, 0.9, 0.7)])
    assert found is not None
    assert [one.n_clusters for one in found.candidates] == [6, 9, 2, 4]
    assert found.candidates[0] == kernel.Candidate(6, pytest.approx(0.63), 0.7, 0.9)
    equal = kernel.by_density([layer(3, 0.5, 1.0), layer(2, 0.5, 1.0)])
    assert equal is not None
    assert equal.n_clusters == 2
    assert kernel.by_density([]) is None


def test_a_tree_has_one_cut_for_each_number_of_leaves() -> None:
    X = np.random.default_rng(0).normal(size=(900, 2)).astype(np.float32)
    edges = density.spanning_tree(X)
    assert edges is not None
    numbers = [one.n_clusters for one in density.cuts(edges, len(X), 60)]
    assert len(numbers) > 5
    assert numbers == sorted(set(numbers))
    assert [one.n_clusters for one in density.cuts(edges, len(X), 9)] == [c for c in numbers if c <= 9]
    assert density.cuts(np.zeros((0, 3)), 3, 10) == []


def test_without_fast_plscan_the_eigengap_chooses_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(density, "available", lambda: False)
    X, _ = make_blobs(240, 4, centers=4, random_state=0)
    choice = run(X, Params(max_clusters=8)).choice
    assert choice is not None
    assert (choice["n_clusters"], choice["rule"]) == (4, "eigengap")
    assert "the number of clusters is the eigengap's" in choice["warnings"][0]


@pytest.mark.slow
@pytest.mark.parametrize("m", [60, 400])
def test_runs_in_chunks_choose_the_same_number(m: int, tmp_path: Path) -> None:
    X, _ = make_blobs(m, 6, centers=4, random_state=2)
    whole = run(X, Params(max_clusters=9))
    chunked = run(X, Params(max_clusters=9), Resources(partition_rows=50, vectors="chunked"), store=tmp_path / "run")
    assert whole.choice is not None
    assert chunked.choice is not None
    assert (chunked.choice["n_clusters"], chunked.choice["rule"]) == (4, whole.choice["rule"])
    assert not [path for path in (tmp_path / "run").glob("label-*") if "label-" + chunked.choice["key"] in path.name]


def test_digits_are_counted() -> None:
    found = run(load("digits").X, Params(n_clusters="auto"))
    assert found.choice is not None
    best, second = found.choice["candidates"][:2]
    assert (best["n_clusters"], best["score"] > 1.5 * second["score"]) == (10, True)


def test_the_run_is_that_of_the_chosen_number() -> None:
    X, _ = make_blobs(120, 4, centers=4, random_state=0)
    found = run(X, Params(max_clusters=8))
    plain = run(X, Params(n_clusters=found.params.n_clusters))
    np.testing.assert_array_equal(found.labels, plain.labels)
    np.testing.assert_array_equal(found.eigenvalues, plain.eigenvalues)
    assert plain.choice is None


def test_the_evidence_is_kept_in_the_manifest_and_the_choice_is_made_once(tmp_path: Path) -> None:
    X, _ = make_blobs(120, 4, centers=4, random_state=0)
    first = run(X, Params(max_clusters=8), store=tmp_path / "run")
    again = run(X, Params(max_clusters=8), store=tmp_path / "run")
    assert all(stage["skipped"] for stage in again.manifest["stages"])
    kept = open_run(tmp_path / "run").choice
    assert kept == again.choice == first.choice
    assert kept is not None
    assert len(kept["eigenvalues"]) == 16
    assert kept["candidates"][0]["n_clusters"] == first.params.n_clusters == 4


def test_each_stage_is_in_the_manifest_once_as_computed_and_the_run_is_sound(tmp_path: Path) -> None:
    X, _ = make_blobs(120, 4, centers=4, random_state=0)
    first = run(X, Params(max_clusters=8), store=tmp_path / "run")
    assert [stage["name"] for stage in first.manifest["stages"]] == list(STAGES)
    assert {stage["state"] for stage in first.manifest["stages"]} == {"computed"}
    assert verify(tmp_path / "run").sound


def test_what_was_made_for_the_choice_alone_is_not_needed_any_more(tmp_path: Path) -> None:
    X, _ = make_blobs(120, 4, centers=4, random_state=0)
    first = run(X, Params(max_clusters=8), store=tmp_path / "run")
    assert {one.path.split("-")[0] for one in gc(tmp_path / "run").garbage} == {"eigen", "fuse"}
    again = run(X, Params(max_clusters=8), store=tmp_path / "run")
    assert {stage["state"] for stage in again.manifest["stages"]} == {"reused"}
    assert again.choice == first.choice


@pytest.mark.slow
@pytest.mark.parametrize("vectors", ["in-core", "chunked"])
def test_of_thousands_the_solve_of_the_choice_serves_the_chosen_number(vectors: str, tmp_path: Path) -> None:
    X, _ = make_blobs(2100, 4, centers=4, cluster_std=0.5, random_state=0)
    found = run(X, Params(max_clusters=8), Resources(vectors=vectors), store=tmp_path / "run")
    assert found.params.n_clusters == 4
    assert {one.path.split("-")[0] for one in gc(tmp_path / "run").garbage} == {"fuse"}
    np.testing.assert_array_equal(found.labels, run(X, Params(n_clusters=4), Resources(vectors=vectors)).labels)


@pytest.mark.slow
def test_the_choice_is_made_again_where_the_fused_similarity_is_another(tmp_path: Path) -> None:
    X, _ = make_blobs(120, 4, centers=4, random_state=0)
    run(X, Params(max_clusters=8), store=tmp_path / "run")
    other = run(X, Params(max_clusters=8, fusion_weight=0.2), store=tmp_path / "run")
    assert other.choice == run(X, Params(max_clusters=8, fusion_weight=0.2)).choice
    plain = run(X, Params(n_clusters=3), store=tmp_path / "run")
    assert plain.choice is None


class Stops(Progress):
    """Ends the run when a stage has begun so many times."""

    def __init__(self, stage: str, times: int) -> None:
        self._stage, self._left = stage, times

    def begin(self, stage: str) -> None:
        """Count, and raise at the last one."""
        self._left -= stage == self._stage
        if stage == self._stage and not self._left:
            raise KeyboardInterrupt


@pytest.mark.parametrize("times", [1, 2])
def test_a_run_that_was_interrupted_before_or_after_the_choice_goes_on(tmp_path: Path, times: int) -> None:
    X, _ = make_blobs(120, 4, centers=4, random_state=0)
    with pytest.raises(KeyboardInterrupt):
        run(X, Params(max_clusters=8), store=tmp_path / "run", progress=Stops("eigen", times))
    resumed = run(X, Params(max_clusters=8), store=tmp_path / "run")
    whole = run(X, Params(max_clusters=8))
    np.testing.assert_array_equal(resumed.labels, whole.labels)
    assert resumed.choice == whole.choice


def test_damage_that_the_choice_meets_is_mended_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, _ = make_blobs(120, 4, centers=4, random_state=0)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(choose, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(X, Params(max_clusters=8), store=tmp_path / "run")
    chunks = [path for path in (tmp_path / "run").glob("fuse-*/**/c/*") if path.is_file()]
    for chunk in chunks:
        content = bytearray(chunk.read_bytes())
        content[len(content) // 2] ^= 1
        chunk.write_bytes(content)
    assert chunks
    resumed = run(X, Params(max_clusters=8), store=tmp_path / "run")
    whole = run(X, Params(max_clusters=8))
    np.testing.assert_array_equal(resumed.labels, whole.labels)
    assert resumed.choice == whole.choice


def test_the_command_that_makes_it_again_asks_for_the_choice(tmp_path: Path) -> None:
    X, _ = make_blobs(90, 4, centers=3, random_state=0)
    np.save(tmp_path / "x.npy", X)
    made = run(tmp_path / "x.npy", Params(max_clusters=6), store=tmp_path / "run")
    assert "--clusters auto --max-clusters 6" in reports.command(made)
    assert "n_clusters" not in reports.command(run(X, Params(max_clusters=6)))


def test_the_estimator_takes_auto() -> None:
    X, _ = make_blobs(90, 4, centers=3, random_state=0)
    assert len(np.unique(IPS2("auto", max_clusters=6).fit(X).labels_)) == 3


@pytest.mark.parametrize("value", ["several", 0, 2.5])
def test_another_word_is_refused(value: Any) -> None:
    with pytest.raises(BadInput, match="n_clusters"):
        IPS2(value).fit(np.eye(9))


def test_the_command_takes_auto_and_says_what_it_chose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X, _ = make_blobs(90, 4, centers=3, random_state=0)
    np.save(tmp_path / "x.npy", X)
    given = [str(tmp_path / "x.npy"), "--out", str(tmp_path / "run"), "--clusters", "auto", "--max-clusters", "6"]
    assert main(["run", *given, "--serial", "--json"]) == 0
    said = capsys.readouterr().out
    assert "3 of up to 6 chosen by stability " in said
    assert json.loads(said.splitlines()[-1])["choice"]["considered"] == 6


def test_a_largest_number_without_auto_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.eye(9))
    given = [str(tmp_path / "x.npy"), "--out", str(tmp_path / "run"), "--clusters", "3", "--max-clusters", "6"]
    assert main(["run", *given, "--serial"]) == 2
    assert "--clusters auto" in capsys.readouterr().err


def test_of_at_most_two_there_are_two() -> None:
    assert chosen(np.array([[0.0], [1.0], [5.0], [6.0], [9.0]]), 2) == 2


def test_a_plan_counts_the_largest_number() -> None:
    source = open_source(np.random.default_rng(0).normal(size=(50, 3)))
    auto, plain = (plan_run(source, p, Resources()) for p in (Params(max_clusters=12), Params(n_clusters=10)))
    assert auto == plain  # one for five samples, at most
