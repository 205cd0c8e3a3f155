"""Requirements are learned from the metadata, tags, GPU code, libraries and symbols of wheels."""

from __future__ import annotations

import datetime
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders.index_client import IndexClient
from builders.learning import LearnedFacts
from builders.learning.wheel import learn_published, learn_url, learn_wheel
from builders.storage.files import sha256_of
from resolver.environment import Environment
from resolver.errors import EnvironmentLacksError, SourceError, UsageError
from resolver.facts import schema
from resolver.facts.catalog import Catalog
from resolver.indexes import File
from resolver.versions import satisfies
from tests.builders.bundles import HOST, PREFIX, code_object, packed, padded, plain
from tests.support.elf import shared_object
from tests.support.range_server import RangeServer, serving
from tests.support.tiny import wheel_of

MakeWheel = Callable[..., Path]
TODAY = datetime.date(2026, 11, 22)
TAGS = "cp312-cp312-manylinux_2_28_x86_64"
NEW_STRING = "_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
OLD_STRING = "_ZN3c106detail14torchCheckFailEPKcS2_jRKSs"


@pytest.fixture
def compiled(compile_object: Callable[..., Path], tmp_path: Path) -> Callable[..., bytes]:
    """Return a function that compiles an object with GPU code, needed libraries and undefined symbols."""

    def make(*gfx: str, needs: tuple[str, ...] = (), imports: str = "", compressed: bool = True) -> bytes:
        source = "int answer(void) { return 42; }\n"
        if gfx:
            bundle = plain([HOST, *((PREFIX + name, code_object(name)) for name in gfx)])
            section = tmp_path / f"section-{'-'.join(gfx)}"
            section.write_bytes(padded(packed(bundle, 3) if compressed else bundle))
            head = '.section .hip_fatbin,\\"a\\",@progbits\\n.p2align 12'
            source += f'__asm__("{head}\\n.incbin \\"{section}\\"\\n.text");\n'
        if imports:
            source += f"extern int {imports}(void);\nint call(void) {{ return {imports}(); }}\n"
        stubs = [
            str(compile_object(name, "int unused;\n", f"-Wl,-soname,{name}", "-nostdlib")) for name in needs
        ]
        return compile_object("op.so", source, "-Wl,--no-as-needed", *stubs).read_bytes()

    return make


def required(learned: LearnedFacts, on: str) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return versions and GPU architectures of the requirements on a component."""
    return [
        (row.versions, row.gfx) for row in learned.rows if isinstance(row, schema.Requires) and row.on == on
    ]


def wheel_row(learned: LearnedFacts) -> schema.Wheel:
    (row,) = [row for row in learned.rows if isinstance(row, schema.Wheel)]
    return row


def metadata(*lines: str, name: str = "tiny", version: str = "1.0") -> str:
    return "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines, "", ""])


def test_metadata_and_tags_become_requirements(make_wheel: MakeWheel, catalog: Catalog) -> None:
    lines = (
        "Requires-Dist: torch<3,>=2.4",
        "Requires-Dist: flash-attn>=2; python_version < '3.10'",
        "Requires-Dist: numpy!=2.1.0,>=1.26",
        "Requires-Dist: unknown-to-the-catalog>=3",
        "Requires-Dist: apex; extra == 'all'",
        "License-Expression: MIT",
    )
    path = make_wheel(metadata=metadata(*lines), tags=TAGS)
    learned = learn_wheel(path, catalog, TODAY)
    assert required(learned, "torch") == [((">=2.4,<3",), ())]
    assert required(learned, "numpy") == [((">=1.26,!=2.1.0",), ())]
    assert required(learned, "python") == [(("==3.12.*",), ())]
    assert required(learned, "glibc") == [((">=2.28",), ())]
    assert {row.on for row in learned.rows if isinstance(row, schema.Requires)} == {
        "torch", "numpy", "python", "glibc",
    }  # fmt: skip
    assert any("flash-attn" in remark for remark in learned.remarks)
    assert wheel_row(learned).licence == "MIT"
    assert {row.status for row in learned.rows} == {"observed"}
    assert {row.source for row in learned.rows} == {f"{path.name} sha256:{sha256_of(path)}"}
    assert all("2026-11-22" in row.note for row in learned.rows)


@pytest.mark.parametrize(
    ("tags", "stated", "expected"),
    [
        ("py3-none-any", ">=3.9", (">=3.9",)),
        ("cp38-abi3-linux_x86_64", ">=3.8", (">=3.8",)),
        ("cp310.cp311-none-linux_x86_64", ">=3.9", ("==3.10.*", "==3.11.*")),
        ("cp39-abi3-linux_x86_64", ">=3.10,<3.14", (">=3.9,>=3.10,<3.14",)),
        ("cp310.cp311-none-linux_x86_64", ">=3.11", ("==3.10.*,>=3.11", "==3.11.*")),
        ("py311-none-any", "", (">=3.11",)),
    ],
)
def test_pythons_of_tags(
    make_wheel: MakeWheel, catalog: Catalog, tags: str, stated: str, expected: tuple[str, ...]
) -> None:
    learned = learn_wheel(make_wheel(tags=tags, requires_python=stated), catalog, TODAY)
    assert required(learned, "python") == [(expected, ())]
    claimed = [python for python in catalog.python if any(satisfies(python, text) for text in expected)]
    assert claimed
    assert all(Environment(python).allows_python(stated) for python in claimed)


def test_gpu_architectures_are_those_of_all_libraries(
    make_wheel: MakeWheel, compiled: Callable[..., bytes], catalog: Catalog
) -> None:
    files = {
        "tiny/a.so": compiled("gfx90a", "gfx942", needs=("libamdhip64.so.6", "libunrelated.so.1")),
        "tiny/b.so": compiled("gfx90a", "gfx1030"),
        "tiny/lib/librocblas.so.4": compiled("gfx942"),
        "tiny/plain.so": compiled(),
    }
    learned = learn_wheel(make_wheel(files=files, tags=TAGS), catalog, TODAY)
    assert required(learned, "gfx") == [(("gfx90a",), ())]
    assert required(learned, "rocm") == [((">=6,<7",), ())]
    row = wheel_row(learned)
    assert row.code["tiny/a.so"] == ("gfx90a", "gfx942")
    assert row.code["tiny/lib/librocblas.so.4"] == ("gfx942",)
    assert row.libraries == ("libamdhip64.so.6",)


def test_libraries_of_several_rocm_versions_tell_no_line(
    make_wheel: MakeWheel, compiled: Callable[..., bytes], catalog: Catalog
) -> None:
    files = {
        "tiny/a.so": compiled("gfx90a", needs=("libamdhip64.so.6",)),
        "tiny/b.so": compiled("gfx942", needs=("libamdhip64.so.7",)),
    }
    learned = learn_wheel(make_wheel(files=files, tags=TAGS), catalog, TODAY)
    assert required(learned, "rocm") == required(learned, "gfx") == []
    assert any("ROCm line is unknown" in remark for remark in learned.remarks)
    assert any("no GPU architecture in common" in remark for remark in learned.remarks)


def test_libraries_of_bitsandbytes_tell_rocm_line_and_gpus(
    make_wheel: MakeWheel, compiled: Callable[..., bytes], catalog: Catalog
) -> None:
    files = {
        "bitsandbytes/libbitsandbytes_rocm64.so": compiled("gfx90a"),
        "bitsandbytes/libbitsandbytes_rocm71.so": compiled("gfx90a", "gfx942"),
        "bitsandbytes/libbitsandbytes_rocm715.so": compiled("gfx90a", "gfx942"),
        "bitsandbytes/libbitsandbytes_cuda126.so": b"is not read",
    }
    learned = learn_wheel(make_wheel("bitsandbytes", "0.50.9", files, tags=TAGS), catalog, TODAY)
    assert required(learned, "rocm") == [
        (("==6.4.*",), ("gfx90a",)),
        (("==7.1.*", "==10.0.*"), ("gfx90a", "gfx942")),
    ]
    assert required(learned, "gfx") == []


@pytest.mark.parametrize(("symbol", "bound"), [(NEW_STRING, ">=2.6"), (OLD_STRING, "<2.6")])
def test_symbols_of_torch_tell_the_cxx_abi(
    make_wheel: MakeWheel, compiled: Callable[..., bytes], catalog: Catalog, symbol: str, bound: str
) -> None:
    files = {"tiny/op.so": compiled(imports=symbol)}
    text = metadata("Requires-Dist: torch>=2.0")
    learned = learn_wheel(make_wheel(files=files, metadata=text, tags=TAGS), catalog, TODAY)
    assert required(learned, "torch") == [((f">=2.0,{bound}",), ())]
    assert any("the torch that it loads with is unknown" in remark for remark in learned.remarks)


def test_pinned_torch_needs_no_symbols(
    make_wheel: MakeWheel, compiled: Callable[..., bytes], catalog: Catalog
) -> None:
    text = metadata("Requires-Dist: torch==2.9.1")
    wheel = make_wheel(files={"tiny/op.so": compiled(imports=NEW_STRING)}, metadata=text, tags=TAGS)
    learned = learn_wheel(wheel, catalog, TODAY)
    assert required(learned, "torch") == [(("==2.9.1",), ())]
    assert not any("torch" in remark for remark in learned.remarks)


def test_c_symbols_of_torch_tell_nothing(
    make_wheel: MakeWheel, compiled: Callable[..., bytes], catalog: Catalog
) -> None:
    files = {"tiny/op.so": compiled(imports="aoti_torch_empty_strided")}
    learned = learn_wheel(make_wheel(files=files, tags=TAGS), catalog, TODAY)
    assert required(learned, "torch") == []
    assert not any("torch" in remark for remark in learned.remarks)


def test_op_table_tells_torch_rocm_and_ops(
    make_wheel: MakeWheel, compiled: Callable[..., bytes], catalog: Catalog
) -> None:
    table = b"installed_ops = {'fused_adam': True, 'sparse': False}\n"
    table += b"torch_info = {'version': '2.9', 'hip_version': '6.4'}\n"
    files = {"tiny/git_version_info_installed.py": table, "tiny/op.so": compiled("gfx90a")}
    learned = learn_wheel(make_wheel(files=files, tags=TAGS), catalog, TODAY)
    assert required(learned, "torch") == [(("==2.9.*",), ())]
    assert required(learned, "rocm") == [(("==6.4.*",), ())]
    assert wheel_row(learned).ops == ("fused_adam",)


def test_version_label_tells_torch(make_wheel: MakeWheel, catalog: Catalog) -> None:
    learned = learn_wheel(make_wheel(version="1.0+rocm6.4.torch2.9.1.gfx90a"), catalog, TODAY)
    assert required(learned, "torch") == [(("==2.9.*",), ())]


def test_objects_say_nothing_about_a_version_built_from_source(
    make_wheel: MakeWheel, compiled: Callable[..., bytes], catalog: Catalog
) -> None:
    files = {"bitsandbytes/libbitsandbytes_rocm71.so": compiled("gfx90a")}
    learned = learn_wheel(make_wheel("bitsandbytes", "0.48.2", files, tags=TAGS), catalog, TODAY)
    assert required(learned, "rocm") == required(learned, "glibc") == []
    assert any("builds this version from source" in remark for remark in learned.remarks)


def test_wheels_of_one_release_are_joined(make_wheel: MakeWheel, catalog: Catalog) -> None:
    learned = LearnedFacts()
    for python in ("cp312", "cp311", "cp39"):
        tags = f"{python}-{python}-manylinux_2_28_x86_64"
        files = {"tiny/a.hsaco": code_object("gfx90a"), "tiny/b.hsaco": code_object("gfx1030")}
        learned.add(learn_wheel(make_wheel(tags=tags, files=files), catalog, TODAY))
    assert required(learned, "gfx") == [(("gfx1030", "gfx90a"), ())]
    assert required(learned, "python") == [(("==3.9.*", "==3.11.*", "==3.12.*"), ())]
    assert required(learned, "glibc") == [((">=2.28",), ())]
    kinds = [type(row).__name__ for row in learned.rows]
    assert kinds == ["Package", *["Wheel"] * 3, *["Requires"] * 3]
    assert "cp311" in learned.rows[-1].source
    assert "cp312" in learned.rows[-1].source
    before = list(learned.rows)
    learned.add(learn_wheel(make_wheel(tags=tags, files=files), catalog, TODAY))
    assert learned.rows == before


def test_damaged_wheel_is_an_error(tmp_path: Path, catalog: Catalog) -> None:
    path = tmp_path / "tiny-1.0-py3-none-any.whl"
    path.write_bytes(b"PK nothing")
    with pytest.raises(UsageError, match="not a valid wheel"):
        learn_wheel(path, catalog, TODAY)


def test_damaged_member_is_an_error(
    make_wheel: MakeWheel, compiled: Callable[..., bytes], catalog: Catalog
) -> None:
    path = make_wheel(files={"tiny/op.so": compiled("gfx90a")}, tags=TAGS)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("tiny/op.so")
    data = bytearray(path.read_bytes())
    data[info.header_offset + 30 + len(info.filename) + info.compress_size // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(UsageError, match=r"not a valid wheel: tiny/op\.so .*[^.]\.$"):
        learn_wheel(path, catalog, TODAY)


# On a server.


def learn_from(server: RangeServer, catalog: Catalog, path: Path, **more: Any) -> LearnedFacts:
    client = IndexClient([f"{server.url}/simple"])
    url = f"{server.url}/{path.relative_to(server.root)}"
    file = schema_file(path.name, url, sha256_of(path))
    return learn_published(file, catalog, client.transport, TODAY, **more)


def schema_file(name: str, url: str, sha256: str) -> Any:
    from resolver.indexes import File

    return File(name=name, url=url, sha256=sha256)


@pytest.mark.parametrize("compressed", [True, False])
def test_remote_wheel_tells_the_same_as_a_local_one(
    make_wheel: MakeWheel,
    compiled: Callable[..., bytes],
    catalog: Catalog,
    tmp_path: Path,
    *,
    compressed: bool,
) -> None:
    files = {
        "tiny/op.so": compiled("gfx90a", "gfx942", needs=("libamdhip64.so.6",), compressed=False),
        "tiny/data": os.urandom(3_000_000),
        "tiny/other.so": compiled("gfx90a", "gfx942"),
    }
    made = make_wheel(files=files, tags=TAGS)
    path = made.with_name(made.name.replace("-cp312-cp312", "-cp313-cp313"))
    with zipfile.ZipFile(made) as old, zipfile.ZipFile(path, "w") as new:
        for info in old.infolist():
            kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
            new.writestr(info.filename, old.read(info), kind)
    local = learn_wheel(path, catalog, TODAY)
    with serving(tmp_path) as server:
        remote = learn_from(server, catalog, path)
        assert remote.read == server.sent < 500_000
    assert remote.rows == local.rows
    assert remote.size == local.size == path.stat().st_size
    assert required(remote, "gfx") == [(("gfx90a", "gfx942"), ())]


def test_missing_remote_wheel_is_an_error(make_wheel: MakeWheel, catalog: Catalog, tmp_path: Path) -> None:
    path = make_wheel()
    with serving(tmp_path) as server:
        client = IndexClient([f"{server.url}/simple"])
        with pytest.raises(SourceError, match="404"):
            learn_url(f"{server.url}/other/{path.name}#sha256={'0' * 64}", catalog, client.transport, TODAY)
        learned = learn_url(f"{server.url}/made/{path.name}", catalog, client.transport, TODAY)
        url = f"{server.url}/made/{path.name}"
    assert wheel_row(learned).sha256 == sha256_of(path)
    with pytest.raises(EnvironmentLacksError):
        learn_url(url, catalog, IndexClient([url]).transport, TODAY)


CUDA_ONLY = {"tiny/_C.abi3.so": shared_object(needed=("libcudart.so.12", "libc.so.6"))}


def excluded(learned: LearnedFacts) -> list[tuple[dict[str, str], str]]:
    return [(row.combination, row.problem) for row in learned.rows if isinstance(row, schema.KnownBad)]


def test_need_of_cuda_excludes_the_release(tmp_path: Path, catalog: Catalog) -> None:
    learned = learn_wheel(wheel_of(tmp_path, "tiny", "1.0", CUDA_ONLY), catalog, TODAY)
    problem = "its wheels require CUDA: tiny/_C.abi3.so needs libcudart.so.12"
    assert excluded(learned) == [({"tiny": "==1.0"}, problem)]
    with serving(tmp_path) as server:
        (path,) = tmp_path.glob("*.whl")
        file = File(path.name, f"{server.url}/{path.name}", sha256_of(path))
        published = learn_published(file, catalog, IndexClient([server.url]).transport, TODAY)
    assert excluded(published) == excluded(learned)


def test_cuda_sources_without_objects_exclude_the_release(tmp_path: Path, catalog: Catalog) -> None:
    wheel = wheel_of(tmp_path, "tiny", "1.0", {"tiny/kernel.cu": b"__global__ void f();"})
    assert [combination for combination, _ in excluded(learn_wheel(wheel, catalog, TODAY))] == [
        {"tiny": "==1.0"}
    ]


@pytest.mark.parametrize("needed", ["libc.so.6", "libamdhip64.so.6"])
def test_other_wheels_exclude_nothing(tmp_path: Path, catalog: Catalog, needed: str) -> None:
    wheel = wheel_of(tmp_path, "tiny", "1.0", {"tiny/_C.abi3.so": shared_object(needed=(needed,))})
    assert excluded(learn_wheel(wheel, catalog, TODAY)) == []


def test_other_builds_of_the_version_are_not_excluded(tmp_path: Path, catalog: Catalog) -> None:
    """The version of a CUDA wheel is that of its ROCm build, too."""
    learned = learn_wheel(wheel_of(tmp_path, "torchvision", "0.24.1", CUDA_ONLY), catalog, TODAY)
    assert excluded(learned) == []
    assert any("the catalog has other builds" in remark for remark in learned.remarks)
