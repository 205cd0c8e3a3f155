"""Environments for CUDA, in the style of public projects, judged and repaired with the real package index.

The index changes, so the tests state what must be true of every answer, not the versions.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from resolver.lock import read_lock
from resolver.requirements import is_for_cuda
from tests.support.built import matrix

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

FILES = {
    "speech.txt": """\
faster-whisper==1.1.0
whisperx==3.3.1
ctranslate2==4.4.0
torch==2.5.1
torchaudio==2.5.1
pyannote.audio==3.3.2
nvidia-cublas-cu12
nvidia-cudnn-cu12==9.*
""",
    "docking.yml": """\
name: diffdock
channels:
  - pytorch
  - pyg
  - nvidia
  - conda-forge
dependencies:
  - python=3.9.18
  - pytorch=1.13.1
  - pytorch-cuda=11.7
  - torchvision=0.14.1
  - pip
  - pip:
    - torch-scatter==2.1.1
    - torch-sparse==0.6.17
    - torch-cluster==1.6.1
    - torch-geometric==2.2.0
    - e3nn==0.5.1
    - rdkit==2022.3.3
    - biopython==1.79
    - networkx==2.8.4
    - scipy==1.12.0
    - pandas==1.5.1
    - fair-esm==2.0.0
""",
    "quantized.txt": """\
auto-gptq==0.7.1
torch==2.2.1+cu121
transformers==4.38.2
optimum==1.17.1
""",
    "flax.txt": """\
jax[cuda12]==0.4.30
flax==0.8.5
optax==0.2.3
numpy==1.26.4
""",
    "lightning.txt": """\
pytorch-lightning==2.4.0
torch==2.4.1
torchmetrics==1.4.2
hydra-core==1.3.2
apex
deepspeed>=0.14
fairscale==0.4.13
tensorboard
""",
    "vision-language.txt": """\
torch==2.1.2
torchvision==0.16.2
transformers==4.37.2
tokenizers==0.15.1
sentencepiece==0.1.99
shortuuid
accelerate==0.21.0
peft
bitsandbytes
pydantic
markdown2[all]
numpy
scikit-learn==1.2.2
gradio==4.16.0
gradio_client==0.8.1
requests
httpx==0.24.0
uvicorn
fastapi
einops==0.6.1
einops-exts==0.0.4
timm==0.6.13
deepspeed==0.12.6
ninja
wandb
flash-attn
""",
    "state-space.txt": """\
torch==2.3.1+cu121
triton==2.3.1
mamba-ssm==2.2.2
causal-conv1d==1.4.0
transformers==4.43.3
einops==0.8.0
datasets==2.20.0
lm-eval==0.4.2
nvidia-cuda-runtime-cu12==12.1.105
nvidia-cudnn-cu12==8.9.2.26
""",
    "detection.txt": """\
torch==2.1.0
torchvision==0.16.0
mmcv==2.1.0
mmdet==3.3.0
mmengine==0.10.5
""",
    "small-gpt.txt": """\
torch
numpy
transformers
datasets
tiktoken
wandb
tqdm
""",
    "dataframes.txt": """\
cudf-cu12==24.8.2
cuml-cu12==24.8.0
cupy-cuda12x==13.3.0
numpy==1.26.4
pandas==2.2.2
scikit-learn==1.5.1
xgboost==2.1.1
""",
    "diffusion.txt": """\
--extra-index-url https://download.pytorch.org/whl/cu121
torch==2.1.2+cu121
torchvision==0.16.2+cu121
xformers==0.0.23.post1
diffusers==0.25.0
accelerate==0.25.0
transformers==4.36.2
bitsandbytes==0.41.3
safetensors==0.4.1
einops==0.7.0
open-clip-torch==2.20.0
opencv-python==4.8.1.78
pytorch-lightning==1.9.0
tensorboard==2.14.1
onnxruntime-gpu==1.16.3
lion-pytorch==0.0.6
""",
    "keras.txt": """\
tensorflow[and-cuda]==2.16.1
keras==3.3.3
numpy==1.26.4
""",
    "fine-tuning.txt": """\
unsloth
torch==2.4.0
xformers<0.0.27
trl<0.9.0
peft
accelerate
bitsandbytes
""",
    "serving.txt": """\
torch==2.5.1
vllm==0.6.6
ray==2.40.0
transformers==4.47.1
flashinfer-python
xgrammar==0.1.8
""",
}


@pytest.mark.parametrize("name", FILES)
def test_environment_is_repaired_or_refused_with_reasons(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(FILES[name])
    options = ["--site", "lumi-g", "--format", "json"]
    done = matrix(tmp_path, "inspect", name, *options)
    assert done.returncode in {0, 1}, done.stderr
    document = json.loads(done.stdout)
    assert all(change["reason"] for change in document["changes"])
    if document["status"] == "conflict":
        assert document["core"] or any(change["needed"] for change in document["changes"])
        return
    repaired = matrix(tmp_path, "inspect", name, *options, "--repair", "-o", "repaired")
    assert repaired.returncode == 0, repaired.stderr
    lock = read_lock(tmp_path / "repaired" / "matrix.lock")
    chosen = {pick.name: pick for pick in lock.distributions}
    assert not [name for name in chosen if is_for_cuda(name)]
    torch = chosen.get("torch")
    assert torch is None or lock.version_of("rocm")
    changed = {change["before"] for change in document["changes"]}
    for pin in FILES[name].splitlines():
        project, _, version = pin.partition("==")
        if version and pin.replace("==", " ") not in changed and project in chosen and "*" not in version:
            assert chosen[project].version.partition("+")[0] == version
