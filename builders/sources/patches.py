"""Patches that a catalog keeps for a release: found, checked by hash, applied whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from builders.files import sha256_of
from builders.process import run
from builders.sources.repository import environment, program
from resolver.errors import CommandError, HashMismatchError, SourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resolver.facts.catalog import Catalog
    from resolver.model import Distribution


def patches_of(pick: Distribution, catalog: Catalog) -> tuple[Path, ...]:
    """Find the patches of a pick: they lie beside the catalog file that lists them.

    Raises
    ------
    SourceError
        The catalog does not have one.
    HashMismatchError
        One is not what the lock says.
    """
    release = catalog.release.get((pick.name, pick.version, pick.variant))
    found = []
    for patch in pick.patches:
        beside = Path(release.from_file).parent if release else Path()
        path = beside / patch.file
        if release is None or not path.is_file():
            msg = (
                f"The lock builds {pick.name} {pick.version} with {patch.file}, and there is no file {path}."
            )
            raise SourceError(msg, hint="Name the catalog it was resolved with: --catalog DIR.")
        actual = sha256_of(path)
        if actual != patch.sha256:
            msg = (
                f"{path} is not the patch that was pinned; nothing was built with it.\n"
                f"  wanted sha256 {patch.sha256}\n  found  sha256 {actual}"
            )
            raise HashMismatchError(
                msg, hint="If it was changed on purpose, correct its row and resolve again."
            )
        found.append(path)
    return tuple(found)


def apply_patches(source: Path, patches: Sequence[Path], log: Path) -> None:
    """Apply patches to an unpacked source, in their order, as ``git apply`` does with ``-p1``.

    Parameters
    ----------
    source
        Its top directory.
    patches
        The files, checked.
    log
        Where git's output goes.

    Raises
    ------
    SourceError
        One does not fit exactly, or would write outside.
    EnvironmentLacksError
        There is no git.
    """
    if not patches:
        return
    program()
    # Without a ceiling git would find a repository around the source, and pass over every file that
    # is not in it.
    env = environment() | {"GIT_CEILING_DIRECTORIES": str(source.resolve().parent)}
    for patch in patches:
        command = ["git", "apply", "--verbose", "--whitespace=nowarn", str(patch.resolve())]
        try:
            run(command, what=f"Applying {patch.name}", log=log, cwd=source, env=env)
        except CommandError as error:
            said = "".join(f"\n    {line}" for line in error.lines)
            msg = f"The patch {patch.name} does not fit the source {source.name}.{said}\n  Log: {log}"
            hint = f"It was made for another version, or is damaged: {patch}"
            raise SourceError(msg, hint=hint) from None
