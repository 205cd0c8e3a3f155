"""A Slurm cluster on this machine: the real daemons, with a STAND-IN for a GPU.

Key, sockets, state and logs are in one directory; ports are chosen among the free ones. There is no cgroup.
Each node has all cores of the machine. Slurm counts and allocates the GPU, which does not exist. With
accounting there is a real slurmdbd with a real MariaDB.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
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
_ACCOUNTING = {"slurmdbd": "apt-get install slurmdbd", "mariadbd": "apt-get install mariadb-server"}
_PATIENCE = 180  # seconds until the node accepts jobs
_ENDED = {"COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "OUT_OF_MEMORY"}
_CONFIGURATION = """\
ClusterName=rig
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=0
ReturnToService=2
MpiDefault=none
GresTypes=gpu
KillWait=2
SlurmdTimeout=10
"""
_NODE = """\
NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cores} RealMemory={memory} Gres=gpu:1
"""
_PARTITION = "PartitionName={partition} Nodes=ALL Default=YES MaxTime=60 State=UP\n"
_LIMITS = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={root}/munge.socket
AccountingStorageEnforce=associations,limits,qos
MinJobAge=30
"""
_DATABASE = """\
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={storage}
StorageUser=root
StorageLoc=slurm
PidFile={root}/slurmdbd.pid
"""


@dataclass
class Slurm:
    """A running cluster."""

    root: Path
    nodes: tuple[str, ...] = ("rig",)
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        """Environment variables for Slurm's commands."""
        return {"SLURM_CONF": str(self.root / "slurm.conf")}

    def run(self, *command: str) -> str:
        """Run a command of Slurm; return its output."""
        done = subprocess.run(
            command, env={**os.environ, **self.env}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            msg = f"{command}: {done.stderr}"
            raise RigError(msg)
        return done.stdout

    def start(self, name: str, *command: str) -> None:
        """Start a daemon under a name."""
        with (self.root / f"{name}.log").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                command,
                env={**os.environ, **self.env, "PATH": _path()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def start_controller(self) -> None:
        """Start the controller with the state of the previous controller."""
        self.start("slurmctld", "slurmctld", "-D")

    def kill_controller(self) -> None:
        """Kill the controller."""
        self.daemons["slurmctld"].kill()
        self.daemons["slurmctld"].wait()

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
    """Start a cluster of one node with its files in a directory; stop it at the end of the block.

    Raises
    ------
    RigError
        It cannot be started; with the last lines of its logs.
    """
    with cluster(root, nodes=("rig",)) as made:
        yield made


@contextmanager
def cluster(
    root: Path, *, nodes: tuple[str, ...], max_submit: int = 0, small_g: bool = False
) -> Iterator[Slurm]:
    """Start a cluster of several nodes; with accounting, if there is a limit of jobs that a user may submit.

    With `small_g` its partition has this name, and Slurm believes that the nodes have the cores and memory of
    LUMI's.

    Raises
    ------
    RigError
        It cannot be started; with the last lines of its logs.
    """
    _require(_DAEMONS | _ACCOUNTING if max_submit else _DAEMONS)
    (root / "state").mkdir()
    (root / "munge.key").write_bytes(os.urandom(1024))
    (root / "munge.key").chmod(0o400)
    controller, database, storage, *ports = _free_ports(3 + len(nodes))
    host = socket.gethostname().partition(".")[0]
    text = _CONFIGURATION.format(host=host, controller=controller, root=root)
    cores, memory = (64, 2**19) if small_g else (len(os.sched_getaffinity(0)), _memory())
    for name, port in zip(nodes, ports, strict=True):
        (root / "spool" / name).mkdir(parents=True)
        text += _NODE.format(name=name, host=host, port=port, cores=cores, memory=memory)
    text += _PARTITION.format(partition="small-g" if small_g else PARTITION)
    if small_g:
        text += "SlurmdParameters=config_overrides\n"
    if max_submit:
        text += _LIMITS.format(port=database, root=root)
        path = root / "slurmdbd.conf"
        path.write_text(_DATABASE.format(root=root, host=host, port=database, storage=storage))
        path.chmod(0o600)
    (root / "slurm.conf").write_text(text)
    (root / "gres.conf").write_text("".join(f"NodeName={name} Name=gpu File=/dev/null\n" for name in nodes))
    made = Slurm(root, nodes)
    munged = ["munged", "--foreground", "--force", "--socket", str(root / "munge.socket")]
    for option, name in {
        "--key-file": "key",
        "--log-file": "log",
        "--pid-file": "pid",
        "--seed-file": "seed",
    }.items():
        munged += [option, str(root / f"munge.{name}")]
    try:
        made.start("munged", *munged)
        if max_submit:
            _start_accounting(made, storage, max_submit)
        made.start("slurmctld", "slurmctld", "-D", "-c")
        for name in nodes:
            made.start(f"slurmd-{name}", "slurmd", "-D", "-N", name)
        _wait_for_nodes(made)
        yield made
    finally:
        for process in reversed(made.daemons.values()):
            process.terminate()
        for process in made.daemons.values():
            try:
                process.wait(timeout=_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()


def _start_accounting(made: Slurm, port: int, max_submit: int) -> None:
    """Start the database, and limit the number of jobs that root may submit."""
    data = made.root / "database"
    made.run(
        "mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root", "--skip-test-db",
        "--auth-root-authentication-method=normal",
    )  # fmt: skip
    made.start(
        "mariadbd", "mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={made.root}/database.socket",
        f"--port={port}", "--bind-address=127.0.0.1", "--user=root", "--skip-grant-tables",
        f"--pid-file={made.root}/mariadbd.pid",
    )  # fmt: skip
    _retry(made, lambda: socket.create_connection(("127.0.0.1", port)).close(), "MariaDB")
    made.start("slurmdbd", "slurmdbd", "-D")
    _retry(made, lambda: made.run("sacctmgr", "-i", "add", "cluster", "rig"), "slurmdbd")
    made.run("sacctmgr", "-i", "add", "account", "project")
    limit = f"MaxSubmitJobs={max_submit}"
    made.run("sacctmgr", "-i", "modify", "user", "root", "set", "DefaultAccount=root")
    made.run("sacctmgr", "-i", "add", "user", "root", "account=project", "DefaultAccount=project", limit)


def _retry(made: Slurm, action: Callable[[], object], name: str) -> None:
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            action()
        except (OSError, RigError) as error:
            if time.monotonic() > until:
                raise RigError(_told(made, f"{name} does not respond: {error}")) from None
            time.sleep(0.2)
        else:
            return


def _told(made: Slurm, what: str) -> str:
    logs = [path.read_text(errors="replace")[-2000:] for path in sorted(made.root.glob("*.log"))]
    return "\n".join([what, *logs])


def _require(daemons: Mapping[str, str]) -> None:
    missing = [f"{name}: {fix}" for name, fix in daemons.items() if not shutil.which(name, path=_path())]
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


def _wait_for_nodes(made: Slurm) -> None:
    def check() -> None:
        states = made.run("sinfo", "--noheader", "--Node", "--Format", "StateCompact").split()
        if states != ["idle"] * len(made.nodes):
            msg = f"The nodes are {states}"
            raise RigError(msg)

    _retry(made, check, "Slurm")
