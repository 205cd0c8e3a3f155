# Started by uv run --script.
# /// script
# requires-python = ">=3.12,<3.13"
# dependencies = [
#   "numpy>=2",
#   "torch>=2.7,<2.8",
# ]
#
# # Torch must be the ROCm build.
# [[tool.uv.index]]
# name = "pytorch-rocm"
# url = "https://download.pytorch.org/whl/rocm6.3"
# ///
"""Capture the ground truth."""

BACKEND = "hip"
