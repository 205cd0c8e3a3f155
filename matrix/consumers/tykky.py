"""Files for tykky, and the script that builds the environment: with conda, or with the machine's Python.

tykky can read the file systems of the machine. Observed with tykky at CSCfi/hpc-container-wrapper@b0956d9:
pip treats packages in ``~/.local`` and ``PYTHONPATH`` as installed, so the environment lacks them, and its
programs prefer those in ``~/.local``. ``update`` keeps neither the variables of ``--environ`` nor a copy of
the old environment, and never changes the Python. An environment works under another name, so it can be built
next to the old environment.
"""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from matrix.consumers import Consumer, Maker
from matrix.consumers.shared.container_variables import DISTURBING
from matrix.consumers.shared.installation import TYKKY_MODULE, WrittenFile
from matrix.consumers.shared.requirements import (
    environment_file,
    newer_glibc,
    newest_required,
    reject_preinstalled,
    requirement_lines,
    requirements_file,
)
from matrix.consumers.shared.shell import (
    ENVIRONMENT,
    environment_of_programs,
    fill,
    head,
    installed_check,
    script,
    source_checks,
    stoppable,
    temporary_directory,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from matrix.consumers.shared.installation import Installation, Layout

_SCRIPT = "build.sh"
_PROGRAMS = {"tykky": "conda-containerize", "tykky-pip": "pip-containerize"}


def _emit_conda(installation: Installation, layout: Layout) -> list[WrittenFile]:
    about = [f"Build with `bash {_SCRIPT} DIR`."]
    environment = environment_file(layout.main, installation, about, "tykky")
    return [environment, *_files(installation, layout, "tykky", "req.txt")]


def _emit_pip(installation: Installation, layout: Layout) -> list[WrittenFile]:
    return _files(installation, layout, "tykky-pip", layout.main)


def _files(installation: Installation, layout: Layout, consumer: str, name: str) -> list[WrittenFile]:
    reject_preinstalled(installation, "environments of tykky")
    lines = requirement_lines(installation, layout, layout.local)
    about = [f"{_SCRIPT} passes this file to {_PROGRAMS[consumer]}."]
    return [
        requirements_file(name, installation, lines, about, consumer),
        _build_script(installation, layout, consumer, name),
        WrittenFile(ENVIRONMENT, environment_of_programs(installation, consumer)),
    ]


def _build_script(installation: Installation, layout: Layout, consumer: str, name: str) -> WrittenFile:
    program, with_conda = _PROGRAMS[consumer], consumer == "tykky"
    notes = [
        f"Usage: bash {_SCRIPT} [--update] [DIR [more options of {program}]]",
        "With --update, pip installs the changes into an existing environment.",
        "tykky builds in /tmp, which may be in memory; CW_BUILD_TMPDIR=DIR chooses another directory.",
        f"Set {layout.variable} if the {layout.what} has moved.",
        "Set MATRIX_GLIBC if the glibc of tykky's container differs from that of this machine.",
    ]
    source = source_checks(installation, layout)
    option = 'PIP_FIND_LINKS="file://${index// /%20}"'
    if layout.wheelhouse is None:
        option = 'PIP_EXTRA_INDEX_URL="${PIP_EXTRA_INDEX_URL:-} file://${index// /%20}/simple"'
    moved = [source, f'[ -z "${{{layout.variable}:-}}" ] || export {option}'] if source else []
    glibc = newest_required(installation)
    checks = [fill("glibc.sh", glibc=glibc)] if glibc else []
    checks += [] if with_conda else [fill("python_of_machine.sh")]
    exports = [f"export {name}={value}" for name, value in installation.pip_variables.items()]
    environment = f'"$here"/{quote(layout.main)}'
    return script(
        _SCRIPT,
        "build_with_tykky.sh",
        head=head(installation, consumer, _SCRIPT, notes),
        program=program,
        requirements=quote(name),
        given=environment if with_conda else "",
        new=f'-r "$requirements" {environment}' if with_conda else '"$requirements"',
        downloads="Miniforge" if with_conda else "its base container",
        unset=" ".join(DISTURBING),
        logged=fill("logged.sh"),
        load=installation.load_of_tykky,
        python=quote(installation.python),
        script=_SCRIPT,
        stoppable=stoppable(_SCRIPT, "target"),
        temporary=temporary_directory("target"),
        checks="\n".join([*checks, *moved, *exports]),
        check=installed_check(installation.installed, nothing_else=installation.is_complete),
    )


def _consumer(name: str, file: str, emit: Callable[[Installation, Layout], list[WrittenFile]]) -> Consumer:
    return Consumer(
        file=file,
        emit=emit,
        check=newer_glibc,
        runs_on_host=True,
        maker=Maker(
            programs=(_PROGRAMS[name],),
            module=TYKKY_MODULE,
            install="Load the module of tykky (`module avail tykky`), or install hpc-container-wrapper.",
            command=lambda folder, target: ["bash", str(folder / _SCRIPT), str(target)],
            python=lambda _, target: str(target / "bin" / "python"),
            mark="share/conf.yaml",
        ),
    )


CONSUMER = _consumer("tykky", "env.yml", _emit_conda)
PIP = _consumer("tykky-pip", "req.txt", _emit_pip)
"""The consumer ``tykky-pip``."""
