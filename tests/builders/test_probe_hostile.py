"""Packages that forge replies to the probe do not pass."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders.containers.runtime import HostRuntime, View
from builders.findings import Finding
from builders.probe.ask import (
    FrameworkReply,
    LoadReply,
    Probe,
    WheelMetadata,
    WheelReply,
    ask,
    wheel_question,
)
from builders.probe.payload import MARK, UNSEEN
from builders.probe.wheel import judge_wheel
from resolver.errors import MatrixError
from resolver.facts.schema import Recipe
from tests.support.commands import bare_environment

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_shortcuts")]

REBUILD = "Make it again."
TORCH = "__version__ = '2.9.1'\nclass version: hip = None\n"  # a stand-in
PART = f"{MARK}{json.dumps({'file': '/x', 'values': {'KIND': 'ROCm'}})}"
WHOLE = f"""{MARK}{
    json.dumps(
        {
            "distribution": {"name": "tiny", "version": "1.0", "top": ["tiny"]},
            "torch": {"version": "2.9.1"},
            "imports": [{"name": "tiny"}],
        }
    )
}"""
PRINTS = f"import os\nprint({PART!r}, flush=True)\nos._exit(0)\n"
WRITES_EVERYWHERE = f"""
import os
for number in range(256):
    try:
        os.write(number, {PART.encode()!r})
    except OSError:
        pass
os._exit(0)
"""
REPLACES_FUNCTIONS = """
import importlib, json, os
json.dumps.__code__ = (lambda *_, **__: '{}').__code__
importlib.import_module = lambda name: os
os.write = lambda *_: 0
raise ImportError('broken')
"""
ONLY_PROBED = "\nif not probed: raise ImportError('only in a probe')\n"
ARGUMENTS = "import sys; probed = len(sys.argv) > 1"
MODULES = "import sys; probed = '_socket' in sys.modules"
FRAMES = """
import sys
frame, names = sys._getframe(), []
while frame:
    names.append(frame.f_code.co_name)
    frame = frame.f_back
probed = 'import_part' in names
"""
SPEAKS_PROTOCOL = """
import os, socket, sys
if len(sys.argv) > 1:
    with socket.socket(socket.AF_UNIX) as outer:
        outer.connect('\\0' + sys.argv[-1])
        outer.sendall(outer.recv(64) + b'{}')
os._exit(0)
"""
OPENS_PARENT = """
import os
opened = []
for name in ('mem', 'fd/1', 'environ'):
    try:
        open(f'/proc/{os.getppid()}/{name}', 'rb').close()
        opened.append(name)
    except OSError:
        pass
"""
CONSTRUCTOR = """
#include <Python.h>
#include <string.h>
#include <unistd.h>
static const char answer[] = "\\n%s\\n";
__attribute__((constructor)) static void lie(void) {
    for (int fd = 0; fd < 256; fd++) write(fd, answer, strlen(answer));
    _exit(0);
}
PyMODINIT_FUNC PyInit_tiny_C(void) { return 0; }
"""
HIDES = """
#include <sys/prctl.h>
__attribute__((constructor)) static void hide(void) { prctl(PR_SET_DUMPABLE, 0); }
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a directory like site-packages with a distribution named tiny."""
    info = tmp_path / "tiny-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
    (info / "RECORD").write_text("tiny.py,,\nlibtiny.so,,\n")
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "tiny.py").write_text("")
    return tmp_path


def run_probe(site: Path, **promises: Any) -> list[Finding]:
    """Probe the distribution as a build does, and return the findings."""
    recipe = Recipe(package="tiny", backend="rocm", status="observed", source="a test", **promises)
    folder = site / "ask"
    folder.mkdir()
    view = View(env={"PYTHONPATH": str(site)}, cwd=folder)
    options: Any = {"folder": folder, "what": "Probing", "log": site / "probe.log"}
    reply = ask(HostRuntime(), [sys.executable], wheel_question(recipe), WheelReply, view, **options)
    return judge_wheel(reply, recipe)


def rejection(findings: list[Finding]) -> str:
    """Return the message of the only finding, which rejects the wheel."""
    (finding,) = findings
    assert finding.severity == "error"
    return finding.message


@pytest.mark.parametrize("code", [PRINTS, WRITES_EVERYWHERE, REPLACES_FUNCTIONS, SPEAKS_PROTOCOL])
def test_module_that_forges_answer_fails(site: Path, code: str) -> None:
    (site / "tiny.py").write_text(code)
    assert rejection(run_probe(site, imports=("tiny",))).startswith("import tiny: fails with exit code")


@pytest.mark.parametrize("probed", [ARGUMENTS, MODULES, FRAMES])
def test_module_that_loads_only_in_a_probe_fails(site: Path, probed: str) -> None:
    (site / "tiny.py").write_text(probed + ONLY_PROBED)
    message = rejection(run_probe(site, imports=("tiny",)))
    assert message.endswith("fails with exit code 1 in a plain process: ImportError: only in a probe")


def test_only_modules_that_lie_are_named(site: Path) -> None:
    (site / "honest.py").write_text("")
    (site / "tiny.py").write_text(ARGUMENTS + ONLY_PROBED)
    findings = {finding.message: finding.id for finding in run_probe(site, imports=("honest", "tiny"))}
    assert findings.pop("import honest: loads") == "probe-import"
    assert list(findings.values()) == ["probe-import-failed"]


def test_object_that_prints_answer_fails(site: Path, compile_object: Callable[..., Path]) -> None:
    source = CONSTRUCTOR % (MARK + "{}").replace('"', '\\"')
    compiled = compile_object("libtiny.so", source, f"-I{sysconfig.get_path('include')}")
    for name in ("libtiny.so", f"tiny_C{sysconfig.get_config_var('EXT_SUFFIX')}"):
        (site / name).write_bytes(compiled.read_bytes())
    findings = run_probe(site, imports=("tiny_C",), must_contain=("libtiny*.so",))
    assert [finding.id for finding in findings] == ["probe-import-failed", "probe-object-failed"]
    assert "fails with exit code 0" in findings[1].message


def test_object_that_is_not_mapped_is_not_loaded(site: Path) -> None:
    (site / "libtiny.so").write_text("not an object")
    (site / "sitecustomize.py").write_text("import ctypes; ctypes.CDLL.__init__ = lambda *_, **__: None\n")
    assert "has not mapped" in rejection(run_probe(site, must_contain=("libtiny*.so",)))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every memory map")
def test_object_that_hides_its_memory_is_not_judged(site: Path, compile_object: Callable[..., Path]) -> None:
    (site / "libtiny.so").write_bytes(compile_object("libtiny.so", HIDES).read_bytes())
    (finding,) = run_probe(site, must_contain=("libtiny*.so",))
    assert finding.id == "probe-not-judged"


def test_unreadable_memory_map_is_not_judged() -> None:
    recipe = Recipe(package="tiny", backend="rocm", status="observed", source="a test")
    wheel, hidden = WheelMetadata("tiny", "1.0", ["tiny"]), LoadReply("libtiny*.so", error=UNSEEN)
    reply = WheelReply(distribution=wheel, torch=FrameworkReply("2.9.1"), objects=[hidden])
    (finding,) = judge_wheel(reply, recipe, rebuild=REBUILD)
    assert (finding.id, finding.severity) == ("probe-not-judged", "warning")


ANSWERS = f"import os\nos.write(1, {WHOLE.encode()!r})\nos._exit(0)\n"


def test_code_at_start_cannot_answer(site: Path) -> None:
    (site / "sitecustomize.py").write_text(ANSWERS)
    with pytest.raises(MatrixError):
        run_probe(site, imports=("tiny",))


def test_module_in_place_of_the_standard_librarys_cannot_answer(site: Path) -> None:
    (site / "json.py").write_text(ANSWERS)
    (finding,) = run_probe(site, imports=("tiny",))
    assert (finding.id, finding.severity) == ("probe-not-judged", "warning")


def test_script_on_disk_does_not_matter(site: Path) -> None:
    (site / "tiny.py").write_text("raise ImportError('broken')\n")
    (site / "sitecustomize.py").write_text(
        "import os, pathlib\nfor folder in (pathlib.Path(), pathlib.Path(__file__).parent / 'ask'):\n"
        f"    for name in ('main.py', 'probe.py'): (folder / name).write_text({f'print({PART!r})'!r})\n"
    )
    assert rejection(run_probe(site, imports=("tiny",))) == "import tiny: fails with ImportError: broken"


def test_process_that_judges_cannot_be_read_or_written(site: Path) -> None:
    (site / "tiny.py").write_text(OPENS_PARENT)
    findings = run_probe(site, imports=("tiny",), attributes={"tiny:opened": "[]"})
    assert [finding.id for finding in findings] == ["probe-import", "probe-attribute"]


def test_nothing_outlives_the_probe(site: Path) -> None:
    pids = site / "pids"
    (site / "tiny.py").write_text(
        "import os, subprocess, sys\n"
        "process = subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
        f"print(process.pid, file=open({str(pids)!r}, 'a'))\n"
    )
    run_probe(site, imports=("tiny",))
    assert len(pids.read_text().split()) == 2
    assert not [pid for pid in pids.read_text().split() if Path("/proc", pid).exists()]


def test_start_file_of_environment_cannot_answer(tmp_path: Path) -> None:
    packages = bare_environment(tmp_path / "env")
    torch = {"version": "2.9.1+rocm6.4", "hip": "6.4"}
    whole = {
        "python": "3.11.7", "executable": "/x", "distributions": [],
        "user_site": {"minor": "3.11"}, "system_libstdcxx": {}, "libraries": {}, "torch": torch,
    }  # fmt: skip
    answer = f"\n{MARK}{json.dumps(whole)}\n".encode()
    (packages / "lie.pth").write_text(f"import os; os.write(1, {answer!r}); os._exit(0)\n")
    (tmp_path / "ask").mkdir()
    python = str(tmp_path / "env" / "bin" / "python")
    probe = Probe(HostRuntime(), python, folder=tmp_path / "ask", log=tmp_path / "log")
    with pytest.raises(MatrixError):
        probe.ask_environment([])
