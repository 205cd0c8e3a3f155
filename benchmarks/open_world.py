"""Resolve a real environment against the configured index, and compare with uv and pip; print JSON.

Run it from the clone: ``python -m benchmarks.open_world`` (or ``nox -s bench``). It needs the network.

All programs run in turn on the same 20 requirements, for the CPU backend and the running Python. PyTorch's
index is a stand-in (`tests.support.torch_index`); uv and pip get its torch as a constraint. Seconds and MiB
are of the whole process, CPU is user and system. ``warm`` reads everything from the cache; uv needs
``--offline`` for that if the index sends no validators. A proxy on this machine counts the requests, in a
separate run. After it has resolved, pip downloads wheels: the proxy rejects these requests, and does not
count them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import sys
import tarfile
import tempfile
import threading
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from uv import find_uv_bin

from benchmarks import programs
from benchmarks.programs import Run
from builders.index_client import IndexClient
from builders.network.web import new_session
from builders.sources.source import index_url
from resolver.facts.catalog import load
from tests.support.torch_index import write_torch_index

REQUIREMENTS = """
torch
transformers>=4.50
datasets
accelerate
peft
trl
wandb
tensorboard
scikit-learn
matplotlib
jupyterlab
pandas
seaborn
mlflow
evaluate
sentencepiece
einops
timm
opencv-python-headless
ray[default]
"""
PROJECTS = [line.partition(">")[0].partition("[")[0] for line in REQUIREMENTS.split()]
"""Every right answer contains their names."""
UV_RESULT = "uv.txt"
ROOT = Path(__file__).resolve().parent.parent
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
TORCH = "2.13.0+cpu"
PYTORCH = "https://download.pytorch.org/"
MATRIX = [sys.executable, "-m", "matrix"]
CLOSED = ["resolve", "apex", "deepspeed", "flash-attn", "bitsandbytes", "--site", "lumi-g"]
CLOSED += ["--date", "2026-03-01", "--python", "3.12", "--no-lock", "-q"]
TARGETS = {"warm cpu": 3.0, "warm wall": 1.0, "cold wall": 1.5, "requests": 1.0, "peak MiB": 250.0}
_URL = re.compile(rb"https://([^/\"'<> ]+)/")


class Workplace:
    """The commands, and the directories that they use.

    Attributes
    ----------
    folder
        Directory of the requirements and of all caches.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "requirements.in").write_text(REQUIREMENTS)
        (folder / "constraints.txt").write_text(f"torch=={TORCH}\n")
        indexes = IndexClient([index_url()], cache=folder / "preparation")
        write_torch_index(folder / "torch", load(), indexes, oldest=TORCH)
        mirror = f'"{PYTORCH}" = "{(folder / "torch").as_uri()}/"'
        (folder / "matrix.toml").write_text(f"[mirrors]\n{mirror}\n")

    def matrix(self, *more: str) -> list[str]:
        """Return our command."""
        command = [
            sys.executable,
            "-m",
            "matrix",
            "resolve",
            "-r",
            "requirements.in",
            "-c",
            "constraints.txt",
        ]
        return [*command, "--backend", "cpu", "--python", PYTHON, "--no-lock", "-q", *more]

    def uv(self, *more: str) -> list[str]:
        """Return uv's command."""
        command = [find_uv_bin(), "pip", "compile", "-q", "requirements.in", "-c", "constraints.txt"]
        command += ["--python-version", PYTHON, "--find-links", str(self.links)]
        return [*command, "-o", UV_RESULT, *more]

    def pip(self) -> list[str]:
        """Return pip's command."""
        command = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed"]
        command += ["--no-cache-dir", "-r", "requirements.in", "-c", "constraints.txt"]
        return [*command, "--find-links", str(self.links)]

    @property
    def links(self) -> Path:
        """Directory of the stand-ins for torch."""
        return self.folder / "torch" / "whl" / "cpu"

    def run(
        self,
        command: Sequence[str],
        cache: Path,
        index: str = "",
        *,
        contains: Collection[str] = (),
        **variables: str,
    ) -> Run:
        """Run a command with a separate cache; see `benchmarks.programs.run`."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
        kept.pop("PYTHONDONTWRITEBYTECODE", None)
        url = index or index_url()
        kept |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": url, "UV_DEFAULT_INDEX": url}
        kept |= {"XDG_CACHE_HOME": str(cache), "UV_CACHE_DIR": str(cache / "uv")}
        kept |= {name: os.environ[name] for name in ("PIP_CERT",) if name in os.environ}
        environment = {**kept, "PYTHONPATH": str(ROOT), **variables}
        result = self.folder / UV_RESULT if UV_RESULT in command else None
        return programs.timed(command, self.folder, environment, contains=contains, result=result)


class Proxy(ThreadingHTTPServer):
    """Pass requests on to package indexes, and count them; links in pages lead back to the proxy."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.session = new_session()
        self.requests: list[str] = []

    @property
    def address(self) -> str:
        """URL of the proxy."""
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def do_GET(self) -> None:
        passed = {name: text for name, text in self.headers.items() if name in {"Accept", "Range"}}
        self.server.requests.append(self.path)
        reply = self.server.session.get(f"https:/{self.path}", headers=passed, timeout=60)
        kind = reply.headers.get("Content-Type", "")
        content = reply.content
        if "simple" in kind or "html" in kind:
            content = _URL.sub(rf"{self.server.address}/\1/".encode(), content)
        kept = ("Content-Type", "Content-Range", "Accept-Ranges", "Cache-Control")
        headers = {name: reply.headers[name] for name in kept if name in reply.headers}
        self._send(reply.status_code, headers, content)

    do_HEAD = do_GET  # noqa: N815  a name of the library

    def _send(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def counting() -> Iterator[Proxy]:
    """Start a proxy that counts requests."""
    with Proxy() as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield proxy
        proxy.shutdown()


def count_requests(place: Workplace) -> dict[str, dict[str, int]]:
    """Return how many requests each program sends with an empty cache."""
    counts = {}
    for name, command in (("matrix", place.matrix()), ("pip", place.pip()), ("uv", place.uv())):
        with counting() as proxy, tempfile.TemporaryDirectory(dir=place.folder) as cache:
            index = index_url().replace("https://", f"{proxy.address}/")
            place.run(command, Path(cache), index)
            paths = set(proxy.requests)
            counted = [path for path in proxy.requests if f"{path}.metadata" not in paths]
            pages = sum(path.endswith("/") for path in counted)
            repeated = len(counted) - len(set(counted))
            counts[name] = {"pages": pages, "repeated": repeated, "all": len(counted)}
    return counts


def resolve_in_turn(place: Workplace, runs: int) -> dict[str, list[Run]]:
    """Run all commands in turn, with an empty and with a full cache."""
    results = defaultdict(list)
    for number in range(runs):
        cache = place.folder / f"cache{number}"
        place.run([*MATRIX, *CLOSED], cache, contains=CLOSED[1:5], PIP_NO_INDEX="1")  # compiles the catalog
        results["matrix cold"].append(place.run(place.matrix(), cache, contains=PROJECTS))
        results["uv cold"].append(place.run(place.uv(), cache, contains=PROJECTS))
        for _ in range(3):
            results["matrix warm"].append(place.run(place.matrix(), cache, contains=PROJECTS))
            results["uv warm"].append(place.run(place.uv("--offline"), cache, contains=PROJECTS))
    return results


def closed_in_turn(place: Workplace, before: str, runs: int) -> dict[str, list[Run]]:
    """Resolve the platform and the catalog without an index: an older commit and this one, in turn."""
    old = place.folder / "before"
    command = [shutil.which("git") or "git", "archive", before]
    archive = place.folder / "before.tar"
    programs.run([*command, "-o", archive], cwd=ROOT)
    with tarfile.open(archive) as source:
        source.extractall(old, filter="data")
    results = defaultdict(list)
    command = [*MATRIX, *CLOSED]
    for _ in range(runs):
        for name, path in (("before", old), ("now", ROOT)):
            cache = place.folder / f"cache-{name}"
            run = place.run(command, cache, contains=CLOSED[1:5], PIP_NO_INDEX="1", PYTHONPATH=str(path))
            results[name].append(run)
    return {name: several[1:] for name, several in results.items()}  # the first compiles


def main() -> None:
    """Print all figures and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--before", metavar="COMMIT", help="compare the closed problem with this commit")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Workplace(Path(folder))
        runs = resolve_in_turn(place, options.runs)
        figures: dict[str, object] = {name: _summary(several) for name, several in runs.items()}
        cpu, wall = ({name: pick(several) for name, several in runs.items()} for pick in (_cpu, _wall))
        if options.before:
            closed = closed_in_turn(place, options.before, 3 * options.runs)
            figures |= {f"closed {name}": _summary(several) for name, several in closed.items()}
        figures["requests"] = counts = count_requests(place)  # last: it fills this process's memory
        ratios = {
            "warm cpu": cpu["matrix warm"] / cpu["uv warm"],
            "warm wall": wall["matrix warm"],
            "cold wall": wall["matrix cold"] / wall["uv cold"],
            "requests": counts["matrix"]["all"] / counts["pip"]["all"],
            "peak MiB": max(run.mebibytes for name in ("matrix cold", "matrix warm") for run in runs[name]),
        }
        if options.before:
            ratios["closed cpu"] = _cpu(closed["now"]) / _cpu(closed["before"])
        rows = {
            name: {"value": round(value, 2), "at most": TARGETS.get(name)} for name, value in ratios.items()
        }
    print(json.dumps({"targets": rows, **figures}, indent=1))


def _cpu(runs: Sequence[Run]) -> float:
    return min(run.cpu for run in runs)


def _wall(runs: Sequence[Run]) -> float:
    return statistics.median(run.wall for run in runs)


def _summary(runs: Sequence[Run]) -> dict[str, float]:
    """Return the least CPU time, the median wall time and the largest memory."""
    memory = max(run.mebibytes for run in runs)
    return {"wall": round(_wall(runs), 2), "cpu": round(_cpu(runs), 2), "MiB": round(memory)}


if __name__ == "__main__":
    main()
