"""A finished run, opened: its results, and what follows from them, predictions, cuts, layers, a layout, a report."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ips2_dask.errors import BadInput
from ips2_dask.params import LEAST_RECALL, Params
from ips2_dask.readers import Source
from ips2_dask.readers.features import TextFormat
from ips2_dask.runs import export, layers, layout, predict
from ips2_dask.runs.layers import Layers
from ips2_dask.runs.layout import Layout
from ips2_dask.runs.maintenance import read_manifest
from ips2_dask.runs.predict import Predicted
from ips2_dask.runs.results import Results
from ips2_dask.store.zarr_store import ZarrStore
from ips2_dask.typing import Float32, Float64, Int32

if TYPE_CHECKING:
    from distributed import Client


class Run(Results):
    """The results of a finished run, and what follows from them."""

    def cut(self, n_clusters: int) -> Int32:
        """Labels of another number of clusters, cut from the stored tree of density: (m,) int32; nothing is solved.

        What the cut leaves out gets its label from the fused similarity of this run, as it does in `labels`.

        Raises
        ------
        BadInput
            Where the run has no tree (``assign_labels="kmeans"``), no smallest size of a cluster gives so many, or the
            run is in chunks and has more than 2,000,000 samples, whose similarity this process would read.
        """
        return layers.cut_clusters(self._context, n_clusters)

    @cached_property
    def layers(self) -> Layers:
        """The cuts of the stored tree of density that persist, coarse to fine, each with a label for every sample.

        There are at most six, of 2 to 50 clusters; docs/labels.md has the rule and its limits, `Layer` what each one
        has. Nothing is solved or stored.

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
        return layers.find_layers(self._context)

    @cached_property
    def layout(self) -> Layout:
        """The samples in the plane, for pictures: ``points`` (n, 2) float32, ``samples`` (n,) int64, ``method``.

        With umap-learn (the extra ``layout``) it is UMAP's optimiser on the fused similarity U itself, started from
        the embedding. Of more than 100,000 samples so many are drawn, and UMAP makes a graph of their rows of the
        embedding; ``source`` says which of the two it was. Without umap-learn it is scikit-learn's t-SNE of the
        embedding, of at most 5,000 samples. Where no embedding is kept, eigenvectors of U stand for it.

        ``samples`` are rows of the input, ascending, and of equal rows the first. The same run gives the same bits
        with the same versions on one machine. More than 100,000 samples without an embedding are refused.

        Examples
        --------
        >>> from sklearn.datasets import make_blobs
        >>> from ips2_dask import Params, run
        >>> X, _ = make_blobs(60, centers=2, random_state=0)
        >>> run(X, Params(n_clusters=2)).layout.points.shape
        (60, 2)
        """
        return layout.lay_out(self._context)

    def layout_of_rows(self) -> Float32:
        """The `layout` of each row of the input, NaN for one that was not laid out: (m, 2) float32.

        Equal rows have the point of the first of them.
        """
        return layout.of_rows(self._context, self.layout)

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
            Where X can't be used, lacks a column, or the run keeps nothing for new samples: the metric
            ``precomputed``, a similarity that was given.
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

        Where the run has no embedding it is refused.
        """
        return self.coordinates(self._predicted(X, client, handle_unknown, text))

    def predictions(
        self, X: Any, *, client: Client | None = None, handle_unknown: str = "error", text: TextFormat | None = None
    ) -> Iterator[Predicted]:
        """Labels, probabilities and embedding of new samples block by block; parameters as of `predict`."""
        return predict.blocks(self._context, predict.opened(self, X, handle_unknown, text, client), client)

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
        return predict.open_new(self, X, labels_column, transpose, handle_unknown, text, client)

    def coordinates(self, found: Predicted) -> Float64:
        """The embedding of predicted samples; refused where the run has none."""
        if found.embedding is None:
            allowed, why = "'spectral' for an embedding", "k-means on the rows of U gives no coordinates"
            raise BadInput("embedding", "'none'", allowed, why, "run it with embedding='spectral'")
        return found.embedding

    def _predicted(self, X: Any, client: Client | None, handle_unknown: str, text: TextFormat | None) -> Predicted:
        return predict.predict(self._context, predict.opened(self, X, handle_unknown, text, client), client)

    def write_labels(self, path: str | Path, input: str | Path | None = None) -> Path:  # noqa: A002  the user's word
        """Write names and labels to a .csv or .parquet file, or results into a copy of an .h5ad; the file's path.

        See `ips2_dask.runs.export.write_labels` for what each format gets.
        """
        return export.write_labels(self, path, input)

    def report(self) -> dict[str, Any]:
        """Sizes, timings, peak memory, recall, residuals, components, promises and warnings, as plain values.

        ``roundings`` are the ways in which labels were looked for: columns of the embedding, clusters, normalised cut,
        the share that a density left out, and which of them was chosen. Of each stage it says whether it was
        ``computed``, ``computed again`` or ``reused``, and why. Of each promise it says what was wanted, what was
        found, and whether it was kept. ``missing`` says what was done about missing values, how many there were and in
        how many rows; ``dropped`` how many rows were left out for them.
        """
        facts, params, stages = self._context.facts, self.params, self.manifest["stages"]
        ingest, neighbors, tensor = facts["ingest"], facts["neighbors"], facts["tensor"]
        pairs, eigen, label = facts["assemble"], facts["eigen"], facts["label"]
        (m, f), missing = self.manifest["input"]["shape"], ingest.get("missing")
        islands = {"pairs": eigen.get("islands", 0), "fused": 0, "rows": 0, "largest": 0}
        warnings = [w for of in (self.choice or {}, *facts.values()) for w in of.get("warnings", [])]
        return {
            "m": m,
            "distinct": ingest.get("bounds", [m])[-1],
            "dropped": missing["rows"] if missing is not None and missing["rule"] == "drop" else 0,
            "missing": missing,
            "f": f,
            "k": params.n_neighbors,
            "c": params.n_clusters,
            "P": tensor["pair_offsets"][-1],
            "nnz": tensor["nnz"],
            "partitions": self._context.n_partitions,
            "unit": self.unit,
            "stages": [{name: s[name] for name in ("name", "seconds", "skipped", "state", "why")} for s in stages],
            "peak_rss_bytes": max(s["peak_rss_bytes"] for s in stages),
            "eigenvalues": self.eigenvalues.tolist(),
            "residual_max": eigen["residual_max"],
            "gap": self.gap,
            "products": eigen["products"],
            "verdict": eigen["verdict"],
            "components": pairs["components"],
            "fused_components": label["u_components"],
            "islands": islands | label.get("islands", {}),
            "roundings": label.get("roundings", []),
            "builder": neighbors["builder"],
            "recall": neighbors["recall"],
            "searched_exactly": neighbors.get("searched_exactly", False),
            "run_dir": self.path,
            "promises": quality_checks(params, facts),
            "choice": self.choice,
            "warnings": warnings,
        }


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
        found, allowed, why = f"an unfinished run (stages done: {done})", "a finished run", "results would be missing"
        raise BadInput(
            str(path), found, allowed, why, "repeat the `ips2 run` or the call that made it, which continues it"
        )
    return Run(store, manifest)


# ---- the report


def quality_checks(params: Params, facts: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The promises of a run, from the facts of each stage, and which of them were ``kept``.

    Of each ``promise`` what was ``found`` shall be at most, or at least (``rule``), what was ``wanted``.
    """
    c, label, eigen, pairs = params.n_sought, facts["label"], facts["eigen"], facts["assemble"]
    stop = eigen["stop"]  # the measure by which the solve ended
    checks: list[tuple[str, str, float, float]] = [
        ("recall of the sample graph", "at least", LEAST_RECALL, facts["neighbors"]["recall"]),
        (f"eigenpairs: {stop['measure']}", "at most", stop["wanted"], stop["found"]),
        ("eigenpairs", "at least", c, len(eigen["eigenvalues"])),
        ("large components of the pairs", "at most", c, eigen.get("components", pairs["components"])),
        ("pairs whose entries are all zero in float32", "at most", 0, pairs["empty"]),
    ]
    if label["u_components"] is not None:
        large, stop = label.get("large", label["u_components"]), label["embedding_stop"]
        checks.append(("large components of the fused similarity", "at most", c, large))
        checks.append((f"embedding: {stop['measure']}", "at most", stop["wanted"], stop["found"]))
    checks.append(("clusters", "at least", params.n_clusters, label["clusters"]))
    return [
        {
            "promise": promise,
            "rule": rule,
            "wanted": wanted,
            "found": found,
            "kept": bool(found >= wanted if rule == "at least" else found <= wanted),
        }
        for promise, rule, wanted, found in checks
    ]
