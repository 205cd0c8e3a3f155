"""The server under load: many connections, a third of them stalled, in constant memory."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from builders.index import Index

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
MakeWheel = Callable[..., Path]
CONNECTIONS = 500
REQUESTS = 10_000
CLIENTS = [f"127.0.0.{number}" for number in range(2, 7)]
BIG = "big-1.0-py3-none-any.whl"
_MEMORY = 64 << 20  # bytes; the sockets' buffers are in the kernel
_SLOWEST = 20.0
"""Seconds for one answer while all connections are busy."""


@pytest.fixture
def served(tmp_path: Path, make_wheel: MakeWheel) -> Iterator[tuple[str, int]]:
    """Yield the address of a server and the id of its process."""
    index = Index(tmp_path / "index")
    index.publish(make_wheel("tiny", "1.0"), {})
    with (index.simple / "tiny" / BIG).open("wb") as file:
        file.truncate(1 << 30)
    command = [sys.executable, "-m", "matrix", "index", "serve", "--port", "0", "--index", str(index.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process.pid
        process.terminate()


def memory(pid: int) -> int:
    """Return the peak memory of a process in bytes."""
    (kilobytes,) = re.findall(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(kilobytes) << 10


def request(path: str, header: str = "Accept: */*") -> bytes:
    return f"GET /simple/{path} HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n".encode()


STALLED = [b"", request("")[:-10], request(f"tiny/{BIG}"), request(f"tiny/{BIG}", "Range: bytes=1-900000000")]
ANSWERED = [
    (request(""), 200),
    (request("tiny/"), 200),
    (request("tiny/", "Accept: application/vnd.pypi.simple.v1+json"), 200),
    (request("tiny/tiny-1.0-py3-none-any.whl"), 200),
    (request("tiny/tiny-1.0-py3-none-any.whl.metadata"), 200),
    (request(f"tiny/{BIG}", "Range: bytes=1000-1999"), 206),
    (request("nothing/"), 404),
    (request("tiny/%00"), 400),
]


async def ask(host: str, port: int, number: int, times: int) -> tuple[int, float]:
    """Send requests over one connection; return the number of answers, and the longest wait in seconds."""
    reader, writer = await asyncio.open_connection(host, port, local_addr=(CLIENTS[number % len(CLIENTS)], 0))
    longest = 0.0
    for turn in range(times):
        sent, status = ANSWERED[(number + turn) % len(ANSWERED)]
        began = time.monotonic()
        writer.write(sent)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        assert int(head.split()[1]) == status, head
        (length,) = re.findall(r"^Content-Length: (\d+)", head, re.MULTILINE)
        await reader.readexactly(int(length))
        longest = max(longest, time.monotonic() - began)
    writer.close()
    return times, longest


async def load(host: str, port: int, requests: int) -> tuple[int, float]:
    """Stall a third of all connections, and use the others."""
    stalled = CONNECTIONS // 3
    active = CONNECTIONS - stalled
    writers = []
    for number in range(stalled):
        local = CLIENTS[number % len(CLIENTS)], 0
        _, writer = await asyncio.open_connection(host, port, local_addr=local, limit=1 << 10)
        writer.write(STALLED[number % len(STALLED)])
        writers.append(writer)
    times = -(-requests // active)
    answers = await asyncio.gather(*(ask(host, port, number, times) for number in range(active)))
    for writer in writers:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return sum(count for count, _ in answers), max(longest for _, longest in answers)


def test_stalled_connections_do_not_slow_others(served: tuple[str, int]) -> None:
    address, pid = served
    where = urlsplit(address)
    host, port = where.hostname or "", where.port or 0
    asyncio.run(load(host, port, REQUESTS // 5))  # the connections need memory, which depends on their number
    before, began = memory(pid), time.monotonic()
    answered, longest = asyncio.run(load(host, port, REQUESTS))
    duration = time.monotonic() - began
    print(f"{answered} answers in {duration:.1f} s, the slowest in {longest:.2f} s")  # noqa: T201
    assert answered >= REQUESTS
    assert longest < _SLOWEST
    assert memory(pid) - before < _MEMORY
