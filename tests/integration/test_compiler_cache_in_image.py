"""The compiler cache in a base image, with hipcc: a second build of an extension compiles nothing."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.rig.rig import Rig
from tests.support.fusedtiny import Repository
from tests.support.site import Site, make_site

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(3600)]

# The image has no ccache, and lacks a library that this machine's ccache needs.
PORTABLE = """#!/bin/sh
folder=/tmp/portable-ccache
if [ ! -e $folder ]; then
  new=$(mktemp -d) && tail -n +8 "$0" | tar -xz -C "$new" || exit 1
  mv -T "$new" $folder 2>/dev/null || rm -rf "$new"
fi
LD_LIBRARY_PATH=$folder exec $folder/ccache "$@"
"""


@pytest.fixture
def portable_ccache(rig: Rig) -> Path:
    """Return this machine's ccache as one file that runs in the image."""
    program = shutil.which("ccache")
    if program is None:
        pytest.skip("ccache is not installed")
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    libraries = re.findall(r"(?m)^\s*(lib(?:hiredis|zstd|xxhash|blake3|fmt)\S*) => (\S+)", listed)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, path in [("ccache", program), *libraries]:
            archive.add(Path(path).resolve(), name)
    path = rig.work() / "ccache"
    path.write_bytes(PORTABLE.encode() + packed.getvalue())
    path.chmod(0o755)
    return path


def measured(site: Site) -> dict[str, int]:
    """Return the hits and misses in the record of the wheel."""
    numbers = site.statement()["predicate"]["runDetails"]["metadata"]["matrix_measured"]
    return {name: numbers[name] for name in ("cache_hits", "cache_misses") if name in numbers}


def test_second_build_in_image_compiles_nothing(
    rig: Rig, repository: Repository, portable_ccache: Path
) -> None:
    site = make_site(rig, repository)
    rig.run_as_user(["sh", "-c", "rm -rf ~/.cache/matrix/compiler-cache/fusedtiny"])

    def build() -> bytes:
        shutil.rmtree(site.index, ignore_errors=True)
        done = site.build("--compiler-cache", str(portable_ccache))
        assert done.returncode == 0, done.stdout + done.stderr
        assert "ccache failed" not in done.stderr
        return site.wheel("fusedtiny").read_bytes()

    first = build()
    assert measured(site) == {"cache_hits": 0, "cache_misses": 2}  # binding.cpp and kernel.cu
    second = build()
    assert measured(site) == {"cache_hits": 2, "cache_misses": 0}
    assert second == first
