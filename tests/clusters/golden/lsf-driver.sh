#!/usr/bin/env bash
#BSUB -J ips2-driver
#BSUB -q long
#BSUB -P "physics"
#BSUB -n 2
#BSUB -R "span[hosts=1]"
#BSUB -M 9
#BSUB -W 48:00
#BSUB -x first
#BSUB -y
#BSUB -o /home/me/.local/state/ips2_dask/jobs/260102-030405-abcd/log
export IPS2_DRIVER_MEMORY=8589934592
module load python
ulimit -c 0
cd '/home/me/my work'
exec /opt/python -m ips2_dask.cli.driver /home/me/.local/state/ips2_dask/jobs/260102-030405-abcd
