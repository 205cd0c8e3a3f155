"""``matrix report --first-run``: everything that a first run shows, and nothing that identifies anybody."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from matrix.cli import main
from matrix.report.first_run import anonymous, known_names

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
USER, ACCOUNT, TOKEN = "annsmith", "ab12cd34", "0123456789abcdefghij"
PLANTED = {
    "user": USER,
    "user in another case": "AnnSmith",
    "home": "/users/annsmith/venv/bin/python",
    "home of another": "/pfs/lustrep2/users/bobjones/data",
    "home in a URL": "file:///home/bobjones/index/simple",
    "account": ACCOUNT,
    "project": "/scratch/project_465000863/runs",
    "token of a variable": f"request failed for {TOKEN}",
    "assignment": "WANDB_API_KEY=zzzzzzzz1",
    "JSON": '{"access_token": "yyyyyyyy2"}',
    "header": "Authorization: Bearer xxxxxxxx3",
    "URL": "https://someone:wwwwwwww4@wheels.example/simple",
    "Hugging Face": "hf_vvvvvvvvvvvvvvvvvvvv5",
    "GitHub": "ghp_uuuuuuuuuuuuuuuuuuuuuuuu6",
    "mail": "ann.smith@example.org",
    "node": "nid001234",
    "node of RCCL": "leaf-7b:4711:4711 [0] NCCL INFO Using network Socket",
    "address": "NET/Socket : Using [0]hsn0:10.253.17.3<0>",
    "address of version 6": "fe80::9a03:9bff:fe0c:1",
}
SECRET = (
    USER, ACCOUNT, TOKEN, "bobjones", "465000863", "zzzzzzzz1", "yyyyyyyy2", "xxxxxxxx3", "wwwwwwww4",
    "vvvvvv", "uuuuuu", "ann.smith", "nid001234", "leaf-7b", "10.253.17.3", "fe80::", "someone",
)  # fmt: skip
KEPT = (
    "0000:c1:00.0", "NCCL INFO Using network Socket", "2.9.1+rocm6.4", "c10::cuda", "12:34:56"
)  # fmt: skip


@pytest.fixture(autouse=True)
def _ann(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("USER", USER)
    monkeypatch.setenv("HOME", str(tmp_path / "private"))
    monkeypatch.setenv("WANDB_TOKEN", TOKEN)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_nothing_planted_is_in_the_report(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "matrix.toml").write_text(f'account = "{ACCOUNT}"\n')
    lines = [*(f"{what}: {text}" for what, text in PLANTED.items()), *PLANTED.values(), *KEPT]
    lines += [
        f"rank 0 of 2 started on {socket.gethostname()}",
        f"{tmp_path}/private/x",
        f"{tmp_path}/train.sif",
    ]
    for name in ("matrix-verify-7.out", "slurm-8.out", "matrix-all-reduce-7.log", "more.txt"):
        (tmp_path / name).write_text("\n".join([f"from {name}", *lines]))
    assert main(["resolve", "torch", "--site", "lumi-g", "--date", "2026-11-20", "-q"]) == 0
    capsys.readouterr()
    assert main(["report", "--first-run", "--include", "more.txt"]) == 0
    text = (tmp_path / "first-run.txt").read_text()
    for secret in (*SECRET, str(tmp_path), socket.gethostname()):
        assert secret.lower() not in text.lower(), secret
    for kept in KEPT:
        assert text.count(kept) >= 4, kept
    for part in ("== machine ==", "== matrix.lock ==", "from more.txt", "from slurm-8.out", "WORK/train.sif"):
        assert part in text
    assert "known failures in slurm-8.out" in text
    assert "RCCL uses TCP between nodes" in text
    assert "Read it before you send it" in capsys.readouterr().err


def test_nodes_keep_their_numbers() -> None:
    text = "rank 0 of 2 started on n1\nrank 1 of 2 started on n2\nrank 0 of n1 waits, n2 and n10 do not\n"
    changed = anonymous(text, {})
    assert "started on NODE1\n" in changed
    assert "started on NODE2\n" in changed
    assert "rank 0 of NODE1 waits, NODE2 and n10 do not" in changed


def test_names_are_words() -> None:
    assert anonymous("an anchor, an_1, van", {"an": "USER"}) == "USER anchor, USER_1, van"


def test_short_and_empty_names_are_not_secrets() -> None:
    names = known_names({"MY_TOKEN": "abc", "USER": "", "HOME": "/", "PATH_TOKEN": "abcdef"})
    assert "" not in names
    assert "/" not in names
    assert "abc" not in names
    assert names["abcdef"] == "SECRET"


def test_missing_file_is_named(capsys: Capture) -> None:
    assert main(["report", "--first-run", "--include", "none.txt"]) == 2
    assert "none.txt" in capsys.readouterr().err
    assert not os.path.lexists("first-run.txt")


def test_long_file_is_cut_in_the_middle(tmp_path: Path) -> None:
    (tmp_path / "slurm-1.out").write_text("begin\n" + "x y" * 200_000 + "\nline" * 100_000 + "\nend\n")
    assert main(["report", "--first-run"]) == 0
    text = (tmp_path / "first-run.txt").read_text()
    assert "begin" in text
    assert "\nend" in text
    assert len(text) < 450_000
