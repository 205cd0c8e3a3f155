"""The steps of `matrix build-container` and `matrix build-layer`, each of which is a command of its own."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from builders.building.task_state import TaskState
from builders.containers.image import with_pinned_image
from builders.findings import Finding
from builders.index import Index
from builders.machine.process import output_of
from builders.scheduling.slurm import Slurm, partition_of
from builders.storage.files import cached_file, make_directories
from builders.storage.lease import exclusive_lock
from matrix.api import write_lock
from matrix.building.completing import complete_lock
from matrix.building.container import (
    STEPS,
    Container,
    Layer,
    Space,
    StepResult,
    chosen_text,
    has_account,
    inputs_of,
    moves,
    plan_text,
    read_layer,
    space_of,
    unpacked,
)
from matrix.building.locked import check_sources
from matrix.building.planning import add_build_options, answer, attach, check_batch_options, node_of
from matrix.command_line.conflict import show_conflict
from matrix.command_line.options import (
    add_format,
    add_index,
    add_limits,
    add_names,
    add_request_options,
    defaults_of,
    output_path,
)
from matrix.commands import build_wheels, check, env
from matrix.consumers.shared.installation import Installation, write_files
from matrix.consumers.shared.requirements import require_torch_of_image
from matrix.farm import fetch
from matrix.input.locking import (
    is_same_request,
    is_unchanged,
    overlays_of,
    read_earlier,
    same_target,
)
from matrix.input.request import require_requirements
from matrix.judging.judge import judge_thing
from matrix.judging.verdict import is_open
from matrix.show.check_text import show
from matrix.show.json_document import JsonDocument
from matrix.show.render import counted, format_size, shortened
from matrix.show.resolution_text import build_times
from resolver.errors import EnvironmentLacksError, MatrixError, UsageError
from resolver.lock import dumps
from resolver.model import Conflict
from resolver.reporter import SILENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    from builders.building.plan import Task
    from matrix.command_line.context import Context
    from matrix.consumers import Maker
    from matrix.consumers.shared.installation import WrittenFile
    from resolver.facts.schema import Partition
    from resolver.model import Resolution

_SENTENCE = re.compile(r"(?<=\.) (?=[A-Z])")
_MOST_ROUNDS = 4
"""How often the built wheels may add requirements to the lock; they are not expected to add any twice."""


class ContainerDocument(JsonDocument, kw_only=True):
    """The JSON output of both commands."""

    status: Literal["ok", "planned", "failed"]
    container: str
    consumer: str
    files: str
    """The directory with the files that the container was made from."""
    lock: str
    steps: list[StepResult]
    wheels: list[TaskState]
    space: list[Space]
    findings: tuple[Finding, ...] = ()
    """Of the verification, if it was run."""
    layer: Layer | None = None
    """What a finished layer holds."""


def add_arguments(parser: argparse.ArgumentParser, out: str) -> None:
    """Declare the arguments of both commands; `out` is the help for the result."""
    parser.add_argument("out", metavar="OUT", type=output_path, help=out)
    what = "requirements, as for `matrix resolve` (default: matrix.toml, else those of the lock)"
    add_names(parser, "requirements", metavar="REQ", help=what)
    parser.add_argument("--dry-run", action="store_true", help="print the plan only")
    add_index(parser)
    add_format(parser)
    where = "in jobs on a login node of a site whose partitions are known, else on this machine"
    add_build_options(parser, executor=None, default=where)
    add_limits(parser, offline=False)
    add_request_options(parser)


def make(context: Context, maker: Maker, prepared: Callable[[Context], Context] = lambda same: same) -> int:
    """Make the result, or only print the plan; return the exit code. `prepared` adds options to good ones."""
    args, console = context.args, context.console
    container = Container(args.out, maker)
    container.check()
    if args.executor:
        check_batch_options(args)
    if not context.lock_path.exists():
        require_requirements(context.settings)
    context = prepared(context)
    if args.dry_run:
        return _Work(context, container).run()
    make_directories(container.folder)
    waiting = partial(console.info, f"Another process makes {container.path}. Waiting for it.")
    with exclusive_lock(container.folder / "lock", on_wait=waiting):
        return _Work(context, container).run()


class _Work:
    def __init__(self, context: Context, container: Container) -> None:
        args = context.args
        self.console = context.console
        self.container = container
        self.index = Index(args.index)
        self.context = context
        made = container.maker.makes
        self.steps = {name: StepResult(made if name == "container" else name, "to do", "") for name in STEPS}
        self.document = ContainerDocument(
            status="planned",
            container=str(container.path),
            consumer=args.consumer,
            files=str(container.folder),
            lock=str(context.lock_path),
            steps=[*self.steps.values()],
            wheels=[],
            space=[],
        )
        self.tasks: list[Task] = []
        self.lacks: list[MatrixError] = []
        """What is missing on this machine, if only the plan is printed."""
        # `_use` replaces both. Other commands may replace the user's lock at any time, so no step reads it
        # again: steps that read a lock from a file, such as jobs, read a copy.
        self._of_lock = self._of_copy = self.context
        self._text = ""

    # The whole.

    def run(self) -> int:
        """Do what is left, or only print the plan and write nothing; return the exit code."""
        if code := self._resolve():
            return code
        dry_run = self.context.args.dry_run
        self._plan_wheels()
        self._describe()
        if not dry_run and not self._to_build and self._is_made(self.container.path):
            self.steps["resolve"].state = "up to date"
            return self._report("ok")
        self.lacks += self._lacks()
        if dry_run:
            return self._report("planned", max((lack.exit_code for lack in self.lacks), default=0))
        for lack in self.lacks:
            raise lack
        self._print_plan()
        if code := self._fetch_and_build():
            return self._report("failed", code)
        return self._make() or self._verify() or self._report("ok")

    def _fetch_and_build(self) -> int:
        """Fetch and build everything, and lock what the sources require, if possible before their builds."""
        for _ in range(_MOST_ROUNDS):
            before = self.lock
            if code := self._fetch() or self._complete():
                return code
            if self.lock.distributions != before.distributions:
                continue  # there is more to fetch
            if code := self._build():
                return code
            before = self.lock
            self._plan_wheels()
            if code := self._complete():
                return code
            if self.lock is before:
                break
        return 0

    # 1. Resolve.

    @property
    def lock(self) -> Resolution:
        """The resolution, which is stored unless only the plan is printed."""
        return self._of_lock.lock

    def _use(self, answer: Resolution) -> None:
        lock = with_pinned_image(answer, self.context.lock_path)
        self._text = dumps(answer)
        self._of_lock = self.context.with_lock(lock)
        for warning in answer.warnings:
            if warning.id == "gpu-not-of-site":
                hint = "Name the site that has this GPU with --site, or leave the GPU out."
                raise UsageError(warning, hint=hint)
        if self.context.args.dry_run:
            return
        write_lock(answer, self.container.lock)
        catalogs = self.context.settings.catalog or overlays_of(answer, self.context.lock_path)
        copy = self.context.with_options(lock=self.container.lock, catalog=[*catalogs])
        self._of_copy = copy.with_lock(lock)

    def _resolve(self) -> int:
        """Choose versions, unless the lock answers the request; return the exit code."""
        path, step = self.context.lock_path, self.steps["resolve"]
        is_request = not self.context.settings.has_requirements
        earlier = read_earlier(path, required=is_request)
        if earlier is not None and self._is_answered_by(earlier):
            check_sources(earlier, self.context.settings, self.context.catalog, SILENT)
            self._use(earlier)
            step.state, step.detail = "up to date", f"{path} answers the request"
            return 0
        self._start("resolve", "choose versions")
        return self._store(self.context.resolve(earlier), earlier)

    def _store(self, answer: Resolution | Conflict, earlier: Resolution | None) -> int:
        """Store and use an answer, unless the earlier lock has the same; return the exit code."""
        path = self.context.lock_path
        if isinstance(answer, Conflict):
            show_conflict(answer, self.context, path)
            return 1
        for warning in answer.warnings:
            self.console.warning(warning)
        answer = with_pinned_image(answer, path)
        is_valid = earlier is not None and is_unchanged(earlier, answer)
        if earlier is not None and earlier.target.base_image != answer.target.base_image:
            self.console.info("\n".join(moves(earlier, answer)))
        self.steps["resolve"].detail = f"{path} is still valid" if is_valid else f"write {path}"
        if not self.context.args.dry_run:
            if not is_valid:
                write_lock(answer, path)
                self._done("resolve", f"wrote {path}")
            self.container.state.resolved_from = self._indexes()
            self.container.save()
        self._use(earlier if earlier is not None and is_valid else answer)
        return 0

    def _is_answered_by(self, lock: Resolution) -> bool:
        """Return whether a lock is an answer to the request, so that nothing must be resolved again."""
        context, settings = self.context, self.context.settings
        if settings.upgrade or context.inputs.hashes or (lock.left_open and not settings.offline):
            return False
        if not settings.has_requirements:  # the lock is the request
            same_target(lock, context.args, context.with_lock(lock).catalog_of_lock)
            return True
        request = context.request()
        return (
            is_same_request(lock.request, request)
            and lock.request.facts_files == request.facts_files
            and lock.request.dated == request.dated
            and (not request.dated or lock.request.target.date == request.target.date)
            and self.container.state.resolved_from in {"", self._indexes()}
        )

    def _indexes(self) -> str:
        """Return a digest of the package indexes, which are not in the lock."""
        sources = self.context.inputs.package_sources()
        return hashlib.sha256(repr((sources.indexes, sources.find_links)).encode()).hexdigest()

    # 2. Fetch.

    def _fetch(self) -> int:
        if not self._to_build:
            self._done("fetch", "no build needs anything")
            return 0
        self._start("fetch", "sources, torch and build requirements")
        return self._fetch_with()

    def _fetch_with(self, wheelhouse: Path | None = None) -> int:
        changes = {"wheelhouse": wheelhouse, "offline": self.context.settings.offline}
        context, built = self._options_of(fetch, **changes), self._built_wheels()
        if wheelhouse is not None:
            ours = [path.name for paths in built.values() for path in paths]
            published = (pick.files[0].name for pick in self.lock.distributions if pick.files)
            self.container.prune([*published, *ours])
            for other in (path for name in ours for path in fetch.other_builds(wheelhouse, name)):
                msg = f"{other} is another build of a wheel of the lock. This command did not put it there."
                raise UsageError(msg, hint="Move it away: pip could install it instead.")
        result = fetch.fetch_lock(context, built)
        fetch.report_problems(result, self.console)
        fetched = sum(item.state == "fetched" for item in result.sources)
        cached, size = len(result.sources) - fetched, format_size(result.bytes_fetched)
        self._done("fetch", f"{fetched} fetched ({size}), {cached} cached")
        return fetch.exit_code_of(result)

    # 3. Build.

    @property
    def _to_build(self) -> list[str]:
        return [wheel.name for wheel in self.document.wheels if wheel.state == "to build"]

    def _plan_wheels(self) -> None:
        args, lock = self.context.args, self.lock
        built = {wheel.key: wheel for wheel in self.document.wheels if wheel.state == "built"}
        try:
            self.tasks, planned = build_wheels.planned_wheels(self._of_lock, self.index, (), self._cores)
            self.document.wheels = [built.get(wheel.key, wheel) for wheel in planned]
        except EnvironmentLacksError as error:
            if not args.dry_run:
                raise
            self.lacks.append(error)
            times = build_times(lock, self._of_lock.catalog_of_lock, args.index, self._cores)
            why = "the base image is not on this machine"
            for pick in lock.built():
                version = pick.pinned
                wheel = TaskState(key="unknown", name=pick.name, version=version, state="to build", why=why)
                wheel.expect(times[pick.name])
                self.document.wheels.append(wheel)

    def _build(self) -> int:
        context, console = self._of_lock, self.console
        executor = Slurm(self.index, console) if self._in_jobs else None
        if executor is not None and executor.current_run() is not None:
            console.info("Following the jobs of an earlier command.")
            run = attach(executor, context)
            if code := build_wheels.record(run, self.document.wheels, self.index, context):
                return code
            self._plan_wheels()
        if self._to_build:
            if executor is not None:
                executor.check()
            self._start("build-wheels", answer(self.document.wheels))
            build_wheels.fetch_prebuilt(context)
            if code := build_wheels.build_missing(self.tasks, self.document.wheels, executor, self._of_copy):
                return code
        self._done("build-wheels", answer(self.document.wheels))
        return 0

    @property
    def _in_jobs(self) -> bool:
        """Whether jobs build the wheels: as the user says, else on a login node with known partitions."""
        args = self.context.args
        if args.executor:
            return bool(args.executor == "slurm")
        return bool(args.partition or args.time) or self._is_login_node

    @property
    def _partition(self) -> Partition | None:
        site = self.lock.target.site
        return partition_of(self._of_lock.catalog_of_lock, site, self.context.args.partition)

    @property
    def _cores(self) -> int:
        """The cores of a build in a job; 0 if that is not known, or builds run on this machine."""
        node = node_of(self._of_lock, self.lock.target.site) if self._in_jobs else None
        return node.cores if node else 0

    @cached_property
    def _is_login_node(self) -> bool:
        """Whether this machine can submit jobs to a partition of the target's site, and is not in a job.

        If Slurm does not respond, it may be the site's: `_lacks` reports that.
        """
        row = self._partition
        if row is None or not shutil.which("sbatch") or "SLURM_JOB_ID" in os.environ:
            return False
        listed = output_of(["sinfo", "--noheader", "--format=%R"]).split()
        return not listed or row.name in listed

    def _complete(self) -> int:
        """Lock what sources require, as far as their build backends or their wheels state it."""
        completed = complete_lock(self._of_lock, self.index, self.tasks)
        if completed is None:
            return 1
        if completed is not self._of_lock:
            self._use(completed.lock)
            self._plan_wheels()
        return 0

    def _built_wheels(self) -> dict[str, list[Path]]:
        """Return the wheels of our tasks; the index may have other builds of the same versions."""
        found = {wheel.name: self.index.find(wheel.name, wheel.key) for wheel in self.document.wheels}
        return {name: [published.path] if published else [] for name, published in found.items()}

    # 5. Files and container.

    def _make(self) -> int:
        """Write the files of the consumer, and make the container from them; return the exit code."""
        container = self.container
        if self._is_made(container.new):
            return 0
        self._start("env", f"write the files into {_shown(container.folder)}")
        files, installation, findings = self._emit()
        if installation.incomplete:
            self.console.warning(installation.incomplete)
        elif code := self._fetch_with(container.wheelhouse):
            return code
        else:
            files, installation, findings = self._emit(container.wheelhouse)
        paths = write_files(files, container.folder, named=False)
        for finding in findings:
            self.console.warning(str(finding))
        self._done("env", ", ".join(path.name for path in paths))
        content = unpacked(container.wheelhouse)
        self._start("container", f"{content}{container.program}; its output: {_shown(container.log)}")
        with self.console.task(f"make {container.path.name}"):
            container.make(self._srun(), self._inputs())
        self._done("container", f"made with {container.program}")
        return 0

    def _emit(
        self, wheelhouse: Path | None = None
    ) -> tuple[Sequence[WrittenFile], Installation, Sequence[Finding]]:
        words = ["--for", self.context.args.consumer, "-o", str(self.container.folder)]
        context = self._options_of(env, *words, wheelhouse=wheelhouse)
        return env.emit(context, self._built_wheels())

    def _inputs(self) -> str:
        wheels = self._built_wheels()
        return inputs_of(self.context.args.consumer, self.lock, self._text, self.index, wheels)

    def _srun(self) -> list[str]:
        """Return the words that start the tool on a compute node where login nodes are too small for it."""
        job = self.container.maker.job
        is_lumi = self.lock.target.site.startswith("lumi")
        if not (job and is_lumi and self._is_login_node and self._in_jobs):
            return []
        account = self.context.settings.account
        return ["srun", *(["-A", account] if account else []), *job]

    # 6. Verify, and replace the older container.

    def _verify(self) -> int:
        """Judge the new container and start it, and give it its name if it works; return the exit code."""
        container, python = self.container, self.container.maker.python
        if container.state.verified:
            container.publish()
            return 0
        self._start("verify", "versions, imports, ops and libraries")
        thing = python(container.folder, container.new) if python else str(container.new)
        judged, *_ = judge_thing(thing, self._options_of(check, thing, "--run"), self._built_wheels())
        self.document.findings = tuple(judged.findings)
        does_not_fit = judged.verdict == "does-not-fit"
        if self.context.args.format != "json" and (does_not_fit or self.console.verbosity > 0):
            show(judged, self.console)
        if does_not_fit:
            self._report("failed")
            self.console.info(
                f"{_shown(container.path)} was not changed. The new {container.maker.makes} is "
                f"{_shown(container.new)}; remove it to make it again."
            )
            return 1
        container.state.verified = True
        container.save()
        container.publish()
        not_judged = sum(map(is_open, self.document.findings))
        self._done("verify", f"no errors; not judged: {not_judged}")
        return 0

    def _is_made(self, path: Path) -> bool:
        """Return whether a path is the container that was made from these inputs."""
        return self.container.is_made_from(path, self._inputs())

    # The plan.

    def _describe(self) -> None:
        """Say what each step will do, and mark those that an earlier command has done."""
        lock, container, maker = self.lock, self.container, self.container.maker
        names = self._to_build
        locked = [pick.files[0] for pick in lock.published()]
        missing = [file.size for file in locked if not cached_file(file).exists()]
        parts = {
            f"{counted(len(missing), 'file')} to download, {format_size(sum(missing))}": missing,
            "what the lock leaves open": not lock.is_complete,
            "inputs of the builds": names,
        }
        builds = answer(self.document.wheels)
        tool = f"with {self.context.args.consumer}, {' '.join(self._srun()) or 'on this machine'}"
        details = {
            "resolve": f"{counted(len(lock.distributions), 'distribution')}; {self.steps['resolve'].detail}",
            "fetch": "; ".join(part for part in parts if parts[part]) or "everything is in the cache",
            "build-wheels": f"{builds}: {shortened(names)}; {self._where_built()}" if names else builds,
            "env": f"files in {_shown(container.folder)}",
            "container": self._what_image_lacks if maker.makes == "layer" else tool,
            "verify": "on this machine",
        }
        for name, detail in details.items():
            self.steps[name].detail = detail
        if not names:
            is_made = self._is_made(container.path) or self._is_made(container.new)
            done = ["fetch", "env", "container", *(["verify"] * container.state.verified)] if is_made else []
            for name in ("build-wheels", *done):
                self.steps[name].state = "up to date"
        self.document.space = space_of(lock, container.folder, maker, sum(missing))

    @property
    def _what_image_lacks(self) -> str:
        names = [f"{pick.name} {pick.pinned}" for pick in Installation(self.lock).on_top]
        return shortened(names, most=8) or "nothing: the image has everything"

    def _where_built(self) -> str:
        if not self._in_jobs:
            return "on this machine"
        partition = self.context.args.partition or (self._partition.name if self._partition else "")
        parts = {"partition": partition, "account": self.context.settings.account}
        return ", ".join(["in Slurm jobs", *(f"{what} {name}" for what, name in parts.items() if name)])

    def _print_plan(self) -> None:
        lacks = [
            f"{_SENTENCE.split(lack.message.splitlines()[0])[0]} {_SENTENCE.split(lack.hint)[-1]}".rstrip()
            for lack in self.lacks
        ]
        if self.context.args.format == "json":
            for lack in lacks:
                self.console.warning(lack)
        else:
            name = self.container.path.name
            if lacks:
                lines = "\n".join(f"  - {lack}" for lack in lacks)
                self.console.text(f"{name} cannot be made here yet. Missing:\n{lines}\n")
            image = f"\n  on {self.lock.image.name}" if self.lock.image else ""
            title = f"{name}: {chosen_text(self.lock)}{image}"
            self.console.data(plan_text(title, self.steps.values(), self.document.space, self.console.out))
            self.console.flush()

    def _lacks(self) -> Iterator[MatrixError]:
        """Yield what is missing for the remaining steps."""
        maker = self.container.maker
        if maker.run is not None:
            require_torch_of_image(Installation(self.lock), "venv")
        if not self.container.program:
            msg = f"{' or '.join(maker.programs)} is not on PATH."
            is_lumi = self.lock.target.site.startswith("lumi")
            get = f"Run `module load {maker.module}` first." if is_lumi else maker.install
            yield EnvironmentLacksError(msg, hint=get)
        if not (self._in_jobs and (self._to_build or self._srun())):
            return
        try:
            Slurm(self.index, self.console).require("Nothing was started.")
        except EnvironmentLacksError as error:
            yield EnvironmentLacksError(error.message, hint=f"{error.hint} {_LOCAL_HINT}")
        else:
            if not has_account(self.context):
                yield UsageError("Slurm jobs need an account, and none is named.", hint=_ACCOUNT_HINT)

    # Output.

    def _start(self, name: str, detail: str) -> None:
        self.console.info(f"{STEPS.index(name) + 1}/{len(STEPS)} {self.steps[name].name}: {detail}")

    def _done(self, name: str, detail: str) -> None:
        self.steps[name].state, self.steps[name].detail = "done", detail

    def _report(self, status: Literal["ok", "planned", "failed"], code: int = 0) -> int:
        document, run_line = self.document, self.container.maker.run
        document.status = status
        if status == "planned":
            self._print_plan()
        elif status == "ok" and run_line and self.lock.image:
            path = self.container.path
            document.layer = read_layer(path, run_line(self.container.program, self.lock.image.path, path))
        if self.context.args.format == "json":
            self.console.document(document)
        elif status == "ok":
            self._print_end()
        return code

    def _print_end(self) -> None:
        container, console, layer = self.container, self.console, self.document.layer
        if all(step.state == "up to date" for step in self.steps.values()):
            console.answer(f"Nothing to do: {_shown(container.path)} is up to date, verified.")
            return
        what = counted(len(self.lock.distributions), "distribution")
        if layer is not None:
            size = f"{counted(layer.files, 'file')}, {format_size(layer.size)}"
            what = f"{self._what_image_lacks} ({size})"
        console.answer(f"{_shown(container.path)} is ready: {what}, verified.")
        if layer is not None:
            if layer.hides:
                hidden = f"{counted(len(layer.hides), 'file')} of the image: {shortened(layer.hides)}"
                console.info(f"It hides {hidden}")
            job = self._of_lock.catalog_of_lock.job.get(self.lock.target.site)
            if module := Installation(self.lock, job=job).container_module:
                console.info(f"First: module use {module[0]}; module load {module[1]}")
            console.info(f"To run: {layer.run} SCRIPT.py")
        variables = container.folder / "environment.sh"
        if variables.exists() and container.path.is_file():
            console.info(f"In job scripts: source {_shown(variables)}")

    # Contexts of the other commands.

    def _options_of(self, command: ModuleType, *words: str, **changes: object) -> Context:
        """Return the context of another command: its defaults, then our options that it has, too."""
        args = defaults_of(command, *words)
        base = self._of_copy if command is check else self._of_lock
        shared = ("lock", "index", "catalog", *(_OF_FETCH if command is fetch else ()))
        own = {name: getattr(base.args, name) for name in shared if name in args}
        return base.with_options(**{**args, **own, **changes}).with_lock(self.lock)


def _shown(path: Path) -> str:
    """Return a path as the user would write it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


_OF_FETCH = ("where", "python_from", "cpu", "base_image")
_LOCAL_HINT = "To build on this machine, use --executor local."
_ACCOUNT_HINT = (
    'Add this line to matrix.toml, with the name of your project: account = "project_465000001". '
    f"Or use --account NAME. {_LOCAL_HINT}"
)
