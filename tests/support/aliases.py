"""A lock with an alias of triton; the wheels of torch, triton and liger stand in for the real ones."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from resolver.model import Edge, Resolution
from tests.support.locks import built_pick, local_file, lock_of, locked_pick
from tests.support.tiny import tiny_wheel

OWN = "pytorch-triton-rocm"
PINNED = "3.5.1+rocm6.4.torch2.9.1.gfx90a"
ALIAS = f"triton-{PINNED}-py3-none-any.whl"


def lock_with_alias(files: Path, *, index: str = "https://index.example/simple") -> Resolution:
    """Return a lock in which liger requires triton, and torch brings triton under another name.

    The wheels are files in a directory, and an index lists them.
    """
    torch = tiny_wheel(files, "torch", "2.9.1+rocm6.4", requires=[f"{OWN}==3.5.1"])
    triton = tiny_wheel(files, OWN, "3.5.1")
    liger = tiny_wheel(files, "liger", "0.6", requires=["torch", "triton>=3"])
    alias = replace(built_pick("triton", wheel_version=PINNED, alias_of=OWN), version="3.5.1")
    edges = [("liger", "torch"), ("liger", "triton"), ("torch", OWN), ("triton", OWN)]
    return lock_of(
        locked_pick("liger", "0.6", local_file(liger, index=index), index=index),
        locked_pick("torch", "2.9.1+rocm6.4", local_file(torch, index=index), index=index),
        locked_pick(OWN, "3.5.1", local_file(triton, index=index), index=index),
        alias,
        requested=("liger",),
        edges=tuple(Edge(one, other, "run", declared=True) for one, other in edges),
        order=((OWN,), ("torch", "triton"), ("liger",)),
    )
