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
# them in the folder `results`: that of `ips2 bench reproduce --data DIR --out results/paper`, or its files `results.json`,
# `readings.json` and `about.json` alone. The matrices that are drawn at the end are not in these files, and are made
# here in a minute; parts of which there are no results are left out below.
#
# Every sentence that says how methods compare is computed from the results and asserted: with results that say
# something else the notebook stops.

# %% tags=["parameters"]
results = "results/paper"  # folder of an earlier `ips2 bench reproduce --out`
data = None  # folder of the publishers' files; None takes the variable IPS2_DATA
only = ["tensors", "similarities"]  # made here

# %%
import json
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from IPython.display import Image, display

from ips2_dask.paper.figures import curves
from ips2_dask.paper.reproduce import reproduce, runnable

made = Path(tempfile.mkdtemp())
parts = [name for name in only if name in runnable(data)]
if parts:
    reproduce(made, data, only=parts, brief=True)
folder = next(folder for folder in (Path(results), made) if (folder / "results.json").exists())
found = json.loads((folder / "results.json").read_text())
records = pd.DataFrame(found)
there = set(records["experiment"])
for name in ("usdata1", "usdata2"):
    if name in there:
        curves(made / "figures", found, name)
print(f"{len(records):,} records of {', '.join(sorted(there))}, {records['runs'].max()} runs at most")
print("not made here, as the data are not there:", ", ".join(sorted(set(only) - set(parts))) or "nothing")

# %% [markdown]
# Which code made which part, and when. Parts of an older commit are those whose tasks take longest.

# %%
if (folder / "about.json").exists():
    about = pd.DataFrame(json.loads((folder / "about.json").read_text())).T
    display(about[["commit", "date", "runs", "budget"]])


# %% [markdown]
# ## Table 2: six methods on four data sets
#
# SC is spectral clustering with the pairwise similarity, PPC uses the high-order similarity alone, IPS2 fuses both.
# SSC, CAVE and HGC are other methods of the paper's time. Each cell is our accuracy and beside it what the paper prints.
# `bbcsport-draws` are random draws of 60 documents, since the paper does not say which 60 it took.
#
# **With the settings that the paper prints** (k = 10, dense Gaussian S, k-means on the rows of the similarity), the same
# for all data sets:


# %%
def beside(setting: str) -> pd.DataFrame:
    """Accuracy found / printed, a row for each data set."""
    cells = records[(records.experiment == "table2") & (records.measure == "acc") & (records.setting == setting)]
    text = [f"{r['mean']:.3f} / {'–' if pd.isna(r.paper) else f'{r.paper:.3f}'}" for _, r in cells.iterrows()]
    return cells.assign(text=text).pivot(index="dataset", columns="method", values="text")


if "table2" in there:
    display(beside("printed"))

# %%
if "table2" in there:
    table2 = records[(records.experiment == "table2") & (records.measure == "acc")]
    acc = table2.pivot(index=["setting", "dataset"], columns="method", values="mean")
    paper = table2.pivot(index=["setting", "dataset"], columns="method", values="paper").loc["printed", "IPS2"].dropna()
    reached = {s: [d for d in paper.index if round(acc.IPS2[s, d], 3) >= paper[d]] for s in ("printed", "default")}
    assert reached["printed"] == []
    print("As printed, IPS2 reaches the paper's figure on none of", ", ".join(paper.index))
    lower = [d for d in paper.index if acc.IPS2["printed", d] < acc.SC["printed", d]]
    assert {"bbcsport60", "yale5"} <= set(lower)
    print("As printed, IPS2 is below SC on", ", ".join(lower))

# %% [markdown]
# **With every method's default settings**, one for all data sets, chosen without any label:

# %%
if "table2" in there:
    display(beside("default"))
    print("By default, IPS2 reaches the paper's figure on", ", ".join(reached["default"]) or "none")
    assert "yale5" in reached["default"]
    assert len(reached["default"]) < len(paper)
    level = [d for d in acc.loc["default"].index if acc.SC["default", d] >= acc.IPS2["default", d]]
    print("By default, SC is as good as IPS2 or better on", ", ".join(level))
    assert len(level) >= 2

# %% [markdown]
# **Tuned.** For each data set and method on its own, the best of the grid's settings by accuracy *against the known
# labels*: k, sigma, scale, affinity and labelling are whatever scored best. It is the most that could have been picked,
# and nothing that a user without labels can have. A row does not show what the tensor adds either, as its methods have
# different scales and graphs.

# %%
if "table2" in there:
    display(beside("tuned"))
    print("Settings in the grid of each method:", about.budget["table2"] if (folder / "about.json").exists() else "?")
    tuned = acc.loc["tuned"]
    short = [d for d in paper.index if round(tuned.IPS2[d], 3) < paper[d]]
    assert short == ["bbcsport-draws"]
    print("Tuned, IPS2 reaches the paper's figure everywhere but on", ", ".join(short))
    level = [d for d in tuned.index if tuned.SC[d] >= tuned.IPS2[d]]
    assert len(level) >= 4
    print("Tuned, SC is as good as IPS2 or better on", ", ".join(level))

# %% [markdown]
# ## Why the printed figures are not reached
#
# The text leaves much open: which samples, which scale, which kernel width, which sign an eigenvector has, how labels
# are found. `python notebooks/research/readings.py` tries the ways to read it. The printed reading is the setting above, and
# the *later code* is the recipe of the group's public code for a later paper. One choice at a time is changed in both;
# a grid combines the likely ones; and the readings are run on random draws of samples where the paper does not say which
# it took.

# %%
if (folder / "readings.json").exists():
    readings = json.loads((folder / "readings.json").read_text())
    for dataset, papers in readings["figures"].items():
        paper_acc, columns = papers["IPS2"], {m: readings["grid"][dataset][m]["mean"] for m in papers}
        singles = {
            f"{base}, {name}": result["IPS2"]["mean"]
            for base in ("printed", "later code")
            for name, result in readings[base][dataset].items()
        }
        together = sum(all(abs(v - papers[m]) <= 0.005 for m, v in zip(papers, one)) for one in zip(*columns.values()))
        print(f"{dataset}: the paper's IPS2 {paper_acc:.3f}; printed {singles['printed, unchanged']:.3f}, later code")
        print(f"{singles['later code, unchanged']:.3f}. Single changes with the figure, by the mean of the starts:")
        print("; ".join(name for name, mean in singles.items() if abs(mean - paper_acc) <= 0.005) or "none", end=". ")
        print(sum(mean > paper_acc + 0.005 for mean in singles.values()), "are above it.")
        near = sum(abs(v - paper_acc) <= 0.005 for v in columns["IPS2"])
        high = sum(v > paper_acc + 0.005 for v in columns["IPS2"])
        print(f"Of the grid's {len(columns['IPS2']):,}, {near} have it and {high} are above; the highest is", end=" ")
        print(f"{max(columns['IPS2']):.3f}; {together} have the figures of SC, PPC and IPS2 at once.")

# %%
if (folder / "readings.json").exists():
    drawn = [
        {
            "data set": dataset, "reading": reading, "paper": readings["figures"][dataset]["IPS2"],
            "mean over draws": np.mean(result["IPS2"]), "least": min(result["IPS2"]), "most": max(result["IPS2"]),
            "share that reaches it": np.mean(np.array(result["IPS2"]) >= readings["figures"][dataset]["IPS2"] - 0.005),
        }
        for dataset, of in readings["draws"].items()
        for reading, result in of.items()
    ]
    drawn = pd.DataFrame(drawn).set_index(["data set", "reading"]).round(3)
    display(drawn)

# %%
if (folder / "readings.json").exists():
    figures = {dataset: of["IPS2"] for dataset, of in readings["figures"].items()}
    has = {
        (base, kind): [
            d for d, figure in figures.items() if abs(readings[base][d]["unchanged"]["IPS2"][kind] - figure) <= 0.005
        ]
        for base in ("printed", "later code")
        for kind in ("mean", "least_inertia")
    }
    assert has["printed", "mean"] == has["printed", "least_inertia"] == []
    print("The printed reading has the paper's figure on no data set.")
    assert has["later code", "least_inertia"] == ["scadi57", "yale5"]
    print("The later code's has it on", ", ".join(has["later code", "mean"]), "by the mean of the starts of k-means,")
    print("and on", ", ".join(has["later code", "least_inertia"]), "by the start of the least inertia.")
    share = drawn["share that reaches it"]
    assert share["bbcsport60", "printed"] == 0
    best = readings["draws"]["bbcsport60"]["best of the grid"]
    means = {method: np.mean(best[method]) for method in ("SC", "IPS2")}
    assert 0.4 < share["bbcsport60", "best of the grid"] < 0.6
    assert abs(means["IPS2"] - means["SC"]) < 0.02
    print(
        "BBCSports, draws: as printed", share["bbcsport60", "printed"], "of them reach the paper's figure. The grid's"
    )
    print(f"best on the first 20 ({best['changes']}) does on {share['bbcsport60', 'best of the grid']:.2f} of them,")
    print(f"with a mean of {means['IPS2']:.3f}, and SC read in the same way has {means['SC']:.3f}.")

# %% [markdown]
# Readings were compared by their accuracy against the known labels, with the figure to be explained in sight. One that
# has the figure is a possible explanation and not evidence that the authors used it; among so many, some have it by
# chance. The accuracy of a reading that was picked in this way is no estimate for other data: the draws are, where
# nothing is picked.

# %% [markdown]
# **If you cite this reproduction:** with the settings that the paper prints, IPS2 reaches its ACC on none of the
# four data sets, and is above SC on two. It reaches them with settings that were picked by the known labels, and so does
# SC, which ties or beats IPS2 there on most sets. The likeliest explanation that was found is the recipe of the group's
# later code with k of 8 to 10: it has .936 on Soybean (k 8), .877 on SCADI (the start of least inertia of 20, k 10) and
# .600 on Yale (k 10). It was found with the figures in sight, so it is no evidence. On BBCSports it has no such figure.
# There the result depends on which 60 documents are taken, which the paper does not say: as printed, none of 200 draws
# of 60 comes to .800; with documents scaled to length 1 and spectral labels, a reading picked on the fixed 60, half of
# them do, with a mean of .776, and SC read in the same way has .768. On the generated sets, below, IPS2 as printed is
# above SC as printed at all 14 points of USdata1 and 7 of 10 of USdata2; by default both are level there. So the
# records support that the fused similarity is better than a dense Gaussian one on these sets, and do not show that
# the tensor adds to a good graph.

# %% [markdown]
# ## More features, and a growing cluster
#
# USdata1 has three clusters of 20 samples, and the number of features grows. The paper says that the pairwise similarity
# goes blind as features become many.


# %%
def show(*names: str) -> None:
    """Figures of the reproduction, those that were made."""
    for name in names:
        for picture in sorted((made / "figures").glob(f"{name}*.png")):
            display(Image(picture.read_bytes(), width=760))


show("usdata1")

# %%
if "usdata1" in there:
    series = records[records.experiment.str.startswith("usdata") & (records.measure == "acc")].copy()
    series["at"] = series.dataset.str.split("-").str[-1].astype(int)
    line = series.pivot(index=["experiment", "at"], columns="method", values="mean")
    printed, default = line.loc["usdata1-printed"], line.loc["usdata1"]
    few, many = printed.index.min(), printed.index.max()
    gain = (printed.IPS2 - printed.SC).loc[260:]
    assert printed.SC[many] > printed.SC[few] + 0.2
    assert gain.idxmax() == 260
    assert gain[many] < 0.02
    print(f"As printed, SC rises from {printed.SC[few]:.3f} at {few} features to {printed.SC[many]:.3f} at {many}:")
    print(f"it does not go blind. The gain of IPS2 falls from {gain[260]:.3f} at 260 to {gain[many]:.3f} at {many}.")
    assert (printed.IPS2 > printed.SC).all()
    assert (default.loc[260:] > 0.99).all().all()
    apart = (default.IPS2 - default.SC).abs().max()
    assert apart < 0.05
    print(f"As printed, IPS2 is above SC at every point. By default they differ by {apart:.3f} at most,")
    print(f"and from 260 features on all three methods have {default.loc[260:].min().min():.3f} or more.")

# %% [markdown]
# USdata2 has a third cluster that grows from 10 to 235 samples while the others keep 20, with 2,360 features.

# %%
show("usdata2")

# %%
if "usdata2" in there:
    printed, default = line.loc["usdata2-printed"], line.loc["usdata2"]
    assert (default > 0.999).all().all()
    print("By default, all three methods find the clusters at every size.")
    below = [n for n in printed.index if printed.IPS2[n] < printed.SC[n]]
    above = [n for n in printed.index if printed.IPS2[n] > printed.SC[n]]
    assert below
    assert max(below) < max(above)
    assert printed.SC[235] < 0.6 < printed.IPS2[235]
    print(f"As printed, IPS2 is below SC at the sizes {below}, above it at {above}: at 235 samples it has")
    print(
        f"{printed.IPS2[235]:.3f} and SC {printed.SC[235]:.3f}; at 60 it has {printed.IPS2[60]:.3f} and SC {printed.SC[60]:.3f}."
    )

# %% [markdown]
# ## The similarities themselves
#
# Left to right: pairwise, high-order, fused, samples ordered by their known cluster.

# %%
show("similarities")

# %%
if "similarities" in there:
    auc = records[records.experiment == "similarities"].set_index("method")["mean"]
    assert auc.SC >= auc.PPC
    print(f"A pair of one cluster is more similar than a pair of two with probability {auc.SC:.3f} by S,")
    print(f"{auc.PPC:.3f} by V and {auc.IPS2:.3f} by U: on this set S tells the clusters apart by itself.")

# %% [markdown]
# ## Decomposable or not
#
# The *decomposable* tensor T = S x S adds nothing that S does not know (its unfolding is the Kronecker product, and
# Theorem 3.1 gives its eigenvectors from those of S). The *indecomposable* one compares distances inside common
# neighbourhoods, and is another matrix altogether:

# %%
show("tensors")
