#!/usr/bin/env bash
#SBATCH -J ips2-driver
#SBATCH -p long
#SBATCH -A physics
#SBATCH -n 1
#SBATCH --cpus-per-task=2
#SBATCH --mem=8G
#SBATCH -t 48:00:00
#SBATCH -x first
#SBATCH -y
#SBATCH -o /home/me/.local/state/ips2_dask/jobs/260102-030405-abcd/log
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@60
export IPS2_DRIVER_MEMORY=8589934592
module load python
ulimit -c 0
cd '/home/me/my work'
exec /opt/python -m ips2_dask.cli.driver /home/me/.local/state/ips2_dask/jobs/260102-030405-abcd
