"""``matrix catalog draft``: drafts and rejected sources. tests/integration builds a real draft."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from matrix.cli import main
from tests.builders.gitrepos import add_submodule, commit, git
from tests.builders.test_source_kinds import NATTEN

Capture = pytest.CaptureFixture[str]
SETUP = """
import os
import packaging
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension
WITH_CUDA = os.getenv('FORCE_CUDA', '0') == '1'
modules = [CppExtension('tiny.cpu', ['csrc/cpu.cpp'])]
if WITH_CUDA:
    modules.append(CUDAExtension('tiny.gpu', ['csrc/gpu.cu']))
setup(name='tiny', version='1.0', python_requires='>=3.8', install_requires=['torch>=2.0', 'numpy<3', 'rich'],
      ext_modules=modules, cmdclass={'build_ext': BuildExtension})
"""
FILES = {
    "setup.py": SETUP,
    "tiny/__init__.py": "",
    "csrc/cpu.cpp": "",
    "csrc/gpu.cu": "#ifdef USE_ROCM\n#endif\n",
}


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return the directory of a project with a C++ and a CUDA extension."""
    return write(tmp_path / "tiny", FILES)


def write(directory: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def make_sdist(target: Path, files: Mapping[str, str]) -> bytes:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(f"{target.name.removesuffix('.tar.gz')}/{name}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return target.read_bytes()


@pytest.fixture
def index(tmp_path: Path) -> str:
    """Return the URL of an index: tiny (1.1 is yanked), a project with wheels only, and a damaged sdist."""
    root = tmp_path / "simple"
    pkg_info = (
        "Metadata-Version: 2.2\nName: tiny\nVersion: 1.0\nRequires-Python: >=3.8\nRequires-Dist: torch>=2\n"
    )
    make_sdist(root / "tiny" / "tiny-1.0.tar.gz", FILES | {"PKG-INFO": pkg_info})
    make_sdist(root / "tiny" / "tiny-0.9.tar.gz", FILES | {"PKG-INFO": pkg_info.replace("1.0", "0.9")})
    make_sdist(root / "tiny" / "tiny-1.1.tar.gz", FILES | {"PKG-INFO": pkg_info.replace("1.0", "1.1")})
    make_sdist(root / "tiny" / "tiny-2.0rc1.tar.gz", FILES)
    write(root / "wheels", {"wheels-2.0-py3-none-any.whl": "", "wheels-1.0.tar.gz": ""})
    write(root / "damaged", {"damaged-1.0.tar.gz": "no archive"})
    for folder in root.iterdir():
        links = (
            f'<a href="{file.name}#sha256={hashlib.sha256(file.read_bytes()).hexdigest()}"'
            f"{' data-yanked' if '1.1' in file.name else ''}>{file.name}</a>"
            for file in sorted(folder.iterdir())
        )
        (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>")
    return root.as_uri()


def drafted(name: str = "tiny.toml") -> dict[str, Any]:
    return tomllib.loads(Path(name).read_text())


def row(rows: list[dict[str, Any]], **keys: str) -> dict[str, Any]:
    (match,) = (entry for entry in rows if keys.items() <= entry.items())
    return match


def test_draft_of_a_directory_is_a_valid_catalog(project: Path, capsys: Capture) -> None:
    assert main(["catalog", "draft", str(project)]) == 0
    output = capsys.readouterr()
    assert "tiny.cpu, CppExtension (setup.py:7)" in output.out
    assert "this machine only" in output.out
    assert "versions of rich: the wheel requires them" in output.out
    document = drafted()
    (release,) = document["release"]
    assert release["sdist"]["file"] == "tiny-1.0.tar.gz"
    assert release["backend"] == ["rocm", "cpu"]
    assert release["sdist"]["sha256"] in release["source"]
    rocm, cpu = row(document["recipe"], backend="rocm"), row(document["recipe"], backend="cpu")
    assert rocm["environment"] == {"PYTORCH_ROCM_ARCH": "{gfx}", "FORCE_CUDA": "1"}
    assert rocm["source-contains"] == {"setup.py": "FORCE_CUDA"}
    assert rocm["must-contain"] == ["tiny/cpu*.so", "tiny/gpu*.so"]
    assert cpu["must-contain"] == ["tiny/cpu*.so"]
    assert "environment" not in cpu
    assert sorted(cpu["undeclared"]) == ["ninja", "packaging", "setuptools", "torch", "wheel"]
    assert {recipe["status"] for recipe in document["recipe"]} == {"inferred"}
    assert row(document["requires"], on="python")["versions"] == [">=3.8"]
    assert row(document["requires"], on="torch")["versions"] == [">=2.0"]
    assert row(document["requires"], on="numpy")["versions"] == ["<3"]
    assert main(["catalog", "check", "tiny.toml"]) == 0


def test_resolve_and_build_wheels_accept_the_draft(project: Path, capsys: Capture) -> None:
    assert main(["catalog", "draft", str(project), "-q"]) == 0
    request = ["tiny", "torch==2.13.0", "--backend", "cpu", "--catalog", "tiny.toml"]
    assert main(["resolve", *request, "-q"]) == 0
    assert main(["resolve", "tiny", "--gfx90a", "--catalog", "tiny.toml", "-q", "--no-lock"]) == 0
    capsys.readouterr()
    assert main(["build-wheels", "tiny", "--backend", "cpu", "--catalog", "tiny.toml", "--dry-run"]) == 0
    assert "tiny 1.0+cpu.torch2.13.0  to build" in capsys.readouterr().out


def test_project_on_an_index(index: str, capsys: Capture) -> None:
    assert main(["catalog", "draft", "Tiny", "--index-url", index, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["origin"] == "tiny-1.0.tar.gz"
    assert [extension["name"] for extension in document["facts"]["extensions"]] == ["tiny.cpu", "tiny.gpu"]
    assert any("cuda.is_available" in gap for gap in document["gaps"]) is False
    assert row(drafted()["requires"], on="torch")["status"] == "observed"
    assert drafted()["package"][0]["pypi"] == "same"
    assert main(["catalog", "draft", "tiny<1", "--index-url", index, "-o", "old.toml"]) == 0
    assert drafted("old.toml")["release"][0]["version"] == "0.9"


@pytest.mark.slow
def test_commit_with_submodules(tmp_path: Path, capsys: Capture) -> None:
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    commit(inner, {"kernel.cu": ""})
    commit(outer, FILES | {"setup.py": SETUP.replace("version='1.0'", "version=read()")})
    head = add_submodule(outer, "csrc/inner", inner, inner.as_uri())
    git(outer, "tag", "v1.5")
    url = f"git+{outer.as_uri()}"
    assert main(["catalog", "draft", url]) == 2
    assert "--release VERSION" in capsys.readouterr().err
    assert main(["catalog", "draft", f"{url}@v1.5", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["submodules"] == {"csrc/inner": True}
    (release,) = drafted()["release"]
    assert release["version"] == "1.5"
    assert release["git"] == {"url": outer.as_uri(), "commit": head, "submodules": ["csrc/inner"]}
    assert main(["catalog", "draft", f"{url}@{head}", "--release", "2.0"]) == 0
    assert drafted()["release"][0]["version"] == "2.0"


def test_sdist_file(tmp_path: Path) -> None:
    path = tmp_path / "tiny-1.0.tar.gz"
    content = make_sdist(path, FILES)
    assert main(["catalog", "draft", str(path)]) == 0
    assert drafted()["release"][0]["sdist"]["sha256"] == hashlib.sha256(content).hexdigest()
    path.unlink()
    assert main(["resolve", "tiny", "--backend", "cpu", "--catalog", "tiny.toml", "-q"]) == 0


def test_hostile_source_gives_a_valid_draft(tmp_path: Path, capsys: Capture) -> None:
    name = "a\\n[[recipe]]\\x1b[31m"
    setup = (
        f"Extension('{name}', ['{name}.cpp'])\nimport os\nos.getenv('{name}')\n"
        f"setup(name='tiny', version='1', setup_requires=['{name}', 'x @ file:///y'], "
        f"python_requires='>=3.*.*', install_requires=['torch>=2.*.*', 'numpy; {name}'])"
    )
    pyproject = (
        "[build-system]\nrequires = ['not valid']\nbuild-backend = 'b'\nbackend-path = ['../outside']\n"
    )
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "b.py").write_text("import outside_of_the_source")
    files = {"setup.py": setup, "pyproject.toml": pyproject}
    assert main(["catalog", "draft", str(write(tmp_path / "tiny", files))]) == 0
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert "'not valid', which is not a valid requirement" in output
    assert len(drafted()["recipe"]) == 2
    assert "outside_of_the_source" not in Path("tiny.toml").read_text()


@pytest.mark.parametrize("name", ["../../escaped", "two words", ""])
def test_invalid_name_is_rejected(name: str, tmp_path: Path, capsys: Capture) -> None:
    files = {"setup.py": f"setup(name={name!r}, version='1')"}
    assert main(["catalog", "draft", str(write(tmp_path / "tiny", files))]) == 2
    assert "does not state a valid name" in capsys.readouterr().err
    assert list(Path().iterdir()) == []


def test_cuda_only_source_has_no_recipe_for_the_cpu(tmp_path: Path) -> None:
    files = FILES | {
        "setup.py": "CUDAExtension('tiny.gpu', ['csrc/gpu.cu'])\nsetup(name='tiny', version='1')"
    }
    assert main(["catalog", "draft", str(write(tmp_path / "tiny", files))]) == 0
    document = drafted()
    assert "backend" not in document["release"][0]  # its default is ROCm alone
    assert [recipe["backend"] for recipe in document["recipe"]] == ["rocm"]


@pytest.mark.parametrize(
    ("files", "kind", "says"),
    [
        ({"setup.py": "from setuptools import setup\nsetup(name='tiny', version='1.0')\n", "tiny.py": ""},
         "pure", "no draft is needed"),
        (NATTEN | {"PKG-INFO": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"},
         "cuda", "does not compile for ROCm"),
    ],
    ids=["pure", "cuda"],
)  # fmt: skip
def test_draft_that_is_no_use_says_so(
    files: Mapping[str, str], kind: str, says: str, tmp_path: Path, capsys: Capture
) -> None:
    source = str(write(tmp_path / "tiny", files))
    assert main(["catalog", "draft", source]) == 0
    output = capsys.readouterr().out
    assert says in output
    assert "Complete tiny.toml" not in output
    assert main(["catalog", "draft", source, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["source"]["kind"] == kind


def test_kernels_without_hip_are_reported(tmp_path: Path, capsys: Capture) -> None:
    main(["catalog", "draft", str(write(tmp_path / "tiny", FILES | {"csrc/gpu.cu": ""}))])
    assert "whether the kernels compile for ROCm" in capsys.readouterr().out
    assert "# - whether the kernels compile for ROCm" in Path("tiny.toml").read_text()


def test_same_directory_gives_the_same_draft(project: Path) -> None:
    assert main(["catalog", "draft", str(project), "-q"]) == 0
    first = Path("tiny.toml").read_text()
    assert main(["catalog", "draft", str(project), "-q"]) == 0
    assert Path("tiny.toml").read_text() == first


def test_edited_file_is_not_replaced(project: Path, capsys: Capture) -> None:
    Path("tiny.toml").write_text("schema = 1\n")
    assert main(["catalog", "draft", str(project)]) == 2
    assert "Nothing was written" in capsys.readouterr().err
    assert Path("tiny.toml").read_text() == "schema = 1\n"


@pytest.mark.parametrize(
    ("source", "code", "message"),
    [
        ("no-such-project", 2, "No package index has a project 'no-such-project'"),
        ("wheels", 1, "wheels 2.0 has no sdist"),
        ("tiny>3", 2, "No release of tiny matches 'tiny>3'"),
        ("damaged", 1, "its archive cannot be read"),
        ("../damaged-1.0.tar.gz", 1, "Cannot unpack damaged-1.0.tar.gz"),
        ("./missing", 2, "'./missing' does not exist"),
        ("missing-1.0.tar.gz", 2, "'missing-1.0.tar.gz' does not exist"),
        ("../tiny-1.0-py3-none-any.whl", 2, "'../tiny-1.0-py3-none-any.whl' is not an sdist"),
        (".", 2, "is not a Python project"),
        ("https://host.invalid/page", 2, "is not the URL of a git repository"),
        ("git+https://host.invalid/a#subdirectory=b", 2, "names a subdirectory"),
        ("git+https://me:secret@host.invalid/a", 2, "The URL contains a login"),
        ("tiny[", 2, "is not a valid requirement"),
    ],
)
def test_bad_source(source: str, code: int, message: str, index: str, capsys: Capture) -> None:
    for name in ("damaged-1.0.tar.gz", "tiny-1.0-py3-none-any.whl"):
        Path("..", name).write_text("no archive")
    assert main(["catalog", "draft", source, "--index-url", index]) == code
    output = capsys.readouterr()
    assert message in output.err
    assert "Traceback" not in output.err
    assert list(Path().iterdir()) == []


@pytest.mark.slow
def test_catalog_learn_reads_sources(
    project: Path, index: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", index)
    for source in (str(project), "tiny==1.0"):
        assert main(["catalog", "learn", source, "--format", "json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert "[[release]]" in document["diff"]
        assert '+status = "observed"' in document["diff"]
        assert document["size"] == document["read"] > 0
        assert main(["catalog", "learn", source, "--apply", "-q"]) == 0
        assert main(["catalog", "check", "catalog/learned.toml"]) == 0
        Path("catalog/learned.toml").unlink()
        capsys.readouterr()


def test_catalog_learn_leaves_known_recipes_and_reports_differences(
    project: Path, tmp_path: Path, capsys: Capture
) -> None:
    seen = 'status = "observed"\nsource = "tests"\n'
    known = (
        f'schema = 1\n[[package]]\nname = "tiny"\ntitle = "Tiny"\n{seen}[[release]]\nversion = "1.0"\n{seen}'
        f'sdist = {{ file = "tiny-1.0.tar.gz", sha256 = "{"0" * 64}" }}\n'
        f'[[recipe]]\nbackend = "rocm"\ndeclared = ["torch"]\nundeclared = ["setuptools", "wheel"]\n{seen}'
    )
    write(tmp_path, {"known/tiny.toml": known})
    options = ["--catalog", str(tmp_path / "known"), "--format", "json"]
    assert main(["catalog", "learn", str(project), *options]) == 0
    document = json.loads(capsys.readouterr().out)
    assert "[[recipe]]" not in document["diff"]
    assert "[[release]]" not in document["diff"]
    remarks = "\n".join(document["remarks"])
    assert "names a different file or commit" in remarks
    assert "the source declares nothing; the recipe lists torch." in remarks
    assert "the build also needs ninja, packaging, which the recipe does not list." in remarks
