"""The stored results of a finished run: labels, graph, tensor, eigenpairs, similarities, in the user's numbering."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.errors import BadInput, Damaged
from ips2_dask.kernels.fusion import Leading, leading
from ips2_dask.params import Params
from ips2_dask.plan.choices import Choices
from ips2_dask.readers.features import Column, FittedFeatures, TextFormat
from ips2_dask.runs import label_results
from ips2_dask.runs.label_results import BLOCK_ROWS, LabelBlock
from ips2_dask.runs.maintenance import check_there
from ips2_dask.stages import known_labels, side_inputs
from ips2_dask.stages.similarity_views import read_similarity
from ips2_dask.stages.views import known_vectors, pair_vectors, read_pairs, restricted_tensor, solved_degrees, unit
from ips2_dask.store.base import Store
from ips2_dask.store.context import Context
from ips2_dask.store.integrity import Document
from ips2_dask.store.layout import STAGES
from ips2_dask.typing import AnyArray, Bool, Float, Float32, Float64, Int32, Int64, Integer

MOST_ENTRIES = 1 << 28
"""Most entries of a similarity of all rows, in which equal rows repeat the entries of distinct ones."""


class Neighbors(NamedTuple):
    """The graph: column 0 is the sample itself."""

    indices: Int32  #: (m, k)
    distances: Float  #: (m, k) in the units of the (scaled) data; float64 where float32 can't hold them


class Results:
    """The stored results of a run, of whose store ``keep`` may be the temporary folder, which must live as long."""

    def __init__(self, store: Store, manifest: Document, keep: object = None) -> None:
        self._store, self.manifest, self._keep = store, manifest, keep
        self.params = Params(**manifest["params"])
        bounds, f, choices = tuple(manifest["bounds"]), manifest["input"]["shape"][1], Choices(**manifest["choices"])
        self._context = Context(store, self.params, bounds, f, choices, generation=manifest["generation"])
        self._context.folders |= manifest["beside"]
        for stage in manifest["stages"]:
            self._context.folders[stage["name"]] = stage["folder"]
            self._context.facts[stage["name"]] = stage["facts"]
            self._context.adopt(stage["facts"])

    def __repr__(self) -> str:
        m, f = self.manifest["input"]["shape"]
        done = len(self.manifest["stages"])
        return f"<Run of {self.manifest['input']['name']}: {m} x {f}, {done} of {len(STAGES)} stages, {self.path}>"

    @property
    def path(self) -> str | None:
        """The run directory, or None for a run in memory."""
        return self._store.location

    @cached_property
    def labels(self) -> Int32:
        """Cluster of each row of the input, 0 .. c - 1, numbered by first sample: (m,) int32.

        A row that was left out for a missing value (``missing="drop"``) has -1, as noise has in scikit-learn.
        """
        return self._of_rows("labels")

    @cached_property
    def certainty(self) -> Float32:
        """How sure each sample's cluster is, 0 to 1: its share of `shares`, (m,) float32; NaN for a row left out."""
        return self._of_rows("certainty")

    def shares(self) -> Float32:
        """Each cluster's share of a sample: (m, c) float32, rows of sum 1.

        That of the ends of a random walk on the fused similarity, of `kernels.rounding.WALK` steps from the sample. For
        nearly all samples the largest share is that of their own cluster.
        """
        with self._there():
            return self._context.by_row(label_results.of_all(self._context, "shares"))

    @cached_property
    def left_out(self) -> Bool | None:
        """Samples outside the tree of density, whose labels come from their neighbours: (m,) bool; None for k-means.

        Of more samples than a tree is built on, those that were not drawn are not marked.
        """
        return self._of_rows("left_out").astype(np.bool_) if label_results.has_left_out(self._context) else None

    def iter_labels(self, rows: int = BLOCK_ROWS) -> Iterator[LabelBlock]:
        """Labels, certainty and `left_out` in blocks of rows, in the order of the input; no array of all rows is read.

        Parameters
        ----------
        rows : int
            Rows of a block, at most.

        Yields
        ------
        LabelBlock
            ``first``, the number of its first row, and ``labels``, ``certainty`` and ``left_out`` of its rows; None for
            what the run does not keep.

        Examples
        --------
        >>> from sklearn.datasets import make_blobs
        >>> from ips2_dask import Params, run
        >>> X, _ = make_blobs(60, centers=2, random_state=0)
        >>> for block in run(X, Params(n_clusters=2)).iter_labels(rows=40):
        ...     print(block.first, len(block.labels))
        0 40
        40 20
        """
        if rows < 1:
            raise BadInput("rows", str(rows), "at least 1", "there would be no block", "leave it out")
        yield from label_results.row_blocks(self._context, rows)

    @cached_property
    def sizes(self) -> Int64:
        """Rows of the input in each cluster: (c,), without those that were left out; read by blocks."""
        sizes = np.zeros(0, np.int64)
        for block in self.iter_labels():
            counts = np.bincount(block.labels[block.labels >= 0], minlength=len(sizes))
            counts[: len(sizes)] += sizes
            sizes = counts
        return sizes

    @property
    def n_rows(self) -> int:
        """Rows of the input."""
        return int(self.manifest["input"]["shape"][0])

    @property
    def features(self) -> FittedFeatures | None:
        """How the input's columns became features, as those of new samples must; None where it was taken as it is.

        The columns that were taken, the categories of each column of ``one_hot``, what is done about missing values.
        """
        stored = self.manifest["input"].get("fitted_features")
        return None if stored is None else FittedFeatures.of_dict(stored)

    @property
    def text_format(self) -> TextFormat:
        """How the run's input was read if it was a text file, and new text files are by default."""
        return TextFormat(**self.manifest["input"].get("text", {}))

    @cached_property
    def feature_names(self) -> NDArray[np.str_] | None:
        """Names of the features, where the input's columns had names: (f,); new samples are matched by them."""
        if self.features is not None:
            return np.array(self.features.feature_names, np.str_)
        folder = self.manifest["beside"].get(side_inputs.FEATURE_NAMES)
        return None if folder is None else side_inputs.read_names(self._store, folder)

    @cached_property
    def columns(self) -> FittedFeatures:
        """The columns that new samples must have: those of `features`, or all of the input but that of its labels."""
        given, f, label = self.manifest["input"], self._context.n_features, self.manifest["input"].get("label")
        if self.features is not None:
            chosen = given.get("features", {})
            return dataclasses.replace(self.features, whole=not (chosen.get("columns") or chosen.get("drop_columns")))
        names = [None] * f if self.feature_names is None else self.feature_names.tolist()
        numbers = (number + (label is not None and number >= label) for number in range(f))
        columns = tuple(Column(number=number, name=name) for number, name in zip(numbers, names, strict=True))
        return FittedFeatures(columns=columns, n_columns=f + (label is not None), label=label, whole=True)

    def _of_rows(self, name: str) -> AnyArray:
        """Labels, certainty, what a density left out, or the embedding, of each row."""
        with self._there():
            if name == "embedding":
                return self._context.by_row(label_results.of_all(self._context, name))
            return label_results.by_row(self._context, name)

    @contextlib.contextmanager
    def _there(self) -> Iterator[None]:
        """Say of what is missing within a block that the run is gone, if it is."""
        try:
            yield
        except Damaged:
            check_there(self._store)
            raise

    @cached_property
    def sample_names(self) -> NDArray[np.str_] | None:
        """Names of the samples, where the input had names that are not a plain range: (m,)."""
        return self.names_between(0, self.n_rows)

    def names_between(self, low: int, high: int) -> NDArray[np.str_] | None:
        """The `sample_names` of rows low .. high - 1, read alone: (high - low,); None where the input had none."""
        folder = self.manifest["beside"].get(side_inputs.NAMES)
        return None if folder is None else side_inputs.read_names(self._store, folder, low, high)

    @cached_property
    def distinct(self) -> Integer:
        """Rows of the input that are samples, ascending: (n,). All that were not left out with ``duplicates="keep"``.

        With ``duplicates="merge"`` those that no earlier row equals: the rows that equal a sample have its label, its
        certainty and its place in the embedding.
        """
        return np.sort(np.asarray(self._order)) if self._context.merged else np.arange(self.n_rows)

    @cached_property
    def first_rows(self) -> Integer:
        """The first row that equals each row, its own where there is none before it, -1 for one left out: (m,)."""
        return self._context.by_row(np.asarray(self._order)) if self._context.merged else self.distinct

    @cached_property
    def neighbors(self) -> Neighbors:
        """The nearest neighbours of each row and their distances.

        Of rows that are equal the first one stands for all of them as a neighbour of others. A row that was left out
        has no neighbours: -1, and NaN.
        """
        k = self.params.n_neighbors
        indices, distances = (self._context.read_all("neighbors", name)[:, :k] for name in ("indices", "distances"))
        order = self._order
        if order is None:
            return Neighbors(np.array(indices), self._in_units(distances))
        indices, distances = self._context.by_row(order[indices]), self._context.by_row(distances)
        indices[:, 0] = np.where(indices[:, 0] < 0, -1, np.arange(len(indices)))
        return Neighbors(indices.astype(np.int32), self._in_units(distances))

    @property
    def unit(self) -> float:
        """The power of two that the centred and scaled samples were divided by, so that any unit fits into float32.

        It makes their root mean squared distance from the centre 32 to 64; ``epsilon`` is in this unit. 1.0 for
        metrics whose distances have none.
        """
        return self._context.unit

    def _in_units(self, distances: Float32) -> Float32 | Float64:
        """Distances in the units of the (scaled) data, where float32 holds them as float32."""
        wide = np.asarray(distances, np.float64) * self.unit
        with np.errstate(over="ignore", under="ignore"):
            narrow = wide.astype(np.float32)
        return narrow if np.array_equal(narrow, wide) else wide

    @cached_property
    def _order(self) -> Int32 | None:
        """The user's number of each sample of a run that was renumbered."""
        return self._context.order()

    @cached_property
    def _pair_order(self) -> NDArray[np.intp] | None:
        """Places of the stored pairs in the order of `pairs`."""
        if self._order is None:
            return None
        renamed = np.sort(self._order[read_pairs(self._context)], axis=1)
        return np.lexsort((renamed[:, 1], renamed[:, 0]))

    def _by_pair(self, stored: AnyArray) -> AnyArray:
        return stored if self._pair_order is None else stored[self._pair_order]

    @cached_property
    def pairs(self) -> Int32:
        """The active pairs of rows, i <= j, sorted: (P, 2) int32. Of equal rows the first stands for all of them."""
        pairs = read_pairs(self._context)
        return pairs if self._order is None else self._by_pair(np.sort(self._order[pairs], axis=1))

    def tensor(self) -> sp.csr_array:
        """R, the unfolded tensor on unordered pairs: CSR (P, P) float32, each entry once; refused if decomposable.

        See docs/method.md, The restricted basis.
        """
        self._refuse_decomposable("tensor")
        R = restricted_tensor(self._context)
        if self._pair_order is None:
            return R.copy()
        R = sp.csr_array(R[self._pair_order][:, self._pair_order])
        R.sort_indices()
        return R

    @cached_property
    def degrees(self) -> Float64:
        """Degree of each active pair in the full unfolded tensor: (P,) float64."""
        self._refuse_decomposable("degrees")
        return self._by_pair(self._context.read_all("assemble", "degrees"))

    @cached_property
    def eigenvalues(self) -> Float64:
        """The c leading eigenvalues, descending, those of the component vectors first: (c,) float64."""
        return np.array(self._context.facts["eigen"]["eigenvalues"][: self.params.n_sought])

    @cached_property
    def _leading(self) -> Leading:
        """The eigenpairs that V is made of, among those that were solved for."""
        facts, values = self._context.facts, np.array(self._context.read("eigen", "whole", "values"))
        if self.params.tensor == "decomposable":
            return Leading(values, facts["eigen"]["gap"])
        components = {**facts["assemble"], **facts["eigen"]}["components"]
        return leading(values, self.params.n_sought, components, facts["eigen"]["gap"])

    @property
    def gap(self) -> float | None:
        """Between the last eigenvalue that V is made of and the next one, where the solve gave it."""
        return self._leading.gap

    @cached_property
    def inner_eigenvalues(self) -> Float64:
        """Eigenvalues outside those of the component vectors that V is made of, ties included, descending."""
        return self._leading.values

    @cached_property
    def eigenvectors(self) -> Float:
        """Their eigenvectors on unordered pairs, component vectors first: (P, c).

        The basis is orthonormal: docs/method.md, The restricted basis.
        """
        self._refuse_decomposable("eigenvectors")
        c = self.params.n_sought
        pairs = read_pairs(self._context)
        degrees = solved_degrees(self._context, pairs, self._context.read_all("assemble", "degrees"))
        trivial = known_vectors(self._context, pairs, degrees)
        n, offsets = len(self._context.read("eigen", "whole", "values")), self._context.facts["tensor"]["pair_offsets"]
        root, parts = np.sqrt(degrees) * unit(pairs), []
        for b, (low, high) in enumerate(itertools.pairwise(offsets)):
            parts.append(pair_vectors(self._context, b, pairs[low:high], root[low:high], n)(slice(None)))
        return self._by_pair(np.concatenate([trivial.leading(c), np.concatenate(parts)], axis=1)[:, :c])

    def similarity(self, kind: str = "fused", *, distinct: bool = False) -> sp.csr_array | Float:
        """``pairwise`` S, ``high_order`` V or ``fused`` U: dense (m, m) where all pairs were kept, else CSR (m, m).

        With ``fusion="normalized"`` V is that of the pairs of S, and of each sample with itself.

        Parameters
        ----------
        kind : {"fused", "pairwise", "high_order"}
        distinct : bool
            Whether rows and columns are those of `distinct` instead of all rows of the input; equal rows are as similar
            to each other as each is to itself, and rows that were left out to none. A matrix of all rows that equal
            ones would give more than 2^28 entries is refused.
        """
        if kind not in ("pairwise", "high_order", "fused"):
            allowed = "pairwise, high_order or fused"
            raise BadInput("kind", repr(kind), allowed, "no such similarity is stored", "choose one of them")
        matrix = read_similarity(self._context, kind)
        if self._order is None:
            return matrix
        place = np.argsort(self._order) if distinct else np.asarray(self._context.place())
        if self._context.merged and not distinct:
            self._refuse_many(matrix, place)
        matrix = matrix[place][:, place]
        left_out = place < 0
        if sp.issparse(matrix):
            matrix = sp.csr_array(matrix)
            if left_out.any():
                staying = sp.diags_array((~left_out).astype(matrix.dtype))
                matrix = sp.csr_array(staying @ matrix @ staying)
                matrix.eliminate_zeros()
            matrix.sort_indices()
        elif left_out.any():
            matrix[left_out], matrix[:, left_out] = 0.0, 0.0
        return matrix

    def _refuse_many(self, matrix: sp.csr_array | AnyArray, place: AnyArray) -> None:
        """Refuse a similarity of all rows that equal rows make too large."""
        copies = np.bincount(place[place >= 0], minlength=matrix.shape[0])
        entries = len(place) ** 2
        if not isinstance(matrix, np.ndarray):
            rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
            entries = int((copies[rows] * copies[matrix.indices]).sum())
        if entries > MOST_ENTRIES:
            found = f"{entries:,} entries among {len(place):,} rows, of which {matrix.shape[0]:,} are distinct"
            allowed = f"at most {MOST_ENTRIES:,}"
            why = "it would hardly fit into memory"
            raise BadInput("similarity", found, allowed, why, "ask for similarity(..., distinct=True)")

    @property
    def choice(self) -> dict[str, Any] | None:
        """Why there are as many clusters, where that was chosen: eigenvalues, relative gaps, candidates; else None."""
        return self.manifest["choice"]

    @cached_property
    def embedding(self) -> Float64 | None:
        """The spectral embedding, rows of length 1: (m, columns) float32; None for ``embedding='none'``."""
        return None if label_results.n_columns(self._context) is None else self._of_rows("embedding")

    @cached_property
    def known_labels(self) -> Int32 | None:
        """Codes of the known labels that came with the input, or None: (m,)."""
        are_known = known_labels.are_known(self._context)
        return known_labels.read_codes(self._context) if are_known else None

    def known_table(self) -> sp.csr_array | None:
        """How many clustered rows of each known class are in each cluster: CSR (classes, c) int64, counted by blocks.

        None where no known labels came with the input.
        """
        if not known_labels.are_known(self._context):
            return None
        table, c = sp.csr_array((0, self.params.n_clusters), dtype=np.int64), self.params.n_clusters
        for block in self.iter_labels():
            known = known_labels.read_codes(self._context, block.first, block.first + len(block.labels))
            own = block.labels >= 0
            n = max(table.shape[0], int(known.max(initial=-1)) + 1)
            table.resize((n, c))
            ones = np.ones(int(own.sum()), np.int64)
            table = sp.csr_array(table + sp.csr_array((ones, (known[own], block.labels[own])), shape=(n, c)))
        return table

    def _refuse_decomposable(self, what: str) -> None:
        if self.params.tensor == "decomposable":
            why = "a tensor of m^4 entries would be built that Theorem 3.1 makes needless"
            remedy = "use ips2_dask.explicit.tensor_similarity(S, kind='decomposable') on the S of few samples"
            raise BadInput(what, "a decomposable run", "an indecomposable one", why, remedy)
