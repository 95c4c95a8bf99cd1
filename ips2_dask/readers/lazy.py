"""What a source is whose rows do not exist before they are asked for: a Dask graph, say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class LazySource(Protocol):
    """A `Source` whose rows the workers of a cluster compute themselves."""

    def delayed_blocks(self, bounds: Sequence[int]) -> list[Any]:
        """Return one `dask.delayed.Delayed` per partition: its rows bounds[b] to bounds[b + 1]."""
        ...
