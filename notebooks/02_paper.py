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
# # The paper's experiments, made again
#
# Peng, Hu, Chen, Wang, Li and Cai ([arXiv 1905.03920](https://arxiv.org/abs/1905.03920)) compare six methods. `ips2
# reproduce` makes every table and figure again; this notebook reads its results and says what they mean. It looks for
# them in the folder `results`: that of `ips2 reproduce --data DIR --out results/paper`, or its `results.json` alone.
# The matrices that are drawn at the end are not in that file, and are made here in a minute; tables and curves of which
# there are no results are left out below.

# %% tags=["parameters"]
results = "results/paper"  # folder of an earlier `ips2 reproduce --out`
data = None  # folder of the publishers' files; None takes the variable IPS2_DATA
only = ["tensors", "similarities"]  # made here

# %%
import json
import tempfile
from pathlib import Path

import pandas as pd
from IPython.display import Image, display

from ips2_dask.paper.experiments import runnable
from ips2_dask.paper.report.figures import curves
from ips2_dask.paper.reproduce import reproduce

made = Path(tempfile.mkdtemp())
parts = [name for name in only if name in runnable(data)]
if parts:
    reproduce(made, data, only=parts, brief=True)
file = next(path for path in (Path(results) / "results.json", made / "results.json") if path.exists())
found = json.loads(file.read_text())
records = pd.DataFrame(found)
there = set(records["experiment"])
for name in ("usdata1", "usdata2"):
    if name in there:
        curves(made / "figures", found, name, "")
print(f"{len(records):,} records of {', '.join(sorted(there))}, {records['runs'].max()} runs at most")
print("left out, as the data are not there:", ", ".join(sorted(set(only) - set(parts))) or "nothing")


# %% [markdown]
# ## Table 2: six methods on four data sets
#
# Each cell is our accuracy with the best setting of a small grid, and beside it what the paper prints. SC is spectral
# clustering with the pairwise similarity, PPC uses the high-order similarity alone, IPS2 fuses both. SSC, CAVE and HGC
# are other methods of the paper's time.
#
# *How to read it:* compare IPS2 with SC in one row: the difference is what the tensor adds to the very same graph. The
# paper's own baselines are often lower than ours, because k-means takes the best of ten starts here.

# %%
def beside(setting: str) -> pd.DataFrame:
    """Accuracy found / printed, a row for each data set."""
    cells = records[(records.experiment == "table2") & (records.measure == "acc") & (records.setting == setting)]
    text = [f"{r['mean']:.3f} / {'–' if pd.isna(r.paper) else f'{r.paper:.3f}'}" for _, r in cells.iterrows()]
    return cells.assign(text=text).pivot(index="dataset", columns="method", values="text")


if "table2" in there:
    display(beside("tuned"))

# %% [markdown]
# With every method's default settings, which is what a user without labels can have:

# %%
if "table2" in there:
    display(beside("default"))

# %% [markdown]
# ## Why a tensor at all?
#
# USdata1 has two clusters of 20 samples, and more and more features that tell nothing. With a few features all
# methods are good; with thousands, distances between samples become all alike, and the pairwise similarity goes blind
# first. Comparing *pairs with pairs* divides one distance by another, and keeps the contrast longer.

# %%
def show(*names: str) -> None:
    """Figures of the reproduction, those that were made."""
    for name in names:
        for picture in sorted((made / "figures").glob(f"{name}*.png")):
            display(Image(picture.read_bytes(), width=760))


show("usdata1")

# %% [markdown]
# USdata2 has a third cluster that grows from a few samples on: the smaller it is, the more its members need the
# neighbourhood's word for it.

# %%
show("usdata2")

# %% [markdown]
# ## The similarities themselves
#
# Left to right: pairwise, high-order, fused, samples ordered by their known cluster. The fused one has the blocks of
# V and the sharpness of S.

# %%
show("similarities")

# %% [markdown]
# ## Decomposable or not
#
# The *decomposable* tensor T = S x S adds nothing that S does not know (its unfolding is the Kronecker product, and
# Theorem 3.1 gives its eigenvectors from those of S). The *indecomposable* one compares distances inside common
# neighbourhoods, and is another matrix altogether:

# %%
show("tensors")
