"""A source in the cache, from an sdist or from git: checked against its pin, unpacked, patched."""

from __future__ import annotations

import errno
import lzma
import os
import shutil
import sys
import tempfile
import zipfile
import zlib
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import msgspec

from builders.index_client import IndexClient
from builders.machine.process import run
from builders.network.download import MIRROR_HINT, Downloads, check_hash, download
from builders.network.git import CachedCommit, fetch_git, git_environment, require_git
from builders.network.urls import OFFLINE_HINT, configured_index, pip_configuration, without_password
from builders.storage.files import TEMPORARY_PREFIX, sdist_path
from builders.storage.io_errors import explain_io_errors
from resolver.errors import CommandError, EnvironmentLacksError, SourceError
from resolver.facts.schema import NETWORK_PLUGIN
from resolver.versions import shorten

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from resolver.facts.schema import Sdist
    from resolver.model import Distribution


_TOP = "source"
"""Top directory of a source from git."""
_MOST_LISTED = 3

if sys.version_info >= (3, 12):
    import tarfile
else:  # Python 3.11.0 to 3.11.3 have no extraction filters
    import backports.tarfile as tarfile  # noqa: PLR0402  has no types, so it is not an attribute

_ZIP = b"PK\3\4"
_LONGEST_LINK = 4096  # bytes, PATH_MAX of Linux
_DEEPEST = 200  # directories in each other; os.makedirs and shutil.rmtree recurse
_DAMAGED = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError, KeyError,
    OverflowError,
    RuntimeError,  # of encrypted members of a zip archive, and of a long chain of links
)  # fmt: skip
_ERRORS_OF_ARCHIVES = {
    None, errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ELOOP,
    errno.EINVAL, errno.ENOENT, errno.EILSEQ,
}  # fmt: skip
"""Error numbers caused by names and kinds of members; errors of gzip have no number."""
_REJECTED = {
    tarfile.OutsideDestinationError: "it would be unpacked outside of the source",
    tarfile.SpecialFileError: "it is a device or a pipe",
    tarfile.AbsoluteLinkError: "it is a link to an absolute path",
    tarfile.LinkOutsideDestinationError: "it is a link to a file outside of the source",
}


def fetch_sdist(
    project: str,
    pin: Sdist,
    *,
    url: str = "",
    offline: bool = False,
    mirrors: Mapping[str, str] | None = None,
) -> Path:
    """Return the path of a pinned sdist, from the cache or from the index.

    `url` is in some locks; else the page of the project on the index is read. `mirrors` map URL prefixes of
    the index and its files to their replacement. Errors are those of `download`, and `UsageError` if a
    configuration file of pip cannot be read.
    """
    if Path(pin.file).name != pin.file or pin.file.startswith(".") or not pin.file:
        msg = f"{pin.file!r} is not a file name."
        raise SourceError(msg, hint="Correct the row in the catalog, and resolve again.")
    target = sdist_path(pin)
    if target.exists():
        check_hash(target, pin.sha256, name=pin.file, origin=f"the cache ({target.parent})")
        return target
    if offline:
        msg = f"{pin.file} is not in the cache, and --offline is set."
        raise EnvironmentLacksError(msg, hint=OFFLINE_HINT)
    mirrors = mirrors or {}
    url = url or _file_url(project, pin.file, index_url(), mirrors)
    download(url, target, pin.sha256, Downloads(mirrors))
    return target


def index_url() -> str:
    """Return the package index that pip is configured to use, or the public index."""
    return configured_index(pip_configuration())


def _file_url(project: str, file: str, index: str, mirrors: Mapping[str, str]) -> str:
    published = IndexClient([index], mirrors=mirrors, fresh_for=0).project(project)
    if published is None:
        msg = f"The index {without_password(index)} has no project {project}."
        raise SourceError(msg, hint="It may be an incomplete mirror. Configure another index for pip.")
    for release in published.releases:
        for entry in release.files:
            if entry.name == file:
                return entry.url
    raise SourceError(f"The index {without_password(index)} does not have {file}.", hint=MIRROR_HINT)


def unpack_sdist(archive: Path, target: Path) -> Path:
    """Unpack an sdist into a directory and return its top directory there.

    tarfile's ``data`` filter (PEP 706) rejects members outside of the directory. Raise `SourceError` if the
    archive is damaged, or does not have exactly one top directory.
    """
    target.mkdir(parents=True, exist_ok=True)
    with explain_io_errors(target, hint="Free some space, or choose another directory."):
        work = Path(tempfile.mkdtemp(dir=target, prefix=TEMPORARY_PREFIX))
        try:
            _extract(archive, work)
            tops = list(work.iterdir())
            if len(tops) != 1 or not tops[0].is_dir() or tops[0].is_symlink():
                found = "no top directory" if len(tops) == 1 else f"{len(tops)} top-level entries"
                msg = f"{archive.name} is not an sdist: it has {found}."
                raise SourceError(msg, hint="An sdist has exactly one top directory (PEP 517).")
            top = target / tops[0].name
            tops[0].replace(top)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return top


def _extract(archive: Path, target: Path) -> None:
    member = ""

    def checked(info: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
        nonlocal member
        member = info.name
        if member.count("/") > _DEEPEST:
            msg = "its path has too many directories"
            raise ValueError(msg)
        info = tarfile.data_filter(info, path)
        _check_link(info, target)
        return info

    try:
        if _is_zip(archive):  # some old releases have no other sdist
            _extract_zip(archive, target)
            return
        with tarfile.open(archive, "r:*") as tar:
            tar.extractall(target, filter=checked)  # noqa: S202  the filter rejects paths outside
    except (*_DAMAGED, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _ERRORS_OF_ARCHIVES:
            error.filename = None  # users do not know the temporary directory
            raise
        at = f" at the member {shorten(member)!r}" if member else ""
        msg = f"Cannot unpack {archive.name}{at}: {_reason(error)}."
        raise SourceError(msg, hint=f"Remove {archive} to download it again.") from None


def _is_zip(archive: Path) -> bool:
    with archive.open("rb") as file:
        return file.read(len(_ZIP)) == _ZIP


def _extract_zip(archive: Path, target: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        for name in file.namelist():
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\\" in name:
                msg = f"its member {shorten(name)!r} would be unpacked outside of the source"
                raise ValueError(msg)
            if name.count("/") > _DEEPEST:
                msg = "its path has too many directories"
                raise ValueError(msg)
        file.extractall(target)  # noqa: S202  the names were checked, and it makes no links


def _check_link(member: tarfile.TarInfo, target: Path) -> None:
    """Raise errors for invalid links that tarfile would accept."""
    if member.islnk() and not (target / member.linkname).is_file():
        raise KeyError(member.linkname)
    if member.issym() and len(os.fsencode(member.linkname)) >= _LONGEST_LINK:
        raise OSError(errno.ENAMETOOLONG, "")
    if member.issym() and (target / member.name).is_dir():
        raise OSError(errno.EISDIR, "")


def _reason(error: Exception) -> str:
    """Return the reason for a failure without paths of this machine."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    if isinstance(error, RecursionError):
        return "it follows too many links"
    if isinstance(error, KeyError):
        return "it is a link to a file that is not in the archive"
    known = (reason for kind, reason in _REJECTED.items() if isinstance(error, kind))
    return next(known, str(error).rstrip(".") or "the archive ends too early")


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
    inputs: dict[str, Any]
    """Its identity as data, with the commits of the submodules, for the record of a build."""
    fetched: bool
    """Whether the network was used."""
    patches: tuple[Path, ...] = ()
    commit: CachedCommit | None = None
    warnings: tuple[str, ...] = ()

    def unpack(self, directory: Path, *, log: Path | None = None) -> Path:
        """Unpack into a directory without that source, apply the patches, and return the top directory.

        `log` receives git's output; by default a file next to the directory. Raise `SourceError` if the
        archive is damaged, a patch does not apply, or the file system rejects a file's name.
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
        """Return the variables that a build of the source in a directory needs; the recipe's take precedence.

        Without a ceiling, ``git rev-parse`` in a build may find a repository around it and put that commit
        into the wheel. setuptools-scm reads the version from git's history, which an unpacked source does not
        have.
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

    `mirrors` map URL prefixes to their replacement; `patches` are those of `patches_of`. Raise `SourceError`
    or `MatrixError` if the source cannot be downloaded, or differs from its pin; for the rest see `fetch_git`
    and `fetch_sdist`.
    """
    if len(patches) != len(pick.patches):
        numbers = f"{len(pick.patches)}, not {len(patches)}"
        raise SourceError(f"The number of patches for {pick.name} {pick.version} must be {numbers}.")
    hashes = [patch.sha256 for patch in pick.patches]
    made = partial(Source, pick.name, pick.version, patches=tuple(patches))
    patch_inputs = {"patches": hashes} if hashes else {}
    if pick.sdist is not None:
        fetched = not sdist_path(pick.sdist).exists()
        url = next((file.url for file in pick.files if file.name == pick.sdist.file), "")
        path = fetch_sdist(pick.name, pick.sdist, url=url, offline=offline, mirrors=mirrors)
        return made(
            kind="sdist",
            origin=pick.sdist.file,
            identity=":".join(["sha256", pick.sdist.sha256, *hashes]),
            path=path,
            size=path.stat().st_size,
            inputs={"file": pick.sdist.file, "sha256": pick.sdist.sha256, **patch_inputs},
            fetched=fetched,
        )
    if pick.git is None:
        raise SourceError(f"{pick.name} {pick.version} is not built, so it has no source.")
    try:
        commit = fetch_git(pick.git, offline=offline, mirrors=mirrors)
    except EnvironmentLacksError as error:
        if pick.name == NETWORK_PLUGIN:  # the user may not have asked for it
            hint = f"{error.hint} To do without RCCL's network plugin: `matrix resolve --no-network-plugin`."
            raise error.changed(hint=hint.strip()) from None
        raise
    url, submodules = without_password(pick.git.url), commit.trees[1:]
    return made(
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
        commit=commit,
        warnings=_lfs_warnings(pick, commit.large_files()),
    )


def _lfs_warnings(pick: Distribution, files: Sequence[str]) -> tuple[str, ...]:
    if not files:
        return ()
    listed = ", ".join(files[:_MOST_LISTED]) + (", ..." if len(files) > _MOST_LISTED else "")
    return (f"{pick.name} {pick.version}: Git LFS files were not fetched ({len(files)}): {listed}",)


def apply_patches(source: Path, patches: Sequence[Path], log: Path) -> None:
    """Apply patches to an unpacked source in order, each completely or not at all.

    Raise `SourceError` if a patch does not apply exactly, or would write outside of the source.
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
