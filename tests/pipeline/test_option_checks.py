"""Whatever is asked for does something or is refused in one line; a default never is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid

from ips2_dask import IPS2, PPC, BadInput, Params, Resources, run, sweep
from ips2_dask.cli.main import main
from ips2_dask.params import NOT_READ
from ips2_dask.pipeline.prepare import MACHINES, check_machines, check_params

X = np.random.default_rng(6).normal(size=(60, 3)) + 4 * np.eye(3)[np.arange(60) % 3]
S = np.exp(-np.square(X[:, None] - X).sum(axis=2))
OTHER: dict[str, Any] = {
    "sigma": 2.0,
    "epsilon": 2e-4,
    "operator": "matrix-free",
    "fusion": "average",
    "fusion_weight": 0.2,
    "bandwidth": "median",
    "n_components": 4,
    "shards": 3,
    "resolution": 2.0,
}
CASES = [  # pynndescent takes half a minute to compile
    pytest.param(decider, value, name, marks=pytest.mark.slow if value == "pynndescent" else ())
    for decider, value, names, _ in NOT_READ
    for name in names
]


def one_line(call: Callable[[], Any], thing: str) -> None:
    with pytest.raises(BadInput, match="nothing") as caught:
        call()
    assert caught.value.thing == thing
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("decider", "value", "name"), CASES)
def test_a_parameter_that_another_makes_meaningless_is_refused_when_a_run_begins(
    decider: str, value: str, name: str, tmp_path: Path
) -> None:
    beside = {"similarity": S} if value == "precomputed" else {}
    params = Params(n_clusters=3, **{decider: value, name: OTHER[name]})  # type: ignore[arg-type]
    one_line(lambda: run(X, params, store=tmp_path / "run", **beside), name)
    assert not (tmp_path / "run").exists()
    default = getattr(Params(), name)
    run(X, dataclasses.replace(params, **{name: default}), **beside)


@pytest.mark.parametrize(("decider", "value", "name"), [case for case in CASES if "precomputed" not in case.values])
def test_such_a_parameter_is_really_read_by_no_stage(decider: str, value: str, name: str) -> None:
    """Where it would be read, refusing it would be wrong: past the check, labels and U are the same bits."""
    from harness import run_on  # noqa: PLC0415  with the check left out

    from ips2_dask.executors.base import SerialExecutor  # noqa: PLC0415
    from ips2_dask.pipeline import prepare  # noqa: PLC0415

    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "check_params", lambda *_, **__: None)
        for more in ({}, {name: OTHER[name]}):
            asked = {"n_clusters": 3, decider: value, **more}
            found.append(run_on(SerialExecutor(), X, Params(**asked)))
    assert found[0].labels.tobytes() == found[1].labels.tobytes()
    one, other = (np.asarray(sparse.csr_array(r.similarity("fused")).todense()) for r in found)
    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    ("params", "resources", "name"),
    [
        ({"metric": "precomputed", "shards": 3}, {}, "shards"),
        ({"tensor": "decomposable"}, {"vectors": "chunked"}, "vectors"),
    ],
)
def test_a_cut_that_a_run_does_not_make_is_refused(
    params: dict[str, Any], resources: dict[str, Any], name: str
) -> None:
    one_line(lambda: check_params(Params(**params), Resources(**resources)), name)
    check_params(Params(**{key: value for key, value in params.items() if key != name}), Resources())
    check_params(Params(), Resources(**resources))


def test_shards_beside_a_graph_that_is_given_are_refused() -> None:
    graph = sparse.csr_array(S)
    one_line(lambda: run(X, Params(n_clusters=3, shards=3), knn_graph=graph), "shards")


MACHINERY: dict[str, Any] = {
    "n_workers": 2,
    "scratch": "/tmp",
    "scheduler": "tcp://127.0.0.1:1",
    "cluster": "local",
    "tls": "/tmp",
    "insecure": True,
}


@pytest.mark.parametrize("name", MACHINES)
def test_workers_that_nobody_starts_are_refused(name: str) -> None:
    resources = Resources(**{name: MACHINERY[name]})
    one_line(lambda: run(X, Params(n_clusters=3), resources), name)
    one_line(lambda: check_machines(resources, client=True, own_cluster=False), name)
    check_machines(resources, client=False, own_cluster=True)
    check_machines(Resources(), client=False, own_cluster=False)


def test_what_a_scheduler_or_a_client_has_already_is_refused() -> None:
    for more in ({"n_workers": 2}, {"cluster": "slurm"}, {"scratch": "/tmp"}):
        resources = Resources(scheduler="tcp://127.0.0.1:1", **more)  # type: ignore[arg-type]
        one_line(lambda r=resources: run(X, Params(), r, own_cluster=True), next(iter(more)))  # type: ignore[misc]
    one_line(lambda: check_machines(Resources(), client=True, own_cluster=True), "own_cluster")
    one_line(lambda: run(X, Params(n_clusters=3), Resources(threads_per_worker=2)), "threads_per_worker")
    check_machines(Resources(threads_per_worker=2), client=True, own_cluster=False)


def test_estimators_refuse_at_fit_and_every_grid_of_parameters_can_be_set() -> None:
    for values in ParameterGrid({"fusion_weight": [0.5, 0.2], "tensor": ["indecomposable", "decomposable"]}):
        clone(IPS2(3)).set_params(**values).fit(X)
    estimator = PPC(3, fusion_weight=0.2)
    assert clone(estimator).get_params()["fusion_weight"] == 0.2
    one_line(lambda: estimator.fit(X), "fusion_weight")
    one_line(lambda: IPS2(3, tensor="decomposable", sigma=2.0).fit(X), "sigma")
    assert IPS2("auto", max_clusters=7).fit(X).labels_.max() < 7


def test_a_sweep_refuses_what_it_decides_itself(tmp_path: Path) -> None:
    for params, name in ((Params(max_clusters=9), "max_clusters"), (Params(n_eigenpairs=9), "n_eigenpairs")):
        one_line(lambda p=params: sweep(X, params=p, store=tmp_path / "s", files=False), name)  # type: ignore[misc]
    replaced = sweep(X, {"n_clusters": (2, 3)}, Params(n_clusters=7, sigma=3.0), store=tmp_path / "s", files=False)
    assert {(point.params.n_clusters, point.params.sigma) for point in replaced.points} == {(2, 3.0), (3, 3.0)}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--tensor", "decomposable", "--sigma", "2"], "--sigma: found 2.0"),
        (["--method", "ppc", "--fusion-weight", ".2"], "--fusion-weight: found 0.2"),
        (["--graph", "exact", "--shards", "3"], "--shards: found 3"),
        (["--serial", "--scratch", "/tmp"], "--scratch: found '/tmp'"),
        (["--serial", "--insecure"], "--insecure: found True"),
        (["--embedding", "none", "--components", "4"], "--components: found 4"),
    ],
)
def test_the_command_line_says_the_option(
    given: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", X)
    command = ["run", str(tmp_path / "x.npy"), "--out", str(tmp_path / "run"), "--clusters", "3", "--serial"]
    assert main([*command, *(word for word in given if word != "--serial")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error
    assert not (tmp_path / "run").exists()


def test_a_plan_refuses_what_its_run_would(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--shape", "1000x4", "--graph", "exact", "--shards", "3"]) == 2
    assert "--shards" in capsys.readouterr().err


def test_predictions_take_no_option_of_a_run_and_none_of_workers_without_workers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", X)
    run(X, Params(n_clusters=3), store=tmp_path / "run")
    command = ["predict", str(tmp_path / "run"), str(tmp_path / "x.npy"), "--out", str(tmp_path / "y.csv"), "--quiet"]
    assert main(command) == 0
    for given in (["--scratch", "/tmp"], ["--memory-limit", "4GiB"], ["--tls", "/tmp"]):
        assert main([*command, *given]) == 2
        assert given[0] in capsys.readouterr().err
    for given in (["--partition-rows", "9"], ["--vectors", "chunked"], ["--shards", "3"]):
        assert main([*command, *given]) == 2
        assert given[0] in capsys.readouterr().err


def test_benchmarks_refuse_options_of_generated_data_beside_named_data(capsys: pytest.CaptureFixture[str]) -> None:
    for given, said in (
        (["graph", "--data", "digits", "--seed", "3"], "--seed"),
        (["end-to-end", "--data", "digits", "--features", "9"], "--features"),
        (["end-to-end", "--keep", "x", "--repeats", "2"], "--keep"),
    ):
        assert main(["bench", *given]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert said in error
