"""What is installed already and is to stay, as demands, and what is to be said of it in an answer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from resolver.compiling.draft import Clause, any_candidate, line_is, version_in
from resolver.compiling.installed import CONTRARY, images_of, kept_names, source_of
from resolver.errors import UsageError
from resolver.model import IMAGE, Fact
from resolver.versions import join_words, minor, newest_first

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resolver.compiling.draft import Draft
    from resolver.facts import schema
    from resolver.model import Candidate, Distribution, Preinstalled, Request


_LABEL = re.compile(r"rocm(?P<rocm>\d+\.\d+)|(?P<other>cpu|cu\d)")


def compile_kept(draft: Draft) -> None:
    """Add what keeps the installed versions.

    Raises
    ------
    UsageError
        A Python or ROCm that the catalog does not know is installed, or no base image can be.
    """
    kept = draft.request.preinstalled
    if kept is None:
        return
    if kept.source == IMAGE:
        _as_the_image(draft)
        return
    image = draft.catalog.image.get(draft.target.base_image or "")
    if image and image.python and "python" not in kept.installed:
        draft.state("python", version_in(image.python), _python_of(image).text, image.source)
    for name, version in sorted(kept.installed.items(), key=lambda one: (one[0] == "torch", one)):
        # torch last: of several reasons for a conflict the last tends to be named
        text, source = f"the base image holds {name} {version}", source_of(kept)
        if name in {"python", "rocm"}:
            draft.state(name, version_in(_platform(draft, name, version, kept)), text, source)
        elif draft.installed(name):
            draft.state(name, _is_preinstalled, text, source)
            if name == "torch" and not any(one.needs_of for one in draft.installed(name)):
                _as_its_label(draft, version, source)


def _as_its_label(draft: Draft, version: str, source: str) -> None:
    """Take an installed torch that is like none of the catalog's for what its version says.

    The label says what it was built for (``+rocm6.4``, ``+cu121``, ``+cpu``). The Pythons are those that
    a torch of that public version is published for, unless the installed one is listed.
    """
    public, _, label = version.partition("+")
    torch, said = f"the installed torch {version}", _LABEL.match(label)
    if said and said["rocm"]:
        text = f"{torch} is called a build for ROCm {said['rocm']}"
        draft.state("backend", version_in(["rocm"]), text, source)
        if draft.target.backend == "rocm":
            draft.state("rocm", line_is(said["rocm"]), text, source)
    elif said:
        other = "the CPU" if said["other"] == "cpu" else "CUDA"
        backends = ["cpu"] if said["other"] == "cpu" else []
        draft.state("backend", version_in(backends), f"{torch} is called a build for {other}", source)
    rows = [row for row in draft.catalog.torch.values() if row.version.partition("+")[0] == public]
    pythons = newest_first({one for row in rows for one in row.python})[::-1]
    listed = draft.request.preinstalled is not None and "python" in draft.request.preinstalled.installed
    if pythons and not listed:
        text = f"torch {public} is published for Python {join_words(pythons, most=8, joiner='and')}"
        draft.state("python", version_in(pythons), text, source)


def _python_of(image: schema.Image) -> Fact:
    text = f"what the base image {image.name} holds is for its Python {join_words(image.python)}"
    return Fact.of(image, text, note="")


def _platform(draft: Draft, name: str, version: str, kept: Preinstalled) -> list[str]:
    """Give the candidates of Python or ROCm that an installed version means."""
    known = [one.version for one in draft.variables[name].candidates]
    line = minor(version)
    found = [one for one in known if one == version or (name == "python" and one == line)]
    found = found or [one for one in known if name == "rocm" and minor(one) == line]
    if not found:
        msg = f"{kept.source} says {name} {version}, which the catalog does not know."
        raise UsageError(msg, hint=f"Known: {join_words(known, most=12, joiner='and')}.")
    return found


def _as_the_image(draft: Draft) -> None:
    """Tie what an image holds to the choice of that image."""
    if draft.target.backend != "rocm":
        msg = "--keep-installed image keeps what a base image holds, and the CPU backend has none."
        raise UsageError(msg, hint="Name a file: pip list > installed.txt")
    images = images_of(draft.catalog, draft.target)
    known = any_candidate if draft.target.base_image else version_in([row.name for row in images])
    draft.ask("base-image", known, "you asked to keep what the base image holds")
    of_images = [
        Clause(version_in([row.name]), version_in(row.python), _python_of(row))
        for row in images
        if row.python
    ]
    draft.relate("base-image", "python", of_images, when_present=True)
    for name in sorted(kept_names(draft.catalog, draft.request)):
        if not draft.installed(name):
            continue
        holding: dict[str, list[schema.Image]] = {}
        for image in images:
            if name in image.holds:
                holding.setdefault(image.holds[name], []).append(image)
        clauses, back = [], []
        for version, rows in holding.items():
            these = [row.name for row in rows]

            def is_it(one: Candidate, version: str = version) -> bool:
                return one.origin == "preinstalled" and one.version == version

            for row in rows:
                fact = Fact.of(row, f"the base image {row.name} holds {name} {version}", note="")
                clauses.append(Clause(version_in([row.name]), is_it, fact))
            fact = Fact.of(rows[0], f"{name} {version} is in {join_words(these, joiner='and')}", note="")
            back.append(Clause(is_it, version_in(these), fact))
        draft.relate("base-image", name, clauses, as_it_is=True)
        draft.relate(name, "base-image", back, as_it_is=True)


def _is_preinstalled(candidate: Candidate) -> bool:
    return candidate.origin == "preinstalled"


def remarks(request: Request, picks: Sequence[Distribution], remarks_of_picks: Sequence[str]) -> list[str]:
    """Give what is to be said of the installed versions in an answer."""
    kept = request.preinstalled
    if kept is None:
        return []
    said = [remark for remark in remarks_of_picks if remark]
    for pick in picks:
        said += [
            f"{fact.text[:1].upper()}{fact.text[1:]}." for fact in pick.facts if fact.text.endswith(CONTRARY)
        ]
    image = next((pick.version for pick in picks if pick.name == "base-image"), "")
    if kept.source == IMAGE and not any(pick.origin == "preinstalled" for pick in picks):
        said.append(f"Nothing is known to be installed in {image}, so nothing was kept.")
    elif kept.source != IMAGE and image and not request.target.base_image:
        said.append(
            f"{kept.source} does not say which base image it was listed in; {image} was chosen. "
            f"Name the one it is with --base-image."
        )
    return said
