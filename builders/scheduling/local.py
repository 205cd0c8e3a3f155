"""Build several wheels at once on this machine.

Each build is a separate process, forked from this process. When it receives a signal, it ends all processes
that it has started. The kernel sends it a signal when this process dies. It reports each step through a pipe.
The scheduler decides when each build starts; this module starts them and distributes the compile jobs.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from multiprocessing.connection import wait as wait_for_any
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from builders.building.compilation import know_host
from builders.building.directory import prune
from builders.building.expected_time import Resources
from builders.building.inputs import Limits
from builders.building.jobserver import Jobserver, can_join
from builders.building.records import forget_attempt, log_path, record_failure
from builders.building.task import ask_backend, asking_key, build_wheel
from builders.building.watch import kernel_killed_since, kernel_kills, proportional_size, task_names, watched
from builders.constants import OUT_OF_MEMORY
from builders.diagnosis import diagnosed, known_failures
from builders.machine import cluster
from builders.machine.process import end_with_parent
from builders.machine.reaper import descendants
from builders.scheduling.scheduler import Event, estimates, schedule, task_graph
from builders.storage.io_errors import DiskFullError, explain_any_os_error
from resolver.errors import BuildError, InternalError, MatrixError, StoppedError
from resolver.reporter import Reporter

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkProcess
    from typing import Unpack

    from builders.building.plan import Task
    from builders.index import Index
    from builders.scheduling.scheduler import BuildsOutcome
    from resolver.indexes import StatedMetadata
    from resolver.reporter import Progress

_EPSILON = 1e-9
_ASKING = Resources(1, 0.5)
"""What asking a build backend is expected to need."""
_DOUBT = 3.0
"""How much more memory than estimated a job may need if no earlier build was measured."""
_PATIENCE = 60.0
"""Seconds after which a build whose tool does not count its commands gets one more job."""
_COUNT_INTERVAL = 1.0
"""Seconds between two counts of the permissions that builds hold."""
_LONGEST_END = 20.0
"""Seconds that a build may take to end its programs after a signal."""


def machine(limits: Limits) -> Resources:
    """Return the cores and the memory of this machine, within the limits of the user."""
    return Resources(limits.jobs or cluster.cores(), limits.memory or cluster.memory_gib())


class _Forked(msgspec.Struct):
    """A started build."""

    process: ForkProcess
    pipe: Connection
    jobs: int
    kills: int | None
    """Processes that the kernel had killed before."""
    memory: float = 0.0
    """GiB that all its processes use now."""
    peak: float = 0.0
    largest: float = 0.0
    """GiB of the largest process of its current step."""
    seen: float | None = None
    """When its processes were first measured."""
    finished: float = 0.0
    """Compile commands that have ended; the memory of one is known only then."""
    exceeds: bool = False
    """Whether it is being ended because its fixed number of jobs needs too much memory."""


class Builds:
    """Build the wheels of a plan, each in a process, as many at once as the machine allows.

    `tasks` are by build key. With `only_ask`, the build backends are asked instead; see `ask_backend`.
    """

    def __init__(
        self,
        tasks: Mapping[str, Task],
        index: Index,
        limits: Limits,
        reporter: Reporter,
        *,
        only_ask: bool = False,
    ) -> None:
        self.tasks, self.index, self.limits, self.reporter = tasks, index, limits, reporter
        self._only_ask = only_ask
        self.wheels: dict[str, Path] = {}
        """By build key, as `stated` and `errors`, in the order in which they were finished."""
        self.stated: dict[str, tuple[StatedMetadata, ...]] = {}
        self.errors: dict[str, MatrixError] = {}
        self._capacity = machine(limits)
        self._estimates: dict[str, Resources] = {}
        self._jobserver: Jobserver | None = None
        self._admitted: dict[str, Resources] = {}
        """The builds that hold cores and memory."""
        self._pending: list[tuple[str, Resources]] = []
        """Builds to start as soon as enough compile jobs of the others have ended."""
        self._running: dict[str, _Forked] = {}
        self._retried: set[str] = set()
        self._reported: set[str] = set()
        """The builds that exceed the limit of memory with one job."""
        self._next_count: float | None = None
        """When to count the held permissions again, after a build that shares them has failed."""
        picks = {key: task.pick for key, task in tasks.items()}
        what = "requirements of " if only_ask else ""
        self._titles = task_names({key: f"{what}{pick.name} {pick.version}" for key, pick in picks.items()})

    def run(self, *, keep_going: bool = False) -> BuildsOutcome:
        """Build everything, and return the outcome; failures are in `errors`.

        Running builds are always finished. Raise `StoppedError` at the time limit, and `DiskFullError` if a
        disk is full: in both cases, running builds are ended and their files are kept.
        """
        for row in () if self._only_ask else prune(self.index, keep=self.tasks):
            self.reporter.step(f"removed the directory of an unfinished build: {row.path}")
        with self._shared_jobs() as self._jobserver:
            sharing = self._jobserver is not None
            self._estimates = (
                dict.fromkeys(self.tasks, _ASKING)
                if self._only_ask
                else estimates(self.tasks, self.index, self._capacity, sharing=sharing)
            )
            for name, task in self.tasks.items():
                keys = [required.build_key for required in task.requires]
                after = [self._titles[key] for key in keys if key in self._titles]
                self._report(name, state="waiting", after=after)
                self._expect(name)
            try:
                outcome = schedule(
                    task_graph(list(self.tasks.values())),
                    self._estimates,
                    self._capacity,
                    self,
                    keep_going=keep_going,
                )
            finally:
                self._end_running()
        for name in (*outcome.skipped, *outcome.left):
            self._report(name, state="skipped")
        return outcome

    @contextmanager
    def _shared_jobs(self) -> Iterator[Jobserver | None]:
        """Create the pool of compile jobs, if builds can share it and the file system has pipes."""
        with ExitStack() as stack:
            jobserver = None
            can_share = self._capacity.cores > 1 and not self._only_ask
            if can_share and any(can_join(task) for task in self.tasks.values()):
                with suppress(OSError):
                    jobserver = stack.enter_context(closing(Jobserver(self.index.state / "jobservers")))
            yield jobserver

    def _end_running(self) -> None:
        """End the builds that still run, such as after an interrupt."""
        # All get the signal before the first is waited for, so that their times do not add up.
        for build in self._running.values():
            build.process.terminate()
        for build in self._running.values():
            build.process.join(_LONGEST_END)
            build.process.kill()  # its reapers end the programs that it started
            build.process.join()

    def now(self) -> float:
        """Return the time in seconds."""
        return time.monotonic()

    def start(self, name: str, demand: Resources) -> None:
        """Start a build, or continue one that has waited for another process."""
        self._pending.append((name, demand))
        if demand.cores != self._estimates[name].cores:
            self._estimates[name] = demand
            self._expect(name)

    def wait(self) -> Sequence[Event]:
        """Wait until a build ends, waits or is ready to continue; pass on the messages of all builds."""
        while True:
            self._admit()
            if self._jobserver is not None:
                if self._next_count is not None and self.now() >= self._next_count:
                    self._jobserver.recount()  # killed programs do not return their permissions
                    self._next_count = self.now() + _COUNT_INTERVAL
                self._jobserver.resize(self._free_jobs())
            sources: list[Any] = [build.pipe for build in self._running.values()]
            if self._pending and self._jobserver is not None:
                sources.append(self._jobserver)
            wait_for_any(sources, self._remaining())
            events = [event for name in list(self._running) for event in self._events(name)]
            self._keep_limit()
            if events:
                return events

    def _keep_limit(self) -> None:
        """End a build that exceeds the limit of memory, to repeat it with fewer jobs.

        Builds that share their jobs get no new ones instead: see `_free_jobs`.
        """
        limit, running = self._capacity.memory, self._running
        if sum(build.memory for build in running.values()) <= limit:
            return
        if any(build.exceeds for build in running.values()):
            return
        over = {
            name: build.memory - self._admitted[name].memory
            for name, build in running.items()
            if name in self._admitted and not (self._estimates[name].joins and self._jobserver is not None)
        }
        name = max(over, key=lambda name: over[name], default="")
        # The sum counts shared pages several times.
        if not name or over[name] <= 0 or proportional_size(descendants()) <= limit * 2**30:
            return
        build = running[name]
        if build.jobs > 1:
            build.exceeds = True
            build.process.terminate()
        elif name not in self._reported:
            self._reported.add(name)
            text = f"needs {build.memory:.1f} GiB with one job, more than the limit of {limit:g} GiB"
            self.reporter.warning(f"{self.tasks[name].title} {text}.")

    def _remaining(self) -> float | None:
        """Return the seconds until the time limit; raise `StoppedError` when it is reached."""
        if self.limits.until is None:
            return None
        remaining = self.limits.until - time.time()
        if remaining <= 0:
            titles = ", ".join(self.tasks[name].title for name in self._running)
            hint = "Finished wheels are kept. Run the same command again to continue."
            raise StoppedError(f"Stopped at the time limit. Not finished: {titles}.", hint=hint)
        return remaining

    def _admit(self) -> None:
        while self._pending:
            name, demand = self._pending[0]
            in_use = sum(map(self._memory_of, self._admitted))
            if self._admitted and in_use + demand.memory > self._capacity.memory + _EPSILON:
                return  # a running build needs more than was expected, or that is not known yet
            # Before the pool is resized: what this build takes is withdrawn from the others, or it waits.
            self._admitted[name] = demand
            if self._jobserver is not None and not self._jobserver.resize(self._free_jobs()):
                del self._admitted[name]
                return
            del self._pending[0]
            if name in self._running:
                self._running[name].pipe.send("go")
                self._report(name, state="running")
            else:
                self._fork(name, demand)

    def _free_jobs(self) -> int:
        """Return the number of compile jobs that builds share, besides the first job of each."""
        sharing = [name for name in self._admitted if self._estimates[name].joins]
        if not sharing:
            return 0
        cores = self._capacity.cores - sum(demand.cores for demand in self._admitted.values())
        fixed = [name for name in self._admitted if not self._estimates[name].joins]
        memory = self._capacity.memory - sum(map(self._memory_of, fixed))
        builds = [self._running[name] for name in sharing if name in self._running]
        expected = [self._estimates[name].memory_per_job for name in sharing]
        # Nobody knows which build runs the next job, so each job may need as much as the most demanding one.
        per_job = max([*expected, *(build.largest for build in builds)])
        # The first job of each build needs no permission, so the memory of these is not shared out.
        jobs = min(cores, int(memory // per_job) - len(sharing))
        if self._jobserver is not None and sum(build.memory for build in builds) + per_job > memory:
            jobs = min(jobs, self._jobserver.held)  # no new jobs until running jobs end
        trusted = min(map(self._jobs_to_try, sharing))
        if self._jobserver is not None and len(sharing) > 1:
            trusted = max(trusted, self._jobserver.held)  # those of the builds that were measured
        return max(0, min(jobs, trusted))

    def _jobs_to_try(self, name: str) -> int:
        """Return the shared jobs for which a build may use memory that it was not measured to need.

        If a wrong estimate could exceed the limit, each command that has ended permits one more job.
        """
        if not self._is_doubtful(name):
            return self._capacity.cores
        build = self._running.get(name)
        if build is None:
            return 0
        waited = self.now() - build.seen if build.seen is not None else 0.0
        return max(int(build.finished), int(waited // _PATIENCE))

    def _is_doubtful(self, name: str) -> bool:
        """Return whether a build that shares jobs could exceed the limit if its estimate is wrong."""
        estimate = self._estimates[name]
        is_safe = _DOUBT * estimate.memory_per_job * self._capacity.cores <= self._capacity.memory
        return estimate.joins and not is_safe and estimate.source != "record"

    def _memory_of(self, name: str) -> float:
        """Return what a build was expected to need or uses; its shared jobs can be withdrawn."""
        expected, build = self._admitted[name].memory, self._running.get(name)
        if self._is_doubtful(name) and not (build and build.finished):
            expected *= _DOUBT
        if build is None:
            return expected
        return max(expected, build.largest if self._estimates[name].joins else build.memory)

    def _release(self, name: str) -> None:
        self._admitted.pop(name, None)
        if self._jobserver is not None:
            if not any(self._estimates[other].joins for other in self._admitted):
                self._jobserver.reset()
                self._next_count = None
            self._jobserver.resize(self._free_jobs())

    def _fork(self, name: str, demand: Resources) -> None:
        estimate = self._estimates[name]
        shares = estimate.joins and self._jobserver is not None
        jobs = self._part_of_shared() if shares else demand.cores
        limits = replace(
            self.limits,
            jobs=jobs,
            memory=self._capacity.memory,
            memory_per_job=estimate.memory_per_job,
            jobserver=self._jobserver.path if shares and self._jobserver is not None else None,
        )
        _import_early()
        know_host(self.tasks[name].build_host.runtime)
        ours, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        arguments = (self.tasks[name], self.index, limits, theirs, os.getpid())
        process = context.Process(target=_work, args=arguments, kwargs={"only_ask": self._only_ask})
        process.start()
        # Otherwise the pipe would stay open here when the process is killed, and `_events` would not notice.
        theirs.close()
        self._report(name, state="running")
        used = self._capacity.cores if shares else jobs
        self._running[name] = _Forked(process, ours, used, kernel_kills())

    def _part_of_shared(self) -> int:
        """Return the jobs of a build that turns out not to share: its part of what is free when it starts."""
        demands = {**self._admitted, **dict(self._pending)}
        fixed = sum(demand.cores for name, demand in demands.items() if not self._estimates[name].joins)
        sharing = sum(self._estimates[name].joins for name in demands)
        return max(1, (self._capacity.cores - fixed) // sharing)

    def _events(self, name: str) -> Iterator[Event]:
        build, reporter = self._running[name], self.reporter
        package = self.tasks[name].pick.name
        try:
            while build.pipe.poll():
                kind, value = build.pipe.recv()
                if kind == "progress":
                    build.memory = value.get("memory", build.memory)
                    build.peak = max(build.peak, build.memory)
                    if value.get("unit") == "":
                        build.finished = value["done"]
                    self._report(name, **value)
                elif kind == "largest":
                    build.largest = max(build.largest, value)
                    build.seen = build.seen or self.now()
                elif kind == "step":
                    build.largest, build.seen = 0.0, None
                    reporter.step(value, self._titles[name])
                elif kind in {"info", "warning"}:
                    getattr(reporter, kind)(f"{package}: {value}" if len(self._titles) > 1 else value)
                elif kind == "waiting":
                    self._release(name)
                    self._report(name, state="waiting")
                    yield Event(name, "waiting")
                elif kind == "ready":
                    yield Event(name, "ready")
                else:
                    yield self._ended(name, value)
                    return
        except (EOFError, ConnectionResetError):
            yield self._ended(name, None)

    def _ended(self, name: str, result: Path | tuple[StatedMetadata, ...] | MatrixError | None) -> Event:
        """Record how a build ended; build once more if it ran out of memory."""
        build = self._running.pop(name)
        build.process.join()
        build.pipe.close()
        self._pending = [entry for entry in self._pending if entry[0] != name]
        if isinstance(result, MatrixError | None) and self._estimates[name].joins:
            self._next_count = self.now()
        self._release(name)
        task = self.tasks[name]
        if isinstance(result, Path | tuple):
            if isinstance(result, tuple):
                self.stated[name] = result
            else:
                self.wheels[name] = result
            self._report(name, state="done")
            return Event(name, "done")
        if isinstance(result, DiskFullError):  # it would end every other build, too
            self._report(name, state="failed")
            raise result.changed(
                message=f"{result.message}\nNo more builds were started, and running builds were ended.",
                hint=f"{result.hint} Then run the same command again: finished work is kept.",
            )
        if build.exceeds and result is None:
            more = f"more than the limit of {self._capacity.memory:g} GiB"
            text = f"needs {build.peak:.1f} GiB with {build.jobs} jobs, {more}"
            return self._again(name, build.jobs, build.peak / build.jobs, text)
        killed = result is None and kernel_killed_since(build.kills)
        if result is None:
            code = build.process.exitcode or 0
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            result = BuildError(f"The process that built {task.title} {how}.", hint="Run the command again.")
            result.details = {
                "measured": {
                    "jobs": build.jobs,
                    "memory_gib": round(build.peak, 2),
                    "process_gib": round(build.largest, 2),
                }
            }
            with suppress(OSError):
                record_failure(task, log_path(self.index, task.pick.name, name), result)
        if (
            (killed or OUT_OF_MEMORY in diagnosed(result.details))
            and build.jobs > 1
            and name not in self._retried
        ):
            self._retried.add(name)
            per_job = 2 * self._estimates[name].memory_per_job
            return self._again(name, build.jobs, per_job, f"ran out of memory with up to {build.jobs} jobs")
        self.errors[name] = result
        self._report(name, state="failed")
        return Event(name, "failed")

    def _again(self, name: str, jobs: int, per_job: float, why: str) -> Event:
        """Build once more with half of the jobs. `per_job` is the memory to expect for each, in GiB."""
        task, estimate = self.tasks[name], self._estimates[name]
        fewer = max(1, jobs // 2)
        memory = min(self._capacity.memory, fewer * per_job)
        demand = self._estimates[name] = replace(
            estimate,
            cores=fewer,
            memory=memory,
            seconds=2 * estimate.seconds,
            work=0.0,
            memory_per_job=memory / fewer,
            joins=False,
        )
        self.reporter.warning(f"{task.title} {why}; it is built once more with {fewer}.")
        self._report(name, state="waiting")
        self._expect(name)
        return Event(name, "ready", demand)

    def _report(self, name: str, **change: Unpack[Progress]) -> None:
        self.reporter.progress(self._titles[name], **change)

    def _expect(self, name: str) -> None:
        estimate = self._estimates[name]
        seconds = 0.0 if estimate.source == "guess" else estimate.seconds
        self._report(name, expected=seconds, share=estimate.cores / self._capacity.cores)


def _import_early() -> None:
    """Import what environments, checks and publishing need; otherwise, each build would do so by itself."""
    import auditwheel.wheel_abi  # noqa: F401
    import installer  # noqa: F401
    import packageurl  # noqa: F401
    import wheel.wheelfile  # noqa: F401

    import builders.index_client.metadata  # noqa: F401

    known_failures().silent.candidates(b"")


# In the process of a build.


class _Messages(Reporter):
    """Report to the process that started the build; return its cores while another builds the wheel."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = Lock()
        self._has_waited = False

    def send(self, kind: str, value: object = "") -> None:
        with self._lock:  # several threads report
            self._pipe.send((kind, value))

    def step(self, message: str, task: str = "") -> None:  # noqa: ARG002
        self.send("step", message)

    def info(self, message: str) -> None:
        self.send("info", message)

    def warning(self, message: str) -> None:
        self.send("warning", message)

    def progress(self, task: str = "", **change: Unpack[Progress]) -> None:  # noqa: ARG002
        self.send("progress", change)

    def wait(self) -> None:
        self._has_waited = True
        self.send("waiting")

    def take(self) -> None:
        if self._has_waited:
            self.send("ready")
            self._pipe.recv()


def _work(task: Task, index: Index, limits: Limits, pipe: Connection, parent: int, *, only_ask: bool) -> None:
    _end_on_first_signal()
    end_with_parent()
    if os.getppid() != parent:  # the parent died before `end_with_parent`
        return
    os.setsid()  # an interrupt from the terminal reaches only the parent, which ends its builds
    record = log_path(index, task.pick.name, task.build_key)
    log = log_path(index, task.pick.name, asking_key(task)) if only_ask else record
    messages = _Messages(pipe)
    try:
        with watched(messages, log, lambda size: messages.send("largest", size)):
            result = (
                ask_backend(task, index, limits, messages)
                if only_ask
                else build_wheel(task, index, limits, messages, on_wait=messages.wait, start=messages.take)
            )
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except MatrixError as error:
        failure: MatrixError = error
    except OSError as error:
        failure = explain_any_os_error(error)
    except Exception as error:  # noqa: BLE001  the parent reports it
        failure = InternalError(f"Internal error: {type(error).__name__}: {error}")
    else:
        forget_attempt(record)
        messages.send("done", result)
        return
    with suppress(OSError):  # the disk may be full
        record_failure(task, record, failure)
    messages.send("failed", failure)


def _end_on_first_signal() -> None:
    """Raise KeyboardInterrupt only at the first signal; a second signal would interrupt the clean-up."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

    def interrupt(*_: object) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in numbers:
        signal.signal(number, interrupt)
