# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Cells in an AnnData, beside Leiden
#
# `ips2_dask.scanpy.ips2` clusters the cells of an AnnData as scanpy's own tools do: it reads `obsm["X_pca"]` and writes
# labels, certainty, embedding, similarity and facts into the object, where scanpy's plots find them. Nothing says how
# many clusters there are.
#
# The cells are those that scanpy ships: 700 of 68,000 blood cells (Zheng et al. 2017), with the types that the authors
# assigned by comparison with sorted cells (`bulk_labels`). They score the labels below and choose nothing. This
# notebook needs scanpy: `pip install "ips2-dask[anndata,graph,layout]" scanpy`.

# %% tags=["parameters"]
n_clusters = "auto"  # or a number
random_state = 0

# %%
import warnings

import matplotlib.pyplot as plt
import pandas as pd

warnings.filterwarnings("ignore", category=FutureWarning)  # of scanpy's dependencies
import scanpy as sc

from ips2_dask.metrics import scores
from ips2_dask.scanpy import ips2

adata = sc.datasets.pbmc68k_reduced()
adata

# %% [markdown]
# ## Cluster
#
# One call; `layout=True` also lays the cells out in the plane by the fused similarity. Then scanpy's Leiden with its
# default resolution, on neighbours in the same principal components.

# %%
ips2(adata, n_clusters, layout=True, random_state=random_state)
sc.pp.neighbors(adata, use_rep="X_pca", random_state=random_state)
sc.tl.leiden(adata, flavor="igraph", n_iterations=2, random_state=random_state)
adata.obs[["ips2", "ips2_certainty", "leiden"]].describe(include="all").round(2)

# %% [markdown]
# ## Which labels are nearer to the known types?

# %%
known = adata.obs["bulk_labels"].cat.codes.to_numpy()
found = {name: adata.obs[name].cat.codes.to_numpy() for name in ("ips2", "leiden")}
table = pd.DataFrame({name: scores(known, labels) for name, labels in found.items()}).T
table.insert(0, "clusters", [labels.max() + 1 for labels in found.values()])
table.round(3)

# %% [markdown]
# IPS2 finds few broad groups, Leiden finer communities. The types overlap: the table of clusters and types below shows
# several kinds of T cells in one cluster. Why so many? The candidates with their evidence, the chosen one first; a given
# number, `ips2(adata, 10)`, takes any other.

# %%
evidence = adata.uns["ips2"].get("choice", {})
pd.DataFrame({name: evidence[name] for name in ("n_clusters", "persistence", "span", "score") if name in evidence}).round(2)

# %% [markdown]
# ## Scanpy's plots
#
# `sc.pl.embedding` draws any coordinates in `obsm`: here those of the fused similarity.

# %%
sc.pl.embedding(adata, basis="X_ips2_layout", color=["ips2", "leiden", "bulk_labels", "ips2_certainty"], ncols=2,
                wspace=0.55, show=False)
plt.show()

# %% [markdown]
# Which genes tell the clusters apart: scanpy's ranking, for the labels that were found.

# %%
sc.tl.dendrogram(adata, "ips2")
sc.tl.rank_genes_groups(adata, "ips2", method="t-test", use_raw=True)
sc.pl.rank_genes_groups_dotplot(adata, n_genes=4, show=False)
plt.show()

# %% [markdown]
# ## Which cluster is which type?

# %%
pd.crosstab(adata.obs["bulk_labels"], adata.obs["ips2"])

# %% [markdown]
# ## What was written
#
# Everything stays in the file when the object is written as `.h5ad`. A backed file of more cells than fit into memory
# is read by ranges of rows, and gets the results if it is open for writing: `sc.read_h5ad("cells.h5ad", backed="r+")`.

# %%
adata.uns["ips2"]["params"]
