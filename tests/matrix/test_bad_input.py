"""Bad input: exit code 2 or 3 and a message with the value and a hint, never a traceback."""

from __future__ import annotations

import datetime
import errno
import json
import os
from pathlib import Path

import msgspec
import pytest
import tomli_w

from builders.storage.files import cache_root
from matrix import cli
from matrix.cli import main
from matrix.input.settings import Settings, read_settings
from resolver.errors import UsageError

Capture = pytest.CaptureFixture[str]


BAD = [
    ("resolve apx", "'apx'", "Did you mean apex?"),
    ("resolve torch==9.9", "'torch==9.9'", "Known versions"),
    ("resolve deepspeed==0.19.7", "'deepspeed==0.19.7'", "0.19.8"),
    ("resolve torch --gfx gfx90b", "'gfx90b'", "gfx90a"),
    ("resolve torch --gfx90b", "'gfx90b'", "gfx90a"),
    ("resolve --site lumi-gg", "'lumi-gg'", "Did you mean lumi-g?"),
    ("resolve --backend cuda", "'cuda'", "rocm, cpu"),
    ("resolve --prefer newst", "'newst'", "Did you mean newest?"),
    ("resolve --date 2025-13-01", "'2025-13-01'", ""),
    ("resolve torch --date 2020-01-01", "2020-01-01", "Known days"),
    ("resolve --driver 6.3.6", "kernel module", "--driver 6.0"),
    ("resolve torch --driver 9", "'9.0'", "6.3"),
    ("resolve torch --python x", "'x'", "PEP 440"),
    ("resolve torch --base-image lumi-rocm-rocm-6.2.5.sif", "6.2.5", "Did you mean"),
    ("resolve deepspeed[dev]", "no variant 'dev'", "package index"),
    ("resolve flash-attn[trition]", "no variant 'trition'", "Did you mean triton?"),
    ("resolve flash-attn[zz]", "no variant 'zz'", "Known: triton, "),
    ("resolve flash-attn[triton,ck]", "more than one variant", "one variant"),
    ("resolve ???", "'???'", "torch>=2.4"),
    ("resolve", "No requirement is named", "matrix resolve torch"),
    ("resolve --upgrade numpy", "matrix.lock", "matrix resolve"),
    ("add", "No requirement is named", "matrix add"),
    ("add ???", "'???'", "torch>=2.4"),
    ("remove", "No requirement is named", "matrix remove"),
    ("remove torch", "no requirement on torch", ""),
    ("table apx", "'apx'", "Did you mean apex?"),
    ("table torch==9.9", "'torch==9.9'", "Known versions"),
    ("table --format xml", "'xml'", "table, csv, json, brief, html"),
    ("resolv", "'resolv'", "Did you mean resolve?"),
    ("resolve --catalog nowhere", "nowhere", ""),
    ("resolve apex --backend cpu --gfx90a", "gfx90a", "Remove this setting"),
    ("resolve --formt json", "--formt", "Did you mean --format?"),
    ("index check --repiar", "--repiar", "Did you mean --repair?"),
    ("build-wheels --jobs x", "'x'", ""),
    ("build-wheels --jobs 0", "'0'", ""),
    ("env", "--for", ""),
    ("env --for no-such-tool", "'no-such-tool'", "cotainr"),
    ("env --for cotainr", "matrix.lock", "matrix resolve"),
    ("env --for cotaner", "'cotaner'", "Did you mean cotainr?"),
    ("index", "ACTION", "ACTION is one of: list, add"),
    ("inspect x", "'inspect'", "Use `matrix check THING`"),
    ("explain --log x", "--log", "Use `matrix check LOG`"),
    ("check nowhere-1.0-py3-none-any.whl", "nowhere-1.0-py3-none-any.whl does not exist", ""),
    ("check nowhere", "nowhere does not exist", ""),
    ("check nowhere.sif --run", "nowhere.sif does not exist", ""),
    ("check --base-image nowhere.sif", "nowhere.sif does not exist", ""),
    ("resolve -r nowhere.txt", "nowhere.txt does not exist", ""),
]


WRONG: tuple[object, ...] = (3.12, True, "x", [3], {"a": 1}, datetime.datetime(2026, 3, 1, 10))  # noqa: DTZ001


@pytest.mark.parametrize(
    "key", [field.encode_name for field in msgspec.structs.fields(Settings) if field.name != "cache"]
)
def test_value_of_wrong_type_is_named_with_line_key_and_example(key: str) -> None:
    """The example in the hint is a valid line for every key and every wrong value."""
    refused = 0
    for wrong in WRONG:
        written = tomli_w.dumps({"catalog": ["."], key: wrong} if key != "catalog" else {key: wrong})
        Path("matrix.toml").write_text(written)
        try:
            read_settings()
        except UsageError as error:
            refused += 1
            line = next(
                n for n, text in enumerate(written.splitlines(), 1) if text.strip("[]").startswith(key)
            )
            assert error.message.startswith(f"matrix.toml:{line}: '{key}' must be "), written  # noqa: PT017
            Path("matrix.toml").write_text(error.hint.removeprefix("Write: "))
            assert error.hint.startswith(f"Write: {key} = ")  # noqa: PT017
            read_settings()
    assert refused


def test_number_and_list_become_the_text_that_was_meant() -> None:
    for wrong, right in [("python = 3.12", 'python = "3.12"'), ('gfx = "gfx90a"', 'gfx = ["gfx90a"]')]:
        Path("matrix.toml").write_text(wrong)
        with pytest.raises(UsageError) as caught:
            read_settings()
        assert caught.value.hint == f"Write: {right}"


def test_future_day_warns(capsys: Capture) -> None:
    for day, warns in [("2999-01-01", True), ("2026-03-01", False)]:
        assert main(["resolve", "torch", "--date", day, "--no-lock", "-q"]) == 0
        assert (f"warning: {day} is in the future" in capsys.readouterr().err) is warns


def test_matrix_version_prints_the_version(capsys: Capture) -> None:
    for arguments in (["version"], ["-q", "version"], ["--version"]):
        with pytest.raises(SystemExit):
            main(arguments)
        assert capsys.readouterr().out.startswith("matrix ")


@pytest.mark.parametrize(("line", "cause", "hint"), BAD, ids=[line or "nothing" for line, _, _ in BAD])
def test_bad_input_is_named_with_suggestion(
    line: str, cause: str, hint: str, capsys: Capture, tmp_path: Path
) -> None:
    assert main(line.split()) == 2
    output = capsys.readouterr()
    assert cause in output.err
    assert hint in output.err
    assert "Traceback" not in output.err
    assert output.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["resolve", "apx"], ["resolve", "--backend", "cuda"]])
def test_error_with_json_is_one_document(arguments: list[str], capsys: Capture) -> None:
    assert main([*arguments, "--format", "json"]) == 2
    output = capsys.readouterr()
    document = json.loads(output.out)
    assert (document["schema"], document["status"]) == (1, "error")
    assert document["message"]
    assert document["hint"]
    assert output.err == ""


def test_long_name_is_shortened_in_error(capsys: Capture) -> None:
    assert main(["resolve", "a" * 10_000]) == 2
    assert len(capsys.readouterr().err) < 1000
    assert main(["resolve", "torch", "--date", "2026-03-01", "-q"]) == 0
    capsys.readouterr()
    for command in (["explain"], ["explain", "--graph"]):
        assert main([*command, "a" * 10_000]) == 2
        errors = capsys.readouterr().err
        assert "aaa... (10000 characters)" in errors
        assert len(errors) < 1000


CYCLE = """\
schema = 1
[[package]]
name = "{name}"
title = "one of two"
status = "observed"
source = "here"
[[release]]
version = "1.0"
sdist = {{ file = "{name}-1.0.tar.gz", sha256 = "{zeros}" }}
backend = ["rocm"]
status = "observed"
source = "here"
[[recipe]]
backend = "rocm"
match-runtime = []
status = "observed"
source = "here"
[[requires]]
on = "{other}"
versions = [">=1"]
kind = "{kind}"
status = "observed"
source = "here"
"""


@pytest.mark.parametrize("kind", ["run", "build"])
def test_cycle_of_packages_is_bad_input(kind: str, capsys: Capture, tmp_path: Path) -> None:
    for name, other in (("cyca", "cycb"), ("cycb", "cyca")):
        facts = tmp_path / "cycle" / f"{name}.toml"
        facts.parent.mkdir(exist_ok=True)
        facts.write_text(CYCLE.format(name=name, other=other, kind=kind, zeros="0" * 64))
    assert main(["resolve", "--catalog", "cycle", "cyca"]) == 2
    output = capsys.readouterr()
    assert "cycle: cyca -> cycb -> cyca." in output.err
    assert "[[requires]]" in output.err
    assert output.out == ""


@pytest.mark.parametrize(
    "line",
    [
        "resolve torch -o",
        pytest.param("table torch -o", marks=pytest.mark.slow),
        "farm fetch --lock",
        "index list --index",
    ],
)
def test_long_file_name_is_bad_input(line: str, capsys: Capture) -> None:
    assert main([*line.split(), "a" * 10_000]) == 2
    errors = capsys.readouterr().err
    assert "is too long for a file name." in errors
    assert "aaaa" in errors
    assert len(errors.splitlines()[-2]) < 200


@pytest.mark.parametrize(
    "line", ["torch==2.13.0 --backend cpu deepspeed", "--backend cpu torch==2.13.0 -q deepspeed"]
)
def test_names_before_and_after_options_are_accepted(line: str, capsys: Capture) -> None:
    assert main(["resolve", *line.split(), "--format", "json"]) == 0
    picks = {pick["name"]: pick["version"] for pick in json.loads(capsys.readouterr().out)["picks"]}
    assert picks["torch"].startswith("2.13.0")
    assert "deepspeed" in picks


@pytest.mark.parametrize(
    "line", ["resolve torch -q apex --formt json", "check --in podman", "index list -q --x y"]
)
def test_unknown_argument_is_rejected(line: str, capsys: Capture) -> None:
    assert main(line.split()) == 2
    assert "Unrecognized arguments: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "name"),
    [("resolve torch -o", "."), pytest.param("table torch -o", "/", marks=pytest.mark.slow)],
)
def test_directory_instead_of_file_is_bad_input(line: str, name: str, capsys: Capture) -> None:
    assert main([*line.split(), name]) == 2
    assert f"error: {name} is a directory, not a file.\n" in capsys.readouterr().err


def test_directory_in_cache_is_reported_as_cache(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = str(cache_root() / "x")

    def refuse(*_: object) -> None:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)

    monkeypatch.setattr(cli, "main_inner", refuse)
    assert main(["resolve"]) == 3
    assert f"Is a directory: {path}.\n  hint: This is the cache" in capsys.readouterr().err


BAD_FILES = [
    ("requirments = ['apex']", "Did you mean requirements?"),
    ("requirements = 'apex'", "must be a list of strings"),
    ("backend = 'cuda'", "cuda"),
    ("requirements = [", "matrix.toml"),
    ("date = 'tomorrow'", "date"),
]


@pytest.mark.parametrize(("text", "message"), BAD_FILES)
def test_invalid_request_file_is_named(text: str, message: str, capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "matrix.toml").write_text(text)
    assert main(["resolve"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "matrix.toml" in error


def test_binary_request_file_is_named(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "matrix.toml").write_bytes(b"\xff\xfe\x00\x01")
    assert main(["resolve"]) == 2
    assert "matrix.toml" in capsys.readouterr().err


def test_lock_of_other_tool_is_rejected_and_kept(capsys: Capture, tmp_path: Path) -> None:
    lock = tmp_path / "matrix.lock"
    lock.write_text('lock-version = "1.0"\n')
    assert main(["build-wheels"]) == 2
    assert "is not a matrix lock" in capsys.readouterr().err
    assert lock.read_text() == 'lock-version = "1.0"\n'


def test_unwritable_output_is_exit_3(capsys: Capture, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert main(["resolve", "torch", "-o", str(blocked / "matrix.lock")]) == 3
    assert "file" in capsys.readouterr().err


def test_internal_error_shows_traceback_with_vv(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        msg = "broken"
        raise ZeroDivisionError(msg)

    monkeypatch.setattr("matrix.command_line.context.Context.resolve", broken)
    assert main(["resolve", "torch"]) == 70
    output = capsys.readouterr().err
    assert "-vv" in output
    assert "Traceback" not in output
    assert main(["resolve", "torch", "-vv"]) == 70
    assert "Traceback" in capsys.readouterr().err
