"""Learn the requirements of a wheel from its content.

Metadata and tags state the requirements on distributions and Python. The shared objects state the rest: the
GPU architectures of their code, the ROCm lines that have the libraries they need, and the glibc.

Only the directory, the metadata and the shared objects are read, from a server by range requests. A
compressed object must be read as a whole, because the sections of an ELF file are listed at its end, and
deflated data can only be read from its start.

Torch's C++ interface changes from release to release without a version, so a symbol table does not determine
a range of releases. It does show the ABI of ``std::string``: torch's wheels for ROCm have had the new ABI
since 2.6.0 (github.com/pytorch/test-infra pull request 6016). So new symbols exclude older releases, and old
symbols exclude newer releases.
"""

from __future__ import annotations

import io
import re
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import parse_qs, unquote, urlsplit

from msgspec.structs import replace

from builders.audit.contents import BARE_OBJECT, OP_TABLE, SHARED_OBJECT, matches_any, read_contents
from builders.audit.elf import version_key
from builders.audit.platform_tags import ROCM_LIBRARIES, required_glibc
from builders.audit.promises import bitsandbytes_hip, read_op_table
from builders.containers.inspection import gcc_of
from builders.gpu.content import content_of, rocm_of
from builders.learning import LearnedFacts, merged
from builders.network.transport import SHORT_TAIL, request_failed
from builders.network.urls import RequestError, without_password
from builders.storage.files import sha256_of
from builders.storage.lease import TemporaryDirectory
from builders.wheels.wheel import DamagedError, WheelReader
from resolver.environment import Environment
from resolver.errors import EnvironmentLacksError, SourceError, UsageError
from resolver.facts import schema
from resolver.facts.schema import PLATFORM
from resolver.indexes import File
from resolver.versions import built_for, minor, satisfies

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Callable, Iterator, Sequence
    from datetime import date

    from packaging.specifiers import SpecifierSet

    from builders.audit.contents import Contents
    from builders.network.transport import Transport
    from resolver.facts.catalog import Catalog
    from resolver.indexes import Content

_NEW_STRING = re.compile(r"__cxx11|B5cxx11")
_OLD_STRING = re.compile(r"RKSs|RSs|Ss$")
_FIRST_WITH_NEW_STRING = "2.6"
_LABELLED_TORCH = re.compile(r"torch(\d+\.\d+)")
_LONGEST_LICENCE = 100  # characters; some projects put the whole text there
_MOST_NAMED = 3
_ANY = ">=0"
"""A specifier for every version."""
_LARGEST_WHEEL = 1 << 34  # bytes; torch for ROCm has 5 GB


def learn_wheel(path: Path, catalog: Catalog, today: date) -> LearnedFacts:
    """Learn from a wheel on this machine."""
    try:
        with WheelReader(path) as wheel:
            contents = _read(path.name, wheel, _selected(wheel))
            content = content_of(contents, wheel)
        digest, size = sha256_of(path), path.stat().st_size
    except DamagedError as error:
        msg = f"{path} is not a valid wheel: {error}."
        raise UsageError(msg, hint="Its download or build may be incomplete. Repeat it.") from None
    except OSError as error:
        msg = f"Cannot read {path}: {error.strerror or error}."
        raise UsageError(msg) from None
    learned = learn_contents(contents, digest, catalog, today, content)
    learned.size = learned.read = size
    return learned


def learn_published(file: File, catalog: Catalog, transport: Transport, today: date) -> LearnedFacts:
    """Learn from a wheel on a server whose SHA-256 is known; only parts of the wheel are fetched."""
    try:
        remote = transport.remote_file(file.url, SHORT_TAIL)
        if remote is None:
            msg = f"{without_password(file.url)} can only be fetched as a whole, and is too large for that."
            raise EnvironmentLacksError(msg, hint="Download the wheel, and learn from the file.")
        with WheelReader(Path(file.name), cast("BinaryIO", io.BufferedReader(remote))) as wheel:
            selected = _selected(wheel)
            remote.expect(_compressed_parts(wheel, selected))
            contents = _read(file.name, wheel, selected)
            content = content_of(contents, wheel)
    except DamagedError as error:
        msg = f"{file.name} on {file.index or file.url} is not a valid wheel: {error}."
        raise SourceError(msg, hint="Report it to the maintainers of the index.") from None
    except RequestError as error:
        raise request_failed(file.url, error) from None
    learned = learn_contents(contents, file.sha256, catalog, today, content)
    learned.size, learned.read = remote.size, remote.fetched
    return learned


def learn_url(url: str, catalog: Catalog, transport: Transport, today: date) -> LearnedFacts:
    """Learn from the wheel at a URL; without a hash (``#sha256=...``) it is downloaded to compute it."""
    parts = urlsplit(url)
    name = unquote(parts.path).rpartition("/")[2]
    if not name.endswith(".whl"):
        msg = f"{without_password(url)} does not end in the name of a wheel."
        raise UsageError(msg)
    address, _, fragment = url.partition("#")
    sha256 = parse_qs(fragment).get("sha256", [""])[0]
    if sha256:
        return learn_published(File(name=name, url=address, sha256=sha256), catalog, transport, today)
    with TemporaryDirectory() as folder:
        path = folder.root / name
        try:
            with path.open("wb") as sink:
                sink.writelines(transport.download(address, _LARGEST_WHEEL))
        except RequestError as error:
            raise request_failed(address, error) from None
        return learn_wheel(path, catalog, today)


def _read(file: str, wheel: WheelReader, selected: Callable[[zipfile.ZipInfo], bool]) -> Contents:
    """Read a wheel; raise `DamagedError` if a member that is read does not have its size and checksum."""
    contents, findings = read_contents(file, wheel, selected)
    for finding in findings:
        if finding.id == "member-damaged":
            raise DamagedError(finding.message.removesuffix("."))
    return contents


def _selected(wheel: WheelReader) -> Callable[[zipfile.ZipInfo], bool]:
    """Return a test for the members of a wheel that are read."""
    texts = {f"{wheel.dist_info}/METADATA", f"{wheel.dist_info}/WHEEL"}
    version = str(wheel.version)

    def is_selected(info: zipfile.ZipInfo) -> bool:
        path = info.filename
        name = path.rpartition("/")[2]
        if wheel.name == "bitsandbytes" and name.startswith("libbitsandbytes_"):
            return bool(bitsandbytes_hip(version, name))
        return (
            path in texts
            or name == OP_TABLE
            or bool(SHARED_OBJECT.search(path))
            or name.endswith(BARE_OBJECT)
        )

    return is_selected


def _compressed_parts(
    wheel: WheelReader, selected: Callable[[zipfile.ZipInfo], bool]
) -> list[tuple[int, int]]:
    """Return start and end of the members that are read as a whole."""
    return [
        (info.header_offset, info.header_offset + info.compress_size + 512)
        for info in wheel.members
        if info.compress_type and selected(info)
    ]


def learn_contents(
    contents: Contents, sha256: str, catalog: Catalog, today: date, content: Content | None
) -> LearnedFacts:
    """Return the rows that a wheel states."""
    reading = _Reading(contents, sha256, catalog, today)
    return LearnedFacts(merged([*reading.rows(), *reading.need_of_cuda(content)]), reading.remarks)


class _Reading:
    def __init__(self, contents: Contents, sha256: str, catalog: Catalog, today: date) -> None:
        self._contents = contents
        self._catalog = catalog
        self.remarks: list[str] = []
        self._source = f"{contents.file} sha256:{sha256}"
        self._note = f"Read on {today.isoformat()}."
        self._read: dict[str, Any] = {"status": "observed", "source": self._source, "note": self._note}
        self._sha256 = sha256
        self._table = read_op_table(contents)
        own = {PurePosixPath(info.filename).name for info in contents.members}
        self._sonames = {
            item.path: [name for name in item.needed if name not in own and matches_any(name, ROCM_LIBRARIES)]
            for item in contents.objects
        }

    def rows(self) -> Iterator[schema.Row]:
        contents = self._contents
        if contents.name not in self._catalog.package:
            yield schema.Package(
                name=contents.name,
                title=next(iter(contents.header("METADATA", "Summary")), "") or contents.name,
                **self._read,
            )
        yield from self._release()
        yield self._wheel()
        yield from self._python()
        releases = self._catalog.releases_of(contents.name)
        if any(row.version == contents.version and (row.sdist or row.git) for row in releases):
            self._remark("the catalog builds this version from source, so its objects were not considered.")
        else:
            yield from self._runtime_libraries()
            yield from self._rocm_and_gfx()
        yield from self._torch()
        yield from self._distributions()
        yield from self._built_from_commit()

    def need_of_cuda(self, content: Content | None) -> Iterator[schema.KnownBad]:
        """Yield the row that excludes a release which requires CUDA.

        A catalog that lists releases of the package has builds of the same version for other GPUs.
        """
        contents = self._contents
        if content is None or content.cuda != "required":
            return
        problem = f"its wheels require CUDA: {content.evidence}"
        if self._catalog.releases_of(contents.name):
            self._remark(f"{problem}. The release is not excluded, because the catalog has other builds.")
            return
        yield schema.KnownBad(
            combination={contents.name: f"=={contents.version}"}, problem=problem, **self._read
        )

    def _remark(self, text: str) -> None:
        self.remarks.append(f"{self._contents.file}: {text}")

    def _release(self) -> Iterator[schema.Release]:
        """Yield a release that the catalog lacks, of a package whose releases only the catalog decides."""
        contents = self._contents
        known = self._catalog.releases_of(contents.name)
        if all(row.pypi for row in known) or any(row.version == contents.version for row in known):
            return
        if "+" in contents.version or (contents.objects and not contents.code):
            return
        if any(tag.interpreter != "py3" for tag in contents.tags):
            self._remark(
                "the catalog does not have this release, and releases for a single Python are not added."
            )
            return
        yield schema.Release(
            package=contents.name,
            version=contents.version,
            wheel=schema.Sdist(contents.file, self._sha256),
            **self._read,
        )

    def _wheel(self) -> schema.Wheel:
        contents = self._contents
        licence = contents.header("METADATA", "License-Expression") or [
            text for text in contents.header("METADATA", "License") if len(text) <= _LONGEST_LICENCE
        ]
        licence = licence or [
            text.rpartition(" :: ")[2]
            for text in contents.header("METADATA", "Classifier")
            if text.startswith("License ::")
        ]
        if not licence:
            self._remark("its metadata names no licence.")
        return schema.Wheel(
            package=contents.name,
            version=contents.version,
            file=contents.file,
            sha256=self._sha256,
            code={path: tuple(names) for path, names in self._code().items()},
            libraries=tuple(sorted({*chain.from_iterable(self._sonames.values())})),
            ops=tuple(self._table.compiled) if self._table else (),
            licence=", ".join(licence),
            **self._read,
        )

    def _code(self) -> dict[str, list[str]]:
        """Return the GPU architectures of each library; files with a single code object are one entry."""
        by_path: dict[str, set[str]] = {}
        for path, code in sorted(self._contents.code.items()):
            if code:
                key = f"*{PurePosixPath(path).suffix}" if path.endswith(BARE_OBJECT) else path
                by_path.setdefault(key, set()).update(item.architecture for item in code)
        return {path: sorted(names) for path, names in by_path.items()}

    def _requires(
        self,
        on: str,
        versions: Sequence[str],
        note: str = "",
        *,
        gfx: Sequence[str] = (),
        when_present: bool = False,
    ) -> schema.Requires:
        return schema.Requires(
            package=self._contents.name,
            releases=f"=={self._contents.version}",
            on=on,
            versions=tuple(versions),
            gfx=tuple(gfx),
            when_present=when_present,
            status="observed",
            source=self._source,
            note=f"{note} {self._note}".strip(),
        )

    def _python(self) -> Iterator[schema.Requires]:
        stated = ",".join(self._contents.header("METADATA", "Requires-Python"))
        specifiers = []
        for tag in self._contents.tags:
            match = re.fullmatch(r"(cp|py)(\d)(\d+)", tag.interpreter)
            if match and (match[1] == "py" or tag.abi == "abi3"):
                specifiers.append(self._narrowed(f">={match[2]}.{match[3]}", stated))
            elif match and tag.abi in {tag.interpreter, f"{tag.interpreter}m", "none"}:
                specifiers.append(self._narrowed(f"=={match[2]}.{match[3]}.*", stated))
            elif tag.interpreter.startswith("py") and stated:
                specifiers.append(stated)
        if specifiers:
            yield self._requires(
                "python", [*dict.fromkeys(specifiers)], "Requires-Python and the file's tags."
            )
        else:
            self._remark("neither its tags nor its metadata limit Python.")

    def _narrowed(self, of_tag: str, stated: str) -> str:
        """Return the Pythons of a tag without those that Requires-Python refuses."""
        allowed = (Environment(python) for python in self._catalog.python if satisfies(python, of_tag))
        every = all(environment.allows_python(stated) for environment in allowed)
        return of_tag if every else f"{of_tag},{stated}"

    def _runtime_libraries(self) -> Iterator[schema.Requires]:
        needed = [item.versions["GLIBC"] for item in self._contents.objects if "GLIBC" in item.versions]
        needed += filter(None, [required_glibc(self._contents.file)])
        if needed:
            newest = max(needed, key=version_key)
            note = "The platform tag, or the newest symbol version that an object needs."
            yield self._requires("glibc", [f">={newest}"], note, when_present=True)
        bundled = any(
            PurePosixPath(info.filename).name.startswith("libstdc++") for info in self._contents.members
        )
        symbols = [item.versions["GLIBCXX"] for item in self._contents.objects if "GLIBCXX" in item.versions]
        gcc = gcc_of(max(symbols, key=version_key)) if symbols and not bundled else ""
        if gcc:
            note = f"The newest symbol version is GLIBCXX_{max(symbols, key=version_key)}."
            yield self._requires("libstdcxx", [f">={gcc}"], note, when_present=True)

    def _rocm_and_gfx(self) -> Iterator[schema.Requires]:
        code = self._code()
        lines = self._lines_of_names()
        if lines:
            for names, hips in lines.items():
                note = f"Libraries for these ROCm versions and GPU architectures: {', '.join(hips)}."
                yield self._requires("rocm", [f"=={line}.*" for line in hips.values()], note, gfx=names)
            return
        if not code and any(info.filename.endswith(".kpack") for info in self._contents.members):
            self._remark("its GPU code is in .kpack files, which are not read.")
        yield from self._rocm()
        own = {
            path: names
            for path, names in code.items()
            if not matches_any(PurePosixPath(path).name, ROCM_LIBRARIES)
        }
        if not own:
            if any(item.has_cuda_code for item in self._contents.objects):
                self._remark("it contains code for NVIDIA's GPUs, but none for AMD's.")
            return
        common = sorted(set.intersection(*map(set, own.values())))
        every = sorted(set().union(*map(set, own.values())))
        if not common:
            self._remark(
                "its libraries have no GPU architecture in common, so the required architectures are unknown."
            )
            return
        note = f"GPU code of {_shortened(list(own))}."
        if len(every) > len(common):
            note = f"GPU architectures that all of {_shortened(list(own))} have; some also have others."
        yield self._requires("gfx", common, note)

    def _lines_of_names(self) -> dict[tuple[str, ...], dict[str, str]]:
        """Return, for bitsandbytes, the architectures of its libraries and the ROCm line of each.

        Its libraries are named after the HIP version of torch, which may differ from the ROCm version.
        """
        if self._contents.name != "bitsandbytes":
            return {}
        rocm_of = {minor(row.hip): minor(row.version) for row in self._catalog.rocm.values() if row.hip}
        lines: dict[tuple[str, ...], dict[str, str]] = {}
        for path, names in self._code().items():
            library = PurePosixPath(path).name
            hip = bitsandbytes_hip(self._contents.version, library)
            if hip:
                lines.setdefault(tuple(names), {})[library] = rocm_of.get(hip, hip)
        return lines

    def _rocm(self) -> Iterator[schema.Requires]:
        names = sorted({*chain.from_iterable(self._sonames.values())})
        ranges = {*chain.from_iterable(map(rocm_of, self._sonames.values()))}
        if self._table and self._table.rocm:
            yield self._requires(
                "rocm", [f"=={minor(self._table.rocm)}.*"], "Its op table names the ROCm of its build."
            )
        elif len(ranges) == 1:
            yield self._requires("rocm", [*ranges], f"Its objects need {_shortened(names)}.")
        elif names:
            reason = "belong to different ROCm versions" if ranges else "do not change with ROCm's version"
            self._remark(
                f"its ROCm line is unknown: the libraries that it needs ({_shortened(names)}) {reason}."
            )

    def _torch(self) -> Iterator[schema.Requires]:
        contents = self._contents
        if contents.name == "torch":
            return
        specifiers = [
            _text(item.specifier)
            for item in contents.requirements()
            if item.name == "torch" and item.specifier
        ]
        notes = ["From the wheel's metadata."] if specifiers else []
        exports = frozenset(chain.from_iterable(item.exports for item in contents.objects))
        imports = {*chain.from_iterable(item.imports for item in contents.objects)} - exports
        labelled = _LABELLED_TORCH.search(contents.version.partition("+")[2])
        built_for = self._table.torch if self._table else ""
        if built_for or labelled:
            line = minor(built_for) if built_for else labelled[1] if labelled else ""
            specifiers.append(f"=={line}.*")
            notes.append(f"Its {'op table' if built_for else 'version'} names the torch of its build.")
        if imports and not any(text.startswith("==") for text in specifiers):
            new = any(map(_NEW_STRING.search, imports))
            old = any(map(_OLD_STRING.search, imports))
            if new != old:
                specifiers.append(f"{'>=' if new else '<'}{_FIRST_WITH_NEW_STRING}")
                notes.append(f"The torch symbols that it uses have the {'new' if new else 'old'} C++ ABI.")
            if not all(name.startswith(("aoti_torch_", "torch_", "THP")) for name in imports):  # C symbols
                text = f"it uses {len(imports)} C++ symbols of torch, which have no version"
                self._remark(f"the torch that it loads with is unknown: {text}.")
        if specifiers:
            yield self._requires("torch", [",".join(specifiers)], " ".join(notes))

    def _distributions(self) -> Iterator[schema.Requires]:
        """Yield the requirements on distributions of the catalog; indexes have the others."""
        for requirement in self._contents.requirements():
            name = requirement.name
            if name in {"torch", self._contents.name} or not requirement.specifier:
                continue
            if name not in self._catalog.package or name in PLATFORM:
                continue
            if requirement.marker is not None:
                self._remark(f"{requirement} depends on the environment, so it was left out.")
                continue
            yield self._requires(name, [_text(requirement.specifier)], "From the wheel's metadata.")

    def _built_from_commit(self) -> Iterator[schema.Row]:
        """Yield the requirements of the commit that a wheel of ours was built from, which no index has.

        Each distribution that the catalog lacks gets a package row; package indexes decide its version.
        """
        contents = self._contents
        version = contents.version.partition("+")[0]
        releases = [
            row
            for row in self._catalog.releases_of(contents.name)
            if row.git and row.version.partition("+")[0] == version
        ]
        if built_for(contents.version) is None or not releases:
            return
        if len(releases) > 1:
            self._remark(f"the catalog has {len(releases)} commits of {version}, and its name fits all.")
            return
        stated = ",".join(contents.header("METADATA", "Requires-Python"))
        required = {"python": stated} if stated else {}
        for requirement in contents.requirements():
            if requirement.name not in {"torch", contents.name} and requirement.marker is None:
                required[requirement.name] = _text(requirement.specifier) or _ANY
        for name, specifier in required.items():
            if name not in self._catalog.package and name not in PLATFORM:
                yield schema.Package(name=name, title=name, **self._read)
            row = self._requires(name, [specifier], "From the wheel's metadata.")
            yield replace(row, releases=f"=={releases[0].version}", variant=releases[0].variant)


def _text(specifier: SpecifierSet) -> str:
    """Return a specifier as text, with lower bounds first."""
    return ",".join(sorted(map(str, specifier), reverse=True))


def _shortened(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
