"""ccache between a build and its compilers.

Each package has a separate cache, so that no package can put objects into the wheel of another. A shim comes
first on PATH for each host compiler, and ``HIP_CLANG_PATH`` names a directory whose clang is a shim: hipcc
and CMake call the clang there. The shims call ccache, or the compiler itself if ccache has an error of its
own. Builds see their directories at fixed paths, so ccache recognizes files that an earlier build has
compiled.

Sources: ccache(1); HIPCC environment variables (rocm.docs.amd.com/projects/HIPCC).
"""

from __future__ import annotations

import os
import shlex
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from builders.building.compilation import seen_at
from builders.constants import NO_COMPILER_CACHE
from builders.containers.runtime import Bind, View, output_in
from builders.recipes.compilers import Program
from builders.recipes.shims import LAUNCHER, launched
from builders.storage.files import cache_root, open_regular
from builders.storage.modes import make_directories
from resolver.errors import UsageError
from resolver.requirements import normalize_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builders.building.apply_recipe import AppliedRecipe
    from builders.building.build_host import BuildHost
    from builders.building.plan import Task

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


def cache_counts(work: Path) -> dict[str, int]:
    """Return the hits and misses of the build in a directory; empty if it does not use a compiler cache.

    ccache writes the counts to a file, which the build can replace.
    """
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


def find_compiler_cache(setting: str | None) -> Path | None:
    """Return the ccache of this machine; None if it is disabled or not installed.

    `setting` is the path of the program, or ``none``; None searches PATH.
    """
    if setting == NO_COMPILER_CACHE:
        return None
    program = shutil.which(setting or "ccache")
    if program is None and setting:
        msg = f"The compiler cache {setting} is not an executable program."
        raise UsageError(msg, hint=f"Name the path of ccache, or use --compiler-cache {NO_COMPILER_CACHE}.")
    return Path(program).absolute() if program else None


def use_compiler_cache(task: Task, recipe: AppliedRecipe, work: Path, program: Path | None) -> AppliedRecipe:
    """Add the compiler cache to the settings of a build, if a ccache runs there.

    `program` is the ccache of this machine; in an image that cannot run it, the image's own is used.

    Raise `OSError` if the cache cannot be written.
    """
    host = task.build_host
    seen = seen_at(host.runtime, work, work)
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
    hipconfig = f"{host.rocm_path}/bin/hipconfig" if task.recipe.backend == "rocm" else ""
    command = ["/bin/sh", "-c", _PREPARE, "sh", str(seen / "ccache"), hipconfig, str(clang), str(launcher)]
    binds = [Bind(work, writable=True), *([Bind(work, writable=True, target=seen)] if seen != work else [])]
    binds += [Bind(Path(host.rocm_path))] if task.pip_rocm else []
    ccache = output_in(host.runtime, command, View(binds=binds, untrusted=True)).strip()
    if not ccache:
        return recipe
    shims = {
        compiler.name: launched(compiler)
        for compiler in _compilers(host)
        if compiler.name not in recipe.shims
    }
    shims[_LAUNCHER] = _SCRIPT.format(program=shlex.quote(ccache), error=_ERROR)
    environment = {
        LAUNCHER: str(launcher),
        "CCACHE_CONFIGPATH": os.devnull,
        "CCACHE_DIR": str(directory),
        "CCACHE_STATSLOG": str(seen / _STATISTICS),
    }
    if host.runtime.image is not None:
        environment["CCACHE_COMPILERCHECK"] = f"string:{host.runtime.image.sha256}"
    if (work / "clang").is_dir():
        environment["HIP_CLANG_PATH"] = str(clang / "bin")
    return replace(
        recipe,
        shims={**recipe.shims, **shims},
        environment={**recipe.environment, **environment},
        writable=(*recipe.writable, directory),
    )


def _compilers(host: BuildHost) -> Iterator[Program]:
    """Yield the compilers of an image, or those on PATH of this machine."""
    if host.runtime.image is not None:
        yield from host.compilers
        return
    # Python compiles extensions with the compilers that it was compiled with; Debian's have long names.
    own = [words[0] for words in map(shlex.split, host.python.linkers.values()) if words]
    for name in dict.fromkeys((*_NAMES, *own, *filter(None, [host.variables.get("CXX", "")]))):
        path = shutil.which(name)
        if path and "/" not in name:
            yield Program(name, "", path)
