"""``matrix.toml`` as the request: written by the first resolution, changed by ``add`` and ``remove``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from matrix.cli import main
from matrix.input.request_file import store_request, with_requirements
from matrix.input.settings import Settings, read_settings
from resolver.lock import read_lock

CPU = ("--backend", "cpu", "--python", "3.11")
Capture = pytest.CaptureFixture[str]


def names() -> set[str]:
    return {one.name for one in read_lock(Path("matrix.lock")).request.requirements}


def test_a_resolution_stores_its_request_and_later_ones_use_it(capsys: Capture) -> None:
    assert main(["resolve", "torch", *CPU, "--offline", "--for", "pip"]) == 0
    assert "Wrote matrix.lock and matrix.toml" in capsys.readouterr().err
    stored = Path("matrix.toml").read_text()
    assert read_settings() == Settings(requirements=["torch"], backend="cpu", python="3.11", consumer="pip")
    assert main(["resolve", "--offline"]) == 0
    assert "is still valid" in capsys.readouterr().err
    assert main(["resolve", "deepspeed", "--offline"]) == 0
    assert "Changes to matrix.lock" in capsys.readouterr().err
    assert read_settings().requirements == ["deepspeed"]
    assert Path("matrix.toml").read_text() == stored.replace("torch", "deepspeed")


def test_what_was_not_asked_for_stays_in_the_file() -> None:
    Path("matrix.toml").write_text('# ours\naccount = "project_1"\npython = "3.12"\nenv = "env.yml"\n')
    assert main(["resolve", "torch", *CPU, "--offline", "-q"]) == 0
    text = Path("matrix.toml").read_text()
    assert text.startswith('# ours\naccount = "project_1"\npython = "3.11"\n')
    assert (read_settings().requirements, read_settings().env) == (["torch"], None)


@pytest.mark.parametrize("option", [["--no-lock"], ["-o", "other.lock"]])
def test_another_lock_or_none_stores_no_request(option: list[str]) -> None:
    assert main(["resolve", "torch", *CPU, "--offline", "-q", *option]) == 0
    assert not Path("matrix.toml").exists()


def test_logins_are_not_stored() -> None:
    url = "https://me:secret-7@example.org/simple"
    store_request(Settings(requirements=["torch"], index_url=url, extra_index_url=[url]))
    assert "secret-7" not in Path("matrix.toml").read_text()
    assert read_settings().extra_index_url == [read_settings().index_url] == ["https://example.org/simple"]


def test_add_and_remove_change_request_and_lock(capsys: Capture) -> None:
    Path("matrix.toml").write_text(
        'backend = "cpu"\npython = "3.11"\nrequirements = [\n    "torch",  # base\n    "deepspeed<1",\n]\n'
    )
    assert main(["add", "deepspeed", "mpi4py", "--offline"]) == 0
    assert names() >= {"torch", "deepspeed", "mpi4py"}
    assert read_settings().requirements == ["torch", "deepspeed", "mpi4py"]
    assert "# base" in Path("matrix.toml").read_text()
    assert main(["remove", "DeepSpeed", "--offline"]) == 0
    assert names() == {"torch", "mpi4py", "python"}
    assert "deepspeed" in capsys.readouterr().err
    assert read_settings().python == "3.11"


def test_request_that_has_no_resolution_changes_nothing(capsys: Capture) -> None:
    assert main(["resolve", "torch", *CPU, "--offline", "-q"]) == 0
    before = (Path("matrix.toml").read_bytes(), Path("matrix.lock").read_bytes())
    assert main(["add", "python==3.12", "--offline"]) == 1
    assert main(["add", "no-such-thing==1", "--offline"]) != 0
    assert (Path("matrix.toml").read_bytes(), Path("matrix.lock").read_bytes()) == before
    assert "Traceback" not in capsys.readouterr().err


def test_existing_lock_is_kept_if_nothing_is_requested(capsys: Capture) -> None:
    assert main(["resolve", "torch", *CPU, "--offline", "-q"]) == 0
    Path("matrix.toml").unlink()
    before = Path("matrix.lock").read_bytes()
    for command in (["resolve", "--upgrade", "numpy"], ["resolve", "--python", "3.12"], ["resolve"]):
        assert main([*command, "--offline"]) == 2
    assert Path("matrix.lock").read_bytes() == before
    assert "No requirement is named" in capsys.readouterr().err


def test_another_site_does_not_have_the_driver_of_the_file() -> None:
    Path("matrix.toml").write_text('requirements = ["torch"]\nsite = "lumi-g"\ndriver = "6.3"\n')
    assert main(["resolve", "--site", "frontier", "--offline", "-q", "-o", "other.lock"]) == 0
    assert read_lock(Path("other.lock")).target.driver != "6.3"
    assert main(["resolve", "--backend", "cpu", "--python", "3.11", "--offline", "-q", "-o", "cpu.lock"]) == 0
    assert read_lock(Path("cpu.lock")).target.gfx == ()


def _store(requirements: list[str]) -> None:
    store_request(replace(read_settings(), requirements=requirements))


@given(
    st.lists(st.sampled_from(["a", "b>=1", "c[x]", "D"]), unique=True),
    st.lists(st.sampled_from(["a==2", "b", "e"]), unique=True),
)
def test_adding_and_removing_gives_what_was_there(
    tmp_path_factory: pytest.TempPathFactory, present: list[str], added: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("request")
    listed = ", ".join(f"'{text}'" for text in present)
    (folder / "matrix.toml").write_text(f"requirements = [{listed}]\n")
    old = Path.cwd()
    os.chdir(folder)
    try:
        _store(with_requirements(read_settings().requirements, added, []))
        changed = read_settings().requirements
        new = {text[0] for text in added}
        assert sorted(changed) == sorted([*(text for text in present if text[0].lower() not in new), *added])
        _store(with_requirements(changed, [], [text[0] for text in added]))
        assert read_settings().requirements == [text for text in present if text[0].lower() not in new]
    finally:
        os.chdir(old)
