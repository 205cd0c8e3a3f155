"""Complete a lock before anything is compiled, with what the build backends of its sources require."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from msgspec.structs import replace

from builders.building.inputs import stated_by, texts_in, unmet
from builders.containers.image import with_pinned_image
from builders.wheels.wheel import DamagedError
from matrix.api import resolve_settings, write_lock
from matrix.building.planning import limits_of, report_failures, tasks_of
from matrix.command_line.conflict import show_conflict
from matrix.input.locking import catalog_with_image_of, changes
from resolver.model import INCOMPLETE, Conflict
from resolver.versions import join_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builders.building.plan import Task
    from builders.index import Index
    from matrix.command_line.context import Context
    from resolver.indexes import StatedMetadata
    from resolver.model import Resolution
    from resolver.reporter import Reporter

_MOST_ROUNDS = 4
"""How often the requirements of sources may add sources to the lock."""


def complete_lock(
    context: Context, index: Index, tasks: Sequence[Task], names: Sequence[str] = ()
) -> Context | None:
    """Return the context with the lock that `completed` returns; show a conflict, and return None.

    A changed lock is written to its file, atomically.
    """
    done = completed(context, index, tasks, names)
    if isinstance(done, Conflict):
        show_conflict(done, context, context.lock_path)
        return None
    if done is not context:
        write_lock(done.lock, context.lock_path)
        context.console.info(added(context.lock, done.lock))
    return done


def completed(
    context: Context,
    index: Index,
    tasks: Sequence[Task],
    names: Sequence[str] = (),
    reporter: Reporter | None = None,
) -> Context | Conflict:
    """Return the context with a lock that has what its sources require, or why there is none.

    `tasks` are those of `names` in the lock. A source whose wheel is in the index is read there. The build
    backends of all others are asked that have what they need, several at once; a source that is built with
    another build of ours waits for it. The same context means that nothing could be added.

    Raise `MatrixError` if a source or what its build needs cannot be fetched, or if its build script fails.
    """
    for _ in range(_MOST_ROUNDS):
        found = list(_stated(context, index, tasks, reporter or context.console))
        if not found:
            break
        answer = _with_stated(context, found)
        if isinstance(answer, Conflict):
            return answer
        if answer == context.lock:  # as if an index cannot be reached
            break
        context = context.with_lock(with_pinned_image(answer, context.lock_path))
        tasks = tasks_of(context, index, names)
    return context


def _stated(
    context: Context, index: Index, tasks: Sequence[Task], reporter: Reporter
) -> Iterator[StatedMetadata]:
    """Yield what the sources of a lock state, if it does not have that yet."""
    lock = context.lock
    known = {(one.source, one.requires) for one in lock.request.stated}
    to_ask: dict[str, Task] = {}
    for task in tasks:
        if task.pick.alias_of or not task.pick.source_digest:
            continue
        is_asked = task.pick.name in lock.incomplete
        if task.wheel is None:
            if is_asked and all(required.wheel for required in task.requires):
                to_ask[task.build_key] = task
        elif is_asked or any(unmet(lock, {task.pick.name: texts_in(task.wheel)})):
            one = _in_wheel(task)
            if one and (is_asked or (one.source, one.requires) not in known):
                yield one
    if to_ask:
        from builders.scheduling.local import Builds

        builds = Builds(to_ask, index, limits_of(context), reporter, only_ask=True)
        builds.run(keep_going=getattr(context.args, "keep_going", False))
        report_failures(builds, context)
        yield from chain.from_iterable(builds.stated.values())


def _in_wheel(task: Task) -> StatedMetadata | None:
    if not task.wheel:
        return None
    from builders.index_client.metadata import from_wheel

    try:
        return stated_by(task, from_wheel(task.wheel))
    except (DamagedError, OSError):
        return None


def _with_stated(context: Context, found: Sequence[StatedMetadata]) -> Resolution | Conflict:
    """Return the lock with what its sources state; its request is resolved again only if it lacks something.

    The versions of the lock are kept where possible, and its indexes count beside those of the settings.
    """
    lock, settings, path = context.lock, context.settings, context.lock_path
    names = {one.name: one for one in found}
    stated = {one.name: one for one in lock.request.stated} | names
    request = replace(lock.request, stated=tuple(stated[name] for name in sorted(stated)))
    left = tuple(name for name in lock.incomplete if name not in names)
    earlier = replace(lock, request=request, incomplete=left)
    has_extras = any(pick.extras for pick in lock.distributions if pick.name in names)
    if (
        not has_extras
        and not lock.left_open
        and not any(unmet(lock, {name: one.requires for name, one in names.items()}))
    ):
        notes = tuple(note for note in lock.notes if left or note.id != INCOMPLETE)
        return replace(earlier, notes=notes)
    own = {url.rstrip("/") for url in context.inputs.package_sources().indexes}
    files = (file for pick in lock.distributions for file in pick.files)
    others = [url for url in dict.fromkeys(file.index for file in files) if url.rstrip("/") not in {"", *own}]
    more = [*settings.extra_index_url, *others]
    context = context.with_settings(upgrade=(), extra_index_url=more)
    catalog = catalog_with_image_of(lock, path, settings, drafts=False)
    return resolve_settings(
        context.settings, catalog, context.today, context.inputs,
        request=request, earlier=earlier, reporter=context.console,
    )  # fmt: skip


def added(before: Resolution, after: Resolution) -> str:
    """Return what changed in a lock because of the requirements of sources."""
    known = {*before.request.stated}
    listed = join_words([one.name for one in after.request.stated if one not in known], joiner="and")
    rows = changes(before, after, None)
    if not rows:
        return f"The requirements of {listed} are in the lock."
    return "\n".join([f"The lock was completed with the requirements of {listed}:", *map(str, rows)])
