"""A process that asks for more than its limit gets a MemoryError, whether it is a worker or the client."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest
from distributed import Client, LocalCluster

from ips2_dask.clusters import executor
from ips2_dask.errors import Lost
from ips2_dask.params import Resources

resource = pytest.importorskip("resource")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems don't count memory like this")


def _told(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_what_fits_is_given_and_what_does_not_is_a_memory_error() -> None:
    said = _told("""
        import numpy as np, psutil
        from ips2_dask.executors.process_memory import limit_memory
        assert limit_memory(psutil.Process().memory_info().rss + (300 << 20))
        np.ones(200 << 20, np.uint8)
        try:
            np.ones(500 << 20, np.uint8)
        except MemoryError:
            print("no more")
    """)
    assert said == "no more\n"


def _ask(n: int) -> int:
    return len(np.ones(n, np.uint8))


@pytest.mark.slow
def test_a_worker_that_asks_for_more_than_its_limit_is_told_and_lives_on() -> None:
    with executor(Resources(n_workers=1, memory_limit=1 << 30)) as found:
        with pytest.raises(Lost, match="a task got no memory"):
            found.results([found.submit("ask", _ask, 3 << 30)])
        assert found.results([found.submit("ask", _ask, 1 << 20)]) == [1 << 20]


@pytest.mark.slow
def test_pages_that_were_given_back_between_others_are_not_counted() -> None:
    said = _told("""
        import numpy as np, psutil
        from ips2_dask.executors.process_memory import limit_memory
        from ips2_dask.store.cache import tidy
        small = [np.ones(1 << 16, np.uint8) for _ in range(300 << 4)]  # in the heap, where each is between two others
        assert limit_memory(psutil.Process().memory_info().rss + (50 << 20))
        del small[1:-1]
        tidy()
        np.ones(250 << 20, np.uint8)
        try:
            np.ones(400 << 20, np.uint8)
        except MemoryError:
            print("no more")
    """)
    assert said == "no more\n"


@pytest.mark.slow
def test_a_limit_ends_with_its_block() -> None:
    said = _told("""
        import numpy as np, psutil
        from ips2_dask.executors.process_memory import limited
        with limited(psutil.Process().memory_info().rss + (50 << 20)):
            try:
                np.ones(500 << 20, np.uint8)
            except MemoryError:
                print("no more")
        np.ones(500 << 20, np.uint8)
    """)
    assert said == "no more\n"


@pytest.mark.slow
def test_a_cluster_of_threads_beside_a_local_cluster_leaves_its_process_as_it_is() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with (
        executor(Resources(n_workers=1)),
        LocalCluster(n_workers=1, processes=False, memory_limit=1 << 30, dashboard_address="127.0.0.1:0") as threads,
        Client(threads, set_as_default=False) as client,
    ):
        assert client.submit(sum, [1, 2]).result() == 3
        assert resource.getrlimit(resource.RLIMIT_DATA) == before
