"""Turn settings into a request: check every name and version, and complete the target."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from builders.containers.image import find_image, image_name, is_local
from matrix.input.inputs import Inputs
from matrix.input.settings import REQUEST_FILE, Settings, overlays, site_file
from resolver.errors import CatalogError, UsageError, did_you_mean
from resolver.facts.catalog import overlay_files
from resolver.facts.driver import identify_driver, lines_of_module, release_of_package
from resolver.model import IMAGE, FactsFile, Preinstalled, Request, Requirement, Target
from resolver.requirements import normalize_name, parse_requirement
from resolver.texts import read_text
from resolver.versions import is_version, join_words, minor, parse_specifier, shorten

if TYPE_CHECKING:
    from matrix.reading.items import Reading
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Backend
    from resolver.model import ImageUse

_OP = r"[A-Za-z0-9_]+"


def make_request(settings: Settings, catalog: Catalog, today: datetime.date, inputs: Inputs) -> Request:
    """Return the request that settings describe; `catalog` has the content of a base image that is a file.

    Raise `UsageError` if nothing is requested, or if a name or version is not known.
    """
    target = _target(settings, catalog, today, inputs)
    requirements = list(inputs.requirements)
    if not requirements:
        require_requirements(settings)
    for name in ("rocm", "python"):
        text = getattr(settings, name)
        if text:
            specifier = parse_specifier(text)
            requirements.append(Requirement(name, specifier, f"{name}{specifier}"))
    if _runs_on_host(settings.consumer) and not any(one.name == "glibc" for one in requirements):
        requirements += _glibc_of_consumer(settings.consumer or "", target, catalog)
    preinstalled = None
    if settings.keep_installed:
        read = read_preinstalled(settings.keep_installed, catalog, settings.base_image or "")
        read = replace(read, replaced=tuple(sorted({*map(normalize_name, settings.replace)})))
        preinstalled = replace(read, installed=read.kept(read.installed))
    return Request(
        target,
        tuple(requirements),
        tuple(inputs.constraints),
        tuple(inputs.overrides),
        prefer=settings.prefer or "advised",
        site_file=site_file(settings.site),
        catalogs=tuple(settings.catalog),
        preinstalled=preinstalled,
        no_prebuilt=settings.no_prebuilt,
        no_network_plugin=settings.no_network_plugin or _runs_on_host(settings.consumer),
        facts_files=facts_files(overlays(settings)),
        dated=settings.date is not None and settings.date < today,
        use_image=_use_image(settings, target),
        ops=request_ops(settings.ops),
    )


def require_requirements(settings: Settings) -> None:
    """Raise `UsageError` if settings name no requirement."""
    if not settings.has_requirements:
        msg = f"No requirement is named, neither in the command nor in {REQUEST_FILE}."
        hint = "Name what you want to import, such as: matrix resolve torch deepspeed --site lumi-g"
        raise UsageError(msg, hint=hint)


def _use_image(settings: Settings, target: Target) -> ImageUse:
    if not settings.no_base_image:
        is_elsewhere = settings.keep_installed or _runs_on_host(settings.consumer)
        return "if-needed" if is_elsewhere or target.backend == "cpu" else "of-site"
    if settings.base_image:
        msg = "--base-image and --no-base-image exclude each other."
        raise UsageError(msg, hint="Use one of them.")
    return "none"


def read_preinstalled(source: str, catalog: Catalog, base_image: str = "") -> Preinstalled:
    """Return what ``--keep-installed`` names; of a base image elsewhere, only the catalog has facts.

    Raise `UsageError` if it names the list of another image than the base image.
    """
    from builders.containers.inspection import inspect_image
    from builders.containers.sbom import is_sbom
    from matrix.reading import listed

    image = Path(base_image) if base_image and is_local(Path(base_image)) else None
    if source == IMAGE and image is None:
        return Preinstalled(IMAGE)
    of_list = image is not None and is_sbom(image)
    if source == IMAGE and image is not None and not of_list:
        facts = inspect_image(find_image(image))
        if not facts.pythons:
            msg = f"{image} has no Python, so it keeps nothing, and nothing can be installed over it."
            raise UsageError(msg, hint="Name an image with Python, or leave out --keep-installed image.")
        return Preinstalled(IMAGE, dict(sorted(facts.installed.items())))
    file = str(image) if source == IMAGE else source
    text = read_text(Path(file), hint=listed.HINT, pipes=True)
    reading = listed.read(text, file)
    for unread in reading.unread:
        msg = f"{file}:{unread.line}: {unread.text!r}: {unread.reason}."
        raise UsageError(msg, hint=listed.HINT)
    if not reading.items and source != IMAGE:  # an image may have no Python packages
        msg = f"{file} lists no distributions."
        raise UsageError(msg, hint=listed.HINT)
    known = {*catalog.package, "torch", "torchvision", "torchaudio", "python", "rocm"}
    versions = _versions(reading, known)
    if reading.kind == listed.SBOM and image is not None and not of_list:
        _check_list(file, versions, reading.sha256, image)
    stated = {"python": reading.python, "rocm": reading.platform.get("rocm", "")} if source != IMAGE else {}
    versions = {**{name: version for name, version in stated.items() if version}, **versions}
    return Preinstalled(source, dict(sorted(versions.items())))


def _check_list(source: str, listed: Mapping[str, str], sha256: str, path: Path) -> None:
    """Raise `UsageError` if the list of an image's content is that of another image."""
    from builders.containers.inspection import inspect_image

    image = find_image(path)
    installed = inspect_image(image).installed
    differ = [
        f"{name} {listed.get(name, 'none')} in the list, {installed.get(name, 'none')} in the image"
        for name in sorted({*listed, *installed})
        if listed.get(name) != installed.get(name)
    ]
    if sha256 and sha256 != image.sha256:
        differ.insert(0, f"the list is of sha256:{sha256}, the image is {image.digest}")
    if differ:
        msg = f"{source} does not describe {path}: {'; '.join(differ[:3])} ({len(differ)} differences)."
        raise UsageError(msg, hint="Use what is in the image: --keep-installed image.")


def _versions(reading: Reading, known: set[str]) -> dict[str, str]:
    from matrix.reading.listed import HINT

    versions: dict[str, str] = {}
    for item in reading.items:
        where = f"{reading.name}:{item.line}" if item.line else reading.name
        name, version = item.name, item.version
        if name in known and not version:
            msg = f"{where}: the line gives the URL of {name}, but not its version."
            raise UsageError(msg, hint=HINT)
        if name in known and not is_version(version):
            msg = f"{where}: {shorten(version)!r} is not a valid version of {name} (PEP 440)."
            raise UsageError(msg, hint=HINT)
        if name and versions.setdefault(name, version) != version:
            msg = f"{where}: {name} {version} contradicts {name} {versions[name]} on an earlier line."
            raise UsageError(msg, hint="List one environment per file.")
    return versions


def request_ops(texts: Sequence[str]) -> tuple[str, ...]:
    """Return one text for each package whose ops are chosen (``NAME:A,B``)."""
    ops: dict[str, list[str]] = {}
    for text in texts:
        name, _, listed = text.partition(":")
        chosen = [op.strip() for op in listed.split(",")]
        if not (name.strip() and all(re.fullmatch(_OP, op) for op in chosen)):
            msg = f"{shorten(text)!r} names no ops."
            raise UsageError(msg, hint="Write NAME:OP,OP, such as deepspeed:fused_adam,cpu_adam.")
        name = normalize_name(name.strip())
        ops[name] = sorted({*ops.get(name, ()), *chosen})
    return tuple(f"{name}:{','.join(ops[name])}" for name in sorted(ops))


def _runs_on_host(consumer: str | None) -> bool:
    """Return whether a consumer installs outside of the base image, whose libfabric it does not use then."""
    from matrix.consumers import load_consumer

    return consumer is not None and load_consumer(consumer).runs_on_host


def _glibc_of_consumer(consumer: str, target: Target, catalog: Catalog) -> list[Requirement]:
    if target.glibc:
        return []  # wheels for this machine are limited already
    glibc = host_glibc(target, catalog, target.date)
    if not glibc:
        msg = (
            f"{consumer} installs for the glibc of the machine, not of the base image, "
            f"and the glibc of {target.site} is not known."
        )
        hint = "Limit glibc to the version that `ldd --version` prints there, such as: 'glibc<=2.31'"
        raise UsageError(msg, hint=hint)
    machine = "this machine" if target.site == "local" else target.site
    text = f"glibc<={glibc}"
    reason = f"{consumer} uses the glibc of {machine}, {glibc}"
    return [Requirement("glibc", parse_specifier(text.removeprefix("glibc")), text, reason=reason)]


def host_glibc(target: Target, catalog: Catalog, day: datetime.date) -> str:
    """Return the glibc of a site's own operating system; empty if it is not known."""
    if target.site == "local":
        from builders.machine import host

        return host.glibc_version()
    window = catalog.window_on(target.site, day)
    return window.glibc if window else ""


def facts_files(overlays: Sequence[Path]) -> tuple[FactsFile, ...]:
    """Return the files of overlays, each with those that it includes above it, and their hashes."""
    found: dict[Path, FactsFile] = {}
    if not overlays:
        return ()
    import hashlib

    def read(path: Path, shown: str) -> None:
        if path in found:
            return
        try:
            content = path.read_bytes()
        except OSError as error:
            msg = f"Cannot read {shown}: {error.strerror}."
            raise CatalogError(msg) from None
        if b"include" in content:
            import tomllib

            for name in tomllib.loads(content.decode()).get("include", []):
                read((path.parent / name).resolve(), os.path.normpath(Path(shown).parent / name))
        found[path] = FactsFile(shown, hashlib.sha256(content).hexdigest())

    for overlay in overlays:
        top = overlay.resolve()
        for file in map(Path, overlay_files(overlay)):
            below = file.relative_to(top) if file.is_relative_to(top) else file
            read(file, str(overlay / below if file != top else overlay))
    return tuple(found.values())


def site_named(site: str | None, catalog: Catalog) -> str | None:
    """Return the name of the site that ``--site`` gives, by name or by a file that defines it."""
    path = site_file(site)
    return _site_of_file(path, catalog) if path else site


def _site_of_file(path: str, catalog: Catalog) -> str:
    resolved = str(Path(path).resolve())  # the catalog names its files by their resolved paths
    sites = [row.name for row in catalog.site.values() if row.from_file == resolved]
    if not sites:
        kinds = (catalog.window, catalog.site_image, catalog.partition)
        rows = [(row.site, row.from_file) for kind in kinds for row in kind.values()]
        sites = list(dict.fromkeys(site for site, file in rows if file == resolved))
    if len(sites) != 1:
        defined = (
            f"defines {len(sites)} sites: {join_words(sites, joiner='and')}" if sites else "defines no site"
        )
        msg = f"{path} (given with --site) {defined}."
        raise UsageError(msg, hint="A file for --site contains one [[site]] row.")
    return sites[0]


def _target(settings: Settings, catalog: Catalog, today: datetime.date, inputs: Inputs) -> Target:
    site_name = site_named(settings.site, catalog)
    if not site_name:
        lumi = catalog.site["lumi-g"]
        is_local = settings.backend == "cpu" or set(settings.gfx) - set(lumi.gfx)
        site_name = "local" if is_local else lumi.name
    site = catalog.site.get(site_name)
    if site is None:
        raise UsageError(f"Unknown site {shorten(site_name)!r}.", hint=did_you_mean(site_name, catalog.site))
    backend: Backend = settings.backend or ("rocm" if settings.gfx else site.backend)
    if backend == "cpu":
        _reject_gpu_settings(settings)
    gfx = tuple(dict.fromkeys(settings.gfx or site.gfx)) if backend == "rocm" else ()
    if backend == "rocm" and not gfx:
        msg = f"The GPU architecture of the site {site_name} is not known."
        raise UsageError(msg, hint="Name an architecture, such as --gfx90a.")
    if (
        backend == "rocm"
        and site_name != "local"
        and not _is_rocm_limited(site_name, settings, catalog, inputs)
    ):
        msg = f"Neither the kernel driver of the site {site_name} nor a ROCm that runs there is known."
        hint = "Name the driver, such as --driver 6.3, or the ROCm of the site, such as 'rocm==6.4.*'."
        raise UsageError(msg, hint=hint)
    target = Target(
        backend=backend,
        gfx=gfx,
        site=site_name,
        date=settings.date or today,
        driver=driver_line(settings.driver, catalog),
        base_image=image_name(settings.base_image, catalog) if settings.base_image else None,
    )
    return _with_this_machine(target, settings, catalog, inputs) if site_name == "local" else target


def _is_rocm_limited(site: str, settings: Settings, catalog: Catalog, inputs: Inputs) -> bool:
    """Return whether a fact about a site or the request limits ROCm; else the newest would be chosen."""
    sites = {row.site for row in catalog.window.values()}
    sites |= {row.site for row in catalog.site_advice.values()}
    sites |= {row.site for row in catalog.site_image.values()}
    stated = [one for one in inputs.requirements if one.name == "rocm" and one.specifier]
    labels = [one for one in inputs.requirements if one.name == "torch" and "+rocm" in one.text]
    limits = (settings.driver, settings.rocm, settings.base_image, stated, labels)
    return site in sites or any(limits)


def _reject_gpu_settings(settings: Settings) -> None:
    values = {
        "GPU architectures": ", ".join(settings.gfx),
        "kernel driver": settings.driver,
        "ROCm": settings.rocm,
        "base image": settings.base_image,
    }
    for setting, value in values.items():
        if value:
            msg = f"The CPU backend has no {setting}, but {shorten(value)!r} was requested."
            raise UsageError(msg, hint="Remove this setting, or use the backend rocm.")


def _with_this_machine(target: Target, settings: Settings, catalog: Catalog, inputs: Inputs) -> Target:
    """Add this machine's driver or glibc, and its Python unless a requirement excludes or replaces it."""
    from builders.machine import host

    running = host.running_python()
    stated = [one.specifier for one in inputs.requirements if one.name == "python"]
    is_replaced = settings.python or any(one is None or not one.allows(running) for one in stated)
    python = None if is_replaced else running
    if target.backend == "cpu":
        return replace(target, python=python, glibc=host.glibc_version())
    reported = host.driver_version() if target.driver is None else ""
    driver = identify_driver(reported, catalog) if reported else target.driver
    return replace(target, python=python, driver=driver)


def driver_line(text: str | None, catalog: Catalog) -> str | None:
    """Return the line of the driver table that ``--driver`` names."""
    if text is None:
        return None
    if release_of_package(text):
        return identify_driver(text, catalog)
    lines = lines_of_module(text, catalog)
    if lines and minor(text) not in lines:
        msg = (
            f"{text} is the version that the kernel module of driver {join_words(lines)} reports, "
            "not a driver release."
        )
        known = [line for line in lines if line in catalog.driver]
        raise UsageError(msg, hint=f"Use --driver {known[0]}." if known else "")
    pins = [clause.version for clause in parse_specifier(text) if clause.operator == "=="]
    return minor(pins[0].removesuffix(".*")) if pins else text


def check_names(names: Sequence[str]) -> list[str]:
    """Return the normalized names of the distributions on a command line."""
    return [parse_requirement(name).name for name in names]
