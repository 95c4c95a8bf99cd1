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
# # How it scales
#
# Runs of several sizes and numbers of workers, each in a fresh process on a cluster of its own, on generated data
# (curved clusters with noise). Four questions: how does time grow with the samples, what do more workers bring, does
# memory keep to the plan, and which stage takes the time?
#
# Without a browser the same is `ips2 study CONFIG.yaml --out DIR`, where the file holds the parameters of the next
# cell; `notebooks/study.yaml` is an example. To measure a cluster give `cluster="slurm"`, a file of your own or the
# address of a scheduler, and a `scratch` folder that its nodes share.

# %% tags=["parameters"]
name = "two-cores"  # of the file of results
sizes = [2_000, 6_325, 20_000, 63_246, 200_000]  # samples, growing by the square root of ten
neighbors = [5]  # k; each size is measured with each
operators = ["auto"]  # levels of assembly of the tensor: auto, matrix-free, elements, triplets
features = 64
clusters = 20
workers = 2  # worker processes of these runs; 0 is serial
strong_samples = 50_000  # one size with growing numbers of workers; 0 leaves it out
strong_workers = [1, 2]
weak_samples = 25_000  # samples for each worker; 0 leaves it out
weak_workers = [1, 2]
cluster = None  # a file of cluster_configs, or a name such as "slurm"
scheduler = None  # or the address of a running scheduler
scratch = None  # folder for data and runs; on a cluster a shared one
limit = 7_200  # seconds after which a run is given up
seed = 0
warm_up = True  # compile the kernels first, so that no time holds it
results = "results"  # folder that records are appended to
again = False  # measure again what is there
bench = "results/scaling.json"  # of `ips2 bench scaling --json`, shown beside the study where it is there

# %%
import matplotlib.pyplot as plt
import pandas as pd

from ips2_dask.bench import study

asked = study.Study(
    name=name, sizes=sizes, neighbors=neighbors, operators=operators, features=features, clusters=clusters,
    workers=workers, strong_samples=strong_samples, strong_workers=strong_workers, weak_samples=weak_samples,
    weak_workers=weak_workers, cluster=cluster, scheduler=scheduler, scratch=scratch, limit=limit, seed=seed,
    warm_up=warm_up,
)
records = study.measure(asked, results, again=again)
print(records[-1]["where"])

# %% [markdown]
# ## How time grows with the samples
#
# A line through the points on logarithmic axes has the growth exponent as its slope: 1 is linear, 2 quadratic. The
# interval beside it is the 95 % one of that slope (Student's, so it is wide with few sizes). Below some ten thousand
# samples constant costs (processes, chunks, small solves) hide the growth; the exponent of the larger sizes is what
# extrapolates.

# %%
figure, axes = plt.subplots(1, 2, figsize=(12, 4.2), layout="constrained")
study.draw_growth(records, axes[0])
study.draw_stages(records, axes[1]);

# %%
growth = pd.DataFrame(study.growth_table(records))
growth.style.format({"exponent": "{:.2f}", "low": "{:.2f}", "high": "{:.2f}"}, na_rep="–").hide(axis="index")

# %% [markdown]
# Seconds of each stage, with what the run found: `nmi` against the generated labels, and the recall of the sample
# graph where that is approximate.

# %%
stages = pd.DataFrame(study.stage_table(records)).drop(columns=["k", "operator"])
stages.style.format({c: "{:.2f}" for c in stages.columns if c != "m"} | {"m": "{:,}"}, na_rep="–").hide(axis="index")

# %% [markdown]
# ## What more workers bring
#
# *Strong scaling* keeps the size and adds workers; *weak scaling* lets both grow. An efficiency of 1 is perfect. The
# serial share is Karp and Flatt's estimate of the part that no worker can take over: the client's own work, such as the
# solves where block vectors are in core, and whatever the machine's cores share. Two threads of one physical core are not
# two cores.

# %%
plt.figure(figsize=(6, 3.6))
study.draw_workers(records, plt.gca());

# %%
strong = pd.DataFrame(study.strong_table(records))
strong.round(2)

# %%
weak = pd.DataFrame(study.weak_table(records))
weak.round(2)

# %% [markdown]
# ## Memory beside the plan
#
# Before its first task a run says how much memory it will need (`ips2 plan`), and is refused if `--memory-limit` is
# lower. The plan must not promise too little: the ratio below is the measured peak of all processes together over the
# planned one, and has to stay below 1. (Only processes of this machine are measured.)

# %%
plt.figure(figsize=(6, 3.6))
study.draw_memory(records, plt.gca());

# %%
memory = pd.DataFrame(study.memory_table(records))
memory.style.format({"ratio": "{:.2f}", "m": "{:,}", "peak_bytes": "{:,}", "planned_bytes": "{:,}"}).hide(axis="index")

# %% [markdown]
# ## Up to a million samples
#
# `ips2 bench scaling --clusters 20 --workers 2 --json scaling.json` measures the same up to a million samples; its file
# is read here where it is there. Over two orders of magnitude the constant costs no longer count, and the interval of
# the exponent becomes narrow.

# %%
from pathlib import Path

larger = study.read_bench(bench) if Path(bench).exists() else []
if larger:  # [] where there is no such file
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.2), layout="constrained")
    study.draw_growth(larger, axes[0])
    study.draw_stages(larger, axes[1])
    study.draw_memory(larger, axes[2])

# %%
table = pd.DataFrame(study.growth_table(larger), columns=["stage", "from", "to", "exponent", "low", "high"])
table.style.format({"exponent": "{:.2f}", "low": "{:.2f}", "high": "{:.2f}", "from": "{:,}", "to": "{:,}"}, na_rep="–").hide(axis="index")
