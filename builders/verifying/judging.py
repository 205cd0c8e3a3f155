"""What the answers of an environment mean: a finding for each, also for what could not be judged.

Without a GPU nothing is said of kernels, and that is said. What is *not judged* is a warning, never passed.
"""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import PurePath
from typing import TYPE_CHECKING

from builders.findings import Finding
from resolver.requirements import normalize_name
from resolver.versions import minor, sort_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builders.verifying.asking import Answer
    from resolver.model import Resolution

NOT_JUDGED = "not-judged"
"""In the id of every finding that says that something could not be judged."""
_TELLING = (
    "librccl", "libstdc++", "libgcc_s", "libamdhip64", "libhsa-runtime64", "libMIOpen", "librocblas",
)  # fmt: skip
"""Libraries whose place decides whether a job runs: torch or the image has them, conda or the system."""
_AGAIN = "Build the container again from the file that matrix env writes."


def judge(
    answer: Answer, lock: Resolution | None, own: Mapping[str, str], *, need_gpu: bool
) -> list[Finding]:
    """Say what the answers of an environment show.

    Parameters
    ----------
    answer
        What it said.
    lock
        What it should hold; None judges only what needs no comparison.
    own
        What the user installed for this Python with ``pip install --user``: name to version.
    need_gpu
        Whether a GPU must be seen, as in a job on a GPU node.
    """
    held = {normalize_name(one.name): one.version for one in reversed(answer.distributions)}
    return [
        *_pins(answer, lock, held),
        *_strangers(answer, lock, held),
        *_twice(answer),
        *_pip_check(answer, lock),
        *_user_site(answer, held, own),
        *_libraries(answer),
        *_libstdcxx(answer),
        *_gpus(answer, lock, need_gpu=need_gpu),
    ]


def _pins(answer: Answer, lock: Resolution | None, held: Mapping[str, str]) -> Iterator[Finding]:
    if lock is None:
        text = "Versions are not judged: there is no lock to compare with."
        yield Finding("verify-pins-not-judged", "warning", text, "Name it with --lock FILE.")
        return
    python = lock.version_of("python")
    if python and minor(python) != minor(answer.python):
        text = f"Its Python is {answer.python} ({answer.executable}); the lock is for {python}."
        yield Finding("verify-python", "error", text, "Name another with --python, or build it again.")
    pins = {pick.name: pick.pinned for pick in lock.picks if pick.kind == "distribution"}
    right = 0
    for name, pinned in pins.items():
        there = held.get(normalize_name(name))
        if there is None:
            yield Finding("verify-pin-missing", "error", f"{name} {pinned} is not installed.", _AGAIN)
        elif there != pinned:
            text = f"{name} is {there}, and the lock pins {pinned}."
            yield Finding("verify-pin-differs", "error", text, _AGAIN)
        else:
            right += 1
    yield Finding("verify-pins", "info", f"{right} of {len(pins)} distributions are as the lock pins them")


def _strangers(answer: Answer, lock: Resolution | None, held: Mapping[str, str]) -> Iterator[Finding]:
    nvidia = sorted(f"{name} {version}" for name, version in held.items() if name.startswith("nvidia-"))
    if nvidia:
        text = f"CUDA's libraries are installed: {', '.join(nvidia)}."
        cure = "Something was installed without its label; matrix check names the line of the file."
        yield Finding("verify-nvidia", "error", text, cure)
    said = answer.gpu
    if said.cuda and (lock is None or lock.target.backend == "rocm"):
        text = f"torch {said.torch} is for CUDA {said.cuda}."
        yield Finding("verify-torch-cuda", "error", text, _AGAIN)
    elif lock is not None and lock.target.backend == "rocm" and said.torch and not said.hip:
        text = f"torch {said.torch} is not built for ROCm."
        yield Finding("verify-torch-cpu", "error", text, _AGAIN)


def _twice(answer: Answer) -> Iterator[Finding]:
    ordered = sorted(answer.distributions, key=lambda one: normalize_name(one.name))
    for name, group in groupby(ordered, key=lambda one: normalize_name(one.name)):
        places = {one.path: one.version for one in group}
        if len(places) > 1:
            listed = ", ".join(f"{version} in {path}" for path, version in places.items())
            text = f"{name} is installed more than once: {listed}. The first on the path counts."
            yield Finding("verify-twice", "warning", text)


def _pip_check(answer: Answer, lock: Resolution | None) -> Iterator[Finding]:
    said = answer.pip_check
    if said.code is None:
        text = "Requirements of what is installed are not judged: there is no pip, or it did not answer."
        yield Finding("verify-pip-check-not-judged", "warning", text)
        return
    ours = {normalize_name(pick.name) for pick in lock.picks} if lock else set()
    for line in said.lines if said.code else ():
        first = normalize_name(line.split(" ", 1)[0]) if line else ""
        if first:
            if first in ours:
                yield Finding("verify-pip-check-broken", "error", f"pip check: {line}")
            else:
                yield Finding("verify-pip-check-others", "warning", f"pip check: {line}")
    if not said.code:
        yield Finding("verify-pip-check", "info", "pip check: no broken requirements")


def _user_site(answer: Answer, held: Mapping[str, str], own: Mapping[str, str]) -> Iterator[Finding]:
    there = answer.user_site
    if not own:
        return
    if there.shut:
        text = f"~/.local holds packages for Python {there.minor}, which are not seen: {there.shut}."
        yield Finding("verify-user-site-shut", "info", text)
        return
    cure = "Set PYTHONNOUSERSITE=1 in every job, or remove them: they come before what is installed."
    shadowing = sorted(f"{name} {version}" for name, version in own.items() if name in held)
    if shadowing:
        text = f"~/.local shadows what is installed for Python {there.minor}: {', '.join(shadowing)}."
        yield Finding("verify-user-site", "error", text, cure)
    else:
        text = f"~/.local adds to Python {there.minor}: {', '.join(sorted(own))}."
        yield Finding("verify-user-site-adds", "warning", text, cure)


def _libraries(answer: Answer) -> Iterator[Finding]:
    said = answer.loaded
    if said.failed:
        text = f"Which libraries load is not judged: importing ended with {said.failed}"
        yield Finding("verify-libraries-not-judged", "warning", text)
        return
    for name in _TELLING:
        pattern = re.compile(re.escape(name) + r"(-[\da-f]+)?\.so(\.|$)")
        paths = [path for path in said.objects if pattern.match(PurePath(path).name)]
        if len(paths) > 1:
            text = f"{name} is loaded more than once: {', '.join(paths)}."
            cure = "One is torch's own and the other the image's; LD_LIBRARY_PATH decides which comes first."
            yield Finding("verify-library-twice", "warning", text, cure)
        elif paths:
            text = f"{name} loads from {paths[0]}"
            yield Finding("verify-library", "info", text, evidence={"library": name, "member": paths[0]})


def _libstdcxx(answer: Answer) -> Iterator[Finding]:
    system = answer.system_libstdcxx
    for one in answer.loaded.libstdcxx:
        older = one.glibcxx and system.glibcxx and sort_key(one.glibcxx) < sort_key(system.glibcxx)
        if older:
            text = (
                f"{one.path} is loaded, which ends at GLIBCXX_{one.glibcxx}; {system.path} has "
                f"GLIBCXX_{system.glibcxx}. What was compiled with the image's compiler may not load."
            )
            cure = "Ask conda for libstdcxx-ng of at least the image's compiler."
            yield Finding("verify-libstdcxx-older", "warning", text, cure)


def _gpus(answer: Answer, lock: Resolution | None, *, need_gpu: bool) -> Iterator[Finding]:
    said = answer.gpu
    if lock is not None and lock.target.backend == "cpu":
        return
    if said.failed:
        text = f"torch does not answer: {said.failed}"
        yield Finding("verify-torch-failed", "error", text, "Its libraries or the Python do not fit.")
        return
    if not said.gpus:
        if need_gpu:
            text = "torch sees no GPU, where there should be one."
            yield Finding(
                "verify-no-gpu", "error", text, "Look at /dev/kfd, the driver and the job's request."
            )
        else:
            text = "Whether anything runs on a GPU is not judged: there is none here."
            yield Finding("verify-gpu-not-judged", "warning", text, "matrix verify --gpu submits a job.")
        return
    wanted = set(lock.target.gfx) if lock else set()
    for number, one in enumerate(said.gpus):
        target = one.arch.partition(":")[0]
        name = f"GPU {number} ({one.name or 'unnamed'}, {one.arch or 'unknown target'})"
        if one.error:
            yield Finding("verify-gpu-failed", "error", f"{name}: {one.error}")
        elif wanted and target and target not in wanted:
            text = f"{name} is none of the targets of the lock: {', '.join(sorted(wanted))}."
            yield Finding("verify-gpu-target", "error", text, "Resolve and build for it as well.")
        else:
            yield Finding("verify-gpu", "info", f"{name} multiplies two matrices as the CPU does")
