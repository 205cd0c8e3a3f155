"""Calling a source's own build backend in the place where it is built, without isolation or network."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from builders.containers.runtime import Bind, View, output_in, run_in
from resolver.errors import BuildError, CommandError, EnvironmentLacksError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builders.containers.runtime import Runtime
    from builders.environments.layers import BuildEnvironment
    from builders.recipes import Application

FRONTEND = "build"
"""The distribution that calls the backend (PEP 517); it runs inside the place, as every other step."""

_LINKERS = ("LDSHARED", "LDCXXSHARED")
_RPATH = re.compile(r"-Wl,(-rpath|-R|--enable-new-dtags)|-R/")
_ASK_LINKERS = f"import sysconfig; print(*map(sysconfig.get_config_var, {_LINKERS!r}), sep=chr(10))"


def compile_wheel(
    title: str,
    runtime: Runtime,
    environment: BuildEnvironment,
    application: Application,
    *,
    source: Path,
    work: Path,
    variables: Mapping[str, str],
    log: Path,
) -> Path:
    """Build the wheel of an unpacked source.

    Parameters
    ----------
    title
        Name and version, for messages.
    place, environment
        Where it is built, and with which packages.
    application
        What the recipe says: variables, options, commands before, stand-ins.
    source
        Top directory of the source; it lies below `work`.
    work
        Directory of this build, which it may write to.
    variables
        What the build is told besides; the recipe's own win.
    log
        Where everything it prints goes.

    Returns
    -------
    Path
        The wheel as the backend named it.

    Raises
    ------
    BuildError
        It failed; the error names the log and the lines that tell most.
    EnvironmentLacksError
        A program that the source asks for its target cannot be put where it looks for it.
    """
    out = work / "raw"
    out.mkdir()
    view = build_view(runtime, environment, application, work=work, source=source, variables=variables)
    try:
        for words in application.prepare:
            run_in(runtime, words, view, what=f"Preparing {title} ({shlex.join(words)})", log=log)
        options = [f"--config-setting=--build-option={one}" for one in application.options]
        command = [
            str(environment.python), "-m", FRONTEND, "--wheel", "--no-isolation", "--skip-dependency-check",
            "--outdir", str(out), *options, str(source),
        ]  # fmt: skip
        run_in(runtime, command, view, what=f"Building {title}", log=log)
    except CommandError as error:
        failure = BuildError(error.message, hint="The index is as it was.")
        failure.code = error.code
        raise failure from None
    wheels = sorted(out.glob("*.whl"))
    if len(wheels) != 1:
        named = ", ".join(path.name for path in wheels) or "no wheel"
        msg = f"Building {title} ended well and left {named}.\n  Log: {log}"
        raise BuildError(msg, hint="The index is as it was.")
    return wheels[0]


def build_view(
    runtime: Runtime,
    environment: BuildEnvironment,
    application: Application,
    *,
    work: Path,
    source: Path,
    variables: Mapping[str, str],
) -> View:
    """Give what the build sees: its environment, its directory, stand-ins first on PATH.

    Parameters are those of `compile_wheel`.

    Raises
    ------
    EnvironmentLacksError
        As `compile_wheel`.
    """
    programs = work / "programs"
    _write_programs(programs, application.programs)
    temporary = work / "tmp"
    temporary.mkdir()
    base = environment.view
    env = {
        **base.env,
        "TMPDIR": str(temporary),
        **_linkers(runtime, environment, application),
        **variables,
        **application.environment,
    }
    covers = [] if runtime.image is None else list(_covers(runtime, programs, application))
    return replace(
        base,
        env=env,
        path=[programs, *base.path],
        cwd=source,
        binds=[*base.binds, Bind(work, writable=True), *covers],
    )


def _write_programs(directory: Path, programs: Mapping[str, str]) -> None:
    directory.mkdir()
    for name, text in programs.items():
        path = directory / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)


def _covers(runtime: Runtime, programs: Path, application: Application) -> Iterator[Bind]:
    """Lay stand-ins over those files that the image has, and where a source looks for them only there."""
    covers = application.covers
    look = 'for one do if [ -e "$one" ]; then readlink -f "$one" && echo "$one"; fi; done'
    said = output_in(runtime, ["/bin/sh", "-c", look, "sh", *covers]).splitlines()
    seen = set()
    for real, named in zip(said[::2], said[1::2], strict=True):
        if real not in seen:  # a link and what it leads to are one file
            seen.add(real)
            yield Bind(programs / covers[named], target=Path(real))
    for path in application.only_at:
        if path not in said[1::2]:
            bind = Bind(programs / covers[path], target=Path(path))
            _require_answer(runtime, bind)
            yield bind


def _require_answer(runtime: Runtime, bind: Bind) -> None:
    """See that a stand-in answers where the image has no such file; not every runtime can bind it there.

    Raises
    ------
    EnvironmentLacksError
        It does not; the source would take what it says for a machine without a GPU.
    """
    if output_in(runtime, [str(bind.inside)], View(binds=[bind])):
        return
    image = runtime.image.name if runtime.image else runtime.kind
    msg = (
        f"This source asks {bind.inside} which GPU it is built for, and looks nowhere else; the base image "
        f"{image} has no such file, and {runtime.kind} cannot put one there. Without an answer it would be "
        f"built for another wave size, which shows only when it runs."
    )
    hint = "Take a release of the package that also looks on PATH, or an image that has the file."
    raise EnvironmentLacksError(msg, hint=hint)


def _linkers(runtime: Runtime, environment: BuildEnvironment, application: Application) -> dict[str, str]:
    """Give the commands that link, without the search paths that this Python was itself linked with.

    pyenv's and conda's Pythons hand their own library directory on to every extension (sysconfig's
    ``LDSHARED``), and with it a path of the machine that builds.
    """
    said = output_in(runtime, [str(environment.python), "-c", _ASK_LINKERS], environment.view).splitlines()
    found = {}
    for name, text in zip(_LINKERS, said, strict=False):
        words = shlex.split(text) if text != "None" else []
        kept = _without_rpath(words)
        if kept != words:
            compiler = application.environment.get("CC" if name == "LDSHARED" else "CXX", "")
            found[name] = shlex.join([compiler or kept[0], *kept[1:]])
    return found


def _without_rpath(words: Sequence[str]) -> list[str]:
    """Leave out the flags that write a search path into what is linked.

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
