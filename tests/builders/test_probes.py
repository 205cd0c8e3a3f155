"""Probes: what an installed wheel answers, and what the answers mean."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders.findings import Finding
from builders.probes import Answer, judge_probe, probe_questions, probe_script, read_answer
from builders.probes.asking import Distribution, OpTable, Said, Torch
from resolver.errors import ProbeError
from resolver.facts.schema import Op, Recipe

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
TORCH = Torch("2.9.1+rocm6.4", "6.4.43482", 0)
HERE = Distribution("tiny", "1.0", ["tiny", "tiny_C"])


def recipe(**said: Any) -> Recipe:
    given = {"package": "tiny", "backend": "rocm", "status": "observed", "source": "a test", **said}
    return Recipe(**given)


def answer(**said: Any) -> Answer:
    given: dict[str, Any] = {"schema": 1, "python": "3.11.2", "distribution": HERE, "torch": TORCH}
    given |= {"imports": [], "objects": [], "op_table": None}
    given |= said
    return Answer(**given)


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1
    return findings[0]


# --- what the answers mean ----------------------------------------------------------------------------


def test_what_loads_is_said() -> None:
    said = [Said("tiny", "/x/tiny/__init__.py")]
    found = judge_probe(answer(imports=said, objects=[Said("tiny_C*.so", "/x/tiny_C.so")]), recipe())
    assert [(one.id, one.severity) for one in found] == [("probe-import", "info"), ("probe-object", "info")]
    assert found[1].evidence == {"member": "/x/tiny_C.so"}


@pytest.mark.parametrize(
    "said",
    [
        Said(
            "tiny", error="ImportError", text="libamdhip64.so.6: cannot open shared object file: No such file"
        ),
        Said("tiny", error="OSError", text="librocblas.so.4: cannot open shared object file: No such file"),
        Said("tiny", error="RuntimeError", text="No HIP GPUs are available"),
        Said("tiny", error="RuntimeError", text="0 active drivers ([]). There should only be one."),
        Said("tiny", error="ModuleNotFoundError", text="No module named 'hjson'", missing="hjson"),
    ],
    ids=lambda said: said.text[:20],
)
def test_what_a_node_without_a_gpu_cannot_tell_is_not_judged(said: Said) -> None:
    found = only(judge_probe(answer(imports=[said]), recipe()))
    assert (found.id, found.severity) == ("probe-not-judged", "warning")
    assert "not judged" in found.message


@pytest.mark.parametrize(
    "said",
    [
        Said("tiny", error="ImportError", text="tiny_C.so: undefined symbol: _ZN3c104cuda9SetDeviceEa"),
        Said("tiny", error="ImportError", text="libfoo.so.1: cannot open shared object file: No such file"),
        Said("tiny", error="ModuleNotFoundError", text="No module named 'tiny_C'", missing="tiny_C"),
        Said("tiny", error="ModuleNotFoundError", text="No module named 'tiny.ops'", missing="tiny.ops"),
        Said("tiny", error="signal 11"),
        Said("tiny", error="timeout", text="no answer within 900 s"),
    ],
    ids=lambda said: said.error + said.text[:20],
)
def test_what_is_the_wheels_own_fault_is_an_error(said: Said) -> None:
    found = only(judge_probe(answer(imports=[said]), recipe()))
    assert (found.id, found.severity) == ("probe-import-failed", "error")
    assert said.error in found.message
    assert only(judge_probe(answer(objects=[said]), recipe())).id == "probe-object-failed"


def test_nothing_is_judged_beside_a_torch_that_does_not_load() -> None:
    broken = Torch(error="OSError", text="libtorch.so: file too short")
    said = [Said("tiny", error="OSError", text="libtorch.so: file too short")]
    found = only(judge_probe(answer(torch=broken, imports=said), recipe()))
    assert found.id == "probe-not-judged"
    assert "torch itself" in found.message


def test_an_import_proves_nothing_where_the_object_is_missing() -> None:
    """ROCm/apex ships shims: ``import amp_C`` works and nothing was compiled."""
    said = answer(imports=[Said("amp_C", "/x/amp_C.py")], objects=[Said("apex/amp_C*.so", error="missing")])
    assert [one.id for one in judge_probe(said, recipe())] == ["probe-import", "probe-object-missing"]
    assert judge_probe(said, recipe())[1].severity == "error"


def test_a_wheel_that_is_not_there() -> None:
    found = only(judge_probe(answer(distribution=None, imports=[Said("tiny", "/x")]), recipe()))
    assert (found.id, found.severity) == ("probe-not-installed", "error")


def test_nothing_asked_is_not_passed() -> None:
    assert only(judge_probe(answer(), recipe())).severity == "warning"


def test_attributes_are_compared() -> None:
    wants = recipe(attributes={"tiny.a:KIND": "ROCm"}, run_environment={"TINY": "1"})
    right = judge_probe(answer(imports=[Said("tiny.a", "/x", values={"KIND": "ROCm"})]), wants)
    assert [one.id for one in right] == ["probe-import", "probe-attribute"]
    wrong = judge_probe(answer(imports=[Said("tiny.a", "/x", values={"KIND": "CPU"})]), wants)
    assert wrong[1].id == "probe-attribute-wrong"
    assert wrong[1].severity == "error"
    assert "TINY=1" in wrong[1].fix
    failed = judge_probe(answer(imports=[Said("tiny.a", error="ImportError", text="x")]), wants)
    assert [one.id for one in failed] == ["probe-import-failed"]


def test_what_was_lent_and_is_not_required_is_told() -> None:
    wheel = Distribution(
        "tiny", "1.0", ["tiny"], ["psutil>=5", 'hjson; extra == "dev"', "not: a requirement"]
    )
    took = [Said("tiny", "/x", borrowed=["psutil"]), Said("tiny.ops", "/x", borrowed=["hjson", "ninja"])]
    beside = Torch("2.9.1", borrowed=["ninja", "setuptools"])
    found = judge_probe(answer(distribution=wheel, torch=beside, imports=took), recipe())
    told = {one.id: one for one in found}["probe-undeclared"]
    assert told.severity == "warning"
    assert told.evidence == {"distributions": "hjson"}  # psutil is required, and torch took ninja itself
    fine = judge_probe(answer(distribution=wheel, torch=beside, imports=took[:1]), recipe())
    assert [one.id for one in fine] == ["probe-import", "probe-beside"]
    assert "psutil" in fine[1].message


# --- DeepSpeed's op table -----------------------------------------------------------------------------

OPS = recipe(
    ops=(Op("fused_adam", "DS_BUILD_FUSED_ADAM", "o*.so"), Op("cpu_adam", "DS_BUILD_CPU_ADAM", "p*.so")),
    environment={"DS_BUILD_FUSED_ADAM": "1", "DS_ACCELERATOR": "cuda"},
    op_table="deepspeed/git_version_info_installed.py",
)


def severities(table: OpTable) -> dict[str, str]:
    return {one.id: one.severity for one in judge_probe(answer(op_table=table), OPS)}


def test_ops_that_were_asked_for_and_compiled() -> None:
    found = judge_probe(answer(op_table=OpTable({"fused_adam": True, "cpu_adam": False}, "cuda", "2.9")), OPS)
    assert only(found).message == "ops compiled: fused_adam"


def test_ops_that_were_asked_for_and_left_out() -> None:
    assert severities(OpTable({"fused_adam": False}, "cuda", "2.9"))["probe-op-missing"] == "error"
    assert severities(OpTable({}, "cuda", "2.9"))["probe-op-missing"] == "error"


def test_ops_of_another_accelerator_or_torch() -> None:
    assert severities(OpTable({"fused_adam": True}, "cpu", "2.9"))["probe-accelerator"] == "error"
    assert severities(OpTable({"fused_adam": True}, "cuda", "2.8"))["probe-torch"] == "error"


def test_an_op_table_that_is_not_there() -> None:
    assert severities(OpTable(error="missing", text="x")) == {"probe-op-table": "error"}


# --- the script ---------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Give a directory like site-packages that holds a distribution called tiny, and no torch."""
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


def ask(site: Path, one: Recipe, lent: str = "") -> Answer:
    """Run the script as a build does: one file, by a Python of its own."""
    script = site / "ask" / "probe.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text(probe_script())
    env = {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join([str(site), *filter(None, [lent])])}
    command = [sys.executable, str(script), probe_questions(one, lent)]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True, cwd=script.parent)
    return read_answer(done.stdout)


def test_the_script_answers_and_survives_a_crash(site: Path) -> None:
    wants = recipe(imports=("tiny", "tiny.breaks", "tiny.needs"), attributes={"tiny:KIND": "ROCm"})
    said = ask(site, wants)
    assert said.distribution == Distribution("tiny", "1.0", ["tiny"])
    whole, breaks, needs = said.imports
    assert whole.values == {"KIND": "ROCm"}
    assert whole.file == str(site / "tiny" / "__init__.py")
    assert breaks.error == "signal 11"
    assert (needs.error, needs.missing) == ("ModuleNotFoundError", "not_there_at_all")
    assert said.torch.error == "ImportError"
    found = [(one.id, one.severity) for one in judge_probe(said, wants)]
    assert found == [
        ("probe-import", "info"),
        ("probe-import-failed", "error"),
        ("probe-not-judged", "warning"),
        ("probe-attribute", "info"),
    ]


def test_the_script_reads_an_op_table_without_running_it(site: Path) -> None:
    said = ask(site, recipe(op_table="tiny/table.py"))
    assert said.op_table == OpTable({"a": True, "b": False}, "cuda", "2.9")
    hostile = ask(site, recipe(op_table="tiny/code.py"))
    assert hostile.op_table is not None
    assert hostile.op_table.error == "ValueError"
    gone = ask(site, recipe(op_table="tiny/gone.py"))
    assert gone.op_table is not None
    assert gone.op_table.error == "missing"


def test_the_script_loads_objects(site: Path, compile_object: Callable[..., Path]) -> None:
    (site / "torch.py").write_text(STAND_IN)
    good = compile_object("libgood.so", "int answer(void) { return 42; }\n")
    source = "int no_such_function(void);\nint answer(void) { return no_such_function(); }\n"
    bad = compile_object("libbad.so", source, "-Wl,-z,now")
    for one in (good, bad):
        (site / "tiny" / one.name).write_bytes(one.read_bytes())
    with (site / "tiny-1.0.dist-info" / "RECORD").open("a") as record:
        record.write("tiny/libgood.so,,\ntiny/libbad.so,,\n")
    wants = recipe(must_contain=("tiny/libgood*.so", "tiny/libbad*.so", "tiny/libgone*.so"))
    said = ask(site, wants)
    assert said.torch == Torch("2.9.1", "", 0)
    found = {one.message.partition(":")[0].partition(" ")[0]: one.id for one in judge_probe(said, wants)}
    assert found == {
        "tiny/libgood*.so": "probe-object",
        "tiny/libbad*.so": "probe-object-failed",
        "tiny/libgone*.so": "probe-object-missing",
    }
    assert "undefined symbol: no_such_function" in said.objects[1].text


def test_the_script_says_what_it_took_of_what_was_lent(
    site: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lent = tmp_path_factory.mktemp("lent")
    for name in ("used", "idle"):
        info = lent / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "RECORD").write_text(f"{name}.py,,\n")
        (lent / f"{name}.py").write_text("")
    (site / "tiny" / "__init__.py").write_text("import used\n")
    (site / "tiny" / "needs.py").write_text("import used, not_there_at_all\n")
    said = ask(site, recipe(imports=("tiny", "tiny.needs")), str(lent))
    assert [one.borrowed for one in said.imports] == [["used"], ["used"]]
    assert said.torch.borrowed == []
    assert ask(site, recipe(imports=("tiny",)), "").imports[0].missing == "used"


def test_a_module_that_is_itself_compiled_is_imported_after_torch(
    site: Path, compile_object: Callable[..., Path]
) -> None:
    """``import causal_conv1d_cuda`` alone finds no libc10.so, and nobody imports it without torch."""
    (site / "torch.py").write_text(STAND_IN)
    module = compile_object("tiny_C.so", IMPORTED_AFTER_TORCH, f"-I{sysconfig.get_path('include')}")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    (site / f"tiny_C{suffix}").write_bytes(module.read_bytes())
    (site / "tiny" / "__init__.py").write_text("import sys\nassert 'torch' in sys.modules, 'forgot torch'\n")
    compiled, package = ask(site, recipe(imports=("tiny_C", "tiny"))).imports
    assert compiled.error == ""
    assert package.text == "forgot torch"  # a package has to import torch itself


def test_a_distribution_that_is_not_installed(site: Path) -> None:
    assert ask(site, recipe(package="other")).distribution is None


@pytest.mark.parametrize(
    "output", ["", "Traceback\nKilled\n", "rocm-matrix-probe: {", 'rocm-matrix-probe: {"a": 1}']
)
def test_an_answer_that_cannot_be_read(output: str) -> None:
    with pytest.raises(ProbeError) as caught:
        read_answer(output)
    assert caught.value.hint


def test_the_last_answer_counts() -> None:
    line = "rocm-matrix-probe: " + json.dumps(
        {
            "schema": 1,
            "python": "3",
            "distribution": None,
            "torch": {},
            "imports": [],
            "objects": [],
            "op_table": None,
        }
    )
    assert read_answer(f"noise\n{line}\nmore noise\n").python == "3"
