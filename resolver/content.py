"""What the content of a compiled wheel says about the machines that it runs on, and whether it fits one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from resolver.texts import Digest, Name, VersionText
from resolver.versions import join_words, satisfies

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

_GENERIC = {
    "gfx9-generic": ("gfx900", "gfx902", "gfx904", "gfx906", "gfx909", "gfx90c"),
    "gfx9-4-generic": ("gfx940", "gfx941", "gfx942", "gfx950"),
    "gfx10-1-generic": ("gfx1010", "gfx1011", "gfx1012", "gfx1013"),
    "gfx10-3-generic": tuple(f"gfx103{number}" for number in range(7)),
    "gfx11-generic": (
        *(f"gfx110{number}" for number in range(4)),
        *(f"gfx115{number}" for number in range(4)),
    ),
    "gfx12-generic": ("gfx1200", "gfx1201"),
}
"""The architectures that run generic code [1]_.

.. [1] https://llvm.org/docs/AMDGPUUsage.html#amdgpu-generic-processor-table
"""


class Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What was read from one wheel; it depends on the file only, and on no platform."""

    evidence: str
    """What was read and what it shows, such as ``fmha.so needs libcudart.so.12``."""
    unread: str = ""
    """What was not read, although it may decide, and why; empty if everything that decides was read."""
    cuda: Literal["none", "optional", "required"] = "none"
    """Whether it has code for CUDA, and whether it can be used without."""
    rocm: str = ""
    """The specifier of the ROCm releases that have the libraries it needs; empty if it needs none."""
    gfx: tuple[str, ...] = ()
    """The GPU architectures of its HIP code; empty if it has none."""
    gpu_builds: tuple[str, ...] = ()
    """Other distributions that its description names, and that are builds of it for GPUs."""
    broken: str = ""
    """Why it cannot be used on any machine; empty if nothing shows that it cannot."""
    unseen: str = ""
    """What was not read either, but hardly decides: this is said, and no other release is preferred."""


class Judgement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Whether a distribution fits the GPUs and the ROCm of a target, judged by its content."""

    state: Literal["fits", "does-not-fit", "not-judged"]
    evidence: str
    """What shows it; if it was not judged, what was not read, and why."""
    on_cpu: bool = False
    """Whether it runs on the CPU here, because only CUDA or another distribution has its GPU code."""


class ExcludedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A file that does not fit the target of a lock, as a complete reading showed."""

    name: Name
    version: VersionText
    sha256: Digest
    evidence: str


def judged(content: Content, gfx: Sequence[str], rocm: str = "") -> Judgement:
    """Return whether a wheel fits GPU architectures and a release of ROCm.

    If the wheel has HIP code, it must have code for each of the architectures. `rocm` is empty if any release
    may be chosen.
    """
    against = _against(content, rocm)
    if against:
        return Judgement("does-not-fit", against)
    if content.unread:
        return Judgement("not-judged", content.unread)
    if content.gfx and not all(any(runs_on(code, one) for code in content.gfx) for one in gfx):
        code = join_words(content.gfx, most=8, joiner="and")
        text = f"contains code for {code}, but not for {join_words(gfx, joiner='and')}: {content.evidence}"
        return Judgement("does-not-fit", text)
    if content.unseen:
        return Judgement("not-judged", content.unseen)
    return _fitting(content)


def _fitting(content: Content) -> Judgement:
    """Return the judgement of a wheel against which nothing speaks."""
    if content.cuda == "optional" and not (content.rocm or content.gfx):
        return Judgement("fits", f"its GPU code is for CUDA: {content.evidence}", on_cpu=True)
    if content.gpu_builds:
        builds = join_words(content.gpu_builds, most=3, joiner="and")
        return Judgement("fits", f"its builds for GPUs are {builds}, and {content.evidence}", on_cpu=True)
    return Judgement("fits", content.evidence)


def _against(content: Content, rocm: str) -> str:
    """Return what speaks against a wheel on every GPU; empty if nothing does."""
    if content.broken:
        return content.broken
    if content.cuda == "required":
        return f"requires CUDA: {content.evidence}"
    if rocm and content.rocm and not satisfies(rocm, content.rocm):
        return f"requires rocm{content.rocm}: {content.evidence}"
    return ""


def runs_on(code: str, gfx: str) -> bool:
    """Return whether GPU code runs on an architecture.

    Code for one setting of XNACK runs only with this setting. It is off unless the architecture names it.

    Examples
    --------
    >>> codes = ("gfx90a", "gfx90a:sramecc+:xnack-", "gfx90a:xnack+", "gfx9-generic")
    >>> [runs_on(code, "gfx90a") for code in codes]
    [True, True, False, False]
    >>> runs_on("gfx9-4-generic", "gfx942"), runs_on("gfx90a:xnack+", "gfx90a:xnack+")
    (True, True)
    """
    architecture, *features = code.split(":")
    wanted, *settings = gfx.split(":")
    if architecture == "amdgcnspirv":  # it is compiled when it is loaded
        return True
    if architecture != wanted and wanted not in _GENERIC.get(architecture, ()):
        return False
    other = "xnack-" if "xnack+" in settings else "xnack+"
    return other not in features


def evidence_against(
    excluded: Iterable[ExcludedFile], name: str, version: str, hashes: Collection[str]
) -> str:
    """Return the evidence against a release if one of its files is excluded; empty if none is.

    The wheels of a release differ only in their Python, so each of them speaks for all. A file without a hash
    is excluded by its version.
    """
    against = [one for one in excluded if (one.name, one.version) == (name, version)]
    if not against:
        return ""
    return next((one.evidence for one in against if one.sha256 in hashes or "" in hashes), "")
