"""Facts are learned from source trees without executing code."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from builders.source_facts.build_script import read_script
from builders.source_facts.facts import SourceFacts
from builders.source_facts.reading import has_extensions, learn_source
from builders.source_facts.recipe_draft import draft_recipes
from resolver.errors import UsageError
from resolver.facts.schema import Recipe

Learn = Callable[..., SourceFacts]


@pytest.fixture
def learn(tmp_path: Path) -> Learn:
    """Write files into a directory, and return the facts learned from it; `a__b_py` is ``a/b.py``."""

    def write(setup: str = "", **files: str) -> SourceFacts:
        texts = {"setup.py": setup} if setup else {}
        for name, text in files.items():
            texts[name if "." in name else name.replace("__", "/").replace("_py", ".py")] = text
        for name, text in texts.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        facts = learn_source(tmp_path)
        assert has_extensions(tmp_path) is facts.compiles
        return facts

    return write


def test_nothing_is_executed(learn: Learn, tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    facts = learn(f"open({str(marker)!r}, 'w')\nimport torch\nfrom setuptools import setup\nsetup()")
    assert facts.torch == ("setup.py:2",)
    assert not marker.exists()


def test_torch_is_found_in_local_modules_and_below_conditions(learn: Learn) -> None:
    facts = learn(
        "from tools import helper\nhelper.run()",
        tools__helper_py="import os\ndef run():\n    if os.getenv('X'):\n        import torch\n",
    )
    assert facts.read == ("setup.py", "tools/helper.py")
    assert facts.torch == ("tools/helper.py:4",)
    assert "torch" in facts.undeclared


def test_modules_on_a_search_path_that_the_script_sets(learn: Learn) -> None:
    facts = learn(
        "import os, sys\nhere = os.path.dirname(__file__)\n"
        "sys.path.insert(0, os.path.join(here, 'install'))\nimport helper",
        **{"install/helper/__init__.py": "import helper.other", "install/helper/other.py": "import torch"},
    )
    assert facts.read == ("setup.py", "install/helper/__init__.py", "install/helper/other.py")
    assert facts.undeclared == ("setuptools", "wheel", "torch")


def test_modules_that_the_build_does_not_need_are_not_read(learn: Learn) -> None:
    facts = learn(
        "def build():\n    import helper\n"
        "try:\n    import plain\nexcept ImportError:\n    import whole.package",
        **{
            "helper.py": "def later():\n    import whole",
            "whole/__init__.py": "import pandas",
            "whole/package.py": "",
            "plain.py": "",
        },
    )
    assert facts.read == ("setup.py", "helper.py")
    assert facts.undeclared == ("setuptools", "wheel")


def test_backend_in_the_source_is_read(learn: Learn, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[build-system]\nrequires = ['setuptools']\nbuild-backend = 'own.backend'\nbackend-path = ['tools']\n"
    )
    facts = learn(tools__own__backend_py="import torch, packaging")
    assert facts.backend == "own.backend"
    assert facts.torch == ("tools/own/backend.py:1",)
    assert facts.undeclared == ("torch", "packaging")


def test_undeclared_requirements(learn: Learn, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[build-system]\nrequires = ['setuptools>=60', 'numpy']\n")
    facts = learn(
        "import os, sys, numpy, packaging.version, own\n"
        "from torch.utils.cpp_extension import BuildExtension\n"
        "import pkg_resources\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import never\n"
        "try:\n    import Cython\nexcept ImportError:\n    pass\n"
        "try:\n    import yaml\nexcept ImportError:\n    raise SystemExit('install it')\n"
        "from setuptools import setup\nsetup(setup_requires=['pybind11>=2'])\n",
        own_py="import tqdm",
    )
    assert facts.declared == ("setuptools>=60", "numpy")
    required = ["pybind11>=2", "packaging", "torch", "setuptools<82", "pyyaml", "tqdm", "ninja"]
    assert sorted(facts.undeclared) == sorted(required)
    assert facts.optional == ("cython",)


@pytest.mark.parametrize(
    ("setuptools", "undeclared"), [("setuptools==67.4", ("wheel",)), ("setuptools>=60", ())]
)
def test_old_setuptools_needs_wheel(setuptools: str, undeclared: tuple[str, ...], learn: Learn) -> None:
    facts = learn(**{"pyproject.toml": f"[build-system]\nrequires = ['{setuptools}']\n"})
    assert facts.undeclared == undeclared


def test_extensions_with_names_and_sources(learn: Learn) -> None:
    facts = learn(
        "import os\nfrom torch.utils import cpp_extension\n"
        "here = os.path.dirname(os.path.abspath(__file__))\npackage = 'pack'\n"
        "class CMakeExtension(Extension):\n"
        "    def __init__(self, name):\n        Extension.__init__(self, name, sources=[])\n"
        "sources = [os.path.join(here, 'csrc', 'a.cpp'), 'csrc/b.cu']\n"
        "setup(ext_modules=[\n"
        "    cpp_extension.CUDAExtension(f'{package}._C', sources),\n"
        "    CppExtension(name='pack.' + 'cpu', sources=['csrc/a.cpp']),\n"
        "    Extension(compute(), []),\n"
        "    CMakeExtension('pack.cmake')], cmdclass={'build_ext': cpp_extension.BuildExtension})\n",
        **{"csrc/a.cpp": ""},
    )
    assert [(extension.kind, extension.name) for extension in facts.extensions] == [
        ("CUDAExtension", "pack._C"),
        ("CppExtension", "pack.cpu"),
        ("Extension", ""),
        ("CMakeExtension", "pack.cmake"),
    ]
    assert facts.missing == ("csrc/b.cu",)
    assert facts.files == {".cpp": 1}
    assert "the name of the Extension at setup.py:12, which is computed" in facts.undetermined
    assert facts.without_cpu_path == ""


@pytest.mark.parametrize(
    ("script", "names"),
    [
        ("setup(ext_package='pesq', ext_modules=[Extension('cypesq', ['a.c'])])", ["pesq.cypesq"]),
        ("setup(ext_package='trt_pose', ext_modules=[CppExtension('plugins', [])])", ["trt_pose.plugins"]),
        ("setup(ext_package=find(), ext_modules=[Extension('a', [])])", [""]),
        (
            (
                "def get_cuda_extension():\n    return CUDAExtension('ds_splat_cuda', ['a.cu'])\n"
                "setup(ext_modules=[get_cuda_extension()])"
            ),
            ["ds_splat_cuda"],
        ),
        (
            (
                "def add_cpp_extension():\n    EXTENSIONS.append(CppExtension('openpifpaf._cpp', []))\n"
                "add_cpp_extension()\nsetup(ext_modules=EXTENSIONS)"
            ),
            ["openpifpaf._cpp"],
        ),
        (
            (
                "def make_extension(name):\n    return CUDAExtension(name=f'a.{name}')\n"
                "setup(ext_modules=[make_extension('b')])"
            ),
            [""],
        ),
        (
            (
                "def make_cuda_ext(name, module):\n    return CUDAExtension(name='%s.%s' % (module, name))\n"
                "setup(ext_modules=[make_cuda_ext(name='iou3d_nms_cuda', module='pcdet.ops')])"
            ),
            ["", ""],
        ),
    ],
)
def test_full_names_of_extensions(script: str, names: list[str], learn: Learn) -> None:
    assert [extension.name for extension in learn(script).extensions] == names


def test_extension_class_chosen_at_run_time_has_a_cpu_path(learn: Learn) -> None:
    facts = learn("extension = CUDAExtension if cuda else CppExtension\nextension('x._C', [])")
    assert facts.extensions[0].kind == "CUDAExtension or CppExtension"
    assert facts.without_cpu_path == ""


def test_extension_class_that_is_assigned_twice(learn: Learn) -> None:
    facts = learn(
        "kind, files = CUDAExtension, ['a.cu']\nif cpu:\n    kind, files = CppExtension, []\n"
        "modules = []\nmodules.append(kind('own', files))\n"
        "Extension = CppExtension\nmodules.append(Extension('plain', []))\nsetup(ext_modules=modules)"
    )
    assert [(row.kind, row.name) for row in facts.extensions] == [
        ("CUDAExtension or CppExtension", "own"),
        ("CppExtension", "plain"),
    ]
    assert [row.name for row in facts.architectures] == ["PYTORCH_ROCM_ARCH"]


def test_extension_class_that_a_function_returns(learn: Learn) -> None:
    facts = learn(
        "from torch.utils.cpp_extension import CUDAExtension, CppExtension\n"
        "kind, name = choose()\nsetup(ext_modules=[kind(name=name, sources=[])])"
    )
    (extension,) = facts.extensions
    assert (extension.kind, extension.name) == ("CUDAExtension or CppExtension", "")


def test_extension_modules_that_are_computed(learn: Learn) -> None:
    facts = learn("setup(ext_modules=modules())")
    assert facts.compiles
    assert any("ext_modules is computed" in gap for gap in facts.undetermined)


def test_only_cuda_extensions_have_no_cpu_path(learn: Learn) -> None:
    facts = learn("CUDAExtension('x._C', [])")
    assert facts.without_cpu_path == "all its extensions are CUDAExtension"
    assert [(row.name, row.where) for row in facts.architectures] == [
        ("PYTORCH_ROCM_ARCH", "torch.utils.cpp_extension")
    ]


def test_variables_with_defaults(learn: Learn) -> None:
    facts = learn(
        "import os\nfrom os import environ, getenv\n"
        "archs = os.environ.get('GPU_ARCHS', 'native')\n"
        "getenv('PYTORCH_ROCM_ARCH')\nenviron['PLAIN']\n"
        "if 'FLAG' in os.environ: pass\n"
        "os.getenv('FORCE_CUDA', '0')\nos.environ['CC'] = 'g++'\nos.getenv(prefix + 'X')\n"
    )
    assert [(row.name, row.default) for row in facts.architectures] == [
        ("GPU_ARCHS", "'native'"),
        ("PYTORCH_ROCM_ARCH", ""),
    ]
    names = [(row.name, row.default, row.where) for row in facts.flags]
    assert names == [
        ("PLAIN", "", "setup.py:5"),
        ("FLAG", "", "setup.py:6"),
        ("FORCE_CUDA", "'0'", "setup.py:7"),
    ]
    assert facts.sets == ("CC",)
    assert "setup.py:9 reads an environment variable whose name it computes" in facts.undetermined


def test_cmake_files_count_if_the_build_calls_cmake(learn: Learn) -> None:
    cmake = (
        "cmake_minimum_required(VERSION 3.1)\nproject(x LANGUAGES CXX CUDA)  # enable_language(HIP)\n"
        'find_package(Torch REQUIRED)\noption(FAST "speed" ON)\n'
        "set(CMAKE_HIP_ARCHITECTURES $ENV{OWN_ARCH})\nFetchContent_Declare(y)\n"
    )
    files = {"CMakeLists.txt": cmake, "third_party/z/CMakeLists.txt": 'option(NOT_OURS "" ON)'}
    assert not learn("from setuptools import setup", **files).cmake.files
    facts = learn("import subprocess\nsubprocess.check_call(['cmake', '.'])", **files)
    assert facts.cmake.files == ("CMakeLists.txt",)
    assert facts.builds_with_torch
    assert facts.undeclared == ("setuptools", "wheel", "torch", "cmake<4")
    assert [row.name for row in facts.architectures] == ["CMAKE_HIP_ARCHITECTURES"]
    assert [(row.name, row.default) for row in facts.flags] == [("OWN_ARCH", ""), ("FAST", "ON")]
    assert facts.without_cpu_path == "its CMake project requires CUDA"
    assert "the files that the build downloads: a build has no network" in facts.undetermined


def test_submodules_without_files(learn: Learn) -> None:
    facts = learn(
        "setup()",
        **{
            ".gitmodules": '[submodule "a"]\n\tpath = lib/a\n\turl = x\n[submodule "b"]\n\tpath = lib/b\n',
            "lib/b/k.cu": "",
        },
    )
    assert facts.submodules == {"lib/a": False, "lib/b": True}


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({"PKG-INFO": "Metadata-Version: 2.1\nName: Own_Name\nVersion: 1.2\n"}, "1.2"),
        ({"setup.py": "version = '1.3'\nsetup(name='own-name', version=version)"}, "1.3"),
        ({"setup.cfg": "[metadata]\nname = own_name\nversion = 1.4\n"}, "1.4"),
        ({"pyproject.toml": "[project]\nname = 'own.name'\nversion = '1.5'\n"}, "1.5"),
        (
            {
                "setup.py": "setup(name='own_name', version=read())",
                "own_name/_version.py": "__version__ = '1.6'",
            },
            "1.6",
        ),
        ({"setup.py": "setup(name='own_name', version=read())"}, ""),
        ({"setup.py": "setup(name='own_name', use_scm_version=True)"}, ""),
        ({"setup.py": "setup(name='own_name', **more)"}, ""),
        ({"setup.py": "setup(name='own_name')"}, "0.0.0"),
    ],
)
def test_name_and_version(files: dict[str, str], version: str, tmp_path: Path) -> None:
    for name, text in ({"setup.py": ""} | files).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    facts = learn_source(tmp_path)
    assert (facts.name, facts.version) == ("own-name", version)


@pytest.mark.parametrize("text", ["print 'Python 2'", "x = " + "(" * 300 + ")" * 300, "\0"])
def test_unreadable_script_is_reported(text: str, learn: Learn) -> None:
    facts = learn(text)
    assert any(reason.startswith("setup.py") for reason in facts.undetermined)


def test_extensions_and_requirements_in_configuration_files(learn: Learn) -> None:
    facts = learn(
        **{
            "pyproject.toml": "[build-system]\nrequires = ['setuptools']\n[tool.setuptools]\n"
            "ext-modules = [{name = 'own.core', sources = ['core.c']}]\n",
            "setup.cfg": "[options]\ninstall_requires =\n    torch>=2\n    numpy\npython_requires = >=3.9\n",
        }
    )
    assert [(row.name, row.kind) for row in facts.extensions] == [("own.core", "ext-modules")]
    assert facts.missing == ("core.c",)
    assert facts.requires == ("torch>=2", "numpy")
    assert facts.requires_python == ">=3.9"
    assert facts.compiles


@pytest.mark.parametrize(
    ("sources", "missing"), [("csrc/**.cu", ()), ("csrc/**/*.cu", ()), ("other/**.cu", ("other/**.cu",))]
)
def test_patterns_of_sources(sources: str, missing: tuple[str, ...], learn: Learn) -> None:
    text = "import glob\nfrom torch.utils.cpp_extension import CUDAExtension\n"
    facts = learn(f"{text}CUDAExtension('a._C', glob.glob('{sources}'))", **{"csrc/op.cu": ""})
    assert facts.missing == missing


def test_invalid_values_in_a_source_are_ignored(learn: Learn) -> None:
    table = "[[tool.setuptools.ext-modules]]\nname = 'a._C'\nsources = 5\n"
    facts = learn(
        "from setuptools import setup\nsetup(name='a', version='}'.format(), description='{'.format(1))",
        **{"pyproject.toml": table},
    )
    assert [(row.name, row.sources) for row in facts.extensions] == [("a._C", ())]
    assert (facts.version, facts.summary) == ("", "")


def test_pure_python_compiles_nothing(learn: Learn) -> None:
    facts = learn("from setuptools import setup\nsetup(name='plain', version='1', python_requires='>=3.8')")
    assert not facts.compiles
    assert not facts.builds_with_torch
    assert facts.requires_python == ">=3.8"
    assert not facts.undetermined


def test_directory_that_is_no_project_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a Python project"):
        learn_source(tmp_path)


DOUBLING = {
    "addition": "{0} + {0}",
    "f-string": 'f"{{{0}}}{{{0}}}"',
    "path": "os.path.join({0}, {0})",
    "format": '"{{}}{{}}".format({0}, {0})',
    "list": "[{0}, {0}, glob({0})]",
    "call": "sorted({0}, {0})",
}


@pytest.mark.parametrize("form", DOUBLING.values(), ids=DOUBLING)
def test_names_that_refer_to_each_other_many_times_are_not_followed_forever(form: str) -> None:
    lines = ["a0 = 'x.cu'", *(f"a{n} = {form.format(f'a{n - 1}')}" for n in range(1, 20))]
    lines.append(
        "setup(name=a19, version=a18, ext_modules=[CUDAExtension(a17, a19), Extension('b', sources=a16)])"
    )
    start = time.process_time()
    script = read_script("\n".join(lines), "setup.py")
    assert time.process_time() - start < 2
    assert len(str(script)) < 1_000_000
    assert len(script.extensions) == 2


COMPREHENDED = {
    "a path": "sources=[str(HERE / 'src' / name) for name in FILES]",
    "os.path": "sources=[os.path.join('src', name) for name in FILES]",
    "a formatted text": "sources=[f'src/{name}' for name in FILES]",
    "a sum": "sources=['src/' + name for name in FILES]",
    "beside others": "sources=[*[str(HERE / 'src' / name) for name in FILES], 'bind.cpp']",
    "a generator": "sources=list('src/' + name for name in FILES)",
    "a table": "sources=[str(HERE / 'src' / name) for name in TABLE[target][1]]",
    "a known item of a table": "sources=[str(HERE / 'src' / name) for name in TABLE['gpu'][1]]",
    "nested": "sources=[str(name) for name in [HERE / 'src' / name for name in FILES]]",
}


@pytest.mark.parametrize("sources", COMPREHENDED.values(), ids=COMPREHENDED)
def test_sources_of_a_comprehension_keep_their_directory(learn: Learn, sources: str) -> None:
    facts = learn(
        "import os, sys\nfrom pathlib import Path\nfrom setuptools import Extension, setup\n"
        "HERE = Path(os.path.dirname(__file__)).absolute()\ntarget = sys.argv[1]\n"
        "FILES = ['a.cpp', 'b.cpp']\n"
        "TABLE = {'gpu': [1, ['a.cpp', 'b.cpp'], ['bind.cpp']], 'cpu': [2, ['a.cpp'], ['bind.cpp']]}\n"
        f"setup(name='x', ext_modules=[Extension('x._C', {sources})])\n",
        **{"src/a.cpp": "", "src/b.cpp": "", "bind.cpp": ""},
    )
    (extension,) = facts.extensions
    assert {"src/a.cpp", "src/b.cpp"} <= {*extension.sources}
    assert facts.missing == ()


@pytest.mark.parametrize(
    "sources",
    [
        "[os.path.join(unknown(), 'a.cpp')]",
        "[f'{unknown()}/a.cpp']",
        "[unknown() + 'a.cpp']",
        "[unknown() / 'a.cpp']",
        "['%s/a.cpp' % unknown()]",
        "[name for name in ['a.cpp'] if unknown(name)]",
        "[unknown(a) + b for a in ['a.cpp'] for b in ['b.cpp']]",
    ],
)
def test_parts_of_unknown_paths_are_not_missing_files(learn: Learn, sources: str) -> None:
    facts = learn(
        "import os\nfrom tools import unknown\nfrom setuptools import Extension, setup\n"
        f"setup(name='x', ext_modules=[Extension('x._C', sources={sources})])\n"
    )
    assert facts.missing == ()


def test_missing_files_of_a_comprehension_are_reported(learn: Learn) -> None:
    facts = learn(
        "from setuptools import Extension, setup\n"
        "names = ['a.cpp', 'b.cpp']\n"
        "setup(name='x', ext_modules=[Extension('x._C', sources=['src/' + name for name in names])])\n",
        **{"src/a.cpp": ""},
    )
    assert facts.missing == ("src/b.cpp",)


def drafted_for_rocm(facts: SourceFacts) -> Recipe:
    """Return the recipe for ROCm that is drafted from a source."""
    return next(recipe for recipe in draft_recipes(facts, "p.tar.gz") if recipe.backend == "rocm")


@pytest.mark.parametrize(
    ("optional", "expected"),
    [
        ((), ("p/core*.so",)),
        (("p.gpu",), ("p/core*.so", "p/gpu*.so")),
        (("p.gpu", "p.gpu"), ("p/core*.so", "p/gpu*.so")),
        (("p.gpu", "p.hopper"), ("p/core*.so",)),
    ],
)
def test_of_several_optional_extensions_none_must_be_in_the_wheel(
    learn: Learn, optional: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    """A script that names one in both branches of a condition has only one."""
    lines = [
        f"if os.getenv('X{n}'):\n    more.append(CUDAExtension('{name}', ['a.cu']))"
        for n, name in enumerate(optional)
    ]
    facts = learn(
        "import os\nfrom setuptools import setup\nfrom torch.utils.cpp_extension import CUDAExtension\n"
        "more = [CUDAExtension('p.core', ['a.cu'])]\n"
        + "\n".join(lines)
        + "\nsetup(name='p', ext_modules=more)",
        **{"a.cu": ""},
    )
    assert drafted_for_rocm(facts).must_contain == expected


def test_extensions_that_another_build_system_may_leave_out_are_not_demanded(learn: Learn) -> None:
    """Horovod names an extension without sources for each framework, and CMake builds some of them."""
    facts = learn(
        "torch_lib = Extension('horovod.torch.mpi_lib_v2', [])\n"
        "tensorflow_lib = Extension('horovod.tensorflow.mpi_lib', sources=[])\n"
        "setup(name='horovod', ext_modules=[torch_lib, tensorflow_lib])"
    )
    assert [recipe.must_contain for recipe in draft_recipes(facts, "horovod.tar.gz")] == [("*.so",)] * 2


@pytest.mark.parametrize(
    ("condition", "cpu"),
    [
        ("call(['nvcc']) == 0", ()),
        ("toolkit_of_cuda()", ()),
        ("torch.cuda.is_available() and not os.getenv('NO_GPU')", ()),
        ("not torch.cuda.is_available()", ("fast*.so",)),
        ("CUDA_HOME is None", ("fast*.so",)),
        ("os.getenv('WITH_FAST')", ("fast*.so",)),
    ],
)
def test_extension_that_only_a_gpu_gets_is_not_demanded_for_the_cpu(
    learn: Learn, condition: str, cpu: tuple[str, ...]
) -> None:
    facts = learn(
        f"more = []\nif {condition}:\n    more.append(CppExtension('fast', ['fast.cc']))\n"
        "setup(name='p', ext_modules=more)",
        **{"fast.cc": ""},
    )
    assert facts.extensions[0].condition
    demanded = {recipe.backend: recipe.must_contain for recipe in draft_recipes(facts, "p.tar.gz")}
    assert demanded == {"rocm": ("fast*.so",), "cpu": cpu}


@pytest.mark.parametrize(
    ("kernel", "environment"),
    [
        ("", {"PYTORCH_ROCM_ARCH": "{gfx}"}),
        ("// HIP: __HIP_PLATFORM_AMD__", {"PYTORCH_ROCM_ARCH": "{gfx}", "GPU_ARCH": "{gfx}"}),
    ],
)
def test_architectures_of_a_source_without_rocm_are_those_of_cuda(
    learn: Learn, kernel: str, environment: dict[str, str]
) -> None:
    """As spatial-correlation-sampler 0.5.0: what it reads becomes `-gencode arch=compute_...`."""
    facts = learn(
        "import os\nfrom setuptools import setup\nfrom torch.utils.cpp_extension import CUDAExtension\n"
        "archs = os.environ.get('GPU_ARCH', '').split()\n"
        "setup(name='p', ext_modules=[CUDAExtension('p', ['a.cu'])])",
        **{"a.cu": kernel},
    )
    assert drafted_for_rocm(facts).environment == environment


def test_compiler_that_a_script_passes_to_nvcc_is_not_set(learn: Learn) -> None:
    """As chamferdist 1.0.3 and pytorch3d: `-ccbin` and the value of CC."""
    facts = learn(
        "import os\nfrom setuptools import setup\nfrom torch.utils.cpp_extension import CUDAExtension\n"
        "CC = os.environ.get('CC')\n"
        "flags = [f'-ccbin={CC}'] if CC is not None else []\n"
        "setup(name='p', ext_modules=[CUDAExtension('p', ['a.cu'], extra_compile_args={'nvcc': flags})])",
        **{"a.cu": ""},
    )
    assert drafted_for_rocm(facts).environment["CC"] == ""
