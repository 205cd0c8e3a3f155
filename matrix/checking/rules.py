"""The kinds of findings of `matrix check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from builders.findings import SEVERITIES, Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Rule(NamedTuple):
    """One kind of finding: its severity, the problem and the consequence."""

    severity: Severity
    title: str
    reason: str


RULES: dict[str, Rule] = {
    # One line
    "requirement-beside-option": Rule(
        "error",
        "option and requirement on one line",
        "pip reads only the options: it does not install the requirement, and exits with 0",
    ),
    "second-value": Rule("error", "option with two values", "pip ignores the second value"),
    "option-beside-requirement": Rule(
        "error", "option for the whole file after a requirement", "pip ignores the option"
    ),
    "refused-option": Rule("error", "option that pip rejects in a file", "pip stops with `no such option`"),
    "void-setting": Rule(
        "error",
        "build setting without effect",
        "`--config-settings` cannot switch build isolation off",
    ),
    "hash-on-some": Rule(
        "error",
        "hash on some lines only",
        "if one line has a hash, pip requires a hash for every distribution",
    ),
    "not-a-requirement": Rule(
        "error",
        "line that pip cannot parse",
        "`torch=2.9.1`, `pip install x`, `A=1 x`, several requirements on one line, an unclosed quote",
    ),
    "tab": Rule("error", "tab instead of a space", "pip splits lines at spaces only"),
    "variable-not-expanded": Rule(
        "warning", "variable that pip does not expand", "pip expands only `${NAME}`, in capitals"
    ),
    "contradicting-requirement": Rule(
        "error", "two requirements that contradict each other", "pip stops with `ResolutionImpossible`"
    ),
    "duplicate-requirement": Rule(
        "info", "same name on two lines", "pip looks for a version that satisfies both lines"
    ),
    "flat-listing": Rule(
        "error",
        "list of wheels used as an index",
        "the pages of repo.radeon.com work only with `--find-links`",
    ),
    "index-replaced": Rule(
        "warning",
        "index that replaces PyPI",
        "`--index-url` with PyTorch's index: pip finds few other packages",
    ),
    "pre-releases": Rule(
        "warning",
        "pre-releases of every package",
        "unpinned packages may become nightlies or release candidates",
    ),
    # torch and the packages released with it
    "cuda-torch": Rule(
        "error", "torch built for CUDA", "PyPI's torch, a `+cu` label, or an index such as `/whl/cu128`"
    ),
    "unpinned-torch": Rule(
        "error", "torch without an exact version", "PyPI has a newer torch, which is built for CUDA"
    ),
    "unlabelled-torch": Rule(
        "warning", "torch pinned without its label", "correct only while pip can read the index"
    ),
    "other-rocm": Rule(
        "error",
        "package for another ROCm",
        "not the ROCm of the base image or the lock, or newer than the driver supports",
    ),
    "old-rocm": Rule(
        "warning", "package for a ROCm older than the driver supports", "may run, at your own risk"
    ),
    "index-other-rocm": Rule(
        "error", "PyTorch index for a different ROCm than torch", "the pinned torch is on another index"
    ),
    "unknown-torch": Rule("warning", "torch that the catalog does not list", "it may not exist"),
    "torch-python": Rule(
        "error", "torch without a wheel for this Python", "pip finds no wheel for the Python of the file"
    ),
    "cuda-package": Rule("error", "package for CUDA only", "`nvidia-*`, `*-cu12`, `cupy-cuda*`"),
    "second-triton": Rule(
        "error",
        "triton in addition to the triton of torch",
        "torch requires its triton under another name, and pip installs both into one directory",
    ),
    # Names on several indexes
    "any-index": Rule(
        "warning",
        "distribution in our index that any index may provide",
        "pip takes the highest version from any index: a stranger may register the name on PyPI",
    ),
    # Extensions
    "other-project": Rule(
        "error",
        "name of another project on PyPI",
        "apex, aiter, transformer-engine, grouped-gemm: pip runs the setup.py of an unrelated project",
    ),
    "unpinned-extension": Rule(
        "error", "extension without an exact version", "pip takes the highest version from any index"
    ),
    "unlabelled-extension": Rule(
        "error",
        "extension pinned without a label",
        "pip takes the build whose label sorts last, or builds from source without torch",
    ),
    "other-target": Rule(
        "error", "build for another torch or GPU", "`torch2.8.0` with torch 2.9.1, gfx942 on gfx90a"
    ),
    "newer-glibc": Rule(
        "warning",
        "wheel for a newer glibc",
        "pip skips the wheel and reports only `from versions: ...`",
    ),
    "missing-python": Rule(
        "warning",
        "wheel for a Python that this machine does not have",
        "the pip of another Python skips the wheel and reports only `from versions: ...`",
    ),
    "not-the-lock": Rule("error", "version that differs from the lock", "only with a lock"),
    "label-spelling": Rule(
        "warning", "label that is not normalized", "tools other than pip compare labels as text"
    ),
    "label-without-index": Rule(
        "warning", "labelled version without an index for it", "PyPI has no labelled versions"
    ),
    "no-only-binary": Rule(
        "warning", "extension without `--only-binary`", "if the wheel is missing, pip may build from source"
    ),
    "built-from-source": Rule(
        "error",
        "extension that pip builds from source",
        "git, archives, `--no-binary`: the build is isolated and has no torch",
    ),
    # Paths
    "hidden-path": Rule(
        "error",
        "path that is not visible in the build",
        "only /tmp, /var/tmp and bound directories are visible in cotainr's container",
    ),
    "relative-path": Rule("error", "relative path", "only the file itself is copied to where pip runs"),
    "editable": Rule("error", "editable install", "the source tree is not copied to where pip runs"),
    # Conda environment files
    "yaml-map": Rule(
        "error",
        "line that YAML reads as a mapping",
        "`--only-binary :all:` without quotes: conda stops with a TypeError",
    ),
    "not-text": Rule("error", "item that is not a string", "conda stops with a TypeError"),
    "pip-not-list": Rule("error", "pip section that is not a list", "conda reads each character as a line"),
    "several-pip-sections": Rule("error", "more than one pip section", "conda uses only the last section"),
    "duplicate-key": Rule("error", "duplicate key", "conda rejects the file"),
    "unknown-key": Rule("warning", "unknown key", "conda ignores the section"),
    "pip-line-outside": Rule(
        "error",
        "pip line among conda's dependencies",
        "options, URLs and labels belong in the pip section",
    ),
    "conda-torch": Rule("error", "torch or CUDA from conda", "no conda channel has torch for ROCm"),
    "pip-not-listed": Rule(
        "warning", "pip section without a pip dependency", "conda warns and adds a pip of its choice"
    ),
    "pip-unpinned": Rule("info", "pip without a version", "pip's rules change between releases"),
    "python-unpinned": Rule(
        "warning", "Python without a version", "torch may have no wheel for the newest Python"
    ),
    "other-python": Rule("error", "Python that differs from the lock", "only with a lock"),
    "defaults-channel": Rule(
        "warning", "channel `defaults`", "licence terms, and packages that do not mix with conda-forge"
    ),
    "variables-too-late": Rule(
        "warning", "build setting in `variables`", "conda sets `variables` after pip has run"
    ),
}
"""Every kind of finding by its id. docs/reference/checking.md shows the same table."""


def finding_at(
    rule: str,
    line: int,
    text: str,
    message: str,
    *,
    corrected: Iterable[str] = (),
    fixable: bool = False,
    fix: str = "",
) -> Finding:
    """Return a finding about a line that is not an entry."""
    evidence = {"line": line, "text": text, "corrected": tuple(corrected), "fixable": fixable}
    return Finding(rule, RULES[rule].severity, message, fix, evidence)


def in_order(findings: Iterable[Finding], file: str) -> list[Finding]:
    """Sort the findings of a file by line and severity, and drop repeated ones."""
    unique = {(finding.evidence["line"], finding.id, finding.message): finding for finding in findings}
    ordered = sorted(unique.values(), key=_position)
    return [replace(finding, evidence={"file": file, **finding.evidence}) for finding in ordered]


def _position(finding: Finding) -> tuple[int, int, str]:
    return finding.evidence["line"], SEVERITIES.index(finding.severity), finding.id


def fixable(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that ``--fix`` corrects."""
    return [finding for finding in findings if finding.evidence["fixable"]]
