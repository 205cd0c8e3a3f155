"""Write the shell scripts of the consumers, from the templates with ``@NAME@`` in ``scripts/``."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from shlex import quote
from typing import TYPE_CHECKING

from builders.constants import CERTIFICATE_VARIABLES, SOURCE_DATE_EPOCH
from matrix.consumers.shared.container_variables import DISTURBING, LIMITING, REFERENCE, VISIBLE
from matrix.consumers.shared.installation import MARK, WrittenFile, comments, files_in_wheelhouse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matrix.consumers.shared.installation import Installation, Layout
    from resolver.facts.schema import SiteVariable
    from resolver.model import Distribution

ENVIRONMENT = "environment.sh"
HIDDEN = "hidden.txt"
"""The list of the image's files that an environment hides, in its directory; none if it hides nothing."""
HIDES_CODE = "5"
"""The exit code of the steps if files of the environment would hide files of the image."""
_PLACEHOLDER = re.compile(r"@([A-Z_]+)@")


def fill(name: str, /, **values: str) -> str:
    """Return a script of ``scripts/`` with each ``@NAME@`` replaced; lines that become empty are removed."""
    lines = []
    for line in (files(__package__) / "scripts" / name).read_text(encoding="utf-8").splitlines():
        filled = _PLACEHOLDER.sub(lambda placeholder: values[placeholder[1].lower()], line)
        if filled.strip() or not line.strip():
            lines.append(filled.rstrip())
    return "\n".join(lines)


def script(name: str, template: str, /, **values: str) -> WrittenFile:
    """Return an executable script; see `fill`."""
    return WrittenFile(name, f"{fill(template, **values)}\n", executable=True)


def head(installation: Installation, consumer: str, name: str, notes: Sequence[str]) -> str:
    """Return the first lines of a script: notes for the reader, and the function that reports errors."""
    about = [f"{installation.heading}; {MARK} --for {consumer}`.", *notes]
    return fill("head.sh", about="\n".join(comments(about)), script=name)


def stoppable(script: str, target: str) -> str:
    """Return the lines that define ``stoppable``, which runs a command that ends with the script.

    They also report unfinished results of killed scripts, whose path is in the shell variable `target`.
    """
    return fill("stoppable.sh", script=script, target=target)


def temporary_directory(target: str) -> str:
    """Return the lines that make a directory in ``$temporary`` for the making of `target`."""
    return fill("temporary.sh", target=target)


def container_environment(target: str) -> str:
    """Return the lines that prepare the environment for a container, whose path is in that shell variable."""
    return fill(
        "environment_of_container.sh",
        runtime=fill("runtime.sh"),
        unset=" ".join(DISTURBING),
        limiting=" ".join(LIMITING),
        certificates=" ".join(CERTIFICATE_VARIABLES),
        visible=" | ".join(f"{path}/*" for path in VISIBLE),
        temporary=str(VISIBLE[0]),
        directory=temporary_directory(target),
    )


def site_environment(installation: Installation, cache: str = "") -> str:
    """Return POSIX shell lines that set the variables that programs need, if not set, and unset others.

    Directories that programs use as caches are below `cache`, if given, which its caller removes.
    """
    lines = []
    for row in installation.variables:
        lines += reason_comments(row)
        if row.value is None:
            lines.append(f"unset {quote(row.name)}")
        else:
            value = REFERENCE.sub(r"${\1:-}", row.value)
            if row.directory and cache:
                value = f"{cache}/{row.name.lower()}"
            lines.append(f'export {quote(row.name)}="${{{row.name}:-{value}}}"')
        if row.directory:
            lines.append(f'mkdir -p -- "${row.name}"')
    return "\n".join(lines)


def site_binds(installation: Installation) -> str:
    """Return shell lines that set ``$binds`` to the paths to bind; a site's module may bind its own."""
    paths = installation.job.binds if installation.job and not installation.container_module else ()
    loop = (
        f'for path in {" ".join(paths)}; do if [ -e "$path" ]; then binds=${{binds:+$binds,}}$path; fi; done'
    )
    return fill("site_binds.sh", loop=loop if paths else "")


def environment_of_programs(installation: Installation, consumer: str) -> str:
    """Return the file with the variables that the programs of an environment of tykky set."""
    notes = [
        f"{installation.heading}; {MARK} --for {consumer}`.",
        "The programs of the environment set these variables.",
    ]
    lines = [*comments(notes), fill("isolated.sh"), site_environment(installation)]
    return "\n".join(lines).rstrip() + "\n"


def reason_comments(row: SiteVariable) -> list[str]:
    """Return the reason and the source of a variable as comments."""
    since = f", from {row.since}" if row.since else ""
    return comments([f"{row.reason}.", f"  ({row.status}{since}: {row.source})"])


def image_checks(installation: Installation, *, digest: bool = True) -> str:
    """Return the lines that check the base image; its digest takes half a minute for tens of gigabytes."""
    checks = fill("image.sh", image=_default(installation.image_path))
    locked = installation.image_digest if digest else ""
    return checks + (f"\n{fill('digest.sh', digest=quote(locked))}" if locked else "")


def source_checks(installation: Installation, layout: Layout) -> str:
    """Return the lines that check, before any slow step, that the wheels exist, and set ``$index`` to bind.

    They are empty if the user named the URL of the index, or if no wheel of the index is installed.
    """
    if not layout.binds(installation):
        return ""
    if layout.wheelhouse is not None:
        names = files_in_wheelhouse(layout.wheelhouse, installation.on_top).values()
        needs = "\n".join(f"need {quote(name)}" for name in names)
        return fill("wheelhouse.sh", wheelhouse=_default(str(layout.wheelhouse)), needs=needs)
    needs = "\n".join(f"need {quote(pick.name)} {quote(pick.pinned)}" for pick in installation.built)
    return fill("index.sh", index=_default(str(layout.index)), needs=needs)


def _default(text: str) -> str:
    return quote(text) if text else ""


def installed_check(
    installed: Sequence[Distribution],
    preinstalled: Sequence[Distribution] = (),
    *,
    nothing_else: bool = False,
) -> str:
    """Return a Python program that compares installed versions with the lock, and looks for CUDA.

    A version without a label allows any label. With `nothing_else`, no other distribution may be there.
    """
    pinned = {pick.name: pick.pinned for pick in (*installed, *preinstalled)}
    return fill("check.py.txt", pinned=json.dumps(pinned, indent=4), nothing_else=str(nothing_else))


def environment_steps(installation: Installation, prefix: str, folder: str) -> str:
    """Return POSIX shell lines that create, inside an image, a virtual environment on top of its Python.

    This Python is the one that has the torch that the lock keeps. All packages of the image become
    constraints, so that pip fails instead of replacing one. `prefix` and `folder` are paths without spaces.
    """
    torch = installation.preinstalled_torch
    keeps = installation.keeps_image
    return fill(
        "environment.sh",
        python=quote(installation.python),
        torch=quote(torch.version if torch else ""),
        prefix=prefix,
        files=folder,
        epoch=SOURCE_DATE_EPOCH,
        no_deps=installation.no_deps,
        variables="".join(f"{name}={value} " for name, value in installation.rocm_variables.items()),
        system="--system-site-packages" if keeps else "",
        limits=_limits(installation, prefix) if keeps else "",
        image_limits=f"-c {prefix}/image.txt" if keeps else "",
        replace=_replace(installation, prefix),
        check=installed_check(installation.on_top, installation.preinstalled),
        hides=_hides(installation, prefix) if keeps else "",
    )


def _replace(installation: Installation, prefix: str) -> str:
    """Return the lines that replace files of wheels with files of the image, and note it in RECORD."""
    if not installation.replacements:
        return ""
    program = fill("replace.py.txt", replaced=json.dumps(installation.replacements))
    return f"{prefix}/bin/python - <<'REPLACE'\n{program}\nREPLACE"


def _hides(installation: Installation, prefix: str) -> str:
    """Return the lines that list the image's files that the environment hides; only replaced ones may be."""
    preinstalled = installation.lock.request.preinstalled
    replaced = json.dumps(preinstalled.replaced if preinstalled else ())
    program = fill("hides.py.txt", prefix=prefix, replaced=replaced, hidden=HIDDEN, hides_code=HIDES_CODE)
    return f"{prefix}/bin/python - <<'HIDES'\n{program}\nHIDES"


def _limits(installation: Installation, prefix: str) -> str:
    """Return the lines that keep the image's packages; only requested and built ones may be replaced."""
    requested = {requirement.name for requirement in installation.lock.request.requirements}
    replacing, required = [], {}
    for pick in installation.on_top:
        if pick.origin == "build" or pick.name in requested:
            replacing.append(json.dumps(pick.name))
        else:
            required[pick.name] = pick.pinned
    return fill(
        "limits.sh", prefix=prefix, replacing=", ".join(replacing), required=json.dumps(required, indent=4)
    )
