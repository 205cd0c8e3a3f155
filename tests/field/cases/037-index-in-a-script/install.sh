#!/bin/bash
conda create -n robin python=3.10 -y
conda activate robin
module load rocm/5.4.3
pip3 install torch==2.0.1 torchvision==0.15.2 --index-url https://download.pytorch.org/whl/rocm5.4.2
