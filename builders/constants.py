"""Names and defaults that several modules share."""

from __future__ import annotations

import errno
from pathlib import Path

LOCK_FILE = Path("matrix.lock")
INDEX_DIRECTORY = Path("index")
CERTIFICATE_VARIABLES = (
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO",
)  # fmt: skip
"""Variables that name a file of certificates."""
BIND_SEPARATORS = frozenset(":,\\\n")
"""Characters that end a path in a bind specification of a container runtime."""
MOUNT_POINT = "/mnt"
"""Where scripts bind a directory into a container; base images have it."""
MOUNTED_INDEX = f"file://{MOUNT_POINT}/simple"
"""The index as a build inside a container sees it."""
END_ALL_ON_SIGNAL = """trap 'kill -TERM -1; exit 143' TERM INT HUP
"$@" &
wait $!"""
"""End of a shell script that is process 1 of a PID namespace: run its arguments, and end all processes on a
signal."""
SOURCE_DATE_EPOCH = "315532800"
"""1980-01-01, the oldest time that a zip archive can hold. The wheel must not contain the build time."""
NO_COMPILER_CACHE = "none"
"""The value of ``--compiler-cache`` that disables the cache."""
CONNECTIONS = 16
"""Number of connections to one server at the same time."""
MISSING_CODES = frozenset({404, 410})
"""HTTP status codes of a page or file that the server does not have."""
MODULES = {
    "cpuinfo": "py-cpuinfo",
    "cv2": "opencv-python",
    "git": "gitpython",
    "pil": "pillow",
    "pkg-resources": "setuptools",
    "distutils": "setuptools",
    "skbuild": "scikit-build",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Modules whose distribution has another name. For other modules, both names are assumed to be equal."""
TAKEN_OUT = {
    "cgi": "legacy-cgi",
    "cgitb": "legacy-cgi",
    "distutils": "setuptools",
    "pkg_resources": "setuptools<82",
}
"""Modules that newer releases lack, and the requirement that brings each back: Python 3.12 (distutils, which
setuptools has), Python 3.13 (cgi and cgitb, by its documentation), setuptools 82 (pkg_resources,
by its history)."""
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers of a full disk, an exceeded quota, and the limit of file sizes."""
OUT_OF_MEMORY = "out-of-memory"
"""Id of the failure of a build that more memory, or fewer compile jobs, can prevent."""
SQUASHFS_MAGIC = b"hsqs"
"""The first bytes of a squashfs."""
