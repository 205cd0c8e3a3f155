"""Lines of pip's requirements files, and the files themselves.

What pip makes of them was found by running pip 22.3 to 26.3; the rules that matter:

- an option stands alone on its line: ``--extra-index-url URL pkg`` on one line installs nothing and
  says nothing, and an index behind a requirement is ignored;
- a pin with the local label is never satisfied by a public index, which refuses local labels; an
  unpinned name would be, by whatever project has that name there;
- ``--only-binary NAME`` keeps pip from running a stranger's setup.py, and makes a wheel that is
  missing fail at once;
- once a line has a hash, every requirement and every dependency needs one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.consumers.output import MARK, File
from resolver.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matrix.consumers.output import Where
    from matrix.consumers.pins import Pin, Pins


def requirement_lines(pins: Pins, url: str, chosen: Sequence[Pin] | None = None) -> list[str]:
    """Give the lines that install what a lock pins.

    Parameters
    ----------
    pins
        What the lock pins.
    url
        Our index as the consumer sees it.
    chosen
        Which of the pins; all when None.
    """
    chosen = pins.pins if chosen is None else chosen
    indexes = dict.fromkeys([url, *(pin.index for pin in chosen if pin.index)])
    return [
        *(f"--extra-index-url {one}" for one in indexes),
        *(f"--only-binary {pin.name}" for pin in sorted(chosen, key=_name) if pin.wheel_only),
        *map(str, pins.closure or chosen),
    ]


def constraint_lines(pins: Pins, chosen: Sequence[Pin] | None = None) -> list[str]:
    """Give the versions that nothing else may change: what is pinned, kept or was there already."""
    chosen = pins.pins if chosen is None else chosen
    return [str(pin) for pin in sorted([*chosen, *pins.kept, *pins.installed], key=_name)]


def requirements_file(
    name: str, pins: Pins, lines: Iterable[str], told: Iterable[str], consumer: str
) -> File:
    """Make a requirements file.

    Parameters
    ----------
    name
        What it is called.
    pins
        What the lock pins, for the heading.
    lines
        Its lines.
    told
        What a person is told at the top.
    consumer
        For whom it is.
    """
    head = [f"{pins.heading}; {MARK} --for {consumer}`.", *told]
    return File(name, "\n".join([*(f"# {one}".rstrip() for one in head), *lines]) + "\n")


def kept_remark(pins: Pins) -> list[str]:
    """Say what is not installed, because the base image holds it."""
    kept = ", ".join(map(str, pins.kept))
    return [f"Not installed, because the base image holds it: {kept}"] if kept else []


def refuse_kept(pins: Pins, whose: str) -> None:
    """Refuse a lock that keeps what a base image holds, for an environment that does not see that.

    Parameters
    ----------
    whose
        Whose environments those are, such as ``"uv's environments see"``.

    Raises
    ------
    UsageError
        It keeps something: pip would install a torch of PyPI, for CUDA, in its place.
    """
    if pins.kept:
        kept = ", ".join(map(str, pins.kept))
        msg = f"The lock keeps {kept} of the base image, and {whose} nothing of an image."
        raise UsageError(msg, hint="Use --for venv or --for apptainer, or resolve without --keep-installed.")


def pip_files(pins: Pins, where: Where) -> list[File]:
    """Write requirements and constraints for pip.

    The requirements are whole in themselves. The constraints keep what was decided when further
    packages are installed later.
    """
    name = "constraints.txt"
    told = [
        f"Install with: python -m pip install -r {where.main} -c {name}",
        f"Later installs leave these versions alone with: -c {name}",
        *kept_remark(pins),
    ]
    lines = requirement_lines(pins, where.local_url, pins.on_top)
    return [
        requirements_file(where.main, pins, lines, told, "pip"),
        requirements_file(name, pins, constraint_lines(pins), ["Constraints for pip and uv."], "pip"),
    ]


def _name(pin: Pin) -> str:
    return pin.name
