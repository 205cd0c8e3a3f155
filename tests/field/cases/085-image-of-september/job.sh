#!/bin/bash
#SBATCH --partition=standard-g
#SBATCH --gpus-per-node=8
srun singularity exec /appl/local/laifs/containers/lumi-multitorch-full-u24r72f21m50t211-20260929_104918.sif python train.py
