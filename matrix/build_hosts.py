"""Finding where the wheels of a lock are built, from what the command line says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from resolver.errors import EnvironmentLacksError

if TYPE_CHECKING:
    import argparse

    from builders.build_host import BuildHost
    from resolver.model import Resolution


def add_build_host_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where builds run and for which Python and CPU."""
    parser.add_argument("--in", dest="where", choices=("host", "apptainer", "podman"), help="where to build")
    parser.add_argument(
        "--python-from",
        metavar="DIR",
        type=Path,
        help="prefix of the Python to build for, such as a conda environment, where the image has none",
    )
    parser.add_argument(
        "--cpu", metavar="NAME", default="", help="CPU that host code is compiled for, as -march has it"
    )


def find_build_host(lock: Resolution, args: argparse.Namespace) -> BuildHost:
    """Find where the wheels of a lock are built.

    Raises
    ------
    EnvironmentLacksError
        This machine lacks something for it: a container runtime, the base image, a Python.
    ImageChangedError
        The base image is another than the lock's.
    """
    from builders.build_host import image_build_host, local_build_host
    from builders.containers.choosing import choose_runtime
    from builders.containers.image import locked_image

    python, image = lock.version_of("python"), lock.image
    if lock.target.backend == "cpu" and args.where in {None, "host"}:
        return local_build_host(python, given=args.python_from, cpu=args.cpu)
    if image is None and lock.target.backend == "cpu":
        choose_runtime(args.where, None)  # says that an image is needed
    if image is None:
        msg = "The lock names no base image, and wheels for ROCm are compiled inside one."
        raise EnvironmentLacksError(msg, hint="Resolve with --base-image NAME or PATH.")
    if args.where == "host":
        msg = (
            f"Wheels for {', '.join(lock.target.gfx)} are compiled inside a base image, not on this machine."
        )
        raise EnvironmentLacksError(msg, hint="Leave --in out, or say --in apptainer or --in podman.")
    named = getattr(args, "base_image", None)
    given = Path(named) if named and Path(named).exists() else None
    runtime = choose_runtime(args.where, locked_image(image, given))
    return image_build_host(runtime, python, given=args.python_from, cpu=args.cpu)
