#!/bin/bash
#SBATCH --partition=standard-g
#SBATCH --nodes=1
#SBATCH --gpus-per-task=8
#SBATCH --ntasks-per-node=1
module load aws-ofi-rccl
export IMG=/appl/local/containers/sif-images/lumi-pytorch-rocm-6.2.4-python-3.12-pytorch-v2.7.0.sif
export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3
export NCCL_NET_GDR_LEVEL=PHB
singularity exec $IMG python3 train.py
