#!/usr/bin/env bash
#PBS -N ips2-driver
#PBS -q long
#PBS -A physics
#PBS -l select=1:ncpus=2:mem=8192MB
#PBS -l walltime=48:00:00
#PBS -S /bin/bash
#PBS -x first
#PBS -y
#PBS -o /home/me/.local/state/ips2_dask/jobs/260102-030405-abcd/log
#PBS -j oe
export IPS2_DRIVER_MEMORY=8589934592
module load python
ulimit -c 0
cd '/home/me/my work'
exec /opt/python -m ips2_dask.cli.driver /home/me/.local/state/ips2_dask/jobs/260102-030405-abcd
