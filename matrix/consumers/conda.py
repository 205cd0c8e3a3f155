"""The conda environment files that cotainr and tykky read.

What conda makes of them was found by running it (24.11 to 26.7): the lines of the pip section are
joined into a requirements file, so pip's rules hold (`matrix.consumers.requirements`); the environment's
own pip installs them, so its version is pinned here; the environment's libstdc++ comes before that of
the base image, so it must not be older.
"""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from matrix.consumers.output import MARK, MOUNTED, MOUNTED_INDEX, File
from matrix.consumers.requirements import refuse_kept, requirement_lines, requirements_file
from matrix.consumers.shell import fill, head, image_checks, index_checks, installed_check

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matrix.consumers.output import Where
    from matrix.consumers.pins import Pins

PIP = "25.*"
"""pip's release in the environment: between those that were tried (22.3 to 26.3)."""
SCRIPT = "build.sh"


def cotainr_files(pins: Pins, where: Where) -> list[File]:
    """Write the environment file and the script that builds the container with it.

    Parameters
    ----------
    pins
        What the lock pins.
    where
        Where the files and the index are.

    Raises
    ------
    UsageError
        The lock keeps what a base image holds, which conda's Python does not see.
    """
    refuse_kept(pins, "conda's Python sees")
    url = where.mounted_url
    on = f", on the base image {pins.image_path}" if pins.image_path else ""
    told = [f"Build the container with: bash {SCRIPT}{on}"]
    if url == MOUNTED_INDEX:
        told[1:1] = [
            f"While cotainr builds, the index {where.index} is bound to {MOUNTED}; {SCRIPT} does that."
        ]
    environment = _environment(pins, told, "cotainr", requirement_lines(pins, url))
    return [File(where.main, environment), File(SCRIPT, _build_script(pins, where), executable=True)]


def tykky_files(pins: Pins, where: Where) -> list[File]:
    """Write the environment file and the requirements that tykky takes beside it.

    tykky sees the file systems of the machine, so the index is named by its real path.

    Raises
    ------
    UsageError
        As for `cotainr_files`.
    """
    refuse_kept(pins, "conda's Python sees")
    name = "req.txt"
    told = [f"conda-containerize new --prefix DIR {quote(where.main)} -r {name}"]
    lines = requirement_lines(pins, where.local_url)
    return [
        File(where.main, _environment(pins, told, "tykky")),
        requirements_file(name, pins, lines, ["Read by conda-containerize -r."], "tykky"),
    ]


def _environment(pins: Pins, told: Sequence[str], consumer: str, lines: Sequence[str] = ()) -> str:
    """Write YAML; every line is a plain scalar, as no URL or pin holds what YAML reads otherwise."""
    head = [f"{pins.heading}; {MARK} --for {consumer}`.", *told, *_libstdcxx_remark(pins)]
    known = pins.image.libstdcxx if pins.image else ""
    return (
        "\n".join(
            [
                *(f"# {one}" for one in head),
                "name: matrix",
                "channels:",
                "  - conda-forge",
                "dependencies:",
                f"  - python={pins.python}",
                f"  - pip={PIP}",
                f"  - libstdcxx-ng>={known}" if known else "  - libstdcxx-ng",
                *(["  - pip:"] if lines else []),
                *(f"      - {line}" for line in lines),
            ]
        )
        + "\n"
    )


def _libstdcxx_remark(pins: Pins) -> list[str]:
    if pins.image is None:
        return []
    if pins.image.libstdcxx:
        return [f"libstdcxx-ng is not older than the base image's libstdc++ (GCC {pins.image.libstdcxx})."]
    return [
        "Nobody documented the libstdc++ of this base image: conda's newest is taken, which no image's is."
    ]


def _build_script(pins: Pins, where: Where) -> str:
    told = [
        f"Usage: bash {SCRIPT} [CONTAINER.sif [more options of cotainr]]",
        *_site_hints(pins),
        "MATRIX_INDEX and MATRIX_BASE_IMAGE name the index and the base image where they have moved.",
    ]
    bound = [index_checks(str(where.index), pins.built), fill("bind.sh")] if not where.url else []
    text = fill(
        "build.sh",
        head=head(pins, "cotainr", SCRIPT, told),
        main=quote(where.main),
        unset=fill("unset.sh", runtime=fill("runtime.sh")),
        load=", on LUMI: module load LUMI cotainr" if pins.site.startswith("lumi") else "",
        checks="\n".join([image_checks(pins), *bound]),
        check=installed_check(pins.pins),
    )
    return f"{text}\n"


def _site_hints(pins: Pins) -> list[str]:
    """Say how to run it where that is known.

    Source: LUMI-training-materials docs/2day-20260422/205-Containers.md; cotainr issues 51 and 170
    (the unpacked image needs up to 100 GB, and /tmp is memory).
    """
    if not pins.site.startswith("lumi"):
        return []
    return [
        "On LUMI: module purge; module load LUMI cotainr",
        f"  srun -A PROJECT -p debug -t 30:00 -c 8 --mem=100G bash {SCRIPT}",
    ]
