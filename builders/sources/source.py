"""One form for every source: what it is, where it lies in the cache, how it is unpacked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builders.sources.failures import shown
from builders.sources.git import fetch_git
from builders.sources.patches import apply_patches
from builders.sources.sdist import fetch_sdist, sdist_place
from builders.sources.unpack import unpack_sdist
from resolver.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from resolver.model import Distribution


@dataclass(frozen=True, slots=True)
class Source:
    """A source in the cache, checked against its pin."""

    name: str
    version: str
    kind: str
    """``sdist`` or ``git``."""
    origin: str
    """File name, or URL and commit."""
    identity: str
    """What it is, whatever it came from: ``sha256:...``, or ``git:COMMIT:tree:TREE``; with patches the
    hash of each follows."""
    archive: Path
    inputs: dict[str, Any]
    """The same as data, with the commits of the submodules, for the record of a build."""
    fetched: bool
    """Whether the network was used for it just now."""
    patches: tuple[Path, ...] = ()
    remarks: tuple[str, ...] = ()
    """What a person should know."""

    def unpack(self, directory: Path, *, log: Path | None = None) -> Path:
        """Unpack it below a directory, apply its patches, and give its top directory.

        Parameters
        ----------
        directory
            Made if it is not there. It must not hold the same source already.
        log
            Where the output of ``git apply`` goes; beside the directory when None.

        Raises
        ------
        SourceError
            The archive is damaged or hostile, or a patch does not fit.
        EnvironmentLacksError
            The disk is full, or there is no git to apply patches.
        """
        top = unpack_sdist(self.archive, directory)
        apply_patches(top, self.patches, log or directory.with_name(f"{directory.name}-patches.log"))
        return top

    def variables(self, directory: Path) -> dict[str, str]:
        """Give the variables with which it must be built.

        Parameters
        ----------
        directory
            The one it was unpacked below.

        Returns
        -------
        dict
            A ceiling, so that a ``git rev-parse`` of the build never finds a repository around the
            directory and puts its commit into the wheel. For a source from git also its version, since
            setuptools-scm would read it from the history. What a recipe sets comes after.
        """
        own = {"GIT_CEILING_DIRECTORIES": str(directory.resolve())}
        if self.kind == "git":
            own["SETUPTOOLS_SCM_PRETEND_VERSION"] = self.version
        return own


def obtain(
    pick: Distribution,
    *,
    offline: bool = False,
    mirrors: Mapping[str, str] | None = None,
    patches: Sequence[Path] = (),
) -> Source:
    """Give the source of a pick that is built, from the cache or from where it is.

    Parameters
    ----------
    pick
        A pick of a lock, with an sdist or a git commit.
    offline
        Take it from the cache or not at all.
    mirrors
        URL prefix to what is asked instead.
    patches
        Its patches (`builders.sources.patches_of`).

    Raises
    ------
    SourceError, HashMismatchError
        It cannot be had, or is not what was pinned.
    EnvironmentLacksError
        The network was needed and could not be used, or the cache cannot be written.
    """
    if len(patches) != len(pick.patches):
        msg = f"{pick.name} {pick.version} has {len(pick.patches)} patches; {len(patches)} were given."
        raise SourceError(msg)
    hashes = [patch.sha256 for patch in pick.patches]
    if pick.sdist is not None:
        fetched = not sdist_place(pick.sdist).exists()
        archive = fetch_sdist(pick.name, pick.sdist, offline=offline, mirrors=mirrors)
        return Source(
            name=pick.name,
            version=pick.version,
            kind="sdist",
            origin=pick.sdist.file,
            identity=":".join(["sha256", pick.sdist.sha256, *hashes]),
            archive=archive,
            inputs={"file": pick.sdist.file, "sha256": pick.sdist.sha256} | _listed(hashes),
            fetched=fetched,
            patches=tuple(patches),
        )
    if pick.git is None:
        msg = f"{pick.name} {pick.version} is not built, so it has no source."
        raise SourceError(msg)
    checkout = fetch_git(pick.git, offline=offline, mirrors=mirrors)
    record = checkout.record
    submodules = {path: [one.url, one.commit] for path, one in record.modules.items() if path}
    remark = (
        f"{len(record.large_files)} files of {pick.name} {pick.version} are kept by Git LFS and were not "
        f"fetched: {', '.join(record.large_files[:3])}"
    )
    return Source(
        name=pick.name,
        version=pick.version,
        kind="git",
        origin=f"{shown(record.url)}@{record.commit}",
        identity=":".join(["git", record.commit, "tree", record.tree, *hashes]),
        archive=checkout.archive,
        inputs={
            "url": shown(record.url),
            "commit": record.commit,
            "tree": record.tree,
            "submodules": submodules,
        }
        | _listed(hashes),
        fetched=checkout.fetched,
        patches=tuple(patches),
        remarks=(remark,) if record.large_files else (),
    )


def _listed(hashes: Sequence[str]) -> dict[str, Any]:
    return {"patches": list(hashes)} if hashes else {}
