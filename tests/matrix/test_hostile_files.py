"""Locks, plans, sites and other files of strangers: they are refused, or their texts stay data."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomli_w
from msgspec.structs import replace
from ruamel.yaml import YAML

from builders.index import Index
from builders.scheduling.batch import Run
from builders.scheduling.slurm import Slurm
from matrix.cli import main
from matrix.consumers import consumer_names, load_consumer
from matrix.consumers.shared.files import File, Layout
from matrix.consumers.shared.installation import Installation
from matrix.consumers.shared.shell import site_environment
from matrix.plan_formats import github_workflow, gitlab_pipeline, hyperqueue_jobs, sbatch_script
from matrix.pylock_file import read_pylock
from resolver import indexes
from resolver.errors import CatalogError, LockError, MatrixError, UsageError
from resolver.facts.catalog_files import read_file
from resolver.facts.schema import Git, Patch, Sdist, SiteVariable
from resolver.lock import digest_of, dumps, read_lock
from resolver.model import (
    BaseImage,
    Distribution,
    DriverWindow,
    Edge,
    Fact,
    Preinstalled,
    Request,
    Resolution,
    Target,
)
from resolver.reporter import SILENT
from resolver.requirements import parse_requirement
from tests.support.hostile import (
    CANARY,
    INVISIBLE,
    VISIBLE,
    Place,
    fields_with_text,
    places,
    text_fields,
    with_text,
)
from tests.support.plans import plan_of

ZEROS = "0" * 64
IMAGE = "/images/base.sif"
CONSUMERS = sorted({*consumer_names()} - {"pylock"})  # which is written by tomli_w from types of packaging


def everything(*, keeps_torch: bool) -> Resolution:
    """Return a lock in which every field has a value."""
    import datetime

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

    def pick(name: str, version: str, origin: Any, **more: Any) -> Distribution:
        known = {"kind": "distribution", "support": "observed", "verdict": "supported"}
        return Distribution(name=name, version=version, origin=origin, **{**known, **more})

    archive = Sdist(file="apex-1.0.tar.gz", sha256=ZEROS, url="https://host.example/apex-1.0.tar.gz")
    git = Git(url="https://host.example/deepspeed.git", commit="0" * 40, submodules=("third_party/x",))
    patch = Patch(file="fix.patch", sha256=ZEROS)
    label = "+rocm6.4.torch2.9.1.gfx90a"
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
        pick("stand-in", "1.0", "build", wheel_version=f"1.0{label}", alias_of="deepspeed"),
        pick("given", "1.0", "published", wheel=archive),
        pick("pure", "1.0", "published", index=file.index, files=(file,), extras=("all",)),
        pick("direct", "1.0", "published", files=(replace(file, index=""),)),
    )
    requirements = ("torch", "apex", "EOF ; python_version > '3'", "REQUIREMENTS")
    request = Request(
        target,
        tuple(map(parse_requirement, requirements)),
        (parse_requirement("numpy<3"),),
        (parse_requirement("pure==1.0"),),
        site_file="site.toml",
        catalogs=("facts",),
        preinstalled=Preinstalled("image", {"pip": "25.0", "torch": "2.9.1+rocm6.4"}),
    )
    return Resolution(
        request=request,
        target=target,
        image=BaseImage("base", IMAGE, f"sha256:{ZEROS}", "0a1b", "14.2"),
        driver_window=DriverWindow(datetime.date(2026, 1, 1), None, "6.3.1", "a source"),
        picks=picks,
        order=(("torch",), ("apex", "deepspeed")),
        edges=(Edge("apex", "torch", "run", declared=False, requirement="torch>=2"),),
        left_open=("the requirements of torch",),
        notes=("a note",),
        warnings=("a warning",),
    )


def test_lock_of_the_tests_has_text_in_every_field() -> None:
    """A new field of a lock is missing here until `everything` has it, so the other tests write into it."""
    literals = {"Resolution.schema"}
    assert text_fields(Resolution) - literals <= fields_with_text(everything(keeps_torch=False))


def data_of(lock: Resolution) -> dict[str, Any]:
    data = tomllib.loads(dumps(lock))
    del data["integrity"]
    return data


def written(data: dict[str, Any], path: Path) -> Path:
    path.write_text(tomli_w.dumps({**data, "integrity": {"sha256": digest_of(data)}}))
    return path


def refusal(data: dict[str, Any], path: Path) -> str:
    """Return the error for a lock; empty if it is read."""
    try:
        read_lock(written(data, path))
    except LockError as error:
        return error.message
    return ""


def spelled(place: Place) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place).lstrip(".")


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return data_of(everything(keeps_torch=False))


def test_invisible_character_in_any_text_of_a_lock_is_refused(data: dict[str, Any], tmp_path: Path) -> None:
    for place in places(data):
        for text in INVISIBLE:
            message = refusal(with_text(data, place, text), tmp_path / "matrix.lock")
            assert spelled(place) in message, (place, text)
            assert message.isprintable()
            assert "touch" in message or "status" in place  # the value is shown
    for text in INVISIBLE:
        changed = {**data, "request": {**data["request"], "preinstalled": {"installed": {text: "1"}}}}
        assert "installed" in refusal(changed, tmp_path / "matrix.lock")


PATHS_AND_REMARKS = {
    "text", "source", "note", "file", "notes", "warnings", "left_open", "variant", "path", "name", "package",
    "catalogs", "site_file", "base_image", "version", "yanked", "requires_python", "uploaded", "requirement",
    "alias_of", "submodules", "requirements", "constraints", "overrides", "installed",
}  # fmt: skip
"""The keys of a lock that may have texts of any visible characters; the rest are names, versions and URLs."""


@pytest.fixture(scope="module")
def accepted(data: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[Place, list[str]]:
    """Return the visible texts that a lock may have, by place; each place has other texts, to save time."""
    path = tmp_path_factory.mktemp("accepted") / "matrix.lock"
    return {
        place: [
            text
            for text in (VISIBLE * 2)[position % len(VISIBLE) :][:TRIED]
            if not refusal(with_text(data, place, text), path)
        ]
        for position, place in enumerate(places(data))
    }


def test_names_versions_and_urls_of_a_lock_have_only_their_characters(
    data: dict[str, Any], accepted: dict[Place, list[str]]
) -> None:
    for place, found in accepted.items():
        is_free = {*place} & PATHS_AND_REMARKS
        if place[0] == "picks" and len(place) == 3 and place[-1] in {"name", "version"}:
            is_free &= {"version"} if data["picks"][place[1]]["kind"] == "platform" else set()
        assert is_free or not found, place


# The files that are written from a lock.

TRIED = 9
ROUNDS = 5
"""Each place gets another text in each round."""
PLAIN_PATHS = {"apptainer", "easybuild"}
"""Consumers that refuse paths with special characters."""
DECISIVE = {"requirements", "constraints", "overrides", "installed"}
"""Keys whose values are what is installed."""


def emitted(lock: Resolution, consumer: str, folder: Path) -> list[File]:
    variable = SiteVariable(
        site="lumi-g",
        name="A",
        value="/tmp/${USER}",
        reason="a reason\ntouch x",
        status="observed",
        source="s",
    )
    installation = Installation(lock, variables=[variable], left_open=lock.left_open)
    index = folder / ("index" if consumer in PLAIN_PATHS else "in dex'\"$(x)`y`")
    for name in ("apex", "deepspeed", "stand-in"):
        (index / "simple" / name).mkdir(parents=True, exist_ok=True)
        (index / "simple" / name / f"{name}-1.0+rocm6.4.torch2.9.1.gfx90a-py3-none-any.whl").touch()
    (index / "simple" / "index.html").touch()
    made = load_consumer(consumer)
    files = made.emit(installation, Layout(made.file, index, folder=folder))
    for file in files:
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


def read_back(file: File, folder: Path) -> Any:  # noqa: PLR0911  one for each format
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
    shell(text, folder)
    if file.name == "environment.sh":
        return shell(f'{text}\nprintf %s "$A"\n', folder).stdout
    return None


def requirements_of_pip(path: Path) -> list[str]:
    """Return the lines of a requirements file as pip's parser reads them."""
    program = (
        "import sys\n"
        "from pip._internal.req.req_file import RequirementsFileParser, get_line_parser\n"
        "from pip._internal.network.session import PipSession\n"
        "parser = RequirementsFileParser(PipSession(), get_line_parser(None))\n"
        "for line in parser.parse(sys.argv[1], False):\n"
        "    options = {k: v for k, v in vars(line.opts).items() if v}\n"
        "    print(repr((line.args if hasattr(line, 'args') else line.requirement, options)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_texts_of_a_lock_stay_data_in_the_files_of_consumers(
    accepted: dict[Place, list[str]], consumer: str, tmp_path: Path
) -> None:
    """Write texts into all fields that accept them: no program runs them, and the files mean the same."""
    (tmp_path / "plain").mkdir()
    lock = everything(keeps_torch=consumer in {"easybuild", "venv"})
    files = emitted(lock, consumer, tmp_path / "plain")
    expected = [read_back(file, tmp_path / "plain") for file in files]
    data = data_of(lock)
    known = {*places(data)}
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        changed = data
        for position, (place, choices) in enumerate(accepted.items()):
            if choices and not {*place} & DECISIVE and place in known:
                text = choices[(number + position) % len(choices)]
                is_file = place[-3:-2] == ("files",) and place[-1] == "name"
                changed = with_text(changed, place, f"{text}.whl" if is_file else text)
        if consumer in PLAIN_PATHS:
            changed = with_text(changed, ("image", "path"), IMAGE)
        hostile = read_lock(written(changed, folder / "matrix.lock"))
        found = [read_back(file, folder) for file in emitted(hostile, consumer, folder)]
        assert repr(found).replace(str(folder), "") == repr(expected).replace(str(tmp_path / "plain"), "")
        assert not list(folder.rglob(CANARY))
        assert not Path(CANARY).exists()


@pytest.mark.parametrize("text", VISIBLE)
def test_path_that_a_definition_file_cannot_contain_is_refused(text: str, tmp_path: Path) -> None:
    lock = everything(keeps_torch=False)
    assert lock.image is not None
    lock = replace(lock, image=replace(lock.image, path=f"/images/{text}"))
    if {*" *?[]{}\"'\\"} & {*text}:
        with pytest.raises(UsageError, match="definition file"):
            emitted(lock, "apptainer", tmp_path)
    else:
        (file,) = emitted(lock, "apptainer", tmp_path)
        assert file.text.count(f"From: /images/{text}\n") == 1


def test_texts_of_a_plan_stay_data_in_its_files(tmp_path: Path) -> None:
    (tmp_path / "programs").mkdir()
    for name, body in (
        ("sbatch", 'printf "%s\\n" "$@" >> called; echo 1'),
        ("scontrol", ":"),
        ("scancel", ":"),
    ):
        (tmp_path / "programs" / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "programs" / name).chmod(0o755)
    for number, text in enumerate((*VISIBLE, *(text for text in INVISIBLE if "\0" not in text))):
        directory = tmp_path / f"{number} {text.replace('/', '_')}"
        directory.mkdir()
        made = plan_of(directory, {"base": (text, ()), "top": ("true", ("base",))})
        words = [*made.tasks[0].command]

        github = YAML(typ="safe").load(github_workflow(made))
        literal = github_workflow(made).replace("${{ '${{' }}", "")
        assert "${{" not in literal
        run = github["jobs"][next(iter(github["jobs"]))]["steps"][-2]["run"]
        assert shlex.split(run.replace("${{ '${{' }}", "${{")) == words

        gitlab = YAML(typ="safe").load(gitlab_pipeline(made))
        job = next(value for key, value in gitlab.items() if key.endswith("-base"))
        assert shlex.split(job["script"][0]) == words
        assert [*gitlab] == ["stages", *(key for key in gitlab if key.endswith(("-base", "-top")))]

        tasks = tomllib.loads(hyperqueue_jobs(made))["task"]
        assert tasks[0]["command"][: len(words)] == words

        env = {"PATH": f"{tmp_path / 'programs'}:/usr/bin:/bin"}
        script = tmp_path / "submit.sh"
        script.write_text(sbatch_script(made))
        done = subprocess.run(
            ["bash", str(script)],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert shlex.join(words) in (directory / "called").read_bytes().decode()
        assert not list(tmp_path.rglob(CANARY)), text


def test_hostile_state_of_a_run_is_refused(tmp_path: Path) -> None:
    """The file is in the index, which others may be able to write."""
    index = Index(tmp_path / "index")
    executor = Slurm(index, SILENT)
    task = {
        "key": "a1", "name": "apex", "version": "1.0", "requires": ["b2"], "cores": 1, "memory_gib": 1.0,
        "seconds": 1.0, "time_limit": 1, "lock": "/a/matrix.lock",
    }  # fmt: skip
    job = {"number": "1", "keys": ["a1"], "after": ["2"]}
    run = {
        "id": "0a", "directory": "/a", "options": ["--offline"], "tasks": [task], "jobs": [job],
        "partition": "p", "account": "a", "server": "/a", "results": {"a1": {"state": "failed", "why": "w"}},
    }  # fmt: skip
    executor.state_file.parent.mkdir(parents=True)
    executor.state_file.write_bytes(msgspec.json.encode(run))
    assert isinstance(executor.current_run(), Run)
    identifiers = {"id", "key", "name", "requires", "version", "number", "keys", "after", "state"}
    for place in places(run):
        is_identifier = {*place} & identifiers
        for text in (*INVISIBLE, *VISIBLE) if is_identifier else INVISIBLE:
            if not is_identifier and {*"\n\t"} & {*text}:
                continue  # messages may have several lines
            executor.state_file.write_bytes(msgspec.json.encode(with_text(run, place, text)))
            with pytest.raises(MatrixError) as caught:
                executor.current_run()
            assert spelled(place) in caught.value.message or place[-1] == "state"


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


def test_texts_of_a_pylock_are_refused_or_stay_data(tmp_path: Path) -> None:
    path = tmp_path / "pylock.toml"
    path.write_text(tomli_w.dumps(PYLOCK))
    names = [package.name for package in read_pylock(path).packages]
    for place in places(PYLOCK):
        for text in INVISIBLE:
            path.write_text(tomli_w.dumps(with_text(PYLOCK, place, text)))
            with pytest.raises(UsageError) as caught:
                read_pylock(path)
            assert str(path) in caught.value.message
        for text in VISIBLE:
            path.write_text(tomli_w.dumps(with_text(PYLOCK, place, text)))
            try:
                lock = read_pylock(path)
                parsed = [parse_requirement(package.requirement) for package in lock.packages]
            except UsageError:
                continue
            assert [requirement.name for requirement in parsed] == names
            assert all(package.requirement.isprintable() for package in lock.packages)


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


def test_texts_of_a_site_file_are_refused_or_stay_data(tmp_path: Path) -> None:
    path, data = tmp_path / "site.toml", tomllib.loads(SITE)
    read_file(path, SITE)
    for place in places(data):
        for text in INVISIBLE:
            with pytest.raises(CatalogError) as caught:
                read_file(path, tomli_w.dumps(with_text(data, place, text)))
            assert path.name in caught.value.message
            assert str(place[-1]) in caught.value.message or isinstance(place[-1], int)
    name = ("site-variable", 0, "value")
    for text in VISIBLE:
        try:
            file = read_file(path, tomli_w.dumps(with_text(data, name, text)))
        except CatalogError:
            continue
        row = file.site_variable[0]
        installation = Installation(everything(keeps_torch=False), variables=[row])
        done = shell(f'{site_environment(installation)}\nprintf %s "$A"\n', tmp_path)
        assert done.stdout == text.replace("${HOME}", str(tmp_path))
        assert not list(tmp_path.rglob(CANARY))


class _Elements(HTMLParser):
    """Collect the elements and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [tag, *(name for name, _ in attrs)]


@pytest.mark.usefixtures("libraries")
def test_texts_of_a_lock_are_texts_in_a_report(accepted: dict[Place, list[str]], tmp_path: Path) -> None:
    lock = everything(keeps_torch=False)
    target = replace(lock.target, base_image=None)
    request = replace(lock.request, target=target, site_file="", catalogs=(), preinstalled=None)
    data = data_of(replace(lock, request=request, target=target, image=None, picks=lock.picks[1:]))

    def elements(data: dict[str, Any]) -> list[str]:
        written(data, tmp_path / "matrix.lock")
        assert main(["report", "--lock", str(tmp_path / "matrix.lock"), "-o", "report.html"]) == 0
        parser = _Elements()
        parser.feed(Path("report.html").read_text())
        return parser.found

    usual = elements(data)
    for number in range(ROUNDS):
        changed = data
        for position, (place, choices) in enumerate(accepted.items()):
            if choices and {*place} & {"notes", "warnings", "left_open", "variant", "package"}:
                changed = with_text(changed, place, choices[(number + position) % len(choices)])
        assert elements(changed) == usual
