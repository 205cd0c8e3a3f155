"""Distributions outside torch on AMD GPUs: jax with its plugin, and builds that have another name."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from resolver.answers.explain import explain_conflict
from resolver.answers.resolve import Search, resolve
from resolver.errors import UsageError
from resolver.facts.catalog import Catalog
from resolver.facts.schema import Requires
from resolver.model import IMAGE, STATUS_RANK, Conflict, Preinstalled, Request, Resolution
from resolver.requirements import is_for_cuda
from resolver.solving.session import Refuted
from resolver.versions import satisfies
from tests.resolver.solve_helpers import ask
from tests.support.indexes import FakeIndexes, FakeRelease

DAY = "2026-11-21"
LUMI, FRONTIER, TUOLUMNE = ("lumi-g", "frontier", "tuolumne")


def plugin(series: str, version: str, pythons: str) -> dict[str, FakeRelease]:
    tags = [f"cp{python}-cp{python}-manylinux_2_28_x86_64" for python in pythons.split()]
    pjrt = f"jax-{series}-pjrt=={version}"
    return {version: FakeRelease(wheels=tags, requires=[pjrt])}


Projects = dict[str, Mapping[str, FakeRelease | Sequence[str]]]


def projects() -> Projects:
    """Return some of the releases that PyPI has; the plugins have PyPI's tags and metadata."""
    versions = ("0.4.35", "0.5.0", "0.5.3", "0.6.0", "0.7.1", "0.8.3", "0.10.0", "0.10.2", "0.12.0")
    seven = {
        **plugin("rocm7", "0.6.0", "310 311 312 313"),
        **plugin("rocm7", "0.7.1", "311 312 313"),
        **plugin("rocm7", "0.10.0", "311 312 313 314"),
        **plugin("rocm7", "0.10.2", "311 312 313 314"),
        **plugin("rocm7", "0.12.0", "312 313 314 315"),
    }
    sixty = {
        **plugin("rocm60", "0.4.35", "310 311 312"),
        **plugin("rocm60", "0.5.0", "310 311 312"),
    }
    pure = FakeRelease(wheels=["py3-none-manylinux_2_28_x86_64"])
    return {
        "jax": {
            version: FakeRelease(requires=[f"jaxlib=={version}"], extras=["cpu"]) for version in versions
        },
        "jaxlib": {version: FakeRelease() for version in versions},
        "flax": {"0.9": ["jax>=0.4"]},
        "jax-rocm60-plugin": sixty,
        "jax-rocm60-pjrt": dict.fromkeys(sixty, pure),
        "jax-rocm7-plugin": seven,
        "jax-rocm7-pjrt": dict.fromkeys(seven, pure),
        "tensorflow": {"2.14.0": FakeRelease(), "2.21.0": FakeRelease()},
        "tensorflow-rocm": {
            version: FakeRelease(wheels=["cp310-cp310-manylinux2014_x86_64"])
            for version in ("2.9.4", "2.13.1.600", "2.14.0.600")
        },
        "tensorflow-cpu": {"2.21.0": FakeRelease()},
        "onnxruntime-gpu": {"1.27.1": FakeRelease()},
        "onnxruntime-migraphx": {"1.27.1": FakeRelease()},
        "needs-tensorflow": {"1.0": ["tensorflow>=2.10"]},
        "hip-python": {
            version: FakeRelease() for version in ("0.0.2", "6.4.3.555.40", "7.0.2.555.40", "10.0.0.0.1.2")
        },
        "amd-aiter": {"0.1.7.post2.dev18": FakeRelease()},
        "cupy": {
            "13.6.0": FakeRelease(sdist=True, requires=["numpy>=1.22"]),
            "14.2.0": FakeRelease(sdist=True, static=False, requires=["numpy>=2", "cuda-pathfinder>=1.3.4"]),
        },
        "cupy-rocm-7-0": {
            version: FakeRelease(wheels=["cp312-cp312-manylinux2014_x86_64"], requires=["numpy>=2"])
            for version in ("14.0.0", "14.2.0")
        },
        "numpy": {"2.3.0": FakeRelease(wheels=["cp312-cp312-manylinux2014_x86_64"])},
    }


@pytest.fixture
def indexes() -> FakeIndexes:
    return FakeIndexes(projects())


def answer(
    catalog: Catalog, indexes: FakeIndexes, text: str, site: str, **options: str
) -> Resolution | Conflict:
    day = options.pop("day", DAY)
    return resolve(catalog, ask(catalog, text, site=site, day=day, **options), indexes)  # type: ignore[arg-type]


def resolved(catalog: Catalog, indexes: FakeIndexes, text: str, site: str, **options: str) -> Resolution:
    found = answer(catalog, indexes, text, site, **options)
    assert isinstance(found, Resolution), found
    return found


def refused(catalog: Catalog, indexes: FakeIndexes, text: str, site: str, **options: str) -> str:
    found = answer(catalog, indexes, text, site, **options)
    assert isinstance(found, Conflict), found
    return "\n".join(item.text for item in found.core)


def requires_of(catalog: Catalog, name: str) -> list[Requires]:
    return [row for row in catalog.requires if row.package == name]


def _is_of(row: Requires, version: str) -> bool:
    return not row.releases or satisfies(version, row.releases)


OLD_NUMPY = {"numpy": {"1.21.0": FakeRelease(wheels=["cp312-cp312-manylinux2014_x86_64"])}}


def with_only(name: str, version: str) -> FakeIndexes:
    """Return an index that has one release of a project, as mirrors of a few projects have."""
    found = projects()
    return FakeIndexes({**found, name: {version: found[name][version]}})


@pytest.mark.parametrize(
    ("text", "site", "expected"),
    [
        ("jax", LUMI, "0.4.35 rocm60 6.4.4"),
        ("flax", LUMI, "0.4.35 rocm60 6.4.4"),
        ("jax==0.5.0", LUMI, "0.5.0 rocm60 6.2.4"),
        ("jax rocm==7.0.*", LUMI, "0.6.0 rocm7 7.0.2"),
        ("jax", FRONTIER, "0.7.1 rocm7 7.1.1"),
        ("jax rocm==7.2.*", FRONTIER, "0.10.0 rocm7 7.2.4"),
        ("jax", TUOLUMNE, "0.4.35 rocm60 6.4.4"),
    ],
)
def test_jax_means_jax_with_its_plugin(
    catalog: Catalog, indexes: FakeIndexes, text: str, site: str, expected: str
) -> None:
    jax, series, rocm = expected.split()
    lock = resolved(catalog, indexes, text, site)
    names = ("jax", "jaxlib", f"jax-{series}-plugin", f"jax-{series}-pjrt")
    assert {name: lock.version_of(name) for name in names} == dict.fromkeys(names, jax)
    assert lock.target.rocm == rocm
    assert bool(lock.target.base_image) == (site != TUOLUMNE)  # the catalog has no image for it


@pytest.mark.parametrize(
    ("site", "day", "expected"),
    [
        (LUMI, "2025-05-01", "0.5.0 6.2.4 3.12"),
        (FRONTIER, "2025-06-01", "0.4.35 6.2.4 3.11"),
        (FRONTIER, DAY, "0.7.1 7.2.0 3.12"),
        (TUOLUMNE, DAY, "0.4.35 6.4.3 3.12"),
    ],
)
def test_documented_sets_of_jax_are_preferred_on_request(
    catalog: Catalog, indexes: FakeIndexes, site: str, day: str, expected: str
) -> None:
    lock = resolve(catalog, ask(catalog, "jax", site=site, day=day, prefer="proven"), indexes)
    assert isinstance(lock, Resolution)
    assert f"{lock.version_of('jax')} {lock.target.rocm} {lock.target.python}" == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("jax==0.8.3", "no JAX plugin for ROCm"),
        ("jax==0.12.0", "rocm 7.14"),
        ("jax==0.7.1 rocm==7.0.*", "rocm >=7.1,<7.3"),
        ("jax torch==2.11.0 rocm==7.0.*", "torch 2.11.0+gitd0c8b1f, 2.11.0+rocm7.1"),
        ("jax jax-rocm7-plugin==0.6.0 jax-rocm7-pjrt==0.7.1", "jax-rocm7-pjrt"),
    ],
)
def test_jax_without_a_fitting_plugin_is_a_conflict(
    catalog: Catalog, indexes: FakeIndexes, text: str, reason: str
) -> None:
    assert reason in refused(catalog, indexes, text, LUMI)


def test_jax_on_the_cpu_is_asked_for(catalog: Catalog, indexes: FakeIndexes) -> None:
    for options in ({"backend": "cpu"}, {}):
        text = "jax" if options else "jax[cpu]"
        lock = resolved(catalog, indexes, text, LUMI, **options)
        assert {pick.name for pick in lock.distributions} == {"jax", "jaxlib"}
        assert lock.version_of("jax") == "0.12.0"


def test_another_gpu_than_the_plugin_has_code_for_is_refused(catalog: Catalog, indexes: FakeIndexes) -> None:
    request = ask(catalog, "jax==0.5.0", site="local", backend="rocm", gfx=["gfx950"], driver="6.3", day=DAY)
    found = resolve(catalog, request, indexes)
    assert isinstance(found, Conflict)
    assert any("contains code for" in item.text for item in found.core)


def test_tensorflow_means_its_build_for_rocm(catalog: Catalog, indexes: FakeIndexes) -> None:
    lock = resolved(catalog, indexes, "tensorflow==2.14.0", FRONTIER, day="2024-06-01")
    assert lock.version_of("tensorflow-rocm") == "2.14.0.600"
    assert not lock.version_of("tensorflow")
    assert lock.target.rocm == "6.0.0"
    assert lock.target.base_image == "rocm/dev-ubuntu-22.04:6.0-complete"
    assert any(note.startswith("tensorflow means tensorflow-rocm on AMD GPUs.") for note in lock.notes)


@pytest.mark.parametrize(
    ("site", "day", "version", "rocm"),
    [
        (LUMI, DAY, "2.18.1", "6.4"),
        (LUMI, "2025-06-01", "2.16.1", "6.2"),
        (FRONTIER, DAY, "2.19.1", "7.2"),
        (FRONTIER, "2025-06-01", "2.18.1", "6.4"),
        (TUOLUMNE, DAY, "2.18.1", "6.4"),
    ],
)
def test_tensorflow_is_that_of_amds_page_for_the_rocm(
    catalog: Catalog, site: str, day: str, version: str, rocm: str
) -> None:
    """The page of one ROCm cannot be reached here, so nothing but the catalog's rows is known of it."""
    tags = [f"cp{python}-cp{python}-manylinux2014_x86_64" for python in ("39", "310", "311", "312")]
    known = FakeIndexes({**projects(), "numpy": {"1.26.4": FakeRelease(wheels=tags)}})
    lock = resolved(catalog, known, "tensorflow", site, day=day)
    pick = lock.pick("tensorflow-rocm")
    assert pick is not None
    assert (pick.version, pick.index) == (
        version,
        f"https://repo.radeon.com/rocm/manylinux/rocm-rel-{rocm}/",
    )
    assert (lock.target.rocm or "").startswith(f"{rocm}.")
    assert bool(lock.target.base_image) == (site != TUOLUMNE)
    assert lock.version_of("numpy") == "1.26.4"


def test_tensorflow_without_a_fitting_rocm_is_a_conflict(catalog: Catalog, indexes: FakeIndexes) -> None:
    reasons = refused(catalog, indexes, "tensorflow<2.15 rocm==6.4.*", LUMI)
    assert "you asked for rocm==6.4.*\ntensorflow-rocm 2.10.0.520, " in reasons
    assert " require rocm 5.2.0, " in reasons
    assert resolved(catalog, indexes, "tensorflow-cpu", LUMI).version_of("tensorflow-cpu") == "2.21.0"
    assert resolved(catalog, indexes, "tensorflow", LUMI, backend="cpu").version_of("tensorflow") == "2.21.0"


def test_a_requirement_on_a_cpu_build_is_refused(catalog: Catalog, indexes: FakeIndexes) -> None:
    assert "whose build for AMD GPUs has another name" in refused(
        catalog, indexes, "needs-tensorflow", FRONTIER
    )
    lock = resolved(catalog, indexes, "needs-tensorflow", LUMI, backend="cpu")
    assert lock.version_of("tensorflow") == "2.21.0"


def test_onnxruntime_for_cuda_means_migraphx(catalog: Catalog, indexes: FakeIndexes) -> None:
    lock = resolved(catalog, indexes, "onnxruntime-gpu==1.27.1", FRONTIER)
    assert lock.version_of("onnxruntime-migraphx") == "1.27.1"
    assert lock.target.base_image


@pytest.mark.parametrize("line", ["6.2", "6.4", "7.0", "7.2"])
def test_interop_is_the_release_of_hip_python_and_the_rocm(catalog: Catalog, line: str) -> None:
    """Indexes have several releases of each ROCm line; each interop requires its own HIP Python."""
    versions = [
        "6.2.0.499.16",
        "6.4.3.555.40",
        "6.4.4.555.40",
        "7.0.2.555.40",
        "7.2.1.562.43",
        "7.2.2.562.43",
    ]
    tags = [f"cp3{minor}-cp3{minor}-manylinux_2_17_x86_64" for minor in range(8, 14)]
    known = FakeIndexes(
        {
            "hip-python": {version: FakeRelease(wheels=tags) for version in versions},
            "hip-python-interop": {
                version: FakeRelease(wheels=tags, requires=[f"hip-python=={version}"]) for version in versions
            },
        }
    )
    for text in ("hip-python-interop", "hip-python hip-python-interop"):
        lock = resolved(catalog, known, f"{text} rocm=={line}.*", LUMI)
        chosen = {lock.version_of("hip-python"), lock.version_of("hip-python-interop")}
        assert len(chosen) == 1
        assert chosen.pop().startswith(f"{line}.")
        assert (lock.target.rocm or "").startswith(f"{line}.")


def test_hip_python_is_of_the_chosen_rocm(catalog: Catalog, indexes: FakeIndexes) -> None:
    lock = resolved(catalog, indexes, "hip-python", LUMI)
    assert (lock.version_of("hip-python"), lock.target.rocm) == ("6.4.3.555.40", "6.4.4")
    assert (
        resolved(catalog, indexes, "hip-python rocm==7.0.*", LUMI).version_of("hip-python") == "7.0.2.555.40"
    )
    assert "placeholder" in refused(catalog, indexes, "hip-python==0.0.2", LUMI)


def test_aiter_has_no_code_for_mi250x(catalog: Catalog, indexes: FakeIndexes) -> None:
    assert "contains code for gfx942 or gfx950" in refused(catalog, indexes, "amd-aiter", LUMI)
    assert resolved(catalog, indexes, "amd-aiter", TUOLUMNE).version_of("amd-aiter") == "0.1.7.post2.dev18"


def test_every_release_of_jax_has_a_plugin_or_a_reason(catalog: Catalog) -> None:
    """No release of the catalog is refused for ROCm because the catalog knows nothing about it."""
    assert len(catalog.releases_of("jax")) >= 22
    for release in catalog.releases_of("jax"):
        rows = [
            row for row in requires_of(catalog, "jax") if "plugin" in row.on and _is_of(row, release.version)
        ]
        bad = [
            row.problem
            for row in catalog.known_bad.values()
            if "jax" in row.combination and satisfies(release.version, row.combination["jax"])
        ]
        assert bool(rows) != bool(bad), release.version
        assert all("no facts" not in problem for problem in bad)
        for row in rows:
            plugins = [one for one in catalog.releases_of(row.on) if satisfies(one.version, row.versions[0])]
            assert plugins, (release.version, row.on)
            for plugin in plugins:
                facts = {one.on for one in requires_of(catalog, row.on) if _is_of(one, plugin.version)}
                pjrt = row.on.replace("plugin", "pjrt")
                assert facts >= {"rocm", "gfx", "python", "jax", pjrt}, plugin.version


GENERIC = {
    "gfx9-generic": "gfx900 gfx906 gfx90c",
    "gfx9-4-generic": "gfx940 gfx941 gfx942 gfx950",
    "gfx10-3-generic": "gfx1030 gfx1031 gfx1032 gfx1033 gfx1034 gfx1035 gfx1036",
    "gfx11-generic": "gfx1100 gfx1101 gfx1102 gfx1103 gfx1150 gfx1151 gfx1152 gfx1153",
    "gfx12-generic": "gfx1200 gfx1201",
}
"""LLVM's generic targets, and the architectures of the catalog among those that they stand for."""

SECOND = tomllib.loads(Path(__file__).with_name("gpu_targets.toml").read_text("utf-8"))["wheel"]


def test_gpu_targets_are_those_of_a_second_reader(catalog: Catalog) -> None:
    compared = set()
    for wheel in SECOND:
        name, version = wheel["name"], wheel["version"]
        rows = [row for row in requires_of(catalog, name) if row.on == "gfx" and _is_of(row, version)]
        read = {one for target in wheel["targets"] for one in GENERIC.get(target, target).split()}
        assert [{*row.versions} for row in rows] == [read], (name, version)
        assert not name.startswith("jax") or wheel["sha256"] in rows[0].source
        compared.add(name)
    assert len(compared) == 6


def has(request: Request, name: str) -> bool:
    """Return whether a request has a requirement on a distribution."""
    return any(requirement.name == name for requirement in request.requirements)


def test_a_conflict_of_jax_names_the_driver_and_the_nearest_ways(catalog: Catalog) -> None:
    found = answer(catalog, with_only("jax", "0.10.2"), "jax", LUMI)
    assert isinstance(found, Conflict)
    reasons = "\n".join(item.text for item in found.core)
    assert "jax-rocm7-plugin" in reasons
    ways = [(one.change, one.request) for one in found.suggestions]
    assert any(request.target.backend == "cpu" and has(request, "jax") for _, request in ways)


def test_suggestions_for_the_cpu_have_the_name_that_was_asked_for(catalog: Catalog) -> None:
    own = {"tensorflow-rocm": {"2.9.4": projects()["tensorflow-rocm"]["2.9.4"]}}
    found = answer(catalog, FakeIndexes({**projects(), **own, **OLD_NUMPY}), "tensorflow", LUMI)
    assert isinstance(found, Conflict)
    image, *others = found.suggestions
    assert image.change.startswith("with the tensorflow-rocm 2.16.1 in the base image lumi-tensorflow-")
    assert image.request.preinstalled == Preinstalled(IMAGE)
    for one in others:
        assert has(one.request, "tensorflow") == (one.request.target.backend == "cpu")


@pytest.mark.parametrize(
    ("text", "day", "version"), [("jax", "2024-10-07", "0.4.28"), ("jax==0.4.13", "2024-03-01", "0.4.13")]
)
def test_the_jax_of_an_image_of_the_site_stays_although_nothing_publishes_its_plugin(
    catalog: Catalog, text: str, day: str, version: str
) -> None:
    old = {"jax": {version: FakeRelease(wheels=(), sdist=True, uploaded="2024-01-01")}}
    indexes = FakeIndexes({**projects(), **old})
    found = answer(catalog, indexes, text, LUMI, day=day)
    assert isinstance(found, Conflict)
    assert f"jax {version} cannot be installed" in "\n".join(item.text for item in found.core)
    request = next(one.request for one in found.suggestions if one.request.target.base_image)
    assert request.target.base_image in {
        row.image for row in catalog.images_at(LUMI, request.target.date, base=False)
    }
    lock = resolve(catalog, request, indexes)
    assert isinstance(lock, Resolution)
    jax = lock.pick("jax")
    assert jax is not None
    assert (jax.version, jax.origin) == (version, "preinstalled")


def test_what_an_image_has_stays_although_an_index_got_it_later(catalog: Catalog) -> None:
    later = FakeRelease(wheels=["py3-none-manylinux_2_28_x86_64"], uploaded="2025-04-09")
    image = "lumi-jax-rocm-6.2.4-python-3.12-jax-community-0.5.0-dockerhash-67b47a3e813c.sif"
    request = ask(catalog, "jax==0.5.0", site=LUMI, day="2025-04-04", base_image=image)
    indexes = FakeIndexes({**projects(), "jax-rocm60-pjrt": {"0.5.0": later}})
    assert isinstance(resolve(catalog, request, indexes), Conflict)
    lock = resolve(catalog, replace(request, preinstalled=Preinstalled(IMAGE)), indexes)
    assert isinstance(lock, Resolution)
    assert lock.version_of("jax-rocm60-pjrt") == "0.5.0"


def test_a_conflict_that_projects_of_indexes_only_precede_is_explained(catalog: Catalog) -> None:
    kept = replace(ask(catalog, "jax", site=LUMI, day="2024-10-07"), preinstalled=Preinstalled(IMAGE))
    answer = Search(catalog, kept, FakeIndexes({**projects(), "jax": {"0.4.28": FakeRelease()}})).answer
    assert isinstance(answer, Refuted)
    found, _ = explain_conflict(kept, answer)
    assert "you asked to keep the content of the base image" in {item.text for item in found.core}


@pytest.mark.parametrize("replaced", [(), ("deepspeed",)])
def test_everything_in_an_image_is_kept_also_if_nothing_requires_it(
    catalog: Catalog, replaced: tuple[str, ...]
) -> None:
    indexes = FakeIndexes({"einops": {"0.8.1": FakeRelease()}})
    image = "lumi-multitorch-full-u24r64f21m43t29-20260124_092648.sif"
    request = ask(catalog, "einops", site=LUMI, day=DAY, base_image=image)
    lock = resolve(catalog, replace(request, preinstalled=Preinstalled(IMAGE, replaced=replaced)), indexes)
    assert isinstance(lock, Resolution)
    assert any("what else in it requires of" in text for text in lock.warnings) == bool(replaced)
    kept = {pick.name for pick in lock.distributions if pick.origin == "preinstalled"}
    assert kept == {*catalog.image[image].holds} - {*replaced}
    assert {pick.name for pick in lock.distributions} == {*kept, "einops"}


def test_replacement_respects_what_the_rest_of_the_image_requires(catalog: Catalog) -> None:
    """As the transformers of vllm's and llmcompressor's images; what else holds it may need any or none."""
    releases = {"transformers": {"5.5.0": FakeRelease(), "4.57.1": FakeRelease()}}
    indexes = FakeIndexes({**releases, "a": {"1": FakeRelease(requires=("transformers>=5",))}})
    image = catalog.image["lumi-multitorch-full-u24r64f21m43t29-20260124_092648.sif"]
    limit = "transformers<5,>=4.55.2; python_version < '4'"
    needs = {"vllm": (limit, "deepspeed<0.18", "???"), "peft": ("transformers", "transformers<4 @ x")}
    facts = catalog.with_image(replace(image, requires=needs))
    installed = {**image.holds, "vllm": "0.11.0", "peft": "0.18.0", "transformers": "4.55.2"}

    def asked(text: str, *replaced: str) -> Resolution | Conflict:
        kept = {name: version for name, version in installed.items() if name not in replaced}
        request = ask(facts, text, site=LUMI, day=DAY, base_image=image.name)
        return resolve(facts, replace(request, preinstalled=Preinstalled(IMAGE, kept, replaced)), indexes)

    for name, version in (("transformers", "4.57.1"), ("deepspeed", "0.17.6")):
        found = asked(name, name)
        assert isinstance(found, Resolution)
        assert found.version_of(name) == version
    conflict = asked("a", "transformers")
    assert isinstance(conflict, Conflict)
    texts = " ".join(item.text for item in conflict.core)
    assert "a 1 requires transformers>=5" in texts
    assert "vllm 0.11.0 of the base image requires transformers<5,>=4.55.2" in texts
    both = asked("a", "transformers", "vllm")
    assert isinstance(both, Resolution)
    assert both.version_of("transformers") == "5.5.0"


@pytest.mark.parametrize(
    ("text", "image", "kept"),
    [
        ("jax", "lumi-jax-rocm-6.2.4-python-3.12-jax-community-0.5.0-dockerhash-67b47a3e813c.sif", "0.5.0"),
        ("jax", "rocm/jax:rocm6.4.2-jax0.4.35-py3.12", "0.4.35"),
        ("tensorflow-rocm", "rocm/tensorflow:rocm6.4.2-py3.12-tf2.18-dev", "2.18.1"),
    ],
)
def test_the_content_of_a_named_image_is_kept(
    catalog: Catalog, indexes: FakeIndexes, text: str, image: str, kept: str
) -> None:
    request = ask(catalog, text, site=LUMI, day=DAY, base_image=image)
    lock = resolve(catalog, replace(request, preinstalled=Preinstalled(IMAGE)), indexes)
    assert isinstance(lock, Resolution)
    pick = next(pick for pick in lock.picks if pick.name == text)
    assert (pick.version, pick.origin) == (kept, "preinstalled")
    assert not any("no installed version was kept" in warning for warning in lock.warnings)


@pytest.mark.parametrize(
    ("text", "site", "expected"),
    [
        ("cupy rocm==7.0.*", LUMI, "cupy-rocm-7-0 14.2.0 7.0"),
        ("cupy>=14", LUMI, "cupy-rocm-7-0 14.2.0 7.0"),
        (
            "cupy",
            FRONTIER,
            "cupy 14.2.0 7.1",
        ),  # its sdist lists cuda-pathfinder, which a build for ROCm does not need
        ("cupy", TUOLUMNE, "cupy-rocm-7-0 14.2.0 7.0"),
        ("cupy", LUMI, "cupy-rocm-7-0 14.2.0 7.0"),
        ("cupy", f"{LUMI} 2026-08-15", "cupy-rocm-7-0 14.2.0 7.0"),  # a major version newer than 13.6.0
        ("cupy==13.6.0", FRONTIER, "cupy 13.6.0 6.4"),
    ],
)
def test_cupy_means_the_wheel_for_the_chosen_rocm(
    catalog: Catalog, indexes: FakeIndexes, text: str, site: str, expected: str
) -> None:
    """It is compiled if the site advises a ROCm without wheels, or if the wheels have other versions."""
    site, _, day = site.partition(" ")
    lock = resolved(catalog, indexes, text, site, day=day or DAY)
    name, version, line = expected.split()
    (pick,) = (pick for pick in lock.picks if pick.name.startswith("cupy"))
    assert (pick.name, pick.version) == (name, version)
    assert (lock.target.rocm or "").startswith(line)
    said = " ".join(lock.notes)
    if name != "cupy":
        assert "cupy means cupy-rocm-7-0 on ROCm 7.0" in said
    elif site == LUMI:
        assert "cupy is compiled for ROCm 6.4.4. cupy-rocm-7-0 has wheels for ROCm 7.0.2" in said


def test_what_uses_rocm_is_refused_on_the_cpu(catalog: Catalog) -> None:
    names = [row.name for row in catalog.package.values() if row.system_rocm]
    assert len(names) >= 12
    for name in names:
        known = FakeIndexes({name: {row.version: FakeRelease() for row in catalog.releases_of(name)}})
        found = resolve(catalog, ask(catalog, name, site=LUMI, backend="cpu", day=DAY), known)
        assert isinstance(found, Conflict), name
        reasons = "\n".join(item.text for item in found.core)
        assert re.search(
            "uses ROCm, which the CPU backend|which the catalog does not have|requires backend rocm", reasons
        ), name


def test_no_suggestion_of_the_cpu_for_what_uses_rocm(catalog: Catalog) -> None:
    found = answer(catalog, FakeIndexes({**projects(), **OLD_NUMPY}), "tensorflow-rocm", LUMI)
    assert isinstance(found, Conflict)
    assert found.suggestions
    assert not any(one.request.target.backend == "cpu" for one in found.suggestions)


@pytest.mark.parametrize(
    ("request_", "extra"),
    [
        ("jax", ""),
        ("jax-rocm7-plugin", ""),
        ("two", "one-hip"),
        ("two>=1", "one-hip"),
        ("two[more]", "one-hip"),
        ("two[all-hip]", "all-hip"),
        ("two torch", ""),
        ("gone", None),
    ],
)
def test_a_project_with_extras_for_rocm_gets_one_if_nothing_else_is_for_rocm(
    catalog: Catalog, request_: str, extra: str | None
) -> None:
    known = projects()
    for project in ("jax", "jax-rocm7-plugin"):
        known[project] = {
            version: replace(release, extras=["rocm", "with-rocm"])
            for version, release in known[project].items()
            if isinstance(release, FakeRelease)
        }
    needs = ["torch; extra == 'one-hip'", "torch; extra == 'all-hip'", "more; extra == 'all-hip'"]
    known["two"] = {"1.0": FakeRelease(extras=["all-hip", "one-hip", "more"], requires=needs)}
    known["more"] = {"1.0": FakeRelease()}
    known["gone"] = {"1.0": FakeRelease(extras=["rocm"], requires=["torch ==0.1; extra == 'rocm'"])}
    if extra is None:
        assert "gone[rocm]" in refused(catalog, FakeIndexes(known), request_, LUMI)
        return
    lock = resolved(catalog, FakeIndexes(known), request_, LUMI)
    pick = next((pick for pick in lock.picks if pick.name == "two"), None)
    assert [one for one in (pick.extras if pick else ()) if one != "more"] == [extra] * bool(extra)
    assert any("two[one-hip] on AMD GPUs" in note for note in lock.notes) == (extra == "one-hip")
    assert any("not requested here: two[all-hip]" in text for text in lock.warnings) == ("torch" in request_)


def test_what_is_for_nvidia_gpus_is_refused_unless_it_is_pinned(catalog: Catalog) -> None:
    rows = [row for row in catalog.replaces.values() if not (row.conda or row.image or "*" in row.name)]
    rows = [row for row in rows if row.effect in {"cpu", "none"} and not is_for_cuda(row.name)]
    assert len(rows) >= 9
    for row in rows:
        known = FakeIndexes({row.name: {"1.0": FakeRelease()}})
        for text in (row.name, f"{row.name}>=1"):
            with pytest.raises(UsageError, match=f"{row.name} is for NVIDIA GPUs.") as error:
                resolve(catalog, ask(catalog, text, site=LUMI, day=DAY), known)
            assert row.note in error.value.hint
            assert all(name in error.value.hint for name in row.by)
        found = resolve(catalog, ask(catalog, f"{row.name}==1.0", site=LUMI, day=DAY), known)
        said = found.notes if isinstance(found, Resolution) else found.warnings
        assert any(f"{row.name} is for NVIDIA GPUs." in text and row.note in text for text in said), row.name
        on_cpu = resolve(catalog, ask(catalog, row.name, site="local", backend="cpu", day=DAY), known)
        assert isinstance(on_cpu, Resolution)
        assert not any("NVIDIA" in text for text in on_cpu.notes)


def test_onnxruntime_is_not_chosen_for_an_older_glibc_than_its_objects_need(catalog: Catalog) -> None:
    """The platform tag of some wheels names an older glibc than their objects need."""
    tags = ("cp310-cp310-manylinux_2_34_x86_64", "cp312-cp312-manylinux_2_34_x86_64")
    known = {version: FakeRelease(wheels=tags) for version in ("1.24.2", "1.24.4", "1.25.0")}
    for image, version in (
        ("rocm/dev-ubuntu-22.04:7.1-complete", "1.24.2"),
        ("rocm/dev-ubuntu-24.04:7.1.1-complete", "1.25.0"),
    ):
        request = ask(catalog, "onnxruntime-migraphx", site=FRONTIER, base_image=image, day=DAY)
        found = resolve(catalog, request, FakeIndexes({"onnxruntime-migraphx": known}))
        assert isinstance(found, Resolution), found
        assert found.version_of("onnxruntime-migraphx") == version


@pytest.mark.parametrize(
    ("text", "site", "expected"),
    [
        ("jax", LUMI, {"jax-rocm60-plugin", "jax-rocm60-pjrt"}),
        ("flax rocm==7.2.*", FRONTIER, {"jax-rocm7-plugin", "jax-rocm7-pjrt"}),
        ("tensorflow", FRONTIER, {"tensorflow-rocm"}),
        ("hip-python", LUMI, {"hip-python"}),
    ],
)
def test_what_is_tied_to_rocm_states_the_rule(
    catalog: Catalog, indexes: FakeIndexes, text: str, site: str, expected: set[str]
) -> None:
    """Its support is not stronger than that of the rule."""
    found = resolved(catalog, indexes, text, site)
    tied = {
        pick.name: [fact for fact in pick.facts if fact.file and " requires rocm " in fact.text]
        for pick in found.distributions
    }
    assert {name for name, facts in tied.items() if facts} == expected
    for name in expected:
        pick = found.pick(name)
        assert pick is not None
        (fact,) = tied[name]
        assert re.match(rf"{name} ({re.escape(pick.version)}|\({pick.variant}\)) requires rocm ", fact.text)
        assert STATUS_RANK[pick.support] <= STATUS_RANK[fact.status]
    reasons = [fact.text for name in expected for fact in found.pick(name).facts]  # type: ignore[union-attr]
    jax = found.version_of("jax")
    is_stated = any(one.startswith(f"jax {jax} requires jax-rocm") for one in reasons)
    assert is_stated == any(name.startswith("jax") for name in expected)


def test_nothing_is_tied_to_rocm_on_the_cpu(catalog: Catalog, indexes: FakeIndexes) -> None:
    for text, options in (("jax", {"backend": "cpu"}), ("jax[cpu]", {})):
        found = resolved(catalog, indexes, text, FRONTIER, **options)
        assert not [fact for pick in found.distributions for fact in pick.facts if fact.file]
