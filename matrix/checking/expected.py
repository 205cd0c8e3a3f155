"""What a file is checked against: a site on a day, a base image, or a lock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from resolver.compiling.draft import check_target, window_of
from resolver.versions import join_words, minor, sort_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Torch
    from resolver.model import Request, Resolution

Consumer = Literal["cotainr", "tykky", "pip"]
CONSUMERS: tuple[Consumer, ...] = ("cotainr", "tykky", "pip")
Fit = Literal["fits", "old", "wrong"]


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What fits."""

    catalog: Catalog
    consumer: Consumer
    backend: str
    rocm: tuple[str, ...] = ()
    """Lines (major.minor) of ROCm that fit, the oldest first; none means that nothing is known."""
    exact: bool = False
    """Whether `rocm` is what the image or the lock has, rather than all that a driver supports."""
    because: str = ""
    """Why those lines, as a clause."""
    against: str = ""
    """What is checked against, in a few words."""
    gfx: tuple[str, ...] = ()
    pins: Mapping[str, str] = field(default_factory=dict)
    """Exact versions of the lock, by name."""
    python: str = ""
    """CPython minor of the lock."""
    glibc: str = ""
    """glibc of the base image; empty where none was named or it is not known."""

    def fit(self, line: str) -> Fit:
        """Say whether a ROCm line fits; older than a driver's window may run, at the user's own risk."""
        if not self.rocm or line in self.rocm:
            return "fits"
        return "old" if not self.exact and sort_key(line) < sort_key(self.rocm[0]) else "wrong"

    def torches(self, public: str) -> list[Torch]:
        """Give the published torch wheels of a version that fit, the newest ROCm first."""
        rows = [row for row in self.catalog.torch.values() if row.version.partition("+")[0] == public]
        if self.backend == "cpu":
            return [row for row in rows if row.backend == "cpu"]
        fitting = [row for row in rows if row.rocm and self.fit(minor(row.rocm)) == "fits"]
        return sorted(fitting, key=lambda row: sort_key(row.rocm), reverse=True)


def expect_request(request: Request, catalog: Catalog, consumer: Consumer) -> Expected:
    """Say what fits for a target.

    Raises
    ------
    UsageError
        The site's driver of that day, or the driver, image or offload target that is named, is not known.
    """
    target = request.target
    check_target(catalog, target)
    rocm, exact, because = _rocm(request, catalog)
    image = catalog.image.get(target.base_image or "")
    told = f"{target.site} on {target.date}" + (f", {target.base_image}" if target.base_image else "")
    return Expected(
        catalog=catalog,
        consumer=consumer,
        backend=target.backend,
        rocm=rocm,
        exact=exact,
        because=because,
        against=told,
        gfx=target.gfx,
        glibc=image.glibc if image else "",
    )


def _rocm(request: Request, catalog: Catalog) -> tuple[tuple[str, ...], bool, str]:
    target = request.target
    if target.backend == "cpu":
        return (), False, ""
    image = catalog.image.get(target.base_image or "")
    if image is not None and image.rocm:
        return (minor(image.rocm),), True, f"the base image {image.name} has ROCm {image.rocm}"
    window = window_of(catalog, request)
    driver = target.driver or (window.driver if window else "")
    row = catalog.driver.get(driver)
    if row is None:
        return (), False, ""
    lines = tuple(sorted(row.supports, key=sort_key))
    what = f"{target.site} on {target.date} has" if window else "you named"
    return (
        lines,
        False,
        f"{what} kernel driver {driver}, which supports ROCm {join_words(lines, joiner='and')}",
    )


def expect_lock(lock: Resolution, name: str, catalog: Catalog, consumer: Consumer) -> Expected:
    """Say what fits a lock: its versions, and nothing else."""
    rocm, image = lock.version_of("rocm"), catalog.image.get(lock.version_of("base-image"))
    return Expected(
        catalog=catalog,
        consumer=consumer,
        backend=lock.target.backend,
        rocm=(minor(rocm),) if rocm else (),
        exact=True,
        because=f"{name} has ROCm {rocm}" if rocm else "",
        against=f"{name}, for {lock.target.site} on {lock.target.date}",
        gfx=lock.target.gfx,
        pins={
            pick.name: pick.pinned
            for pick in lock.picks
            if pick.kind == "distribution" and pick.origin != "preinstalled"
        },
        python=lock.version_of("python"),
        glibc=image.glibc if image else "",
    )
