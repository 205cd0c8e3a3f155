"""Verify an environment: judge replies, probe a real environment, and write the job for a GPU node."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from builders.building.provenance import OP_PROPERTY, SBOM_NAME
from builders.containers import runtime
from builders.containers.runtime import HostRuntime
from builders.findings import Finding
from builders.probe import environment as judging
from builders.probe import payload
from builders.probe.ask import (
    EnvironmentReply,
    FrameworkReply,
    Gpu,
    InstalledDist,
    Libraries,
    LibStdCxx,
    LoadReply,
    NetworkPlugin,
    Probe,
    UserSite,
    WheelMetadata,
    WheelReply,
    parse_reply,
    user_packages,
)
from builders.probe.environment import judge_environment, judge_variables
from builders.probe.payload import MARK, newest_symbols
from builders.probe.wheel import judge_wheel
from builders.scheduling.slurm import BatchJob, hours_of, job_script, partition_for, submit
from builders.wheels.wheel import recorded_hash
from resolver.compiling.known_bad import problems_of
from resolver.errors import CommandError, EnvironmentLacksError, MatrixError, UsageError
from resolver.facts.catalog import load
from resolver.facts.schema import Recipe, SiteVariable
from resolver.indexes import File
from resolver.model import Distribution, Request, Resolution, Target
from resolver.requirements import parse_requirement
from tests.support.commands import bare_environment
from tests.support.errors import has_id
from tests.support.installed import Tree
from tests.support.standin_jax import write_jax

SITE = "/opt/env/lib/python3.11/site-packages"
REBUILD = "Make it again."
TORCH = "2.9.1+rocm6.4"
HIP = FrameworkReply(TORCH, "6.4.43482")


def pick(name: str, version: str, kind: Any = "distribution", origin: Any = "published") -> Distribution:
    return Distribution(
        name=name, version=version, kind=kind, origin=origin, support="observed", verdict="supported"
    )


def lock(backend: Any = "rocm") -> Resolution:
    target = Target(site="lumi-g", date=date(2026, 3, 1), backend=backend, gfx=("gfx90a",))
    return Resolution(
        request=Request(target),
        target=target,
        picks=(pick("python", "3.11", "platform", "request"), pick("torch", TORCH), pick("My_Ext", "1.0+x")),
    )


def reply(**fields: Any) -> EnvironmentReply:
    given: dict[str, Any] = {
        "python": "3.11.7",
        "executable": "/opt/env/bin/python",
        "distributions": [InstalledDist("torch", TORCH, SITE), InstalledDist("my-ext", "1.0+x", SITE)],
        "user_site": UserSite("3.11"),
        "system_libstdcxx": LibStdCxx("/usr/lib64/libstdc++.so.6", "3.4.33"),
        "libraries": Libraries(),
        "torch": HIP,
    }
    return EnvironmentReply(**(given | fields))


MY_EXT_WITH_SIX = InstalledDist("my-ext", "1.0+x", SITE, requires=["six"])
judged = partial(judge_environment, rebuild=REBUILD)


def findings_of(
    environment: EnvironmentReply,
    *,
    against: Resolution | None = None,
    own: dict[str, str] | None = None,
    need_gpu: bool = False,
) -> dict[str, Finding]:
    findings = judge_environment(
        environment, against or lock(), own or {}, need_gpu=need_gpu, rebuild=REBUILD
    )
    return {finding.id: finding for finding in findings}


def errors(findings: dict[str, Finding]) -> set[str]:
    return {name for name, finding in findings.items() if finding.severity == "error"}


# --- judging a reply ----------------------------------------------------------------------------------


def test_environment_without_torch_is_not_judged_by_torch() -> None:
    """An environment of JAX has none."""
    picks = tuple(pick for pick in lock().picks if pick.name != "torch")
    extension = [InstalledDist("my-ext", "1.0+x", SITE)]
    missing = FrameworkReply(error="ModuleNotFoundError", text="No module named 'torch'")
    found = findings_of(
        reply(distributions=extension, torch=missing), against=replace(lock(), picks=picks), need_gpu=True
    )
    assert not errors(found)
    assert "no torch" in found["verify-gpu-not-judged"].message
    assert "verify-torch-failed" in errors(findings_of(reply(torch=missing)))


def test_jax_without_torch_is_judged_without_a_lock() -> None:
    missing = FrameworkReply(error="ModuleNotFoundError", text="No module named 'torch'")
    without = reply(distributions=[InstalledDist("jax", "0.10.0", SITE)], torch=missing)
    found = {
        one.id for one in judged(replace(without, jax=FrameworkReply("0.10.0")), None, {}, need_gpu=False)
    }
    assert "verify-torch-failed" not in found
    assert "verify-gpu-not-judged" in found
    assert "verify-torch-failed" in {one.id for one in judged(without, None, {}, need_gpu=False)}


def test_sound_environment_has_no_errors() -> None:
    findings = findings_of(reply())
    assert not errors(findings)
    assert findings["verify-pins"].message.startswith("2 of 2 ")
    assert findings["verify-gpu-not-judged"].severity == "warning"
    assert {name for name in findings if "not-judged" in name} == {"verify-gpu-not-judged"}


@pytest.mark.parametrize(
    ("fields", "expected", "words"),
    [
        ({"distributions": [InstalledDist("torch", TORCH, SITE)]}, "verify-pin-missing", "My_Ext 1.0+x"),
        (
            {
                "distributions": [
                    InstalledDist("torch", "2.9.1+cu128", SITE),
                    InstalledDist("my-ext", "1.0+x", SITE),
                ]
            },
            "verify-pin-differs",
            "torch is 2.9.1+cu128, but the lock pins 2.9.1+rocm6.4",
        ),
        ({"python": "3.12.1"}, "verify-python", "3.12.1"),
        (
            {"distributions": [*reply().distributions, InstalledDist("nvidia_cublas_cu12", "12.8", SITE)]},
            "verify-nvidia",
            "nvidia-cublas-cu12 12.8",
        ),
        ({"torch": FrameworkReply("2.9.1", cuda="12.8")}, "verify-torch-cuda", "CUDA 12.8"),
        ({"torch": FrameworkReply("2.9.1+cpu")}, "verify-torch-cpu", "not built for ROCm"),
        ({"torch": FrameworkReply(error="signal 11")}, "verify-torch-failed", "signal 11"),
        (
            {"distributions": [reply().distributions[0], MY_EXT_WITH_SIX]},
            "verify-pip-check-broken",
            "requires six",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("verify") else "",
)
def test_defect_is_an_error(fields: dict[str, Any], expected: str, words: str) -> None:
    findings = findings_of(reply(**fields))
    assert errors(findings) == {expected}
    assert words in findings[expected].message


def test_hints_say_how_to_make_what_was_verified_again() -> None:
    without = reply(distributions=[InstalledDist("my-ext", "0.9", SITE)])
    findings = findings_of(without)
    assert findings["verify-pin-missing"].fix == REBUILD
    assert findings["verify-pin-differs"].fix == REBUILD
    kept = replace(lock(), picks=tuple(replace(row, origin="preinstalled") for row in lock().picks))
    findings = findings_of(without, against=kept)
    assert "--keep-installed image" in findings["verify-pin-missing"].fix
    assert "--keep-installed image" in findings["verify-pin-differs"].fix


def with_files(**fields: Any) -> EnvironmentReply:
    torch, own = reply().distributions
    return reply(distributions=[torch, replace(own, compared=9, **fields)])


def test_changed_files_of_locked_wheel_are_an_error() -> None:
    changed = with_files(differing=["my_ext/a.so", "my_ext/b.py", "my_ext/c.py", "my_ext/d.py"])
    finding = findings_of(changed)["verify-files-differ"]
    assert "4 of 9 files of My_Ext 1.0+x differ from its RECORD: my_ext/a.so, " in finding.message
    assert "my_ext/c.py and 1 more." in finding.message
    assert finding.fix == REBUILD
    (finding,) = (
        finding
        for finding in judged(changed, lock(), {}, need_gpu=False, in_index=["my-ext"])
        if finding.id == "verify-files-differ"
    )
    assert "differ from the wheel in the index" in finding.message
    kept = replace(lock(), picks=tuple(replace(row, origin="preinstalled") for row in lock().picks))
    assert not errors(findings_of(changed, against=kept))


def test_wheel_with_other_metadata_is_an_error() -> None:
    def locked(*hashes: str) -> Resolution:
        files = tuple(File("my_ext.whl", "https://index.example", metadata_sha256=text) for text in hashes)
        platform, torch, own = lock().picks
        return replace(lock(), picks=(platform, torch, replace(own, files=files)))

    installed = with_files(metadata_sha256="b0")
    assert errors(findings_of(installed, against=locked("a0"))) == {"verify-wheel-differs"}
    for known in (["a0", "b0"], ["a0", ""], []):
        assert not errors(findings_of(installed, against=locked(*known)))


def test_built_wheel_that_index_lacks_is_not_judged() -> None:
    platform, torch, own = lock().picks
    built = replace(lock(), picks=(platform, torch, replace(own, origin="build")))
    finding = findings_of(with_files(), against=built)["verify-wheels-not-judged"]
    assert (finding.severity, "My_Ext" in finding.message, "--index" in finding.fix) == (
        "warning",
        True,
        True,
    )
    findings = judged(with_files(), built, {}, need_gpu=False, in_index=["my-ext"])
    assert "verify-wheels-not-judged" not in {finding.id for finding in findings}


def test_overridden_requirement_is_no_error() -> None:
    older = InstalledDist("my-ext", "1.0+x", SITE, requires=["torch<2.9"])
    broken = [reply().distributions[0], older]
    request = replace(lock().request, overrides=(parse_requirement("torch==2.9.1+rocm6.4"),))
    findings = findings_of(reply(distributions=broken), against=replace(lock(), request=request))
    assert not errors(findings)
    assert "overrides" in findings["verify-pip-check-overridden"].message
    assert errors(findings_of(reply(distributions=broken))) == {"verify-pip-check-broken"}


def test_locked_distribution_of_nvidia_is_not_cuda() -> None:
    bindings = replace(lock(), picks=(*lock().picks, pick("nvidia-ml-py", "13.0")))
    installed = [*reply().distributions, InstalledDist("nvidia-ml-py", "13.0", SITE)]
    assert not errors(findings_of(reply(distributions=installed), against=bindings))
    assert errors(findings_of(reply(distributions=installed))) == {"verify-nvidia"}


def test_version_in_another_spelling_is_the_same() -> None:
    dates = replace(lock(), picks=(*lock().picks, pick("certifi", "2024.1.2")))
    installed = [*reply().distributions, InstalledDist("certifi", "2024.01.02", SITE)]
    assert not errors(findings_of(reply(distributions=installed), against=dates))


def test_broken_requirement_of_others_is_a_warning() -> None:
    jupyter = InstalledDist(
        "jupyter", "1", SITE, requires=["six", "x; sys_platform == 'win32'", "y; extra == 'z'", "?"]
    )
    findings = findings_of(reply(distributions=[*reply().distributions, jupyter]))
    assert not errors(findings)
    assert findings["verify-pip-check-others"].severity == "warning"
    assert "verify-pip-check" not in findings


def test_versions_without_lock_are_not_judged() -> None:
    findings = {finding.id: finding for finding in judged(reply(), None, {}, need_gpu=False)}
    assert findings["verify-pins-not-judged"].severity == "warning"
    assert not errors(findings)
    cuda = {
        finding.id
        for finding in judge_environment(
            reply(torch=FrameworkReply("2", cuda="12")), None, {}, need_gpu=False, rebuild=REBUILD
        )
    }
    assert "verify-torch-cuda" in cuda


def test_cpu_lock_needs_no_gpu() -> None:
    findings = findings_of(reply(torch=FrameworkReply("2.9.1+cpu")), against=lock("cpu"))
    assert not errors(findings)
    assert not [name for name in findings if "gpu" in name]


def test_distribution_installed_twice_is_a_warning() -> None:
    twice = InstalledDist("Torch", "2.8.0", "/usr/lib/python3/dist-packages")
    findings = findings_of(reply(distributions=[*reply().distributions, twice]))
    assert not errors(findings)  # the first on the path counts, and has the locked version
    assert "2.8.0 in /usr/lib/python3/dist-packages" in findings["verify-twice"].message


def test_user_packages_that_shadow_are_errors() -> None:
    findings = findings_of(reply(), own={"torch": "1.0", "six": "1.16"})
    assert errors(findings) == {"verify-user-site"}
    assert "torch 1.0" in findings["verify-user-site"].message
    assert "PYTHONNOUSERSITE=1" in findings["verify-user-site"].fix
    adds = findings_of(reply(), own={"six": "1.16"})
    assert (errors(adds), adds["verify-user-site-adds"].severity) == (set(), "warning")
    own = "/home/me/.local/lib/python3.11/site-packages"
    copy = InstalledDist("torch", "1.0", own)
    on_path = UserSite("3.11", path=own)
    first = reply(user_site=on_path, distributions=[copy, *reply().distributions])
    assert {"verify-user-site", "verify-pin-differs"} == errors(findings_of(first, own={"torch": "1.0"}))
    six = InstalledDist("six", "1.16", own)
    alone = reply(user_site=on_path, distributions=[*reply().distributions, six])
    assert "verify-user-site-adds" in findings_of(alone, own={"six": "1.16"})
    last = reply(user_site=on_path, distributions=[*reply().distributions, copy])
    assert not errors(findings_of(last, own={"torch": "1.0"}))
    shut = findings_of(reply(user_site=UserSite("3.11", "it is a virtual environment")), own={"torch": "1.0"})
    assert (errors(shut), shut["verify-user-site-shut"].severity) == (set(), "info")


def test_copied_library_is_recognized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "ROCM_LIBRARIES", str(tmp_path / "rocm"))
    for folder, content in (("rocm", "a"), ("copy", "a"), ("other", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "librccl.so").write_text(content)
    found = {
        name: payload.is_copied(str(tmp_path / name / "librccl.so")) for name in ("rocm", "copy", "other")
    }
    assert found == {"rocm": False, "copy": True, "other": False}
    assert not payload.is_copied(str(tmp_path / "copy" / "liblacking.so"))


def test_problem_that_a_replaced_library_solves_is_not_reported() -> None:
    torch = replace(lock().picks[1], version="2.7.1+rocm6.2.4")
    found = replace(lock(), picks=(torch,))
    ids = [text for text in problems_of(load(), found) if "librccl" in text]
    assert len(ids) == 1
    copied = [f"{SITE}/torch/lib/librccl.so"]
    assert not [text for text in problems_of(load(), found, copied=copied) if "librccl" in text]


def test_libraries_report_their_path() -> None:
    objects = [
        "/opt/env/lib/libstdc++.so.6.0.30",
        "/opt/env/lib/python3.11/site-packages/torch/lib/librccl.so",
        "/opt/rocm/lib/librccl.so.1.0",
        "/opt/env/lib/librccl-net.so",
        "/opt/env/lib/libMIOpen-3f1a2b3c.so.1",
    ]
    older = [LibStdCxx("/opt/env/lib/libstdc++.so.6.0.30", "3.4.30")]
    findings = judge_environment(
        reply(libraries=Libraries(objects, older)), lock(), {}, need_gpu=False, rebuild=REBUILD
    )
    loads = {
        finding.evidence["library"]: finding.evidence["member"]
        for finding in findings
        if finding.id == "verify-library"
    }
    assert loads == {"libstdc++": objects[0], "libMIOpen": objects[4]}
    (twice,) = [finding for finding in findings if finding.id == "verify-library-twice"]
    assert (twice.severity, "librccl is loaded more than once" in twice.message) == ("warning", True)
    assert "librccl-net" not in twice.message
    (shadowed,) = [finding for finding in findings if finding.id == "verify-libstdcxx-older"]
    assert "GLIBCXX_3.4.30" in shadowed.message
    assert "GLIBCXX_3.4.33" in shadowed.message


def libstdcxx_findings(path: str, glibcxx: str) -> list[Finding]:
    loaded = Libraries([], [LibStdCxx(path, glibcxx)], prefixes=["/opt/env"])
    findings = findings_of(reply(libraries=loaded))
    return [finding for name, finding in findings.items() if name.startswith("verify-libstdcxx")]


def test_newer_libstdcxx_of_environment_has_no_finding() -> None:
    assert not libstdcxx_findings("/opt/env/lib/libstdc++.so.6", "3.4.34")
    assert not libstdcxx_findings(f"{SITE}/tiny.libs/libstdc++-1234.so.6", "3.4.34")
    assert not libstdcxx_findings("/usr/lib64/libstdc++.so.6.0.33", "3.4.33")


def test_libstdcxx_of_a_module_is_a_warning() -> None:
    (other,) = libstdcxx_findings("/opt/gcc/lib64/libstdc++.so.6", "3.4.34")
    assert (other.id, other.severity) == ("verify-libstdcxx-other", "warning")
    (older,) = libstdcxx_findings("/opt/gcc/lib64/libstdc++.so.6", "3.4.30")
    assert older.id == "verify-libstdcxx-older"
    (conda,) = libstdcxx_findings("/opt/env/lib/libstdc++.so.6", "3.4.30")
    assert "LD_LIBRARY_PATH" in other.fix
    assert "LD_LIBRARY_PATH" in older.fix
    assert "conda" in conda.fix


def test_library_other_than_torchs_own_is_an_error() -> None:
    own = f"{SITE}/torch/lib/librccl.so"
    other = "/opt/rocm/lib/librccl.so.1.0"
    findings = findings_of(reply(libraries=Libraries([other], of_torch=[own])))
    assert errors(findings) == {"verify-library-other"}
    assert (
        f"librccl loads from {other}, not from torch's own {own}." in findings["verify-library-other"].message
    )
    assert not errors(findings_of(reply(libraries=Libraries([own], of_torch=[own]))))
    assert not errors(findings_of(reply(libraries=Libraries([other], of_torch=[]))))
    both = findings_of(reply(libraries=Libraries([own, other], of_torch=[own])))
    assert "verify-library-twice" in both
    assert not errors(both)


def with_fabric(needs: str, has: str) -> NetworkPlugin:
    found = "/f/libfabric.so.1"
    return NetworkPlugin("/l/librccl-net.so", [6], "libfabric.so.1", found, needs=needs, has=has)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"loaded": "/f/libfabric.so.1"}, set()),
        ({"loaded": ""}, set()),
        ({"loaded": "/venv/lib/libfabric.so.1"}, {"verify-plugin-libfabric-other"}),
        ({"error": "undefined symbol: hipFree"}, {"verify-plugin-not-loaded"}),
        ({"error": "version `FABRIC_1.8' not found", "has": "1.6"}, {"verify-plugin-libfabric"}),
    ],
)
def test_what_loading_the_plugin_shows_is_reported(change: dict[str, str], expected: set[str]) -> None:
    plugin = replace(with_fabric("1.8", "1.8"), **change)
    libraries = Libraries(["/l/librccl.so"], plugins=[plugin])
    found = findings_of(reply(libraries=libraries, torch=FrameworkReply(TORCH, "7.0.1")))
    assert {name for name in found if name.startswith("verify-plugin")} == expected | {"verify-plugin"}


@pytest.mark.parametrize(
    ("hip", "plugin", "variable", "expected"),
    [
        ("6.4.43482", NetworkPlugin("/l/librccl-net.so", [5]), "", set()),
        ("7.2.26015", NetworkPlugin("/l/libnccl-net.so", [6, 7, 12]), "", set()),
        ("7.2.26015", NetworkPlugin("/l/librccl-net.so", [6]), "", {"verify-plugin-name"}),
        ("7.2.26015", NetworkPlugin("/l/librccl-net.so", [6]), "/l/librccl-net.so", set()),
        ("7.0.1", NetworkPlugin("/l/librccl-net-ofi.so", [6]), "ofi", set()),
        ("6.1.2", NetworkPlugin("/l/librccl-net.so", [6]), "/l/librccl-net.so", {"verify-plugin-name"}),
        ("6.1.2", NetworkPlugin("/l/librccl-net-ofi.so", [6]), "ofi", set()),
        ("6.4.43482", NetworkPlugin("/l/librccl-net.so", [6]), "/gone.so", set()),
        ("7.0.1", NetworkPlugin("/l/librccl-net.so", [6]), "/gone.so", {"verify-plugin-name"}),
        ("7.0.1", NetworkPlugin("/l/librccl-net.so", [5]), "", {"verify-plugin-interface"}),
        ("6.0.3", NetworkPlugin("/l/librccl-net.so", [7, 8]), "", {"verify-plugin-interface"}),
        ("7.0.1", NetworkPlugin("/l/librccl-net.so", []), "", {"verify-plugin-interface"}),
        ("7.0.1", NetworkPlugin("/l/librccl-net.so", [6], "libfabric.so.1"), "", {"verify-plugin-libfabric"}),
        ("7.0.1", NetworkPlugin("/l/librccl-net.so", [6], "libfabric.so.1", "/f/libfabric.so.1"), "", set()),
        ("7.0.1", with_fabric("1.8", "1.6"), "", {"verify-plugin-libfabric"}),
        ("7.0.1", with_fabric("1.8", "1.10"), "", set()),
        ("7.0.1", with_fabric("1.8", ""), "", set()),  # a libfabric without versions has all symbols of it
        ("", NetworkPlugin("/l/librccl-net.so", [5]), "", set()),  # nothing is claimed about an unknown ROCm
    ],
)
def test_network_plugin_must_fit_the_rccl(
    hip: str, plugin: NetworkPlugin, variable: str, expected: set[str]
) -> None:
    libraries = Libraries(["/l/librccl.so"], plugins=[plugin], plugin_variable=variable)
    found = findings_of(reply(libraries=libraries, torch=FrameworkReply(TORCH, hip)))
    about = {name for name in found if name.startswith("verify-plugin")}
    opened = set() if "verify-plugin-name" in expected else {"verify-plugin"}
    assert about == expected | opened
    assert all(found[name].severity == "warning" for name in expected)


def test_missing_network_plugin_is_reported_only_with_an_rccl() -> None:
    assert "verify-plugin-missing" in findings_of(reply(libraries=Libraries(["/l/librccl.so.1"])))
    assert "verify-plugin-missing" not in findings_of(reply(libraries=Libraries(["/l/libc.so.6"])))


def test_failed_import_makes_libraries_not_judged() -> None:
    findings = findings_of(reply(libraries=Libraries(error="signal 6")))
    assert findings["verify-libraries-not-judged"].severity == "warning"


def test_gpu_findings() -> None:
    good = FrameworkReply(TORCH, "6.4", "", [Gpu("AMD Instinct MI250X", "gfx90a:sramecc+:xnack-", "")])
    assert findings_of(reply(torch=good), need_gpu=True)["verify-gpu"].severity == "info"
    assert "verify-gpu-not-judged" not in findings_of(reply(torch=good))
    other = FrameworkReply(TORCH, "6.4", "", [Gpu("AMD Instinct MI300X", "gfx942:sramecc+", "")])
    assert errors(findings_of(reply(torch=other))) == {"verify-gpu-target"}
    broken = FrameworkReply(TORCH, "6.4", "", [Gpu("", "gfx90a", "the product of two matrices is wrong")])
    assert errors(findings_of(reply(torch=broken))) == {"verify-gpu-failed"}
    assert errors(findings_of(reply(), need_gpu=True)) == {"verify-no-gpu"}


def test_jax_on_the_cpu_is_an_error_where_a_gpu_is_known() -> None:
    """JAX falls back to the CPU in silence; that torch or the job has a GPU shows it."""
    on_cpu = FrameworkReply("0.10.0", no_gpu="Unknown backend rocm.")
    found = findings_of(reply(jax=on_cpu))
    assert not errors(found)
    messages = [one.message for one in judged(reply(jax=on_cpu), lock(), {}, need_gpu=False)]
    assert "GPU kernels of jax are not judged: it finds no GPU here: Unknown backend rocm." in messages
    with_gpu = FrameworkReply(TORCH, "6.4", "", [Gpu("AMD Instinct MI250X", "gfx90a", "")])
    found = findings_of(reply(torch=with_gpu, jax=on_cpu))
    assert errors(found) == {"verify-no-gpu"}
    assert found["verify-no-gpu"].message == "jax finds no GPU, and torch finds one: Unknown backend rocm."
    found = findings_of(reply(jax=with_gpu), need_gpu=True)
    assert found["verify-no-gpu"].message == "torch finds no GPU, and --need-gpu is set."
    assert not errors(findings_of(reply(torch=with_gpu, jax=with_gpu), need_gpu=True))
    assert not errors(findings_of(reply(jax=on_cpu), against=lock("cpu"), need_gpu=True))


@pytest.mark.parametrize(
    ("load", "severity"),
    [
        (
            LoadReply("tiny", error="ModuleNotFoundError", text="No module named 'hjson'", missing="hjson"),
            "error",
        ),
        (
            LoadReply("tiny", error="OSError", text="libamdhip64.so.6: cannot open shared object file"),
            "error",
        ),
        (LoadReply("tiny", error="RuntimeError", text="No HIP GPUs are available"), "warning"),
    ],
    ids=lambda value: getattr(value, "text", ""),
)
def test_complete_environment_excuses_only_missing_gpu(load: LoadReply, severity: str) -> None:
    recipe = Recipe(package="tiny", backend="rocm", imports=("tiny",), status="observed", source="a test")
    wheel = WheelReply(distribution=WheelMetadata("tiny", "1.0", ["tiny"]), torch=HIP, imports=[load])
    (finding,) = judge_wheel(wheel, recipe, REBUILD)
    assert finding.severity == severity
    assert "log" not in finding.fix


# --- the reply of a real environment ------------------------------------------------------------------


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """Return the Python of an environment with a stand-in for torch and an extension that loads libstdc++."""
    packages = bare_environment(tmp_path / "env")
    # Stands in for torch: no GPU, no libraries.
    torch = "class version:\n    hip, cuda = '6.4', None\n__version__ = '2.9.1+rocm6.4'\nprint('noise')\n"
    torch += "class cuda:\n    device_count = staticmethod(lambda: 0)\n"
    extension = "import ctypes; ctypes.CDLL('libstdc++.so.6')\n"
    for name, version, code in (("torch", TORCH, torch), ("my_ext", "1.0+x", extension)):
        (packages / f"{name}.py").write_text(code)
        info = packages / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return tmp_path / "env" / "bin" / "python"


def probe(tmp_path: Path, python: Path | str, **env: str) -> Probe:
    (tmp_path / "scripts").mkdir(exist_ok=True)
    return Probe(HostRuntime(), str(python), folder=tmp_path / "scripts", log=tmp_path / "log", env=env)


def test_environment_replies(tmp_path: Path, environment: Path) -> None:
    result = probe(tmp_path, environment).ask_environment(["torch", "no_such", "my_ext"])
    assert {dist.name: dist.version for dist in result.distributions} == {"torch": TORCH, "my_ext": "1.0+x"}
    assert result.torch == FrameworkReply(TORCH, "6.4")
    assert result.jax is None
    assert result.user_site.ignored == "it is a virtual environment"
    assert any(Path(path).name.startswith("libstdc++.so") for path in result.libraries.objects)
    (loaded,) = result.libraries.libstdcxx
    assert loaded.glibcxx.startswith("3.4.")
    assert errors(findings_of(result)) <= {"verify-python"}  # this Python may not be 3.11


@pytest.mark.parametrize(
    ("behaviour", "expected", "words"),
    [
        ("rocm device", "", "GPU 0 (AMD Instinct MI250X, gfx90a) multiplies two matrices correctly with jax"),
        ("only cpu", "verify-no-gpu", "['cpu'] (ValueError: No AMD GPUs were found)"),
        ("exception", "verify-gpu-failed", "with jax: RuntimeError: INTERNAL: hipErrorNoBinaryForGpu"),
        (
            "wrong",
            "verify-gpu-failed",
            "with jax: the product of two matrices is wrong",
        ),
        ("elsewhere", "verify-gpu-failed", "JAX multiplied two matrices on another device"),
        ("no import", "verify-jax-failed", "jax cannot be imported: RuntimeError: jaxlib is older than jax"),
    ],
)
def test_jax_computes_on_a_gpu_or_is_reported(
    tmp_path: Path, environment: Path, behaviour: str, expected: str, words: str
) -> None:
    """The modules jax and numpy are STAND-INS."""
    (packages,) = environment.parent.parent.glob("lib/python3*/site-packages")
    write_jax(packages)
    result = probe(tmp_path, environment, STANDIN_JAX=behaviour).ask_environment([])
    picks = tuple(one for one in lock().picks if one.name not in {"torch", "python"})
    of_jax = replace(result, distributions=[InstalledDist("my-ext", "1.0+x", SITE)])
    found = findings_of(of_jax, against=replace(lock(), picks=picks), need_gpu=True)
    assert errors(found) == {expected} - {""}
    assert words in found[expected or "verify-gpu"].message


def test_reply_has_what_each_distribution_requires(tmp_path: Path, environment: Path) -> None:
    (packages,) = environment.parent.parent.glob("lib/python3*/site-packages")
    (packages / "own-1.dist-info").mkdir()
    text = "Metadata-Version: 2.1\nName: own\nVersion: 1\nRequires-Dist: torch>=2\nRequires-Dist: gone\n"
    (packages / "own-1.dist-info" / "METADATA").write_text(text)
    result = probe(tmp_path, environment).ask_environment([])
    assert result.installed["own"].requires == ["torch>=2", "gone"]
    assert "own 1 requires gone" in findings_of(result)["verify-pip-check-others"].message


def test_network_plugin_is_read_and_loaded_in_a_process_of_its_own(
    tmp_path: Path, environment: Path, compile_object: Callable[..., Path]
) -> None:
    """The objects stand in for RCCL, libfabric and plugins; one ends the process that loads it."""
    (packages,) = environment.parent.parent.glob("lib/python3*/site-packages")
    lib, other = tmp_path / "lib", tmp_path / "other"
    lib.mkdir()
    other.mkdir()
    (lib / "librccl.so.1").write_bytes(compile_object("librccl.so.1", "int rccl;").read_bytes())
    versions = tmp_path / "versions"
    versions.write_text("FABRIC_1.9 { fi_getinfo; };\nFABRIC_1.10 { fi_other; } FABRIC_1.9;\n")
    soname = ("-Wl,-soname,libfabric.so.97", f"-Wl,--version-script={versions}")
    fabric = compile_object("libfabric.so.97", "int fi_getinfo, fi_other;", *soname)
    source = (
        "extern int fi_getinfo; int *used = &fi_getinfo; int ncclNetPlugin_v6 = 1, ncclNetPlugin_v12 = 1;"
    )
    flags = ("-Wl,--no-as-needed", str(fabric))
    plugin = compile_object("librccl-net.so", source, *flags, f"-Wl,-rpath,{other}")
    (lib / "librccl-net.so").write_bytes(plugin.read_bytes())
    loading = f"import ctypes; ctypes.CDLL({str(lib / 'librccl.so.1')!r})\n"
    (packages / "my_ext.py").write_text(loading)

    def plugins(**env: str) -> list[NetworkPlugin]:
        result = probe(tmp_path, environment, **env).ask_environment(["my_ext"])
        assert not result.libraries.failure
        return result.libraries.plugins

    path = str(lib / "librccl-net.so")
    (missing,) = plugins()
    assert (missing.libfabric, missing.found, missing.needs) == ("libfabric.so.97", "", "1.9")
    assert "libfabric.so.97: cannot open shared object file" in missing.error
    (other / "libfabric.so.97.2").write_bytes(fabric.read_bytes())
    (other / "libfabric.so.97").symlink_to("libfabric.so.97.2")
    real = str((other / "libfabric.so.97.2").resolve())
    beside = NetworkPlugin(path, [6, 12], "libfabric.so.97", real, needs="1.9", has="1.10", loaded=real)
    assert plugins() == [beside]
    first = other / "libnccl-net.so"
    source = "void abort(void); __attribute__((constructor)) static void start(void) { abort(); }"
    source += "int ncclNetPlugin_v5 = 1;"
    first.write_bytes(compile_object("old.so", source).read_bytes())
    aborting, same = plugins(LD_LIBRARY_PATH=str(other))
    assert (aborting.path, aborting.interfaces, same) == (str(first), [5], beside)
    assert "signal 6" in aborting.error
    loading += f"ctypes.CDLL({str(tmp_path / 'libfabric.so.97')!r})\n"
    (tmp_path / "libfabric.so.97").write_bytes(fabric.read_bytes())
    (packages / "my_ext.py").write_text(loading)
    assert plugins() == [replace(beside, loaded=str(tmp_path / "libfabric.so.97"))]
    (packages / "my_ext.py").write_text("")
    assert plugins() == []


def test_reply_has_ops_that_a_wheel_records(tmp_path: Path, environment: Path) -> None:
    (info,) = environment.parent.parent.glob("lib/python3*/site-packages/my_ext-*.dist-info")
    ops = [{"name": OP_PROPERTY, "value": "fused_adam"}, {"name": "other", "value": "x"}]
    (info / "sboms").mkdir()
    for text, expected in (
        (json.dumps({"formulation": [{"properties": ops}]}), ["fused_adam"]),
        (json.dumps({"formulation": [{"components": []}]}), []),
        ("no JSON", []),
    ):
        (info / "sboms" / SBOM_NAME).write_text(text)
        result = probe(tmp_path, environment).ask_environment([])
        assert {dist.name: dist.ops for dist in result.distributions} == {"torch": [], "my_ext": expected}


def test_crash_of_torch_loses_only_its_own_reply(tmp_path: Path, environment: Path) -> None:
    (packages,) = environment.parent.parent.glob("lib/python3*/site-packages")
    (packages / "torch.py").write_text("import os; os.abort()\n")
    result = probe(tmp_path, environment).ask_environment(["torch"])
    assert result.libraries.failure.startswith("signal 6")
    assert result.torch.failure.startswith("signal 6")
    assert len(result.distributions) == 2


def test_missing_python_and_damaged_reply(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not start a working Python") as caught:
        probe(tmp_path, tmp_path / "none").ask_environment([])
    assert "--python" in caught.value.hint
    with pytest.raises(MatrixError, match="Its last output was: hello", check=has_id("probe")):
        parse_reply("hello\n\n", "42", EnvironmentReply)
    with pytest.raises(MatrixError, match="Cannot read the reply", check=has_id("probe")):
        parse_reply(f"{MARK}42 {{}}", "42", EnvironmentReply)


@pytest.mark.slow
def test_environment_compares_files_with_their_hashes(tmp_path: Path, environment: Path) -> None:
    (packages,) = environment.parent.parent.glob("lib/python3*/site-packages")
    (info,) = packages.glob("my_ext-*.dist-info")
    module, metadata = packages / "my_ext.py", info / "METADATA"
    hashes = {
        path.relative_to(packages).as_posix(): recorded_hash(hashlib.sha256(path.read_bytes()).digest())
        for path in (module, metadata)
    }
    (info / "RECORD").write_text(
        "".join(f"{name},{text},1\n" for name, text in hashes.items()) + "gone.pyc,,\n"
    )

    def asked(files: dict[str, dict[str, str]]) -> InstalledDist:
        dists = probe(tmp_path, environment).ask_environment([], files).distributions
        return next(dist for dist in dists if dist.name == "my_ext")

    same = asked({"my-ext": {}})
    assert (same.compared, same.differing) == (2, [])
    assert same.metadata_sha256 == hashlib.sha256(metadata.read_bytes()).hexdigest()
    assert asked({"torch": {}}).compared == 0
    module.write_text("")
    assert asked({"my-ext": {}}).differing == ["my_ext.py"]
    assert asked({"my-ext": {metadata.relative_to(packages).as_posix(): hashes.popitem()[1]}}).differing == []
    module.unlink()
    assert asked({"my-ext": {}}).differing == ["my_ext.py"]


@pytest.mark.slow
def test_user_site_is_that_of_the_users_variables(tmp_path: Path, environment: Path) -> None:
    settings = environment.parent.parent / "pyvenv.cfg"
    settings.write_text(settings.read_text().replace("packages = false", "packages = true"))
    used = probe(tmp_path, environment, PYTHONNOUSERSITE="").ask_environment([]).user_site
    assert used.ignored == ""
    unused = probe(tmp_path, environment, PYTHONNOUSERSITE="1").ask_environment([]).user_site
    assert unused.ignored == "PYTHONNOUSERSITE is set"


def test_command_that_starts_python_is_split(tmp_path: Path, environment: Path) -> None:
    wrapper = tmp_path / "run it.sh"
    wrapper.write_text('exec "$@"\n')
    command = f"sh '{wrapper}' {environment}"
    assert probe(tmp_path, command).ask_environment([]).executable == str(environment)
    with pytest.raises(UsageError, match="no closing quotation"):
        probe(tmp_path, "sh 'run")


def test_python_that_needs_setuid_programs_is_probed(
    tmp_path: Path, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container runtime with setuid does not start in the user namespace that has no network."""
    monkeypatch.setattr(runtime, "without_network", lambda: ("/usr/bin/env", "CUT=1"))
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\n[ -z "$CUT" ] || exit 1\nexec {environment} "$@"\n')
    wrapper.chmod(0o755)
    assert probe(tmp_path, wrapper).ask_environment([]).executable == str(environment)


def test_user_packages_of_one_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "lib" / "python3.12" / "site-packages" / "Six_.x-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: Six_.x\nVersion: 1.0\n")
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path))
    assert user_packages("3.12") == {"six-x": "1.0"}
    assert user_packages("3.11") == {}


def test_newest_symbols_compares_numbers(tmp_path: Path) -> None:
    (tmp_path / "lib").write_bytes(b"\0GLIBCXX_3.4.9\0GLIBCXX_3.4.30\0GLIBCXX_3.4\0GLIBCXX_DEBUG\0")
    assert newest_symbols(str(tmp_path / "lib"))["glibcxx"] == "3.4.30"
    assert newest_symbols("") == {"path": "", "glibcxx": ""}


# --- the job ------------------------------------------------------------------------------------------

JOB = BatchJob("dev-g", "project_1", "00:15:00", ["/a b/python", "-m", "matrix"], "/w/matrix-verify-%j.out")


def test_job_script(tmp_path: Path) -> None:
    text = job_script(JOB)
    assert text.startswith("#!/bin/bash\n")
    options = [line for line in text.splitlines() if line.startswith("#SBATCH ")]
    assert options == [
        "#SBATCH --job-name=matrix-verify", "#SBATCH --partition=dev-g", "#SBATCH --account=project_1",
        "#SBATCH --time=00:15:00", "#SBATCH --nodes=1", "#SBATCH --ntasks=1", "#SBATCH --gpus-per-node=1",
        '#SBATCH --output="/w/matrix-verify-%j.out"',
    ]  # fmt: skip
    assert text.splitlines()[-1] == "exec '/a b/python' -m matrix"
    (tmp_path / "script").write_text(text)
    subprocess.run(["bash", "-n", str(tmp_path / "script")], check=True)
    assert "--account" not in job_script(BatchJob("p", "", "5", ["x"], "o"))


@pytest.mark.parametrize("value", ["a b", "x\n#SBATCH --uid=0", "$(id)", '"'])
def test_job_script_rejects_unsafe_values(value: str) -> None:
    with pytest.raises(UsageError):
        job_script(BatchJob(value, "", "5", ["x"], "o"))


@pytest.mark.parametrize(
    ("site", "time", "partition"), [("lumi-g", "00:15:00", "dev-g"), ("lumi-g", "1-12:00:00", "standard-g")]
)
def test_partition_with_lowest_sufficient_limit(site: str, time: str, partition: str) -> None:
    assert partition_for(load(), site, hours_of(time)) == partition


@pytest.mark.slow
def test_missing_partition_and_invalid_time() -> None:
    with pytest.raises(UsageError, match="no GPU partition of lumi-c"):
        partition_for(load(), "lumi-c", 0.25)
    with pytest.raises(UsageError, match="for 1000 hours") as caught:
        partition_for(load(), "lumi-g", 1000)
    assert "dev-g up to 3 h" in caught.value.hint
    with pytest.raises(UsageError, match="'soon' is not a valid time"):
        hours_of("soon")


def standin_sbatch(folder: Path, code: str) -> None:
    """Write a stand-in for sbatch."""
    folder.mkdir(exist_ok=True)
    (folder / "sbatch").write_text(f"#!/bin/sh\n{code}\n")
    (folder / "sbatch").chmod(0o755)


def test_submit_returns_job_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, log = tmp_path / "job", tmp_path / "log"
    script.write_text(job_script(JOB))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(EnvironmentLacksError, match="sbatch is not on PATH"):
        submit(script, log)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/usr/bin:/bin")
    standin_sbatch(tmp_path / "bin", '[ "$1" = --parsable ] && [ -s "$2" ] && echo "4711;lumi"')
    assert submit(script, log) == "4711"
    standin_sbatch(tmp_path / "bin", 'echo "sbatch: error: invalid account" >&2; exit 1')
    with pytest.raises(CommandError, match="invalid account"):
        submit(script, log)
    standin_sbatch(tmp_path / "bin", "echo done")
    with pytest.raises(MatrixError, match="printed no job number"):
        submit(script, log)


# --- the docs -----------------------------------------------------------------------------------------


def test_documentation_lists_every_finding() -> None:
    source = Path(judging.__file__)
    others = (source.with_name("all_reduce.py"), source.parents[2] / "matrix" / "judging" / "running.py")
    code = "".join(path.read_text() for path in (source, *others))
    given = re.findall(r'Finding\(\s*"(verify-[a-z-]+)",\s*"([a-z]+)"', code)
    page = (source.parents[2] / "docs" / "reference" / "verifying.md").read_text()
    rows = re.findall(r"(?m)^\| `(verify-[a-z-]+)` \| ([a-z ]+) \|", page)
    listed = {(name, severity) for name, severities in rows for severity in severities.split(" or ")}
    assert set(given) == listed
    assert len(given) == code.count('"verify-')


def test_variables_of_site_are_judged() -> None:
    def row(name: str, value: str | None) -> SiteVariable:
        return SiteVariable(
            site="here", name=name, value=value, reason="it hangs", status="observed", source="a report"
        )

    rows = [row("SET", "1"), row("MISSING", "${USER}"), row("BAD", None), row("GONE", None)]
    findings = list(judge_variables({"SET": "2", "BAD": "3"}, rows))
    assert [(finding.id, finding.severity) for finding in findings] == [
        ("verify-variable-missing", "info"),
        ("verify-variable-set", "warning"),
    ]
    assert "BAD is set to '3': it hangs." in findings[1].message
    assert [finding.evidence["source"] for finding in findings] == ["a report"] * 2


@pytest.mark.parametrize(
    ("of_pip", "of_system", "is_reported"),
    [("7.14.1", "/opt/rocm-7.2.4", True), ("7.14.1", "", False), ("", "/opt/rocm-7.2.4", False)],
)
def test_two_rocms_are_reported(of_pip: str, of_system: str, *, is_reported: bool) -> None:
    sdk = [InstalledDist("rocm-sdk-core", of_pip, SITE)] if of_pip else []
    environment = reply(
        distributions=[InstalledDist("torch", TORCH, SITE), InstalledDist("my-ext", "1.0+x", SITE), *sdk],
        system_rocm=of_system,
    )
    assert ("verify-two-rocms" in findings_of(environment)) == is_reported


DEVICE = "amd-torch-device-gfx90a==2.12.0; extra == 'device-gfx90a'"


@pytest.mark.parametrize(
    ("requirements", "present", "says"),
    [
        ([DEVICE], "", "Install torch[device-gfx90a]=="),
        ([DEVICE], "amd-torch-device-gfx90a", ""),
        ([DEVICE.replace("gfx90a", "gfx942")], "amd-torch-device-gfx942", "no package with code for gfx90a"),
        ([], "", ""),
    ],
)
def test_missing_device_package_is_reported(requirements: list[str], present: str, says: str) -> None:
    more = [InstalledDist(present, "2.12.0", SITE)] if present else []
    torch = InstalledDist("torch", TORCH, SITE, requires=requirements)
    environment = reply(distributions=[torch, InstalledDist("my-ext", "1.0+x", SITE), *more])
    found = findings_of(environment)
    assert ("verify-device-missing" in found) == bool(says)
    if says:
        finding = found["verify-device-missing"]
        assert says in f"{finding.message} {finding.fix}"


def test_code_of_rocm_is_missing_only_beside_its_libraries() -> None:
    needs = ["rocm-sdk-device-gfx90a==7.14.1; extra == 'device-gfx90a'"]
    rocm = InstalledDist("rocm", "7.14.1", SITE, requires=needs)
    known = [InstalledDist("torch", TORCH, SITE), InstalledDist("my-ext", "1.0+x", SITE), rocm]
    assert "verify-device-missing" not in findings_of(reply(distributions=known))
    known.append(InstalledDist("rocm-sdk-libraries", "7.14.1", SITE))
    assert "verify-device-missing" in findings_of(reply(distributions=known))


def test_stray_archive_is_reported() -> None:
    paths = ["torch/.kpack/torch_gfx90a.kpack", "torch/.kpack/torch_gfx90a:xnack+.kpack"]
    for archives, is_stray in ((paths, True), (paths[:1], False), (paths[1:], False)):
        device = InstalledDist("amd-torch-device-gfx90a", "2.12.0", SITE, archives=archives)
        known = [InstalledDist("torch", TORCH, SITE), InstalledDist("my-ext", "1.0+x", SITE), device]
        assert ("verify-stray-kpack" in findings_of(reply(distributions=known))) == is_stray


def test_probe_lists_device_packages_and_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = "torch/.kpack/torch_gfx90a.kpack"
    Tree(tmp_path).dist("torch", "2.12.0", {archive: b""}, requires=[DEVICE, "filelock"])
    (site,) = tmp_path.glob("lib/python3*/site-packages")
    monkeypatch.setattr(payload, "search_path", lambda: [str(site)])
    (torch,) = payload.distributions({})
    assert (torch["requires"], torch["archives"]) == ([DEVICE, "filelock"], [archive])
