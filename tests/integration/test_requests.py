"""Realistic requests, with the real index: what each answer must say, and what it must not.

PyTorch's own indexes are not needed: without them, the answer says that their wheels are not locked.
"""

from __future__ import annotations

import shlex
from typing import NamedTuple

import pytest

from matrix.cli import main

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


class Case(NamedTuple):
    """A request and its answer."""

    request: str
    code: int
    says: tuple[str, ...] = ()
    """Texts that the answer contains."""
    hides: tuple[str, ...] = ()
    """Texts that it does not contain."""


LUMI = "--site lumi-g"
CASES = [
    Case(
        f"torch transformers accelerate peft trl datasets bitsandbytes deepspeed {LUMI}",
        0,
        ("2.9.1+rocm6.4",),
    ),
    Case(
        f"vllm {LUMI}",
        0,
        ("and vllm 0.22.1+lumi.aif.gfx90a.0decac0", "To use it, require vllm==0.18.0+rocm700"),
    ),
    Case(
        f"torch torch-geometric torch-scatter torch-sparse {LUMI}",
        0,
        ("648dda3", "2340737"),
        ("observed not to compile",),
    ),
    Case(f"sglang {LUMI}", 1, ("which is for CUDA", "with an older release, sglang==0.5.2", "cuda-python")),
    Case(
        f"jax[rocm] {LUMI} --index-strategy unsafe-best-match",
        0,
        ("jax-rocm60-plugin", "requires rocm >=6,<6.4", "6.2.4"),
        ("0.4.35", "does not provide the extra"),
    ),
    Case(f"torch==2.2.2+rocm5.7 deepspeed {LUMI} --date 2024-10-15", 0, ("0.15.1",), ("0.19",)),
    Case("torch flash-attn deepspeed --site frontier", 0, ("2.10.0+rocm7.1",), ("2.0.4",)),
    Case("torch deepspeed --site setonix", 0, ("recorded to have rocm 6.3",)),
    Case("torch bitsandbytes --gfx gfx942 --site tuolumne", 0, ("recorded to have rocm 6.4",)),
    Case("torch apex --gfx gfx942 --site tuolumne", 1, ("--base-image rocm/dev-ubuntu",)),
    Case(f"torch flash-attn[ck] {LUMI}", 0, (), ("does not provide the extra",)),
    Case(f"torch flash-attn[trition] {LUMI}", 2, ("Did you mean triton?",)),
    Case(
        f"torch deepspeed flash-attn[triton] {LUMI} "
        "--base-image lumi-multitorch-full-u24r72f21m50t211-20260929_104918.sif",
        0,
        (": torch 2.11.0", "--keep-installed image"),
    ),
    Case(f"torch=2.9 {LUMI}", 2, ("Write torch==2.9.*",)),
    Case(f"torch==2.9.5 {LUMI}", 2, ("2.9.1 and 2.10.0",)),
    Case(f"flash-attn==2.9.0 {LUMI}", 2, ("nearest version is 2.8.4",)),
    Case(f"torch transformer {LUMI}", 2, ("Did you mean transformers?",)),
    Case(f"torch flsh-attn {LUMI}", 2, ("Did you mean flash-attn?",)),
    Case(f"torch pyg-lib {LUMI}", 2, ("Did you mean pyg-lib-rocm?",)),
    Case(f"pytorch {LUMI}", 2, ("Write torch instead",)),
    Case(f"flash-attention {LUMI}", 2, ("Write flash-attn instead",)),
    Case(f"torch requirements.txt {LUMI}", 2, ("Write -r requirements.txt",)),
    Case("torch --gfx mi250x", 2, ("Did you mean gfx90a?",)),
    Case("torch --gfx 90a", 2, ("Did you mean gfx90a?",)),
    Case(f"torch --rocm 6.4.* {LUMI}", 0, ("2.9.1+rocm6.4",)),
    Case(
        f"torch liger-kernel unsloth {LUMI} --index-strategy unsafe-best-match",
        0,
        ("xformers",),
        ("unsloth 2024",),
    ),
    Case(f"torch==2.8.0 triton==3.4.0 {LUMI}", 0, ("alias of pytorch-triton-rocm",), ("time unknown",)),
    Case(f"torch onnxruntime-rocm {LUMI}", 0, ("1.22.2.post1", "6.4.4")),
    Case(
        f"tensorflow {LUMI} --index-strategy unsafe-best-match",
        0,
        ("tensorflow means tensorflow-rocm", "2.18.1 (rocm6.4)", "lumi-g advises rocm 6.4.*"),
    ),
    Case(f"cupy-rocm-7-0 {LUMI}", 0, ("7.0.2",)),
    Case(f"torch nvidia-dali-cuda120 {LUMI}", 2, ("is for CUDA",)),
    Case(f"torch torchao {LUMI}", 0, ("torchao", "runs on the CPU: its GPU code is for CUDA")),
    Case(f"torch flashinfer-python {LUMI}", 1, ("which is for CUDA", "have no wheel that can be judged")),
    Case(f"torch tensorrt {LUMI}", 2, ("tensorrt is for NVIDIA GPUs", "MIGraphX")),
    Case(f"tensorrt==8.6.1.post1 {LUMI}", 1, ("its setup.py gets the program from",)),
    Case(f"gsplat {LUMI}", 2, ("gsplat is for NVIDIA GPUs", "amd_gsplat")),
    Case(f"onnxruntime-gpu {LUMI}", 0, ("onnxruntime-migraphx", "base-image")),
    Case(f"faiss-gpu {LUMI}", 2, ("faiss-gpu is for NVIDIA GPUs", "Write faiss-cpu instead")),
    Case(f"xgboost {LUMI}", 0, ("nvidia-nccl-cu13, which xgboost requires, is left out",)),
    Case(f"natten {LUMI}", 2, ("natten is for NVIDIA GPUs", "flex-fna")),
    Case(f"dgl {LUMI}", 0, ("Not judged: dgl", "dgl 2.1.0 was chosen, on Python 3.12")),
    Case(f"jax {LUMI} --index-strategy unsafe-best-match", 0, ("0.4.35", "6.4.4", "base-image")),
    Case(f"jax[cpu] {LUMI}", 0, ()),
    Case(
        f"jax-rocm7-plugin jax-rocm7-pjrt jax {LUMI} --index-strategy unsafe-best-match",
        0,
        ("0.6.0", "7.0.2", "base-image"),
        ("Not judged: jax-rocm7-pjrt",),
    ),
    Case(
        f"transformers peft scipy polars opencv-python pyarrow mpi4py {LUMI}",
        0,
        (),
        ("Not judged", "CUDA", "on the CPU"),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.request)
def test_answer_says_what_matters(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    dated = [] if "--date" in case.request else ["--date", "2026-11-23"]
    command = ["resolve", *shlex.split(case.request), *dated, "--no-lock"]
    assert main(command) == case.code
    shown = "".join(capsys.readouterr())
    assert [text for text in case.hides if text in shown] == []
    if case.says:
        assert main(["-v", *command]) == case.code
        with_reasons = "".join(capsys.readouterr())
        assert [text for text in case.says if text not in with_reasons] == []
