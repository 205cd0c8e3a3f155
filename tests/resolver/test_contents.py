"""What the wheels of package indexes contain, as a reason to choose or to refuse a release."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from resolver.answers.rejected import rejected_versions, search_naming
from resolver.answers.resolve import Search, resolve
from resolver.errors import EnvironmentLacksError, InternalError, SourceError
from resolver.facts.catalog import Catalog, load
from resolver.indexes import Content, ExcludedFile, File, Judgement, Metadata, SourceClass, judged
from resolver.lock import dumps, read_lock
from resolver.model import Conflict, Resolution
from resolver.versions import satisfies
from tests.resolver.solve_helpers import ask
from tests.support.indexes import FakeIndexes, FakeRelease

WHEELS = ("cp312-cp312-manylinux_2_28_x86_64", "cp311-cp311-manylinux_2_28_x86_64")
SDIST = FakeRelease(wheels=(), sdist=True)
KNOWN = 'status = "observed"\nsource = "somewhere"\n'
PACKAGE = f'[[package]]\nname = "a"\ntitle = "x"\npypi = "same"\n{KNOWN}'

PLAIN = Content("a.so needs nothing of a GPU")
CUDA = Content("a.so needs libcudart.so.12", cuda="required")
FALLBACK = Content("a.so opens libcudart.so.12", cuda="optional")
UNREAD = Content("a.so has a suspicious name", unread="a.so is larger than 40 MB")
OF_ROCM = {
    line: Content(f"a.so needs libamdhip64.so.{line}", rocm=f">={line},<{line + 1}", gfx=("gfx90a",))
    for line in (6, 7, 99)
}
OTHER_GPU = Content("a.so", gfx=("gfx942",))

Projects = Mapping[str, Mapping[str, FakeRelease]]


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load()


def compiled(content: Content | None, *requires: str, **fields: Any) -> FakeRelease:
    """Return a release with wheels for two Pythons."""
    return FakeRelease(requires=requires, content=content, **{"wheels": WHEELS, **fields})


def releases(*contents: Content | None) -> dict[str, FakeRelease]:
    """Return compiled releases 1, 2 and so on, the oldest first."""
    return {str(number): compiled(content) for number, content in enumerate(contents, start=1)}


def found(
    catalog: Catalog, projects: Projects | FakeIndexes, text: str = "a", **options: Any
) -> Resolution | None:
    """Return the answer for an MI250X with the driver of ROCm 6.3; None if the request is refused."""
    indexes = projects if isinstance(projects, FakeIndexes) else FakeIndexes(projects)
    fields = {name: options.pop(name) for name in ("excluded",) if name in options}
    target = {"site": "local", "backend": "rocm", "gfx": ["gfx90a"], "driver": "6.3", **options}
    outcome = Search(catalog, replace(ask(catalog, text, **target), **fields), indexes).answer
    return outcome if isinstance(outcome, Resolution) else None


def state(resolution: Resolution | None, name: str = "a") -> str:
    """Return version and state of a distribution; ``refused`` without a resolution."""
    pick = resolution.pick(name) if resolution else None
    return f"{pick.version} {pick.content.state if pick.content else 'pure'}" if pick else "refused"


# One release.


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "1 pure"),
        (PLAIN, "1 fits"),
        (CUDA, "refused"),
        (replace(CUDA, unread="b.so"), "refused"),
        (replace(CUDA, rocm=">=6", gfx=("gfx90a",)), "refused"),
        (FALLBACK, "1 fits"),
        (UNREAD, "1 not-judged"),
        (replace(UNREAD, gfx=("gfx942",)), "1 not-judged"),
        (OF_ROCM[99], "refused"),
        (OF_ROCM[6], "1 fits"),
        (replace(OF_ROCM[6], unread="b.so"), "1 not-judged"),
        (replace(OF_ROCM[99], unread="b.so"), "refused"),
        (replace(PLAIN, broken="its a/__init__.py only raises an error"), "refused"),
        (replace(PLAIN, unseen="b.so: its sections were not read"), "1 not-judged"),
        (replace(FALLBACK, unseen="b.so: its sections were not read"), "1 not-judged"),
        (replace(PLAIN, gpu_builds=("a-cu12",)), "1 fits"),
        (OTHER_GPU, "refused"),
        (replace(OTHER_GPU, gfx=("gfx942", "gfx90a:xnack-")), "1 fits"),
        (replace(OTHER_GPU, gfx=("gfx90a:xnack+",)), "refused"),
        (replace(OTHER_GPU, gfx=("gfx9-generic",)), "refused"),
        (replace(OTHER_GPU, gfx=("amdgcnspirv",)), "1 fits"),
    ],
)
def test_content_decides_about_a_release(catalog: Catalog, content: Content | None, expected: str) -> None:
    for asked in ("a", "b"):  # requested, or required by something else
        projects = {"a": releases(content), "b": {"1": FakeRelease(requires=["a"])}}
        resolution = found(catalog, projects, asked)
        assert state(resolution) == expected
        if resolution and content and content.rocm:
            assert satisfies(resolution.version_of("rocm"), content.rocm)


@pytest.mark.parametrize("gfx", [["gfx90a"], ["gfx942"], ["gfx90a", "gfx942"]])
@pytest.mark.parametrize("code", [("gfx90a",), ("gfx942",), ("gfx942", "gfx90a"), ("gfx9-4-generic",)])
def test_every_architecture_of_the_target_needs_code(
    catalog: Catalog, gfx: Sequence[str], code: tuple[str, ...]
) -> None:
    has = {"gfx90a": "gfx90a" in code, "gfx942": bool({"gfx942", "gfx9-4-generic"} & {*code})}
    resolution = found(catalog, {"a": releases(replace(OTHER_GPU, gfx=code))}, gfx=gfx)
    assert state(resolution) == ("1 fits" if all(has[one] for one in gfx) else "refused")


def test_cuda_with_fallback_is_a_warning(catalog: Catalog) -> None:
    both = replace(FALLBACK, gfx=("gfx90a",))
    resolution = found(catalog, {"a": releases(FALLBACK), "b": releases(both)}, "a b")
    assert resolution is not None
    warnings = [text for text in resolution.warnings if "runs on the CPU" in text]
    assert warnings == ["a 1 runs on the CPU: its GPU code is for CUDA: a.so opens libcudart.so.12."]


def test_build_for_the_cpu_that_names_others_for_gpus_is_a_warning(catalog: Catalog) -> None:
    resolution = found(catalog, {"a": releases(replace(PLAIN, gpu_builds=("a-cu11", "a-cu12")))})
    assert resolution is not None
    text = f"a 1 runs on the CPU: its builds for GPUs are a-cu11 and a-cu12, and {PLAIN.evidence}."
    assert text in resolution.warnings


@pytest.mark.parametrize("build", ["a-hip-6", "a-amdgpu"])
def test_chosen_build_for_gpus_is_no_reason_for_a_warning(catalog: Catalog, build: str) -> None:
    """As openmm-hip-6 and pennylane-lightning-amdgpu, which the description need not name."""
    content = replace(PLAIN, gpu_builds=("a-cu12",))
    resolution = found(catalog, {"a": releases(content), build: releases(PLAIN)}, f"a {build}")
    assert resolution
    assert not any("runs on the CPU" in text for text in map(str, resolution.warnings))


def test_object_that_may_have_other_code_changes_no_preference(catalog: Catalog) -> None:
    """The state is said, but an older release is not better because it is small."""
    unseen = replace(PLAIN, unseen="b.so: its sections were not read")
    resolution = found(catalog, {"a": releases(PLAIN, PLAIN, unseen)})
    assert resolution is not None
    assert state(resolution) == "3 not-judged"
    assert "Not judged: a (b.so: its sections were not read)." in resolution.warnings


def test_one_line_names_what_is_not_judged(catalog: Catalog) -> None:
    projects = {"a": releases(UNREAD), "b": releases(PLAIN), "c": {"1": SDIST}, "d": releases(UNREAD)}
    resolution = found(catalog, projects, "a b c d")
    assert resolution is not None
    lines = [text for text in resolution.warnings if text.startswith("Not judged")]
    source = "it is built from source, and the source was not read"
    assert lines == [f"Not judged: a, d (a.so is larger than 40 MB); c ({source})."]


def test_nothing_is_read_without_a_gpu(catalog: Catalog) -> None:
    indexes = FakeIndexes({"a": releases(CUDA)})
    resolution = found(catalog, indexes, site="lumi-c", backend="cpu", gfx=[], driver=None)
    assert (state(resolution), indexes.judged) == ("1 pure", [])


# Several releases.


def test_platform_follows_the_content_of_what_it_must_have(catalog: Catalog) -> None:
    """With a driver for both, the newest ROCm that the wheel works with is chosen."""
    for line in (6, 7):
        resolution = found(catalog, {"a": releases(OF_ROCM[line])}, "torch a", driver="6.4")
        assert state(resolution) == "1 fits"
        assert resolution is not None
        assert resolution.version_of("rocm").startswith(f"{line}.")


_NEEDS = {"rocm": ">=99", "gfx": "gfx90a"}
_MEETS = {"rocm": ">=6", "gfx": "gfx90a"}


@pytest.mark.parametrize("asked", ["a", "a torch", "b torch"])
@pytest.mark.parametrize("line", [6, 99])
def test_release_that_needs_another_rocm_is_not_replaced_by_an_unknown_need(
    asked: str, line: int, overlay: Callable[[str], Path]
) -> None:
    """The catalog knows the newest release only; the older one needs the same, and is read."""
    row = '[[requires]]\npackage = "a"\nreleases = "==2"\n'
    rocm, gfx = (f'{row}on = "{on}"\nversions = ["{text}"]\n{KNOWN}' for on, text in _NEEDS.items())
    indexes = FakeIndexes({"a": releases(OF_ROCM[line], None), "b": {"1": FakeRelease(requires=["a"])}})
    resolution = found(load([overlay(PACKAGE + rocm + gfx)]), indexes, asked)
    assert {file.partition("-cp")[0] for file in indexes.judged} >= {"a-1"}
    assert state(resolution) == ("refused" if line == 99 else "1 fits")


def test_release_that_the_catalog_knows_comes_before_unknown_ones(overlay: Callable[[str], Path]) -> None:
    row = '[[requires]]\npackage = "a"\nreleases = "==1"\n'
    rows = "".join(f'{row}on = "{on}"\nversions = ["{text}"]\n{KNOWN}' for on, text in _MEETS.items())
    indexes = FakeIndexes({"a": releases(None, *[UNREAD] * 4)})
    assert state(found(load([overlay(PACKAGE + rows)]), indexes)) == "1 fits"
    assert not [file for file in indexes.judged if file.startswith("a-1-")]


CONTENTS = st.sampled_from([None, PLAIN, CUDA, FALLBACK, UNREAD, OTHER_GPU])


def expected_of(contents: Sequence[Content | None], *, is_requested: bool) -> str:
    """Return the preferred release: the newest that fits; after three unknown ones the newest of these.

    Unknown ones are excluded if the nearest newer one of which something is known does not fit; after three
    of these, the rest is, too. Of a requested project, all before one that requires CUDA are excluded.
    """
    unknown, excluded, last = [], 0, ""
    for number in range(len(contents), 0, -1):
        content = contents[number - 1]
        here = judged(content, ["gfx90a"]).state if content else "pure"
        if is_requested and content is CUDA:
            break
        if here == "not-judged":
            if last == "does-not-fit":
                excluded += 1
            else:
                unknown.append(f"{number} not-judged")
            if excluded == 3:
                break
            continue
        last = here
        if here != "does-not-fit" and len(unknown) < 3:
            return f"{number} {here}"
    return unknown[0] if unknown else "refused"


@settings(max_examples=25, deadline=None)
@given(st.lists(CONTENTS, min_size=1, max_size=6), st.booleans())
def test_newest_release_that_fits_comes_before_unknown_ones(
    contents: list[Content | None], is_requested: bool
) -> None:
    indexes = FakeIndexes({"a": releases(*contents), "b": {"1": FakeRelease(requires=["a"])}})
    resolution = found(load(), indexes, "a" if is_requested else "b")
    assert state(resolution) == expected_of(contents, is_requested=is_requested)
    assert len(indexes.judged) == len({*indexes.judged})


def test_next_releases_are_read_for_the_chosen_python(catalog: Catalog) -> None:
    """They are read at once, before the search has another answer."""
    offered = {str(number): compiled(UNREAD, requires_python=">=3.10") for number in range(1, 6)}
    old = {"0": compiled(PLAIN, wheels=["cp38-cp38-manylinux_2_28_x86_64"])}
    indexes = FakeIndexes({"a": offered | old})
    assert state(found(catalog, indexes, "a")) == "5 not-judged"
    assert [name.partition("-cp")[0] for name in indexes.judged] == ["a-5", "a-4", "a-3"]


def _facts(version: str, **needs: str) -> str:
    row = f'[[requires]]\npackage = "a"\nreleases = "=={version}"\n'
    return "".join(f'{row}on = "{on}"\nversions = ["{text}"]\n{KNOWN}' for on, text in needs.items())


@pytest.mark.parametrize(
    ("newer", "facts", "expected"),
    [
        (CUDA, "", "refused"),
        (OTHER_GPU, "", "refused"),
        (OF_ROCM[99], "", "refused"),
        (None, _facts("3", rocm=">=99"), "refused"),
        (None, _facts("3", gfx="gfx942"), "refused"),
        (PLAIN, "", "3 fits"),
        (UNREAD, "", "3 not-judged"),
        (UNREAD, _facts("3", rocm=">=6"), "3 not-judged"),
    ],
)
def test_release_that_cannot_be_judged_is_no_way_around_a_newer_one(
    overlay: Callable[[str], Path], newer: Content | None, facts: str, expected: str
) -> None:
    """Otherwise the unlearned neighbour of what was learned or read would be chosen."""
    catalog = load([overlay(PACKAGE + facts)])
    indexes = FakeIndexes({"a": releases(UNREAD, UNREAD, newer), "b": {"1": FakeRelease(requires=["a"])}})
    for text in ("a", "b", "torch a"):
        assert state(found(catalog, indexes, text)) == expected
    if expected == "refused":
        assert state(found(catalog, indexes, "a==1")) == "1 not-judged"  # the user may insist


def test_requested_release_is_used_though_it_is_unknown(catalog: Catalog) -> None:
    projects = {"a": releases(PLAIN, UNREAD)}
    passed = found(catalog, projects)
    assert state(passed) == "1 fits"
    assert passed is not None
    (text,) = [text for text in passed.warnings if text.startswith("a 1 was chosen")]
    pin = text.rpartition(" ")[2].rstrip(".")
    assert state(found(catalog, projects, pin)) == "2 not-judged"


@pytest.mark.parametrize("unfit", [1, 9, 10, 30])
def test_few_releases_of_a_project_are_read(catalog: Catalog, unfit: int) -> None:
    projects = {"a": releases(PLAIN, *[CUDA] * unfit), "b": {"1": FakeRelease(requires=["a"])}}
    indexes = FakeIndexes(projects)
    assert state(found(catalog, indexes, "b")) == ("1 fits" if unfit < 10 else "refused")
    assert sum(name.startswith("a-") for name in indexes.judged) == min(unfit + 1, 10)
    assert state(found(catalog, indexes, "b a==1")) == "1 fits"


def test_cuda_in_the_newest_release_speaks_against_the_older_ones_of_a_requested_project(
    catalog: Catalog,
) -> None:
    """As nerfacc: an old release, in which nothing of CUDA was found, is no answer to its name."""
    indexes = FakeIndexes({"a": releases(None, PLAIN, CUDA, CUDA)})
    target = {"site": "local", "backend": "rocm", "gfx": ["gfx90a"], "driver": "6.3"}
    conflict = resolve(catalog, ask(catalog, "a", **target), indexes)  # type: ignore[arg-type]
    assert isinstance(conflict, Conflict)
    assert {name.partition("-cp")[0] for name in indexes.judged} == {"a-4"}
    (text,) = [item.text for item in conflict.core if "before 4" in item.text]
    assert text.endswith("because 4 requires CUDA. To use one, require a==VERSION")
    assert state(found(catalog, indexes, "a==2")) == "2 fits"
    assert state(found(catalog, FakeIndexes({"a": releases(CUDA, PLAIN)}))) == "2 fits"


def test_only_the_release_of_an_answer_is_read(catalog: Catalog) -> None:
    """The metadata of release 3 excludes it, so its content does not matter."""
    offered = {"1": compiled(PLAIN), "2": compiled(PLAIN), "3": compiled(CUDA, "missing")}
    indexes = FakeIndexes({"a": offered, "b": releases(PLAIN)})
    assert state(found(catalog, indexes, "a b")) == "2 fits"
    assert sorted(name.partition("-cp")[0] for name in indexes.judged) == ["a-2", "b-1"]


class _ByPython(FakeIndexes):
    """Indexes whose wheels for Python 3.12 require CUDA."""

    def content(self, file: File, metadata: Metadata | None) -> Content | None:
        super().content(file, metadata)
        return CUDA if "cp312" in file.name else PLAIN


@pytest.mark.parametrize(("python", "expected"), [("3.12", "refused"), ("3.11", "1 fits")])
def test_file_of_the_chosen_python_is_read(catalog: Catalog, python: str, expected: str) -> None:
    """Python is decided after the release, by something else."""
    interpreter = f"cp{python.replace('.', '')}"
    indexes = _ByPython({"a": releases(None), "b": {"1": FakeRelease(wheels=[f"{interpreter}-none-any"])}})
    resolution = found(catalog, indexes, "a b")
    assert state(resolution) == expected
    read = [name for name in indexes.judged if name.startswith("a")]
    assert read == [f"a-1-{interpreter}-{interpreter}-manylinux_2_28_x86_64.whl"]
    if resolution:
        assert resolution.version_of("python") == python


@pytest.mark.parametrize(
    ("content", "requires", "expected"),
    [
        (CUDA, "torch", "refused"),
        (UNREAD, "torch", "1 not-judged"),
        (FALLBACK, "torch", "1 fits"),
        (OF_ROCM[99], "torch", "1 fits"),
        (CUDA, "numpy", "1 pure"),
    ],
)
def test_only_extensions_of_torch_are_judged_for_the_cpu(
    catalog: Catalog, content: Content, requires: str, expected: str
) -> None:
    """As partialtorch: without CUDA, its wheel cannot be imported. Other code for GPUs does not matter."""
    indexes = FakeIndexes({"a": {"1": compiled(content, requires)}, "numpy": {"2.0": FakeRelease()}})
    request = ask(catalog, "a", site="local", backend="cpu", python="3.12")
    answer = resolve(catalog, request, indexes)
    resolution = answer if isinstance(answer, Resolution) else None
    assert state(resolution) == expected
    assert resolution is None or not any("runs on the CPU" in text for text in resolution.warnings)


@pytest.mark.parametrize("backend", ["cpu", "rocm"])
@pytest.mark.parametrize(
    ("asked", "library", "expected"),
    [
        ("a", "libb.so", "refused"),
        ("a[b]", "libb.so", "1 fits"),
        ("a a-b", "libb.so", "1 fits"),
        ("a c", "libb.so", "1 fits"),
        ("a", "libother.so", "1 fits"),
        ("a", "libtorch.so", "refused"),
    ],
)
def test_library_of_an_extra_is_needed(
    catalog: Catalog, backend: str, asked: str, library: str, expected: str
) -> None:
    """As mlx and dm-reverb: what no extra is known to have may come from the system."""
    requires = ["a-b==1 ; extra == 'b'", "torch ; extra == 'torch'"]
    content = replace(PLAIN, needs=((library, "a.so"),))
    provider = compiled(replace(PLAIN, libraries=("libb.so",)))
    indexes = FakeIndexes(
        {
            "a": {"1": compiled(content, *requires, extras=("b", "torch"))},
            "a-b": {"1": provider},
            "c": {"1": FakeRelease(requires=["a-b"])},
        }
    )
    gpu: dict[str, Any] = {"gfx": ["gfx90a"], "driver": "6.3"} if backend == "rocm" else {}
    target: dict[str, Any] = {"site": "local", "backend": backend, "python": "3.12", **gpu}
    request = ask(catalog, asked, **target)
    answer = resolve(catalog, request, indexes)
    assert state(answer if isinstance(answer, Resolution) else None) == expected
    if isinstance(answer, Conflict):
        extra = "a[b]" if library == "libb.so" else "a[torch]"
        assert any(item.text.endswith(f"request {extra}") for item in answer.core)
        suggested = [one.text for each in answer.suggestions for one in each.request.requirements]
        assert extra in suggested


def test_library_is_needed_also_if_its_distribution_was_chosen_before(catalog: Catalog) -> None:
    """The first answer has a-b, because of release 2 of c, which then turns out to need CUDA."""
    content = replace(PLAIN, needs=(("libb.so", "a.so"),))
    indexes = FakeIndexes(
        {
            "a": {"1": compiled(content, "a-b ; extra == 'b'", extras=("b",))},
            "a-b": {"1": compiled(replace(PLAIN, libraries=("libb.so",)))},
            "c": {"1": FakeRelease(), "2": FakeRelease(requires=["a-b", "d"])},
            "d": {"1": compiled(CUDA)},
        }
    )
    assert found(catalog, indexes, "a c") is None
    assert state(found(catalog, indexes, "a[b] c")) == "1 fits"


# Sdists.


def test_source_of_a_wheel_for_cuda_is_built_on_request(catalog: Catalog) -> None:
    """What the request only needs stays a wheel, and pure Python, too."""
    source = Content("", source=SourceClass("torch", "setup.py:3"))
    of_cuda = compiled(CUDA, "b", sdist=True, source=source)
    indexes = FakeIndexes(
        {"a": {"1": of_cuda}, "b": {"1": compiled(PLAIN, sdist=True)}, "c": {"1": FakeRelease(sdist=True)}}
    )
    target: dict[str, Any] = {"site": "local", "backend": "rocm", "gfx": ["gfx90a"], "driver": "6.3"}
    request = ask(catalog, "a c", **target)
    assert not isinstance(Search(catalog, request, indexes).answer, Resolution)
    answer = Search(catalog, replace(request, no_prebuilt=True), indexes).answer
    assert isinstance(answer, Resolution)
    files = {pick.name: pick.files[0].name for pick in answer.picks if pick.files}
    assert files["a"] == "a-1.tar.gz"
    assert files["b"].endswith(".whl")
    assert files["c"].endswith("-any.whl")


@pytest.mark.parametrize("newer", [compiled(CUDA), FakeRelease(requires=["nvidia-cudnn-cu12"])])
def test_sdist_of_a_project_for_cuda_is_refused(catalog: Catalog, newer: FakeRelease) -> None:
    of_b = {"b": {"1": FakeRelease(requires=["a"])}}
    indexes = FakeIndexes({"a": {**dict.fromkeys(("1.0", "1.1", "1.2"), SDIST), "2": newer}, **of_b})
    assert state(found(catalog, indexes, "b")) == "refused"
    assert indexes.read.count("a==1.2") == 1
    assert "a==1.1" not in indexes.read  # none of them is any better
    assert state(found(catalog, indexes, "a<2")) == "1.2 not-judged"
    with_wheel = {"a": {"1.0": compiled(PLAIN), "1.1": SDIST, "2": newer}, **of_b}
    assert state(found(catalog, with_wheel, "b")) == "1.0 fits"


def test_sdist_of_a_project_for_cuda_is_refused_where_there_is_no_wheel(catalog: Catalog) -> None:
    """Another Python has a wheel, which fits."""
    both = compiled(PLAIN, wheels=["cp311-cp311-manylinux_2_28_x86_64"], sdist=True)
    resolution = found(catalog, {"a": {"1": both, "2": FakeRelease(requires=["nvidia-cudnn-cu12"])}})
    assert state(resolution) == "1 fits"
    assert resolution is not None
    assert resolution.version_of("python") == "3.11"
    only = FakeRelease(wheels=["cp312-none-any"])
    projects = {"a": {"1": both, "2": FakeRelease(requires=["nvidia-cudnn-cu12"])}, "b": {"1": only}}
    assert state(found(catalog, projects, "a b")) == "refused"


@pytest.mark.parametrize("newer", [compiled(CUDA), FakeRelease(requires=["nvidia-cudnn-cu12"])])
@pytest.mark.parametrize("sdist", [False, True])
def test_sdist_of_a_project_for_cuda_says_nothing_of_a_release_with_a_wheel(
    catalog: Catalog, newer: FakeRelease, sdist: bool
) -> None:
    """For Python 3.12, which the newest b needs, the sdist is refused. The wheel is for Python 3.11."""
    older = compiled(PLAIN, wheels=["cp311-cp311-manylinux_2_28_x86_64"], sdist=sdist)
    of_python = {"2": FakeRelease(wheels=["cp312-none-any"]), "1": FakeRelease(wheels=["cp311-none-any"])}
    projects = {"b": of_python, "c": {"3": newer, "2": SDIST, "1": older}}
    resolution = found(catalog, projects | {"d": {"1": FakeRelease(requires=["c"])}}, "b d")
    assert state(resolution, "c") == "1 fits"
    assert state(resolution, "b") == "1 pure"


@pytest.mark.parametrize(
    ("source", "expected"),
    [(CUDA, "refused"), (PLAIN, "2 fits"), (UNREAD, "2 not-judged"), (None, "2 pure")],
)
def test_what_a_source_shows_decides(catalog: Catalog, source: Content | None, expected: str) -> None:
    indexes = FakeIndexes({"a": {"1": SDIST, "2": replace(SDIST, source=source)}})
    assert state(found(catalog, indexes)) == expected
    assert state(found(catalog, indexes, "a==2")) == expected
    assert state(found(catalog, indexes, "a==1")) == "1 not-judged"


@pytest.mark.parametrize("newer", [compiled(OTHER_GPU), compiled(OF_ROCM[99])])
def test_sdist_may_be_built_for_another_gpu(catalog: Catalog, newer: FakeRelease) -> None:
    assert state(found(catalog, {"a": {"1": SDIST, "2": newer}})) == "1 not-judged"


# Builds that a published wheel with other versions would replace.


@pytest.mark.parametrize("also", ["", " a", " a torch[extra]"])
def test_build_names_the_published_wheel_that_would_replace_it(catalog: Catalog, also: str) -> None:
    def answer(text: str, **fields: Any) -> Resolution:
        request = ask(catalog, text + also, site="lumi-g", day="2026-11-23")
        outcome = resolve(catalog, replace(request, **fields), FakeIndexes({"a": releases(None)}))
        assert isinstance(outcome, Resolution)
        return outcome

    built = answer("vllm")
    (note,) = [note for note in built.notes if note.startswith("vllm is compiled, but")]
    pin = note.rpartition(" ")[2].rstrip(".")
    origins = [pick.origin for one in (built, answer(pin)) for pick in one.picks if pick.name == "vllm"]
    assert origins == ["build", "published"]
    others = answer(pin), answer("vllm", no_prebuilt=True), answer("deepspeed")
    assert not any("is compiled, but" in note for one in others for note in one.notes)


# Reasons.


@pytest.mark.parametrize(
    "content",
    [OTHER_GPU, *(pytest.param(one, marks=pytest.mark.slow) for one in (CUDA, OF_ROCM[99]))],
    ids=["gpu", "cuda", "rocm"],
)
def test_refusal_names_the_evidence(content: Content, catalog: Catalog) -> None:
    target = {"site": "local", "backend": "rocm", "gfx": ["gfx90a"], "driver": "6.3"}
    request = ask(catalog, "torch a", **target)  # type: ignore[arg-type]
    conflict = resolve(catalog, request, FakeIndexes({"a": releases(content)}))
    assert isinstance(conflict, Conflict)
    (item,) = [item for item in conflict.core if content.evidence in item.text]
    assert item.source.endswith(".whl")
    assert not any(
        one.request.target.backend == "cpu" for one in conflict.suggestions
    )  # nothing is read there
    alone = resolve(catalog, ask(catalog, "a", **target), FakeIndexes({"a": releases(content)}))  # type: ignore[arg-type]
    assert isinstance(alone, Conflict)
    assert not any(one.request.target.backend == "cpu" for one in alone.suggestions)
    request = ask(catalog, "torch a", **target)  # type: ignore[arg-type]
    rejected, _ = rejected_versions(
        search_naming(catalog, request, FakeIndexes({"a": releases(PLAIN, content)}), "a"),
        found(catalog, {"a": releases(PLAIN)}, "torch a") or pytest.fail("no answer"),
        "a",
    )
    assert [one.version for one in rejected] == ["2"]
    assert any(content.evidence in item.text for item in rejected[0].core)


def test_answer_says_why_a_newer_release_was_not_chosen(catalog: Catalog) -> None:
    for content in (CUDA, OTHER_GPU, OF_ROCM[99]):
        of_b = {"1": FakeRelease(requires=["a"])}
        resolution = found(catalog, {"a": releases(PLAIN, content), "b": of_b}, "torch b")
        assert resolution is not None
        (text,) = [text for text in resolution.warnings if text.startswith("a 1 was chosen because 2 ")]
        assert content.evidence in text


# What cannot be read.


class _Broken(FakeIndexes):
    """Indexes with wheels of release 2 that cannot be read."""

    error: type[SourceError | EnvironmentLacksError] = SourceError

    def content(self, file: File, metadata: Metadata | None) -> Content | None:
        if file.name.startswith("a-2"):
            msg = f"{file.name} is damaged."
            raise self.error(msg)
        return super().content(file, metadata)


def test_release_with_a_broken_wheel_is_skipped(catalog: Catalog) -> None:
    resolution = found(catalog, _Broken({"a": releases(PLAIN, PLAIN)}))
    assert state(resolution) == "1 fits"
    assert resolution is not None
    assert any("a 2 was skipped" in text and "is damaged" in text for text in resolution.warnings)


def test_index_that_does_not_answer_is_an_error(catalog: Catalog) -> None:
    indexes = _Broken({"a": releases(PLAIN, PLAIN)})
    indexes.error = EnvironmentLacksError
    with pytest.raises(EnvironmentLacksError, match="is damaged"):
        found(catalog, indexes)


# Files that a complete reading has excluded.


def _file(name: str, version: str, tag: str = WHEELS[0]) -> File:
    return next(file for file in FakeRelease(wheels=[tag]).files(name, version))


@pytest.mark.parametrize(
    ("sha256", "hashed", "expected"),
    [
        (_file("a", "2").sha256, True, "1 fits"),
        (_file("a", "2", WHEELS[1]).sha256, True, "1 fits"),  # it speaks for the release
        ("00", True, "2 fits"),
        ("00", False, "1 fits"),  # the index has no hashes
    ],
)
def test_excluded_file_excludes_its_release(
    catalog: Catalog, sha256: str, hashed: bool, expected: str
) -> None:
    offered = {number: compiled(PLAIN, hashed=hashed) for number in ("1", "2")}
    excluded = (ExcludedFile("a", "2", sha256, "requires CUDA: b.so"), ExcludedFile("b", "1", "00", "x"))
    resolution = found(catalog, {"a": offered}, excluded=excluded)
    assert state(resolution) == expected
    assert resolution is not None
    assert resolution.request.excluded == excluded
    assert any("a 2 is excluded" in text and "requires CUDA: b.so" in text for text in resolution.notes)
    assert found(catalog, {"a": offered}, "a==2", excluded=excluded) is None or expected == "2 fits"


def test_excluded_wheel_of_the_catalog_is_not_chosen(catalog: Catalog) -> None:
    rows = [row for row in catalog.release.values() if row.package == "bitsandbytes"]
    built = {row.version for row in rows if row.git}
    row = next(row for row in rows if row.wheel and row.version not in built)
    assert row.wheel
    tag = row.wheel.file.split("-", 2)[2].removesuffix(".whl")
    offered = {row.version: FakeRelease(wheels=[tag])}
    sha256 = _file("bitsandbytes", row.version, tag).sha256
    excluded = (ExcludedFile("bitsandbytes", row.version, sha256, "requires CUDA: b.so"),)
    text = f"torch bitsandbytes=={row.version}"
    assert found(catalog, {"bitsandbytes": offered}, text) is not None
    assert found(catalog, {"bitsandbytes": offered}, text, excluded=excluded) is None


# The lock, and the second resolver.


def test_lock_keeps_states_and_exclusions(catalog: Catalog, tmp_path: Path) -> None:
    projects = {"a": releases(FALLBACK), "b": releases(UNREAD), "c": releases(None), "d": {"1": SDIST}}
    excluded = (ExcludedFile("a", "2", "00", "requires CUDA: b.so"),)
    resolution = found(catalog, projects, "a b c d", excluded=excluded)
    assert resolution is not None
    path = tmp_path / "matrix.lock"
    path.write_text(dumps(resolution), encoding="utf-8")
    lock = read_lock(path)
    assert lock.request.excluded == excluded
    assert [(pick.name, pick.content) for pick in lock.distributions] == [
        ("a", Judgement("fits", f"its GPU code is for CUDA: {FALLBACK.evidence}", on_cpu=True)),
        ("b", Judgement("not-judged", UNREAD.unread)),
        ("c", None),
        ("d", Judgement("not-judged", "it is built from source, and the source was not read")),
    ]


@pytest.mark.parametrize(
    ("kind", "backend", "expected"),
    [
        ("pure", "rocm", "1 pure"),
        ("torch", "rocm", "1 not-judged"),
        ("cuda", "rocm", "refused"),
        ("placeholder", "rocm", "refused"),
        ("pure", "cpu", "1 pure"),
        ("cuda", "cpu", "1 pure"),
        ("placeholder", "cpu", "refused"),
    ],
)
def test_kind_of_a_source_is_in_the_lock(
    catalog: Catalog, tmp_path: Path, kind: Any, backend: str, expected: str
) -> None:
    """A wheel has none, and for the CPU only placeholders are refused."""
    source = SourceClass(kind, "setup.py:1")
    content = Content("", source=source)
    if kind != "pure":
        content = replace(content, unread="x" if kind == "torch" else "", evidence="setup.py:1")
    if kind == "placeholder":
        content = replace(content, broken="setup.py only raises")
    if kind == "cuda":
        content = replace(content, cuda="required")
    projects = {"a": {"1": replace(SDIST, source=content)}, "b": releases(PLAIN)}
    target: dict[str, Any] = {} if backend == "rocm" else {"gfx": [], "driver": None}
    resolution = found(catalog, projects, "a b", backend=backend, **target)
    assert state(resolution) == expected
    if resolution:
        path = tmp_path / "matrix.lock"
        path.write_text(dumps(resolution), encoding="utf-8")
        assert [pick.source for pick in read_lock(path).distributions] == [source, None]


def test_same_wheels_give_the_same_lock(catalog: Catalog) -> None:
    """What was read before does not matter, nor whether files are read at the same time."""
    contents = [PLAIN, UNREAD, CUDA, UNREAD, FALLBACK, CUDA]
    projects = {name: releases(*contents[at:], *contents[:at]) for at, name in enumerate("abcdef")}
    projects["g"] = {"1": FakeRelease(requires=[*"abcdef"])}
    answers = {dumps(answer) for _ in range(2) if (answer := found(catalog, projects, "g"))}
    assert len(answers) == 1

    class Prefetching(FakeIndexes):
        def submit(self, work: Callable[[], object]) -> None:
            work()

    again = found(catalog, Prefetching(projects), "g")
    assert again is not None
    assert {dumps(again)} == answers


@pytest.mark.parametrize("content", [CUDA, OTHER_GPU, OF_ROCM[99]])
def test_confirmation_rejects_what_does_not_fit(
    catalog: Catalog, content: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resolver.solving.judging.judged", lambda *_: Judgement("fits", ""))
    monkeypatch.setattr("resolver.solving.judging.ContentJudge._require_rocm", lambda *_: None)
    with pytest.raises(InternalError, match="not confirmed"):
        found(catalog, {"a": releases(content)}, "torch a")


def test_rocm_that_only_a_newer_release_requires_is_confirmed(tmp_path: Path) -> None:
    """Release 1 cannot be judged, so it needs the ROCm that the catalog states for release 2."""
    path = tmp_path / "overlay.toml"
    path.write_text(f"schema = 1\n{PACKAGE}{_rows('2', OF_ROCM[6])['rocm']}", encoding="utf-8")
    projects = {"a": releases(UNREAD, UNREAD, CUDA), "b": {"1": FakeRelease(requires=["a"])}}
    resolution = found(load([path]), projects, "b")
    assert state(resolution) == "1 not-judged"
    assert resolution is not None
    assert (resolution.version_of("rocm") or "").startswith("6.")


# No knowledge is no permission.

TRUTHS = st.sampled_from([None, PLAIN, CUDA, FALLBACK, OTHER_GPU, *OF_ROCM.values()])


def _rows(version: str, truth: Content) -> dict[str, str]:
    """Return true rows of the catalog about a release with code for AMD GPUs."""
    head = f'[[requires]]\npackage = "a"\nreleases = "=={version}"\n'
    gfx = ", ".join(f'"{one}"' for one in truth.gfx)
    rows = {"gfx": f'{head}on = "gfx"\nversions = [{gfx}]\n{KNOWN}'} if truth.gfx else {}
    return rows | ({"rocm": f'{head}on = "rocm"\nversions = ["{truth.rocm}"]\n{KNOWN}'} if truth.rocm else {})


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_less_knowledge_never_makes_something_fit(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """With any facts of the catalog and any contents left out, an answer is marked, or it is right."""
    truths = data.draw(st.lists(TRUTHS, min_size=1, max_size=4))
    rows, offered = [], {}
    for number, truth in enumerate(truths, start=1):
        facts = _rows(str(number), truth) if truth else {}
        rows += [text for text in facts.values() if data.draw(st.booleans())]
        is_known = truth is None or data.draw(st.booleans())
        offered[str(number)] = compiled(truth if is_known else UNREAD)
    path = tmp_path_factory.mktemp("facts") / "overlay.toml"
    path.write_text(f"schema = 1\n{PACKAGE}{''.join(rows)}", encoding="utf-8")
    resolution = found(load([path]), {"a": offered}, data.draw(st.sampled_from(["a", "torch a"])))
    pick = resolution.pick("a") if resolution else None
    if resolution is None or pick is None:
        return
    truth = truths[int(pick.version) - 1]
    if truth is None or pick.content is None:
        assert truth is None
        assert pick.content is None
    elif pick.content.state == "fits":
        assert judged(truth, ["gfx90a"], resolution.version_of("rocm") or "0").state == "fits"
