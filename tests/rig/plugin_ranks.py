"""Use a network plugin as RCCL does, as one of two ranks: plugin_ranks.py PLUGIN FOLDER RANK.

It stands in for RCCL: it loads the library as RCCL does (dlopen with RTLD_NOW and RTLD_LOCAL), calls version
8 of the interface in the same order, and sends 1 MiB of host memory from rank 0 to rank 1. The ranks exchange
the handle in a file of FOLDER. The last line of the output is what was sent or received. No GPU is used.
"""

from __future__ import annotations

import ctypes as c
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HANDLE, HOST, BYTES, TAG = 128, 1, 2**20, 7
LONGEST = 60.0
DATA = bytes(number % 251 for number in range(BYTES))
P, INT = c.c_void_p, c.c_int
LOGGER = c.CFUNCTYPE(None, INT, c.c_ulong, c.c_char_p, INT, c.c_char_p)


def of(*arguments: Any) -> Any:
    """Return the type of a function of the interface, which returns 0 if it worked."""
    return c.CFUNCTYPE(INT, *arguments)


class Properties(c.Structure):
    """The properties of a network device."""

    _fields_ = (
        ("name", c.c_char_p), ("pci_path", c.c_char_p), ("guid", c.c_uint64), ("pointers", INT),
        ("global_registration", INT), ("speed", INT), ("port", INT), ("latency", c.c_float),
        ("communicators", INT), ("receives", INT), ("device_type", INT), ("device_version", INT),
    )  # fmt: skip


class Interface(c.Structure):
    """Version 8 of RCCL's network interface."""

    _fields_ = (
        ("name", c.c_char_p), ("init", of(LOGGER)), ("devices", of(P)), ("properties", of(INT, P)),
        ("listen", of(INT, P, P)), ("connect", of(INT, P, P, P)), ("accept", of(P, P, P)),
        ("register", of(P, P, c.c_size_t, INT, P)), ("register_dma_buf", P), ("deregister", of(P, P)),
        ("send", of(P, P, INT, INT, P, P)), ("receive", of(P, INT, P, P, P, P, P)), ("flush", P),
        ("test", of(P, P, P)), ("close_send", of(P)), ("close_receive", of(P)), ("close_listen", of(P)),
        ("device_registration", P), ("consumed", P),
    )  # fmt: skip


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def checked(what: str, result: int) -> None:
    if result:
        sys.exit(f"{what} returned {result}")


def until(what: str, is_made: Callable[[], object]) -> None:
    """Wait until a function that does not block has made something."""
    end = time.monotonic() + LONGEST
    while not is_made():
        if time.monotonic() > end:
            sys.exit(f"{what} made nothing in {LONGEST:.0f} s")


def made(what: str, call: Callable[..., int], *arguments: object) -> c.c_void_p:
    """Call a function until it makes the object to which its last argument points."""
    pointer = P()

    def is_made() -> object:
        checked(what, call(*arguments, c.byref(pointer)))
        return pointer.value

    until(what, is_made)
    return pointer


def completed(net: Interface, request: c.c_void_p) -> int:
    """Wait for a request, and return its size in bytes."""
    done, size = INT(), INT()

    def is_done() -> object:
        checked("test", net.test(request, c.byref(done), c.byref(size)))
        return done.value

    until("test", is_done)
    return size.value


def send(net: Interface, shared: Path) -> None:
    """Connect to the other rank, and send the data."""
    until("the other rank", shared.exists)
    handle = c.create_string_buffer(shared.read_bytes(), HANDLE)
    to = made("connect", lambda pointer: net.connect(0, handle, pointer, None))
    data = c.create_string_buffer(DATA, BYTES)
    registered = P()
    checked("regMr", net.register(to, data, BYTES, HOST, c.byref(registered)))
    say(f"sent {completed(net, made('isend', net.send, to, data, BYTES, TAG, registered))} bytes")
    checked("deregMr", net.deregister(to, registered))
    checked("closeSend", net.close_send(to))


def receive(net: Interface, shared: Path) -> None:
    """Listen for the other rank, and receive the data."""
    handle, listening, registered = c.create_string_buffer(HANDLE), P(), P()
    checked("listen", net.listen(0, handle, c.byref(listening)))
    shared.with_suffix(".new").write_bytes(handle.raw)
    shared.with_suffix(".new").rename(shared)
    source = made("accept", lambda pointer: net.accept(listening, pointer, None))
    data = c.create_string_buffer(BYTES)
    checked("regMr", net.register(source, data, BYTES, HOST, c.byref(registered)))
    buffers, sizes, tags = (P * 1)(c.addressof(data)), (INT * 1)(BYTES), (INT * 1)(TAG)
    handles = (P * 1)(registered.value)
    size = completed(net, made("irecv", net.receive, source, 1, buffers, sizes, tags, handles))
    say(f"received {size} bytes, {'all as sent' if data.raw == DATA else 'NOT as sent'}")
    checked("deregMr", net.deregister(source, registered))
    checked("closeRecv", net.close_receive(source))
    checked("closeListen", net.close_listen(listening))


def main(plugin: str, folder: str, rank: str) -> None:
    def log(*message: Any) -> None:
        sys.stderr.write(f"[{rank}] {message[-1].decode()}\n")

    logger = LOGGER(log)
    net = Interface.in_dll(c.CDLL(plugin, mode=os.RTLD_NOW | os.RTLD_LOCAL), "ncclNetPlugin_v8")
    checked("init", net.init(logger))
    devices, properties = INT(), Properties()
    checked("devices", net.devices(c.byref(devices)))
    checked("getProperties", net.properties(0, c.byref(properties)))
    say(f"{net.name.decode()}: {devices.value} devices, the first is {properties.name.decode()}")
    (receive if rank == "1" else send)(net, Path(folder, "handle"))


if __name__ == "__main__":
    main(*sys.argv[1:])
