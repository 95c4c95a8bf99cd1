"""The metrics of a run, one record each: how rows are prepared, and how their distances are measured.

A new metric is one entry of `METRICS` and, unless it is the Euclidean distance of prepared rows, one branch of
`distances.length`. Nothing else asks for a metric by its name.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

Rows = Literal["as given", "unit", "centred unit", "root shares", "presence", "distances"]
"""How ingest prepares each row before columns are centred:

- ``as given``: not at all;
- ``unit``: divided by its length;
- ``centred unit``: less its mean, then divided by its length;
- ``root shares``: square roots of the shares of its sum, over sqrt(2);
- ``presence``: 1 where a value is not 0;
- ``distances``: the row holds distances, not features.
"""

EUCLIDEAN = None
"""Code of the Euclidean distance in compiled code, of which Numba then compiles no other metric's part."""

MANHATTAN, CHEBYSHEV, CANBERRA, BRAYCURTIS, HAMMING, JACCARD = range(1, 7)


@dataclasses.dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes
    ----------
    name : str
        Name in `Params.metric`.
    code : int, optional
        Code of the distance between prepared rows in compiled code, see `distances.length`.
    rows : Rows
    about_zero : bool
        Whether it depends on where 0 is, or on values being equal: columns are then not centred unasked, and are scaled
        to the letter. Its distances have no unit, by whose power of two others are divided.
    known_as, arguments : str, tuple
        Its name in pynndescent and SciPy where that is another one, and arguments that both take besides: ("p", 3).
    """

    name: str
    code: int | None = EUCLIDEAN
    rows: Rows = "as given"
    about_zero: bool = False
    known_as: str = ""
    arguments: tuple[tuple[str, float], ...] = ()

    @property
    def precomputed(self) -> bool:
        """Whether the input is the matrix of distances, so that none is measured."""
        return self.rows == "distances"

    @property
    def is_euclidean(self) -> bool:
        """Whether distances between prepared rows are Euclidean, so that a matrix product narrows a search down."""
        return self.code is EUCLIDEAN and not self.precomputed

    @property
    def compares_pairs(self) -> bool:
        """Whether every distance is measured pair by pair, since no matrix product gives it."""
        return self.code is not EUCLIDEAN

    @property
    def external(self) -> str:
        """Name of the distance between prepared rows in pynndescent."""
        return (self.known_as or self.name) if self.compares_pairs else "euclidean"

    @property
    def scipy(self) -> str:
        """The same in SciPy's `cdist`."""
        return "cityblock" if self.code == MANHATTAN else self.external

    @property
    def needs_direction(self) -> bool:
        """Whether rows are brought to one length, which a row of zeros (or for some of equal values) does not have."""
        return self.rows in ("unit", "centred unit", "root shares")

    @property
    def keeps_rows(self) -> bool:
        """Whether stored samples are the same as for the Euclidean metric, but for the centring."""
        return self.rows == "as given"


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("euclidean"),
        Metric("manhattan", MANHATTAN),
        Metric("chebyshev", CHEBYSHEV),
        Metric("canberra", CANBERRA, about_zero=True),
        Metric("braycurtis", BRAYCURTIS, about_zero=True),
        Metric("hamming", HAMMING, about_zero=True),
        Metric("jaccard", JACCARD, "presence", about_zero=True),
        Metric("cosine", rows="unit"),
        Metric("correlation", rows="centred unit"),
        Metric("hellinger", rows="root shares"),
        Metric("precomputed", rows="distances"),
    )
}
"""Every metric by its name."""
