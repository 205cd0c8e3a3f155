"""Preinstalled distributions are kept: known versions, unknown versions, and content of base images."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from msgspec.structs import replace

from resolver.answers.resolve import resolve
from resolver.compiling.preinstalled import content_notes
from resolver.errors import UsageError
from resolver.facts.catalog import Catalog, load
from resolver.facts.schema import Backend
from resolver.indexes import File
from resolver.lock import dumps
from resolver.model import IMAGE, Conflict, Distribution, Preinstalled, Request, Resolution
from tests.resolver.solve_helpers import ask
from tests.support.locks import locked_pick

DAY = "2026-05-01"
TORCH_LAYER = "lumi-multitorch-torch-u24r64f21m43t29-20260225_144743.sif"
OWN_TORCH = "lumi-multitorch-torch-u24r70f21m50t210-20260415_130625.sif"
NO_TORCH = "lumi-multitorch-mpich-u24r64f21m43t29-20260225_144743.sif"


def keeping(request: Request, **installed: str) -> Request:
    names = {name.replace("_", "-"): version for name, version in installed.items()}
    return replace(request, preinstalled=Preinstalled("list.txt", dict(sorted(names.items()))))


def resolved(catalog: Catalog, request: Request) -> Resolution:
    answer = resolve(catalog, request)
    assert isinstance(answer, Resolution)
    return answer


def pick_of(answer: Resolution, name: str) -> Distribution:
    pick = answer.pick(name)
    assert pick is not None
    return pick


def test_preinstalled_version_is_kept_and_not_built(catalog: Catalog) -> None:
    request = ask(catalog, "apex deepspeed", day=DAY)
    assert pick_of(resolved(catalog, request), "deepspeed").version != "0.17.6"
    answer = resolved(catalog, keeping(request, torch="2.9.1+rocm6.4", deepspeed="0.17.6", foo="1.0"))
    for name, version in (("torch", "2.9.1+rocm6.4"), ("deepspeed", "0.17.6")):
        pick = pick_of(answer, name)
        assert (pick.version, pick.origin) == (version, "preinstalled")
        assert pick.facts[0].text == f"the base image contains {name} {version}"
        assert pick.facts[0].source == "installed: list.txt"
        assert pick.facts[0].status == "observed"
    lock = answer
    assert [pick.name for pick in lock.built()] == ["apex"]
    assert lock.built()[0].pinned.endswith("+rocm6.4.torch2.9.1.gfx90a")
    assert not any(edge.subject == "deepspeed" and edge.kind == "build" for edge in lock.edges)
    assert lock.request.preinstalled is not None
    assert lock.request.preinstalled.installed == {
        "deepspeed": "0.17.6",
        "foo": "1.0",
        "torch": "2.9.1+rocm6.4",
    }


def test_preinstalled_is_picked_without_request(catalog: Catalog) -> None:
    request = ask(catalog, "bitsandbytes", day=DAY)
    assert resolved(catalog, request).pick("torchvision") is None
    changed = keeping(request, torch="2.9.1+rocm6.4", torchvision="0.24.1+rocm6.4")
    assert pick_of(resolved(catalog, changed), "torchvision").origin == "preinstalled"


def test_unknown_label_matches_longest_prefix(catalog: Catalog) -> None:
    answer = resolved(catalog, keeping(ask(catalog, "apex", day=DAY), torch="2.9.1+rocm6.4.lumi"))
    torch = pick_of(answer, "torch")
    assert (torch.version, torch.index) == ("2.9.1+rocm6.4.lumi", "")
    assert pick_of(answer, "rocm").version.startswith("6.4")
    assert "torch 2.9.1+rocm6.4 is built for ROCm 6.4" in [fact.text for fact in torch.facts]
    assert any("the facts about torch 2.9.1+rocm6.4 were used" in warning for warning in answer.warnings)
    assert answer.built()[0].pinned.endswith("torch2.9.1.gfx90a")


def test_matched_version_gives_requirements(catalog: Catalog) -> None:
    request = ask(catalog, "apex rocm==7.0.*", day=DAY)
    answer = resolve(catalog, keeping(request, torch="2.9.1+rocm6.4.lumi"))
    assert isinstance(answer, Conflict)
    texts = [item.text for item in answer.core]
    assert "the base image contains torch 2.9.1+rocm6.4.lumi" in texts
    assert "torch 2.9.1+rocm6.4 is built for ROCm 6.4" in texts
    changes = [suggestion for suggestion in answer.suggestions if "without keeping" in suggestion.change]
    assert changes
    assert changes[0].request.preinstalled is None


def test_unmatched_version_causes_warning(catalog: Catalog) -> None:
    request = ask(catalog, "torch rocm==6.0.3", day="2025-06-01")
    answer = resolved(catalog, keeping(request, torch="2.8.0a0+git49444c3"))
    assert pick_of(answer, "torch").version == "2.8.0a0+git49444c3"
    assert any("so its requirements were not checked" in warning for warning in answer.warnings)
    known = resolve(catalog, keeping(request, torch="2.8.0+rocm6.4"))
    assert isinstance(known, Conflict)


def test_build_facts_do_not_apply_to_preinstalled(catalog: Catalog) -> None:
    """The catalog has a recipe for this commit on CPUs only; an installed torch may be for ROCm."""
    request = ask(catalog, "torch rocm==6.0.3", day="2025-06-01")
    answer = resolved(catalog, keeping(request, torch="1.13.0a0+git49444c3"))
    assert pick_of(answer, "torch").origin == "preinstalled"


def test_other_label_matches_public_version_only(catalog: Catalog) -> None:
    request = ask(catalog, "apex rocm==6.4.*", day=DAY)
    answer = resolved(catalog, keeping(request, torch="2.9.1+ours"))
    assert pick_of(answer, "apex").version == "1.9.0"
    assert any("its own requirements were not checked" in warning for warning in answer.warnings)


def test_conflict_names_preinstalled_version(catalog: Catalog) -> None:
    request = keeping(ask(catalog, "torch>=2.10", day=DAY), torch="2.9.1+rocm6.4")
    answer = resolve(catalog, request)
    assert isinstance(answer, Conflict)
    assert [(item.text, item.kind, item.source) for item in answer.core] == [
        ("you asked for torch>=2.10", "request", "the request"),
        ("the base image contains torch 2.9.1+rocm6.4", "fact", "installed: list.txt"),
    ]


def test_preinstalled_torch_of_other_backend_conflicts(catalog: Catalog) -> None:
    answer = resolve(catalog, keeping(ask(catalog, "apex", day=DAY), torch="2.9.1+cpu"))
    assert isinstance(answer, Conflict)
    texts = [item.text for item in answer.core]
    assert "torch 2.9.1+cpu is a cpu build" in texts
    assert "the base image contains torch 2.9.1+cpu" in texts


def test_preinstalled_pair_excluded_by_catalog_warns(
    catalog: Catalog,
) -> None:
    request = ask(catalog, "apex", day=DAY)
    answer = resolved(catalog, keeping(request, torch="2.9.1+rocm6.4", torchvision="0.23.0+rocm6.4"))
    assert pick_of(answer, "torchvision").version == "0.23.0+rocm6.4"
    assert any("torchvision and torch in versions" in warning for warning in answer.warnings)
    pinned = ask(catalog, "apex torchvision==0.23.0+rocm6.4", day=DAY)
    assert isinstance(resolve(catalog, keeping(pinned, torch="2.9.1+rocm6.4")), Conflict)


def test_listed_python_and_rocm_are_demands(catalog: Catalog) -> None:
    request = ask(catalog, "apex", day=DAY)
    answer = resolved(catalog, keeping(request, python="3.12.3", rocm="6.4.4", torch="2.9.1+rocm6.4"))
    assert pick_of(answer, "python").version == "3.12"
    assert pick_of(answer, "rocm").version == "6.4.4"
    conflict = resolve(catalog, keeping(ask(catalog, "apex python==3.11", day=DAY), python="3.12.3"))
    assert isinstance(conflict, Conflict)
    assert "the base image contains python 3.12.3" in [item.text for item in conflict.core]
    with pytest.raises(UsageError, match=r"rocm 99\.9"):
        resolve(catalog, keeping(request, rocm="99.9"))


def test_content_of_image_is_kept(catalog: Catalog) -> None:
    request = ask(catalog, "apex deepspeed", day=DAY, base_image=TORCH_LAYER)
    answer = resolved(catalog, replace(request, preinstalled=Preinstalled(IMAGE)))
    for name, version in catalog.image[TORCH_LAYER].holds.items():
        pick = pick_of(answer, name)
        assert (pick.version, pick.origin) == (version, "preinstalled")
    assert pick_of(answer, "python").version == "3.12"
    assert f"the base image {TORCH_LAYER} contains torch 2.9.1+rocm6.4" in [
        fact.text for fact in pick_of(answer, "base-image").facts
    ]


def test_torch_compiled_for_image_is_kept(catalog: Catalog) -> None:
    request = ask(catalog, "deepspeed", day=DAY, base_image=OWN_TORCH)
    answer = resolved(catalog, replace(request, preinstalled=Preinstalled(IMAGE)))
    torch = pick_of(answer, "torch")
    assert (torch.version, torch.origin) == ("2.10.0", "preinstalled")
    assert pick_of(answer, "rocm").version == "7.0.2"


def test_chosen_image_has_content_to_keep(catalog: Catalog) -> None:
    request = ask(catalog, "torch", day=DAY)
    answer = resolved(catalog, replace(request, preinstalled=Preinstalled(IMAGE)))
    assert "torch" in catalog.image[pick_of(answer, "base-image").version].holds
    assert pick_of(answer, "torch").origin == "preinstalled"


@pytest.mark.parametrize("requested", ["deepspeed", "apex", "torch"])
@pytest.mark.parametrize("day", ["2026-01-30", "2026-02-20", "2026-03-01", "2026-04-01", "2026-11-29"])
def test_chosen_image_to_keep_is_the_newest_of_its_rocm(catalog: Catalog, requested: str, day: str) -> None:
    request = ask(catalog, requested, day=day)
    answer = resolved(catalog, replace(request, preinstalled=Preinstalled(IMAGE)))
    assert pick_of(answer, requested).origin == "preinstalled"
    since = {row.image: row.since for row in catalog.images_at("lumi-g", request.target.date)}
    rivals = [
        (since[name] or date.min, len(image.holds), name)
        for name, image in catalog.image.items()
        if name in since and image.rocm == answer.target.rocm and requested in image.holds
    ]
    assert max(rivals)[-1] == answer.target.base_image
    assert len({rival[0] for rival in rivals}) > 1 or day == "2026-01-30"


def test_image_without_content_causes_warning(catalog: Catalog) -> None:
    request = ask(catalog, "bitsandbytes", day=DAY, base_image=NO_TORCH)
    answer = resolved(catalog, replace(request, preinstalled=Preinstalled(IMAGE)))
    assert pick_of(answer, "torch").origin == "published"
    assert pick_of(answer, "base-image").version == NO_TORCH
    assert any("no installed version was kept" in warning for warning in answer.warnings)


def test_other_torch_conflicts_with_image(catalog: Catalog) -> None:
    request = ask(catalog, "torch==2.8.0", day=DAY, base_image=TORCH_LAYER)
    answer = resolve(catalog, replace(request, preinstalled=Preinstalled(IMAGE)))
    assert isinstance(answer, Conflict)
    assert f"the base image {TORCH_LAYER} contains torch 2.9.1+rocm6.4" in [item.text for item in answer.core]


def test_cpu_backend_cannot_keep_image(catalog: Catalog) -> None:
    request = ask(catalog, "torch", site="local", backend="cpu", python="3.11", glibc="2.36")
    with pytest.raises(UsageError, match="CPU backend has none"):
        resolve(catalog, replace(request, preinstalled=Preinstalled(IMAGE)))
    resolution = resolved(catalog, keeping(request, torch="2.12.0+cpu"))
    assert pick_of(resolution, "torch").origin == "preinstalled"


def test_list_without_image_causes_warning(catalog: Catalog) -> None:
    request = keeping(ask(catalog, "apex", day=DAY), torch="2.9.1+rocm6.4")
    text = "does not name its base image"
    assert any(text in warning for warning in resolved(catalog, request).warnings)
    request = keeping(ask(catalog, "apex", day=DAY, base_image=TORCH_LAYER), torch="2.9.1+rocm6.4")
    answer = resolved(catalog, request)
    assert not any(text in warning for warning in answer.warnings)
    assert pick_of(answer, "python").version == "3.12"


@pytest.mark.slow
@pytest.mark.parametrize(
    "kept",
    [
        f"Preinstalled({IMAGE!r})",
        "Preinstalled('list.txt', {'numpy': '2.1.3', 'torch': '2.9.1+rocm6.4.lumi'})",
    ],
)
def test_preinstalled_lock_is_deterministic(kept: str, catalog: Catalog) -> None:
    program = (
        "import sys; from msgspec.structs import replace; from resolver.facts.catalog import load;"
        "from resolver.lock import dumps; from resolver.model import Preinstalled;"
        "from resolver.answers.resolve import resolve; from tests.resolver.solve_helpers import ask;"
        "catalog = load();"
        f"request = ask(catalog, 'apex deepspeed', day={DAY!r}, base_image={TORCH_LAYER!r});"
        f"sys.stdout.write(dumps(resolve(catalog, replace(request, preinstalled={kept}))))"
    )
    texts = set()
    for seed in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=Path(__file__).parents[2],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        texts.add(done.stdout)
    (text,) = texts
    assert 'origin = "preinstalled"' in text
    request = ask(catalog, "apex deepspeed", day=DAY, base_image=TORCH_LAYER)
    if IMAGE in kept:
        assert dumps(resolved(catalog, replace(request, preinstalled=Preinstalled(IMAGE)))) == text


@pytest.mark.parametrize(
    ("version", "backend", "text"),
    [
        ("2.3.0+cu121", None, "torch 2.3.0+cu121 is labelled as a build for CUDA"),
        ("2.3.0+cpu.site", None, "torch 2.3.0+cpu.site is labelled as a build for the CPU"),
        ("2.9.1+rocm7.1", None, "torch 2.9.1+rocm7.1 is labelled as a build for ROCm 7.1"),
        ("2.4.0+rocm6.3", "cpu", "torch 2.4.0+rocm6.3 is labelled as a build for ROCm 6.3"),
    ],
)
def test_label_of_unknown_torch_names_backend(
    catalog: Catalog, version: str, backend: Backend | None, text: str
) -> None:
    site = "local" if backend == "cpu" else "lumi-g"
    answer = resolve(
        catalog, keeping(ask(catalog, "torch", site=site, backend=backend, day=DAY), torch=version)
    )
    assert isinstance(answer, Conflict)
    assert text in "\n".join(item.text for item in answer.core)


def test_unlabelled_torch_has_pythons_of_release(catalog: Catalog) -> None:
    newer = ask(catalog, "torch python>=3.13", day=DAY)
    assert isinstance(resolve(catalog, newer), Resolution)
    answer = resolved(catalog, keeping(ask(catalog, "torch python", day=DAY), torch="2.4.0"))
    assert pick_of(answer, "python").version == "3.12"
    conflict = resolve(catalog, keeping(newer, torch="2.4.0"))
    assert isinstance(conflict, Conflict)
    assert any(item.text.startswith("torch 2.4.0 is published for Python") for item in conflict.core)


IMAGES = list(
    {
        tuple(row.holds.items()): row.name
        for row in load().image.values()
        if row.name.startswith("lumi-multitorch-full") and row.holds
    }.values()
)
"""LUMI's full images with different contents."""
REQUESTS = [
    "torch deepspeed",
    "torch deepspeed flash-attn[triton]",
    "torch==2.9.1 deepspeed apex",
    "vllm",
    "torch apex bitsandbytes causal-conv1d",
    "torch",
    "torch deepspeed==0.17.6",
    *(
        EXCLUDED := [
            "torch deepspeed python==3.9.*",
            "torch deepspeed rocm==6.2.*",
        ]
    ),
]


def _options(answer: Resolution) -> list[str]:
    """Return the options that the note about the content of an image names."""
    notes = [note for note in answer.notes if note.id == "image-has"]
    return notes[0].rpartition(": ")[2].split() if notes else []


def _following(request: Request, options: list[str]) -> Request:
    """Return a request with the options of a note."""
    image = options[options.index("--base-image") + 1] if "--base-image" in options else None
    target = replace(request.target, base_image=image or request.target.base_image)
    return replace(request, target=target, preinstalled=Preinstalled(IMAGE))


@pytest.mark.parametrize("name", [name for name in IMAGES if "r72" not in name])  # not for LUMI's driver
def test_content_of_image_is_not_built_again(name: str, catalog: Catalog) -> None:
    image = catalog.image[name]
    asked = " ".join(held for held in image.holds if held in catalog.package)
    request = ask(catalog, asked, day="2026-11-21", base_image=name)
    answer = resolved(catalog, replace(request, preinstalled=Preinstalled(IMAGE)))
    assert answer.built() == []
    assert image.holds.items() <= {pick.name: pick.version for pick in answer.distributions}.items()


@pytest.mark.parametrize(
    ("image", "text"),
    [
        pytest.param(image, text, marks=pytest.mark.slow if (row + column) % 3 else [])
        for row, image in enumerate([None, *IMAGES])
        for column, text in enumerate(REQUESTS)
    ],
)
def test_note_about_content_of_image_gives_fewer_builds(
    catalog: Catalog, text: str, image: str | None
) -> None:
    """Or keeps what would be installed: of the named image, or the torch of the site's."""
    request = ask(catalog, text, day="2026-11-21", base_image=image)
    answer = resolve(catalog, request)
    if not isinstance(answer, Resolution) or not (options := _options(answer)):
        return
    kept = resolved(catalog, _following(request, options))
    names = [{pick.name for pick in one.built()} for one in (kept, answer)]
    (note,) = (note for note in answer.notes if note.id == "image-has")
    is_for_builds = not image and any(f" {name} " in note for name in names[1])
    preinstalled = {pick.name for pick in kept.distributions if pick.origin == "preinstalled"}
    assert names[0] < names[1] or (not is_for_builds and (image or "torch" in preinstalled))
    assert not _options(kept)


def test_image_with_requested_packages_is_named(catalog: Catalog) -> None:
    for text in REQUESTS:
        options = _options(resolved(catalog, ask(catalog, text, day="2026-11-21")))
        assert bool(options) == (text not in EXCLUDED), text
        assert not options or options[0] == "--base-image"
    named = ask(catalog, "torch deepspeed", day="2026-11-21", base_image=IMAGES[-1])
    assert _options(resolved(catalog, named)) == ["--keep-installed", "image"]


def test_note_about_an_image_counts_what_it_lacks(catalog: Catalog) -> None:
    answer = resolved(catalog, ask(catalog, "torch deepspeed", day="2026-11-21"))
    own = locked_pick("einops", "0.8.1")
    picks = [
        replace(pick, origin="published", files=(File("x.whl", "", "", size=3 << 20),))
        for pick in (*answer.picks, own)
        if pick.kind == "distribution"
    ]
    others = [pick for pick in answer.picks if pick.kind != "distribution"]
    (note,) = content_notes(catalog, answer.request, [*others, *picks], None)
    assert note.startswith("lumi-multitorch-")
    assert f" has at least {len(picks) - 2} of these {len(picks)} distributions: " in note
    assert f"a layer over it with 6 MiB of wheels, instead of {3 * len(picks)} MiB" in note
    unknown = [*others, *picks[:-1], replace(picks[-1], files=())]
    (note,) = content_notes(catalog, answer.request, unknown, None)
    assert "MiB" not in note + note.short


def test_kept_content_may_be_incomplete(catalog: Catalog) -> None:
    image = "lumi-multitorch-full-u24r70f21m50t210-20260731_122833.sif"
    assert "deepspeed" not in catalog.image[image].holds
    request = ask(catalog, "torch deepspeed", day="2026-11-21", base_image=image)
    (note,) = resolved(catalog, replace(request, preinstalled=Preinstalled(IMAGE))).notes
    assert "--base-image PATH" in note
    read = Preinstalled(IMAGE, {"torch": "2.10.0"})
    assert not resolved(catalog, replace(request, preinstalled=read)).notes
    nothing_built = replace(ask(catalog, "torch", base_image=image), preinstalled=Preinstalled(IMAGE))
    assert not resolved(catalog, nothing_built).notes
