"""The end of a deflated stream, unpacked without the rest: what is returned is true, whatever is unknown."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.wheels.deflate import unpacked_end

PART = 64  # bytes


def deflated(data: bytes, level: int = 6, strategy: int = zlib.Z_DEFAULT_STRATEGY) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS, strategy=strategy)
    return packer.compress(data) + packer.flush()


def like_an_object(seed: int, size: int) -> bytes:
    """Return data that compresses like machine code: new bytes, and copies of near and far ones."""
    rng = random.Random(seed)
    data = bytearray(rng.randbytes(1000))
    while len(data) < size:
        if rng.random() < 0.4:
            data += bytes(rng.choices(range(256), [1 + (byte % 16 == 0) * 30 for byte in range(256)], k=40))
        else:
            at = rng.randrange(max(0, len(data) - 60_000), len(data))
            data += data[at : at + rng.randint(3, 30)]
    return bytes(data)


def known_share(data: bytes, packed: bytes) -> float:
    """Return the share of the known parts in the last 20 kB; assert that each of them is right."""
    end = unpacked_end(packed, len(data))
    starts = range(len(data) - 20_000, len(data) - PART, PART)
    parts = {start: end(start, PART) for start in starts}
    assert all(part in {None, data[start : start + PART]} for start, part in parts.items())
    return sum(part is not None for part in parts.values()) / len(starts)


@pytest.mark.slow
@pytest.mark.parametrize("level", [1, 6, 9])
def test_end_of_a_long_stream(level: int) -> None:
    data = like_an_object(level, 1_500_000)
    packed = deflated(data, level)
    assert len(packed) > 400_000
    assert known_share(data, packed[-131_072:]) > 0.5
    assert known_share(data, packed) == 1  # from its start, nothing is unknown


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 9), st.integers(2_000, 60_000))
def test_what_is_known_is_right(seed: int, level: int, tail: int) -> None:
    """Also if the end is too short for a whole block, where wrong places may look like one."""
    data = like_an_object(seed, 120_000)
    strategy = random.Random(seed).choice([zlib.Z_DEFAULT_STRATEGY, zlib.Z_HUFFMAN_ONLY, zlib.Z_FIXED])
    known_share(data, deflated(data, level, strategy)[-tail:])


def test_noise_and_a_cut_stream_show_nothing() -> None:
    noise = random.Random(5).randbytes(40_000)
    assert unpacked_end(noise, 1 << 20)((1 << 20) - 10, 10) is None
    data = like_an_object(7, 100_000)
    assert unpacked_end(deflated(data)[:-3], len(data))(len(data) - 10, 10) is None
    assert unpacked_end(b"", 10)(0, 10) is None
