"""Job scripts for Slurm: one GPU, one node, several nodes.

A job runs a program, or an all-reduce as a smoke test, in the container or environment of another consumer.
One process per GPU is started by srun, or by torchrun where the site supports it. The values come from the
rows `[[job]]` and `[[site-variable]]` of the catalog.
"""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from matrix.consumers import Consumer
from matrix.consumers.shared.installation import MARK, WrittenFile, comments
from matrix.consumers.shared.shell import fill, site_binds, site_environment
from resolver.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from matrix.consumers.shared.installation import Installation, Layout
    from resolver.facts.schema import Job

_NODES, _NODE, _GPU = "job-nodes.sh", "job-node.sh", "job-gpu.sh"
_TITLES = {_NODES: "several nodes", _NODE: "one node", _GPU: "one GPU"}


def job_of(installation: Installation) -> Job:
    """Return how the site of a lock starts jobs; raise `UsageError` if the catalog does not say so."""
    if installation.job is None:
        msg = f"The catalog does not say how jobs start at {installation.lock.target.site}."
        raise UsageError(msg, hint="Add a [[job]] row in a file of facts, and name it with --catalog.")
    return installation.job


def script_for_check(installation: Installation, environment: Path) -> str:
    """Return a script that starts its arguments in an environment, once on each node of its allocation."""
    return _script(installation, job_of(installation), _GPU, _GPU, environment)


def all_reduce_for_check(job: Job) -> str:
    """Return a Python program that measures an all-reduce with one rank on each node."""
    return fill(
        "smoke.py.txt", normal=f"One rank per node uses a part of the network. {_normal(job, _NODES)}"
    )


def _emit(installation: Installation, layout: Layout) -> list[WrittenFile]:
    job = job_of(installation)
    names = {layout.main: _NODES, _NODE: _NODE, _GPU: _GPU}
    return [
        WrittenFile(name, _script(installation, job, kind, name, layout.environment), executable=True)
        for name, kind in names.items()
    ]


def _script(installation: Installation, job: Job, kind: str, name: str, environment: Path | None) -> str:
    backend = installation.lock.target.backend
    is_gpu_job = kind == _GPU
    ranks = 1 if is_gpu_job else job.ranks
    notes = [
        f"{installation.heading}, {_TITLES[kind]}; {MARK} --for slurm-job`.",
        f"Usage: sbatch -A PROJECT {name} PROGRAM..., for example: python train.py",
        f"First:  sbatch -A PROJECT {name} --smoke  (an all-reduce, and its bandwidth)",
        f"How jobs start at {job.site} ({job.status}): {job.source}",
        *(f"Known problem: {text}" for text in installation.problems),
    ]
    # srun ignores the --cpus-per-task of sbatch since Slurm 22.05 (RELEASE_NOTES); masks state the cores.
    cores = [f"--cpus-per-task={job.cpus}"]
    if job.masks and ranks == job.ranks and not is_gpu_job:
        cores = [f"--cpu-bind=mask_cpu:{','.join(job.masks)}"]
    no_torchrun = "one process needs no torchrun" if is_gpu_job else ""
    if not job.torchrun:
        no_torchrun = f"{job.site} advises against torchrun"
    smoke = fill("smoke.py.txt", normal=_normal(job, kind))
    text = fill(
        "slurm_job.sh",
        about="\n".join(comments(notes)),
        sbatch="\n".join(f"#SBATCH {option}" for option in _options(job, kind, gpus=backend == "rocm")),
        script=name,
        environment=quote(str(environment or "container.sif")),
        choices="" if no_torchrun else "[--torchrun] ",
        modules="\n".join(_modules(installation)),
        binds=site_binds(installation),
        isolated=fill("isolated.sh"),
        smoke=f"smoke={quote(smoke)}",
        no_torchrun=quote(no_torchrun),
        site=site_environment(installation, "$cache"),
        local_rank="0" if job.own_gpu else "$SLURM_LOCALID",
        node_cpus=str(job.cpus * ranks),
        ranks=str(ranks),
        srun=" ".join([*([] if is_gpu_job else job.options), *cores]),
    )
    return f"{text}\n"


def _options(job: Job, kind: str, *, gpus: bool) -> list[str]:
    """Return the options of sbatch, except the account, which only the user knows."""
    ranks = 1 if kind == _GPU else job.ranks
    partition = job.gpu_partition if kind == _GPU else job.node_partition
    options = [
        f"--job-name={kind.removesuffix('.sh')}",
        f"--nodes={2 if kind == _NODES else 1}",
        f"--ntasks-per-node={ranks}",
        f"--cpus-per-task={job.cpus}",
        "--time=00:30:00",
    ]
    if partition:
        options.insert(1, f"--partition={partition}")
    if gpus:
        options.append(f"--gpus-per-node={ranks}")
    if kind == _GPU and job.memory:
        options.append(f"--mem={job.memory}G")
    elif kind != _GPU:
        # The masks are valid on whole nodes only.
        options += ["--exclusive", *(["--mem=0"] if job.memory else [])]
    return [*options, *(job.network if kind == _NODES else ())]


def _modules(installation: Installation) -> list[str]:
    lines = []
    if installation.container_module is not None:
        folder, name = installation.container_module
        about = "This module binds file systems into containers. It must not be loaded while one is built."
        lines += _in_image(about, f"module use {folder}", f"module load {name}")
    for name, how in installation.mpi_modules.items():
        about = "This module puts the site's MPI in place of the image's MPICH, which has the same ABI."
        missing = f"job: mpi4py uses the image's MPI, as there is no module {name}: {how}"
        load = f"if module is-avail {name}; then module load {name}"
        lines += _in_image(about, load, f"else printf '%s\\n' {quote(missing)} >&2; fi")
    return lines


def _in_image(about: str, *lines: str) -> list[str]:
    return [*comments([about]), 'if [ ! -d "$environment" ]; then', *(f"    {line}" for line in lines), "fi"]


def _normal(job: Job, kind: str) -> str:
    if kind != _NODES or not job.bandwidth:
        return "No source states what is normal here."
    limit = f"A node of {job.site} can send {job.bandwidth:g} GB/s at most; TCP stays far below."
    if not job.all_reduce:
        return f"{limit} No source states a measured all-reduce."
    normal = f"Normal on two whole nodes is {job.all_reduce:g} GB/s ({job.all_reduce_source})."
    return f"{normal} {limit}"


CONSUMER = Consumer(file=_NODES, emit=_emit, uses_environment=True)
