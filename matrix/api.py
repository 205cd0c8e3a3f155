"""The functions behind the public Python API and the command line; import them from `matrix`."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Literal, ParamSpec, TypedDict, TypeVar, Unpack

from msgspec.structs import replace

from matrix.input.settings import Settings, load_catalog
from resolver.errors import UsageError, did_you_mean
from resolver.reporter import SILENT, Reporter

if TYPE_CHECKING:
    from builders.building.plan import Task
    from builders.index_client import IndexClient
    from matrix.input.inputs import Inputs
    from resolver.facts.catalog import Catalog
    from resolver.model import Conflict, Request, Resolution

_P = ParamSpec("_P")
_T = TypeVar("_T")


class TargetOptions(TypedDict, total=False):
    """The arguments of `resolve` that name the target."""

    site: str | Path | None
    date: datetime.date | str | None
    backend: Literal["rocm", "cpu"] | None
    gfx: str | Sequence[str]
    driver: str | None
    rocm: str | None
    python: str | None
    base_image: str | Path | None
    prefer: Literal["advised", "newest", "proven", "oldest"]
    catalog: str | Path | Sequence[str | Path]


def public(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return a function that raises errors of the operating system as a `MatrixError`."""

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except OSError as error:
            from builders.storage.io_errors import explain_any_os_error

            raise explain_any_os_error(error) from error

    return call


@public
def resolve(requirements: str | Iterable[str], **target: Unpack[TargetOptions]) -> Resolution | Conflict:
    """Choose versions that work together, or explain why there are none.

    The result is deterministic: the same catalog and arguments give the same resolution.

    Parameters
    ----------
    requirements
        Requirements such as ``"torch>=2.4"`` or ``"flash-attn[triton]"``, or one of them.
    site
        A site of the catalog, or a TOML file that defines a site; by default ``lumi-g``, or ``local`` for the
        CPU backend and for GPU architectures that LUMI-G lacks.
    date
        The day for which to resolve, also as text (``"2026-03-01"``); by default today (UTC).
    backend
        By default the backend of the site.
    gfx
        GPU architectures, as a list or as text: ``"gfx90a,gfx942"``; by default the site's.
    driver, rocm, python
        Versions of the AMD kernel driver, ROCm (as a specifier) and Python (as a specifier).
    base_image
        A name from the catalog, or a file, which is then inspected.
    prefer
        Which solution to choose if there are several.
    catalog
        Files or directories of facts that overlay the shipped ones, or one of them.

    Raises
    ------
    TypeError
        An argument has another type, such as a number for a version; the message says what to write.
    UsageError
        Nothing is requested, or a name, a version or a file is not valid.
    NoVersionError
        No index has a project, or none of its versions is allowed.
    CatalogError
        A file of facts is not valid.
    CycleError
        The chosen distributions require each other in a cycle.
    SourceError
        An index, or the target of a direct reference, is broken or has another hash.
    MatrixError
        The inspection of `base_image` failed; the error names the log.
    TooLargeError
        The search reached its limit of steps.
    EnvironmentLacksError
        `base_image` cannot be inspected on this machine, a package index cannot be reached, or the cache
        cannot be written.
    """
    from builders.containers.inspection import with_inspected_image
    from matrix.input.locking import note_own
    from resolver.lock import dumps
    from resolver.model import Resolution

    settings = settings_of(requirements, target)
    today = datetime.datetime.now(tz=datetime.UTC).date()
    known = with_inspected_image(load_catalog(settings), settings.base_image)
    answer = resolve_settings(settings, known, today)
    if isinstance(answer, Resolution):
        note_own(dumps(answer))  # `build` uses whatever the user's own requests named
    return answer


def settings_of(requirements: str | Iterable[str], target: TargetOptions) -> Settings:
    """Return the settings that arguments name; raise `TypeError` for an unknown argument or a wrong type."""
    known = TargetOptions.__annotations__
    for name in target.keys() - known.keys():
        msg = f"Unknown argument {name!r}. {did_you_mean(name, known)}"
        raise TypeError(msg)
    names = _texts("gfx", target.get("gfx", ()), "gfx90a")
    return Settings(
        requirements=_texts("requirements", requirements, "torch>=2.4"),
        site=_optional("site", target.get("site"), "lumi-g"),
        date=_day(target.get("date")),
        backend=_choice("backend", target.get("backend"), ("rocm", "cpu")),
        gfx=[name.strip() for text in names for name in text.split(",")],
        driver=_optional("driver", target.get("driver"), "6.3"),
        rocm=_optional("rocm", target.get("rocm"), "6.4.*"),
        python=_optional("python", target.get("python"), "3.12"),
        base_image=_optional("base_image", target.get("base_image"), "lumi.sif"),
        prefer=_choice("prefer", target.get("prefer", "advised"), ("advised", "newest", "proven", "oldest")),
        catalog=_texts("catalog", target.get("catalog", ()), "facts.toml"),
    )


def text_of(name: str, value: object, example: str) -> str:
    """Return a text or path as text; raise `TypeError`, with an example, for anything else."""
    if isinstance(value, str | Path):
        return str(value)
    msg = f"{name} must be text, such as {example!r}, not {value!r}."
    raise TypeError(msg)


def _optional(name: str, value: object, example: str) -> str | None:
    return None if value is None else text_of(name, value, example)


def _choice(name: str, value: _T, choices: Sequence[str]) -> _T:
    if value is not None and value not in choices:
        msg = f"{name} cannot be {value!r}."
        raise UsageError(msg, hint=did_you_mean(str(value), choices))
    return value


def _texts(name: str, value: object, example: str) -> list[str]:
    if isinstance(value, str | Path):
        return [str(value)]
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return [text_of(f"Each of {name}", item, example) for item in value]
    return [text_of(name, value, example)]


def _day(value: datetime.date | str | None) -> datetime.date | None:
    if isinstance(value, datetime.datetime) or not isinstance(value, datetime.date | str | None):
        msg = f'date must be a day, such as "2026-02-25" or datetime.date(2026, 2, 25), not {value!r}.'
        raise TypeError(msg)
    if not isinstance(value, str):
        return value
    try:
        return datetime.date.fromisoformat(value)
    except ValueError:
        msg = f"{value!r} is not a valid date."
        raise UsageError(msg, hint='Use the form "2026-02-25".') from None


def resolve_settings(
    settings: Settings,
    catalog: Catalog,
    today: datetime.date,
    inputs: Inputs | None = None,
    *,
    request: Request | None = None,
    earlier: Resolution | None = None,
    reporter: Reporter = SILENT,
) -> Resolution | Conflict:
    """Resolve a request, by default the one that settings describe, with what was already read.

    The versions of an earlier resolution are kept where possible if its request was the same, or if the
    settings name distributions to upgrade in it. Files that were excluded in it stay excluded, and what the
    build backends of its sources have stated counts if its request was the same.
    """
    from matrix.input.inputs import read_inputs, with_stated_hashes
    from matrix.input.locking import check_ops, is_same_request, kept_versions
    from matrix.input.request import make_request
    from resolver.answers.resolve import resolve as solve
    from resolver.model import Conflict

    inputs = inputs or read_inputs(settings)
    request = request or make_request(settings, catalog, today, inputs)
    if earlier:
        request = replace(request, excluded=earlier.request.excluded)
    keep = {}
    if earlier and (settings.upgrade or is_same_request(earlier.request, request)):
        keep = kept_versions(earlier, settings.upgrade)
    if earlier and not settings.upgrade and is_same_request(earlier.request, request):
        request = replace(request, stated=earlier.request.stated)
    with reporter.task("resolve"):
        indexes = package_indexes(settings, inputs, reporter)
        answer = solve(catalog, request, indexes, keep=keep, reporter=reporter)
    if isinstance(answer, Conflict):
        return answer
    check_ops(answer, catalog)
    if indexes and (answer.left_open or any(pick.git and not pick.files for pick in answer.built())):
        answer = replace(answer, indexes=inputs.own_indexes())
    return with_stated_hashes(answer, inputs.hashes) if inputs.hashes else answer


def package_indexes(settings: Settings, inputs: Inputs, reporter: Reporter = SILENT) -> IndexClient | None:
    """Return the package indexes of settings, files and pip's configuration; None if there are none."""
    sources = inputs.package_sources()
    if not sources.indexes and not sources.find_links:
        return None
    from builders.index_client import IndexClient

    return IndexClient(
        sources.by_preference,
        find_links=sources.find_links,
        bound=inputs.bound,
        strategy=settings.index_strategy or "first-index",
        equal=() if settings.index_strategy else sources.equal,
        mirrors=settings.mirrors,
        offline=bool(settings.offline),
        reporter=reporter,
    )


@public
def read_lock(path: str | Path = "matrix.lock") -> Resolution:
    """Read a resolution from a lock file.

    Raise `LockError` if the file is missing, cannot be read, is not a lock, or was edited.
    """
    from resolver.lock import read_lock as read

    return read(Path(path))


@public
def write_lock(resolution: Resolution, path: str | Path = "matrix.lock") -> None:
    """Write a resolution to a lock file, atomically; it counts as a lock that this user wrote.

    Raise `EnvironmentLacksError` if the file cannot be written.
    """
    from builders.containers.image import with_pinned_image
    from builders.storage.files import write_atomic
    from matrix.input.locking import note_own
    from resolver.lock import dumps

    text = dumps(with_pinned_image(resolution, Path(path)))
    write_atomic(Path(path), text)
    note_own(text)


def check_build_hosts(tasks: Iterable[Task]) -> None:
    """Check, before the first build starts, that the host can build the tasks assigned to it."""
    from builders.machine.host import require_for_build

    on_host = [task for task in tasks if not task.pick.alias_of and task.build_host.runtime.image is None]
    if on_host:
        require_for_build(mpi=any(task.recipe.mpi for task in on_host))
