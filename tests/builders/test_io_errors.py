"""Errors of full and read-only disks are explained, in this program and in programs that it starts."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest

from builders.findings import Finding
from builders.storage.files import cache_root
from builders.storage.io_errors import explain_any_os_error, explain_index_errors, explain_io_errors
from resolver.errors import BuildError, CommandError, EnvironmentLacksError, UsageError

HINT = "Choose another directory."


def os_error(number: int, path: Path | str | None = None) -> OSError:
    return OSError(number, os.strerror(number), path) if path else OSError(number, os.strerror(number))


def command_error(code: int, *lines: str) -> CommandError:
    what = "Installing"
    return CommandError(what, code=code, log=Path("pip.log"), lines=lines)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "No space left in the store"),
        (errno.EDQUOT, "No space left in the store"),
        (errno.EFBIG, "No space left in the store"),
        (errno.EROFS, "Cannot write to the store"),
        (errno.EACCES, "Cannot write to the store"),
        (errno.EPERM, "Cannot write to the store"),
        (errno.EIO, "Cannot write to the store"),
    ],
)
def test_os_error_is_explained(tmp_path: Path, number: int, message: str) -> None:
    explaining = explain_io_errors(tmp_path, "store", hint=HINT)
    with pytest.raises(EnvironmentLacksError, match=message) as caught, explaining:
        raise os_error(number, tmp_path / "file")
    assert os.strerror(number) in caught.value.message
    assert str(tmp_path / "file") in caught.value.message
    assert caught.value.hint == HINT


def test_os_error_elsewhere_passes_unchanged(tmp_path: Path) -> None:
    error = os_error(errno.EACCES, tmp_path / "other" / "file")
    with pytest.raises(PermissionError) as caught, explain_io_errors(tmp_path / "store", hint=HINT):
        raise error
    assert caught.value is error


def test_missing_file_passes_unchanged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), explain_io_errors(tmp_path, hint=HINT):
        (tmp_path / "nowhere").read_text()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (command_error(1, "ERROR: [Errno 28] No space left on device"), "No space left"),
        (command_error(1, "ERROR: [Errno 122] Disk quota exceeded"), "No space left"),
        (command_error(-signal.SIGXFSZ), "No space left"),
        (command_error(1, "touch: Read-only file system"), "Cannot write to"),
    ],
)
def test_error_of_other_program_is_explained(tmp_path: Path, error: CommandError, message: str) -> None:
    with (
        pytest.raises(EnvironmentLacksError, match=message) as caught,
        explain_io_errors(tmp_path, hint=HINT),
    ):
        raise error
    assert "pip.log" in caught.value.message


def test_other_failure_of_program_passes_unchanged(tmp_path: Path) -> None:
    error = command_error(1, "ERROR: bad wheel")
    message = error.message
    with pytest.raises(CommandError) as caught, explain_io_errors(tmp_path, hint=HINT):
        raise error
    assert (caught.value is error, error.message) == (True, message)


class TestIndexErrors:
    @pytest.fixture
    def work(self, tmp_path: Path) -> Path:
        folder = tmp_path / "index" / ".matrix" / "builds" / "one"
        folder.mkdir(parents=True)
        (folder / "half").touch()
        return folder

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
    def test_full_index_removes_build_directory(self, tmp_path: Path, work: Path, number: int) -> None:
        explaining = explain_index_errors(tmp_path / "index", work)
        with pytest.raises(EnvironmentLacksError, match="No space left in the index") as caught, explaining:
            raise os_error(number)
        assert os.strerror(number) in caught.value.message
        assert "--index" in caught.value.hint
        assert not work.exists()

    def test_full_cache_keeps_build_directory(self, tmp_path: Path, work: Path) -> None:
        index = explain_index_errors(tmp_path / "index", work)
        cache = explain_io_errors(tmp_path / "cache", "cache", hint=HINT)
        with pytest.raises(EnvironmentLacksError, match="No space left in the cache"), index, cache:
            raise os_error(errno.ENOSPC, tmp_path / "cache" / "file")
        assert work.exists()

    def test_full_environment_removes_build_directory(self, tmp_path: Path, work: Path) -> None:
        index = explain_index_errors(tmp_path / "index", work)
        environment = explain_io_errors(work / "env", hint=HINT)
        raises = pytest.raises(EnvironmentLacksError, match="No space left in the index")
        with raises as caught, index, environment:
            raise command_error(1, "No space left on device")
        assert "--index" in caught.value.hint
        assert not work.exists()

    def test_build_that_met_full_disk_is_explained(self, tmp_path: Path, work: Path) -> None:
        failure = BuildError("The compiler failed.")
        failure.findings = (Finding("disk-full", "error", "The disk is full."),)
        failure.details = {"diagnosis": [{"id": "disk-full"}]}
        explaining = explain_index_errors(tmp_path / "index", work)
        with pytest.raises(EnvironmentLacksError, match="The compiler failed") as caught, explaining:
            raise failure
        assert caught.value.details == failure.details
        assert not work.exists()

    @pytest.mark.parametrize("ids", [[], ["compile-error", "disk-full"]])
    def test_other_build_failure_passes_unchanged(self, tmp_path: Path, work: Path, ids: list[str]) -> None:
        failure = BuildError("The compiler failed.")
        failure.findings = tuple(Finding(name, "error", name) for name in ids)
        with pytest.raises(BuildError), explain_index_errors(tmp_path / "index", work):
            raise failure
        assert (work / "half").exists()

    def test_read_only_index_is_named(self, tmp_path: Path, work: Path) -> None:
        file = tmp_path / "index" / "simple"
        explaining = explain_index_errors(tmp_path / "index", work)
        with pytest.raises(EnvironmentLacksError, match="Cannot write to the index") as caught, explaining:
            raise os_error(errno.EACCES, file)
        assert str(file) in caught.value.message
        assert "--index" in caught.value.hint

    def test_error_outside_of_index_passes_unchanged(self, tmp_path: Path, work: Path) -> None:
        with pytest.raises(PermissionError), explain_index_errors(tmp_path / "index", work):
            raise os_error(errno.EACCES, tmp_path / "cache")


class TestAnyError:
    def test_unusable_name_is_bad_input(self, tmp_path: Path) -> None:
        error = explain_any_os_error(os_error(errno.EISDIR, str(tmp_path)))
        assert isinstance(error, UsageError)
        assert error.message == f"{tmp_path} is a directory, not a file."

    def test_error_in_cache_names_variable(self) -> None:
        error = explain_any_os_error(os_error(errno.EISDIR, str(cache_root() / "x")))
        assert isinstance(error, EnvironmentLacksError)
        assert "XDG_CACHE_HOME" in error.hint

    def test_other_error_keeps_its_text(self) -> None:
        error = explain_any_os_error(os_error(errno.EMFILE))
        assert (error.exit_code, error.message) == (3, f"{os.strerror(errno.EMFILE)}.")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory to another user")
def test_directory_of_another_member_is_no_lack_of_space(tmp_path: Path) -> None:
    folder = tmp_path / "wheels"
    folder.mkdir()
    os.chown(folder, 4242, -1)
    for path in (folder, folder / "new.whl"):
        with (
            pytest.raises(EnvironmentLacksError) as caught,
            explain_io_errors(folder, hint="Free some space."),
        ):
            raise os_error(errno.EACCES, path)
        assert caught.value.hint == (
            f"{folder} belongs to user 4242, who can let the group write: chmod -R g+rwX {folder}"
        )
    with pytest.raises(EnvironmentLacksError) as caught, explain_io_errors(tmp_path, hint="Free some space."):
        raise os_error(errno.EACCES, tmp_path / "new.whl")
    assert caught.value.hint == "Free some space."
