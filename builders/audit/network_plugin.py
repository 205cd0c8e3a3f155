"""Check a network plugin of RCCL by its content: the interfaces and the names that RCCL looks for.

RCCL opens the plugin by name and takes the newest ``ncclNetPlugin_vN`` that both know. If there is none,
or no file of the name, it uses TCP with no more than a line in its log. Sources:
ROCm/rccl@2f6d59e2e651:src/net.cc (ROCm 6.0.2), @d380693772a8:src/net.cc (6.2.2),
@0123763ff393:src/plugin/net.cc (RCCL 2.27.7 of ROCm 7.2); https://github.com/ROCm/rccl/pull/1768 and
https://github.com/ROCm/rocm-systems/pull/4201 (names).
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, TypeVar

from builders.audit.elf import version_key
from builders.findings import Finding
from resolver.versions import satisfies

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builders.audit.contents import Contents, Expected
    from builders.audit.elf import SharedObject

_Value = TypeVar("_Value")
_INTERFACE = re.compile(r"ncclNetPlugin_v(\d+)")
_INTERFACES = {">=7": range(6, 11), ">=6.2,<7": range(5, 9), ">=6,<6.2": range(4, 7)}
"""Versions of the interface that RCCL looks for, by its ROCm. Newer RCCL knows newer ones, too."""
_NAMES = {">=7.1,<7.3": "libnccl-net.so", "<7.1": "librccl-net.so", ">=7.3": "librccl-net.so"}
"""The file that RCCL opens if NCCL_NET_PLUGIN is not set. For ROCm 7.1, inferred from its RCCL, 2.27.7."""


def interfaces(item: SharedObject) -> set[int]:
    """Return the versions of RCCL's network interface that a shared object exports; empty for no plugin."""
    return {int(match[1]) for name in item.exports if (match := _INTERFACE.fullmatch(name))}


def wanted_interfaces(rocm: str) -> range | None:
    """Return the versions of the interface that RCCL of a ROCm looks for; None if the ROCm is not known."""
    return _for_rocm(_INTERFACES, rocm)


def wanted_name(rocm: str) -> str | None:
    """Return the file that RCCL of a ROCm opens by default; None if the ROCm is not known."""
    return _for_rocm(_NAMES, rocm)


def lacks_symbols(needed: str, present: str) -> bool:
    """Return whether a plugin needs a newer symbol version of libfabric than there is, if both are known.

    The loader then refuses the plugin: libfabric may be newer than that of the build, but not older.
    """
    return bool(needed and present) and version_key(needed) > version_key(present)


def check_network_plugin(contents: Contents, expected: Expected) -> Iterator[Finding]:
    """Check the plugins in a wheel against the RCCL of the torch that the wheel is for."""
    plugins = {item.path: found for item in contents.objects if (found := interfaces(item))}
    if not plugins:
        return
    for info in contents.members:
        if PurePosixPath(info.filename).name.startswith("libfabric"):
            text = f"{info.filename} is a second libfabric, which may not know the network of the machine."
            fix = "Leave it out: the plugin must use the libfabric of the base image."
            yield Finding("plugin-with-libfabric", "error", text, fix, {"member": info.filename})
    for item in contents.objects:
        needed = item.versions.get("FABRIC", "")
        for provider in expected.providers:
            present = provider.versions.get("FABRIC", "")
            if item.path in plugins and lacks_symbols(needed, present):
                text = f"{item.path} needs FABRIC_{needed} of libfabric, but {provider.name} has at most"
                fix = "Build the plugin in the image that it will run in, else RCCL uses TCP."
                evidence = {"member": item.path, "symbol version": f"FABRIC_{needed}"}
                yield Finding("plugin-libfabric", "error", f"{text} FABRIC_{present}.", fix, evidence)
    rocm = expected.torch.rocm if expected.torch else ""
    wanted = wanted_interfaces(rocm)
    for path, found in plugins.items():
        exported = ", ".join(f"v{number}" for number in sorted(found))
        text = f"{path} exports RCCL's network interfaces {exported}"
        if wanted is not None and not found & {*wanted}:
            text += f"; RCCL of ROCm {rocm} needs one of v{wanted[0]} to v{wanted[-1]}, else it uses TCP."
            fix = "Use a release of aws-ofi-nccl with this interface (1.18.0 or newer), not AMD's old fork."
            yield Finding("plugin-interface", "error", text, fix, {"member": path})
        else:
            yield Finding("plugin-found", "info", f"{text}.", evidence={"member": path})
    name = wanted_name(rocm)
    if name is not None and not any(PurePosixPath(path).name == name for path in plugins):
        present = ", ".join(plugins)
        text = f"RCCL of ROCm {rocm} looks for {name}, which is not in the wheel; it has {present}."
        fix = "Install the library under this name, too, or set NCCL_NET_PLUGIN to its path."
        yield Finding("plugin-name", "error", text, fix)


def _for_rocm(table: Mapping[str, _Value], rocm: str) -> _Value | None:
    """Return the value for a ROCm; None if the ROCm is not known."""
    return next((each for specifier, each in table.items() if rocm and satisfies(rocm, specifier)), None)
