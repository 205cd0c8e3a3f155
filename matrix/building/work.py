"""The steps of `matrix build-container` and `matrix build-layer`, each of which is a command of its own."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from builders.building.inputs import unlocked_requirements
from builders.building.records import TaskState
from builders.containers.image import with_cached_digest
from builders.findings import Finding
from builders.index import Index
from builders.machine.process import output_of
from builders.scheduling.slurm import Slurm, partition_of
from builders.storage.files import cached_file
from builders.storage.lease import exclusive_lock
from matrix.api import package_indexes, write_lock
from matrix.building.container import (
    STEPS,
    Container,
    Layer,
    Space,
    StepResult,
    chosen_text,
    has_account,
    hidden_sources,
    inputs_of,
    moves,
    plan_text,
    read_layer,
    space_of,
)
from matrix.building.locked import check_sources
from matrix.building.planning import (
    add_batch_options,
    attach,
    cancel,
    check_batch_options,
)
from matrix.command_line.options import (
    add_build_host_options,
    add_format,
    add_index,
    add_index_access,
    add_input_options,
    add_kept,
    add_limits,
    add_names,
    add_ops,
    add_target_options,
    defaults_of,
    normalized_name,
    output_path,
)
from matrix.commands import build_wheels, check, env
from matrix.consumers.shared.installation import Installation, write_files
from matrix.farm import fetch
from matrix.input.facts_file import Draft
from matrix.input.inputs import with_stated_hashes
from matrix.input.locking import (
    catalog_with_image_of,
    is_same_request,
    is_unchanged,
    kept_versions,
    overlays_of,
    same_target,
)
from matrix.input.request import facts_files, require_requirements
from matrix.input.settings import overlays
from matrix.judging.judge import judge_thing
from matrix.show.check_text import show
from matrix.show.json_document import JsonDocument
from matrix.show.render import counted, format_size, shortened
from matrix.show.resolution_text import build_times, show_conflict
from resolver.answers.resolve import resolve
from resolver.errors import EnvironmentLacksError, LockError, MatrixError, UsageError
from resolver.lock import dumps, read_lock
from resolver.model import Conflict
from resolver.reporter import SILENT
from resolver.versions import join_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

    from builders.building.expected_time import Resources
    from builders.building.plan import Task
    from matrix.command_line.context import Context
    from matrix.consumers import Maker
    from matrix.consumers.shared.installation import WrittenFile
    from resolver.facts.catalog import Catalog
    from resolver.model import Distribution, Resolution

_MOST_ROUNDS = 4
"""How often the built wheels may add requirements to the lock; they are not expected to add any twice."""
_LUMI = "lumi"
_LINE = "\n"


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
    add_names(
        parser,
        "requirements",
        metavar="REQ",
        help="requirements, as for `matrix resolve` (default: matrix.toml, else those of the lock)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan only")
    add_index(parser)
    add_format(parser)
    add_kept(parser)
    parser.add_argument(
        "--upgrade",
        metavar="NAME",
        type=normalized_name,
        action="append",
        help="upgrade NAME in the existing lock (repeatable)",
    )
    add_build_host_options(parser)
    add_ops(parser)
    parser.add_argument(
        "--executor",
        choices=("local", "slurm"),
        help="where wheels are built: on this machine or in Slurm jobs; default: in "
        "Slurm jobs on a login node of a site whose partitions are known, else on this machine",
    )
    add_limits(parser, offline=False)
    parser.add_argument("--keep-going", action="store_true", help="continue when a wheel fails")
    add_batch_options(parser)
    add_input_options(parser)
    add_index_access(parser)
    add_target_options(parser)


def make(context: Context, maker: Maker) -> int:
    """Make the result, or only print the plan; return the exit code."""
    args, console = context.args, context.console
    container = Container(args.out, maker)
    if args.cancel:
        return cancel(
            Slurm(Index(args.index), console), context.with_options(executor=_requested_executor(args))
        )
    container.check()
    if not context.lock_path.exists():
        require_requirements(context.settings)
    if args.dry_run:
        return _Work(context, container).plan_only()
    container.create_folder()
    waiting = partial(console.info, f"Another process makes {container.path}. Waiting for it.")
    with exclusive_lock(container.folder / "lock", on_wait=waiting):
        return _Work(context, container).run()


def _check_gpu(lock: Resolution, catalog: Catalog) -> None:
    """Raise `UsageError` if a lock is for a GPU that its site does not have."""
    site = catalog.site[lock.target.site]
    if others := site.lacks(lock.target.gfx):
        asked, has = join_words(others, joiner="and"), join_words(site.gfx, joiner="and")
        msg = f"The container would be for {asked}, but {site.name} has {has}."
        raise UsageError(msg, hint="Name the site that has this GPU with --site, or leave the GPU out.")


class _Work:
    def __init__(self, context: Context, container: Container) -> None:
        args = context.args
        self.console = context.console
        self.container = container
        self.index = Index(args.index)
        catalogs = [*context.settings.catalog]
        if self.container.facts.exists() and self._facts_path not in catalogs:
            catalogs.append(self._facts_path)
        self.context = context.with_options(catalog=catalogs, executor=_requested_executor(args))
        made = container.maker.makes
        self.steps = {name: StepResult(made if name == "container" else name, "to do", "") for name in STEPS}
        self.wheels: list[TaskState] = []
        self.findings: list[Finding] = []
        self._unplanned: EnvironmentLacksError | None = None
        # `_use` replaces both. Other commands may replace the user's lock at any time, so no step reads it
        # again: steps that read a lock from a file, such as jobs, read a copy.
        self._of_lock = self._of_copy = self.context
        self._text = ""

    @property
    def _facts_path(self) -> str:
        """The path of the learned requirements as the lock names it."""
        return os.path.relpath(self.container.facts)

    # The whole.

    def plan_only(self) -> int:
        """Print the plan; write nothing."""
        conflict = self._resolve()
        if conflict is not None:
            return self._show_conflict(conflict)
        self._plan_wheels()
        space = self._space()
        self._describe()
        for lack in self._lacks():
            self.console.warning(f"{lack.message.partition(_LINE)[0]} {lack.hint}".rstrip())
        return self._report("planned", space)

    def run(self) -> int:
        conflict = self._resolve()
        if conflict is not None:
            return self._show_conflict(conflict)
        tasks = self._plan_wheels()
        if not any(task.wheel is None for task in tasks) and self._is_finished():
            for step in self.steps.values():
                step.state = "up to date"
            return self._report("ok")
        space = self._space()
        self._describe()
        for lack in self._lacks():
            raise lack
        self._print_plan(space)
        for _ in range(_MOST_ROUNDS):
            if code := self._fetch(tasks) or self._build(tasks):
                return self._report("failed", space, code)
            if not self._learns():
                break
            conflict = self._resolve_again()
            if conflict is not None:
                return self._show_conflict(conflict)
            tasks = self._plan_wheels()
        return self._make() or self._verify(space) or self._report("ok")

    def _space(self) -> list[Space]:
        return space_of(self.lock, self.container.folder, self.container.maker)

    def _show_conflict(self, conflict: Conflict) -> int:
        show_conflict(conflict, self.context, self.context.lock_path)
        return 1

    # 1. Resolve.

    @property
    def lock(self) -> Resolution:
        """The resolution, which is stored unless only the plan is printed."""
        return self._of_lock.lock

    @property
    def _catalog(self) -> Catalog:
        return self._of_lock.catalog_of_lock

    def _use(self, answer: Resolution) -> None:
        lock = with_cached_digest(answer)
        _check_gpu(answer, self.context.with_lock(lock).catalog_of_lock)
        self._text = dumps(answer)
        self._of_lock = self.context.with_lock(lock)
        if self.context.args.dry_run:
            return
        write_lock(answer, self.container.lock)
        catalogs = self.context.settings.catalog or overlays_of(answer, self.context.lock_path)
        copy = self.context.with_options(lock=self.container.lock, catalog=[*catalogs])
        self._of_copy = copy.with_lock(lock)

    def _resolve(self) -> Conflict | None:
        """Choose versions, unless the lock answers the request; return the conflict if there is one."""
        path, step = self.context.lock_path, self.steps["resolve"]
        earlier = self._earlier()
        if earlier is not None and self._is_answered_by(earlier):
            check_sources(earlier, self.context.settings, self.context.catalog, SILENT)
            self._use(earlier)
            step.state, step.detail = "up to date", f"{path} answers the request"
            return None
        self._start("resolve", "choose versions")
        return self._store(self.context.resolve(earlier), earlier)

    def _earlier(self) -> Resolution | None:
        path = self.context.lock_path
        try:
            return read_lock(path) if path.exists() else None
        except LockError:
            if not self._asks:  # the lock is the request
                raise
            return None

    def _store(self, answer: Resolution | Conflict, earlier: Resolution | None) -> Conflict | None:
        """Store and use an answer, unless the earlier lock has the same; return it if it is a conflict."""
        if isinstance(answer, Conflict):
            return answer
        path = self.context.lock_path
        for warning in answer.warnings:
            self.console.warning(warning)
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
        self._use(earlier if earlier is not None and is_valid else with_cached_digest(answer))
        return None

    @property
    def _asks(self) -> bool:
        """Whether the user names requirements."""
        return self.context.settings.has_requirements

    def _is_answered_by(self, lock: Resolution) -> bool:
        """Return whether a lock is an answer to the request, so that nothing must be resolved again."""
        context, settings = self.context, self.context.settings
        if settings.upgrade or context.inputs.hashes or (lock.left_open and not settings.offline):
            return False
        if not self._asks:
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

    def _fetch(self, tasks: Sequence[Task]) -> int:
        if not any(task.wheel is None for task in tasks):
            self._done("fetch", "no build needs anything")
            return 0
        self._start("fetch", "sources, torch and build requirements")
        return self._fetch_with()

    def _fetch_with(self, wheelhouse: Path | None = None) -> int:
        context, built = self._options_of(fetch, wheelhouse=wheelhouse), self._built_wheels()
        if wheelhouse is not None:
            ours = [path.name for paths in built.values() for path in paths]
            self.container.prune(
                [*(pick.files[0].name for pick in self.lock.distributions if pick.files), *ours]
            )
            for other in (path for name in ours for path in fetch.other_builds(wheelhouse, name)):
                msg = (
                    f"{other} is another build of a wheel of the lock, and was not put there by this command."
                )
                raise UsageError(msg, hint="Move it away: pip could install it instead.")
        result = fetch.fetch_lock(context, built)
        fetch.report_problems(result, self.console)
        code = fetch.exit_code_of(result)
        fetched = sum(item.state == "fetched" for item in result.sources)
        if not code:
            self._done(
                "fetch",
                f"{fetched} fetched ({format_size(result.bytes_fetched)}), "
                f"{len(result.sources) - fetched} cached",
            )
        return code

    # 3. Build.

    def _plan_wheels(self) -> list[Task]:
        args, lock = self.context.args, self.lock
        try:
            tasks, self.wheels = build_wheels.planned_wheels(self._of_lock, self.index)
        except EnvironmentLacksError as error:
            if not args.dry_run:
                raise
            self._unplanned, tasks = error, []
            times = build_times(lock, self._catalog, args.index)
            self.wheels = [_unplanned(pick, times[pick.name]) for pick in lock.built()]
        return tasks

    def _build(self, tasks: Sequence[Task]) -> int:
        context, console = self._of_lock, self.console
        executor = None if self._executor_name == "local" else Slurm(self.index, self.console)
        if executor is not None and (context.args.attach or executor.current_run() is not None):
            console.info("Following the jobs of an earlier command.")
            run = attach(executor, context)
            if code := build_wheels.record(run, self.wheels, self.index, context):
                return code
            tasks = self._plan_wheels()
        if not any(task.wheel is None for task in tasks):
            self._done("build-wheels", build_wheels.answer(self.wheels))
            return 0
        if executor is not None:
            executor.check()
        self._start("build-wheels", build_wheels.answer(self.wheels))
        build_wheels.fetch_prebuilt(context)
        code = build_wheels.build_missing(tasks, self.wheels, executor, self._of_copy)
        if not code:
            self._done("build-wheels", build_wheels.answer(self.wheels))
        return code

    @property
    def _executor_name(self) -> str:
        """Where wheels are built: as the user says, else in jobs on a login node with known partitions."""
        args = self.context.args
        if args.executor:
            return str(args.executor)
        return "slurm" if self._is_login_node else "local"

    @cached_property
    def _is_login_node(self) -> bool:
        """Whether this machine can submit jobs to a partition of the target's site, and is not in a job.

        If Slurm does not respond, it may be the site's: `_lacks` reports that.
        """
        row = partition_of(self._catalog, self.lock.target.site, self.context.args.partition)
        if row is None or not shutil.which("sbatch") or "SLURM_JOB_ID" in os.environ:
            return False
        listed = output_of(["sinfo", "--noheader", "--format=%R"]).split()
        return not listed or row.name in listed

    # After the builds, everything that the wheels require is locked.

    def _learns(self) -> bool:
        """Write the requirements of our wheels that the lock does not meet; return whether there are any."""
        facts = Path(self._facts_path)
        draft = Draft(facts, overlays(self.context.settings), header=_FACTS_HEADER)
        catalog = draft.load()
        draft.replace(unlocked_requirements(self.lock, self._built_wheels(), catalog), catalog)
        return draft.write()

    def _resolve_again(self) -> Conflict | None:
        """Resolve the request of the lock with the requirements of our wheels, and keep its versions."""
        self._start("resolve", "again, because the built wheels require more than the lock has")
        lock = self.lock
        catalogs = list(dict.fromkeys([*self.context.settings.catalog, self._facts_path]))
        self.context = self.context.with_options(catalog=catalogs, upgrade=None)
        settings, inputs = self.context.settings, self.context.inputs
        catalog = catalog_with_image_of(lock, self.context.lock_path, settings)
        files = facts_files(overlays(settings))
        request = replace(lock.request, catalogs=tuple(catalogs), facts_files=files)
        indexes = package_indexes(settings, inputs, self.console)
        with self.console.task("resolve"):
            answer = resolve(catalog, request, indexes, keep=kept_versions(lock, ()), reporter=self.console)
        if inputs.hashes and not isinstance(answer, Conflict):
            answer = with_stated_hashes(answer, inputs.hashes)
        return self._store(answer, None)

    def _built_wheels(self) -> dict[str, list[Path]]:
        """Return the wheels of our tasks; the index may have other builds of the same versions."""
        found = {wheel.name: self.index.find(wheel.name, wheel.key) for wheel in self.wheels}
        return {name: [published.path] if published else [] for name, published in found.items()}

    # 5. Files and container.

    def _make(self) -> int:
        """Write the files of the consumer, and make the container from them; return the exit code."""
        container = self.container
        inputs = self._inputs()
        if container.is_made_from(container.new, inputs):
            self._done("env", "unchanged")
            self._done("container", "made before")
            return 0
        self._start("env", f"write the files into {_shown(container.folder)}")
        files, installation, findings = self._emit()
        wheelhouse = None
        if installation.incomplete:
            self.console.warning(installation.incomplete)
        else:
            wheelhouse = container.wheelhouse
            if code := self._fetch_with(wheelhouse):
                return code
            files, installation, findings = self._emit(wheelhouse)
        paths = write_files(files, container.folder, named=False)
        for finding in findings:
            self.console.warning(str(finding))
        self._done("env", ", ".join(path.name for path in paths))
        self._start("container", f"{container.program}; its output: {_shown(container.log)}")
        with self.console.task(f"make {container.path.name}"):
            container.make(self._srun(), inputs)
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
        if not (job and self._is_lumi and self._is_login_node and self._executor_name == "slurm"):
            return []
        account = self.context.settings.account
        return ["srun", *(["-A", account] if account else []), *job]

    @property
    def _is_lumi(self) -> bool:
        return self.lock.target.site.startswith(_LUMI)

    # 6. Verify, and replace the older container.

    def _verify(self, space: Sequence[Space]) -> int:
        """Verify the new container and give it its name; return the exit code."""
        container = self.container
        if not container.state.verified:
            self._start("verify", "versions, imports, ops and libraries")
            if code := self._check(space):
                self.console.info(
                    f"{_shown(container.path)} was not changed. The new {container.maker.makes} is "
                    f"{_shown(container.new)}; remove it to make it again."
                )
                return code
        container.publish()
        return 0

    def _check(self, space: Sequence[Space]) -> int:
        """Judge the new container and start it, and record that it works; return the exit code."""
        container, python = self.container, self.container.maker.python
        thing = python(container.folder, container.new) if python else str(container.new)
        judged, *_ = judge_thing(thing, self._options_of(check, thing, "--run"), self._built_wheels())
        self.findings = judged.findings
        does_not_fit = judged.verdict == "does-not-fit"
        if self.context.args.format != "json" and (does_not_fit or self.console.verbosity > 0):
            show(judged, self.console)
        if does_not_fit:
            return self._report("failed", space, 1)
        self.container.state.verified = True
        self.container.save()
        not_judged = sum("not-judged" in finding.id for finding in self.findings)
        detail = f"no errors; not judged: {not_judged}" if not_judged else "no errors"
        self._done("verify", detail)
        return 0

    def _is_finished(self) -> bool:
        """Return whether the container exists and was made from these inputs."""
        return self.container.is_made_from(self.container.path, self._inputs())

    # The plan.

    def _describe(self) -> None:
        lock, args = self.lock, self.context.args
        count = len(lock.distributions)
        resolve = self.steps["resolve"]
        resolve.detail = f"{counted(count, 'distribution')}; {resolve.detail}"
        published = [pick for pick in lock.distributions if pick.origin == "published" and pick.files]
        missing = [pick for pick in published if not cached_file(pick.files[0]).exists()]
        size = format_size(sum(pick.files[0].size for pick in missing))
        parts = [f"{counted(len(missing), 'file')} to download, {size}"] if missing else []
        parts += [] if lock.is_complete else ["what the lock leaves open"]
        parts += ["inputs of the builds"] if any(wheel.state == "to build" for wheel in self.wheels) else []
        self.steps["fetch"].detail = "; ".join(parts) or "everything is in the cache"
        build = self.steps["build-wheels"]
        build.detail = build_wheels.answer(self.wheels)
        names = [wheel.name for wheel in self.wheels if wheel.state == "to build"]
        if names:
            build.detail += f": {shortened(names)}; {self._where_built()}"
        self.steps["env"].detail = f"files in {_shown(self.container.folder)}"
        where = " ".join(self._srun()) or "on this machine"
        self.steps["container"].detail = f"with {args.consumer}, {where}"
        if self.container.maker.makes == "layer":
            self.steps["container"].detail = self._what_image_lacks()
        self.steps["verify"].detail = "on this machine"
        if not names:
            build.state = "up to date"
            self._describe_container()

    def _what_image_lacks(self) -> str:
        on_top = Installation(self.lock).on_top
        if not on_top:
            return "nothing: the image has everything"
        sizes = [pick.files[0].size for pick in on_top if pick.origin == "published" and pick.files]
        listed = shortened([f"{pick.name} {pick.pinned}" for pick in on_top], most=8)
        known = f"; {format_size(sum(sizes))} in wheels that need no build" if sizes and all(sizes) else ""
        return f"{listed}{known}"

    def _describe_container(self) -> None:
        """Mark the steps that an earlier command has done with the same lock and wheels."""
        if self.steps["resolve"].state != "up to date":  # with --dry-run, the lock is not stored
            return
        container, inputs = self.container, self._inputs()
        is_finished = container.is_made_from(container.path, inputs)
        if is_finished or container.is_made_from(container.new, inputs):
            done = ("fetch", "env", "container", *(["verify"] if container.state.verified else []))
            for name in done:
                self.steps[name].state = "up to date"

    def _where_built(self) -> str:
        if self._executor_name == "local":
            return "on this machine"
        row = partition_of(self._catalog, self.lock.target.site, self.context.args.partition)
        partition = self.context.args.partition or (row.name if row else "")
        account = self.context.settings.account or os.environ.get("SBATCH_ACCOUNT", "")
        where = [f"partition {partition}"] if partition else []
        where += [f"account {account}"] if account else []
        return ", ".join(["in Slurm jobs", *where])

    def _print_plan(self, space: Sequence[Space]) -> None:
        if self.context.args.format != "json":
            title = f"{self.container.path.name}: {chosen_text(self.lock)}"
            self.console.data(plan_text(title, self.steps.values(), space, self.console.out))
            self.console.flush()
        for need in space:
            if need.free < need.needed:
                self.console.warning(
                    f"{need.directory} has {format_size(need.free)} free, but {need.purpose} need at "
                    f"least {format_size(need.needed)}."
                )

    def _lacks(self) -> Iterator[MatrixError]:
        """Yield what is missing for the remaining steps, and warn about what the container cannot see."""
        maker, args = self.container.maker, self.context.args
        if self._unplanned is not None:
            yield self._unplanned
        if not self.container.program:
            yield EnvironmentLacksError(
                f"{' or '.join(maker.programs)} is not on PATH.", hint=self._how_to_get()
            )
        needs_jobs = self._srun() or any(wheel.state == "to build" for wheel in self.wheels)
        if needs_jobs and self._executor_name == "slurm":
            yield from self._lacks_of_slurm()
        if not self.lock.is_complete and not args.consumer.startswith("tykky"):
            hidden = [*hidden_sources(self.context)]
            if hidden:
                self.console.warning(
                    f"pip runs in the container, which cannot see {', '.join(hidden)}. Only distributions "
                    "of the lock can come from there, and the lock is incomplete."
                )

    def _lacks_of_slurm(self) -> Iterator[MatrixError]:
        try:
            Slurm(self.index, self.console).require("Nothing was started.")
        except EnvironmentLacksError as error:
            yield EnvironmentLacksError(error.message, hint=f"{error.hint} {_LOCAL_HINT}")
        else:
            if not has_account(self.context):
                yield UsageError("Slurm jobs need an account, and none is named.", hint=_ACCOUNT_HINT)

    def _how_to_get(self) -> str:
        if self._is_lumi:
            return f"Run `module load {self.container.maker.module}`, then the same command again."
        return f"{self.container.maker.install} Then run the same command again."

    # Output.

    def _start(self, name: str, detail: str) -> None:
        self.console.info(f"{STEPS.index(name) + 1}/{len(STEPS)} {self.steps[name].name}: {detail}")

    def _done(self, name: str, detail: str) -> None:
        self.steps[name].state, self.steps[name].detail = "done", detail

    def _report(
        self, status: Literal["ok", "planned", "failed"], space: Sequence[Space] = (), code: int = 0
    ) -> int:
        container, args = self.container, self.context.args
        if args.format == "json":
            document = ContainerDocument(
                status=status,
                container=str(container.path),
                consumer=args.consumer,
                files=str(container.folder),
                lock=str(self.context.lock_path),
                steps=[*self.steps.values()],
                wheels=self.wheels,
                space=[*space],
                findings=tuple(self.findings),
                layer=self._layer() if status == "ok" else None,
            )
            self.console.document(document)
        elif status == "planned":
            self._print_plan(space)
        elif status == "ok":
            self._print_end()
        return code

    def _print_end(self) -> None:
        container, console = self.container, self.console
        if all(step.state == "up to date" for step in self.steps.values()):
            console.answer(f"Nothing to do: {_shown(container.path)} is up to date, verified.")
            return
        if layer := self._layer():
            self._print_layer(layer)
            return
        count = counted(len(self.lock.distributions), "distribution")
        console.answer(f"{_shown(container.path)} is ready: {count}, verified.")
        variables = container.folder / "environment.sh"
        if variables.exists() and container.path.is_file():
            console.info(f"In job scripts: source {_shown(variables)}")

    def _layer(self) -> Layer | None:
        run_of = self.container.maker.run
        image = self.lock.image
        if run_of is None or image is None:
            return None
        return read_layer(
            self.container.path, run_of(self.container.program, image.path, self.container.path)
        )

    def _print_layer(self, layer: Layer) -> None:
        what = shortened([f"{pick.name} {pick.pinned}" for pick in Installation(self.lock).on_top], most=8)
        self.console.answer(
            f"{_shown(self.container.path)} is ready, verified: {counted(layer.files, 'file')}, "
            f"{format_size(layer.size)}; {what or 'the image has everything'}."
        )
        if layer.hides:
            self.console.info(
                f"It hides {counted(len(layer.hides), 'file')} of the image: {shortened(layer.hides)}"
            )
        job = self._catalog.job.get(self.lock.target.site)
        if modules := Installation(self.lock, job=job).container_modules:
            self.console.info(f"First: module load {' '.join(modules)}")
        self.console.info(f"To run: {layer.run} SCRIPT.py")

    # Contexts of the other commands.

    def _options_of(self, command: ModuleType, *words: str, **changes: object) -> Context:
        """Return the context of another command: its defaults, then our options that it has, too."""
        args = defaults_of(command, *words)
        base = self._of_copy if command is check else self._of_lock
        shared = ("lock", "index", "catalog", *(_OF_FETCH if command is fetch else ()))
        own = {name: getattr(base.args, name) for name in shared if name in args}
        if command is fetch:
            own["offline"] = self.context.settings.offline
        return base.with_options(**{**args, **own, **changes}).with_lock(self.lock)


def _requested_executor(args: argparse.Namespace) -> str:
    """Return the executor that the options mean; empty if they leave it open."""
    if args.executor:
        check_batch_options(args)
    return args.executor or ("slurm" if args.attach or args.cancel or args.partition or args.time else "")


def _unplanned(pick: Distribution, estimate: Resources) -> TaskState:
    """Return the state of a wheel whose build cannot be planned on this machine."""
    return TaskState(
        key="unknown",
        name=pick.name,
        version=pick.pinned,
        state="to build",
        why="the base image is not on this machine",
        cores=estimate.cores,
        seconds=None if estimate.source == "guess" else round(estimate.seconds, 1),
        seconds_from=estimate.source,
    )


def _shown(path: Path) -> str:
    """Return a path as the user would write it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


_OF_FETCH = ("where", "python_from", "cpu", "base_image")
_FACTS_HEADER = (
    "# Requirements of built wheels, which their sources do not state. Written by matrix build-container.\n"
)
_LOCAL_HINT = "To build on this machine, use --executor local."
_ACCOUNT_HINT = (
    'Add this line to matrix.toml, with the name of your project: account = "project_465000001". '
    f"Or use --account NAME. {_LOCAL_HINT}"
)
