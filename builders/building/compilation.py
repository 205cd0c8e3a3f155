"""Call the build backend of a source inside the runtime, without build isolation and without network.

**ccache** may stand between a build and its compilers. Each package has a separate cache, so that no package
can put objects into the wheel of another. A shim comes first on PATH for each host compiler, and
``HIP_CLANG_PATH`` names a directory whose clang is a shim: hipcc and CMake call the clang there. The shims
call ccache, or the compiler itself if ccache has an error of its own. Builds see their directories at fixed
paths, so ccache recognizes files that an earlier build has compiled.

Sources: ccache(1); HIPCC environment variables (rocm.docs.amd.com/projects/HIPCC).
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from builders.containers.runtime import Bind, View, isolation_in, output_in, run_in
from builders.containers.sandbox import BUILD
from builders.machine import host
from builders.recipes import LAUNCHER, Program, launched
from builders.storage.files import cache_root, make_directories, make_read_only, open_regular, sha256_of
from builders.storage.lease import digest, ensure_cached
from builders.wheels.wheel import LARGEST_METADATA, DamagedError
from resolver.errors import BuildError, EnvironmentLacksError
from resolver.requirements import normalize_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builders.building.apply_recipe import AppliedRecipe
    from builders.building.directory import BuildDirectory
    from builders.building.plan import BuildHost, Task
    from builders.containers.runtime import Runtime
    from builders.environments.layers import BuildEnvironment
    from resolver.indexes import Metadata


NOT_PUBLISHED = "No wheel was added to the index for it."
_RPATH = re.compile(r"-Wl,(-rpath|-R|--enable-new-dtags)|-R/")

_CALL_HOOK = """
import os, runpy, sys
from build import BuildBackendException, BuildException, ProjectBuilder

def call_here(command, cwd=None, extra_environ=None):
    os.environ.update(extra_environ or {})
    os.chdir(cwd)
    sys.argv[:] = command[1:]
    runpy.run_path(command[1], run_name="__main__")

del sys.path[0]  # the directory of this file
method, source, out, *options = sys.argv[1:]
try:
    builder = ProjectBuilder(source, runner=call_here)
    getattr(builder, method)("wheel", out, {"--build-option": options} if options else None)
except (BuildException, BuildBackendException) as error:
    sys.exit(str(error))
"""
"""Calls a hook of a build backend in this process, which ends with it; frontends start one for each hook."""
_HOOK_FILE = "call_hook.py"
_NAMES = ("cc", "c++", "gcc", "g++", "clang", "clang++")
_LAUNCHER = "compiler-cache"
_STATISTICS = "compiler-cache.log"
_ERROR = "compiler-cache-error"
_HITS = {b"direct_cache_hit", b"preprocessed_cache_hit"}
_MISS = b"cache_miss"
_LONGEST = 1 << 26  # bytes of statistics; a compiled file takes about 100

# ccache reports errors of its own, such as a full disk, with this prefix; those of the compiler have none.
_SCRIPT = """#!/bin/sh
# rocm-matrix shim: call a compiler through ccache, or directly if ccache fails
unset CCACHE_DISABLE # the ccache that a project itself calls sets it, and misses, because shims are new files
here=${{0%/*}}
errors=${{TMPDIR:-/tmp}}/compiler-cache.$$
{{ : >"$errors"; }} 2>/dev/null || exec "$@"
{program} "$@" 2>"$errors"
code=$?
if [ $code -ne 0 ] && grep -q '^ccache: error' "$errors"; then
  head -n 1 "$errors" >"${{here%/*}}/{error}"
  rm -f "$errors"
  exec "$@"
fi
cat "$errors" >&2
rm -f "$errors"
exit $code
"""
# $1 is a ccache to try, $2 hipconfig, $3 the directory for clang, $4 the launcher.
_PREPARE = """
for program in "$1" "$(command -v ccache)"; do
  if [ -n "$program" ] && "$program" --version >/dev/null 2>&1; then echo "$program"; break; fi
done
real=$("$2" --hipclangpath 2>/dev/null) && real=$(readlink -f "$real") && [ -x "$real/clang++" ] || exit 0
mkdir -p "$3/bin" || exit 0
ln -sf "$real"/* "$3/bin/"
for other in "${real%/*}"/*; do [ "$other" = "$real" ] || ln -sfn "$other" "$3/"; done
for name in clang clang++; do
  rm -f "$3/bin/$name"
  printf '#!/bin/sh\\nexec %s %s/%s "$@"\\n' "$4" "$real" "$name" >"$3/bin/$name"
  chmod 755 "$3/bin/$name"
done
"""


def call_backend(
    method: str,
    task: Task,
    python: Path,
    view: View,
    *,
    what: str,
    source: Path,
    directory: BuildDirectory,
    options: Sequence[str] = (),
) -> Path:
    """Have the backend of a source ``build`` its wheel or ``prepare`` its metadata; return where they are.

    A backend need not have a hook for metadata. The lock has the versions of the build requirements, and they
    are installed already.
    """
    runtime, sandbox = task.build_host.runtime, directory.sandbox
    out = sandbox / method
    out.mkdir()
    places = (python, sandbox / _HOOK_FILE, source, out)
    program, script, tree, target = (str(seen_at(runtime, sandbox, path)) for path in places)
    command = [program, script, method, tree, target, *options]
    run_in(runtime, command, view, what=what, log=directory.log)
    return out


def stated_metadata(title: str, out: Path, log: Path) -> Metadata | None:
    """Return the metadata that a build backend has written; None if it has no hook for it."""
    from builders.index_client.metadata import parse

    # The code of the source could have put a link in the place of each.
    folders = [path for path in out.glob("*.dist-info") if path.is_dir() and not path.is_symlink()]
    if out.is_symlink() or not folders:
        return None
    try:
        with os.fdopen(open_regular(folders[0] / "METADATA"), "rb") as file:
            text = file.read(LARGEST_METADATA)
        return parse(text, f"{folders[0].stem}.tar.gz", "its build backend")
    except (OSError, ValueError, DamagedError) as error:
        msg = f"The build backend of {title} returned metadata that cannot be read: {error}.\n  Log: {log}"
        raise BuildError(msg, hint=NOT_PUBLISHED) from None


def copy_out(title: str, out: Path, target: Path, log: Path) -> tuple[Path, str]:
    """Copy the only wheel in a directory that the build could write to; return the copy and its SHA-256.

    All processes of the build have ended: the runtime ends those in its PID namespace, and
    `builders.machine.reaper` all others.
    """
    # The build could replace the directory or the wheel by a link to a file of this user, or by a pipe. So
    # the directory is opened once, the file relative to it, and neither through a link.
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
    return path, sha256_of(path)


def check_unchanged(wheel: Path, sha256: str) -> None:
    """Check that a file still has the content that `copy_out` copied."""
    if sha256_of(wheel) != sha256:
        msg = f"{wheel} changed after it was built. It is not published."
        raise BuildError(msg, hint="Check which other programs write to the directory of the index.")


def build_view(
    runtime: Runtime,
    environment: BuildEnvironment,
    recipe: AppliedRecipe,
    *,
    work: Path,
    source: Path,
    variables: Mapping[str, str],
) -> View:
    """Return the view of the build: its environment, its directory, and the shims first on PATH."""

    def seen(path: Path) -> Path:
        return seen_at(runtime, work, path)

    shims = work / "shims"
    shims.mkdir()
    for name, text in recipe.shims.items():
        path = shims / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    (work / _HOOK_FILE).write_text(_CALL_HOOK, encoding="utf-8")
    temporary = work / "tmp"
    temporary.mkdir()
    tools = [_tools()] if runtime.image is None else []
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
        path=[seen(shims), *map(seen, base.path), *tools],
        whole_path=True,
        hidden=[*base.hidden, *(host.cuda_toolkits() if tools else ())],
        cwd=seen(source),
        binds=[*base.binds, *map(Bind, tools), Bind(work, writable=True), *mounts],
    )


def know_host(runtime: Runtime) -> None:
    """Find out, in the process that starts builds, what otherwise each of them would find out by itself."""
    if isolation_in(runtime) and runtime.isolates_network and runtime.image is None:
        _tools()


def _tools() -> Path:
    """Return a directory, made once, with links to the programs of this machine that builds may use."""
    tools = host.tools(tuple(os.get_exec_path()))
    root = cache_root() / "programs" / digest(tools)

    def link() -> None:
        for name, path in tools.items():
            os.symlink(path, root / name)  # noqa: PTH211  a thousand links

    ensure_cached(root, link)
    return root


def seen_at(runtime: Runtime, work: Path, path: Path) -> Path:
    """Return the path at which a build sees a file of its directory `work`; other paths do not change.

    All isolated builds see it at the same path, because paths get into compiled files, and a compiler cache
    recognizes a file by the whole command.
    """
    if isolation_in(runtime) == "none" or not path.is_relative_to(work):
        return path
    return BUILD / path.relative_to(work)


def _overlay_mounts(
    runtime: Runtime, shims: Path, recipe: AppliedRecipe, binds: Sequence[Bind]
) -> Iterator[Bind]:
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

    Python from pyenv and conda passes that path of the build machine on to every extension (``LDSHARED``).
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


def cache_counts(work: Path) -> dict[str, int]:
    """Return the hits and misses of ccache, from a file that the build can replace; empty without ccache."""
    with suppress(OSError), os.fdopen(open_regular(work / _STATISTICS), "rb") as source:
        lines = source.read(_LONGEST).split(b"\n")
        hits = sum(line in _HITS for line in lines)
        return {"cache_hits": hits, "cache_misses": lines.count(_MISS)}
    return {}


def cache_error(work: Path) -> str:
    """Return the error that kept ccache from being used in a build; empty if there was none."""
    with suppress(OSError), os.fdopen(open_regular(work / _ERROR), "rb") as source:
        return source.read(300).decode(errors="replace").strip()
    return ""


def use_compiler_cache(task: Task, recipe: AppliedRecipe, work: Path, program: Path | None) -> AppliedRecipe:
    """Add the compiler cache to the settings of a build, if a ccache runs there: `program` or the image's.

    Raise `OSError` if the cache cannot be written.
    """
    build_host = task.build_host
    seen = seen_at(build_host.runtime, work, work)
    if len(str(seen).split()) > 1:  # commands are split at spaces
        return recipe
    directory = cache_root() / _LAUNCHER / normalize_name(task.pick.name)
    make_directories(directory)
    copy = work / "ccache"
    copy.unlink(missing_ok=True)
    if program is not None:
        shutil.copy(program, copy)  # so that it is visible in every runtime
    launcher = seen / "shims" / _LAUNCHER
    clang = seen / "clang"
    hipconfig = f"{build_host.rocm_path}/bin/hipconfig" if task.recipe.backend == "rocm" else ""
    command = ["/bin/sh", "-c", _PREPARE, "sh", str(seen / "ccache"), hipconfig, str(clang), str(launcher)]
    binds = [Bind(work, writable=True), *([Bind(work, writable=True, target=seen)] if seen != work else [])]
    binds += [Bind(Path(build_host.rocm_path))] if task.pip_rocm else []
    ccache = output_in(build_host.runtime, command, View(binds=binds, untrusted=True)).strip()
    if not ccache:
        return recipe
    shims = {
        compiler.name: launched(compiler)
        for compiler in _compilers(build_host)
        if compiler.name not in recipe.shims
    }
    shims[_LAUNCHER] = _SCRIPT.format(program=shlex.quote(ccache), error=_ERROR)
    # A configuration file of the user could name another cache, and so mix the objects of packages.
    environment = {
        LAUNCHER: str(launcher),
        "CCACHE_CONFIGPATH": os.devnull,
        "CCACHE_DIR": str(directory),
        "CCACHE_STATSLOG": str(seen / _STATISTICS),
    }
    # ccache recognizes a compiler by its size and time (ccache(1)), which two images may have in common.
    if build_host.runtime.image is not None:
        environment["CCACHE_COMPILERCHECK"] = f"string:{build_host.runtime.image.sha256}"
    if (work / "clang").is_dir():
        environment["HIP_CLANG_PATH"] = str(clang / "bin")
    return replace(
        recipe,
        shims={**recipe.shims, **shims},
        environment={**recipe.environment, **environment},
        writable=(*recipe.writable, directory),
    )


def _compilers(build_host: BuildHost) -> Iterator[Program]:
    if build_host.runtime.image is not None:
        yield from build_host.compilers
        return
    # Python compiles extensions with the compilers that it was compiled with; Debian's have long names.
    own = [words[0] for words in map(shlex.split, build_host.python.linkers.values()) if words]
    for name in dict.fromkeys((*_NAMES, *own, *filter(None, [build_host.variables.get("CXX", "")]))):
        path = shutil.which(name)
        if path and "/" not in name:
            yield Program(name, "", path)
