"""Judge the reply about a finished environment, in a container or on the host, against its lock.

A check that could not run is a warning, never a pass. Without a GPU, kernels are not judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from builders.audit.gpu_code import STRAY_FIX, stray_archives
from builders.audit.promises import lacks_symbols, wanted_interfaces, wanted_name
from builders.findings import Finding
from builders.gpu.content import read_complete
from builders.probe.ask import EnvironmentReply, Gpu
from builders.wheels.wheel import DamagedError
from resolver.environment import Environment
from resolver.facts.schema import SiteVariable
from resolver.indexes import Judgement, judged
from resolver.model import Resolution
from resolver.requirements import is_for_cuda, normalize_name
from resolver.texts import printable
from resolver.versions import grouped, join_words, minor, satisfies, sort_key

if TYPE_CHECKING:
    from builders.probe.ask import EnvironmentReply, Probe
    from resolver.facts.catalog import Catalog
    from resolver.indexes import Content
    from resolver.model import Distribution, Resolution


INSTALLERS = {"pip", "setuptools", "wheel"}
"""Distributions that most environments have, whatever they are for."""
_LIBRARIES = (
    "librccl", "libstdc++", "libgcc_s", "libamdhip64", "libhsa-runtime64", "libMIOpen", "librocblas",
)  # fmt: skip
"""Libraries that torch or the image provides. A job fails if conda's or the system's come first."""
_OF_DEVICE = re.compile(r"""(?P<name>[\w.-]++).*\bextra *== *["']device-(?P<gfx>gfx\w+)["']""")
"""A requirement of an extra such as ``device-gfx90a``, as in torch with AMD's label."""
_MOST_SHOWN = 3
_KEPT = (
    "The lock keeps the version in the base image. Use that image, without other copies, or resolve again "
    "for this image with `--keep-installed image`."
)
_OTHER_LIBRARY = "Remove its directory from LD_LIBRARY_PATH and LD_PRELOAD: modules may set them."


def judge_environment(
    reply: EnvironmentReply,
    lock: Resolution | None,
    user_packages: Mapping[str, str],
    *,
    need_gpu: bool,
    rebuild: str,
    in_index: Collection[str] = (),
) -> list[Finding]:
    """Compare the reply about an environment with a lock.

    Without a lock, the checks that compare with it are skipped. `user_packages` has the version of each
    distribution that the user installed for this Python with ``pip install --user``. `need_gpu` is for a job
    on a GPU node. `rebuild` is how to recreate the environment. `in_index` has the normalized names of the
    distributions whose files were compared with a wheel of the index.
    """
    return [
        *_pins(reply, lock, rebuild),
        *_files(reply, lock, in_index, rebuild),
        *_cuda(reply, lock, rebuild),
        *_duplicates(reply),
        *_requirements(reply, lock, rebuild),
        *_user_site(reply, user_packages),
        *_two_rocms(reply),
        *_device_packages(reply, lock.target.gfx if lock else ()),
        *_stray_archives(reply),
        *_libraries(reply),
        *_network(reply),
        *_libstdcxx(reply),
        *_gpus(reply, lock, need_gpu=need_gpu),
    ]


def judge_listed(
    reply: EnvironmentReply,
    lock: Resolution | None,
    user_packages: Mapping[str, str],
    *,
    rebuild: str,
    backend: str,
    gfx: Sequence[str],
) -> list[Finding]:
    """Return the findings that need only the list of what is installed; see `judge_environment`.

    `backend` and `gfx` are those of the site.
    """
    return [
        *(_pins(reply, lock, rebuild) if lock else ()),
        *(_files(reply, lock, (), rebuild) if lock else ()),
        *(_unlocked(reply, lock) if lock else ()),
        *(_cuda(reply, lock, rebuild, backend) if backend == "rocm" else ()),
        *_duplicates(reply),
        *_two_rocms(reply),
        *_device_packages(reply, gfx if backend == "rocm" else ()),
        *_stray_archives(reply),
        *_requirements(reply, lock, rebuild),
        *_user_site(reply, user_packages),
        *_network(reply),
    ]


def _unlocked(reply: EnvironmentReply, lock: Resolution) -> Iterator[Finding]:
    installed = reply.installed
    more = sorted(installed.keys() - {normalize_name(pick.name) for pick in lock.picks} - INSTALLERS)
    if more:
        titles = [f"{name} {installed[name].version}" for name in more]
        listed = join_words(titles, most=10, joiner="and")
        message = f"{len(more)} distributions are not in the lock: {listed}."
        fix = "Request them with `matrix resolve`, so that they are chosen together with the others."
        yield Finding("verify-unlocked", "warning", message, fix)


def judge_variables(
    env: Mapping[str, str], variables: Iterable[SiteVariable], required: Container[str] = ()
) -> Iterator[Finding]:
    """Report variables that must be set but are not, and those that must be unset.

    `required` has names of the variables without which a built package cannot be imported.
    """
    for row in variables:
        evidence = {"variable": row.name, "source": row.source}
        if row.value is None and row.name in env:
            message = f"{row.name} is set to {env[row.name]!r}: {row.reason}."
            yield Finding("verify-variable-set", "warning", message, f"Run `unset {row.name}`.", evidence)
        elif row.value is not None and row.name not in env:
            message = f"{row.name} is not set: {row.reason}."
            setting = f'`export {row.name}="{row.value}"`'
            fix = f"Run `source environment.sh` if `matrix env` wrote it, else {setting}."
            if row.name in required:
                yield Finding("verify-variable-required", "warning", message, fix, evidence)
            else:
                yield Finding("verify-variable-missing", "info", message, fix, evidence)


def _pins(reply: EnvironmentReply, lock: Resolution | None, rebuild: str) -> Iterator[Finding]:
    if lock is None:
        message = "Versions are not judged: there is no lock to compare with."
        yield Finding("verify-pins-not-judged", "warning", message, "Name a lock with --lock FILE.")
        return
    python = lock.version_of("python")
    if python and reply.python and minor(python) != minor(reply.python):
        message = f"Python is {reply.python} ({reply.executable}); the lock is for {python}."
        fix = f"Name the environment that is meant: `matrix check ENV --run`. {rebuild}"
        yield Finding("verify-python", "error", message, fix)
    installed, right = reply.installed, 0
    for pick in lock.distributions:
        dist = installed.get(normalize_name(pick.name))
        repair = _KEPT if pick.origin == "preinstalled" else rebuild
        if dist is None:
            message = f"{pick.name} {pick.pinned} is not installed."
            yield Finding("verify-pin-missing", "error", message, repair)
        elif not _is_same(dist.version, pick.pinned):
            message = f"{pick.name} is {dist.version}, but the lock pins {pick.pinned}."
            yield Finding("verify-pin-differs", "error", message, repair)
        else:
            right += 1
    count = len(lock.distributions)
    yield Finding("verify-pins", "info", f"{right} of {count} distributions have the locked version")


def _is_same(version: str, pinned: str) -> bool:
    return version == pinned or sort_key(version) == sort_key(pinned)  # a wheel may be named 2024.01


def _files(
    reply: EnvironmentReply,
    lock: Resolution | None,
    in_index: Collection[str],
    rebuild: str,
) -> Iterator[Finding]:
    """Report wheels that have the locked version but are not the locked wheels, and changed files."""
    installed, unknown = reply.installed, []
    for pick in lock.distributions if lock else ():
        name = normalize_name(pick.name)
        dist = installed.get(name)
        if dist is None or pick.origin == "preinstalled" or not _is_same(dist.version, pick.pinned):
            continue
        metadata = {file.metadata_sha256 for file in pick.files} if pick.origin == "published" else set()
        if dist.differing:
            shown = ", ".join(dist.differing[:_MOST_SHOWN])
            more = len(dist.differing) - _MOST_SHOWN
            than = "the wheel in the index" if name in in_index else "its RECORD"
            verb = "differs" if len(dist.differing) == 1 else "differ"
            message = (
                f"{len(dist.differing)} of {dist.compared} files of {pick.name} {pick.pinned} {verb} from "
                f"{than}: {shown}{f' and {more} more' if more > 0 else ''}."
            )
            yield Finding("verify-files-differ", "error", message, rebuild)
        elif metadata and not {"", dist.metadata_sha256} & metadata:
            message = f"{pick.name} {pick.pinned} is not the locked wheel: its METADATA has a different hash."
            yield Finding("verify-wheel-differs", "error", message, rebuild)
        elif pick.origin == "build" and name not in in_index:
            unknown.append(pick.name)
    if unknown:
        message = f"Wheels are not judged: the index has none or several of each: {', '.join(unknown)}."
        yield Finding("verify-wheels-not-judged", "warning", message, "Name their index with --index DIR.")


def _cuda(
    reply: EnvironmentReply, lock: Resolution | None, rebuild: str, backend: str = ""
) -> Iterator[Finding]:
    """Report what is for CUDA, or for the CPU only. `backend` is that of the site, if there is no lock."""
    backend = lock.target.backend if lock else backend
    locked = {normalize_name(pick.name) for pick in lock.picks} if lock else set()  # such as nvidia-ml-py
    nvidia = sorted(
        f"{name} {dist.version}"
        for name, dist in reply.installed.items()
        if (name.startswith("nvidia-") or is_for_cuda(name)) and name not in locked
    )
    if nvidia:
        message = f"Packages for CUDA are installed: {', '.join(nvidia)}."
        cause = "A requirement without a local version made pip choose a CUDA build."
        yield Finding("verify-nvidia", "error", message, f"{cause} {rebuild}")
    torch = reply.torch
    if torch.cuda and backend != "cpu":
        message = f"torch {torch.version} is for CUDA {torch.cuda}."
        yield Finding("verify-torch-cuda", "error", message, rebuild)
    elif backend == "rocm" and torch.version and not torch.hip:
        message = f"torch {torch.version} is not built for ROCm."
        yield Finding("verify-torch-cpu", "error", message, rebuild)


def _duplicates(reply: EnvironmentReply) -> Iterator[Finding]:
    ordered = sorted(reply.distributions, key=lambda dist: normalize_name(dist.name))
    for name, group in groupby(ordered, key=lambda dist: normalize_name(dist.name)):
        by_path = {dist.path: dist.version for dist in group}
        if len(by_path) > 1:
            listed = ", ".join(f"{version} in {path}" for path, version in by_path.items())
            message = f"{name} is installed more than once: {listed}. Python uses the first on its path."
            yield Finding("verify-twice", "warning", message, "Remove the copies that are not in the lock.")


def _two_rocms(reply: EnvironmentReply) -> Iterator[Finding]:
    """Report the system's ROCm beside that of pip: libraries of both may load into one process."""
    of_pip = reply.installed.get("rocm-sdk-core")
    if of_pip and reply.system_rocm:
        message = (
            f"There are two ROCms: {of_pip.version} of pip (rocm-sdk-core), and that in {reply.system_rocm}."
        )
        fix = "Use a base image without ROCm, and keep /opt/rocm out of LD_LIBRARY_PATH."
        yield Finding("verify-two-rocms", "warning", message, fix)


def _device_packages(reply: EnvironmentReply, gfx: Sequence[str]) -> Iterator[Finding]:
    """Report the code for GPU architectures that is in separate distributions, which are not installed."""
    installed = reply.installed
    for dist in reply.distributions:
        required = grouped(
            (match["gfx"], normalize_name(match["name"]))
            for line in dist.requires
            if (match := _OF_DEVICE.match(line))
        )
        if dist.name == "rocm" and "rocm-sdk-libraries" not in installed:
            continue  # only the libraries have GPU code
        for target in gfx if required else ():
            name, title = target.partition(":")[0], f"{dist.name} {dist.version}"
            missing = [one for one in required.get(name, ()) if one not in installed]
            if name not in required:
                message = f"{title} has no package with code for {name}."
                fix = "Choose a release for this GPU."
            elif missing:
                message = f"The code of {title} for {name} is not installed: {join_words(missing)}."
                fix = f"Install {dist.name}[device-{name}]=={dist.version}. Without it, no kernel runs."
            else:
                continue
            yield Finding("verify-device-missing", "error", message, fix, {"target": name})


def _stray_archives(reply: EnvironmentReply) -> Iterator[Finding]:
    """Report archives for one setting of XNACK beside the archive for both settings."""
    for dist in reply.distributions:
        for path, both in stray_archives(dist.archives):
            message = f"{path} of {dist.name} is beside {PurePath(both).name}, so that no kernel runs."
            yield Finding("verify-stray-kpack", "error", message, STRAY_FIX, {"member": path})


def _requirements(reply: EnvironmentReply, lock: Resolution | None, rebuild: str) -> Iterator[Finding]:
    """Compare what each distribution requires with what is installed, as ``pip check`` does."""
    locked = {normalize_name(pick.name) for pick in lock.picks} if lock else set()
    overridden = {requirement.name for requirement in lock.request.overrides} if lock else set()
    unmet = list(_unmet(reply))
    for name, required, message in unmet:
        if {name, required} & overridden:
            text = f"{message} The request overrides this requirement."
            yield Finding("verify-pip-check-overridden", "info", text)
        elif name in locked:
            fix = f"{rebuild} If the lock lacks what the requirement names, resolve with network access."
            yield Finding("verify-pip-check-broken", "error", message, fix)
        else:
            yield Finding("verify-pip-check-others", "warning", message)
    if not unmet:
        yield Finding("verify-pip-check", "info", "All requirements of the installed distributions are met.")


def _unmet(reply: EnvironmentReply) -> Iterator[tuple[str, str, str]]:
    """Yield who requires what, and the difference in the words of ``pip check``."""
    environment = Environment(reply.python or "3.12")
    for name, dist in reply.installed.items():
        subject = f"{dist.name} {dist.version}"
        for line in dict.fromkeys(dist.requires):
            with suppress(ValueError, RecursionError):  # pip reports invalid ones when it installs
                requirement = Requirement(line)
                wanted = normalize_name(requirement.name)
                have = reply.installed.get(wanted)
                if not environment.applies(str(requirement.marker or "")):
                    continue
                if have is None:
                    yield name, wanted, printable(f"{subject} requires {wanted}, which is not installed.")
                elif not requirement.specifier.contains(have.version, prereleases=True):
                    text = f"{subject} has requirement {wanted}{requirement.specifier}, but you have"
                    yield name, wanted, printable(f"{text} {wanted} {have.version}.")


def _user_site(reply: EnvironmentReply, user_packages: Mapping[str, str]) -> Iterator[Finding]:
    site = reply.user_site
    if not user_packages:
        return
    if site.ignored:
        message = f"~/.local has packages for Python {site.minor}, which are ignored: {site.ignored}."
        yield Finding("verify-user-site-shut", "info", message)
        return
    fix = "Set PYTHONNOUSERSITE=1 in every job, or remove these packages: Python finds them first."
    first = reply.installed
    others = {normalize_name(dist.name) for dist in reply.distributions if dist.path != site.path}
    added = sorted(user_packages.keys() - others)
    shadowing = sorted(
        f"{name} {version}"
        for name, version in user_packages.items()
        if name in others
        and (not site.path or first[name].path == site.path)  # it follows a virtual environment
    )
    if shadowing:
        message = (
            f"~/.local has other copies of installed packages of Python {site.minor}: {', '.join(shadowing)}."
        )
        yield Finding("verify-user-site", "error", message, fix)
    elif added:
        message = f"~/.local adds packages to Python {site.minor}: {', '.join(added)}."
        yield Finding("verify-user-site-adds", "warning", message, fix)


def _libraries(reply: EnvironmentReply) -> Iterator[Finding]:
    if reply.libraries.error:
        message = f"Loaded libraries are not judged: importing failed with {reply.libraries.failure}"
        yield Finding("verify-libraries-not-judged", "warning", message)
        return
    for name in _LIBRARIES:
        pattern = re.compile(re.escape(name) + r"(-[\da-f]+)?\.so(\.|$)")
        paths = [path for path in reply.libraries.objects if pattern.match(PurePath(path).name)]
        own = [path for path in reply.libraries.of_torch if pattern.match(PurePath(path).name)]
        folders = {PurePath(path).parent for path in paths}
        if paths and own and not folders & {PurePath(path).parent for path in own}:
            message = f"{name} loads from {', '.join(paths)}, not from torch's own {own[0]}."
            yield Finding("verify-library-other", "error", message, _OTHER_LIBRARY)
        elif len(paths) > 1:
            message = f"{name} is loaded more than once: {', '.join(paths)}."
            fix = "One belongs to torch, the other to the image. LD_LIBRARY_PATH decides which comes first."
            yield Finding("verify-library-twice", "warning", message, fix)
        elif paths:
            evidence = {"library": name, "member": paths[0]}
            copy = ", a copy of that in /opt/rocm/lib" if paths[0] in reply.libraries.copied else ""
            yield Finding("verify-library", "info", f"{name} loads from {paths[0]}{copy}", evidence=evidence)


def _network(reply: EnvironmentReply) -> Iterator[Finding]:
    """Report the network plugin that RCCL opens, and whether it fits this RCCL."""
    match = re.match(r"\d+\.\d+", reply.torch.hip)
    rocm, libraries = match[0] if match else "", reply.libraries
    if not libraries.plugins:
        if any(PurePath(path).name.startswith("librccl.so") for path in libraries.objects):
            text = "RCCL finds no network plugin: on several nodes it uses TCP"
            yield Finding("verify-plugin-missing", "info", text)
        return
    names, wanted = _plugin_names(libraries.plugin_variable, rocm), wanted_interfaces(rocm)
    plugin = next(
        (one for name in names for one in libraries.plugins if name in {one.path, PurePath(one.path).name}),
        None if names else libraries.plugins[0],
    )
    if plugin is None:
        listed = join_words([one.path for one in libraries.plugins], most=_MOST_SHOWN, joiner="and")
        text = f"RCCL of ROCm {rocm} opens {' or '.join(names)}, which was not found; {listed} was."
        fix = "Set NCCL_NET_PLUGIN to the path of the plugin (ROCm 6.3 or newer); else RCCL uses TCP."
        yield Finding("verify-plugin-name", "warning", text, fix)
        return
    offered = [f"v{number}" for number in plugin.interfaces]
    text = f"RCCL opens the network plugin {plugin.path} ({', '.join(offered) or 'no interface'})"
    text += f", which loads {plugin.found}" if plugin.found else ""
    text += "" if plugin.searched else ", if it searches that directory"
    evidence = {"member": plugin.path, "interfaces": plugin.interfaces, "libfabric": plugin.found}
    yield Finding("verify-plugin", "info", text, evidence=evidence)
    if wanted is not None and not {*wanted} & {*plugin.interfaces}:
        text = f"{plugin.path} does not fit: RCCL of ROCm {rocm} needs one of v{wanted[0]} to v{wanted[-1]}."
        fix = "Use the plugin of rccl-net (aws-ofi-nccl 1.18.0 or newer); with this one RCCL uses TCP."
        yield Finding("verify-plugin-interface", "warning", text, fix, evidence)
    text = ""
    if plugin.libfabric and not plugin.found:
        text = f"{plugin.path} needs {plugin.libfabric}, which the loader does not find here."
    elif lacks_symbols(plugin.needs, plugin.has):
        text = f"{plugin.path} needs FABRIC_{plugin.needs}; {plugin.found} has at most FABRIC_{plugin.has}."
    if text:
        fix = "Use an image that has it, bind the site's, or compile the plugin here; else RCCL uses TCP."
        yield Finding("verify-plugin-libfabric", "warning", text, fix, evidence)
    elif plugin.error:
        text = f"{plugin.path} does not load after torch: {plugin.error}"
        fix = "RCCL then uses TCP. Compile the plugin in this image, for this ROCm, or use that of the image."
        yield Finding("verify-plugin-not-loaded", "warning", text, fix, evidence)
    if plugin.loaded and plugin.loaded != plugin.found:
        text = f"{plugin.path} gets {plugin.loaded}, which was loaded before, and not {plugin.found}."
        fix = "It may not know the network. Remove the distribution that brings it, such as impi-rt."
        yield Finding("verify-plugin-libfabric-other", "warning", text, fix, evidence)


def _plugin_names(variable: str, rocm: str) -> list[str]:
    """Return what RCCL opens, the first first; empty if that is not known.

    `variable` is NCCL_NET_PLUGIN. RCCL before ROCm 6.3 takes it only as a part of the name
    (ROCm/rccl@d380693772a8:src/net.cc), that of ROCm 6.3 and 6.4 tries the default, too
    (ROCm/rccl@0cbce2a7571c:src/net.cc).
    """
    name = wanted_name(rocm)
    default = [name] if name else []
    if not variable:
        return default
    values = variable.split(",")
    named = [f"librccl-net-{value}.so" for value in values]
    if rocm and satisfies(rocm, "<6.3"):
        return named
    return [*values, *named, *(default if rocm and satisfies(rocm, "<7") else ())]


def _libstdcxx(reply: EnvironmentReply) -> Iterator[Finding]:
    """Report a libstdc++ that is older than the system's, or belongs to neither system nor environment."""
    system = reply.system_libstdcxx
    homes = [
        PurePath(path) for path in (*reply.libraries.prefixes, *{dist.path for dist in reply.distributions})
    ]
    for loaded in reply.libraries.libstdcxx:
        path = PurePath(loaded.path)
        is_own = any(path.is_relative_to(home) for home in homes)
        if loaded.glibcxx and system.glibcxx and sort_key(loaded.glibcxx) < sort_key(system.glibcxx):
            message = (
                f"{loaded.path} is loaded. It has symbols up to GLIBCXX_{loaded.glibcxx}, and {system.path} "
                f"up to GLIBCXX_{system.glibcxx}: code compiled with the system's compiler may not load."
            )
            conda = "Require libstdcxx-ng in conda, at least as new as the system's compiler."
            yield Finding("verify-libstdcxx-older", "warning", message, conda if is_own else _OTHER_LIBRARY)
        elif system.path and path.parent != PurePath(system.path).parent and not is_own:
            message = f"{loaded.path} is loaded, which belongs neither to the system nor to the environment."
            yield Finding("verify-libstdcxx-other", "warning", message, _OTHER_LIBRARY)


def _gpus(reply: EnvironmentReply, lock: Resolution | None, *, need_gpu: bool) -> Iterator[Finding]:
    if lock is not None and lock.target.backend == "cpu":
        return
    frameworks = {"jax": reply.jax} if reply.jax else {}
    if "torch" in reply.installed or (lock.pick("torch") is not None if lock else not frameworks):
        frameworks["torch"] = reply.torch
    others = [f"{name} finds one" for name, framework in frameworks.items() if framework.gpus]
    must = "--need-gpu is set" if need_gpu else "".join(others[:1])
    if not frameworks:
        message = (
            "GPU kernels are not judged: the environment has no torch and no JAX for GPUs, which run one."
        )
        fix = "Run a program of your own on a GPU node."
        yield Finding("verify-gpu-not-judged", "warning", message, fix)
    for name, framework in sorted(frameworks.items(), reverse=True):
        reason = f": {framework.no_gpu}" if framework.no_gpu else "."
        if framework.error:
            message = f"{name} cannot be imported: {framework.failure}"
            fix = "Check that its libraries and Python match the lock."
            if name == "torch":
                yield Finding("verify-torch-failed", "error", message, fix)
            else:
                yield Finding("verify-jax-failed", "error", message, fix)
        elif framework.gpus:
            yield from _tested(name, framework.gpus, set(lock.target.gfx) if lock else set())
        elif must:
            message = f"{name} finds no GPU, and {must}{reason}"
            fix = "Check /dev/kfd, the driver, and the GPUs that the job requests."
            yield Finding("verify-no-gpu", "error", message, fix)
        else:
            message = f"GPU kernels of {name} are not judged: it finds no GPU here{reason}"
            fix = "`matrix check CONTAINER --gpu` submits a job that tests them."
            yield Finding("verify-gpu-not-judged", "warning", message, fix)


def _tested(framework: str, gpus: Sequence[Gpu], targets: Collection[str]) -> Iterator[Finding]:
    for number, gpu in enumerate(gpus):
        name = f"GPU {number} ({gpu.name or 'unnamed'}, {gpu.arch or 'unknown architecture'})"
        architecture = gpu.arch.partition(":")[0]
        if gpu.error:
            yield Finding("verify-gpu-failed", "error", f"{name} with {framework}: {gpu.error}")
        elif targets and architecture and architecture not in targets:
            message = f"The lock is for {', '.join(sorted(targets))}, not for {name}."
            yield Finding(
                "verify-gpu-target", "error", message, "Resolve and build for this architecture as well."
            )
        else:
            text = f"{name} multiplies two matrices correctly with {framework}"
            yield Finding("verify-gpu", "info", text)


def judge_contents(
    probe: Probe,
    folder: Path,
    reply: EnvironmentReply,
    lock: Resolution | None,
    catalog: Catalog,
    *,
    exclude: Callable[[Distribution, str], None],
) -> Iterator[Finding]:
    """Report the distributions that require CUDA, or do not fit the target of the lock.

    Those that the facts of the catalog describe are not read, and those that are for CUDA by their name are
    findings already. The others are read completely. Without a lock, only the need of CUDA can be judged.
    `exclude` is called with a distribution of the lock that does not fit, and with the evidence.
    """
    if lock is not None and lock.target.backend != "rocm":
        return
    picks = {normalize_name(pick.name): pick for pick in lock.distributions} if lock else {}
    installed = {name: dist.version for name, dist in reply.installed.items()}
    skipped = {name for name in installed if is_for_cuda(name)} | {"torch"}
    for name, known in picks.items():  # the facts of the catalog, or our own audit, describe these
        if known.origin != "published" or (known.name, known.version, known.variant) in catalog.release:
            skipped.add(name)
    contents = probe.ask_contents(skipped)
    for name, file in contents.written:
        content = _read(folder / Path(file).name)
        pick = picks.get(name)
        judgement = _judgement(content, lock if pick else None)
        if judgement is None or judgement.state != "does-not-fit":
            continue
        if pick:
            exclude(pick, judgement.evidence)
        verb = "does not fit: it " if pick else ""
        message = f"{name} {installed.get(name, '')} {verb}{judgement.evidence}."
        fix = (
            "The lock now excludes this file. Run `matrix resolve` again, and build the environment again."
            if pick
            else f"Resolve a request with {name} for this platform with `matrix resolve`."
        )
        yield Finding("verify-does-not-fit", "error", message, fix, {"content": judgement.evidence})
    if contents.left:
        message = f"The content of {join_words(contents.left, joiner='and')} is not judged: it is too large."
        yield Finding("verify-contents-not-judged", "warning", message, "Run `matrix check WHEEL`.")


def _read(path: Path) -> Content | None:
    try:
        return read_complete(path)
    except DamagedError:  # its version is not valid
        return None
    finally:
        path.unlink()


def _judgement(content: Content | None, lock: Resolution | None) -> Judgement | None:
    if content is None:
        return None
    return judged(content, lock.target.gfx, lock.target.rocm or "") if lock else judged(content, ())
