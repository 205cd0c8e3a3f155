"""Namespaces of the kernel that an ordinary user can make: no network, and rights over mounts.

Source: unshare(1) of util-linux, user_namespaces(7), network_namespaces(7).
"""

from __future__ import annotations

import shutil
from functools import cache

from builders.process import output_of

_DEVICES = ("cat", "/proc/net/dev")
_HEADINGS = 2  # lines of /proc/net/dev before the devices
_MAPPINGS = ("--map-current-user", "--map-root-user")  # util-linux before 2.35 knows only the second


@cache
def without_network() -> tuple[str, ...]:
    """Give the words that, before a command, cut it off from every network; none if that cannot be had."""
    for mapping in _MAPPINGS:
        words = (shutil.which("unshare") or "unshare", "--user", mapping, "--net")
        if only_loopback(output_of([*words, *_DEVICES])):
            return words
    return ()


@cache
def can_mount() -> bool:
    """Tell whether an ordinary user may mount here, in namespaces of his own."""
    unshare = shutil.which("unshare") or "unshare"
    commands = ([unshare, "--user", mapping, "--mount", "echo", "yes"] for mapping in _MAPPINGS)
    return any(output_of(command).strip() == "yes" for command in commands)


def only_loopback(devices: str) -> bool:
    r"""Read ``/proc/net/dev``: whether the loopback device is the only one.

    Examples
    --------
    >>> only_loopback("Inter-|\n face |\n    lo: 0 0\n")
    True
    >>> only_loopback("Inter-|\n face |\n    lo: 0 0\n  eth0: 1 2\n")
    False
    >>> only_loopback("")
    False
    """
    lines = devices.splitlines()
    return len(lines) >= _HEADINGS and {line.partition(":")[0].strip() for line in lines[_HEADINGS:]} <= {
        "lo"
    }
