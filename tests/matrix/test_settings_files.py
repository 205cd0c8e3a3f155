"""The settings of the system, the user and the project, and the site that a machine belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders.machine import cluster as slurm_cluster
from builders.storage.files import cache_root
from matrix.cli import main
from matrix.input.settings import in_project, read_settings
from resolver.errors import UsageError
from resolver.lock import read_lock

CPU = ("--backend", "cpu", "--python", "3.11", "--offline", "-q")
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", f"{tmp_path / 'first'}:{tmp_path / 'second'}")
    monkeypatch.delenv("SBATCH_ACCOUNT", raising=False)


def write(folder: str, text: str) -> Path:
    path = Path(folder, "matrix.toml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_nearer_settings_take_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    for folder in ("second/matrix", "first/matrix", "user/matrix", "."):
        write(folder, f'account = "{folder}"\n')
        given.append(read_settings().account)
    monkeypatch.setenv("SBATCH_ACCOUNT", "environment")
    given += [read_settings().account, read_settings({"account": "option"}).account]
    assert given == ["second/matrix", "first/matrix", "user/matrix", ".", "environment", "option"]


def test_site_of_the_user_is_used_and_not_written_into_the_project() -> None:
    write("user/matrix", 'site = "frontier"\n')
    assert main(["resolve", "numpy", "--date", "2026-02-01", "--offline", "-q"]) == 0
    assert read_lock(Path("matrix.lock")).target.site == "frontier"
    assert Path("matrix.toml").read_text() == 'requirements = ["numpy"]\ndate = 2026-02-01\n'


@pytest.mark.parametrize(
    ("folder", "text", "message"),
    [
        (
            "user/matrix",
            'site = "lumi-g"\nrequirements = ["torch"]\n',
            "matrix.toml:2: 'requirements' belongs",
        ),
        ("user/matrix", "\nacount = 'x'\n", "matrix.toml:2: unknown key 'acount'"),
        (".", 'python = "3.12"\ncache = "/x"\n', "matrix.toml:2: 'cache' belongs in ~/.config"),
        (".", 'python = "3.12"\n[[site]]\n', "matrix.toml:2: 'site' must be a string"),
        (".", 'python = "3.12"\ndate = today\n', "matrix.toml:2: "),
        ("first/matrix", "mirrors = 'x'\n", "matrix.toml:1: 'mirrors' must be a table"),
    ],
)
def test_error_names_the_file_and_the_line(folder: str, text: str, message: str) -> None:
    path = write(folder, text)
    with pytest.raises(UsageError) as caught:
        read_settings()
    assert message in caught.value.message
    assert str(path.parent) in caught.value.message


def test_byte_order_mark_is_read() -> None:
    Path("matrix.toml").write_bytes(b'\xef\xbb\xbfpython = "3.12"\n')
    assert read_settings().python == "3.12"


def test_cache_of_the_user_is_that_of_the_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PROJECT", str(tmp_path / "project"))
    write("user/matrix", 'cache = "$PROJECT/cache"\n')
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert main(["catalog", "list"]) == 0
    assert cache_root() == tmp_path / "project" / "cache" / "matrix"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    assert main(["catalog", "list"]) == 0
    assert cache_root() == tmp_path / "mine" / "matrix"


def test_cache_that_depends_on_an_unknown_variable_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.delenv("PROJECT", raising=False)
    write("user/matrix", 'cache = "$PROJECT/cache"\n')
    assert main(["catalog", "list"]) == 2
    assert "not an absolute path" in capsys.readouterr().err


def test_commands_in_a_subdirectory_use_the_project(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    Path("reqs.txt").write_text("mpi4py\n")
    Path("sub/deep").mkdir(parents=True)
    assert main(["resolve", "numpy", "-r", "reqs.txt", *CPU]) == 0
    before = Path("matrix.toml").read_text()
    monkeypatch.chdir("sub/deep")
    assert main(["explain", "numpy"]) == 0
    assert main(["resolve", "--offline"]) == 0
    assert "../../matrix.lock is still valid" in capsys.readouterr().err
    Path("more.txt").write_text("deepspeed\n")
    assert main(["add", "torch", "--offline", "-q"]) == 0
    assert main(["resolve", "numpy", "-r", "more.txt", *CPU]) == 0
    assert not Path("matrix.toml").exists()
    monkeypatch.chdir("../..")
    assert Path("matrix.toml").read_text() == before.replace("reqs.txt", "./sub/deep/more.txt")
    assert main(["resolve", "--offline"]) == 0
    assert "matrix.lock is still valid" in capsys.readouterr().err


def test_project_in_a_directory_of_everyone_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    write("shared", 'account = "a stranger"\n')
    Path("shared/mine").mkdir()
    monkeypatch.chdir("shared/mine")
    assert read_settings().account == "a stranger"
    Path("..").chmod(0o1777)
    assert read_settings().account == ""
    assert in_project(Path("matrix.lock")) == Path("matrix.lock")


def test_check_names_the_files_in_force(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matrix.judging.machine.check_machine", lambda *_: [])
    main(["check"])
    assert "no file of settings is in force [settings-files]" in capsys.readouterr().out
    user = write("user/matrix", 'account = "project_1"\n')
    write(".", "")
    main(["check"])
    assert f"settings from {user.absolute()} and matrix.toml" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("cluster", "options", "warns"),
    [
        ("frontier", [], True),
        ("frontier", ["--site", "lumi-g"], True),
        ("frontier", ["--site", "frontier"], False),
        ("lumi", ["--site", "lumi-c"], False),
        ("lumi", [], False),
        ("elsewhere", [], False),
        ("", [], False),
    ],
)
def test_site_of_another_cluster_is_one_warning(
    cluster: str, options: list[str], warns: bool, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(slurm_cluster, "cluster_name", lambda: cluster)
    assert main(["resolve", "numpy", *options, "--date", "2026-02-01", "--no-lock", "--offline"]) == 0
    error = capsys.readouterr().err
    assert error.count("belongs to the cluster frontier") == error.count("[other-site]") == warns
    assert ("Use --site frontier," in error) is warns


def test_name_of_the_cluster_is_that_of_the_job_or_the_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    configuration = tmp_path / "slurm.conf"
    configuration.write_text("# ClusterName=old\nSlurmUser=slurm\nclustername = LUMI\n")
    monkeypatch.setenv("SLURM_CONF", str(configuration))
    monkeypatch.delenv("SLURM_CLUSTER_NAME", raising=False)
    assert slurm_cluster.cluster_name() == "lumi"
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "frontier")
    assert slurm_cluster.cluster_name() == "frontier"
