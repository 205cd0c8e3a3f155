"""Git repositories for tests, with submodules, and with trees that git would never commit."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

Files = Mapping[str, str | bytes]
"""Maps paths to content; text that begins with ``->`` is a symbolic link."""


def git(where: Path, *arguments: str, data: bytes | None = None) -> str:
    """Run git without any user configuration and return its output."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "protocol.file.allow",
        "GIT_CONFIG_VALUE_0": "always",
    }
    for who in ("AUTHOR", "COMMITTER"):
        env |= {f"GIT_{who}_NAME": "tests", f"GIT_{who}_EMAIL": "tests@localhost"}
        env |= {f"GIT_{who}_DATE": "2026-01-01T00:00:00Z"}
    done = subprocess.run(
        ["git", *arguments], cwd=where, env=env, input=data, check=True, capture_output=True
    )
    return done.stdout.decode().strip()


_made = tempfile.TemporaryDirectory(prefix="matrix-tests-")


def commit(where: Path, files: Files) -> str:
    """Write files, commit everything, and return the commit."""
    if where.exists():
        return _commit(where, files)
    made, found = _first_commit(tuple(files.items()))
    shutil.copytree(made, where, symlinks=True)
    return found


@cache
def _first_commit(files: tuple[tuple[str, str | bytes], ...]) -> tuple[Path, str]:
    """Return a repository with one commit, which many tests copy, and the commit; all have the same date."""
    where = Path(tempfile.mkdtemp(dir=_made.name))
    return where, _commit(where, dict(files))


def _commit(where: Path, files: Files) -> str:
    if not (where / ".git").exists():
        git(where, "init", "--quiet", "--initial-branch=main", "--template=")
    for path, content in files.items():
        target = where / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str) and content.startswith("->"):
            target.symlink_to(content.removeprefix("->"))
        else:
            target.write_bytes(content.encode() if isinstance(content, str) else content)
    git(where, "add", "--all")
    git(where, "commit", "--quiet", "--message=tests")
    return git(where, "rev-parse", "HEAD")


def add_submodule(where: Path, path: str, repository: Path, url: str = "") -> str:
    """Add a submodule and commit it; `url` replaces its URL in ``.gitmodules``."""
    git(where, "submodule", "--quiet", "add", repository.as_uri(), path)
    if url:
        git(where, "config", "--file=.gitmodules", f"submodule.{path}.url", url)
    return commit(where, {})


def commit_tree(where: Path, listing: bytes) -> str:
    """Commit a tree with ``git hash-object --literally``, even if it is invalid."""
    tree = git(where, "hash-object", "-t", "tree", "-w", "--literally", "--stdin", data=listing)
    made = git(where, "commit-tree", "-m", "tests", tree)
    git(where, "update-ref", "refs/heads/hostile", made)
    return made


def tree_entry(mode: str, name: bytes, of: str) -> bytes:
    """Return one entry of a tree in git's format."""
    return mode.encode() + b" " + name + b"\0" + bytes.fromhex(of)


def blob(where: Path, content: bytes) -> str:
    """Add a blob to a repository and return its hash."""
    return git(where, "hash-object", "-w", "--stdin", data=content)


def files_of(top: Path) -> dict[str, str]:
    """Return the content of all files, the targets of links, and the empty directories below a directory."""
    files = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if path.is_symlink():
            files[name] = f"->{path.readlink()}"
        elif path.is_file():
            files[name] = path.read_bytes().decode()
        elif not any(path.iterdir()):
            files[f"{name}/"] = ""
    return files
