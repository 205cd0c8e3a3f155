"""Convert the result of the solver to a resolution: picks, files, edges, install order, warnings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import astuple, replace

from resolver.answers.resolution import generations, recipe_edges, with_labels, without_cycles
from resolver.compiling.clauses import REQUEST
from resolver.compiling.known_bad import known_bad_warnings
from resolver.compiling.names import near_names
from resolver.compiling.problem import is_prerelease
from resolver.errors import EnvironmentLacksError, SourceError
from resolver.facts.schema import Sdist
from resolver.indexes import Content, SourceClass
from resolver.model import INCOMPLETE, STATUS_RANK, Distribution, Edge, Fact, Notice
from resolver.requirements import TRITON_NAMES
from resolver.versions import join_words

if TYPE_CHECKING:
    from resolver.answers.answer import Answer
    from resolver.compiling.problem import Pick
    from resolver.facts.schema import Status
    from resolver.model import Request, Resolution

_MOST_REASONS = 3
"""Maximum number of requirements to list as the reason for a distribution."""


def completed(resolution: Resolution, answer: Answer, *, only_picks: bool = False) -> Resolution:
    """Return a resolution of the catalog with the projects that the solver added, and with all files.

    With `only_picks`, the rest is not that of the answer.
    """
    known = [
        replace(pick, files=answer.files_of(pick.name), extras=answer.world.extras_of(pick.name))
        if pick.kind == "distribution"
        else _python_with_wheels(pick, answer)
        for pick in resolution.picks
    ]
    required_by = _required_by(known, answer)
    known = [_with_risk(_built(pick, answer), answer) for pick in known]
    added = [
        Distribution(
            name=pick.name,
            version=pick.version,
            kind="distribution",
            origin="published" if pick.files else "preinstalled",
            support=_support(pick, answer),
            verdict="supported",
            index=pick.files[0].index if pick.files else "",
            files=pick.files,
            extras=pick.extras,
            facts=(
                *_facts(pick, required_by.get(pick.name, ())),
                *(fact for _, fact in answer.rules.get(pick.name, ())),
            ),
            content=answer.contents.judgement_of(pick.files[0]) if pick.files else None,
        )
        for pick in sorted(answer.picks)
    ]
    added = [_with_risk(_built(pick, answer), answer) for pick in added]
    aliases = list(_aliases(resolution, (*known, *added), answer, required_by))
    picks = with_labels(resolution.request.target, [*known, *aliases, *added])
    platform = [pick for pick in picks if pick.kind == "platform"]
    distributions = sorted(
        (pick for pick in picks if pick.kind == "distribution"), key=lambda pick: pick.name
    )
    if only_picks:
        return replace(resolution, picks=(*platform, *distributions))
    edges = dict.fromkeys(resolution.edges)
    edges |= dict.fromkeys(Edge(alias.name, alias.alias_of, "run", declared=True) for alias in aliases)
    names = {pick.name for pick in picks}
    for pick in distributions:
        for required, _ in answer.requirements_of(pick.name):
            if required in names and required != pick.name:
                edges.setdefault(Edge(pick.name, required, "run", declared=True))
        if pick.recipe:
            edges |= dict.fromkeys(recipe_edges(pick.name, pick.recipe, names))
            if "torch" in names & {*pick.recipe.match_runtime}:
                edges.setdefault(Edge(pick.name, "torch", "run", declared=True))
    ordered = without_cycles(tuple(sorted(edges, key=astuple)))
    left = tuple(f"the requirements of {name}: {reason}" for name, reason in sorted(answer.unread().items()))
    left += tuple(str(notice) for notice in answer.lacking() if notice.id == "url-not-locked")
    unasked = [pick for pick in distributions if _is_unasked(pick, answer)]
    versions = {pick.name: pick.version for pick in picks}
    variants = {pick.name: pick.variant for pick in picks}
    known_bad = known_bad_warnings(answer.catalog, resolution.target, versions, variants)
    return replace(
        resolution,
        picks=(*platform, *distributions),
        edges=ordered,
        order=generations((pick.name for pick in distributions), ordered),
        left_open=left,
        incomplete=tuple(pick.name for pick in unasked),
        notes=(*resolution.notes, *_incomplete(unasked), *_exclusions(resolution.request)),
        warnings=(
            *resolution.warnings,
            *(one for one in known_bad if one not in resolution.warnings),
            *_warnings(answer),
            *_contents(added),
            *_untried(distributions),
            *_confusions(distributions, answer),
            *_newer_elsewhere(distributions, answer),
            *near_names(answer.catalog, _only_requested(answer, required_by), answer.world.asked.keys()),
        ),
    )


def _with_risk(pick: Distribution, answer: Answer) -> Distribution:
    """Return a pick with the inferred bounds that the result does not keep, if there are any."""
    beyond = answer.beyond_inferred.get(pick.name)
    if not beyond:
        return pick
    return replace(pick, support="inferred", verdict="at-own-risk", facts=(*pick.facts, *beyond))


def _built(pick: Distribution, answer: Answer) -> Distribution:
    """Return a distribution that has only an sdist as one that is built, with the recipe drafted from it.

    ``rocm`` chooses its requirements where it is installed, so it is left as it is.
    """
    if pick.kind != "distribution" or pick.name == "rocm" or not pick.is_sdist:
        return pick
    file, backend = pick.files[0], answer.request.target.backend
    try:
        content = answer.contents.content_of(file) or answer.index.indexes.content(file, None)
    except (EnvironmentLacksError, SourceError) as error:  # the catalog has its requirements
        content = _unread(error.message.rstrip("."))
    content = content or _unread("nothing in it was read")
    file = replace(file, sha256=file.sha256 or content.sha256)
    if not file.sha256 or ("#subdirectory=" in file.url and not file.url.startswith("git+")):
        content = _unread("its index states no SHA-256" if file.index else "it is part of an archive")
    recipe = next((row for row in content.recipes if row.backend == backend), None)
    return replace(
        pick,
        origin="build",
        files=(file, *pick.files[1:]),
        sdist=Sdist(file.name, file.sha256) if file.sha256 else None,
        source=content.source,
        recipe=recipe and replace(recipe, package=pick.name, releases=f"=={pick.version}"),
    )


def _unread(reason: str) -> Content:
    return Content("", source=SourceClass("unread", reason))


def _untried(picks: Sequence[Distribution]) -> Iterator[Notice]:
    """Warn about builds whose recipe nobody has tried, and about those that have none."""
    has_torch = any(pick.name == "torch" for pick in picks)
    for pick in picks:
        evidence = pick.source.evidence if pick.source else ""
        write = f"`matrix catalog draft {pick.draft_source}`, and add `--catalog {pick.name}.toml`."
        if pick.is_untried:
            text = f"{pick} is built with a recipe drafted from its source, which is untried: {evidence}."
            yield Notice("untried", pick.name, f"{text} To edit it, run {write}")
        if pick.recipe and "torch" in pick.recipe.match_runtime and not has_torch:
            text = f"{pick} is compiled against torch, and the request lacks it: `matrix add torch`."
            yield Notice("torch-missing", pick.name, text)
        if pick.lacks_recipe:
            text = f"{pick} has no wheel for the target, and its source was not read: {evidence}."
            yield Notice("source-unread", pick.name, f"{text} To build it, run {write}")


def _python_with_wheels(pick: Distribution, answer: Answer) -> Distribution:
    """Return a platform component; Python with the reason if wheels of what was requested decided it."""
    if pick.name != "python" or not answer.world.most_wheels & 1 << answer.solution["python"]:
        return pick
    text = f"python {pick.version} is the release line with the most wheels of what you asked for"
    return replace(pick, facts=(replace(pick.facts[0], text=text), *pick.facts[1:]))


def _is_unasked(pick: Distribution, answer: Answer) -> bool:
    """Return whether only a build backend that was not asked knows what a distribution requires."""
    if pick.origin != "build" or pick.alias_of:
        return False
    metadata = answer.metadata(pick.name)
    return metadata is None or metadata.dynamic


def _incomplete(unasked: Sequence[Distribution]) -> Iterator[Notice]:
    """Yield a note about the sources whose requirements may be others than those that their files state."""
    if unasked:
        listed = join_words([pick.name for pick in unasked], joiner="and")
        short = f"incomplete: only the build backend of {listed} knows what it requires"
        text = (
            f"The lock is incomplete: only the build backend of {listed} knows what it requires, and "
            "resolving runs no code. `matrix farm fetch`, `build-wheels` and `build-container` ask it in the "
            "sandbox, and complete the lock before anything is compiled."
        )
        yield Notice(INCOMPLETE, "", text, short)


def _exclusions(request: Request) -> Iterator[Notice]:
    for one in request.excluded:
        text = (
            f"{one.name} {one.version} is excluded, as in the earlier lock, because its file does not fit: "
            f"it {one.evidence}."
        )
        yield Notice("file-excluded", one.name, text)


def _contents(picks: Sequence[Distribution]) -> Iterator[Notice]:
    unknown: dict[str, list[str]] = {}
    for pick in picks:
        if pick.content and pick.content.state == "not-judged":
            unknown.setdefault(pick.content.evidence, []).append(pick.name)
        elif pick.content and pick.content.on_cpu:
            yield Notice("runs-on-cpu", pick.name, f"{pick} runs on the CPU: {pick.content.evidence}.")
    if unknown:
        reasons = [f"{', '.join(names)} ({why})" for why, names in unknown.items()]
        yield Notice("content-not-judged", "", f"Not judged: {'; '.join(reasons)}.")


def _confusions(picks: Iterable[Distribution], answer: Answer) -> Iterator[Notice]:
    """Warn about distributions whose name may mean another project on an earlier index."""
    for pick in picks:
        index = pick.files[0].index if pick.files else ""
        bound = pick.index and pick.index != index
        if pick.origin == "published" and not bound and (earlier := answer.index.earlier(pick.name, index)):
            text = (
                f"{pick} comes from {index}, and {earlier} also has a project {pick.name}. As in pip, the "
                "highest version of all indexes was chosen. If they are different projects, require "
                f"{pick.name}<{pick.version}, or remove the index."
            )
            yield Notice("two-indexes", pick.name, text)


def _newer_elsewhere(picks: Iterable[Distribution], answer: Answer) -> Iterator[Notice]:
    """Name newer releases of what was asked for on indexes that do not count for them."""
    found: dict[str, list[str]] = {}
    for pick in picks:
        is_bound = pick.index and pick.files and pick.index != pick.files[0].index
        is_asked = pick.origin == "published" and pick.name in answer.world.asked and not is_bound
        newer = answer.index.newer_elsewhere(pick) if is_asked else []
        if stable := [(url, version) for url, version in newer if not is_prerelease(version)]:
            url, version = stable[0]
            found.setdefault(url, []).append(f"{pick.name} {version}")
    for url, releases in found.items():
        text = (
            f"{url} has newer releases, which do not count, because an index before it has the project: "
            f"{join_words(releases, joiner='and')}. --index-strategy unsafe-best-match considers all indexes."
        )
        yield Notice("newer-elsewhere", "", text)


def _only_requested(answer: Answer, required_by: Mapping[str, object]) -> list[str]:
    return [
        pick.name
        for pick in sorted(answer.picks)
        if pick.files
        and pick.files[0].index
        and pick.name in answer.world.asked
        and pick.name not in required_by
    ]


def _required_by(known: Iterable[Distribution], answer: Answer) -> dict[str, list[Fact]]:
    facts: dict[str, list[Fact]] = {}
    names = [pick.name for pick in known if pick.kind == "distribution"]
    for name in [*names, *(pick.name for pick in sorted(answer.picks))]:
        for required, text in answer.requirements_of(name):
            version = answer.version_of(name)
            fact = Fact(
                f"{name} {version} requires {text}", "documented", f"the metadata of {name} {version}"
            )
            facts.setdefault(required, []).append(fact)
    return facts


def _aliases(
    resolution: Resolution,
    picks: Sequence[Distribution],
    answer: Answer,
    required_by: Mapping[str, Sequence[Fact]],
) -> Iterator[Distribution]:
    """Yield an alias for each other name of torch's triton."""
    names = {pick.name for pick in picks}
    triton = next((pick for pick in picks if pick.name in TRITON_NAMES), None)
    if triton is None:
        return
    others = [name for name in TRITON_NAMES if name in required_by and name not in names]
    reasons = {name: list(required_by[name]) for name in others}
    for requirement in answer.requested_tritons():
        if requirement.name not in names:
            fact = Fact(f"you asked for {requirement}", "documented", REQUEST)
            reasons.setdefault(requirement.name, []).append(fact)
    torch = resolution.pick("torch")
    own = Fact(f"{torch} has {triton}, which installs triton", triton.support, triton.facts[0].source)
    for name, facts in sorted(reasons.items()):
        yield Distribution(
            name=name,
            version=triton.version.partition("+")[0],
            kind="distribution",
            origin="build",
            support=triton.support,
            verdict="supported",
            alias_of=triton.name,
            facts=(*facts, own),
        )


def _facts(pick: Pick, required_by: Sequence[Fact]) -> Iterator[Fact]:
    name, release = pick.name, f"{pick.name} {pick.version}"
    index = pick.files[0].index if pick.files else ""
    if index:
        yield Fact(f"{release} is published at {index}", "documented", f"{index}/{name}/")
    elif pick.files:
        yield Fact(f"{release} comes from the URL in the request", "documented", pick.files[0].url)
    if pick.support == "inferred":
        text = f"{release} has the requirements that its files state, which a build may change"
        yield Fact(text, "inferred", pick.files[0].url)
    yield from required_by[:_MOST_REASONS]


def _support(pick: Pick, answer: Answer) -> Status:
    """Return the weakest status of what is known about a pick itself."""
    own = (fact.status for subject, fact in answer.rules.get(pick.name, ()) if subject == pick.name)
    return min([pick.support, *own], key=STATUS_RANK.__getitem__)


def _warnings(answer: Answer) -> Iterator[Notice]:
    for pick in sorted(answer.picks):
        if answer.needs_newer_patch(pick):
            needed = f"{pick.name} {pick.version} requires Python {pick.files[0].requires_python}"
            text = f"{needed}, so some patch releases of the Python in the lock cannot install it."
            yield Notice("needs-newer-patch", pick.name, text)
        if pick.support == "inferred" and pick.name == "rocm":  # a build of ours is asked before it
            text = (
                f"{pick.name} {pick.version} is built from source for {answer.environment}, which may change "
                "its requirements. Those that its files state were used."
            )
            yield Notice("metadata-of-sdist", pick.name, text)
    undated = [
        pick for pick in sorted(answer.picks) if pick.files and not any(file.uploaded for file in pick.files)
    ]
    if undated and answer.request.dated:
        names = [f"{pick.name} {pick.version}" for pick in undated]
        text = (
            f"The days of {join_words(names, joiner='and')} are not known, because their indexes do not state"
        )
        yield Notice("day-unknown", "", f"{text} them: they may be newer than {answer.request.target.date}.")
    unread = answer.unread()
    if unread:
        names, reason = sorted(unread), next(iter(unread.values()))
        what = f"The requirements of {join_words(names, joiner='and')} are not locked: {reason.rstrip('.')}."
        text = f"{what} To lock them, run `matrix resolve` with network access."
        yield Notice("metadata-unread", "", text, f"not locked: {join_words(names, most=2, joiner='and')}")
    yield from answer.lacking()
    for name, facts in answer.beyond_inferred.items():
        why = "; ".join(fact.text for fact in facts)
        text = f"{name} {answer.version_of(name)} is at your own risk: {why}."
        yield Notice("at-own-risk", name, text)
    for name, extras in answer.extras_for_rocm().items():
        listed = join_words([f"{name}[{extra}]" for extra in extras], most=6)
        yield Notice(
            "extras-for-rocm", name, f"{name} has extras for AMD GPUs, not requested here: {listed}."
        )
    yield from answer.replaced_for_cuda()
    yield from answer.passed_for_wheels()
    yield from answer.passed_for_content()
    for release, problem in answer.skipped.items():
        yield Notice("skipped", release, f"{release} was skipped: it {problem}.")
