"""Failures around a build in the image: messages, exit codes, no partial publication, no running process."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rig.rig import USER, Rig
from tests.support.fusedtiny import Repository
from tests.support.site import MakeSite, Site, pid_of

pytestmark = pytest.mark.integration


def refused(site: Site, code: int, *more: str) -> str:
    """Run a build that must fail; return stderr after checking that nothing was published."""
    done = site.build(*more)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert nothing_published(site)
    return done.stderr


def nothing_published(site: Site) -> bool:
    """Return whether the index contains no wheel, no record of a wheel, and no partial file."""
    paths = [*site.index.glob("simple/*/*"), *site.index.glob("provenance/*")]
    return not [path for path in paths if not path.name.startswith("index.")]


@contextmanager
def mounted(target: Path, *words: str) -> Iterator[None]:
    """Mount a file system as root while the block runs."""
    subprocess.run(["mount", *words, str(target)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(target)], check=True)


# Sources


def broken(kind: str) -> bytes:
    """Return an sdist that is truncated, or has members outside of the directory that it is unpacked into."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz") as archive:

        def put(name: str, text: str = "", link: str = "") -> None:
            member = tarfile.TarInfo(f"fusedtiny-2.0/{name}")
            member.size = len(text)
            if link:
                member.type, member.linkname = tarfile.SYMTYPE, link
            archive.addfile(member, io.BytesIO(text.encode()))

        put("setup.py", "import setuptools  # FUSEDTINY_BUILD_CUDA_OPS\n")
        if kind == "path":
            put("../../../../escaped", "out")
        if kind == "link":
            put("out", link="../../../../..")
            put("out/escaped", "out")
        put("long", "x" * 100_000)
    data = sink.getvalue()
    return data[: len(data) // 2] if kind == "cut" else data


@pytest.mark.parametrize("kind", ["cut", "path", "link"])
def test_hostile_or_damaged_sdist_is_rejected(rig: Rig, repository: Repository, kind: str) -> None:
    site = Site(rig, "fusedtiny==2.0")
    data = broken(kind)
    project = site.work / "simple" / "fusedtiny"
    project.mkdir(parents=True)
    (project / "fusedtiny-2.0.tar.gz").write_bytes(data)
    (project / "index.html").write_text('<a href="fusedtiny-2.0.tar.gz">fusedtiny-2.0.tar.gz</a>\n')
    facts = repository.catalog(site.work / "facts")
    with (facts / "fusedtiny.toml").open("a") as rows:
        rows.write(
            '[[release]]\npackage = "fusedtiny"\nversion = "2.0"\nbackend = ["rocm"]\nstatus = "observed"\n'
            f'sdist = {{ file = "fusedtiny-2.0.tar.gz", sha256 = "{hashlib.sha256(data).hexdigest()}" }}\n'
            'source = "a test"\n'
        )
    (site.work / "matrix.toml").write_text('catalog = ["facts"]\n')
    site.resolve()
    site.env["PIP_INDEX_URL"] = (site.work / "simple").as_uri()
    assert site.matrix("farm", "fetch", "--only-sources").returncode == 0
    del site.env["PIP_INDEX_URL"]
    output = refused(site, 1)
    assert "fusedtiny-2.0.tar.gz" in output
    assert not list(site.work.rglob("escaped"))


def test_offline_without_cache_exits_3(tiny: MakeSite) -> None:
    site = tiny()
    site.env["XDG_CACHE_HOME"] = str(site.work / "cache")
    assert "matrix farm fetch" in refused(site, 3, "--offline")


# The machine


def test_missing_container_runtime_exits_3(tiny: MakeSite) -> None:
    site = tiny()
    site.env["PATH"] = "/nowhere"
    output = refused(site, 3)
    assert "apptainer or singularity is needed" in output
    assert "fusedtiny" in output
    assert not site.index.exists()


@pytest.mark.parametrize("size", ["96k", "200k"])
def test_full_index_disk_exits_3(tiny: MakeSite, size: str) -> None:
    """The smaller disk is full before the compilation starts, the other during the compilation."""
    site = tiny()
    site.index.mkdir()
    with mounted(site.index, "-t", "tmpfs", "-o", f"size={size},mode=777", "tmpfs"):
        output = refused(site, 3)
        assert "No space left" in output
        assert "--index DIR" in output
        assert not list(site.index.glob(".matrix/builds/*"))


def test_full_cache_disk_exits_3(tiny: MakeSite) -> None:
    site = tiny()
    cache = site.work / "cache"
    cache.mkdir()
    site.env["XDG_CACHE_HOME"] = str(cache)
    with mounted(cache, "-t", "tmpfs", "-o", "size=20m,mode=777", "tmpfs"):
        output = refused(site, 3)
        assert "No space left in the cache" in output
        assert not list(cache.rglob("torch-*.whl"))


def test_read_only_index_exits_3(tiny: MakeSite) -> None:
    site = tiny()
    site.index.mkdir(mode=0o555)
    output = refused(site, 3)
    assert "Cannot write to" in output
    assert str(site.index) in output
    assert list(site.index.iterdir()) == []


def test_incomplete_read_only_cache_exits_3(tiny: MakeSite) -> None:
    site = tiny()
    cache = site.work / "cache"
    cache.mkdir(mode=0o555)
    site.env["XDG_CACHE_HOME"] = str(cache)
    output = refused(site, 3)
    assert str(cache) in output
    assert "XDG_CACHE_HOME" in output
    assert list(cache.iterdir()) == []


def test_complete_cache_is_enough_offline_and_read_only(tiny: MakeSite) -> None:
    """A site may share such a cache with its users."""
    site = tiny()
    cache = site.work / "cache"
    cache.mkdir()
    shutil.chown(cache, USER, USER)
    site.env["XDG_CACHE_HOME"] = str(cache)
    site.link_torch_layer(cache)
    fetched = site.matrix("farm", "fetch")
    assert fetched.returncode == 0, fetched.stderr
    assert site.build("--offline").returncode == 0
    shutil.rmtree(site.index)
    with mounted(cache, "--bind", "-o", "ro", str(cache)):
        done = site.build()
    assert done.returncode == 0, done.stderr
    assert site.wheel("fusedtiny").exists()


# The image


def test_changed_image_stops_build(rig: Rig, repository: Repository) -> None:
    site = Site(rig, "fusedtiny==1.0")
    repository.catalog(site.work / "facts")
    (site.work / "matrix.toml").write_text('catalog = ["facts"]\n')
    image = site.work / "own.sif"
    shutil.copyfile(rig.image, image)
    site.resolve("--base-image", str(image))
    with image.open("ab") as file:
        file.write(b"changed")
    output = refused(site, 1)
    digests = set(re.findall(r"sha256:[0-9a-f]{64}", output))
    assert len(digests) == 2
    assert f"sha256:{hashlib.sha256(image.read_bytes()).hexdigest()}" in digests
    assert "resolve again" in output


def test_image_without_python_of_lock_exits_3(tiny: MakeSite) -> None:
    site = tiny()
    site.resolve("--python", "3.12")
    output = refused(site, 3)
    assert "Python 3.12 is required" in output
    assert "uv python install 3.12" in output


# Runs


def compiling(site: Site, option: str = "") -> list[str]:
    """Return the command lines of compilers with an option that run below the site's directory."""
    return [line for line in running(site) if "clang" in line.partition(" ")[0] and option in line]


def running(site: Site) -> list[str]:
    """Return the command lines of processes that use the site's build directories, also in a container."""
    lines = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_text(errors="replace").replace("\0", " ")
            mounts = (process / "mountinfo").read_text()
        except OSError:
            continue
        if any(f"{site.index}/.matrix/builds" in text for text in (line, mounts)):
            lines.append(line[:200])
    return lines


def mounting(image: Path) -> list[str]:
    """Return the processes with which Apptainer mounts an image: they have the file open."""
    return [
        process.name
        for process in Path("/proc").glob("[0-9]*")
        for opened in process.glob("fd/3")
        if os.path.realpath(opened) == str(image)
    ]


def until(true: Callable[[], object], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize(
    ("number", "option"),
    [
        (signal.SIGINT, ""),
        pytest.param(signal.SIGTERM, "-cc1", marks=pytest.mark.long),
        pytest.param(signal.SIGKILL, "", marks=pytest.mark.long),  # test_resumed_builds.py kills one, too
    ],
    ids=["interrupted while hipconfig asks the compiler", "terminated while it compiles", "killed"],
)
def test_ended_build_succeeds_next_time(tiny: MakeSite, number: signal.Signals, option: str) -> None:
    site = tiny()
    program = site.start("build-wheels")
    assert until(lambda: compiling(site, option) or program.poll() is not None, 300)
    assert program.poll() is None, program.communicate()
    os.kill(pid_of(program), number)
    _, output = program.communicate(timeout=60)
    if number is not signal.SIGKILL:
        assert program.returncode == 130
        assert "Interrupted" in output
        assert "Traceback" not in output
    assert until(lambda: not running(site), 30), running(site)
    assert until(lambda: not mounting(site.rig.image), 30), mounting(site.rig.image)
    assert nothing_published(site)
    done = site.build()
    assert done.returncode == 0, done.stderr
    assert not list(site.index.glob(".matrix/builds/*"))


@pytest.mark.long  # on the host, test_many_builds.py has two commands on one lock
def test_two_processes_build_one_wheel(tiny: MakeSite) -> None:
    site = tiny()
    with ThreadPoolExecutor(2) as both:
        first, second = both.map(lambda _: site.build(), range(2))
    for done in (first, second):
        assert done.returncode == 0, done.stderr
    assert site.wheel("fusedtiny").exists()  # fails if there are two
    output = first.stderr + second.stderr
    assert output.count("wait for another process that is building this wheel") == 1
    assert output.count("another process has built this wheel") == 1
    assert output.count("compile with") == 1


def test_keep_going_builds_the_others(rig: Rig, repository: Repository) -> None:
    site = Site(rig, "fusedtiny==0.9", "flash-attn[triton]==2.8.3")
    repository.catalog(site.work / "facts", old=repository.new)
    (site.work / "matrix.toml").write_text('catalog = ["facts"]\n')
    site.resolve()
    done = site.build("--keep-going", "--format", "json")
    assert done.returncode == 1, done.stderr
    states = {wheel["name"]: wheel["state"] for wheel in json.loads(done.stdout)["wheels"]}
    assert states == {"fusedtiny": "failed", "flash-attn": "built"}
    assert "nothing was compiled" in done.stderr
    again = site.build("--dry-run").stdout
    assert "flash-attn 2.8.3" in again
    assert "up to date" in again


def test_dry_run_builds_nothing(tiny: MakeSite) -> None:
    site = tiny()
    done = site.build("--dry-run")
    assert done.returncode == 0, done.stderr
    assert "to build: the index has no wheel for it" in done.stdout
    assert not site.index.exists()
