"""Resolve, build, check and publish PyTorch extension wheels for AMD ROCm."""

__version__ = "0.1.0"
