"""Judge what the installed distributions contain for GPUs, in a container or on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from builders.findings import Finding
from builders.gpu.content import read_complete
from builders.wheels.wheel import DamagedError
from resolver.indexes import Judgement, judged
from resolver.requirements import is_for_cuda, normalize_name
from resolver.versions import join_words

if TYPE_CHECKING:
    from builders.probe.ask import EnvironmentReply, Probe
    from resolver.facts.catalog import Catalog
    from resolver.indexes import Content
    from resolver.model import Distribution, Resolution


def judge_contents(
    probe: Probe,
    folder: Path,
    reply: EnvironmentReply,
    lock: Resolution | None,
    catalog: Catalog,
    *,
    exclude: Callable[[Distribution, str], None],
) -> Iterator[Finding]:
    """Report the distributions that require CUDA, or do not fit the target of the lock.

    Those that the facts of the catalog describe are not read, and those that are for CUDA by their name are
    findings already. The others are read completely. Without a lock, only the need of CUDA can be judged.
    `exclude` is called with a distribution of the lock that does not fit, and with the evidence.
    """
    if lock is not None and lock.target.backend != "rocm":
        return
    picks = {normalize_name(pick.name): pick for pick in lock.distributions} if lock else {}
    installed = {name: dist.version for name, dist in reply.installed.items()}
    skipped = {name for name in installed if is_for_cuda(name)} | {"torch"}
    skipped |= {name for name, pick in picks.items() if not _is_open(pick, catalog)}
    contents = probe.ask_contents(skipped)
    for name, file in contents.written:
        content = _read(folder / Path(file).name)
        pick = picks.get(name)
        judgement = _judgement(content, lock if pick else None)
        if judgement is None or judgement.state != "does-not-fit":
            continue
        if pick:
            exclude(pick, judgement.evidence)
        verb = "does not fit: it " if pick else ""
        message = f"{name} {installed.get(name, '')} {verb}{judgement.evidence}."
        fix = (
            "The lock now excludes this file. Run `matrix resolve` again, and build the environment again."
            if pick
            else f"Resolve a request with {name} for this platform with `matrix resolve`."
        )
        yield Finding("verify-does-not-fit", "error", message, fix, {"content": judgement.evidence})
    if contents.left:
        message = f"The content of {join_words(contents.left, joiner='and')} is not judged: it is too large."
        yield Finding("verify-contents-not-judged", "warning", message, "Run `matrix check WHEEL`.")


def _is_open(pick: Distribution, catalog: Catalog) -> bool:
    """Return whether nothing but its content says what a distribution contains."""
    return pick.origin == "published" and (pick.name, pick.version, pick.variant) not in catalog.release


def _read(path: Path) -> Content | None:
    try:
        return read_complete(path)
    except DamagedError:  # its version is not valid
        return None
    finally:
        path.unlink()


def _judgement(content: Content | None, lock: Resolution | None) -> Judgement | None:
    if content is None:
        return None
    return judged(content, lock.target.gfx, lock.target.rocm or "") if lock else judged(content, ())
