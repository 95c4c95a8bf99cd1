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
# # Quickstart: from data to labels to pictures
#
# IPS2 clusters samples by two similarities at once. The *pairwise* one, S, says how near two samples are. The
# *high-order* one, V, comes from comparing **pairs of samples with pairs of samples**: two samples belong together if
# their neighbours see them in the same way. Both are fused to U, and a spectral embedding of U is cut into clusters.
#
# This notebook takes 1,797 images of handwritten digits (8 x 8 pixels, shipped with scikit-learn), asks for labels
# without saying how many clusters there are, looks at what came out, and labels images that were not there before.
# Put your own table in the place of `X`: a NumPy array, a data frame, a sparse matrix, or the name of a file.

# %% tags=["parameters"]
n_clusters = "auto"  # or a number
max_clusters = 15  # the largest number that "auto" considers
n_new = 297  # images that are kept back, to be predicted afterwards

# %%
import tempfile

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import normalized_mutual_info_score

from ips2_dask import IPS2, plots, report

images, digits = load_digits(return_X_y=True)
pixels = images[n_new:].std(axis=0) > 0  # three pixels are the same in all images: they tell nothing apart
X, X_new = images[n_new:, pixels], images[:n_new, pixels]
X.shape, X_new.shape

# %% [markdown]
# ## Fit
#
# `IPS2` is a scikit-learn estimator. Without a Dask client it works in this process and in memory; with
# `client=` the workers of a cluster do the same work and give the same labels, bit for bit.

# %%
model = IPS2(n_clusters, max_clusters=max_clusters).fit(X)
print(f"{model.run_.params.n_clusters} clusters of {np.bincount(model.labels_)} samples")

# %% [markdown]
# ## Why so many clusters?
#
# The embedding of the samples is dense where clusters are. A tree of its density can be cut into any number of them: its
# leaves are what remains when a cluster must have a smallest size. Each number of clusters has a *persistence*, how much
# denser it is around the samples than where their clusters meet (from 0 to 1), and a *span*, over how wide a range of
# smallest sizes it stays (a logarithm). Of those that separate nearly as well as the best, the one that stays the
# longest is taken; the others are the runners-up. Where the persistence is no larger than that of points without
# clusters (`noise`), the run says that the evidence is weak.

# %%
choice = model.run_.choice
if choice is not None:
    plt.figure(figsize=(6, 3))
    for number, one in enumerate(choice["candidates"]):
        place = one["span"] or 0, one["persistence"] or one["score"]
        plt.scatter(*place, color="#0067a5" if number else "#c4520a")
        plt.annotate(str(one["n_clusters"]), place, textcoords="offset points", xytext=(0, 6), ha="center")
    if choice["noise"] is not None:
        plt.axhline(choice["noise"], color="0.4", linestyle="--")
        plt.annotate("points without clusters, at most", (0, choice["noise"]), textcoords="offset points", xytext=(4, 4))
    plt.margins(x=0.2)
    plt.xlim(left=0)
    plt.ylim(0, 1)
    plt.xlabel("span: for how wide a range of sizes it stays")
    plt.ylabel("persistence")
    plt.show()

# %% [markdown]
# ## The clusters, seen
#
# Each point is an image, laid out in the plane by the fused similarity (by UMAP's optimiser, or t-SNE where umap-learn
# is missing). Distances between far clusters mean little in such a picture: the silhouettes beside it are measured in
# all coordinates of the embedding.

# %%
figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
plots.layout(model.run_, axes[0])
plots.silhouettes(model.run_, axes[1]);

# %% [markdown]
# ## The three similarities
#
# Samples in the order of their labels: blocks on the diagonal are clusters. S (left) holds five neighbours a sample;
# V (middle) knows whole neighbourhoods; U is their mean.

# %%
figure, axes = plt.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
for kind, axis in zip(("pairwise", "high_order", "fused"), axes, strict=True):
    plots.similarity(model.run_, kind, axis)

# %% [markdown]
# ## How good is it?
#
# Nothing above has seen the digits that people wrote down beside the images. Here we may look: 1 is a perfect match,
# 0 is chance.

# %%
print(f"NMI with the known digits: {normalized_mutual_info_score(digits[n_new:], model.labels_):.3f}")

# %% [markdown]
# ## New samples
#
# `predict_proba` takes the mean of the shares of each new sample's nearest training samples, the nearer ones more, and
# `predict` the cluster with the largest share. (`transform` extends the embedding to new samples, by Nystrom's formula.)
# The images below are the ones that this is least sure of.

# %%
labels = model.predict(X_new)
sure = model.predict_proba(X_new).max(axis=1)
print(f"NMI of the new images: {normalized_mutual_info_score(digits[:n_new], labels):.3f}")

# %%
figure, axes = plt.subplots(1, 8, figsize=(11, 1.9), layout="constrained")
for at, axis in zip(np.argsort(sure)[:8], axes, strict=True):
    axis.imshow(images[at].reshape(8, 8), cmap="gray_r")
    axis.set_title(f"{labels[at]}: {sure[at]:.2f}", fontsize=9)
    axis.axis("off")

# %% [markdown]
# ## Keep it
#
# With `store=` a fit leaves a run directory: everything that was computed, readable by any Zarr reader, and continued
# instead of computed again when a parameter changes. `report` makes one HTML page of it. On the command line the same
# is `ips2 run digits.npy --clusters 10 --out run` and `ips2 report run`.

# %%
with tempfile.TemporaryDirectory() as folder:
    kept = IPS2(model.run_.params.n_clusters, store=f"{folder}/run").fit(X).run_
    page = report(kept, f"{folder}/report.html")
    table = kept.write_labels(f"{folder}/labels.csv")
    print(page.name, f"{page.stat().st_size // 1024} KiB;", table.name, f"{len(table.read_text().splitlines()) - 1} rows")
