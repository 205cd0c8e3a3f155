"""A source in the cache, from an sdist or from git: checked against its pin, unpacked, patched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from builders.machine.process import run
from builders.network.git import CachedCommit, fetch_git, git_environment, require_git
from builders.network.urls import without_password
from builders.sources.sdist import fetch_sdist, sdist_path, unpack_sdist
from builders.storage.files import sha256_of
from resolver.errors import CommandError, EnvironmentLacksError, MatrixError, SourceError
from resolver.model import NETWORK_PLUGIN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from resolver.facts.catalog import Catalog
    from resolver.model import Distribution

_TOP = "source"
"""Top directory of a source from git."""
_MOST_LISTED = 3


class Source(msgspec.Struct, frozen=True):
    """A source in the cache, checked against its pin."""

    name: str
    version: str
    kind: str
    """``sdist`` or ``git``."""
    origin: str
    """File name, or URL and commit."""
    identity: str
    """``sha256:...``, or ``git:COMMIT:tree:TREE``, followed by the hashes of its patches."""
    path: Path
    """The file, or the bare repository."""
    size: int
    """Size in the cache, in bytes."""
    inputs: dict[str, Any]
    """Its identity as data, with the commits of the submodules, for the record of a build."""
    fetched: bool
    """Whether the network was used."""
    patches: tuple[Path, ...] = ()
    commit: CachedCommit | None = None
    """The cached commit of a source from git."""
    warnings: tuple[str, ...] = ()

    def unpack(self, directory: Path, *, log: Path | None = None) -> Path:
        """Unpack into a directory, apply the patches, and return the top directory.

        Parameters
        ----------
        directory
            The directory; it is created if necessary, and must not contain the same source already.
        log
            Receives git's output; by default a file next to the directory.

        Raise `SourceError` if the archive is damaged, a patch does not apply, or the file system rejects a
        file's name; `CommandError` if git failed; `EnvironmentLacksError` if the disk is full, or git is not
        installed.
        """
        log = log or directory.with_name(f"{directory.name}-source.log")
        if self.commit is None:
            top = unpack_sdist(self.path, directory)
        else:
            top = directory / _TOP
            self.commit.checkout(top, log)
        apply_patches(top, self.patches, log)
        return top

    def variables(self, directory: Path) -> dict[str, str]:
        """Return the variables that a build of the source needs; those of the recipe take precedence.

        Parameters
        ----------
        directory
            The directory that the source was unpacked into. Without a ceiling, ``git rev-parse`` in a build
            may find a repository around it and put that commit into the wheel. setuptools-scm reads the
            version from git's history, which an unpacked source does not have.
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
    """Return the source of a distribution that is built, from the cache or from its server.

    Parameters
    ----------
    pick
        A distribution with an sdist or a git commit.
    offline
        Whether only the cache is used.
    mirrors
        Maps URL prefixes to their replacement.
    patches
        Its patches (`patches_of`).

    Raise `SourceError` or `MatrixError` if the source cannot be downloaded, or differs from its pin;
    `CommandError` if git failed; `EnvironmentLacksError` if git or the network is missing, or the cache is
    not writable; `UsageError` if a configuration file of pip cannot be read.
    """
    if len(patches) != len(pick.patches):
        numbers = f"{len(pick.patches)}, not {len(patches)}"
        msg = f"The number of patches for {pick.name} {pick.version} must be {numbers}."
        raise SourceError(msg)
    hashes = [patch.sha256 for patch in pick.patches]
    patch_inputs = {"patches": hashes} if hashes else {}
    if pick.sdist is not None:
        fetched = not sdist_path(pick.sdist).exists()
        url = next((file.url for file in pick.files if file.name == pick.sdist.file), "")
        path = fetch_sdist(pick.name, pick.sdist, url=url, offline=offline, mirrors=mirrors)
        return Source(
            name=pick.name,
            version=pick.version,
            kind="sdist",
            origin=pick.sdist.file,
            identity=":".join(["sha256", pick.sdist.sha256, *hashes]),
            path=path,
            size=path.stat().st_size,
            inputs={"file": pick.sdist.file, "sha256": pick.sdist.sha256, **patch_inputs},
            fetched=fetched,
            patches=tuple(patches),
        )
    if pick.git is None:
        msg = f"{pick.name} {pick.version} is not built, so it has no source."
        raise SourceError(msg)
    try:
        commit = fetch_git(pick.git, offline=offline, mirrors=mirrors)
    except EnvironmentLacksError as error:
        if pick.name == NETWORK_PLUGIN:  # the user may not have asked for it
            hint = f"{error.hint} To do without RCCL's network plugin: `matrix resolve --no-network-plugin`."
            raise error.changed(hint=hint.strip()) from None
        raise
    url, submodules = without_password(pick.git.url), commit.trees[1:]
    return Source(
        name=pick.name,
        version=pick.version,
        kind="git",
        origin=f"{url}@{pick.git.commit}",
        identity=":".join(["git", pick.git.commit, "tree", commit.tree, *hashes]),
        path=commit.repository.path,
        size=commit.size,
        inputs={
            "url": url,
            "commit": pick.git.commit,
            "tree": commit.tree,
            "submodules": {
                tree.path: [without_password(tree.repository.url), tree.commit] for tree in submodules
            },
            **patch_inputs,
        },
        fetched=commit.fetched,
        patches=tuple(patches),
        commit=commit,
        warnings=_lfs_warnings(pick, commit.large_files()),
    )


def _lfs_warnings(pick: Distribution, files: Sequence[str]) -> tuple[str, ...]:
    if not files:
        return ()
    listed = ", ".join(files[:_MOST_LISTED]) + (", ..." if len(files) > _MOST_LISTED else "")
    return (f"{pick.name} {pick.version}: Git LFS files were not fetched ({len(files)}): {listed}",)


def patches_of(pick: Distribution, catalog: Catalog) -> tuple[Path, ...]:
    """Return the patch files of a distribution, which are next to the catalog file that lists them.

    Raise `SourceError` if a file is missing; `MatrixError` if a file differs from the lock.
    """
    release = catalog.release.get((pick.name, pick.version, pick.variant))
    folder = Path(release.from_file).parent if release else Path()
    paths = []
    for patch in pick.patches:
        path = folder / patch.file
        if release is None or not path.is_file():
            msg = f"The lock builds {pick.name} {pick.version} with {patch.file}, but {path} does not exist."
            raise SourceError(msg, hint="Name the catalog that the lock was resolved with: --catalog DIR.")
        actual = sha256_of(path)
        if actual != patch.sha256:
            msg = (
                f"{path} differs from the patch in the lock; nothing was built.\n"
                f"  expected SHA-256 {patch.sha256}\n  actual   SHA-256 {actual}"
            )
            hint = "If you changed the patch on purpose, correct its hash in the catalog and resolve again."
            raise MatrixError(msg, hint=hint, id="hash-mismatch")
        paths.append(path)
    return tuple(paths)


def apply_patches(source: Path, patches: Sequence[Path], log: Path) -> None:
    """Apply patches to an unpacked source in order, each completely or not at all.

    Raise `SourceError` if a patch does not apply exactly, or would write outside of the source;
    `EnvironmentLacksError` if git is not installed.
    """
    if not patches:
        return
    require_git()
    # Without a ceiling git would find a repository around the source, and skip all files that are not in it.
    env = git_environment() | {"GIT_CEILING_DIRECTORIES": str(source.resolve().parent)}
    for patch in patches:
        command = ["git", "apply", "--verbose", "--whitespace=nowarn", str(patch.resolve())]
        try:
            run(command, what=f"Applying {patch.name}", log=log, cwd=source, env=env)
        except CommandError as error:
            output = "".join(f"\n    {line}" for line in error.lines)
            msg = f"The patch {patch.name} does not apply to {source.name}.{output}\n  Log: {log}"
            raise SourceError(
                msg, hint=f"Check that the patch is complete and for this version: {patch}"
            ) from None
