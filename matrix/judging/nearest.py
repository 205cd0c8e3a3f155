"""What the tool of a file would install, as the resolver predicts it, and the nearest that works."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from builders.findings import Finding
from matrix.api import package_indexes, resolve_settings
from matrix.input.request import make_request
from matrix.judging.packages import TORCH_FAMILY, torch_index
from matrix.judging.repair import Change, changed_versions, nearest, replaced
from matrix.judging.verdict import JudgedItem
from matrix.reading.items import Item
from resolver.errors import MatrixError, NoVersionError
from resolver.model import Conflict, Resolution

if TYPE_CHECKING:
    from matrix.command_line.context import Context
    from matrix.judging.verdict import Judgement
    from matrix.reading.items import Reading

CONDA_RUNTIME = {
    "c-compiler", "cmake", "compilers", "cxx-compiler", "fortran-compiler", "gcc", "gfortran", "git", "gxx",
    "libgcc", "libgcc-ng", "libgomp", "libstdcxx", "libstdcxx-ng", "make", "ninja", "pip", "pkg-config",
}  # fmt: skip
"""What conda installs for programs of any kind: compilers with their runtime, tools, and pip."""
_UNLABELLED = "PyPI's build, which is for CUDA"


def predict(judged: Judgement, reading: Reading, context: Context) -> Resolution | None:
    """Resolve the items of a reading as they are, else the nearest that resolves, and set what differs."""
    items = [*reading.items]
    if reading.python:
        items.insert(0, Item(name="python", version=reading.python))
    kept, changes = replaced(context.catalog_with_image, items, context.args.drop)
    try:
        answer, versions, unknown = _resolved(context, kept)
    except MatrixError as error:
        judged.findings.append(Finding("not-judged", "warning", error.message, error.hint))
        judged.changes = changes
        return None
    unlabelled = _unlabelled(answer, kept, reading)
    judged.changes = sorted(
        [*changes, *versions, *unlabelled],
        key=lambda change: (change.before.split()[0] != "torch", not change.for_cuda),
    )
    judged.distributions = list(_verdicts(answer, reading, judged.changes, unknown))
    if isinstance(answer, Conflict):
        judged.core = answer.core
        facts = "; ".join(item.text for item in answer.core)
        judged.findings.append(
            Finding("does-not-resolve", "error", f"The versions exclude one another: {facts}.")
        )
        return None
    judged.requirements = [item.text for item in answer.request.requirements]
    return answer


def _resolved(
    context: Context, kept: Sequence[Item]
) -> tuple[Resolution | Conflict, list[Change], Mapping[str, NoVersionError]]:
    """Return the resolution of the nearest request and the versions that it changes, or the conflict."""
    settings, catalog = context.settings, context.catalog_with_image
    inputs = replace(context.inputs, requirements=())
    target = make_request(settings, catalog, context.today, inputs)
    indexes = package_indexes(settings, inputs, context.console)
    with context.console.task("find the nearest versions"):
        found = nearest(catalog, target, kept, indexes)
    if isinstance(found, Conflict):
        return found, [], {}
    inputs = replace(inputs, requirements=found.requirements)
    answer = resolve_settings(settings, catalog, context.today, inputs, reporter=context.console)
    if isinstance(answer, Conflict):
        return answer, [], found.unknown
    return answer, list(changed_versions(answer, kept, found.reasons)), found.unknown


def _unlabelled(answer: Resolution | Conflict, kept: Sequence[Item], reading: Reading) -> Iterator[Change]:
    """Yield torch and its companions that have no label, so that pip takes PyPI's build."""
    if isinstance(answer, Conflict) or answer.target.backend != "rocm" or reading.installed:
        return
    if any(torch_index(url).startswith("rocm") for url in reading.index_urls):
        return
    chosen = {pick.name: pick for pick in answer.distributions}
    for item in kept:
        pick = chosen.get(item.name)
        if item.name in TORCH_FAMILY and pick and "+" in pick.pinned and "+" not in item.version:
            reason = f"without a label pip takes {_UNLABELLED}"
            if not item.version or pick.version.partition("+")[0] == item.version:
                yield Change(str(item), pick.pinned, reason, for_cuda=True)


def _verdicts(
    answer: Resolution | Conflict,
    reading: Reading,
    changes: Sequence[Change],
    unknown: Mapping[str, NoVersionError],
) -> Iterator[JudgedItem]:
    changed = {change.before: change for change in changes}
    picks = {pick.name: pick for pick in answer.distributions} if isinstance(answer, Resolution) else {}
    for item in reading.items:
        change, pick = changed.get(str(item)), picks.get(item.name)
        version = item.version or item.specifier
        if change:
            evidence = change.reason + (f" ({change.source})" if change.source else "")
            yield JudgedItem(
                name=item.name, version=version, verdict="does-not-fit", evidence=evidence, line=item.line
            )
        elif item.installer == "conda" and item.name in CONDA_RUNTIME:
            yield JudgedItem(
                name=item.name,
                version=version,
                verdict="fits",
                evidence="it has no code for a GPU",
                line=item.line,
            )
        elif pick is None:
            evidence = "conda installs it" if item.installer == "conda" else "it was not resolved"
            if item.name in unknown:
                evidence = f"{unknown[item.name].message} {unknown[item.name].hint}".strip().rstrip(".")
            yield JudgedItem(
                name=item.name, version=version, verdict="not-judged", evidence=evidence, line=item.line
            )
        else:
            evidence = f"{pick.pinned} resolves with the others"
            yield JudgedItem(
                name=item.name, version=version, verdict="fits", evidence=evidence, line=item.line
            )
