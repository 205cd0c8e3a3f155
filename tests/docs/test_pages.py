"""The pages agree with the program: commands, options, links to elsewhere, man pages."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from matrix.consumers import slurm_job
from resolver.errors import IDS
from resolver.facts.catalog import load

PROJECT = Path(__file__).parents[2]
PAGES = [*sorted((PROJECT / "docs").rglob("*.md")), *sorted(PROJECT.glob("*.md"))]
COMMANDS = PROJECT / "docs" / "reference" / "commands"
ARCHITECTURE = PROJECT / "docs" / "development" / "architecture.md"
PACKAGES = {"resolver": "Resolving", "builders": "Building", "matrix": "Command line and consumers"}
"""The packages, each with the heading of its section in the architecture."""


@pytest.fixture(scope="module")
def command_line() -> Any:
    """Return the module of the documentation that reads the parsers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PROJECT / "docs")
        yield importlib.import_module("command_line")
        sys.modules.pop("command_line", None)


@pytest.fixture(scope="module")
def flags(command_line: Any) -> dict[str, set[str]]:
    """Return the flags of each command and its actions."""
    return {
        command.name: {
            flag
            for part in (command, *command.actions)
            for argument in part.arguments
            for flag in argument.flags
        }
        for command in command_line.read_commands()
    }


def test_every_command_has_a_page(flags: dict[str, set[str]]) -> None:
    pages = {page.stem for page in COMMANDS.glob("*.md")} - {"README", "target-options"}
    assert pages == set(flags)
    overview = (COMMANDS / "README.md").read_text()
    assert [name for name in flags if f"({name}.md)" not in overview] == []


def test_pages_name_options_that_exist(flags: dict[str, set[str]]) -> None:
    wrong = []
    for name, known in flags.items():
        for line in (COMMANDS / f"{name}.md").read_text().splitlines():
            if line.startswith("| `-"):
                options = re.findall(r"`(--[a-z][a-z-]*)", line.split(" | ")[0])
                wrong += [(name, option) for option in options if option not in known | {"--gfx"}]
    assert wrong == []


def test_every_error_id_has_a_page() -> None:
    pages = {page.stem for page in (PROJECT / "docs" / "reference" / "errors").glob("*.md")} - {"README"}
    names = {"resolver/errors.py", "matrix/show/console.py"}
    defined = {
        name
        for path in names
        for name in re.findall(r'^    id(?:: str)? = "(.*)"', (PROJECT / path).read_text(), re.MULTILINE)
    }
    assert pages == defined | set(IDS)
    assert len(pages) > 15


def test_readme_lists_packages_and_sites_of_the_catalog() -> None:
    catalog = load()
    section = (PROJECT / "README.md").read_text().split("## What the catalog covers\n", 1)[1]
    packages, sites = section.split("\n\n")[:2]
    known, unknown = sites.split(" The kernel drivers of ")
    listed = [re.findall(r"`([^`]+)`", text) for text in (packages, known, unknown)]
    without_driver = {
        site.name
        for site in catalog.site.values()
        if site.backend == "rocm" and site.name != "local" and not catalog.windows_of(site.name)
    }
    assert [sorted(names) for names in listed] == [
        sorted(catalog.package),
        sorted(set(catalog.site) - without_driver),
        sorted(without_driver),
    ]


def test_links_to_other_sites_are_well_formed() -> None:
    links = {
        (page.name, link) for page in PAGES for link in re.findall(r"\]\(([a-z]+:[^)]*)\)", page.read_text())
    }
    assert links
    parts = {link: urlsplit(link[1]) for link in links}
    assert [link for link, part in parts.items() if part.scheme != "https" or "." not in part.netloc] == []


def test_man_page_escapes_and_lists_actions(command_line: Any) -> None:
    argument = command_line.Argument(("-o", "--out"), "FILE", ".hidden \\ file", "options")
    action = command_line.Command("site init", "Write a file", "", (argument,), ())
    page = command_line.man_page(
        command_line.Command("site", "Write a site file", "matrix site", (), (action,))
    )
    assert "matrix\\-site \\- write a site file" in page
    assert ".B \\-o, \\-\\-out FILE\n\\&.hidden \\e file" in page
    assert ".SH MATRIX SITE INIT" in page


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_man_pages_have_no_warnings() -> None:
    pages = sorted((PROJECT / "docs" / "man").glob("*.1"))
    assert len(pages) > 15
    done = subprocess.run(
        ["groff", "-man", "-Tascii", "-ww", *pages], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


def first_run() -> list[str]:
    """Return the lines of the commands of the page about the first run at a site."""
    page = (PROJECT / "docs" / "howto" / "first-run.md").read_text()
    assert "No part of this project has run on an AMD GPU" in page
    return [line for block in re.findall(r"(?ms)^```\n(.*?)^```$", page) for line in block.splitlines()]


def test_tutorial_makes_what_readme_makes_and_submits_the_scripts_that_it_writes() -> None:
    page, readme = ((PROJECT / name).read_text() for name in ("docs/tutorial.md", "README.md"))
    commands = [re.findall(r"(?m)^matrix build-container train\.sif .*", text) for text in (page, readme)]
    assert commands[0] == commands[1] != []
    submitted = [shlex.split(line)[1:] for line in re.findall(r"(?m)^sbatch .*", page)]
    written = re.findall(r"(?m)^job-\S+\.sh$", page)  # the output of ls, which is run
    assert len(submitted) == 2
    for option, _, name, *words in submitted:
        assert option == "-A"
        assert name in written
        assert words == ["--smoke"] or words[0] == "python"
    template = PROJECT / "matrix" / "consumers" / "shared" / "scripts" / "slurm_job.sh"
    assert "--smoke" in template.read_text()


def test_commands_of_pages_exist(flags: dict[str, set[str]]) -> None:
    """Commands of blocks that no test runs, because they need a cluster, have options that exist."""
    wrong, seen = [], 0
    for page in [PROJECT / "README.md", PROJECT / "docs/tutorial.md", *(PROJECT / "docs/howto").glob("*.md")]:
        for block in re.findall(r"(?ms)^```(?:bash)?\n(.*?)^```$", page.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                if not line.startswith("matrix "):
                    continue
                name, *words = shlex.split(line, comments=True)[1:]
                options = {word.partition("=")[0] for word in words if word.startswith("--")} - {"--gfx90a"}
                seen += 1
                if (name not in flags and name != "--version") or not options <= flags.get(name, set()):
                    wrong.append(f"{page.name}: {line}")
    assert wrong == []
    assert seen > 40


def test_readme_says_of_its_command_what_the_command_says() -> None:
    """The numbers beside the command are those of its plan, which another test compares with the program."""
    readme, plan = ((PROJECT / name).read_text() for name in ("README.md", "docs/tutorial.md"))
    (command,) = re.findall(r"(?m)^matrix build-container train.sif (.*) --site lumi-g$", readme)
    assert f"$ matrix build-container train.sif {command} --date" in plan
    number, time, cores = re.findall(
        r"build-wheels  (\d) to build, at least (\d+) min with (\d) cores", plan
    )[0]
    words = ("no", "one", "two", "three", "four")
    parts = (
        f"{words[int(number)].capitalize()} of the {words[len(shlex.split(command))]} packages are compiled"
    )
    assert parts in readme
    assert f"at least {time} minutes with {words[int(cores)]} cores" in readme


def test_commands_of_first_run_exist(flags: dict[str, set[str]]) -> None:
    commands = [shlex.split(line, comments=True) for line in first_run() if line.startswith("matrix ")]
    assert {words[1] for words in commands} == {"check", "build-container", "env"}
    for words in commands:
        assert {word for word in words if word.startswith("-")} <= flags[words[1]]
    scripts = {match for line in first_run() for match in re.findall(r"job-\w+\.sh", line)}
    assert scripts == {slurm_job.CONSUMER.file, "job-node.sh", "job-gpu.sh"}


def test_architecture_lists_every_module_and_no_other() -> None:
    page = ARCHITECTURE.read_text()
    modules = {
        str(path.relative_to(PROJECT)) for package in PACKAGES for path in (PROJECT / package).rglob("*.py")
    }
    listed, folder = set(), ""
    for line in page.partition("\n## Modules\n")[2].partition("\n## ")[0].splitlines():
        if match := re.match(r"\*\*`(.+)/`\*\* \S|- `(\w+\.py)`: \S", line):
            folder = match[1] or folder
            listed.add(f"{folder}/{match[2] or '__init__.py'}")
    assert listed == modules, "run: nox -s docs"
    mentioned = [name for name in re.findall(r"`([\w/]+\.py)`", page) if not (PROJECT / name).is_file()]
    assert [name for name in mentioned if not any(path.endswith(f"/{name}") for path in modules)] == []


@pytest.mark.parametrize(("package", "heading"), PACKAGES.items())
def test_architecture_describes_every_folder_by_its_modules(package: str, heading: str) -> None:
    section = ARCHITECTURE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    root, folders = PROJECT / package, set()
    for first, text in re.findall(r"^\| (`.*?) \| (.*) \|$", section, re.MULTILINE):
        folder = first.strip("`/") if first.endswith("/`") else ""
        folders.add(folder)
        missing = [
            name
            for name in re.findall(r"`([\w/]+\.py)`", first + text)
            if not any(path.is_file() for path in (root / folder / name, root / name, PROJECT / name))
        ]
        assert not missing, f"{folder}: {missing}"
    assert folders - {""} == {path.parent.name for path in root.glob("*/__init__.py")}


def test_needs_name_commands_and_tests_that_exist(flags: dict[str, set[str]]) -> None:
    page = (PROJECT / "docs" / "development" / "needs.md").read_text()
    rows = [
        re.split(r" (?<!\\)\| ", line) for line in page.splitlines() if re.match(r"\| (?!need|---)", line)
    ]
    cell = re.compile(r"((`tests/[\w/]+\.py::test_\w+`(, )?)+|none: .{10,80}) \|")
    assert [row[0] for row in rows if not cell.fullmatch(row[2])] == []
    proofs = set(re.findall(r"(tests/[\w/]+\.py)::(test_\w+)", page))
    missing = {
        f"{file}::{name}"
        for file, name in proofs
        if not re.search(rf"^def {name}\(", (PROJECT / file).read_text(), re.MULTILINE)
    }
    assert missing == set()
    assert set(re.findall(r"`matrix ([a-z-]+)", page)) - set(flags) == set()


def test_table_of_needs_says_where_each_is_run_and_what_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PROJECT / "docs")
    needs = importlib.import_module("needs")
    rows = {cells[0]: cells for cells in (line[2:-2].split(" | ") for line in needs.table().splitlines()[2:])}
    page = (PROJECT / "docs" / "development" / "needs.md").read_text()
    assert list(rows) == re.findall(r"^\| (?!need|---)(.*?) \| ", page, re.MULTILINE)
    assert len(rows) > 60
    gaps = [need for need, row in rows.items() if row[2].startswith("**not run**")]
    assert gaps == [need for need, row in rows.items() if row[4] == "none"]
    plugin = rows["several nodes: RCCL's network plugin on Slingshot"]
    assert plugin[2] == "`nox -s long`; CI"
    assert "stands in for HIP's runtime" in plugin[3]
    assert rows["JAX, TensorFlow, CuPy and others for ROCm"][2] == "CI"
    assert rows["a definition file for Apptainer"][2] == "CI (integration); `nox -s long`"
    assert rows["a container with JAX for ROCm, made only if its plugin loads"][2] == "`nox -s long`"
    assert rows["tykky as LUMI installs it"][2] == "**not run**: LUMI's module is only there"
    sys.modules.pop("needs", None)
