"""Whatever ends the program ends what runs in a container.

`builders.run` asks the kernel to send SIGTERM to what it starts when the program dies, even by
SIGKILL. The kernel forgets that when a process changes its rights, as a container runtime does
(prctl(2), PR_SET_PDEATHSIG). So a shell, which changes nothing, stands between the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHELL = """\
end() {
    [ "$runtime" ] || exit 143
    kill -TERM $runtime
    for second in 1 2 3 4 5; do kill -0 $runtime 2>/dev/null && sleep 1; done
    kill -KILL $runtime 2>/dev/null
    wait $runtime
    exit 143
}
runtime=
trap end TERM INT HUP
"$@" &
runtime=$!
wait $runtime"""


def ended_with_program(line: Sequence[str]) -> list[str]:
    """Put a shell before a container runtime that ends it: politely, and after five seconds for good."""
    return ["/bin/sh", "-c", _SHELL, "sh", *line]
