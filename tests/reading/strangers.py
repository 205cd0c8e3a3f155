"""Files that strangers wrote, shortened and without personal details, with what they install.

Each has the address at which it was seen. The texts are retyped: only lines that matter to a reader are kept.
"""

# ruff: noqa: E501  lines as they were written

from __future__ import annotations

from typing import NamedTuple


class Stranger(NamedTuple):
    """A file, what a reader must find in it, and where it was seen."""

    file: str
    source: str
    text: str
    items: list[str]
    """Each as ``name version``, the URL of what has no name, conda's with ``conda:`` before it."""
    unread: tuple[str, ...] = ()
    """Parts of the texts of what was not read and matters, in order."""
    python: str = ""
    kind: str = ""


STRANGERS = [
    Stranger(
        "requirements.txt",
        "https://github.com/EleutherAI/gpt-neox/blob/00c4fb7e/requirements/requirements.txt",
        """git+https://github.com/EleutherAI/DeeperSpeed.git@eb7f5cf#egg=deepspeed
einops==0.3.0
lm_dataformat==0.0.20
regex
transformers~=4.16.0
""",
        [
            "deepspeed",
            "einops 0.3.0",
            "lm-dataformat 0.0.20",
            "regex",
            "transformers ~=4.16.0",
        ],
        kind="requirements",
    ),
    Stranger(
        "rocm-build.txt",
        "https://github.com/vllm-project/vllm/blob/0400af21/requirements/rocm-build.txt",
        """# Common dependencies
-r common.txt

--extra-index-url https://download.pytorch.org/whl/rocm6.4
torch==2.9.0
setuptools>=77.0.3,<80.0.0
wheel
""",
        ["torch 2.9.0", "setuptools <80.0.0,>=77.0.3", "wheel"],
        ("-r common.txt",),
    ),
    Stranger(
        "py311_dedalus.yml",
        "https://github.com/DeiC-HPC/cotainr/blob/2141074e/examples/LUMI/conda_dedalus_mpich/py311_dedalus.yml",
        """name: py311_dedalus
channels:
  - conda-forge
  - file:///mnt
dependencies:
  - dedalus
  - cython<3.0
  - h5py>=3.0.0=mpi*
  - mpi=*=mpich
  - pip
  - python=3.11
  - pip:
    - http://github.com/dedalusproject/dedalus/zipball/master/
variables:
  OMP_NUM_THREADS: 1
""",
        [
            "conda:dedalus",
            "conda:cython <3.0",
            "conda:h5py >=3.0.0",
            "conda:mpi =*",
            "conda:pip",
            "http://github.com/dedalusproject/dedalus/zipball/master/",
        ],
        python="3.11",
        kind="conda environment",
    ),
    Stranger(
        "environment.yml",
        "https://github.com/meta-pytorch/data/issues/315",
        """name: torchdata
channels:
  - pytorch
dependencies:
  - python=3.8
  - pip
  - pytorch
  - cudatoolkit=11.3
""",
        ["conda:pip", "conda:pytorch", "conda:cudatoolkit =11.3"],
        python="3.8",
    ),
    Stranger(
        "list.txt",
        "https://github.com/pytorch/pytorch/issues/32369",
        """# packages in environment at /home/user/anaconda3/envs/pytorch-condabug:
#
# Name                    Version                   Build  Channel
_libgcc_mutex             0.1                        main
cudatoolkit               10.1.243             h6bb024c_0
numpy                     1.18.1           py37h4f9e942_0
pytorch                   1.4.0           py3.7_cuda10.1.243_cudnn7.6.3_0    pytorch
""",
        [
            "conda:_libgcc_mutex 0.1",
            "conda:cudatoolkit 10.1.243",
            "conda:numpy 1.18.1",
            "conda:pytorch 1.4.0",
        ],
        kind="output of conda list",
    ),
    Stranger(
        "pasted.txt",
        "https://github.com/conda/conda/issues/7757",
        """# Name Version Build Channel
pytorch                   0.4.1           py36_py35_py27__9.0.176_7.1.2_2    pytorch
raven                     6.9.0                     <pip>
requests                  2.19.1                   py36_0    defaults
python                    3.6.5                hc3d631a_2    defaults
""",
        ["conda:pytorch 0.4.1", "raven 6.9.0", "conda:requests 2.19.1"],
        python="3.6.5",
    ),
    Stranger(
        "pyproject.toml",
        "https://github.com/astral-sh/uv/issues/10326",
        """[project]
name = "project"
version = "0.1.0"
requires-python = ">=3.10.0"
dependencies = []

[project.optional-dependencies]
cpu = ["torch>=2.5.1"]
cu121 = ["torch>=2.5.1"]

[tool.uv.sources]
torch = [{ index = "pytorch-cpu", extra = "cpu" }, { index = "pytorch-cu121", extra = "cu121" }]

[[tool.uv.index]]
explicit = true
name = "pytorch-cpu"
url = "https://download.pytorch.org/whl/cpu"
""",
        ["python >=3.10.0"],
        kind="pyproject.toml",
    ),
    Stranger(
        "pyproject_rocm.toml",
        "https://github.com/sgl-project/sglang/pull/14802",
        """[project]
name = "sglang"
version = "0"
dependencies = [
  "numpy",
  "torch @ https://download.pytorch.org/whl/rocm6.4/torch-2.9.0%2Brocm6.4-cp312-cp312-manylinux_2_28_x86_64.whl ; python_version == '3.12'",
]
""",
        ["numpy", "torch 2.9.0+rocm6.4"],
    ),
    Stranger(
        "setup.cfg",
        "https://github.com/ACEsuit/mace/blob/049c1528/setup.cfg",
        """[metadata]
name = mace-torch
version = attr: mace.__version__

[options]
packages = find:
python_requires = >=3.7
install_requires =
    torch>=1.12
    e3nn==0.4.4
    opt_einsum
    pyYAML
    # for plotting:
    matplotlib

[options.entry_points]
console_scripts =
    mace_run_train  =  mace.cli.run_train:main

[options.extras_require]
wandb = wandb
cueq-cuda-12 = cuequivariance-ops-torch-cu12==0.2.0
""",
        ["python >=3.7", "torch >=1.12", "e3nn 0.4.4", "opt-einsum", "pyyaml", "matplotlib"],
        kind="setup.cfg",
    ),
    Stranger(
        "setup.cfg",
        "https://github.com/microsoft/torchgeo/blob/00e1abf7/setup.cfg",
        """[metadata]
name = torchgeo
version = attr: torchgeo.__version__

[options]
install_requires =
    # einops 0.3+ required for einops.repeat
    einops>=0.3,<0.7
    torch>=1.9,<2
python_requires = ~= 3.7

[options.extras_require]
datasets =
    h5py>=2.6,<4
""",
        ["python ~=3.7", "einops <0.7,>=0.3", "torch <2,>=1.9"],
        kind="setup.cfg",
    ),
    Stranger(
        "pixi.toml",
        "https://github.com/prefix-dev/pixi/blob/156f1fc6/docs/source_files/pixi_tomls/pytorch-pypi-envs.toml",
        """[project]
channels = ["https://prefix.dev/conda-forge"]
name = "pytorch-pypi-envs"
platforms = ["linux-64", "win-64"]

[dependencies]
python = ">=3.11,<3.13"

[feature.gpu.pypi-dependencies]
torch = { version = ">=2.5.1", index = "https://download.pytorch.org/whl/cu124" }

[feature.cpu.pypi-dependencies]
torch = { version = ">=2.5.1", index = "https://download.pytorch.org/whl/cpu" }

[environments]
gpu = { features = ["gpu"] }
default = { features = ["cpu"] }
""",
        ["python >=3.11,<3.13", "torch >=2.5.1"],
        kind="pixi.toml",
    ),
    Stranger(
        "pixi.toml",
        "https://github.com/prefix-dev/pixi/blob/00cdab95/examples/pypi-source-deps/pixi.toml",
        """[project]
name = "pypi-source-deps"
channels = ["conda-forge"]
platforms = ["linux-64"]
[dependencies]
python = "*"
[pypi-dependencies]
requests = { git = "https://github.com/psf/requests.git", branch = "v2.29.0" }
click = { url = "https://github.com/pallets/click/releases/download/8.1.7/click-8.1.7-py3-none-any.whl" }
""",
        ["python", "requests", "click"],
    ),
    Stranger(
        "pixi.lock",
        "https://github.com/prefix-dev/pixi/blob/08048ffa/examples/pypi/pixi.lock",
        """version: 5
environments:
  default:
    channels:
    - url: https://conda.anaconda.org/conda-forge/
    indexes:
    - https://pypi.example/simple
    packages:
      linux-64:
      - conda: https://conda.anaconda.org/conda-forge/linux-64/numpy-1.26.4-py311h64a7726_0.conda
      - conda: https://conda.anaconda.org/conda-forge/linux-64/python-3.11.8-hab00c5b_0_cpython.conda
      - conda: https://conda.anaconda.org/conda-forge/linux-64/xz-5.2.6-h166bdaf_0.tar.bz2
      - pypi: https://files.example/packages/fa/2a/env_test_package-0.0.3.tar.gz
      - pypi: https://files.example/packages/09/63/tensorflow-2.14.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl
      osx-64:
      - conda: https://conda.anaconda.org/conda-forge/osx-64/xz-5.2.6-h775f41a_0.tar.bz2
packages:
- kind: conda
  name: numpy
  version: 1.26.4
""",
        ["conda:numpy 1.26.4", "conda:xz 5.2.6", "env-test-package 0.0.3", "tensorflow 2.14.0"],
        python="3.11.8",
        kind="pixi.lock",
    ),
    Stranger(
        "pixi.lock",
        "https://github.com/6cyc6/foundationpose_cpp/blob/3c6af895/pixi.lock",
        """version: 6
environments:
  default:
    channels:
    - url: https://conda.anaconda.org/conda-forge/
    packages:
      linux-64:
      - conda: https://conda.anaconda.org/conda-forge/linux-64/python-3.13.1-ha99a958_102_cp313.conda
      - conda: https://conda.anaconda.org/conda-forge/noarch/cuda-version-12.9-h4f385c5_3.conda
      - conda: https://conda.anaconda.org/conda-forge/linux-64/libblas-3.11.0-6_h4a7cf45_openblas.conda
      - pypi: https://download.pytorch.org/whl/cu129/torch-2.8.0%2Bcu129-cp313-cp313-manylinux_2_28_x86_64.whl
      win-64:
      - conda: https://conda.anaconda.org/conda-forge/noarch/cuda-version-12.9-h4f385c5_3.conda
packages:
- conda: https://conda.anaconda.org/conda-forge/noarch/cuda-version-12.9-h4f385c5_3.conda
  sha256: 5f5f428031933f117ff9f7fcc650e6ea1b3fef5936cf84aa24af79167513b656
""",
        ["conda:cuda-version 12.9", "conda:libblas 3.11.0", "torch 2.8.0+cu129"],
        python="3.13.1",
        kind="pixi.lock",
    ),
    Stranger(
        "pylock.toml",
        "https://peps.python.org/pep-0751/#example",
        """lock-version = '1.0'
environments = ["sys_platform == 'win32'", "sys_platform == 'linux'"]
requires-python = '==3.12'
created-by = 'mousebender'

[[packages]]
name = 'attrs'
version = '25.1.0'
requires-python = '>=3.8'
wheels = [
  {name = 'attrs-25.1.0-py3-none-any.whl', url = 'https://files.example/attrs-25.1.0-py3-none-any.whl', hashes = {sha256 = 'c75a'}},
]

[[packages]]
name = 'cattrs'
version = '24.1.2'
requires-python = '>=3.8'
dependencies = [
    {name = 'attrs'},
]
wheels = [
  {name = 'cattrs-24.1.2-py3-none-any.whl', url = 'https://files.example/cattrs-24.1.2-py3-none-any.whl', hashes = {sha256 = '67c7'}},
]
""",
        ["python ==3.12", "attrs 25.1.0", "cattrs 24.1.2"],
        kind="pylock.toml",
    ),
    Stranger(
        "pylock.toml",
        "https://github.com/CSSLab/maia3/blob/4885538e/pylock.toml",
        """lock-version = "1.0"
created-by = "uv"
requires-python = ">=3.10"

[[packages]]
name = "chess"
version = "1.11.2"
index = "https://pypi.example/simple"
sdist = { url = "https://files.example/chess-1.11.2.tar.gz", hashes = { sha256 = "a8b4" } }

[[packages]]
name = "cuda-toolkit"
version = "13.0.3.0"
marker = "sys_platform == 'linux'"
index = "https://pypi.example/simple"
wheels = [{ url = "https://files.example/cuda_toolkit-13.0.3.0-py2.py3-none-any.whl", hashes = { sha256 = "d693" } }]
""",
        ["python >=3.10", "chess 1.11.2", "cuda-toolkit 13.0.3.0"],
        kind="pylock.toml",
    ),
    Stranger(
        "uv.lock",
        "https://github.com/astral-sh/uv/issues/11406",
        """version = 1
requires-python = ">=3.11"
conflicts = [[{ package = "sfm-venv", extra = "cpu" }, { package = "sfm-venv", extra = "cu124" }]]

[[package]]
name = "filelock"
version = "3.17.0"
source = { registry = "https://pypi.org/simple" }

[[package]]
name = "torch"
version = "2.6.0"
source = { registry = "https://pypi.org/simple" }
dependencies = [
    { name = "filelock", marker = "(extra == 'extra-8-sfm-venv-cpu' and extra == 'extra-8-sfm-venv-cu124') or (extra != 'extra-8-sfm-venv-cpu' and extra != 'extra-8-sfm-venv-cu124')" },
]

[[package]]
name = "torch"
version = "2.6.0+cu124"
source = { registry = "https://download.pytorch.org/whl/cu124" }

[[package]]
name = "sfm-venv"
version = "0.1.0"
source = { virtual = "." }
dependencies = [
    { name = "torch", version = "2.6.0", source = { registry = "https://pypi.org/simple" }, marker = "extra != 'extra-8-sfm-venv-cu124'" },
    { name = "torch", version = "2.6.0+cu124", source = { registry = "https://download.pytorch.org/whl/cu124" }, marker = "extra == 'extra-8-sfm-venv-cu124'" },
]

[package.optional-dependencies]
cu124 = [{ name = "torch", version = "2.6.0+cu124", source = { registry = "https://download.pytorch.org/whl/cu124" } }]
""",
        ["filelock 3.17.0", "torch 2.6.0"],
        kind="uv.lock",
    ),
    Stranger(
        "uv.lock",
        "https://docs.astral.sh/uv/guides/integration/pytorch/ and locks of public repositories with forks",
        """version = 1
requires-python = ">=3.11"

[[package]]
name = "torch"
version = "2.7.1+cu128"
source = { registry = "https://download.pytorch.org/whl/cu128" }
resolution-markers = ["sys_platform == 'win32'"]

[[package]]
name = "torch"
version = "2.10.0+rocm7.1"
source = { registry = "https://download.pytorch.org/whl/rocm7.1" }
resolution-markers = ["sys_platform == 'linux'"]

[[package]]
name = "own"
version = "0.1.0"
source = { virtual = "." }
dependencies = [
    { name = "torch", version = "2.7.1+cu128", source = { registry = "https://download.pytorch.org/whl/cu128" }, marker = "sys_platform == 'win32'" },
    { name = "torch", version = "2.10.0+rocm7.1", source = { registry = "https://download.pytorch.org/whl/rocm7.1" }, marker = "sys_platform == 'linux'" },
]
""",
        ["torch 2.10.0+rocm7.1"],
        kind="uv.lock",
    ),
    Stranger(
        "uv.lock",
        "https://github.com/DeiC-HPC/cotainr/blob/b6f3b65/uv.lock",
        """version = 1
revision = 1
requires-python = ">=3.9"
resolution-markers = ["python_full_version >= '3.11'", "python_full_version < '3.11'"]

[[package]]
name = "alabaster"
version = "0.7.16"
source = { registry = "https://pypi.example/simple" }
resolution-markers = ["python_full_version < '3.10'"]

[[package]]
name = "alabaster"
version = "1.0.0"
source = { registry = "https://pypi.example/simple" }
resolution-markers = ["python_full_version >= '3.11'", "python_full_version == '3.10.*'"]

[[package]]
name = "cotainr"
source = { editable = "." }
dependencies = [{ name = "alabaster" }]
""",
        ["alabaster 0.7.16", "alabaster 1.0.0"],
        kind="uv.lock",
    ),
    Stranger(
        "poetry.lock",
        "https://github.com/swiss-ai-center/a-guide-to-mlops (the lock that its guide shows)",
        """# This file is automatically @generated by Poetry 1.5.1 and should not be changed by hand.

[[package]]
name = "absl-py"
version = "1.4.0"
description = "Abseil Python Common Libraries"
optional = false
python-versions = ">=3.6"
files = [
    {file = "absl-py-1.4.0.tar.gz", hash = "sha256:d2c2"},
]

[metadata]
lock-version = "2.0"
python-versions = ">=3.8,<3.12"
content-hash = "00"
""",
        ["absl-py 1.4.0"],
        kind="poetry.lock",
    ),
    Stranger(
        "poetry.lock",
        "https://github.com/fetter-io/fetter-rs (a lock in its tests)",
        """# This file is automatically @generated by Poetry 2.1.1 and should not be changed by hand.

[[package]]
name = "pathlib2"
version = "2.3.7.post1"
description = "Object-oriented filesystem paths"
optional = false
python-versions = "*"
groups = ["main"]
markers = "sys_platform == \\"win32\\""
files = []

[metadata]
lock-version = "2.1"
""",
        ["pathlib2 2.3.7.post1"],
        kind="poetry.lock",
    ),
    Stranger(
        "torch.txt",
        "`pip list | grep` in public notes about scGPT on a cluster, for torch 2.0.1",
        """flash-attn                1.0.4
scvi-tools                0.20.3
torch                     2.0.1+cu117
torchtext                 0.15.2+cpu
""",
        ["flash-attn 1.0.4", "scvi-tools 0.20.3", "torch 2.0.1+cu117", "torchtext 0.15.2+cpu"],
        kind="output of pip",
    ),
    Stranger(
        "torch.txt",
        "`conda list | findstr torch` in public notes about YOLOv5",
        """torch                     2.0.1                    pypi_0    pypi
torchvision               0.15.2                   pypi_0    pypi
""",
        ["torch 2.0.1", "torchvision 0.15.2"],
        kind="output of conda list",
    ),
    Stranger(
        "piplist.txt",
        "https://github.com/pytorch/torchchat/pull/1300 (2024-10-15)",
        """Package                   Version
------------------------- --------------------------
absl-py                   2.1.0
accelerate                1.0.1
anyio                     4.6.2.post1
cmake                     3.30.4
DataProperty              1.0.1
Flask                     3.0.3
""",
        [
            "absl-py 2.1.0",
            "accelerate 1.0.1",
            "anyio 4.6.2.post1",
            "cmake 3.30.4",
            "dataproperty 1.0.1",
            "flask 3.0.3",
        ],
        kind="output of pip",
    ),
    Stranger(
        "Dockerfile",
        "https://github.com/togethercomputer/stripedhyena/blob/main/Dockerfile",
        """FROM nvcr.io/nvidia/pytorch:23.04-py3

WORKDIR /workdir
RUN rm -rf ./flash-attention/*
RUN git clone https://github.com/Dao-AILab/flash-attention.git
RUN cd flash-attention/csrc/layer_norm && python setup.py install

WORKDIR /workdir
RUN pip install ninja deepspeed==0.10.3 tokenizers==0.14.1
""",
        [
            "nvcr.io/nvidia/pytorch:23.04-py3",
            "git+https://github.com/Dao-AILab/flash-attention.git",
            "ninja",
            "deepspeed 0.10.3",
            "tokenizers 0.14.1",
        ],
        kind="Dockerfile",
    ),
    Stranger(
        "build-rocm-5.6.1-python-3.10-pytorch-v2.2.0.docker",
        "https://github.com/sfantao/lumi-containers/blob/5b447763/pytorch/"
        "build-rocm-5.6.1-python-3.10-pytorch-v2.2.0.docker",
        """# Install conda environment
ARG PYTHON_VERSION
RUN $WITH_CONDA; set -eux ; \\
  conda create -n pytorch python=$PYTHON_VERSION ; \\
  conda activate pytorch ; \\
  conda install -y ninja cmake
ENV PYTORCH_ROCM_ARCH gfx90a
ARG PYTORCH_VERSION
RUN $WITH_CONDA; set -eux ; \\
  ROCM_VERSION_MAJOR=$(echo $ROCM_RELEASE | cut -d'.' -f1) ; \\
  pip3 install --pre torch==${PYTORCH_VERSION}+rocm${ROCM_VERSION_MAJOR} --index-url https://download.pytorch.org/whl/

RUN $WITH_CONDA; set -eux ; \\
  git clone --recursive https://github.com/ROCmSoftwarePlatform/apex /opt/mybuild ; \\
  cd /opt/mybuild ; \\
  git checkout -b mydev origin/release/1.1.0 ; \\
  \\
  CC=gcc-10, CXX=g++-10 nice python setup.py bdist_wheel --cpp_ext --cuda_ext ; \\
  cp -rf dist/* /opt/wheels ; \\
  rm -rf /opt/mybuild

RUN $WITH_CONDA; set -eux ; \\
  pip install /opt/wheels/apex-*.whl
RUN $WITH_CONDA; set -eux ; \\
  pip install \\
    scipy==1.12.0 \\
    pandas==2.2.0
""",
        [
            "conda:ninja",
            "conda:cmake",
            "git+https://github.com/ROCmSoftwarePlatform/apex@release/1.1.0",
            "scipy 1.12.0",
            "pandas 2.2.0",
        ],
        ("python=$PYTHON_VERSION", "torch==${PYTORCH_VERSION}+rocm"),
        kind="fragment of a Dockerfile",
    ),
    Stranger(
        "Singularity.def",
        "https://github.com/singularityhub/singularity-catalog/blob/main/_recipes/uazhlt/pytorch-example/Singularity",
        """Bootstrap:docker
From:uazhlt/pytorch-example:pytorch-1.3.0

%labels
MAINTAINER nobody

%post
# commands to be executed inside container during bootstrap.
echo "Installing packages listed in requirements.txt using conda..."
while read requirement; do pip install $requirement; done < requirements.txt

%test
python --version
""",
        ["uazhlt/pytorch-example:pytorch-1.3.0"],
        ("$requirement",),
        kind="definition file",
    ),
    Stranger(
        "odop.def",
        "a public definition file for LUMI with ROCm 6.0 wheels",
        """Bootstrap: docker
From: ubuntu:22.04

%files
   ../../* odop/

%post
apt install -y python3.11
curl -sS https://bootstrap.pypa.example/get-pip.py | python3.11
python3.11 -m pip install --upgrade --extra-index-url https://download.pytorch.org/whl/rocm6.0/ \\
   odop/ \\
   torch==2.3.1+rocm6.0 \\
   accelerate==0.29
""",
        ["ubuntu:22.04", "torch 2.3.1+rocm6.0", "accelerate 0.29"],
        ("python3.11 -m pip install",),
    ),
    Stranger(
        "PyTorch-1.12.1-cpeGNU-22.08.eb",
        "https://github.com/Lumi-supercomputer/LUMI-EasyBuild-contrib/blob/55c6962b/easybuild/easyconfigs/p/"
        "PyTorch/PyTorch-1.12.1-cpeGNU-22.08.eb",
        """easyblock = "PythonBundle"
name = 'PyTorch'
version = '1.12.1'
_rocm_pt_build = '5.1.1'
toolchain = {'name': 'cpeGNU', 'version': '22.08'}
dependencies = [
    ('cray-python', EXTERNAL_MODULE),
    ('rccl', '2.12.7')
]
exts_list = [
    ('urllib3', '1.26.11', {'source_tmpl': '%(name)s-%(version)s-py2.py3-none-any.whl'}),
    ('torch', f'{version}%2Brocm{_rocm_pt_build}', {
        'source_tmpl': '%(name)s-%(version)s-cp39-cp39-linux_x86_64.whl',
    }),
]
""",
        ["urllib3 1.26.11", "torch 1.12.1+rocm5.1.1"],
        ("cray-python", "rccl"),
        kind="EasyConfig",
    ),
    Stranger(
        "PyTorch-Lightning.eb",
        "https://github.com/easybuilders/easybuild-easyconfigs/blob/01f45d3f/easybuild/easyconfigs/p/"
        "PyTorch-Lightning/PyTorch-Lightning-1.5.9-foss-2021a-CUDA-11.3.1.eb",
        """easyblock = 'PythonBundle'
name = 'PyTorch-Lightning'
version = '1.5.9'
versionsuffix = '-CUDA-%(cudaver)s'
dependencies = [
    ('Python', '3.9.5'),
    ('PyTorch', '1.10.0', versionsuffix),
]
local_preinstallopts = "sed -i 's/a/b/g' requirements.txt && "
local_preinstallopts += "true && "
exts_list = [
    ('pyDeprecate', '0.3.2', {'modulename': 'deprecate'}),
    ('pytorch-lightning', version, {'preinstallopts': local_preinstallopts}),
]
""",
        ["pydeprecate 0.3.2", "pytorch-lightning 1.5.9"],
        ("PyTorch",),
        python="3.9.5",
    ),
    Stranger(
        "run_multigpu_torchrun.sh",
        "https://github.com/DeiC-HPC/cotainr/blob/main/examples/LUMI/conda_pytorch_rocm/run_multigpu_torchrun.sh",
        """#!/usr/bin/env bash
#SBATCH --nodes=1
#SBATCH --gpus-per-task=8
#SBATCH --partition=eap

export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3

srun singularity exec lumi_pytorch_rocm_demo.sif torchrun --standalone pytorch_multigpu_torchrun.py
""",
        ["lumi_pytorch_rocm_demo.sif"],
        kind="job script",
    ),
    Stranger(
        "run_ddp_torchrun.sh",
        "https://github.com/Lumi-supercomputer/LUMI-AI-example/blob/main/multi-gpu-and-node/run_ddp_torchrun.sh",
        """#!/bin/bash
#SBATCH --partition=standard-g
#SBATCH --gpus-per-node=8

module use /appl/local/training/modules/AI-20240529
module load singularity-userfilesystems singularity-CPEbits

CONTAINER=/appl/local/containers/sif-images/lumi-pytorch-rocm-6.2.1.sif
export NCCL_NET_GDR_LEVEL=PHB

srun singularity exec $CONTAINER bash -c '$WITH_CONDA && source env/bin/activate && python -m torch.distributed.run ddp.py'
""",
        ["/appl/local/containers/sif-images/lumi-pytorch-rocm-6.2.1.sif"],
    ),
    Stranger(
        "amd_setup.sh",
        "https://github.com/linskybing/LLM/blob/main/amd_setup.sh",
        """#! /bin/bash
module purge
module load rocm
export CC=clang
conda create -n deepspeed python=3.11 -y
conda activate deepspeed
pip install --upgrade pip
pip3 install torch torchvision --index-url https://download.pytorch.org/whl/rocm6.4
pip install triton==3.2.0
# cd flash-attention && python setup.py install
DS_BUILD_CPU_ADAM=1 pip install --pre --global-option="build_ext" --global-option="-j52" .
""",
        ["torch", "torchvision", "triton 3.2.0"],
        ("DS_BUILD_CPU_ADAM=1 pip install",),
        python="3.11",
        kind="shell script",
    ),
    Stranger(
        "make-dev-env.sh",
        "https://github.com/Teriks/dgenerate/blob/master/make-dev-env.sh",
        """#!/bin/bash
python3 -m venv venv
source venv/bin/activate
if which rocminfo &> /dev/null; then
  pip3 install torch torchvision --extra-index-url https://download.pytorch.org/whl/rocm6.2/
else
  pip3 install torch torchvision --extra-index-url https://download.pytorch.org/whl/cu124/
fi
pip install einops
""",
        ["einops"],
        ("whl/rocm6.2", "whl/cu124"),
        kind="shell script",
    ),
    Stranger(
        "install.sh",
        "https://github.com/amd/HPCTrainingDock/blob/main/extras/scripts/pytorch_setup.sh (a choice by an argument)",
        """#!/bin/bash
pip install -r requirements.txt
case $1 in
    "cuda")
        pip install torch
        ;;
    "rocm")
        pip install torch --index-url https://download.pytorch.org/whl/rocm6.4
        ;;
esac
if [ ! -d data ]; then
    pip install gdown
fi
""",
        ["gdown"],
        ("-r requirements.txt", "pip install torch", "whl/rocm6.4", "pip install gdown"),
        kind="shell script",
    ),
    Stranger(
        "cotainr_job.sh",
        "https://github.com/DeiC-HPC/cotainr/issues/171",
        """#!/bin/bash
#SBATCH --partition=small
module load LUMI cotainr
cotainr build py312.sif --base-image=/appl/local/containers/sif-images/lumi-pytorch-rocm-6.2.4-python-3.12-pytorch-v2.7.1.sif --conda-env=py312.yml --accept-licenses
""",
        ["/appl/local/containers/sif-images/lumi-pytorch-rocm-6.2.4-python-3.12-pytorch-v2.7.1.sif"],
        ("--conda-env py312.yml",),
        kind="job script",
    ),
    Stranger(
        "build.sh",
        "https://github.com/Lumi-supercomputer/Getting_Started_with_AI_workshop (06, building containers from environments)",
        """#!/bin/bash
module use /appl/local/training/modules/AI-20240529
module load LUMI cotainr
srun --partition=dev-g cotainr build python312.sif --system=lumi-c --conda-env=python312.yml --accept-licenses
""",
        [],
        ("--conda-env python312.yml",),
        kind="shell script",
    ),
]
