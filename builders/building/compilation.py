"""Call the build backend of a source inside the runtime, without build isolation and without network."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from builders.containers.runtime import Bind, View, output_in, run_in
from builders.containers.sandbox import BUILD
from builders.storage.files import make_read_only, open_regular, sha256_of
from resolver.errors import BuildError, EnvironmentLacksError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builders.building.apply_recipe import AppliedRecipe
    from builders.building.directory import BuildDirectory
    from builders.containers.runtime import Runtime
    from builders.environments.layers import BuildEnvironment

FRONTEND = "build"
"""The distribution that calls the backend (PEP 517). It runs inside the runtime."""

NOT_PUBLISHED = "No wheel was added to the index for it."
_RPATH = re.compile(r"-Wl,(-rpath|-R|--enable-new-dtags)|-R/")


class BuiltWheel(msgspec.Struct, frozen=True):
    """A wheel from a build backend, in a directory that no build sees."""

    path: Path
    sha256: str
    """Digest of the copy when it was made."""

    def verify(self) -> None:
        """Check that the file has not changed since it was copied."""
        if sha256_of(self.path) != self.sha256:
            msg = f"{self.path} changed after it was built. It is not published."
            raise BuildError(msg, hint="Check which other programs write to the directory of the index.")


def compile_wheel(
    title: str,
    runtime: Runtime,
    environment: BuildEnvironment,
    recipe: AppliedRecipe,
    *,
    source: Path,
    directory: BuildDirectory,
    wheels: Path,
    variables: Mapping[str, str],
) -> BuiltWheel:
    """Build the wheel of an unpacked source, and copy it to a directory that the build does not see.

    When the wheel is copied, all processes of the build have ended: the runtime has ended those in its PID
    namespace, and `builders.machine.reaper` ends all others. Commands of the recipe that have succeeded in
    `directory` are not repeated. `wheels` is for the copy; the build does not see it. Variables of the recipe
    override `variables`.
    """
    log = directory.log
    out = directory.sandbox / "raw"
    out.mkdir()
    view = build_view(
        runtime, environment, recipe, work=directory.sandbox, source=source, variables=variables
    )
    for words in recipe.prepare[directory.prepared :]:
        run_in(runtime, words, view, what=f"Preparing {title} ({shlex.join(words)})", log=log)
        directory.command_succeeded()
    options = [f"--config-setting=--build-option={option}" for option in recipe.options]
    python, target, tree = (
        seen_at(runtime, directory.sandbox, path) for path in (environment.python, out, source)
    )
    command = [
        str(python), "-m", FRONTEND, "--wheel", "--no-isolation", "--skip-dependency-check",
        "--outdir", str(target), *options, str(tree),
    ]  # fmt: skip
    run_in(runtime, command, view, what=f"Building {title}", log=log)
    return copy_out(title, out, wheels, log)


def copy_out(title: str, out: Path, target: Path, log: Path) -> BuiltWheel:
    """Copy the only wheel in a directory that the build could write to; return the copy."""
    try:
        directory = os.open(out, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            names = sorted(name for name in os.listdir(directory) if name.endswith(".whl"))  # noqa: PTH208
            if len(names) != 1:
                listed = ", ".join(names) or "none"
                msg = f"Building {title} must produce one wheel; its build backend produced {len(names)}"
                raise BuildError(f"{msg}: {listed}.\n  Log: {log}", hint=NOT_PUBLISHED)
            with (
                os.fdopen(open_regular(names[0], directory=directory), "rb") as source,
                (target / names[0]).open("xb") as sink,
            ):
                shutil.copyfileobj(source, sink)
        finally:
            os.close(directory)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ELOOP, errno.ENOTDIR}:
            raise
        msg = f"The build backend of {title} produced something other than a file as its wheel."
        raise BuildError(f"{msg}\n  Log: {log}", hint=NOT_PUBLISHED) from None
    path = target / names[0]
    make_read_only(path)
    return BuiltWheel(path, sha256_of(path))


def build_view(
    runtime: Runtime,
    environment: BuildEnvironment,
    recipe: AppliedRecipe,
    *,
    work: Path,
    source: Path,
    variables: Mapping[str, str],
) -> View:
    """Return the view of the build: its environment, its directory, and the shims first on PATH.

    The parameters and errors are the same as those of `compile_wheel`.
    """

    def seen(path: Path) -> Path:
        return seen_at(runtime, work, path)

    shims = work / "shims"
    shims.mkdir()
    for name, text in recipe.shims.items():
        path = shims / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    temporary = work / "tmp"
    temporary.mkdir()
    base = environment.view
    env = {
        **base.env,
        "VIRTUAL_ENV": str(seen(environment.root)),
        "TMPDIR": str(seen(temporary)),
        **_linkers(environment, recipe),
        **variables,
        **recipe.environment,
    }
    mounts = [] if runtime.image is None else list(_overlay_mounts(runtime, shims, recipe, base.binds))
    mounts += [Bind(path, writable=True) for path in recipe.writable]
    if (root := seen(work)) != work:
        mounts.append(Bind(work, writable=True, target=root))
    return replace(
        base,
        env=env,
        path=[seen(shims), *map(seen, base.path)],
        cwd=seen(source),
        binds=[*base.binds, Bind(work, writable=True), *mounts],
    )


def seen_at(runtime: Runtime, work: Path, path: Path) -> Path:
    """Return the path at which a build sees a file of its directory `work`; other paths do not change.

    All isolated builds see their directory at the same path, because paths get into compiled files,
    and a compiler cache recognizes a file by the whole command.
    """
    if runtime.isolation == "none" or not path.is_relative_to(work):
        return path
    return BUILD / path.relative_to(work)


def _overlay_mounts(
    runtime: Runtime, shims: Path, recipe: AppliedRecipe, binds: Sequence[Bind]
) -> Iterator[Bind]:
    """Mount shims over programs of the image and of layers, and at fixed paths that sources call."""
    mounts = recipe.overlay_mounts
    if not mounts:
        return
    script = 'for path do if [ -e "$path" ]; then readlink -f "$path" && echo "$path"; fi; done'
    command = ["/bin/sh", "-c", script, "sh", *mounts]
    lines = output_in(runtime, command, View(binds=binds)).splitlines()
    existing = dict(zip(lines[1::2], lines[::2], strict=True))
    mounted = set()
    for path, real in existing.items():
        if real not in mounted:  # a symbolic link and its target are one file
            mounted.add(real)
            yield Bind(shims / mounts[path], target=Path(real))
    for path in recipe.fixed_paths:
        if path not in existing:
            bind = Bind(shims / mounts[path], target=Path(path))
            _check_mount(runtime, bind)
            yield bind


def _check_mount(runtime: Runtime, bind: Bind) -> None:
    """Check that a shim runs at a path that is not in the image; not every runtime can mount it there.

    If the shim does not run, the source would assume a machine without a GPU.
    """
    if output_in(runtime, [str(bind.inside)], View(binds=[bind])):
        return
    image = runtime.image.name if runtime.image else runtime.kind
    msg = (
        f"This source runs {bind.inside} to get the GPU architecture and tries no other path. "
        f"The base image {image} has no such file, and {runtime.kind} cannot mount one there. "
        f"Without this file, the source compiles for another wave size, and the wheel fails only at run time."
    )
    hint = "Choose a release of the package that also searches PATH, or an image that has the file."
    raise EnvironmentLacksError(msg, hint=hint)


def _linkers(environment: BuildEnvironment, recipe: AppliedRecipe) -> dict[str, str]:
    """Return the link commands of this Python, without an RPATH to its own library directory.

    Python from pyenv and conda passes that RPATH, a path of the build machine, on to every extension
    (sysconfig's ``LDSHARED``).
    """
    linkers = {}
    for name, text in environment.linkers.items():
        words = shlex.split(text)
        kept = _without_rpath(words)
        if kept != words:
            compiler = recipe.environment.get("CC" if name == "LDSHARED" else "CXX", "")
            linkers[name] = shlex.join([compiler or kept[0], *kept[1:]])
    return linkers


def _without_rpath(words: Sequence[str]) -> list[str]:
    """Remove the flags that write a library search path into the linked file.

    Examples
    --------
    >>> _without_rpath(["gcc", "-shared", "-L/x/lib", "-Wl,-rpath,/x/lib", "-Wl,-rpath", "-Wl,/x/lib"])
    ['gcc', '-shared', '-L/x/lib']
    """
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in {"-Wl,-rpath", "-Wl,-R"}:
            skip = True  # its value is the next word
        elif not _RPATH.match(word):
            kept.append(word)
    return kept
