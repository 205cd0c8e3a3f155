"""RCCL's network plugin, at sites whose network needs one: that of the base image, or one to build.

The plugin follows from an answer and never changes it: where none fits, the answer has a warning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from resolver.compiling.distributions import PYTORCH
from resolver.compiling.known_bad import broken_combinations, notice_of
from resolver.facts.schema import NETWORK_PLUGIN
from resolver.model import Distribution, Fact, Notice, Request, Resolution

if TYPE_CHECKING:
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Image

_TCP = "on several nodes RCCL uses TCP, which is slow"


def with_network_plugin(
    catalog: Catalog, request: Request, answer: Resolution, beside: Callable[[str], Resolution | None]
) -> Resolution:
    """Return an answer with the network plugin that its torch needs at the site, or the reason for none.

    `beside` returns the answer with one more distribution, without any other change; None if that fails.
    """
    site, torch = catalog.site.get(request.target.site), answer.pick("torch")
    if site is None or not site.network or request.target.backend != "rocm" or torch is None:
        return answer
    image = catalog.image.get(answer.target.base_image or "")
    if asked := answer.pick(NETWORK_PLUGIN):
        return _asked(catalog, answer, asked, image)
    if request.no_network_plugin or image is None:
        reason = f"is chosen only with a base image (--base-image), or if {NETWORK_PLUGIN} is required"
        if request.no_network_plugin:
            reason = "is left out (--no-network-plugin, or --for a tool that uses no container)"
        text = f"RCCL's network plugin {reason}. Without one, {_TCP}."
        return replace(answer, notes=(*answer.notes, Notice("no-network-plugin", NETWORK_PLUGIN, text)))
    refused = ""
    if image.network_plugin:
        refused = " ".join(_problems(catalog, answer, image, "refuse"))
        if not refused:
            warned = _warned(answer, *_problems(catalog, answer, image, "warn"))
            return _with_image(warned, image, image.network_plugin)
    remedy = f"require {NETWORK_PLUGIN} to compile it in this image"
    if not _has_own_rccl(catalog, torch):
        reason = (
            f"{NETWORK_PLUGIN} goes beside the RCCL in torch's wheel, and torch {torch.version} uses another"
        )
        remedy = ""
    elif not image.libfabric or not image.network_headers:
        reason = "it is not known whether it has libfabric and hwloc with their headers"
    elif built := _built(catalog, answer, beside(NETWORK_PLUGIN)):
        return _with_image(built, image)
    else:
        reason = f"no release of {NETWORK_PLUGIN} fits"
        remedy = f"require {NETWORK_PLUGIN}, which shows what conflicts"
    ways = " or ".join(filter(None, ["name an image that has one (--base-image)", remedy]))
    own = "the plugin of {} cannot be used" if refused else "{} is not known to have one"
    text = (
        f"No network plugin for RCCL is chosen: {own.format(image.name)}, and {reason}. "
        f"Without one, {_TCP}. To have one, {ways}."
    )
    return _warned(answer, *([refused] if refused else []), text)


def _warned(answer: Resolution, *texts: str) -> Resolution:
    warnings = (
        text if isinstance(text, Notice) else Notice("network-plugin", NETWORK_PLUGIN, text) for text in texts
    )
    return replace(answer, warnings=(*answer.warnings, *warnings))


def _problems(
    catalog: Catalog, answer: Resolution, image: Image, effect: Literal["refuse", "warn"]
) -> list[Notice]:
    """Return the problems of the answer's plugin, else the image's, with the image's libfabric."""
    versions = {NETWORK_PLUGIN: image.network_plugin} | {pick.name: pick.version for pick in answer.picks}
    versions |= {"libfabric": image.libfabric} if image.libfabric else {}
    return [
        notice_of(row, title)
        for row, title in broken_combinations(catalog, answer.target, versions)
        if row.effect == effect and NETWORK_PLUGIN in row.combination
    ]


def _has_own_rccl(catalog: Catalog, torch: Distribution) -> bool:
    """Return whether a torch is a wheel with its RCCL in torch/lib, where the plugin is installed."""
    row = catalog.torch.get(torch.version)
    if row is None:
        return torch.origin == "published" and torch.index.startswith(PYTORCH)
    return torch.origin == "published" and not row.system_rocm and not row.device_extra


def _with_image(answer: Resolution, image: Image, plugin: str = "") -> Resolution:
    """Return an answer with the libfabric of its base image, and with its plugin if that is used."""
    known = {"libfabric": image.libfabric, NETWORK_PLUGIN: plugin}
    parts = [
        Distribution(
            name=name,
            version=version,
            kind="platform",
            origin="base-image",
            support=image.status,
            verdict="supported",
            facts=(Fact.of(image, f"{image.name} has {name} {version}"),),
        )
        for name, version in known.items()
        if version
    ]
    platform = [pick for pick in answer.picks if pick.kind == "platform"]
    others = [pick for pick in answer.picks if pick.kind != "platform"]
    return replace(answer, picks=(*platform, *parts, *others))


def _built(catalog: Catalog, answer: Resolution, found: Resolution | None) -> Resolution | None:
    """Return an answer with a plugin to build as one that nobody asked for; None if none fits."""
    image, site = catalog.image[answer.target.base_image or ""], catalog.site[answer.request.target.site]
    if found is None or _problems(catalog, found, image, "refuse"):
        return None
    text = f"{site.name} has {site.network.title()}, for which RCCL needs a network plugin"
    reason = Fact.of(site, text, note="")
    picks = (
        replace(pick, facts=(*pick.facts, reason)) if pick.name == NETWORK_PLUGIN else pick
        for pick in found.picks
    )
    text = f"{text}: {NETWORK_PLUGIN} is built. --no-network-plugin leaves it out."
    note = Notice("network-plugin-built", NETWORK_PLUGIN, text)
    return replace(found, request=answer.request, picks=tuple(picks), notes=(*found.notes, note))


def _asked(catalog: Catalog, answer: Resolution, plugin: Distribution, image: Image | None) -> Resolution:
    """Return an answer for which the user required the plugin, with what is known of the image."""
    if image is None or plugin.origin != "build":
        return answer
    refused: list[str] = [*_problems(catalog, answer, image, "refuse")]
    if not image.network_headers:
        refused.append(
            f"It is not known whether {image.name} has libfabric and hwloc with their headers. "
            f"Without them, the build of {NETWORK_PLUGIN} stops and names the header."
        )
    return _with_image(_warned(answer, *refused), image)
