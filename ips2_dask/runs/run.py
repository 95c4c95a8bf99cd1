"""A finished run, opened for reading: labels, graph, tensor, eigenpairs, similarities, in the user's numbering."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ips2_dask.errors import BadInput
from ips2_dask.executors.workers import check_client
from ips2_dask.kernels.selection import Leading, leading
from ips2_dask.params import Params
from ips2_dask.plan.choices import Choices
from ips2_dask.readers import Source, features_of, is_text_file, open_source
from ips2_dask.readers.base import LazySource, Table
from ips2_dask.readers.columns import features_of_numbers, match_columns
from ips2_dask.readers.features import HANDLE_UNKNOWN, Column, FittedFeatures, TextFormat, check_word
from ips2_dask.runs import label_results
from ips2_dask.runs import layout as layouts
from ips2_dask.runs.cuts import cut_clusters
from ips2_dask.runs.directory import lacks, read_manifest
from ips2_dask.runs.label_results import BLOCK_ROWS, LabelBlock
from ips2_dask.runs.layers import Layers, find_layers
from ips2_dask.runs.layout import Layout
from ips2_dask.runs.predict import Predicted, blocks, predict
from ips2_dask.runs.quality import quality_checks
from ips2_dask.stages import known_labels, pair_rows, side_inputs
from ips2_dask.stages.similarity_views import Similarities, read_similarity, similarity_parts
from ips2_dask.stages.views import known_vectors, read_pairs, restricted_tensor, solved_degrees, unit
from ips2_dask.store.base import Store
from ips2_dask.store.context import Context, part_name
from ips2_dask.store.integrity import Document, Facts
from ips2_dask.store.layout import STAGES
from ips2_dask.store.zarr_store import ZarrStore
from ips2_dask.typing import AnyArray, Float32, Float64, Int32
from ips2_dask.wording import option

if TYPE_CHECKING:
    from distributed import Client


MOST_ENTRIES = 1 << 28
"""Most entries of a similarity of all rows, in which equal rows repeat the entries of distinct ones."""

MOST_NAMES = 1 << 16
"""Most names of features that go with new samples to each task, for messages."""


class Neighbors(NamedTuple):
    """The graph: column 0 is the sample itself."""

    indices: Int32  # (m, k)
    distances: NDArray[np.floating]  # (m, k) in the units of the (scaled) data; float64 where float32 can't hold them


class Run:
    """The results of a finished run.

    Parameters
    ----------
    store : Store
    manifest : dict
    keep : object, optional
        Something that must live as long as the run, such as its temporary folder.
    """

    def __init__(self, store: Store, manifest: Document, keep: object = None) -> None:
        self._store, self.manifest, self._keep = store, manifest, keep
        self.params = Params.of_manifest(manifest["params"])
        self._context = Context(
            store,
            self.params,
            tuple(manifest["bounds"]),
            manifest["input"]["shape"][1],
            Choices(**manifest["choices"]),
            generation=manifest["generation"],
        )
        self._context.folders |= manifest.get("beside", {})
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
        return self._rows_of(label_results.by_row(self._context, "labels"))

    @cached_property
    def certainty(self) -> Float32:
        """How sure each sample's cluster is, 0 to 1: its own cluster's share of `shares`, (m,) float32.

        NaN for a row that was left out.
        """
        self._check_stored(label_results.first_row_part(self._context), "certainty")
        return self._rows_of(label_results.by_row(self._context, "certainty"))

    def shares(self) -> Float32:
        """Each cluster's share of a sample: (m, c) float32, rows of sum 1.

        That of the ends of a random walk on the fused similarity, of `kernels.rounding.WALK` steps from the sample. For
        nearly all samples the largest share is that of their own cluster.
        """
        self._check_stored(f"shares-{part_name(0)}", "shares")
        return self._context.by_row(label_results.of_all(self._context, "shares"))

    @cached_property
    def left_out(self) -> NDArray[np.bool_] | None:
        """Samples outside the tree of density, whose labels come from their neighbours: (m,) bool; None for k-means.

        Of more samples than a tree is built on, those that were not drawn are not marked.
        """
        if "left_out" not in self._arrays(label_results.first_row_part(self._context)):
            return None
        return self._rows_of(label_results.by_row(self._context, "left_out")).astype(np.bool_)

    def iter_labels(self, rows: int = BLOCK_ROWS) -> Iterator[LabelBlock]:
        """Labels, certainty and `left_out` in blocks of rows, in the order of the input; no array of all rows is read.

        Parameters
        ----------
        rows : int
            Rows of a block, at most.

        Yields
        ------
        LabelBlock
            ``first``, the number of its first row (among those of `rows`, for a `clustered` run), and ``labels``,
            ``certainty`` and ``left_out`` of its rows; None for what the run does not keep.

        Raises
        ------
        BadInput
            Where ``rows`` is less than 1.

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
        stored = self._arrays(label_results.first_row_part(self._context))
        for block in label_results.row_blocks(self._context, rows):
            yield block._replace(
                certainty=block.certainty if "certainty" in stored else None,
                left_out=block.left_out if "left_out" in stored else None,
            )

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Rows of the input in each cluster: (c,), without those that were left out; read by blocks."""
        sizes = np.zeros(0, np.int64)
        for block in self.iter_labels():
            counts = np.bincount(block.labels[block.labels >= 0], minlength=len(sizes))
            counts[: len(sizes)] += sizes
            sizes = counts
        return sizes

    @property
    def n_rows(self) -> int:
        """Rows that `labels` has: those of the input, or of `clustered` those that were clustered."""
        dropped = _n_dropped(self._context.facts["ingest"]) if self._context.clustered_only else 0
        return int(self.manifest["input"]["shape"][0]) - dropped

    @property
    def features(self) -> FittedFeatures | None:
        """How the input's columns became features, which new samples must have too; None where it was taken as it is.

        It holds the columns that were taken, the categories of each column of ``one_hot``, and what is done about
        missing values.
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
        folder = self.manifest.get("beside", {}).get(side_inputs.FEATURE_NAMES)
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

    @cached_property
    def dropped(self) -> NDArray[np.integer]:
        """Rows of the input that were left out for a missing value, ascending: (n,)."""
        if self._context.clustered_only or not _n_dropped(self._context.facts["ingest"]):
            return np.empty(0, np.int64)
        return np.flatnonzero(self._context.distinct_places() < 0)

    @cached_property
    def rows(self) -> NDArray[np.integer]:
        """The row of the input that each entry of `labels` is of: all of them, or of `clustered` those it has."""
        if self._context.clustered_only:
            return self._context.clustered_rows()
        return np.arange(self.manifest["input"]["shape"][0])

    @cached_property
    def clustered(self) -> Run:
        """This run as if its input held only the rows that were clustered; the run itself if no row was left out.

        Labels, places and similarities are those of these rows, and rows are numbered among them; `rows` says which of
        the input's they are.
        """
        if not len(self.dropped):
            return self
        run = Run(self._store, self.manifest, self._keep)
        run._context.clustered_only = True
        return run

    def _rows_of(self, values: AnyArray) -> AnyArray:
        """Stored values of each row of the input, restricted to the clustered rows for a `clustered` view."""
        return values[self.rows] if self._context.clustered_only else np.array(values)

    def _arrays(self, part: str) -> set[str]:
        """Names of a part's arrays in the label stage."""
        receipt = self._context.receipt("label", part)
        return set() if receipt is None else set(receipt["arrays"])

    def _check_stored(self, part: str, name: str) -> None:
        """Refuse a run of an earlier version that lacks an array of the label stage."""
        if name not in self._arrays(part):
            raise lacks(self._store, name)

    def cut(self, n_clusters: int) -> Int32:
        """Labels of another number of clusters, cut from the stored tree of density: (m,) int32; nothing is solved.

        What the cut leaves out gets its label from the fused similarity of this run, as it does in `labels`.

        Raises
        ------
        BadInput
            Where the run has no tree (``assign_labels="kmeans"``), no smallest size of a cluster gives so many, or the
            run is in chunks and has more than `cuts.MOST_SAMPLES` samples, whose similarity this process would read.
        """
        return cut_clusters(self._context, n_clusters)

    @cached_property
    def layers(self) -> Layers:
        """The cuts of the stored tree of density that persist, coarse to fine, each with a label for every sample.

        As the smallest size of a cluster grows, the leaves of the tree stay the same for a while and then become fewer.
        A layer is such a cut whose stability is not exceeded by its neighbours'; `ips2_dask.kernels.layers.layers` has
        the rule. There are at most six, of 2 to 50 clusters. Each `Layer` has

        - ``n_clusters``, and ``labels`` (m,) int32 by first sample, as of `cut`;
        - ``stability``: ``persistence``, which is from 0 to 1, times ``span``, the logarithm of the range of smallest
          sizes that gives the layer; ``smallest`` is the least of them;
        - ``sizes`` (n_clusters,) int64 and ``each`` (n_clusters,) float64: rows and persistence of each cluster;
        - ``splits``: for each cluster its parts in the next finer layer with their shares, the largest first.

        The tree is that of the most columns of the embedding, c + 8 unless ``n_components`` says otherwise, so layers
        of many more clusters than c are told apart only by a run with a larger ``n_components``. Groups between which U
        has no similarity are all equally far from each other in the embedding: a hierarchy above the connected
        components of U is not seen. Nothing is solved or stored.

        Raises
        ------
        BadInput
            Where the run has no tree, or is in chunks and too large, as of `cut`.

        Examples
        --------
        >>> from sklearn.datasets import make_blobs
        >>> from ips2_dask import Params, run
        >>> X, _ = make_blobs(300, 8, centers=3, random_state=5)
        >>> [layer.n_clusters for layer in run(X, Params(n_clusters=3)).layers]
        [3]
        """
        return find_layers(self._context)

    @cached_property
    def sample_names(self) -> NDArray[np.str_] | None:
        """Names of the samples, where the input had names that are not a plain range: (m,)."""
        folder = self.manifest.get("beside", {}).get(side_inputs.NAMES)
        return None if folder is None else self._rows_of(side_inputs.read_names(self._store, folder))

    def names_between(self, low: int, high: int) -> NDArray[np.str_] | None:
        """The `sample_names` of rows low .. high - 1, read alone: (high - low,); None where the input had none."""
        folder = self.manifest.get("beside", {}).get(side_inputs.NAMES)
        if folder is None:
            return None
        if not self._context.clustered_only:
            return side_inputs.read_names(self._store, folder, low, high)
        rows = self.rows[low:high]
        if not len(rows):
            return np.empty(0, np.str_)
        return side_inputs.read_names(self._store, folder, int(rows[0]), int(rows[-1]) + 1)[rows - rows[0]]

    def write_labels(self, path: str | Path, input: str | Path | None = None) -> Path:  # noqa: A002  the user's word
        """Write names and labels to a .csv or .parquet file, or results into a copy of an .h5ad; the file's path.

        See `ips2_dask.runs.export.write_labels` for what each format gets.
        """
        from ips2_dask.runs.export import write_labels  # noqa: PLC0415  h5py is needed by nothing else here

        return write_labels(self, path, input)

    @cached_property
    def distinct(self) -> NDArray[np.integer]:
        """Rows of the input that are samples, ascending: (n,). All that were not left out with ``duplicates="keep"``.

        With ``duplicates="merge"`` those that no earlier row equals: the rows that equal a sample have its label, its
        certainty and its place in the embedding.
        """
        if not self._context.merged:
            return np.arange(self.manifest["input"]["shape"][0])
        return np.sort(np.asarray(self._order))

    @cached_property
    def first_rows(self) -> NDArray[np.integer]:
        """The first row that equals each row, its own where there is none before it, -1 for one left out: (m,)."""
        if not self._context.merged:
            return self.distinct
        return self._context.by_row(np.asarray(self._order))

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
        graph = Neighbors(
            self._context.by_row(order[indices]).astype(np.int32), self._in_units(self._context.by_row(distances))
        )
        own = np.arange(len(graph.indices))
        graph.indices[:, 0] = np.where(graph.indices[:, 0] < 0, -1, own)
        return graph

    @property
    def unit(self) -> float:
        """The power of two that the centred and scaled samples were divided by, so that any unit fits into float32.

        It makes their root mean squared distance from the centre 32 to 64; ``epsilon`` is in this unit. 1.0 for
        metrics whose distances have none, and for runs of earlier versions.
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
        """R, the unfolded tensor on unordered pairs: CSR (P, P) float32, each entry once.

        See docs/method.md, The restricted basis.

        Raises
        ------
        BadInput
            For a decomposable run, which never builds it.
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
        components = facts["eigen"].get("components", facts["assemble"]["components"])
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
    def eigenvectors(self) -> NDArray[np.floating]:
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
            parts.append(pair_rows.vectors(self._context, b, pairs[low:high], root[low:high], n)(slice(None)))
        return self._by_pair(np.concatenate([trivial.leading(c), np.concatenate(parts)], axis=1)[:, :c])

    def similarity(self, kind: str = "fused", *, distinct: bool = False) -> sp.csr_array | NDArray[np.floating]:
        """``pairwise`` S, ``high_order`` V or ``fused`` U: dense (m, m) where all pairs were kept, else CSR (m, m).

        Parameters
        ----------
        kind : {"fused", "pairwise", "high_order"}
        distinct : bool
            Whether rows and columns are those of `distinct` instead of all rows of the input; equal rows are as similar
            to each other as each is to itself, and rows that were left out to none.

        Raises
        ------
        BadInput
            Where a matrix of all rows would have more than 2^28 entries, because of equal rows.
        """
        if kind not in ("pairwise", "high_order", "fused"):
            raise BadInput(
                "kind",
                repr(kind),
                "pairwise, high_order or fused",
                "no such similarity is stored",
                "choose one of them",
            )
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
            entries = int(
                (copies[np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))] * copies[matrix.indices]).sum()
            )
        if entries > MOST_ENTRIES:
            raise BadInput(
                "similarity",
                f"{entries:,} entries among {len(place):,} rows, of which {matrix.shape[0]:,} are distinct",
                f"at most {MOST_ENTRIES:,}",
                "it would hardly fit into memory",
                "ask for similarity(..., distinct=True)",
            )

    def iter_similarities(self) -> Iterator[Similarities]:
        """S, V and U of every stored pair of two samples, each pair once, in parts of bounded size."""
        return similarity_parts(self._context)

    @property
    def choice(self) -> dict[str, Any] | None:
        """Why there are as many clusters, where that was chosen: eigenvalues, relative gaps, candidates; else None."""
        choice: dict[str, Any] | None = self.manifest.get("choice")
        return choice

    @cached_property
    def embedding(self) -> Float64 | None:
        """The spectral embedding, rows of length 1: (m, columns) float32; None for ``embedding='none'``."""
        if self._context.receipt("label", "embedding") is None:
            return None
        return self._context.by_row(np.array(label_results.of_all(self._context, "embedding")))

    @cached_property
    def layout(self) -> Layout:
        """The samples in the plane, for pictures: ``points`` (n, 2) float32, ``samples`` (n,) int64, ``method``.

        With umap-learn (the extra ``layout``) it is UMAP's optimiser on the fused similarity U itself, started from
        the embedding. Of more than 100,000 samples so many are drawn by their row numbers: the edges of U among them
        would be too few to hold together, so that UMAP makes a graph of their rows of the embedding, which are read by
        partition; ``source`` says which of the two it was. Without umap-learn it is scikit-learn's t-SNE of the
        embedding, of at most 5,000 samples. Where no embedding is kept, eigenvectors of U stand for it.

        ``samples`` are rows of the input, ascending, and of equal rows the first. The same run gives the same bits
        with the same versions on one machine, whatever the partitions of a graph that is not sharded; rows in another
        order give another layout.

        Raises
        ------
        BadInput
            Where there are more than 100,000 samples and no embedding.

        Examples
        --------
        >>> from sklearn.datasets import make_blobs
        >>> from ips2_dask import Params, run
        >>> X, _ = make_blobs(60, centers=2, random_state=0)
        >>> run(X, Params(n_clusters=2)).layout.points.shape
        (60, 2)
        """
        return layouts.lay_out(self._context)

    def layout_of_rows(self) -> Float32:
        """The `layout` of each row of the input, NaN for one that was not laid out: (m, 2) float32.

        Equal rows have the point of the first of them.
        """
        return layouts.of_rows(self._context, self.layout)

    def predict(
        self, X: Any, *, client: Client | None = None, handle_unknown: str = "error", text: TextFormat | None = None
    ) -> Int32:
        """Cluster of each new sample: that of its largest share, see `predict_proba`.

        A sample that equals a training sample has its label. Columns of X are found by the run's `feature_names`, in
        any order, and further ones are left out with an `IPS2Warning`; where the run or X has no names, they are
        taken by position. What was done to the run's columns (`features`) is done to those of X: the same columns,
        categories and medians.

        Parameters
        ----------
        X : whatever `ips2_dask.run` takes, with the features of the run
        client : distributed.Client, optional
            Whose workers predict, where the run has a directory that they share.
        handle_unknown : {"error", "ignore"}
            Whether a category that the run has not seen is refused, or is 0 in all features of its column, as by
            scikit-learn's ``OneHotEncoder``.
        text : TextFormat, optional
            How a text file is read; by default as the run's own input was (`text_format`).

        Returns
        -------
        (n,) int32
            -1 where a value is missing, if the run left such rows out.

        Raises
        ------
        BadInput
            Where X can't be used, lacks a column, or the run keeps nothing for new samples: ``embedding='rows'``, the
            metric ``precomputed``, a similarity that was given.
        """
        return self._predicted(X, client, handle_unknown, text).labels

    def predict_proba(
        self, X: Any, *, client: Client | None = None, handle_unknown: str = "error", text: TextFormat | None = None
    ) -> Float64:
        """Share of each cluster for each new sample: (n, c), rows of sum 1; parameters as of `predict`.

        It is the mean of the `shares` of its nearest training samples, weighted by 1 / d^2, so that it becomes a
        training sample's own as the sample approaches that one. Without an embedding clusters count as normal
        distributions of equal weight and variance around the mean rows of U. The largest share is that of the
        predicted cluster, unless a sample equals a training sample whose own label has not the largest share.
        """
        return self._predicted(X, client, handle_unknown, text).probabilities

    def transform(
        self, X: Any, *, client: Client | None = None, handle_unknown: str = "error", text: TextFormat | None = None
    ) -> Float64:
        """Nystrom extension of the embedding to new samples: (n, columns), rows of length 1; parameters of `predict`.

        Raises
        ------
        BadInput
            Also for ``embedding='none'``.
        """
        return self.coordinates(self._predicted(X, client, handle_unknown, text))

    def predictions(
        self, X: Any, *, client: Client | None = None, handle_unknown: str = "error", text: TextFormat | None = None
    ) -> Iterator[Predicted]:
        """Labels, probabilities and embedding of new samples block by block; parameters as of `predict`."""
        return blocks(self._context, self._opened(X, handle_unknown, text, client), client)

    def open_new(
        self,
        X: Any,
        *,
        labels_column: str | int | None = None,
        transpose: bool = False,
        handle_unknown: str = "error",
        text: TextFormat | None = None,
        client: Client | None = None,
    ) -> Source:
        """Open new samples, with the run's columns in its order; parameters as of `ips2_dask.run` and `predict`."""
        check_word("handle_unknown", handle_unknown, HANDLE_UNKNOWN)
        check_client(client)
        columns = dataclasses.replace(self.columns, handle_unknown=handle_unknown)
        as_run = self.text_format if text is None and is_text_file(X) else None
        try:
            source = open_source(
                X,
                labels_column=labels_column,
                transpose=transpose,
                features=columns,
                text=as_run or text,
                client=client,
            )
        except BadInput as fault:
            if as_run is None or not as_run.given:
                raise
            given = ", ".join(f"{name} ({option(name)})" for name in as_run.given)
            raise BadInput(
                fault.thing,
                fault.found,
                fault.allowed,
                fault.otherwise,
                f"{fault.remedy}; if it is not written as the run's input was, give {given} as of this file",
            ) from None
        return self._light(source) if self.features is None and isinstance(source, Table) else source

    def _opened(self, X: Any, handle_unknown: str, text: TextFormat | None, client: Client | None) -> Source:
        if not isinstance(X, Source):
            return self.open_new(X, handle_unknown=handle_unknown, text=text, client=client)
        own = None if self.feature_names is None else self.feature_names.tolist()
        made = self.features is not None and (X.feature_names is None or features_of(X) is not None)
        if made or X.feature_names == own:
            return X
        if isinstance(X, Table) and not isinstance(X, LazySource):
            return self._light(features_of_numbers(X, self.columns))
        if match_columns(X.name, self.columns, X.feature_names, X.shape[1]) != tuple(range(X.shape[1])):
            raise BadInput(
                X.name,
                "columns in another order than the run's",
                "the columns of the run in their order",
                "values of one feature would be taken for another's",
                "give the file or the object that it was made of",
            )
        return X

    def _light(self, source: Table) -> Table:
        """A source without the record that its columns are the run's, as each task of a cluster gets the source."""
        names = source.feature_names if self._context.n_features <= MOST_NAMES else None
        return dataclasses.replace(source, fitted=None, feature_names=names)

    def coordinates(self, found: Predicted) -> Float64:
        """The embedding of predicted samples; refused where the run has none."""
        if found.embedding is None:
            raise BadInput(
                "embedding",
                "'none'",
                "'spectral' for an embedding",
                "k-means on the rows of U gives no coordinates",
                "run it with embedding='spectral'",
            )
        return found.embedding

    def _predicted(self, X: Any, client: Client | None, handle_unknown: str, text: TextFormat | None) -> Predicted:
        return predict(self._context, self._opened(X, handle_unknown, text, client), client)

    @cached_property
    def known_labels(self) -> Int32 | None:
        """Codes of the known labels that came with the input, or None: (m,)."""
        if not known_labels.are_known(self._context):
            return None
        return self._rows_of(known_labels.read_codes(self._context))

    def known_table(self) -> sp.csr_array | None:
        """How many clustered rows of each known class are in each cluster: CSR (classes, c) int64, counted by blocks.

        None where no known labels came with the input.
        """
        if not known_labels.are_known(self._context):
            return None
        table, c = sp.csr_array((0, self.params.n_clusters), dtype=np.int64), self.params.n_clusters
        inner = dataclasses.replace(self._context, clustered_only=False)
        for block in label_results.row_blocks(inner):
            known = known_labels.read_codes(inner, block.first, block.first + len(block.labels))
            own = block.labels >= 0
            n = max(table.shape[0], int(known.max(initial=-1)) + 1)
            table.resize((n, c))
            ones = np.ones(int(own.sum()), np.int64)
            table = sp.csr_array(table + sp.csr_array((ones, (known[own], block.labels[own])), shape=(n, c)))
        return table

    def report(self) -> dict[str, Any]:
        """Sizes, timings, peak memory, recall, residuals, components, promises and warnings, as plain values.

        ``roundings`` are the ways in which labels were looked for: columns of the embedding, clusters, normalised cut,
        the share that a density left out, and which of them was chosen. Of each stage it says whether it was
        ``computed``, ``computed again`` or ``reused``, and why. Of each promise it says what was wanted, what was
        found, and whether it was kept. ``missing`` says what was done about missing values, how many there were and in
        how many rows; ``dropped`` how many rows were left out for them.
        """
        facts = self._context.facts
        m, f = self.manifest["input"]["shape"]
        stages = self.manifest["stages"]
        return {
            "m": m,
            "distinct": facts["ingest"].get("bounds", [m])[-1],
            "dropped": _n_dropped(facts["ingest"]),
            "missing": facts["ingest"].get("missing"),
            "f": f,
            "k": self.params.n_neighbors,
            "c": self.params.n_clusters,
            "P": facts["tensor"]["pair_offsets"][-1],
            "nnz": facts["tensor"]["nnz"],
            "partitions": self._context.n_partitions,
            "unit": self.unit,
            "stages": [{name: s[name] for name in ("name", "seconds", "skipped", "state", "why")} for s in stages],
            "peak_rss_bytes": max(s["peak_rss_bytes"] for s in stages),
            "eigenvalues": self.eigenvalues.tolist(),
            "residual_max": facts["eigen"]["residual_max"],
            "gap": self.gap,
            "products": facts["eigen"]["products"],
            "verdict": facts["eigen"]["verdict"],
            "components": facts["assemble"]["components"],
            "fused_components": facts["label"]["u_components"],
            "islands": {
                "pairs": facts["eigen"].get("islands", 0),
                "fused": 0,
                "rows": 0,
                "largest": 0,
                **facts["label"].get("islands", {}),
            },
            "roundings": facts["label"].get("roundings", []),
            "builder": facts["neighbors"]["builder"],
            "recall": facts["neighbors"]["recall"],
            "searched_exactly": facts["neighbors"].get("searched_exactly", False),
            "run_dir": self.path,
            "promises": quality_checks(self.params, facts),
            "choice": self.choice,
            "warnings": [
                *((self.choice or {}).get("warnings", [])),
                *(w for s in stages for w in s["facts"].get("warnings", [])),
            ],
        }

    def _refuse_decomposable(self, what: str) -> None:
        if self.params.tensor == "decomposable":
            raise BadInput(
                what,
                "a decomposable run",
                "an indecomposable one",
                "a tensor of m^4 entries would be built that Theorem 3.1 makes needless",
                "use ips2_dask.explicit.tensor_similarity(S, kind='decomposable') on the S of few samples",
            )


def _n_dropped(facts: Facts) -> int:
    """Rows that the ingest left out for missing values."""
    missing = facts.get("missing") or {"rule": "refuse"}
    return int(missing["rows"]) if missing["rule"] == "drop" else 0


def open_run(path: str | Path) -> Run:
    """Open a run directory.

    Parameters
    ----------
    path : path or URL

    Raises
    ------
    BadInput
        Where there is no run, an unfinished one, or one of another format.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.datasets import make_blobs
    >>> from ips2_dask import Params, open_run, run
    >>> X, _ = make_blobs(60, centers=2, random_state=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = run(X, Params(n_clusters=2), store=folder + "/run")
    ...     found = open_run(folder + "/run")
    ...     print(found.neighbors.indices.shape, found.similarity("fused").shape)
    ...     print(found.write_labels(folder + "/labels.csv").name)
    (60, 5) (60, 60)
    labels.csv
    """
    store = ZarrStore(path)
    manifest = read_manifest(store)
    if manifest.get("finished") is None:
        done = ", ".join(s["name"] for s in manifest["stages"]) or "none"
        raise BadInput(
            str(path),
            f"an unfinished run (stages done: {done})",
            "a finished run",
            "results would be missing",
            "repeat the `ips2 run` or the call that made it, which continues it",
        )
    return Run(store, manifest)
