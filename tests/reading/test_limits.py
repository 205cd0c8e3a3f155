"""Texts of strangers take little time however they are made, or end with an error that names them."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest

from matrix.reading import recognise
from matrix.reading.recognise import read, read_described
from resolver.errors import EnvironmentLacksError, MatrixError

SPACES = " " * 200_000
DOUBLED = "".join(f"ARG A{number + 1}=$A{number}$A{number}\n" for number in range(60))
FILLED = "%arguments\nA={{ A }}{{ A }}\n" * 40
TEXTS = {
    "empty.txt": "torch==2.9.1\n" + "\n" * 100_000,
    "spaces.txt": "torch==2.9.1\n" + SPACES + "x",
    "comments.txt": "torch==2.9.1\n" + "# a\n" * 50_000,
    "continued.txt": "torch==2.9.1 \\\n" * 20_000,
    "Dockerfile": f"FROM x\nARG A0=xxxxxxxxxx\n{DOUBLED}RUN pip install $A60\n",
    "a.Dockerfile": "FROM x\n" + "\n" * 100_000 + "RUN pip install torch" + SPACES,
    "root.Dockerfile": "FROM x\nWORKDIR //\nRUN git clone https://a.example/b && pip install .\n",
    "slashes.sh": "git clone https://a.example/b //c\ncd //d\npip install .\ngit checkout x\n",
    "deep.Dockerfile": f"FROM x\nWORKDIR {'a/' * 500_000}\nRUN git checkout x && pip install .\n",
    "spaces.Dockerfile": f"FROM x\nRUN {SPACES}x\n",
    "backslashes.Dockerfile": "FROM x\nRUN a \\\n" + "\\\n" * 50_000,
    "here.Dockerfile": "FROM x\n" + "RUN <<A\n" * 10_000,
    "reqs.txt": f"torch{SPACES}x\n",
    "list.txt": f"# packages in environment at /x:\n{SPACES}x\n",
    "freeze.txt": f"a{SPACES}x\n",
    "pixi.lock": f"version: 6\n{SPACES}x\n",
    "pyproject.toml": f"[tool.poetry.dependencies]\na{SPACES}= '1'\n",
    "quotes.sh": "#!/bin/sh\n" + "'\"" * 50_001,
    "commands.sh": "#!/bin/sh\n" + "a;" * 100_000,
    "x.eb": "a = 'x'\n" + "a = a + a\n" * 100,
    "a.def": f"Bootstrap: docker\nFrom: x\n{FILLED}%post\npip install {{{{ A }}}}\n",
    "empty.def": "Bootstrap: docker\n" + "\n" * 100_000,
    "env.yml": "dependencies:\n" + SPACES + "\n  - torch\n",
    "empty.yml": "\n" * 2000 + "dependencies: [python]\n",
    "job.sh": "#!/bin/bash\n#SBATCH -N 1\n" + "export A=$A$A\n" * 100 + "\n" * 100_000,
    "a/setup.cfg": f"[options]\ninstall_requires =\n    a{SPACES}x\n",
    "setup.cfg": "[options]\ninstall_requires =\n" + "  \\\n" * 20_000,
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_take_little_time(name: str) -> None:
    start = time.process_time()
    with suppress(MatrixError):
        read_described(TEXTS[name], name)
    assert time.process_time() - start < 2


@pytest.mark.usefixtures("no_shortcuts")
def test_limit_of_time_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser of TOML takes a time that grows with the square of a dotted key."""
    monkeypatch.setattr(recognise, "_SECONDS", 1)
    path = tmp_path / "pylock.toml"
    path.write_text("lock-version = '1.0'\n" + "a." * 200_000)
    with pytest.raises(EnvironmentLacksError, match=r"pylock\.toml: it takes more than 1 s of CPU time"):
        read(path)
