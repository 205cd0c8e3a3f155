"""STAND-INS for ARCHER2's modules: a login shell defines `module`, whose modules bring wrappers of GCC.

The names of modules, programs and variables are those of HPE's Cray programming environment; the programs are
GCC and the first MPI on PATH. So what is tested is that builds use them, not what Cray's compilers do.
"""

from __future__ import annotations

import shutil
from pathlib import Path

MODULES = ("PrgEnv-gnu", "cray-fftw", "mkl/2023.0.0")
_PROFILE = """\
module() {{
    case "$1" in
        is-avail) case " $AVAILABLE " in *" $2 "*) return 0 ;; *) return 1 ;; esac ;;
        load)
            shift
            [ -z "$BROKEN" ] || {{ echo "Lmod has detected the following error: $BROKEN" >&2; return 1; }}
            export PATH="{programs}:$PATH" PE_ENV=GNU CRAYPE_DIR=/opt/cray/pe/craype MKLROOT=/opt/intel/mkl
            export CRAY_MPICH_DIR=/opt/cray/pe/mpich LOADEDMODULES="PrgEnv-gnu/8.3.3:cray-mpich/8.1.23" ;;
    esac
}}
export AVAILABLE="${{AVAILABLE-{modules}}}"
echo "Welcome to the login node"
"""


def write_modules(home: Path, compilers: dict[str, str]) -> Path:
    """Write the file of login shells and the wrappers of programs; return the directory of the wrappers."""
    programs = home / "cray" / "bin"
    programs.mkdir(parents=True)
    for name, program in compilers.items():
        path = programs / name
        path.write_text(
            f'#!/bin/sh\necho "$PE_ENV ${{0##*/}} $*" >> {home}/calls\nexec {shutil.which(program)} "$@"\n'
        )
        path.chmod(0o755)
    (home / ".bash_profile").write_text(_PROFILE.format(programs=programs, modules=" ".join(MODULES)))
    return programs
