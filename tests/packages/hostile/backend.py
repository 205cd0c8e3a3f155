# mypy: ignore-errors
# ruff: noqa: ANN001, ANN002, ANN201, ANN202, ARG001, T201, PERF401
"""A build backend that writes a sound wheel, and then performs the actions in the variable HOSTILE."""

import base64
import hashlib
import os
import signal
import socket
import time
import zipfile
from pathlib import Path

INFO = "hostile-1.0.dist-info"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Write the wheel, and report the outcome of each action in a line that begins with ``@``."""
    wheel = Path(wheel_directory, "hostile-1.0-py3-none-any.whl")
    write_wheel(wheel, 0)
    for text in os.environ["HOSTILE"].split(";"):
        deed, *arguments = text.split("|")
        outcome = attempt(lambda deed=deed, arguments=arguments: globals()[deed](wheel, *arguments))
        print("@", deed, repr(outcome), flush=True)
    return wheel.name


def write_wheel(path, answer):
    """Write the wheel in one step."""
    source = Path("hostile/__init__.py").read_bytes().replace(b"ANSWER = 0", b"ANSWER = %d" % answer)
    members = {
        "hostile/__init__.py": source,
        f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: hostile\nVersion: 1.0\n",
        f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{name},sha256={digest(data)},{len(data)}" for name, data in members.items()]
    members[f"{INFO}/RECORD"] = "\n".join([*rows, f"{INFO}/RECORD,,", ""]).encode()
    new = path.with_suffix(f".{os.getpid()}")
    with zipfile.ZipFile(new, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    new.replace(path)


def digest(data):
    """Return a digest in the form of RECORD."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def daemon(act):
    """Run a function in a process that is neither a child of the build nor in its session."""
    if os.fork():
        os.wait()
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        act()
    finally:
        os._exit(0)


def rewrite(wheel, top):
    """Replace all copies of the wheel again and again, each time with another wheel."""

    def act():
        for answer in range(1, 1000):
            for path in [wheel, *Path(top).rglob("hostile-1.0-py3-none-any.whl")]:
                attempt(lambda path=path, answer=answer: write_wheel(path, answer))
            time.sleep(0.02)

    daemon(act)
    return "started"


def append(path, text):
    """Add text to a file; if the program is killed meanwhile, the file keeps its content."""
    with Path(path).open("a") as file:
        file.write(text)


def linger(wheel, *beacons):
    """Leave a daemon that changes files as long as it runs."""

    def act():
        until = time.monotonic() + 20
        while time.monotonic() < until:
            for path in beacons:
                attempt(lambda path=path: append(path, f"{time.monotonic()}\n"))
            time.sleep(0.02)

    daemon(act)
    until = time.monotonic() + 5
    while not all(map(os.path.exists, beacons)) and time.monotonic() < until:
        time.sleep(0.02)  # on a busy machine the build would end before the daemon's first change
    return "started"


def write(wheel, *paths):
    """Write to files outside of the build."""
    return [attempt(lambda path=path: Path(path).write_text("hostile")) for path in paths]


def read(wheel, *paths):
    """Read files and list directories outside of the build."""
    return [attempt(lambda path=path: look(Path(path))) for path in paths]


def look(path):
    """Return the content of a file, or the names in a directory."""
    return os.listdir(path) if path.is_dir() else path.read_bytes()


def attempt(function):
    """Return the outcome of a function, or its error."""
    try:
        return function()
    except OSError as error:
        return f"failed: {error}"


def kill(wheel, *processes):
    """Kill processes by their ids outside of the sandbox; return the number of foreign processes in /proc."""
    own = {os.getpid(), os.getppid(), 1}
    seen = {int(name) for name in os.listdir("/proc") if name.isdecimal()} - own
    for process in {*map(int, processes)}:
        attempt(lambda process=process: os.kill(process, signal.SIGKILL))
    return len(seen)


def connect(wheel, port, path):
    """Open connections to a port and to a Unix socket."""
    unix = socket.socket(socket.AF_UNIX)
    return [
        attempt(lambda: socket.create_connection(("127.0.0.1", int(port)), 5)),
        attempt(lambda: unix.connect(path)),
    ]


def layer(wheel):
    """Replace a module of a layer that the next builds use."""
    import packaging

    return attempt(lambda: Path(packaging.__file__).write_text("raise SystemExit('hostile')"))


def secrets(wheel, *words):
    """Search for words, given backwards, in processes, open files and configuration files; return counts."""
    texts = [repr(dict(os.environ))]
    for path in [*Path("/proc").glob("[0-9]*/environ"), *Path("/proc").glob("[0-9]*/cmdline")]:
        texts.append(str(attempt(lambda path=path: path.read_bytes())))
    for number in range(64):
        texts.append(str(attempt(lambda number=number: Path(f"/proc/self/fd/{number}").read_bytes())))
    files = ["~/.netrc", "~/.config/pip/pip.conf", "~/.pip/pip.conf", "/etc/pip.conf"]
    for path in files:
        texts.append(str(attempt(lambda path=path: Path(path).expanduser().read_bytes())))
    return [sum(word[::-1] in text for text in texts) for word in words]
