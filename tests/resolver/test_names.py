"""Names of projects that are not what they seem, and slips in requirements."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from resolver.answers.resolve import resolve
from resolver.compiling.names import distributions_of_module
from resolver.errors import UsageError
from resolver.facts import schema
from resolver.facts.catalog import Catalog, load
from resolver.model import Preinstalled, Request, Resolution
from resolver.requirements import normalize_name, parse_requirement
from tests.resolver.solve_helpers import ask
from tests.support.indexes import FakeIndexes, FakeRelease

DAY = "2026-11-21"
CATALOG = load()
WRONG = tuple(CATALOG.wrong_name.values())
PRODUCTS = [(product, row.target) for row in CATALOG.gfx.values() for product in row.products]


def cpu(catalog: Catalog, text: str) -> Request:
    return ask(catalog, text, site="local", backend="cpu", python="3.12", glibc="2.36", day=DAY)


def warnings(catalog: Catalog, indexes: FakeIndexes, text: str) -> str:
    answer = resolve(catalog, cpu(catalog, text), indexes)
    assert isinstance(answer, Resolution), answer
    return "\n".join(answer.warnings)


def error(catalog: Catalog, request: Request, indexes: FakeIndexes | None) -> UsageError:
    with pytest.raises(UsageError) as caught:
        resolve(catalog, request, indexes)
    return caught.value


@pytest.mark.parametrize("row", WRONG, ids=lambda row: row.name)
@pytest.mark.parametrize("online", [True, False], ids=["index", "catalog"])
def test_requested_wrong_name_is_an_error_with_the_right_names(
    catalog: Catalog, row: schema.WrongName, online: bool
) -> None:
    indexes = FakeIndexes({row.name: {"1.0": []}}) if online else None
    found = error(catalog, cpu(catalog, f"torch {row.name}"), indexes)
    assert row.project in found.message
    assert all(name in found.hint for name in row.means)
    assert row.name not in row.means


@pytest.mark.parametrize("row", WRONG, ids=lambda row: row.name)
def test_only_stubs_cannot_be_required(catalog: Catalog, row: schema.WrongName) -> None:
    indexes = FakeIndexes({"a": {"2": [row.name], "1": []}, row.name: {"1.0": []}})
    answer = resolve(catalog, cpu(catalog, "a"), indexes)
    assert isinstance(answer, Resolution)
    assert answer.version_of("a") == ("1" if row.stub else "2")


def test_direct_reference_and_installed_project_may_have_a_wrong_name(catalog: Catalog) -> None:
    url = "https://a.example/sklearn-1.0-py3-none-any.whl"
    indexes = FakeIndexes({}, direct={url: ("sklearn", "1.0", FakeRelease())})
    request = cpu(catalog, "torch")
    direct = replace(request, requirements=(parse_requirement(f"sklearn @ {url}"),))
    installed = replace(
        request,
        requirements=(parse_requirement("sklearn"),),
        preinstalled=Preinstalled("list", {"sklearn": "1.0"}),
    )
    for stated in (direct, installed):
        answer = resolve(catalog, stated, indexes)
        assert isinstance(answer, Resolution)
        assert answer.version_of("sklearn") == "1.0"


@pytest.mark.parametrize("name", ["rocm-sdk", "rocm-sdk-core", "rocm-bootstrap", "amd-torch-device-gfx90a"])
@pytest.mark.parametrize("version", ["0.0.1.dev0", "0.1.0", "99.0"])
def test_placeholder_of_a_rocm_package_is_never_a_candidate(
    catalog: Catalog, name: str, version: str
) -> None:
    indexes = FakeIndexes({name: {version: []}, "a": {"2": [name], "1": []}})
    found = error(catalog, cpu(catalog, f"torch {name}"), indexes)
    assert name in found.message
    assert "AMD" in found.hint
    answer = resolve(catalog, cpu(catalog, "a"), indexes)
    assert isinstance(answer, Resolution)
    assert answer.version_of("a") == "1"


@pytest.mark.parametrize(
    ("near", "package"),
    [("mamba", "mamba-ssm"), ("deepsped", "deepspeed"), ("xformer", "xformers"), ("flash-atn", "flash-attn")],
)
def test_name_near_a_package_of_the_catalog_is_a_warning(catalog: Catalog, near: str, package: str) -> None:
    indexes = FakeIndexes({near: {"1.0": []}, "a": {"1": [near]}, package: {"1.0": []}})
    assert f"close to that of {package}" in warnings(catalog, indexes, f"torch {near}")
    assert "close to" not in warnings(catalog, indexes, f"torch a {near}")  # another project requires it
    assert "close to" not in warnings(catalog, indexes, "torch a")


@pytest.mark.parametrize("name", ["onnx", "onnxscript", "vision", "pydantic"])
def test_other_word_is_no_misspelled_name(catalog: Catalog, name: str) -> None:
    indexes = FakeIndexes({name: {"1.0": []}})
    assert "close to" not in warnings(catalog, indexes, f"torch {name}")


def test_name_near_a_package_is_no_mistake_if_both_are_requested(catalog: Catalog) -> None:
    indexes = FakeIndexes({"torchx": {"1.0": []}})
    assert "torch" in warnings(catalog, indexes, "torchx")
    assert "close to" not in warnings(catalog, indexes, "torchx torch")


@pytest.mark.parametrize("module", ["PIL", "cv2", "yaml", "bs4", "serial", "docx"])
def test_distribution_of_a_module_is_suggested(catalog: Catalog, module: str) -> None:
    meant = distributions_of_module(normalize_name(module))
    assert meant
    hint = error(catalog, cpu(catalog, module), FakeIndexes({})).hint
    assert hint.startswith(f"Did you mean {' or '.join(meant)}?")
    indexes = FakeIndexes({name: {"1.0": []} for name in (normalize_name(module), *meant)})
    text = f"usually comes from {' or '.join(meant)}."
    assert text in warnings(catalog, indexes, f"torch {module}")
    assert text not in warnings(catalog, indexes, f"torch {module} {meant[0]}")


def test_no_package_of_the_catalog_is_taken_for_a_module_of_another(catalog: Catalog) -> None:
    modules = dict.fromkeys(catalog.package, ()) | dict.fromkeys(catalog.wrong_name, ())
    taken = {name: distributions_of_module(name) for name in modules if distributions_of_module(name)}
    assert all(set(catalog.wrong_name[name].means) & {*meant} for name, meant in taken.items()), taken


@pytest.mark.parametrize(
    ("typed", "published"),
    [
        ("transformer", "transformers"),
        ("diffuser", "diffusers"),
        ("accelerates", "accelerate"),
        ("pyg-lib", "pyg-lib-rocm"),
    ],
)
def test_similar_project_is_suggested_if_an_index_has_it(
    catalog: Catalog, typed: str, published: str
) -> None:
    found = error(catalog, cpu(catalog, typed), FakeIndexes({published: {"1.0": []}}))
    assert found.hint == f"Did you mean {published}?"
    assert published not in error(catalog, cpu(catalog, typed), FakeIndexes({})).hint


@pytest.mark.parametrize(
    ("text", "corrected"),
    [
        ("torch=2.9", "torch==2.9.*"),
        ("torch = 2.9.1", "torch==2.9.1"),
        ("torch 2.9", "torch==2.9.*"),
        ("torch:2.9.1+rocm6.4", "torch==2.9.1+rocm6.4"),
        ("torch=>2.9", "torch>=2.9"),
        ("torch=<2.9", "torch<=2.9"),
        ("flash_attn=2.*", "flash_attn==2.*"),
    ],
)
def test_wrong_operator_is_corrected(text: str, corrected: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_requirement(text)
    assert caught.value.hint == f"Write {corrected}"
    parse_requirement(corrected)


@pytest.mark.parametrize("text", ["torch=", "torch=x", "=2.9", "torch 2.9 3.0"])
def test_other_invalid_requirement_has_a_general_hint(text: str) -> None:
    with pytest.raises(UsageError, match="not a valid requirement") as caught:
        parse_requirement(text)
    assert "apex" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("torch==2.9.5", "The nearest versions are 2.9.1 and 2.10.0."),
        ("torch==2.9.5+rocm6.4", "The nearest versions are 2.9.1 and 2.10.0."),
        ("torch==2.9.1+rocm7.9", "Known labels of this version: 2.9.1+rocm7.13.0"),
        ("torch==99", "The nearest version is "),
        ("flash-attn==2.9.0", "The nearest version is 2.8."),
        ("apex==0.0.1", "The nearest version is "),
    ],
)
@pytest.mark.parametrize("online", [True, False], ids=["index", "catalog"])
def test_unknown_version_gives_the_nearest_ones(
    catalog: Catalog, text: str, nearest: str, online: bool
) -> None:
    indexes = FakeIndexes({"flash-attn": {"2.8.0": []}}) if online else None
    found = error(catalog, ask(catalog, text, day=DAY), indexes)
    assert found.hint.startswith(nearest)


@pytest.mark.parametrize("online", [True, False], ids=["index", "catalog"])
def test_default_variant_may_be_named(catalog: Catalog, online: bool) -> None:
    indexes = FakeIndexes({"einops": {"0.8.1": []}}) if online else None
    plain, named = (
        resolve(catalog, ask(catalog, f"torch=={text}", day=DAY, backend="rocm"), indexes)
        for text in ("2.9.1 flash-attn", "2.9.1 flash-attn[ck]")
    )
    assert isinstance(plain, Resolution)
    assert isinstance(named, Resolution)
    assert plain.version_of("flash-attn") == named.version_of("flash-attn")
    assert not [text for text in named.warnings if "extra" in text]
    assert named.pick("flash-attn").variant != "triton"  # type: ignore[union-attr]


def test_every_default_variant_is_no_variant_of_a_release(catalog: Catalog) -> None:
    for row in catalog.package.values():
        assert row.default_variant not in {release.variant for release in catalog.releases_of(row.name)} - {
            ""
        }


@pytest.mark.parametrize(
    ("typed", "target"),
    [
        *((spelled, target) for product, target in PRODUCTS for spelled in (product, product.lower())),
        ("90a", "gfx90a"),
        ("942", "gfx942"),
        ("gfx-90a", "gfx90a"),
        ("MI-250X", "gfx90a"),
    ],
)
def test_product_or_number_suggests_the_gpu_architecture(catalog: Catalog, typed: str, target: str) -> None:
    request = ask(catalog, "torch", day=DAY, gfx=[typed])
    assert error(catalog, request, None).hint == f"Did you mean {target}?"
