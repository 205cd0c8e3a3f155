"""What is known about the build of a wheel, and the past and running builds of an index.

Past and running builds are read from the files that builds leave in the index:

- A built wheel has its provenance.
- A failed build has a record next to its log.
- A started build has a record next to its log, which the build removes when it ends. While it runs, it also
  holds the lock of its build key. If no process holds that lock, the record belongs to an interrupted build.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from platform import node
from typing import TYPE_CHECKING, Any

import msgspec

from builders.building.directory import lock_of
from builders.building.provenance import read_statement
from builders.building.task_state import InputChange, TaskState
from builders.constants import OUT_OF_MEMORY
from builders.findings import Finding
from builders.machine.host import own_program
from builders.storage.files import replace_file, write_atomic
from builders.storage.lease import is_held
from resolver.errors import ProvenanceError
from resolver.texts import Digest, Name, VersionText, escaped
from resolver.versions import grouped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from builders.building.plan import Task
    from builders.building.provenance import Statement
    from builders.index import Index
    from resolver.errors import MatrixError


_STARTED, _FAILED = ".started.json", ".failed.json"
_SHOWN_CHANGES = 6
_NEVER = datetime.min.replace(tzinfo=UTC)


def command_of(tasks: Sequence[TaskState]) -> list[str]:
    """Return the command that executes tasks of one plan, whose commands differ in key and lock only.

    Jobs may start without the user's PATH, so the program is named by its interpreter.
    """
    program, farm, action, *words = tasks[0].command
    if len(tasks) > 1:
        keys = [task.command[3] for task in tasks]
        locks = dict.fromkeys(task.lock for task in tasks)
        words = [*keys, *(word for lock in locks for word in ("--lock", lock)), *words[3:]]
    start = own_program() if program == "matrix" else [program]
    return [*start, farm, action, *words]


class _AttemptRecord(msgspec.Struct, kw_only=True):
    """What a file says about an attempt that has published nothing: that it has started, or how it failed."""

    name: Name
    version: VersionText
    build_key: Digest
    node: str
    inputs: dict[str, Any] = {}
    started_on: datetime | None = None
    stopped: str = ""
    """Why the build was ended before it had finished, if that could be recorded."""
    failed_on: datetime | None = None
    message: str = ""
    id: str = ""
    measured: dict[str, float | int] = {}
    diagnosis: tuple[Finding, ...] = ()
    schema: int = 1


def log_path(index: Index, name: str, build_key: str) -> Path:
    """Return the file with the output of the last attempt to build a wheel; its records are next to it."""
    return index.state / "logs" / f"{name}-{build_key[:12]}.log"


def failure_path(log: Path) -> Path:
    """Return the path of the record of a failed attempt, given the path of its log."""
    return log.with_suffix(_FAILED)


def record_start(task: Task, log: Path) -> None:
    """Record that a build has started; call this while holding the lock of its build key."""
    failure_path(log).unlink(missing_ok=True)
    attempt = _AttemptRecord(
        name=task.pick.name,
        version=task.pick.pinned,
        build_key=task.build_key,
        started_on=_now(),
        node=node(),
        inputs=task.inputs,
    )
    replace_file(log.with_suffix(_STARTED), msgspec.json.encode(attempt), flushed=False)


def record_stop(log: Path, why: str) -> None:
    """Record why a build was ended before it had finished."""
    path = log.with_suffix(_STARTED)
    attempt = _read(path)
    if attempt is not None:
        attempt.stopped = why
        with suppress(OSError):  # the disk may be full; an error would remove the directory of the build
            write_atomic(path, msgspec.json.encode(attempt))


def record_failure(task: Task, log: Path, error: MatrixError) -> None:
    """Record why a build failed, for later commands and other machines."""
    started = log.with_suffix(_STARTED)
    attempt = _read(started)
    document = {
        "schema": 1,
        "name": task.pick.name,
        "version": task.pick.pinned,
        "build_key": task.build_key,
        "failed_on": _now(),
        "node": node(),
        "id": error.id,
        "message": error.message,
        "hint": error.hint,
        "started_on": attempt.started_on if attempt else None,
        "inputs": attempt.inputs if attempt else {},
        **error.details,
    }
    started.unlink(missing_ok=True)
    write_atomic(failure_path(log), msgspec.json.format(msgspec.json.encode(document)) + b"\n")


def forget_attempt(log: Path) -> None:
    """Remove the records of an attempt, because its wheel is published."""
    for path in (log.with_suffix(_STARTED), failure_path(log)):
        path.unlink(missing_ok=True)


def build_records(index: Index, names: Sequence[str] = ()) -> list[TaskState]:
    """Return the last build of each key in the order of their starts; `names` limits the packages."""
    attempts = list(_attempts(index))
    projects = names or sorted({*index.projects(), *(build.name for build in attempts)})
    known = grouped((build.name, build) for build in (*attempts, *_built(index, projects)))
    builds = []
    for project in projects:
        history = _history(known.get(project, ()))
        for before, build in pairwise(history):
            build.changed = tuple(changed_inputs(before.inputs, build.inputs))
            build.why = explain_changes(before.title, build.changed)
        builds += history
    return sorted(builds, key=_order)


def memory_of_failures(index: Index, name: str) -> float:
    """Return the GiB that a process of a package's failed builds needed at least; 0 if unknown."""
    needed = [0.0]
    for path in _files(index.state / "logs", _FAILED):
        attempt = _read(path)
        if attempt is not None and attempt.name == name:
            ids = {finding.id for finding in attempt.diagnosis}
            needed.append((2 if OUT_OF_MEMORY in ids else 1) * attempt.measured.get("process_gib", 0.0))
    return max(needed)


def changes_since_last_build(task: Task, index: Index) -> tuple[str, tuple[InputChange, ...]]:
    """Return the title of the newest other build of the package, empty if none, and the changed inputs."""
    name = task.pick.name
    attempts = [build for build in _attempts(index) if build.name == name]
    history = _history([*attempts, *_built(index, [name])])
    others = [build for build in history if build.key != task.build_key]
    if not others:
        return "", ()
    last = others[-1]
    inputs = msgspec.json.decode(msgspec.json.encode(task.inputs))
    return last.title, tuple(changed_inputs(last.inputs, inputs))


def changed_inputs(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[InputChange]:
    """Yield the inputs that differ. A label repeats other inputs, and a new version has a new source."""
    rows = [dict(_flat(inputs)) for inputs in (before, after)]
    paths = [path for path in sorted({*rows[0], *rows[1]}) if rows[0].get(path) != rows[1].get(path)]
    if "version" in paths:
        versions = [str(row.get("version", "")).partition("+")[0] for row in rows]
        if versions[0] == versions[1]:
            paths.remove("version")
        else:
            paths = [
                "version",
                *(path for path in paths if path.partition(".")[0] not in {"version", "source"}),
            ]
            rows = [{**row, "version": version} for row, version in zip(rows, versions, strict=True)]
    for path in paths:
        yield InputChange(path, rows[0].get(path), rows[1].get(path))


def explain_changes(last: str, changes: Sequence[InputChange]) -> str:
    """Return why a package is built again, after the build with the title `last`, as part of a sentence."""
    if not changes:
        return f"the index has no wheel with the inputs of {last}"
    shown = ", ".join(str(change) for change in changes[:_SHOWN_CHANGES])
    more = f" and {len(changes) - _SHOWN_CHANGES} more" if len(changes) > _SHOWN_CHANGES else ""
    return f"the inputs changed since {last}: {shown}{more}"


def _history(builds: Iterable[TaskState]) -> list[TaskState]:
    """Return the last build of each key, in the order of their starts."""
    return sorted({build.key: build for build in builds}.values(), key=_order)


def _order(build: TaskState) -> tuple[datetime, str]:
    return build.started or build.finished or _NEVER, build.name


def _built(index: Index, projects: Iterable[str]) -> Iterator[TaskState]:
    for wheel in index.published(*projects):
        with suppress(ProvenanceError):
            project = wheel.path.parent.name
            yield _of_wheel(index, project, wheel.path, read_statement(wheel.provenance))


def _of_wheel(index: Index, project: str, wheel: Path, statement: Statement) -> TaskState:
    definition, run = statement.predicate.build_definition, statement.predicate.run_details
    metadata = run.metadata
    logs = [index.state / "logs" / item.name for item in run.byproducts if item.role == "log"]
    inputs = definition.internal_parameters.get("inputs")
    return TaskState(
        key=statement.build_key,
        name=project,
        version=str(definition.external_parameters.get("version", "")),
        state="built",
        inputs=inputs if isinstance(inputs, dict) else {},
        node=metadata.node or None,
        started=metadata.started_on,
        finished=metadata.finished_on,
        log=_existing(logs[0]) if logs else None,
        wheel=str(wheel),
        **_measured(metadata.measured, metadata.started_on, metadata.finished_on),
    )


def _attempts(index: Index) -> Iterator[TaskState]:
    """Yield the builds that failed, are running or were interrupted."""
    logs = index.state / "logs"
    for path in _files(logs, _STARTED):
        attempt = _read(path)
        log = path.with_name(path.name.removesuffix(_STARTED) + ".log")
        if attempt is not None and not failure_path(log).exists():
            runs = is_held(lock_of(index, attempt.build_key))
            yield _of_attempt(
                attempt,
                log,
                state="running" if runs else "interrupted",
                seconds=_seconds(attempt.started_on, _now()) if runs else None,
                error=None if runs else attempt.stopped or None,
            )
    for path in _files(logs, _FAILED):
        attempt = _read(path)
        if attempt is not None:
            log = path.with_name(path.name.removesuffix(_FAILED) + ".log")
            yield _of_attempt(
                attempt,
                log,
                state="failed",
                finished=attempt.failed_on,
                error=attempt.message.partition("\n")[0],
                diagnosis=attempt.diagnosis,
                **_measured(attempt.measured, attempt.started_on, attempt.failed_on),
            )


def _of_attempt(attempt: _AttemptRecord, log: Path, **known: Any) -> TaskState:  # noqa: ANN401  fields
    return TaskState(
        key=attempt.build_key,
        name=attempt.name,
        version=attempt.version,
        inputs=attempt.inputs,
        node=attempt.node,
        started=attempt.started_on,
        log=_existing(log),
        **known,
    )


def _measured(
    measured: Mapping[str, float], started: datetime | None, finished: datetime | None
) -> dict[str, Any]:
    return {
        "cores": measured.get("jobs"),
        "seconds": measured.get("seconds", _seconds(started, finished)),
        "memory_gib": measured.get("memory_gib"),
        "cache_hits": measured.get("cache_hits"),
        "cache_misses": measured.get("cache_misses"),
    }


def _seconds(started: datetime | None, finished: datetime | None) -> float | None:
    return max(0.0, round((finished - started).total_seconds(), 1)) if started and finished else None


def _existing(path: Path) -> str | None:
    return str(path) if path.is_file() else None


def _files(directory: Path, suffix: str) -> Iterable[Path]:
    return sorted(path for path in directory.glob(f"*{suffix}") if not path.name.startswith("."))


def _read(path: Path) -> _AttemptRecord | None:
    """Return a record; None if it no longer exists or is damaged."""
    try:
        attempt = msgspec.convert(escaped(msgspec.json.decode(path.read_bytes())), _AttemptRecord)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    when = attempt.started_on if path.name.endswith(_STARTED) else attempt.failed_on
    return attempt if when else None


def _flat(inputs: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in inputs.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _now() -> datetime:
    return datetime.now(tz=UTC).replace(microsecond=0)
