pip uninstall -y torch torchvision
pip install torch==2.3.0 torchvision==0.18.0 -f https://repo.radeon.com/rocm/manylinux/rocm-rel-6.2.1/
