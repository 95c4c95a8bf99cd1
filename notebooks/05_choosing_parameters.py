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
# # Choosing parameters
#
# Three numbers decide about a run: how many clusters (c), how large a neighbourhood is (k), and how sharply the
# tensor tells equal pairs from unequal ones (sigma); and, before all, by which **metric** samples are near, on which
# **scale**. Without known labels there is no single right answer, but there is evidence. This notebook collects it by
# the **density** of one run's embedding, and by **sweeps** over the numbers, and over metrics and scales.

# %% tags=["parameters"]
data = "digits"  # a name of ips2_dask.datasets, or a file
samples = 900  # a sample of so many; None takes all
clusters = [4, 6, 8, 9, 10, 11, 12, 14]
neighbors = [5, 10]
sigma = [0.2, 1.0]
resamples = 3

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from ips2_dask import Params, plots, run, sweep
from ips2_dask.datasets import load, names
from ips2_dask.readers import open_source

if data in names():
    X, known = load(data).X, load(data).labels
else:
    X, known = np.concatenate(list(open_source(data).blocks(65_536))), None
if samples is not None and samples < len(X):
    chosen = np.sort(np.random.default_rng(0).choice(len(X), samples, replace=False))
    X, known = X[chosen], None if known is None else known[chosen]
folder = Path(tempfile.mkdtemp())
X.shape

# %% [markdown]
# ## One run: the density of the embedding
#
# `--clusters auto` embeds the fused similarity for the largest number of clusters considered, cuts trees of the
# embedding's density into each number of clusters, and takes one that separates well (*persistence*) and stays for a
# wide range of smallest sizes of a cluster (*span*). It costs about as much as one run. Its weakness: where clusters
# lie at several scales, two numbers may be nearly as good; the table has the runners-up.

# %%
auto = run(X, Params(max_clusters=max(clusters) + 4))
pd.DataFrame(auto.choice["candidates"]).round(3)

# %%
candidates = pd.DataFrame(auto.choice["candidates"])
plt.figure(figsize=(7, 2.8))
plt.scatter(candidates["span"], candidates["score"], color="#0067a5")
for _, one in candidates.iterrows():
    plt.annotate(f"{one['n_clusters']:.0f}", (one["span"], one["score"]), textcoords="offset points", xytext=(6, 3))
plt.axhline(0.8 * candidates["score"].max(), color="#c4520a", linestyle="--")
plt.xlabel("span")
plt.ylabel("score")
plt.show()

# %% [markdown]
# ## Many runs: a sweep
#
# On the command line: `ips2 sweep x.npy --clusters 4:14 --neighbors 5,10 --sigma .2,1 --out DIR`. Any parameter can be
# swept, in Python by a grid as scikit-learn's `ParameterGrid` takes it. All runs live in one directory, and every stage
# is computed once for all that share it: here the graph for each k, the degrees and eigenpairs of the tensor for each
# k and sigma. Each run is then judged without labels:
#
# - **stability**: the labels of random 80 % of the samples, embedded and clustered anew, agree with the labels of all
#   (adjusted Rand index). A wrong c has to cut or join clusters somewhere, and does so elsewhere each time.
# - **modularity**: the share of the weight of the pairwise similarity S that is within clusters, less what a
#   random graph of the same degrees has there. S is the same for every c, k and sigma.
#
# The **score** is their product: both are about 0 for labels that say nothing, whatever the parameters are.

# %%
grid = {"n_clusters": clusters, "n_neighbors": neighbors, "sigma": sigma}
found = sweep(X, grid, store=folder / "sweep", resamples=resamples)
print("best:", found.best.setting)
pd.DataFrame(found.computed, index=[f"computed, for {len(found.points)} runs"])

# %%
table = pd.DataFrame(found.table()).drop(columns=["seconds", "labels"])
table.head(8).round(3).style.format(precision=3).hide(axis="index")

# %%
figure, axes = plt.subplots(1, 3, figsize=(12, 3.9), layout="constrained")
plots.criteria(found.table(), list(axes.flat))

# %% [markdown]
# *Reading the figure.* Look for a c where stability and modularity are high together, and where the lines of
# different k and sigma agree: a peak that only one setting has is luck. sigma rarely matters much; k does, because it
# says how far a neighbourhood reaches, and its price grows with the fourth power.
#
# ## Was it right?
#
# Known labels, where there are some, count for nothing above. Beside the ranking they show how far it can be trusted:

# %%
if known is not None:
    from ips2_dask.metrics import scores

    nmi = [scores(known, found.run(rank + 1).labels)["nmi"] for rank in range(len(found.points))]
    print(f"NMI of the first {nmi[0]:.3f}, of auto {scores(known, auto.labels)['nmi']:.3f}, "
          f"of the best of all {max(nmi):.3f} (rank {int(np.argmax(nmi)) + 1}), of the last {nmi[-1]:.3f}")

# %% [markdown]
# ## Metrics and scales
#
# For the number of clusters that was found, a second sweep compares metrics and scales. The score tells where a metric
# fails altogether, and **not which of several good ones is best** (`docs/tables.md`, Which metric and scale, has figures
# on known sets). Where scores are close, take what suits such data: cosine for documents, z-scores for tables.

# %%
c = found.best.params.n_clusters
grid = {"n_clusters": [c], "metric": ["euclidean", "cosine", "correlation"], "scale": ["none", "zscore"]}
metrics = sweep(X, grid, store=folder / "metrics", resamples=resamples)
table = pd.DataFrame(metrics.table()).drop(columns=["n_clusters", "seconds", "labels"])
if known is not None:
    table["nmi"] = [scores(known, metrics.run(rank).labels)["nmi"] for rank in table["rank"]]
table.round(3).style.format(precision=3).hide(axis="index")

# %% [markdown]
# ## The winner
#
# The directory of the sweep is now the run of its best point: `ips2 report`, `ips2 predict` and `open_run` work on it
# as on any other, and `found.run(2)` opens the second.

# %%
best = found.run(1)
figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
plots.embedding(best, axes[0])
plots.silhouettes(best, axes[1]);
