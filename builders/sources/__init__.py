"""Sources of wheels: fetched before a build, checked against their pin, unpacked and patched."""

from builders.network.download import Downloads
from builders.network.urls import check_mirrors, mirrored, without_password
from builders.sources.fetch import (
    FetchedItem,
    FetchResult,
    MissingItem,
    fetch_all,
    fetch_file,
    fetch_published,
)
from builders.sources.source import Source, fetch_sdist, index_url, obtain, patches_of, unpack_sdist

__all__ = [
    "Downloads",
    "FetchResult",
    "FetchedItem",
    "MissingItem",
    "Source",
    "check_mirrors",
    "fetch_all",
    "fetch_file",
    "fetch_published",
    "fetch_sdist",
    "index_url",
    "mirrored",
    "obtain",
    "patches_of",
    "unpack_sdist",
    "without_password",
]
