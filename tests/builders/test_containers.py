"""Command lines, variables and mounts of containers; the engines here are stand-ins."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from builders.containers import engines, sandbox
from builders.containers.engines import (
    ApptainerRuntime,
    PodmanRuntime,
    binds,
    choose_runtime,
    private_mounts,
    script,
)
from builders.containers.image import LocalImage
from builders.containers.runtime import Bind, HostRuntime, View, only_loopback, output_in, run_in
from builders.storage.files import cache_root
from builders.storage.lease import TemporaryDirectory
from resolver.errors import EnvironmentLacksError, UsageError

ONLY_LO = "Inter-|\n face |\n    lo: 0 0\n"
MORE = ONLY_LO + "  eth0: 1 2\n"


def in_shell(view: View, *command: str, path: str = "/usr/bin:/bin") -> str:
    """Run the script as a container's shell does, with only the image's PATH in its environment."""
    line = ["/bin/sh", "-c", script(view), "sh", *command]
    return subprocess.run(line, env={"PATH": path}, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def image(tmp_path: Path) -> LocalImage:
    """Return an empty unpacked image."""
    root = tmp_path / "image"
    (root / "usr").mkdir(parents=True)
    return LocalImage("base", root, "ab" * 32)


@pytest.fixture
def runtimes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only directory on PATH, for stand-ins of engines."""
    folder = tmp_path / "runtimes"
    folder.mkdir()
    for name in ("sh", "cat", "unshare"):
        path = shutil.which(name)
        assert path
        (folder / name).symlink_to(path)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def put(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


class TestScript:
    def test_variables_keep_their_values(self) -> None:
        odd = "a 'quoted' \"word\" $HOME `id`\nsecond line, with: all; of it"
        output = in_shell(View(env={"ODD": odd, "HOME": "/else"}), "env", "-0")
        variables = dict(line.split("=", 1) for line in output.split("\0") if line)
        assert variables["ODD"] == odd
        assert variables["HOME"] == "/else"
        assert (variables["PYTHONNOUSERSITE"], variables["TMPDIR"], variables["LANG"]) == (
            "1",
            "/tmp",
            "C.UTF-8",
        )

    def test_path_comes_before_the_images_path(self) -> None:
        view = View(path=[Path("/first dir"), Path("/second")])
        assert in_shell(view, "/bin/sh", "-c", 'echo "$PATH"', path="/of/image:/bin") == (
            "/first dir:/second:/of/image:/bin\n"
        )

    def test_arguments_and_working_directory_are_kept(self, tmp_path: Path) -> None:
        here = tmp_path / "with space"
        here.mkdir()
        output = in_shell(View(cwd=here), "/bin/sh", "-c", 'pwd; printf "[%s]" "$@"', "sh", "a b", "*", "")
        assert output == f"{here}\n[a b][*][]"

    def test_missing_working_directory_runs_nothing(self, tmp_path: Path) -> None:
        view = View(cwd=tmp_path / "gone")
        done = subprocess.run(
            ["/bin/sh", "-c", script(view), "sh", "echo", "ran"], capture_output=True, check=False
        )
        assert done.returncode != 0
        assert done.stdout == b""

    def test_proxies_and_certificates_need_network(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bundle = tmp_path / "bundle.pem"
        bundle.touch()
        monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
        monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
        on, off = script(View(network=True)), script(View())
        assert f"SSL_CERT_FILE={bundle}" in on
        assert "https_proxy=http://127.0.0.1:9" in on
        assert str(bundle) not in off
        assert "https_proxy" not in off
        assert Bind(bundle) in binds(View(network=True))
        assert binds(View()) == []

    @pytest.mark.parametrize(("code", "first_process"), [(7, False), (7, True)])
    def test_script_exits_with_the_programs_code(self, code: int, first_process: bool) -> None:
        line = script(View(), first_process=first_process)
        done = subprocess.run(["/bin/sh", "-c", line, "sh", "/bin/sh", "-c", f"exit {code}"], check=False)
        assert done.returncode == code


class TestBinds:
    def test_parents_come_before_their_content(self, tmp_path: Path) -> None:
        inner = tmp_path / "a" / "b"
        inner.mkdir(parents=True)
        requested = [Bind(inner, writable=True), Bind(tmp_path)]
        assert binds(View(binds=requested)) == [Bind(tmp_path), Bind(inner, writable=True)]

    def test_linked_path_is_bound_under_both_names(self, tmp_path: Path) -> None:
        real, link = tmp_path / "real", tmp_path / "link"
        real.mkdir()
        link.symlink_to(real)
        assert binds(View(binds=[Bind(link, writable=True)])) == [
            Bind(link, writable=True),
            Bind(real, writable=True),
        ]

    def test_path_bound_twice_stays_writable(self, tmp_path: Path) -> None:
        assert binds(View(binds=[Bind(tmp_path), Bind(tmp_path, writable=True)])) == [
            Bind(tmp_path, writable=True)
        ]

    @pytest.mark.parametrize("name", ["a:b", "a,b", "a\\b"])
    def test_unsupported_character_is_rejected(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).mkdir()
        with pytest.raises(UsageError, match="cannot be bound"):
            binds(View(binds=[Bind(tmp_path / name)]))

    def test_missing_path_is_rejected(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="does not exist"):
            binds(View(binds=[Bind(tmp_path / "gone")]))


class TestPrivateTmp:
    def test_binds_below_tmp_get_mount_points(self, tmp_path: Path) -> None:
        with tempfile.NamedTemporaryFile(dir="/tmp") as handle:
            file = Path(handle.name)
            pairs = {inside: outside for outside, inside in private_mounts(tmp_path, [Bind(file)])}
        assert set(pairs) == {Path("/tmp"), Path("/var/tmp")}
        assert (pairs[Path("/tmp")] / file.name).is_file()
        assert (pairs[Path("/tmp")] / "home").is_dir()

    def test_bind_of_tmp_replaces_the_private_one(self, tmp_path: Path) -> None:
        inside = [inside for _, inside in private_mounts(tmp_path, [Bind(Path("/tmp"))])]
        assert inside == [Path("/var/tmp")]

    def test_programs_at_the_same_time_share_no_directory(self, tmp_path: Path) -> None:
        roots: list[Path] = []

        class Nested(HostRuntime, frozen=True):
            """Stand in for a container engine; while the first program runs, a second is started."""

            kind = "stand-in"

            def command(
                self, command: Sequence[str], view: View, scratch: Path
            ) -> tuple[list[str], dict[str, str]]:
                assert list(scratch.iterdir()) == []
                roots.append(scratch)
                if len(roots) == 1:
                    output_in(self, ["true"], view)
                    assert [root.exists() for root in roots] == [True, False]
                return list(command), {}

        image = LocalImage("base", tmp_path / "base.sif", "0" * 64)
        run_in(Nested(image), ["true"], View(), what="Trying", log=tmp_path / "log")
        assert len(set(roots)) == 2
        assert not any(root.exists() for root in roots)

    def test_directory_is_removed_with_its_owner(self) -> None:
        temporary = TemporaryDirectory()
        root = temporary.root
        (root / "left").touch()
        assert root.exists()
        del temporary
        gc.collect()
        assert not root.exists()

    def test_directory_is_removed_with_its_block(self) -> None:
        with TemporaryDirectory() as temporary:
            (temporary.root / "left").touch()
        assert list((cache_root() / "tmp").iterdir()) == []

    def test_next_run_removes_files_of_killed_run(self) -> None:
        code = (
            "import os; from builders.storage.lease import TemporaryDirectory;"
            "left = TemporaryDirectory(); print(left.root, flush=True);"
            "os.kill(os.getpid(), 9)"
        )
        killed = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
        left = Path(killed.stdout.strip())
        assert left.is_dir()
        used = TemporaryDirectory()
        assert not left.exists()
        TemporaryDirectory()
        assert used.root.exists()
        names = {path.name for path in (cache_root() / "tmp").iterdir()}
        assert names == {used.root.name, f"{used.root.name}.lock.1"}


class TestApptainer:
    def test_callers_variables_do_not_reach_the_engine(
        self, image: LocalImage, runtimes: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        put(runtimes, "apptainer", f"printf '{ONLY_LO}'")
        for name in ("SINGULARITY_BIND", "APPTAINERENV_CFLAGS", "PYTHONPATH", "SINGULARITY_CACHEDIR"):
            monkeypatch.setenv(name, "/of/the/caller")
        _, env = ApptainerRuntime(image).command(["true"], View(), tmp_path)
        assert [name for name, value in env.items() if value == "/of/the/caller"] == ["SINGULARITY_CACHEDIR"]

    def test_command_line(self, image: LocalImage, runtimes: Path, tmp_path: Path) -> None:
        put(runtimes, "apptainer", f"printf '{ONLY_LO}'; echo yes")
        own = tmp_path / "own"
        own.mkdir()
        view = View(binds=[Bind(own, writable=True), Bind(tmp_path)])
        line, _ = ApptainerRuntime(image).command(["cc", "-c"], view, tmp_path)
        at = line.index("apptainer")
        options = line[at : line.index(str(image.path))]
        assert {"--cleanenv", "--containall"} <= set(options)
        assert "home,cwd,bind-paths,hostfs" in options
        mounts = [line[number + 1] for number, word in enumerate(line) if word == "--bind"]
        assert mounts[-2:] == [f"{tmp_path}:{tmp_path}:ro", f"{own}:{own}"]
        assert [mount.rpartition(":")[2] for mount in mounts[:2]] == ["/tmp", "/var/tmp"]
        assert line[-3:] == ["sh", "cc", "-c"]

    @pytest.mark.parametrize("option", ["--no-privs", "--userns"])
    def test_root_runs_without_capabilities(
        self, image: LocalImage, runtimes: Path, monkeypatch: pytest.MonkeyPatch, option: str, tmp_path: Path
    ) -> None:
        """Root in a container lacks some capabilities, and the engine fails when it passes them on."""
        put(runtimes, "apptainer", f'case "$*" in *{option}*"echo yes") echo yes;; *) exit 255;; esac')
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        line = ApptainerRuntime(image).command(["true"], View(network=True), tmp_path)[0]
        assert [word for word in line if word in {"--no-privs", "--userns"}] == [option]
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        line = ApptainerRuntime(image).command(["true"], View(network=True), tmp_path)[0]
        assert not {"--no-privs", "--userns"} & set(line)

    def test_engine_cuts_the_network_if_it_can(
        self, image: LocalImage, runtimes: Path, tmp_path: Path
    ) -> None:
        put(
            runtimes,
            "apptainer",
            f"case \"$*\" in *--network*) printf '{ONLY_LO}';; *) printf '{MORE}';; esac",
        )
        runtime = ApptainerRuntime(image)
        assert runtime.isolates_network
        assert "--net" in runtime.command(["true"], View(), tmp_path)[0]
        assert "--net" not in runtime.command(["true"], View(network=True), tmp_path)[0]

    def test_unshare_cuts_the_network_if_the_engine_cannot(
        self, image: LocalImage, runtimes: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        put(runtimes, "around", f"printf '{ONLY_LO}'")
        put(runtimes, "apptainer", "exit 1")
        monkeypatch.setattr(engines, "without_network", lambda: ("around",))
        runtime = ApptainerRuntime(image)
        assert runtime.isolates_network
        line = runtime.command(["true"], View(), tmp_path)[0]
        assert line.index("around") < line.index("apptainer")
        assert "--net" not in line

    def test_network_that_stays_is_reported(
        self, image: LocalImage, runtimes: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(runtimes, "apptainer", f"printf '{MORE}'")
        monkeypatch.setattr(engines, "without_network", tuple)
        assert not ApptainerRuntime(image).isolates_network


class TestPodman:
    def test_command_line(self, image: LocalImage, runtimes: Path, tmp_path: Path) -> None:
        put(runtimes, "podman", f"printf '{ONLY_LO}'")
        runtime = PodmanRuntime(image)
        line, env = runtime.command(["cc", "-c"], View(binds=[Bind(tmp_path)]), tmp_path)
        assert line[:2] == ["podman", "run"]
        assert {"--rm", "--http-proxy=false", "--network=none"} <= set(line)
        assert ("--userns=keep-id" in line) == (os.geteuid() != 0)
        assert f"{tmp_path}:{tmp_path}:ro" in line
        assert line[line.index("--rootfs") + 1] == f"{image.path}:O"
        assert "--network=host" in runtime.command(["cc"], View(network=True), tmp_path)[0]
        assert "PYTHONPATH" not in env
        assert runtime.isolates_network

    def test_runc_replaces_a_default_that_does_not_work(
        self, image: LocalImage, runtimes: Path, tmp_path: Path
    ) -> None:
        put(runtimes, "podman", f"case \"$*\" in *'--runtime runc'*) printf '{ONLY_LO}';; *) exit 125;; esac")
        put(runtimes, "runc", "true")
        runtime = PodmanRuntime(image)
        assert runtime.command(["true"], View(), tmp_path)[0][:4] == ["podman", "--runtime", "runc", "run"]
        assert runtime.isolates_network

    def test_limits_stay_below_the_users_hard_limits(
        self, image: LocalImage, runtimes: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        put(runtimes, "podman", f"printf '{ONLY_LO}'")
        monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 1000))
        assert "nofile=1000:1000" in PodmanRuntime(image).command(["true"], View(), tmp_path)[0]
        monkeypatch.setattr(resource, "getrlimit", lambda _: (-1, -1))
        assert "nproc=8192:8192" in PodmanRuntime(image).command(["true"], View(), tmp_path)[0]

    def test_first_process_handles_signals(self) -> None:
        """Without a trap, process 1 of a container would not receive SIGTERM at all."""
        lines = script(View(), first_process=True).splitlines()
        assert any(line.startswith("trap ") and "TERM INT HUP" in line for line in lines)
        assert not any(line.startswith("exec ") for line in lines)


class TestHost:
    def test_command_without_network_is_cut_off(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr("builders.containers.runtime.without_network", lambda: ("cut", "off"))
        assert HostRuntime().command(["cc"], View(), tmp_path)[0] == ["cut", "off", "cc"]
        assert HostRuntime().command(["cc"], View(network=True), tmp_path)[0] == ["cc"]
        assert HostRuntime().isolates_network

    def test_container_without_namespaces_keeps_network(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr("builders.containers.runtime.without_network", tuple)
        assert HostRuntime().command(["cc"], View(), tmp_path)[0] == ["cc"]
        assert not HostRuntime().isolates_network

    def test_program_runs_in_working_directory(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        run_in(HostRuntime(), ["/bin/sh", "-c", "pwd"], View(cwd=tmp_path, network=True), what="One", log=log)
        assert log.read_text().splitlines()[-1] == str(tmp_path)
        assert output_in(HostRuntime(), ["/bin/echo", "text"], View(network=True)) == "text\n"


class TestChoosing:
    def test_runtime_without_image_is_host(self) -> None:
        assert choose_runtime(None, None).kind == "host"

    @pytest.mark.parametrize(
        ("installed", "kind", "chosen"),
        [
            (["apptainer", "singularity", "podman"], None, "apptainer"),
            (["singularity"], None, "apptainer"),
            (["podman"], None, "podman"),
            (["apptainer", "podman"], "podman", "podman"),
            (["apptainer"], "host", "host"),
        ],
    )
    def test_installed_engine_is_chosen(
        self, image: LocalImage, runtimes: Path, installed: list[str], kind: str | None, chosen: str
    ) -> None:
        for name in installed:
            put(runtimes, name, "true")
        runtime = choose_runtime(kind, image)
        assert runtime.kind == chosen
        if isinstance(runtime, ApptainerRuntime):
            assert runtime.program == str(runtimes / installed[0])

    @pytest.mark.usefixtures("runtimes")
    @pytest.mark.parametrize(("kind", "named"), [(None, "apptainer or singularity"), ("podman", "podman")])
    def test_missing_engine_names_the_module(self, image: LocalImage, kind: str | None, named: str) -> None:
        with pytest.raises(EnvironmentLacksError, match=named) as caught:
            choose_runtime(kind, image)
        assert caught.value.exit_code == 3
        assert "module avail" in caught.value.hint

    def test_container_requires_an_image(self) -> None:
        with pytest.raises(UsageError, match="requires a base image"):
            choose_runtime("apptainer", None)

    def test_unknown_runtime_is_rejected(self, image: LocalImage) -> None:
        with pytest.raises(UsageError, match="'docker'"):
            choose_runtime("docker", image)

    def test_engine_rejects_unsupported_image_form(
        self, image: LocalImage, runtimes: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(runtimes, "podman", "true")
        put(runtimes, "apptainer", "true")
        monkeypatch.setattr(engines, "form_of", lambda _: "sif")
        with pytest.raises(UsageError, match="it is a sif file"):
            choose_runtime("podman", image)
        monkeypatch.setattr(engines, "form_of", lambda _: "archive")
        assert choose_runtime(None, image).kind == "podman"
        with pytest.raises(UsageError, match="it is an archive file"):
            choose_runtime("apptainer", image)


@pytest.mark.parametrize(("devices", "only"), [(ONLY_LO, True), (MORE, False), ("", False), ("x", False)])
def test_unreadable_devices_count_as_network(devices: str, only: bool) -> None:
    assert only_loopback(devices) is only


def test_program_in_a_hidden_directory_does_not_switch_isolation_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Isolated programs do not see /tmp, so they could not start an ``unshare`` there."""
    if sandbox.sandbox() is None:
        pytest.skip("this machine does not allow namespaces")
    sandbox.sandbox.cache_clear()
    for name in ("unshare", "bwrap"):
        put(tmp_path, name, f'exec "$(PATH=/usr/bin:/bin command -v {name})" "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert sandbox.sandbox() is not None
    assert sandbox.system_program("unshare") == shutil.which("unshare", path="/usr/bin:/bin")
    assert sandbox.system_program("of-nobody") == "of-nobody"


def test_podman_drops_all_privileges(runtimes: Path, image: LocalImage, tmp_path: Path) -> None:
    """Root in the container would otherwise keep privileges of root on this machine."""
    put(runtimes, "podman", f"printf '{ONLY_LO}'")
    line, _ = PodmanRuntime(image).command(["true"], View(untrusted=True), tmp_path)
    options = line[: line.index("--entrypoint=")]
    assert options[options.index("--cap-drop") + 1] == "all"
    assert "no-new-privileges" in options
