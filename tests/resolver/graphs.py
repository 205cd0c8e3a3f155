"""Random resolutions whose edges form no cycle, and resolutions written by hand."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from itertools import combinations

from hypothesis import strategies as st
from msgspec.structs import replace

from resolver.facts.schema import Sdist
from resolver.model import Distribution, Edge, Origin, Request, Requirement, Resolution, Target

PLAIN = ("apex", "deepspeed", "flash-attn", "ninja", "setuptools", "torch", "triton")
ODD = ('to"rch', "a\\", "<b>&amp;", "x -> y", "ф]", "e\x1b[31mx", "two\nlines", "#35;", "`code`")
"""Names that no index has, but that a file may contain."""


def lock_of(
    edges: Iterable[Edge],
    *,
    built: Iterable[str] = (),
    published: Iterable[str] = (),
    requirements: Iterable[str] = (),
) -> Resolution:
    """Return a resolution with these edges. pip chooses all other distributions."""
    picks = [_pick(name, "build") for name in built] + [_pick(name, "published") for name in published]
    names = {pick.name for pick in picks}
    edges = [
        edge if edge.object in names or edge.requirement else replace(edge, requirement=edge.object)
        for edge in edges
    ]
    missing = {edge.subject for edge in edges} - names
    picks += [_pick(name, "published") for name in sorted(missing)]
    order = sorted({*(pick.name for pick in picks), *(edge.object for edge in edges)})
    target = Target(backend="rocm", gfx=("gfx90a",), site="lumi-g", date=date(2026, 3, 1))
    return Resolution(
        request=Request(target, tuple(Requirement(text, None, text) for text in requirements)),
        target=target,
        order=(tuple(order),),
        picks=tuple(picks),
        edges=tuple(edges),
    )


def _pick(name: str, origin: Origin) -> Distribution:
    return Distribution(
        name=name,
        version="1.0",
        kind="distribution",
        origin=origin,
        support="observed",
        verdict="supported",
        wheel_version="1.0+rocm6.4.torch2.9.1.gfx90a" if origin == "build" else "",
        sdist=Sdist(f"{name}-1.0.tar.gz", "ab" * 32) if origin == "build" else None,
    )


def runs(subject: str, target: str) -> Edge:
    """Return a run edge."""
    return Edge(subject, target, "run", declared=True)


def builds(subject: str, target: str, requirement: str = "", *, declared: bool = True) -> Edge:
    """Return a build edge."""
    return Edge(subject, target, "build", declared, requirement)


@st.composite
def locks(draw: st.DrawFn, names: tuple[str, ...] = PLAIN) -> Resolution:
    """Draw a resolution: some requirements have no pick, and no edge appears twice."""
    order = draw(st.permutations(names))[: draw(st.integers(1, len(names)))]
    pairs = list(combinations(order, 2))
    kinds = st.sets(st.sampled_from(("run", "build", "hidden")), max_size=2)
    edges: list[Edge] = []
    for needed, subject in pairs:
        chosen = draw(kinds)
        edges += [runs(subject, needed)] if "run" in chosen else []
        if chosen & {"build", "hidden"}:
            edges.append(builds(subject, needed, declared="build" in chosen))
    origins = draw(st.lists(st.sampled_from(("build", "published", "pip")), min_size=len(order)))
    origin_of = dict(zip(order, origins, strict=False))
    return lock_of(
        draw(st.permutations(edges)) if edges else [],
        built=[name for name in order if origin_of[name] == "build"],
        published=[name for name in order if origin_of[name] == "published"],
        requirements=draw(st.lists(st.sampled_from(order), unique=True)),
    )
