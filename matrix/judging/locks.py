"""Judge a lock on a target: by its own facts, sources and recipes, without an index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from builders.containers.inspection import with_inspected_image
from builders.findings import Finding
from builders.installed.checks import driver_findings, known_bad_findings
from matrix.input.locking import catalog_with_image_of, overlays_of
from matrix.input.request import read_preinstalled
from matrix.judging.verdict import JudgedItem, of_pick
from matrix.show.render import shortened
from resolver.consequences.holdings import Holding, Judge
from resolver.consequences.questions import Side
from resolver.model import IMAGE, Preinstalled, Target

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from matrix.command_line.context import Context
    from matrix.input.settings import Settings
    from matrix.judging.verdict import Judgement
    from resolver.model import Resolution


def holding_of_lock(
    lock: Resolution, path: Path, sides: tuple[tuple[Target, Settings], ...], changed: Collection[str]
) -> Holding:
    """Return the pins of a lock with its own request on two targets, which differ from it in some fields."""
    kept = lock.request.preinstalled or Preinstalled("")
    is_layer = kept.source == IMAGE and "base_image" in changed
    found = []
    for target, settings in sides:
        overlays = [*overlays_of(lock, path), *settings.catalog]
        catalog = catalog_with_image_of(lock, path, replace(settings, catalog=overlays), drafts=False)
        catalog = with_inspected_image(catalog, settings.base_image)
        moved = {name: getattr(target, name) for name in (*changed, "date")}
        request = replace(lock.request, target=replace(lock.request.target, **moved))
        if is_layer:
            held = read_preinstalled(IMAGE, catalog, settings.base_image or "")
            request = replace(request, preinstalled=replace(held, replaced=kept.replaced))
        found.append(Side(catalog, request))
    follows = {"kernel-driver"} | ({"base-image", "glibc"} if {"base_image", "site"} & {*changed} else set())
    picks = (pick for pick in lock.picks if pick.name not in follows and not pick.comes_with_image)
    if is_layer:  # what is over the image; the rest is that of each image
        picks = (pick for pick in lock.distributions if pick.origin != "preinstalled")
    pins = {pick.name: pick.key for pick in picks if not pick.alias_of}  # whose own triton is pinned
    return Holding(
        kind="lock",
        name=str(path),
        before=found[0],
        after=found[1],
        pins=pins,
        also=tuple(pins),
        open_world=True,
    )


def judge_lock(judged: Judgement, lock: Resolution, path: Path, context: Context) -> None:
    """Judge the pins of a lock on the target of the context; what it builds is on no index yet."""
    target, own = context.request().target, lock.request.target
    named = [name for name in ("backend", "gfx", "driver", "base_image") if getattr(context.args, name)]
    moved = named if target.site == own.site else Target.__struct_fields__
    changed = [name for name in moved if getattr(target, name) != getattr(own, name)]
    holding = holding_of_lock(lock, path, ((target, context.settings),) * 2, changed)
    judged.core = Judge().broken_before(holding)
    if judged.core:
        text = f"The versions exclude one another: {'; '.join(item.text for item in judged.core)}."
        judged.findings.append(Finding("does-not-resolve", "error", text))
    else:
        judged.findings += driver_findings(lock.version_of("rocm"), holding.after)
    versions = {pick.name: pick.version for pick in lock.picks}
    judged.findings += known_bad_findings(versions, holding.after)
    published = [pick for pick in lock.distributions if pick.origin == "published"]
    missing = [text.rstrip(".") for text in lock.left_open]
    if published and not any(pick.files for pick in published):
        missing.append("all files, because no index was asked")
    if missing:
        text = f"The lock lacks {shortened(missing, most=2, separator='; ')}."
        fix = "Resolve again when all indexes can be reached."
        judged.findings.append(Finding("not-judged", "warning", text, fix))
    for pick in lock.distributions:
        verdict, evidence = of_pick(pick, lock)
        if judged.core:
            verdict, evidence = "not-judged", "it was not resolved"
        item = JudgedItem(name=pick.name, version=pick.pinned, verdict=verdict, evidence=evidence)
        judged.distributions.append(item)
