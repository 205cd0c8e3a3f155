"""Five optimizer steps with DeepSpeed's compiled CPU Adam, compared with torch's AdamW.

Run it with the Python of an environment that has both. The exit code is 1 if they disagree, or if
the op is not the compiled op of the wheel.
"""

from __future__ import annotations

import sys

import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam
from deepspeed.ops.op_builder import CPUAdamBuilder

STEPS = 5
TOLERANCE = 1e-5  # single precision, five steps of size 0.01
OPTIONS = {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}


def main() -> int:
    """Compare the two optimizers on the same problem."""
    library = CPUAdamBuilder().load().__file__
    print(f"op: {library}")
    if "site-packages/deepspeed/ops/adam/cpu_adam_op" not in library:
        print("The op was compiled at run time; the wheel does not contain it.")
        return 1
    torch.manual_seed(7)
    start = torch.randn(257, 33)
    goal = torch.randn(257, 33)
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    pairs = [
        (ours, DeepSpeedCPUAdam([ours], adamw_mode=True, **OPTIONS)),
        (theirs, torch.optim.AdamW([theirs], **OPTIONS)),
    ]
    for step in range(1, STEPS + 1):
        for parameter, optimizer in pairs:
            optimizer.zero_grad()
            ((parameter - goal) ** 2).mean().backward()
            optimizer.step()
        print(f"step {step}: largest difference {(ours - theirs).abs().max().item():.2e}")
    moved = (ours - start).abs().max().item()
    difference = (ours - theirs).abs().max().item()
    print(f"parameters moved by up to {moved:.3f}; DeepSpeed and torch agree to {difference:.1e}")
    return 0 if difference < TOLERANCE < moved else 1


if __name__ == "__main__":
    sys.exit(main())
