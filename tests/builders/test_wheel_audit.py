"""A wheel is audited without a recipe; each defect has its own finding."""

from __future__ import annotations

import os
import platform
import stat
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from builders.audit.contents import Expected
from builders.audit.elf import version_key
from builders.audit.runtime_libraries import TorchLibraries, image_provider
from builders.audit.wheel_audit import WheelAudit, audit_wheel
from resolver.errors import UsageError
from resolver.facts.schema import Recipe
from tests.builders.bundles import HOST, PREFIX, code_object, packed, padded, plain
from tests.support.elf import shared_object

MakeWheel = Callable[..., Path]
Compile = Callable[..., Path]
WithCode = Callable[..., bytes]

TAGS = f"cp311-cp311-linux_{platform.machine()}"
SOURCE = "int answer(void) { return 42; }"
OP = "tiny/op.so"


def ids(report: WheelAudit, severity: str = "error") -> list[str]:
    return [finding.id for finding in report.findings if finding.severity == severity]


def metadata(*requires: str, version: str = "1.0") -> str:
    lines = ["Metadata-Version: 2.1", "Name: tiny", f"Version: {version}"]
    return "\n".join([*lines, *(f"Requires-Dist: {text}" for text in requires), "", ""])


def running_on(**facts: object) -> Expected:
    return Expected(providers=(image_provider(facts),))


@pytest.fixture
def with_code(compile_object: Compile, tmp_path: Path) -> WithCode:
    """Return a function that compiles a shared object with a section of GPU code."""

    def make(section: bytes, *flags: str) -> bytes:
        fatbin = tmp_path / f"section{len(list(tmp_path.iterdir()))}"
        fatbin.write_bytes(section)
        head = '.section .hip_fatbin,\\"a\\",@progbits\\n.p2align 12'
        code = f'__asm__("{head}\\n.incbin \\"{fatbin}\\"\\n.text");'
        path: Path = compile_object("op.so", f"{code}\n{SOURCE}\n", *flags)
        return path.read_bytes()

    return make


def bundle(*targets: str) -> bytes:
    entries = [
        (PREFIX + name, code_object(name.partition(":")[0], xnack=name.partition(":")[2])) for name in targets
    ]
    return padded(packed(plain([HOST, *entries]), 3))


def test_sound_pure_wheel_has_no_findings(make_wheel: MakeWheel) -> None:
    report = audit_wheel(make_wheel())
    assert report.findings == ()
    assert report.verdict == "sound"
    assert (report.contents.name, report.contents.version) == ("tiny", "1.0")


def test_gpu_code_is_compared_with_requested_architectures(
    make_wheel: MakeWheel, with_code: WithCode
) -> None:
    wheel = make_wheel(files={OP: with_code(bundle("gfx90a", "gfx942"))}, tags=TAGS)
    report = audit_wheel(wheel, Expected(architectures=("gfx90a", "gfx942")))
    assert report.verdict == "sound"
    assert [code.name for code in report.contents.code[OP]] == ["gfx90a", "gfx942"]
    assert ids(audit_wheel(wheel, Expected(architectures=("gfx90a",), no_others=True))) == [
        "target-not-asked"
    ]
    published = audit_wheel(wheel, Expected(architectures=("gfx90a",)))  # with more architectures than asked
    assert (published.verdict, "target-not-asked" in ids(published, "info")) == ("sound", True)
    assert ids(audit_wheel(wheel, Expected(architectures=("gfx90a", "gfx942", "gfx1030")))) == [
        "target-missing"
    ]
    wrong = audit_wheel(wheel, Expected(architectures=("gfx1030",), no_others=True))
    assert ids(wrong) == ["target-not-asked", "target-not-asked", "target-missing"]
    assert {finding.evidence["member"] for finding in wrong.findings if finding.severity == "error"} == {OP}


def test_architecture_features_are_a_warning_unless_requested(
    make_wheel: MakeWheel, with_code: WithCode
) -> None:
    wheel = make_wheel(files={OP: with_code(bundle("gfx90a:xnack-"))}, tags=TAGS)
    bare = audit_wheel(wheel, Expected(architectures=("gfx90a",)))
    assert bare.verdict == "sound"
    assert ids(bare, "warning") == ["target-features"]
    assert "gfx90a:xnack-" in bare.findings[0].message
    exact = audit_wheel(wheel, Expected(architectures=("gfx90a:xnack-",)))
    assert (ids(exact), ids(exact, "warning")) == ([], [])
    other = audit_wheel(wheel, Expected(architectures=("gfx90a:xnack+",), no_others=True))
    assert ids(other) == ["target-not-asked", "target-missing"]


def test_wheel_without_anything_compiled_is_not_defective(make_wheel: MakeWheel) -> None:
    """Triton compiles at run time, also in a wheel of ours, whose label names the architecture."""
    for version in ("1.0", "1.0+rocm6.4.torch2.9.1.gfx90a"):
        report = audit_wheel(make_wheel(version=version), Expected(architectures=("gfx90a",)))
        assert report.verdict == "sound"
        assert "no-gpu-code" in ids(report, "warning")


def test_missing_gpu_code_is_an_error_if_promised(make_wheel: MakeWheel, with_code: WithCode) -> None:
    def recipe(*must_contain: str, compiles: bool | None = None, **environment: str) -> Recipe:
        return Recipe(
            package="tiny",
            backend="rocm",
            compiles=compiles,
            must_contain=must_contain,
            environment=environment,
            status="observed",
            source="test",
        )

    wheel = make_wheel(files={OP: with_code(b"")}, tags=TAGS)
    assert audit_wheel(wheel).verdict == "sound"
    assert ids(audit_wheel(wheel, Expected(architectures=("gfx90a",)))) == ["no-gpu-code"]
    for promised in (recipe(OP, PYTORCH_ROCM_ARCH="{gfx}"), recipe(PYTORCH_ROCM_ARCH="{gfx}")):
        assert ids(audit_wheel(wheel, Expected(recipe=promised))) == ["no-gpu-code"]
    for without in (recipe(OP), recipe(compiles=False, PYTORCH_ROCM_ARCH="{gfx}")):
        report = audit_wheel(wheel, Expected(("gfx90a",), without))
        assert report.verdict == "sound"
        assert "no-gpu-code-promised" in ids(report, "info")


def test_damaged_gpu_code_is_an_error(make_wheel: MakeWheel, with_code: WithCode) -> None:
    wheel = make_wheel(files={OP: with_code(bundle("gfx90a")[:-4000] + b"noise")}, tags=TAGS)
    report = audit_wheel(wheel)
    assert ids(report) == ["fatbin-damaged"]
    assert report.findings[0].evidence["section"] == ".hip_fatbin"


def test_bare_code_object_file_is_read(make_wheel: MakeWheel) -> None:
    report = audit_wheel(make_wheel(files={"tiny/k.hsaco": code_object("gfx942")}, tags=TAGS))
    assert report.contents.architectures == ["gfx942"]


def test_label_is_compared_with_gpu_code(make_wheel: MakeWheel, with_code: WithCode) -> None:
    files = {OP: with_code(bundle("gfx90a"))}
    message = {}
    for label in ("rocm6.4.torch2.9.1.gfx90a", "rocm6.4.torch2.9.1.gfx942", "rocm6.4"):
        version = f"1.0+{label}"
        wheel = make_wheel(version=version, metadata=metadata(version=version), files=files, tags=TAGS)
        message[label] = {finding.id for finding in audit_wheel(wheel).findings} - {"plain-platform-tag"}
    assert list(message.values()) == [set(), {"label-differs"}, {"label-odd"}]


def test_label_of_pure_wheel_is_a_warning(make_wheel: MakeWheel) -> None:
    """The label of flash-attn's Triton variant is correct; Apex without its extensions looks the same."""
    version = "1.0+rocm6.4.torch2.9.1.gfx90a"
    wheel = make_wheel(version=version, metadata=metadata(version=version))
    assert ids(audit_wheel(wheel), "warning") == ["label-of-pure-wheel"]
    unknown = Recipe(package="tiny", backend="rocm", status="observed", source="test")
    assert ids(audit_wheel(wheel, Expected(recipe=unknown)), "warning") == ["label-of-pure-wheel"]
    report = audit_wheel(wheel, Expected(("gfx90a",), replace(unknown, compiles=False)))
    assert ids(report, "warning") == ids(report) == []
    assert ids(report, "info") == ["no-gpu-code-promised", "label-of-pure-wheel"]


def test_tags_are_compared_with_content(make_wheel: MakeWheel, compile_object: Compile) -> None:
    library = compile_object("op.so", SOURCE).read_bytes()
    assert ids(audit_wheel(make_wheel(files={OP: library}))) == ["pure-with-objects"]
    assert ids(audit_wheel(make_wheel(tags=TAGS)), "warning") == ["platform-without-objects"]
    other = make_wheel(files={"tiny/op.cpython-312-x86_64-linux-gnu.so": library}, tags=TAGS)
    assert ids(audit_wheel(other)) == ["other-python"]
    renamed = make_wheel(files={OP: library}, tags=TAGS, folder="renamed")
    renamed = renamed.rename(renamed.with_name(renamed.name.replace("cp311-cp311", "cp312-cp312")))
    assert ids(audit_wheel(renamed)) == ["tags-differ"]


def test_newer_glibc_than_the_tag_is_an_error(make_wheel: MakeWheel, compile_object: Compile) -> None:
    """The first glibc with ``getrandom`` is 2.25."""
    source = "#include <sys/random.h>\nint newer(void) { int one; return getrandom(&one, 4, 0); }"
    library = compile_object("newer.so", source).read_bytes()
    tags = f"cp311-cp311-manylinux_2_17_{platform.machine()}"
    wheel = make_wheel(files={OP: library}, tags=tags)
    assert ids(audit_wheel(wheel)) == ["glibc-above-tag"]
    assert ids(audit_wheel(wheel, running_on(glibc="2.24"))) == ["glibc-above-tag", "glibc-too-new"]
    (item,) = audit_wheel(wheel).contents.objects
    assert version_key(item.versions["GLIBC"]) >= (2, 25)
    assert (
        ids(audit_wheel(make_wheel(files={OP: library}, tags=TAGS), running_on(glibc=item.versions["GLIBC"])))
        == []
    )


def test_newer_libstdcxx_than_the_tag_is_an_error(
    make_wheel: MakeWheel, compile_object: Compile, tmp_path: Path
) -> None:
    """A new compiler on an old system: glibc is old enough, libstdc++ is not."""
    script = tmp_path / "versions"
    script.write_text("GLIBCXX_3.4.29 { newer; };")
    flags = ["-Wl,-soname,libstdc++.so.6", f"-Wl,--version-script={script}", "-nostdlib"]
    runtime = compile_object("libstdc++.so.6", "int newer(void) { return 1; }", *flags)
    source = "int newer(void); int answer(void) { return newer(); }"
    library = compile_object("op.so", source, str(runtime), "-nostdlib").read_bytes()

    def wheel_for(*glibc: str, **files: bytes) -> Path:
        tags = ".".join(f"manylinux_2_{minor}_{platform.machine()}" for minor in glibc)
        return make_wheel(files={OP: library, **files}, tags=f"cp311-cp311-{tags}")

    (error,) = audit_wheel(wheel_for("28")).errors
    assert error.id == "libstdcxx-above-tag"
    assert error.evidence == {"member": OP, "symbol version": "GLIBCXX_3.4.29"}
    assert "at most GLIBCXX_3.4.24" in error.message
    assert ids(audit_wheel(wheel_for("29"))) == ["libstdcxx-above-tag"], (
        "without a policy, the next older policy applies"
    )
    for newer in ("34", "36", "99"):
        assert ids(audit_wheel(wheel_for(newer))) == []
    assert ids(audit_wheel(wheel_for("17", "34"))) == ["libstdcxx-above-tag"]
    own = {"tiny.libs/libstdc++-0123abcd.so.6": runtime.read_bytes()}
    assert ids(audit_wheel(wheel_for("28", **own))) == [], "the wheel contains its own libstdc++"


def test_needed_library_must_be_provided(make_wheel: MakeWheel, compile_object: Compile) -> None:
    def user_of(name: str) -> bytes:
        library = compile_object(name, "int give(void) { return 1; }", f"-Wl,-soname,{name}")
        flags = [str(library), "-Wl,--no-as-needed"]
        return compile_object(
            "op.so", "int give(void); int take(void) { return give(); }", *flags
        ).read_bytes()

    def given(*libraries: str) -> Expected:
        return Expected(torch=TorchLibraries(libraries=frozenset(libraries)))

    strange = make_wheel(files={OP: user_of("libstrange.so")}, tags=TAGS)
    assert ids(audit_wheel(strange), "warning") == ["need-elsewhere"]
    assert ids(audit_wheel(strange, given()), "warning") == ["need-elsewhere"]
    nobody = audit_wheel(strange, running_on(libraries=["libc.so.6"]))
    assert ids(nobody) == ["need-not-provided"]
    assert "neither the wheel, torch nor the base image" in nobody.errors[0].message
    for provided in (given("libstrange.so"), running_on(libraries=["libstrange.so"])):
        assert audit_wheel(strange, provided).verdict == "sound"
        assert ids(audit_wheel(strange, provided), "warning") == []
    own = make_wheel(
        files={OP: user_of("libstrange.so"), "tiny/libstrange.so": user_of("libc10.so")}, tags=TAGS
    )
    assert ids(audit_wheel(own, running_on(libraries=[])), "warning") == []
    assert audit_wheel(own, running_on(libraries=[])).verdict == "sound"
    cuda = make_wheel(files={OP: user_of("libcudart.so.12")}, tags=TAGS)
    assert "need-of-other-backend" in ids(audit_wheel(cuda, given()), "info")
    assert audit_wheel(cuda, given()).verdict == "sound"


def variants(name: str, *, gfx: str = "gfx90a", folder: bool = False) -> dict[str, bytes]:
    """Return libraries as in bitsandbytes 0.50 (or in folders, as in llama-cpp-python), one is loaded."""
    sizes = {
        "cuda124": ("libcudart.so.12",),
        "cuda130": ("libcudart.so.13",),
        "xpu2026": ("libsycl.so.9", "libimf.so"),
    }
    sizes |= {f"rocm{line}": (f"libamdhip64.so.{line[0]}",) for line in ("64", "70", "72")}
    files = {}
    for device, needed in sizes.items():
        glibc = "2.32" if device.startswith("xpu") else "2.17"
        code = bundle(gfx) if device.startswith("rocm") else b""
        path = f"{name}/{device}/lib{name}.so" if folder else f"{name}/lib{name}_{device}.so"
        files[path] = shared_object(needed=needed, versions={"libc.so.6": [f"GLIBC_{glibc}"]}, fatbin=code)
    return files


@pytest.mark.parametrize("folder", [False, True])
def test_only_the_variant_that_is_loaded_counts(make_wheel: MakeWheel, *, folder: bool) -> None:
    tags = f"py3-none-manylinux_2_24_{platform.machine()}"
    asked = Expected(architectures=("gfx90a",))
    wheel = make_wheel(files=variants("tiny", folder=folder), tags=tags)
    for expected in (asked, replace(asked, torch=TorchLibraries("2.10.0+rocm7.0", "7.0"))):
        report = audit_wheel(wheel, expected)
        assert ids(report) == []
        assert "variant-not-judged" in ids(report, "info")
    # It is loaded and has no code for the GPU, whatever the others have.
    other = {
        path: data for path, data in variants("tiny", gfx="gfx942", folder=folder).items() if "70" in path
    }
    wheel = make_wheel(files=variants("tiny", folder=folder) | other, tags=tags, folder="other")
    report = audit_wheel(wheel, replace(asked, torch=TorchLibraries("2.10.0+rocm7.0", "7.0")))
    assert ids(report) == ["target-missing"]
    report = audit_wheel(wheel, replace(asked, torch=TorchLibraries("2.9.1+rocm6.4", "6.4")))
    assert ids(report) == []


def test_variants_count_if_none_is_for_the_target(make_wheel: MakeWheel) -> None:
    files = {path: data for path, data in variants("tiny").items() if "xpu" in path or "cuda" in path}
    tags = f"py3-none-manylinux_2_24_{platform.machine()}"
    assert "glibc-above-tag" in ids(audit_wheel(make_wheel(files=files, tags=tags)))


def test_variant_that_another_object_is_linked_with_counts(make_wheel: MakeWheel) -> None:
    """PyTorch loads both libtorch_cpu.so and libtorch_hip.so: they are no alternatives."""
    late = {"libc.so.6": ["GLIBC_2.99"]}
    files = {
        "tiny/libtiny.so": shared_object(needed=["libtiny_cuda.so", "libtiny_rocm.so"]),
        "tiny/libtiny_cuda.so": shared_object(needed=["libcudart.so.12"], versions=late),
        "tiny/libtiny_rocm.so": shared_object(needed=["libamdhip64.so.7"]),
    }
    tags = f"py3-none-manylinux_2_24_{platform.machine()}"
    assert "glibc-above-tag" in ids(audit_wheel(make_wheel(files=files, tags=tags)))
    del files["tiny/libtiny.so"]
    assert ids(audit_wheel(make_wheel(files=files, tags=tags, folder="alone"))) == []


def test_missing_library_names_its_provider(make_wheel: MakeWheel, compile_object: Compile) -> None:
    def wheel_for(name: str) -> Path:
        library = compile_object(name, "int give(void) { return 1; }", f"-Wl,-soname,{name}")
        source = "int give(void); int take(void) { return give(); }"
        user = compile_object("op.so", source, str(library), "-Wl,--no-as-needed")
        return make_wheel(files={OP: user.read_bytes()}, tags=TAGS, folder=name)

    torch = TorchLibraries(libraries=frozenset({"libc10.so"}))
    (image,) = running_on(libraries=["libc.so.6"]).providers
    rocm, c10 = wheel_for("libamdhip64.so.7"), wheel_for("libc10_hip.so")
    for expected, severity, finding_ids in (
        (Expected(), "warning", []),
        (Expected(torch=torch), "warning", ["need-elsewhere"]),
        (Expected(providers=(image,)), "warning", ["need-elsewhere"]),
        (Expected(torch=torch, providers=(image,)), "error", ["need-not-provided"]),
    ):
        assert ids(audit_wheel(rocm, expected), severity) == finding_ids
    message = audit_wheel(rocm, Expected(torch=torch)).findings
    assert "Check that the base image provides libamdhip64.so.7." in [finding.fix for finding in message]
    assert ids(audit_wheel(c10), "warning") == []
    assert audit_wheel(c10, Expected(providers=(image,))).verdict == "sound"
    (error,) = audit_wheel(c10, Expected(torch=torch)).errors
    assert "torch should contain" in error.message


def test_second_copy_of_torch_library_is_an_error(make_wheel: MakeWheel, compile_object: Compile) -> None:
    library = compile_object("op.so", SOURCE).read_bytes()
    files = {OP: library, "tiny.libs/libamdhip64-0123abcd.so.6": library}
    report = audit_wheel(make_wheel(files=files, tags=TAGS, metadata=metadata("torch==2.9.1")))
    assert ids(report) == ["bundled-twice"]
    assert audit_wheel(make_wheel(files=files, tags=TAGS, metadata=metadata())).verdict == "sound"


def test_wheel_for_torch_is_recognized_without_requirement(
    make_wheel: MakeWheel, compile_object: Compile
) -> None:
    """A wheel that does not require torch may still be loaded in the same process as torch."""
    library = compile_object("op.so", SOURCE).read_bytes()
    files = {OP: library, "tiny.libs/libamdhip64-0123abcd.so.6": library}
    silent = make_wheel(files=files, tags=TAGS)
    assert ids(audit_wheel(silent)) == []
    assert ids(audit_wheel(silent, Expected(torch=TorchLibraries()))) == ["bundled-twice"]
    recipe = Recipe(package="tiny", backend="cpu", status="observed", source="test")
    assert ids(audit_wheel(silent, Expected(recipe=recipe))) == ["bundled-twice"]
    labelled = make_wheel(version="1.0+rocm6.4.torch2.9.1", files=files, tags=TAGS)
    assert ids(audit_wheel(labelled)) == ["bundled-twice"]
    c10 = compile_object("libc10.so", "int give(void) { return 1; }", "-Wl,-soname,libc10.so")
    source = "int give(void); int take(void) { return give(); }"
    user = compile_object("op.so", source, str(c10), "-Wl,--no-as-needed").read_bytes()
    needing = make_wheel(files={**files, OP: user}, tags=TAGS, folder="needing")
    assert ids(audit_wheel(needing)) == ["bundled-twice"]
    itself = make_wheel(name="torch", files={OP: user, "torch/lib/libc10.so": c10.read_bytes()}, tags=TAGS)
    assert ids(audit_wheel(itself, Expected(torch=TorchLibraries()))) == []


@pytest.mark.parametrize(
    ("path", "finding_ids"),
    [
        ("$ORIGIN/../lib", ""),
        ("/opt/rocm-6.4.0/lib", "rpath-rocm"),
        ("/opt/rocm", "rpath-rocm"),
        ("/build/x", "rpath-build"),
    ],
)
def test_absolute_search_path_is_reported(
    path: str, finding_ids: str, make_wheel: MakeWheel, compile_object: Compile
) -> None:
    library = compile_object("op.so", SOURCE, f"-Wl,-rpath,{path}").read_bytes()
    wheel = make_wheel(files={OP: library}, tags=TAGS)
    assert ids(audit_wheel(wheel), "warning") == [finding_ids] * bool(finding_ids)
    recipe = Recipe(package="tiny", backend="cpu", status="observed", source="test")
    assert ids(audit_wheel(wheel, Expected(recipe=recipe))) == [finding_ids] * bool(finding_ids)


def test_cuda_and_unpinned_torch_requirements_are_reported(
    make_wheel: MakeWheel, compile_object: Compile
) -> None:
    files = {OP: compile_object("op.so", SOURCE).read_bytes()}
    wheel = make_wheel(
        files=files, tags=TAGS, metadata=metadata("nvidia-cublas-cu12==1", "nvidia-ml-py", "torch>=2")
    )
    assert ids(audit_wheel(wheel)) == ["nvidia-requirement"]
    assert "torch-not-pinned" in ids(audit_wheel(wheel), "info")
    pinned = make_wheel(
        files=files, tags=TAGS, metadata=metadata("torch==2.9.1", 'nvidia-x; extra == "cuda"')
    )
    assert ids(audit_wheel(pinned)) == []
    assert "torch-not-pinned" not in ids(audit_wheel(pinned), "info")


def rewritten(wheel: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """Write a wheel's members again without updating its RECORD."""
    with zipfile.ZipFile(wheel) as source:
        members = {name: source.read(name) for name in source.namelist()}
    change(members)
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as sink:
        for name, data in members.items():
            sink.writestr(name, data)
    return wheel


@pytest.mark.parametrize(
    ("change", "finding_ids"),
    [
        (lambda m: m.update({"tiny.py": b"ANSWER = 43\n"}), "record-hash-differs"),
        (lambda m: m.update({"more.py": b""}), "record-lacks-file"),
        (lambda m: m.pop("tiny.py"), "record-names-absent"),
        (lambda m: m.pop("tiny-1.0.dist-info/RECORD"), "record-missing"),
        (lambda m: m.update({"tiny-1.0.dist-info/RECORD": b"\xff\n"}), "record-damaged"),
        (lambda m: m.pop("tiny-1.0.dist-info/METADATA"), "metadata-missing"),
        (lambda m: m.update({"../out.py": b""}), "unsafe-path"),
        (lambda m: m.update({"/etc/out.py": b""}), "unsafe-path"),
    ],
)
def test_changed_member_is_reported(
    make_wheel: MakeWheel, change: Callable[[dict[str, bytes]], None], finding_ids: str
) -> None:
    report = audit_wheel(rewritten(make_wheel(), change))
    assert finding_ids in ids(report)
    assert report.verdict == "defective"


def test_second_dist_info_is_an_error(make_wheel: MakeWheel) -> None:
    """The directory that matches the file name is used, whatever the order."""

    def another(name: str) -> Callable[[dict[str, bytes]], None]:
        return lambda m: m.update({f"{name}.dist-info/METADATA": b"Name: other\nVersion: 9\n"})

    for name in ("other-9", "zzz-9", "a-b"):
        report = audit_wheel(rewritten(make_wheel(), another(name)))
        assert ids(report) == ["dist-info-other", "record-lacks-file"]
        assert report.contents.header("METADATA", "Name") == ["tiny"]
    nested = rewritten(make_wheel(), another("tiny/vendored/other-9"))
    assert ids(audit_wheel(nested)) == ["record-lacks-file"]


@pytest.mark.parametrize("called", ["tiny-1.1", "tinier-1.0", "tiny", "tiny-new"])
def test_dist_info_of_another_name_is_an_error(make_wheel: MakeWheel, called: str) -> None:
    def rename(members: dict[str, bytes]) -> None:
        for name in list(members):
            new = name.replace("tiny-1.0", called)
            members[new] = members.pop(name).replace(b"tiny-1.0", called.encode())

    report = audit_wheel(rewritten(make_wheel(), rename))
    assert ids(report) == ["dist-info-other"]
    assert f"{called}.dist-info" in report.errors[0].message


def test_wheel_name_in_any_spelling_is_accepted(make_wheel: MakeWheel) -> None:
    head = "Metadata-Version: 2.1\nName: Tiny.Two\nVersion: 1.0\n"
    wheel = make_wheel("Tiny.Two", "1.0.0", metadata=head.replace("1.0", "1.0.0"))
    assert audit_wheel(wheel.rename(wheel.with_name("tiny_two-1.0.0-py3-none-any.whl"))).findings == ()


def test_purelib_wheel_with_objects_is_a_warning(make_wheel: MakeWheel, compile_object: Compile) -> None:
    library = compile_object("op.so", SOURCE).read_bytes()

    def pure(members: dict[str, bytes]) -> None:
        members["tiny-1.0.dist-info/WHEEL"] = members["tiny-1.0.dist-info/WHEEL"].replace(b"false", b"True")

    for path, finding_ids in ((OP, ["purelib-with-objects"]), ("tiny-1.0.data/platlib/op.so", [])):
        wheel = make_wheel(files={path: library}, tags=TAGS)
        assert ids(audit_wheel(wheel), "warning") == []
        assert ids(audit_wheel(rewritten(wheel, pure)), "warning") == finding_ids


def test_link_in_wheel_is_an_error(make_wheel: MakeWheel) -> None:
    wheel = make_wheel()
    with zipfile.ZipFile(wheel, "a") as sink:
        info = zipfile.ZipInfo("tiny/link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        sink.writestr(info, "/etc/passwd")
    assert "link" in ids(audit_wheel(wheel))


@pytest.mark.slow
def test_zip_bomb_is_rejected(make_wheel: MakeWheel) -> None:
    wheel = make_wheel()
    with zipfile.ZipFile(wheel, "a", zipfile.ZIP_DEFLATED) as sink, sink.open("bomb", "w") as member:
        for _ in range(300):
            member.write(bytes(1 << 20))
    with pytest.raises(UsageError, match="unpack to"):
        audit_wheel(wheel)


def test_file_that_is_not_a_wheel_is_rejected(make_wheel: MakeWheel, tmp_path: Path) -> None:
    wheel = make_wheel()
    whole = wheel.read_bytes()
    for length in (0, 1, len(whole) // 2, len(whole) - 1):
        wheel.write_bytes(whole[:length])
        with pytest.raises(UsageError, match="not a valid wheel"):
            audit_wheel(wheel)
    (tmp_path / "strange.zip").touch()
    with pytest.raises(UsageError, match="its name is not of the form"):
        audit_wheel(tmp_path / "strange.zip")
    with pytest.raises(UsageError, match="does not exist"):
        audit_wheel(tmp_path / "gone-1.0-py3-none-any.whl")


@pytest.mark.slow
def test_pipe_is_rejected_before_it_is_opened(tmp_path: Path) -> None:
    """Opening a pipe without a writer waits forever, so the audit runs in a process with a time limit."""
    pipe = tmp_path / "tiny-1.0-py3-none-any.whl"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "matrix", "check", str(pipe)]
    message = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert message.returncode == 3
    assert "it is not a regular file" in message.stderr
    folder = tmp_path / "folder-1.0-py3-none-any.whl"
    folder.mkdir()
    with pytest.raises(UsageError, match="Is a directory"):
        audit_wheel(folder)


def test_damaged_object_is_a_finding(make_wheel: MakeWheel, with_code: WithCode) -> None:
    binary = with_code(bundle("gfx90a"))
    for length in (0, 20, 100, len(binary) // 2, len(binary) - 1):
        report = audit_wheel(make_wheel(files={OP: binary[:length]}, tags=TAGS, folder=f"cut{length}"))
        assert ids(report) == ["not-elf"], length
    absurd = binary[:40] + struct.pack("<Q", 2**63) + binary[48:]
    assert ids(audit_wheel(make_wheel(files={OP: absurd}, tags=TAGS, folder="absurd"))) == ["not-elf"]


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(at=st.integers(0, 30_000), data=st.binary(min_size=1, max_size=16))
def test_object_with_any_bytes_gets_verdict(
    make_wheel: MakeWheel, with_code: WithCode, at: int, data: bytes
) -> None:
    binary = bytearray(with_code(bundle("gfx90a")))
    at = min(at, len(binary) - len(data))
    binary[at : at + len(data)] = data
    assert audit_wheel(make_wheel(files={OP: bytes(binary)}, tags=TAGS)).verdict in {"sound", "defective"}
