"""Clusters of an AnnData's cells, written into it, as functions of scanpy do; anndata is needed, scanpy is not."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from scipy import sparse

from ips2_dask.errors import BadInput, IPS2Warning
from ips2_dask.params import MAX_CLUSTERS, Params, Resources, parse_bytes
from ips2_dask.pipeline.run import run
from ips2_dask.readers import is_anndata, open_anndata_source

if TYPE_CHECKING:
    from distributed import Client

    from ips2_dask.runs.run import Run

__all__ = ["ips2"]

Added = dict[str, dict[str, Any]]
"""What is added to an AnnData: by its parts ``obs``, ``obsm``, ``obsp`` and ``uns``, the value of each key."""

FACTS = ("recall", "P", "components", "fused_components", "residual_max", "partitions")
"""Entries of a run's report that are kept in ``uns``."""


def ips2(
    adata: Any,
    n_clusters: int | str = "auto",
    use_rep: str | None = None,
    key_added: str = "ips2",
    *,
    layer: str | None = None,
    knn_graph: str | None = None,
    similarity: str | None = None,
    layout: bool = False,
    all_layers: bool = False,
    random_state: int = 0,
    copy: bool = False,
    store: str | Path | None = None,
    client: Client | None = None,
    memory_limit: int | str | None = None,
    **params: Any,
) -> Any:
    """Cluster the cells of an AnnData, and write labels, certainty, embedding and similarity into it.

    The X of a backed AnnData is read from its file by ranges of rows and never as a whole. Where that file is open for
    writing (``backed="r+"``) the results are written into it too, and nothing else in it is touched; it must not be
    read by others meanwhile. A file that is open for reading stays as it is.

    Parameters
    ----------
    adata : AnnData
        (n, features) cells by features.
    n_clusters : int or "auto"
        c; "auto" chooses it by the density of the embedding, or takes as many as Leiden finds.
    use_rep : str, optional
        A key of ``obsm``, or ``"X"``. By default ``obsm["X_pca"]`` if there is one, else X.
    key_added : str
        The name under which results are written.
    layer : str, optional
        A key of ``layers``, in place of ``use_rep``.
    knn_graph : str, optional
        A key of ``obsp``, such as ``"distances"``: each row's entries are the candidates for its neighbours.
    similarity : str, optional
        A key of ``obsp``, such as ``"connectivities"``: it becomes the pairwise similarity S.
    layout : bool
        Whether to lay the cells out in the plane as well, see `Run.layout`: UMAP on the fused similarity with
        umap-learn (``pip install "ips2-dask[layout]"``), else t-SNE of the embedding.
    all_layers : bool
        Whether to write the clusters of each layer of `Run.layers` as well: the cuts of the tree of density that
        persist, from few clusters to many.
    random_state : int
    copy : bool
        Whether to return a copy with the results, and leave ``adata`` as it is.
    store : path or URL, optional
        Run directory; the same call goes on from it. None keeps the run in memory.
    client : distributed.Client, optional
        Whose workers compute.
    memory_limit : int or str, optional
        Bytes that a process may use, such as "4GiB".
    **params
        Of `ips2_dask.Params`: ``assign_labels="leiden"``, ``resolution``, ``n_neighbors``, ``metric`` and so on.

    Returns
    -------
    AnnData or None
        The copy if ``copy``. The AnnData has then

        - ``obs[key_added]``: categorical, the clusters "0", "1", ... by each one's first cell;
        - ``obs[key_added + "_certainty"]``: float32, 0 to 1, see `Run.certainty`;
        - ``obs[key_added + "_left_out"]``: bool, where labels are a density's: whether its tree left the cell out;
        - ``obs[key_added + "_layer_" + n]`` with ``all_layers``: categorical, the clusters of the layer that has n of
          them; ``uns[key_added]["layers"]`` has ``n_clusters``, ``stability`` and ``persistence``, (layers,) each, and
          of each layer ``each_n``, the persistence of its clusters, (n,);
        - ``obsm["X_" + key_added]``: (n, columns) float32, the spectral embedding, where there is one;
        - ``obsm["X_" + key_added + "_layout"]``: (n, 2) float32 with ``layout``, NaN for cells that were not laid out:
          above 100,000 cells (5,000 by t-SNE) only so many are. ``scanpy.pl.embedding`` draws it;
        - ``obsp[key_added + "_connectivities"]``: (n, n) CSR, the fused similarity U. Functions of scanpy that need no
          distances, such as ``tl.leiden``, take it by ``neighbors_key=key_added``. Equal cells have their entries at
          the first of them;
        - ``uns[key_added]``: ``params``, ``versions``, ``facts``, ``warnings``, the keys that scanpy looks up, and,
          where c was chosen, ``choice``: the candidates with their evidence, the chosen one first.

    Raises
    ------
    BadInput
        A ValueError, if the data or a parameter can't be used; also where ``all_layers`` is asked for and the run has
        no tree of density.
    Refused
        If the run would need more than ``memory_limit``.

    Examples
    --------
    >>> import anndata
    >>> from sklearn.datasets import make_blobs
    >>> from ips2_dask.scanpy import ips2
    >>> X, _ = make_blobs(90, centers=3, n_features=5, random_state=5)
    >>> adata = anndata.AnnData(X.astype("float32"))
    >>> ips2(adata, n_clusters=3)
    >>> adata.obs["ips2"].cat.categories.tolist()
    ['0', '1', '2']
    """
    if not is_anndata(adata):
        raise BadInput(
            "adata", f"something of type {type(adata).__name__}", "an AnnData", "there would be nowhere to write",
            "use ips2_dask.run or IPS2 for other data",
        )  # fmt: skip
    backed = bool(adata.isbacked)
    if copy and backed:
        raise BadInput(
            "copy", "True with a backed AnnData", "copy=False, or an AnnData in memory",
            "its file would have to be copied", "give adata.copy(filename)",
        )  # fmt: skip
    matrices = {
        "knn_graph": _pairs(adata, "knn_graph", knn_graph),
        "similarity": _pairs(adata, "similarity", similarity),
    }
    if similarity is not None:
        params = {"affinity": "precomputed", **params}
    number = {"max_clusters": MAX_CLUSTERS} if n_clusters == "auto" else {"n_clusters": n_clusters}
    params = {**number, **params}
    path, writes = (os.fspath(adata.filename), adata.file._filemode != "r") if backed else ("", False)
    source = open_anndata_source(adata, use_rep, layer)
    found = run(
        source,
        Params(**params, random_state=random_state),
        Resources(memory_limit=parse_bytes(memory_limit)),
        store=store,
        client=client,
        **matrices,
    )
    for text in found.report()["warnings"]:
        warnings.warn(text, IPS2Warning, stacklevel=2)
    added = _results(found, key_added, adata.obs_names, use_rep, layer, layout)
    if all_layers:
        _add_layers(added, found, key_added, adata.obs_names)
    if writes:
        adata.file.close()
        _write(path, added)
    if copy:
        adata = adata.copy()
    elif adata.is_view:  # as scanpy does it: writing into a view would warn of the copy that it makes
        adata._init_as_actual(adata.copy())
    for part, values in added.items():
        for key, value in values.items():
            getattr(adata, part)[key] = value
    return adata if copy else None


def _pairs(adata: Any, name: str, key: str | None) -> Any:
    """The (n, n) matrix of ``obsp`` that a parameter names, None where it names none."""
    if key is None:
        return None
    if key not in adata.obsp:
        there = ", ".join(map(repr, adata.obsp.keys())) or "none, as obsp is empty"
        raise BadInput(
            name, repr(key), there, "cells would be compared by nothing", "run scanpy.pp.neighbors, or leave it out"
        )
    return adata.obsp[key]


def _results(found: Run, key: str, names: Any, use_rep: str | None, layer: str | None, layout: bool) -> Added:
    """What a run adds to an AnnData of cells with these names."""
    pandas = import_module("pandas")  # which comes with anndata
    labels = found.labels
    categories = [str(cluster) for cluster in range(int(labels.max()) + 1)]
    obs: dict[str, Any] = {key: pandas.Series(pandas.Categorical.from_codes(labels, categories), index=names)}
    obs[f"{key}_certainty"] = pandas.Series(found.certainty, index=names)
    if found.left_out is not None:
        obs[f"{key}_left_out"] = pandas.Series(found.left_out, index=names)
    U, n = sparse.coo_array(found.similarity("fused", distinct=True)), found.n_rows
    i, j = (found.distinct[end] for end in U.coords)
    connectivities = sparse.csr_matrix((U.data, (i, j)), shape=(n, n))
    report = found.report()
    chosen = {"use_rep": use_rep, "layer": layer, **found.params.as_dict()}
    facts = {name: report[name] for name in FACTS} | {"eigenvalues": found.eigenvalues}
    facts |= {f"labels_{name}": value for one in report["roundings"] if one["chosen"] for name, value in one.items()}
    obsm: dict[str, Any] = {} if found.embedding is None else {f"X_{key}": found.embedding}
    if layout:
        obsm[f"X_{key}_layout"] = found.layout_of_rows()
        facts |= {"layout_method": found.layout.method, "layout_source": found.layout.source}
    about = {
        "params": {name: value for name, value in chosen.items() if value is not None},
        "versions": dict(found.manifest["versions"]),
        "facts": {name: value for name, value in facts.items() if value is not None},
        **_evidence(found.choice),
        "warnings": np.array(report["warnings"], dtype=object),
        # scanpy looks both up by neighbors_key=key, and many functions do without the matrix of distances
        "connectivities_key": f"{key}_connectivities",
        "distances_key": f"{key}_distances",
    }
    return {"obs": obs, "obsm": obsm, "obsp": {f"{key}_connectivities": connectivities}, "uns": {key: about}}


def _add_layers(added: Added, found: Run, key: str, names: Any) -> None:
    """Add the clusters of each layer, and what is known of the layers."""
    pandas = import_module("pandas")
    layers = found.layers
    for layer in layers:
        categories = [str(cluster) for cluster in range(layer.n_clusters)]
        values = pandas.Categorical.from_codes(layer.labels, categories)
        added["obs"][f"{key}_layer_{layer.n_clusters}"] = pandas.Series(values, index=names)
    about: dict[str, Any] = {
        name: np.array([getattr(layer, name) for layer in layers])
        for name in ("n_clusters", "stability", "persistence")
    }
    about |= {f"each_{layer.n_clusters}": layer.each for layer in layers}
    added["uns"][key]["layers"] = about


def _write(path: str, added: Added) -> None:
    """Write what is added into an .h5ad, where nothing else is touched but the list of the columns of obs."""
    write_elem = _writer()
    with h5py.File(path, "r+") as file:
        for part, values in added.items():
            group = file.require_group(part)
            for key, value in values.items():
                write_elem(group, key, value.array if part == "obs" and value.dtype == "category" else _plain(value))
        columns = [str(column) for column in file["obs"].attrs.get("column-order", [])]
        columns += [key for key in added["obs"] if key not in columns]
        file["obs"].attrs["column-order"] = np.array(columns, h5py.string_dtype("utf-8"))


def _plain(value: Any) -> Any:
    """A column's values as an array; anything else as it is."""
    return value.to_numpy() if hasattr(value, "to_numpy") else value


def _evidence(choice: dict[str, Any] | None) -> Added:
    """Why there are as many clusters, as arrays with the chosen number first; nothing where it was given."""
    if choice is None or not choice["candidates"]:
        return {}
    evidence: dict[str, Any] = {"rule": choice["rule"], "considered": choice["considered"]}
    for name in ("n_clusters", "score", "persistence", "span"):
        if choice["candidates"][0][name] is not None:
            evidence[name] = np.array([one[name] for one in choice["candidates"]])
    return {"choice": evidence}


def _writer() -> Callable[[Any, str, Any], None]:
    """anndata's function that writes a value into a group in place of what is there, by whichever name it has."""
    for name in ("anndata.io", "anndata.experimental"):
        try:
            module = import_module(name)
        except ModuleNotFoundError:  # before anndata 0.11
            continue
        found: Callable[[Any, str, Any], None] | None = getattr(module, "write_elem", None)
        if found is not None:
            return found
    raise BadInput(
        "anndata", "a version without write_elem", "anndata 0.10 or later", "results could not be written to the file",
        "run pip install 'ips2-dask[anndata]'",
    )  # fmt: skip
