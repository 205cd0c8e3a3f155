"""``matrix doctor``: check this machine and a base image, and list missing tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from builders.containers.engines import choose_runtime
from builders.containers.image import find_image, image_name
from builders.containers.inspection import ImageFacts, inspect_image
from builders.diagnosis.doctor import check_machine
from builders.findings import SEVERITIES, Finding
from builders.network.urls import mirrored
from builders.sources import index_url
from matrix.command_line.options import add_catalog, add_format, add_index
from matrix.show.json_document import JsonDocument
from matrix.show.render import count_text, findings_text
from resolver.errors import EnvironmentLacksError, UsageError, did_you_mean
from resolver.versions import shorten, sort_key

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from matrix.command_line.context import Context
    from resolver.facts.catalog import Catalog

SUMMARY = "check this machine and a base image, and list missing tools"
EXAMPLE = "matrix doctor --base-image /appl/local/containers/lumi-rocm.sif"


class ImageDocument(ImageFacts, frozen=True, kw_only=True):
    """The content of a base image, and the tools that it lacks to build wheels."""

    missing: list[str]
    can_build: bool


class DoctorDocument(JsonDocument, kw_only=True):
    """Findings about a machine, and optionally about a base image."""

    status: Literal["ok", "errors"]
    host: list[Finding]
    image: ImageDocument | UnsetType = UNSET


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--base-image",
        metavar="NAME|PATH",
        help="inspect a base image as well, and check whether wheels can be built in it",
    )
    parser.add_argument(
        "--in",
        dest="where",
        choices=("apptainer", "podman"),
        help="the runtime for the image (default: the installed runtime)",
    )
    add_index(parser)
    add_catalog(parser)
    add_format(parser)


def execute(context: Context) -> int:
    """Run the command. Only an image that cannot build changes the exit code; missing tools do not."""
    args, console = context.args, context.console
    given = args.base_image
    settings, catalog = context.settings, context.catalog
    facts = _inspect(given, catalog, args.where) if given else None
    findings = list(check_machine(catalog, args.index, servers(catalog, settings.mirrors)))
    missing = facts.missing_tools() if facts else []
    if args.format == "json":
        image = ImageDocument(**asdict(facts), missing=missing, can_build=not missing) if facts else UNSET
        console.document(DoctorDocument(status="errors" if missing else "ok", host=findings, image=image))
    else:
        console.data(f"{count_text(findings)}\n".capitalize())
        findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
        text = findings_text(findings, quiet=console.verbosity < 0, screen=console.out)
        if text:
            console.data(text)
        if facts:
            console.data("\n" + _image_text(facts, missing))
    return EnvironmentLacksError.exit_code if missing else 0


def servers(catalog: Catalog, mirrors: Mapping[str, str]) -> dict[str, str]:
    """Return the URLs from which builds download, by kind, with the configured mirrors applied."""
    newest = max((row for row in catalog.torch.values() if row.rocm), key=lambda row: sort_key(row.version))
    urls = {"sdists": index_url(), "torch": newest.index}
    remotes = [urlsplit(row.git.url) for row in catalog.release.values() if row.git]
    for number, host in enumerate(dict.fromkeys(f"{remote.scheme}://{remote.netloc}/" for remote in remotes)):
        urls[f"git-{number + 1}" if number else "git"] = host
    return {what: mirrored(url, mirrors) for what, url in urls.items()}


def _inspect(given: str, catalog: Catalog, where: str | None) -> ImageFacts:
    name = image_name(given, catalog)
    path = Path(given)
    row = catalog.image.get(name)
    if not path.exists():
        if row is None:
            msg = f"{shorten(given)} does not exist, and the catalog has no base image of that name."
            raise UsageError(msg, hint=did_you_mean(name, catalog.image))
        path = Path(row.path)
        if not row.path.startswith("/") or not path.exists():
            path_text = f": {row.path}" if row.path else ", and the catalog has no path for it"
            msg = f"The base image {name} is not on this machine{path_text}."
            get = f"Pull it (`apptainer pull image.sif {row.path}`)" if "://" in row.path else "Copy it here"
            raise EnvironmentLacksError(msg, hint=f"{get}, then name the file: --base-image image.sif")
    image = find_image(path, name)
    if where is not None:
        choose_runtime(where, image)  # raises if it is not installed, even if the inspection is cached
    return inspect_image(image, where)


def _image_text(facts: ImageFacts, missing: list[str]) -> str:
    compilers = ", ".join(f"{compiler.name} {compiler.version}" for compiler in facts.compilers)
    pythons = "; ".join(
        f"{python.version} {python.path}"
        + (f" with torch {python.holds['torch']}" if "torch" in python.holds else "")
        + ("" if python.headers else ", no headers")
        + ("" if python.venv else ", no venv")
        for python in facts.pythons
    )
    rows = {
        "digest": facts.digest,
        "system": f"{facts.os} ({facts.architecture})",
        "ROCm": f"{facts.rocm} in {facts.rocm_path}" if facts.rocm else "",
        "hipcc": f"{facts.hipcc}, clang {facts.clang}" if facts.hipcc else "",
        "GPU tools": ", ".join(facts.gpu_tools),
        "glibc": facts.glibc,
        "libstdc++": f"GLIBCXX_{facts.glibcxx}, CXXABI_{facts.cxxabi}" if facts.glibcxx else "",
        "network": ", ".join(
            [f"libfabric {facts.libfabric}"] * bool(facts.libfabric)
            + ["headers for a network plugin"] * facts.network_headers
            + [f"network plugin {facts.network_plugin}"] * bool(facts.network_plugin)
        ),
        "compilers": compilers,
        "tools": ", ".join(f"{name} {tool.version}" for name, tool in facts.tools.items()),
        "Pythons": pythons,
        "conda": ", ".join(facts.conda),
        "libraries": f"{len(facts.libraries)} (all with --format json)",
    }
    lines = [f"Base image {facts.name}: {facts.path}"]
    lines += [f"  {name:10} {value or 'none'}" for name, value in rows.items()]
    lines.append(
        "This image cannot build wheels for ROCm:" if missing else "This image can build wheels for ROCm."
    )
    return "\n".join([*lines, *(f"  - {tool}" for tool in missing)])
