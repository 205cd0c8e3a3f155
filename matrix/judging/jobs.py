"""Rules about images, and about job scripts: variables of the site, GPU visibility, binding, installs.

The variables and Slurm's layout are those of the site's rows, from which `matrix env` writes its job scripts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from matrix.judging.distributions import check_rocm
from matrix.reading.requirements import finding_at
from resolver.compiling.names import image_at, image_for_cuda
from resolver.errors import closest_names
from resolver.facts.catalog import matches, within
from resolver.versions import join_words, minor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builders.findings import Finding
    from matrix.judging.target import ExpectedTarget
    from matrix.reading.items import Item, Reading
    from resolver.facts.schema import Image, Job, SiteVariable

_GDR_LEVELS = {"LOC": "0", "PIX": "1", "PXB": "2", "PHB": "3", "SYS": "4"}
"""Names of the levels of NCCL_NET_GDR_LEVEL. Source:
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html (NCCL_NET_GDR_LEVEL, legacy values)."""
_VISIBLE = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""HIP counts the devices that are left by the first one. Sources:
https://rocm.docs.amd.com/en/docs-6.1.2/conceptual/gpu-isolation.html ;
https://github.com/lumi-ai-factory/laifs-container-recipes/issues/13 ; https://github.com/Parsl/parsl/issues/3858"""
_CUDA_TAG = re.compile(r"cuda|(?<![a-z])cu\d{2,3}(?!\d)")
_ROCM_IN_NAME = re.compile(r"rocm-?(\d+\.\d+)")
_SOURCES = re.compile(
    r"\s*((source|\.)\s+(?!\S*activate|\S*conda\.sh)|module\s+use\s|(module\s+(load|add)|ml)\b.*torch)",
    re.IGNORECASE,
)
"""Finds what may set any variable: a script of the user, other modules than the site's, and modules of torch,
such as those of CSC and of LUMI's EasyBuild. An environment that is activated sets none of the network."""
_LOCAL_RANK = re.compile(r"LOCAL_?(ID|RANK)|torchrun|torch\.distributed\.run|accelerate launch|deepspeed")
"""Finds what gives each task its own GPU."""
_OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"


def check_job(reading: Reading, expected: ExpectedTarget) -> Iterator[Finding]:
    """Report what is wrong in a job script; a reading of anything else has nothing."""
    if expected.backend == "rocm":
        yield from _check_override(reading, expected)
    if reading.directives is None:
        return
    if expected.backend == "rocm":
        yield from _check_variables(reading, expected)
        yield from _check_devices(reading, expected)
        yield from _check_layout(reading, expected)
    yield from _check_user_site(reading)


def _line(reading: Reading, text: str) -> int:
    """Return the first line with a text; lines of the script stand in what was not made an item."""
    numbers = (line.line for line in reading.unread if text in line.text)
    return next(numbers, next((number for number, words in _launches(reading) if text in words), 1))


def _launches(reading: Reading) -> Iterator[tuple[int, str]]:
    for number, words in reading.launches:
        yield number, " ".join(words)


def _images(reading: Reading, expected: ExpectedTarget) -> Iterator[tuple[Item, str, Image | None]]:
    """Yield each image with its ROCm, which may be only in its name, and its catalog row."""
    for item in reading.items:
        if item.installer == "image":
            row = image_at(expected.catalog, item.url)
            named = _ROCM_IN_NAME.search(item.url)
            yield item, minor(row.rocm) if row and row.rocm else named[1] if named else "", row


def check_images(reading: Reading, expected: ExpectedTarget) -> Iterator[Finding]:
    """Report images that are for CUDA, that the site no longer has, or whose ROCm does not fit its driver.

    An image is for CUDA if the catalog names it, or if its tag says so.
    """
    target, catalog = expected.request.target, expected.catalog
    for item, rocm, row in _images(reading, expected):
        replaced = image_for_cuda(catalog, item.url)
        tag = item.url.rpartition("/")[2].partition(":")[2]
        if expected.backend == "rocm" and (replaced is not None or _CUDA_TAG.search(tag)):
            reason = f"the catalog lists it ({replaced.source})" if replaced else f"its tag {tag} says so"
            message = f"The image {item.url} is for CUDA: {reason}."
            fix = "Use an image for ROCm: `matrix resolve base-image` chooses one of the site."
            yield finding_at("cuda-image", item.line, item.text, message, fix=fix)
        rows = [
            one
            for one in catalog.site_image.values()
            if row is not None and one.image == row.name and one.site == target.site
        ]
        if rows and not any(within(one, target.date) for one in rows):
            last = max(rows, key=lambda one: str(one.until))
            message = f"{row.name if row else item.url} is no image of {target.site} since {last.until}."
            fix = "`matrix resolve` names an image of the site."
            yield finding_at("job-image", item.line, item.url, f"{message} [{last.source}]", fix=fix)
        if rocm and expected.backend == "rocm":
            yield from check_rocm(item, rocm, expected, "The image")


def _check_variables(reading: Reading, expected: ExpectedTarget) -> Iterator[Finding]:
    """Compare the variables that a script sets with the site's, for the ROCm of its image if it is known."""
    target, catalog = expected.request.target, expected.catalog
    rocm = next((rocm for _, rocm, _ in _images(reading, expected)), "")
    rows = [
        row for row in catalog.site_variable.values() if row.site == target.site and within(row, target.date)
    ]
    known = {*(row.name for row in rows), *_VISIBLE}
    job = catalog.job.get(target.site)
    parallel = job.binds if job else ()
    # A file that the script sources may set anything.
    sources = any(_SOURCES.match(line.text) for line in reading.unread)
    may_lack = _nodes(reading) > 1 and not sources
    for row in rows:
        applies = not row.combination or (bool(rocm) and matches(row.combination, {"rocm": f"{rocm}.0"}))
        stated = reading.variables.get(row.name)
        if stated is None and may_lack and row.value and applies and "${" not in row.value:
            text = f"{row.name} is not set: {row.reason}. [{row.source}]"
            yield finding_at("job-variable", 1, row.name, text, fix=f"export {row.name}={row.value}")
        elif stated is not None and not _agrees(row, stated, parallel):
            problem = _contradiction(reading, row, stated)
            # With the ROCm of this image it may be right, and with another one it is not.
            yield problem if applies else replace(problem, severity="info")
    for name in reading.variables:
        near = closest_names(name, known) or [
            one for one in known if sorted(one.split("_")) == sorted(name.split("_"))
        ]
        extended = [one for one in known if one.startswith(f"{name}_")]
        if name not in known and (close := (extended or near)):
            message = f"{name} is not a variable that the site's programs read. Did you mean {close[0]}?"
            yield finding_at("job-name", _line(reading, f"{name}="), name, message)


def _check_override(reading: Reading, expected: ExpectedTarget) -> Iterator[Finding]:
    """Report that ROCm is made to load code for another GPU, also in a file that builds a container."""
    if _OVERRIDE in reading.variables and expected.gfx:
        gpus = join_words(expected.gfx, joiner="and")
        message = f"{_OVERRIDE} makes ROCm take the GPU for another one; it has code for {gpus} of its own."
        yield finding_at(
            "job-override", _line(reading, _OVERRIDE), _OVERRIDE, message, fix="Remove the line."
        )


def _agrees(row: SiteVariable, stated: str, parallel: Sequence[str]) -> bool:
    """Return whether a value is as good as the site's: a path, if it is not on a parallel file system."""
    if row.value is not None and row.value.startswith(("/", "${")):
        return not stated.startswith(tuple(f"{path}/" for path in parallel))
    if "$" in stated:
        return True  # not known
    if row.value is None:
        return False
    first, second = (_GDR_LEVELS.get(value, value) for value in (stated, row.value))
    # LUMI's interfaces are hsn0 to hsn3: RCCL takes a prefix for all of them.
    return first == second or (row.name == "NCCL_SOCKET_IFNAME" and row.value.startswith(stated))


def _contradiction(reading: Reading, row: SiteVariable, stated: str) -> Finding:
    line = _line(reading, f"{row.name}=")
    where = " and ".join(f"{name} {versions}" for name, versions in row.combination.items())
    of = f" with {where}" if where else ""
    if row.value is None:
        text, fix = f"{row.name} must not be set{of}: {row.reason}.", "Remove the line."
    else:
        text = f"{row.name}={stated}, and the site needs {row.value}{of}: {row.reason}."
        fix = f"export {row.name}={row.value}"
    return finding_at("job-variable", line, f"{row.name}={stated}", f"{text} [{row.source}]", fix=fix)


def _nodes(reading: Reading) -> int:
    text = (reading.directives or {}).get("nodes", "1")
    first = text.partition("-")[0]
    return int(first) if first.isdecimal() else 1


def _check_devices(reading: Reading, expected: ExpectedTarget) -> Iterator[Finding]:
    visible = [name for name in _VISIBLE if reading.variables.get(name)]
    if len(visible) > 1:
        listed = join_words(visible, joiner="and")
        message = f"{listed} are set: HIP counts only the GPUs that the first one leaves, so some vanish."
        yield finding_at("job-devices", _line(reading, visible[1]), visible[1], message, fix="Set only one.")
    job = expected.catalog.job.get(expected.request.target.site)
    directives = reading.directives or {}
    ranks = directives.get("ntasks-per-node", "")
    texts = [*(line.text for line in reading.unread), *(text for _, text in _launches(reading))]
    if any(_LOCAL_RANK.search(text) for text in texts):
        return
    if job and ranks.isdecimal() and int(ranks) > 1 and not visible and not job.own_gpu:
        message = (
            f"{ranks} tasks of a node see all of its GPUs. Those that do not choose one by their local rank "
            "share GPU 0."
        )
        fix = "Choose the GPU by SLURM_LOCALID in the program, or set ROCR_VISIBLE_DEVICES in each task."
        yield finding_at(
            "job-devices", _line(reading, "ntasks-per-node"), "ntasks-per-node", message, fix=fix
        )


def _check_layout(reading: Reading, expected: ExpectedTarget) -> Iterator[Finding]:
    job = expected.catalog.job.get(expected.request.target.site)
    if job is None:
        return
    directives = reading.directives or {}
    words = [
        *(f"--{name}={value}" for name, value in directives.items()),
        *(t for _, t in _launches(reading)),
    ]
    text = " ".join(words)
    is_one_task = "1" in {directives.get("ntasks-per-node"), directives.get("ntasks")}
    for option, reason in job.avoid.items():
        if f"--{option}" in text and not is_one_task:
            message = f"--{option} at {job.site}: {reason}. [{job.source}]"
            yield finding_at("job-layout", _line(reading, option), option, message)
    yield from _check_binding(reading, job, text)


def _check_binding(reading: Reading, job: Job, text: str) -> Iterator[Finding]:
    directives = reading.directives or {}
    line = _line(reading, "--cpu-bind")
    is_shared = bool(job.gpu_partition) and directives.get("partition") == job.gpu_partition
    if "--cpu-bind=mask" in text and is_shared and "--exclusive" not in text:
        message = (
            f"CPU masks are valid only on whole nodes, and {job.gpu_partition} shares them: the job ends."
        )
        yield finding_at(
            "job-layout", line, "--cpu-bind", f"{message} [{job.source}]", fix="Leave them out there."
        )
    elif re.search(r"--cpu-bind=(cores|threads|rank)", text) and not re.search(
        r"cpus-per-task|(^|\s)-c\s?\d", text
    ):
        message = "--cpu-bind without --cpus-per-task (-c): each task has one core. [srun(1)]"
        fix = f"Add --cpus-per-task={job.cpus} to srun, too."
        yield finding_at("job-layout", line, "--cpu-bind", message, fix=fix)


def _check_user_site(reading: Reading) -> Iterator[Finding]:
    for number, text in _launches(reading):
        if re.search(r"pip3?\s+install\b.*--user\b", text):
            message = (
                "pip install --user writes into ~/.local. Every container and environment of yours with this "
                "Python then takes packages from there before its own."
            )
            fix = "Build what is missing into the container, and set PYTHONNOUSERSITE=1."
            yield finding_at("job-user-site", number, "--user", message, fix=fix)
