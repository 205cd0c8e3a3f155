"""Write images in every form, byte by byte where a tool would not write what a test needs."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

DATA = 32768


def squashfs(root: Path, path: Path) -> Path:
    """Pack a directory as `apptainer build` does."""
    subprocess.run(["mksquashfs", root, path, "-quiet", "-no-progress", "-all-root", "-noappend"], check=True)
    return path


def sif(
    path: Path, system: bytes, *, kind: int = 1, part: int = 2, count: int = 1, start: int = DATA
) -> Path:
    """Write a SIF with one partition, byte by byte from sylabs/sif (pkg/sif/sif.go, descriptor.go)."""
    head = (
        b"#!/usr/bin/env run-singularity\n".ljust(32, b"\0") + b"SIF_MAGIC\0" + b"01\0" + b"02\0" + bytes(16)
    )
    head += struct.pack("<8q", 0, 0, 47, count, 4096, 585 * count, DATA, len(system))
    extra = struct.pack("<ii", kind, part) + b"02\0"
    row = struct.pack("<i?IIIqqqqqqq", 0x4004, True, 1, 1, 0, start, len(system), len(system), 0, 0, 0, 0)
    row += b"squashfs-1".ljust(128, b"\0") + extra.ljust(384, b"\0")
    path.write_bytes(head.ljust(4096, b"\0") + (row * min(count, 2)).ljust(DATA - 4096, b"\0") + system)
    return path


def layer(root: Path, *names: str, removed: tuple[str, ...] = ()) -> bytes:
    """Return a layer with some of the files below a directory, and whiteouts."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in names:
            archive.add(root / name, name)
        for name in removed:
            archive.addfile(tarfile.TarInfo(name))
    return out.getvalue()


def docker_archive(path: Path, *layers: bytes, env: tuple[str, ...] = ()) -> Path:
    """Write an archive as `docker save` does (github.com/moby/moby image/spec/spec.md)."""
    config = json.dumps({"config": {"Env": list(env)}}).encode()
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = json.dumps([{"Config": "config.json", "Layers": names}]).encode()
    return archive_of(
        path, {"manifest.json": manifest, "config.json": config, **dict(zip(names, layers, strict=True))}
    )


def oci_archive(path: Path, *layers: bytes) -> Path:
    """Write an archive as `podman save --format oci-archive` does (opencontainers/image-spec)."""
    members: dict[str, bytes] = {}

    def blob(data: bytes) -> dict[str, str]:
        digest = hashlib.sha256(data).hexdigest()
        members[f"blobs/sha256/{digest}"] = data
        return {"digest": f"sha256:{digest}"}

    manifest = {"config": blob(b"{}"), "layers": [blob(data) for data in layers]}
    index = {"manifests": [blob(json.dumps(manifest).encode())]}
    return archive_of(path, {"oci-layout": b"{}", "index.json": json.dumps(index).encode(), **members})


def oci_directory(path: Path, *layers: bytes) -> Path:
    """Write a directory as `skopeo copy IMAGE oci:DIR` does: the members of the archive."""
    with tarfile.open(oci_archive(path.with_suffix(".packed"), *layers)) as archive:
        for info in archive:
            content = archive.extractfile(info)
            assert content is not None
            (path / info.name).parent.mkdir(parents=True, exist_ok=True)
            (path / info.name).write_bytes(content.read())
    return path


def archive_of(path: Path, members: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path
