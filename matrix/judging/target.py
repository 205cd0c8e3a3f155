"""The target that a file is checked against: a site on a day, a base image, or a lock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from builders.constants import INDEX_DIRECTORY
from resolver.compiling.problem_builder import check_target, window_of
from resolver.facts.driver import runs_outside_table
from resolver.versions import join_words, minor, sort_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Torch
    from resolver.model import Request, Resolution

Consumer = Literal["cotainr", "tykky", "pip"]
CONSUMERS: tuple[Consumer, ...] = ("cotainr", "tykky", "pip")
Verdict = Literal["fits", "own-risk", "not-judged", "does-not-fit"]


class ExpectedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The versions that a file may contain."""

    catalog: Catalog
    request: Request
    """A request with this target, or that of the lock."""
    consumer: Consumer
    backend: str
    rocm: tuple[str, ...] = ()
    """ROCm releases (major.minor) that fit, oldest first; empty if that is unknown."""
    exact: bool = False
    """Whether `rocm` is the exact ROCm of an image or a lock, rather than all releases a driver supports."""
    because: str = ""
    """Why these releases fit, as a clause."""
    outside: Mapping[str, str] = {}
    """Other releases that the site ran on this driver, each with a clause that says so."""
    against: str = ""
    """The target in a few words."""
    gfx: tuple[str, ...] = ()
    pins: Mapping[str, str] = {}
    """Exact versions of the lock by name."""
    python: str = ""
    """CPython minor version of the lock."""
    glibc: str = ""
    """glibc of the base image; empty if there is no base image or its glibc is unknown."""
    index: Path = INDEX_DIRECTORY
    """The local index, whose URL in the container is ``file:///mnt/simple``."""

    def fit(self, rocm: str) -> Verdict:
        """Return whether a ROCm release fits; others than the driver supports may run at your own risk."""
        if not self.rocm or rocm in self.rocm:
            return "fits"
        return "own-risk" if rocm in self.outside or self._is_older(rocm) else "does-not-fit"

    def why(self, rocm: str) -> str:
        """Return why a release does not fit, or fits at your own risk, as a clause."""
        older = ". Older releases may run, at your own risk" if self._is_older(rocm) else ""
        return self.outside.get(rocm, f"{self.because}{older}")

    def _is_older(self, rocm: str) -> bool:
        return bool(self.rocm) and not self.exact and sort_key(rocm) < sort_key(self.rocm[0])

    def published(self, name: str, public: str) -> list[Torch]:
        """Return the torch wheels with which a version of torch, torchvision or torchaudio was released."""
        rows = self.catalog.torch.values()
        return [row for row in rows if released_with(row, name).partition("+")[0] == public]

    def fitting(self, name: str, public: str) -> list[Torch]:
        """Return those of `published` that fit: builds with a ROCm label first, then the newest ROCm."""
        rows = self.published(name, public)
        if self.backend == "cpu":
            return [row for row in rows if row.backend == "cpu"]
        fitting = [row for row in rows if row.rocm and self.fit(minor(row.rocm)) == "fits"]
        return sorted(fitting, key=lambda row: ("+rocm" in row.version, sort_key(row.rocm)), reverse=True)


def released_with(row: Torch, name: str) -> str:
    """Return the version, with label, of torch, torchvision or torchaudio in the release of a torch."""
    return {"torch": row.version, "torchvision": row.torchvision, "torchaudio": row.torchaudio}[name]


def expect_request(
    request: Request, catalog: Catalog, consumer: Consumer, index: Path = INDEX_DIRECTORY
) -> ExpectedTarget:
    """Return the versions that fit a target."""
    target = request.target
    check_target(catalog, target)
    rocm, exact, because, outside = _supported_rocm(request, catalog)
    image = catalog.image.get(target.base_image or "")
    against = f"{target.site} on {target.date}" + (f", {target.base_image}" if target.base_image else "")
    return ExpectedTarget(
        catalog=catalog,
        request=request,
        consumer=consumer,
        backend=target.backend,
        rocm=rocm,
        exact=exact,
        because=because,
        outside=outside,
        against=against,
        gfx=target.gfx,
        glibc=image.glibc if image else "",
        index=index,
    )


def _supported_rocm(request: Request, catalog: Catalog) -> tuple[tuple[str, ...], bool, str, dict[str, str]]:
    target = request.target
    if target.backend == "cpu":
        return (), False, "", {}
    image = catalog.image.get(target.base_image or "")
    if image is not None and image.rocm:
        return (minor(image.rocm),), True, f"the base image {image.name} has ROCm {image.rocm}", {}
    window = window_of(catalog, request)
    driver = target.driver or (window.driver if window else "")
    row = catalog.driver.get(driver)
    if row is None:
        return (), False, "", {}
    runs = runs_outside_table(catalog, target.site, row, target.date)
    releases = tuple(sorted(row.supports, key=sort_key))
    owner = f"{target.site} on {target.date} has" if window else "you named"
    supported = join_words(releases, joiner="and")
    because = f"{owner} kernel driver {driver}, which supports ROCm {supported}"
    return releases, False, because, {line: text for line, (_, text) in runs.items()}


def expect_lock(
    lock: Resolution, name: str, catalog: Catalog, consumer: Consumer, index: Path = INDEX_DIRECTORY
) -> ExpectedTarget:
    """Return the versions that fit a lock: exactly its own."""
    rocm, image = lock.version_of("rocm"), catalog.image.get(lock.version_of("base-image"))
    return ExpectedTarget(
        catalog=catalog,
        request=lock.request,
        consumer=consumer,
        backend=lock.target.backend,
        rocm=(minor(rocm),) if rocm else (),
        exact=True,
        because=f"{name} has ROCm {rocm}" if rocm else "",
        against=f"{name} (for {lock.target.site} on {lock.target.date})",
        gfx=lock.target.gfx,
        pins={pick.name: pick.pinned for pick in lock.distributions if pick.origin != "preinstalled"},
        python=lock.version_of("python"),
        glibc=image.glibc if image else "",
        index=index,
    )
