"""The whole workflow with the real DeepSpeed and the CPU build of torch.

The demo resolves, builds DeepSpeed's cpu_adam op, publishes the wheel to an index, installs it from there
into an environment with pip, and compares five optimizer steps with torch's AdamW. All files that it
creates are under ``.demo/``; a second run finds the wheel in the index and builds nothing.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from builders.environments.python import is_reachable
from builders.index import Index
from builders.machine import host
from builders.storage.files import sha256_of
from resolver.errors import EnvironmentLacksError
from resolver.lock import read_lock
from resolver.model import Resolution

HERE = Path(__file__).resolve().parent
WORK = HERE.parent / ".demo"
LOCK, INDEX, ENVIRONMENT = WORK / "matrix.lock", WORK / "index", WORK / "environment"
WANTED = ["deepspeed==0.19.8", "torch==2.13.0"]


def main() -> int:
    """Run the demo."""
    try:
        host.require_for_build()
    except EnvironmentLacksError as error:
        print(error.message, file=sys.stderr)
        return error.exit_code
    WORK.mkdir(exist_ok=True)
    started = time.monotonic()
    wheels = Index(INDEX).wheels("deepspeed")
    matrix("resolve", *WANTED, "--backend", "cpu", "-o", str(LOCK), "-q")
    matrix("build-wheels", "--lock", str(LOCK), "--index", str(INDEX))
    did = "found already built" if Index(INDEX).wheels("deepspeed") == wheels else "built"
    print(f"\n[{time.monotonic() - started:.1f} s] the wheel was {did}\n", flush=True)
    matrix(
        "env",
        "--for",
        "cotainr",
        "--lock",
        str(LOCK),
        "--index",
        str(INDEX),
        "-o",
        str(WORK / "env.yml"),
    )
    lock = read_lock(LOCK)
    install(lock)
    command([str(ENVIRONMENT / "bin" / "python"), str(HERE / "five_steps.py")])
    deepspeed = lock.pick("deepspeed")
    assert deepspeed is not None
    print(
        f"\nDone in {time.monotonic() - started:.0f} s: resolved versions that work together;\n"
        f"deepspeed {deepspeed.pinned} was {did}; it was installed with pip from {INDEX}/simple\n"
        f"and its optimizer agrees with torch's. The file for cotainr: {WORK / 'env.yml'}"
    )
    return 0


def install(lock: Resolution) -> None:
    """Install the pinned versions of the lock into a new environment, like the build of a container.

    An environment with the same wheel and the same lock is kept.
    """
    (wheel,) = Index(INDEX).wheels("deepspeed")
    content = f"{sha256_of(wheel)}\n{LOCK.read_text()}"
    installed = ENVIRONMENT / "installed"
    if installed.exists() and installed.read_text() == content:
        print(f"{ENVIRONMENT} has this wheel already", flush=True)
        return
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    python = host.find_python(lock.version_of("python"))
    command([str(python), "-m", "venv", str(ENVIRONMENT)])
    torch, deepspeed = lock.pick("torch"), lock.pick("deepspeed")
    assert torch is not None
    assert deepspeed is not None
    options = ["--extra-index-url", (INDEX / "simple").as_uri(), "--only-binary", "deepspeed"]
    if is_reachable(torch.index):
        options += ["--extra-index-url", torch.index]
    else:
        print(f"{torch.index} cannot be reached; pip uses only its configured indexes", flush=True)
    pins = [f"torch=={torch.pinned}", f"deepspeed=={deepspeed.pinned}"]
    command([str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "install", "-qq", *options, *pins])
    installed.write_text(content)


def matrix(*arguments: str) -> None:
    """Run the program as a user would."""
    command([sys.executable, "-m", "matrix", *arguments])


def command(arguments: list[str]) -> None:
    """Print a command and run it; stop if it fails."""
    shown = [Path(arguments[0]).name, *arguments[1:]]
    print(f"$ {shlex.join(shown)}", flush=True)
    code = subprocess.run(arguments, check=False, cwd=HERE.parent).returncode
    if code:
        sys.exit(code)


if __name__ == "__main__":
    sys.exit(main())
