"""Layers, wheels installed once into a read-only directory, and the environments on top of them.

A layer is a virtual environment without pip, so its programs (``ninja``, ``cmake``) run with their own
packages. Another environment uses it through a ``.pth`` file that calls `site.addsitedir`: its packages come
after the environment's own, `importlib.metadata` finds them, and its ``.pth`` files are processed (that of
setuptools provides distutils). The pip packages of ROCm find one another by relative paths, so all are in the
layer of torch; the archive of the one for development is expanded when the layer is made.
"""

from __future__ import annotations

import zlib
from functools import cache
from typing import TYPE_CHECKING
from zipfile import BadZipFile

import msgspec
from msgspec.structs import replace
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

from builders.containers.runtime import Bind, View, run_in
from builders.environments.python import QUIET, ensure_pip, python_view
from builders.environments.wheelhouse import Wheelhouse, fetch_wheels, remove_damaged
from builders.storage.files import cache_root, remove_tree
from builders.storage.io_errors import explain_cache_errors
from builders.storage.lease import digest, ensure_cached
from resolver.errors import CommandError, EnvironmentLacksError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from builders.containers.runtime import Runtime
    from builders.environments.python import TargetPython
    from builders.environments.wheelhouse import FetchedWheel, FetchOptions

_LINK = "matrix-layers.pth"
_ROCM_DEVEL = "rocm-sdk-devel"


class Layer(msgspec.Struct, frozen=True):
    """Wheels installed into a shared directory."""

    root: Path
    packages: Path
    """Its site-packages."""
    wheels: tuple[FetchedWheel, ...]

    @property
    def rocm(self) -> Path | None:
        """The root of the ROCm that pip installed for development; a mark of AMD's build may end its name."""
        return next(self.packages.glob("_rocm_sdk_devel*"), None)


class Layers(msgspec.Struct, frozen=True):
    """The layers of a build."""

    torch: Layer | None
    requirements: Layer | None

    @property
    def all(self) -> tuple[Layer, ...]:
        """All layers in lookup order: build requirements shadow the dependencies of torch."""
        return tuple(layer for layer in (self.requirements, self.torch) if layer is not None)


class BuildEnvironment(msgspec.Struct, frozen=True):
    """A virtual environment on top of layers."""

    root: Path
    path: tuple[Path, ...]
    """Directories for PATH: its own programs first, then those of its layers."""
    binds: tuple[Bind, ...]
    """The files on this machine that it needs: its Python and its layers, read-only, and itself."""
    hidden: tuple[Path, ...] = ()
    """Directories that its programs must not see."""
    linkers: Mapping[str, str] = {}

    @property
    def python(self) -> Path:
        """Its interpreter, as a path in the runtime."""
        return self.root / "bin" / "python"

    @property
    def view(self) -> View:
        """The minimal view of an untrusted program that runs in it, without network."""
        return View(
            env={**QUIET, "VIRTUAL_ENV": str(self.root)},
            path=self.path,
            binds=self.binds,
            untrusted=True,
            hidden=self.hidden,
        )


def make_layers(
    runtime: Runtime,
    python: TargetPython,
    *,
    torch: str | None,
    requirements: Sequence[str],
    options: FetchOptions,
) -> Layers:
    """Return the layers of a build; download and install the wheels that are missing."""
    base, rest = fetch_build_wheels(runtime, python, torch=torch, requirements=requirements, options=options)
    lower = make_layer(runtime, python, base.wheels, options) if base else None
    if rest is None:
        return Layers(lower, None)
    below = [lower] if lower is not None and rest.depends_on_base else []
    return Layers(lower, make_layer(runtime, python, rest.wheels, options, base=below))


def fetch_build_wheels(
    runtime: Runtime,
    python: TargetPython,
    *,
    torch: str | None,
    requirements: Sequence[str],
    options: FetchOptions,
) -> tuple[Wheelhouse | None, Wheelhouse | None]:
    """Download torch (with its local version) and build requirements; no later step uses the network."""
    if torch is None:
        return None, fetch_wheels(runtime, python, requirements, options) if requirements else None
    base = Wheelhouse((torch,), options.torch) if options.torch else None
    base = base or fetch_wheels(runtime, python, [torch, *filter(None, [options.rocm])], options)
    if not requirements:
        return base, None
    # torch's own index also has old versions of common build requirements, so it is not used for them.
    elsewhere = replace(options, indexes=())
    return base, fetch_wheels(runtime, python, requirements, elsewhere, constraints=base.wheels)


def make_layer(
    runtime: Runtime,
    python: TargetPython,
    wheels: Sequence[FetchedWheel],
    options: FetchOptions,
    *,
    base: Sequence[Layer] = (),
) -> Layer:
    """Install wheels into a layer without network, which can import from `base`, unless the cache has it."""
    hashes = sorted(wheel.sha256 for wheel in wheels)
    key = digest(python.key(runtime), hashes, [layer.root.name for layer in base])
    root = cache_root() / "layers" / key

    def build() -> None:
        _check_hashes(wheels)
        first = next((wheel for wheel in wheels if "+" in wheel.version), wheels[0])
        more = f" and {len(wheels) - 1} more" if len(wheels) > 1 else ""
        options.reporter.step(f"install {first.name} {first.version}{more}, once for this Python and image")
        _write_environment(root, python, base)
        _install_with_pip(runtime, python, root, base, [wheel.path for wheel in wheels], log=options.log)
        if any(wheel.name == _ROCM_DEVEL for wheel in wheels):
            _expand_rocm(runtime, python, root, log=options.log)

    ensure_cached(root, build)
    return Layer(root, root / python.library, tuple(wheels))


def make_environment(
    python: TargetPython,
    layers: Sequence[Layer],
    wheels: Sequence[Path] = (),
    *,
    root: Path,
    hidden: Sequence[Path] = (),
    exists: bool = False,
) -> BuildEnvironment:
    """Create an environment on top of layers, in which to build or test wheels. No program is started.

    Layers are in lookup order. Wheels are installed without their dependencies. `root` is replaced. With
    `exists`, it was created before with the same arguments, and its files keep their times, which ninja
    compares.
    """
    if not exists:
        remove_tree(root)
        root.mkdir()
        try:
            for wheel in wheels:
                _install(wheel, root, python)
            _write_environment(root, python, layers)
        except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
            msg = f"Wheels cannot be installed: {error}."
            hint = "Some of them have files in the place of directories of others."
            raise EnvironmentLacksError(msg, hint=hint) from None
    rocm = [layer.rocm / "bin" for layer in layers if layer.rocm]  # the hipcc of a layer has no headers
    path = (root / "bin", *rocm, *(layer.root / "bin" for layer in layers))
    binds = (*python.binds, *(Bind(layer.root) for layer in layers), Bind(root, writable=True))
    return BuildEnvironment(root, path, binds, tuple(hidden), python.linkers)


def _install(wheel: Path, root: Path, python: TargetPython) -> None:
    from installer import install
    from installer.destinations import SchemeDictionaryDestination
    from installer.exceptions import InstallerError
    from installer.sources import WheelFile

    major, minor = map(int, python.minor.split("."))
    _, _, _, tags = parse_wheel_filename(wheel.name)
    if not {(tag.interpreter, tag.abi) for tag in tags} & _supported(major, minor, python.abi):
        msg = f"{wheel.name} is not a supported wheel for Python {python.minor} ({python.abi})."
        raise EnvironmentLacksError(
            msg, hint="The build backend built it for another Python. Look for the reason in the build's log."
        )
    packages = str(root / python.library)
    directories = {
        "purelib": packages,
        "platlib": packages,
        "scripts": str(root / "bin"),
        "headers": str(root / "include" / "site" / f"python{python.minor}"),
        "data": str(root),
    }
    destination = SchemeDictionaryDestination(
        directories, str(root / "bin" / "python"), "posix", overwrite_existing=True
    )
    try:
        with WheelFile.open(wheel) as source:
            install(source, destination, {})
    except (InstallerError, ValueError, LookupError, BadZipFile, zlib.error) as error:
        msg = f"{wheel.name} cannot be installed: {error}."
        raise EnvironmentLacksError(
            msg, hint="The file is damaged, or it is not a valid wheel. Build or download it again."
        ) from None


@cache
def _supported(major: int, minor: int, abi: str) -> set[tuple[str, str]]:
    tags = [
        *cpython_tags((major, minor), [abi], ["any"]),
        *compatible_tags((major, minor), f"cp{major}{minor}", ["any"]),
    ]
    return {(tag.interpreter, tag.abi) for tag in tags}


def _write_environment(root: Path, python: TargetPython, layers: Sequence[Layer]) -> None:
    """Write the files that make a directory a virtual environment without pip, as ``venv`` does (PEP 405)."""
    packages = root / python.library
    for directory in (root / "bin", root / "include", packages):
        directory.mkdir(parents=True, exist_ok=True)
    links = {"bin/python": str(python.path), "bin/python3": "python", f"bin/python{python.minor}": "python"}
    for name, target in links.items():
        (root / name).unlink(missing_ok=True)  # a wheel may have such a file
        (root / name).symlink_to(target)
    if not (root / "lib64").exists():
        (root / "lib64").symlink_to("lib")
    settings = {
        "home": python.path.parent,
        "include-system-site-packages": "false",
        "version": python.version,
        "executable": python.path,
    }
    lines = [f"{name} = {value}\n" for name, value in settings.items()]
    (root / "pyvenv.cfg").write_text("".join(lines), encoding="utf-8")
    lines = [f"import site; site.addsitedir({str(layer.packages)!r})\n" for layer in layers]
    (packages / _LINK).write_text("".join(lines), encoding="utf-8")


def _install_with_pip(
    runtime: Runtime,
    python: TargetPython,
    root: Path,
    base: Sequence[Layer],
    wheels: Sequence[Path],
    *,
    log: Path,
) -> None:
    """Install wheels of an index into a layer; their code may run, such as in ``.pth`` files."""
    pip = ensure_pip(runtime, python, log=log)
    seen = [*(layer.root for layer in base), pip.parent, *(wheel.parent for wheel in wheels)]
    view = python_view(python, binds=[*map(Bind, seen), Bind(root, writable=True)])
    command = [
        str(root / "bin" / "python"), str(pip), "install", "--isolated", "--no-index", "--no-deps",
        "--no-cache-dir", "--disable-pip-version-check", "--ignore-installed", "--no-warn-script-location",
        "--compile", *map(str, wheels),
    ]  # fmt: skip
    what = f"Creating an environment with {', '.join(wheel.name for wheel in wheels)}"
    try:
        with explain_cache_errors():
            run_in(runtime, command, replace(view, untrusted=True), what=what, log=log)
    except CommandError as error:
        raise EnvironmentLacksError(error.message, hint="Look for the reason in the log.") from None


def _expand_rocm(runtime: Runtime, python: TargetPython, root: Path, *, log: Path) -> None:
    """Expand the files for development. Source: ROCm/TheRock@89553ce:docs/packaging/python_packaging.md."""
    view = replace(python_view(python, binds=[Bind(root, writable=True)]), untrusted=True)
    command = [str(root / "bin" / "python"), "-m", "rocm_sdk", "init"]
    try:
        with explain_cache_errors():
            run_in(runtime, command, view, what="Expanding ROCm's pip packages (rocm-sdk init)", log=log)
    except CommandError as error:
        raise EnvironmentLacksError(error.message, hint="Look for the reason in the log.") from None


def _check_hashes(wheels: Sequence[FetchedWheel]) -> None:
    damaged = remove_damaged(wheels)
    if damaged:
        files = ", ".join(wheel.file for wheel in damaged)
        msg = f"Damaged files in the cache were removed: {files}."
        raise EnvironmentLacksError(
            msg, hint="Run the same command again with network access to download them."
        )
