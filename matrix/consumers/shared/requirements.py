"""Lines of pip's requirements files, and the files that contain them.

Observed with pip 22.3 to 26.3, and also in the pip section of a conda file (conda 24.11 to 26.7):

- An option must be alone on its line. ``--extra-index-url URL pkg`` installs nothing and prints nothing, and
  pip ignores an index after a requirement.
- No public index can satisfy a pin with a local label, because PyPI rejects labels. Any project of the same
  name could satisfy an unpinned name.
- ``--only-binary NAME`` keeps pip from running an unrelated setup.py, and makes a missing wheel an error.
  After ``--only-binary :all:``, uv builds no package from source, even if a later line allows it.
- If one line has ``--hash``, every requirement and every dependency needs one, which a commit or directory
  cannot have. ``#sha256=`` at the end of a URL is checked without this rule.
- ``--no-deps`` is not allowed in the file. As a variable, it would also apply to the build requirements of
  sdists, which pip installs with its own pip.

conda's own libstdc++ is loaded before that of the base image, so it must not be older.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING
from urllib.parse import quote

from builders.audit.platform_tags import too_new_glibc
from builders.findings import Finding
from builders.network.urls import is_flat_listing
from builders.storage.files import sha256_of
from matrix.consumers.shared.installation import (
    MARK,
    WrittenFile,
    comments,
    files_in_wheelhouse,
    index_of,
    pin,
    wheel_only,
)
from matrix.show.render import shortened
from resolver.errors import UsageError
from resolver.versions import grouped, sort_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matrix.consumers.shared.installation import Installation, Layout
    from resolver.model import Distribution


_PLAIN = re.compile(r"(?:--)?[A-Za-z](?:[!-~]|(?<!:) (?!#))*")
"""A text that is a plain YAML scalar: neither a mapping nor a comment begins in it."""
_YAML_VALUES = {"y", "n", "yes", "no", "true", "false", "on", "off", "null"}
_COMPILER = "gxx"
"""The package of conda-forge that has ``gcc`` and ``g++`` under these names; ``gxx_linux-64`` sets variables
instead, and only where the environment is activated (conda-forge/ctng-compilers-feedstock)."""
_CONDA_PIP = "25.*"
"""pip in conda environments: a release between the oldest and the newest that were tested (22.3 to 26.3)."""

_OLDEST = "2.0"


def requirement_lines(
    installation: Installation, layout: Layout, wheels: str, chosen: Sequence[Distribution] | None = None
) -> list[str]:
    """Return the lines that install the distributions of a lock; `wheels` is our index or the wheelhouse."""
    chosen = installation.installed if chosen is None else chosen
    binary = sorted(pick.name for pick in chosen if wheel_only(pick))
    if installation.is_complete and len(binary) == len(chosen):
        binary = [":all:"]
    # pip reads an option only if it is alone on its line.
    if layout.wheelhouse is not None:
        options = ["--no-index", f"--find-links {wheels}"]
    else:
        urls = [wheels] if any(pick.origin == "build" for pick in chosen) else []
        urls += [*filter(None, map(index_of, chosen)), *installation.searched]
        options = [
            f"--{'find-links' if is_flat_listing(url) else 'extra-index-url'} {url}"
            for url in dict.fromkeys(urls)
        ]
    hashes = _hashes(installation, layout, chosen)
    lines = []
    for pick in chosen:
        url, digests = layout.url_of(pick, installation.named, wheels), hashes.get(pick.name, ())
        if digests and len(hashes) < len(chosen):
            url, digests = _with_hash(pick, installation, wheels), ()
        options_of_line = [f"--hash=sha256:{digest}" for digest in digests]
        lines.append(" ".join([installation.requirement(pick, url), *options_of_line]))
    return [*options, *(f"--only-binary {name}" for name in binary), *lines, *installation.unpinned]


def _hashes(
    installation: Installation, layout: Layout, chosen: Sequence[Distribution]
) -> dict[str, tuple[str, ...]]:
    """Return the known hashes of distributions; a wheelhouse also has files that the lock has no hash of."""
    hashes = {
        pick.name: installation.hashes[pick.name] for pick in chosen if pick.name in installation.hashes
    }
    if layout.wheelhouse is not None and installation.is_complete:
        others = [pick for pick in chosen if pick.name not in hashes]
        for name, file in files_in_wheelhouse(layout.wheelhouse, others).items():
            hashes[name] = (sha256_of(layout.wheelhouse / file),)
    return hashes


def _with_hash(pick: Distribution, installation: Installation, wheels: str) -> str:
    """Return the URL of a distribution's file with its hash; empty if several of our wheels are possible."""
    if pick.origin != "build":
        return pick.files[0].hashed_url
    names = [path.name for path in installation.wheels[pick.name]]
    (digest, *_) = installation.hashes[pick.name]
    return f"{wheels}/{pick.name}/{quote(names[0])}#sha256={digest}" if len(names) == 1 else ""


def constraint_lines(installation: Installation, chosen: Sequence[Distribution] | None = None) -> list[str]:
    """Return the versions that later installs must keep: those of the lock and those preinstalled.

    pip 23 reports a missing wheel as a conflict if constraints have its pin, too; so for such requirements,
    they list only what is preinstalled.
    """
    chosen = installation.installed if chosen is None else chosen
    pins = {pick.name: pick.pinned for pick in (*chosen, *installation.preinstalled)}
    pins |= installation.other_preinstalled
    return [f"{name}=={version}" for name, version in sorted(pins.items())]


def requirements_file(
    name: str, installation: Installation, lines: Iterable[str], notes: Iterable[str], consumer: str
) -> WrittenFile:
    """Return a requirements file that starts with notes for the reader."""
    head = [f"{installation.heading}; {MARK} --for {consumer}`.", *notes, *installation.rocm_note]
    return WrittenFile(name, "\n".join([*comments(head), *lines]) + "\n")


def environment_file(
    name: str,
    installation: Installation,
    notes: Iterable[str],
    consumer: str,
    lines: Sequence[str] = (),
    *,
    has_compiler: bool = False,
) -> WrittenFile:
    """Return a conda environment file, with a compiler for torch unless programs find another one."""
    image = installation.lock.image
    libstdcxx = image.libstdcxx if image else ""
    head = [f"{installation.heading}; {MARK} --for {consumer}`.", *notes, *installation.rocm_note]
    if libstdcxx:
        head.append(f"libstdcxx-ng is not older than the base image's libstdc++ (GCC {libstdcxx}).")
    elif image:
        head.append("The libstdc++ of this base image is unknown, so conda installs its newest version.")
    adds_compiler = not has_compiler and any(pick.name == "torch" for pick in installation.lock.distributions)
    if adds_compiler:
        head.append("gxx: triton and torch.compile call gcc and g++ when programs run.")
    text = [
        *comments(head),
        "name: matrix",
        "channels:",
        "  - conda-forge",
        "dependencies:",
        *(f"  - {_scalar(line)}" for line in installation.by_conda),
        f"  - {_scalar(f'python={installation.python}')}",
        f"  - pip={_CONDA_PIP}",
        f"  - {_scalar(f'libstdcxx-ng>={libstdcxx}')}" if libstdcxx else "  - libstdcxx-ng",
        *([f"  - {_COMPILER}"] if adds_compiler else []),
        *(["  - pip:"] if lines else []),
        *(f"      - {_scalar(line)}" for line in lines),
    ]
    return WrittenFile(name, "\n".join(text) + "\n")


def _scalar(text: str) -> str:
    """Return a text as a YAML scalar, quoted unless YAML reads it as it is."""
    if _PLAIN.fullmatch(text) and not text.endswith(":") and text.lower() not in _YAML_VALUES:
        return text
    return json.dumps(text)  # JSON is YAML


def preinstalled_note(installation: Installation) -> list[str]:
    """Return a note that lists the distributions that the base image already has."""
    names = ", ".join(map(pin, installation.preinstalled))
    return [f"Already in the base image, and not installed: {names}"] if names else []


def reject_preinstalled(installation: Installation, environments: str) -> None:
    """Reject a lock that keeps an image's packages: in other environments, pip would install PyPI's torch."""
    if installation.preinstalled:
        names = ", ".join(map(pin, installation.preinstalled))
        msg = f"The lock keeps {names} of the base image, but {environments} cannot use packages of an image."
        raise UsageError(msg, hint="Use --for venv or --for apptainer, or resolve without --keep-installed.")


def require_torch_of_image(installation: Installation, consumer: str) -> None:
    """Check that a lock keeps the torch of a base image, or needs none and keeps what the image has."""
    if installation.keeps_image:
        return
    if installation.lock.image is None:
        msg = f"The lock has no base image, but --for {consumer} requires an image with torch."
        hint = "Use --for pip, uv or cotainr."
        if installation.lock.target.backend == "rocm":
            hint = "Resolve with --base-image NAME --keep-installed image, or use --for pip, uv or cotainr."
        raise UsageError(msg, hint=hint)
    torch = next((pin(pick) for pick in installation.installed if pick.name == "torch"), "")
    action = f"The lock installs {torch}, and keeps no torch" if torch else "The lock does not keep the torch"
    msg = f"{action} of the base image. --for {consumer} extends an image that has torch."
    hint = (
        "If the base image has torch, resolve with --keep-installed image (or a file with the output of "
        "`pip list` in it). Else use --for cotainr."
    )
    raise UsageError(msg, hint=hint)


def wheel_names(installation: Installation) -> dict[str, list[str]]:
    """Return the file names of the wheels that may be installed, by distribution with its version."""
    names = {}
    for pick in installation.on_top:
        built = [path.name for path in installation.wheels.get(pick.name, ())]
        locked = [pick.wheel.file] if pick.wheel else [file.name for file in pick.files]
        names[f"{pick.name} {pick.pinned}"] = built or locked
    return names


def newest_required(installation: Installation) -> str:
    """Return the glibc that all wheels need, which is the newest that any of them needs; empty if none."""
    required = {too_new_glibc(names, _OLDEST) for names in wheel_names(installation).values()}
    return max(required, key=lambda glibc: sort_key(glibc or _OLDEST), default="")


def newer_glibc(installation: Installation, _: Layout) -> list[Finding]:
    """Report wheels that pip would skip because of the glibc of the machine that uses them."""
    glibc, machine = installation.host_glibc
    newer = grouped(
        (required, title)
        for title, names in wheel_names(installation).items()
        if (required := too_new_glibc(names, glibc))
    )
    findings = []
    for required, titles in newer.items():
        message = (
            f"{wheels_text(titles)} glibc {required}, and {machine} has glibc {glibc}. "
            "pip skips such wheels and reports only the versions of other wheels."
        )
        fix = (
            "Install where glibc is new enough, such as in the base image, or resolve again with "
            f"'glibc<={glibc}', which chooses a base image with an older glibc, and build the wheels again."
        )
        evidence = {"distributions": titles, "required": required, "glibc": glibc}
        findings.append(Finding("newer-glibc", "warning", message, fix, evidence))
    return findings


def wheels_text(titles: Sequence[str]) -> str:
    """Return the beginning of a sentence about what wheels require."""
    if len(titles) == 1:
        return f"The wheel of {titles[0]} requires"
    return f"The wheels of {shortened(titles, most=3)} require"
