"""Run inside the environment that is probed: answer one question about it, as JSON.

The script is independent of the program that sends it, and needs only Python 3.9. It runs with ``-I -S``, so
that no installed code runs in its process. Child processes run `child.py` and import the installed modules,
one each, so that a crash loses only one answer. A child cannot forge the answer of this process:

- A child has no descriptor for its answer. After the import it connects to a socket with a random address.
  The kernel identifies the process that connected. The answer begins with a number that is sent only then.
- Whether an object is loaded is read from the child's memory map, while the child waits.
- Each import is repeated in a process that looks like a user's: `plain_import`.
- The answer of this process has a number that no child can read: the script is removed before the first child
  starts, and the kernel refuses other processes of the user access to the memory of this process.
- All descendants are ended before the answer is printed.

The statements of a package about itself, such as the value of an attribute, cannot be verified. A package
that follows the whole protocol, and passes the plain import, cannot be distinguished from one that works.
"""

from __future__ import annotations

import csv
import ctypes
import fnmatch
import glob
import importlib.machinery
import itertools
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache, partial
from threading import Thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from importlib.metadata import Distribution
    from typing import Any

MARK = "rocm-matrix-probe: "
CHILD = ""  # the program of child processes, which `builders.probe.ask` adds
START = r"""
import os, site, sys
user = site.getusersitepackages() if site.ENABLE_USER_SITE else ""
os.write(1, os.fsencode("\0".join([sys.argv[1], user, sys.prefix, sys.base_prefix, *sys.path[1:]])))
os._exit(0)
"""
UNSEEN = "memory map not readable"
LONGEST = 600  # characters of an error that are kept
AT_ONCE = 4  # processes; each that imports torch takes half a gigabyte
TIMEOUT = 900  # seconds for one import: file systems of clusters can be slow
TALK = 60  # seconds for an answer that is ready
MOST = 1 << 20  # bytes of an answer
MOST_DESCRIPTORS = 1 << 16
POLL = 0.05  # seconds
ENDING = 10  # seconds in which killed processes end
SYSTEM_LIBRARIES = ("/usr/lib64", "/lib64", "/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu")
SBOM = "sboms/rocm-matrix.cdx.json"  # written into the wheels that matrix builds
OP_PROPERTY = "rocm-matrix:op"
PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER = 4, 24, 36  # linux/prctl.h
CAP_SYS_PTRACE = 19  # linux/capability.h
CHUNK = 1 << 20  # bytes
LARGEST_COPY = 1 << 30  # bytes of the objects of a distribution
GPU_TEXTS = (b"libcu", b"libnv", b"_cuda.so", b"libamdhip64.so", b"libroc", b".hip_fatbin", b".nv_fatbin")


# --- The process that judges ----------------------------------------------------------------------------


def outer(question: dict[str, Any], nonce: str) -> None:
    """Answer the question. The last line of the script calls this function, and defines `CHILD` before."""
    os.unlink(__file__)
    protect()
    needed = question.get("variables", {})
    own = {name: os.environ[name] for name in needed if name in os.environ}
    os.environ.update(dict(needed, **own))
    os.environ["MPI4PY_RC_INITIALIZE"] = "0"  # without a launcher or a network MPI_Init may end the process
    if "skipped" in question:
        reply = contents_reply(question)
    else:
        reply = wheel_reply(question) if "distribution" in question else environment_reply(question)
    reply["variables"] = own
    end_descendants()
    print(f"\n{MARK}{nonce} {json.dumps(reply)}", flush=True)


def protect() -> None:
    """Hide memory and descriptors of this process from its children, and become the parent of orphans.

    Root could still read the memory, so programs that root starts lose that capability (prctl(2)).
    """
    os.closerange(sys.stderr.fileno() + 1, MOST_DESCRIPTORS)
    prctl = ctypes.CDLL(None).prctl
    for option, value in (
        (PR_SET_DUMPABLE, 0),
        (PR_CAPBSET_DROP, CAP_SYS_PTRACE),
        (PR_SET_CHILD_SUBREAPER, 1),
    ):
        prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0)))


def end_descendants() -> None:
    """End all processes that children left behind: orphans have become children of this process."""
    deadline = time.monotonic() + ENDING
    while time.monotonic() < deadline:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if ended:
            continue
        for stat in glob.glob("/proc/[0-9]*/stat"):
            with suppress(OSError), open(stat, "rb") as file:
                if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                    os.kill(int(stat.split("/")[2]), signal.SIGKILL)
        time.sleep(0.01)
    sys.exit("Processes that the probed packages started cannot be ended.")


def in_child(kind: str, value: object) -> tuple[dict[str, Any], list[str] | None]:
    """Answer one part in a separate process; return its answer, and the files that it has mapped as code."""
    address = os.urandom(16).hex()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + address)
        listener.listen()
        return run_child([CHILD, kind, json.dumps(value), address], listener)


def run_child(
    arguments: list[str], listener: socket.socket | None = None, output: int = subprocess.DEVNULL
) -> tuple[dict[str, Any], list[str] | None]:
    """Run a program until it answers or ends; without a listener, its end is the answer."""
    with subprocess.Popen(
        [sys.executable, "-c", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.PIPE,
        cwd=os.path.dirname(__file__),
        close_fds=False,  # there are none to inherit, and a protected process cannot list its own
    ) as process:
        try:
            return wait_for(process, listener)
        finally:
            process.kill()


def wait_for(
    process: subprocess.Popen[bytes], listener: socket.socket | None
) -> tuple[dict[str, Any], list[str] | None]:
    """Wait until a child connects, or ends, or the time is up."""
    errors = process.stderr
    assert errors is not None  # noqa: S101  for mypy
    tail, deadline = b"", time.monotonic() + TIMEOUT
    watched: list[Any] = [errors, *filter(None, [listener])]
    while time.monotonic() < deadline:
        code = process.poll()
        ready = select.select(watched, [], [], 0 if code is not None else POLL)[0]
        if errors in ready:
            chunk = os.read(errors.fileno(), 1 << 16)
            tail = (tail + chunk)[-(1 << 16) :]
            if not chunk:
                watched.remove(errors)
                with suppress(subprocess.TimeoutExpired):  # its end follows
                    process.wait(POLL)
        if listener in ready and listener is not None:
            connection, _ = listener.accept()
            with connection:
                if peer(connection) == process.pid:
                    mapped = mapped_code(process.pid)
                    return answer_of(connection), mapped
        elif code is not None and (errors not in ready or errors not in watched):
            return ended(code, tail), None
    return {"error": "timeout", "text": f"no answer within {TIMEOUT} s"}, None


def ended(code: int, errors: bytes) -> dict[str, Any]:
    """Return the outcome of a process that ended."""
    lines = errors.decode(errors="replace").strip().splitlines()
    reason = f"signal {-code}" if code < 0 else f"exit code {code}"
    text = lines[-1][:LONGEST] if lines else "it ended before it answered"
    return {"error": reason, "text": text, "code": code}


def peer(connection: socket.socket) -> int:
    """Return the id of the process at the other end (unix(7))."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", packed)[0])


def answer_of(connection: socket.socket) -> dict[str, Any]:
    """Return the answer of a child; it begins with the number that is sent to the child."""
    nonce, data = os.urandom(16).hex().encode(), b""
    try:
        connection.settimeout(TALK)
        connection.sendall(nonce)
        while len(data) < MOST:
            chunk = connection.recv(1 << 16)
            data += chunk
            if not chunk:
                break
        reply = json.loads(data[len(nonce) :]) if data.startswith(nonce) else None
    except (OSError, ValueError):
        reply = None
    return reply if isinstance(reply, dict) else {"error": "damaged answer"}


def mapped_code(pid: int) -> list[str] | None:
    """Return the files that a process has mapped as code; None if they cannot be read (proc(5))."""
    with suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
        rows = [line.rstrip("\n").partition("/") for line in maps]
        return sorted({f"/{path}" for fields, slash, path in rows if slash and "x" in fields.split()[1]})
    return None


def seen(part: tuple[dict[str, Any], list[str] | None], path: str) -> dict[str, Any]:
    """Return the outcome of a part: a shared object is loaded only if it is mapped."""
    reply, mapped = part
    if reply.get("error") or not path:
        return reply
    if mapped is None:
        return {"error": UNSEEN}
    if os.fsencode(os.path.realpath(path)).decode(errors="replace") not in mapped:
        return {
            "error": "not mapped",
            "text": f"its process reports success, but has not mapped {path}",
        }
    return reply


def plain_import(modules: dict[str, str]) -> dict[str, Any]:
    """Import modules as a user's program does; return any error. A random exit code exposes early ends.

    `modules` have their shared objects. torch comes first if one of them is an extension.
    """
    torch = importlib.machinery.PathFinder.find_spec("torch", search_path())
    names = [*(["torch"] if torch and any(modules.values()) else []), *modules]
    code = 100 + os.urandom(1)[0] % 100
    reply, _ = run_child([f"import {', '.join(names)}, os; os._exit({code})"])
    if reply.get("code") == code:
        return {}
    return dict(reply, error=f"{reply['error']} in a plain process")


def at_once(calls: Mapping[Any, Callable[[], Any]]) -> dict[Any, Any]:
    """Return what functions return that start processes, of which few run at the same time."""
    results: dict[Any, Any] = {}
    rest = iter(calls.items())

    def work() -> None:
        for key, call in rest:
            results[key] = call()

    threads = [Thread(target=work) for _ in range(min(AT_ONCE, len(os.sched_getaffinity(0))))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@cache
def start() -> dict[str, Any]:
    """Start the environment's Python, which may run installed code; return its search path and prefixes."""
    mark = os.urandom(16).hex()
    with open(os.memfd_create("start"), "rb") as output:
        reply, _ = run_child([START, mark], output=output.fileno())
        _, found, text = os.fsdecode(os.pread(output.fileno(), MOST, 0)).rpartition(f"{mark}\0")
    if not found:
        sys.exit(f"Python does not start: {reply['error']}: {reply.get('text', '')}")
    user_site, prefix, base_prefix, *path = text.split("\0")
    return {"user_site": user_site, "prefixes": [prefix, base_prefix], "path": path}


def search_path() -> list[str]:
    """Return the module search path of the environment's Python."""
    return list(start()["path"])


# --- One installed wheel --------------------------------------------------------------------------------


def wheel_reply(question: dict[str, Any]) -> dict[str, Any]:
    """Import the modules and load the objects of a wheel; the keys are those of `WheelReply`.

    Almost every process imports torch, which takes most of the time. A process that imports torch alone runs
    only if its answer is needed: to list what torch borrows, or to check whether torch causes a failure.
    """
    files, metadata = installed(question["distribution"])
    lent = question["lent"]
    names = [name.partition(":") for name in question["attributes"]]
    modules = list(dict.fromkeys([*question["imports"], *(module for module, _, _ in names)]))
    attributes = {module: [what for owner, _, what in names if owner == module] for module in modules}
    extensions = {module: extension_file(module) for module in modules}
    paths = {
        pattern: [
            file
            for name, file in sorted(files.items())
            if fnmatch.fnmatchcase(name, pattern) and os.path.exists(file)
        ]
        for pattern in question["objects"]
    }
    torch = partial(in_child, "torch", {"lent": lent, "gpus": False})
    has_torch = importlib.machinery.PathFinder.find_spec("torch", search_path())
    calls: dict[Any, Callable[[], Any]] = {"plain": partial(plain_import, extensions)} if modules else {}
    if lent and has_torch:
        calls["torch"] = torch
    for name in modules:
        calls["import", name] = partial(in_child, "import", [name, attributes[name], lent])
    for path in itertools.chain(*paths.values()):
        calls["object", path] = partial(in_child, "object", path)
    done = at_once(calls)
    imports = {name: seen(done["import", name], extensions[name]) for name in modules}
    if done.get("plain"):
        loaded = [name for name in modules if not imports[name].get("error")]
        alone = at_once({name: partial(plain_import, {name: extensions[name]}) for name in loaded})
        imports.update({name: alone[name] or imports[name] for name in loaded})
    objects = [
        dict(seen(done["object", path], path), name=pattern, file=path)
        for pattern, matches in paths.items()
        for path in matches
    ]
    if any(reply.get("error") for reply in [*imports.values(), *objects]):
        done["torch"] = done.get("torch") or torch()
    objects += [{"name": name, "error": "missing"} for name, matches in paths.items() if not matches]
    version = (installed("torch")[1] or {}).get("version", "") if has_torch else ""
    return {
        "distribution": metadata,
        "torch": done["torch"][0] if "torch" in done else {"version": version},
        "imports": [dict(imports[name], name=name) for name in modules],
        "objects": objects,
    }


def extension_file(module: str) -> str:
    """Return the shared object of an extension module; empty for any other module."""
    for folder in search_path():
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            path = os.path.join(folder, *module.split(".")) + suffix
            if os.path.exists(path):
                return path
    return ""


def installed(name: str) -> tuple[dict[str, str], dict[str, Any] | None]:
    """Return the files of an installed distribution by their names in the wheel, and its metadata.

    What pip installs is read here: `importlib.metadata` takes as long to import as all the rest of a reply.
    """
    infos = (
        path
        for folder in search_path()
        for path in glob.glob(os.path.join(glob.escape(folder), "*-info"))
        if normal(os.path.basename(path).rpartition(".")[0].partition("-")[0]) == normal(name)
    )
    info = next(infos, "")
    stated: Any
    if info.endswith(".dist-info") and os.path.exists(f"{info}/RECORD"):
        root = os.path.dirname(info)
        with open(f"{info}/RECORD", encoding="utf-8", errors="surrogateescape", newline="") as file:
            listed = [row[0] for row in csv.reader(file) if row]
        with open(f"{info}/METADATA", encoding="utf-8", errors="replace") as file:
            lines = re.sub(r"\n[ \t]+", " ", file.read().partition("\n\n")[0]).split("\n")
        rows = [(key.lower(), value.strip()) for key, _, value in (line.partition(":") for line in lines)]
        stated = dict(reversed(rows))
        requires = [value for key, value in rows if key == "requires-dist"]
    else:
        distribution = next(described(name), None)
        if distribution is None:
            return {}, None
        root, stated = str(distribution.locate_file("")), distribution.metadata
        listed, requires = [*map(str, distribution.files or [])], distribution.requires or []
    top = sorted({file.split("/")[0].split(".")[0] for file in listed if file.endswith((".py", ".so"))})
    metadata = {"name": stated.get("name"), "version": stated.get("version"), "top": top}
    return {file: os.path.join(root, file) for file in listed}, {**metadata, "requires": requires}


def described(name: str | None = None) -> Iterator[Distribution]:
    """Return all installed distributions, or those of one name, in the order of the search path."""
    from importlib.metadata import distributions

    return iter(distributions(path=search_path(), name=name))


def normal(name: str) -> str:
    """Return the normalized name of a distribution."""
    return re.sub(r"[-_.]+", "-", name).lower()


# --- A whole environment --------------------------------------------------------------------------------


def environment_reply(question: dict[str, Any]) -> dict[str, Any]:
    """Return installed distributions and loaded libraries; the keys are those of `EnvironmentReply`."""
    return {
        "python": sys.version.partition(" ")[0],
        "executable": sys.executable,
        "distributions": distributions(question["files"]),
        "user_site": user_site(is_image=question["is_image"]),
        "system_libstdcxx": newest_symbols(system_libstdcxx()),
        "system_rocm": system_rocm(),
        "libraries": libraries(question["modules"]),
        "torch": in_child("torch", {"lent": "", "gpus": True})[0],
        "jax": in_child("jax", None)[0] if has_jax_plugin() else None,
    }


def has_jax_plugin() -> bool:
    """Return whether a plugin of JAX is installed; JAX finds them in this namespace package."""
    return any(os.path.isdir(os.path.join(folder, "jax_plugins")) for folder in search_path())


def distributions(expected: dict[str, dict[str, str]]) -> list[dict[str, Any]]:
    """Return every distribution in path order; compare expected files with given hashes, else RECORD's."""
    rows, seen_names = [], set()
    for distribution in described():
        name = distribution.metadata["Name"]
        if not name:
            continue
        row = {
            "name": name,
            "version": distribution.version,
            "path": str(distribution.locate_file("")),
            "ops": recorded_ops(distribution),
            "requires": distribution.requires or [],
            "archives": [str(file) for file in distribution.files or [] if file.suffix == ".kpack"],
        }
        name = normal(name)
        if name in expected and name not in seen_names:
            row.update(compared_files(distribution, expected[name]))
        seen_names.add(name)
        rows.append(row)
    return rows


def compared_files(distribution: Distribution, expected: dict[str, str]) -> dict[str, Any]:
    """Return the number of files compared, the files that differ, and the hash of the metadata."""
    hashes = expected or {
        str(file): f"{file.hash.mode}={file.hash.value}" for file in distribution.files or [] if file.hash
    }
    paths = {name: str(distribution.locate_file(name)) for name in hashes}
    same = at_once({name: partial(has_hash, paths[name], hashes[name]) for name in hashes})
    metadata = next((paths[name] for name in paths if name.endswith(".dist-info/METADATA")), "")
    return {
        "compared": len(hashes),
        "differing": sorted(name for name in same if not same[name]),
        "metadata_sha256": file_hash(metadata, "sha256").hex(),
    }


def contents_reply(question: dict[str, Any]) -> dict[str, Any]:
    """Write what may be GPU code of each distribution into a wheel beside the script, and list the wheels."""
    import zipfile

    written, left = [], []
    for distribution in described():
        name = normal(distribution.metadata["Name"] or "")
        title = f"{name.replace('-', '_')}-{distribution.version}"
        if not re.fullmatch(r"\w+-[\w.+!]+", title) or name in question["skipped"]:
            continue
        wheel = os.path.join(os.path.dirname(__file__), f"{title}-py3-none-any.whl")
        chosen = {} if os.path.exists(wheel) else gpu_files(distribution)
        if not chosen:
            continue
        if sum(size for _, size in chosen.values()) > LARGEST_COPY:
            left.append(name)
            continue
        with zipfile.ZipFile(wheel, "w", strict_timestamps=False) as archive:
            for member, (path, _) in chosen.items():
                archive.write(path, member)
            archive.writestr(f"{title}.dist-info/METADATA", distribution.read_text("METADATA") or "")
        written.append([name, os.path.basename(wheel)])
    return {"written": written, "left": left}


def gpu_files(distribution: Distribution) -> dict[str, tuple[str, int]]:
    """Return path and size of objects if any names a GPU library; without objects, of CUDA/HIP sources."""
    listed = [str(file) for file in distribution.files or []]
    objects = [name for name in listed if re.search(r"\.so(\.\d+)*$", name)]
    names = objects or [name for name in listed if name.endswith((".cu", ".cuh", ".hip"))]
    files = {}
    for name in names:
        path = str(distribution.locate_file(name))
        if not name.startswith(("/", "..")) and os.path.isfile(path):
            files[name] = path, os.path.getsize(path)
    if objects and not any(names_gpu(path) for path, _ in files.values()):
        return {}
    return files


def names_gpu(path: str) -> bool:
    """Return whether a file has a text that objects for GPUs have."""
    import mmap

    with suppress(OSError, ValueError), open(path, "rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # an error if the file is empty
        return any(content.find(text) >= 0 for text in GPU_TEXTS)
    return False


def has_hash(path: str, recorded: str) -> bool:
    """Return whether a file has a hash, written as in RECORD: algorithm=base64."""
    import base64

    algorithm, _, value = recorded.partition("=")
    return base64.urlsafe_b64encode(file_hash(path, algorithm)).decode().rstrip("=") == value


def file_hash(path: str, algorithm: str) -> bytes:
    """Return the hash of a file; empty if it cannot be read."""
    import hashlib  # slow to import

    digest = hashlib.new(algorithm)
    with suppress(OSError), open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
        return digest.digest()
    return b""


def recorded_ops(distribution: Distribution) -> list[str]:
    """Return the ops that the wheel was built with, according to its bill of materials; empty without it."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        document = json.loads(distribution.read_text(SBOM) or "{}")
        listed = [row for formula in document["formulation"] for row in formula.get("properties", [])]
        return [str(row["value"]) for row in listed if row["name"] == OP_PROPERTY]
    return []


def user_site(*, is_image: bool) -> dict[str, Any]:
    """Return whether this Python ignores the user's own packages by itself, and why.

    The probe itself ignores them in an image, so this function reads the image's settings.
    """
    ignored = ""
    programs = os.path.dirname(sys.executable)
    for folder in (programs, os.path.dirname(programs)):  # where Python looks for pyvenv.cfg
        if re.search(rb"(?m)^include-system-site-packages *= *false", content_of(f"{folder}/pyvenv.cfg")):
            ignored = "it is a virtual environment"
    if not is_image and not ignored and not start()["user_site"]:
        ignored = "PYTHONNOUSERSITE is set"
    for script in sorted(glob.glob("/.singularity.d/env/*.sh")) if is_image else ():
        if re.search(rb"(?m)^[^#\n]*PYTHONNOUSERSITE=[\"']?\w", content_of(script)):
            ignored = "the image sets PYTHONNOUSERSITE"
    return {
        "ignored": ignored,
        "minor": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "path": start()["user_site"],
    }


def content_of(path: str) -> bytes:
    """Return the content of a file; empty if there is none."""
    if not os.path.isfile(path):
        return b""
    with open(path, "rb") as file:
        return file.read()


def system_libstdcxx() -> str:
    """Return the path of the system's libstdc++, not that of Python's environment; empty if there is none."""
    paths = (os.path.join(folder, "libstdc++.so.6") for folder in SYSTEM_LIBRARIES)
    return next((os.path.realpath(path) for path in paths if os.path.exists(path)), "")


def system_rocm() -> str:
    """Return the directory of the system's ROCm; empty if it has none."""
    found = glob.glob("/opt/rocm*/lib*/libamdhip64.so*")
    return os.path.realpath(os.path.dirname(os.path.dirname(min(found)))) if found else ""


def newest_symbols(path: str) -> dict[str, str]:
    """Return the newest GLIBCXX version that a libstdc++ defines."""
    if not path:
        return {"path": "", "glibcxx": ""}
    return {"path": path, "glibcxx": newest_version(rb"GLIBCXX_(\d+(?:\.\d+)+)\0", content_of(path))}


def newest_version(pattern: bytes, content: bytes) -> str:
    """Return the newest version that a pattern finds; empty if there is none."""
    versions = [[int(part) for part in match.split(b".")] for match in re.findall(pattern, content)]
    return ".".join(map(str, max(versions))) if versions else ""


def libraries(modules: list[str]) -> dict[str, Any]:
    """Return every shared object that is mapped after modules were imported in turn."""
    reply, mapped = in_child("libraries", modules)
    if reply.get("error"):
        return reply
    if mapped is None:
        return {"error": UNSEEN}
    objects = [path for path in mapped if ".so" in path]
    torch_files, _ = installed("torch")
    libstdcxx = [path for path in objects if os.path.basename(path).startswith("libstdc++.so")]
    return {
        "objects": objects,
        "copied": [path for path in objects if is_copied(path)],
        "libstdcxx": [newest_symbols(path) for path in libstdcxx if os.path.exists(path)],
        "of_torch": [
            os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
            for name, path in sorted(torch_files.items())
            if ".so" in name
        ],
        "prefixes": [os.path.realpath(path) for path in start()["prefixes"]],
        "plugins": [loaded_plugin(one, modules) for one in network_plugins(objects)],
        "plugin_variable": os.environ.get("NCCL_NET_PLUGIN", ""),
    }


FABRIC_VERSION = rb"\0FABRIC_(\d+\.\d+)(?=\0)"  # the symbol versions of libfabric in a shared object
ROCM_LIBRARIES = "/opt/rocm/lib"


def is_copied(path: str) -> bool:
    """Return whether a library of a distribution is the one of the system's ROCm."""
    import filecmp

    other = os.path.join(ROCM_LIBRARIES, os.path.basename(path))
    with suppress(OSError):
        return not os.path.samefile(path, other) and filecmp.cmp(path, other, shallow=False)
    return False


def network_plugins(objects: list[str]) -> list[dict[str, Any]]:
    """Return the network plugins that the loaded RCCL can find; the keys are those of `NetworkPlugin`."""
    rccl = next((path for path in objects if os.path.basename(path).startswith("librccl.so")), "")
    if not rccl:
        return []
    named = [path for path in os.environ.get("NCCL_NET_PLUGIN", "").split(",") if os.path.isabs(path)]
    paths = [*named, *in_loader_path("lib[nr]ccl-net*.so*", [os.path.dirname(rccl)])]
    return [plugin(path) for path in dict.fromkeys(paths) if os.path.isfile(path)]


def plugin(path: str) -> dict[str, Any]:
    """Return what a network plugin offers and needs, from the names in its file."""
    content = content_of(path)
    versions = re.findall(rb"\0ncclNetPlugin_v(\d+)(?=\0)", content)
    needed = re.search(rb"\0(libfabric\.so[.\d]*)\0", content)
    name = needed[1].decode() if needed else ""
    run_paths = [
        folder.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", os.path.dirname(path))
        for match in re.findall(rb"\0((?:/|\$\{?ORIGIN)[^\0]*)(?=\0)", content)
        for folder in os.fsdecode(match).split(":")
    ]
    found = [other for other in in_loader_path(name, run_paths) if os.path.isfile(other)] if name else []
    return {
        "path": path,
        "interfaces": sorted({int(version) for version in versions}),
        "libfabric": name,
        "found": os.path.realpath(found[0]) if found else "",
        "needs": newest_version(FABRIC_VERSION, content),
        "has": newest_version(FABRIC_VERSION, content_of(found[0])) if found else "",
    }


def loaded_plugin(plugin: dict[str, Any], modules: list[str]) -> dict[str, Any]:
    """Load a plugin after the modules, in a process of its own; return it with the error and the libfabric.

    RCCL does it in the same way, but only when a job communicates.
    """
    reply, mapped = in_child("plugin", [modules, plugin["path"]])
    text = ": ".join(filter(None, [reply.get("error", ""), reply.get("text", "")]))
    fabrics = [path for path in mapped or [] if os.path.basename(path).startswith("libfabric.so")]
    return {**plugin, "error": text, "loaded": fabrics[0] if fabrics else ""}


def in_loader_path(pattern: str, run_paths: list[str]) -> list[str]:
    """Return the files with a name that the loader finds, in its order: see ld.so(8)."""
    first = [*filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")), *run_paths]
    found = [
        sorted(glob.glob(os.path.join(glob.escape(folder), pattern)))
        for folder in (*first, *SYSTEM_LIBRARIES)
    ]
    cache = content_of("/etc/ld.so.cache")
    cached = [os.fsdecode(path) for path in re.findall(rb"(/[^\0]+\.so[.\d]*)\0", cache)]
    matching = [path for path in cached if fnmatch.fnmatch(os.path.basename(path), pattern)]
    return [path for group in (*found[: len(first)], matching, *found[len(first) :]) for path in group]
