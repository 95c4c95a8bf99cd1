"""A run at some of its samples, read by partition: what pictures of a run of any size are drawn from."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from ips2_dask.runs import label_results
from ips2_dask.runs.layout import least
from ips2_dask.runs.run import Run
from ips2_dask.stages import known_labels
from ips2_dask.stages.similarity_views import numbered_parts, user_numbers
from ips2_dask.store.context import part_name
from ips2_dask.typing import AnyArray, Float64, Int32, Int64, Integer

SHOWN = 100_000
"""Samples that are drawn of a run that has more."""

UNCERTAIN = 20
"""Samples of the lowest certainty that are shown beside them."""


class RunSample(Run):
    """A view of a run at some of its samples, read by partition.

    Labels, certainty, what a density left out, embedding and known labels have a row for each of ``rows`` (n,), rows of
    the input, ascending; everything else is that of the whole run. ``samples`` are the samples that these rows are, in
    the run's numbering, ascending, and ``order`` (n,) is the place of each row's sample among them.

    Parameters
    ----------
    run : Run
    samples : (n,) int, optional
        Of equal rows ``rows`` has the first then. None takes all samples and every row that was clustered.
    """

    def __init__(self, run: Run, samples: Integer | None = None) -> None:
        super().__init__(run._store, run.manifest, run._keep)
        context = self._context
        self.samples: Int64 = np.arange(context.m) if samples is None else np.asarray(samples, np.int64)
        if samples is None:
            place = context.place()
            places = self.samples if place is None else place
            self.rows = np.flatnonzero(places >= 0)
            self.order: Int64 = places[self.rows].astype(np.int64)
        else:
            numbers = user_numbers(context, self.samples)
            self.order = np.argsort(numbers)
            self.rows = numbers[self.order]

    def by_partition(self, samples: Int64) -> Iterator[tuple[int, Int64, Int64]]:
        """Of each partition that holds some of these samples: its number, their places here, and their rows in it."""
        owners = self._context.owner(samples)
        for b in np.unique(owners).tolist():
            own = np.flatnonzero(owners == b)
            yield b, own, samples[own] - self._context.bounds[b]

    def labels_of_partition(self, b: int) -> Int32:
        """Labels of all samples of a partition: (rows,) int32, through the cache."""
        return np.asarray(self._context.read("label", label_results.PREFIXES["labels"] + part_name(b), "labels"))

    def labelled_edges(self) -> Iterator[tuple[Int32, Int32, Float64]]:
        """The labels of both ends of every edge of S of the whole run, (n,) each, and its weight, part by part."""
        for part in numbered_parts(self._context):
            labels = label_results.labels_at(self._context, np.stack([part.i, part.j]))
            yield labels[0], labels[1], np.asarray(part.pairwise, np.float64)

    def _of_rows(self, name: str) -> AnyArray:
        values = label_results.rows_at(self._context, name, self.samples)[self.order]
        return np.asarray(values, np.float64) if name == "embedding" else values

    @cached_property
    def known_labels(self) -> Int32 | None:
        """Codes of the known labels that came with the input, or None: (n,)."""
        if not known_labels.are_known(self._context):
            return None
        blocks = np.split(self.rows, np.flatnonzero(np.diff(self.rows // label_results.BLOCK_ROWS)) + 1)
        ranges = (known_labels.read_codes(self._context, int(rows[0]), int(rows[-1]) + 1) for rows in blocks)
        return np.concatenate([codes[rows - rows[0]] for codes, rows in zip(ranges, blocks, strict=True)])


def shown(run: Run) -> RunSample:
    """What is shown of a run: all rows that were clustered, or, of a run with more than `SHOWN` samples, so many of
    them, drawn by a seed, and the `UNCERTAIN` least certain ones.
    """
    if isinstance(run, RunSample):
        return run
    context = run._context
    if context.m <= SHOWN:
        return RunSample(run)
    drawn = np.random.default_rng([0, 22]).choice(context.m, SHOWN, replace=False)
    uncertain, _ = least(context, UNCERTAIN, lambda b, _: label_results.of_partition(context, "certainty", b))
    return RunSample(run, np.union1d(drawn, uncertain))
