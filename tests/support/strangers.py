"""Files of strangers in which every text can be replaced, and readers of what is written from them."""

from __future__ import annotations

import datetime
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from msgspec.structs import replace
from ruamel.yaml import YAML

from matrix.consumers import consumer_names, load_consumer
from matrix.consumers.shared.installation import Installation, Layout, WrittenFile
from resolver import indexes
from resolver.facts.schema import Git, Job, Patch, Recipe, Sdist, SiteVariable
from resolver.indexes import ExcludedFile, Judgement
from resolver.lock import digest_of, dumps
from resolver.model import (
    BaseImage,
    Distribution,
    DriverWindow,
    Edge,
    Fact,
    FactsFile,
    Notice,
    Preinstalled,
    Request,
    Resolution,
    Target,
)
from resolver.requirements import parse_requirement

ZEROS = "0" * 64
IMAGE = "/images/base.sif"
CONSUMERS = sorted({*consumer_names()} - {"pylock"})  # tomli_w writes that


def everything(*, keeps_torch: bool) -> Resolution:
    """Return a lock in which every field has a value."""
    target = Target(
        site="lumi-g", date=datetime.date(2026, 3, 1), backend="rocm", gfx=("gfx90a",), driver="6.3",
        base_image="base", rocm="6.4.4", python="3.12", glibc="2.39",
    )  # fmt: skip
    fact = Fact("a fact", "observed", "a source", note="a note", file="facts.toml")
    file = indexes.File(
        "pure-1.0-py3-none-any.whl", "https://host.example/pure-1.0-py3-none-any.whl", ZEROS, 10,
        "https://index.example/simple", ">=3.9", "2026-01-01T00:00:00Z", "broken", has_metadata=True,
        metadata_sha256=ZEROS,
    )  # fmt: skip

    content = Judgement("fits", "pure.so opens libcudart.so.12", on_cpu=True)

    def pick(name: str, version: str, origin: Any, **more: Any) -> Distribution:
        known = {"kind": "distribution", "support": "observed", "verdict": "supported"}
        return Distribution(name=name, version=version, origin=origin, **{**known, **more})

    archive = Sdist(file="apex-1.0.tar.gz", sha256=ZEROS, url="https://host.example/apex-1.0.tar.gz")
    git = Git(url="https://host.example/deepspeed.git", commit="0" * 40, submodules=("third_party/x",))
    patch = Patch(file="fix.patch", sha256=ZEROS)
    label = "+rocm6.4.torch2.9.1.gfx90a"
    recipe = Recipe(
        package="drafted", releases="==1.0", variant="v", backend="rocm", status="inferred",
        source="its source", note="a note", declared=("setuptools",), undeclared=("torch",),
        environment={"A": "1", "CC": ""}, must_contain=("drafted/*.so",), imports=("drafted",),
        source_contains={"setup.py": "A"}, cxx_standard="17",
    )  # fmt: skip
    torch: dict[str, Any] = {"origin": "preinstalled"} if keeps_torch else {
        "origin": "published", "index": "https://download.example/rocm6.4"
    }  # fmt: skip
    picks = (
        pick("base-image", "base", "base-image", kind="platform"),
        pick("python", "3.12", "base-image", kind="platform"),
        pick("torch", "2.9.1+rocm6.4", facts=(fact,), **torch),
        pick(
            "apex", "1.0", "build", wheel_version=f"1.0{label}", sdist=archive, variant="v", patches=(patch,)
        ),
        pick("deepspeed", "1.0", "build", wheel_version=f"1.0{label}", git=git),
        pick(
            "drafted",
            "1.0",
            "build",
            wheel_version=f"1.0{label}",
            variant="v",
            sdist=replace(archive, file="drafted-1.0.tar.gz"),
            source=indexes.SourceClass("torch", "setup.py:1 imports torch"),
            recipe=recipe,
        ),
        pick("stand-in", "1.0", "build", wheel_version=f"1.0{label}", alias_of="deepspeed"),
        pick("given", "1.0", "published", wheel=archive),
        pick("pure", "1.0", "published", index=file.index, files=(file,), extras=("all",), content=content),
        pick(
            "direct",
            "1.0",
            "published",
            files=(replace(file, name="direct-1.0.tar.gz", index=""),),
            source=indexes.SourceClass("pure", "setup.py:1: no extension"),
        ),
    )
    requirements = ("torch", "apex", "EOF ; python_version > '3'", "REQUIREMENTS")
    request = Request(
        target,
        tuple(map(parse_requirement, requirements)),
        (parse_requirement("numpy<3"),),
        (parse_requirement("pure==1.0"),),
        site_file="site.toml",
        catalogs=("facts",),
        facts_files=(FactsFile("facts/own.toml", ZEROS),),
        excluded=(ExcludedFile("gone", "1.0", ZEROS, "requires CUDA"),),
        stated=(indexes.StatedMetadata("apex", "1.0", ZEROS, ("six; extra == 'all'",), ("all",)),),
        ops=("deepspeed:fused_adam",),
        preinstalled=Preinstalled("image", {"pip": "25.0", "torch": "2.9.1+rocm6.4"}, ("numpy",)),
    )
    return Resolution(
        request=request,
        target=target,
        image=BaseImage("base", IMAGE, f"sha256:{ZEROS}", "0a1b", "14.2"),
        driver_window=DriverWindow(datetime.date(2026, 1, 1), None, "6.3.1", "a source"),
        picks=picks,
        order=(("torch",), ("apex", "deepspeed", "drafted")),
        edges=(Edge("apex", "torch", "run", declared=False, requirement="torch>=2"),),
        left_open=("the requirements of torch",),
        incomplete=("deepspeed",),
        indexes=("https://own.example/simple",),
        notes=(Notice("", "", "a note"),),
        warnings=(Notice("", "", "a warning"),),
    )


def data_of(lock: Resolution) -> dict[str, Any]:
    data = tomllib.loads(dumps(lock))
    del data["integrity"]
    return data


def written(data: dict[str, Any], path: Path) -> Path:
    path.write_text(tomli_w.dumps({**data, "integrity": {"sha256": digest_of(data)}}))
    return path


PLAIN_PATHS = {"apptainer", "easybuild"}
"""Consumers that refuse paths with special characters."""


def emitted(lock: Resolution, consumer: str, folder: Path) -> list[WrittenFile]:
    variable = SiteVariable(
        site="lumi-g",
        name="A",
        value="/tmp/${USER}",
        reason="a reason\ntouch x",
        status="observed",
        source="s",
    )
    job = Job(site="lumi-g", ranks=8, cpus=7, status="observed", source="a source\ntouch x")
    installation = Installation(lock, variables=[variable], left_open=lock.left_open, job=job)
    index = folder / ("index" if consumer in PLAIN_PATHS else "in dex'\"$(x)`y`")
    for name in ("apex", "deepspeed", "drafted", "stand-in"):
        (index / "simple" / name).mkdir(parents=True, exist_ok=True)
        (index / "simple" / name / f"{name}-1.0+rocm6.4.torch2.9.1.gfx90a-py3-none-any.whl").touch()
    (index / "simple" / "index.html").touch()
    made = load_consumer(consumer)
    files = made.emit(installation, Layout(made.file, index, folder=folder))
    for file in files:
        (folder / file.name).parent.mkdir(exist_ok=True)
        (folder / file.name).write_text(file.text)
    return files


def shell(script: str, folder: Path, *, run: bool = True) -> subprocess.CompletedProcess[str]:
    """Check the syntax of a script; then run it where every program that it could need does nothing."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    for name in (
        "singularity",
        "apptainer",
        "cotainr",
        "conda-containerize",
        "python",
        "mksquashfs",
        "sbatch",
    ):
        (programs / name).write_text("#!/bin/sh\nexit 0\n")
        (programs / name).chmod(0o755)
    (folder / "script").write_text(script)
    checked = subprocess.run(
        ["bash", "-n", "script"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")
    env = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder), "USER": "me", "TMPDIR": str(folder)}
    return subprocess.run(
        ["bash", "script"] if run else ["true"],
        cwd=folder, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        timeout=60,
    )  # fmt: skip


def read_back(file: WrittenFile, folder: Path) -> Any:  # noqa: PLR0911  one for each format
    """Return the meaning of a file for the program that reads it; scripts are run."""
    text = file.text
    if file.name.endswith(".yml"):
        return YAML(typ="safe").load(text)
    if file.name.endswith(".toml"):
        return tomllib.loads(text)
    if file.name.endswith(".txt"):
        return requirements_of_pip(folder / file.name)
    if file.name.endswith(".py"):
        variables: dict[str, Any] = {"local_singularity_bind": "a", "local_sif": "b"}
        exec(text, variables)
        for command in variables["local_matrix_install"][:2]:
            (folder / "user-software" / "venv").mkdir(parents=True, exist_ok=True)
            shell(command % {"installdir": str(folder)}, folder)
        return [(folder / "user-software" / "venv" / name).read_text() for name in
                ("requirements.txt", "constraints.txt")]  # fmt: skip
    if file.name.endswith(".def"):
        post = text.partition("%post\n")[2].partition("\n%environment")[0]
        shell(post.replace("/opt/matrix", f"{folder}/opt"), folder)
        return [(folder / "opt-files" / name).read_text() for name in ("requirements.txt", "constraints.txt")]
    if file.name.endswith(".lua"):
        return settings_of_module("lua5.3", LUA_FUNCTIONS, folder / file.name)
    if text.startswith("#%Module"):
        return settings_of_module("tclsh", TCL_FUNCTIONS, folder / file.name)
    shell(text, folder)
    if file.name == "environment.sh":
        return shell(f'{text}\nprintf %s "$A"\n', folder).stdout
    return None


LUA_FUNCTIONS = """
for _, name in ipairs({"whatis", "help", "family", "depends_on"}) do _G[name] = function(...) end end
function prepend_path(...) print(...) end
function pushenv(...) print(...) end
dofile(arg[1])
"""
TCL_FUNCTIONS = """
foreach name {module module-whatis family} { proc $name {args} {} }
foreach name {prepend-path setenv pushenv unsetenv} { proc $name {args} { puts $args } }
source [lindex $argv 0]
"""
"""Functions of a module system that print what the module sets."""


def settings_of_module(interpreter: str, functions: str, path: Path) -> str:
    """Run a module file, and return what it sets."""
    if not shutil.which(interpreter):
        pytest.skip(f"needs {interpreter}")
    program = path.with_name(f"functions.{interpreter}")
    program.write_text(functions)
    done = subprocess.run(
        [interpreter, str(program), str(path)],
        cwd=path.parent, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def requirements_of_pip(path: Path) -> list[str]:
    """Return the lines of a requirements file as pip's parser reads them."""
    from pip._internal.network.session import PipSession
    from pip._internal.req.req_file import RequirementsFileParser, get_line_parser

    with PipSession() as session:
        parser = RequirementsFileParser(session, get_line_parser(None))
        lines = [*parser.parse(str(path), constraint=False)]
    return [
        repr(
            (
                getattr(line, "args", getattr(line, "requirement", "")),
                {name: value for name, value in vars(line.opts).items() if value},
            )
        )
        for line in lines
    ]


PYLOCK: dict[str, Any] = {
    "lock-version": "1.0",
    "created-by": "somebody",
    "requires-python": ">=3.9",
    "packages": [
        {
            "name": "pure", "version": "1.0", "index": "https://index.example/simple",
            "marker": "python_version > '3'",
            "wheels": [{"name": "pure-1.0-py3-none-any.whl", "url": "https://h.example/pure-1.0-py3-none-any.whl",
                        "hashes": {"sha256": ZEROS}}],
        },
        {
            "name": "far",
            "archive": {"url": "https://h.example/far.zip", "hashes": {"sha256": ZEROS}, "subdirectory": "a"},
        },
        {"name": "repo", "vcs": {"type": "git", "url": "https://h.example/r.git", "commit-id": "0" * 40}},
    ],
}  # fmt: skip


SITE = """schema = 1
[[site]]
name = "mine"
title = "Mine"
backend = "rocm"
gfx = ["gfx90a"]
status = "observed"
source = "me"
note = "a note"
[[site-variable]]
site = "mine"
name = "A"
value = "b"
reason = "because"
combination = { torch = ">=2" }
status = "observed"
source = "me"
[[image]]
name = "base"
path = "/images/base.sif"
digest = "sha256:00"
holds = { torch = "2.9.1" }
status = "observed"
source = "me"
[[package]]
name = "ext"
title = "Ext"
status = "observed"
source = "me"
[[release]]
version = "1.0"
sdist = { file = "ext-1.0.tar.gz", sha256 = "00", url = "https://h.example/ext-1.0.tar.gz" }
patches = [{ file = "a.patch", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }]
status = "observed"
source = "me"
[[recipe]]
backend = "rocm"
run-environment = { B = "c" }
environment = { C = "d" }
status = "observed"
source = "me"
"""


_TASK = {
    "key": "a1", "name": "apex", "version": "1.0", "requires": ["b2"], "cores": 1, "memory_gib": 1.0,
    "seconds": 1.0, "time_limit": 1, "lock": "/a/matrix.lock", "state": "failed", "why": "w",
}  # fmt: skip
_JOB = {"number": "1", "keys": ["a1"], "after": ["2"]}
RUN: dict[str, Any] = {
    "id": "0a", "directory": "/a", "options": ["--offline"], "tasks": [_TASK], "jobs": [_JOB],
    "partition": "p", "account": "a", "server": "/a",
}  # fmt: skip
"""The state of a run in a batch system."""
