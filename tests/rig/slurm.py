"""A one-node Slurm cluster on this machine: the real daemons, with a STAND-IN for a GPU.

Everything it keeps is in one directory: key, sockets, state, logs; ports are free ones. There is no
accounting and no cgroup. The GPU is one that Slurm counts and hands out, and that is not there.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.rig.rig import RigError

PARTITION = "standin-g"
_SBIN = "/usr/sbin:/sbin"
_DAEMONS = {
    "munged": "apt-get install munge",
    "slurmctld": "apt-get install slurmctld",
    "slurmd": "apt-get install slurmd",
    "sbatch": "apt-get install slurm-client",
}
_PATIENCE = 60.0  # seconds until the node takes jobs
_ENDED = {"COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "OUT_OF_MEMORY"}
_CONFIGURATION = """\
ClusterName=rig
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=0
ReturnToService=2
MpiDefault=none
GresTypes=gpu
NodeName=rig NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cores} RealMemory={memory} Gres=gpu:1 State=UNKNOWN
PartitionName={partition} Nodes=rig Default=YES MaxTime=60 State=UP
"""


@dataclass(frozen=True)
class Slurm:
    """A running cluster."""

    root: Path

    @property
    def env(self) -> dict[str, str]:
        """Environment variables for Slurm's commands."""
        return {"SLURM_CONF": str(self.root / "slurm.conf")}

    def job(self, number: str) -> dict[str, str]:
        """Return the fields of ``scontrol show job``, such as ``JobState`` and ``ExitCode``."""
        command = ["scontrol", "show", "job", number, "--oneliner"]
        done = subprocess.run(
            command, env={**os.environ, **self.env}, capture_output=True, text=True, check=True
        )
        return dict(word.partition("=")[::2] for word in done.stdout.split())

    def ended(self, number: str, *, patience: float = 300.0) -> dict[str, str]:
        """Wait until a job has ended; return its fields."""
        until = time.monotonic() + patience
        while (record := self.job(number))["JobState"] not in _ENDED:
            if time.monotonic() > until:
                msg = f"Job {number} has not ended in {patience:g} s: {record}"
                raise RigError(msg)
            time.sleep(0.2)
        return record


@contextmanager
def one_node(root: Path) -> Iterator[Slurm]:
    """Start a cluster with its files in a directory; stop it at the end of the block.

    Raises
    ------
    RigError
        It cannot be started; with the last lines of its logs.
    """
    _require()
    for name in ("state", "spool"):
        (root / name).mkdir()
    (root / "munge.key").write_bytes(os.urandom(1024))
    (root / "munge.key").chmod(0o400)
    ports = _free_ports(2)
    text = _CONFIGURATION.format(
        host=socket.gethostname().partition(".")[0], controller=ports[0], node=ports[1], root=root,
        cores=len(os.sched_getaffinity(0)), memory=_memory(), partition=PARTITION,
    )  # fmt: skip
    (root / "slurm.conf").write_text(text)
    (root / "gres.conf").write_text("NodeName=rig Name=gpu File=/dev/null\n")
    made = Slurm(root)
    munged = ["munged", "--foreground", "--force", "--socket", str(root / "munge.socket")]
    for option, name in {
        "--key-file": "key",
        "--log-file": "log",
        "--pid-file": "pid",
        "--seed-file": "seed",
    }.items():
        munged += [option, str(root / f"munge.{name}")]
    with ExitStack() as stack:
        for command in (munged, ["slurmctld", "-D", "-c"], ["slurmd", "-D", "-N", "rig"]):
            stack.enter_context(_daemon(command, made))
        _wait_for_node(made)
        yield made


def _require() -> None:
    missing = [f"{name}: {cure}" for name, cure in _DAEMONS.items() if not shutil.which(name, path=_path())]
    if os.geteuid() != 0:
        missing.insert(0, "root: its daemons start jobs as other users")
    if missing:
        msg = "Slurm cannot be started here. It needs\n  " + "\n  ".join(missing)
        raise RigError(msg)


def _memory() -> int:
    """Return the memory of this machine in MiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:{_SBIN}"


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(listener.getsockname()[1]) for listener in taken]


@contextmanager
def _daemon(command: list[str], slurm: Slurm) -> Iterator[None]:
    with (slurm.root / f"{command[0]}.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, **slurm.env, "PATH": _path()},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=_PATIENCE)


def _wait_for_node(slurm: Slurm) -> None:
    until = time.monotonic() + _PATIENCE
    command = ["sinfo", "--noheader", "--Format", "StateCompact"]
    while True:
        done = subprocess.run(
            command, env={**os.environ, **slurm.env}, capture_output=True, text=True, check=False
        )
        if done.stdout.split() == ["idle"]:
            return
        if time.monotonic() > until:
            logs = [path.read_text(errors="replace")[-2000:] for path in sorted(slurm.root.glob("*.log"))]
            msg = "\n".join(["Slurm's node does not take jobs.", done.stdout, done.stderr, *logs])
            raise RigError(msg)
        time.sleep(0.2)
