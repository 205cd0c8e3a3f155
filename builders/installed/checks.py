"""Judge what is installed in an image or environment: its files, the facts of the catalog, and the site.

A check gets what was read, and the facts with the site, day and GPU architectures to judge for.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING

from builders.audit import libraries, promises
from builders.audit.contents import Expected, loaded_variants, matches_any
from builders.audit.gpu_code import ARCHIVE
from builders.audit.platform_tags import ROCM_LIBRARIES, TORCH_LIBRARIES
from builders.audit.promises import interfaces
from builders.findings import SEVERITIES, Finding, limited
from builders.gpu.content import content_of_installed
from builders.probe.ask import (
    EnvironmentReply,
    FrameworkReply,
    InstalledDist,
    Libraries,
    LibStdCxx,
    NetworkPlugin,
    UserSite,
)
from builders.probe.environment import judge_listed
from resolver.answers.resolution import unknown_driver
from resolver.compiling.known_bad import broken_combinations
from resolver.consequences.questions import changes, driver_states
from resolver.indexes import judged
from resolver.requirements import TRITON_NAMES, is_for_cuda
from resolver.texts import printable
from resolver.versions import join_words, minor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from builders.findings import Severity
    from builders.installed.reading import Installed, RocmCopy
    from resolver.consequences.questions import Side
    from resolver.model import Resolution

    Check = Callable[[Installed, Side], Iterator[Finding]]

_AUDITS = (
    libraries.check_versions,
    libraries.check_libraries,
    libraries.check_symbols,
    libraries.check_bundled,
    promises.check_op_table,
    promises.check_computed_names,
)
"""The checks of wheels that also apply to installed distributions."""
_NOISE = {"need-of-other-backend", "plain-platform-tag"}
"""Findings that matter only for a wheel that is published."""
_EXTENSION = re.compile(r"\.(cpython-3(?P<python>\d+)|abi3)[^/]*\.so$")
_PLUGIN = re.compile(r"/lib(rccl|nccl)-net[\w-]*\.so[.\d]*$")
_MPI = re.compile(r"/(libmpi|libmpich)\.so[.\d]*$")
_MPI_ABIS = {
    "libmpi.so.12": "MPICH: Cray MPICH has the same, so its library can take the place of this one",
    "libmpich.so.12": (
        "MPICH under Debian's file name: Cray MPICH has the same ABI, but as libmpi.so.12, so a site needs a "
        "link with this name"
    ),
    "libmpi.so.40": "Open MPI: Cray MPICH cannot take its place",
}
"""What the soname of an MPI library says of its ABI (https://www.mpich.org/abi/ ;
https://sarus.readthedocs.io/en/stable/user/abi_compatibility.html ; Debian's libmpich12 and libopenmpi3)."""
_FABRIC = re.compile(r"/libfabric\.so[.\d]*$")
_RCCL = re.compile(r"/librccl\.so[.\d]*$")
_OF_BUILDS = re.compile(r"\bcompile|\bsetup\b")
_SEVERITIES: dict[str, Severity] = {
    "refuse": "error",
    "unpublished": "warning",
    "warn": "warning",
    "explain": "info",
}
_MACHINE = "EM_X86_64"
_OVERRIDING = (*ROCM_LIBRARIES, *TORCH_LIBRARIES)
_MOST_NAMED = 3
_REBUILD = "Build the environment again: `matrix check THING --repair -o DIR` writes the nearest that fits."


def findings_of(
    installed: Installed, side: Side, lock: Resolution | None, user_packages: Mapping[str, str]
) -> list[Finding]:
    """Return the findings about what is installed, the most severe first.

    With a lock, it is compared, too. `user_packages` are the versions in ``~/.local`` for this Python.
    """
    findings = limited(installed.problems)
    backend = side.request.target.backend
    findings += judge_listed(
        _reply(installed), lock, user_packages, rebuild=_REBUILD, backend=backend, gfx=side.request.target.gfx
    )
    for check in CHECKS:
        findings += limited(check(installed, side))
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def _reply(installed: Installed) -> EnvironmentReply:
    """Return what was read in the form of a reply of the probe."""
    return EnvironmentReply(
        python=installed.python,
        executable="",
        distributions=[
            InstalledDist(
                contents.name,
                contents.version,
                site,
                metadata_sha256=hashlib.sha256(contents.texts["METADATA"]).hexdigest(),
                requires=[str(line).strip() for line in contents.header("METADATA", "Requires-Dist")],
                archives=[path.filename for path in contents.members if path.filename.endswith(ARCHIVE)],
            )
            for site, contents in installed.distributions
        ],
        user_site=UserSite(installed.python, _ignores_user_site(installed)),
        system_libstdcxx=LibStdCxx(),
        libraries=Libraries(
            plugins=_plugins(installed), plugin_variable=installed.variables.get("NCCL_NET_PLUGIN", "")
        ),
        torch=_torch(installed),
        system_rocm=next((one.folder for one in installed.rocm if one.folder.startswith("/opt/rocm")), ""),
    )


def _torch(installed: Installed) -> FrameworkReply:
    """Return the torch; its ``version.py`` says what it is built for, else its label."""
    values, version = installed.torch_values, installed.versions.get("torch", "")
    label = version.partition("+")[2]
    if values["version"]:
        return FrameworkReply(version=version, hip=values["hip"], cuda=values["cuda"])
    if label.startswith(("cu", "rocm", "cpu")):
        cuda = label.removeprefix("cu") if label.startswith("cu") else ""
        return FrameworkReply(
            version=version, hip=label.removeprefix("rocm") if label[0] == "r" else "", cuda=cuda
        )
    return FrameworkReply()


def _rccl(installed: Installed) -> str:
    """Return the RCCL that torch loads; empty if the files do not say it."""
    for site, contents in installed.distributions:
        if contents.name == "torch":
            for item in contents.objects:
                name = next((name for name in item.needed if name.startswith("librccl.so")), "")
                if name and (path := installed.found(item, f"{site}/{item.path}", name)):
                    return path
    return ""


def _plugins(installed: Installed) -> list[NetworkPlugin]:
    everything = sorted({*installed.files, *installed.links})
    paths = [path for path in everything if _PLUGIN.search(path) and installed.resolved(path)]
    rccl = _rccl(installed)
    searched = {
        found
        for path in paths
        if rccl in installed.objects
        and (found := installed.found(installed.objects[rccl], rccl, posixpath.basename(path)))
    }
    plugins = []
    for path in paths:
        item = installed.objects.get(installed.resolved(path))
        if item is None:  # it is damaged, which is a finding already
            continue
        fabric = next((name for name in item.needed if name.startswith("libfabric.so")), "")
        at = installed.found(item, path, fabric) if fabric else ""
        is_searched = installed.resolved(path) in searched
        library = installed.objects.get(installed.resolved(at)) if at else None
        has = library.defines.get("FABRIC", "") if library else ""
        needs = item.versions.get("FABRIC", "")
        plugins.append(NetworkPlugin(path, sorted(interfaces(item)), fabric, at, is_searched, needs, has))
    return sorted(plugins, key=lambda plugin: not plugin.searched)


def _ignores_user_site(installed: Installed) -> str:
    """Return why Python ignores the user's own packages; empty if it does not."""
    settings = installed.texts.get(f"{installed.prefix}/pyvenv.cfg", b"").decode(errors="replace")
    if re.search(r"(?m)^include-system-site-packages *= *false", settings):
        return "it is a virtual environment"
    return "the image sets PYTHONNOUSERSITE" if installed.variables.get("PYTHONNOUSERSITE") else ""


# --- Checks ---------------------------------------------------------------------------------------------


def check_distributions(installed: Installed, _: Side) -> Iterator[Finding]:
    """Apply the checks of wheels to each distribution."""
    expected = Expected(torch=installed.torch, providers=installed.providers)
    for _site, everything in installed.distributions:
        contents = loaded_variants(everything, expected)
        for audit in _AUDITS:
            for finding in limited(audit(contents, expected)):
                library = finding.evidence.get("library", "")
                is_open = finding.id == "need-elsewhere" and not matches_any(library, ROCM_LIBRARIES)
                if finding.id in _NOISE or is_open:
                    continue
                title = f"{contents.name} {contents.version}"
                evidence = {**finding.evidence, "distribution": title}
                yield Finding(
                    finding.id, finding.severity, f"{title}: {finding.message}", finding.fix, evidence
                )


def check_content(installed: Installed, side: Side) -> Iterator[Finding]:
    """Report the distributions that need CUDA, or have no code for the GPUs of the site."""
    target = side.request.target
    if target.backend != "rocm":
        return
    rocm = installed.torch.rocm if installed.torch else ""
    unread = [finding.evidence.get("member", "") for finding in installed.problems]
    open_ = []
    for site, contents in installed.distributions:
        name = contents.name
        if is_for_cuda(name) or (name == "torch" and not rocm):
            continue  # a finding already
        problems = [
            finding
            for finding, path in zip(installed.problems, unread, strict=True)
            if any(path == f"{site}/{info.filename}" for info in contents.members)
        ]
        tops = sorted({info.filename.partition("/")[0] for info in contents.members})
        inits = [
            init for top in tops if (init := installed.texts.get(f"{site}/{top}/__init__.py")) is not None
        ]
        knows_torch = installed.torch is not None and installed.torch.exports is not None
        content = content_of_installed(contents, inits, problems, knows_torch=knows_torch)
        judgement = judged(content, target.gfx, rocm) if content else None
        if judgement is None:
            continue
        title = f"{name} {contents.version}"
        if judgement.state == "does-not-fit":
            evidence = {"content": judgement.evidence, "distribution": title}
            fix = f"Resolve a request with {name} for this platform with `matrix resolve`."
            yield Finding("verify-does-not-fit", "error", f"{title} {judgement.evidence}.", fix, evidence)
        elif judgement.state == "not-judged":
            open_.append(title)
        elif content and content.gfx:
            text = f"{title} has GPU code for {join_words(content.gfx, most=8, joiner='and')}"
            objects = {
                path: sorted({item.name for item in code}) for path, code in sorted(contents.code.items())
            }
            yield Finding("gpu-code", "info", text, "", {"distribution": title, "objects": objects})
    if open_:
        count = sum(1 for _, contents in installed.distributions if contents.objects)
        listed = join_words(open_, most=_MOST_NAMED, joiner="and")
        text = f"{len(open_)} of {count} compiled packages could not be judged: {listed}."
        counts = {"count": len(open_), "compiled": count}
        yield Finding("verify-contents-not-judged", "warning", text, "", counts)


def check_copies(installed: Installed, _: Side) -> Iterator[Finding]:
    """Report each copy of ROCm with those who load it, and a process with two of them."""
    users: dict[str, set[str]] = {copy.folder: set() for copy in installed.rocm}
    by_folder = {copy.folder: copy for copy in installed.rocm}
    of_torch = next((copy for copy in installed.rocm if copy.folder.endswith("/torch/lib")), None)
    for site, contents in installed.distributions:
        title = f"{contents.name} {contents.version}"
        for item in loaded_variants(contents, Expected(torch=installed.torch)).objects:
            at = f"{site}/{item.path}"
            for name in item.needed:
                if matches_any(name, ROCM_LIBRARIES) and (path := installed.found(item, at, name)):
                    copy = by_folder.get(posixpath.dirname(path))
                    if copy is None:
                        continue
                    users[copy.folder].add(title)
                    yield from _second(title, item.path, name, copy, of_torch)
            yield from _foreign_paths(installed, title, item.path, item.search_paths, of_torch)
    for copy in installed.rocm:
        loaded = sorted(users[copy.folder])
        by = (
            f"loaded by {join_words(loaded, most=5, joiner='and')}"
            if loaded
            else "no package that was read loads it"
        )
        evidence = {"folder": copy.folder, "version": copy.version, "users": loaded}
        yield Finding("rocm-copy", "info", f"{copy.title}: {by}", "", evidence)


def _second(
    title: str, path: str, library: str, copy: RocmCopy, of_torch: RocmCopy | None
) -> Iterator[Finding]:
    if of_torch is None or copy.folder == of_torch.folder:
        return
    if copy.version and of_torch.version and minor(copy.version) != minor(of_torch.version):
        text = (
            f"{title}: {path} loads {library} of {copy.title}, and torch has {of_torch.title}: a process "
            "that uses both has two ROCm runtimes."
        )
        fix = "Build the package for the ROCm of this torch, or use its environment without torch."
        yield Finding("rocm-twice", "error", text, fix, {"member": path, "library": library})


def _foreign_paths(
    installed: Installed, title: str, path: str, search_paths: tuple[str, ...], of_torch: RocmCopy | None
) -> Iterator[Finding]:
    """Report search paths that name a ROCm of another line than torch's."""
    rocm = installed.torch.rocm if installed.torch else ""
    for folder in search_paths:
        if not re.match(r"/opt/rocm[-/]", folder) or not rocm:
            continue
        copy = next((one for one in installed.rocm if _is_same_folder(installed, one, folder)), None)
        stated = re.match(r"/opt/rocm-(\d+\.\d+)", folder)
        version = copy.version if copy else stated[1] if stated else ""
        if version and minor(version) != rocm and (copy or of_torch):
            what = f"ROCm {version}{'' if copy else ', which does not exist here'}"
            text = f"{title}: {path} searches {folder}, of {what}, but torch is for ROCm {rocm}."
            fix = "Remove the search path with `patchelf --remove-rpath`, or build it for this ROCm."
            evidence = {"member": path, "path": folder}
            yield Finding("rpath-rocm", "error" if copy else "warning", text, fix, evidence)


def _is_same_folder(installed: Installed, copy: RocmCopy, folder: str) -> bool:
    return any(
        posixpath.dirname(installed.resolved(f"{folder}/{name}")) == copy.folder for name in copy.names
    )


def check_tritons(installed: Installed, _: Side) -> Iterator[Finding]:
    """Report two distributions that install the package ``triton``."""
    aliases = {  # which have no files of their own
        contents.name
        for _, contents in installed.distributions
        if any(requirement.name in TRITON_NAMES for requirement in contents.requirements())
    }
    own = [name for name in TRITON_NAMES if name in installed.versions and name not in aliases]
    if len(own) > 1:
        listed = join_words([f"{name} {installed.versions[name]}" for name in own], joiner="and")
        text = f"{listed} are installed: they overwrite each other's files."
        fix = "Remove both, and install the one that this torch requires again."
        yield Finding("tritons", "error", text, fix)


def check_pythons(installed: Installed, _: Side) -> Iterator[Finding]:
    """Report extension modules for another Python or another machine."""
    python = installed.python.removeprefix("3.")
    for _site, contents in installed.distributions:
        title = f"{contents.name} {contents.version}"
        others = [item.path for item in contents.objects if item.machine not in {"", _MACHINE}]
        if others:
            text = f"{title}: {others[0]} is for another machine."
            yield Finding("other-machine", "error", text, _REBUILD, {"member": others[0]})
        # A package may have the same module for several Pythons; one of them must fit.
        groups: dict[str, set[str]] = {}
        for item in contents.objects:
            if match := _EXTENSION.search(item.path):
                stem = item.path[: match.start()]
                groups.setdefault(stem, set()).add(match["python"] or python)
        wrong = [
            (stem, versions) for stem, versions in sorted(groups.items()) if python and python not in versions
        ]
        if wrong:
            stem, versions = wrong[0]
            listed = join_words([f"3.{version}" for version in sorted(versions)], joiner="and")
            text = f"{title}: {stem} is compiled for Python {listed}, and this Python is 3.{python}."
            yield Finding("other-python", "error", text, _REBUILD, {"member": stem, "count": len(wrong)})


def check_missing(installed: Installed, _: Side) -> Iterator[Finding]:
    """Report shared objects that are listed as installed and do not exist."""
    for title, paths in installed.missing.items():
        listed = join_words(paths, most=_MOST_NAMED, joiner="and")
        text = f"{title}: {len(paths)} of its shared objects do not exist: {listed}."
        yield Finding("object-gone", "error", text, _REBUILD, {"distribution": title, "member": paths[0]})


def check_started(installed: Installed, _: Side) -> Iterator[Finding]:
    """Report code that runs at each start of Python and belongs to no distribution."""
    for path in installed.at_start:
        if path in installed.owners:
            continue
        text = f"{path} belongs to no distribution, and runs at each start of Python."
        is_of_system = path.startswith("/usr/lib/")  # Debian's is a link into /etc, and of a package of apt
        fix = "" if is_of_system else "Read it, and remove it if you do not know where it comes from."
        severity: Severity = "info" if is_of_system else "warning"
        first = next(
            (line for line in installed.texts[path].decode(errors="replace").split("\n") if line), ""
        )
        yield Finding("runs-at-start", severity, text, fix, {"path": path, "text": printable(first[:200])})


def check_altered(installed: Installed, _: Side) -> Iterator[Finding]:
    """Report files that differ from their RECORD: in size, or in content if they are read as text."""
    altered: dict[str, list[str]] = {}
    for path, (title, digest, size) in installed.owners.items():
        content, has = installed.texts.get(path), installed.files.get(path)
        differs = has is not None and size.isdecimal() and has != int(size)
        if content is not None and digest.startswith("sha256="):
            found = urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            differs = found != digest.removeprefix("sha256=").rstrip("=")
        if differs:
            altered.setdefault(title, []).append(path)
    for title, paths in altered.items():
        listed = join_words(paths, most=_MOST_NAMED, joiner="and")
        text = f"{title}: {listed} differ from RECORD: they were changed after the installation."
        fix = f"Install {title.split()[0]} again, unless you changed it yourself."
        yield Finding(
            "differs-from-record", "warning", text, fix, {"distribution": title, "count": len(paths)}
        )


def check_twice(installed: Installed, _: Side) -> Iterator[Finding]:
    """Report two versions of a distribution in one directory, as a broken update leaves them."""
    seen: dict[tuple[str, str], str] = {}
    for site, contents in installed.distributions:
        key = site, contents.name
        if key in seen and seen[key] != contents.version:
            text = (
                f"{site} has the metadata of {contents.name} {seen[key]} and {contents.version}: "
                "the files can be of either."
            )
            yield Finding(
                "installed-twice", "error", text, f"Uninstall {contents.name} twice, and install it again."
            )
        seen[key] = contents.version


def check_library_path(installed: Installed, _: Side) -> Iterator[Finding]:
    """Report directories in LD_LIBRARY_PATH that hide libraries of torch."""
    torch = installed.torch
    for folder in installed.library_path:
        if torch is None or not torch.libraries:
            continue
        hidden = sorted(
            name
            for name in torch.libraries
            if matches_any(name, _OVERRIDING) and installed.resolved(f"{folder}/{name}")
        )
        if not hidden:
            continue
        copy = next((one for one in installed.rocm if _is_same_folder(installed, one, folder)), None)
        version = copy.version if copy else ""
        other = version and torch.rocm and minor(version) != torch.rocm
        of = f" of ROCm {version}" if version else ""
        text = (
            f"LD_LIBRARY_PATH names {folder}, whose {join_words(hidden, most=3, joiner='and')}{of} can come "
            "before those of torch."
        )
        fix = f"Remove {folder} from LD_LIBRARY_PATH."
        evidence = {"variable": "LD_LIBRARY_PATH", "path": folder}
        yield Finding("library-path", "error" if other else "info", text, fix if other else "", evidence)


def check_network(installed: Installed, side: Side) -> Iterator[Finding]:
    """Report RCCL, its network plugin, libfabric and MPI."""
    everything = sorted({*installed.files, *installed.links})
    for name, pattern in (("RCCL", _RCCL), ("libfabric", _FABRIC), ("MPI", _MPI)):
        found = sorted(
            {real for path in everything if pattern.search(path) and (real := installed.resolved(path))}
        )
        if found:
            yield Finding("library-present", "info", f"{name}: {join_words(found, most=3, joiner='and')}")
    if rccl := _rccl(installed):
        evidence = {"library": "librccl", "member": rccl}
        yield Finding("verify-library", "info", f"librccl loads from {rccl}", "", evidence)
    if (
        not any(_PLUGIN.search(path) and installed.resolved(path) for path in everything)
        and installed.is_image
        and installed.torch
        and installed.torch.rocm
        and side.request.target.backend == "rocm"
    ):
        text = "RCCL has no network plugin here: jobs on several nodes use TCP, which is slow."
        fix = "Add rccl-net to the request, or use an image with the plugin. On one node this is harmless."
        yield Finding("rccl-plugin-missing", "warning", text, fix)


def check_mpi(installed: Installed, _: Side) -> Iterator[Finding]:
    """Report which MPI mpi4py is linked with, and whether a site's library can take its place."""
    linked = {
        name: item.path
        for _, contents in installed.distributions
        if contents.name == "mpi4py"
        for item in contents.objects
        for name in item.needed
        if name in _MPI_ABIS
    }
    for name, member in sorted(linked.items()):
        text = f"mpi4py is linked with {name}, the ABI of {_MPI_ABIS[name]}."
        yield Finding("mpi-linked", "info", text, "", {"library": name, "member": member})


def check_facts(installed: Installed, side: Side) -> Iterator[Finding]:
    """Report the known-bad combinations of the catalog."""
    versions = dict(installed.versions)
    if installed.torch and installed.torch.rocm:
        versions["rocm"] = installed.torch.rocm
    versions |= {"python": installed.python} if installed.python else {}
    yield from known_bad_findings(versions, side)


def known_bad_findings(versions: Mapping[str, str], side: Side) -> Iterator[Finding]:
    """Yield the known-bad combinations of the catalog among installed versions."""
    for row, title in broken_combinations(side.catalog, side.request.target, versions):
        severity = _SEVERITIES[row.effect]
        if _OF_BUILDS.search(row.problem):  # it has been built, whatever the catalog says about that
            severity = "warning" if row.effect == "refuse" else "info"
        evidence = {"source": row.source, "status": row.status}
        text = f"{title}: {row.problem} ({row.source})."
        yield Finding("known-bad", severity, text, "", evidence)


def check_driver(installed: Installed, side: Side) -> Iterator[Finding]:
    """Report whether the kernel driver of the site supports the ROCm that is in use."""
    copies = {copy.version for copy in installed.rocm}
    only = copies.pop() if len(copies) == 1 else ""
    yield from driver_findings(installed.torch.rocm if installed.torch else only, side)


def driver_findings(rocm: str, side: Side) -> Iterator[Finding]:
    """Yield whether the kernel driver of the site supports a ROCm, since when, and what comes next."""
    if not rocm or side.request.target.backend != "rocm":
        return
    past, newer = driver_states(side, rocm)
    if not past:
        text = f"The catalog does not know ROCm {rocm}, so it was not compared with the kernel driver."
        if not side.request.target.driver and not side.catalog.windows_of(side.request.target.site):
            text = unknown_driver(side.catalog, side.request, rocm)
        yield Finding("driver-not-judged", "warning", text, "If you know the driver, name it with --driver.")
        return
    now, site = past[-1], side.request.target.site
    *_, since = changes(past)
    reason = "; ".join(item.text for item in now.reasons)
    sources = sorted({item.source for item in now.reasons})
    evidence = {
        "rocm": rocm, "driver": now.driver, "state": now.state or "does not run", "sources": sources,
        "reason": reason, "since": str(since.since or ""),
        "windows": [
            {"driver": one.driver, "since": str(one.since or ""), "state": one.state or "does not run"}
            for one in past
        ],
    }  # fmt: skip
    day = f" (since {now.since})" if now.since else ""
    if not now.state:
        text = f"ROCm {rocm} does not run on kernel driver {now.driver} of {site}{day}: {reason}."
        yield Finding("driver-refuses", "error", text, _REBUILD, evidence)
    elif now.reasons:
        text = f"ROCm {rocm} is at your own risk on kernel driver {now.driver} of {site}{day}: {reason}."
        yield Finding("driver-risk", "warning", text, _REBUILD, evidence)
    else:
        text = f"ROCm {rocm} is supported by kernel driver {now.driver} of {site}{day}"
        yield Finding("driver-supports", "info", text, "", evidence)
    for change in list(changes([now, *newer]))[1:]:
        why = "; ".join(item.text for item in change.reasons)
        what = "at your own risk" if change.state else "not possible"
        what = "supported" if change.state == "supported" else what
        text = f"From kernel driver {change.driver} on, ROCm {rocm} is {what}{f': {why}' if why else ''}"
        yield Finding("driver-next", "info", text, "", {"driver": change.driver, "state": change.state})


CHECKS: tuple[Check, ...] = (
    check_distributions,
    check_content,
    check_copies,
    check_tritons,
    check_pythons,
    check_missing,
    check_started,
    check_altered,
    check_twice,
    check_library_path,
    check_network,
    check_mpi,
    check_driver,
    check_facts,
)
