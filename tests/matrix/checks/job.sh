#!/bin/bash
#SBATCH --partition=small-g
#SBATCH --nodes=2
#SBATCH --gpus-per-task=1
#SBATCH --ntasks-per-node=8
export NCCL_SOCKET_IFNAME=eth0
export MIOPEN_USER_DB=/tmp/$USER
export HSA_OVERRIDE_GFX_VERSION=9.0.0
srun --cpu-bind=cores singularity exec /appl/local/containers/sif-images/lumi-rocm-rocm-5.6.1.sif bash -c 'pip install --user tqdm && python train.py'
