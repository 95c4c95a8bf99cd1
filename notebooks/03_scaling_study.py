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
# What the file of results has is shown, and only what is missing is measured. To measure a cluster of yours give
# another `name`, `cluster="slurm"`, a file of your own or the address of a scheduler, and a `scratch` folder that its
# nodes share.

# %% tags=["parameters"]
name = "two-cores"  # of the file of results
sizes = [2_000, 6_325, 20_000, 63_246, 200_000]  # samples, growing by the square root of ten
features = 64
clusters = 20
neighbors = 5  # k
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
results = "results"  # folder of the file of results
larger = "results/scaling.json"  # of `ips2 bench scaling --json`, shown beside the study where it is there

# %%
import json
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from ips2_dask import Params, Resources
from ips2_dask.bench import harness, runs
from ips2_dask.store.layout import STAGES

points = [(m, workers) for m in sizes]
points += [(strong_samples, n) for n in strong_workers if strong_samples]
points += [(weak_samples * n, n) for n in weak_workers if weak_samples]
file = Path(results) / f"{name}.jsonl"
file.parent.mkdir(parents=True, exist_ok=True)
there = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
missing = [point for point in dict.fromkeys(points) if point not in {(r["m"], r["workers"]) for r in there}]
with tempfile.TemporaryDirectory(dir=scratch) as folder, file.open("a") as lines:
    params = Params(n_clusters=clusters, n_neighbors=neighbors, random_state=seed)
    how = runs.How(params, Resources(cluster=cluster, scheduler=scheduler), Path(folder), workers == 0, limit)
    for m, n in missing:
        for r in runs.timed([(m, None if how.serial or scheduler else n)], features, how):
            there.append({**r, "workers": n, "commit": harness.commit(), "where": harness.machine()["cpu"]})
            lines.write(json.dumps(there[-1]) + "\n")
records = pd.DataFrame(there).drop_duplicates(["m", "workers", "stage"], keep="last")
records = records[records.outcome == "finished"]
print(", ".join(sorted(set(records["where"]))))


# %% [markdown]
# ## How time grows with the samples
#
# A line through the points on logarithmic axes has the growth exponent as its slope: 1 is linear, 2 quadratic. The
# interval beside it is the 95 % one of that slope (Student's, so it is wide with few sizes). Below some ten thousand
# samples constant costs (processes, chunks, small solves) hide the growth; the exponent of the larger sizes is what
# extrapolates.
#
# Before its first task a run says how much memory it will need (`ips2 plan`), and is refused if `--memory-limit` is
# lower. The plan must not promise too little: the measured peak of all processes together has to stay below it.

# %%
def draw(grown):
    """Time over samples with its power, the time of each stage, and memory beside the plan."""
    figure, (time, stages, memory) = plt.subplots(1, 3, figsize=(15, 4.2), layout="constrained")
    whole = grown[grown.stage == "stages"].sort_values("m")
    fit = runs.growth(list(whole.m), list(whole.seconds))
    line = np.exp(np.log(whole.seconds).mean()) * (whole.m / np.exp(np.log(whole.m).mean())) ** fit.exponent
    reach = "" if fit.low is None else f" ({fit.low:.2f} to {fit.high:.2f})"
    time.loglog(whole.m, whole.seconds, "o", label="seconds")
    time.loglog(whole.m, line, label=f"m^{fit.exponent:.2f}{reach}")
    time.set(title="Time over samples", xlabel="samples m", ylabel="seconds")
    table = grown.pivot(index="m", columns="stage", values="seconds")[list(STAGES)]
    table.div(table.sum(axis=1), axis=0).plot.barh(stacked=True, ax=stages, title="Time by stage", colormap="viridis")
    total = grown[grown.stage == "total"].sort_values("m")
    memory.loglog(total.m, total.projected_bytes / 2**30, "--", label="planned")
    memory.loglog(total.m, total.peak_bytes.astype(float) / 2**30, "o-", label="peak")
    memory.set(title="Memory beside the plan", xlabel="samples m", ylabel="GiB, all processes")
    stages.legend(frameon=False, fontsize="small", ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.12))
    for ax in (time, memory):
        ax.legend(frameon=False, fontsize="small")


growth = records[records.m.isin(sizes) & (records.workers == workers)]
draw(growth)

# %% [markdown]
# Seconds of each stage, with what the run found: `nmi` against the generated labels, the recall of the sample graph
# where that is approximate, and the measured peak over the planned one (`memory`).

# %%
seconds = growth.pivot(index="m", columns="stage", values="seconds")[[*STAGES, "stages", "total"]]
total = growth[growth.stage == "total"].set_index("m")
seconds.join(total[["nmi", "recall"]]).join((total.peak_bytes / total.projected_bytes).rename("memory")).round(2)

# %%
grown = {stage: runs.growth(list(of.m), list(of.seconds)) for stage, of in growth[growth.seconds > 0].groupby("stage")}
pd.DataFrame(grown).T.set_axis(["exponent", "low", "high"], axis=1).reindex([*STAGES, "stages", "total"]).round(2)

# %% [markdown]
# ## What more workers bring
#
# *Strong scaling* keeps the size and adds workers; *weak scaling* lets both grow. An efficiency of 1 is perfect. The
# serial share is Karp and Flatt's estimate of the part that no worker can take over: the client's own work, such as the
# solves where block vectors are in core, and whatever the machine's cores share. Two threads of one physical core are not
# two cores.

# %%
whole = records[records.stage == "stages"].set_index(["m", "workers"]).seconds
pairs = {"strong": [(strong_samples, n) for n in strong_workers], "weak": [(weak_samples * n, n) for n in weak_workers]}
table = [(part, m, n, whole[m, n]) for part, of in pairs.items() for m, n in of if (m, n) in whole.index]
table = pd.DataFrame(table, columns=["part", "m", "workers", "seconds"])
first = table.groupby("part")[["workers", "seconds"]].transform("first")
more = table.workers / first.workers
faster = first.seconds / table.seconds
table["efficiency"] = faster.where(table.part == "weak", faster / more)
table["serial share"] = ((1 / faster - 1 / more) / (1 - 1 / more)).where((table.part == "strong") & (more > 1))
table.round(2)

# %%
figure, ax = plt.subplots(figsize=(6, 3.6))
for part, of in table.groupby("part"):
    ax.plot(of.workers, of.efficiency, "o-", label=part)
ax.axhline(1, color="grey", linestyle=":")
ax.set(title="Efficiency over workers", xlabel="workers", ylabel="efficiency", ylim=(0, 1.15))
if len(table):
    ax.legend(frameon=False)

# %% [markdown]
# ## Up to a million samples
#
# `ips2 bench scaling --clusters 20 --workers 2 --json scaling.json` measures the same up to a million samples; its file
# is read here where it is there. Over two orders of magnitude the constant costs no longer count, and the interval of
# the exponent becomes narrow.

# %%
if Path(larger).exists():
    found = pd.DataFrame(json.loads(Path(larger).read_text())["results"])
    draw(found[found.kind == "time"])
