"""Time reading projects and metadata from the cache, against parsing their pages again; print JSON.

The projects are real ones on the configured package index; the arguments are their names.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from pathlib import Path

import requests

from builders.index_client import IndexClient
from builders.index_client.pages import ACCEPT, files, releases
from builders.network.urls import package_sources

_PROJECTS = ("numpy", "boto3", "torch", "transformers", "pandas", "grpcio", "aiohttp", "pydantic-core")
_RUNS = 5


def read_all(client: IndexClient, names: list[str]) -> float:
    """Return the CPU seconds to read all projects with the metadata of their newest release."""
    start = time.process_time()
    for name in names:
        project = client.project(name)
        assert project is not None
        assert client.metadata(project.releases[0].files) is not None
    return time.process_time() - start


def fetch_all(client: IndexClient, names: list[str]) -> float:
    """Return the seconds to fetch all projects with the metadata of their newest release, in parallel."""
    start = time.perf_counter()
    done = threading.Semaphore(0)
    failed: list[str] = []

    def fetch(name: str) -> None:
        try:
            read_all(client, [name])
        except BaseException as error:
            failed.append(f"{name}: {error!r}")
            raise
        finally:
            done.release()

    for name in names:
        client.submit(lambda name=name: fetch(name))  # type: ignore[misc]
    for _ in names:
        done.acquire()
    if failed:
        raise SystemExit(f"Cannot read {'; '.join(failed)}")
    return time.perf_counter() - start


def main() -> None:
    """Print the times in seconds, the smallest of several runs."""
    names = sys.argv[1:] or list(_PROJECTS)
    index = package_sources().indexes[0].rstrip("/")
    with tempfile.TemporaryDirectory() as cache:
        cold = fetch_all(IndexClient([index], cache=Path(cache)), names)
        warm = min(read_all(IndexClient([index], cache=Path(cache)), names) for _ in range(_RUNS))
    replies = [requests.get(f"{index}/{name}/", headers={"Accept": ACCEPT}, timeout=60) for name in names]
    for reply in replies:
        reply.raise_for_status()
    parsing = []
    for _ in range(_RUNS):
        start = time.process_time()
        for name, reply in zip(names, replies, strict=True):
            for _, rows in releases(reply.content, reply.headers["Content-Type"], reply.url, name):
                files(rows, reply.url, index)
        parsing.append(time.process_time() - start)
    figures = {"projects": len(names), "cold wall": cold, "warm cpu": warm, "parse cpu": min(parsing)}
    print(json.dumps(figures | {"warm / parse": warm / min(parsing)}, indent=1))


if __name__ == "__main__":
    main()
