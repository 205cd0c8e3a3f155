"""``matrix check``: read environments of every form, judge and repair them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from matrix.cli import main
from matrix.judging.repair import requirement_of
from matrix.reading.items import Item
from matrix.reading.recognise import read
from resolver.errors import UsageError
from resolver.lock import read_lock
from tests.support.tiny import tiny_index

Capture = pytest.CaptureFixture[str]
TORCH = Item(name="torch", version="2.5.1+cu124")
NUMPY = Item(name="numpy", version="1.26.4")
FORMS = {
    "freeze.txt": "torch==2.5.1+cu124\nnumpy==1.26.4\n",
    "columns.txt": "Package Version\n------- -----------\ntorch   2.5.1+cu124\nnumpy   1.26.4\n",
    "list.json": '[{"name": "torch", "version": "2.5.1+cu124"}, {"name": "numpy", "version": "1.26.4"}]',
    "url.txt": "torch @ https://x.example/torch-2.5.1%2Bcu124-cp311-cp311-linux_x86_64.whl\nnumpy===1.26.4\n",
    "bare.txt": "https://x.example/torch-2.5.1%2Bcu124-cp311-cp311-linux_x86_64.whl\nnumpy==1.26.4\n",
    "uv.lock": "version = 1\n"
    '[[package]]\nname = "torch"\nversion = "2.5.1+cu124"\nsource = { registry = "https://x.example" }\n'
    '[[package]]\nname = "numpy"\nversion = "1.26.4"\nsource = { registry = "https://x.example" }\n'
    '[[package]]\nname = "mine"\nversion = "1"\nsource = { virtual = "." }\n',
    "pylock.toml": 'lock-version = "1.0"\ncreated-by = "x"\n'
    '[[packages]]\nname = "torch"\nversion = "2.5.1+cu124"\nindex = "https://x.example"\nsdist = '
    '{ url = "https://x.example/torch-2.5.1%2Bcu124.tar.gz", hashes = { sha256 = "00" } }\n'
    '[[packages]]\nname = "numpy"\nversion = "1.26.4"\nindex = "https://x.example"\nsdist = '
    '{ url = "https://x.example/numpy-1.26.4.tar.gz", hashes = { sha256 = "00" } }\n',
}
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


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_read(name: str) -> None:
    Path(name).write_text(FORMS[name])
    assert list(map(str, read(Path(name)).items)) == [str(TORCH), str(NUMPY)]


def test_export_of_conda_is_read() -> None:
    Path("environment.yml").write_text(EXPORT)
    found = read(Path("environment.yml"))
    assert found.python == "3.11.9"
    assert [str(item) for item in found.items if item.installer != "conda"] == [
        str(NUMPY),
        "git+https://github.com/me/mine",
    ]
    assert [str(item) for item in found.items if item.installer == "conda"] == [
        "pip =24.0", "pytorch 2.5.1", "pytorch-cuda 12.4", "cuda-nvcc 12.4.131", "scipy 1.14.1",
    ]  # fmt: skip
    assert not [each for each in found.unread if each.matters]


def test_pin_of_conda_with_a_star_is_read() -> None:
    Path("environment.yml").write_text("dependencies:\n  - pytorch::pytorch=1.12.*\n")
    (item,) = read(Path("environment.yml")).items
    assert (item.name, item.specifier) == ("pytorch", "=1.12.*")


def test_ranges_extras_markers_and_indexes_are_kept() -> None:
    Path("list.txt").write_text(
        "--extra-index-url https://download.pytorch.org/whl/cu124\n--extra-index-url https://mine.example/simple\n"
        "a[x]>=2,<3 ; python_version < '3.13'\n-r other.txt\nnot a requirement\n"
    )
    found = read(Path("list.txt"))
    (item,) = found.items
    assert requirement_of(item, 0).text == requirement_of(item, 3).text
    assert requirement_of(item, 0).extras == ("x",)
    assert requirement_of(item, 0).marker
    assert requirement_of(item, 4).specifier is None
    assert found.index_urls == [
        "https://download.pytorch.org/whl/cu124",
        "https://mine.example/simple",
    ]
    assert [str(each) for each in found.unread if each.matters] == [
        "line 4: -r other.txt (The file other.txt does not exist)",
        "line 5: not a requirement (it is not a requirement)",
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("uv.lock", "package = 1"),
        ("uv.lock", "[[package]]\nname = 1\nversion = 2\nsource = {registry = 3}"),
        ("uv.lock", "[[["),
        ("pylock.toml", "[[packages]]"),
        ("list.json", "[{}]"),
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
        "matrix.toml", "matrix.lock", "build.sh",
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
    assert str(document["text"]).startswith("freeze.txt fits lumi-g on 2026-11-20")


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_pins_that_conflict_torch_stays(order: int, index: str, capsys: Capture) -> None:
    lines = ["torch==2.9.1+rocm6.4", "torchvision==0.23.0+rocm6.4"][::order]
    Path("freeze.txt").write_text("\n".join(lines))
    document = inspected("freeze.txt", "--index-url", index, code=1, capsys=capsys)
    changes = [(change["before"], change["after"]) for change in document["changes"]]  # type: ignore[attr-defined]
    assert changes == [("torchvision 0.23.0+rocm6.4", "0.24.1+rocm6.4")]


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ("torch==2.9.1+rocm6.4 torchvision==0.24.1+rocm6.4", 0),
        ("torch==2.9.1+rocm6.4 torchvision==0.24.0+rocm6.4", 0),
        ("torch==2.9.1+rocm6.4 torchaudio==2.8.0+rocm6.4", 1),
        ("torch==2.9.1+cpu torchvision==0.24.1+cpu", 0),
        ("torch==2.9.1+cpu torchvision==0.22.1+cpu", 1),
        ("torch==2.13.0 torchvision==0.24.1", 1),
        ("torch==2.9.1+rocm6.4 pytorch-triton-rocm==3.5.1", 0),
        ("torch==2.9.1+rocm6.4 pytorch-triton-rocm==3.3.1", 1),
    ],
)
def test_companion_of_another_torch_does_not_fit(lines: str, code: int, index: str, capsys: Capture) -> None:
    Path("freeze.txt").write_text(lines.replace(" ", "\n"))
    options = ["--index-url", index, "--backend", "rocm" if "rocm" in lines else "cpu"]
    document = inspected("freeze.txt", *options, code=code, capsys=capsys)
    (verdict,) = [
        one["verdict"]
        for one in document["distributions"]  # type: ignore[attr-defined]
        if one["name"] != "torch"
    ]
    assert verdict == ("does-not-fit" if code else "fits")


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
    assert "because it comes from git+https://github.com/me/mine, and is not looked up" in output.err


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


def test_virtual_environment_is_read_from_its_metadata() -> None:
    prefix = installed("env", "torch==2.5.1+cu124", "Numpy==1.26.4", "pip==24.0", "broken==x", "mine==1")
    (prefix / "lib/python3.11/site-packages/mine-1.dist-info/direct_url.json").write_text(
        '{"url": "file:///home/me/mine", "dir_info": {"editable": true}}'
    )
    found = read(prefix)
    assert sorted(map(str, found.items)) == ["numpy 1.26.4", "torch 2.5.1+cu124"]
    assert found.python == "3.11"
    assert list(map(str, found.unread)) == [
        "broken (its metadata is damaged)",
        "mine (it is installed from a directory)",
    ]


def test_conda_environment_is_read_with_its_cuda() -> None:
    prefix = installed("env", "torch==2.5.1")
    (prefix / "conda-meta").mkdir()
    for name in ("pytorch-cuda-12.4-hc786d27_7", "numpy-1.26.4-py311h64a7726_0"):
        (prefix / "conda-meta" / f"{name}.json").write_text("{}")
    (conda,) = (item for item in read(prefix).items if item.installer == "conda" and "cuda" in item.name)
    assert (str(conda), conda.build) == ("pytorch-cuda 12.4", "hc786d27_7")


def test_directory_of_wheels_is_read() -> None:
    Path("wheels").mkdir()
    for name in ("torch-2.5.1+cu124-cp311-cp311-linux_x86_64.whl", "numpy-1.26.4-py3-none-any.whl"):
        Path("wheels", name).touch()
    assert sorted(map(str, read(Path("wheels")).items)) == ["numpy 1.26.4", "torch 2.5.1+cu124"]
    Path("wheels", "bad.whl").touch()
    with pytest.raises(UsageError, match="bad"):
        read(Path("wheels"))


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
    assert "torch  2.5.1+cu124 -> 2.5.1+rocm6.2" in output
    assert "numpy" not in output
    assert "python" not in output


def test_logins_in_urls_are_not_shown(index: str, capsys: Capture) -> None:
    Path("base.txt").write_text(
        "https://me:secret@a.example/mine.zip\n--find-links https://me:secret@b.example/\n"
    )
    Path("r.txt").write_text(
        f"-r base.txt\nnumpy\nmine @ git+https://secret@c.example/x\n--index-url {index}\n"
    )
    outputs = []
    for options in ([], ["--format", "json"], ["-v"]):
        main(["check", "r.txt", "--site", "lumi-g", *options])
        outputs += [*capsys.readouterr()]
    assert "secret" not in "".join(outputs)
    assert "git+https://c.example/x" in outputs[0] + outputs[2]
    drops = ["--drop", "mine", "--drop", "https://a.example/mine.zip"]
    assert main(["check", "r.txt", "--site", "lumi-g", "--repair", "-o", "out", *drops]) == 0, (
        capsys.readouterr()
    )
    assert "secret" not in "".join(path.read_text() for path in Path("out").iterdir())
