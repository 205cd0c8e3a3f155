"""Environments for CUDA, in the style of public projects, judged and repaired with the real package index.

The index changes, so the tests state what must be true of every answer, not the versions.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from resolver.lock import read_lock
from resolver.requirements import is_for_cuda
from resolver.versions import satisfies
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
    "latent-diffusion.yml": """\
name: ldm
channels: [pytorch, defaults]
dependencies:
  - python>=3.9
  - pip=20.3
  - cudatoolkit=11.3
  - pytorch=1.11.0
  - torchvision=0.12.0
  - numpy=1.19.2
  - pip:
    - albumentations==0.4.3
    - opencv-python==4.5.5.64
    - imageio==2.9.0
    - pytorch-lightning==1.4.2
    - omegaconf==2.1.1
    - test-tube>=0.7.5
    - einops==0.3.0
    - torch-fidelity==0.3.0
    - transformers==4.19.2
    - torchmetrics==0.6.0
    - kornia==0.6.0
    - -e git+https://github.com/openai/CLIP.git@main#egg=clip
    - -e .
""",
    "splatting.yml": """\
name: gaussian_splatting
channels: [pytorch, conda-forge, defaults]
dependencies:
  - cudatoolkit=11.6
  - cudatoolkit-dev=11.6
  - plyfile
  - python=3.7.13
  - pip=22.3.1
  - pytorch=1.12.1
  - torchaudio=0.12.1
  - torchvision=0.13.1
  - tqdm
  - pip:
    - submodules/diff-gaussian-rasterization
    - submodules/simple-knn
    - opencv-python
    - joblib
""",
    "music.txt": """\
av==11.0.0
einops
flashy>=0.0.1
hydra-core>=1.1
julius
num2words
numpy<2.0.0
sentencepiece
torch==2.1.0
torchaudio>=2.0.0,<2.1.2
transformers>=4.31.0
xformers<0.0.23
demucs
encodec
torchvision==0.16.0
torchtext==0.16.0
pesq
""",
    "folding.yml": """\
name: openfold
channels: [conda-forge, bioconda, pytorch]
dependencies:
  - python=3.9
  - setuptools=59.5.0
  - pip
  - openmm=7.7
  - PyYAML==5.4.1
  - scipy==1.7
  - mkl==2024.0
  - bioconda::hmmer==3.3.2
  - pytorch::pytorch=1.12.*
  - pip:
      - mpi4py==3.1.5
      - deepspeed==0.12.4
      - dm-tree==0.1.6
      - git+https://github.com/NVIDIA/dllogger.git
      - git+https://github.com/Dao-AILab/flash-attention.git@5b838a8
""",
    "protein.txt": """\
absl-py==1.4.0
biopython==1.81
chex==0.1.89
dm-haiku==0.0.9
dm-tree==0.1.8
docker==5.0.0
immutabledict==2.0.0
jax==0.4.13
ml-collections==0.1.1
numpy==1.24.3
pandas==2.0.3
scipy==1.11.2
tensorflow-cpu==2.16.1
""",
    "text-generation.txt": """\
accelerate==0.21.*
datasets
einops
numpy==1.24
peft==0.5.*
safetensors==0.3.2
transformers==4.32.*
sentencepiece
bitsandbytes==0.41.1; platform_system != "Windows"
https://github.com/PanQiWei/AutoGPTQ/releases/download/v0.4.2/auto_gptq-0.4.2+cu117-cp310-cp310-linux_x86_64.whl
llama-cpp-python==0.1.78; platform_system != "Windows"
""",
    "nodes.txt": """\
torch
torchsde
torchvision
torchaudio
numpy>=1.25.0
einops
transformers>=4.50.3
safetensors>=0.4.2
aiohttp>=3.11.8
kornia>=0.7.1
spandrel
pydantic~=2.0
""",
    "yolo.txt": """\
gitpython>=3.1.30
matplotlib>=3.3
numpy>=1.23.5
opencv-python>=4.1.1
pillow>=10.3.0
scipy>=1.4.1
thop>=0.1.1
torch>=1.8.0
torchvision>=0.9.0
ultralytics>=8.2.64
urllib3>=2.5.0 ; python_version > "3.8"
""",
    "transcription.txt": """\
numba
numpy
torch
more-itertools
tiktoken
triton>=2.0.0;platform_machine=="x86_64" and sys_platform=="linux" or sys_platform=="linux2"
""",
    "transformer-diffusion.yml": """\
name: DiT
channels: [pytorch, nvidia]
dependencies:
  - python >= 3.8
  - pytorch >= 1.13
  - torchvision
  - pytorch-cuda=11.7
  - pip:
    - timm
    - diffusers
    - accelerate
    - open_clip_torch
""",
    "backbone.yml": """\
name: SE3nv
channels: [defaults, pytorch, dglteam, nvidia]
dependencies:
  - python=3.9
  - pytorch=1.9
  - torchaudio
  - torchvision
  - cudatoolkit=11.1
  - dgl-cuda11.1
  - pip
  - pip:
    - hydra-core
    - pyrsistent
    - icecream
""",
    "video.txt": """\
colossalai
accelerate
diffusers
mmengine
pyarrow
timm
transformers
rotary_embedding_torch
""",
    "video-diffusion.txt": """\
clip @ git+https://github.com/openai/CLIP.git
einops>=0.6.1
fairscale>=0.4.13
kornia==0.6.9
ninja>=1.11.1
numpy>=1.24.4
open-clip-torch>=2.20.0
pytorch-lightning==2.0.1
tokenizers==0.12.1
torch>=2.0.1
torchaudio>=2.0.2
torchdata==0.6.1
torchvision>=0.15.2
transformers==4.19.1
triton==2.0.0
xformers>=0.0.20
""",
    "faces.yml": """\
name: stylegan3
channels: [pytorch, nvidia]
dependencies:
  - python >= 3.8
  - pip
  - numpy>=1.20
  - scipy=1.7.1
  - pytorch=1.9.1
  - cudatoolkit=11.1
  - ninja=1.10.2
  - pip:
    - imgui==1.3.0
    - glfw==2.2.0
    - imageio-ffmpeg==0.4.3
    - psutil==5.9.0
""",
    "adapters.yml": """\
name: NLU
channels: [pytorch, nvidia, defaults]
dependencies:
  - cudatoolkit=11.1.74=h6bb024c_0
  - libgcc-ng=9.3.0=h5101ec6_17
  - libstdcxx-ng=9.3.0=hd4cf53a_17
  - numpy=1.20.2=py37h2d18471_0
  - pip=21.1.3=py37h06a4308_0
  - python=3.7.10=h12debd9_4
  - pytorch=1.9.0=py3.7_cuda11.1_cudnn8.0.5_0
  - torchaudio=0.9.0=py37
  - torchvision=0.10.0=py37_cu111
  - pip:
    - accelerate==0.3.0
    - datasets==1.9.0
    - deepspeed==0.5.0
    - ninja==1.10.0.post2
    - sentencepiece==0.1.96
    - tokenizers==0.10.3
    - triton==0.4.2
    - loralib==0.1.1
prefix: /opt/conda/envs/transformers
""",
    "experts.txt": """\
torch==2.5.1
triton==3.0.0
transformers==4.46.3
safetensors==0.4.5
""",
}


_SLOWEST = ("protein.txt", "speech.txt")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in _SLOWEST)) for name in FILES]
)
def test_environment_is_repaired_or_refused_with_reasons(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(FILES[name])
    options = ["--site", "lumi-g", "--format", "json"]
    done = matrix(tmp_path, "check", name, *options)
    assert done.returncode in {0, 1, 4}, done.stderr
    (document,) = json.loads(done.stdout)["things"]
    assert all(change["reason"] for change in document["changes"])
    if document["core"] or any(change["needed"] for change in document["changes"]):
        return
    repaired = matrix(tmp_path, "check", name, *options, "--repair", "-o", "repaired")
    if repaired.returncode == 1:
        # What comes from a URL or a path is never looked up by its name, so it must be left out explicitly.
        drops = json.loads(repaired.stdout)["hint"].partition(": ")[2].split()
        repaired = matrix(tmp_path, "check", name, *options, "--repair", "-o", "repaired", *drops)
    assert repaired.returncode == 0, repaired.stdout + repaired.stderr
    lock = read_lock(tmp_path / "repaired" / "matrix.lock")
    chosen = {pick.name: pick for pick in lock.distributions}
    assert not [name for name in chosen if is_for_cuda(name)]
    torch = chosen.get("torch")
    assert torch is None or lock.version_of("rocm")
    changed = {change["before"] for change in document["changes"]}
    for line in FILES[name].splitlines():
        pin = line.partition(";")[0].strip()
        project, _, version = pin.partition("==")
        if version and pin.replace("==", " ") not in changed and project in chosen and "*" not in version:
            assert satisfies(chosen[project].version, f"=={version}"), pin
