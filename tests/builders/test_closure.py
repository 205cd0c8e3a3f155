"""The closure of requirements: output of pip and uv, and their failures."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from builders import closure
from builders.closure import ResolvedWheel
from builders.glibc_tags import platform_tags
from resolver.errors import CommandError, EnvironmentLacksError, MatrixError
from tests.support.recorder import Recorder

DIGEST = "a" * 64


def item(archive: object) -> closure._Item:
    data = {
        "download_info": {"url": "https://x.example/Torch-1.whl", "archive_info": archive},
        "metadata": {"name": "Py_Torch", "version": "1.0+cpu", "requires_dist": []},
    }
    return msgspec.convert(data, closure._Item)


@pytest.mark.parametrize("archive", [{"hashes": {"sha256": DIGEST}}, {"hash": f"sha256={DIGEST}"}])
def test_reports_of_old_and_new_pip_are_parsed(archive: object) -> None:
    assert closure._from_report(item(archive)) == ResolvedWheel("py-torch", "1.0+cpu", (DIGEST,))


@pytest.mark.parametrize("archive", [{}, {"hash": f"md5={DIGEST[:32]}"}, {"hashes": {"sha512": DIGEST * 2}}])
def test_file_without_sha256_is_an_error(archive: object) -> None:
    with pytest.raises(MatrixError, match="has a SHA-256 of"):
        closure._from_report(item(archive))


def test_uv_output_is_parsed() -> None:
    text = (
        f"torch==2.13.0+cpu \\\n    --hash=sha256:{DIGEST}\n"
        f"Flash_Attn==2.8.3 \\\n    --hash=sha256:{DIGEST} \\\n    --hash=sha256:{'b' * 64}\n# a comment\n"
    )
    assert closure._parse_compiled(text) == [
        ResolvedWheel("torch", "2.13.0+cpu", (DIGEST,)),
        ResolvedWheel("flash-attn", "2.8.3", (DIGEST, "b" * 64)),
    ]


def test_platform_tags_are_sorted_newest_first() -> None:
    tags = platform_tags("2.28")
    assert tags[0] == "manylinux_2_28_x86_64"
    assert {"manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"} < set(tags)
    assert "manylinux_2_29_x86_64" not in tags
    assert tags[-1] == "linux_x86_64"


@pytest.mark.parametrize("name", ["nvidia-cublas-cu12", "cuda-bindings"])
def test_cuda_or_missing_hash_is_an_error(name: str) -> None:
    with pytest.raises(MatrixError, match=f"for CUDA: {name} 1"):
        closure._check([ResolvedWheel("torch", "1", (DIGEST,)), ResolvedWheel(name, "1", (DIGEST,))])
    with pytest.raises(MatrixError, match="no hash for torch"):
        closure._check([ResolvedWheel("torch", "1", ())])


@pytest.mark.parametrize(
    ("output", "unreachable", "code"),
    [
        ("ERROR: No matching distribution found for torch", [], 1),
        ("ERROR: No matching distribution found for torch", ["https://x.example"], 3),
        ("WARNING: ... NewConnectionError('...')", [], 3),
        ("no such option: --report", [], 3),
    ],
)
def test_unreachable_index_is_not_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, unreachable: list[str], code: int
) -> None:
    """Only the output of this run counts, not that of an earlier one in the same log."""
    log = tmp_path / "log"
    log.write_text("NewConnectionError of an earlier run\n")

    def fail(*_: object, **__: object) -> list[ResolvedWheel]:
        log.write_text(f"{log.read_text()}{output}\n")
        what = "Resolving"
        raise CommandError(what, code=1, log=log, lines=[output])

    monkeypatch.setattr(closure, "_resolve", fail)
    monkeypatch.setattr(closure, "is_reachable", lambda url: url not in unreachable)
    lines = [*(f"--extra-index-url {url}" for url in unreachable), "torch==1"]
    with pytest.raises(MatrixError) as caught:
        closure.resolve_closure(lines, python="3.11", log=log, reporter=Recorder())
    assert caught.value.exit_code == code


def test_unreachable_index_is_skipped_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closure, "is_reachable", lambda url: "near" in url)
    recorder = Recorder()
    far, near = "https://me:secret@far.example", "https://near.example"
    lines = [f"--extra-index-url {far}", f"--extra-index-url {near}", "torch==1"]
    reachable, unreachable = closure._reachable_lines(lines, recorder)
    assert reachable == lines[1:]
    assert unreachable == ["https://far.example"]
    assert recorder.messages[0].startswith("https://far.example is not reachable")


def test_named_python_is_not_replaced_by_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        msg = "Python 3.11 is required, and that is another."
        raise EnvironmentLacksError(msg)

    program = tmp_path / "uv"
    program.write_text("#!/bin/sh\nexit 9\n")  # a stand-in that must not be started
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(closure, "find_python", refuse)
    with pytest.raises(EnvironmentLacksError, match=r"3\.11 is required, and that is another"):
        closure.resolve_closure(
            ["torch==1"], python="3.11", log=tmp_path / "log", reporter=Recorder(), given=tmp_path / "python"
        )
