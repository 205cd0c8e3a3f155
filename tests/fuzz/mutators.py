"""Change valid inputs a little: trees of data, texts, and binary files."""

from __future__ import annotations

import copy
import datetime
import struct
from random import Random
from typing import Any

from tests.support.hostile import INVISIBLE, VISIBLE, places, with_text

TEXTS = (
    "", " ", "\0", "'", '"', "\n", "\r", "[", "]]", "(" * 300, "{", "}", "é", "\u0663", "\u202e",
    "1e400", "-1", "9" * 5000, "../../etc/passwd", "/" * 300, "a" * 300, "==", "==1.*", "===x", ">=1,<1",
    "~=1", "!=", "\x1b[31m", "https://", "https://[", "file:///", "git+https://", "@", ";", "*", "1.0+local",
    "1!2.0", "#", "%", "%s", "<", ">", "</a>", "&#0;", "&amp;", "\\", "\\u", "extra == 'x'", " and ",
    "${X}", "$(id)", "- ", ": ", "&a ", "*a", "!!python/x", "--hash=", "-r ", "-e ", "nan", "true",
    "2026-01-01", "rocm", "gfx90a",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    0, 1, -1, 2**31, 2**63 - 1, 1.5, float("inf"), float("nan"), True, "", "x", [], [[]], {}, {"": ""},
    datetime.date(1, 1, 1), datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), datetime.time(0), ["x"] * 50,
)  # fmt: skip
NUMBERS = (0, 1, 2, 3, 7, 8, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
LARGE_NUMBERS = (*NUMBERS, 2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 1)


def tree(random: Random, value: Any) -> Any:
    """Return nested dictionaries and lists with one to three changes."""
    root = [copy.deepcopy(value)]
    for _ in range(random.randint(1, 3)):
        place, key = _place(random, root)
        _change(random, place, key)
    return root[0] if isinstance(root[0], dict) else value


def _place(random: Random, root: list[Any]) -> tuple[Any, Any]:
    """Return a random dictionary or list below the root, and one of its keys."""
    place: Any = root
    key: Any = 0
    while isinstance(place[key], dict | list) and place[key] and random.random() < 0.85:
        place = place[key]
        key = random.choice(list(place)) if isinstance(place, dict) else random.randrange(len(place))
    return place, key


def _change(random: Random, place: Any, key: Any) -> None:
    old, kind = place[key], random.randrange(6)
    if kind == 0:
        place[key] = copy.deepcopy(random.choice(VALUES))
    elif kind == 1 and isinstance(place, dict):
        del place[key]
    elif kind == 1 and len(place) > 1:
        place.pop(key)
    elif kind == 2 and isinstance(place, dict):
        place[text(random, str(key))] = place.pop(key)
    elif kind == 3 and isinstance(place, list):
        place.append(copy.deepcopy(old))
    elif isinstance(old, str):
        place[key] = text(random, old)
    elif isinstance(old, int):
        place[key] = random.choice((old + 1, -old, *LARGE_NUMBERS[:17]))
    else:
        place[key] = [old]


def strangers_texts(random: Random, value: Any) -> Any:
    """Return nested data with one to three texts replaced by hostile ones, most of them visible."""
    found = list(places(value))
    for place in random.sample(found, min(random.choice((1, 1, 1, 2, 3)), len(found))):
        hostile = random.choice(INVISIBLE if random.random() < 0.1 else VISIBLE)
        if random.random() < 0.2:
            hostile = text(random, hostile, 1)
        value = with_text(value, place, hostile)
    return value


def text(random: Random, old: str, most: int = 3) -> str:
    """Return a text with some insertions, deletions, repetitions and exchanges."""
    for _ in range(random.randint(1, most)):
        start = random.randint(0, len(old))
        end = min(len(old), start + random.choice((0, 1, 1, 2, 5, 20)))
        kind = random.randrange(5)
        if kind == 0:
            old = old[:start] + random.choice(TEXTS) + old[start:]
        elif kind == 1:
            old = old[:start] + old[end:]
        elif kind == 2:
            old = old[:end] + old[start:end] * random.choice((1, 2, 30)) + old[end:]
        elif kind == 3:
            other = random.randint(0, len(old))
            old = old[:start] + old[other : other + end - start] + old[end:]
        else:
            old = old[:start] + random.choice(TEXTS) + old[end:]
    return old


def lines(random: Random, old: str) -> str:
    """Return a text with some lines changed, removed, repeated or moved."""
    parts = old.split("\n")
    for _ in range(random.randint(1, 4)):
        at, kind = random.randrange(len(parts)), random.randrange(6)
        if kind == 0 and len(parts) > 1:
            del parts[at]
        elif kind == 1:
            parts.insert(random.randint(0, len(parts)), parts[at])
        elif kind == 2:
            parts[at : at + 1] = [parts[at]] * random.choice((2, 50))
        else:
            parts[at] = text(random, parts[at], 2)
    return "\n".join(parts)


def data(random: Random, old: bytes, *, most: int = 4) -> bytes:
    """Return bytes with numbers overwritten, and pieces inserted, removed or repeated."""
    new = bytearray(old)
    for _ in range(random.randint(1, most)):
        at, kind = random.randint(0, max(0, len(new) - 8)), random.randrange(12)
        if kind < 8:
            size, layout = random.choice(((1, "<B"), (2, "<H"), (4, "<I"), (8, "<Q"), (4, ">I")))
            at -= at % size if random.random() < 0.8 else 0
            value = random.choice((*LARGE_NUMBERS, len(new), len(new) - 1, random.randrange(4096)))
            new[at : at + size] = struct.pack(layout, value % 2 ** (8 * size))
        elif kind == 8:
            new[at : at + random.randint(1, 16)] = b""
        elif kind == 9:
            new[at:at] = new[at : at + random.randint(1, 64)] * random.choice((1, 3))
        elif kind == 10:
            new[at : at + 4] = random.randbytes(4)
        elif random.random() < 0.3:
            del new[at:]
    return bytes(new)
