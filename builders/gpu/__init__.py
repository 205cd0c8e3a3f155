"""What wheels contain for GPUs, and which files to open before they are chosen; `content` reads them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from resolver.indexes import Content
from resolver.requirements import is_for_cuda, required_name

if TYPE_CHECKING:
    from resolver.indexes import File, Metadata

RULES = 16
"""Version of the rules of `builders.gpu.content` and `builders.source_facts`; another gives other results."""
SIGN = re.compile(
    r"cuda|cudnn|cublas|nvidia|nccl|gpu|rocm|amdhip|tensorrt|cutlass|torch|migraphx"
    r"|(?<![a-z])(?:cu1\d|hip|amd|gfx\d)",
    re.IGNORECASE,
)
"""Words in names of distributions and objects that may mean GPU code."""
FRAMEWORKS = {"torch", "jax", "jaxlib", "tensorflow", "cupy"}
"""Distributions with GPU code of their own; what requires them may have some, too."""
_LARGE_PURE = 20_000_000  # bytes of a wheel without a platform tag

_SMALL_PURE = 3_000  # bytes of a wheel that hardly has code, such as a placeholder


STORED: msgspec.msgpack.Decoder[Content | None] = msgspec.msgpack.Decoder(Content | None)
"""Decodes a result in the cache."""


def may_be_compiled(file: File, metadata: Metadata | None) -> bool:
    """Return whether to open a file before it is chosen: all but wheels that seem to be pure Python.

    Some wheels for every platform have objects, code objects or CUDA sources (k2, amd-aiter, gsplat), and
    very small ones may be placeholders.
    """
    if not file.name.endswith("-any.whl"):
        return True
    if metadata is None or file.size > _LARGE_PURE or SIGN.search(metadata.name):
        return True
    if file.size and file.size < _SMALL_PURE:
        return True
    return any(name in FRAMEWORKS or is_for_cuda(name) for name in map(required_name, metadata.requires))
