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
# # On a cluster
#
# The same run on other machines: a YAML file says what to start there (`cluster_configs/` has one for each manager,
# with every key explained), `ips2 cluster check` looks at it before anything is started, `ips2 jobs submit` hands the whole
# run over, driver included, and returns at once. The driver may die, workers may die: the same submission again goes
# on where it stopped, with the same labels.
#
# Here the cluster is this machine (`local`), so that the notebook runs anywhere. On yours, change the parameter.

# %% tags=["parameters"]
config = "local"  # a name such as "slurm", or a file of your own
work = None  # a folder that the cluster's nodes share; None takes a temporary one
samples = 3_000
clusters = 5
workers = 2

# %%
import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import ips2_dask
from ips2_dask.datasets import curved_gaussians

folder = Path(work or tempfile.mkdtemp())
os.environ.setdefault("IPS2_STATE", str(folder / "jobs"))  # records of submitted jobs; by default in your home
X, known = curved_gaussians(samples, 16, clusters)
np.save(folder / "x.npy", X)


def ips2(*words: str) -> str:
    """Run a command of ips2 in the folder, as a shell would; returns what it prints."""
    plain = {name: value for name, value in os.environ.items() if "FORCE" not in name}  # Jupyter asks for colours
    command = [sys.executable, "-m", "ips2_dask.cli", *words]
    done = subprocess.run(command, cwd=folder, env=plain, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout.replace(str(folder), "WORK")


# %% [markdown]
# ## 1. Look at the config
#
# `cluster check` validates every key and shows what would be started: for batch systems that is the job script, to be
# read before it is queued. With `--start` one worker is started and looked at from inside: versions, memory, and
# whether it reaches the folder of the run.

# %%
checked = ips2("cluster", "check", config, "--workers", str(workers))
print("\n".join(checked.splitlines()[1:]))  # the first line names the file

# %% [markdown]
# ## 2. See what the run would need
#
# Tasks, memory a process and disk, stage by stage; nothing is computed.

# %%
print(ips2("plan", "x.npy", "--clusters", str(clusters)))

# %% [markdown]
# ## 3. Submit
#
# The command prints the id of the job. `ips2 jobs` lists what was submitted, and `ips2 jobs cancel ID` ends it.

# %%
job = ips2(
    "jobs", "submit", "x.npy", "--clusters", str(clusters),
    "--out", "run", "--cluster", config, "--workers", str(workers),
).split()[-1]

# %% [markdown]
# ## 4. Watch
#
# `logs --follow` prints the driver's lines until the job ends; on a terminal of your own you may leave it, and come
# back. The address of Dask's dashboard is its first line.

# %%
log = ips2("jobs", "logs", job, "--follow")
print("\n".join(line for line in log.splitlines() if "dashboard" not in line))

# %% [markdown]
# ## 5. Fetch
#
# The run directory is all there is to fetch. It opens anywhere, with no cluster and no Dask client.

# %%
run = ips2_dask.open_run(folder / "run")
print(np.bincount(run.labels), "samples a cluster")
print([stage["state"] for stage in run.report()["stages"]])

# %% [markdown]
# The same submission again finds everything done. A change of `--clusters` reuses the graph and the tensor:

# %%
ips2("run", "x.npy", "--clusters", str(clusters + 1), "--out", "run", "--serial", "--quiet")
for stage in ips2_dask.open_run(folder / "run").report()["stages"]:
    print(f"{stage['name']:<10} {stage['state']:<15} {stage['why'][0].partition(', finished')[0].partition(' as when')[0]}")

# %% [markdown]
# ## From Python
#
# A cluster from the same file, as a client for as long as the block lasts:

# %%
with ips2_dask.cluster(config, workers=workers) as client:
    labels = ips2_dask.IPS2(clusters, client=client).fit_predict(X)
serial = ips2_dask.IPS2(clusters).fit_predict(X)
print("labels of the cluster and of this process alone are equal:", bool((labels == serial).all()))

# %%
if work is None:
    import shutil

    with contextlib.suppress(OSError):
        shutil.rmtree(folder)
