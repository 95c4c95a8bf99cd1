#!/usr/bin/env bash
#$ -N ips2-driver
#$ -q long
#$ -P physics
#$ -l mem_free=4096M
#$ -l h_rt=48:00:00
#$ -cwd
#$ -j y
#$ -S /bin/bash
#$ -pe smp 2
#$ -x first
#$ -y
#$ -o "/home/me/.local/state/ips2_dask/jobs/260102-030405-abcd/log"
#$ -notify
trap '' USR1
export IPS2_DRIVER_MEMORY=8589934592
module load python
ulimit -c 0
cd '/home/me/my work'
exec /opt/python -m ips2_dask.cli.driver /home/me/.local/state/ips2_dask/jobs/260102-030405-abcd
