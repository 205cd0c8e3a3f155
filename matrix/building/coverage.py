"""``--table SELECTION``: the cells of a selection of the table as locks, with the tasks that build them."""

from __future__ import annotations

import argparse
import hashlib
import shlex
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import msgspec

from builders.building.plan import plan
from builders.building.records import TaskState, built_for, earlier_failure
from builders.containers.image import with_cached_digest
from builders.scheduling.local import machine
from builders.scheduling.scheduler import estimates
from matrix.api import package_indexes, write_lock
from matrix.building.planning import build_host_of, limits_of, why_to_build
from matrix.command_line.context import Context
from matrix.command_line.options import duration_argument
from matrix.show.json_document import JsonDocument
from matrix.show.render import duration
from matrix.show.resolution_text import title_of
from resolver.answers.resolve import SharedFacts, resolve
from resolver.answers.table import COMBINATION, UNDECIDED, Table, request_of_cell
from resolver.errors import EnvironmentLacksError, TooLargeError, UsageError
from resolver.model import Conflict, Resolution, Target
from resolver.providers.inferred import with_releases_of
from resolver.requirements import parse_requirement
from resolver.versions import shorten, sort_key

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from builders.building.expected_time import Resources
    from builders.building.inputs import Limits
    from builders.building.plan import BuildHost, Task
    from builders.index import Index
    from matrix.show.render import Screen
    from resolver.answers.table import Cell, Column, TableRow
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import ProvenSet
    from resolver.indexes import PackageIndexes
    from resolver.model import Requirement

State = Literal["proven", "built", "buildable", "impossible"]
_STYLES: dict[State, str] = {"proven": "green", "built": "green", "buildable": "yellow", "impossible": "dim"}
_STATES = tuple(_STYLES)
_LOCKS = "table"
"""That of the locks of cells, in ``.matrix``."""
_OTHERS = ("names", "lock", "locks", "attach", "cancel")
"""Options that select tasks in another way."""


class CoveredCell(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one cell of a selection. JSON output is this struct, encoded."""

    base_image: str
    rocm: str
    torch: str
    python: str
    package: str
    """The column."""
    version: str
    """Empty if no version works."""
    state: State
    why: str
    requested: bool
    """Whether `matrix.toml` or the lock requests the package, or the index has its builds for this torch."""
    tasks: tuple[str, ...]
    """The keys of its wheels that are built."""
    seconds: float
    """The expected time of the tasks whose wheels the index lacks."""


class CoverageResult(JsonDocument, kw_only=True):
    """The JSON output of ``matrix build-wheels --table``."""

    status: Literal["ok", "failed"]
    index: str
    target: Target
    counts: dict[State, int]
    cells: tuple[CoveredCell, ...]
    """Most useful first."""
    wheels: list[TaskState]


class _Covered(msgspec.Struct):
    """A cell with its lock and its tasks."""

    row: TableRow
    column: Column
    cell: Cell
    context: Context
    refused: str = ""
    """Why it is impossible."""
    obstacle: EnvironmentLacksError | None = None
    """Why this machine cannot build it."""
    tasks: list[Task] = []
    proven: ProvenSet | None = None
    requested: bool = False


class Coverage(msgspec.Struct, dict=True):
    """The cells of a selection of the table, most useful first, and their tasks."""

    index: Index
    target: Target
    cells: list[_Covered]
    limits: Limits
    why_not: dict[str, str] = {}
    """Why a wheel is not built now, or was not built, by build key."""

    def __post_init__(self) -> None:
        self.tasks: dict[str, Task] = {}
        """By build key, most useful first; each task follows the tasks that it requires."""
        for cell in self.cells:
            for task in cell.tasks:
                self.tasks.setdefault(task.build_key, task)
        self.rank = {key: number for number, key in enumerate(self.tasks)}

    @property
    def obstacle(self) -> EnvironmentLacksError | None:
        """The reason why this machine cannot build any wheel of the selection, if there is one."""
        if any(cell.tasks for cell in self.cells):
            return None
        return next((cell.obstacle for cell in self.cells if cell.obstacle), None)

    def tasks_of_locks(self, keys: Iterable[str] | None = None) -> list[tuple[Context, list[Task]]]:
        """Write the locks to the index, and return their contexts with their tasks, or those of `keys`."""
        self.index.state_directory(_LOCKS)
        left = set(self.tasks if keys is None else keys)
        result = []
        for cell in self.cells:
            tasks = [task for task in cell.tasks if task.build_key in left]
            if tasks:
                left -= {task.build_key for task in tasks}
                write_lock(cell.context.lock, cell.context.lock_path)
                result.append((cell.context, tasks))
        return result

    def missing(self, *, retry_failed: bool) -> list[str]:
        """Return the keys of the tasks to build, most useful first, except those that failed before."""
        chosen: list[str] = []
        for key, task in self.tasks.items():
            if task.wheel is not None:
                continue
            failure = "" if retry_failed else earlier_failure(task, self.index)
            if failure:
                self.why_not[key] = f"{failure.removesuffix('.')}; --retry-failed tries it again"
            elif not self._is_blocked(task):
                chosen.append(key)
        return chosen

    def within(self, budget: float, keys: Sequence[str]) -> list[str]:
        """Return the tasks whose expected seconds together fit in a budget, each after what it requires."""
        chosen: list[str] = []
        for key in keys:
            seconds = self.expected[key].seconds
            if self._is_blocked(self.tasks[key]):
                continue
            if seconds <= budget:
                budget -= seconds
                chosen.append(key)
            else:
                left = f"{duration(budget)} of the budget is left"
                self.why_not[key] = f"it is expected to take {duration(seconds)}, and {left}"
        return chosen

    def _is_blocked(self, task: Task) -> bool:
        """Return whether a task requires a wheel that is not built, and record that as the reason."""
        blocked = next((other for other in task.requires if other.build_key in self.why_not), None)
        if blocked is not None:
            self.why_not[task.build_key] = f"it requires {blocked.title}, which is not built"
        return blocked is not None

    @cached_property
    def expected(self) -> Mapping[str, Resources]:
        """The expected needs of each task on a separate machine."""
        return estimates(self.tasks, self.index, machine(self.limits))

    def result(self, wheels: list[TaskState], exit_code: int) -> CoverageResult:
        """Return the state of each cell, with the states of its tasks."""
        present = {wheel.key for wheel in wheels if wheel.wheel}
        cells = tuple(self._covered(cell, present) for cell in self.cells)
        counts = Counter(cell.state for cell in cells)
        return CoverageResult(
            status="failed" if exit_code else "ok",
            index=str(self.index.root),
            target=self.target,
            counts={state: counts[state] for state in _STATES},
            cells=cells,
            wheels=wheels,
        )

    def _covered(self, cell: _Covered, wheels: Collection[str]) -> CoveredCell:
        missing = [task for task in cell.tasks if task.build_key not in wheels]
        state, why = self._state(cell, missing)
        return CoveredCell(
            base_image=cell.row.images[0] if cell.row.images else "",
            rocm=cell.row.rocm,
            torch=cell.row.torch,
            python=cell.row.python,
            package=cell.column.name,
            version=cell.cell.version,
            state=state,
            why=why,
            requested=cell.requested,
            tasks=tuple(task.build_key for task in cell.tasks),
            seconds=round(sum(self.expected[task.build_key].seconds for task in missing), 1),
        )

    def _state(self, cell: _Covered, missing: Sequence[Task]) -> tuple[State, str]:
        if cell.refused:
            return "impossible", cell.refused
        if cell.obstacle:
            return "buildable", f"not on this machine: {cell.obstacle.message.partition(chr(10))[0]}"
        if missing:
            reasons = (self.why_not.get(task.build_key) or why_to_build(task, self.index) for task in missing)
            name = f"{missing[0].title}: " if missing[0].pick.name != cell.column.name else ""
            return "buildable", f"{name}{next(reasons)}"
        why = "the index has its wheel" if cell.tasks else "nothing is built: its wheels are published"
        if cell.proven:
            where = f" at {cell.proven.site}" if cell.proven.site else ""
            return "proven", f"{why}, and these versions ran together{where} ({cell.proven.id})"
        return "built", why


def add_table(parser: argparse.ArgumentParser) -> None:
    """Add ``--table``."""
    parser.add_argument(
        "--table",
        metavar="SELECTION",
        help="all cells of a selection of the table instead of a lock, such as 'apex torch>=2.9 "
        "python==3.12 gfx=gfx90a,gfx942': the requirements of `matrix table`, and gfx=A,B",
    )


def add_table_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``matrix build-wheels --table``."""
    group = parser.add_argument_group("selections of the table")
    add_table(group)  # type: ignore[arg-type]
    group.add_argument(
        "--budget",
        metavar="TIME",
        type=duration_argument,
        help="node time that the builds may take, such as 40h or 90m (default: no limit)",
    )
    group.add_argument(
        "--retry-failed",
        action="store_true",
        help="also build wheels that failed before from the same inputs",
    )


def check_table_options(args: argparse.Namespace) -> None:
    """Check that the options of a selection do not contradict other options."""
    if args.table is None:
        for name in ("budget", "retry_failed"):
            if getattr(args, name, None):
                raise UsageError(f"--{name.replace('_', '-')} requires --table.")
        return
    for name in _OTHERS:
        value = getattr(args, name, None)
        if value and value is not args.parser.get_default(name):
            option = {"names": "NAME", "locks": "--lock"}.get(name, f"--{name}")
            raise UsageError(f"--table and {option} cannot be combined.")


def cover(context: Context, index: Index) -> Coverage | Conflict:
    """Resolve the cells of the selection, without writing files; return a conflict if it has no row."""
    own = _context_of_selection(context)
    catalog = own.catalog_with_image
    table = Table(catalog, own.request())
    rows = table.rows_or_conflict()
    if isinstance(rows, Conflict):
        return rows
    requirements = context.inputs.requirements if context.settings.has_requirements else ()
    default = context.with_options(lock=None)
    lock = default.lock if default.has_lock else None
    earlier = built_for(index)
    cells: list[_Covered] = []
    indexes = package_indexes(own.settings, own.inputs, own.console)
    planner = _Planner(own, catalog, indexes, index, table)
    own.console.step("resolve the cells of the selection")
    for row in rows:
        cells += [planner.covered(row, column) for column in table.columns]
    for cell in cells:
        cell.requested = _is_requested(cell, requirements, lock, earlier)
    built = {task.pick.name for cell in cells for task in cell.tasks}
    for text in table.request.ops:
        if (name := text.partition(":")[0]) not in built:
            raise UsageError(f"--ops names {name}, but {name} is not built.")
    # Sorting is stable, so the least significant key comes first.
    cells.sort(key=lambda cell: sort_key(cell.row.python), reverse=True)
    cells.sort(key=lambda cell: sort_key(cell.row.torch), reverse=True)
    cells.sort(key=lambda cell: (not cell.requested, cell.row.verdict != "supported"))
    return Coverage(index, table.request.target, cells, limits_of(own))


def _context_of_selection(context: Context) -> Context:
    """Return a context with the requests of the selection instead of the requirements in matrix.toml."""
    try:
        words = shlex.split(context.args.table)
    except ValueError as error:
        raise UsageError(f"--table {shorten(context.args.table)!r} cannot be read: {error}.") from None
    gfx = [name for word in words if word.startswith("gfx=") for name in word[4:].split(",") if name]
    texts = [word for word in words if not word.startswith("gfx=")]
    limits: dict[str, list[str]] = {"python": [], "rocm": []}
    columns = []
    for text in texts:
        requirement = parse_requirement(text)
        if requirement.name in limits and requirement.specifier is not None:
            limits[requirement.name].append(str(requirement.specifier))
        else:
            columns.append(text)
    rows = {name: ",".join(texts) for name, texts in limits.items() if texts}
    result = context.with_options(requirements=columns or ["torch"], gfx=gfx or context.args.gfx, **rows)
    result.settings.keep_installed = None
    return result


def _is_requested(
    cell: _Covered, requirements: Sequence[Requirement], lock: Resolution | None, built: set[tuple[str, str]]
) -> bool:
    """Return whether a cell was requested in matrix.toml, in the lock, or by an earlier build."""
    row, picks = cell.row, cell.cell.picks
    if any((pick.name, row.torch) in built for pick in picks):
        return True
    names = {pick.name: pick.version for pick in picks}
    versions = {"torch": row.torch, "python": row.python, "rocm": row.rocm, **names}
    if any(requirement.name in names for requirement in requirements) and all(
        requirement.specifier is None or requirement.specifier.allows(versions[requirement.name])
        for requirement in requirements
        if requirement.name in versions
    ):
        return True
    if lock is None or (lock.version_of("torch"), lock.version_of("python")) != (row.torch, row.python):
        return False
    return any(lock.version_of(pick.name) == pick.version for pick in picks)


class _Planner:
    """Turn cells into locks and tasks."""

    def __init__(
        self, context: Context, catalog: Catalog, indexes: PackageIndexes | None, index: Index, table: Table
    ) -> None:
        self._context, self._catalog, self._indexes = context, catalog, indexes
        self._index, self._table = index, table
        self._facts = SharedFacts()
        self._hosts: dict[object, BuildHost | EnvironmentLacksError] = {}

    def covered(self, row: TableRow, column: Column) -> _Covered:
        """Return a cell with its lock and its tasks, or with the reason why it has none."""
        cell = row.cells[column.name]
        covered = _Covered(row, column, cell, self._context)
        if not cell.picks:
            covered.refused = _refusal(cell.refused)
            return covered
        try:
            # Without package indexes this takes milliseconds, and most cells have nothing to build.
            lock = self._resolved(row, column, cell, None)
            if isinstance(lock, Resolution) and lock.built() and self._indexes is not None:
                self._build_host(lock)
                lock = self._resolved(row, column, cell, self._indexes)
            if isinstance(lock, str):
                covered.refused = lock
                return covered
            covered.proven = _proven(self._catalog, lock, row, column)
            covered.tasks = self._tasks(lock)
            covered.context = self._context_of(lock, covered.tasks)
        except EnvironmentLacksError as error:
            covered.obstacle = error
        return covered

    def _resolved(
        self, row: TableRow, column: Column, cell: Cell, indexes: PackageIndexes | None
    ) -> Resolution | str:
        request = request_of_cell(self._table.request, row, column)
        keep = {pick.name: pick.key for pick in cell.picks}
        try:
            answer = resolve(self._catalog, request, indexes, keep=keep, facts=self._facts)
        except TooLargeError:
            return _refusal(UNDECIDED)
        if isinstance(answer, Resolution):
            return with_cached_digest(answer)
        facts = [item.text for item in answer.core if item.kind == "fact"]
        return (facts or [item.text for item in answer.core])[0]

    def _tasks(self, lock: Resolution) -> list[Task]:
        if not lock.built():
            return []
        catalog = with_releases_of(self._catalog, lock)
        return plan(lock, catalog, self._index, self._build_host(lock))

    def _build_host(self, lock: Resolution) -> BuildHost:
        """Return the build host of a lock; it is created once for each image and Python."""
        aliases = all(pick.alias_of for pick in lock.built())
        key = lock.image, lock.version_of("python"), aliases
        if key not in self._hosts:
            try:
                self._hosts[key] = build_host_of(lock, self._context.args)
            except EnvironmentLacksError as error:
                self._hosts[key] = error
        host = self._hosts[key]
        if isinstance(host, EnvironmentLacksError):
            raise host
        return host

    def _context_of(self, lock: Resolution, tasks: Sequence[Task]) -> Context:
        """Return the context of a lock, whose file name is a hash of its build keys."""
        keys = " ".join(sorted(task.build_key for task in tasks))
        name = f"{hashlib.sha256(keys.encode()).hexdigest()[:20]}.lock"
        context = self._context.with_options(lock=self._index.state / _LOCKS / name)
        context.lock = lock
        return context


def _refusal(refused: str) -> str:
    if refused == UNDECIDED:
        return "the search reached its limit before it had an answer"
    if refused == COMBINATION:
        return "the facts of several components together exclude every version"
    return f"the facts of {refused} exclude every version"


def _proven(catalog: Catalog, lock: Resolution, row: TableRow, column: Column) -> ProvenSet | None:
    """Return a proven set that has torch and all packages of a cell, and does not contradict the lock."""
    versions = {pick.name: pick.key for pick in lock.picks}
    target = lock.target

    def agrees(proven: ProvenSet) -> bool:
        if proven.backend != target.backend or proven.site not in {"", target.site}:
            return False
        if proven.site and set(target.gfx) - set(catalog.site[proven.site].gfx):
            return False
        return {*column.packages, "torch"} <= proven.picks.keys() and all(
            version in row.images if name == "base-image" else versions.get(name, version) == version
            for name, version in proven.picks.items()
        )

    return next(filter(agrees, catalog.proven.values()), None)


def coverage_text(result: CoverageResult, screen: Screen) -> str:
    """Return the text output: the counts, and each cell with its state and the reason."""
    head = ["STATE", "PACKAGE", "ROCM", "TORCH", "PYTHON", "WHY"]
    rows: list[list[str | tuple[str, str]]] = [
        [
            (_STYLES[cell.state], cell.state),
            f"{cell.package} {cell.version}".rstrip(),
            cell.rocm or "-",
            cell.torch,
            cell.python,
            cell.why,
        ]
        for cell in sorted(result.cells, key=lambda cell: _STATES.index(cell.state))
    ]
    counts = ", ".join(f"{count} {state}" for state, count in result.counts.items())
    return "\n".join([counts, title_of(result.target), "", screen.table(rows, head, indent="")])
