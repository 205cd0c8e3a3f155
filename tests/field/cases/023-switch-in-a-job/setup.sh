#!/bin/bash
module load LUMI/24.03 partition/G rocm
export CUPY_INSTALL_USE_HIP=1
export ROCM_HOME=$ROCM_PATH
export HCC_AMDGPU_TARGET=gfx90a
pip install cupy==13.4.1
