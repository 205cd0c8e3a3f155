"""Loads its library as bitsandbytes does: after torch, which loads ROCm."""

import ctypes
from pathlib import Path

import torch  # noqa: F401

library = ctypes.CDLL(str(Path(__file__).with_name("libcmaketiny.so")))
