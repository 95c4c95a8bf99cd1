"""A caller's client: whether it can be waited for, and what its scheduler knows of its workers, asked for anew.

`distributed.Client.scheduler_info` reads what the client's last question brought, and the client asks by itself every
two seconds for everything but the workers: between a question and its reading there may be none.
"""

from __future__ import annotations

from typing import Any

from distributed import Client
from distributed.comm import CommClosedError

from ips2_dask.errors import BadInput


def check_client(client: object) -> None:
    """Refuse what is no client, or one that this thread could only wait for in vain; None passes.

    Raises
    ------
    BadInput
    """
    if client is None:
        return
    if not isinstance(client, Client):
        found = repr(client) if isinstance(client, str) else f"an object of {type(client).__name__}"
        allowed, otherwise = "a distributed.Client", "nobody could be given tasks"
        raise BadInput("client", found, allowed, otherwise, "give client=Client(that address or cluster)")
    if client.status in ("closing", "closed"):
        raise BadInput(
            "client",
            "a client that was closed, or has lost its scheduler",
            "one that is connected",
            "nobody could be given tasks",
            "give client=Client(address), of a new scheduler if the old one is gone",
        )
    if client.asynchronous or not client.loop.asyncio_loop.is_running():
        raise BadInput(
            "client",
            "a client whose event loop would wait for this call, or has ended",
            "one with a loop of its own",
            "the call would wait for ever",
            "give client=Client(address), or await asyncio.to_thread(function, ...) while the loop runs",
        )


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
