"""Clusters of an AnnData's cells, written into it, as functions of scanpy do; anndata is needed, scanpy is not."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from scipy import sparse

from ips2_dask.errors import BadInput, IPS2Warning
from ips2_dask.fields import parse_bytes
from ips2_dask.params import Params, Resources
from ips2_dask.pipeline.run import run
from ips2_dask.readers import is_anndata, open_anndata_source
from ips2_dask.readers.faults import reading
from ips2_dask.readers.objects import REPRESENTATION
from ips2_dask.runs.h5ad import WRITTEN, anndata_io, names_of, old_results, own_results
from ips2_dask.runs.label_results import SAMPLE_COLUMNS
from ips2_dask.store.files import partial_file
from ips2_dask.typing import Int32

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

    Nothing that was there before is overwritten, but for the results of an earlier call with the same ``key_added``,
    all of which give way to the new ones.

    The X of a backed AnnData is read from its file by ranges of rows and never as a whole. Where that file is open for
    writing (``backed="r+"``) the results are written into it too: at the end, into a copy that takes its place, so that
    a call that fails leaves it as it was. A file that is open for reading stays as it is.

    Parameters
    ----------
    adata : AnnData
        (n, features) cells by features.
    n_clusters : int or "auto"
        c; "auto" chooses it by the density of the embedding, or takes as many as Leiden finds.
    use_rep : str, optional
        A key of ``obsm``, or ``"X"``. By default ``obsm["X_pca"]`` if there is one, else X.
    key_added : str
        The name under which results are written: printable, without a slash.
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
        - ``obsp[key_added + "_connectivities"]``: (n, n) CSR, the fused similarity U. Of equal cells each has the
          entries of the first one, with the first one of others, so that copies do not multiply them;
        - ``obsp[key_added + "_distances"]``: (n, n) CSR, the distances to the ``n_neighbors - 1`` nearest others;
        - ``uns[key_added]``: ``params``, ``versions``, ``facts``, ``warnings``, ``written`` (all these names), and,
          where c was chosen, ``choice``: the candidates with their evidence, the chosen one first. Keys and
          parameters are as of scanpy's ``pp.neighbors``, so that its functions (``tl.paga``, ``tl.umap``,
          ``tl.leiden``, ``tl.diffmap``) take the graph by ``neighbors_key=key_added``.

    Raises
    ------
    BadInput
        A ValueError, if the data or a parameter can't be used, or a name that would be written is taken; also where
        ``all_layers`` is asked for and the run has no tree of density.
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
        fault, why = f"something of type {type(adata).__name__}", "there would be nowhere to write"
        raise BadInput("adata", fault, "an AnnData", why, "use ips2_dask.run or IPS2 for other data")
    backed = bool(adata.isbacked)
    if copy and backed:
        fault, allowed = "True with a backed AnnData", "copy=False, or an AnnData in memory"
        raise BadInput("copy", fault, allowed, "its file would have to be copied", "give adata.copy(filename)")
    given = {"knn_graph": knn_graph, "similarity": similarity}
    matrices = {name: _pairs(adata, name, value) for name, value in given.items()}
    if similarity is not None:
        params = {"affinity": "precomputed", **params}
    file = Path(os.path.realpath(adata.filename)) if backed and adata.file._filemode != "r" else None
    _check_key(key_added)
    _check_apart(key_added, use_rep, knn_graph, similarity)
    old, stored = _check_names(adata, key_added), []
    if file is not None:
        _check_room(file)
        adata.file.close()
        with reading(str(file)), h5py.File(file, "r") as opened:  # which may have what the AnnData has no more
            stored = old_results(opened, "key_added", key_added, _other_key(key_added))
    source = open_anndata_source(adata, use_rep, layer)
    if layer is None and use_rep is None:  # by the name that scanpy has for what is clustered
        use_rep = REPRESENTATION if REPRESENTATION in adata.obsm else "X"
    chosen, limit = Params(n_clusters=n_clusters, random_state=random_state, **params), parse_bytes(memory_limit)
    found = run(source, chosen, Resources(memory_limit=limit), store=store, client=client, **matrices)
    for text in found.report()["warnings"]:
        warnings.warn(text, IPS2Warning, stacklevel=2)
    added = _results(found, key_added, adata.obs_names, use_rep, layer, layout)
    if all_layers:
        _add_layers(added, found, key_added, adata.obs_names)
    names = [f"{part}/{name}" for part, values in added.items() for name in values]
    added["uns"][key_added][WRITTEN] = np.array(names, dtype=object)
    if file is not None:
        adata.file.close()
        _write(file, added, set(stored).difference(names))
    if copy:
        adata = adata.copy()
    elif adata.is_view:  # as scanpy does it: writing into a view would warn of the copy that it makes
        adata._init_as_actual(adata.copy())
    for part, _, name in (place.partition("/") for place in old if place not in names):
        getattr(adata, part).pop(name)
    for part, values in added.items():
        for key, value in values.items():
            getattr(adata, part)[key] = value
    return adata if copy else None


def _check_key(key: object) -> None:
    """Raise ``BadInput`` for a key that an AnnData could not keep in a file, or that would hide what it keeps there."""
    if isinstance(key, str) and key.isprintable() and re.fullmatch(r"(?!__|_index$|\.*$)[^/]+", key):
        return
    allowed = "a printable name without a slash, that is not '_index', not dots alone, and does not begin with '__'"
    otherwise = "a file with such names could not be read back"
    raise BadInput("key_added", repr(key), allowed, otherwise, "give a name such as 'ips2'")


def _check_apart(key: str, use_rep: str | None, knn_graph: str | None, similarity: str | None) -> None:
    """Raise ``BadInput`` where results would replace what they are made from, now or at the next call."""
    read = {f"obsm/{use_rep}", f"obsm/{REPRESENTATION}", f"obsp/{knn_graph}", f"obsp/{similarity}"}
    for name in names_of(key):
        if name in read:
            part, _, name = name.partition("/")
            found = f"{key!r}, by which {part}[{name!r}] would be written"
            allowed = "a name that is not read from"
            why = "the next call would cluster what this one has written"
            raise BadInput("key_added", found, allowed, why, f"give another key, such as 'ips2_{key}'")


def _check_names(adata: Any, key: str) -> list[str]:
    """What an earlier call wrote by a key, as ``part/name``; raises ``BadInput`` where other things have its names."""
    about = adata.uns.get(key)
    there = {f"{part}/{name}" for part in ("obs", "obsm", "obsp", "uns") for name in getattr(adata, part)}
    there.add(f"obs/{adata.obs.index.name or '_index'}")
    written = np.ravel(about[WRITTEN]) if isinstance(about, Mapping) and WRITTEN in about else ()
    return own_results("key_added", key, there, written, _other_key(key))


def _other_key(key: str) -> str:
    return f"give another key, such as 'ips2_{key}', or remove or rename what is there"


def _check_room(file: Path) -> None:
    """Raise ``BadInput`` where there is no place for the copy of a file that results are written into."""
    size, free = file.stat().st_size, shutil.disk_usage(file.parent).free
    if free > size and os.access(file.parent, os.W_OK):
        return
    found = f"{free >> 20} MiB free beside it" if free <= size else "a folder that can't be written to"
    allowed = f"room for a copy of its {(size >> 20) + 1} MiB, which takes its place at the end"
    why = "results could be written half"
    raise BadInput(
        str(file), found, allowed, why, "make room, or open it by backed='r', which leaves results in memory"
    )


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
    obs = {key: _clusters(found.labels, int(found.labels.max()) + 1, names)}
    for name in SAMPLE_COLUMNS:
        if getattr(found, name) is not None:
            obs[f"{key}_{name}"] = import_module("pandas").Series(getattr(found, name), index=names)
    U, n = sparse.csr_array(found.similarity("fused", distinct=True)), found.n_rows
    if len(found.distinct) < n:  # each copy has the entries of the first one, and those have one back
        U = U[np.searchsorted(found.distinct, found.first_rows)]
        U = sparse.csr_array((U.data, found.distinct[U.indices], U.indptr), shape=(n, n))
        U = U.maximum(U.T)
    connectivities, graph = sparse.csr_matrix(U), found.neighbors
    starts = np.arange(n + 1) * (graph.indices.shape[1] - 1)
    distances = sparse.csr_matrix((graph.distances[:, 1:].ravel(), graph.indices[:, 1:].ravel(), starts), shape=(n, n))
    report = found.report()
    chosen = {"use_rep": use_rep, "layer": layer, "method": "ips2", **found.params.as_dict()}
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
        "connectivities_key": f"{key}_connectivities",
        "distances_key": f"{key}_distances",
    }
    obsp = {f"{key}_connectivities": connectivities, f"{key}_distances": distances}
    return {"obs": obs, "obsm": obsm, "obsp": obsp, "uns": {key: about}}


def _clusters(labels: Int32, n: int, names: Any) -> Any:
    """Labels as a categorical column of the clusters "0" .. n - 1, of cells with these names."""
    pandas = import_module("pandas")  # which comes with anndata
    return pandas.Series(pandas.Categorical.from_codes(labels, list(map(str, range(n)))), index=names)


def _add_layers(added: Added, found: Run, key: str, names: Any) -> None:
    """Add the clusters of each layer, and what is known of the layers."""
    layers = found.layers
    for layer in layers:
        added["obs"][f"{key}_layer_{layer.n_clusters}"] = _clusters(layer.labels, layer.n_clusters, names)
    about: dict[str, Any] = {
        name: np.array([getattr(layer, name) for layer in layers])
        for name in ("n_clusters", "stability", "persistence")
    }
    about |= {f"each_{layer.n_clusters}": layer.each for layer in layers}
    added["uns"][key]["layers"] = about


def _write(path: Path, added: Added, old: Collection[str]) -> None:
    """Write what is added into an .h5ad, and take old results out of it; all of that, or nothing where it fails."""
    write_elem: Callable[[Any, str, Any], None] = anndata_io().write_elem
    try:
        with partial_file(path) as partial:
            shutil.copy(path, partial)
            with h5py.File(partial, "r+") as file:
                for place in old:
                    del file[place]
                for part, values in added.items():
                    group = file.require_group(part)
                    for key, value in values.items():
                        if part == "obs":  # a column
                            value = value.array if value.dtype == "category" else value.to_numpy()
                        write_elem(group, key, value)
                columns = [str(column) for column in file["obs"].attrs.get("column-order", [])]
                columns = [column for column in columns if f"obs/{column}" not in old]
                columns += [key for key in added["obs"] if key not in columns]
                file["obs"].attrs["column-order"] = np.array(columns, h5py.string_dtype("utf-8"))
    except OSError as error:
        found = f"a file that can't be written ({error.strerror or error})"
        why = "results would be written half; it stays as it was"
        remedy = "make room, or open it by backed='r'"
        raise BadInput(str(path), found, "a place with room for a copy of it", why, remedy) from None


def _evidence(choice: dict[str, Any] | None) -> Added:
    """Why there are as many clusters, as arrays with the chosen number first; nothing where it was given."""
    if choice is None or not choice["candidates"]:
        return {}
    evidence: dict[str, Any] = {"rule": choice["rule"], "considered": choice["considered"]}
    for name in ("n_clusters", "score", "persistence", "span"):
        if choice["candidates"][0][name] is not None:
            evidence[name] = np.array([one[name] for one in choice["candidates"]])
    return {"choice": evidence}
