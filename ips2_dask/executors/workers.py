"""What a scheduler knows of its workers, asked for anew.

`distributed.Client.scheduler_info` reads what the client's last question brought, and the client asks by itself every
two seconds for everything but the workers: between a question and its reading there may be none.
"""

from __future__ import annotations

from typing import Any

from distributed import Client
from distributed.comm import CommClosedError


def known_workers(client: Client) -> dict[str, Any]:
    """The scheduler's record of each worker, by the worker's address.

    Parameters
    ----------
    client : distributed.Client
        Not an asynchronous one.

    Returns
    -------
    dict
        As the "workers" of `distributed.Client.scheduler_info`, all of them.

    Raises
    ------
    CommClosedError
        If the scheduler does not answer.
    """

    try:
        found: dict[str, Any] = client.sync(client.scheduler.identity, n_workers=-1)["workers"]
    except OSError as error:  # such as no connection in time
        raise CommClosedError(str(error)) from error
    return found
