"""Every reader on files that strangers wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.reading.items import Item
from matrix.reading.recognise import read
from tests.reading.strangers import STRANGERS, Stranger


def shown(item: Item) -> str:
    return f"conda:{item}" if item.installer == "conda" else str(item)


@pytest.mark.parametrize("stranger", STRANGERS, ids=lambda each: each.file)
def test_strangers_files_are_read(stranger: Stranger) -> None:
    Path(stranger.file).write_text(stranger.text)
    reading = read(Path(stranger.file))
    assert [shown(item) for item in reading.items] == stranger.items
    assert reading.python == stranger.python
    unread = [each.text for each in reading.unread if each.matters]
    assert len(unread) == len(stranger.unread), unread
    assert all(part in text for part, text in zip(stranger.unread, unread, strict=True)), unread
    assert reading.kind == stranger.kind or not stranger.kind
    assert not reading.findings


def test_places_are_kept() -> None:
    """A URL, a repository, an index of one package and a build string stay with their item."""
    found: dict[str, Item] = {}
    for stranger in STRANGERS:
        Path(stranger.file).write_text(stranger.text)
        found |= {f"{stranger.file} {item.name}": item for item in read(Path(stranger.file)).items}
    neox = found["requirements.txt deepspeed"]
    assert (neox.url, neox.version) == (
        "git+https://github.com/EleutherAI/DeeperSpeed.git@eb7f5cf#egg=deepspeed",
        "",
    )
    assert found["pixi.toml requests"].url == "git+https://github.com/psf/requests.git@v2.29.0"
    assert found["uv.lock torch"].indexes == ("https://download.pytorch.org/whl/rocm7.1",)
    assert found["py311_dedalus.yml h5py"].build == "mpi*"
    assert found["amd_setup.sh torch"].indexes == ("https://download.pytorch.org/whl/rocm6.4",)
    assert found["amd_setup.sh triton"].indexes == ()
    assert found["pyproject_rocm.toml torch"].marker == 'python_version == "3.12"'


def test_job_script_has_directives_variables_and_launches() -> None:
    (stranger,) = (each for each in STRANGERS if each.file == "run_ddp_torchrun.sh")
    Path(stranger.file).write_text(stranger.text)
    reading = read(Path(stranger.file))
    assert reading.directives == {"partition": "standard-g", "gpus-per-node": "8"}
    assert reading.variables == {"NCCL_NET_GDR_LEVEL": "PHB"}
    ((line, words),) = reading.launches
    assert (line, words[:3]) == (11, ["srun", "singularity", "exec"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        # The form of Apptainer's documentation, and without a target: then the path stays.
        ("a.def", "%files\n    req.txt /opt/req.txt\n%post\n    pip install -r /opt/req.txt\n"),
        ("b.def", "%files\n    req.txt\n%post\n    cd / && pip install -r req.txt\n"),
        ("c.def", "%files\n    . /opt\n%post\n    cd /opt\n    python3 -m pip install -r req.txt\n"),
        ("Dockerfile", "FROM a:1\nWORKDIR /app\nCOPY req.txt ./\nRUN pip install -r req.txt\n"),
    ],
)
def test_requirements_that_are_copied_into_an_image_are_read(name: str, text: str) -> None:
    Path("req.txt").write_text("torch==2.7.1+rocm6.3\nnumpy<2\n")
    header = "Bootstrap: docker\nFrom: a:1\n" if name.endswith(".def") else ""
    Path(name).write_text(header + text)
    reading = read(Path(name))
    assert [str(item) for item in reading.items] == ["a:1", "torch 2.7.1+rocm6.3", "numpy <2"]
    assert not [each.text for each in reading.unread if each.matters]
