"""``matrix check``: read environments of every form, judge and repair them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from matrix.cli import main
from matrix.reading.recognise import read
from resolver.errors import UsageError
from resolver.lock import read_lock
from tests.support.tiny import tiny_index

Capture = pytest.CaptureFixture[str]
EXPORT = """name: x
channels: [pytorch, nvidia]
dependencies:
  - python=3.11.9=h955ad1f_0
  - pip=24.0
  - pytorch=2.5.1=py3.11_cuda12.4_cudnn9.1.0_0
  - pytorch-cuda=12.4=hc786d27_7
  - cuda-nvcc=12.4.131=0
  - scipy=1.14.1=py311h08b1b3b_0
  - pip:
    - numpy==1.26.4
    - -e git+https://github.com/me/mine
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("uv.lock", "package = 1"),
        ("uv.lock", "[[package]]\nname = 1\nversion = 2\nsource = {registry = 3}"),
        ("uv.lock", "[[["),
        ("pylock.toml", "[[packages]]"),
        ("env.yml", "dependencies: 3"),
    ],
)
def test_file_of_another_kind_is_an_error(name: str, text: str, capsys: Capture) -> None:
    Path(name).write_text(text)
    with pytest.raises(UsageError):
        read(Path(name))
    assert main(["check", name]) == 3
    assert "Traceback" not in capsys.readouterr().err


@pytest.fixture
def index() -> str:
    """Write an index with a few projects; return its URL, with that of torch being unreachable."""
    Path("matrix.toml").write_text('[mirrors]\n"https://download.pytorch.org/" = "http://127.0.0.1:9/"\n')
    packages: dict[str, list[tuple[str, list[str]]]] = {
        "numpy": [("1.26.4", []), ("2.0.0", [])],
        "helper": [("1.1.0", ["numpy>=2"]), ("1.0.5", ["numpy<2"])],
        "faiss-cpu": [("1.8.0", [])],
    }
    return (tiny_index(Path("own").absolute(), packages) / "simple").as_uri()


def inspected(*arguments: str, code: int, capsys: Capture) -> dict[str, object]:
    assert main(["check", *arguments, "--date", "2026-11-20", "--format", "json"]) == code
    (thing,) = json.loads(capsys.readouterr().out)["things"]
    return dict(thing)


def test_cuda_environment_is_repaired(index: str, capsys: Capture) -> None:
    Path("freeze.txt").write_text(
        "torch==2.5.1+cu124\nnumpy==1.26.4\nhelper==1.0.3\nfaiss-gpu==1.7.2\nnvidia-nccl-cu12==2.21.5\n"
    )
    options = ["freeze.txt", "--index-url", index]
    document = inspected(*options, code=1, capsys=capsys)
    assert document["verdict"] == "does-not-fit"
    assert str(document["text"]).startswith("freeze.txt cannot use the GPUs of lumi-g on 2026-11-20: ")
    assert len(document["changes"]) == 5  # type: ignore[arg-type]
    assert not Path("lumi").exists()
    document = inspected(*options, "--repair", "-o", "lumi", code=0, capsys=capsys)
    assert {Path(str(path)).name for path in document["written"]} >= {  # type: ignore[attr-defined]
        "matrix.toml", "matrix.lock", "requirements.txt",
    }  # fmt: skip
    lock = read_lock(Path("lumi/matrix.lock"))
    chosen = {pick.name: pick.pinned for pick in lock.distributions}
    assert chosen["torch"].startswith("2.5.1+rocm")
    assert chosen["numpy"] == "1.26.4"
    assert chosen["helper"] == "1.0.5"
    assert chosen["faiss-cpu"] == "1.8.0"
    assert "nvidia-nccl-cu12" not in chosen


def test_repaired_directory_resolves_to_its_lock(
    index: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("freeze.txt").write_text("torch==2.5.1+cu124\nhelper==1.0.3\n")
    assert main(["check", "freeze.txt", "--index-url", index, "--repair", "-o", "lumi"]) == 0
    before = Path("lumi/matrix.lock").read_bytes()
    monkeypatch.chdir("lumi")
    capsys.readouterr()
    assert main(["resolve"]) == 0
    assert "is still valid" in capsys.readouterr().err
    assert Path("matrix.lock").read_bytes() == before


def test_environment_that_fits(index: str, capsys: Capture) -> None:
    Path("freeze.txt").write_text("torch==2.5.1+rocm6.2\nnumpy==1.26.4\n")
    document = inspected("freeze.txt", "--index-url", index, code=0, capsys=capsys)
    assert (document["verdict"], document["changes"]) == ("fits", [])
    assert document["text"] == "freeze.txt fits lumi-g on 2026-11-20."


def test_what_nothing_replaces_must_be_dropped(index: str, capsys: Capture) -> None:
    Path("freeze.txt").write_text("torch==2.5.1\nnatten==0.21\nunheard-cu12==1\n")
    options = ["check", "freeze.txt", "--index-url", index]
    assert main([*options, "--repair", "-o", "lumi"]) == 1
    error = capsys.readouterr().err
    assert "nothing takes the place of natten 0.21 and unheard-cu12 1" in error
    assert "--drop natten --drop unheard-cu12" in error
    assert not Path("lumi").exists()
    drop = ["--drop", "natten", "--drop", "unheard-cu12"]
    assert main([*options, *drop, "--repair", "-o", "lumi"]) == 0
    assert Path("lumi/matrix.lock").exists()


def test_unknown_distribution_can_be_dropped(index: str, capsys: Capture) -> None:
    Path("freeze.txt").write_text("torch==2.5.1\nprivate-thing==1\n")
    assert main(["check", "freeze.txt", "--index-url", index]) == 1
    assert "private-thing" in capsys.readouterr().err
    assert main(["check", "freeze.txt", "--index-url", index, "--drop", "private-thing"]) == 1


def test_existing_files_are_not_overwritten(index: str, capsys: Capture) -> None:
    Path("lumi").mkdir()
    Path("lumi/mine").write_text("mine")
    Path("freeze.txt").write_text("torch==2.5.1\n")
    assert main(["check", "freeze.txt", "--index-url", index, "--repair", "-o", "lumi"]) == 2
    assert "is not an empty directory" in capsys.readouterr().err
    assert [path.name for path in Path("lumi").iterdir()] == ["mine"]


@pytest.mark.parametrize("options", [["--repair"], ["-o", "lumi"]])
def test_repair_and_output_belong_together(options: list[str], capsys: Capture) -> None:
    assert main(["check", "freeze.txt", *options]) == 2
    assert "--repair needs -o DIR" in capsys.readouterr().err


def test_text_says_what_was_not_read_and_not_judged(index: str, capsys: Capture) -> None:
    Path("environment.yml").write_text(EXPORT)
    assert main(["check", "environment.yml", "--index-url", index]) == 1
    output = capsys.readouterr()
    assert "pytorch 2.5.1 -> torch\n" in output.out
    assert "pytorch-cuda 12.4 -> left out" in output.out
    assert "Not judged, because conda installs it: scipy." in output.err
    assert "Not read:\n  line 12: -e git+https://github.com/me/mine" in output.err


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (["torch==2.5.1"], 1),
        (["torch"], 1),
        (["torchvision==0.20.1", "torch==2.5.1+rocm6.2"], 1),
        (["torch==2.5.1", "--extra-index-url https://download.pytorch.org/whl/rocm6.2"], 0),
        (["torch==2.5.1+rocm6.2"], 0),
    ],
)
def test_pip_takes_torch_for_cuda_without_a_label(
    lines: list[str], code: int, index: str, capsys: Capture
) -> None:
    Path("list.txt").write_text("\n".join(lines))
    document = inspected("list.txt", "--index-url", index, code=code, capsys=capsys)
    assert ("built for CUDA" in str(document["text"])) == bool(code)


def installed(folder: str, *pins: str) -> Path:
    """Write a virtual environment with the metadata of some distributions."""
    site = Path(folder, "lib", "python3.11", "site-packages")
    site.mkdir(parents=True)
    Path(folder, "pyvenv.cfg").write_text("")
    for pin in pins:
        name, _, version = pin.partition("==")
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return Path(folder)


def test_installed_torch_needs_no_label(index: str, capsys: Capture) -> None:
    """A build from source has none."""
    installed("env", "torch==2.5.1", "numpy==1.26.4")
    assert inspected("env", "--index-url", index, code=0, capsys=capsys)["verdict"] == "fits"


@pytest.mark.parametrize("name", ["old.sif", "old.tar", "nothing"])
def test_damaged_image_is_an_error(name: str, capsys: Capture) -> None:
    if name == "nothing":
        Path(name).mkdir()
    else:
        Path(name).write_bytes(b"\x7fELF")
    assert main(["check", name]) == 3
    error = capsys.readouterr().err
    assert "not an" in error or "no Python packages" in error


def test_two_environments_are_compared(capsys: Capture) -> None:
    old = installed("old", "torch==2.5.1+cu124", "nvidia-nccl-cu12==2.21.5", "same==1")
    installed("new", "torch==2.5.1+rocm6.2", "numpy==1.26.4", "same==1")
    assert main(["diff", "old", "new", "--format", "json"]) == 0
    changes = {row["name"]: row for row in json.loads(capsys.readouterr().out)["consequences"]}
    assert {name: (row["before"], row["after"]) for name, row in changes.items()} == {
        "numpy": ("", "1.26.4"),
        "nvidia-nccl-cu12": ("2.21.5", ""),
        "torch": ("2.5.1+cu124", "2.5.1+rocm6.2"),
    }
    assert "is for CUDA" in changes["nvidia-nccl-cu12"]["was"][0]["text"]
    assert main(["diff", "old", "old"]) == 0
    assert "Nothing changes." in capsys.readouterr().out
    assert main(["diff", "old", "new", str(old)]) == 2
    assert "compared in pairs" in capsys.readouterr().err


def test_environment_is_compared_with_a_lock(index: str, capsys: Capture) -> None:
    Path("freeze.txt").write_text("torch==2.5.1+cu124\nnumpy==1.26.4\npython==3.11.*\n")
    assert main(["check", "freeze.txt", "--index-url", index, "--repair", "-o", "lumi"]) == 0
    installed("env", "torch==2.5.1+cu124", "numpy==1.26.4")
    capsys.readouterr()
    assert main(["diff", "env", "lumi/matrix.lock"]) == 0
    output = capsys.readouterr().out
    assert "torch: 2.5.1+cu124 -> 2.5.1+rocm6.2" in output
    assert "numpy" not in output
    assert "python" not in output
