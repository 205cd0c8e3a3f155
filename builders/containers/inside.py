"""What a program in a container is given: its variables, its mounts, its /tmp.

The same for every runtime. Variables are set by a shell inside, since runtimes differ in how they
take them and in what becomes of the image's own PATH.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from builders.containers.runtime import Bind
from resolver.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builders.containers.runtime import View

HOME = Path("/tmp/home")  # noqa: S108  inside the container, where /tmp is private
_TEMPORARY = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108
_FIXED = {
    "HOME": str(HOME),
    "TMPDIR": str(_TEMPORARY[0]),
    "LANG": "C.UTF-8",
    "PYTHONNOUSERSITE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_BUNDLE_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO")
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu
    "/var/lib/ca-certificates/ca-bundle.pem",  # SUSE
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
)
_AS_FIRST = """trap 'kill -TERM -1; exit 143' TERM INT HUP
"$@" &
wait $!"""
_SEPARATORS = set(":,\\\n")  # what runtimes read as the end of a path


def script(view: View, *, first_process: bool = False) -> str:
    """Give the shell script that sets the scene and then becomes the program, its arguments.

    Variables of the image stay as they are unless the view sets them; directories of the view come
    before the image's PATH.

    Parameters
    ----------
    first_process
        Whether the shell is process 1 of its PID namespace. The kernel keeps from that one every
        signal that it does not ask for, so the shell stays and ends all others (pid_namespaces(7)).
    """
    variables = dict(_FIXED)
    if view.network:
        variables |= _network_variables()
    lines = [f"export {name}={shlex.quote(value)}" for name, value in (variables | dict(view.env)).items()]
    if view.path:
        own = shlex.quote(":".join(str(one) for one in view.path))
        lines.append(f'export PATH={own}"${{PATH:+:$PATH}}"')
    if view.cwd is not None:
        lines.append(f"cd {shlex.quote(str(view.cwd))} || exit")
    return "\n".join([*lines, _AS_FIRST if first_process else 'exec "$@"'])


def binds(view: View) -> list[Bind]:
    """Give what is bound in, parents before what is inside them.

    A path that goes through a symbolic link is bound under its real path as well: programs ask for it.

    Raises
    ------
    UsageError
        A path has a character that the runtimes cannot take, or does not exist.
    """
    wanted = list(view.binds)
    if view.network:
        wanted += [Bind(path) for path in (ca_bundle(),) if path]
    found: dict[Path, Bind] = {}
    for bind in wanted:
        if _SEPARATORS & {*str(bind.path), *str(bind.inside)}:
            msg = f"{str(bind.path)!r} cannot be bound into a container: the name has one of : , \\"
            raise UsageError(msg, hint="Work in a directory without these characters.")
        if not bind.path.exists():
            msg = f"{bind.path} is to be seen inside the container, but does not exist."
            raise UsageError(msg)
        for path in (bind.target,) if bind.target else (bind.path.absolute(), bind.path.resolve()):
            before = found.get(path)
            writable = bind.writable or (before is not None and before.writable)
            found[path] = Bind(bind.path.resolve() if bind.target else path, writable, bind.target)
    return [found[path] for path in sorted(found, key=lambda one: (len(one.parts), str(one)))]


class Temporary:
    """The directory that is /tmp and /var/tmp inside; gone when nobody holds it any longer.

    Parameters
    ----------
    parent
        Where it is made; the system's own temporary directory when None.
    """

    def __init__(self, parent: Path | None = None) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="matrix-tmp-", dir=parent))
        weakref.finalize(self, shutil.rmtree, self.root, ignore_errors=True)
        for path in (*_TEMPORARY, HOME):
            self._own(path).mkdir(parents=True, exist_ok=True)

    def mounts(self, bound: Sequence[Bind]) -> list[tuple[Path, Path]]:
        """Give pairs of a directory out here and what it is inside, with mount points for what goes below."""
        taken = {bind.inside for bind in bound}
        pairs = [(self._own(path), path) for path in _TEMPORARY if path not in taken]
        for bind in bound:
            for _, inside in pairs:
                if bind.inside.is_relative_to(inside):
                    _mount_point(self._own(bind.inside), bind.path)
        return pairs

    def _own(self, path: Path) -> Path:
        return self.root / path.relative_to("/")


def _mount_point(path: Path, like: Path) -> None:
    if like.is_dir():
        path.mkdir(parents=True, exist_ok=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def ca_bundle() -> Path | None:
    """Find the file of certificates that this machine trusts, the one behind any symbolic link."""
    named = os.environ.get("SSL_CERT_FILE", "")
    for text in (named, *_BUNDLES):
        if text and Path(text).is_file():
            return Path(text).resolve()
    return None


def _network_variables() -> dict[str, str]:
    """Give the variables of proxies and certificates; images often have no certificates of their own."""
    found = {name: os.environ[name] for name in _PROXIES if name in os.environ}
    bundle = ca_bundle()
    return found | (dict.fromkeys(_BUNDLE_VARIABLES, str(bundle)) if bundle else {})
