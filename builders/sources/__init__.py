"""Sources: fetched before anything is built, checked against their pin, and unpacked safely."""

from builders.sources.everything import Haul, Item, Missing, fetch_all
from builders.sources.mirrors import check_mirrors, mirrored
from builders.sources.obtain import Source, obtain
from builders.sources.patches import patches_of
from builders.sources.sdist import fetch_sdist, index_url, project_page
from builders.sources.unpack import unpack_sdist
from resolver.errors import HashMismatchError, SourceError

__all__ = [
    "HashMismatchError",
    "Haul",
    "Item",
    "Missing",
    "Source",
    "SourceError",
    "check_mirrors",
    "fetch_all",
    "fetch_sdist",
    "index_url",
    "mirrored",
    "obtain",
    "patches_of",
    "project_page",
    "unpack_sdist",
]
