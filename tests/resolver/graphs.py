"""Random locks whose edges form no circle, and locks written by hand."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from itertools import combinations

import msgspec
from hypothesis import strategies as st

from resolver.facts.schema import Sdist
from resolver.lock import SCHEMA, Lock, LockedEdge, LockedPick, LockedRequest, LockedTarget
from resolver.model import Origin

PLAIN = ("apex", "deepspeed", "flash-attn", "ninja", "setuptools", "torch", "triton")
ODD = ('to"rch', "a\\", "<b>&amp;", "x -> y", "ф]", "e\x1b[31mx", "two\nlines", "#35;", "`code`")
"""What no index has, but a file made by hand can hold."""


def lock_of(
    edges: Iterable[LockedEdge],
    *,
    built: Iterable[str] = (),
    published: Iterable[str] = (),
    requirements: Iterable[str] = (),
) -> Lock:
    """Make a lock of these edges; what is neither built nor published is left to pip.

    It is sound, so that it can be written and read back, unless a name is odd.
    """
    picks = [_pick(name, "build") for name in built] + [_pick(name, "published") for name in published]
    picked = {pick.name for pick in picks}
    named = [
        one
        if one.object in picked or one.requirement
        else msgspec.structs.replace(one, requirement=one.object)
        for one in edges
    ]
    missing = {one.subject for one in named} - picked
    picks += [_pick(name, "published") for name in sorted(missing)]
    order = sorted({*(pick.name for pick in picks), *(one.object for one in named)})
    return Lock(
        schema=SCHEMA,
        request=LockedRequest(requirements=tuple(requirements)),
        target=LockedTarget(site="lumi-g", date=date(2026, 3, 1), backend="rocm", gfx=("gfx90a",)),
        order=(tuple(order),),
        pick=tuple(picks),
        edge=tuple(named),
    )


def _pick(name: str, origin: Origin) -> LockedPick:
    return LockedPick(
        name=name,
        version="1.0",
        kind="distribution",
        origin=origin,
        support="observed",
        verdict="supported",
        wheel_version="1.0+rocm6.4.torch2.9.1.gfx90a" if origin == "build" else "",
        sdist=Sdist(f"{name}-1.0.tar.gz", "ab" * 32) if origin == "build" else None,
    )


def runs(subject: str, target: str) -> LockedEdge:
    """Make a run edge."""
    return LockedEdge(subject=subject, object=target, kind="run", declared=True)


def builds(subject: str, target: str, requirement: str = "", *, declared: bool = True) -> LockedEdge:
    """Make a build edge."""
    return LockedEdge(
        subject=subject, object=target, kind="build", declared=declared, requirement=requirement
    )


@st.composite
def locks(draw: st.DrawFn, names: tuple[str, ...] = PLAIN) -> Lock:
    """Draw a lock: some of what is needed has no pick, and no edge appears twice."""
    order = draw(st.permutations(names))[: draw(st.integers(1, len(names)))]
    pairs = list(combinations(order, 2))
    kinds = st.sets(st.sampled_from(("run", "build", "hidden")), max_size=2)
    edges: list[LockedEdge] = []
    for needed, subject in pairs:
        chosen = draw(kinds)
        edges += [runs(subject, needed)] if "run" in chosen else []
        if chosen & {"build", "hidden"}:
            edges.append(builds(subject, needed, declared="build" in chosen))
    origins = draw(st.lists(st.sampled_from(("build", "published", "pip")), min_size=len(order)))
    given = dict(zip(order, origins, strict=False))
    return lock_of(
        draw(st.permutations(edges)) if edges else [],
        built=[name for name in order if given[name] == "build"],
        published=[name for name in order if given[name] == "published"],
        requirements=draw(st.lists(st.sampled_from(order), unique=True)),
    )
