"""The section ``.hip_fatbin`` of a shared object: one offload bundle for each translation unit.

A plain bundle holds its code as it stands, which inflates to many times its size in the wheel. So
that nothing is inflated twice for it, `watch_bundles` reads plain bundles while their member goes by
for the first time, before it is known where the section lies; `read_code_objects` takes what was
seen there for those that the section turns out to hold, and reads the rest itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, BinaryIO

from builders.audit.bundles import (
    PACKED,
    PLAIN,
    Found,
    Problem,
    Stored,
    UnreadError,
    read_entries,
    read_packed,
)
from builders.audit.members import DamagedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builders.audit.codeobjects import CodeObject
    from builders.audit.members import Passing

_CHUNK = 1 << 16
_MOST_PROBLEMS = 20
_MOST_OBJECTS = 100_000  # flash-attn has some thousand
_MOST_COMPARED = 1 << 30  # bytes of compressed bundles that are unpacked to look at the objects


@dataclass(frozen=True, slots=True)
class Seen:
    """A plain bundle that was read in passing."""

    end: int
    """Where it ends, in bytes from the beginning of the shared object."""
    next: int
    """Where the zeros after it end."""
    found: Found = field(default_factory=Found)


def watch_bundles(passing: Passing) -> dict[int, Seen]:
    """Read the plain bundles of a shared object while it passes.

    Parameters
    ----------
    passing
        The shared object, from its beginning.

    Returns
    -------
    dict
        Where a bundle begins, in bytes from the beginning of the object, to what it holds. What only
        looks like a bundle is not there.
    """
    seen: dict[int, Seen] = {}
    objects = 0
    place = passing.find(PLAIN, 0)
    while place is not None and objects < _MOST_OBJECTS:
        found = Found()
        try:
            end = place + read_entries(passing.part(place), passing.size - place, found, place=place)
        except DamagedError:
            end = place + 1
        else:
            seen[place] = Seen(end, passing.skip_zeros(end), found)
            objects += len(found.objects)
        place = passing.find(PLAIN, end)
    return seen


def read_code_objects(
    stream: BinaryIO, start: int, size: int, seen: Mapping[int, Seen] | None = None
) -> tuple[list[CodeObject], list[Problem]]:
    """Read what GPU code a section holds.

    Parameters
    ----------
    stream
        The shared object, readable at any place.
    start, size
        The section's place in it, in bytes.
    seen
        What `watch_bundles` saw of the same object.

    Returns
    -------
    tuple
        The code objects in their order, and what could not be read or contradicts itself. Damage
        never ends the reading: it goes on with the next bundle.
    """
    section = _Section(stream, start, size, seen or {})
    section.read()
    return section.found.objects, section.found.problems


class _Section:
    """The reading of one section."""

    def __init__(self, stream: BinaryIO, start: int, size: int, seen: Mapping[int, Seen]) -> None:
        self._stream, self._start, self._size, self._seen = stream, start, size, seen
        self.found = Found()
        self._unpacked = 0
        self._by_names = False

    def read(self) -> None:
        """Walk from bundle to bundle; after damage go on where the next one seems to begin."""
        place = self._skip_padding(0)
        while place < self._size and len(self.found.problems) < _MOST_PROBLEMS:
            if len(self.found.objects) > _MOST_OBJECTS:
                text = f"there are more than {_MOST_OBJECTS} code objects, and the rest is not read"
                self.found.problems.append(Problem("fatbin-damaged", text, place))
                return
            place = self._seen_bundle(place) or self._bundle(place)
        if self._by_names:
            text = "bundles that would unpack to more than 1 GiB together were taken by their names alone"
            self.found.problems.append(Problem("names-only", text, 0))

    def _at(self, place: int, size: int) -> bytes:
        self._stream.seek(self._start + place)
        return self._stream.read(max(0, min(size, self._size - place)))

    def _skip_padding(self, place: int) -> int:
        """Find the next byte that is not zero."""
        while data := self._at(place, _CHUNK):
            kept = data.lstrip(b"\0")
            place += len(data) - len(kept)
            if kept:
                return place
        return self._size

    def _next_magic(self, place: int) -> int:
        """Find where the next bundle seems to begin."""
        overlap = len(PLAIN) - 1
        while data := self._at(place, _CHUNK):
            found = [at for at in (data.find(PLAIN), data.find(PACKED)) if at >= 0]
            if found:
                return place + min(found)
            place += max(len(data) - overlap, 1) if len(data) == _CHUNK else len(data)
        return self._size

    def _seen_bundle(self, place: int) -> int:
        """Take a bundle that was read in passing and give where the next one begins; 0 if it was not."""
        one = self._seen.get(self._start + place)
        if one is None or one.end > self._start + self._size:
            return 0
        self.found.objects += [replace(each, offset=place) for each in one.found.objects]
        self.found.problems += [replace(each, offset=place) for each in one.found.problems]
        return min(one.next - self._start, self._size)

    def _bundle(self, place: int) -> int:
        """Read one bundle and give where the next one begins."""
        try:
            end = place + self._length(place)
        except (DamagedError, UnreadError) as error:
            name = "fatbin-damaged" if isinstance(error, DamagedError) else "bundle-not-read"
            self.found.problems.append(Problem(name, str(error), place))
            end = self._next_magic(place + len(PACKED))
        return self._skip_padding(end)

    def _length(self, place: int) -> int:
        """Read one bundle and give its length."""
        magic, left = self._at(place, len(PLAIN)), self._size - place
        if magic == PLAIN:
            whole = Stored(self._stream, self._start + place, left)
            return read_entries(whole, left, self.found, place=place)
        if magic.startswith(PACKED):
            most = _MOST_COMPARED - self._unpacked
            length, promised = read_packed(
                self._stream, self._start + place, left, self.found, place=place, most=most
            )
            if promised <= most:
                self._unpacked += promised
            else:
                self._by_names = True
            return length
        msg = "there are bytes that are no offload bundle"
        raise DamagedError(msg)
