"""Past and running builds of an index, read from the files that builds leave in it.

- A built wheel has its provenance.
- A failed build has a record next to its log.
- A started build has a record next to its log, which the build removes when it ends. While it runs, it also
  holds the lock of its build key. If no process holds that lock, the record belongs to an interrupted build.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from platform import node
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from builders.build_directory import lock_of
from builders.files import write_atomic
from builders.lease import is_held
from builders.provenance import Statement, read_statement
from resolver.errors import ProvenanceError
from resolver.texts import Digest, Name, VersionText, escaped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from builders.index import Index
    from builders.plan import Task

_STARTED, _FAILED = ".started.json", ".failed.json"
_OF_THE_MACHINE = {"environment", "source", "internal"}
"""Ids of errors whose cause may be gone at the next attempt: a missing tool, no network, a full disk."""
_SHOWN_VALUE = 24  # characters
_SHOWN_CHANGES = 6
_NEVER = datetime.min.replace(tzinfo=UTC)

State = Literal["running", "built", "failed", "interrupted"]


class Change(msgspec.Struct, frozen=True):
    """An input that differs between two builds."""

    input: str
    """Its path in the inputs, such as ``recipe.environment.CFLAGS``."""
    before: Any
    after: Any
    """None if the build has no such input."""

    def __str__(self) -> str:
        """Return the input with its values, if they are short."""
        before, after = _shown(self.before), _shown(self.after)
        if max(len(before), len(after)) > _SHOWN_VALUE:
            return self.input
        return f"{self.input} {before} -> {after}"


class BuildRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One build. JSON output is this struct, encoded; None means that the value was not recorded."""

    name: str
    version: str
    build_key: str
    state: State
    node: str | None = None
    started: datetime | None = None
    finished: datetime | None = None
    seconds: float | None = None
    """For a running build, the time since its start."""
    memory_gib: float | None = None
    """Peak memory of all processes of the build."""
    cores: int | None = None
    """Compile jobs that the build could run at once."""
    cache_hits: int | None = None
    """Files that the compiler cache had."""
    cache_misses: int | None = None
    """Files that were compiled and added to the compiler cache."""
    log: str | None = None
    """Path, if the log still exists."""
    wheel: str | None = None
    error: str | None = None
    why: str = ""
    """Why the package was built again; empty for its first build."""
    changed: tuple[Change, ...] = ()
    """The inputs that differ from those of the previous build."""


class _Start(msgspec.Struct, kw_only=True):
    """The record of a started build."""

    name: Name
    version: VersionText
    build_key: Digest
    started_on: datetime
    node: str
    inputs: dict[str, Any]
    stopped: str = ""
    """Why the build was ended before it had finished, if that could be recorded."""
    schema: int = 1


class _Failure(msgspec.Struct, kw_only=True):
    """The fields that are read from the record of a failure."""

    name: Name
    version: VersionText
    build_key: Digest
    failed_on: datetime
    node: str
    message: str
    id: str = ""
    """Id of the error."""
    started_on: datetime | None = None
    inputs: dict[str, Any] = {}
    measured: dict[str, float | int] = {}


_Record = TypeVar("_Record", _Start, _Failure)


class _Build(msgspec.Struct, frozen=True):
    record: BuildRecord
    inputs: Mapping[str, Any]


def log_path(index: Index, name: str, build_key: str) -> Path:
    """Return the file with the output of the last attempt to build a wheel; its records are next to it."""
    return index.state / "logs" / f"{name}-{build_key[:12]}.log"


def failure_path(log: Path) -> Path:
    """Return the path of the record of a failed attempt, given the path of its log."""
    return log.with_suffix(_FAILED)


def record_start(task: Task, log: Path) -> None:
    """Record that a build has started; call this while holding the lock of its build key."""
    failure_path(log).unlink(missing_ok=True)
    start = _Start(
        name=task.pick.name,
        version=task.pick.pinned,
        build_key=task.build_key,
        started_on=_now(),
        node=node(),
        inputs=task.inputs,
    )
    write_atomic(log.with_suffix(_STARTED), msgspec.json.encode(start))


def record_stop(log: Path, why: str) -> None:
    """Record why a build was ended before it had finished."""
    path = log.with_suffix(_STARTED)
    start = _read(path, _Start)
    if start is not None:
        start.stopped = why
        write_atomic(path, msgspec.json.encode(start))


def take_start(log: Path) -> dict[str, Any]:
    """Remove the record of a start, and return its time and inputs for the record of the end."""
    path = log.with_suffix(_STARTED)
    start = _read(path, _Start)
    path.unlink(missing_ok=True)
    if start is None:
        return {}
    kept: dict[str, Any] = msgspec.to_builtins({"started_on": start.started_on, "inputs": start.inputs})
    return kept


def build_records(index: Index, names: Sequence[str] = ()) -> list[BuildRecord]:
    """Return the builds of an index, in the order in which they started.

    There is one record for each build key: the record of the wheel, or else of the last attempt.

    Parameters
    ----------
    names
        Only these packages, by normalized name; all if empty.
    """
    attempts = list(_attempts(index))
    records = []
    for project in names or sorted({*index.projects(), *(build.record.name for build in attempts)}):
        before: _Build | None = None
        for build in _history(index, project, attempts):
            records.append(_explained(build, before))
            before = build
    return sorted(records, key=_order)


def built_for(index: Index) -> set[tuple[str, str]]:
    """Return each package that was built, or failed to build, with the torch that it was built for."""
    attempts = list(_attempts(index))
    projects = {*index.projects(), *(build.record.name for build in attempts)}
    builds = (build for project in projects for build in _history(index, project, attempts))
    return {(build.record.name, str(build.inputs.get("torch", ""))) for build in builds}


def earlier_failure(task: Task, index: Index) -> str:
    """Return when and why the last build from the same inputs failed, as part of a sentence.

    The text is empty if that build did not fail, or failed for a reason outside its inputs, such as a missing
    tool.
    """
    failure = _read(failure_path(log_path(index, task.pick.name, task.build_key)), _Failure)
    if failure is None or failure.build_key != task.build_key or failure.id in _OF_THE_MACHINE:
        return ""
    return f"it failed on {failure.failed_on:%Y-%m-%d}: {failure.message.partition(chr(10))[0]}"


def changes_since_last_build(task: Task, index: Index) -> tuple[str, tuple[Change, ...]]:
    """Return the newest other build of a task's package, and the inputs that have changed since that build.

    The build is its name and version; empty if there is no other build.
    """
    history = _history(index, task.pick.name, list(_attempts(index)))
    others = [build for build in history if build.record.build_key != task.build_key]
    if not others:
        return "", ()
    last = others[-1]
    inputs = msgspec.json.decode(msgspec.json.encode(task.inputs))
    return f"{last.record.name} {last.record.version}", tuple(changed_inputs(last.inputs, inputs))


def changed_inputs(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    """Yield the inputs that differ, the version first.

    The version is compared without its label, which repeats other inputs; a new version has a new source.
    """
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
        yield Change(path, rows[0].get(path), rows[1].get(path))


def explain_changes(last: str, changes: Sequence[Change]) -> str:
    """Return the reason why a package is built again, as part of a sentence.

    Parameters
    ----------
    last
        Name and version of the previous build.
    changes
        The inputs that have changed since that build.
    """
    if not changes:
        return f"the index has no wheel with the inputs of {last}"
    shown = ", ".join(str(change) for change in changes[:_SHOWN_CHANGES])
    more = f" and {len(changes) - _SHOWN_CHANGES} more" if len(changes) > _SHOWN_CHANGES else ""
    return f"the inputs changed since {last}: {shown}{more}"


def _explained(build: _Build, before: _Build | None) -> BuildRecord:
    if before is None:
        return build.record
    changes = tuple(changed_inputs(before.inputs, build.inputs))
    last = f"{before.record.name} {before.record.version}"
    return msgspec.structs.replace(build.record, why=explain_changes(last, changes), changed=changes)


def _history(index: Index, project: str, attempts: Sequence[_Build]) -> list[_Build]:
    """Return the builds of a package in the order in which they started."""
    builds = {build.record.build_key: build for build in attempts if build.record.name == project}
    builds |= {build.record.build_key: build for build in _built(index, project)}
    return sorted(builds.values(), key=lambda build: _order(build.record))


def _order(record: BuildRecord) -> tuple[datetime, str]:
    return record.started or record.finished or _NEVER, record.name


def _built(index: Index, project: str) -> Iterator[_Build]:
    for wheel in index.published(project):
        with suppress(ProvenanceError):
            statement = read_statement(wheel.provenance)
            yield _Build(_built_record(index, project, wheel.path, statement), _inputs(statement))


def _inputs(statement: Statement) -> Mapping[str, Any]:
    inputs = statement.predicate.build_definition.internal_parameters.get("inputs")
    return inputs if isinstance(inputs, dict) else {}


def _built_record(index: Index, project: str, wheel: Path, statement: Statement) -> BuildRecord:
    run = statement.predicate.run_details
    metadata = run.metadata
    logs = [index.state / "logs" / item.name for item in run.byproducts if item.role == "log"]
    version = statement.predicate.build_definition.external_parameters.get("version", "")
    return BuildRecord(
        name=project,
        version=str(version),
        build_key=statement.build_key,
        state="built",
        node=metadata.node or None,
        started=metadata.started_on,
        finished=metadata.finished_on,
        log=_existing(logs[0]) if logs else None,
        wheel=str(wheel),
        **_measured(metadata.measured, metadata.started_on, metadata.finished_on),
    )


def _attempts(index: Index) -> Iterator[_Build]:
    """Yield the builds that failed, are running or were interrupted."""
    logs = index.state / "logs"
    for path in _files(logs, _STARTED):
        start = _read(path, _Start)
        log = path.with_name(path.name.removesuffix(_STARTED) + ".log")
        if start is not None and not failure_path(log).exists():
            yield _Build(_started_record(index, start, log), start.inputs)
    for path in _files(logs, _FAILED):
        failure = _read(path, _Failure)
        if failure is not None:
            log = path.with_name(path.name.removesuffix(_FAILED) + ".log")
            yield _Build(_failed_record(failure, log), failure.inputs)


def _started_record(index: Index, start: _Start, log: Path) -> BuildRecord:
    runs = is_held(lock_of(index, start.build_key))
    return BuildRecord(
        name=start.name,
        version=start.version,
        build_key=start.build_key,
        state="running" if runs else "interrupted",
        node=start.node,
        started=start.started_on,
        seconds=max(0.0, round((_now() - start.started_on).total_seconds(), 1)) if runs else None,
        log=_existing(log),
        error=None if runs else start.stopped or None,
    )


def _failed_record(failure: _Failure, log: Path) -> BuildRecord:
    return BuildRecord(
        name=failure.name,
        version=failure.version,
        build_key=failure.build_key,
        state="failed",
        node=failure.node,
        started=failure.started_on,
        finished=failure.failed_on,
        log=_existing(log),
        error=failure.message.partition("\n")[0],
        **_measured(failure.measured, failure.started_on, failure.failed_on),
    )


def _measured(
    measured: Mapping[str, float], started: datetime | None, finished: datetime | None
) -> dict[str, Any]:
    values: dict[str, Any] = {
        "cores": measured.get("jobs"),
        "seconds": measured.get("seconds"),
        "memory_gib": measured.get("memory_gib"),
        "cache_hits": measured.get("cache_hits"),
        "cache_misses": measured.get("cache_misses"),
    }
    if values["seconds"] is None and started and finished:
        values["seconds"] = round((finished - started).total_seconds(), 1)
    return values


def _existing(path: Path) -> str | None:
    return str(path) if path.is_file() else None


def _files(directory: Path, suffix: str) -> Iterable[Path]:
    return sorted(path for path in directory.glob(f"*{suffix}") if not path.name.startswith("."))


def _read(path: Path, kind: type[_Record]) -> _Record | None:
    """Return a record; None if it no longer exists or is damaged."""
    try:
        return msgspec.convert(escaped(msgspec.json.decode(path.read_bytes())), kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _flat(inputs: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in inputs.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _shown(value: Any) -> str:  # noqa: ANN401  an input is any JSON value
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return "none" if value in {None, ""} else str(value)


def _now() -> datetime:
    return datetime.now(tz=UTC).replace(microsecond=0)
