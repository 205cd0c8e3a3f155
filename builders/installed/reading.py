"""Read what is installed in an image, a virtual or a conda environment, from its files.

Each distribution becomes the `Contents` that the audit of a wheel has, so that the same checks apply. The
shared objects of the Python that has torch, RCCL's and the compiler's are read; else only names count.
"""

from __future__ import annotations

import csv
import mmap
import posixpath
import re
import zipfile
from collections import Counter
from contextlib import suppress
from email.parser import BytesHeaderParser
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import msgspec
import re2

from builders.audit.contents import OP_TABLE, SEPARATE_CODE, SHARED_OBJECT, Contents, Objects
from builders.audit.elf import Budget, read_object
from builders.audit.gpu_code import ARCHIVE
from builders.audit.runtime_libraries import (
    LIBRARIES_WITH_SYMBOLS,
    LibraryProvider,
    TorchLibraries,
    literals,
)
from builders.containers.files import ImageFile, files_of
from builders.containers.inspection import gcc_of
from builders.machine.limited import limited
from builders.wheels.wheel import LARGEST_METADATA, DamagedError
from resolver.errors import UsageError
from resolver.requirements import normalize_name
from resolver.texts import printable
from resolver.versions import grouped, is_version, sort_key

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from builders.audit.elf import SharedObject
    from builders.audit.gpu_code import CodeObject
    from builders.findings import Finding

_SITE = re.compile(r"(?P<prefix>.*)/lib(?:64)?/python(?P<python>3\.\d+|3)/(?:site|dist)-packages(?=/)")
_INFO = re.compile(r"/[^/]+\.dist-info/(METADATA|RECORD|direct_url\.json)$|/[^/]+\.egg-info/PKG-INFO$")
_PYTHON = re.compile(r"-packages/(([^/]+/__init__|torch/version)\.py|[^/]+\.pth)$")
_AT_START = re.compile(
    r"/lib(?:64)?/python3(?:\.\d+)?/(?:(?:site|dist)-packages/(?:[^/]+\.pth|(site|user)customize\.py)"
    r"|(site|user)customize\.py)$"
)
"""What the module ``site`` reads at each start of Python. Source: https://docs.python.org/3/library/site.html."""
_RUNS_CODE = re.compile(rb"(?m)^import[ \t](?!site; site\.addsitedir\('[^'\n]*'\)\s*$|_virtualenv\s*$)")
"""Finds the lines of a ``.pth`` file that are run, other than those that only add a directory or that
virtualenv writes."""
_DIRECTORY = re2.compile(r"/[^'\"\n]*-packages\b")
"""A directory of packages that a ``.pth`` file names; its code is not run."""
_SETTINGS = re.compile(
    r"/\.singularity\.d/env/[^/]+\.sh$|^/etc/ld\.so\.conf(\.d/[^/]+\.conf)?$|/pyvenv\.cfg$"
    r"|^(/usr/lib|/etc)/os-release$|/\.info/version$|/etc/conda/activate\.d/[^/]+\.sh$"
)
_RUNTIME = re.compile(r"/(libc\.so\.6|libstdc\+\+\.so\.6|libgcc_s\.so\.1)(\.\d+)*$")
_READ_ANYWHERE = re.compile(r"/lib((rccl|nccl)[\w-]*|fabric)\.so[.\d]*$")
"""RCCL, its network plugins and libfabric, which need not belong to a distribution."""
_ROCM_OF_SYSTEM = re.compile(r"/opt/rocm[^/]*/\.info/version")
_HIP = re.compile(r"/libamdhip64\.so(\.\d+)*$")
_HIP_VERSION = re.compile(r"libamdhip64\.so\.(\d+)\.(\d+)\.(\d+)$")
_EXPORT = re2.compile(r"(?m)^[ \t]*(?:export[ \t]+)?([A-Z_][A-Z0-9_]*)=[\"']?([^\"'\n]*)[\"']?[ \t\r]*$")
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64")
_MULTIARCH = re.compile(r"(/usr)?/lib(64)?/x86_64-linux-gnu")
_LARGEST_RECORD, _LARGEST_TEXT = 1 << 24, LARGEST_METADATA
_MOST_TEXT = 1 << 28  # bytes of all texts
_MOST_ROWS = 500_000  # of a RECORD; torch's has 14,000
_MOST_OF_ALL = 2_000_000  # rows of all RECORDs; conda's images have each several times
_SECONDS, _BYTES_PER_SECOND = 120, 1 << 24
"""CPU time for any image, and how much of a file justifies another second; real ones take a few percent."""
_TREE = 1 << 34
"""The size in bytes that is assumed of a directory; measuring it takes as long as reading it."""
_MOST_LINKS = 40  # as in Linux
_TYKKY = "img.sqfs"
"""The file system of an environment that tykky has made, in its directory."""


class RocmCopy(msgspec.Struct, frozen=True):
    """A copy of ROCm's runtime."""

    folder: str
    version: str
    """As far as the files state it; empty if they do not."""
    names: frozenset[str]
    """The names and sonames of its HIP library."""

    @property
    def title(self) -> str:
        """Version and place, for a message."""
        return f"ROCm {self.version} in {self.folder}" if self.version else f"ROCm in {self.folder}"


class Installed(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What is installed in an image or environment."""

    is_image: bool
    files: Mapping[str, int]
    """Sizes of the regular files that matter, by path."""
    links: Mapping[str, str]
    texts: Mapping[str, bytes]
    objects: Mapping[str, SharedObject]
    """Those that were read, by path."""
    code: Mapping[str, tuple[CodeObject, ...]]
    runtimes: Mapping[str, Mapping[str, str]]
    """The symbol versions that each libc, libstdc++ and libgcc_s defines, by path."""
    problems: Sequence[Finding]

    @cached_property
    def sites(self) -> list[str]:
        """The directories of packages, as in its path, of the Python that has torch, else most packages."""
        counts: Counter[str] = Counter()
        with_torch = set()
        for path in self.texts:
            if (match := _SITE.match(path)) and _is_info(path, match[0], "/METADATA", "/PKG-INFO"):
                counts[match[0]] += 1
                if PurePosixPath(path).parent.name.startswith("torch-"):
                    with_torch.add(match[0])
        by_place = grouped((_prefix_and_python(site), site) for site in sorted(counts))
        seen = [self._seen_from(site, counts, by_place) for site in sorted(counts)]
        return max(
            seen,
            key=lambda sites: (not with_torch.isdisjoint(sites), sum(counts[site] for site in sites)),
            default=[],
        )

    def _seen_from(
        self, site: str, others: Container[str], by_place: Mapping[tuple[str, str], Sequence[str]]
    ) -> list[str]:
        # As `site` of the standard library extends sys.path: what .pth files name, and the directories of the
        # same Python below its prefix, for some virtual environments also below that of their base. Debian's
        # Python has packages below both /usr and /usr/local.
        prefix, python = _prefix_and_python(site)
        named = [
            other
            for path in self._by_folder.get(site, ())
            if path.endswith(".pth")
            for other in _DIRECTORY.findall(self.texts[path].decode(errors="replace"))
            if other in others
        ]
        prefixes = {prefix}
        settings = self.texts.get(f"{prefix}/pyvenv.cfg", b"").decode(errors="replace")
        if re.search(r"(?m)^include-system-site-packages *= *true", settings):
            home = re.search(r"(?m)^home *= *(\S+)/bin *$", settings)
            prefixes |= {home[1]} if home else set()
        if prefixes & {"/usr", "/usr/local"}:
            prefixes |= {"/usr", "/usr/local"}
        shared = [
            other
            for one in prefixes
            for version in {python, "3"}
            for other in by_place.get((one, version), ())
        ]
        return list(dict.fromkeys([site, *named, *sorted(shared)]))

    @cached_property
    def _by_folder(self) -> dict[str, list[str]]:
        """The texts in each directory, sorted."""
        return grouped((posixpath.dirname(path), path) for path in sorted(self.texts))

    def _infos(self, *ends: str) -> Iterator[tuple[str, str]]:
        """Yield the directories of packages of the Python, with the files of metadata that end so."""
        by_site = grouped((posixpath.dirname(folder), folder) for folder in sorted(self._by_folder))
        for site in self.sites:
            for folder in by_site.get(site, ()):
                yield from ((site, path) for path in self._by_folder[folder] if path.endswith(ends))

    @cached_property
    def prefix(self) -> str:
        """The prefix of the Python; empty if there is no Python with packages."""
        return _prefix_and_python(self.sites[0])[0] if self.sites else ""

    @cached_property
    def python(self) -> str:
        """Major and minor version of the Python; empty if not known."""
        python = _prefix_and_python(self.sites[0])[1] if self.sites else ""
        return python if "." in python else ""

    @cached_property
    def is_conda(self) -> bool:
        """Whether conda made the environment of the Python."""
        return any(path.startswith(f"{self.prefix}/conda-meta/") for path in self.files)

    @cached_property
    def distributions(self) -> list[tuple[str, Contents]]:
        """The distributions of the Python, each with the directory of its files, in the order of its path."""
        infos = self._infos("/METADATA", "/PKG-INFO")
        return [found for site, path in infos for found in self._distribution(site, path)]

    def _distribution(self, site: str, path: str) -> Iterator[tuple[str, Contents]]:
        metadata = self.texts[path]
        headers = BytesHeaderParser().parsebytes(metadata[:LARGEST_METADATA])
        name, version = str(headers["Name"] or ""), str(headers["Version"] or "")
        if not re.fullmatch(r"[\w.-]+", name) or not is_version(version):
            return
        folder = path.rpartition("/")[0]
        own = self._listed(site, folder)
        texts = {"METADATA": metadata}
        for member, full in own.items():
            if member.endswith(OP_TABLE) and full in self.texts:
                texts[member] = self.texts[full]
        members = []
        for member, full in own.items():
            if full in self.files:
                members.append(zipfile.ZipInfo(member))
                members[-1].file_size = self.files[full]
        objects = [(member, self.objects[full]) for member, full in own.items() if full in self.objects]
        info = PurePosixPath(folder).name
        contents = Contents(
            f"{name} {version}",
            normalize_name(name),
            version,
            (),
            tuple(members),
            (info,),
            info,
            {},
            texts=texts,
            objects=tuple(msgspec.structs.replace(item, path=member) for member, item in objects),
            code={member: self.code[full] for member, full in own.items() if full in self.code},
        )
        yield site, contents

    def _listed(self, site: str, info: str) -> dict[str, str]:
        return {row[0]: _below(site, row[0]) for row in self._record(info)}

    def _record(self, info: str) -> Iterator[list[str]]:
        record = self.texts.get(f"{info}/RECORD", b"").decode(errors="replace")
        with suppress(csv.Error):
            yield from (row for row in csv.reader(record.split("\n")) if row and row[0])

    @cached_property
    def owners(self) -> dict[str, tuple[str, str, str]]:
        """By path of each file that a RECORD lists: the distribution, its hash and its size, if stated."""
        found: dict[str, tuple[str, str, str]] = {}
        for site, contents in self.distributions:
            for path, *rest in self._record(f"{site}/{contents.dist_info}"):
                digest, size, *_ = [*rest, "", ""]
                found.setdefault(_below(site, path), (f"{contents.name} {contents.version}", digest, size))
        return found

    @property
    def at_start(self) -> list[str]:
        """The files that this Python runs at each start: ``*.pth`` with code, and ``sitecustomize.py``."""
        folders = {*self.sites, *(posixpath.dirname(site) for site in self.sites)}
        return [
            path
            for path, text in sorted(self.texts.items())
            if _AT_START.search(path) and posixpath.dirname(path) in folders
            if path.endswith(".py") or _RUNS_CODE.search(text)
        ]

    @cached_property
    def missing(self) -> dict[str, list[str]]:
        """The shared objects that RECORD lists and that do not exist, by distribution."""
        found: dict[str, list[str]] = {}
        for site, path in self._infos(".dist-info/RECORD"):
            folder = path.rpartition("/")[0]
            title = PurePosixPath(folder).name.removesuffix(".dist-info").replace("-", " ", 1)
            for member, full in self._listed(site, folder).items():
                if SHARED_OBJECT.search(member) and not self.resolved(full):
                    found.setdefault(title, []).append(member)
        return found

    @cached_property
    def editable(self) -> set[str]:
        """The normalized names of the distributions that are installed from a directory."""
        return {
            normalize_name(PurePosixPath(path).parent.name.partition("-")[0])
            for path, text in self.texts.items()
            if path.endswith("/direct_url.json") and b'"dir_info"' in text
        }

    @cached_property
    def damaged(self) -> list[str]:
        """The directories of metadata that cannot be used."""
        good = {(site, contents.dist_info) for site, contents in self.distributions}
        return [
            PurePosixPath(path).parent.name.partition("-")[0]
            for site, path in self._infos(".dist-info/METADATA", "/PKG-INFO")
            if (site, PurePosixPath(path).parent.name) not in good
        ]

    @cached_property
    def platform(self) -> dict[str, str]:
        """What else an image has: ROCm, glibc, libstdc++ (as the GCC that has it), and the system."""
        image = next((one.versions for one in self.providers if one.is_image), {})
        release = next((text for path, text in self.texts.items() if path.endswith("/os-release")), b"")
        title = re.search(r'(?m)^PRETTY_NAME="?([^"\n]*)', release.decode(errors="replace"))
        texts = (text for path, text in self.texts.items() if _ROCM_OF_SYSTEM.fullmatch(path))
        stated = [text.decode(errors="replace").strip().partition("-")[0] for text in texts]
        copies = [copy.version for copy in self.rocm if copy.version and "-packages/" not in copy.folder]
        rocm = [version for version in stated if is_version(version)] or copies
        known = {
            "rocm": max(rocm, key=sort_key, default=""),
            "glibc": image.get("GLIBC", ""),
            "libstdc++": gcc_of(image.get("GLIBCXX", "")),
            "os": printable(title[1]) if title else "",
        }
        return {name: version for name, version in known.items() if version}

    @cached_property
    def versions(self) -> dict[str, str]:
        """The version of each distribution that Python imports, by normalized name."""
        # Reversed, so that the first on the path stays.
        return {contents.name: contents.version for _, contents in reversed(self.distributions)}

    @cached_property
    def torch(self) -> TorchLibraries | None:
        """The torch of the Python; None if there is none."""
        site = self._torch_site
        if not site:
            return None
        folder = f"{site}/torch/lib/"
        own = {path: item for path, item in self.objects.items() if path.startswith(folder)}
        names = {PurePosixPath(path).name for path in (*own, *self.links) if path.startswith(folder)}
        names |= {item.soname for item in own.values() if item.soname}
        exports = frozenset[str]().union(
            *(
                item.exports
                for path, item in own.items()
                if PurePosixPath(path).name.startswith(LIBRARIES_WITH_SYMBOLS)
            )
        )
        values = self.torch_values
        rocm = re.match(r"\d+\.\d+", values["hip"])
        return TorchLibraries(
            self.versions.get("torch", values["version"]),
            rocm[0] if rocm else "",
            frozenset(names) if own else None,
            exports if any(item.exports for item in own.values()) else None,
        )

    @property
    def _torch_site(self) -> str:
        return next((site for site, contents in self.distributions if contents.name == "torch"), "")

    @cached_property
    def torch_values(self) -> dict[str, str]:
        """The version, HIP and CUDA of torch, as its ``version.py`` states them; empty if it does not."""
        values = literals(self.texts.get(f"{self._torch_site}/torch/version.py", b""))
        known = {name: str(values.get(name) or "") for name in ("hip", "cuda")}
        return {"version": str(values.get("__version__") or ""), **known}

    @cached_property
    def variables(self) -> dict[str, str]:
        """The variables that the image or the conda environment sets."""
        found: dict[str, str] = {}
        for path in sorted(self.texts):
            if path.endswith(".sh") and path.startswith(("/.singularity.d/", f"{self.prefix}/")):
                found |= dict(_EXPORT.findall(self.texts[path].decode(errors="replace")))
        return found

    @cached_property
    def library_path(self) -> list[str]:
        """The directories in the LD_LIBRARY_PATH of the image or conda environment."""
        names = self.variables.get("LD_LIBRARY_PATH", "").split(":")
        return [posixpath.normpath(name) for name in names if name.startswith("/")]

    @cached_property
    def loader_path(self) -> list[str]:
        """The directories that the loader of an image searches, without LD_LIBRARY_PATH."""
        lines = (
            line.strip()
            for path in sorted(self.texts)
            if path.startswith("/etc/ld.so.conf")
            for line in self.texts[path].decode(errors="replace").splitlines()
        )
        return [*(line for line in lines if line.startswith("/")), *_SYSTEM]

    def resolved(self, path: str) -> str:
        """Return the path of a file, with its links followed; empty if it does not exist."""
        followed = []
        for _ in range(_MOST_LINKS):
            path = posixpath.normpath(path)
            known = path if path in self.files else self._resolved.get(path)
            link = path
            while known is None and link not in self.links:
                link = link.rpartition("/")[0]
                known = None if link else ""
            if known is not None:
                break
            followed.append(path)
            path = posixpath.join(posixpath.dirname(link), self.links[link], path[len(link) :].lstrip("/"))
        self._resolved.update(dict.fromkeys(followed, known or ""))
        return known or ""

    @cached_property
    def _resolved(self) -> dict[str, str]:
        """What is known of `resolved`, so that chains and loops of links are followed once."""
        return {}

    def found(self, item: SharedObject, at: str, name: str) -> str:
        """Return where the loader finds a library that an object at a path needs; empty if it is not known.

        The order is that of ld.so(8); what torch has loaded comes first, if the object needs torch.
        """
        origin = posixpath.dirname(at)
        own = [path.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for path in item.search_paths]
        of_torch = f"{self._torch_site}/torch/lib" if self._torch_site else ""
        folders = [*own, *self.library_path, *self.loader_path]
        if of_torch and self.torch and name in (self.torch.libraries or ()):
            folders.insert(0, of_torch)
        for folder in folders:
            if path := self.resolved(f"{folder}/{name}"):
                return path
            for other in self._by_soname.get(name, ()):
                if posixpath.dirname(other) == posixpath.normpath(folder or origin):
                    return other
        return ""

    @cached_property
    def _by_soname(self) -> dict[str, list[str]]:
        return grouped((item.soname, path) for path, item in self.objects.items())

    @cached_property
    def rocm(self) -> list[RocmCopy]:
        """The copies of ROCm's runtime."""
        folders: dict[str, set[str]] = {}
        for path in (*self.files, *self.links):
            if _HIP.search(path) and (real := self.resolved(path)):
                names = folders.setdefault(posixpath.dirname(real), set())
                names |= {PurePosixPath(path).name, PurePosixPath(real).name}
                names |= {self.objects[real].soname} if real in self.objects else set()
        return [self._copy(folder, names) for folder, names in sorted(folders.items())]

    def _copy(self, folder: str, names: set[str]) -> RocmCopy:
        text = self.texts.get(f"{posixpath.dirname(folder)}/.info/version", b"").decode(errors="replace")
        version = text.strip().partition("-")[0]
        if folder == f"{self._torch_site}/torch/lib" and self.torch:
            version = self.torch.rocm
        for name in sorted(names):
            if not is_version(version) and (match := _HIP_VERSION.search(name)):
                # AMD's file ends with the release (60204); in Debian's it is another number.
                line, number = f"{match[1]}.{match[2]}", int(match[3])
                is_release = number // 100 == int(match[1]) * 100 + int(match[2])
                version = f"{line}.{number % 100}" if is_release else line
        return RocmCopy(folder, version if is_version(version) else "", frozenset(names))

    @cached_property
    def providers(self) -> tuple[LibraryProvider, ...]:
        """What provides libraries: the image, and the conda environment."""
        paths = (path for path in (*self.files, *self.links) if SHARED_OBJECT.search(path))
        names = {PurePosixPath(path).name for path in paths}
        names |= {item.soname for item in self.objects.values() if item.soname}
        image: dict[str, str] = {}
        conda: dict[str, str] = {}
        for path, versions in self.runtimes.items():
            is_system = _is_of_system(path)
            if is_system or (self.is_conda and posixpath.dirname(path) == f"{self.prefix}/lib"):
                for family, version in versions.items():
                    known = image if is_system else conda
                    known[family] = max(version, known.get(family, "0"), key=sort_key)
        shown = {family: version for family, version in image.items() if family not in conda}
        found = [LibraryProvider("the image", shown, frozenset(names))] if self.is_image else []
        if conda:
            found.append(LibraryProvider("the conda environment", conda, frozenset(names), is_image=False))
        elif not self.is_image:
            found.append(LibraryProvider("the environment", {}, frozenset(names), is_image=False))
        return tuple(found)


def _is_info(path: str, site: str, *ends: str) -> bool:
    """Return whether a file describes a distribution of a directory; setuptools contains others."""
    return path.endswith(ends) and posixpath.dirname(posixpath.dirname(path)) == site


def read_installed(path: Path) -> Installed:
    """Return `installed` of a path, which a child reads whose memory and time are limited."""
    size = path.stat().st_size if path.is_file() else _TREE
    return limited(partial(installed, path.resolve()), str(path), _SECONDS + size // _BYTES_PER_SECOND)


def installed(path: Path) -> Installed:
    """Read what is installed in an image or below a directory; nothing of it is started."""
    files: dict[str, int] = {}
    links: dict[str, str] = {}
    texts: dict[str, bytes] = {}
    runtimes: dict[str, Mapping[str, str]] = {}
    objects = Objects(0)
    if (path / _TYKKY).is_file():
        path /= _TYKKY
    left, left_rows = _MOST_TEXT, _MOST_OF_ALL
    for file in files_of(path, _is_wanted):
        if file.link:
            links[file.path] = file.link
            continue
        if file.at is not None or SHARED_OBJECT.search(file.path) or "/conda-meta/" in file.path:
            files[file.path] = file.size
        if file.at is not None:
            _read(file, file.at, texts, runtimes, objects)
            text = texts.get(file.path, b"")
            left -= len(text)
            rows = text.count(b"\n") if file.path.endswith("/RECORD") else 0
            left_rows -= rows
            if rows > _MOST_ROWS or min(left, left_rows) < 0:
                msg = f"{path} has more metadata than any real environment."
                raise UsageError(msg)
    is_image = any(map(_is_of_system, runtimes))
    if not is_image and not any(_INFO.search(name) for name in texts):
        msg = f"{printable(str(path))} has no Python packages."
        raise UsageError(msg, hint="Name an environment, or an image with a Python environment.")
    return Installed(
        is_image=is_image,
        files=files,
        links=links,
        texts=texts,
        objects={item.path: item for item in objects.objects},
        code=objects.code,
        runtimes=runtimes,
        problems=objects.findings,
    )


def _below(site: str, name: str) -> str:
    """Return the path of a file that a RECORD names."""
    if name.startswith(("/", ".")) or "/." in name or "//" in name:
        return posixpath.normpath(posixpath.join(site, name))
    return f"{site}/{name}"  # of most rows; normalizing them takes most of the time


def _prefix_and_python(site: str) -> tuple[str, str]:
    match = _SITE.match(f"{site}/")
    return (match["prefix"], match["python"]) if match else ("", "")


def _is_of_system(path: str) -> bool:
    folder = posixpath.dirname(path)
    return folder in _SYSTEM or _MULTIARCH.fullmatch(folder) is not None


def _is_wanted(path: str) -> bool:
    name = path.rpartition("/")[2]
    if _INFO.search(path) or _SETTINGS.search(path) or _RUNTIME.search(path) or _READ_ANYWHERE.search(path):
        return True
    if _AT_START.search(path):
        return True
    if not _SITE.match(path):
        return False
    return (
        SHARED_OBJECT.search(name) is not None
        or name == OP_TABLE
        or _PYTHON.search(path) is not None
        or (name.endswith(SEPARATE_CODE) and "/library/" not in path)
    )


def _read(
    file: ImageFile,
    at: Path,
    texts: dict[str, bytes],
    runtimes: dict[str, Mapping[str, str]],
    objects: Objects,
) -> None:
    is_object = SHARED_OBJECT.search(file.path)
    if not is_object and not file.path.endswith(SEPARATE_CODE):
        if file.size <= (_LARGEST_RECORD if file.path.endswith("/RECORD") else _LARGEST_TEXT):
            texts[file.path] = at.read_bytes()
        return
    if is_runtime := _RUNTIME.search(file.path):
        runtimes[file.path] = {}
    if not file.size:
        objects.damaged("kpack-damaged" if file.path.endswith(ARCHIVE) else "not-elf", file.path, "is empty")
        return
    objects.budget = Budget(file.size)
    with at.open("rb") as source, mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if not is_runtime:
            objects.read_object(file.path, data) if is_object else objects.read_bare_object(file.path, data)
            return
        try:
            runtimes[file.path] = read_object(file.path, data, objects.budget).defines
        except DamagedError as error:
            objects.damaged("not-elf", file.path, f"cannot be read: {error}")
