"""What the tool of a file would install, as the resolver predicts it, and the nearest that works."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from msgspec.structs import replace

from builders.constants import MOUNTED_INDEX
from builders.findings import Finding
from builders.installed.checks import driver_findings
from matrix.api import package_indexes, resolve_settings
from matrix.input.request import make_request
from matrix.judging.distributions import judge_items, of_commit, of_origin, rocm_of
from matrix.judging.packages import (
    OF_COMMANDS,
    Indexes,
    built_here,
    is_nightly,
    is_other_index,
    torch_index,
)
from matrix.judging.repair import Change, Nearest, changed_versions, replaced
from matrix.judging.target import Verdict, expect_request
from matrix.judging.verdict import JudgedItem, Judgement, of_pick
from matrix.reading.items import CONDA, Item
from matrix.reading.pip_line import counts_on_linux
from matrix.reading.requirements import is_index_of_torch
from resolver.consequences.questions import Side
from resolver.errors import MatrixError, NoVersionError
from resolver.model import Conflict, Resolution
from resolver.requirements import TORCH_FAMILY, parse_requirement
from resolver.versions import is_version, join_words, minor

if TYPE_CHECKING:
    from matrix.command_line.context import Context
    from matrix.judging.target import ExpectedTarget
    from matrix.reading.items import Reading
    from resolver.facts.catalog import Catalog
    from resolver.model import Request, Requirement

    Ask = Callable[[Sequence[Item]], tuple[Resolution | Conflict, list[Change], Mapping[str, NoVersionError]]]

_PARTS = 3
_ALONE = "pip installs it without what it requires (--no-deps)"
_REPLACED = "Each command resolves on its own, and pip may replace what another command installed."
_UNLABELLED = "PyPI's build, which is for CUDA"


def predict(judged: Judgement, reading: Reading, context: Context) -> Resolution | None:
    """Resolve the items of a reading as they are, else the nearest that resolves, and set what differs.

    What has a URL is never looked up by its name, and what conda installs stays with conda; its exact
    versions constrain the others.
    """
    outside = [item for item in reading.items if not counts_on_linux(item.marker)]
    judged.distributions = [JudgedItem.of(item, "fits", "its marker excludes Linux") for item in outside]
    reading = replace(reading, items=[item for item in reading.items if item not in outside])
    catalog, drop = context.catalog_with_image, context.args.drop
    built = built_here(reading, catalog)
    items = [
        item
        for item in reading.items
        if not item.url and item.name and item.name not in drop and item.installer != "image"
        if item not in built and not (item.alone and item.name not in TORCH_FAMILY)
    ]
    if reading.python:
        items.insert(0, Item(name="python", version=reading.python))
    expected = expect_request(context.request(), catalog, "pip")
    kept, changes = replaced(catalog, items, drop, expected.backend)
    changes += [Change(str(item), "", "you left it out") for item in reading.items if item.known_as in drop]
    pins = [item for item in items if item.installer == "conda" and item.version and item.name != "python"]
    of_index, stated = _torch_of_index(items, reading, expected)
    limits, pages = [*pins, *reading.constraints, *of_index], _pages(reading)
    ask = _ask(context, limits, pages)
    is_unread = False
    try:
        try:
            answer, versions, unknown = ask(kept)
        except MatrixError as error:
            if not pages:
                raise
            judged.findings.append(Finding("not-judged", "warning", error.message, error.hint))
            ask, is_unread = _ask(context, limits, ()), True
            answer, versions, unknown = ask(kept)
    except MatrixError as error:
        judged.findings.append(Finding("not-judged", "warning", error.message, error.hint))
        judged.changes = changes
        judged.distributions += [
            JudgedItem.of(item, "not-judged", f"it comes from {item.url}" if item.url else error.message)
            for item in reading.items
        ]
        return None
    if isinstance(answer, Resolution):
        answer, kept, changes, versions = _without_moving_torch(ask, answer, kept, changes, versions)
    unlabelled = _unlabelled(answer, kept, reading)
    judged.changes = sorted(
        [*changes, *versions, *unlabelled],
        key=lambda change: (change.name != "torch", not change.for_cuda),
    )
    stated |= _of_other_index(reading, expected)
    stated |= dict(_of_unread_page(kept, versions)) if is_unread else {}
    stated |= dict(_without_release(unknown, reading, is_offline=context.settings.offline or is_unread))
    stated |= {item.name: ("not-judged", evidence) for item, evidence in built.items()}
    stated |= {
        item.name: ("not-judged", _ALONE) for item in reading.items if item.alone and item not in items
    }
    stated |= dict(_replaced_later(ask, kept, judged.changes, reading, catalog))
    if not reading.find_links and all(map(is_index_of_torch, reading.index_urls)):
        stated |= _known_commits(reading, stated, expected)
    judged.distributions += list(_verdicts(answer, reading, judged.changes, stated, expected))
    if isinstance(answer, Conflict):
        judged.core = answer.core
        judged.findings.append(_exclusion(answer, ask, _commands(kept, reading), is_sure=not is_unread))
        return None
    judged.requirements = [item.text for item in answer.request.requirements]
    judged.findings += _implied_torch(answer, reading)
    if not judged.changes and not any(one.id == "driver-risk" for one in judged.findings):
        judged.findings += _of_driver(answer, catalog)
    return answer


def _of_driver(answer: Resolution, catalog: Catalog) -> Iterator[Finding]:
    """Yield what the driver says of a ROCm that it is not known to support."""
    rocm, driver = answer.pick("rocm"), answer.pick("kernel-driver")
    if rocm is not None and (driver is None or rocm.verdict == "at-own-risk"):
        found = driver_findings(rocm.version, Side(catalog, answer.request))
        yield from (one for one in found if one.severity != "info")


def _commands(kept: Sequence[Item], reading: Reading) -> list[list[Item]]:
    """Return what each command of a script or recipe installs; nothing if there is only one command."""
    lines = {item.line: [other for other in kept if other.line == item.line] for item in kept}
    return [*lines.values()] if reading.kind.endswith(OF_COMMANDS) and len(lines) > 1 else []


def _exclusion(conflict: Conflict, ask: Ask, commands: Sequence[Sequence[Item]], *, is_sure: bool) -> Finding:
    """Return that the versions conflict: an error, unless each command resolves on its own."""
    text = f"The versions exclude one another: {'; '.join(item.text for item in conflict.core)}."
    if not is_sure:
        return Finding("not-judged", "warning", text)
    if commands and not any(isinstance(ask(command)[0], Conflict) for command in commands):
        return Finding("not-judged", "warning", f"{text} {_REPLACED}")
    return Finding("does-not-resolve", "error", text)


def _of_unread_page(
    kept: Sequence[Item], versions: Sequence[Change]
) -> Iterator[tuple[str, tuple[Verdict, str]]]:
    """Yield what does not resolve, but might with what a page has that was not read."""
    reasons = {change.before: change.reason.rstrip(".") for change in versions}
    for item in kept:
        if reason := reasons.get(str(item)):
            yield item.name, ("not-judged", f"{reason}, and a page was not read")


def _replaced_later(
    ask: Ask, kept: Sequence[Item], changes: Sequence[Change], reading: Reading, catalog: Catalog
) -> Iterator[tuple[str, tuple[Verdict, str]]]:
    """Yield what resolves in its own command, but not together with the other commands.

    If a command excludes the torch of another command, pip replaces that torch with PyPI's: it does not fit.
    """
    changed = {change.before: change.reason.rstrip(".") for change in changes if not change.for_cuda}
    commands = _commands(kept, reading) if changed else []
    torch = [item for item in kept if item.name == "torch"]
    moving = [
        command
        for command in commands
        if torch and torch[0] not in command and not {item.name for item in command} & catalog.package.keys()
        if not any(map(torch_index, command[0].indexes or reading.index_urls)) and ask([*torch, *command])[1]
    ]
    for command in commands:
        names = {str(item): item for item in command if str(item) in changed}
        for text in names.keys() - ({change.before for change in ask(command)[1]} if names else set()):
            moves = (names[text] in torch and moving) or command in moving
            verdict: Verdict = "does-not-fit" if moves else "not-judged"
            after = f"pip replaces torch with {_UNLABELLED}" if moves else _REPLACED
            yield names[text].name, (verdict, f"{changed[text]}. {after}".rstrip("."))


def _implied_torch(answer: Resolution, reading: Reading) -> Iterator[Finding]:
    """Report torch and its companions that no line names: pip takes those of PyPI.

    An image or a module may have torch. torchvision requires exactly one torch, so pip takes it from the
    index of the torch that the file names, if there is one; it need not do so with torchaudio.
    """
    named, indexes = {item.name for item in reading.items}, Indexes(reading)
    if "pytorch" in named or any(item.installer == "image" for item in reading.items):
        return
    for pick in answer.distributions:
        is_torch = pick.name == "torch"
        if pick.name not in TORCH_FAMILY or pick.origin != "published" or "+rocm" not in pick.pinned:
            continue
        if pick.name in named or (named & {*TORCH_FAMILY} if is_torch else "torch" not in named):
            continue
        users = {edge.subject for edge in answer.edges if edge.object == pick.name}
        users = users & named or users
        asking = [item.indexes for item in reading.items if item.name in users] or [()]
        if pick.name == "torchvision" and all(
            any(map(torch_index, urls or reading.index_urls)) for urls in asking
        ):
            continue
        verb = "need" if len(users) > 1 else "needs"
        text = f"{join_words(sorted(users), joiner='and')} {verb} {pick.name}, and no line names it"
        fix = f"Name {pick.name}=={pick.pinned}, and its index {pick.index}."
        if (reading.kind == CONDA or not is_torch) and not indexes.other:
            text = f"{text}. It comes from {indexes.source_of(pick.name)}."
            yield Finding("unpinned-torch", "error", text, fix)
        else:
            text = f"{text}. If no image or module has it, pip takes PyPI's, which is built for CUDA."
            fix = f"{fix} Over an image that has it, `matrix build-layer` adds the rest."
            yield Finding("not-judged", "warning", text, fix)


def _torch_of_index(
    items: Sequence[Item], reading: Reading, expected: ExpectedTarget
) -> tuple[list[Item], dict[str, tuple[Verdict, str]]]:
    """Return the ROCm of PyTorch's index, as a limit, and what comes from an index of nightly builds."""
    rocms: list[str] = []
    stated: dict[str, tuple[Verdict, str]] = {}
    family = [item for item in items if item.name in TORCH_FAMILY and expected.backend == "rocm"]
    for item in family:
        urls = [url for url in item.indexes or reading.index_urls if torch_index(url)]
        rocm = rocm_of(torch_index(urls[0])) if len(urls) == 1 and "+" not in item.version else ""
        builds = expected.published(item.name, item.version) if item.version else []
        if rocm and is_nightly(urls[0]):
            stated[item.name] = ("not-judged", "the catalog has no nightly builds")
        elif rocm and (not item.version or rocm in {minor(row.rocm) for row in builds if row.rocm}):
            rocms.append(rocm)
    one = len(rocms) == len(family) and len({*rocms}) == 1 and expected.fit(rocms[0]) != "does-not-fit"
    return [Item(name="rocm", specifier=f"=={rocms[0]}.*")] if one else [], stated


def _pages(reading: Reading) -> list[str]:
    """Return the URLs of find-links locations; a path is relative to the file."""
    folder = PurePosixPath(reading.name).parent
    return [
        link if "://" in link else Path(folder / link).absolute().as_uri()
        for link in reading.find_links
        if "$" not in link
    ]


def _ask(context: Context, pins: Sequence[Item], find_links: Sequence[str]) -> Ask:
    """Return a function for the nearest request that resolves.

    It returns the answer, the versions that it changes, and what no index has.

    A ROCm that the driver supports comes first; if none resolves, or if the environment resolves as it is,
    any will do, at your own risk.
    """
    texts = [f"{item.name}=={item.version}" for item in pins if is_version(item.version)]
    texts += [f"{item.name}{item.specifier}" for item in pins if item.specifier and not item.url]
    settings, catalog = context.settings, context.catalog_with_image
    inputs = replace(
        context.inputs,
        requirements=(),
        constraints=[*map(parse_requirement, texts)],
        find_links=[*context.inputs.find_links, *find_links],
    )
    indexes = package_indexes(settings, inputs, context.console)
    target = make_request(settings, catalog, context.today, inputs)
    within = supported_rocm(target, catalog)
    as_is = not context.args.repair

    def ask(kept: Sequence[Item]) -> tuple[Resolution | Conflict, list[Change], Mapping[str, NoVersionError]]:
        extra: tuple[Requirement, ...] = ()
        with context.console.task("find the nearest versions"):
            found = Nearest(catalog, target, kept, indexes, as_is=as_is)
            conflict = found.relax()
            is_changed = conflict is None and (found.reasons or _has_bare_torch(kept))
            if within is not None and is_changed:
                safe = replace(target, requirements=(*target.requirements, within))
                other = Nearest(catalog, safe, kept, indexes, as_is=as_is)
                if other.relax() is None:
                    found, extra = other, (within,)
        if conflict is not None:
            return conflict, [], {}
        asked = replace(inputs, requirements=[*found.requirements, *extra])
        answer = resolve_settings(settings, catalog, context.today, asked, reporter=context.console)
        if isinstance(answer, Conflict):
            return answer, [], found.unknown
        return answer, list(changed_versions(answer, kept, found.reasons)), found.unknown

    return ask


def _without_moving_torch(
    ask: Ask, answer: Resolution, kept: list[Item], changes: list[Change], versions: list[Change]
) -> tuple[Resolution, list[Item], list[Change], list[Change]]:
    """Leave out replacements because of which torch moves further than without them, and say so."""
    torch = next((item for item in kept if item.name == "torch" and item.version), None)
    replacing = [change for change in changes if change.after and change.for_cuda and change.after != "torch"]
    names = {name for change in replacing for name in change.after.split(", ")} - {*TORCH_FAMILY}
    if torch is None or not names:
        return answer, kept, changes, versions
    fewer = [item for item in kept if item.name not in names]
    other, fewer_versions, _ = ask(fewer)
    if not isinstance(other, Resolution) or _distance(other, torch) >= _distance(answer, torch):
        return answer, kept, changes, versions
    moves = f"torch would become {answer.version_of('torch')}"
    left = [
        Change(
            change.before,
            "",
            f"with {change.after}, {moves}. {change.reason[:1].upper()}{change.reason[1:]}",
            change.source,
            for_cuda=True,
            needed=True,
        )
        if {*change.after.split(", ")} & names
        else change
        for change in changes
    ]
    return other, fewer, left, fewer_versions


def _distance(answer: Resolution, wanted: Item) -> tuple[int, bool]:
    """Return how far torch is from the wanted one: 0 for the same release to 3, and if its label differs."""
    release, _, label = answer.version_of("torch").partition("+")
    wanted_release, _, wanted_label = wanted.version.partition("+")
    pairs = zip(release.split("."), wanted_release.split("."), strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return max(0, _PARTS - same), bool(wanted_label) and label != wanted_label


def _has_bare_torch(kept: Sequence[Item]) -> bool:
    """Return whether torch has no label for ROCm, so that it must change anyway."""
    torch = next((item for item in kept if item.name == "torch"), None)
    return torch is not None and "+rocm" not in torch.version


def supported_rocm(request: Request, catalog: Catalog) -> Requirement | None:
    """Return the requirement that the driver supports the ROCm; None if that is not known."""
    releases = expect_request(request, catalog, "pip").rocm
    if len(releases) < 2 or any(one.name == "rocm" for one in request.requirements):  # noqa: PLR2004
        return None
    major_, minor_ = releases[-1].split(".")[:2]
    return parse_requirement(f"rocm>={releases[0]},<{major_}.{int(minor_) + 1}")


def judge_list(
    judged: Judgement, reading: Reading, expected: ExpectedTarget, context: Context
) -> Resolution | None:
    """Judge a list of what is installed, and whether that could be installed again.

    Return the nearest environment. What the indexes have does not change whether the installed one works,
    except that the wheels that they have say what a list does not.
    """
    own = Judgement(thing=judged.thing, kind="", against=judged.against)
    answer = predict(own, reading, context)
    read = {item.name: item.evidence for item in own.distributions if item.verdict == "fits"}
    if not own.changes and not any(one.id.startswith("driver-") for one in judged.findings):
        judged.findings += [one for one in own.findings if one.id.startswith("driver-")]
    # Its build could still change its requirements, but what is installed was built already.
    picks = answer.distributions if answer else ()
    read |= {pick.name: "its source compiles nothing" for pick in picks if pick.is_pure_source}
    judged.distributions = list(judge_items(reading, expected, read))
    if any(item.verdict == "does-not-fit" for item in judged.distributions) or context.args.repair:
        judged.changes, judged.core, judged.requirements = own.changes, own.core, own.requirements
    missing = [f"{item.name} {item.version}" for item in own.distributions if item.verdict != "fits"]
    text = "It could be installed again from these indexes, as it is"
    if missing or answer is None:
        text = f"It could not be installed again from these indexes as it is: {join_words(missing, most=5)}"
        text = text if missing else own.findings[-1].message
    judged.findings.append(Finding("installable-again", "info", f"{text.rstrip('.')}."))
    return answer


def _unlabelled(answer: Resolution | Conflict, kept: Sequence[Item], reading: Reading) -> Iterator[Change]:
    """Yield torch and its companions that have no label, so that pip takes PyPI's build."""
    if isinstance(answer, Conflict) or answer.target.backend != "rocm" or reading.installed:
        return
    chosen = {pick.name: pick for pick in answer.distributions}
    for item in kept:
        if any(torch_index(url).startswith("rocm") for url in item.indexes or reading.index_urls):
            continue
        if _other_index(item, reading):
            continue
        pick = chosen.get(item.name)
        if item.name in TORCH_FAMILY and pick and "+" in pick.pinned and "+" not in item.version:
            reason = f"without a label pip takes {_UNLABELLED}"
            if item.indexes and all(torch_index(url) == "cpu" for url in item.indexes):
                reason = "its index has builds for CPUs"
            if not item.version or pick.version.partition("+")[0] == item.version:
                yield Change(str(item), pick.pinned, reason, for_cuda=True)


def _other_index(item: Item, reading: Reading) -> str:
    """Return an index that may have any build: not PyPI's, PyTorch's or ours; empty if there is none."""
    urls = [*(item.indexes or reading.index_urls), *reading.find_links]
    return next((url for url in urls if is_other_index(url) and url != MOUNTED_INDEX), "")


def _of_other_index(reading: Reading, expected: ExpectedTarget) -> dict[str, tuple[Verdict, str]]:
    """Return torch and its companions without a label that an index may have for ROCm."""
    return {
        item.name: ("not-judged", f"{url} may have it for ROCm; else pip takes {_UNLABELLED}")
        for item in reading.items
        if item.name in TORCH_FAMILY and "+" not in item.version and expected.backend == "rocm"
        if (url := _other_index(item, reading))
    }


def _without_release(
    unknown: Mapping[str, NoVersionError], reading: Reading, *, is_offline: bool
) -> Iterator[tuple[str, tuple[Verdict, str]]]:
    """Yield the verdict about what no index has, by name.

    A project that no index has, and a build with a label of somebody's own, may be on an index that the file
    does not name. A version that the indexes of its project do not have cannot be installed.
    """
    own = {item.name for item in reading.items if "+" in item.version}
    for name, error in unknown.items():
        is_wrong = error.is_published and not is_offline and name not in own
        evidence = f"{error.message} {error.hint}".strip().rstrip(".")
        yield name, ("does-not-fit" if is_wrong else "not-judged", evidence)


def _known_commits(
    reading: Reading, unknown: Mapping[str, object], expected: ExpectedTarget
) -> dict[str, tuple[Verdict, str]]:
    """Return the builds that no index has, and that fit by a label that is a commit of the catalog."""
    versions = {item.name: item.version for item in reading.items}
    found = {
        item.name: of_commit(item, versions, expected)
        for item in reading.items
        if item.name in unknown and "+" in item.version
    }
    return {name: answer for name, answer in found.items() if answer[0] == "fits"}


def _verdicts(
    answer: Resolution | Conflict,
    reading: Reading,
    changes: Sequence[Change],
    stated: Mapping[str, tuple[Verdict, str]],
    expected: ExpectedTarget,
) -> Iterator[JudgedItem]:
    changed = {change.before: change for change in changes}
    versions = {item.name: item.version for item in reading.items if item.version}
    known = answer if isinstance(answer, Resolution) else None
    for item in reading.items:
        change, pick = changed.get(str(item)), known and known.pick(item.name)
        verdict, evidence = of_origin(item, versions, expected) or ("not-judged", "it was not resolved")
        if item.url:
            pass
        elif item.name in stated and not (change and change.for_cuda):
            verdict, evidence = stated[item.name]
        elif change:
            is_harmless = change.for_cuda and expected.backend == "cpu"  # installed, and perhaps never used
            verdict, evidence = "not-judged" if is_harmless else "does-not-fit", change.reason
        elif known and pick and item.installer != "conda":
            verdict, evidence = of_pick(pick, known)
            if verdict == "fits":
                evidence = f"{pick.pinned} resolves with the others"
        yield JudgedItem.of(item, verdict, evidence)


def conda_lines(reading: Reading, changes: Sequence[Change]) -> list[str]:
    """Return what conda keeps of a file: all but Python, pip, and what was replaced or left out."""
    changed = {change.before for change in changes}
    if reading.installed:
        return []
    return [
        item.text or str(item)
        for item in reading.items
        if item.installer == "conda" and item.name != "pip" and str(item) not in changed
    ]
