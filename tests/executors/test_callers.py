"""Clients as callers have them: in an event loop, closed, lost, or something else that is given in their place."""

from __future__ import annotations

import asyncio
import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import joblib
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster

from ips2_dask import IPS2, BadInput, Params, Run, open_run, run, sweep
from ips2_dask.errors import IPS2Error, Lost

X = np.random.default_rng(3).normal(size=(60, 4)) + np.repeat([0, 9], 30)[:, None]
PARAMS = Params(n_clusters=2)
LABELS = np.repeat([0, 1], 30)
FRAME = dd.from_pandas(pd.DataFrame(X), npartitions=2)


@pytest.fixture
def client() -> Iterator[Client]:
    """A cluster in this process."""
    with (
        LocalCluster(n_workers=1, processes=False, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as made,
    ):
        yield made


@pytest.fixture
def stored(tmp_path: Path) -> Run:
    return run(X, PARAMS, store=tmp_path / "stored")


def doors(client: Any, stored: Run, folder: Path) -> dict[str, Callable[[], object]]:
    """Each call that takes a client."""
    fitted = IPS2(2).fit(X)
    fitted.client = client
    return {
        "run": lambda: run(X, PARAMS, client=client, store=folder / "run"),
        "fit": lambda: IPS2(2, client=client).fit(X),
        "sweep": lambda: sweep(X, {"n_clusters": (2, 3)}, client=client, store=folder / "sweep", files=False),
        "predict": lambda: stored.predict(X, client=client),
        "predictions": lambda: next(iter(stored.predictions(X, client=client))),
        "transform": lambda: fitted.transform(X),
        "fit of a Dask DataFrame": lambda: IPS2(2, client=client).fit(FRAME),
        "predict of a Dask DataFrame": lambda: stored.predict(FRAME, client=client),
    }


def assert_refused(doors: dict[str, Callable[[], object]], *words: str, error: type[IPS2Error] = BadInput) -> None:
    for name, call in doors.items():
        with pytest.raises(error) as caught:
            call()
        assert "\n" not in str(caught.value), name
        assert all(word in str(caught.value) for word in words), (name, str(caught.value))


@pytest.mark.slow
def test_an_asynchronous_client_is_refused_where_its_loop_would_wait_and_taken_in_a_thread(
    stored: Run, tmp_path: Path
) -> None:
    async def notebook() -> Client:
        async with (
            LocalCluster(n_workers=1, processes=False, dashboard_address="127.0.0.1:0", asynchronous=True) as cluster,
            Client(cluster, asynchronous=True, set_as_default=False) as client,
        ):
            assert_refused(doors(client, stored, tmp_path), "event loop", "asyncio.to_thread")
            fitted = await asyncio.to_thread(IPS2(2, client=client).fit, X)
            np.testing.assert_array_equal(fitted.labels_, LABELS)
            labels = await asyncio.to_thread(stored.predict, X, client=client)
            np.testing.assert_array_equal(labels, LABELS)
        return client

    client = asyncio.run(notebook())
    assert_refused(doors(client, stored, tmp_path), "a client that was closed")


def test_a_client_is_refused_in_a_coroutine_of_its_own_loop(client: Client, stored: Run, tmp_path: Path) -> None:
    async def callback() -> None:
        assert_refused(doors(client, stored, tmp_path), "event loop", "asyncio.to_thread")

    client.sync(callback)


def test_a_cluster_and_an_address_are_refused_with_what_makes_a_client_of_them(
    client: Client, stored: Run, tmp_path: Path
) -> None:
    for given, name in ((client.cluster, "LocalCluster"), (client.scheduler.address, client.scheduler.address)):
        assert_refused(doors(given, stored, tmp_path), name, "Client(that address or cluster)")
        with Client(given, set_as_default=False) as made:
            np.testing.assert_array_equal(stored.predict(X, client=made), LABELS)


def test_a_closed_client_and_one_without_a_scheduler_are_refused(client: Client, stored: Run, tmp_path: Path) -> None:
    with Client(client.scheduler.address, set_as_default=False) as closed:
        closed.close()
        assert_refused(doors(closed, stored, tmp_path), "a client that was closed")


def test_a_scheduler_that_goes_while_new_samples_are_predicted_is_one_line(client: Client, stored: Run) -> None:
    found = stored.predictions(da.from_array(np.tile(X, (1500, 1)), chunks=(16_384, -1)), client=client)
    np.testing.assert_array_equal(next(found).labels[:60], LABELS)
    client.cluster.close()
    with pytest.raises(Lost, match="the connection is lost"):
        list(found)


def through_joblib(value: Any) -> Any:
    with io.BytesIO() as stream:
        joblib.dump(value, stream)
        stream.seek(0)
        return joblib.load(stream)


@pytest.mark.slow
@pytest.mark.parametrize("copied", [copy.deepcopy, through_joblib, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_of_an_estimator_are_without_its_client_and_predict(
    copied: Callable[[Any], Any], client: Client, tmp_path: Path
) -> None:
    for estimator in (IPS2(2, client=client), IPS2(2, client=client, store=tmp_path / "run"), IPS2(2)):
        before = copied(estimator)
        assert before.client is None
        assert {**before.get_params(), "client": 0} == {**estimator.get_params(), "client": 0}
        estimator.fit(X)
        fitted = copied(estimator)
        assert (fitted.client, fitted.n_features_in_) == (None, 4)
        for values in (fitted.labels_, fitted.predict(X), copied(estimator.run_).predict(X)):
            np.testing.assert_array_equal(values, LABELS)
        np.testing.assert_array_equal(fitted.affinity_matrix_.toarray(), estimator.affinity_matrix_.toarray())
        assert estimator.client is (client if estimator.client else None)
    assert copied(open_run(tmp_path / "run")).path == str(tmp_path / "run")


SCRIPT = """
import numpy as np
import ips2_dask
from ips2_dask import IPS2, Params, Resources, run

X = np.random.default_rng(3).normal(size=(60, 4))
{guard}
    {call}
"""
OWN = "print(run(X, Params(n_clusters=2), Resources(n_workers=1), own_cluster=True).labels.size)"
WITH = "with ips2_dask.cluster(workers=1) as client: print(len(IPS2(2, client=client).fit(X).labels_))"


def script(guard: str, call: str, path: Path, **how: Any) -> subprocess.CompletedProcess[str]:
    path.write_text(SCRIPT.format(guard=guard, call=call))
    return subprocess.run(
        [sys.executable, *how.pop("arguments", [str(path)])], capture_output=True, text=True, timeout=120, **how
    )


@pytest.mark.slow
@pytest.mark.parametrize("call", [OWN, WITH])
@pytest.mark.parametrize("guard", ["if True:", "def main():\n    print(X.shape)\nif main() is None:"])
def test_a_script_without_a_guard_is_refused_before_a_worker_starts(guard: str, call: str, tmp_path: Path) -> None:
    done = script(guard, call, tmp_path / "analysis.py")
    *_, last = done.stderr.splitlines()
    assert done.returncode == 1
    assert "analysis.py: found line" in last
    assert "__name__ == '__main__'" in last
    assert done.stderr.count("Traceback") == 1


@pytest.mark.slow
def test_a_script_from_standard_input_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "analysis.py"
    path.write_text(SCRIPT.format(guard="if __name__ == '__main__':", call=OWN))
    with path.open() as stream:
        done = script("if __name__ == '__main__':", OWN, path, arguments=["-"], stdin=stream)
    assert "in no file" in done.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "guard", ["if __name__ == '__main__':", "def main():\n    {}\nif __name__ == '__main__': main()\nif 0:"]
)
def test_a_script_with_a_guard_runs(guard: str, tmp_path: Path) -> None:
    done = script(guard.format(OWN), OWN, tmp_path / "analysis.py")
    assert (done.returncode, done.stdout) == (0, "60\n"), done.stderr
