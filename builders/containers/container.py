"""The variables, mounts and private /tmp of every container.

A shell in the container sets the variables, because runtimes differ in how they accept them and in whether
they keep the image's PATH.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from builders.constants import BIND_SEPARATORS, CERTIFICATE_VARIABLES, END_ALL_ON_SIGNAL
from builders.containers.runtime import Bind, View
from builders.containers.sandbox import HOME, TEMPORARY, inside, make_mount_point, private_home
from resolver.errors import UsageError

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
    """Return the paths to bind for a view, parents before their children.

    A path through a symbolic link is bound under its real path as well: programs resolve links.
    """
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
    """Return pairs of a directory below `scratch` and its path in the container: /tmp and /var/tmp.

    Mount points for binds below /tmp are created.
    """
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
