#!/bin/bash
pip install tensorflow-rocm==2.16.1 -f https://repo.radeon.com/rocm/manylinux/rocm-rel-6.2 --upgrade --force-reinstall
