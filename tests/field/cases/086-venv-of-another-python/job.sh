#!/bin/bash -l
#SBATCH --partition=standard-g
#SBATCH --nodes=1
#SBATCH --gres=gpu:mi250:2
module load pytorch nano
export PYTHONPATH="$PROJECT_PATH/.venv/lib/python3.10/site-packages/"
source $PROJECT_PATH/.venv/bin/activate
export HIP_VISIBLE_DEVICES=0,1,2,3,4,5,6,7
srun singularity_wrapper exec accelerate launch --num_machines=1 run.py
