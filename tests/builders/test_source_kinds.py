"""What kind of source a source tree is. The texts are shortened from public sources that the names state."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.source_facts.reading import learn_source
from tests.support.elf import shared_object

if TYPE_CHECKING:
    from resolver.indexes import SourceClass

Files = dict[str, str]

NATTEN = {
    "setup.py": "import torch\nfrom setuptools import setup, Extension\n"
    "def build(ext):\n    subprocess.check_call(['cmake', ext.sourcedir])\n"
    "setup(name='natten', ext_modules=[Extension('natten.libnatten', sources=[])])",
    "csrc/CMakeLists.txt": "cmake_minimum_required(VERSION 3.20 FATAL_ERROR)\n"
    "project(natten LANGUAGES CXX CUDA)\nfind_package(CUDAToolkit 12.0 REQUIRED)\n",
    "src/natten/utils/device.py": "IS_ROCM = torch.version.hip is not None",
}
PYCUDA = {
    "setup.py": "def main():\n    setup(name='pycuda', ext_modules=[\n"
    "        ExtensionUsingNumpy('_driver', ['src/cpp/cuda.cpp', *EXTRA], libraries=LIBRARIES)])\nmain()",
    "src/cpp/cuda.cpp": "#include <cuda.hpp>\n",
    "src/cpp/cuda.hpp": "#ifndef SEEN_CUDA_HPP\n\n#define SEEN_CUDA_HPP\n#include <cuda.h>\n#endif\n",
}
OPENEQUIVARIANCE = {
    "pyproject.toml": "[build-system]\nrequires=[]\nbuild-backend='scikit_build_core.build'",
    "CMakeLists.txt": "project(ext)\ninclude(FetchContent)\nFetchContent_Declare(libtorch\n  URL a)",
}
TORCHSORT = {
    "setup.py": "import torch\nfrom torch.utils import cpp_extension\n"
    "def ext_modules():\n"
    "    extensions = [cpp_extension.CppExtension('torchsort.isotonic_cpu', sources=['a.cpp'])]\n"
    "    if cuda_toolkit_available():\n"
    "        extensions.append(cpp_extension.CUDAExtension('torchsort.isotonic_cuda', sources=['a.cu']))\n"
    "    return extensions\nsetup(name='torchsort', ext_modules=ext_modules())",
    "a.cpp": "",
    "a.cu": "#include <mma.h>\n",
}
DBSCAN_TORCH = {
    "setup.py": "from torch.utils.cpp_extension import CppExtension, CUDAExtension\n"
    "kernels = ['a.cu'] if WITH_CUDA else []\nKind = CUDAExtension if WITH_CUDA else CppExtension\n"
    "setup(ext_modules=[Kind(name='dbscan_torch._C', sources=['a.cpp'] + kernels)])",
    "a.cpp": "",
    "a.cu": "#include <cuda_runtime.h>\n",
}
HAMMING_SIM = {
    "pyproject.toml": "[tool.poetry.build]\nscript='scripts/build_extension.py'\n"
    "[build-system]\nrequires=['poetry-core']\nbuild-backend='poetry.core.masonry.api'",
    "scripts/build_extension.py": "from torch.utils.cpp_extension import CppExtension\n"
    "extension = CppExtension('hamming_sim._C', ['a.cpp'])",
    "a.cpp": "",
}
ONE_HEADER = {
    "setup.py": "from torch.utils.cpp_extension import CppExtension\n"
    "setup(ext_modules=[CppExtension('a._C', ['a.cpp'])])",
    "a.cpp": 'void pause() { asm volatile("pause"); }',
}
TORCHANI = {
    "setup.py": "def setup_kwargs():\n    if not os.getenv('TORCHANI_BUILD_EXT'):\n        return {}\n"
    "    from torch.utils.cpp_extension import CUDAExtension\n"
    "    return {'ext_modules': [CUDAExtension(**cuaev_kwargs)]}\nsetup(**setup_kwargs())",
}
VESIN_TORCH = {
    "setup.py": "class sdist_with_lib(sdist):\n    def run(self):\n        urlretrieve(URL)\n"
    "setup(ext_modules=[Extension('vesin_torch', [])], cmdclass={'sdist': sdist_with_lib})",
}
IHM = {"setup.py": "setup(name='ihm', ext_modules=[Extension('ihm._format', ['src/a.c'])])", "src/a.c": ""}
ONE_KERNEL = (
    "from torch.utils.cpp_extension import CUDAExtension\n"
    "setup(ext_modules=[CUDAExtension('a._C', ['a.cu'])])"
)
KINDS: list[tuple[str, Files, str]] = [
    ("cuda", NATTEN, "csrc/CMakeLists.txt:2 requires the language CUDA"),
    ("cuda", PYCUDA, "_driver is compiled from src/cpp/cuda.hpp:4, which includes cuda.h"),
    ("cuda", {"setup.py": "if torch.version.cuda is None:\n    raise E\n" + ONE_KERNEL}, "setup.py:1"),
    ("cuda", {"setup.py": "assert CUDA_HOME is not None\n" + ONE_KERNEL}, "setup.py:1 stops"),
    ("cuda", {"setup.py": ONE_KERNEL, "a.cu": 'void f() { asm volatile("x"); }'}, "a.cu:1, which has PTX"),
    ("cuda", {"setup.py": ONE_KERNEL, "a.cu": '#include "b.h"', "b.h": "#include <cutlass/a.h>"}, "b.h:1"),
    ("cuda", {"setup.py": ONE_KERNEL, "a.cu": "#include <device_launch_parameters.h>"}, "device_launch"),
    ("torch", TORCHSORT, "setup.py:1 imports torch, which the source does not declare; setup.py:4 defines"),
    ("torch", DBSCAN_TORCH, "setup.py:1 imports torch, which the source does not declare; setup.py:4"),
    ("torch", HAMMING_SIM, "scripts/build_extension.py:1 imports torch"),
    ("torch", ONE_HEADER, "setup.py:1 imports torch"),
    ("torch", TORCHANI, "setup.py:4 imports torch, which the source does not declare; setup.py:5"),
    ("compiled", VESIN_TORCH, "setup.py:4 defines vesin_torch (Extension)"),
    ("torch", {"setup.py": ONE_KERNEL, "a.cu": "#include <cuda_runtime.h>\n"}, "setup.py:1 imports torch"),
    ("compiled", IHM, "setup.py:1 defines ihm._format (Extension)"),
    ("downloads", OPENEQUIVARIANCE, "CMakeLists.txt:3 downloads files"),
    ("downloads", {"setup.py": "urlretrieve('https://x.org/a')\n" + IHM["setup.py"]}, "setup.py:1"),
    ("downloads", {"setup.py": "os.system('git clone https://x.org/a')\nsetup()"}, "setup.py:1"),
    ("pure", {"setup.py": "import docopt\nsetup(name='docopt')", "docopt.py": "x = 1"}, "no extension"),
    ("pure", {"pyproject.toml": "[build-system]\nbuild-backend='hatchling.build'\nrequires=[]"}, "hatchling"),
    ("placeholder", {"setup.py": "setup()", "kaolin/__init__.py": "raise E"}, "kaolin/__init__.py only"),
    ("unread", {"setup.py": "print 'Python 2'"}, "setup.py is not valid for Python"),
]  # fmt: skip


def kind_of(top: Path, files: Files) -> SourceClass:
    for name, text in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return learn_source(top).source


@pytest.mark.parametrize(("kind", "files", "evidence"), KINDS)
def test_kind_and_its_evidence(tmp_path: Path, kind: str, files: Files, evidence: str) -> None:
    source = kind_of(tmp_path, files)
    assert source.kind == kind
    assert evidence in source.evidence


@pytest.mark.parametrize(("needed", "kind"), [(("libtorch_cuda.so",), "cuda"), (("libc10.so",), "pure")])
def test_prebuilt_objects_decide_if_nothing_is_compiled(
    tmp_path: Path, needed: tuple[str, ...], kind: str
) -> None:
    """As in lietorch: its sdist has a library that its authors compiled."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/liblietorch.so").write_bytes(shared_object(needed=needed))
    assert kind_of(tmp_path, {"setup.py": "setup(package_data={'lietorch': ['lib/*']})"}).kind == kind


CUDA_LINES = {
    "setup.py": ("raise RuntimeError", "if {}:\n    {}"),
    "CMakeLists.txt": ("enable_language(CUDA)", "if({})\n  {}\nendif()"),
    "a.cu": ('asm volatile("x");', "#if {}\n{}\n#endif"),
}


@given(st.sampled_from(sorted(CUDA_LINES)), st.sampled_from(["X", "WITH_CUDA", "A == 1"]), st.integers(0, 2))
def test_what_a_condition_decides_never_makes_a_source_for_cuda_only(
    tmp_path_factory: pytest.TempPathFactory, file: str, condition: str, depth: int
) -> None:
    """The same line is evidence at the top level, and none in a condition, however deep."""
    line, block = CUDA_LINES[file]
    gate = "if torch.version.cuda is None:\n    raise RuntimeError" if file == "setup.py" else line
    for _ in range(depth):
        indented = gate.replace("\n", "\n    ") if file == "setup.py" else gate
        gate = block.format(condition, indented)
    files = {"setup.py": ONE_KERNEL, "a.cu": "", "CMakeLists.txt": "project(a CXX)\n"}
    files["setup.py"] += "\nsubprocess.run(['cmake', '.'])\n"
    files[file] += f"\n{gate}\n"
    assert (kind_of(tmp_path_factory.mktemp("source"), files).kind == "cuda") == (depth == 0)


@pytest.mark.parametrize("kind_files", [files for kind, files, _ in KINDS if kind == "cuda"])
def test_source_whose_build_files_name_rocm_is_never_for_cuda_only(tmp_path: Path, kind_files: Files) -> None:
    files = {**kind_files, "setup.py": f"# torch.version.hip\nROCM = 1\n{kind_files['setup.py']}"}
    assert kind_of(tmp_path, files).kind != "cuda"


@pytest.mark.parametrize("variable", ["CUDA_HOME", "FORCE_CUDA", "PATH", "PYTHONPATH"])
def test_kind_does_not_depend_on_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    before = [kind_of(tmp_path / str(number), files) for number, (_, files, _) in enumerate(KINDS)]
    monkeypatch.setenv(variable, str(tmp_path))
    assert before == [learn_source(tmp_path / str(number)).source for number in range(len(KINDS))]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("CMakeLists.txt", "a(\n" * 200_000),
        ("a.cu", "/*" * 500_000),
        ("a.cu", "#ifndef A\n" * 100_000),
        ("a.cu", "asm" + " " * 1_000_000),
    ],
)
def test_strange_text_takes_little_time(tmp_path: Path, file: str, text: str) -> None:
    files = {"setup.py": f"{ONE_KERNEL}\nsubprocess.run(['cmake', '.'])", "a.cu": "", file: text}
    before = time.process_time()
    kind_of(tmp_path, files)
    assert time.process_time() - before < 5
