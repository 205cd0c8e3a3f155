"""Probe an installed wheel: the replies of the script, and the findings about them."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from builders.containers.runtime import HostRuntime, View
from builders.findings import Finding
from builders.probe import payload
from builders.probe.ask import (
    FrameworkReply,
    LoadReply,
    WheelMetadata,
    WheelReply,
    ask,
    parse_reply,
    wheel_question,
)
from builders.probe.wheel import judge_wheel
from resolver.errors import MatrixError
from resolver.facts.schema import Recipe
from tests.support.errors import has_id

STAND_IN = """__version__ = "2.9.1"  # a stand-in for torch
class version: hip = None
class cuda: device_count = staticmethod(lambda: 0)
"""
IMPORTED_AFTER_TORCH = """
#include <Python.h>
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "tiny_C", 0, -1, 0};
PyMODINIT_FUNC PyInit_tiny_C(void) {
    PyObject *torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
    if (!torch) { PyErr_SetString(PyExc_ImportError, "libc10.so: cannot open"); return 0; }
    return PyModule_Create(&definition);
}
"""
FORGED = 'rocm-matrix-probe: 41 {"distribution": null, "torch": {"version": "1"}}'
TORCH = FrameworkReply("2.9.1+rocm6.4", "6.4.43482")
HERE = WheelMetadata("tiny", "1.0", ["tiny", "tiny_C"])


def recipe(**fields: Any) -> Recipe:
    given = {"package": "tiny", "backend": "rocm", "status": "observed", "source": "a test", **fields}
    return Recipe(**given)


def reply(**fields: Any) -> WheelReply:
    return WheelReply(**({"distribution": HERE, "torch": TORCH} | fields))


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1
    return findings[0]


# --- judging a reply ----------------------------------------------------------------------------------


def test_loaded_module_is_info() -> None:
    loads = [LoadReply("tiny", "/x/tiny/__init__.py")]
    findings = judge_wheel(reply(imports=loads, objects=[LoadReply("tiny_C*.so", "/x/tiny_C.so")]), recipe())
    assert [(finding.id, finding.severity) for finding in findings] == [
        ("probe-import", "info"),
        ("probe-object", "info"),
    ]
    assert findings[1].evidence == {"member": "/x/tiny_C.so"}


def test_object_is_named_if_its_pattern_has_several() -> None:
    missing = "libblas.so.3: cannot open shared object file"
    objects = [
        LoadReply("tiny/*.so", "/x/tiny/a.so"),
        LoadReply("tiny/*.so", "/x/tiny/b.so", error="OSError", text=missing),
    ]
    messages = {finding.message for finding in judge_wheel(reply(objects=objects), recipe())}
    assert messages == {"tiny/a.so: loads", f"tiny/b.so: fails with OSError: {missing}"}


@pytest.mark.parametrize(
    "load",
    [
        LoadReply(
            "tiny", error="ImportError", text="libamdhip64.so.6: cannot open shared object file: No such file"
        ),
        LoadReply(
            "tiny", error="OSError", text="librocblas.so.4: cannot open shared object file: No such file"
        ),
        LoadReply("tiny", error="RuntimeError", text="No HIP GPUs are available"),
        LoadReply("tiny", error="RuntimeError", text="0 active drivers ([]). There should only be one."),
        LoadReply("tiny", error="ModuleNotFoundError", text="No module named 'hjson'", missing="hjson"),
    ],
    ids=lambda load: load.text[:20],
)
def test_failure_without_gpu_is_not_judged(load: LoadReply) -> None:
    findings = only(judge_wheel(reply(imports=[load]), recipe()))
    assert (findings.id, findings.severity) == ("probe-not-judged", "warning")
    assert "not judged" in findings.message
    assert findings.fix == "Run `matrix check --run` on a GPU node."


@pytest.mark.parametrize("rebuild", ["", "Build it again."])
@pytest.mark.parametrize(
    ("module", "requirement"),
    [("pkg_resources", "`setuptools<82`"), ("cgi", "`legacy-cgi`"), ("distutils.version", "`setuptools`")],
)
def test_module_that_setuptools_or_python_no_longer_has_names_what_brings_it_back(
    module: str, requirement: str, rebuild: str
) -> None:
    # webrtcvad, stopit and bcpandas import pkg_resources; their metadata say nothing of it
    text = f"No module named '{module}'"
    load = LoadReply("tiny", error="ModuleNotFoundError", text=text, missing=module)
    finding = only(judge_wheel(reply(imports=[load]), recipe(imports=("tiny",)), rebuild))
    assert finding.severity == ("error" if rebuild else "warning")
    assert requirement in finding.fix
    stated = replace(HERE, requires=[requirement.strip("`"), "setuptools", "not a ] requirement"])
    replies = reply(imports=[load], distribution=stated)
    assert requirement not in only(judge_wheel(replies, recipe(imports=("tiny",)), rebuild)).fix
    own = WheelMetadata("tiny", "1.0", ["tiny", module.partition(".")[0]])
    finding = only(judge_wheel(reply(imports=[load], distribution=own), recipe(imports=("tiny",)), rebuild))
    assert finding.severity == "error"
    assert requirement not in finding.fix


def test_wheel_for_cpu_is_not_sent_to_gpu_node() -> None:
    load = LoadReply("tiny", error="ModuleNotFoundError", text="No module named 'hjson'", missing="hjson")
    replies = reply(imports=[load], objects=[load])
    fixes = {finding.fix for finding in judge_wheel(replies, recipe(backend="cpu"))}
    assert fixes == {"Run `matrix check --run` on the machine that will run it."}


@pytest.mark.parametrize(
    "load",
    [
        LoadReply("tiny", error="ImportError", text="tiny_C.so: undefined symbol: _ZN3c104cuda9SetDeviceEa"),
        LoadReply(
            "tiny", error="ImportError", text="libfoo.so.1: cannot open shared object file: No such file"
        ),
        LoadReply("tiny", error="ModuleNotFoundError", text="No module named 'tiny_C'", missing="tiny_C"),
        LoadReply("tiny", error="ModuleNotFoundError", text="No module named 'tiny.ops'", missing="tiny.ops"),
        LoadReply("tiny", error="signal 11"),
        LoadReply("tiny", error="timeout", text="no answer within 900 s"),
    ],
    ids=lambda load: load.error + load.text[:20],
)
def test_failure_of_wheel_is_an_error(load: LoadReply) -> None:
    findings = only(judge_wheel(reply(imports=[load]), recipe()))
    assert (findings.id, findings.severity) == ("probe-import-failed", "error")
    assert load.error in findings.message
    assert only(judge_wheel(reply(objects=[load]), recipe())).id == "probe-object-failed"


def test_broken_torch_makes_import_not_judged() -> None:
    broken = FrameworkReply(error="OSError", text="libtorch.so: file too short")
    loads = [LoadReply("tiny", error="OSError", text="libtorch.so: file too short")]
    findings = only(judge_wheel(reply(torch=broken, imports=loads), recipe()))
    assert findings.id == "probe-not-judged"
    assert "torch itself" in findings.message
    # A torch that we build is judged itself.
    torch = WheelMetadata("torch", "2.9.1a0", ["torch"])
    findings = only(judge_wheel(reply(distribution=torch, torch=broken, imports=loads), recipe()))
    assert (findings.id, findings.severity) == ("probe-import-failed", "error")


def test_missing_object_is_an_error_despite_import() -> None:
    """ROCm's apex has shims: ``import amp_C`` works although nothing was compiled."""
    shims = reply(
        imports=[LoadReply("amp_C", "/x/amp_C.py")], objects=[LoadReply("apex/amp_C*.so", error="missing")]
    )
    assert [finding.id for finding in judge_wheel(shims, recipe())] == [
        "probe-import",
        "probe-object-missing",
    ]
    assert judge_wheel(shims, recipe())[1].severity == "error"


def test_missing_wheel_is_an_error() -> None:
    finding = only(judge_wheel(reply(distribution=None, imports=[LoadReply("tiny", "/x")]), recipe()))
    assert (finding.id, finding.severity) == ("probe-not-installed", "error")


def test_recipe_without_promises_is_a_warning() -> None:
    assert only(judge_wheel(reply(), recipe())).severity == "warning"


def test_attribute_is_compared_with_recipe() -> None:
    wants = recipe(attributes={"tiny.a:KIND": "ROCm"}, run_environment={"TINY": "1"})
    right = judge_wheel(reply(imports=[LoadReply("tiny.a", "/x", values={"KIND": "ROCm"})]), wants)
    assert [finding.id for finding in right] == ["probe-import", "probe-attribute"]
    wrong = judge_wheel(reply(imports=[LoadReply("tiny.a", "/x", values={"KIND": "CPU"})]), wants)
    assert wrong[1].id == "probe-attribute-wrong"
    assert wrong[1].severity == "error"
    assert "TINY=1" in wrong[1].fix
    failed = judge_wheel(reply(imports=[LoadReply("tiny.a", error="ImportError", text="x")]), wants)
    assert [finding.id for finding in failed] == ["probe-import-failed"]


def test_fix_in_finished_environment_fits_the_failure() -> None:
    def fix(missing: str, **variables: str) -> str:
        failed = LoadReply("tiny", error="ModuleNotFoundError", text=missing, missing=missing)
        wants = recipe(run_environment={"TINY": "1"})
        return only(judge_wheel(reply(imports=[failed], variables=variables), wants, "Make it again.")).fix

    assert fix("hjson") == (
        "Install the distribution that has hjson; if it is not in the lock, add it to the request."
    )
    assert fix("tiny.ops") == fix("tiny_C", TINY="1") == "Make it again."
    assert fix("hjson", TINY="0") == "Set TINY=1 when tiny runs. The environment has TINY=0."


def test_undeclared_requirement_is_a_warning() -> None:
    wheel = WheelMetadata(
        "tiny", "1.0", ["tiny"], ["psutil>=5", 'hjson; extra == "dev"', "not: a requirement"]
    )
    took = [
        LoadReply("tiny", "/x", borrowed=["psutil"]),
        LoadReply("tiny.ops", "/x", borrowed=["hjson", "ninja"]),
    ]
    beside = FrameworkReply("2.9.1", borrowed=["ninja", "setuptools"])
    findings = judge_wheel(reply(distribution=wheel, torch=beside, imports=took), recipe())
    undeclared = {finding.id: finding for finding in findings}["probe-undeclared"]
    assert undeclared.severity == "warning"
    assert undeclared.evidence == {
        "distributions": "hjson"
    }  # psutil is required, and torch itself imports ninja
    fine = judge_wheel(reply(distribution=wheel, torch=beside, imports=took[:1]), recipe())
    assert [finding.id for finding in fine] == ["probe-import", "probe-beside"]
    assert "psutil" in fine[1].message


# --- the script ---------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a directory like site-packages with a distribution named tiny, and without torch."""
    info = tmp_path / "tiny-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
    files = {
        "tiny/__init__.py": "KIND = 'ROCm'\nprint('hello')\n",
        "tiny/breaks.py": "import os\nos.kill(os.getpid(), 11)\n",
        "tiny/needs.py": "import not_there_at_all\n",
        "tiny/table.py": "version='1'\ninstalled_ops={'a': True, 'b': False}\n"
        "accelerator_name='cuda'\ntorch_info={'version': '2.9'}\n",
        "tiny/code.py": "installed_ops = print('run!')\n",
        "torch.py": "raise ImportError('stand-in: there is no torch here')\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    listed = [name for name in files if name != "torch.py"]
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in [*listed, "tiny-1.0.dist-info/METADATA"]))
    return tmp_path


def run_probe(site: Path, wheel_recipe: Recipe, lent: str = "") -> WheelReply:
    """Run the script as a build does, with a directory as the environment."""
    folder = site / "ask"
    folder.mkdir(exist_ok=True)
    view = View(env={"PYTHONPATH": os.pathsep.join([str(site), *filter(None, [lent])])}, cwd=folder)
    question = wheel_question(wheel_recipe, lent)
    options: Any = {"folder": folder, "what": "Probing", "log": site / "probe.log"}
    return ask(HostRuntime(), [sys.executable], question, WheelReply, view, **options)


@pytest.mark.slow
def test_script_replies_despite_a_crash(site: Path) -> None:
    wants = recipe(imports=("tiny", "tiny.breaks", "tiny.needs"), attributes={"tiny:KIND": "ROCm"})
    result = run_probe(site, wants)
    assert result.distribution == WheelMetadata("tiny", "1.0", ["tiny"])
    whole, breaks, needs = result.imports
    assert whole.values == {"KIND": "ROCm"}
    assert whole.file == str(site / "tiny" / "__init__.py")
    assert breaks.error == "signal 11"
    assert (needs.error, needs.missing) == ("ModuleNotFoundError", "not_there_at_all")
    assert result.torch.error == "ImportError"
    findings = [(finding.id, finding.severity) for finding in judge_wheel(result, wants)]
    assert findings == [
        ("probe-import", "info"),
        ("probe-import-failed", "error"),
        ("probe-not-judged", "warning"),
        ("probe-attribute", "info"),
    ]


@pytest.mark.slow
def test_script_loads_objects(site: Path, compile_object: Callable[..., Path]) -> None:
    (site / "torch.py").write_text(STAND_IN)
    good = compile_object("libgood.so", "int reply(void) { return 42; }\n")
    source = "int no_such_function(void);\nint reply(void) { return no_such_function(); }\n"
    bad = compile_object("libbad.so", source, "-Wl,-z,now")
    for library in (good, bad):
        (site / "tiny" / library.name).write_bytes(library.read_bytes())
    with (site / "tiny-1.0.dist-info" / "RECORD").open("a") as record:
        record.write("tiny/libgood.so,,\ntiny/libbad.so,,\n")
    wants = recipe(must_contain=("tiny/libgood*.so", "tiny/libbad*.so", "tiny/libgone*.so"))
    result = run_probe(site, wants)
    assert result.torch == FrameworkReply("2.9.1")
    findings = {
        finding.message.partition(":")[0].partition(" ")[0]: finding.id
        for finding in judge_wheel(result, wants)
    }
    assert findings == {
        "tiny/libgood*.so": "probe-object",
        "tiny/libbad*.so": "probe-object-failed",
        "tiny/libgone*.so": "probe-object-missing",
    }
    assert "undefined symbol: no_such_function" in result.objects[1].text


@pytest.mark.slow
def test_script_lists_borrowed_distributions(site: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    lent = tmp_path_factory.mktemp("lent")
    for name in ("used", "idle"):
        info = lent / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "RECORD").write_text(f"{name}.py,,\nsitecustomize.py,,\n")
        (lent / f"{name}.py").write_text("")
    (lent / "sitecustomize.py").write_text("")  # Python imports it at its start, whatever the wheel requires
    (site / "tiny" / "__init__.py").write_text("import used\n")
    (site / "tiny" / "needs.py").write_text("import used, not_there_at_all\n")
    result = run_probe(site, recipe(imports=("tiny", "tiny.needs")), str(lent))
    assert [load.borrowed for load in result.imports] == [["used"], ["used"]]
    assert result.torch.borrowed == []
    assert run_probe(site, recipe(imports=("tiny",)), "").imports[0].missing == "used"


@pytest.mark.slow
def test_script_imports_extension_after_torch(site: Path, compile_object: Callable[..., Path]) -> None:
    """``import causal_conv1d_cuda`` alone does not find libc10.so."""
    (site / "torch.py").write_text(STAND_IN)
    module = compile_object("tiny_C.so", IMPORTED_AFTER_TORCH, f"-I{sysconfig.get_path('include')}")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    (site / f"tiny_C{suffix}").write_bytes(module.read_bytes())
    (site / "tiny" / "__init__.py").write_text("import sys\nassert 'torch' in sys.modules, 'forgot torch'\n")
    compiled, package = run_probe(site, recipe(imports=("tiny_C", "tiny"))).imports
    assert compiled.error == ""
    assert package.text == "forgot torch"  # a package has to import torch itself


@pytest.mark.parametrize(
    ("metadata", "requires"),
    [
        ("Name: Tiny.One\r\nVersion: 2.0\r\nRequires-Dist: a>=1\r\n\r\nRequires-Dist: no\r\n", ["a>=1"]),
        ("name: Tiny.One\nVersion: 2.0\nRequires-Dist: b;\n  extra == 'x'\nRequires-Dist: c\n\nName: text",
         ["b; extra == 'x'", "c"]),
    ],
)  # fmt: skip
def test_installed_distribution_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metadata: str, requires: list[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, other in ((first, "tiny_one_more"), (second, "Tiny_One")):
        info = folder / f"{other}-2.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_bytes(metadata.encode())
        (info / "RECORD").write_text('tiny/x.py,sha256=abc,3\n"tiny/a, b.so",,\n../../../bin/tiny,,\n')
    monkeypatch.setattr(payload, "search_path", lambda: [str(tmp_path / "none"), str(first), str(second)])
    files, found = payload.installed("tiny-one")
    assert found == {"name": "Tiny.One", "version": "2.0", "top": ["tiny"], "requires": requires}
    assert files["tiny/a, b.so"] == str(second / "tiny" / "a, b.so")
    assert [*files] == ["tiny/x.py", "tiny/a, b.so", "../../../bin/tiny"]
    assert payload.installed("tiny") == ({}, None)


@pytest.mark.parametrize("name", ["old-1.0-py3.11.egg-info", "old.egg-info"])
def test_distribution_that_setuptools_installed_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    info = tmp_path / name
    info.mkdir()
    (info / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: old\nVersion: 1.0\n")
    (info / "SOURCES.txt").write_text("old/__init__.py\n")
    (info / "requires.txt").write_text("a>=1\n")
    monkeypatch.setattr(payload, "search_path", lambda: [str(tmp_path)])
    files, found = payload.installed("old")
    assert found == {"name": "old", "version": "1.0", "top": ["old"], "requires": ["a>=1"]}
    assert [*files] == ["old/__init__.py"]


def test_script_reports_missing_distribution(site: Path) -> None:
    assert run_probe(site, recipe(package="other")).distribution is None


@pytest.mark.parametrize(
    "output",
    ["", "Traceback\nKilled\n", "rocm-matrix-probe: 42 {", 'rocm-matrix-probe: 42 {"a": 1}', FORGED],
)
def test_damaged_reply_is_an_error(output: str) -> None:
    with pytest.raises(MatrixError, check=has_id("probe")) as caught:
        parse_reply(output, "42", WheelReply)
    assert caught.value.hint


def test_only_reply_with_number_counts() -> None:
    reply = {"distribution": None, "torch": {"version": "2"}}
    output = f"noise\n{FORGED}\nrocm-matrix-probe: 42 {json.dumps(reply)}\n{FORGED}\n"
    assert parse_reply(output, "42", WheelReply).torch.version == "2"
