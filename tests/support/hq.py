"""The program ``hq``, with the real server and worker of HyperQueue's wheel. STAND-IN for its command line.

The wheel has everything but the command line. This module replaces the command line: it parses arguments and
job definition files, prints JSON, and sends the real messages to the server. The worker of the wheel offers
no memory, so requests for memory are left out.

Source: It4innovations/hyperqueue@680857bd: crates/hyperqueue/src/transfer/messages.rs, server/job.rs and
client/output/json.rs; crates/tako/src/internal/transfer/auth.rs.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OPTION, LIST, MAP, ENUM = "option", "list", "map", "enum"
_DATE = "str"
_STARTED = {"start_date": _DATE, "instance": "I", "worker_ids": (LIST, "I"), "variant": "B"}
_CANCELED = {"started": (OPTION, _STARTED), "date": _DATE}
_TASK_STATE = (
    ENUM,
    {
        "waiting": {},
        "running": {"started": _STARTED},
        "finished": {"started": _STARTED, "date": _DATE},
        "failed": {"started": (OPTION, _STARTED), "date": _DATE, "error": "str"},
        "canceled": _CANCELED,
        "aborted": _CANCELED,
    },
)
_INFO = {
    "id": "I", "name": "str", "n_tasks": "I",
    "running": "I", "finished": "I", "failed": "I", "canceled": "I", "aborted": "I",
    "is_open": "B", "cancel_reason": (OPTION, "str"), "running_tasks": (LIST, "I"),
}  # fmt: skip
_STDIO: Any = (
    ENUM,
    {"null": {}, "file": {"path": "str", "on_close": (ENUM, {"none": {}, "rm": {}})}, "pipe": {}},
)
_AMOUNT = {"amount": "Q"}
_POLICY = (
    ENUM,
    {**dict.fromkeys(("compact", "tight", "scatter", "force-compact", "force-tight"), _AMOUNT), "all": {}},
)
_REQUEST = {
    "n_nodes": "I",
    "resources": (LIST, {"resource": "str", "policy": _POLICY}),
    "min_seconds": "Q",
    "min_nanoseconds": "I",
    "weight": "I",
}
_TASK = {
    "id": "I",
    "request": "I",
    "kind": (
        ENUM,
        {
            "program": {
                "args": (LIST, "str"), "env": (MAP, "str"), "stdout": _STDIO, "stderr": _STDIO,
                "stdin": "str", "cwd": "str", "pin": (ENUM, {"none": {}}), "dir": "B",
            }
        },
    ),
    "time_limit": (OPTION, {"seconds": "Q", "nanoseconds": "I"}),
    "priority": "i",
    "crash_limit": (ENUM, {"never": {}, "max": {"count": "H"}, "unlimited": {}}),
    "deps": (LIST, "I"),
}  # fmt: skip
_DESCRIPTION = {"name": "str", "max_fails": (OPTION, "I")}
_SUBMIT = {
    "tasks": (ENUM, {"array": {}, "graph": {"requests": (LIST, (LIST, _REQUEST)), "tasks": (LIST, _TASK)}}),
    "directory": "str",
    "stream": (OPTION, "str"),
}
_DETAIL = {
    "info": _INFO,
    "description": _DESCRIPTION,
    "submits": (LIST, {"date": _DATE, **_SUBMIT}),
    "tasks": (LIST, {"id": "I", "state": _TASK_STATE}),
    "not_found": (LIST, "I"),
    "submitted": _DATE,
    "completed": _DATE,
}
_RANGES = (LIST, {"start": "I", "count": "I", "step": "I"})
_JOBS = (ENUM, {"all": {}, "last": {"count": "I"}, "specific": {"ranges": _RANGES}})
_ALL: Any = (ENUM, {"all": {}, "specific": {}})
_QUERY = (ENUM, {
    "submit": {**_DESCRIPTION, **_SUBMIT, "job": (OPTION, "I"), "events": (OPTION, "B")},
    "cancel": {"jobs": _JOBS, "reason": (OPTION, "str")},
    "forget": {},
    "detail": {"jobs": _JOBS, "tasks": (OPTION, {"ids": _ALL, "states": _ALL})},
    "info": {"jobs": _JOBS, "running_tasks": "B", "events": (OPTION, "B")},
    **{name: {} for name in ("list", "worker-info", "stop-worker", "stop", "alloc", "server-info")},
})  # fmt: skip
_CANCELLED = (
    ENUM,
    {"cancelled": {"tasks": (LIST, "I"), "finished": "I"}, "invalid": {}, "failed": {"why": "str"}},
)
_REPLY = (ENUM, {
    "info": {"jobs": (LIST, _INFO)},
    "detail": {"jobs": (LIST, {"id": "I", "detail": (OPTION, _DETAIL)}), "server": "str"},
    "submit": (ENUM, {"ok": {"job": _DETAIL, "server": "str"}}),
    **{name: {} for name in ("requests", "list", "worker-info", "stop-worker")},
    "cancel": (LIST, {"job": "I", "answer": _CANCELLED}),
    **{name: {} for name in ("forget", "alloc", "wait", "open", "close")},
    "error": {"text": "str"},
    "server-info": {"uid": "str"},
})  # fmt: skip
_CONSENT: Any = (ENUM, {"none": {}})
_GREETING = {"protocol": "I", "role": "str", "key": _CONSENT}


def encode(kind: Any, value: Any) -> bytes:
    """Return a value in bincode with integers of fixed size."""
    if kind == "str":
        return struct.pack("<Q", len(value.encode())) + bytes(value.encode())
    if isinstance(kind, str):
        return struct.pack(f"<{kind}", value)
    if isinstance(kind, dict):
        return b"".join(encode(of, value[name]) for name, of in kind.items())
    form, of = kind
    if form == OPTION:
        return b"\0" if value is None else b"\1" + encode(of, value)
    if form == ENUM:
        name, content = value
        return struct.pack("<I", list(of).index(name)) + encode(of[name], content)
    rows = [encode("str", key) + encode(of, row) for key, row in value.items()] if form == MAP else [
        encode(of, row) for row in value
    ]  # fmt: skip
    return struct.pack("<Q", len(value)) + b"".join(rows)


class Reader:
    """Read values from bincode."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def number(self, form: str) -> int:
        """Return the next number; `form` is a format of `struct`."""
        (value,) = struct.unpack_from(f"<{form}", self.data, self.position)
        self.position += struct.calcsize(f"<{form}")
        return int(value)

    def read(self, kind: Any) -> Any:  # noqa: PLR0911  a return for each form
        """Return the next value, of this kind."""
        if kind == "str":
            size = self.number("Q")
            self.position += size
            return self.data[self.position - size : self.position].decode()
        if isinstance(kind, str):
            return self.number(kind)
        if isinstance(kind, dict):
            return {name: self.read(of) for name, of in kind.items()}
        form, of = kind
        if form == OPTION:
            return self.read(of) if self.number("B") else None
        if form == ENUM:
            name = list(of)[self.number("I")]
            return name, self.read(of[name])
        if form == MAP:
            return {self.read("str"): self.read(of) for _ in range(self.number("Q"))}
        return [self.read(of) for _ in range(self.number("Q"))]


class Connection:
    """A connection to a server of the wheel, which requires no key."""

    def __init__(self, directory: Path) -> None:
        access = json.loads((active(directory) / "access.json").read_bytes())["client"]
        self._socket = socket.create_connection((access["host"], access["port"]), timeout=20)
        self._send(encode(_GREETING, {"protocol": 0, "role": "hq-client", "key": ("none", {})}))
        self._receive()
        self._send(encode(_CONSENT, ("none", {})))
        self._receive()

    def ask(self, query: str, content: Any) -> Any:
        """Send a query; return the content of the reply."""
        self._send(encode(_QUERY, (query, content)))
        name, reply = Reader(self._receive()).read(_REPLY)
        if name == "error":
            raise OSError(reply["text"])
        return reply

    def _send(self, data: bytes) -> None:
        self._socket.sendall(struct.pack("<I", len(data)) + data)

    def _receive(self) -> bytes:
        (size,) = struct.unpack("<I", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                msg = "the server closed the connection"
                raise OSError(msg)
            data += more
        return data


def active(directory: Path) -> Path:
    """Return the directory of the running server."""
    link = directory / "hq-current"
    return link if link.exists() else directory


def submission(path: Path) -> dict[str, Any]:
    """Return the query that submits a job definition file."""
    definition = tomllib.loads(path.read_text())
    requests, tasks = [], []
    for number, task in enumerate(definition["task"]):
        resources = task["request"][0]["resources"]
        cpus = {"resource": "cpus", "policy": ("compact", {"amount": resources["cpus"] * 10_000})}
        request = {
            "n_nodes": 0,
            "resources": [cpus],
            "min_seconds": 0,
            "min_nanoseconds": 0,
            "weight": 10_000,
        }
        requests.append([request])
        program = {
            "args": task["command"], "env": task["env"], "stdout": _stdio(task["stdout"]),
            "stderr": _stdio(task["stderr"]), "stdin": "", "cwd": task["cwd"], "pin": ("none", {}), "dir": 0,
        }  # fmt: skip
        limit = {"seconds": int(task["time_limit"].removesuffix("s")), "nanoseconds": 0}
        tasks.append(
            {
                "id": task["id"], "request": number, "kind": ("program", program), "time_limit": limit,
                "priority": task["priority"], "crash_limit": ("max", {"count": task["crash_limit"]}),
                "deps": task["deps"],
            }
        )  # fmt: skip
    return {
        "name": definition["name"], "max_fails": None, "directory": str(Path.cwd()), "stream": None,
        "tasks": ("graph", {"requests": requests, "tasks": tasks}), "job": None, "events": None,
    }  # fmt: skip


def _stdio(word: str) -> tuple[str, Any]:
    return ("null", {}) if word == "none" else ("file", {"path": word, "on_close": ("none", {})})


def jobs_of(word: str) -> tuple[str, Any]:
    """Return HyperQueue's selector for a job number."""
    return "specific", {"ranges": [{"start": int(word), "count": 1, "step": 1}]}


def shown_info(info: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON output for a job."""
    stats = {state: info[state] for state in ("running", "finished", "failed", "canceled", "aborted")}
    stats["waiting"] = info["n_tasks"] - sum(stats.values())
    return {"id": info["id"], "name": info["name"], "task_count": info["n_tasks"], "task_stats": stats}


def shown_task(task: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON output for a task."""
    state, content = task["state"]
    row = {"id": task["id"], "state": state}
    if content.get("started"):
        row["worker"] = content["started"]["worker_ids"][0]
    if state == "failed":
        row["error"] = content["error"]
    return row


def show(document: object) -> None:
    """Print JSON."""
    sys.stdout.write(f"{json.dumps(document)}\n")


def main(words: list[str]) -> None:
    """Run a command."""
    options = dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)
    default = os.environ.get("HQ_SERVER_DIR", str(Path.home() / ".hq-server"))
    directory = Path(options.get("--server-dir", default))
    match [word for word in words if not word.startswith("--")]:
        case ["server", "start"]:
            with _cluster(directory):
                _wait_for_end(directory)
        case ["worker", "start"]:
            _work(directory, int(options.get("--cpus", len(os.sched_getaffinity(0)))))
        case ["server", "wait"]:
            _wait_for_start(directory)
        case ["server", "stop"]:
            connection = Connection(directory)
            with contextlib.suppress(OSError):
                connection.ask("stop", {})
        case ["server", "info"]:
            show({"server_uid": Connection(directory).ask("server-info", {})["uid"]})
        case ["job", "submit-file", path]:
            show(Connection(directory).ask("submit", submission(Path(path)))[1]["job"]["info"]["id"])
        case ["job", "list"]:
            query = {"jobs": ("all", {}), "running_tasks": 0, "events": None}
            rows = [shown_info(info) for info in Connection(directory).ask("info", query)["jobs"]]
            active_rows = [row for row in rows if row["task_stats"]["running"] + row["task_stats"]["waiting"]]
            show(active_rows)
        case ["job", "info", job]:
            query = {"jobs": jobs_of(job), "tasks": {"ids": ("all", {}), "states": ("all", {})}}
            details = [row["detail"] for row in Connection(directory).ask("detail", query)["jobs"]]
            shown = [
                {"info": shown_info(detail["info"]), "tasks": [shown_task(task) for task in detail["tasks"]]}
                for detail in details
                if detail
            ]
            show(shown)
        case ["job", "cancel", job]:
            Connection(directory).ask("cancel", {"jobs": jobs_of(job), "reason": None})
        case unknown:
            sys.exit(f"error: unrecognized command {unknown}")


@contextlib.contextmanager
def _cluster(directory: Path) -> Iterator[Any]:
    from hyperqueue.ffi.cluster import Cluster

    directory.mkdir(parents=True, exist_ok=True)
    yield Cluster(str(directory))


def _work(directory: Path, cores: int) -> None:
    """Run a worker. The wheel starts workers only for its own server, so the address is replaced."""
    access = (active(directory) / "access.json").read_bytes()
    own = directory.with_name(f"{directory.name}-worker-{os.getpid()}")
    with _cluster(own) as cluster:
        (active(own) / "access.json").write_bytes(access)
        cluster.add_worker(cores)
        _wait_for_end(directory)


def _wait_for_end(directory: Path) -> None:
    """Wait until the server has ended; then exit at once, because the wheel's threads would go on."""
    with contextlib.suppress(OSError):
        while True:
            Connection(directory).ask("server-info", {})
            time.sleep(1)
    os._exit(0)


def _wait_for_start(directory: Path) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError):
            Connection(directory)
            return
        time.sleep(0.1)
    sys.exit("error: the server does not respond")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as error:
        show({"error": str(error)})
        sys.exit(1)
