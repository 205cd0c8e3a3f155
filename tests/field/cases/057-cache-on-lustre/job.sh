#!/bin/bash
#SBATCH --job-name=topoflow_1gpu
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --time=00:30:00
#SBATCH --partition=small-g
#SBATCH --account=project_1
#SBATCH --output=logs/topoflow_1gpu_%j.out
module purge
module load LUMI/24.03
module load partition/G
module load cray-python/3.11.7
cd /scratch/project_1/u/aq_net2
export MIOPEN_USER_DB_PATH=/scratch/project_1/u/miopen_cache
source venv_pytorch_rocm/bin/activate
python main.py --config configs/config_quick_test.yaml
