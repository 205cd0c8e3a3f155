"""No interleaving of publishers takes an acknowledged wheel from a page, also if any of them is killed.

The processes are functions that call the product's `prepare` and `commit` over a small file system. Each of
its operations is one step. The explorer visits every state that any order of steps can reach: a process that
is killed is one that takes no further step, so every state is also one in which any of them was killed.

A process is not suspended but run again from its start with the results that it got before, until it asks for
an operation that it has not had: so the function itself is explored, not a translation of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest

from builders.index.replacing import commit, prepare

Wheels = frozenset[str]
Step = tuple[Any, ...]


class Disk(NamedTuple):
    """One directory. Values are immutable, so that states can be compared."""

    wheels: Wheels = frozenset()
    pages: tuple[tuple[str, Wheels], ...] = ()
    announced: tuple[tuple[str, Wheels], ...] = ()


class WantsStep(BaseException):
    """A process asks for its next step."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step = step


class Pages:
    """The pages as a process sees them: the results of earlier steps, then a request for the next."""

    def __init__(self, process: int, results: tuple[Any, ...]) -> None:
        self.process = process
        self.results = results
        self.at = 0
        self.made = 0
        self.listed = 0

    def step(self, *step: Any) -> Any:
        if self.at == len(self.results):
            raise WantsStep(step)
        self.listed = self.at if step == ("list",) else self.listed
        self.at += 1
        return self.results[self.at - 1]

    def announce(self, page: str) -> str:
        self.made += 1
        name = f"{self.process}.{self.made}.{page}"
        self.step("create", name)
        return name

    def fill(self, name: str, page: str, text: Any) -> None:  # noqa: ARG002
        self.step("fill", name, text)

    def rename(self, name: str, page: str) -> bool:
        return bool(self.step("rename", name, page))

    def remove(self, name: str) -> None:
        self.step("remove", name)

    def announced(self) -> Collection[str]:
        found: Collection[str] = self.step("announced")
        return found

    def has_content(self, page: str, text: Any) -> bool:
        return bool(self.step("read", page) == text)

    def texts(self, adding: str = "") -> Mapping[str, Any]:
        there = self.step("list") | ({adding} if adding else set())
        return dict.fromkeys(PAGES, there)

    def link(self, wheel: str) -> bool:
        return bool(self.step("link", wheel))


PAGES: tuple[str, ...] = ()
"""The names of the pages, set by each test."""


def outcomes(disk: Disk, step: Step, *, loses_replies: bool) -> Iterator[tuple[Any, Disk]]:
    """Yield each result that a step can have, and the disk afterwards.

    NFS repeats a request whose reply was lost: a link or rename that was done is then reported as impossible.
    """
    match step:
        case ("list",):
            yield disk.wheels, disk
        case ("announced",):
            yield tuple(name for name, _ in disk.announced), disk
        case ("create", name):
            yield None, put(disk, name, frozenset())
        case ("fill", name, text):
            yield None, put(disk, name, text) if name in dict(disk.announced) else disk
        case ("create and fill", name, text):
            yield None, put(disk, name, text)
        case ("remove", name):
            yield None, disk._replace(announced=without(disk.announced, name))
        case ("read", page):
            yield dict(disk.pages).get(page, frozenset()), disk
        case _:
            done, after = attempt(disk, step)
            yield done, after
            if done and loses_replies:
                yield False, after


def attempt(disk: Disk, step: Step) -> tuple[bool, Disk]:
    """Return whether a link or a rename succeeds, and the disk afterwards."""
    match step:
        case ("link", wheel):
            return wheel not in disk.wheels, disk._replace(wheels=disk.wheels | {wheel})
        case ("rename", name, page):
            if name not in dict(disk.announced):
                return False, disk
            pages = (*without(disk.pages, page), (page, dict(disk.announced)[name]))
            return True, Disk(disk.wheels, tuple(sorted(pages)), without(disk.announced, name))
    raise AssertionError(step)


def put(disk: Disk, name: str, text: Wheels) -> Disk:
    return disk._replace(announced=tuple(sorted((*without(disk.announced, name), (name, text)))))


def without(rows: tuple[tuple[str, Wheels], ...], name: str) -> tuple[tuple[str, Wheels], ...]:
    return tuple(row for row in rows if row[0] != name)


Process = Callable[[Pages], str]
"""It returns the wheel that it acknowledges, empty for none."""


class Explored(NamedTuple):
    states: int
    lost: str
    """How a page lost an acknowledged wheel; empty if none did."""


class Local(NamedTuple):
    """A process between two steps. Equal values behave equally from here on."""

    step: Step | None
    """The next step; None if it has ended."""
    wheel: str
    """The wheel that it has acknowledged, if it has ended."""
    key: tuple[Any, ...]


def local_state(process: Process, number: int, results: tuple[Any, ...]) -> Local:
    """Run a process with the results of its earlier steps.

    What it remembers is where it stands, how many files it has announced, and what it was told since it last
    read the directory: everything older only decided where it stands.
    """
    pages = Pages(number, results)
    try:
        return Local(None, wheel := process(pages), ("ended", wheel))
    except WantsStep as wanted:
        places, trace = [], wanted.__traceback__
        while trace is not None:
            places.append((trace.tb_frame.f_code.co_name, trace.tb_lasti))
            trace = trace.tb_next
        return Local(wanted.step, "", (*places, pages.made, results[pages.listed :]))


def commutes(step: Step, disk: Disk) -> bool:
    """Return whether a step has the same effect whenever it is taken, so that its order need not be tried.

    Nobody reads an announced file, and a file that is gone does not come back.
    """
    return step[0] == "fill" or (step[0] == "remove" and step[1] not in dict(disk.announced))


def explore(processes: Sequence[Process], *, loses_replies: bool = False) -> Explored:
    """Visit all states, until one breaks the invariant."""
    begin = [local_state(process, number, ()) for number, process in enumerate(processes)]
    start = Disk(), tuple(begin)
    seen = {(start[0], tuple(local.key for local in begin))}
    left: list[tuple[Disk, tuple[Local, ...], tuple[tuple[Any, ...], ...]]]
    left = [(*start, tuple(() for _ in processes))]
    while left:
        disk, locals_, histories = left.pop()
        for local in locals_:
            for page in PAGES:
                if local.wheel and local.wheel not in dict(disk.pages).get(page, ()):
                    return Explored(len(seen), f"{page} lacks {local.wheel}: {disk}")
        for number, local in enumerate(locals_):
            if local.step is None:
                continue
            for result, then in outcomes(disk, local.step, loses_replies=loses_replies):
                after: Disk = then
                history: tuple[Any, ...] = (*histories[number], result)
                moved = local_state(processes[number], number, history)
                while moved.step is not None and commutes(moved.step, after):
                    ((_, after),) = outcomes(after, moved.step, loses_replies=False)
                    history = (*history, None)
                    moved = local_state(processes[number], number, history)
                changed = (*locals_[:number], moved, *locals_[number + 1 :])
                key = after, tuple(each.key for each in changed)
                if key not in seen:
                    seen.add(key)
                    left.append((after, changed, (*histories[:number], history, *histories[number + 1 :])))
    return Explored(len(seen), "")


def publish(wheel: str, pages: Pages) -> str:
    """Publish as `Index.publish` does."""
    announced = prepare(pages, PAGES, partial(pages.texts, wheel))
    if not pages.link(wheel):
        announced = {}
    commit(pages, PAGES, pages.texts, announced)
    return wheel


def refresh(pages: Pages) -> str:
    """Bring the pages up to date as `Index.refresh` does, which no change precedes."""
    commit(pages, PAGES, pages.texts)
    return ""


ONE, TWO = ("html",), ("json", "html")


@pytest.mark.parametrize(
    ("names", "wheels", "loses_replies"),
    [
        (ONE, "ab", False),
        (ONE, "ab", True),
        (ONE, "aa", True),
        (TWO, "ab", False),
        pytest.param(TWO, "aa", True, marks=pytest.mark.slow),
        pytest.param(ONE, "ab.", False, marks=pytest.mark.long),
    ],
)
def test_acknowledged_wheels_stay(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], wheels: str, *, loses_replies: bool
) -> None:
    """Each letter is a publisher of that wheel, a dot a process that only refreshes."""
    monkeypatch.setitem(globals(), "PAGES", names)
    processes = [refresh if wheel == "." else partial(publish, wheel) for wheel in wheels]
    explored = explore(processes, loses_replies=loses_replies)
    assert explored.lost == ""
    assert explored.states > 300


def publish_as_before(wheel: str, pages: Pages) -> str:
    """Publish in the order of earlier versions, which looked at the pages again after they were replaced."""
    texts = pages.texts(wheel)
    prepared = {page: pages.announce(page) for page in PAGES}
    for page, name in prepared.items():
        pages.fill(name, page, texts[page])
    pages.link(wheel)
    while True:
        for page, name in prepared.items():
            pages.rename(name, page)
        if pages.texts() == texts and all(pages.has_content(page, texts[page]) for page in PAGES):
            return wheel
        texts = pages.texts()
        prepared = {page: pages.announce(page) for page in PAGES}
        for page, name in prepared.items():
            pages.fill(name, page, texts[page])


class RevokesNothing(Pages):
    def announced(self) -> Collection[str]:
        return ()


class CreatesAgain(Pages):
    """Write an announced file by its name, as `Path.write_bytes` does."""

    def fill(self, name: str, page: str, text: Any) -> None:  # noqa: ARG002
        self.step("create and fill", name, text)


class ReadsFirst(Pages):
    """Read the directory before a page is announced."""

    def announce(self, page: str) -> str:
        self.read = super().texts("")
        return super().announce(page)

    def texts(self, adding: str = "") -> Mapping[str, Any]:
        read = getattr(self, "read", None) or super().texts()
        return {page: there | ({adding} if adding else set()) for page, there in read.items()}


def publish_with(kind: type[Pages], wheel: str, pages: Pages) -> str:
    return publish(wheel, kind(pages.process, pages.results))


def publish_revoking_early(wheel: str, pages: Pages) -> str:
    """Revoke before the wheel is linked."""
    announced = prepare(pages, PAGES, partial(pages.texts, wheel))
    for name in pages.announced():
        if name not in announced.values():
            pages.remove(name)
    pages.link(wheel)
    for page, name in announced.items():
        if not pages.rename(name, page):
            return refresh(pages) or wheel
    return wheel


@pytest.mark.parametrize(
    "faulty",
    [
        publish_as_before,
        publish_revoking_early,
        partial(publish_with, RevokesNothing),
        partial(publish_with, CreatesAgain),
        partial(publish_with, ReadsFirst),
    ],
    ids=["as before", "revokes early", "revokes nothing", "creates again", "reads first"],
)
def test_faulty_orders_are_found(
    monkeypatch: pytest.MonkeyPatch, faulty: Callable[[str, Pages], str]
) -> None:
    monkeypatch.setitem(globals(), "PAGES", ONE)
    assert "html lacks" in explore([partial(faulty, wheel) for wheel in "ab"]).lost
