"""`matrix` against pip, uv and fromager, which build the same four packages; prints JSON.

The packages are flash-attn without GPU code, DeepSpeed with cpu_adam, torch-scatter and torch-spline-conv,
for the CPU build of torch. Every tool gets the same files from an index on this machine, so that the network
is not timed, and is used as its documentation says:

- ``matrix resolve`` and ``matrix build-wheels``;
- ``pip wheel``, one package after another, in an environment that has torch;
- ``uv sync``, with torch as a build dependency that matches torch at run time;
- ``fromager bootstrap-parallel``, with everything but the four packages marked as pre-built.

Each runs three times. *cold*: with empty caches. *warm*: the same commands again. *changed*: again, after
a compiler flag of torch-scatter has changed. The contents of the packages show which of them were built
again. If torch-scatter was not, its cached build is removed, and the tool runs once more (*cleared*). The
tools run in turn. `matrix` uses no compiler cache, because the others have none.

``python -m benchmarks.four_packages [--runs N] [--tool NAME] [--package NAME]``
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import threading
import time
import zipfile
from abc import ABC, abstractmethod
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NamedTuple

from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename

from benchmarks import programs
from builders.storage.files import remove_tree

ROOT = Path(__file__).resolve().parent.parent
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
TORCH = "2.13.0"
PYTORCH = "https://download.pytorch.org/whl/cpu/"
FLAG = "-march=x86-64-v2"
CHANGED = "torch-scatter"
CORES = len(os.sched_getaffinity(0))


class Package(NamedTuple):
    """One of the packages, with the requirements that its metadata does not state."""

    version: str
    requires: tuple[str, ...]
    """Requirements at run time, besides torch."""
    tools: tuple[str, ...]
    """Build requirements, besides torch."""
    variables: dict[str, str]


PACKAGES = {
    "flash-attn": Package(
        "2.8.3",
        ("einops",),
        ("setuptools", "wheel", "ninja", "packaging", "psutil"),
        {"FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE", "FLASH_ATTENTION_FORCE_BUILD": "TRUE"},
    ),
    "deepspeed": Package(
        "0.19.8",
        (
            "einops",
            "hjson",
            "msgpack",
            "ninja",
            "numpy",
            "packaging",
            "psutil",
            "py-cpuinfo",
            "pydantic",
            "tqdm",
        ),
        ("setuptools", "wheel", "ninja", "packaging", "psutil", "py-cpuinfo"),
        {"DS_BUILD_CPU_ADAM": "1", "DS_ACCELERATOR": "cpu", "DS_ENABLE_NINJA": "1"},
    ),
    "torch-scatter": Package("2.1.2", (), ("setuptools", "wheel", "ninja"), {"FORCE_ONLY_CPU": "1"}),
    "torch-spline-conv": Package("1.2.2", (), ("setuptools", "wheel", "ninja"), {"FORCE_ONLY_CPU": "1"}),
}

# The catalog builds flash-attn for ROCm only.
CATALOG = """schema = 1

[[release]]
package = "flash-attn"
version = "2.8.3"
backend = ["cpu"]
status = "observed"
source = "PyPI sdist 2.8.3"

[release.sdist]
file = "flash_attn-2.8.3.tar.gz"
sha256 = "1e71dd64a9e0280e0447b8a0c2541bad4bf6ac65bdeaa2f90e51a9e57de0370d"
"""
RECIPE = """
[[recipe]]
package = "{name}"
backend = "cpu"
declared = []
undeclared = {tools}
environment = {{ {variables} }}
{checks}
status = "observed"
source = "setup.py"
"""


def requirements(names: list[str]) -> list[str]:
    """Return the requirements, torch included."""
    return [f"torch=={TORCH}", *(f"{name}=={PACKAGES[name].version}" for name in names)]


def variables_of(name: str, *, changed: bool) -> dict[str, str]:
    """Return the variables with which a package is built."""
    more = {"CFLAGS": FLAG, "CXXFLAGS": FLAG} if changed and name == CHANGED else {}
    return PACKAGES[name].variables | more


Command = tuple[list[str], dict[str, str]]
"""A command and its variables."""


class Run(NamedTuple):
    """The measurements of one run of all commands of a tool."""

    seconds: float
    built: list[str]
    """The packages whose content differs from their content after the previous run."""


class Tool(ABC):
    """A tool that builds the packages.

    Attributes
    ----------
    folder
        Its directory, with its caches.
    names
        The packages to build.
    index
        URL of the index.
    """

    def __init__(self, folder: Path, names: list[str], index: str, venv: Path) -> None:
        folder.mkdir(parents=True)
        self.folder, self.names, self.index, self.bin = folder, names, index, venv / "bin"
        self.contents: dict[str, str] = {}

    @abstractmethod
    def commands(self, *, changed: bool) -> list[Command]:
        """Write the tool's settings; return its commands, each with variables."""

    def forget(self) -> list[list[str]]:
        """Return the commands that remove the cached build of the changed package."""
        return []

    @abstractmethod
    def read_contents(self) -> dict[str, str]:
        """Return a digest of the content of each package."""

    def run(self, *, changed: bool, forget: bool = False) -> Run:
        """Run all commands."""
        commands = self.commands(changed=changed)
        if forget:
            commands = [*((command, {}) for command in self.forget()), *commands]
        started = time.perf_counter()
        for command, variables in commands:
            self._run_one(command, variables)
        seconds = time.perf_counter() - started
        before, self.contents = self.contents, self.read_contents()
        assert sorted(self.contents) == sorted(self.names), self.contents
        return Run(seconds, [name for name in self.names if before.get(name) != self.contents[name]])

    def _run_one(self, command: list[str], variables: dict[str, str]) -> None:
        own = ("PIP_", "UV_", "XDG_", "PYTHON", "FROMAGER_")
        kept = {name: text for name, text in os.environ.items() if not name.startswith(own)}
        kept |= {"HOME": str(self.folder / "home"), "PATH": f"{self.bin}:{os.environ['PATH']}"}
        kept |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": self.index, "UV_DEFAULT_INDEX": self.index}
        with (self.folder / "log").open("a+") as log:
            log.write(programs.run(command, cwd=self.folder, env=kept | variables))


class Matrix(Tool):
    """Resolve and build; the wheels are audited and imported, too."""

    def commands(self, *, changed: bool) -> list[Command]:
        """Write the settings; return the commands."""
        (self.folder / "catalog").mkdir(exist_ok=True)
        (self.folder / "catalog" / "four.toml").write_text(write_catalog(changed=changed))
        (self.folder / "matrix.toml").write_text(f'[mirrors]\n"{PYTORCH}" = "{self.index}/"\n')
        matrix = [sys.executable, "-m", "matrix"]
        target = ["--backend", "cpu", "--python", PYTHON, "--catalog", "catalog"]
        build = ["build-wheels", "--index", "index", "--compiler-cache", "none", "--catalog", "catalog"]
        own = {"PYTHONPATH": str(ROOT)}
        return [
            ([*matrix, "resolve", *requirements(self.names), *target], own),
            ([*matrix, *build], own),
        ]

    def read_contents(self) -> dict[str, str]:
        """Return a digest of the content of each package."""
        return read_wheels(self.folder / "index", self.names)


class PipWheel(Tool):
    """Build one package after another in an environment that has torch."""

    def commands(self, *, changed: bool) -> list[Command]:
        """Write the settings; return the commands."""
        pip = ["env/bin/python", "-m", "pip"]
        tools = dict.fromkeys(tool for name in self.names for tool in PACKAGES[name].tools)
        commands: list[Command] = [
            ([sys.executable, "-m", "venv", "env"], {}),
            ([*pip, "install", "-U", "pip"], {}),
            ([*pip, "install", f"torch=={TORCH}", *tools], {}),
        ]
        wheel = [*pip, "wheel", "--no-build-isolation", "--no-deps", "-w", "wheels"]
        for name in self.names:
            variables = variables_of(name, changed=changed) | {"MAX_JOBS": str(CORES)}
            commands.append(([*wheel, f"{name}=={PACKAGES[name].version}"], variables))
        return commands

    def forget(self) -> list[list[str]]:
        """Return the command that removes the wheel from pip's cache."""
        return [["env/bin/python", "-m", "pip", "cache", "remove", CHANGED.replace("-", "_")]]

    def read_contents(self) -> dict[str, str]:
        """Return a digest of the content of each package."""
        return read_wheels(self.folder / "wheels", self.names)


class UvSync(Tool):
    """Build and install into an environment of the project."""

    def commands(self, *, changed: bool) -> list[Command]:
        """Write the settings; return the commands."""
        lines = [
            "[project]",
            'name = "four-packages"',
            'version = "1"',
            f'requires-python = "=={PYTHON}.*"',
            f"dependencies = {json.dumps(requirements(self.names))}",
            "[tool.uv]",
            "package = false",
            """environments = ["sys_platform == 'linux' and platform_machine == 'x86_64'"]""",
            "[tool.uv.extra-build-dependencies]",
        ]
        torch = '{ requirement = "torch", match-runtime = true }'
        tools = {name: ", ".join([torch, *map(json.dumps, PACKAGES[name].tools)]) for name in self.names}
        variables = {name: write_table(variables_of(name, changed=changed)) for name in self.names}
        lines += [f"{name} = [{text}]" for name, text in tools.items()]
        lines += ["[tool.uv.extra-build-variables]"]
        lines += [f"{name} = {{ {text} }}" for name, text in variables.items()]
        for name in self.names:
            requires = json.dumps(["torch", *PACKAGES[name].requires])
            lines += ["[[tool.uv.dependency-metadata]]", f'name = "{name}"']
            lines += [f'version = "{PACKAGES[name].version}"', f"requires-dist = {requires}"]
        (self.folder / "pyproject.toml").write_text("\n".join(lines))
        return [([str(self.bin / "uv"), "sync", "--python", sys.executable], {"MAX_JOBS": str(CORES)})]

    def forget(self) -> list[list[str]]:
        """Return the commands that remove the package from uv's cache and environment."""
        uv = str(self.bin / "uv")
        return [[uv, "cache", "clean", CHANGED], [uv, "pip", "uninstall", CHANGED]]

    def read_contents(self) -> dict[str, str]:
        """Return a digest of the content of each package."""
        contents = {}
        installed = self.folder / f".venv/lib/python{PYTHON}/site-packages"
        for distribution in distributions(path=[str(installed)]):
            if (name := str(canonicalize_name(distribution.name))) in self.names:
                files = sorted(str(path) for path in distribution.files or [] if is_code(str(path)))
                digests = [(path, digest((installed / path).read_bytes())) for path in files]
                contents[name] = digest(json.dumps(digests).encode())
        return contents


class Fromager(Tool):
    """Build with all other packages pre-built; a new line in the changelog causes a new build."""

    def commands(self, *, changed: bool) -> list[Command]:
        """Write the settings; return the commands."""
        others = sorted(path.name for path in (self.folder.parent / "index" / "simple").iterdir())
        packages: dict[str, Any] = {
            name: {"variants": {"cpu": {"pre_built": True, "wheel_server_url": self.index}}}
            for name in others
            if name not in PACKAGES and name != "index.html"
        }
        for name in self.names:
            packages[name] = {
                "resolver_dist": {"sdist_server_url": self.index},
                "project_override": {"update_build_requires": ["torch", *PACKAGES[name].tools]},
                "env": variables_of(name, changed=changed),
            }
            if changed and name == CHANGED:
                packages[name]["changelog"] = {PACKAGES[name].version: [f"compiled with {FLAG}"]}
        (self.folder / "overrides" / "settings").mkdir(parents=True, exist_ok=True)
        for name, settings in packages.items():
            (self.folder / "overrides" / "settings" / f"{name}.yaml").write_text(json.dumps(settings))
        (self.folder / "requirements.txt").write_text("\n".join(requirements(self.names)))
        command = [str(self.bin / "fromager"), "bootstrap-parallel", "-r", "requirements.txt"]
        return [(command, {})]

    def read_contents(self) -> dict[str, str]:
        """Return a digest of the content of each package."""
        return read_wheels(self.folder / "wheels-repo" / "downloads", self.names)


TOOLS: dict[str, type[Tool]] = {"matrix": Matrix, "pip": PipWheel, "uv": UvSync, "fromager": Fromager}


def write_catalog(*, changed: bool) -> str:
    """Return the rows that the shipped catalog does not have."""
    text = CATALOG
    checks = {
        "flash-attn": "imports = []",
        CHANGED: 'imports = ["torch_scatter"]\nmust-contain = ["torch_scatter/_scatter_cpu*.so"]',
    }
    for name, lines in checks.items():
        text += RECIPE.format(
            name=name,
            tools=json.dumps(["torch", *PACKAGES[name].tools]),
            variables=write_table(variables_of(name, changed=changed)),
            checks=lines,
        )
    return text


def write_table(variables: dict[str, str]) -> str:
    """Return the keys and values of an inline table."""
    return ", ".join(f"{name} = {json.dumps(text)}" for name, text in variables.items())


def is_code(name: str) -> bool:
    """Return whether a file of a package is compared; others contain paths and times."""
    return name.endswith((".so", ".py"))


def digest(data: bytes) -> str:
    """Return the SHA-256 of data."""
    return hashlib.sha256(data).hexdigest()


def read_wheels(folder: Path, names: list[str]) -> dict[str, str]:
    """Return a digest of the content of the newest wheel of each package."""
    contents = {}
    for path in sorted(folder.rglob("*.whl"), key=lambda path: path.stat().st_mtime_ns):
        name = str(parse_wheel_filename(path.name)[0])
        if name in names:
            with zipfile.ZipFile(path) as wheel:
                codes = {info.filename: info.CRC for info in wheel.infolist() if is_code(info.filename)}
            contents[name] = digest(json.dumps(codes, sort_keys=True).encode())
    return contents


def write_index(root: Path) -> None:
    """Fetch the files that the tools need, and write an index of them."""
    (root / "catalog").mkdir(parents=True)
    (root / "catalog" / "four.toml").write_text(write_catalog(changed=False))
    names = [*PACKAGES]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(root / "cache")}
    run = partial(programs.run, cwd=root, env=variables)
    matrix = [sys.executable, "-m", "matrix"]
    target = ["--backend", "cpu", "--python", PYTHON, "--catalog", "catalog", "-q"]
    run([*matrix, "resolve", *requirements(names), *target])
    run([*matrix, "farm", "fetch", "--catalog", "catalog", "-q"])
    run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", "cache", "pip"])
    for path in (root / "cache").rglob("*"):
        if path.suffix == ".whl":
            name = str(parse_wheel_filename(path.name)[0])
        elif path.name.endswith(".tar.gz"):
            name = str(parse_sdist_filename(path.name)[0])
        else:
            continue
        page = root / "simple" / name
        page.mkdir(parents=True, exist_ok=True)
        with (page / "index.html").open("a") as sink:
            sink.write(write_link(Path(shutil.copy(path, page))))
    links = [f'<a href="{page.name}/">{page.name}</a><br>\n' for page in sorted((root / "simple").iterdir())]
    (root / "simple" / "index.html").write_text("<!DOCTYPE html>\n" + "".join(links))
    remove_tree(root / "cache")


def write_link(path: Path) -> str:
    """Return the link to a file; the metadata of a wheel is written beside it."""
    attribute = ""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            name = next(name for name in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
            metadata = wheel.read(name)
        path.with_name(f"{path.name}.metadata").write_bytes(metadata)
        attribute = f' data-core-metadata="sha256={digest(metadata)}"'
    href = f"{path.name.replace('+', '%2B')}#sha256={digest(path.read_bytes())}"
    return f'<a href="{href}"{attribute}>{path.name}</a><br>\n'


class _Quiet(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass


def install_tools(venv: Path) -> dict[str, str]:
    """Create an environment with uv and fromager; return the versions of all tools."""
    programs.run([sys.executable, "-m", "venv", str(venv)])
    command = [str(venv / "bin" / "python"), "-m", "pip", "install", "-q", "pip", "-U", "uv", "fromager"]
    programs.run(command)
    installed = distributions(path=[str(venv / f"lib/python{PYTHON}/site-packages")])
    return {
        distribution.name: distribution.version
        for distribution in installed
        if distribution.name in {"pip", "uv", "fromager"}
    }


def run_all(work: Path, tools: list[str], names: list[str], index: str) -> dict[str, dict[str, Run]]:
    """Run all tools with empty caches, again, and after the change."""
    places = {name: TOOLS[name](work / name, names, index, work / "tools") for name in tools}
    runs: dict[str, dict[str, Run]] = {}
    for phase in ("cold", "warm", "changed"):
        runs[phase] = {}
        for name, tool in places.items():
            runs[phase][name] = run = tool.run(changed=phase == "changed")
            print(name, phase, run, file=sys.stderr, flush=True)
    kept = [name for name, run in runs["changed"].items() if CHANGED in {*names} - {*run.built}]
    runs["cleared"] = {name: places[name].run(changed=True, forget=True) for name in kept}
    for name in tools:
        remove_tree(work / name)
    return runs


def summarize(several: list[dict[str, dict[str, Run]]], tools: list[str]) -> dict[str, Any]:
    """Return medians, and the median of the ratios to the first tool in the same run."""
    document: dict[str, Any] = {}
    for phase in several[0]:
        document[phase] = {}
        for name in tools:
            pairs = [(result[phase][name], result) for result in several if name in result[phase]]
            if not pairs:
                continue
            base = "changed" if phase == "cleared" else phase
            document[phase][name] = {
                "seconds": round(statistics.median(run.seconds for run, _ in pairs), 1),
                "ratio": round(
                    statistics.median(run.seconds / result[base][tools[0]].seconds for run, result in pairs),
                    2,
                ),
                "built": pairs[0][0].built,
            }
    return document


def main() -> None:
    """Print all figures and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--tool", action="append", choices=TOOLS, help="only these (repeatable)")
    parser.add_argument("--package", action="append", choices=PACKAGES, help="only these (repeatable)")
    args = parser.parse_args()
    tools, names = args.tool or [*TOOLS], args.package or [*PACKAGES]
    document: dict[str, Any] = {"schema": 1, "torch": TORCH, "cores": CORES, "packages": names}
    document["load before"] = round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        document["versions"] = install_tools(work / "tools")
        write_index(work / "index")
        with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=work / "index")) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            index = f"http://127.0.0.1:{server.server_port}/simple"
            several = [run_all(work, tools, names, index) for _ in range(args.runs)]
            server.shutdown()
    document |= summarize(several, tools)
    document["load after"] = round(os.getloadavg()[0], 1)
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
