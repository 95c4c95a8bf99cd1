#!/usr/bin/env bash

#BSUB -J mine
#BSUB -e /shared/logs/ips2-0-%J.err
#BSUB -o /shared/logs/ips2-0-%J.out
#BSUB -q long
#BSUB -P "physics"
#BSUB -n 8
#BSUB -R "span[hosts=1]"
#BSUB -M 35
#BSUB -W 26:00
#BSUB -x first
#BSUB -y
export DASK_DISTRIBUTED__WORKER__MEMORY__TARGET=0.6
export DASK_DISTRIBUTED__WORKER__MEMORY__SPILL=0.7
export DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE=False
export DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE=0.95
export OMP_NUM_THREADS=1
export OPENBLAS_NUM_THREADS=1
export MKL_NUM_THREADS=1
export NUMBA_NUM_THREADS=1
export MALLOC_TRIM_THRESHOLD_=268435456
export MALLOC_MMAP_THRESHOLD_=268435456
export MALLOC_ARENA_MAX=2
module load python
ulimit -c 0
ips2_now=$(date +%s)
ips2_lifetime=$(( (ips2_now + 93000) / 23250 * 23250 - RANDOM % 2 * 23250 - ips2_now ))
/opt/python -m distributed.cli.dask_worker tls://SCHEDULER:PORT --name ips2-0 --nthreads 4 --memory-limit 16.00GiB --nworkers 2 --nanny --death-timeout 300 --local-directory /local/scratch --no-dashboard --preload ips2_dask.pipeline.compile_kernels --preload my_module --lifetime ${ips2_lifetime}s --nthreads 1 --interface ib0 --protocol tls:// --tls-ca-file /shared/tls/ca.pem --tls-cert /shared/tls/worker.pem --tls-key /shared/tls/worker.key
