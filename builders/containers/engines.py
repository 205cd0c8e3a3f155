"""Apptainer, SingularityCE and podman as runtimes, and the choice between them.

Neither the caller's environment nor the bind paths of the site's configuration reach a container. A shell
in it sets the variables, because runtimes differ in how they accept them and in whether they keep the
image's PATH.

Sources: https://apptainer.org/docs/user/main/ (bind paths, environment, network, security), podman-run(1).
"""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import msgspec

from builders.constants import BIND_SEPARATORS, CERTIFICATE_VARIABLES, END_ALL_ON_SIGNAL
from builders.containers.image import Form, LocalImage, form_of
from builders.containers.runtime import (
    DEVICES,
    Bind,
    HostRuntime,
    Runtime,
    View,
    only_loopback,
    without_network,
)
from builders.containers.sandbox import HOME, TEMPORARY, inside, make_mount_point, private_home
from builders.machine.process import clean_environment, output_in_container
from builders.storage.lease import TemporaryDirectory
from resolver.errors import EnvironmentLacksError, UsageError

KINDS = ("host", "apptainer", "podman")
_APPTAINERS = ("apptainer", "singularity")
_APPTAINER_FORMS = ("sif", "squashfs", "directory")
_PODMAN_FORMS = ("directory", "archive")
_HOSTS = Path("/etc/hosts")
_FIXED = {
    "HOME": str(HOME),
    "TMPDIR": str(TEMPORARY[0]),
    "LANG": "C.UTF-8",
    "PYTHONNOUSERSITE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu
    "/var/lib/ca-certificates/ca-bundle.pem",  # SUSE
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
)


def choose_runtime(kind: str | None, image: LocalImage | None) -> Runtime:
    """Choose the runtime in which programs run.

    `kind` is one of `KINDS`. None selects the host if there is no image; Podman for an archive, or if only
    Podman is installed and the image is a directory; Apptainer or SingularityCE otherwise.
    """
    if kind not in {None, *KINDS}:
        msg = f"{kind!r} is not a runtime. Runtimes are {', '.join(KINDS)}."
        raise UsageError(msg)
    if kind == "host" or (kind is None and image is None):
        return HostRuntime()
    if image is None:
        msg = f"Building in a container ({kind}) requires a base image."
        raise UsageError(msg, hint="Name one with --base-image PATH.")
    form = form_of(image.path)
    only_podman = form in _PODMAN_FORMS and not _installed(_APPTAINERS) and _installed(("podman",))
    if kind == "podman" or (kind is None and (form == "archive" or only_podman)):
        _require(form, _PODMAN_FORMS, image, "podman", "apptainer")
        return PodmanRuntime(image, _program(("podman",)))
    _require(form, _APPTAINER_FORMS, image, "apptainer", "podman")
    return ApptainerRuntime(image, _program(_APPTAINERS))


def _require(form: Form, forms: Sequence[str], image: LocalImage, runtime: str, other: str) -> None:
    if form not in forms:
        msg = f"{runtime} cannot run {image.path}: it is {'an' if form == 'archive' else 'a'} {form} file."
        raise UsageError(msg, hint=f"Use --in {other}.")


def _installed(names: Sequence[str]) -> bool:
    return any(map(shutil.which, names))


def _program(names: Sequence[str]) -> str:
    for name in names:
        path = shutil.which(name)
        if path:
            return path
    other = "Or use --in podman." if names == _APPTAINERS else "Or use --in apptainer."
    msg = f"{' or '.join(names)} is needed to run the image, but is not on PATH."
    hint = f"Load the site's module of that name (`module avail {names[0]}`) or install it. {other}"
    raise EnvironmentLacksError(msg, hint=hint)


_ISOLATED = ("--cleanenv", "--containall", "--no-mount", "home,cwd,bind-paths,hostfs")
_NO_NETWORK = ("--net", "--network", "none")
_APPTAINER_VARIABLES = (
    "APPTAINER_TMPDIR", "APPTAINER_CACHEDIR", "SINGULARITY_TMPDIR", "SINGULARITY_CACHEDIR",
)  # fmt: skip
_FEWER_PRIVILEGES = (("--no-privs",), ("--userns",))


class ApptainerRuntime(msgspec.Struct, frozen=True, dict=True):
    """A base image run by Apptainer or SingularityCE: a SIF file or an unpacked directory.

    The processes are in their own PID namespace, so that none of them outlives the engine.
    """

    kind: ClassVar[str] = "apptainer"
    image: LocalImage
    program: str = "apptainer"
    """``apptainer`` or ``singularity``, or its path."""

    def command(self, command: Sequence[str], view: View, scratch: Path) -> tuple[list[str], dict[str, str]]:
        """Return the command line of the engine, and the engine's own environment."""
        cut = ((), ()) if view.network else self._cut
        return self._line(command, view, scratch, cut), _apptainer_environment()

    @property
    def isolates_network(self) -> bool:
        """Whether a program whose view has no network really has none; tested once, in this image."""
        return any(self._cut)

    @cached_property
    def _privileges(self) -> tuple[str, ...]:
        """Drop root's capabilities: engines pass them on, and fail if root in a container lacks some."""
        if os.geteuid() != 0:
            return ()
        for options in _FEWER_PRIVILEGES:
            line = [self.program, "exec", *_ISOLATED, *options, str(self.image.path)]
            line += ["/bin/sh", "-c", "echo yes"]
            if output_in_container(line, env=_apptainer_environment()).strip() == "yes":
                return options
        return _FEWER_PRIVILEGES[0]

    @cached_property
    def _cut(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return what cuts a program off from the network: words before the engine's command, and options."""
        for cut in (((), _NO_NETWORK), (without_network(), ())):
            with TemporaryDirectory() as directory:
                line = self._line(DEVICES, View(), directory.root, cut)
                if only_loopback(output_in_container(line, env=_apptainer_environment())):
                    return cut
        return (), ()

    def _line(
        self,
        command: Sequence[str],
        view: View,
        scratch: Path,
        cut: tuple[tuple[str, ...], tuple[str, ...]],
    ) -> list[str]:
        before, options = cut
        bound = binds(view)
        if view.network and _HOSTS.is_file() and all(bind.path != _HOSTS for bind in bound):
            bound.insert(0, Bind(_HOSTS))  # without ``bind-paths`` the engine does not bind it
        mounts = [f"{outside}:{inside}" for outside, inside in private_mounts(scratch, bound)]
        mounts += [f"{bind.path}:{bind.inside}{'' if bind.writable else ':ro'}" for bind in bound]
        line = [*before, self.program, "--quiet", "exec", *_ISOLATED, *self._privileges, *options]
        for mount in mounts:
            line += ["--bind", mount]
        return [*line, str(self.image.path), "/bin/sh", "-c", script(view), "sh", *command]


def _apptainer_environment() -> dict[str, str]:
    """Return the engine's environment, without ``SINGULARITY_BIND`` and the like, which site modules set."""
    return clean_environment({name: os.environ[name] for name in _APPTAINER_VARIABLES if name in os.environ})


_PODMAN_OPTIONS = (
    "--rm", "--quiet", "--http-proxy=false", "--log-driver=none", "--security-opt", "label=disable",
    "--security-opt", "no-new-privileges", "--cap-drop", "all",
)  # fmt: skip
_FILES, _PROCESSES = 65536, 8192
"""The highest limits that are requested. By default podman requests more than an ordinary user, or root
without CAP_SYS_RESOURCE, may have."""
_PODMAN_VARIABLES = ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "CONTAINERS_CONF")


class PodmanRuntime(msgspec.Struct, frozen=True, dict=True):
    """A base image run by podman: an unpacked directory, or an archive that podman or docker saved.

    A SIF is Apptainer's own format, which podman does not read. SIGKILL to podman itself does not end
    the container, which then ends with its program.
    """

    kind: ClassVar[str] = "podman"
    image: LocalImage
    program: str = "podman"

    def command(self, command: Sequence[str], view: View, scratch: Path) -> tuple[list[str], dict[str, str]]:
        """Return the command line of podman, and podman's own environment."""
        return self._line(command, view, scratch, self._runtime_options), _podman_environment()

    @property
    def isolates_network(self) -> bool:
        """Whether a program whose view has no network really has none; tested once, in this image."""
        return self._works(self._runtime_options)

    @cached_property
    def _runtime_options(self) -> tuple[str, ...]:
        """Options before ``run``: they select runc where podman's default OCI runtime does not work."""
        if not self._works(()) and shutil.which("runc") and self._works(("--runtime", "runc")):
            return ("--runtime", "runc")
        return ()

    @cached_property
    def _image_arguments(self) -> tuple[str, ...]:
        if form_of(self.image.path) == "directory":
            return ("--rootfs", f"{self.image.path}:O")  # O: all writes go to an overlay that is discarded
        return (f"{_transport(self.image.path)}:{self.image.path}",)

    def _works(self, options: tuple[str, ...]) -> bool:
        with TemporaryDirectory() as directory:
            line = self._line(DEVICES, View(), directory.root, options)
            return only_loopback(output_in_container(line, env=_podman_environment()))

    def _line(self, command: Sequence[str], view: View, scratch: Path, options: tuple[str, ...]) -> list[str]:
        bound = binds(view)
        volumes = [f"{outside}:{inside}:rw" for outside, inside in private_mounts(scratch, bound)]
        volumes += [f"{bind.path}:{bind.inside}:{'rw' if bind.writable else 'ro'}" for bind in bound]
        network = "host" if view.network else "none"
        line = [self.program, *options, "run", *_PODMAN_OPTIONS, f"--network={network}"]
        if os.geteuid() != 0:
            line.append("--userns=keep-id")  # otherwise its files belong to another user
        for name, limit, most in (
            ("nofile", resource.RLIMIT_NOFILE, _FILES),
            ("nproc", resource.RLIMIT_NPROC, _PROCESSES),
        ):
            hard = resource.getrlimit(limit)[1]
            number = most if hard == resource.RLIM_INFINITY else min(hard, most)
            line += ["--ulimit", f"{name}={number}:{number}"]
        for volume in volumes:
            line += ["--volume", volume]
        # An entrypoint of the image would get the shell as its arguments.
        shell = ["/bin/sh", "-c", script(view, first_process=True), "sh"]
        return [*line, "--entrypoint=", *self._image_arguments, *shell, *command]


def _podman_environment() -> dict[str, str]:
    return clean_environment({name: os.environ[name] for name in _PODMAN_VARIABLES if name in os.environ})


def _transport(path: Path) -> str:
    """Return podman's name for the layout of an archive."""
    try:
        with tarfile.open(path) as archive:
            names = {member.name.removeprefix("./") for member in archive}
    except (tarfile.TarError, OSError, EOFError) as error:
        msg = f"Cannot read {path}: {error}."
        raise UsageError(msg) from None
    if "oci-layout" in names:
        return "oci-archive"
    if "manifest.json" in names:
        return "docker-archive"
    msg = f"{path} is not an archive of an image: it contains neither oci-layout nor manifest.json."
    raise UsageError(msg, hint="Write one with `podman save -o FILE IMAGE`.")


def script(view: View, *, first_process: bool = False) -> str:
    """Return the shell script that prepares the view and then runs its arguments.

    The image's variables are kept unless the view sets them; directories of the view come before the image's
    PATH. As process 1 of its PID namespace (`first_process`), the shell keeps running and ends all other
    processes, because the kernel delivers only signals that process 1 handles (pid_namespaces(7)).
    """
    variables = {**_FIXED, **(_network_variables() if view.network else {}), **view.env}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    if view.path:
        path = shlex.quote(":".join(map(str, view.path)))
        lines.append(f'export PATH={path}"${{PATH:+:$PATH}}"')
    if view.cwd is not None:
        lines.append(f"cd {shlex.quote(str(view.cwd))} || exit")
    return "\n".join([*lines, END_ALL_ON_SIGNAL if first_process else 'exec "$@"'])


def binds(view: View) -> list[Bind]:
    """Return the paths to bind, parents first; links also under their real path: programs resolve links."""
    requested = list(view.binds)
    if view.network:
        requested += [Bind(path) for path in (ca_bundle(),) if path]
    by_path: dict[Path, Bind] = {}
    for bind in requested:
        if BIND_SEPARATORS & {*str(bind.path), *str(bind.inside)}:
            msg = f"{str(bind.path)!r} cannot be bound into a container: its name contains one of : , \\"
            raise UsageError(msg, hint="Work in a directory without these characters.")
        if not bind.path.exists():
            msg = f"{bind.path} cannot be bound into a container: it does not exist."
            raise UsageError(msg)
        for path in (bind.target,) if bind.target else (bind.path.absolute(), bind.path.resolve()):
            before = by_path.get(path)
            writable = bind.writable or (before is not None and before.writable)
            by_path[path] = Bind(bind.path.resolve() if bind.target else path, writable, bind.target)
    return [by_path[path] for path in sorted(by_path, key=lambda path: (len(path.parts), str(path)))]


def private_mounts(scratch: Path, bound: Sequence[Bind]) -> list[tuple[Path, Path]]:
    """Create /tmp and /var/tmp in `scratch`, with mount points for binds; return each with its path."""
    private_home(scratch)
    taken = {bind.inside for bind in bound}
    pairs = [(inside(scratch, path), path) for path in TEMPORARY if path not in taken]
    for bind in bound:
        for _, path in pairs:
            if bind.inside.is_relative_to(path):
                make_mount_point(inside(scratch, bind.inside), bind.path)
    return pairs


def ca_bundle() -> Path | None:
    """Return the file of certificates that the host trusts, with symbolic links resolved."""
    for text in (os.environ.get("SSL_CERT_FILE", ""), *_BUNDLES):
        if text and Path(text).is_file():
            return Path(text).resolve()
    return None


def _network_variables() -> Mapping[str, str]:
    """Return the variables of proxies and certificates; many images contain no certificates."""
    proxies = {name: os.environ[name] for name in _PROXIES if name in os.environ}
    bundle = ca_bundle()
    return proxies | (dict.fromkeys(CERTIFICATE_VARIABLES, str(bundle)) if bundle else {})
