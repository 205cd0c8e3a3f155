"""``matrix run``: the command can use the index, and exits as if the shell had run it."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import requests

from builders.index import Index
from matrix.cli import main
from matrix.commands.run import base_image_of, choose_route
from matrix.consumers.shared.container_variables import (
    applied,
    container_changes,
    index_changes,
    is_visible,
    kept_warnings,
    unset_changes,
    uses_container,
)
from resolver.errors import EnvironmentLacksError, UsageError

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
MakeWheel = Callable[..., Path]
HERE = Path(__file__).parent.parent.parent
DISTURBING = ("PYTHONPATH", "SINGULARITY_BIND", "APPTAINER_BINDPATH", "PIP_USER", "PIP_TARGET")


@pytest.fixture
def index(tmp_path: Path, make_wheel: MakeWheel, monkeypatch: Patch) -> Index:
    for name in ("PIP_EXTRA_INDEX_URL", "UV_INDEX", "TMPDIR", "no_proxy", "NO_PROXY", *DISTURBING):
        monkeypatch.delenv(name, raising=False)
    index = Index(tmp_path / "index")
    index.publish(make_wheel("tiny", "1.0+cpu"), {})
    return index


def image(folder: Path, *, mount: bool) -> Path:
    """Create a directory that looks like an unpacked image."""
    for name in ("usr", *(["mnt"] if mount else [])):
        (folder / name).mkdir(parents=True)
    return folder


def started(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "matrix", "run", *arguments]
    env = {**os.environ, "PYTHONPATH": str(HERE)}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command,
        cwd=tmp_path,
        env=env,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
    )


def python(code: str) -> list[str]:
    return ["--", sys.executable, "-c", code]


@pytest.mark.slow
@pytest.mark.usefixtures("index")
def test_exit_code_arguments_and_stdin_pass_through(tmp_path: Path) -> None:
    code = "import sys; print(sys.argv[1:], sys.stdin.read()); print('err', file=sys.stderr); sys.exit(7)"
    with started(tmp_path, "-q", *python(code), "--gfx90a", "--", "-v", "--format", "json") as process:
        out, err = process.communicate("typed")
    assert process.returncode == 7
    assert out == "['--gfx90a', '--', '-v', '--format', 'json'] typed\n"
    assert err.splitlines()[-1] == "err"


@pytest.mark.slow
@pytest.mark.usefixtures("index")
def test_killed_command_exits_as_in_shell(tmp_path: Path) -> None:
    with started(tmp_path, *python("import os; os.kill(os.getpid(), 9)")) as process:
        process.communicate()
    assert process.returncode == 137


@pytest.mark.slow
@pytest.mark.usefixtures("index")
def test_index_is_served_while_command_runs(tmp_path: Path) -> None:
    code = """
import os, urllib.request
url = os.environ["MATRIX_INDEX_URL"]
assert url == os.environ["PIP_EXTRA_INDEX_URL"] == os.environ["UV_INDEX"], url
print(url, "tiny-1.0" in urllib.request.urlopen(url + "tiny/").read().decode())
"""
    with started(tmp_path, *python(code)) as process:
        out, err = process.communicate()
    url, there = out.split()
    assert (process.returncode, there) == (0, "True"), err
    assert f"PIP_EXTRA_INDEX_URL={url}" in err
    with pytest.raises(requests.ConnectionError):
        requests.get(url, timeout=5)


WAITS = """
import os, signal, sys, time
def end(number, frame):
    os.write(1, f"got {number}\\n".encode())
    sys.exit(5)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, end)
print(os.getpid(), os.environ["MATRIX_INDEX_URL"], flush=True)
while True: time.sleep(0.05)
"""


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_is_passed_to_command(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path, *python(WAITS)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        out, _ = process.communicate()
    assert (process.returncode, out) == (5, f"got {int(number)}\n")


@pytest.mark.slow
@pytest.mark.usefixtures("index")
def test_kill_ends_server_and_command(tmp_path: Path) -> None:
    with started(tmp_path, *python(WAITS)) as process:
        assert process.stdout is not None
        child, url = process.stdout.readline().split()
        assert requests.get(url, timeout=5).status_code == 200
        process.kill()
        process.wait()
        # The kernel sends the command SIGTERM, perhaps once for each thread of its parent that ends. The
        # command prints only the signals after that.
        assert set(process.stdout.read().splitlines()) == {"got 15"}
    until = time.monotonic() + 20
    while Path(f"/proc/{child}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()
    with pytest.raises(requests.ConnectionError):
        requests.get(url, timeout=5)


@pytest.mark.slow
@pytest.mark.usefixtures("index")
def test_command_in_terminal_gets_one_interrupt(tmp_path: Path) -> None:
    code = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
print("terminal", os.isatty(0), os.isatty(1), flush=True)
count = 0
while signal.sigtimedwait({signal.SIGINT}, 3 if count else 60):
    count += 1
    print("interrupt", flush=True)
sys.exit(count)
"""
    matrix, terminal = pty.fork()
    if matrix == 0:
        os.chdir(tmp_path)
        os.environ["PYTHONPATH"] = str(HERE)
        os.execv(sys.executable, [sys.executable, "-m", "matrix", "run", "-q", *python(code)])
    with os.fdopen(terminal, "rb", buffering=0) as output:
        assert any(b"terminal True True" in line for line in iter(output.readline, b""))
        os.kill(matrix, signal.SIGSTOP)  # a signal that it passed on would then be a second interrupt
        os.write(terminal, b"\x03")
        assert any(b"interrupt" in line for line in iter(output.readline, b""))
        os.kill(matrix, signal.SIGCONT)
        _, status = os.waitpid(matrix, 0)
    assert os.waitstatus_to_exitcode(status) == 1


def test_index_is_bound_if_image_has_mount_point(index: Index, tmp_path: Path, capsys: Capture) -> None:
    base = image(tmp_path / "base", mount=True)
    assert main(["run", "--dry-run", "--", "true", "build", "x.sif", f"--base-image={base}"]) == 0
    output = capsys.readouterr().err
    assert f"SINGULARITY_BIND={index.root}:/mnt:ro" in output
    assert f"APPTAINER_BIND={index.root}:/mnt:ro" in output
    assert "MATRIX_INDEX_URL=file:///mnt/simple/" in output
    assert "127.0.0.1" not in output


@pytest.mark.usefixtures("index")
def test_path_that_cannot_be_bound_is_rejected(
    tmp_path: Path, make_wheel: MakeWheel, capsys: Capture
) -> None:
    Index(tmp_path / "a:b").publish(make_wheel("tiny", "1.0+cpu"), {})
    assert main(["run", "--index", "a:b", "--route", "bind", "--", "true"]) == 2
    assert "a:b' cannot be bound" in capsys.readouterr().err
    assert main(["run", "--index", "a:b", "-q", "--", "true"]) == 0


@pytest.mark.parametrize(
    ("option", "mount", "given", "route"),
    [
        ("auto", True, True, "bind"),
        ("auto", False, True, "loopback"),
        ("auto", False, False, "loopback"),
        ("bind", True, True, "bind"),
        ("bind", False, False, "bind"),
        ("loopback", True, True, "loopback"),
    ],
)
def test_route_depends_on_option_and_image(
    tmp_path: Path, option: str, mount: bool, given: bool, route: str
) -> None:
    base = str(image(tmp_path / "base", mount=mount)) if given else ""
    assert choose_route(option, ["true"], base)[0] == route


def test_bind_without_mount_point_is_rejected(tmp_path: Path) -> None:
    base = image(tmp_path / "base", mount=False)
    with pytest.raises(UsageError, match="has no directory /mnt") as caught:
        choose_route("bind", ["true"], str(base))
    assert "--route loopback" in caught.value.hint


def test_image_that_does_not_exist_uses_loopback(tmp_path: Path) -> None:
    command = ["cotainr", "build", "x.sif", "--base-image", "docker://ubuntu:24.04"]
    assert base_image_of(command) == "docker://ubuntu:24.04"
    chosen = choose_route("auto", command, "")
    assert chosen[0] == "loopback"
    assert "is an address" in chosen[1]
    assert not chosen[1].endswith(".")  # the message adds one
    with pytest.raises(EnvironmentLacksError, match="is an address"):
        choose_route("bind", command, "")
    with pytest.raises(EnvironmentLacksError, match="does not exist"):
        choose_route("auto", command, str(tmp_path / "none.sif"))


@pytest.mark.parametrize("option", ["auto", "loopback"])
def test_loopback_with_srun_is_rejected(option: str) -> None:
    with pytest.raises(UsageError, match="another node") as caught:
        choose_route(option, ["/usr/bin/srun", "-n", "1", "cotainr", "build", "x.sif"], "")
    assert "srun ... matrix run" in caught.value.hint


def test_bind_works_with_srun(tmp_path: Path) -> None:
    base = image(tmp_path / "base", mount=True)
    command = ["srun", "cotainr", "build", "x.sif", "--base-image", str(base)]
    assert choose_route("auto", command, "")[0] == "bind"


def test_disturbing_variables_are_unset_unless_kept() -> None:
    env = dict.fromkeys((*DISTURBING, "APPTAINERENV_PYTHONPATH", "PATH"), "/x")
    assert set(applied(env, unset_changes(env))) == {"PATH"}
    assert set(applied(env, unset_changes(env, ["PYTHONPATH"]))) == {"PATH", "PYTHONPATH"}
    assert all(change.reason for change in unset_changes(env))


def test_container_gets_no_cache_and_visible_tmpdir() -> None:
    env = {"TMPDIR": "/scratch/me", "TMP": "/tmp/mine"}
    folder = Path("/tmp/x")
    after = applied(env, container_changes(env, folder))
    after.pop("PATH", None)  # on a machine that has only apptainer
    assert after == {"TMP": "/tmp/mine", "PIP_NO_CACHE_DIR": "1"}
    assert applied(env, container_changes(env, folder, ["TMPDIR"]))["TMPDIR"] == "/scratch/me"
    cache = {"PIP_NO_CACHE_DIR": "0"}
    assert applied(cache, container_changes(cache, folder))["PIP_NO_CACHE_DIR"] == "0"


def test_indexes_of_caller_stay() -> None:
    env = {"PIP_EXTRA_INDEX_URL": "https://a/simple https://b/simple"}
    after = applied(env, index_changes(env, "file:///mnt/simple/"))
    assert after["PIP_EXTRA_INDEX_URL"] == "https://a/simple https://b/simple file:///mnt/simple/"
    assert applied(after, index_changes(after, "file:///mnt/simple/")) == after


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, None),
        ({"http_proxy": "http://p"}, "127.0.0.1"),
        ({"http_proxy": "http://p", "no_proxy": "a.b"}, "a.b,127.0.0.1"),
        ({"HTTP_PROXY": "http://p", "no_proxy": "*"}, "*"),
        ({"http_proxy": "http://p", "no_proxy": "127.0.0.1,x"}, "127.0.0.1,x"),
    ],
)
def test_proxy_is_bypassed_for_loopback(env: dict[str, str], expected: str | None) -> None:
    assert applied(env, index_changes(env, "http://127.0.0.1:80/simple/")).get("no_proxy") == expected
    assert applied(env, index_changes(env, "file:///mnt/simple/")).get("no_proxy") == env.get("no_proxy")


def test_kept_variables_are_reported() -> None:
    assert kept_warnings({"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PATH": "/bin"}) == [
        "PIP_NO_INDEX is kept: pip reads no index, not even this index"
    ]


@pytest.mark.usefixtures("index")
def test_apptainer_is_linked_as_singularity(tmp_path: Path, monkeypatch: Patch) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    texts = {"apptainer": "echo contained", "cotainr": "singularity && command -v singularity"}
    for name, text in texts.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    for name in ("sh", "mktemp"):
        program = shutil.which(name)
        assert program
        (programs / name).symlink_to(program)
    monkeypatch.setenv("PATH", str(programs))
    with started(tmp_path, "--", str(programs / "cotainr")) as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    output, where = out.splitlines()
    assert output == "contained"
    assert "cotainr calls singularity" in err
    assert not Path(where).exists()


@pytest.mark.usefixtures("index")
def test_dry_run_lists_changes_of_real_run(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setenv("PIP_CERT", os.__file__)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("apptainer", "cotainr"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    assert main(["run", "--dry-run", "--", "cotainr", "build"]) == 0
    dry = capsys.readouterr().err
    assert "  PIP_CERT=/tmp/matrix-run-XXXXXXXX/PIP_CERT.pem: a copy of" in dry
    assert f"  PATH=/tmp/matrix-run-XXXXXXXX/bin:{programs}" in dry
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/nowhere")
    assert main(["run", "--", str(programs / "cotainr"), "build"]) == 0
    real = capsys.readouterr().err
    assert changed_names(dry) == changed_names(real)


def changed_names(text: str) -> list[str]:
    return [re.split("[=:]", line)[0] for line in text.splitlines() if line.startswith("  ")]


@pytest.mark.usefixtures("index")
def test_certificates_are_copied_for_container(tmp_path: Path, monkeypatch: Patch) -> None:
    hidden = Path(os.__file__)  # some file that is neither in /tmp nor in /var/tmp
    monkeypatch.setenv("SSL_CERT_FILE", str(hidden))
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "seen.pem"))
    (tmp_path / "seen.pem").write_text("seen")
    cotainr = tmp_path / "cotainr"  # a fake that prints its input
    cotainr.write_text(
        '#!/bin/sh\ncp "$SSL_CERT_FILE" copied\n'
        'printf "%s\\n" "$SSL_CERT_FILE" "$PIP_CERT" "$PIP_NO_CACHE_DIR"\n'
    )
    cotainr.chmod(0o755)
    with started(tmp_path, "--", str(cotainr)) as process:
        out, err = process.communicate()
    bundle, seen, cache = out.splitlines()
    assert bundle.startswith("/tmp/matrix-run-"), err
    assert (tmp_path / "copied").read_bytes() == hidden.read_bytes()
    assert (seen, cache) == (str(tmp_path / "seen.pem"), "1")
    assert not Path(bundle).exists()


LEAVING = """#!/bin/sh
mkdir "$TMPDIR/sandbox"
touch "$TMPDIR/sandbox/file"
chmod 500 "$TMPDIR/sandbox"
echo "$TMPDIR"
kill -9 $$
"""


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("directory", ["mine", "/nowhere"])
def test_files_of_killed_cotainr_are_removed(tmp_path: Path, monkeypatch: Patch, directory: str) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / directory))
    cotainr = tmp_path / "cotainr"  # a fake that is killed in the middle
    cotainr.write_text(LEAVING)
    cotainr.chmod(0o755)
    with started(tmp_path, "--", str(cotainr)) as process:
        out, err = process.communicate()
    assert process.returncode == 137, err
    parent = tmp_path / "mine" if directory == "mine" and is_visible(str(tmp_path)) else Path("/tmp")
    assert Path(out.strip()).parent == parent
    assert not Path(out.strip()).exists()


def test_directory_for_other_node_is_not_made_here(
    index: Index, tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "srun").touch(mode=0o755)
    base = image(tmp_path / "base", mount=True)
    command = ["srun", "cotainr", "build", "x.sif", "--base-image", str(base)]
    assert main(["run", "--index", str(index.root), "--dry-run", "--", *command]) == 0
    assert "TMPDIR" not in capsys.readouterr().err
    assert main(["run", "--dry-run", "--", "env", *command[1:]]) == 0
    assert "  TMPDIR=/tmp/matrix-run-XXXXXXXX: this directory is removed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([], 2, "no command to run"),
        (["--"], 2, "no command to run"),
        (["--", "--index", "x"], 2, "is not a program"),
        (["--", "no-such-program"], 3, "no-such-program is not on PATH"),
        (["--index", "nowhere", "--", "true"], 2, "There is no index at"),
        (["--rout", "bind", "--", "true"], 2, "--rout"),
        (["--", "./a-directory"], 3, "a-directory is not on PATH"),
        (["--", "./not-a-program"], 3, "Cannot start ./not-a-program: Exec format error"),
    ],
)
@pytest.mark.usefixtures("index")
def test_bad_usage(tmp_path: Path, capsys: Capture, arguments: list[str], code: int, text: str) -> None:
    (tmp_path / "a-directory").mkdir()
    (tmp_path / "not-a-program").write_bytes(b"\0\1\2")
    (tmp_path / "not-a-program").chmod(0o755)
    assert main(["run", *arguments]) == code
    assert text in capsys.readouterr().err


def test_format_option_of_command_is_passed_on(capsys: Capture) -> None:
    assert main(["run", "--index", "nowhere", "--", "true", "--format", "json"]) == 2
    output = capsys.readouterr()
    assert (output.out, "There is no index" in output.err) == ("", True)


def test_uses_container_recognizes_builders() -> None:
    assert uses_container(["env", "A=b", "/opt/cotainr/bin/cotainr", "build"])
    assert not uses_container(["pip", "install", "cotainr-extras"])


# Variables of the site.


@pytest.mark.usefixtures("index")
def test_command_gets_variables_of_the_site_of_the_lock(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    assert main(["resolve", "torch", "--site", "lumi-g", "--rocm", "7.0", "--date", "2026-06-01", "-q"]) == 0
    monkeypatch.setenv("NCCL_NET_GDR_LEVEL", "PHB")
    monkeypatch.setenv("FI_MR_CACHE_MONITOR", "mine")
    monkeypatch.setenv("USER", tmp_path.name)
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    code = "import json, os; json.dump(dict(os.environ), open('env.json', 'w'))"
    assert main(["run", *python(code)]) == 0
    env = json.loads(Path("env.json").read_text())
    assert env["NCCL_SOCKET_IFNAME"] == "hsn0,hsn1,hsn2,hsn3"
    assert env["FI_MR_CACHE_MONITOR"] == "mine"
    assert "NCCL_NET_GDR_LEVEL" not in env
    folder = Path(env["MIOPEN_CUSTOM_CACHE_DIR"])
    assert folder.name.startswith(f"{tmp_path.name}-miopen-cache-")
    folder.rmdir()
    capsys.readouterr()
    assert main(["run", "--dry-run", "--keep", "NCCL_NET_GDR_LEVEL", "--", "true"]) == 0
    shown = capsys.readouterr().err
    assert "NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3: RCCL must use the Slingshot interfaces" in shown
    assert "unset NCCL_NET_GDR_LEVEL" not in shown
