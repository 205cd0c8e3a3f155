"""Judge this machine, and a base image as a place to build wheels: the tools that they lack."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec.structs import asdict

from builders.containers.image import find_image, image_name
from builders.containers.inspection import ImageFacts, inspect_image
from builders.diagnosis.doctor import check_machine
from builders.findings import SEVERITIES, Finding
from builders.network.urls import mirrored
from builders.sources.source import index_url
from matrix.input.settings import REQUEST_FILE, in_project, user_files
from resolver.errors import EnvironmentLacksError, UsageError, did_you_mean
from resolver.versions import join_words, shorten, sort_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matrix.command_line.context import Context
    from resolver.facts.catalog import Catalog


class ImageDocument(ImageFacts, frozen=True, kw_only=True):
    """The content of a base image, and the tools that it lacks to build wheels."""

    missing: list[str]
    can_build: bool


def judge_machine(context: Context) -> list[Finding]:
    """Return the findings about this machine: missing tools, and servers that do not answer."""
    catalog, mirrors = context.catalog, context.settings.mirrors
    findings = [*check_machine(catalog, context.args.index, servers(catalog, mirrors)), _settings()]
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def _settings() -> Finding:
    project = in_project(REQUEST_FILE)
    files = [str(path) for path in (*user_files(), project) if path.exists()]
    text = f"settings from {join_words(files, joiner='and')}" if files else "no file of settings is in force"
    return Finding("settings-files", "info", text, evidence={"files": files})


def judge_base_image(given: str, catalog: Catalog) -> ImageDocument:
    """Return the content of a base image, and what it lacks to build wheels; this may start a container."""
    facts = _inspect(given, catalog)
    missing = facts.missing_tools()
    return ImageDocument(**asdict(facts), missing=missing, can_build=not missing)


def servers(catalog: Catalog, mirrors: Mapping[str, str]) -> dict[str, str]:
    """Return the URLs from which builds download, by kind, with the configured mirrors applied."""
    newest = max((row for row in catalog.torch.values() if row.rocm), key=lambda row: sort_key(row.version))
    urls = {"sdists": index_url(), "torch": newest.index}
    remotes = [urlsplit(row.git.url) for row in catalog.release.values() if row.git]
    for number, host in enumerate(dict.fromkeys(f"{remote.scheme}://{remote.netloc}/" for remote in remotes)):
        urls[f"git-{number + 1}" if number else "git"] = host
    return {what: mirrored(url, mirrors) for what, url in urls.items()}


def _inspect(given: str, catalog: Catalog) -> ImageFacts:
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
    return inspect_image(find_image(path, name))


def image_text(facts: ImageDocument) -> str:
    """Return the content of a base image, one fact on each line."""
    missing = facts.missing
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
